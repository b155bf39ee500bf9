//! Keeping a lease: renewed, proven, defended or given up, by the rules for each way in which the key can change under us.

use super::acquire::{Settled, Tenure, complain, grant, jitter, list, pause, put, revoke, seen_within, settle, signed, sweep, txn};
use super::coroutine::Io;
use super::registry::{Answer, Compare, Entry, Notice, Request, TTL, Unanswered};
use super::view::{Item, publishes};
use super::words;
use crate::backoff::Backoff;
use crate::config::NetworkConfig;
use crate::dual::Dual;
use crate::lease::LeaseAttrs;
use crate::manager::{Claim, Lost, Untold};
use crate::reason::{Kind, Reason};
use crate::wire;
use std::time::Duration;

/// How often the lease is renewed.
pub const RENEWAL: Duration = Duration::from_secs(60);
/// How often the key is proven to be ours: a renewal succeeds even when another has the key.
const PROOF: Duration = Duration::from_secs(600);
/// How often a key that another keeps overwriting is written back.
const DEFENCE: Duration = Duration::from_secs(60);
/// The same where a hand did it, which has no reason to do it again.
const CORRECTION: Backoff = Backoff::new(Duration::from_secs(1), DEFENCE);
/// Between two attempts to publish changed attributes.
const PUBLICATION: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// Between two attempts to renew or to prove.
const NO_ANSWER: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));
/// How many writes without an answer are remembered.
const UNSURE: usize = 16;
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
    AskLastSeen,
}

