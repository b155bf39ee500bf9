//! Getting a lease: our own where there is one, else a new one, by compare-and-swap throughout.

use super::coroutine::Io;
use super::decide::{Decision, Keep, LastSeen, decide, seen_lately};
use super::registry::{Answer, Compare, Listing, Request, Unanswered, Write};
use super::view::{Item, View};
use super::words;
use crate::alloc::candidates;
use crate::backoff::Backoff;
use crate::config::NetworkConfig;
use crate::dual::Subnets;
use crate::lease::{Lease, LeaseAttrs, Term};
use crate::manager::Claim;
use crate::reason::{Kind, Reason};
use crate::wire;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a newcomer waits before it takes over a contested lease: a living holder reports every 60 s.
pub const CONTEST: Duration = Duration::from_secs(66);
/// How often a full pool is looked at again.
const POOL_LOOK: Duration = Duration::from_millis(1500);
/// Between two requests while the store does not answer.
const NO_ANSWER: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// Before the state of the store is read again, because an attempt came to nothing.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(1280));

/// A lease in hand: what is known of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The key.
    pub key: String,
    /// What it names.
    pub subnets: Subnets,
    /// What was written.
    pub attrs: LeaseAttrs,
    /// When the key was created.
    pub created: i64,
    /// When it was last written, by us.
    pub modified: i64,
    /// The store's lease that it hangs on; 0 for a reservation.
    pub lease: i64,
    /// What is kept alive: the same, or for a reservation a lease of its own without a key.
    pub keepalive: i64,
    /// When the keepalive was last renewed.
    pub renewed: Duration,
}

impl Tenure {
    /// The lease as the rest of the program sees it.
    pub fn lease(&self) -> Lease {
        let term = if self.lease == 0 { Term::Reserved } else { Term::Leased };
        Lease { subnets: self.subnets, attrs: self.attrs.clone(), term, since: self.created }
    }

    /// The comparisons that every write to the key rests on.
    pub fn unchanged(&self) -> Vec<Compare> {
        vec![
            Compare::Unchanged { key: self.key.clone(), modified: self.modified },
            Compare::Holds { key: self.key.clone(), value: wire::render_value(&self.attrs) },
        ]
    }
}

/// What this node publishes last time, if a key is found to be its own; refuses as [`acquire`] would.
pub async fn stored(io: Io, claim: Claim, config: NetworkConfig) -> Result<Option<LeaseAttrs>, String> {
    let view = list(&io).await;
    let mut last_seen = LastSeen::new();
    loop {
        return match decide(&claim, &config, &view, &last_seen) {
            Decision::AskLastSeen(key) => {
                ask_last_seen(&io, &view, key, &mut last_seen).await;
                continue;
            }
            Decision::Refuse(text) => Err(text),
            Decision::Keep(Keep { key, ours: true, .. }) | Decision::Reshape(key, _) => Ok(view.get(&key).and_then(|item| item.attrs.clone())),
            Decision::Keep(_) | Decision::Allocate(_) => Ok(None),
        };
    }
}

