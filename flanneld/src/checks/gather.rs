//! Gathers the facts about this node for the doctor.

use super::known::{Known, name};
use super::{mesh, wireguard};
use crate::error::is_about_config;
use crate::health::Health;
use crate::network::RunningNetwork;
use doctor::fact::Fact;
use doctor::facts::argument::on_command_line;
use doctor::facts::daemon::{Daemon, Drift, Drifting, Launch};
use doctor::facts::host::{LookupPurpose, PodPeer, Port};
use doctor::facts::kubernetes::Kubernetes;
use doctor::facts::leases::{Leases, NodeHealth, Own, Peer, RefusedLease};
use doctor::facts::mesh::Mesh;
use doctor::facts::store::Store;
use doctor::facts::{Facts, Network};
use doctor::look::{self, Look, Target};
use doctor::surroundings::Surroundings;
use netstate::object::Key;
use probing::view::PeerView;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use subnet_lease::manager::boot_time;
use subnet_lease::{Kinds, Lease, RawJson};
use types::reachability::{Impact, State};
use types::{Detail, Encapsulation, Family, Problem, Profile};

/// Time after the daemon's start during which checks with the property `waits` report nothing. Peers and probe
/// results are still incomplete.
pub(super) const STARTUP: Duration = Duration::from_secs(10);
/// Maximum interruption of a watch while the daemon connects to another endpoint.
const RECONNECT: Duration = Duration::from_secs(5);
/// Maximum number of peers to which the doctor looks up routes.
const MAX_LOOKUPS: usize = 32;

pub(super) async fn facts(
    known: &Known,
    running: Option<&RunningNetwork>,
    look: &mut Look,
    subnet_file: &Path,
    health: &Health,
) -> Facts {
    let mut network = running.map(|running| running.network.clone());
    let underlay = running.map(|running| running.underlay.borrow().name.clone());
    let mut host = look
        .host(
            network.as_ref(),
            underlay.as_deref(),
            &targets(known, running, underlay.as_deref()),
            &pod_peers(running),
        )
        .await;
    let reasons: BTreeMap<String, Problem> = health
        .reasons()
        .into_iter()
        .map(|(condition, problem)| (condition.to_string(), problem))
        .collect();
    let kernel = running.and_then(|running| running.observer.status().kernel.trouble);
    let notices = health.notices();
    // The facts about ten thousand peers are megabytes, so they are gathered while the reconciler needs little memory.
    if let Some(running) = running {
        running.wait_compared(0).await;
    }
    let (mesh, probe_ports) = mesh_and_taken_ports(running);
    // This broadcasts to all hosts of the link, so at least half of the peers must be silent. Otherwise one dead node would make each node of a large
    // cluster send it.
    let is_silent = |mesh: &Mesh| {
        let judged = mesh.judged(Family::V4);
        let silent = judged.iter().filter(|path| path.is_lost()).count();
        silent > 0 && 2 * silent >= judged.len()
    };
    if let (Some(name), Some(true)) = (&underlay, mesh.known().map(is_silent)) {
        host.rival = look::rival(&host, name).await;
    }
    let problems = kernel.iter().chain(&notices).chain(reasons.values());
    let taken = problems.flat_map(look::taken_ports).chain(probe_ports);
    // A problem may be known from two places.
    let taken: BTreeMap<_, _> = taken.map(|port| ((port.number, port.udp), port)).collect();
    host.ports = Fact::Known(taken.into_values().collect());
    host.modules = Fact::Known(kernel.iter().flat_map(look::missing_modules).collect());
    let daemon = Daemon {
        running: Fact::Known(true),
        young: health.uptime() < STARTUP,
        exit_report: Fact::Absent,
        silent: Fact::Known(health.silent_tasks()),
        choice: choice(known, underlay),
        id_given: known.id_given,
        launch: launch(known),
        arguments: on_command_line(std::env::args().skip(1)),
        subnet_file: subnet_file.to_owned(),
        drift: Fact::Known(drift(running)),
        // The caller requests the pods from the store.
        pods: Fact::Absent,
        reasons: Fact::Known(reasons.clone()),
    };
    let mut pods = look.pods(&daemon, network.as_ref(), &host);
    if let Some((prober, paths)) =
        running.and_then(|running| running.prober.as_ref().zip(running.pod_paths.as_ref()))
    {
        pods.paths = Fact::Known(mesh::pod_paths(prober, &paths.borrow()));
    }
    let env =
        pods.env.known().filter(|env| env.subnets == network.as_ref().map(|network| network.own));
    if let (Some(network), Some(mtu)) = (&mut network, env.and_then(|env| env.mtu)) {
        // The MTU of pods follows the underlay's MTU.
        network.mtu = Some(mtu);
    }
    Facts {
        backends: backends::profiles(),
        store: store(known, running, &reasons),
        leases: leases(running, health),
        mesh,
        wireguard: wireguard::wireguard(running),
        kubernetes: kubernetes(known, running, &reasons),
        network: match network {
            Some(network) => Fact::Known(network),
            None => Fact::unavailable("the network of this node is not known yet"),
        },
        host,
        daemon,
        pods,
    }
}

