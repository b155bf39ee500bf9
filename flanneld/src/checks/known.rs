//! Facts that tasks of the daemon pass to the doctor.

use doctor::facts::daemon::Choice;
use doctor::look::{Places, namespace_of_pod};
use std::net::IpAddr;
use std::sync::Arc;
use subnet_lease::Lease;
use subnet_lease::manager::{NodeInfo, SubnetManager};
use tokio::sync::watch;
use types::Access;

/// The daemon adds facts while it starts.
#[derive(Clone, Default)]
pub struct Known {
    /// As text.
    pub store: String,
    /// Flags and environment variables with which commands reach the store.
    pub access: Access,
    pub store_addresses: Vec<IpAddr>,
    /// The namespace of this daemon's pod; `None` outside a pod.
    pub namespace: Option<String>,
    /// Once the daemon has opened it.
    pub manager: Option<Arc<dyn SubnetManager>>,
    /// Whether the user set this node's id, with `--node-id`.
    pub id_given: bool,
    /// `None` without Kubernetes.
    pub node: Option<NodeAddresses>,
    /// `None` before the choice.
    pub choice: Option<Choice>,
}

impl Known {
    /// From the options, before the daemon queries the store.
    pub fn of(store: &options::Store) -> Self {
        let node = store.node().map(|name| NodeAddresses { name, ..NodeAddresses::default() });
        let namespace = node.as_ref().and_then(|_| namespace_of_pod(&Places::default()));
        Self {
            store: store.to_string(),
            access: store.access(),
            namespace,
            node,
            ..Self::default()
        }
    }
}

/// From the Kubernetes API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    pub name: String,
    /// The Node's addresses of type InternalIP, the preferred ones first.
    pub internal: Vec<IpAddr>,
    pub servers: Vec<IpAddr>,
}

impl From<&NodeInfo> for NodeAddresses {
    fn from(info: &NodeInfo) -> Self {
        Self { name: info.id.clone(), internal: info.internal.clone(), servers: Vec::new() }
    }
}

impl NodeAddresses {
    /// Keeps the known API servers if `self` has none.
    pub fn publish(mut self, known: &watch::Sender<Known>) {
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

/// The subnets if the lease has no name.
pub(super) fn name(lease: &Lease) -> Arc<str> {
    let named =
        lease.attrs.node.as_ref().map(|node| node.name.clone()).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| lease.subnets.to_string().into())
}