/// Waits until this node has a lease.
///
/// # Errors
/// The reason, when another live node uses this node's address or identity.
pub async fn acquire(io: Io, claim: Claim, config: NetworkConfig, attrs: LeaseAttrs) -> Result<Tenure, String> {
    let mut refused = BTreeSet::new();
    let mut patient = false;
    let mut attempt = 0u32;
    loop {
        if attempt > 0 {
            let pause = jitter(&claim, attempt, AGAIN.after(attempt));
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
            Decision::Refuse(text) => return Err(text),
            Decision::Keep(Keep { key, contested, .. }) => {
                let Some(item) = view.get(&key) else { continue };
                if contested && !patient {
                    let text = format!("another instance defended the lease of {}: waiting whether it lives", item.subnets);
                    io.show(|held| held.trouble = Some(Reason::new(Kind::Contested, text)));
                    io.sleep(CONTEST).await;
                    patient = true;
                    if seen_within(&io, item, CONTEST).await {
                        return Err(words::contested(&claim, item));
                    }
                    continue;
                }
                (keep(&io, &claim, &attrs, &view, item).await, false)
            }
            Decision::Reshape(key, subnets) => {
                let Some(item) = view.get(&key) else { continue };
                (reshape(&io, &claim, &attrs, &view, item, subnets).await, false)
            }
            Decision::Allocate(wishes) => match allocate(&io, &claim, &config, &attrs, &view, wishes, &mut refused).await {
                Allocation::Got(tenure) => (Some(*tenure), true),
                Allocation::Unsure => (None, false),
                Allocation::Exhausted => {
                    refused.clear();
                    io.show(|held| held.trouble = Some(Reason::new(Kind::Exhausted, words::exhausted(&claim, &config))));
                    io.sleep(jitter(&claim, attempt, POOL_LOOK)).await;
                    continue;
                }
            },
        };
        let Some(mut tenure) = tenure else { continue };
        match settle(&io, &claim, &config, &mut tenure, new).await {
            Settled::Ours(view) => {
                sweep(&io, &claim, &tenure, &view).await;
                io.show(|held| {
                    held.trouble = None;
                    held.until = (tenure.lease != 0).then(|| tenure.renewed + super::registry::TTL);
                    held.lease = Some(tenure.lease());
                });
                return Ok(tenure);
            }
            Settled::Yielded => {}
            Settled::Refused(text) => return Err(text),
        }
    }
}

/// Writes our attributes to a key that is ours.
async fn keep(io: &Io, claim: &Claim, attrs: &LeaseAttrs, view: &View, item: &Item) -> Option<Tenure> {
    let (keepalive, granted) = inherit(io, claim, item).await;
    let lease = if item.reserved() { 0 } else { keepalive };
    let attrs = signed(claim, attrs, item.attrs.as_ref(), view.revision, lease, keepalive, false);
    let compare = vec![Compare::Unchanged { key: item.entry.key.clone(), modified: item.entry.modified }];
    let write = vec![put(&item.entry.key, &attrs, lease)];
    let done = commit(io, compare, write, &item.entry.key, granted).await?;
    let key = item.entry.key.clone();
    let renewed = renewed(io, &key, keepalive, granted).await;
    Some(Tenure { key, subnets: item.subnets, attrs, created: item.entry.created, modified: done, lease, keepalive, renewed })
}

/// Moves our key to one with a family more or less.
async fn reshape(io: &Io, claim: &Claim, attrs: &LeaseAttrs, view: &View, item: &Item, subnets: Subnets) -> Option<Tenure> {
    let (keepalive, granted) = inherit(io, claim, item).await;
    let lease = if item.reserved() { 0 } else { keepalive };
    let attrs = signed(claim, attrs, item.attrs.as_ref(), view.revision, lease, keepalive, false);
    let key = wire::render_key(&subnets);
    let compare = vec![Compare::Unchanged { key: item.entry.key.clone(), modified: item.entry.modified }, Compare::NoneUnder(key.clone())];
    // The longer key is not there yet; where the new key is the shorter one, the old one lies under it and is ours.
    let shorter = item.entry.key.starts_with(&key);
    let compare = if shorter { compare.into_iter().take(1).collect() } else { compare };
    let write = vec![Write::Delete { key: item.entry.key.clone() }, put(&key, &attrs, lease)];
    let done = commit(io, compare, write, &key, granted).await?;
    let renewed = renewed(io, &key, keepalive, granted).await;
    Some(Tenure { key, subnets, attrs, created: done, modified: done, lease, keepalive, renewed })
}

/// The lease to hang our key on: the one it hangs on already, when a former instance of this node was granted that, since every start would leave
/// one behind else. Beside it what was granted anew. Not for a reservation: its keepalive is what tells a living instance from an operator's copy.
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

/// When the lease was renewed: one that was granted just now, now. An inherited one is renewed once the key bears our name, since whoever asks
/// takes a lease that was renewed lately for the sign of a living holder; what does not come through is due at once.
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
    /// An answer was lost, or every candidate was taken meanwhile: look again.
    Unsure,
    Exhausted,
}

