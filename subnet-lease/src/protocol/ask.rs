//! Sends the protocol's requests to the store. Some are repeated until it replies.

use super::coroutine::Io;
use super::decide::{LastSeen, seen_lately};
use super::registry::{Answer, Compare, Entry, Listing, Request, Write};
use super::view::{Item, View};
use crate::lease::LeaseAttrs;
use crate::manager::Claim;
use crate::wire;
use std::time::Duration;
use types::Problem;
use types::backoff::Backoff;

/// Between two requests while the store does not reply.
const NO_ANSWER: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// Repeats the request until the store replies, with a pause after each failure.
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

/// Repeats the request until the store grants a lease.
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

/// Whether the transaction succeeded, the store's revision, and, if it failed, the current entry of the key.
pub(super) async fn txn(
    io: &Io,
    compare: Vec<Compare>,
    write: Vec<Write>,
    key: &str,
) -> Result<(bool, i64, Option<Entry>), Problem> {
    match io.ask(Request::Txn { compare, write, key: key.to_owned() }).await? {
        Answer::Txn { done, revision, present } => Ok((done, revision, present)),
        other => {
            let text = format!("the store returned {other:?} for a transaction");
            Err(Problem::new("store-odd-answer", text))
        }
    }
}

pub(super) async fn last_seen_of(io: &Io, item: &Item) -> Option<Duration> {
    let request = Request::LastSeen { key: item.entry.key.clone(), lease: item.keepalive() };
    loop {
        match io.ask(request.clone()).await {
            Ok(Answer::LastSeen(seen)) => return seen,
            Ok(_) => return None,
            Err(failure) => pause(io, &failure, 2).await,
        }
    }
}

/// True if the holder of a key renewed its lease within the given time.
pub(super) async fn seen_within(io: &Io, item: &Item, within: Duration) -> bool {
    last_seen_of(io, item).await.is_some_and(|ago| ago < within)
}

pub(super) async fn ask_last_seen(io: &Io, view: &View, key: String, last_seen: &mut LastSeen) {
    let seen = match view.get(&key) {
        Some(item) => last_seen_of(io, item).await,
        None => None,
    };
    debug_assert!(view.get(&key).is_none_or(|item| seen_lately(item, last_seen).is_none()));
    last_seen.insert(key, seen);
}

pub(super) fn complain(io: &Io, failure: &Problem) {
    io.show(|held| held.trouble = Some(failure.clone()));
}

pub(super) async fn pause(io: &Io, failure: &Problem, attempt: u32) {
    complain(io, failure);
    io.sleep(NO_ANSWER.after(attempt)).await;
}

/// A pause of one to two times `base`, which differs between nodes and attempts.
pub(super) fn jitter(claim: &Claim, attempt: u32, base: Duration) -> Duration {
    let seed = claim
        .node
        .instance
        .bytes()
        .chain(claim.node.id.bytes())
        .fold(u64::from(attempt) + 1, |sum, byte| {
            sum.wrapping_mul(0x0000_0100_0000_01b3) ^ u64::from(byte)
        });
    base + base.mul_f64(f64::from(u32::try_from(seed >> 32).unwrap_or(0)) / f64::from(u32::MAX))
}

pub(super) fn put(key: &str, attrs: &LeaseAttrs, lease: i64) -> Write {
    Write::Put { key: key.to_owned(), value: wire::render_value(attrs), lease }
}

/// Adds the node's identity, and the unknown fields of the key's current value.
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
