//! What the parts of the daemon tell the doctor.

use super::silence::Heard;
use backends::Underlay;
use backends::status::Observer;
use doctor::facts::Network;
use doctor::facts::daemon::Choice;
use doctor::facts::store::{Access, Etcd};
use doctor::look::{Places, namespace_of_pod};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::feed::Reading;
use subnet_lease::kube::Identity;
use subnet_lease::manager::{Counters, Held, NodeInfo, SubnetManager};
use subnet_lease::{Lease, LeaseTable};
use tokio::sync::watch;

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
    /// What the node serves, once it has a lease.
    pub serving: Option<Serving>,
}

impl Known {
    /// What is known before anything was asked.
    pub fn of(store: &options::Store) -> Self {
        let node = match store {
            options::Store::Kube(kube) => Some(match &kube.identity {
                Identity::Node(name) => NodeAddresses { name: name.clone(), ..NodeAddresses::default() },
                // Until the API tells more.
                _ => NodeAddresses::default(),
            }),
            _ => None,
        };
        let namespace = node.as_ref().and_then(|_| namespace_of_pod(&Places::default()));
        Self { store: store.to_string(), access: access(store), namespace, node, ..Self::default() }
    }
}

/// How commands reach a store. The password stays here.
fn access(store: &options::Store) -> Access {
    match store {
        options::Store::Etcd(etcd) => Access::Etcd(Etcd {
            endpoints: etcd.endpoints.iter().map(ToString::to_string).collect(),
            prefix: etcd.prefix.clone(),
            ca: etcd.tls.as_ref().and_then(|tls| tls.ca.clone()),
            client: etcd.tls.as_ref().and_then(|tls| tls.client.clone()),
            user: etcd.user.as_ref().map(|(name, _)| name.clone()),
        }),
        options::Store::Dir(folder) => Access::Directory(folder.clone()),
        options::Store::Kube(_) => Access::Kubernetes,
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
        Self { name: info.id.clone(), internal: info.internal.clone(), servers: Vec::new() }
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

/// What a node with a lease serves.
#[derive(Clone)]
pub struct Serving {
    /// The network.
    pub network: Network,
    /// The underlay.
    pub underlay: watch::Receiver<Underlay>,
    /// The leases in force.
    pub leases: watch::Receiver<Arc<LeaseTable>>,
    /// What the manager of the leases counts.
    pub counters: Arc<Counters>,
    /// The state of the watch on the other nodes' leases.
    pub readings: watch::Receiver<Reading>,
    /// This node's lease.
    pub held: watch::Receiver<Held>,
    /// When the holders of leases were last heard of, where no probe is answered.
    pub heard: watch::Receiver<Heard>,
    /// The UDP ports of its devices, of backends whose devices have one each.
    pub listens: BTreeMap<String, u16>,
    /// The running network.
    pub observer: Observer,
    /// Number of writes of our own rules.
    pub written: watch::Receiver<u64>,
    /// The node is not ready once its lease has less time left than this.
    pub margin: Duration,
    /// `--set-sysctls`.
    pub set_sysctls: bool,
    /// What the probes of the peers found; `None` where this node does not probe.
    pub mesh: Option<Arc<dyn Fn() -> Arc<probing::view::Mesh> + Send + Sync>>,
    /// Changes when a verdict on a peer does.
    pub verdicts: Option<watch::Receiver<u64>>,
}

/// A peer's name, as its lease says it.
pub(super) fn name(lease: &Lease) -> String {
    let named = lease.attrs.node.as_ref().map(|node| node.name.clone()).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| lease.subnets.to_string())
}
