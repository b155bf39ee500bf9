//! Restores this node's key after an edit, an overwrite or a deletion.

use super::{CORRECTION, DEFENCE, Holder, PROOF};
use crate::manager::LeaseLostError;
use crate::protocol::ask::{grant, list, pause, put, revoke, signed, txn};
use crate::protocol::error::lease_taken;
use crate::protocol::news::News;
use crate::protocol::registry::{Answer, Compare, Entry, Request, TTL};
use crate::protocol::settle::{Settled, settle};
use crate::protocol::view::Item;
use crate::wire;
use std::time::Duration;

impl Holder {
    /// At once, then at most once a minute, because another writer may also restore the key.
    pub(super) async fn defend(
        &mut self,
        item: &Item,
        contested: bool,
        news: Option<News>,
    ) -> Result<(), LeaseLostError> {
        let now = self.io.now();
        if now < self.defence.next_write {
            self.proof = self.proof.min(self.defence.next_write);
            return Ok(());
        }
        if self.write(item, contested, news).await? {
            self.defence.next_write = now + DEFENCE;
        }
        Ok(())
    }

    /// Undoes a manual edit: at once, and with growing pauses while the edits continue.
    pub(super) async fn correct(&mut self, item: &Item, news: News) -> Result<(), LeaseLostError> {
        let now = self.io.now();
        if now < self.defence.next_write {
            self.proof = self.proof.min(self.defence.next_write);
            return Ok(());
        }
        if now > self.defence.next_write + PROOF {
            self.defence.corrections = 0;
        }
        if self.write(item, false, Some(news)).await? {
            self.defence.next_write = now + CORRECTION.after(self.defence.corrections);
            self.defence.corrections += 1;
        }
        Ok(())
    }

    /// Overwrites the current value by compare-and-swap. True if the write succeeded; then it logs `news`.
    pub(super) async fn write(
        &mut self,
        item: &Item,
        contested: bool,
        news: Option<News>,
    ) -> Result<bool, LeaseLostError> {
        if self.tenure.lease != 0 {
            let request =
                Request::KeepAlive { key: self.tenure.key.clone(), lease: self.tenure.keepalive };
            if matches!(self.io.ask(request).await, Ok(Answer::Alive(false))) {
                self.tenure.keepalive = grant(&self.io).await;
                self.tenure.lease = self.tenure.keepalive;
                self.tenure.renewed = self.io.now();
            }
        }
        let attrs = signed(
            &self.claim,
            &self.wanted,
            item.attrs.as_ref(),
            self.rank(),
            self.tenure.lease,
            self.tenure.keepalive,
            contested || self.tenure.is_contested(),
        );
        let compare = vec![Compare::Unchanged {
            key: self.tenure.key.clone(),
            modified: item.entry.modified,
        }];
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
            // The key changed once more: check again soon.
            Ok((false, ..)) => self.proof = self.io.now() + Duration::from_millis(100),
            Err(failure) => {
                self.unanswered(attrs, &failure);
                self.proof = self.io.now() + Duration::from_secs(1);
            }
        }
        Ok(false)
    }

    /// Writes the deleted key again, if the subnet is still free.
    pub(super) async fn put_back(&mut self) -> Result<(), LeaseLostError> {
        let mut attempt = 0;
        loop {
            let view = list(&self.io).await;
            if let Some(item) = view.get(&self.tenure.key) {
                let entry = item.entry.clone();
                return self.changed_back(entry).await;
            }
            let taken = view.items.iter().find(|item| {
                self.config.contains(&item.subnets) && item.subnets.overlaps(&self.tenure.subnets)
            });
            if taken.is_some() {
                return Err(self.taken(taken));
            }
            let keepalive = self.keepalive().await;
            let lease = if self.tenure.lease == 0 { 0 } else { keepalive };
            let attrs = signed(
                &self.claim,
                &self.wanted,
                Some(&self.tenure.attrs),
                self.rank(),
                lease,
                keepalive,
                self.tenure.is_contested(),
            );
            let compare = vec![Compare::NoneUnder(wire::key_prefix(&self.tenure.subnets))];
            let write = vec![put(&self.tenure.key, &attrs, lease)];
            match txn(&self.io, compare, write, &self.tenure.key).await {
                Ok((true, revision, _)) => {
                    let now = self.io.now();
                    let expired = now.saturating_sub(self.tenure.renewed) >= TTL;
                    self.io.warn(News::put_back(&self.tenure.key, expired));
                    (
                        self.tenure.created,
                        self.tenure.lease,
                        self.tenure.keepalive,
                        self.tenure.renewed,
                    ) = (revision, lease, keepalive, now);
                    self.stands(attrs, revision);
                    return self.settle_again().await;
                }
                Ok((false, ..)) => {
                    attempt += 1;
                    self.tenure.keepalive = keepalive;
                    // The store refuses although the list shows no lease: another key begins with our prefix.
                    if attempt > 2 {
                        revoke(&self.io, keepalive).await;
                        return Err(self.taken(None));
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

    /// Checks the restored key against keys that other nodes wrote at the same time.
    async fn settle_again(&mut self) -> Result<(), LeaseLostError> {
        match settle(&self.io, &self.claim, &self.config, &mut self.tenure, false).await {
            Settled::Ours(_) => Ok(()),
            Settled::Yielded => Err(self.taken(None)),
            Settled::Refused(why) => Err(LeaseLostError::Taken(why)),
        }
    }

    fn taken(&self, item: Option<&Item>) -> LeaseLostError {
        LeaseLostError::Taken(lease_taken(&self.tenure.key, item))
    }

    /// The store's lease that this node keeps alive. If it is gone, requests a new one.
    pub(super) async fn keepalive(&self) -> i64 {
        let request =
            Request::KeepAlive { key: self.tenure.key.clone(), lease: self.tenure.keepalive };
        if self.tenure.keepalive != 0
            && matches!(self.io.ask(request).await, Ok(Answer::Alive(true)))
        {
            return self.tenure.keepalive;
        }
        grant(&self.io).await
    }

    /// The key exists again, because this node or another writer wrote it.
    pub(super) async fn changed_back(&mut self, entry: Entry) -> Result<(), LeaseLostError> {
        Box::pin(self.changed(entry)).await
    }
}
