//! Publishes changes of this node's attributes.

use super::{Holder, PUBLICATION, UNSURE};
use crate::lease::LeaseAttrs;
use crate::manager::LeaseLostError;
use crate::protocol::ask::{complain, jitter, put, signed, txn};
use crate::protocol::news::News;
use types::{Dual, Problem};

impl Holder {
    pub(super) async fn publish(&mut self, attrs: LeaseAttrs) -> Result<(), LeaseLostError> {
        if let Some(public) = Dual::from_options(attrs.public_ip, attrs.public_ipv6) {
            self.claim.public = public;
        }
        self.wanted = attrs;
        self.publication.failures = 0;
        self.tell().await
    }

    /// Publishes the desired attributes if the store has others.
    pub(super) async fn tell(&mut self) -> Result<(), LeaseLostError> {
        let attrs = self.publication();
        if attrs == self.tenure.attrs {
            self.publication.pending_since = None;
            self.publication.failures = 0;
            return Ok(());
        }
        let now = self.io.now();
        self.publication.pending_since.get_or_insert(now);
        // Update the readiness before the store replies, which may take long.
        self.show();
        let compare = self.tenure.unchanged();
        let write = vec![put(&self.tenure.key, &attrs, self.tenure.lease)];
        let answer = txn(&self.io, compare, write, &self.tenure.key).await;
        let pause = jitter(
            &self.claim,
            self.publication.failures,
            PUBLICATION.after(self.publication.failures),
        );
        self.publication.next = self.io.now() + pause;
        match answer {
            Ok((true, revision, _)) => self.stands(attrs, revision),
            Ok((false, _, Some(entry))) => {
                self.publication.failures += 1;
                return self.changed(entry).await;
            }
            Ok((false, _, None)) => return self.put_back().await,
            Err(failure) => {
                self.publication.failures += 1;
                self.unanswered(attrs, &failure);
            }
        }
        Ok(())
    }

    /// The desired attributes, with this node's identity.
    pub(super) fn publication(&self) -> LeaseAttrs {
        signed(
            &self.claim,
            &self.wanted,
            Some(&self.tenure.attrs),
            self.rank(),
            self.tenure.lease,
            self.tenure.keepalive,
            self.tenure.is_contested(),
        )
    }

    /// The store has confirmed these attributes.
    pub(super) fn stands(&mut self, attrs: LeaseAttrs, revision: i64) {
        self.tenure.modified = revision;
        let before = std::mem::replace(&mut self.tenure.attrs, attrs);
        // Earlier writes compare with an older revision and cannot succeed.
        self.unsure.clear();
        if !before.same_public(&self.tenure.attrs) {
            self.io.inform(News::readdressed(&self.tenure.key, &before, &self.tenure.attrs));
        }
        if self.publication() == self.tenure.attrs {
            self.publication.pending_since = None;
            self.publication.failures = 0;
        }
    }

    /// The store did not reply to this write, but may have executed it.
    pub(super) fn unanswered(&mut self, attrs: LeaseAttrs, failure: &Problem) {
        complain(&self.io, failure);
        if !self.unsure.contains(&attrs) {
            if self.unsure.len() == UNSURE {
                self.unsure.remove(0);
            }
            self.unsure.push(attrs);
        }
    }

    pub(super) fn rank(&self) -> i64 {
        self.tenure.attrs.node.as_ref().map_or(0, |node| node.rank)
    }
}
