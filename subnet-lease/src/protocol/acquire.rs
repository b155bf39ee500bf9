//! Acquires a lease: this node's existing one, or a new one. Every write is a compare-and-swap.

use super::ask::{
    ask_last_seen, complain, grant, jitter, list, put, revoke, seen_within, signed, txn,
};
use super::coroutine::Io;
use super::decide::{Decision, Keep, LastSeen, decide};
use super::error::{lease_contested, lease_may_be_contested, out_of_subnets};
use super::registry::{Answer, Compare, Request, TTL, Write};
use super::settle::{Settled, settle, sweep};
use super::tenure::Tenure;
use super::view::{Item, View};
use crate::alloc::candidates;
use crate::config::NetworkConfig;
use crate::lease::LeaseAttrs;
use crate::manager::Claim;
use crate::wire;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::backoff::Backoff;
use types::{Problem, Subnets};

/// Time for which a new instance waits before it takes over a contested lease. A live holder renews its lease every 60 s.
pub(crate) const CONTEST: Duration = Duration::from_secs(66);

/// Interval at which the node checks whether an exhausted pool has a free subnet.
const POOL_LOOK: Duration = Duration::from_millis(1500);

/// Delay before the node reads the store's state again after an unsuccessful attempt.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(1280));

/// What this node last published, if a key belongs to it. Fails in the same cases as [`acquire`].
pub async fn stored(
    io: Io,
    claim: Claim,
    config: NetworkConfig,
) -> Result<Option<LeaseAttrs>, Problem> {
    let view = list(&io).await;
    let mut last_seen = LastSeen::new();
    loop {
        return match decide(&claim, &config, &view, &last_seen) {
            Decision::AskLastSeen(key) => {
                ask_last_seen(&io, &view, key, &mut last_seen).await;
                continue;
            }
            Decision::Refuse(why) => Err(why),
            Decision::Keep(Keep { key, ours: true, .. }) | Decision::Reshape(key, _) => {
                Ok(view.get(&key).and_then(|item| item.attrs.clone()))
            }
            Decision::Keep(_) | Decision::Allocate(_) => Ok(None),
        };
    }
}

/// Waits until this node has a lease. Fails if another live node uses this node's address or identity.
pub async fn acquire(
    io: Io,
    claim: Claim,
    config: NetworkConfig,
    attrs: LeaseAttrs,
) -> Result<Tenure, Problem> {
    let mut refused = BTreeSet::new();
    let mut patient = false;
    let mut attempt = 0u32;
    loop {
        if attempt > 0 {
            let pause = jitter(&claim, attempt, RETRY_BACKOFF.after(attempt));
            io.sleep(pause).await;
        }
        attempt += 1;
        let view = list(&io).await;
        let mut last_seen = LastSeen::new();
        let decision = loop {
            match decide(&claim, &config, &view, &last_seen) {
                Decision::AskLastSeen(key) => ask_last_seen(&io, &view, key, &mut last_seen).await,
                decision => break decision,
            }
        };
        let (tenure, new) = match decision {
            Decision::AskLastSeen(_) => continue,
            Decision::Refuse(why) => return Err(why),
            Decision::Keep(Keep { key, contested, .. }) => {
                let Some(item) = view.get(&key) else { continue };
                if contested && !patient {
                    io.show(|held| {
                        held.trouble = Some(lease_may_be_contested(&item.subnets));
                    });
                    io.sleep(CONTEST).await;
                    patient = true;
                    if seen_within(&io, item, CONTEST).await {
                        return Err(lease_contested(&claim, item));
                    }
                    continue;
                }
                let subnets = item.subnets;
                (keep(&io, &claim, &attrs, &view, item, subnets).await, false)
            }
            Decision::Reshape(key, subnets) => {
                let Some(item) = view.get(&key) else { continue };
                (keep(&io, &claim, &attrs, &view, item, subnets).await, false)
            }
            Decision::Allocate(wishes) => {
                match allocate(&io, &claim, &config, &attrs, &view, wishes, &mut refused).await {
                    Allocation::Got(tenure) => (Some(*tenure), true),
                    Allocation::Unsure => (None, false),
                    Allocation::Exhausted => {
                        refused.clear();
                        io.show(|held| {
                            held.trouble = Some(out_of_subnets(&claim, &config));
                        });
                        io.sleep(jitter(&claim, attempt, POOL_LOOK)).await;
                        continue;
                    }
                }
            }
        };
        let Some(mut tenure) = tenure else { continue };
        // Free the memory before the next list: each may contain ten thousand keys.
        drop(view);
        match settle(&io, &claim, &config, &mut tenure, new).await {
            Settled::Ours(view) => {
                sweep(&io, &claim, &tenure, &view).await;
                io.show(|held| {
                    held.trouble = None;
                    held.renewed = (tenure.lease != 0).then_some(tenure.renewed);
                    held.until = held.renewed.map(|renewed| renewed + TTL);
                    held.lease = Some(tenure.lease());
                });
                return Ok(tenure);
            }
            Settled::Yielded => {}
            Settled::Refused(why) => return Err(why),
        }
    }
}

