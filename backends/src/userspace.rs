//! A [`Kernel`] in which some links are TUN devices of the packet engine. The reconciler treats
//! them like other links: it adds missing ones and deletes those of another type. This module
//! handles the files and threads of the devices.

pub(crate) mod handover;
#[cfg(feature = "wireguard-userspace")]
pub(crate) mod wireguard;

use crate::backend::Datapath;
use async_trait::async_trait;
use handover::{Store, StoredFiles};
use netlink::run_blocking;
use netstate::report::survey::Survey;
use netstate::{
    ExistingState, Facts, FailureKind, Forwarding, Kernel, KernelError, KernelState, Key, LinkKind,
    LinkName, LinkSpec, NetlinkKernel, NextHop, Op, OpError, Scope, Underlay, Value,
};
use packet_engine::table::Peer;
use packet_engine::{
    Checks, Counters, Engine, EngineConfig, Framing, Inheritance, Networks, Socket, Table,
    TableSettings, Tun,
};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Addresses, Family, Problem, Subnets};

/// A device whose peers are objects of the kernel state, as those of a WireGuard interface are.
/// Without it, they are forwarding entries.
trait Tunnel: Send + Sync {
    /// Makes the TUN device look like an interface of the kernel, if it is open in this process. A
    /// real one of the same name looks like a TUN device, so the reconciler replaces it.
    fn present(&self, kind: &mut LinkKind, is_open: bool);

    /// The peers and their sessions.
    fn add_to(&self, found: &mut ExistingState);

    /// Returns the port of the engine.
    fn configure(&mut self, spec: &LinkSpec) -> Option<u16>;

    /// Changes peers, as a single change of the device.
    fn apply(&self, ops: &[Op]) -> Vec<OpError>;

    /// The reconciler has configured the device.
    fn is_configured(&self) -> bool;

    /// Removes all peers.
    fn clear(&self);
}

struct Device {
    name: LinkName,
    engine: Engine,
    /// The family of the engine's datagrams; `None` if `listen` never changes.
    outer: Option<Family>,
    /// The local addresses of the engine's sockets.
    listen: Option<Addresses>,
    /// The settings of the engine's forwarding table.
    settings: TableSettings,
    tunnel: Option<Box<dyn Tunnel>>,
    /// This process has tried to adopt what the previous process stored.
    has_tried_adoption: bool,
    /// The adopted device still waits for its peers.
    waits: bool,
    /// Prevented the engine from starting or from binding its sockets; `None` while the engine
    /// works.
    problem: Option<Problem>,
    /// The device's files that are in the file store.
    queues: StoredFiles<Tun>,
    sockets: StoredFiles<Socket>,
}

impl Device {
    fn new(
        store: Option<&Arc<dyn Store>>,
        name: LinkName,
        config: EngineConfig,
        settings: TableSettings,
    ) -> Self {
        let (stored_queues, queues) = StoredFiles::take(store, format!("tun.{name}"));
        let (stored_sockets, sockets) = StoredFiles::take(store, format!("udp.{name}"));
        let inheritance = Inheritance { queues, sockets };
        Self {
            name,
            engine: Engine::new(config, Table::build(settings, []), inheritance),
            outer: None,
            listen: None,
            settings,
            tunnel: None,
            has_tried_adoption: false,
            waits: false,
            problem: None,
            queues: stored_queues,
            sockets: stored_sockets,
        }
    }

    /// The device exists and is open in this process.
    fn is_open(&self) -> bool {
        self.engine.device_index().is_some()
    }

    /// Follows the addresses of the underlay, and adopts the files of the previous process.
    fn follow(&mut self, underlay: &Underlay) {
        let found = self.outer.map(|outer| underlay.tunnel_source(outer).map(Addresses::from));
        let Some(listen) = found.unwrap_or(self.listen) else {
            return;
        };
        let moved = self.listen.replace(listen) != Some(listen);
        if !std::mem::replace(&mut self.has_tried_adoption, true) {
            self.waits = self.engine.adopt_inherited_device(listen);
            let (queues, sockets) = self.engine.files_to_hand_over();
            self.queues.adopt(&queues);
            self.sockets.adopt(&sockets);
        }
        if moved || self.problem.is_some() {
            let _ = self.rebind();
        }
    }

    /// Opens the device and the sockets unless they are open, and starts the threads anew.
    fn open(&mut self, listen: Addresses) -> Result<(), Problem> {
        self.waits = false;
        run_blocking(|| self.engine.open_and_start(listen))
    }

