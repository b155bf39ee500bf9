//! Delays the deletion of many objects in the reconciler's first pass, because the lease store may be incomplete.

use netstate::encrypted::Encrypted;
use netstate::{KernelState, Key, Op, Scope, Value};
use std::time::Duration;
use tokio::time::Instant;

/// How long the deletion of many routes and peers waits after a start.
const DELETION_DELAY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeletionGuard {
    Armed,
    Waiting(Instant),
    Off,
}

impl DeletionGuard {
    /// Removes deletions from `ops` if a first pass would delete many existing routes or peers,
    /// until the delay ends.
    pub(super) fn hold_back(
        &mut self,
        ops: &mut Vec<Op>,
        want: &KernelState,
        have: &KernelState,
        scope: &Scope,
    ) {
        if *self == DeletionGuard::Off {
            return;
        }
        let encrypted = Encrypted::by(want);
        // Objects of former networks do not return with the store. Routes that bypass encryption are never kept, because they send packets unencrypted.
        let stale = |key: &Key, value: &Value| match (key, value) {
            (Key::Route(net, _), Value::Route(route)) => {
                scope.covered(net) || encrypted.is_bypassed_by(net, route)
            }
            (Key::Neighbor(_, ip), _) => scope.covered(&ipnet::IpNet::from(*ip)),
            (Key::AllowedIp(_, net), _) => scope.covered(net),
            _ => false,
        };
        let ours = |key: &Key, value: &Value| match value {
            Value::Route(route) => route.protocol == scope.protocol && !stale(key, value),
            value => matches!(value, Value::WireguardPeer(_)),
        };
        let marked = have.0.iter().filter(|(key, value)| ours(key, value)).count();
        let going = ops.iter().filter(|op| matches!(op, Op::Delete(key, value) if ours(key, value) && !want.0.contains_key(key))).count();
        let now = Instant::now();
        let due = self.due().unwrap_or(now + DELETION_DELAY);
        if going <= 3 || going * 5 <= marked || now >= due {
            *self = DeletionGuard::Off;
            return;
        }
        if *self == DeletionGuard::Armed {
            tracing::warn!(
                count = going,
                total = marked,
                seconds = DELETION_DELAY.as_secs(),
                "many routes and peers in the kernel have no lease; keeping them for now in case the store is incomplete"
            );
        }
        *self = DeletionGuard::Waiting(due);
        // A deletion of a desired object makes room for its replacement.
        let of_peers = |key: &Key| !matches!(key, Key::Link(_) | Key::Address(..));
        let waits = |key: &Key, value: &Value| {
            of_peers(key) && !stale(key, value) && !want.0.contains_key(key)
        };
        ops.retain(|op| !matches!(op, Op::Delete(key, value) if waits(key, value)));
    }

    /// When the delayed deletions are due; `None` without any.
    pub(super) fn due(&self) -> Option<Instant> {
        if let DeletionGuard::Waiting(due) = self { Some(*due) } else { None }
    }
}
