//! A TUN device of the packet engine as a WireGuard interface of the kernel: a link with a key and
//! a port, peers, allowed IPs and sessions. The kernel itself handles addresses and routes, as for
//! other links.

use super::{Device, Tunnel, UserspaceKernel};
use async_trait::async_trait;
use netstate::{
    ExistingState, FailureKind, KernelError, Key, LinkKind, LinkName, LinkSpec, Op, OpError, Scope,
    Session, Value, WireguardKernel, WireguardPeer, WireguardSpec,
};
use packet_engine::{EngineConfig, TableSettings};
use std::sync::Arc;
use std::time::SystemTime;
use types::Addresses;

struct Wireguard {
    name: LinkName,
    /// Peers, keys and allowed IPs.
    device: Arc<wireguard_userspace::Device>,
    spec: WireguardSpec,
}

impl Tunnel for Wireguard {
    fn present(&self, kind: &mut LinkKind, is_open: bool) {
        match kind {
            LinkKind::Tun { .. } if is_open => *kind = LinkKind::Wireguard(self.spec.clone()),
            // The kernel's interface of that name, left by another configuration, is to be replaced.
            LinkKind::Wireguard(_) => *kind = LinkKind::Tun { held: false },
            _ => {}
        }
    }

    fn add_to(&self, found: &mut ExistingState) {
        let (now, name) = (SystemTime::now(), self.name);
        for status in self.device.peers() {
            let key = status.key;
            let session = Session {
                handshake: status.handshake.map(|at| now.duration_since(at).unwrap_or_default()),
                handshake_at: status
                    .handshake
                    .map(|at| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()),
                received: status.received,
                sent: status.sent,
            };
            let peer = WireguardPeer {
                endpoint: status.state.endpoint,
                preshared: status.state.preshared,
                keepalive: status.state.keepalive,
            };
            found.sessions.insert((name, key), session);
            found.ours.set(Key::WireguardPeer(name, key), Value::WireguardPeer(Box::new(peer)));
            status.state.allowed.into_iter().for_each(|net| {
                found.ours.set(Key::AllowedIp(name, net), Value::AllowedIp(key));
            });
        }
    }

    fn configure(&mut self, spec: &LinkSpec) -> Option<u16> {
        let LinkKind::Wireguard(own) = &spec.kind else { return None };
        let mut change = self.device.change();
        change.set_mtu(u16::try_from(spec.mtu).unwrap_or(u16::MAX));
        if let Some(key) = &own.key {
            change.set_private_key(key.clone());
        }
        self.spec = own.clone();
        Some(own.port)
    }

    fn apply(&self, ops: &[Op]) -> Vec<OpError> {
        let mut change = self.device.change();
        let mut errors = Vec::new();
        for op in ops {
            let result = match op {
                Op::Add(Key::WireguardPeer(_, key), Value::WireguardPeer(peer))
                | Op::Replace(Key::WireguardPeer(_, key), Value::WireguardPeer(peer)) => {
                    change.set_peer(*key, peer.endpoint, peer.preshared.clone(), peer.keepalive)
                }
                Op::Add(Key::AllowedIp(_, net), Value::AllowedIp(key))
                | Op::Replace(Key::AllowedIp(_, net), Value::AllowedIp(key)) => {
                    change.set_allowed_ip(*net, *key)
                }
                Op::Delete(Key::WireguardPeer(_, key), _) => {
                    change.remove_peer(key);
                    Ok(())
                }
                Op::Delete(Key::AllowedIp(_, net), Value::AllowedIp(key)) => {
                    change.remove_allowed_ip(*net, key);
                    Ok(())
                }
                _ => Ok(()),
            };
            errors.extend(result.err().map(|error| OpError::new(op, FailureKind::Other, error)));
        }
        errors
    }

    fn is_configured(&self) -> bool {
        self.spec.key.is_some()
    }

    fn clear(&self) {
        self.device.change().clear();
    }
}

impl UserspaceKernel {
    /// Adds a WireGuard interface that listens at the addresses `listen`. The engine opens the TUN
    /// device when the reconciler adds the link. A device of the previous process is adopted first
    /// and waits for peers from the reconciler.
    pub(crate) fn wireguard(&mut self, name: LinkName, config: EngineConfig, listen: Addresses) {
        let spec = WireguardSpec { key: None, port: config.port };
        // Keys decide which peer may send which packets, so the forwarding table is not used.
        let mut base = Device::new(self.store.as_ref(), name, config, TableSettings::default());
        let device = wireguard_userspace::Device::encrypting(&mut base.engine);
        base.listen = Some(listen);
        base.tunnel = Some(Box::new(Wireguard { name, device, spec }));
        self.devices.push(base);
    }
}

/// The peers live in the engines, so the wrapped kernel is not asked. A session starts with the
/// first packet.
#[async_trait]
impl WireguardKernel for UserspaceKernel {
    async fn read_peers(&mut self, _scope: &Scope) -> Result<ExistingState, KernelError> {
        let mut found = ExistingState::default();
        for device in self.devices.iter().filter(|device| device.is_open()) {
            if let Some(tunnel) = &device.tunnel {
                tunnel.add_to(&mut found);
            }
        }
        Ok(found)
    }
}
