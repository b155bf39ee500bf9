//! Keeping a lease: renewed, proven, defended or given up, by the rules for each way in which the key can change under us.

use super::acquire::{Settled, Tenure, complain, grant, list, pause, put, reports, revoke, settle, signed, sweep, txn};
use super::coroutine::Io;
use super::registry::{Answer, Compare, Entry, Notice, Request, TTL};
use super::view::{Item, publishes};
use super::words;
use crate::config::NetworkConfig;
use crate::dual::Dual;
use crate::lease::LeaseAttrs;
use crate::manager::{Claim, Lost};
use crate::reason::{Kind, Reason};
use crate::wire;
use std::time::Duration;

/// How often the lease is renewed.
pub const RENEWAL: Duration = Duration::from_secs(60);
/// How often the key is proven to be ours: a renewal succeeds even when another has the key.
const PROOF: Duration = Duration::from_secs(600);
/// How often a key that another keeps overwriting is written back.
const DEFENCE: Duration = Duration::from_secs(60);
/// How long after a foreign overwrite the node is not to be trusted.
const DISTRUST: Duration = Duration::from_secs(86_400);
/// How long a foreign identity at our key may take to leave after a discontinuity.
const GRACE: Duration = Duration::from_secs(60);

/// What a changed key means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Our own write, whose answer was lost.
    OwnWrite,
    /// An operator took the lease away from the key: it is a reservation of ours now.
    Reserve,
    /// Ours, but written over: write back, at once and then rarely. Whether another instance did it.
    WriteBack {
        /// Another instance of this node did it.
        contested: bool,
    },
    /// A Go flannel (or a hand) with our address wrote over it: write back rarely, and say so.
    Overwritten,
    /// Another instance has precedence.
    Displaced,
    /// Another's.
    Taken,
    /// To be decided once it is known whether the writer lives.
    Listen,
}

/// Judges what stands at our key. `heard`: whether the writer was heard of lately, once that is known.
pub fn verdict(claim: &Claim, tenure: &Tenure, item: &Item, heard: Option<bool>) -> Verdict {
    let Some(attrs) = &item.attrs else { return Verdict::WriteBack { contested: false } };
    let published = publishes(attrs, &claim.public);
    let Some(node) = &attrs.node else {
        return match (published, item.reserved()) {
            (false, _) => Verdict::Taken,
            (true, true) => Verdict::Reserve,
            (true, false) => Verdict::Overwritten,
        };
    };
    if node.id == claim.node.id && node.instance == claim.node.instance {
        let as_written = item.entry.value == wire::render_value(&tenure.attrs).as_bytes();
        return match (item.entry.lease == tenure.lease, item.reserved()) {
            (true, _) if as_written => Verdict::OwnWrite,
            (false, true) => Verdict::Reserve,
            _ => Verdict::WriteBack { contested: false },
        };
    }
    if node.id != claim.node.id && (!published || claim.shared_address) {
        return Verdict::Taken;
    }
    if item.reserved() && published {
        // A live instance keeps a pulse beside a reservation; an operator's copy of an old value has none.
        match heard {
            None => return Verdict::Listen,
            Some(false) => return Verdict::Reserve,
            Some(true) => {}
        }
    }
    let ours = tenure.attrs.node.as_ref().map(|node| node.precedence());
    if ours < Some(node.precedence()) { Verdict::WriteBack { contested: true } } else { Verdict::Displaced }
}

/// A tenure as it is held.
struct Holder {
    io: Io,
    claim: Claim,
    config: NetworkConfig,
    tenure: Tenure,
    renewal: Duration,
    proof: Duration,
    renewal_failures: u32,
    /// When the key may be written back again.
    may_defend: Duration,
    /// A write-back that had to wait: prove the key again then.
    distrusted_until: Duration,
    /// Until when a foreign identity may leave by itself.
    grace: Duration,
}

