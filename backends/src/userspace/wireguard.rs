//! A [`Kernel`] in which some WireGuard interfaces are TUN devices of the packet engine. The plan
//! and the reconciler treat them as kernel interfaces: links with a key and a port, peers, allowed
//! IPs and sessions. The kernel itself handles addresses and routes, as for other links.

use super::{EngineDevice, take_inheritance};
use crate::handover::Files;
use async_trait::async_trait;
use netstate::kernel::{
    ExistingState, Facts, FailureKind, Kernel, KernelError, OpError, WireguardKernel,
};
use netstate::names::LinkName;
use netstate::object::link::tun::TunSpec;
use netstate::object::link::wireguard::WireguardSpec;
use netstate::object::link::{LinkKind, LinkSpec};
use netstate::object::wireguard_peer::{Session, WireguardPeer};
use netstate::object::{KernelState, Key, Op, Value};
use netstate::report::survey::Survey;
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use packet_engine::counters::Counters;
use packet_engine::engine::Engine;
use packet_engine::engine::config::EngineConfig;
use packet_engine::error::EngineError;
use packet_engine::features::Features;
use packet_engine::packet::framing::Framing;
use packet_engine::table::{Checks, Networks, Table, TableSettings};
use packet_engine::wireguard as engine;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;
use types::Addresses;

struct Tunnel {
    base: EngineDevice,
    /// Peers, keys and allowed IPs.
    device: Arc<engine::Device>,
    listen: Addresses,
    spec: WireguardSpec,
    /// The adopted device still waits for peers from the reconciler.
    waits: bool,
}

impl Tunnel {
    /// Opens the TUN device and the sockets if necessary, and starts to forward packets.
    fn open(&mut self, files: &Files) -> Result<(), EngineError> {
        self.waits = false;
        let result = self.base.open(self.listen);
        self.base.conclude(result, files)
    }

    /// Immediately binds the sockets of an open device to a new port.
    fn set(&mut self, spec: &WireguardSpec, mtu: u32, files: &Files) -> Result<(), EngineError> {
        let mut change = self.device.change();
        change.set_mtu(u16::try_from(mtu).unwrap_or(u16::MAX));
        if let Some(key) = &spec.key {
            change.set_private_key(key.clone());
        }
        drop(change);
        self.spec = spec.clone();
        self.base.engine.set_port(spec.port);
        if !self.base.is_open() || self.waits {
            return Ok(());
        }
        let result = self.base.rebind(self.listen);
        self.base.conclude(result, files)
    }