/// Tries free subnets in this node's own order until one is created.
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
        let rest = candidates(config, &taken, &claim.node.id).filter(|subnets| !refused.contains(subnets)).take(64);
        wishes.into_iter().filter(|wish| !refused.contains(wish)).chain(rest).collect()
    };
    if order.is_empty() {
        return Allocation::Exhausted;
    }
    let keepalive = grant(io).await;
    let attrs = signed(claim, attrs, None, view.revision, keepalive, keepalive, false);
    for subnets in order {
        let key = wire::render_key(&subnets);
        let compare = vec![Compare::NoneUnder(wire::key_prefix(&subnets))];
        match txn(io, compare, vec![put(&key, &attrs, keepalive)], &key).await {
            Ok((true, revision, _)) => {
                let renewed = io.now();
                let lease = keepalive;
                return Allocation::Got(Box::new(Tenure { key, subnets, attrs, created: revision, modified: revision, lease, keepalive, renewed }));
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

pub(super) enum Settled {
    Ours(View),
    Yielded,
    Refused(String),
}

/// One more list after a write: whoever overlaps us with an earlier creation keeps, a new lease in which an earlier node is goes, and of two new nodes with one address the later refuses.
pub(super) async fn settle(io: &Io, claim: &Claim, config: &NetworkConfig, tenure: &mut Tenure, new: bool) -> Settled {
    let view = list(io).await;
    let Some(own) = view.items.iter().find(|item| item.entry.key == tenure.key && item.entry.modified == tenure.modified) else {
        // Gone or rewritten already: `hold`, or the next round, deals with it.
        return if new { Settled::Yielded } else { Settled::Ours(view) };
    };
    tenure.created = own.entry.created;
    let earlier = |item: &&Item| item.entry.key != tenure.key && item.entry.created < tenure.created;
    let overlap = view.items.iter().filter(earlier).any(|item| config.contains(&item.subnets) && item.subnets.overlaps(&tenure.subnets));
    // Of a subnet and a node inside it the older lease holds too. One that has carried pods stays: the others decide by age.
    let holds = |item: &Item| item.addresses().any(|address| tenure.subnets.nets().any(|net| net.contains(&address)));
    let holds_node = new && view.items.iter().filter(earlier).any(|item| config.contains(&item.subnets) && holds(item));
    if (overlap || holds_node) && tenure.lease != 0 {
        give_up(io, tenure).await;
        return Settled::Yielded;
    }
    if new && !claim.host.shared_address {
        let others = view.items.iter().filter(earlier).filter(|item| item.publishes(&claim.public));
        for item in others.filter(|item| item.node().is_some_and(|node| node.id != claim.node.id)) {
            if seen_within(io, item, super::decide::SILENCE).await {
                give_up(io, tenure).await;
                return Settled::Refused(words::trap(claim, item));
            }
        }
    }
    Settled::Ours(view)
}

/// Deletes keys of our own address that we do not use: never a reservation, only silent ones or this host's.
pub(super) async fn sweep(io: &Io, claim: &Claim, tenure: &Tenure, view: &View) {
    if claim.host.shared_address {
        return;
    }
    for item in view.items.iter().filter(|item| item.entry.key != tenure.key && !item.reserved()) {
        let ours = item.node().is_some_and(|node| node.id == claim.node.id);
        if !(item.publishes(&claim.public) || ours) {
            continue;
        }
        let gone = ours && item.publishes(&claim.public) || !seen_within(io, item, super::decide::SILENCE).await;
        if gone {
            let compare = vec![Compare::Unchanged { key: item.entry.key.clone(), modified: item.entry.modified }];
            let _ = txn(io, compare, vec![Write::Delete { key: item.entry.key.clone() }], &item.entry.key).await;
        }
    }
}

async fn give_up(io: &Io, tenure: &Tenure) {
    let gone = txn(io, tenure.unchanged(), vec![Write::Delete { key: tenure.key.clone() }], &tenure.key).await;
    // Written by another meanwhile, the key may hang on this very lease.
    if matches!(gone, Ok((true, ..))) {
        revoke(io, tenure.keepalive).await;
    }
}

/// Whether the holder of a key was seen within that time.
pub(super) async fn seen_within(io: &Io, item: &Item, within: Duration) -> bool {
    last_seen_of(io, item).await.is_some_and(|ago| ago < within)
}

async fn ask_last_seen(io: &Io, view: &View, key: String, last_seen: &mut LastSeen) {
    let seen = match view.get(&key) {
        Some(item) => last_seen_of(io, item).await,
        None => None,
    };
    debug_assert!(view.get(&key).is_none_or(|item| seen_lately(item, last_seen).is_none()));
    last_seen.insert(key, seen);
}

async fn last_seen_of(io: &Io, item: &Item) -> Option<Duration> {
    let request = Request::LastSeen { key: item.entry.key.clone(), lease: item.keepalive() };
    loop {
        match io.ask(request.clone()).await {
            Ok(Answer::LastSeen(seen)) => return seen,
            Ok(_) => return None,
            Err(failure) => pause(io, &failure, 2).await,
        }
    }
}

/// Lists until the store answers.
pub(super) async fn list(io: &Io) -> View {
    let mut attempt = 0;
    loop {
        match io.ask(Request::List).await {
            Ok(Answer::Listing(listing)) => return View::of(listing),
            Ok(_) => return View::of(Listing::default()),
            Err(failure) => {
                pause(io, &failure, attempt).await;
                attempt += 1;
            }
        }
    }
}

/// Asks for a lease until the store gives one.
pub(super) async fn grant(io: &Io) -> i64 {
    let mut attempt = 0;
    loop {
        match io.ask(Request::Grant).await {
            Ok(Answer::Granted(lease)) => return lease,
            Ok(_) => return 0,
            Err(failure) => {
                pause(io, &failure, attempt).await;
                attempt += 1;
            }
        }
    }
}

pub(super) async fn revoke(io: &Io, lease: i64) {
    if lease != 0 {
        let _ = io.ask(Request::Revoke { lease }).await;
    }
}

/// A transaction: whether it was done, the revision, and what is there instead.
pub(super) async fn txn(
    io: &Io,
    compare: Vec<Compare>,
    write: Vec<Write>,
    key: &str,
) -> Result<(bool, i64, Option<super::registry::Entry>), Unanswered> {
    match io.ask(Request::Txn { compare, write, key: key.to_owned() }).await? {
        Answer::Txn { done, revision, present } => Ok((done, revision, present)),
        other => Err(Unanswered(format!("the store answered a transaction with {other:?}").into())),
    }
}

/// A transaction of which only success counts; the new revision. What was granted for it is given back.
async fn commit(io: &Io, compare: Vec<Compare>, write: Vec<Write>, key: &str, granted: Option<i64>) -> Option<i64> {
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

pub(super) fn complain(io: &Io, failure: &Unanswered) {
    io.show(|held| held.trouble = Some(failure.0.clone()));
}

pub(super) async fn pause(io: &Io, failure: &Unanswered, attempt: u32) {
    complain(io, failure);
    io.sleep(NO_ANSWER.after(attempt)).await;
}

/// A pause that differs between nodes and attempts, between one and two times `base`.
pub(super) fn jitter(claim: &Claim, attempt: u32, base: Duration) -> Duration {
    let seed = claim
        .node
        .instance
        .bytes()
        .chain(claim.node.id.bytes())
        .fold(u64::from(attempt) + 1, |sum, byte| sum.wrapping_mul(0x0000_0100_0000_01b3) ^ u64::from(byte));
    base + base.mul_f64(f64::from(u32::try_from(seed >> 32).unwrap_or(0)) / f64::from(u32::MAX))
}

pub(super) fn put(key: &str, attrs: &LeaseAttrs, lease: i64) -> Write {
    Write::Put { key: key.to_owned(), value: wire::render_value(attrs), lease }
}

/// Our attributes with what the key's present value holds beside them, and our signature.
pub(super) fn signed(
    claim: &Claim,
    attrs: &LeaseAttrs,
    present: Option<&LeaseAttrs>,
    rank: i64,
    lease: i64,
    keepalive: i64,
    contested: bool,
) -> LeaseAttrs {
    let mut attrs = attrs.clone();
    if let Some(present) = present {
        attrs.unknown.clone_from(&present.unknown);
    }
    let mut node = claim.node.clone();
    node.rank = rank;
    node.lease = (lease == 0 && keepalive != 0).then_some(keepalive);
    node.contested = contested;
    attrs.node = Some(node);
    attrs
}
