//! A [`Kernel`] in which some links are TUN devices of the packet engine. The reconciler treats
//! them like other links: it adds missing ones and deletes those of another type. This module
//! handles the files and threads of the devices.

pub(crate) mod wireguard;

use crate::handover::Files;
use async_trait::async_trait;
use netlink::run_blocking;
use netstate::kernel::{ExistingState, Facts, FailureKind, Kernel, KernelError, OpError};
use netstate::kernel::{Forwarding, NextHop};
use netstate::names::LinkName;
use netstate::object::link::LinkKind;
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

struct Device {
    base: EngineDevice,
    /// The family of the engine's datagrams.
    outer: Family,
    /// The settings of the engine's forwarding table.
    settings: TableSettings,
    /// The local address of the engine's sockets.
    address: Option<IpAddr>,
    /// This process has tried to adopt the files of the previous one.
    adopted: bool,
    /// The adopted device still waits for its forwarding table.
    awaits_table: bool,
}

struct EngineDevice {
    name: LinkName,
    engine: Engine,
    /// Queues and sockets that the previous process stored.
    inherited: (usize, usize),
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

impl EngineDevice {
    fn new(name: LinkName, engine: Engine, inherited: (usize, usize)) -> Self {
        let (queues, sockets) = (StoredFiles(None), StoredFiles(None));
        Self { name, engine, inherited, problem: None, queues, sockets }
    }

    /// The device exists and is open in this process.
    fn is_open(&self) -> bool {
        self.engine.device_index().is_some()
    }

    /// Opens the device and the sockets unless they are open, and starts the threads anew.
    fn open(&mut self, listen: impl Into<Addresses>) -> Result<(), EngineError> {
        run_blocking(|| self.engine.open_and_start(listen))
    }

    /// The device stays open.
    fn rebind(&mut self, listen: impl Into<Addresses>) -> Result<(), EngineError> {
        run_blocking(|| self.engine.rebind_and_restart(listen))
    }

    fn close(&mut self) {
        run_blocking(|| self.engine.close_device());
    }

    /// The first field is the device.
    fn counters(&self) -> (String, Arc<Counters>) {
        (self.name.to_string(), self.engine.counters().clone())
    }

    /// Follows the adoption of the previous process' files.
    fn note_inherited(&mut self) {
        let (queues, sockets) = self.engine.files_to_hand_over();
        self.queues.inherited(self.inherited.0, &queues);
        self.sockets.inherited(self.inherited.1, &sockets);
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
        let (inherited, left) = take_inheritance(&self.files, name);
        let engine = Engine::new(config, Table::build(settings, []), inherited);
        self.devices.push(Device {
            base: EngineDevice::new(name, engine, left),
            outer,
            settings,
            address: None,
            adopted: false,
            awaits_table: false,
        });
    }

    /// The first field is the device.
    pub(crate) fn counters(&self) -> Vec<(String, Arc<Counters>)> {
        self.devices.iter().map(|device| device.base.counters()).collect()
    }

    /// True if the operation adds or deletes the device of an engine.
    fn is_ours(&self, op: &Op) -> bool {
        match (op.key(), op) {
            (Key::Link(name), Op::Add(_, Value::Link(spec))) => {
                matches!(spec.kind, LinkKind::Tun(_)) && self.has(*name)
            }
            (Key::Link(name), Op::Delete(..)) => self.has(*name),
            _ => false,
        }
    }

    fn has(&self, name: LinkName) -> bool {
        self.devices.iter().any(|device| device.base.name == name)
    }

    async fn apply_ours(&mut self, op: &Op) -> Vec<OpError> {
        let Key::Link(name) = *op.key() else {
            return Vec::new();
        };
        let Some(device) = self.devices.iter_mut().find(|device| device.base.name == name) else {
            return Vec::new();
        };
        match op {
            Op::Add(key, value) => {
                let Some(address) = device.address else {
                    let text = "the underlay has no address of the tunnel's family; add one, or choose another interface with --iface";
                    let why = Problem::new("underlay-address-missing", text);
                    return vec![OpError::new(op, FailureKind::Other, why)];
                };
                if let Err(error) = device.base.open(address) {
                    return vec![OpError::new(op, FailureKind::Conflict, error)];
                }
                device.base.store(&self.files);
                // MTU, state and other properties are set as on any existing link.
                self.kernel.apply(&[Op::Replace(*key, value.clone())]).await
            }
            Op::Delete(..) => {
                device.base.close();
                device.base.queues.update(&self.files, &queue_name(name), &[]);
                // The device is already gone with its file, unless it belongs to another program.
                self.kernel.apply(std::slice::from_ref(op)).await
            }
            Op::Replace(..) | Op::Refuse(..) => Vec::new(),
        }
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

/// The files of the previous process, and the number of queues and of sockets.
fn take_inheritance(files: &Files, name: LinkName) -> (Inheritance, (usize, usize)) {
    let queues = files.take(&queue_name(name));
    let sockets = files.take(&socket_name(name));
    let left = (queues.len(), sockets.len());
    (Inheritance { queues, sockets }, left)
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
            if let Some(Value::Link(spec)) = found.ours.0.get_mut(&Key::Link(device.base.name))
                && let LinkKind::Tun(tun) = &mut spec.kind
            {
                tun.held = device.base.is_open();
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
        for device in &mut self.devices {
            let Some(address) = underlay.tunnel_source(device.outer) else {
                continue;
            };
            let moved = device.address.replace(address) != Some(address);
            if !std::mem::replace(&mut device.adopted, true) {
                device.awaits_table = device.base.engine.adopt_inherited_device(address);
                device.base.note_inherited();
            }
            // A device that is not open is opened when its link is added. The port may be free again by then.
            let open = device.base.is_open() && !device.awaits_table;
            if !open || !moved && device.base.problem.is_none() {
                continue;
            }
            let result = device.base.rebind(address);
            let _ = device.base.conclude(result, &self.files);
        }
        self.kernel.facts(underlay, queries).await
    }

    fn forward(&mut self, forwarding: Vec<Forwarding>) {
        for Forwarding { device, mtu, peers } in forwarding {
            let Some(device) = self.devices.iter_mut().find(|known| known.base.name == device)
            else {
                continue;
            };
            device.settings.address = device.address;
            device.settings.mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            device.base.engine.replace_table(Table::build(
                device.settings,
                peers.into_iter().map(|(subnet, hop)| (subnet, peer(&hop))),
            ));
            // Reading starts only after the peers are set. Otherwise packets that wait in the device and the sockets would find no peer.
            let Some(address) = device.address.filter(|_| std::mem::take(&mut device.awaits_table))
            else {
                continue;
            };
            let result = device.base.open(address);
            if device.base.conclude(result, &self.files).is_ok() {
                tracing::info!(
                    device = %device.base.name,
                    "adopted the device and sockets of the previous process"
                );
            }
        }
    }

    async fn apply(&mut self, ops: &[Op]) -> Vec<OpError> {
        let mut errors = Vec::new();
        let mut rest = ops;
        while !rest.is_empty() {
            let run = rest.iter().take_while(|op| !self.is_ours(op)).count();
            let (theirs, later) = rest.split_at(run);
            if !theirs.is_empty() {
                errors.extend(self.kernel.apply(theirs).await);
            }
            if let Some((op, later)) = later.split_first() {
                errors.extend(self.apply_ours(op).await);
                rest = later;
            } else {
                rest = later;
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
            || self.devices.iter().any(|device| device.base.problem.is_some())
    }
}

#[cfg(test)]
mod tests;
