//! The Nodes that the followers last read: this node's Node and all Nodes of the cluster. The followers update them, and the manager reads them.

use super::follow::Sink;
use super::node::Node;
use super::nodes::Nodes;
use super::stagger::RequestStagger;
use crate::manager::boot_time;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;
use types::Problem;

/// As the follower last read it.
#[derive(Clone, Debug, Default)]
pub(super) enum Own {
    /// Not read yet.
    #[default]
    Unknown,
    Absent,
    /// In the last known version.
    Present(Arc<Node>),
}

/// Also tells if the watch of the Node is interrupted.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnState {
    pub own: Own,
    /// Why the watch is interrupted; `None` while it works.
    pub trouble: Option<Problem>,
}

/// Receives the events of the watch of this node's Node.
pub(super) struct OwnSink {
    pub out: watch::Sender<OwnState>,
    pub name: String,
}

impl Sink for OwnSink {
    fn listed(&mut self, nodes: Vec<Node>) {
        let own = nodes
            .into_iter()
            .find(|node| node.name == self.name)
            .map_or(Own::Absent, |node| Own::Present(Arc::new(node)));
        self.out.send_modify(|state| state.own = own);
    }

    fn put(&mut self, node: Node) {
        if node.name != self.name {
            return;
        }
        self.out.send_if_modified(|state| {
            // The response to a patch may already have delivered a later version.
            let stale = matches!(&state.own, Own::Present(known) if known.uid == node.uid && known.version > node.version);
            if !stale {
                state.own = Own::Present(Arc::new(node));
            }
            !stale
        });
    }

    fn gone(&mut self, name: &str, _version: u64) {
        if name == self.name {
            self.out.send_modify(|state| state.own = Own::Absent);
        }
    }

    fn interrupted(&mut self, why: &Problem) {
        self.out.send_modify(|state| state.trouble = Some(why.clone()));
    }

    fn resumed(&mut self) {
        self.out.send_modify(|state| state.trouble = None);
    }

    fn newest(&self) -> Option<(String, String, u64)> {
        match &self.out.borrow().own {
            Own::Present(node) => Some((node.name.clone(), node.uid.clone(), node.version)),
            Own::Unknown | Own::Absent => None,
        }
    }
}

/// All known Nodes of the cluster, and the state of the watch of all Nodes.
pub(super) struct All {
    inner: Mutex<Inner>,
    /// Counts relevant changes.
    changes: watch::Sender<u64>,
    pub stagger: RequestStagger,
}

struct Inner {
    nodes: Nodes,
    /// The follower has read a complete list.
    listed: bool,
    /// Number of complete lists that the follower has read.
    lists: u64,
    trouble: Option<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// The follower has read a complete list.
    pub listed: bool,
    /// Number of complete lists that the follower has read. A higher number shows that it may have missed changes since the previous one.
    pub lists: u64,
    /// Why the watch is interrupted; `None` while it works.
    pub trouble: Option<Problem>,
}

impl All {
    /// Without Nodes, before the first list.
    pub(super) fn new(own: &str) -> Self {
        let inner = Inner { nodes: Nodes::new(own), listed: false, lists: 0, trouble: None };
        Self {
            inner: Mutex::new(inner),
            changes: watch::Sender::new(0),
            stagger: RequestStagger::default(),
        }
    }

    /// The number increases with each relevant change of the Nodes, the networks or the state of the watch.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// These must contain the podCIDRs of all Nodes, including those already known.
    pub(super) fn serve(&self, networks: types::Subnets) {
        self.change(|inner| inner.nodes.serve(networks));
    }

    /// Forgets the Nodes, because the task that follows them has ended.
    pub(super) fn forget(&self) {
        self.change(|inner| {
            inner.nodes.replace(Vec::new(), boot_time());
            (inner.listed, inner.trouble) = (false, None);
            true
        });
    }

    pub(super) fn with<T>(&self, read: impl FnOnce(&Nodes) -> T) -> T {
        read(&self.inner.lock().nodes)
    }

    pub(super) fn look(&self) -> Look {
        let inner = self.inner.lock();
        Look { listed: inner.listed, lists: inner.lists, trouble: inner.trouble.clone() }
    }

    fn change(&self, change: impl FnOnce(&mut Inner) -> bool) {
        let changed = change(&mut self.inner.lock());
        if changed {
            self.changes.send_modify(|count| *count += 1);
        }
    }
}

/// The task that follows all Nodes has ended.
pub(super) fn nodes_watch_ended() -> Problem {
    Problem::new("nodes-watch-ended", "the task that follows the Nodes ended")
}

/// Receives the events of the watch of all Nodes.
pub(super) struct AllSink(pub Arc<All>);

impl Sink for AllSink {
    fn listed(&mut self, nodes: Vec<Node>) {
        self.0.change(|inner| {
            inner.nodes.replace(nodes, boot_time());
            inner.listed = true;
            inner.lists += 1;
            true
        });
    }

    fn put(&mut self, node: Node) {
        self.0.change(|inner| inner.nodes.put(node, boot_time()));
    }

    fn gone(&mut self, name: &str, _version: u64) {
        self.0.change(|inner| inner.nodes.remove(name));
    }

    fn interrupted(&mut self, why: &Problem) {
        self.0.change(|inner| {
            let news = inner.trouble.as_ref() != Some(why);
            inner.trouble = Some(why.clone());
            news
        });
    }

    fn resumed(&mut self) {
        self.0.change(|inner| inner.trouble.take().is_some());
    }

    fn newest(&self) -> Option<(String, String, u64)> {
        self.0.with(|nodes| {
            nodes.newest().map(|(name, uid, version)| (name.to_owned(), uid.to_owned(), version))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NetworkConfig;

    #[test]
    fn another_network_is_a_change() {
        let all = All::new("me");
        let mut changes = all.changes();
        let networks = |text: &str| NetworkConfig::parse_assigned(text).unwrap().networks;
        for (network, is_news) in
            [("10.42.0.0/16", true), ("10.42.0.0/16", false), ("10.244.0.0/16", true)]
        {
            all.serve(networks(&format!(r#"{{"Network":"{network}"}}"#)));
            assert_eq!(changes.has_changed().unwrap(), is_news, "{network}");
            changes.borrow_and_update();
        }
    }
}
