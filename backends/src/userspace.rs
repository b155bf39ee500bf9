//! A [`Kernel`] in which some links are TUN devices of the packet engine. The reconciler treats
//! them like other links: it adds missing ones and deletes those of another type. This module
//! handles the files and threads of the devices.

#[cfg(feature = "wireguard-userspace")]
pub(crate) mod wireguard;

use crate::handover::Files;
use async_trait::async_trait;
use netlink::run_blocking;
use netstate::kernel::{ExistingState, Facts, FailureKind, Kernel, KernelError, OpError};
use netstate::kernel::{Forwarding, NextHop};
use netstate::names::LinkName;
use netstate::object::link::LinkKind;
use netstate::object::link::LinkSpec;
use netstate::object::link::tun::TunSpec;
use netstate::object::{KernelState, Key, Op, Value};
use netstate::report::survey::Survey;
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use packet_engine::counters::Counters;
use packet_engine::engine::config::EngineConfig;
use packet_engine::engine::{Engine, Inheritance};
use packet_engine::error::EngineError;
use packet_engine::socket::Socket;
use packet_engine::table::{Networks, Peer, Table, TableSettings};
use packet_engine::tun::Tun;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use types::{Addresses, Coded, Family, Problem, Subnets};

/// A device whose peers are objects of the kernel state, as those of a WireGuard interface are.
/// Without it, they are forwarding entries.
trait Tunnel: Send + Sync {
    /// Makes the TUN device look like an interface of the kernel, if it is open in this process. A
    /// real one of the same name looks like a TUN device, so the reconciler replaces it.
    fn present(&self, kind: &mut LinkKind, is_open: bool);

    /// Whether the object is a peer of the device or belongs to one.
    fn owns(&self, key: &Key) -> bool;

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
    /// Queues and sockets that the previous process stored; `None` once this process has tried to
    /// adopt them.
    inherited: Option<(usize, usize)>,
    /// The adopted device still waits for its peers.
    waits: bool,
    /// Prevented the engine from starting or from binding its sockets; `None` while the engine
    /// works.
    problem: Option<EngineError>,
    /// The device's files that are in the file store.
    queues: StoredFiles<Tun>,
    sockets: StoredFiles<Socket>,
}

/// What the file store contains under a name. If flanneld stored the same files again, the store
/// would briefly not contain them.
struct StoredFiles<T>(Option<Vec<Weak<T>>>);

impl<T: AsFd> StoredFiles<T> {
    /// Records that the store holds these files, if the engine uses all files of the previous
    /// process.
    fn inherited(&mut self, left: usize, used: &[Arc<T>]) {
        self.0 = (left == used.len()).then(|| used.iter().map(Arc::downgrade).collect());
    }

    /// Does nothing if the store already holds exactly these files.
    fn update(&mut self, files: &Files, name: &str, now: &[Arc<T>]) {
        let is = |kept: &Weak<T>, now: &Arc<T>| std::ptr::eq(kept.as_ptr(), Arc::as_ptr(now));
        if self.0.as_ref().is_some_and(|kept| {
            kept.len() == now.len() && kept.iter().zip(now).all(|(kept, now)| is(kept, now))
        }) {
            return;
        }
        files.keep(name, now.iter().map(|file| file.as_fd()));
        self.0 = Some(now.iter().map(Arc::downgrade).collect());
    }
}

impl Device {
    fn new(files: &Files, name: LinkName, config: EngineConfig, settings: TableSettings) -> Self {
        let queues = files.take(&queue_name(name));
        let sockets = files.take(&socket_name(name));
        let inherited = Some((queues.len(), sockets.len()));
        let inheritance = Inheritance { queues, sockets };
        Self {
            name,
            engine: Engine::new(config, Table::build(settings, []), inheritance),
            outer: None,
            listen: None,
            settings,
            tunnel: None,
            inherited,
            waits: false,
            problem: None,
            queues: StoredFiles(None),
            sockets: StoredFiles(None),
        }
    }

    /// The device exists and is open in this process.
    fn is_open(&self) -> bool {
        self.engine.device_index().is_some()
    }

    /// Follows the addresses of the underlay, and adopts the files of the previous process.
    fn follow(&mut self, underlay: &Underlay, files: &Files) {
        let found = self.outer.map(|outer| underlay.tunnel_source(outer).map(Addresses::from));
        let Some(listen) = found.unwrap_or(self.listen) else {
            return;
        };
        let moved = self.listen.replace(listen) != Some(listen);
        if let Some((left_queues, left_sockets)) = self.inherited.take() {
            self.waits = self.engine.adopt_inherited_device(listen);
            let (queues, sockets) = self.engine.files_to_hand_over();
            self.queues.inherited(left_queues, &queues);
            self.sockets.inherited(left_sockets, &sockets);
        }
        // A device that is not open is opened when its link is added. The port may be free again by then.
        if self.is_open() && !self.waits && (moved || self.problem.is_some()) {
            let _ = self.rebind(listen, files);
        }
    }

    /// Opens the device and the sockets unless they are open, and starts the threads anew.
    fn open(&mut self, listen: Addresses) -> Result<(), EngineError> {
        self.waits = false;
        run_blocking(|| self.engine.open_and_start(listen))
    }