    /// The device's peers, allowed IPs and sessions.
    fn add_to(&self, found: &mut ExistingState) {
        let (now, name) = (SystemTime::now(), self.base.name);
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

    /// Makes the open TUN device look like a WireGuard interface of the kernel. A real one of the
    /// same name looks like a TUN device, so the reconciler replaces it.
    fn present(&self, found: &mut ExistingState) {
        let (held, name) = (self.base.is_open(), self.base.name);
        let Some(Value::Link(spec)) = found.ours.0.get_mut(&Key::Link(name)) else {
            return;
        };
        match &mut spec.kind {
            kind @ LinkKind::Tun(_) if held => *kind = LinkKind::Wireguard(self.spec.clone()),
            // The kernel's interface of that name, left by another configuration, is to be replaced.
            kind @ LinkKind::Wireguard(_) => *kind = LinkKind::Tun(TunSpec { held: false }),
            _ => {}
        }
        let theirs = |key: &Key| matches!(key, Key::WireguardPeer(on, _) | Key::AllowedIp(on, _) if *on == name);
        found.ours.0.retain(|key, _| !theirs(key));
        found.sessions.retain(|(on, _), _| *on != name);
        if held {
            self.add_to(found);
        }
    }

    /// As a single change of the device.
    fn apply(&self, ops: &[&Op]) -> Vec<OpError> {
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
}

/// Converts an operation on a WireGuard interface to one on the TUN device in the kernel.
fn as_tun(op: &Op) -> Op {
    let tun = |spec: &LinkSpec| {
        Value::Link(Box::new(LinkSpec {
            kind: LinkKind::Tun(TunSpec { held: true }),
            ..spec.clone()
        }))
    };
    match op {
        // The engine made the device, so its properties are set as on any existing link.
        Op::Add(key, Value::Link(spec)) | Op::Replace(key, Value::Link(spec)) => {
            Op::Replace(*key, tun(spec))
        }
        Op::Delete(key, Value::Link(spec)) => Op::Delete(*key, tun(spec)),
        other => other.clone(),
    }
}

pub(crate) struct WireguardUserspace<K> {
    kernel: K,
    tunnels: Vec<Tunnel>,
    files: Files,
}

impl<K: Kernel> WireguardUserspace<K> {
    pub(crate) fn new(kernel: K, files: Files) -> Self {
        Self { kernel, tunnels: Vec::new(), files }
    }

    /// Adds a WireGuard interface that listens on `port` at the addresses `listen`. `sources` are
    /// its addresses, from which the packet engine sends ICMP errors to pods. The engine opens the
    /// TUN device when the reconciler adds the link. A device of the previous process is adopted at
    /// once and waits for peers from the reconciler.
    pub(crate) fn device(
        &mut self,
        name: LinkName,
        port: u16,
        listen: Addresses,
        features: Features,
        sources: Option<Addresses>,
    ) {
        let (inherited, left) = take_inheritance(&self.files, name);
        let config = EngineConfig {
            device: name.to_string(),
            framing: Framing::WireGuard,
            port,
            spread: false,
            features,
            sources,
        };
        // Keys decide which peer may send which packets, so the engine checks no addresses.
        let settings = TableSettings {
            networks: Networks::default(),
            own: Networks::default(),
            checks: Checks::Off,
            mtu: u16::MAX,
            routed: false,
            encap_port: port,
            address: None,
        };
        let (engine, device) =
            Engine::new_with_wireguard(config, Table::build(settings, []), inherited);
        let mut base = EngineDevice::new(name, engine, left);
        let waits = base.engine.adopt_inherited_device(listen);
        if waits {
            tracing::info!(device = %name, "adopted the device and sockets of the previous process");
        }
        base.note_inherited();
        let spec = WireguardSpec { key: None, port };
        self.tunnels.push(Tunnel { base, device, listen, spec, waits });
    }

    /// The first field is the device.
    pub(crate) fn counters(&self) -> Vec<(String, Arc<Counters>)> {
        self.tunnels.iter().map(|tunnel| tunnel.base.counters()).collect()
    }

    /// The tunnel whose link, peers or allowed IPs an operation changes.
    fn place(&self, op: &Op) -> Option<usize> {
        let name = match op.key() {
            Key::Link(name) | Key::WireguardPeer(name, _) | Key::AllowedIp(name, _) => *name,
            _ => return None,
        };
        self.tunnels.iter().position(|tunnel| tunnel.base.name == name)
    }

    async fn apply_link(&mut self, place: usize, op: &Op) -> Vec<OpError> {
        let Some(tunnel) = self.tunnels.get_mut(place) else {
            return Vec::new();
        };
        let result = match op {
            Op::Add(_, Value::Link(spec)) | Op::Replace(_, Value::Link(spec)) => {
                match (&spec.kind, op) {
                    (LinkKind::Wireguard(own), Op::Add(..)) => tunnel
                        .set(own, spec.mtu, &self.files)
                        .and_then(|()| tunnel.open(&self.files)),
                    (LinkKind::Wireguard(own), _) => tunnel.set(own, spec.mtu, &self.files),
                    _ => Ok(()),
                }
            }
            Op::Delete(..) => {
                tunnel.base.close();
                tunnel.device.change().clear();
                tunnel.base.store(&self.files);
                Ok(())
            }
            _ => Ok(()),
        };
        // The device exists even if its port is taken.
        let mut errors: Vec<OpError> = result
            .err()
            .into_iter()
            .map(|error| OpError::new(op, FailureKind::Conflict, error))
            .collect();
        if errors.is_empty() || tunnel.base.is_open() {
            errors.extend(self.kernel.apply(&[as_tun(op)]).await);
        }
        errors
    }
}

#[async_trait]
impl<K: Kernel> Kernel for WireguardUserspace<K> {
    async fn read(
        &mut self,
        scope: &Scope,
        want: &KernelState,
    ) -> Result<ExistingState, KernelError> {
        let mut found = self.kernel.read(scope, want).await?;
        self.tunnels.iter().for_each(|tunnel| tunnel.present(&mut found));
        Ok(found)
    }

    async fn survey(&mut self, scope: &Scope) -> Result<Survey, KernelError> {
        self.kernel.survey(scope).await
    }

    async fn facts(
        &mut self,
        underlay: &Underlay,
        queries: &[IpAddr],
    ) -> Result<Facts, KernelError> {
        for tunnel in &mut self.tunnels {
            // The port may be free again. A device that is not open is opened when its link is added.
            if tunnel.base.problem.is_some() && tunnel.base.is_open() && !tunnel.waits {
                let _ = tunnel.open(&self.files);
            }
        }
        self.kernel.facts(underlay, queries).await
    }

    async fn apply(&mut self, ops: &[Op]) -> Vec<OpError> {
        let mut errors = Vec::new();
        let mut rest = ops;
        while let Some(first) = rest.first() {
            let place = self.place(first);
            let is_link = |op: &Op| matches!(op.key(), Key::Link(_));
            // A run is either operations on one interface's peers, one link, or operations for the wrapped kernel.
            let run = match place {
                Some(_) if is_link(first) => 1,
                _ => rest
                    .iter()
                    .take_while(|op| self.place(op) == place && (place.is_none() || !is_link(op)))
                    .count(),
            };
            let (now, later) = rest.split_at(run.max(1));
            match place {
                None => errors.extend(self.kernel.apply(now).await),
                Some(place) if is_link(first) => errors.extend(self.apply_link(place, first).await),
                Some(place) => {
                    let ops: Vec<&Op> = now.iter().collect();
                    errors.extend(
                        self.tunnels.get(place).into_iter().flat_map(|tunnel| tunnel.apply(&ops)),
                    );
                }
            }
            rest = later;
        }
        // Reading starts only after the peers are set. Otherwise packets that wait in an adopted device and its sockets would find no peer.
        for tunnel in
            self.tunnels.iter_mut().filter(|tunnel| tunnel.waits && tunnel.spec.key.is_some())
        {
            let _ = tunnel.open(&self.files);
        }
        errors
    }

    async fn on_link(&mut self, queries: &[IpAddr]) -> BTreeSet<IpAddr> {
        self.kernel.on_link(queries).await
    }

    async fn wait_for_change(&mut self, scope: &Scope, known: Option<&KernelState>) {
        self.kernel.wait_for_change(scope, known).await;
    }

    fn change_pending(&mut self, scope: &Scope, known: Option<&KernelState>) -> bool {
        // A full pass retries to bind.
        self.kernel.change_pending(scope, known)
            || self.tunnels.iter().any(|tunnel| tunnel.base.problem.is_some())
    }
}

/// The peers live in the engines, so the wrapped kernel is not asked. A session starts with the
/// first packet.
#[async_trait]
impl<K: Kernel> WireguardKernel for WireguardUserspace<K> {
    async fn read_peers(&mut self, _scope: &Scope) -> Result<ExistingState, KernelError> {
        let mut found = ExistingState::default();
        self.tunnels
            .iter()
            .filter(|tunnel| tunnel.base.is_open())
            .for_each(|tunnel| tunnel.add_to(&mut found));
        Ok(found)
    }
}
