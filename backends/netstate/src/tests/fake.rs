//! A fake kernel for tests. It follows the kernel's rules about dependencies, exclusive additions
//! and objects that vanish with a link, and it injects faults.

use crate::kernel::{
    ExistingState, Facts, FailureKind, Kernel, KernelError, OpError, Sessions, WireguardKernel,
};
use crate::names::LinkName;
use crate::object::route::RouteSpec;
use crate::object::wireguard_peer::PublicKey;
use crate::object::{KernelState, Key, Op, Value};
use crate::report::survey::{Origin, Seen, Survey};
use crate::scope::Scope;
use crate::underlay::Underlay;
use async_trait::async_trait;
use netlink::kernel_refusal;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Notify;
use types::{Errno, Problem};

/// What tests read and modify.
#[derive(Debug, Default)]
pub struct World {
    pub state: KernelState,
    /// Routes of other programs.
    pub foreign: BTreeSet<Key>,
    /// Routes that Go flannel may have left.
    pub leftovers: BTreeMap<Key, RouteSpec>,
    pub sessions: Sessions,
    pub on_link: BTreeSet<IpAddr>,
    /// Whether each of the next calls fails, in the order of the calls.
    pub faults: VecDeque<bool>,
    /// Peers with which the reconciler started sessions.
    pub greeted: Vec<(LinkName, PublicKey)>,
    /// Changes through `apply`.
    pub writes: usize,
    /// Reads of the complete kernel state.
    pub reads: usize,
    /// Queued: no test has received them yet.
    pub notices: Vec<Notice>,
}

#[derive(Clone, Debug)]
pub enum Notice {
    /// `None` for a deleted object.
    Object(Key, Option<Value>),
    Other,
}

/// Clones share its contents.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    world: Arc<Mutex<World>>,
    noise: Arc<Notify>,
}

fn refused(code: i32) -> Problem {
    kernel_refusal(Errno(code))
}

impl World {
    fn fault(&mut self) -> bool {
        self.faults.pop_front().unwrap_or(false)
    }

    /// Fails with the errno that a kernel would return.
    pub fn apply(&mut self, op: &Op) -> Result<(), Problem> {
        let (key, value) = match op {
            Op::Refuse(..) => return Err(refused(libc::EPERM)),
            Op::Delete(key, _) => {
                self.state.0.remove(key);
                self.leftovers.remove(key);
                if let Key::Link(name) = key {
                    self.forget(*name, |_| true);
                }
                if let Key::WireguardPeer(name, peer) = key {
                    self.state.0.retain(|key, value| {
                        !(matches!(key, Key::AllowedIp(on, _) if on == name)
                            && *value == Value::AllowedIp(*peer))
                    });
                }
                return Ok(());
            }
            Op::Add(key, value) | Op::Replace(key, value) => (key, value),
        };
        let link = key.device(value).filter(|_| !matches!(key, Key::Link(_)));
        let ours = |name: &LinkName| name.as_str().starts_with("flannel");
        if link.is_some_and(|name| ours(&name) && self.state.link(name).is_none_or(|spec| !spec.up))
        {
            return Err(refused(libc::ENODEV));
        }
        // FDB entries and neighbours may overwrite learned ones. All other additions are exclusive.
        let exclusive = matches!(op, Op::Add(..))
            && !matches!(
                key,
                Key::Fdb(..) | Key::Neighbor(..) | Key::WireguardPeer(..) | Key::AllowedIp(..)
            );
        if exclusive && (self.state.0.contains_key(key) || self.foreign.contains(key)) {
            return Err(refused(libc::EEXIST));
        }
        if matches!(op, Op::Replace(..)) && !self.state.0.contains_key(key) {
            return Err(refused(libc::ENOENT));
        }
        if let (Key::Link(name), Value::Link(spec)) = (key, value)
            && let Some(old) = self.state.link(*name)
            && spec.mac.is_some()
            && old.mac != spec.mac
        {
            self.forget(*name, |key| matches!(key, Key::Neighbor(..)));
        }
        if let (Key::AllowedIp(name, _), Value::AllowedIp(peer)) = (key, value)
            && !self.state.0.contains_key(&Key::WireguardPeer(*name, *peer))
        {
            // Ignored, as the kernel does with WGPEER_F_UPDATE_ONLY.
            return Ok(());
        }
        self.state.set(*key, value.clone());
        Ok(())
    }

    fn forget(&mut self, name: LinkName, which: impl Fn(&Key) -> bool) {
        self.state.0.retain(|key, value| {
            key.device(value) != Some(name) || !which(key) || matches!(key, Key::Link(_))
        });
    }
}