/// The results of the prober, and the probe ports that another program uses.
fn mesh_and_taken_ports(running: Option<&RunningNetwork>) -> (Fact<Mesh>, Vec<Port>) {
    let Some(running) = running else {
        return (Fact::unavailable("this node has no lease yet"), Vec::new());
    };
    match &running.prober {
        Some(prober) => (Fact::Known(mesh::mesh(prober)), mesh::taken_ports(&prober.problems())),
        None => (Fact::unavailable("this node does not probe its peers"), Vec::new()),
    }
}

fn launch(known: &Known) -> Launch {
    known
        .namespace
        .clone()
        .map_or(Launch::Systemd, |namespace| Launch::Kubernetes { namespace, assumed: false })
}

fn store(
    known: &Known,
    running: Option<&RunningNetwork>,
    reasons: &BTreeMap<String, Problem>,
) -> Store {
    // While the daemon waits for the configuration, the reason may be a store that does not respond.
    let (config, silence) = match reasons.get("config") {
        Some(problem) if is_about_config(problem) => (Some(problem.clone()), None),
        other => (None, other.cloned()),
    };
    Store {
        place: known.store.clone(),
        addresses: known.store_addresses.clone(),
        access: known.access.clone(),
        trouble: Fact::of(reasons.get("store").cloned().or(silence).or_else(|| away(running))),
        config: Fact::of(config),
        next_config: match running {
            Some(running) => Fact::of(running.next_config.borrow().clone()),
            None => Fact::unavailable("this node has no lease yet"),
        },
    }
}

