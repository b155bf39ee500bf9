//! Keeps the annotations and the condition of this node's Node up to date while the node holds its lease.

use super::annotations;
use super::api::Api;
use super::assigned::Assigned;
use super::node::Node;
use super::patches::{self, CONDITION_EVERY, Due, Pace, RESTORE_EVERY, Wanted};
use super::request_error::RequestError;
use super::requests;
use super::state::{All, Own, OwnState, nodes_watch_ended};
use crate::config::NetworkConfig;
use crate::lease::{Lease, LeaseAttrs};
use crate::manager::{Held, LeaseLostError, NodeState, Unpublished, boot_time, publication_ended};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use types::backoff::Backoff;
use types::{Problem, Subnets};

/// Between two attempts to write to the Node.
pub(super) const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// Writes annotations and the condition NetworkUnavailable to this node's Node.
pub(super) struct Publisher {
    api: Arc<Api>,
    out: watch::Sender<OwnState>,
}

impl Publisher {
    pub(super) fn new(api: Arc<Api>, out: watch::Sender<OwnState>) -> Self {
        Self { api, out }
    }

    /// Publishes the annotations that differ from the Node's current ones.
    pub(super) async fn annotations(
        &mut self,
        node: &Node,
        attrs: &LeaseAttrs,
    ) -> Result<(), RequestError> {
        let wanted = Wanted { attrs, programmed: false, clear_condition: false };
        let due = Due::of(node, &wanted, &self.api.options().prefix);
        if due.annotations.is_empty() {
            return Ok(());
        }
        let now = requests::annotate(&self.api, &node.name, &node.uid, &due.annotations).await?;
        self.take(now);
        Ok(())
    }

    /// Removes the published addresses that this host does not have, unless an operator chose them.
    pub(super) async fn withdraw(
        &mut self,
        node: &Node,
        local: &[IpAddr],
    ) -> Result<(), RequestError> {
        let due = patches::withdrawn(node, local, &self.api.options().prefix);
        if due.is_empty() {
            return Ok(());
        }
        let now = requests::annotate(&self.api, &node.name, &node.uid, &due).await?;
        self.take(now);
        Ok(())
    }

    /// Clears the condition NetworkUnavailable.
    pub(super) async fn condition(&mut self, node: &Node) -> Result<(), RequestError> {
        let now = requests::clear_condition(&self.api, &node.name, &node.uid).await?;
        self.take(now);
        Ok(())
    }

    /// Records the Node from the response to a patch, because the watch may deliver it later.
    fn take(&self, node: Option<Node>) {
        let Some(node) = node else { return };
        self.out.send_modify(|state| {
            if let Own::Present(known) = &state.own
                && known.uid == node.uid
                && known.version < node.version
            {
                state.own = Own::Present(Arc::new(node));
            }
        });
    }
}

pub(super) struct Holding<'a> {
    pub api: &'a Arc<Api>,
    /// This node's name.
    pub name: &'a str,
    pub own: watch::Receiver<OwnState>,
    /// Receives the Node from the API server's response to a patch.
    pub(crate) own_out: &'a watch::Sender<OwnState>,
    pub all: &'a All,
    /// Only a daemon that lists all Nodes knows the others.
    pub lists: bool,
    pub config: &'a NetworkConfig,
    pub lease: Lease,
}

/// State of the writes to the Node.
#[derive(Default)]
struct Written {
    /// Of the Node that the daemon last wrote.
    uid: String,
    /// Published last; `None` before the first write.
    attrs: Option<LeaseAttrs>,
    /// Annotations of `attrs`. `None` as a value means that the daemon removes the annotation.
    published: Option<BTreeMap<&'static str, Option<String>>>,
    annotations: Pace,
    condition: Pace,
    failures: u32,
    /// Earliest time of the next write after a failed one.
    retry: Option<Duration>,
}

impl Written {
    /// Performs the writes that are due. If the rate limit postpones one, the result is the time of the next check.
    async fn publish(
        &mut self,
        publisher: &mut Publisher,
        node: &Node,
        attrs: &LeaseAttrs,
        due: &Due,
        now: Duration,
    ) -> Result<Option<Duration>, RequestError> {
        let annotations = self.annotate(publisher, node, attrs, due, now).await?;
        let condition =
            if due.condition { self.clear_condition(publisher, node, now).await? } else { None };
        Ok([annotations, condition].into_iter().flatten().min())
    }

