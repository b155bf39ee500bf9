//! The counters of the daemon as one document, which /status contains and /metrics renders.

use super::datapath;
use super::last_hour::LastHour;
use super::unused::{Unused, refused_by_reason};
use crate::network::RunningNetwork;
use backends::status::{EngineStatus, Status};
use doctor::table::Tallied;
use netlink::link::Counters as DeviceCounters;
use node_api::{FailedPeer, Wireguard};
use probing::pods::PodState;
use probing::prober::Figures as ProbeFigures;
use probing::view::PeerView;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use subnet_lease::manager::{Counters, boot_time};
use types::Durations;

/// The daemon's tasks maintain them only for /metrics and /status.
#[derive(Debug, Default)]
pub struct Figures {
    pub rule_writes: u64,
    /// Repairs after a change by another program.
    pub rule_repairs: u64,
    /// Whether another program keeps changing the traffic rules.
    pub rules_contended: bool,
    /// Gateway addresses of previous subnets that flanneld removed from bridges.
    pub bridge_addresses_removed: u64,
    /// Packets to the encapsulation port from senders that are not peers; `None` without a traffic rule that counts
    /// them.
    pub unknown_senders: Option<u64>,
    /// By check and severity; empty before the doctor's first run.
    pub findings: Tallied,
    /// When the doctor's last run began.
    pub doctor_round: Option<std::time::Instant>,
    /// Kernel objects that flanneld restored within the last hour.
    pub put_back: LastHour,
    /// Failed writes of traffic rules.
    pub rule_failures: u64,
    /// Of the devices that carry packets between nodes, by name.
    pub devices: BTreeMap<String, DeviceCounters>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Counts {
    /// Peers that the backend serves.
    pub peers: u64,
    /// Leases of other nodes in the store.
    pub leases: u64,
    /// Other nodes' leases that this node does not use, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Unreadable keys in the store.
    pub unreadable: u64,
    /// Since the start, by kind.
    pub store_requests: BTreeMap<&'static str, u64>,
    /// `None` for a reservation.
    pub lease_expiry_seconds: Option<u64>,
    /// Of pods, in bytes; 0 while the network does not run.
    pub mtu: u32,
    pub rules: RuleCounts,
    /// `None` while the network does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelCounts>,
    /// `None` without WireGuard peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wireguard: Option<Wireguard>,
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "datapath::serialize")]
    pub datapath: Vec<EngineStatus>,
    /// See [`Figures::unknown_senders`].
    #[serde(skip)]
    pub unknown_senders: Option<u64>,
    /// See [`Figures::bridge_addresses_removed`].
    #[serde(skip)]
    pub bridge_addresses_removed: u64,
    /// See [`Figures::findings`].
    #[serde(skip)]
    pub findings: Tallied,
    /// Since the doctor's last run began, in seconds.
    #[serde(skip)]
    pub doctor_round_age: Option<u64>,
    /// `None` if the prober does not run.
    #[serde(skip)]
    pub probes: Option<ProbeFigures>,
    /// Empty unless /metrics contains series for each peer.
    #[serde(skip)]
    pub each_peer: Vec<PeerView>,
    /// Since the last renewal of this node's lease; `None` if flanneld does not renew it.
    #[serde(skip)]
    pub lease_age_seconds: Option<u64>,
    /// `None` before the daemon opens the store.
    #[serde(skip)]
    pub store: Option<StoreCounts>,
    /// Failed operations by class: store, kernel, traffic rules.
    #[serde(skip)]
    pub errors: BTreeMap<&'static str, u64>,
    /// Kernel objects that flanneld restored, by kind.
    #[serde(skip)]
    pub repairs_by_kind: BTreeMap<&'static str, u64>,
    /// Of the comparisons of the kernel with the desired state.
    #[serde(skip)]
    pub pass_durations: Durations,
    /// See [`Figures::devices`].
    #[serde(skip)]
    pub devices: BTreeMap<String, DeviceCounters>,
    /// Address families by state of the path of pod packets; `None` if flanneld does not probe it.
    #[serde(skip)]
    pub pod_paths: Option<BTreeMap<PodState, u32>>,
}