/// Writes this node's attributes to its key. If `subnets` are other ones than the key's, with one more or one fewer address family, moves the lease
/// to their key.
async fn keep(
    io: &Io,
    claim: &Claim,
    attrs: &LeaseAttrs,
    view: &View,
    item: &Item,
    subnets: Subnets,
) -> Option<Tenure> {
    let (keepalive, granted) = inherit(io, claim, item).await;
    let lease = if item.reserved() { 0 } else { keepalive };
    let attrs = signed(claim, attrs, item.attrs.as_ref(), view.revision, lease, keepalive, false);
    let old = &item.entry.key;
    let mut compare = vec![Compare::Unchanged { key: old.clone(), modified: item.entry.modified }];
    let mut write = Vec::new();
    let is_moved = subnets != item.subnets;
    let key = if is_moved {
        let key = wire::render_key(&subnets);
        // The longer key does not exist yet. If the new key is the shorter one, it is a prefix of the old key, which is ours.
        if !old.starts_with(&key) {
            compare.push(Compare::NoneUnder(key.clone()));
        }
        write.push(Write::Delete { key: old.clone() });
        key
    } else {
        old.clone()
    };
    write.push(put(&key, &attrs, lease));
    let done = commit(io, compare, write, &key, granted).await?;
    let renewed = renewed(io, &key, keepalive, granted).await;
    Some(Tenure {
        key,
        subnets,
        attrs,
        created: if is_moved { done } else { item.entry.created },
        modified: done,
        lease,
        keepalive,
        renewed,
    })
}

/// The etcd lease for this node's key; the second value is its id if it is new. The current one is reused if a former instance of this node requested
/// it. If every start requested a new one, unused etcd leases would accumulate. A reservation always gets a new one, which distinguishes a running
/// instance from an operator's copy of the key.
async fn inherit(io: &Io, claim: &Claim, item: &Item) -> (i64, Option<i64>) {
    if !item.reserved() && item.node().is_some_and(|node| node.id == claim.node.id) {
        let lease = item.entry.lease;
        if io.ask(Request::Inherit { lease }).await == Ok(Answer::Alive(true)) {
            return (lease, None);
        }
    }
    let granted = grant(io).await;
    (granted, Some(granted))
}

/// When the etcd lease was last renewed. A new one counts as renewed. An inherited one is renewed only here, after the key belongs to this node, so
/// that other nodes treat the holder as alive. If that fails, the next renewal is due at once.
async fn renewed(io: &Io, key: &str, keepalive: i64, granted: Option<i64>) -> Duration {
    if granted.is_some() {
        return io.now();
    }
    match io.ask(Request::KeepAlive { key: key.to_owned(), lease: keepalive }).await {
        Ok(Answer::Alive(true)) => io.now(),
        _ => io.now().saturating_sub(super::hold::RENEWAL),
    }
}

enum Allocation {
    Got(Box<Tenure>),
    /// The store did not reply, or other nodes leased every candidate subnet in the meantime. The caller lists the keys again.
    Unsure,
    Exhausted,
}

/// Tries free subnets in this node's own order until the creation of a lease succeeds.
async fn allocate(
    io: &Io,
    claim: &Claim,
    config: &NetworkConfig,
    attrs: &LeaseAttrs,
    view: &View,
    wishes: Vec<Subnets>,
    refused: &mut BTreeSet<Subnets>,
) -> Allocation {
    let taken = view.taken(claim);
    let order: Vec<Subnets> = {
        let rest = candidates(config, &taken, &claim.node.id)
            .filter(|subnets| !refused.contains(subnets))
            .take(64);
        wishes.into_iter().filter(|wish| !refused.contains(wish)).chain(rest).collect()
    };
    if order.is_empty() {
        return Allocation::Exhausted;
    }
    let keepalive = grant(io).await;
    let attrs = signed(claim, attrs, None, view.revision, keepalive, keepalive, false);
    let keys = view.items.iter().map(|item| item.entry.key.clone());
    let known = Arc::new(keys.collect());
    for subnets in order {
        let key = wire::render_key(&subnets);
        let mut compare = vec![Compare::NoneUnder(wire::key_prefix(&subnets))];
        if !claim.host.shared_address {
            compare.push(Compare::NoneElseAt { known: Arc::clone(&known), public: claim.public });
        }
        match txn(io, compare, vec![put(&key, &attrs, keepalive)], &key).await {
            Ok((true, revision, _)) => {
                let renewed = io.now();
                let lease = keepalive;
                return Allocation::Got(Box::new(Tenure {
                    key,
                    subnets,
                    attrs,
                    created: revision,
                    modified: revision,
                    lease,
                    keepalive,
                    renewed,
                }));
            }
            Ok((false, ..)) => {
                refused.insert(subnets);
            }
            Err(failure) => {
                complain(io, &failure);
                return Allocation::Unsure;
            }
        }
    }
    revoke(io, keepalive).await;
    Allocation::Unsure
}

/// The new revision; `None` if the transaction did not succeed. If the store refuses it, the etcd lease that was granted for it is revoked.
async fn commit(
    io: &Io,
    compare: Vec<Compare>,
    write: Vec<Write>,
    key: &str,
    granted: Option<i64>,
) -> Option<i64> {
    match txn(io, compare, write, key).await {
        Ok((true, revision, _)) => Some(revision),
        Ok((false, ..)) => {
            revoke(io, granted.unwrap_or(0)).await;
            None
        }
        Err(failure) => {
            complain(io, &failure);
            None
        }
    }
}