/// Judges what stands at our key. `alive`: whether the writer was seen lately, once that is known.
pub fn verdict(claim: &Claim, tenure: &Tenure, item: &Item, alive: Option<bool>) -> Verdict {
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
        // While a new address is not told yet, the one that was told is ours as well.
        let ours = published || item.attrs.as_ref().is_some_and(|attrs| tenure.attrs.same_public(attrs));
        return match (item.entry.lease == tenure.lease, item.reserved()) {
            (true, _) if as_written => Verdict::OwnWrite,
            // An address that is none of ours is nobody's idea of a reservation.
            (false, true) if ours => Verdict::Reserve,
            _ => Verdict::WriteBack { contested: false },
        };
    }
    if node.id != claim.node.id && (!published || claim.host.shared_address) {
        return Verdict::Taken;
    }
    if item.reserved() && published {
        // A live instance keeps a keepalive beside a reservation; an operator's copy of an old value has none.
        match alive {
            None => return Verdict::AskLastSeen,
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
    /// How often a hand's work was undone lately.
    corrections: u32,
    /// Until when a foreign overwrite makes the node one not to be trusted.
    distrusted_until: Duration,
    /// Until when a foreign identity may leave by itself.
    grace: Duration,
    /// What the daemon wants the peers to know; the tenure has what the store is known to hold.
    wanted: LeaseAttrs,
    /// Since when the two differ.
    untold: Option<Duration>,
    /// When it is tried next to tell it, and how often that failed.
    telling: Duration,
    telling_failures: u32,
    /// What was written without an answer: it may stand in the store, and is ours then.
    unsure: Vec<LeaseAttrs>,
}

/// Keeps the lease until it is lost for good.
pub async fn hold(io: Io, claim: Claim, config: NetworkConfig, tenure: Tenure) -> Lost {
    let now = io.now();
    let mut holder = Holder {
        renewal: tenure.renewed + RENEWAL,
        proof: now,
        renewal_failures: 0,
        may_defend: Duration::ZERO,
        corrections: 0,
        distrusted_until: Duration::ZERO,
        grace: Duration::ZERO,
        wanted: tenure.attrs.clone(),
        untold: None,
        telling: Duration::ZERO,
        telling_failures: 0,
        unsure: Vec::new(),
        io,
        claim,
        config,
        tenure,
    };
    loop {
        holder.show();
        let now = holder.io.now();
        let outcome = if holder.untold.is_some() && holder.telling <= now {
            holder.tell().await
        } else if holder.renewal <= now {
            holder.renew().await
        } else if holder.proof <= now {
            holder.prove(false).await
        } else {
            let until = holder.renewal.min(holder.proof).min(if holder.untold.is_some() { holder.telling } else { Duration::MAX });
            match holder.io.wait(Some(until)).await {
                None => Ok(()),
                Some(Notice::Written(entry)) if entry.modified <= holder.tenure.modified => Ok(()),
                Some(Notice::Written(entry)) => holder.changed(entry).await,
                Some(Notice::Deleted(revision)) if revision <= holder.tenure.modified => Ok(()),
                Some(Notice::Deleted(_)) => holder.put_back().await,
                Some(Notice::Reconnected) => {
                    holder.telling = now;
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
        let until = (self.tenure.lease != 0).then(|| self.tenure.renewed + TTL);
        let distrusted = self.distrusted_until > self.io.now();
        let lease = self.tenure.lease();
        let failing = self.renewal_failures > 0 || self.telling_failures > 0;
        let untold = self
            .untold
            .filter(|_| !self.tenure.attrs.tells_the_same(&self.wanted))
            .map(|since| Untold { since, what: words::untold(&self.tenure.attrs, &self.wanted) });
        self.io.show(|held| {
            held.until = until;
            held.grave = distrusted;
            held.untold = untold;
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
        let request = Request::KeepAlive { key: self.tenure.key.clone(), lease: self.tenure.keepalive };
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

    /// Our key has another value, or hangs on another lease.
    async fn changed(&mut self, entry: Entry) -> Result<(), Lost> {
        let Some(item) = Item::of(entry) else { return Ok(()) };
        let arrived = |attrs: &LeaseAttrs| item.entry.lease == self.tenure.lease && item.entry.value == wire::render_value(attrs).as_bytes();
        if let Some(attrs) = self.unsure.iter().find(|attrs| arrived(attrs)).cloned() {
            self.tenure.created = item.entry.created;
            self.stands(attrs, item.entry.modified);
            return Ok(());
        }
        let mut judged = verdict(&self.claim, &self.tenure, &item, None);
        if judged == Verdict::AskLastSeen {
            let alive = seen_within(&self.io, &item, super::decide::SILENCE).await;
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
                    self.io.warn(words::reserved(&self.tenure.key));
                }
                self.tenure.lease = 0;
                self.write(&item, false, None).await.map(drop)
            }
            Verdict::WriteBack { contested: true } => {
                // Whichever of the two wrote it: a key without a lease is a reservation and stays one.
                if item.reserved() {
                    self.tenure.lease = 0;
                }
                self.defend(&item, true, Some(words::contested_key(&self.tenure.key, &item))).await
            }
            Verdict::WriteBack { contested: false } => {
                let news = words::mended(&self.tenure.key, &item, &self.claim, &self.tenure.attrs);
                self.correct(&item, news).await
            }
            Verdict::Overwritten => {
                self.distrusted_until = now + DISTRUST;
                self.defend(&item, false, None).await
            }
            Verdict::AskLastSeen | Verdict::Displaced | Verdict::Taken if now < self.grace => {
                self.proof = self.grace;
                Ok(())
            }
            Verdict::Displaced | Verdict::AskLastSeen => Err(Lost::Displaced(words::displaced(&self.tenure.key, &item))),
            Verdict::Taken => Err(Lost::Taken(words::taken(&self.tenure.key, Some(&item)))),
        }
    }

    /// Writes back at once, then at most once a minute: who writes there may be of the same mind.
    async fn defend(&mut self, item: &Item, contested: bool, news: Option<String>) -> Result<(), Lost> {
        let now = self.io.now();
        if now < self.may_defend {
            self.proof = self.proof.min(self.may_defend);
            return Ok(());
        }
        if self.write(item, contested, news).await? {
            self.may_defend = now + DEFENCE;
        }
        Ok(())
    }

    /// Undoes what a hand did: at once, and again soon, but ever more slowly while it goes on.
    async fn correct(&mut self, item: &Item, news: String) -> Result<(), Lost> {
        let now = self.io.now();
        if now < self.may_defend {
            self.proof = self.proof.min(self.may_defend);
            return Ok(());
        }
        if now > self.may_defend + PROOF {
            self.corrections = 0;
        }
        if self.write(item, false, Some(news)).await? {
            self.may_defend = now + CORRECTION.after(self.corrections);
            self.corrections += 1;
        }
        Ok(())
    }

    /// Puts our attributes over what stands at our key, by compare-and-swap; whether that was done. `news`: what to tell then.
    async fn write(&mut self, item: &Item, contested: bool, news: Option<String>) -> Result<bool, Lost> {
        if self.tenure.lease != 0 {
            let request = Request::KeepAlive { key: self.tenure.key.clone(), lease: self.tenure.keepalive };
            if matches!(self.io.ask(request).await, Ok(Answer::Alive(false))) {
                self.tenure.keepalive = grant(&self.io).await;
                self.tenure.lease = self.tenure.keepalive;
                self.tenure.renewed = self.io.now();
            }
        }
        let contested = contested || self.tenure.attrs.node.as_ref().is_some_and(|node| node.contested);
        let attrs = signed(&self.claim, &self.wanted, item.attrs.as_ref(), self.rank(), self.tenure.lease, self.tenure.keepalive, contested);
        let compare = vec![Compare::Unchanged { key: self.tenure.key.clone(), modified: item.entry.modified }];
        let write = vec![put(&self.tenure.key, &attrs, self.tenure.lease)];
        match txn(&self.io, compare, write, &self.tenure.key).await {
            Ok((true, revision, _)) => {
                self.tenure.created = item.entry.created;
                self.stands(attrs, revision);
                if let Some(news) = news {
                    self.io.warn(news);
                }
                return Ok(true);
            }
            // Changed once more: look again soon.
            Ok((false, ..)) => self.proof = self.io.now() + Duration::from_millis(100),
            Err(failure) => {
                self.unanswered(attrs, &failure);
                self.proof = self.io.now() + Duration::from_secs(1);
            }
        }
        Ok(false)
    }

    /// What the store is known to hold from now on.
    fn stands(&mut self, attrs: LeaseAttrs, revision: i64) {
        self.tenure.modified = revision;
        let before = std::mem::replace(&mut self.tenure.attrs, attrs);
        // Whatever was sent before compares with an older revision, and is too late.
        self.unsure.clear();
        if !before.same_public(&self.tenure.attrs) {
            self.io.inform(words::readdressed(&self.tenure.key, &before, &self.tenure.attrs));
        }
        if self.publication() == self.tenure.attrs {
            self.untold = None;
            self.telling_failures = 0;
        }
    }

    /// A write without an answer: it may have been done.
    fn unanswered(&mut self, attrs: LeaseAttrs, failure: &Unanswered) {
        complain(&self.io, failure);
        if !self.unsure.contains(&attrs) {
            if self.unsure.len() == UNSURE {
                self.unsure.remove(0);
            }
            self.unsure.push(attrs);
        }
    }

    fn rank(&self) -> i64 {
        self.tenure.attrs.node.as_ref().map_or(0, |node| node.rank)
    }

    /// What the daemon wants, as it is written.
    fn publication(&self) -> LeaseAttrs {
        let contested = self.tenure.attrs.node.as_ref().is_some_and(|node| node.contested);
        signed(&self.claim, &self.wanted, Some(&self.tenure.attrs), self.rank(), self.tenure.lease, self.tenure.keepalive, contested)
    }

    /// Publishes other attributes.
    async fn publish(&mut self, attrs: LeaseAttrs) -> Result<(), Lost> {
        if let Some(public) = Dual::from_options(attrs.public_ip, attrs.public_ipv6) {
            self.claim.public = public;
        }
        self.wanted = attrs;
        self.telling_failures = 0;
        self.tell().await
    }

    /// Tells the peers what they do not know yet, as soon as the store can be reached.
    async fn tell(&mut self) -> Result<(), Lost> {
        let attrs = self.publication();
        if attrs == self.tenure.attrs {
            self.untold = None;
            self.telling_failures = 0;
            return Ok(());
        }
        let now = self.io.now();
        self.untold.get_or_insert(now);
        // Readiness knows before the store answers, which may take its time.
        self.show();
        let compare = self.tenure.unchanged();
        let write = vec![put(&self.tenure.key, &attrs, self.tenure.lease)];
        let answer = txn(&self.io, compare, write, &self.tenure.key).await;
        let pause = jitter(&self.claim, self.telling_failures, PUBLICATION.after(self.telling_failures));
        self.telling = self.io.now() + pause;
        match answer {
            Ok((true, revision, _)) => self.stands(attrs, revision),
            Ok((false, _, Some(entry))) => {
                self.telling_failures += 1;
                return self.changed(entry).await;
            }
            Ok((false, _, None)) => return self.put_back().await,
            Err(failure) => {
                self.telling_failures += 1;
                self.unanswered(attrs, &failure);
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
            if view.items.iter().any(|item| self.config.contains(&item.subnets) && item.subnets.overlaps(&self.tenure.subnets)) {
                let item = view.items.iter().find(|item| item.subnets.overlaps(&self.tenure.subnets));
                return Err(Lost::Taken(words::taken(&self.tenure.key, item)));
            }
            let keepalive = self.keepalive().await;
            let lease = if self.tenure.lease == 0 { 0 } else { keepalive };
            let contested = self.tenure.attrs.node.as_ref().is_some_and(|node| node.contested);
            let attrs = signed(&self.claim, &self.wanted, Some(&self.tenure.attrs), self.rank(), lease, keepalive, contested);
            let compare = vec![Compare::NoneUnder(wire::key_prefix(&self.tenure.subnets))];
            let write = vec![put(&self.tenure.key, &attrs, lease)];
            match txn(&self.io, compare, write, &self.tenure.key).await {
                Ok((true, revision, _)) => {
                    let now = self.io.now();
                    let expired = now.saturating_sub(self.tenure.renewed) >= TTL;
                    self.io.warn(words::put_back(&self.tenure.key, expired));
                    (self.tenure.created, self.tenure.lease, self.tenure.keepalive, self.tenure.renewed) = (revision, lease, keepalive, now);
                    self.stands(attrs, revision);
                    return match settle(&self.io, &self.claim, &self.config, &mut self.tenure, false).await {
                        Settled::Ours(_) => Ok(()),
                        Settled::Yielded => Err(Lost::Taken(words::taken(&self.tenure.key, None))),
                        Settled::Refused(text) => Err(Lost::Taken(text)),
                    };
                }
                Ok((false, ..)) => {
                    attempt += 1;
                    self.tenure.keepalive = keepalive;
                    // Refused twice although the list shows nobody: something below our prefix that is no lease.
                    if attempt > 2 {
                        revoke(&self.io, keepalive).await;
                        return Err(Lost::Taken(words::taken(&self.tenure.key, None)));
                    }
                }
                Err(failure) => {
                    self.tenure.attrs = attrs;
                    self.tenure.keepalive = keepalive;
                    if self.tenure.lease != 0 {
                        self.tenure.lease = keepalive;
                    }
                    pause(&self.io, &failure, 3).await;
                }
            }
        }
    }

    /// The lease that is kept alive; a new one where it is gone.
    async fn keepalive(&self) -> i64 {
        let request = Request::KeepAlive { key: self.tenure.key.clone(), lease: self.tenure.keepalive };
        if self.tenure.keepalive != 0 && matches!(self.io.ask(request).await, Ok(Answer::Alive(true))) {
            return self.tenure.keepalive;
        }
        grant(&self.io).await
    }

    /// The key is there again: by our own lost write, or by another's.
    async fn changed_back(&mut self, entry: Entry) -> Result<(), Lost> {
        Box::pin(self.changed(entry)).await
    }
}