    /// The device stays open.
    fn rebind(&mut self, listen: Addresses, files: &Files) -> Result<(), EngineError> {
        let result = run_blocking(|| self.engine.rebind_and_restart(listen));
        self.conclude(result, files)
    }

    /// Immediately binds the sockets of an open device to a new port.
    fn configure(&mut self, spec: &LinkSpec, files: &Files) -> Result<(), EngineError> {
        let Some(port) = self.tunnel.as_mut().and_then(|tunnel| tunnel.configure(spec)) else {
            return Ok(());
        };
        self.engine.set_port(port);
        match self.listen {
            Some(listen) if self.is_open() && !self.waits => self.rebind(listen, files),
            _ => Ok(()),
        }
    }

    /// Starts an adopted device once its peers are set. Otherwise packets that wait in the device
    /// and the sockets would find no peer.
    fn start_adopted(&mut self, files: &Files) {
        let Some(listen) = self.listen.filter(|_| self.waits) else {
            return;
        };
        let result = self.open(listen);
        if self.conclude(result, files).is_ok() {
            tracing::info!(
                device = %self.name,
                "adopted the device and sockets of the previous process"
            );
        }
    }

    /// Stores the engine's queues and sockets for the next process.
    fn store(&mut self, files: &Files) {
        let (queues, sockets) = self.engine.files_to_hand_over();
        self.queues.update(files, &queue_name(self.name), &queues);
        self.sockets.update(files, &socket_name(self.name), &sockets);
    }

    /// Follows an attempt to open the device or to bind its sockets. Logs an error that differs
    /// from the previous one.
    fn conclude(
        &mut self,
        result: Result<(), EngineError>,
        files: &Files,
    ) -> Result<(), EngineError> {
        self.store(files);
        let problem = result.as_ref().err().cloned();
        if let Some(why) = problem.as_ref().filter(|_| self.problem != problem) {
            tracing::warn!(code = why.code(), device = %self.name, error = %why, "the packet engine is not running");
        }
        self.problem = problem;
        result
    }
}

pub(crate) struct UserspaceKernel<K> {
    kernel: K,
    devices: Vec<Device>,
    files: Files,
}

impl<K: Kernel> UserspaceKernel<K> {
    pub(crate) fn new(kernel: K, files: Files) -> Self {
        Self { kernel, devices: Vec::new(), files }
    }

    /// The engine starts when the reconciler adds its link.
    pub(crate) fn engine(
        &mut self,
        name: LinkName,
        config: EngineConfig,
        outer: Family,
        settings: TableSettings,
    ) {
        let device = Device::new(&self.files, name, config, settings);
        self.devices.push(Device { outer: Some(outer), ..device });
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
        self.devices.iter().position(|device| {
            *op.key() == Key::Link(device.name)
                || device.tunnel.as_ref().is_some_and(|tunnel| tunnel.owns(op.key()))
        })
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
                let configured = device.configure(spec, &self.files);
                configured.and_then(|()| match device.open(listen) {
                    // The reconciler reports it.
                    Err(error) if device.tunnel.is_none() => Err(error),
                    result => device.conclude(result, &self.files),
                })
            }
            Op::Replace(_, Value::Link(spec)) => device.configure(spec, &self.files),
            Op::Delete(..) => {
                run_blocking(|| device.engine.close_device());
                if let Some(tunnel) = &device.tunnel {
                    tunnel.clear();
                }
                device.store(&self.files);
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
            let kind = LinkKind::Tun(TunSpec { held: true });
            Op::Replace(*key, Value::Link(Box::new(LinkSpec { kind, ..LinkSpec::clone(spec) })))
        }
        // It is already gone with its file, unless it belongs to another program.
        other => other.clone(),
    }
}

pub(crate) fn peer(hop: &NextHop) -> Peer {
    let NextHop { address, mac, carries_v6, outer_ecn } = *hop;
    Peer { address, mac: mac.map(|mac| mac.0).unwrap_or_default(), carries_v6, outer_ecn }
}

pub(crate) fn networks(nets: &Subnets) -> Networks {
    Networks { v4: nets.v4().copied(), v6: nets.v6().copied() }
}

fn queue_name(name: LinkName) -> String {
    format!("tun.{name}")
}

fn socket_name(name: LinkName) -> String {
    format!("udp.{name}")
}

#[async_trait]
impl<K: Kernel> Kernel for UserspaceKernel<K> {
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
            if let LinkKind::Tun(tun) = &mut spec.kind {
                tun.held = held;
            }
            let Some(tunnel) = &device.tunnel else { continue };
            tunnel.present(&mut spec.kind, held);
            found.ours.0.retain(|key, _| !tunnel.owns(key));
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
        self.devices.iter_mut().for_each(|device| device.follow(underlay, &self.files));
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
                peers.into_iter().map(|(subnet, hop)| (subnet, peer(&hop))),
            ));
            device.start_adopted(&self.files);
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
                device.start_adopted(&self.files);
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

#[cfg(test)]
mod tests;
