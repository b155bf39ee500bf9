//! WireGuard over generic netlink (linux/genetlink.h, linux/wireguard.h): keys and ports of
//! interfaces, and lists of their peers.

use super::NetlinkKernel;
use super::apply::op_result;
use super::generic::Generic;
use crate::kernel::{ExistingState, FailureKind, OpError, WireguardKernel};
use crate::names::LinkName;
use crate::object::link::wireguard::WireguardSpec;
use crate::object::wireguard_peer::{self, KEY, PublicKey, Secret, SeenPeer};
use crate::object::{Key, Op, Value};
use crate::scope::Scope;
use async_trait::async_trait;
use ipnet::IpNet;
use netlink::uapi::*;
use netlink::wire;
use netlink::{KernelError, Message, Query, Received, RequestError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use types::Detail;

/// The maximum in one netlink message, whose length is at most 64 KiB.
const OPERATIONS: usize = 200;

/// As the kernel reports it.
#[derive(Default)]
struct Device {
    spec: WireguardSpec,
    peers: Vec<SeenPeer>,
}

impl Generic {
    fn device(&mut self, index: u32) -> Result<Device, KernelError> {
        let message = Message::new(self.family, 0, &[WG_CMD_GET_DEVICE, WG_GENL_VERSION, 0, 0])
            .number(WGDEVICE_A_IFINDEX, index);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let query = Query::new("WireGuard peers", message);
        self.client.fold_dump(&query, Device::default, |device, message| {
            decode_device(device, message, now);
        })
    }

    fn setting(&self, index: u32) -> Message {
        Message::new(self.family, 0, &[WG_CMD_SET_DEVICE, WG_GENL_VERSION, 0, 0])
            .number(WGDEVICE_A_IFINDEX, index)
    }

    /// Frees a UDP port that other interfaces of flannel use, because two interfaces cannot
    /// exchange their ports in two requests. The kernel gives each of them an unused port.
    fn vacate(&mut self, port: u16, interfaces: Vec<u32>) -> bool {
        let mut done = false;
        for index in interfaces {
            if !self.device(index).is_ok_and(|device| device.spec.port == port) {
                continue;
            }
            // The kernel chooses a free port.
            let message = self.setting(index).attr(WGDEVICE_A_LISTEN_PORT, &0u16.to_ne_bytes());
            done |= self.client.request(message).is_ok();
        }
        done
    }
}

/// The peer whose allowed IPs contain exactly the network `net`.
pub(crate) fn find_peer(index: u32, net: IpNet) -> Result<Option<SeenPeer>, KernelError> {
    let device = Generic::open()?.device(index)?;
    Ok(device.peers.into_iter().find(|seen| seen.allowed.contains(&net)))
}

#[async_trait]
impl WireguardKernel for NetlinkKernel {
    /// Reads the interfaces that were flannel's WireGuard interfaces at the last full read.
    async fn read_peers(&mut self, scope: &Scope) -> Result<ExistingState, KernelError> {
        let mut found = ExistingState::default();
        for (name, index) in self.wireguards.clone() {
            self.wireguard(scope, name, index, &mut found)?;
        }
        Ok(found)
    }

    /// Failures are ignored, because the first packet to a peer also starts the session.
    async fn greet(&mut self, peers: &[(LinkName, PublicKey)]) {
        for (name, index) in self.wireguards.clone() {
            let Ok(generic) = self.generic() else {
                return;
            };
            let of_it: Vec<&PublicKey> =
                peers.iter().filter(|(link, _)| *link == name).map(|(_, key)| key).collect();
            let messages = of_it.chunks(OPERATIONS).map(|part| {
                generic.setting(index).nest(WGDEVICE_A_PEERS, |list| {
                    part.iter().fold(list, |list, key| wireguard_peer::greet(list, key))
                })
            });
            let messages = messages.collect();
            generic.client.batch(messages);
        }
    }
}

impl NetlinkKernel {
    fn generic(&mut self) -> Result<&mut Generic, KernelError> {
        let generic = match self.generic.take() {
            Some(generic) => generic,
            None => Generic::open()?,
        };
        Ok(self.generic.insert(generic))
    }

    /// Adds flannel's peers on the interface to `found`.
    pub(crate) fn wireguard(
        &mut self,
        scope: &Scope,
        name: LinkName,
        index: u32,
        found: &mut ExistingState,
    ) -> Result<WireguardSpec, KernelError> {
        let device = self.generic()?.device(index);
        if device.is_err() {
            // The number of the family changes when the module is loaded again.
            self.generic = None;
        }
        let device = device?;
        add_peers(name, device.peers, scope, found);
        Ok(device.spec)
    }

    pub(super) fn set_wireguard(
        &mut self,
        index: u32,
        spec: &WireguardSpec,
        op: &Op,
    ) -> Result<(), OpError> {
        let links = self.wireguards.iter().map(|(_, link)| *link);
        let others = links.filter(|link| *link != index).collect();
        let generic = self.generic().map_err(|error| not_configured(op, error))?;
        let setting = |generic: &Generic| {
            let message =
                generic.setting(index).attr(WGDEVICE_A_LISTEN_PORT, &spec.port.to_ne_bytes());
            match &spec.key {
                Some(key) => message.attr(WGDEVICE_A_PRIVATE_KEY, key.bytes()),
                None => message,
            }
        };
        let mut answer = generic.client.request(setting(generic));
        if answer.as_ref().err().and_then(RequestError::errno) == Some(libc::EADDRINUSE)
            && generic.vacate(spec.port, others)
        {
            answer = generic.client.request(setting(generic));
        }
        op_result(op, answer)
    }

    /// The operations are on the peers and allowed IPs of one interface.
    pub(super) fn apply_wireguard(&mut self, index: u32, ops: &[&Op]) -> Vec<OpError> {
        let generic = match self.generic() {
            Ok(generic) => generic,
            Err(error) => {
                return ops.iter().map(|op| not_configured(op, error.clone())).collect();
            }
        };
        let message = |generic: &Generic, ops: &[&Op]| {
            generic.setting(index).nest(WGDEVICE_A_PEERS, |list| {
                ops.iter().fold(list, |list, op| encode_peers(op, list))
            })
        };
        let mut errors = Vec::new();
        for part in ops.chunks(OPERATIONS) {
            let together = message(generic, part);
            if generic.client.request(together).is_ok() {
                continue;
            }
            // Sent one by one, to find out which one is refused. Operations that took effect are repeated.
            let each = part.iter().map(|op| message(generic, &[op])).collect();
            let answers = generic.client.batch(each);
            let results = part.iter().zip(answers).map(|(op, answer)| op_result(op, answer));
            errors.extend(results.filter_map(Result::err));
        }
        errors
    }
}

/// Adds flannel's peers on the interface to `found`.
fn add_peers(name: LinkName, peers: Vec<SeenPeer>, scope: &Scope, found: &mut ExistingState) {
    // Collected first: a map that is built in one go needs half the memory, and the peers are read every few seconds.
    let (mut ours, mut sessions) =
        (Vec::with_capacity(peers.len() * 2), Vec::with_capacity(peers.len()));
    for seen in peers {
        // Flannel's former networks count too.
        let is_inside = |net: &IpNet| scope.covers(net) || scope.covered(net);
        let (inside, outside): (Vec<IpNet>, Vec<IpNet>) =
            seen.allowed.into_iter().partition(is_inside);
        // An operator's peer. A peer without allowed IPs is a leftover of flannel's.
        if inside.is_empty() && !outside.is_empty() {
            continue;
        }
        let key = Key::WireguardPeer(name, seen.key);
        if !outside.is_empty() {
            found.mixed.insert(key);
        }
        let allowed = |net| (Key::AllowedIp(name, net), Value::AllowedIp(seen.key));
        ours.extend(inside.into_iter().map(allowed));
        ours.push((key, Value::WireguardPeer(Box::new(seen.peer))));
        sessions.push(((name, seen.key), seen.session));
    }
    found.ours.add(ours);
    found.sessions.append(&mut sessions.into_iter().collect());
}

/// A kernel that did not answer may have WireGuard.
fn not_configured(op: &Op, error: KernelError) -> OpError {
    let kind = match error.why.detail {
        Detail::ModuleMissing { .. } => FailureKind::Unsupported,
        _ => FailureKind::Other,
    };
    OpError::new(op, kind, error.why)
}

fn decode_device(device: &mut Device, message: &Received<'_>, now: Duration) {
    for (kind, value) in wire::read_attrs(message.body, GENLMSG) {
        match kind {
            WGDEVICE_A_PRIVATE_KEY => {
                device.spec.key =
                    value.try_into().ok().filter(|key| *key != [0; KEY]).map(Secret::new);
            }
            WGDEVICE_A_LISTEN_PORT => device.spec.port = wire::u16_at(value, 0).unwrap_or(0),
            WGDEVICE_A_PEERS => {
                for seen in
                    wire::read_attrs(value, 0).filter_map(|(_, value)| SeenPeer::decode(value, now))
                {
                    match device.peers.last_mut() {
                        // The list of a peer's allowed IPs is continued in the next message.
                        Some(last) if last.key == seen.key => last.allowed.extend(seen.allowed),
                        _ => device.peers.push(seen),
                    }
                }
            }
            _ => {}
        }
    }
}

fn encode_peers(op: &Op, list: Message) -> Message {
    match (op.key(), op.value(), op.is_deletion()) {
        (Key::WireguardPeer(_, key), _, true) => wireguard_peer::remove_peer(list, key),
        (Key::WireguardPeer(_, key), Value::WireguardPeer(peer), false) => {
            wireguard_peer::set_peer(list, key, peer)
        }
        (Key::AllowedIp(_, net), _, true) => wireguard_peer::remove_allowed_ip(list, net),
        (Key::AllowedIp(_, net), Value::AllowedIp(peer), false) => {
            wireguard_peer::set_allowed_ip(list, net, peer)
        }
        _ => list,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::wireguard_peer::{Session, WireguardPeer};
    use proptest::prelude::*;

    /// Encodes operations as a message and decodes it as if the kernel had sent it.
    fn device_of(ops: &[&Op]) -> Device {
        let message = Message::new(30, 0, &[WG_CMD_SET_DEVICE, WG_GENL_VERSION, 0, 0])
            .attr(WGDEVICE_A_LISTEN_PORT, &51820u16.to_ne_bytes())
            .nest(WGDEVICE_A_PEERS, |list| {
                ops.iter().fold(list, |list, op| encode_peers(op, list))
            });
        let mut devices = message.read_back(|message| {
            let mut device = Device::default();
            decode_device(&mut device, message, Duration::from_secs(1));
            Some(device)
        });
        devices.remove(0)
    }

    #[test]
    fn peers_are_read_back() {
        let name = LinkName::parse("flannel-wg").unwrap();
        let (key, net) = (PublicKey([5; KEY]), "10.244.3.0/24".parse().unwrap());
        for endpoint in ["192.0.2.1:51820", "[2001:db8::1]:7"] {
            let peer = WireguardPeer {
                endpoint: endpoint.parse().ok(),
                preshared: Some(Secret::new([3; KEY])),
                keepalive: 25,
            };
            let device = device_of(&[
                &Op::Add(
                    Key::WireguardPeer(name, key),
                    Value::WireguardPeer(Box::new(peer.clone())),
                ),
                &Op::Replace(Key::AllowedIp(name, net), Value::AllowedIp(key)),
            ]);
            let [seen] = &device.peers[..] else { panic!("one peer") };
            assert_eq!(
                (seen.key, &seen.peer, &seen.allowed, device.spec.port),
                (key, &peer, &vec![net], 51820)
            );
        }
        // An allowed IP is moved to a peer that is deleted with it.
        let device = device_of(&[&Op::Delete(Key::AllowedIp(name, net), Value::AllowedIp(key))]);
        assert!(
            device.peers.len() == 1
                && device.peers[0].key != key
                && device.peers[0].allowed == [net]
        );
    }

    #[test]
    fn removed_peer_attributes_are_sent_to_the_kernel() {
        let (name, key) = (LinkName::parse("flannel-wg").unwrap(), PublicKey([5; KEY]));
        let peer = WireguardPeer { endpoint: None, preshared: None, keepalive: 0 };
        let op = Op::Replace(Key::WireguardPeer(name, key), Value::WireguardPeer(Box::new(peer)));
        let message =
            encode_peers(&op, Message::new(30, 0, &[WG_CMD_SET_DEVICE, WG_GENL_VERSION, 0, 0]));
        let peer = message.read_back(|message| {
            wire::read_attrs(message.body, GENLMSG).next().map(|(_, value)| value.to_vec())
        });
        let peer = peer.concat();
        // Without these attributes, the kernel would keep its values.
        assert_eq!(wire::read_nested(&peer, WGPEER_A_PRESHARED_KEY), Some(&[0; KEY][..]));
        assert_eq!(
            wire::read_nested(&peer, WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL),
            Some(&[0; 2][..])
        );
    }

    #[test]
    fn operators_peers_are_distinguished_from_ours() {
        let scope = Scope {
            links: Vec::new(),
            networks: types::Subnets::V4("10.244.0.0/16".parse().unwrap()),
            own: types::Subnets::V4("10.244.1.0/24".parse().unwrap()),
            former: Some(types::Subnets::V4("10.5.0.0/16".parse().unwrap())),
            protocol: 241,
            checksum_offload: false,
        };
        // Whether the peer is ours, and whether an operator added allowed IPs.
        for (allowed, is_ours, is_mixed) in [
            (vec!["10.244.3.0/24"], true, false),
            (vec![], true, false),
            (vec!["10.5.3.0/24"], true, false),
            (vec!["10.244.3.0/24", "192.168.9.0/24"], true, true),
            (vec!["10.0.0.0/8"], false, false),
            (vec!["::/0"], false, false),
        ] {
            let peer = WireguardPeer { endpoint: None, preshared: None, keepalive: 0 };
            let allowed: Vec<IpNet> = allowed.iter().map(|net| net.parse().unwrap()).collect();
            let (key, session) = (PublicKey([5; KEY]), Session::default());
            let seen = SeenPeer { key, peer, session, allowed: allowed.clone() };
            let (name, mut found) = (LinkName::parse("flannel-wg").unwrap(), Default::default());
            add_peers(name, vec![seen], &scope, &mut found);
            let ExistingState { ours, sessions, mixed, .. } = found;
            let key = Key::WireguardPeer(name, key);
            assert_eq!(
                (ours.0.contains_key(&key), mixed.contains(&key)),
                (is_ours, is_mixed),
                "{allowed:?}"
            );
            assert_eq!(sessions.len(), usize::from(is_ours), "{allowed:?}");
            let inside = allowed.len() - usize::from(is_mixed);
            assert_eq!(ours.0.len(), if is_ours { 1 + inside } else { 0 }, "{allowed:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let message = Received { kind: 30, flags: 0, sequence: 1, body: &bytes };
            decode_device(&mut Device::default(), &message, Duration::ZERO);
            let _ = SeenPeer::decode(&bytes, Duration::ZERO);
        }
    }
}
