//! A kernel some of whose links are TUN devices with our engine behind them. To the reconciler they are links like others: it adds
//! them when they are missing and deletes them when they are of another kind, and what has to be done with files and threads is done here.

pub(crate) mod checks;

use crate::handover::Files;
use async_trait::async_trait;
use netstate::forwarding::{Forwarding, NextHop};
use netstate::kernel::{Facts, Failure, Found, Kernel, KernelError, OpError};
use netstate::link::LinkKind;
use netstate::names::LinkName;
use netstate::object::{KernelState, Key, Op, Value};
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use packet_engine::counters::Counters;
use packet_engine::engine::config::EngineConfig;
use packet_engine::engine::{Engine, Inheritance};
use packet_engine::socket::Socket;
use packet_engine::table::{Networks, Peer, Settings, Table};
use packet_engine::tun::Tun;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use subnet_lease::Subnets;

/// One engine and what it hangs on.
struct Device {
    name: LinkName,
    /// Over which family its datagrams go.
    outer_ipv6: bool,
    engine: Engine,
    /// What its table has beside the peers.
    settings: Settings,
    /// What its sockets are bound to.
    address: Option<IpAddr>,
    /// How many queues and sockets a former process left.
    left: (usize, usize),
    /// Whether these have been looked at.
    adopted: bool,
    /// Whether that was a device, whose packets wait for the table.
    waits: bool,
    /// Why it could not be started or bound, as long as that lasts.
    trouble: Option<String>,
    /// What the store keeps of it.
    queues: Kept<Tun>,
    sockets: Kept<Socket>,
}

/// What the store keeps under a name: to be told the same again would leave it without for a moment.
struct Kept<T>(Option<Vec<Weak<T>>>);

impl<T: AsFd> Kept<T> {
    /// What a former process left, as far as all of it is used.
    fn inherited(&mut self, left: usize, used: &[Arc<T>]) {
        self.0 = (left == used.len()).then(|| used.iter().map(Arc::downgrade).collect());
    }

    /// Keeps exactly these.
    fn update(&mut self, files: &Files, name: &str, now: &[Arc<T>]) {
        let is = |kept: &Weak<T>, now: &Arc<T>| std::ptr::eq(kept.as_ptr(), Arc::as_ptr(now));
        if self.0.as_ref().is_some_and(|kept| kept.len() == now.len() && kept.iter().zip(now).all(|(kept, now)| is(kept, now))) {
            return;
        }
        files.keep(name, now.iter().map(|file| file.as_fd()));
        self.0 = Some(now.iter().map(Arc::downgrade).collect());
    }
}

impl Device {
    /// What is wrong now; told once.
    fn trouble(&mut self, trouble: Option<String>) {
        if let Some(why) = trouble.as_ref().filter(|_| self.trouble != trouble) {
            tracing::warn!("{}: {why}", self.name);
        }
        self.trouble = trouble;
    }
}

/// The kernel and the engines.
pub struct UserspaceKernel<K> {
    kernel: K,
    devices: Vec<Device>,
    files: Files,
}

impl<K: Kernel> UserspaceKernel<K> {
    /// A kernel without engines yet.
    pub fn new(kernel: K, files: Files) -> Self {
        Self { kernel, devices: Vec::new(), files }
    }

    /// Adds an engine. It begins to work when the reconciler adds its link.
    pub fn engine(&mut self, name: LinkName, config: EngineConfig, outer_ipv6: bool, settings: Settings) {
        let inherited = Inheritance { queues: self.files.take(&queue_name(name)), sockets: self.files.take(&socket_name(name)) };
        let left = (inherited.queues.len(), inherited.sockets.len());
        let engine = Engine::new(config, Table::build(settings, []), inherited);
        let (queues, sockets) = (Kept(None), Kept(None));
        self.devices.push(Device {
            name,
            outer_ipv6,
            engine,
            settings,
            address: None,
            left,
            adopted: false,
            waits: false,
            trouble: None,
            queues,
            sockets,
        });
    }

    /// What the engines count, by device.
    pub fn counters(&self) -> Vec<(String, Arc<Counters>)> {
        self.devices.iter().map(|device| (device.name.to_string(), device.engine.counters().clone())).collect()
    }

    /// The first link operation that is about an engine's device splits the list.
    fn is_ours(&self, op: &Op) -> bool {
        match (op.key(), op) {
            (Key::Link(name), Op::Add(_, Value::Link(spec))) => matches!(spec.kind, LinkKind::Tun(_)) && self.has(*name),
            (Key::Link(name), Op::Delete(..)) => self.has(*name),
            _ => false,
        }
    }

    fn has(&self, name: LinkName) -> bool {
        self.devices.iter().any(|device| device.name == name)
    }

