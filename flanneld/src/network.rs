//! State of the running network. Its tasks write to the state's channels; the health, the checks, the status API and
//! the traces (`probe`) read clones.

use crate::checks::silence::Heard;
use backends::status::NetworkHandle;
use backends::{Overlay, Underlay};
use doctor::facts::Network;
use doctor::facts::store::NextConfig;
use probing::pods::PodPaths;
use probing::prober::Prober;
use reconcile::questions::KernelAudit;
use run_dir::subnet_env::SubnetEnv;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::LeaseTable;
use subnet_lease::feed::Reading;
use subnet_lease::manager::{Counters, Held};
use tokio::sync::watch;

#[derive(Clone)]
pub struct RunningNetwork {
    pub network: Network,
    pub underlay: watch::Receiver<Underlay>,
    /// Why flanneld chose this underlay.
    pub why: String,
    /// Desired contents of subnet.env.
    pub env: watch::Receiver<SubnetEnv>,
    pub held: watch::Receiver<Held>,
    /// Remaining time of the lease below which the node is not ready.
    pub margin: Duration,
    /// The leases in force.
    pub leases: watch::Receiver<Arc<LeaseTable>>,
    /// The state of the watch of the other nodes' leases.
    pub readings: watch::Receiver<Reading>,
    /// Of the lease manager.
    pub store: Arc<Counters>,
    /// In use after the next start; `None` if equal to the configuration in use.
    pub next_config: watch::Receiver<Option<NextConfig>>,
    /// For each lease holder that does not reply to probes, when the store last received a message from it.
    pub heard: watch::Receiver<Heard>,
    /// Gives the backend's status and the kernel objects that it needs for a peer.
    pub observer: Arc<dyn NetworkHandle>,
    /// Reads the kernel state through the network's reconciler.
    pub kernel_audit: Option<KernelAudit>,
    /// By device, for backends whose devices have one port each.
    pub listens: BTreeMap<String, u16>,
    /// Number of times that flanneld wrote its traffic rules.
    pub written: watch::Receiver<u64>,
    pub set_sysctls: bool,
    /// For the probes; `None` if the backend carries no packets.
    pub overlay: Option<Overlay>,
    /// 0 if this node does not probe.
    pub probe_port: u16,
    /// `None` if `--probe-port` is 0, or if this network's tunnel uses the probe port.
    pub prober: Option<Prober>,
    /// By address family; `None` if flanneld does not probe the path of pod packets.
    pub pod_paths: Option<watch::Receiver<PodPaths>>,
}

impl std::fmt::Debug for RunningNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.network.fmt(f)
    }
}

/// For tests.
#[cfg(test)]
#[derive(Default)]
pub struct ConstantStatus(pub backends::Status);

#[cfg(test)]
impl NetworkHandle for ConstantStatus {
    fn status(&self) -> backends::Status {
        self.0.clone()
    }

    fn needs(
        &self,
        _peer: &subnet_lease::Peer<'_>,
        _facts: &netstate::kernel::Facts,
    ) -> Vec<(netstate::object::Key, netstate::object::Value)> {
        Vec::new()
    }
}

/// Other tasks wait this long for the reconciler, which compares ten thousand peers in less time.
const COMPARISON: Duration = Duration::from_secs(2);

impl RunningNetwork {
    /// Waits a limited time until the reconciler has made so many passes and no longer compares the kernel with
    /// the desired state. For ten thousand peers, that takes megabytes, and so does what other tasks know of the peers.
    pub async fn wait_compared(&self, passes: u64) {
        let end = tokio::time::Instant::now() + COMPARISON;
        let is_due = || {
            let kernel = self.observer.status().kernel;
            kernel.passes < passes || kernel.comparing
        };
        while is_due() && tokio::time::Instant::now() < end {
            tokio::time::sleep(COMPARISON / 40).await;
        }
    }
}

#[cfg(test)]
impl RunningNetwork {
    /// For tests; its state never changes.
    pub fn idle() -> Self {
        use types::{Addresses, Subnets};
        let (networks, own) = (
            Subnets::V4("10.5.0.0/16".parse().unwrap()),
            Subnets::V4("10.5.1.0/24".parse().unwrap()),
        );
        let address = Addresses::V4("192.0.2.1".parse().unwrap());
        let underlay = Underlay {
            index: 2,
            name: "eth1".to_owned(),
            mtu: 1500,
            addresses: address,
            public: address,
            local: Vec::new(),
            links: Vec::new(),
        };
        let network = Network {
            networks,
            own,
            backend: None,
            encapsulation: None,
            vni: None,
            mtu: None,
            nftables: true,
            forward: true,
        };
        Self {
            network,
            underlay: watch::channel(underlay).1,
            why: "named by --iface=eth1".to_owned(),
            env: watch::channel(SubnetEnv {
                networks,
                subnets: own,
                mtu: 1450,
                ip_masq: true,
                range_ends: Vec::new(),
            })
            .1,
            held: watch::channel(Held::default()).1,
            margin: Duration::ZERO,
            leases: watch::channel(Arc::default()).1,
            readings: watch::channel(Reading::default()).1,
            store: Arc::default(),
            next_config: watch::channel(None).1,
            heard: watch::channel(Heard::new()).1,
            observer: Arc::new(ConstantStatus::default()),
            kernel_audit: None,
            listens: BTreeMap::new(),
            written: watch::channel(0).1,
            set_sysctls: false,
            overlay: None,
            probe_port: 0,
            prober: None,
            pod_paths: None,
        }
    }
}