    async fn annotate(
        &mut self,
        publisher: &mut Publisher,
        node: &Node,
        attrs: &LeaseAttrs,
        due: &Due,
        now: Duration,
    ) -> Result<Option<Duration>, RequestError> {
        // An operator's overwrite also changes the desired annotations.
        let desired = annotations::wanted(attrs, &node.annotations);
        if !due.annotations.is_empty() {
            let by_us = self.published.as_ref() != Some(&desired);
            if !by_us {
                let at = self.annotations.next(RESTORE_EVERY, now);
                if at > now {
                    return Ok(Some(at));
                }
                let names: Vec<&str> = due.annotations.keys().map(String::as_str).collect();
                tracing::warn!(
                    node = node.name,
                    key = names.join(", "),
                    "another writer changed this Node's annotations; restoring them"
                );
                self.annotations.wrote(now);
            }
            publisher.annotations(node, attrs).await?;
        }
        (self.attrs, self.published) = (Some(attrs.clone()), Some(desired));
        Ok(None)
    }

    async fn clear_condition(
        &mut self,
        publisher: &mut Publisher,
        node: &Node,
        now: Duration,
    ) -> Result<Option<Duration>, RequestError> {
        let at = self.condition.next(CONDITION_EVERY, now);
        if at > now {
            return Ok(Some(at));
        }
        publisher.condition(node).await?;
        self.condition.wrote(now);
        tracing::info!(
            node = node.name,
            "the Node's condition NetworkUnavailable is False, so Kubernetes can schedule pods"
        );
        Ok(None)
    }
}

/// From the Node's current podCIDR.
enum Verdict {
    Ours,
    /// The daemon cannot publish its attributes.
    Wait(Problem),
    /// The subnets belong to this node no longer.
    Over(Problem),
}

