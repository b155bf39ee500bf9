//! The running network. Its tasks write to the channels; health, checks, API and probe read a clone.

use crate::checks::silence::Heard;
use backends::status::NetworkHandle;
use backends::{Overlay, Underlay};
use doctor::facts::Network;
use doctor::facts::store::NextConfig;
use netstate::reconcile::questions::KernelAudit;
use probing::pods::PodPaths;
use probing::prober::Prober;
use run_dir::subnet_env::SubnetEnv;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::LeaseTable;
use subnet_lease::feed::Reading;
use subnet_lease::manager::{Counters, Held};
use tokio::sync::watch;

/// What a node with a lease serves.
#[derive(Clone)]
pub struct RunningNetwork {
    /// The network.
    pub network: Network,
    /// The underlay.
    pub underlay: watch::Receiver<Underlay>,
    /// Why the underlay was chosen.
    pub why: String,
    /// The wanted contents of subnet.env.
    pub env: watch::Receiver<SubnetEnv>,
    /// This node's lease.
    pub held: watch::Receiver<Held>,
    /// The node is not ready once its lease has less time left than this.
    pub margin: Duration,
    /// The leases in force.
    pub leases: watch::Receiver<Arc<LeaseTable>>,
    /// The state of the watch on the other nodes' leases.
    pub readings: watch::Receiver<Reading>,
    /// What the manager of the leases counts.
    pub store: Arc<Counters>,
    /// The network's configuration for the next start; `None` if it is the one in use.
    pub next_config: watch::Receiver<Option<NextConfig>>,
    /// When the holders of leases were last heard of, where no probe is answered.
    pub heard: watch::Receiver<Heard>,
    /// What the backend has in the kernel, and needs there.
    pub observer: Arc<dyn NetworkHandle>,
    /// Looks at the kernel through the network's loop.
    pub kernel_audit: Option<KernelAudit>,
    /// The UDP ports of its devices, of backends whose devices have one each.
    pub listens: BTreeMap<String, u16>,
    /// Number of writes of our own rules.
    pub written: watch::Receiver<u64>,
    /// `--set-sysctls`.
    pub set_sysctls: bool,
    /// How peers are asked; `None` where the backend carries no packets.
    pub overlay: Option<Overlay>,
    /// The UDP port of probes; 0 where this node does not probe.
    pub probe_port: u16,
    /// Probes the peers; `None` where `--probe-port` is 0 or taken by the tunnel.
    pub prober: Option<Prober>,
    /// What is known of the path of pods' packets; `None` where it is not probed.
    pub pod_paths: Option<watch::Receiver<PodPaths>>,
}

impl std::fmt::Debug for RunningNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.network.fmt(f)
    }
}

#[cfg(test)]
impl RunningNetwork {
    /// A network in which nothing happens.
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
            observer: Arc::new(backends::Status::default()),
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
