//! Parts of texts that several steps of a trace share.

use netstate::host::lookup::{Fate, Hop};
use netstate::kernel::KernelError;
use netstate::object::route::{RouteKind, RouteSpec};
use netstate::report::protocols::Protocols;
use node_api::probe::{QuestionKind, Questions};
use probing::view::Tally;
use std::net::IpAddr;

// Numbers from linux/rtnetlink.h.
const UNREACHABLE: RouteKind = RouteKind::Unreachable;
const PROHIBIT: RouteKind = RouteKind::Other(8);
const MAIN: u32 = 254;
const LOCAL: u32 = 255;

pub(super) fn rtt(us: Option<u32>) -> String {
    us.map(|us| format!(", {:.2} ms", f64::from(us) / 1000.0)).unwrap_or_default()
}

/// As `5 of 5`: replies and probes.
pub(super) fn count(tally: Tally) -> String {
    format!("{} of {}", tally.answered, tally.asked)
}

/// By kind of probe, for the JSON document.
pub(super) fn questions(kinds: &[(QuestionKind, Tally)]) -> Vec<Questions> {
    let asked = kinds.iter().filter(|(_, tally)| tally.asked > 0);
    asked
        .map(|(kind, tally)| Questions {
            kind: *kind,
            asked: tally.asked,
            answered: tally.answered,
            rtt_us: tally.rtt_us,
        })
        .collect()
}

/// As `via 10.244.3.0 dev flannel.1 onlink`.
pub(super) fn spec(route: &RouteSpec) -> String {
    let via = route.via.map(|via| format!("via {via} ")).unwrap_or_default();
    format!("{via}dev {}{}", route.dev, if route.onlink { " onlink" } else { "" })
}

/// As `ip route` prints it.
pub(super) fn route(hop: &Hop) -> String {
    let kind = match hop.route.kind {
        RouteKind::Blackhole => "blackhole ",
        UNREACHABLE => "unreachable ",
        PROHIBIT => "prohibit ",
        _ => "",
    };
    let net = if hop.route.net.prefix_len() == 0 {
        "default".to_owned()
    } else {
        hop.route.net.to_string()
    };
    let via = hop.route.via.map(|via| format!(" via {via}")).unwrap_or_default();
    let nowhere = !kind.is_empty() || hop.dev.as_str().is_empty();
    let dev = if nowhere { String::new() } else { format!(" dev {}", hop.dev) };
    let table = if by_rule(hop) { format!(" table {}", hop.route.table) } else { String::new() };
    let metric =
        if hop.route.metric == 0 { String::new() } else { format!(" metric {}", hop.route.metric) };
    format!(
        "{kind}{net}{via}{dev}{table} proto {}{metric}",
        Protocols::default().name(hop.route.protocol)
    )
}

/// True if the kernel uses the route's table only because of a routing rule.
pub(super) fn by_rule(hop: &Hop) -> bool {
    !matches!(hop.route.table, 0 | MAIN | LOCAL)
}

/// With the outgoing interface and the source address: `192.0.2.3 by eth1 from 192.0.2.1`.
pub(super) fn place(to: IpAddr, fate: &Result<Fate, KernelError>) -> String {
    match fate {
        Ok(Fate::Sent(hop)) => {
            let source =
                hop.route.source.map(|source| format!(" from {source}")).unwrap_or_default();
            format!("{to} by {}{source}", hop.dev)
        }
        _ => to.to_string(),
    }
}
