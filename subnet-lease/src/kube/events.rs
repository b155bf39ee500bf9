//! The Events that flanneld posts on its Node, and the limits on these posts.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tokio::time::Instant;
use types::{Problem, Subnets};

/// In the style of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EventReason {
    /// The podCIDR is missing, lies outside the network, or belongs to another Node.
    PodCidr,
    PodCidrChanged,
    /// No interface reaches the other nodes.
    Interface,
}

impl EventReason {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            EventReason::PodCidr => "FlannelPodCIDR",
            EventReason::PodCidrChanged => "FlannelPodCIDRChanged",
            EventReason::Interface => "FlannelInterface",
        }
    }
}

/// Its `Display` is the Event's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeEvent {
    /// The node has no usable subnet.
    PodCidr(Problem),
    /// Pods with addresses of the old subnet cannot reach other pods.
    PodCidrChanged {
        node: String,
        now: Subnets,
        before: Subnets,
        /// Bridges from which flanneld removed the old gateway address.
        released: Vec<String>,
    },
    /// An annotation about the node's addresses is mistyped, no interface was found, or the chosen one may be unsuitable.
    Interface(Problem),
}

impl NodeEvent {
    /// At most one Event per minute is posted for each reason.
    pub(super) fn reason(&self) -> EventReason {
        match self {
            NodeEvent::PodCidr(_) => EventReason::PodCidr,
            NodeEvent::PodCidrChanged { .. } => EventReason::PodCidrChanged,
            NodeEvent::Interface(_) => EventReason::Interface,
        }
    }
}

impl fmt::Display for NodeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeEvent::PodCidr(problem) | NodeEvent::Interface(problem) => problem.fmt(f),
            NodeEvent::PodCidrChanged { node, now, before, released } => {
                write!(
                    f,
                    "this Node's podCIDR changed from {before} to {now}, and pods with old addresses reach no other pod; restart these pods \
                     (kubectl delete pods --all-namespaces --field-selector spec.nodeName={node})"
                )?;
                match released.as_slice() {
                    [] => Ok(()),
                    bridges => {
                        write!(
                            f,
                            ". flanneld removed the old gateway address from {}; the next pod adds the new address",
                            bridges.join(", ")
                        )
                    }
                }
            }
        }
    }
}

/// Remembered so that none is posted twice.
#[derive(Debug, Default)]
pub(super) struct PostedEvents {
    events: Vec<NodeEvent>,
    /// When the last Event of each reason was posted.
    last: BTreeMap<EventReason, Instant>,
}

impl PostedEvents {
    /// Records an Event. False if it was posted before, or one with the same reason less than a minute ago.
    pub(super) fn take(&mut self, event: &NodeEvent, now: Instant) -> bool {
        const EVERY: Duration = Duration::from_secs(60);
        /// Maximum number of remembered Events. Beyond it, an Event may be posted again.
        const KEPT: usize = 50;
        if self.events.contains(event)
            || self.last.get(&event.reason()).is_some_and(|last| now.duration_since(*last) < EVERY)
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

    /// Forgets an Event after a failed post, so that it is posted later. The limit of one per minute still applies, because the server may be
    /// overloaded.
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
        // The API server did not respond: the Event is posted a minute later.
        posted.retract(&b);
        assert!(!posted.take(&b, at(66)) && posted.take(&b, at(125)));
    }
}
