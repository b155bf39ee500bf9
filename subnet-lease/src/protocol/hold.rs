//! Holds a lease: renews it, proves the ownership, and defends or abandons it. There is a rule for each possible change of the key.

mod publish;
mod restore;

use super::ask::{complain, grant, list, seen_within, txn};
use super::coroutine::Io;
use super::decide::SILENCE;
use super::error::{lease_displaced, lease_overwritten, lease_taken, lease_unpublished};
use super::news::News;
use super::registry::{Answer, Compare, Entry, Notice, Request, TTL};
use super::settle::sweep;
use super::tenure::Tenure;
use super::verdict::{Verdict, verdict};
use super::view::Item;
use crate::config::NetworkConfig;
use crate::lease::LeaseAttrs;
use crate::manager::{Claim, LeaseLostError, Unpublished};
use crate::wire;
use std::time::Duration;
use types::backoff::Backoff;

/// Interval at which the node renews the lease.
pub(crate) const RENEWAL: Duration = Duration::from_secs(60);

/// Interval at which the node checks that the key still belongs to it. A renewal is no proof: it succeeds even if another node has the key.
const PROOF: Duration = Duration::from_secs(600);

/// Interval at which the node restores a key that another instance keeps overwriting.
const DEFENCE: Duration = Duration::from_secs(60);

/// Delays before the node undoes further manual edits of the key. Operators rarely repeat one.
const CORRECTION: Backoff = Backoff::new(Duration::from_secs(1), DEFENCE);

/// Between two attempts to publish changed attributes.
const PUBLICATION: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// Between two attempts to renew the lease or to prove its ownership.
const NO_ANSWER: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));

/// Maximum number of remembered writes without a reply.
const UNSURE: usize = 16;

/// Time for which the node is not ready after another writer overwrote the key.
const DISTRUST: Duration = Duration::from_secs(86_400);

/// After a gap in the watch or a restore of the store, another node's identity may stay in this node's key for this time.
const GRACE: Duration = Duration::from_secs(60);

struct Holder {
    io: Io,
    claim: Claim,
    config: NetworkConfig,
    tenure: Tenure,
    renewal: Duration,
    proof: Duration,
    renewal_failures: u32,
    defence: Defence,
    /// What the daemon intends to publish. `tenure` contains the attributes that the store last confirmed.
    wanted: LeaseAttrs,
    publication: Publication,
    /// Writes without a reply. If the store has such a value, this node wrote it.
    unsure: Vec<LeaseAttrs>,
}

/// For the defence of the key against other writers.
#[derive(Default)]
struct Defence {
    /// Earliest time at which the node may restore the key again.
    next_write: Duration,
    /// Number of manual edits that the node recently undid.
    corrections: u32,
    /// Until then the node is not ready, because another writer overwrote the key.
    distrusted_until: Duration,
    /// Until then the node tolerates another node's identity in the key.
    grace: Duration,
}

#[derive(Default)]
struct Publication {
    /// Since then the store lacks the desired attributes.
    pending_since: Option<Duration>,
    /// Time of the next attempt.
    next: Duration,
    failures: u32,
}

/// Ends when the node has permanently lost the lease.
pub async fn hold(io: Io, claim: Claim, config: NetworkConfig, tenure: Tenure) -> LeaseLostError {
    let now = io.now();
    let mut holder = Holder {
        renewal: tenure.renewed + RENEWAL,
        proof: now,
        renewal_failures: 0,
        defence: Defence::default(),
        wanted: tenure.attrs.clone(),
        publication: Publication::default(),
        unsure: Vec::new(),
        io,
        claim,
        config,
        tenure,
    };
    loop {
        holder.show();
        let now = holder.io.now();
        let outcome = if holder.publication.pending_since.is_some()
            && holder.publication.next <= now
        {
            holder.tell().await
        } else if holder.renewal <= now {
            holder.renew().await
        } else if holder.proof <= now {
            holder.prove(false).await
        } else {
            let until = holder.renewal.min(holder.proof).min(
                if holder.publication.pending_since.is_some() {
                    holder.publication.next
                } else {
                    Duration::MAX
                },
            );
            match holder.io.wait(Some(until)).await {
                None => Ok(()),
                Some(Notice::Written(entry)) if entry.modified <= holder.tenure.modified => Ok(()),
                Some(Notice::Written(entry)) => holder.changed(entry).await,
                Some(Notice::Deleted(revision)) if revision <= holder.tenure.modified => Ok(()),
                Some(Notice::Deleted(_)) => holder.put_back().await,
                Some(Notice::Reconnected) => {
                    holder.publication.next = now;
                    holder.prove(false).await
                }
                Some(Notice::Discontinuity) => holder.prove(true).await,
                Some(Notice::Publish(attrs)) => holder.publish(*attrs).await,
            }
        };
        if let Err(lost) = outcome {
            return lost;
        }
    }
}