    /// Binds the sockets of an open device, which stays open. A device that is not open is opened
    /// when its link is added. The port may be free again by then.
    fn rebind(&mut self) -> Result<(), Problem> {
        match self.listen {
            Some(listen) if self.is_open() && !self.waits => {
                let result = run_blocking(|| self.engine.rebind_and_restart(listen));
                self.conclude(result)
            }
            _ => Ok(()),
        }
    }

    /// Immediately binds the sockets of an open device to a new port.
    fn configure(&mut self, spec: &LinkSpec) -> Result<(), Problem> {
        let Some(port) = self.tunnel.as_mut().and_then(|tunnel| tunnel.configure(spec)) else {
            return Ok(());
        };
        self.engine.set_port(port);
        self.rebind()
    }

    /// Starts an adopted device once its peers are set. Otherwise packets that wait in the device
    /// and the sockets would find no peer.
    fn start_adopted(&mut self) {
        let Some(listen) = self.listen.filter(|_| self.waits) else {
            return;
        };
        let result = self.open(listen);
        if self.conclude(result).is_ok() {
            tracing::info!(
                device = %self.name,
                "adopted the device and sockets of the previous process"
            );
        }
    }

    /// Stores the engine's queues and sockets for the next process.
    fn store(&mut self) {
        let (queues, sockets) = self.engine.files_to_hand_over();
        self.queues.update(&queues);
        self.sockets.update(&sockets);
    }

    /// Follows an attempt to open the device or to bind its sockets. Logs an error that differs
    /// from the previous one.
    fn conclude(&mut self, result: Result<(), Problem>) -> Result<(), Problem> {
        self.store();
        let problem = result.as_ref().err().cloned();
        if let Some(why) = problem.as_ref().filter(|_| self.problem != problem) {
            tracing::warn!(code = &*why.code, device = %self.name, error = %why, "the packet engine is not running");
        }
        self.problem = problem;
        result
    }

    /// The object is the device's link, or a peer of the device or belongs to one.
    fn owns(&self, key: &Key) -> bool {
        matches!(key, Key::Link(on) | Key::WireguardPeer(on, _) | Key::AllowedIp(on, _) if *on == self.name)
    }
}

pub(crate) struct UserspaceKernel {
    kernel: NetlinkKernel,
    devices: Vec<Device>,
    store: Option<Arc<dyn Store>>,
}

impl UserspaceKernel {
    /// It has no devices yet.
    pub(crate) fn open(store: &Option<Arc<dyn Store>>) -> Result<Self, KernelError> {
        Ok(Self { kernel: NetlinkKernel::open()?, devices: Vec::new(), store: store.clone() })
    }

    /// The engine starts when the reconciler adds its link.
    pub(crate) fn engine(
        &mut self,
        name: LinkName,
        config: EngineConfig,
        outer: Family,
        scope: &Scope,
        checks: Checks,
    ) {
        let settings = TableSettings {
            networks: table_networks(&scope.networks),
            own: table_networks(&scope.own),
            checks,
            // With VXLAN, the tunnel is a link, like the kernel's.
            routed: matches!(config.framing, Framing::Udp),
            encap_port: config.port,
            // The first table with peers has the MTU and the address.
            ..TableSettings::default()
        };
        let device = Device::new(self.store.as_ref(), name, config, settings);
        self.devices.push(Device { outer: Some(outer), ..device });
    }

    pub(crate) fn datapath(self) -> Datapath {
        let engines = self.counters();
        Datapath::of(self, engines)
    }

    /// The first field is the device.
    pub(crate) fn counters(&self) -> Vec<(String, Arc<Counters>)> {
        self.devices
            .iter()
            .map(|device| (device.name.to_string(), device.engine.counters().clone()))
            .collect()
    }

    /// The device whose link or peers an operation changes.
    fn place(&self, op: &Op) -> Option<usize> {
        self.devices.iter().position(|device| device.owns(op.key()))
    }

