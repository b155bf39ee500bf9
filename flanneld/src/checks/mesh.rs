//! Converts the prober's results for the doctor.

use doctor::facts::host::Port;
use doctor::facts::mesh::{CommonOutage, Mesh, Path};
use doctor::facts::pods::{LostPackets, PodPath};
use doctor::look::owner;
use ipnet::IpNet;
use probing::pods::{self, IdleError, PodPaths, PodState};
use probing::prober::Prober;
use probing::verdict::loses_everywhere;
use probing::view::{self, PeerView, UnusableSocket};
use run_dir::instance::lent::tunnel_on;
use std::collections::{BTreeMap, BTreeSet};
use types::Family;
use types::problem::PortPurpose;
use types::reachability::{Impact, State};

/// Time within which a peer that probes this node sends its next probe, in milliseconds.
const HEARD_MS: u64 = 60_000;

/// One path for each peer and family.
pub(super) fn mesh(prober: &Prober) -> Mesh {
    let (faults, losses) = prober.common();
    let fault = |fault: &view::CommonOutage| CommonOutage {
        state: fault.state,
        asked: fault.asked,
        failed: fault.failed,
        peers: fault.peers,
    };
    let heard = |peer: PeerView| {
        let ages = [peer.ages.heard_age_ms, peer.ages.heard_underlay_age_ms];
        ages.into_iter().flatten().any(|age| age < HEARD_MS)
    };
    let loses = loses_everywhere(losses.asked, losses.lost, losses.losers);
    Mesh {
        paths: prober.peers(path),
        port: prober.port(),
        faults: faults.iter().map(fault).collect(),
        lost_everywhere: loses.then_some((losses.lost, losses.asked)),
        strangers: prober.strangers(),
        hears: prober.peers(heard).contains(&true),
    }
}

pub(super) fn pod_paths(prober: &Prober, paths: &PodPaths) -> Vec<PodPath> {
    let is_lost = |subnet: &IpNet| paths.values().any(|path| path.lost.contains_key(subnet));
    let named =
        |peer: PeerView| is_lost(&peer.subnet).then(|| (peer.subnet, path(peer).node.to_string()));
    let names: BTreeMap<IpNet, String> = prober.find_peers(usize::MAX, named).into_iter().collect();
    let name = |subnet: &IpNet| names.get(subnet).cloned().unwrap_or_else(|| subnet.to_string());
    let lost = |lost: &pods::LostPackets| match lost {
        pods::LostPackets::Address => LostPackets::Address,
        pods::LostPackets::Everything => LostPackets::Everything,
        pods::LostPackets::Answers => LostPackets::Answers,
        pods::LostPackets::Calls => LostPackets::Calls,
    };
    let shown = |(family, path): (&Family, &pods::PodPath)| {
        Some(PodPath {
            family: *family,
            address: path.address?,
            lost: path.lost.iter().map(|(subnet, what)| (name(subnet), lost(what))).collect(),
            others_pass: path.state() == PodState::Some,
            taken_by: match &path.obstacle {
                Some(IdleError::Taken(mac)) => Some(mac.clone()),
                _ => None,
            },
        })
    };
    paths.iter().filter_map(shown).collect()
}

/// The probe ports that another program uses.
pub(super) fn taken_ports(problems: &[UnusableSocket]) -> Vec<Port> {
    let numbers: BTreeSet<u16> = problems
        .iter()
        .filter(|problem| problem.taken)
        .filter_map(|problem| Some(problem.address?.port()))
        .collect();
    // A socket of the kernel's vxlan belongs to no process.
    let owner = |number| tunnel_on(number).or_else(|| owner(number, true));
    let port =
        |number| Port { number, udp: true, purpose: PortPurpose::Probes, owner: owner(number) };
    numbers.into_iter().map(port).collect()
}

fn path(peer: PeerView) -> Path {
    let verdict = peer.verdict();
    let is_reached = !matches!(verdict.state, State::CutOff | State::Unknown);
    // Reports from before the present state began are not used.
    let lately: Vec<State> = peer
        .others
        .iter()
        .filter(|claim| claim.age_ms <= peer.state_age_ms)
        .map(|claim| claim.state)
        .collect();
    let others = (!lately.is_empty()).then(|| {
        let count = |is: fn(&&State) -> bool| {
            u16::try_from(lately.iter().filter(is).count()).unwrap_or(u16::MAX)
        };
        (count(|state| state.passes()), count(|state| state.impact() == Impact::All))
    });
    // The peer reports when it last received our probes. Its daemon responded until then.
    let spoke_ms =
        [peer.ages.hears_us_age_ms, peer.ages.hears_us_underlay_age_ms].into_iter().flatten().min();
    let age_ms = spoke_ms
        .filter(|_| verdict.ping_only)
        .map_or(peer.state_age_ms, |spoke_ms| spoke_ms.min(peer.state_age_ms));
    Path {
        node: peer
            .name
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| peer.address.to_string().into()),
        ours: peer.id.is_some(),
        subnet: peer.subnet,
        address: peer.address,
        verdict,
        inferred: peer.inferred,
        answered_by: peer.answered_by,
        // An earlier reply does not prove that the path works: the verdict decides.
        ever: [
            peer.ages.answered_age_ms,
            peer.ages.underlay_age_ms,
            peer.ages.heard_age_ms,
            peer.ages.heard_underlay_age_ms,
        ]
        .iter()
        .any(Option::is_some),
        underlay: is_reached,
        refuses: peer.refuses,
        carries: peer.carries.map(u32::from),
        rtt: peer.rtt_us,
        losses: peer.losses,
        clock_ahead: peer.clock_offset_ms,
        others,
        since: Some(age_ms / 1000),
    }
}
