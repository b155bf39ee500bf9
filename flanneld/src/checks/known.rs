//! What the parts of the daemon tell the doctor.

use doctor::facts::daemon::Choice;
use doctor::look::{Places, namespace_of_pod};
use std::net::IpAddr;
use std::sync::Arc;
use subnet_lease::Lease;
use subnet_lease::manager::{NodeInfo, SubnetManager};
use tokio::sync::watch;
use types::Access;

/// What is known of the daemon; it grows while the daemon starts.
#[derive(Clone, Default)]
pub struct Known {
    /// Where the leases are.
    pub store: String,
    /// How commands reach it.
    pub access: Access,
    /// The store's addresses.
    pub store_addresses: Vec<IpAddr>,
    /// The namespace of this daemon's pod; none where it runs in no pod.
    pub namespace: Option<String>,
    /// The store, once it was opened.
    pub manager: Option<Arc<dyn SubnetManager>>,
    /// Whether `--node-id` names this node's identity.
    pub id_given: bool,
    /// On Kubernetes, this node's Node.
    pub node: Option<NodeAddresses>,
    /// The chosen interface; `None` while there is none.
    pub choice: Option<Choice>,
}

impl Known {
    /// What is known before anything was asked.
    pub fn of(store: &options::Store) -> Self {
        let node = store.node().map(|name| NodeAddresses {
            name,
            ..NodeAddresses::default()
        });
        let namespace = node
            .as_ref()
            .and_then(|_| namespace_of_pod(&Places::default()));
        Self {
            store: store.to_string(),
            access: store.access(),
            namespace,
            node,
            ..Self::default()
        }
    }
}

/// What the API says of this node's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// The Node's name.
    pub name: String,
    /// Its InternalIPs.
    pub internal: Vec<IpAddr>,
    /// The API server's addresses.
    pub servers: Vec<IpAddr>,
}

impl From<&NodeInfo> for NodeAddresses {
    fn from(info: &NodeInfo) -> Self {
        Self {
            name: info.id.clone(),
            internal: info.internal.clone(),
            servers: Vec::new(),
        }
    }
}

impl NodeAddresses {
    /// Tells what the API says now. The servers stay where they were not asked for again.
    pub fn tell(mut self, known: &watch::Sender<Known>) {
        known.send_if_modified(|known| {
            if let (true, Some(before)) = (self.servers.is_empty(), &known.node) {
                self.servers.clone_from(&before.servers);
            }
            let news = known.node.as_ref() != Some(&self);
            known.node = Some(self);
            news
        });
    }
}

/// A peer's name, as its lease says it.
pub(super) fn name(lease: &Lease) -> Arc<str> {
    let named = lease
        .attrs
        .node
        .as_ref()
        .map(|node| node.name.clone())
        .filter(|name| !name.is_empty());
    named.unwrap_or_else(|| lease.subnets.to_string().into())
}