impl Holder {
    fn show(&self) {
        let renewed = (self.tenure.lease != 0).then_some(self.tenure.renewed);
        let distrusted = self.defence.distrusted_until > self.io.now();
        let lease = self.tenure.lease();
        let failing = self.renewal_failures > 0 || self.publication.failures > 0;
        let unpublished = self
            .publication
            .pending_since
            .filter(|_| !self.tenure.attrs.tells_the_same(&self.wanted))
            .map(|since| Unpublished {
                since,
                what: lease_unpublished(&self.tenure.attrs, &self.wanted),
            });
        self.io.show(|held| {
            held.until = renewed.map(|renewed| renewed + TTL);
            held.renewed = renewed;
            held.grave = distrusted;
            held.unpublished = unpublished;
            if held.lease.as_ref() != Some(&lease) {
                held.lease = Some(lease);
            }
            if distrusted {
                held.trouble = Some(lease_overwritten(&self.tenure.key));
            } else if !failing {
                held.trouble = None;
            }
        });
    }

    async fn renew(&mut self) -> Result<(), LeaseLostError> {
        let request =
            Request::KeepAlive { key: self.tenure.key.clone(), lease: self.tenure.keepalive };
        let now = self.io.now();
        match self.io.ask(request).await {
            Ok(Answer::Alive(true)) => {
                if self.renewal_failures > 0 {
                    self.proof = now;
                }
                self.renewal_failures = 0;
                self.tenure.renewed = now;
                self.renewal = now + RENEWAL;
            }
            Ok(_) => {
                // The store's lease has expired, and the key with it. The proof detects that.
                self.renewal = now + RENEWAL;
                self.proof = now;
                if self.tenure.lease == 0 && self.tenure.keepalive != 0 {
                    self.tenure.keepalive = grant(&self.io).await;
                    return self.tell().await;
                }
            }
            Err(failure) => {
                complain(&self.io, &failure);
                self.renewal_failures += 1;
                self.renewal = now + NO_ANSWER.after(self.renewal_failures);
            }
        }
        Ok(())
    }

    /// Compares the key with this node's last write. After a discontinuity, also deletes this node's leftover keys.
    async fn prove(&mut self, discontinuity: bool) -> Result<(), LeaseLostError> {
        let key = self.tenure.key.clone();
        let mut compare = self.tenure.unchanged();
        compare.push(Compare::HangsOn { key: key.clone(), lease: self.tenure.lease });
        if discontinuity {
            self.defence.grace = self.io.now() + GRACE;
        }
        match txn(&self.io, compare, Vec::new(), &key).await {
            Err(failure) => {
                complain(&self.io, &failure);
                self.renewal_failures += 1;
                self.proof = self.io.now() + NO_ANSWER.after(self.renewal_failures);
                return Ok(());
            }
            Ok((true, ..)) => self.proof = self.io.now() + PROOF,
            Ok((false, _, Some(entry))) => {
                self.proof = self.io.now() + PROOF;
                self.changed(entry).await?;
            }
            Ok((false, _, None)) => {
                self.proof = self.io.now() + PROOF;
                self.put_back().await?;
            }
        }
        self.renewal_failures = 0;
        if discontinuity {
            let view = list(&self.io).await;
            sweep(&self.io, &self.claim, &self.tenure, &view).await;
        }
        Ok(())
    }

    /// Handles a new value of this node's key, or a new lease to which it is attached.
    async fn changed(&mut self, entry: Entry) -> Result<(), LeaseLostError> {
        let Some(item) = Item::of(entry) else {
            return Ok(());
        };
        let arrived = |attrs: &LeaseAttrs| {
            item.entry.lease == self.tenure.lease
                && *item.entry.value == *wire::render_value(attrs).as_bytes()
        };
        if let Some(attrs) = self.unsure.iter().find(|attrs| arrived(attrs)).cloned() {
            self.tenure.created = item.entry.created;
            self.stands(attrs, item.entry.modified);
            return Ok(());
        }
        let mut judged = verdict(&self.claim, &self.tenure, &item, None);
        if judged == Verdict::AskLastSeen {
            let alive = seen_within(&self.io, &item, SILENCE).await;
            judged = verdict(&self.claim, &self.tenure, &item, Some(alive));
        }
        let now = self.io.now();
        match judged {
            Verdict::OwnWrite => {
                self.tenure.modified = item.entry.modified;
                self.tenure.created = item.entry.created;
                Ok(())
            }
            Verdict::Reserve => {
                if self.tenure.lease != 0 {
                    self.io.warn(News::Reserved(self.tenure.key.clone()));
                }
                self.tenure.lease = 0;
                self.write(&item, false, None).await.map(drop)
            }
            Verdict::WriteBack { contested: true } => {
                // Whichever instance wrote it: a key without a lease is a reservation and stays one.
                if item.reserved() {
                    self.tenure.lease = 0;
                }
                self.defend(&item, true, Some(News::contested(&self.tenure.key, &item))).await
            }
            Verdict::WriteBack { contested: false } => {
                let news = News::undone(&self.tenure.key, &item, &self.claim, &self.tenure.attrs);
                self.correct(&item, news).await
            }
            Verdict::Overwritten => {
                self.defence.distrusted_until = now + DISTRUST;
                self.defend(&item, false, None).await
            }
            Verdict::AskLastSeen | Verdict::Displaced | Verdict::Taken
                if now < self.defence.grace =>
            {
                self.proof = self.defence.grace;
                Ok(())
            }
            Verdict::Displaced | Verdict::AskLastSeen => {
                Err(LeaseLostError::Displaced(lease_displaced(&self.tenure.key, &item)))
            }
            Verdict::Taken => {
                Err(LeaseLostError::Taken(lease_taken(&self.tenure.key, Some(&item))))
            }
        }
    }
}