#[derive(Debug)]
pub(super) struct StoreCounts {
    /// False before the store's first response.
    pub available: bool,
    /// Since the store's last response; `None` before the first.
    pub heard_age_seconds: Option<u64>,
    /// Of this node's requests.
    pub durations: Durations,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct RuleCounts {
    pub writes: u64,
    /// Repairs after a change by another program.
    pub repairs: u64,
    /// Whether another program keeps changing flanneld's traffic rules.
    pub at_war: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct KernelCounts {
    /// Leaves out peers that failed individually.
    #[serde(rename = "in_step")]
    pub in_sync: bool,
    /// Why the kernel is out of sync; empty if it is in sync.
    pub trouble: String,
    /// Peers whose objects the kernel refuses.
    pub failed_peers: Vec<FailedPeer>,
    /// Comparisons of the kernel with the desired state.
    pub passes: u64,
    /// Operations that changed objects in the kernel.
    pub writes: u64,
    /// Operations that the kernel refused.
    pub failures: u64,
    /// Operations by which flanneld reverted a change of another program.
    pub repairs: u64,
}

impl Figures {
    /// For /status and /metrics.
    pub(super) fn counts(
        &self,
        network: Option<&RunningNetwork>,
        store: Option<&Counters>,
        unused: &[Unused],
        per_peer: bool,
    ) -> Counts {
        let counts = Counts {
            refused: refused_by_reason(unused),
            unreadable: store.map_or(0, |store| number(store.unreadable_keys().len())),
            store_requests: store.into_iter().flat_map(Counters::calls).collect(),
            rules: RuleCounts {
                writes: self.rule_writes,
                repairs: self.rule_repairs,
                at_war: self.rules_contended,
            },
            unknown_senders: self.unknown_senders,
            bridge_addresses_removed: self.bridge_addresses_removed,
            store: store.map(|store| StoreCounts {
                available: store.why_unavailable().is_none() && store.last_heard().is_some(),
                heard_age_seconds: store.last_heard().map(age),
                durations: store.durations(),
            }),
            errors: BTreeMap::from([
                ("store", store.map_or(0, Counters::failures)),
                ("kernel", 0),
                ("rules", self.rule_failures),
            ]),
            devices: self.devices.clone(),
            findings: self.findings.clone(),
            doctor_round_age: self.doctor_round.map(|began| began.elapsed().as_secs()),
            ..Counts::default()
        };
        let Some(network) = network else {
            return counts;
        };
        // The guards of a struct expression's fields live as long as the expression. A second read of the same value while a writer
        // waits would never end, so each value is read once, before the expression.
        let (renewed, until) = {
            let held = network.held.borrow();
            (held.renewed, held.until)
        };
        let peers = network.leases.borrow().len();
        let leases = network.readings.borrow().seen;
        let mtu = network.env.borrow().mtu;
        let pod_paths = network.pod_paths.as_ref().map(|paths| {
            let mut counts = BTreeMap::new();
            for path in paths.borrow().values() {
                *counts.entry(path.state()).or_default() += 1;
            }
            counts
        });
        let status = network.observer.status();
        let mut errors = counts.errors;
        errors.insert("kernel", status.kernel.failures);
        Counts {
            errors,
            lease_age_seconds: renewed.map(age),
            repairs_by_kind: status.kernel.repairs_by_kind.clone(),
            pass_durations: status.kernel.pass_durations,
            each_peer: match &network.prober {
                Some(prober) if per_peer => prober.peers(|peer| peer),
                _ => Vec::new(),
            },
            peers: number(peers),
            leases: number(leases),
            lease_expiry_seconds: until.map(|end| end.saturating_sub(boot_time()).as_secs()),
            mtu,
            wireguard: wireguard(&status),
            kernel: Some(KernelCounts {
                in_sync: status.kernel.in_sync,
                trouble: status.kernel.trouble_text().to_owned(),
                failed_peers: status.kernel.failed_peers.iter().map(failed_peer).collect(),
                passes: status.kernel.passes,
                writes: status.kernel.writes,
                failures: status.kernel.failures,
                repairs: status.kernel.repairs,
            }),
            datapath: status.engines,
            probes: network.prober.as_ref().map(|prober| prober.figures()),
            pod_paths,
            ..counts
        }
    }
}

/// In seconds; `at` is a time of the clock `CLOCK_BOOTTIME`.
fn age(at: Duration) -> u64 {
    boot_time().saturating_sub(at).as_secs()
}

fn number(many: usize) -> u64 {
    u64::try_from(many).unwrap_or(u64::MAX)
}

/// For the status documents.
pub(super) fn failed_peer(failed: &backends::FailedPeer) -> FailedPeer {
    let backends::FailedPeer { peer, why } = failed;
    FailedPeer {
        node: peer.node.clone(),
        subnet: peer.subnet,
        address: peer.address,
        text: why.to_string(),
    }
}

/// `None` without WireGuard peers.
pub(super) fn wireguard(status: &Status) -> Option<Wireguard> {
    let (peers, silent) = (number(status.tunnels.peers), number(status.tunnels.silent.len()));
    (peers > 0).then(|| Wireguard { peers, silent: silent.min(peers) })
}