impl FakeKernel {
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// Changes the contents as another program would, and queues notifications.
    pub fn modify(&self, change: impl FnOnce(&mut World)) {
        let mut world = self.world();
        let before = world.state.clone();
        change(&mut world);
        let keys: BTreeSet<Key> = before.0.keys().chain(world.state.0.keys()).copied().collect();
        let changed = keys.into_iter().filter(|key| before.0.get(key) != world.state.0.get(key));
        let mut notices: Vec<Notice> =
            changed.map(|key| Notice::Object(key, world.state.0.get(&key).cloned())).collect();
        if notices.is_empty() {
            notices.push(Notice::Other);
        }
        world.notices.append(&mut notices);
        self.noise.notify_one();
    }

    fn answer(&self, what: &str) -> Result<MutexGuard<'_, World>, KernelError> {
        let mut world = self.world();
        if world.fault() { Err(KernelError::new(what, refused(libc::EIO))) } else { Ok(world) }
    }
}

#[async_trait]
impl Kernel for FakeKernel {
    async fn read(
        &mut self,
        _scope: &Scope,
        _want: &KernelState,
    ) -> Result<ExistingState, KernelError> {
        let mut world = self.answer("list network interfaces")?;
        world.reads += 1;
        Ok(ExistingState {
            ours: world.state.clone(),
            leftovers: world.leftovers.iter().map(|(key, route)| (*key, *route)).collect(),
            sessions: world.sessions.clone(),
            mixed: BTreeSet::new(),
        })
    }

    async fn survey(&mut self, _scope: &Scope) -> Result<Survey, KernelError> {
        let world = self.answer("list neighbours and FDB entries")?;
        let seen = |(key, value): (&Key, &Value)| Seen {
            key: *key,
            value: value.clone(),
            origin: Origin::Set,
        };
        Ok(Survey { links: Vec::new(), objects: world.state.0.iter().map(seen).collect() })
    }

    async fn facts(
        &mut self,
        underlay: &Underlay,
        queries: &[IpAddr],
    ) -> Result<Facts, KernelError> {
        let world = self.answer("list addresses")?;
        let on_link = queries.iter().filter(|ip| world.on_link.contains(ip)).copied().collect();
        Ok(Facts { underlay: underlay.clone(), on_link, accepted_macs: BTreeMap::new() })
    }

    async fn apply(&mut self, ops: &[Op]) -> Vec<OpError> {
        let mut world = self.world();
        let mut errors = Vec::new();
        for op in ops {
            let result = if world.fault() { Err(refused(libc::EIO)) } else { world.apply(op) };
            match result {
                // The kernel also reports our own changes.
                Ok(()) => {
                    world.writes += 1;
                    let notice = match op.key() {
                        Key::Link(_) => Notice::Other,
                        key => Notice::Object(*key, world.state.0.get(key).cloned()),
                    };
                    world.notices.push(notice);
                    self.noise.notify_one();
                }
                Err(why) => {
                    let in_the_way =
                        world.foreign.contains(op.key()) && !matches!(op.key(), Key::Link(_));
                    let kind = if in_the_way { FailureKind::Conflict } else { FailureKind::Other };
                    errors.push(OpError::new(op, kind, why));
                }
            }
        }
        errors
    }

    async fn on_link(&mut self, queries: &[IpAddr]) -> BTreeSet<IpAddr> {
        let world = self.world();
        queries.iter().filter(|ip| world.on_link.contains(ip)).copied().collect()
    }

    async fn wait_for_change(&mut self, scope: &Scope, known: Option<&KernelState>) {
        while !self.change_pending(scope, known) {
            self.noise.notified().await;
        }
    }

    fn change_pending(&mut self, _scope: &Scope, known: Option<&KernelState>) -> bool {
        let notices = std::mem::take(&mut self.world().notices);
        notices.into_iter().any(|notice| match (notice, known) {
            (Notice::Object(key, value), Some(known)) => known.0.get(&key) != value.as_ref(),
            _ => true,
        })
    }
}

#[async_trait]
impl WireguardKernel for FakeKernel {
    async fn read_peers(&mut self, _scope: &Scope) -> Result<ExistingState, KernelError> {
        let world = self.answer("list WireGuard peers")?;
        let of_peers =
            |(key, _): &(&Key, &Value)| matches!(key, Key::WireguardPeer(..) | Key::AllowedIp(..));
        let ours = world
            .state
            .0
            .iter()
            .filter(of_peers)
            .map(|(key, value)| (*key, value.clone()))
            .collect();
        Ok(ExistingState {
            ours: KernelState(ours),
            sessions: world.sessions.clone(),
            ..ExistingState::default()
        })
    }

    async fn greet(&mut self, peers: &[(LinkName, PublicKey)]) {
        self.world().greeted.extend(peers);
    }
}