    async fn apply_ours(&mut self, op: &Op) -> Vec<OpError> {
        let Key::Link(name) = *op.key() else { return Vec::new() };
        let Some(device) = self.devices.iter_mut().find(|device| device.name == name) else { return Vec::new() };
        match op {
            Op::Add(key, value) => {
                let Some(address) = device.address else {
                    let why = "the underlay has no address of the tunnel's family; give it one, or choose another with --iface".to_owned();
                    return vec![OpError { verb: op.verb(), key: *op.key(), failure: Failure::Other, why }];
                };
                if let Err(why) = device.engine.open(address) {
                    return vec![OpError { verb: op.verb(), key: *op.key(), failure: Failure::Conflict, why }];
                }
                store(&self.files, device);
                // MTU and the like, and up: as of any link that is there.
                self.kernel.apply(&[Op::Replace(*key, value.clone())]).await
            }
            Op::Delete(..) => {
                device.engine.close();
                device.queues.update(&self.files, &queue_name(name), &[]);
                // Gone with its file already, unless it was somebody else's.
                self.kernel.apply(std::slice::from_ref(op)).await
            }
            Op::Replace(..) | Op::Refuse(..) => Vec::new(),
        }
    }
}

/// A next hop as the engine's table has it.
pub(crate) fn peer(hop: &NextHop) -> Peer {
    let NextHop { address, mac, carries_v6, outer_ecn } = *hop;
    Peer { address, mac: mac.map(|mac| mac.0).unwrap_or_default(), carries_v6, outer_ecn }
}

/// Networks as the engine's table has them.
pub(crate) fn networks(nets: &Subnets) -> Networks {
    Networks { v4: nets.v4().copied(), v6: nets.v6().copied() }
}

fn queue_name(name: LinkName) -> String {
    format!("tun.{name}")
}

fn socket_name(name: LinkName) -> String {
    format!("udp.{name}")
}

/// Leaves what the engine holds to the next process.
fn store(files: &Files, device: &mut Device) {
    let (queues, sockets) = device.engine.files();
    device.queues.update(files, &queue_name(device.name), &queues);
    device.sockets.update(files, &socket_name(device.name), &sockets);
}

#[async_trait]
impl<K: Kernel> Kernel for UserspaceKernel<K> {
    async fn read(&mut self, scope: &Scope) -> Result<Found, KernelError> {
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

    async fn facts(&mut self, underlay: &Underlay, asks: &[IpAddr]) -> Result<Facts, KernelError> {
        for device in &mut self.devices {
            let Some(address) = underlay.tunnel_source(device.outer_ipv6) else { continue };
            let moved = device.address.replace(address) != Some(address);
            if !std::mem::replace(&mut device.adopted, true) {
                device.waits = device.engine.adopt(address);
                let (queues, sockets) = device.engine.files();
                device.queues.inherited(device.left.0, &queues);
                device.sockets.inherited(device.left.1, &sockets);
            }
            // One that is not open is opened when its link is added; by then whoever holds the port may be gone.
            let open = device.engine.index().is_some() && !device.waits;
            if !open || !moved && device.trouble.is_none() {
                continue;
            }
            let result = device.engine.rebind(address);
            store(&self.files, device);
            device.trouble(result.err());
        }
        self.kernel.facts(underlay, asks).await
    }

    fn forward(&mut self, forwarding: Vec<Forwarding>) {
        for Forwarding { device, mtu, peers } in forwarding {
            let Some(device) = self.devices.iter_mut().find(|known| known.name == device) else { continue };
            device.settings.mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            device.engine.swap(Table::build(device.settings, peers.into_iter().map(|(subnet, hop)| (subnet, peer(&hop)))));
            // What waits in the device and the sockets would have found no peers before.
            let Some(address) = device.address.filter(|_| std::mem::take(&mut device.waits)) else { continue };
            let result = device.engine.open(address);
            store(&self.files, device);
            if result.is_ok() {
                tracing::info!("{}: took over device and sockets from the process before", device.name);
            }
            device.trouble(result.err());
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

    async fn on_link(&mut self, asks: &[IpAddr]) -> BTreeSet<IpAddr> {
        self.kernel.on_link(asks).await
    }

    async fn disturbed(&mut self, scope: &Scope, known: Option<&KernelState>) {
        self.kernel.disturbed(scope, known).await;
    }

    fn is_disturbed(&mut self, scope: &Scope, known: Option<&KernelState>) -> bool {
        // What could not be opened or bound is tried again by a whole pass.
        self.kernel.is_disturbed(scope, known) || self.devices.iter().any(|device| device.trouble.is_some())
    }
}

#[cfg(test)]
mod tests;