impl Holding<'_> {
    /// Ends when the subnets no longer belong to this node.
    pub(super) async fn run(
        self,
        mut node: NodeState,
        state: watch::Sender<Held>,
    ) -> LeaseLostError {
        let mut own = self.own.clone();
        let mut all = self.all.changes();
        let mut publisher = Publisher::new(self.api.clone(), self.own_out.clone());
        let mut written = Written::default();
        loop {
            let present = own.borrow_and_update().clone();
            all.borrow_and_update();
            let attrs = node.attrs.borrow_and_update().clone();
            let programmed = *node.programmed.borrow_and_update();
            let now = boot_time();
            let (trouble, next) = match self.judge(&present) {
                Verdict::Over(why) => return LeaseLostError::Moved(why),
                Verdict::Wait(why) => (Some((why, true)), None),
                Verdict::Ours => match &present.own {
                    Own::Present(known) => {
                        self.write(&mut publisher, &mut written, known, &attrs, programmed, now)
                            .await
                    }
                    Own::Unknown | Own::Absent => (None, None),
                },
            };
            self.report(&state, &attrs, trouble, &written);
            let nap =
                next.map_or(Duration::from_secs(3600), |next| next.saturating_sub(boot_time()));
            tokio::select! {
                changed = own.changed() => if changed.is_err() {
                    let text = "the watch of this node's Node ended";
                    return LeaseLostError::Taken(Problem::new("own-node-watch-ended", text));
                },
                changed = all.changed() => if changed.is_err() { return LeaseLostError::Taken(nodes_watch_ended()) },
                changed = node.attrs.changed() => if changed.is_err() { return publication_ended() },
                changed = node.programmed.changed() => if changed.is_err() { return publication_ended() },
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    /// Decides whether the lease still belongs to this node.
    fn judge(&self, present: &OwnState) -> Verdict {
        let (name, subnets) = (self.name, self.lease.subnets);
        let moved = |now: &Subnets| {
            let text = format!("this node's podCIDR changed from {subnets} to {now}");
            Verdict::Over(Problem::new("podcidr-changed", text))
        };
        match &present.own {
            // The Node existed when the lease was acquired.
            Own::Unknown => Verdict::Ours,
            Own::Absent => match self.holder() {
                Some(other) => Verdict::Over(Problem::new(
                    "node-deleted-podcidr-given-away",
                    format!(
                        "the Node {name} was deleted, and the Node {other} now has its podCIDR {subnets}"
                    ),
                )),
                None => Verdict::Wait(Problem::new(
                    "node-deleted",
                    format!(
                        "the Node {name} was deleted: this node keeps its subnet {subnets} until Kubernetes assigns the subnet to another Node. Restart the kubelet, which registers \
                         the Node again, or remove the machine from the cluster"
                    ),
                )),
            },
            Own::Present(node) => {
                let assigned = self.all.with(|nodes| {
                    Assigned::of(node, self.config, nodes, &self.api.options().net_conf)
                });
                match assigned {
                    Ok(assigned) if assigned.subnets == subnets => Verdict::Ours,
                    Ok(assigned) => moved(&assigned.subnets),
                    // A Node that was created again has no podCIDR for a moment.
                    Err(why) if matches!(node.subnets, Ok(None)) => match self.holder() {
                        Some(other) => Verdict::Over(Problem::new(
                            "node-recreated-podcidr-given-away",
                            format!(
                                "the Node {} was created again, and the Node {other} now has its podCIDR {subnets}",
                                node.name
                            ),
                        )),
                        None => Verdict::Wait(why),
                    },
                    // The reason refers to the configuration in use. The current configuration decides about the new podCIDR.
                    Err(why) => match &node.subnets {
                        Ok(Some(now))
                            if !subnets.nets().all(|net| now.nets().any(|now| now == net)) =>
                        {
                            moved(now)
                        }
                        _ => Verdict::Over(why),
                    },
                }
            }
        }
    }

    /// Another Node that has this node's subnets.
    fn holder(&self) -> Option<String> {
        self.all
            .with(|nodes| nodes.holder(&self.lease.subnets).map(str::to_owned))
            .filter(|_| self.lists)
    }

    /// Performs the writes that are due. The result is the problem, if any, and the time of the next check.
    async fn write(
        &self,
        publisher: &mut Publisher,
        written: &mut Written,
        node: &Node,
        attrs: &LeaseAttrs,
        programmed: bool,
        now: Duration,
    ) -> (Option<(Problem, bool)>, Option<Duration>) {
        if written.uid != node.uid {
            // A new Node has no annotations yet, so no other writer has undone anything.
            *written = Written {
                uid: node.uid.clone(),
                attrs: written.attrs.clone(),
                ..Written::default()
            };
        }
        let wanted =
            Wanted { attrs, programmed, clear_condition: self.api.options().clear_condition };
        let due = Due::of(node, &wanted, &self.api.options().prefix);
        // The write may have succeeded although its response was lost. In that case nothing is due.
        if let Some(retry) = written.retry.filter(|retry| now < *retry && due != Due::default()) {
            return (None, Some(retry));
        }
        match written.publish(publisher, node, attrs, &due, now).await {
            Ok(next) => {
                (written.failures, written.retry) = (0, None);
                (None, next)
            }
            Err(failure) => {
                let pause = failure
                    .retry_after
                    .unwrap_or_default()
                    .max(RETRY.after(written.failures).mul_f64(1.0 + rand::random::<f64>() / 2.0));
                written.failures += 1;
                written.retry = Some(boot_time() + pause);
                (Some((failure.trouble, false)), written.retry)
            }
        }
    }

    fn report(
        &self,
        state: &watch::Sender<Held>,
        attrs: &LeaseAttrs,
        trouble: Option<(Problem, bool)>,
        written: &Written,
    ) {
        let failing = written.retry.is_some();
        let lease = Lease { attrs: attrs.clone(), ..self.lease.clone() };
        state.send_if_modified(|held| {
            let before = held.clone();
            held.lease = Some(lease);
            (held.trouble, held.grave) = match trouble {
                Some((why, grave)) => (Some(why), grave),
                // Between two attempts, keep the present trouble.
                None if failing => (held.trouble.take(), held.grave),
                None => (None, false),
            };
            let published = written.attrs.as_ref().is_none_or(|known| known.tells_the_same(attrs));
            held.unpublished = (!published).then(|| {
                let address = attrs.public_text();
                let text = format!(
                    "the other nodes do not know yet that this node's address is {address}"
                );
                let what = Problem::new("lease-unpublished", text);
                before.unpublished.clone().unwrap_or(Unpublished { since: boot_time(), what })
            });
            *held != before
        });
    }
}
