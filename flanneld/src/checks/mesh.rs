//! The mesh as the prober sees it, for the doctor.

use doctor::facts::host::Port;
use doctor::facts::mesh::{Mesh, Path, State};
use doctor::look::owner;
use probing::state::State as Verdict;
use probing::view::{self, Peer};
use run_dir::instance::lent::tunnel_on;
use std::collections::BTreeSet;
use types::problem::PortPurpose;

/// Each peer and family is a path.
pub(super) fn mesh(view: &view::Mesh) -> Mesh {
    Mesh { paths: view.peers.iter().map(path).collect(), port: view.port }
}

/// The ports of the probes that another program has.
pub(super) fn taken_ports(view: &view::Mesh) -> Vec<Port> {
    let numbers: BTreeSet<u16> = view.problems.iter().filter(|problem| problem.taken).filter_map(|problem| Some(problem.address?.port())).collect();
    // A socket of the kernel's vxlan is no process's.
    let owner = |number| tunnel_on(number).or_else(|| owner(number, true));
    let port = |number| Port { number, udp: true, purpose: PortPurpose::Probes, owner: owner(number) };
    numbers.into_iter().map(port).collect()
}

fn path(peer: &Peer) -> Path {
    let state = match peer.state {
        Verdict::Unknown => State::Unknown,
        Verdict::Well => State::Well,
        Verdict::Slow => State::Slow,
        Verdict::LosesSome => State::Lossy,
        Verdict::SmallMtu => State::SmallMtu,
        Verdict::OneWay => State::OneWay,
        Verdict::OverlayCut if peer.ping_only => State::OverlayCutDaemonSilent,
        Verdict::OverlayCut => State::OverlayCut,
        Verdict::CutOff => State::Cut,
        Verdict::WrongNode => State::WrongNode(peer.answered_by.clone().unwrap_or_else(|| "another node".to_owned())),
    };
    // What they said before this began is of no use.
    let lately: Vec<&view::Said> = peer.others.iter().filter(|said| said.age_ms <= peer.state_age_ms).collect();
    let others = (!lately.is_empty()).then(|| {
        let reaches = |said: &&&view::Said| matches!(said.state, Verdict::Well | Verdict::Slow | Verdict::LosesSome | Verdict::SmallMtu);
        let count = |many: usize| u16::try_from(many).unwrap_or(u16::MAX);
        let well = lately.iter().filter(reaches).count();
        let judged = lately.iter().filter(|said| said.state != Verdict::Unknown).count();
        (count(well), count(judged.saturating_sub(well)))
    });
    // By its own words it heard us then: until then its daemon answered.
    let spoke_ms = [peer.hears_us_age_ms, peer.hears_us_beside_age_ms].into_iter().flatten().min();
    let age_ms = spoke_ms.filter(|_| peer.ping_only).map_or(peer.state_age_ms, |spoke_ms| spoke_ms.min(peer.state_age_ms));
    Path {
        node: peer.title(),
        ours: peer.id.is_some(),
        subnet: peer.subnet,
        address: peer.address,
        // What was heard once is not heard for ever: the verdict counts.
        ever: [peer.answered_age_ms, peer.beside_age_ms, peer.heard_age_ms, peer.heard_beside_age_ms].iter().any(Option::is_some),
        underlay: !matches!(state, State::Cut | State::Unknown),
        ping_only: peer.ping_only && !matches!(state, State::Cut | State::Unknown),
        refuses: peer.refuses,
        state,
        carries: peer.carries.map(u32::from),
        rtt: peer.rtt_us,
        lost: peer.lost,
        clock_ahead: peer.clock_offset_ms,
        others,
        since: Some(age_ms / 1000),
    }
}