fn kubernetes(
    known: &Known,
    running: Option<&RunningNetwork>,
    reasons: &BTreeMap<String, Problem>,
) -> Fact<Kubernetes> {
    let Some(node) = &known.node else {
        return Fact::Absent;
    };
    let (lease, store, away) = (reasons.get("lease"), reasons.get("store"), away(running));
    let refused = [store, away.as_ref(), lease]
        .into_iter()
        .flatten()
        .filter_map(|problem| Some((refusal(problem)?, problem)));
    let refused = refused.min_by_key(|(refusal, _)| *refusal).map(|(_, problem)| problem.clone());
    let by_service =
        std::env::var("KUBERNETES_SERVICE_HOST").ok().and_then(|host| host.parse().ok());
    let unassigned = lease.and_then(|problem| {
        problem.details().find_map(|detail| {
            if let Detail::PodCidrMissing { cluster_cidr } = detail {
                Some(cluster_cidr.clone())
            } else {
                None
            }
        })
    });
    let unanswered = |service: &IpAddr| {
        store.is_some_and(|problem| problem.details().any(|detail| is_silence_of(detail, *service)))
    };
    let by_service_unanswered = running.is_none() && by_service.as_ref().is_some_and(unanswered);
    Fact::Known(Kubernetes {
        node: node.name.clone(),
        pod_cidrs: unassigned.as_ref().map(|_| Vec::new()),
        cluster_cidr: unassigned.flatten(),
        internal: node.internal.clone(),
        refusal: refused,
        server: by_service
            .filter(|_| by_service_unanswered)
            .or(node.servers.first().copied())
            .or(by_service),
        service: by_service,
        by_service_unanswered,
    })
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AccessDenial {
    /// The server rejects the credentials, so their permissions do not matter.
    Unknown,
    /// The server accepts the credentials, but they lack a permission.
    Forbidden,
}

fn refusal(problem: &Problem) -> Option<AccessDenial> {
    let of = |detail: &Detail| match detail {
        Detail::Store { status: Some(401), .. } => Some(AccessDenial::Unknown),
        Detail::Store { status: Some(403), .. } | Detail::Forbidden { .. } => {
            Some(AccessDenial::Forbidden)
        }
        _ => None,
    };
    problem.details().filter_map(of).min()
}

/// True if this detail of a problem reports that the server at this address did not respond.
fn is_silence_of(detail: &Detail, address: IpAddr) -> bool {
    let Detail::Store { status: None, server: Some(server), .. } = detail else {
        return false;
    };
    server.contains(&address.to_string())
}

/// Why the store does not respond, for a node that already has a lease. `None` unless the watch is interrupted for
/// longer than a new connection takes.
fn away(running: Option<&RunningNetwork>) -> Option<Problem> {
    let running = running?;
    let since = running.readings.borrow().interrupted?;
    if boot_time().saturating_sub(since) < RECONNECT {
        return None;
    }
    let trouble = || running.held.borrow().trouble.clone();
    Some(running.store.why_not_followed().or_else(trouble).unwrap_or_else(|| {
        Problem::new("watch-interrupted", "the watch of the leases is interrupted")
    }))
}

/// With the interface's current name.
fn choice(known: &Known, underlay: Option<String>) -> Fact<doctor::facts::daemon::Choice> {
    let choice = known.choice.clone().map(|mut choice| {
        choice.interface = underlay.unwrap_or(choice.interface);
        choice
    });
    Fact::of(choice)
}

/// The interface on which packets of other nodes arrive, and their source addresses.
///
/// `bridge` is the bridge of this node's pods, if known.
pub(super) fn surroundings(running: &RunningNetwork, bridge: Option<String>) -> Surroundings {
    let leases = running.leases.borrow().clone();
    let peers =
        leases.others(&running.network.own, Kinds::Any).flat_map(|lease| lease.attrs.addresses());
    Surroundings {
        underlay: Some(running.underlay.borrow().name.clone()),
        bridge,
        peers: peers.collect(),
        near: Vec::new(),
    }
}

/// The peers to whose pods the doctor looks up routes, one entry per family. Skips peers without a probe result,
/// because the kernel may not have their routes yet.
fn pod_peers(running: Option<&RunningNetwork>) -> Vec<PodPeer> {
    let Some(prober) = running.and_then(|running| running.prober.as_ref()) else {
        return Vec::new();
    };
    let peer = |peer: PeerView| {
        let is_known = peer.verdict().state != State::Unknown && !peer.inferred;
        is_known.then(|| PodPeer { subnet: peer.subnet, name: called(peer) })
    };
    prober.find_peers(MAX_LOOKUPS, peer)
}

/// The address if the peer has no name.
fn called(peer: PeerView) -> String {
    peer.name
        .filter(|name| !name.is_empty())
        .map_or_else(|| peer.address.to_string(), |name| name.to_string())
}

/// The kernel objects that other programs keep changing.
fn drift(running: Option<&RunningNetwork>) -> Vec<Drift> {
    let repaired =
        running.map(|running| running.observer.status().kernel.repaired).unwrap_or_default();
    let by = look::network_managers();
    let kind = |key: &Key| match key {
        Key::Link(_) => Drifting::Link,
        Key::Route(..) => Drifting::Route,
        _ => Drifting::Other,
    };
    repaired
        .lately(tokio::time::Instant::now())
        .into_iter()
        .map(|(key, times)| Drift {
            object: key.to_string(),
            kind: kind(&key),
            times,
            by: by.clone(),
        })
        .collect()
}

/// The addresses to which the doctor looks up routes: the store, the API server, and peers to which packets may take
/// a wrong route.
fn targets(known: &Known, running: Option<&RunningNetwork>, underlay: Option<&str>) -> Vec<Target> {
    let target = |to: &IpAddr, whose: String, kind| Target { to: *to, whose, kind };
    let mut targets: Vec<Target> = known
        .store_addresses
        .iter()
        .map(|ip| target(ip, "the store".to_owned(), LookupPurpose::Store))
        .collect();
    let servers = known.node.iter().flat_map(|node| &node.servers);
    targets.extend(
        servers.map(|ip| target(ip, "the API server".to_owned(), LookupPurpose::ApiServer)),
    );
    let Some(running) = running else {
        return targets;
    };
    let leases = running.leases.borrow().clone();
    let peers = || leases.others(&running.network.own, Kinds::Any);
    let to =
        |lease: &Lease, address| target(&address, name(lease).to_string(), LookupPurpose::Peer);
    if underlay.is_some_and(look::is_strict) {
        // Of many peers, those from which nothing arrives come first.
        let lost = lost_peers(running);
        let is_lost = |lease: &&Lease| {
            let address = lease.attrs.public_for(Family::V4);
            address.is_some_and(|address| lost.contains(&address))
        };
        let first = peers().filter(is_lost);
        targets.extend(
            first
                .chain(peers().filter(|lease| !is_lost(lease)))
                .take(MAX_LOOKUPS)
                .filter_map(|lease| Some(to(lease, lease.attrs.public_for(Family::V4)?))),
        );
    }
    // flannel's own route may lead to an address inside the pod network.
    let asked: BTreeSet<IpAddr> = targets
        .iter()
        .filter(|target| target.kind == LookupPurpose::Peer)
        .map(|target| target.to)
        .collect();
    let inside = |target: &Target| {
        !asked.contains(&target.to)
            && running.network.networks.nets().any(|net| net.contains(&target.to))
    };
    let looped = peers()
        .flat_map(|lease| lease.attrs.addresses().map(move |address| to(lease, address)))
        .filter(inside);
    targets.extend(looped.take(MAX_LOOKUPS));
    targets.extend(silent_peers(running));
    targets
}

/// The addresses of the peers with which pods of this node cannot exchange packets.
fn lost_peers(running: &RunningNetwork) -> BTreeSet<IpAddr> {
    let lost = |peer: PeerView| (peer.state.impact() == Impact::All).then_some(peer.address);
    let all = running.prober.as_ref().map(|prober| prober.find_peers(usize::MAX, lost));
    all.into_iter().flatten().collect()
}

/// The peers that reply to neither probes nor pings. A wrong route on this host may explain the missing replies, so
/// the doctor looks up their routes.
fn silent_peers(running: &RunningNetwork) -> Vec<Target> {
    let Some(prober) = &running.prober else {
        return Vec::new();
    };
    let target = |peer: PeerView| {
        let is_silent = peer.verdict().state == State::CutOff && !peer.inferred;
        is_silent.then(|| Target {
            to: peer.address,
            kind: LookupPurpose::SilentPeer,
            whose: called(peer),
        })
    };
    prober.find_peers(MAX_LOOKUPS, target)
}

fn leases(running: Option<&RunningNetwork>, health: &Health) -> Leases {
    let Some(running) = running else {
        return Leases {
            own: Fact::Absent,
            peers: Fact::unavailable("the leases of the other nodes are not known yet"),
            refused: Fact::unavailable("the leases of the other nodes are not known yet"),
        };
    };
    let held = running.held.borrow().clone();
    let left = held.until.map(|until| until.saturating_sub(boot_time()));
    let table = running.leases.borrow().clone();
    let heard = running.heard.borrow().clone();
    let holder = |lease: &Lease| heard.get(&lease.subnets);
    let peer = |lease: &Lease| Peer {
        name: name(lease),
        subnets: lease.subnets,
        public: lease.attrs.public(),
        vni: vni(lease.attrs.data.as_ref(), lease.attrs.v6_data.as_ref()),
        silent: holder(lease).map(|holder| boot_time().saturating_sub(holder.at).as_secs()),
        node: holder(lease)
            .and_then(|holder| holder.node)
            .map(|node| NodeHealth { ready: node.ready, cordoned: node.cordoned }),
    };
    // A cluster can have ten thousand peers, so the capacity is exact.
    let mut peers = Vec::with_capacity(table.others(&running.network.own, Kinds::Any).count());
    peers.extend(table.others(&running.network.own, Kinds::Any).map(peer));
    let refused = health
        .unused()
        .iter()
        .map(|unused| RefusedLease {
            lease: unused.lease.clone(),
            reason: unused.reason.to_owned(),
            text: unused.text.clone(),
            address: unused.address,
        })
        .collect();
    Leases {
        own: Fact::Known(Own {
            ends_in: left.map(|left| left.as_secs()),
            trouble: held.trouble.clone(),
            within_margin: left.is_some_and(|left| left < running.margin),
            published: held.lease.iter().flat_map(|lease| lease.attrs.addresses()).collect(),
        }),
        peers: Fact::Known(peers),
        refused: Fact::Known(refused),
    }
}

/// The VNI of IPv4, or of IPv6 if the lease has no IPv4.
pub fn vni(data: Option<&RawJson>, v6_data: Option<&RawJson>) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct Data {
        #[serde(rename = "VNI")]
        vni: u32,
    }
    let of = |data: Option<&RawJson>| serde_json::from_str::<Data>(data?.as_str()).ok();
    of(data).or_else(|| of(v6_data)).map(|data| data.vni)
}

pub fn network(
    config: &subnet_lease::NetworkConfig,
    own: types::Subnets,
    (backend, encapsulation): (&'static Profile, Encapsulation),
    mtu: u32,
    vni: Option<u32>,
    forward: bool,
) -> Network {
    Network {
        networks: config.networks,
        own,
        backend: Some(backend),
        encapsulation: Some(encapsulation),
        vni,
        mtu: Some(mtu),
        nftables: config.nftables,
        forward,
    }
}
