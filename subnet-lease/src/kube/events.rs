//! The Events that flanneld posts on its Node, and which of them are due.

use super::pod_cidr::PodCidrTrouble;
use super::trouble::KubeTrouble;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tokio::time::Instant;
use types::problem::MUTE;
use types::{Problem, Subnets};

/// What an Event is about: its `reason`, in the manner of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EventReason {
    /// The podCIDR is missing, outside the network, or another Node's.
    PodCidr,
    /// The node got another podCIDR.
    PodCidrChanged,
    /// There is no interface that reaches the other nodes.
    Interface,
}

impl EventReason {
    /// The `reason` of the Event.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            EventReason::PodCidr => "FlannelPodCIDR",
            EventReason::PodCidrChanged => "FlannelPodCIDRChanged",
            EventReason::Interface => "FlannelInterface",
        }
    }
}

/// What an Event tells the operators. Its `Display` is the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeEvent {
    /// Why the node has no subnet.
    PodCidr(PodCidrTrouble),
    /// The node has another subnet; pods with addresses of the old one reach nobody.
    PodCidrChanged {
        /// The node's name.
        node: String,
        /// Its subnets.
        now: Subnets,
        /// Those that it had.
        before: Subnets,
        /// The bridges whose old gateway address flanneld removed.
        released: Vec<String>,
    },
    /// An annotation about the node's addresses is mistyped.
    Typo(KubeTrouble),
    /// Why the daemon has no interface, or not the one that it should have.
    Interface(Problem),
}

impl NodeEvent {
    /// Returns the `reason` of the Event, by which repetitions are limited.
    pub(super) fn reason(&self) -> EventReason {
        match self {
            NodeEvent::PodCidr(_) => EventReason::PodCidr,
            NodeEvent::PodCidrChanged { .. } => EventReason::PodCidrChanged,
            NodeEvent::Typo(_) | NodeEvent::Interface(_) => EventReason::Interface,
        }
    }
}

impl fmt::Display for NodeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            _ if MUTE => f.write_str(self.reason().as_str()),
            NodeEvent::PodCidr(trouble) => trouble.fmt(f),
            NodeEvent::Typo(trouble) => trouble.fmt(f),
            NodeEvent::Interface(problem) => problem.fmt(f),
            NodeEvent::PodCidrChanged {
                node,
                now,
                before,
                released,
            } => {
                write!(
                    f,
                    "this Node's podCIDR is {now} now and was {before}: its pods with addresses of the old one reach nobody until they are restarted \
                     (kubectl delete pods --all-namespaces --field-selector spec.nodeName={node})"
                )?;
                match released.as_slice() {
                    [] => Ok(()),
                    bridges => {
                        write!(
                            f,
                            ". flanneld removed the old gateway address from {}; the next pod brings the new one",
                            bridges.join(", ")
                        )
                    }
                }
            }
        }
    }
}

/// Events posted so far, to post none twice.
#[derive(Debug, Default)]
pub(super) struct PostedEvents {
    events: Vec<NodeEvent>,
    /// When the last one of each reason was posted.
    last: BTreeMap<EventReason, Instant>,
}

impl PostedEvents {
    /// Notes an Event, unless it was posted before or another one of its reason was, less than a minute ago. Returns whether it is to be posted.
    pub(super) fn take(&mut self, event: &NodeEvent, now: Instant) -> bool {
        const EVERY: Duration = Duration::from_secs(60);
        /// Events are few, unless somebody makes many: then some are posted again.
        const KEPT: usize = 50;
        if self.events.contains(event)
            || self
                .last
                .get(&event.reason())
                .is_some_and(|last| now.duration_since(*last) < EVERY)
        {
            return false;
        }
        if self.events.len() >= KEPT {
            self.events.clear();
        }
        self.events.push(event.clone());
        self.last.insert(event.reason(), now);
        true
    }

    /// Forgets one that could not be posted, so that it is posted later. Its minute counts all the same: the server may have too much to do.
    pub(super) fn retract(&mut self, event: &NodeEvent) {
        self.events.retain(|posted| posted != event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_posted_once_and_one_a_minute_for_a_reason() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let event = |text: &str| NodeEvent::Interface(Problem::in_words(text));
        let (a, b) = (event("a"), event("b"));
        let net = |text: &str| Subnets::V4(text.parse().unwrap());
        let c = NodeEvent::PodCidrChanged {
            node: "n".to_owned(),
            now: net("10.5.2.0/24"),
            before: net("10.5.1.0/24"),
            released: Vec::new(),
        };
        let mut posted = PostedEvents::default();
        assert!(posted.take(&a, at(5)));
        assert!(!posted.take(&b, at(64)) && posted.take(&c, at(6)));
        assert!(posted.take(&b, at(65)) && !posted.take(&a, at(1000)));
        // The API did not answer: it is posted a minute later.
        posted.retract(&b);
        assert!(!posted.take(&b, at(66)) && posted.take(&b, at(125)));
    }
}