/// Keeps the lease until it is lost for good.
pub async fn hold(io: Io, claim: Claim, config: NetworkConfig, tenure: Tenure) -> Lost {
    let now = io.now();
    let mut holder = Holder {
        renewal: tenure.renewed + RENEWAL,
        proof: now,
        renewal_failures: 0,
        may_defend: Duration::ZERO,
        distrusted_until: Duration::ZERO,
        grace: Duration::ZERO,
        io,
        claim,
        config,
        tenure,
    };
    loop {
        holder.show();
        let now = holder.io.now();
        let outcome = if holder.renewal <= now {
            holder.renew().await
        } else if holder.proof <= now {
            holder.prove(false).await
        } else {
            let until = holder.renewal.min(holder.proof);
            match holder.io.wait(Some(until)).await {
                None => Ok(()),
                Some(Notice::Written(entry)) if entry.modified <= holder.tenure.modified => Ok(()),
                Some(Notice::Written(entry)) => holder.changed(entry).await,
                Some(Notice::Deleted(revision)) if revision <= holder.tenure.modified => Ok(()),
                Some(Notice::Deleted(_)) => holder.put_back().await,
                Some(Notice::Reconnected) => holder.prove(false).await,
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
        let until = (self.tenure.lease != 0).then(|| self.tenure.renewed + TTL);
        let distrusted = self.distrusted_until > self.io.now();
        let lease = self.tenure.lease();
        let failing = self.renewal_failures > 0;
        self.io.show(|held| {
            held.until = until;
            held.grave = distrusted;
            if held.lease.as_ref() != Some(&lease) {
                held.lease = Some(lease);
            }
            if distrusted {
                held.trouble = Some(Reason::new(Kind::Overwritten, words::overwritten(&self.tenure.key)));
            } else if !failing {
                held.trouble = None;
            }
        });
    }

    async fn renew(&mut self) -> Result<(), Lost> {
        let request = Request::KeepAlive { key: self.tenure.key.clone(), lease: self.tenure.pulse };
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
                // The store's lease is gone, and the key with it: the proof finds out.
                self.renewal = now + RENEWAL;
                self.proof = now;
                if self.tenure.lease == 0 && self.tenure.pulse != 0 {
                    self.tenure.pulse = grant(&self.io).await;
                    let attrs = self.tenure.attrs.clone();
                    return self.publish(attrs).await;
                }
            }
            Err(failure) => {
                complain(&self.io, &failure);
                self.renewal_failures += 1;
                self.renewal = now + Duration::from_secs(1 << self.renewal_failures.min(3));
            }
        }
        Ok(())
    }

    /// Compares the key with what we wrote; after a discontinuity also looks for leftovers of ours.
    async fn prove(&mut self, discontinuity: bool) -> Result<(), Lost> {
        let key = self.tenure.key.clone();
        let mut compare = self.tenure.unchanged();
        compare.push(Compare::HangsOn { key: key.clone(), lease: self.tenure.lease });
        if discontinuity {
            self.grace = self.io.now() + GRACE;
        }
        match txn(&self.io, compare, Vec::new(), &key).await {
            Err(failure) => {
                complain(&self.io, &failure);
                self.renewal_failures += 1;
                self.proof = self.io.now() + Duration::from_secs(1 << self.renewal_failures.min(3));
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

    /// Our key has another value, or hangs on another lease.
    async fn changed(&mut self, entry: Entry) -> Result<(), Lost> {
        let Some(item) = Item::of(entry) else { return Ok(()) };
        let mut judged = verdict(&self.claim, &self.tenure, &item, None);
        if judged == Verdict::Listen {
            let heard = reports(&self.io, &item, super::decide::SILENCE).await;
            judged = verdict(&self.claim, &self.tenure, &item, Some(heard));
        }
        let now = self.io.now();
        match judged {
            Verdict::OwnWrite => {
                self.tenure.modified = item.entry.modified;
                self.tenure.created = item.entry.created;
                Ok(())
            }
            Verdict::Reserve => self.write(&item, false).await,
            Verdict::WriteBack { contested } => self.defend(&item, contested).await,
            Verdict::Overwritten => {
                self.distrusted_until = now + DISTRUST;
                self.defend(&item, false).await
            }
            Verdict::Listen | Verdict::Displaced | Verdict::Taken if now < self.grace => {
                self.proof = self.grace;
                Ok(())
            }
            Verdict::Displaced | Verdict::Listen => Err(Lost::Displaced(words::displaced(&self.tenure.key, &item))),
            Verdict::Taken => Err(Lost::Taken(words::taken(&self.tenure.key, Some(&item)))),
        }
    }

    /// Writes back at once, then at most once a minute.
    async fn defend(&mut self, item: &Item, contested: bool) -> Result<(), Lost> {
        let now = self.io.now();
        if now < self.may_defend {
            self.proof = self.may_defend;
            return Ok(());
        }
        self.may_defend = now + DEFENCE;
        self.write(item, contested).await
    }

    /// Puts our attributes over what stands at our key, by compare-and-swap.
    async fn write(&mut self, item: &Item, contested: bool) -> Result<(), Lost> {
        if item.reserved() {
            // Whoever wrote it: a key without a lease is a reservation and stays one.
            self.tenure.lease = 0;
        }
        if self.tenure.lease != 0 {
            let request = Request::KeepAlive { key: self.tenure.key.clone(), lease: self.tenure.pulse };
            if matches!(self.io.ask(request).await, Ok(Answer::Alive(false))) {
                self.tenure.pulse = grant(&self.io).await;
                self.tenure.lease = self.tenure.pulse;
                self.tenure.renewed = self.io.now();
            }
        }
        let contested = contested || self.tenure.attrs.node.as_ref().is_some_and(|node| node.contested);
        let rank = self.rank();
        let attrs = signed(&self.claim, &self.tenure.attrs, item.attrs.as_ref(), rank, self.tenure.lease, self.tenure.pulse, contested);
        let compare = vec![Compare::Unchanged { key: self.tenure.key.clone(), modified: item.entry.modified }];
        let write = vec![put(&self.tenure.key, &attrs, self.tenure.lease)];
        self.tenure.attrs = attrs;
        match txn(&self.io, compare, write, &self.tenure.key).await {
            Ok((true, revision, _)) => {
                self.tenure.modified = revision;
                self.tenure.created = item.entry.created;
            }
            // Changed once more, or unknown: look again soon.
            Ok((false, ..)) => self.proof = self.io.now() + Duration::from_millis(100),
            Err(failure) => {
                complain(&self.io, &failure);
                self.proof = self.io.now() + Duration::from_secs(1);
            }
        }
        Ok(())
    }

    fn rank(&self) -> i64 {
        self.tenure.attrs.node.as_ref().map_or(0, |node| node.rank)
    }

    /// Publishes other attributes.
    async fn publish(&mut self, attrs: LeaseAttrs) -> Result<(), Lost> {
        if let Some(public) = Dual::from_options(attrs.public_ip, attrs.public_ipv6) {
            self.claim.public = public;
        }
        let contested = self.tenure.attrs.node.as_ref().is_some_and(|node| node.contested);
        let present = self.tenure.attrs.clone();
        let attrs = signed(&self.claim, &attrs, Some(&present), self.rank(), self.tenure.lease, self.tenure.pulse, contested);
        if attrs == present {
            return Ok(());
        }
        let compare = self.tenure.unchanged();
        self.tenure.attrs = attrs;
        let write = vec![put(&self.tenure.key, &self.tenure.attrs, self.tenure.lease)];
        match txn(&self.io, compare, write, &self.tenure.key).await {
            Ok((true, revision, _)) => self.tenure.modified = revision,
            Ok((false, _, Some(entry))) => return self.changed(entry).await,
            Ok((false, _, None)) => return self.put_back().await,
            Err(failure) => {
                complain(&self.io, &failure);
                self.proof = self.io.now() + Duration::from_secs(1);
            }
        }
        Ok(())
    }

    /// Our key was deleted: the same subnet again, if it is still free.
    async fn put_back(&mut self) -> Result<(), Lost> {
        let mut attempt = 0;
        loop {
            let view = list(&self.io).await;
            if let Some(item) = view.get(&self.tenure.key) {
                let entry = item.entry.clone();
                return self.changed_back(entry).await;
            }
            if view.items.iter().any(|item| item.admissible(&self.config) && item.subnets.overlaps(&self.tenure.subnets)) {
                let item = view.items.iter().find(|item| item.subnets.overlaps(&self.tenure.subnets));
                return Err(Lost::Taken(words::taken(&self.tenure.key, item)));
            }
            let pulse = grant(&self.io).await;
            let lease = if self.tenure.lease == 0 { 0 } else { pulse };
            let contested = self.tenure.attrs.node.as_ref().is_some_and(|node| node.contested);
            let attrs = signed(&self.claim, &self.tenure.attrs, Some(&self.tenure.attrs), self.rank(), lease, pulse, contested);
            let compare = vec![Compare::NoneUnder(wire::key_prefix(&self.tenure.subnets))];
            let write = vec![put(&self.tenure.key, &attrs, lease)];
            match txn(&self.io, compare, write, &self.tenure.key).await {
                Ok((true, revision, _)) => {
                    let now = self.io.now();
                    self.tenure = Tenure { attrs, created: revision, modified: revision, lease, pulse, renewed: now, ..self.tenure.clone() };
                    return match settle(&self.io, &self.claim, &self.config, &mut self.tenure, false).await {
                        Settled::Ours(_) => Ok(()),
                        Settled::Yielded => Err(Lost::Taken(words::taken(&self.tenure.key, None))),
                        Settled::Refused(text) => Err(Lost::Taken(text)),
                    };
                }
                Ok((false, ..)) => {
                    revoke(&self.io, pulse).await;
                    attempt += 1;
                    // Refused twice although the list shows nobody: something below our prefix that is no lease.
                    if attempt > 2 {
                        return Err(Lost::Taken(words::taken(&self.tenure.key, None)));
                    }
                }
                Err(failure) => {
                    self.tenure.attrs = attrs;
                    self.tenure.pulse = pulse;
                    if self.tenure.lease != 0 {
                        self.tenure.lease = pulse;
                    }
                    pause(&self.io, &failure, 3).await;
                }
            }
        }
    }

    /// The key is there again: by our own lost write, or by another's.
    async fn changed_back(&mut self, entry: Entry) -> Result<(), Lost> {
        Box::pin(self.changed(entry)).await
    }
}
