//! A [`Kernel`] in which some links are TUN devices of the packet engine. The reconciler treats
//! them like other links: it adds missing ones and deletes those of another type. This module
//! handles the files and threads of the devices.

pub(crate) mod wireguard;

use crate::error::UnderlayError;
use crate::handover::Files;
use async_trait::async_trait;
use netstate::error::RequestError;
use netstate::forwarding::{Forwarding, NextHop};
use netstate::kernel::{ExistingState, Facts, FailureKind, Kernel, KernelError, OpError};
use netstate::link::LinkKind;
use netstate::names::LinkName;
use netstate::object::{KernelState, Key, Op, Value};
use netstate::scope::Scope;
use netstate::survey::Survey;
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
use types::{Coded, Family, Subnets};

struct Device {
    name: LinkName,
    /// The family of the engine's datagrams.
    outer: Family,
    engine: Engine,
    /// The settings of the engine's forwarding table.
    settings: TableSettings,
    /// The local address of the engine's sockets.
    address: Option<IpAddr>,
    /// Queues and sockets that the previous process stored.
    inherited: (usize, usize),
    /// This process has tried to adopt the files of the previous one.
    adopted: bool,
    /// The adopted device still waits for its forwarding table.
    awaits_table: bool,
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
    /// Logs an error that differs from the previous one.
    fn set_problem(&mut self, problem: Option<EngineError>) {
        if let Some(why) = problem.as_ref().filter(|_| self.problem != problem) {
            tracing::warn!(code = why.code(), device = %self.name, error = %why, "the packet engine is not running");
        }
        self.problem = problem;
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
        let inherited = Inheritance {
            queues: self.files.take(&queue_name(name)),
            sockets: self.files.take(&socket_name(name)),
        };
        let left = (inherited.queues.len(), inherited.sockets.len());
        let engine = Engine::new(config, Table::build(settings, []), inherited);
        let (queues, sockets) = (StoredFiles(None), StoredFiles(None));
        self.devices.push(Device {
            name,
            outer,
            engine,
            settings,
            address: None,
            inherited: left,
            adopted: false,
            awaits_table: false,
            problem: None,
            queues,
            sockets,
        });
    }

    /// The first field is the device.
    pub(crate) fn counters(&self) -> Vec<(String, Arc<Counters>)> {
        self.devices
            .iter()
            .map(|device| (device.name.to_string(), device.engine.counters().clone()))
            .collect()
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
        self.devices.iter().any(|device| device.name == name)
    }

    async fn apply_ours(&mut self, op: &Op) -> Vec<OpError> {
        let Key::Link(name) = *op.key() else {
            return Vec::new();
        };
        let Some(device) = self.devices.iter_mut().find(|device| device.name == name) else {
            return Vec::new();
        };
        match op {
            Op::Add(key, value) => {
                let Some(address) = device.address else {
                    let why = RequestError::userspace(UnderlayError::NoTunnelSource);
                    return vec![OpError {
                        verb: op.verb(),
                        key: *op.key(),
                        kind: FailureKind::Other,
                        why,
                    }];
                };
                if let Err(error) = device.engine.open(address) {
                    let why = RequestError::userspace(error);
                    return vec![OpError {
                        verb: op.verb(),
                        key: *op.key(),
                        kind: FailureKind::Conflict,
                        why,
                    }];
                }
                store(&self.files, device);
                // MTU, state and other properties are set as on any existing link.
                self.kernel.apply(&[Op::Replace(*key, value.clone())]).await
            }
            Op::Delete(..) => {
                device.engine.close();
                device.queues.update(&self.files, &queue_name(name), &[]);
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

/// Stores the engine's queues and sockets for the next process.
fn store(files: &Files, device: &mut Device) {
    let (queues, sockets) = device.engine.files();
    device.queues.update(files, &queue_name(device.name), &queues);
    device.sockets.update(files, &socket_name(device.name), &sockets);
}

#[async_trait]
impl<K: Kernel> Kernel for UserspaceKernel<K> {
    async fn read(&mut self, scope: &Scope) -> Result<ExistingState, KernelError> {
        let mut found = self.kernel.read(scope).await?;
        for device in &self.devices {
            if let Some(Value::Link(spec)) = found.ours.0.get_mut(&Key::Link(device.name))
                && let LinkKind::Tun(tun) = &mut spec.kind
            {
                tun.held = device.engine.index().is_some();
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
                device.awaits_table = device.engine.adopt(address);
                let (queues, sockets) = device.engine.files();
                device.queues.inherited(device.inherited.0, &queues);
                device.sockets.inherited(device.inherited.1, &sockets);
            }
            // A device that is not open is opened when its link is added. The port may be free again by then.
            let open = device.engine.index().is_some() && !device.awaits_table;
            if !open || !moved && device.problem.is_none() {
                continue;
            }
            let result = device.engine.rebind(address);
            store(&self.files, device);
            device.set_problem(result.err());
        }
        self.kernel.facts(underlay, queries).await
    }

    fn forward(&mut self, forwarding: Vec<Forwarding>) {
        for Forwarding { device, mtu, peers } in forwarding {
            let Some(device) = self.devices.iter_mut().find(|known| known.name == device) else {
                continue;
            };
            device.settings.address = device.address;
            device.settings.mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            device.engine.swap(Table::build(
                device.settings,
                peers.into_iter().map(|(subnet, hop)| (subnet, peer(&hop))),
            ));
            // Reading starts only after the peers are set. Otherwise packets that wait in the device and the sockets would find no peer.
            let Some(address) = device.address.filter(|_| std::mem::take(&mut device.awaits_table))
            else {
                continue;
            };
            let result = device.engine.open(address);
            store(&self.files, device);
            if result.is_ok() {
                tracing::info!(
                    device = %device.name,
                    "adopted the device and sockets of the previous process"
                );
            }
            device.set_problem(result.err());
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
            || self.devices.iter().any(|device| device.problem.is_some())
    }
}

#[cfg(test)]
mod tests;