    async fn apply_link(&mut self, place: usize, op: &Op) -> Vec<OpError> {
        let Some(device) = self.devices.get_mut(place) else {
            return Vec::new();
        };
        let result = match op {
            Op::Add(_, Value::Link(spec)) => {
                let Some(listen) = device.listen else {
                    let text = "the underlay has no address of the tunnel's family; add one, or choose another interface with --iface";
                    let why = Problem::new("underlay-address-missing", text);
                    return vec![OpError::new(op, FailureKind::Other, why)];
                };
                device.configure(spec).and_then(|()| match device.open(listen) {
                    // The reconciler reports it.
                    Err(error) if device.tunnel.is_none() => Err(error),
                    result => device.conclude(result),
                })
            }
            Op::Replace(_, Value::Link(spec)) => device.configure(spec),
            Op::Delete(..) => {
                run_blocking(|| device.engine.close_device());
                if let Some(tunnel) = &device.tunnel {
                    tunnel.clear();
                }
                device.store();
                Ok(())
            }
            _ => Ok(()),
        };
        // The device may exist even if its port is taken.
        let mut errors: Vec<OpError> = result
            .err()
            .into_iter()
            .map(|error| OpError::new(op, FailureKind::Conflict, error))
            .collect();
        if errors.is_empty() || device.is_open() {
            errors.extend(self.kernel.apply(&[as_tun(op)]).await);
        }
        errors
    }
}

/// The operation on the TUN device in the kernel.
fn as_tun(op: &Op) -> Op {
    match op {
        // The engine made the device, so its properties are set as on any existing link.
        Op::Add(key, Value::Link(spec)) | Op::Replace(key, Value::Link(spec)) => {
            let kind = LinkKind::Tun { held: true };
            Op::Replace(*key, Value::Link(Box::new(LinkSpec { kind, ..LinkSpec::clone(spec) })))
        }
        // It is already gone with its file, unless it belongs to another program.
        other => other.clone(),
    }
}

pub(crate) fn table_peer(hop: &NextHop) -> Peer {
    let NextHop { address, mac, carries_v6, outer_ecn } = *hop;
    Peer { address, mac: mac.map(|mac| mac.0).unwrap_or_default(), carries_v6, outer_ecn }
}

pub(crate) fn table_networks(nets: &Subnets) -> Networks {
    Networks { v4: nets.v4().copied(), v6: nets.v6().copied() }
}

#[async_trait]
impl Kernel for UserspaceKernel {
    async fn read(
        &mut self,
        scope: &Scope,
        want: &KernelState,
    ) -> Result<ExistingState, KernelError> {
        let mut found = self.kernel.read(scope, want).await?;
        for device in &self.devices {
            let held = device.is_open();
            let Some(Value::Link(spec)) = found.ours.0.get_mut(&Key::Link(device.name)) else {
                continue;
            };
            if let LinkKind::Tun { held: is_held } = &mut spec.kind {
                *is_held = held;
            }
            let Some(tunnel) = &device.tunnel else { continue };
            tunnel.present(&mut spec.kind, held);
            found.ours.0.retain(|key, _| matches!(key, Key::Link(_)) || !device.owns(key));
            found.sessions.retain(|(on, _), _| *on != device.name);
            if held {
                tunnel.add_to(&mut found);
            }
        }
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
        self.devices.iter_mut().for_each(|device| device.follow(underlay));
        self.kernel.facts(underlay, queries).await
    }

    fn forward(&mut self, forwarding: Vec<Forwarding>) {
        for Forwarding { device, mtu, peers } in forwarding {
            let Some(device) = self.devices.iter_mut().find(|known| known.name == device) else {
                continue;
            };
            device.settings.address = device.listen.and_then(|listen| listen.ips().next());
            device.settings.mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            device.engine.replace_table(Table::build(
                device.settings,
                peers.into_iter().map(|(subnet, hop)| (subnet, table_peer(&hop))),
            ));
            device.start_adopted();
        }
    }

    async fn apply(&mut self, ops: &[Op]) -> Vec<OpError> {
        let mut errors = Vec::new();
        let mut rest = ops;
        while let Some(first) = rest.first() {
            let place = self.place(first);
            let is_link = |op: &Op| matches!(op.key(), Key::Link(_));
            // A run is either operations on one device's peers, one link, or operations for the wrapped kernel.
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
                    let tunnel = self.devices.get(place).and_then(|device| device.tunnel.as_ref());
                    errors.extend(tunnel.into_iter().flat_map(|tunnel| tunnel.apply(now)));
                }
            }
            rest = later;
        }
        for device in &mut self.devices {
            if device.tunnel.as_ref().is_some_and(|tunnel| tunnel.is_configured()) {
                device.start_adopted();
            }
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
        // A full pass retries to open and to bind.
        self.kernel.change_pending(scope, known)
            || self.devices.iter().any(|device| device.problem.is_some())
    }
}
