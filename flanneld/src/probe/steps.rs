//! Evaluates the steps of a path to a peer. The result depends only on the facts and the prober's verdicts.

use super::seen::{Judged, Rules, Seen, named};
use super::target::title;
use super::words::{by_rule, count, place, questions, route as shown, rtt, spec};
use netstate::host::lookup::{Fate, Neighbour};
use node_api::probe::{Outcome, QuestionKind, Step, StepName};
use probing::view::Tally;
use std::time::Duration;
use types::reachability::{Impact, State, Verdict};

/// Time after which a WireGuard session ends without a new handshake (section 6.1 of the WireGuard paper).
const SESSION: Duration = Duration::from_secs(180);

/// In the order in which a packet passes through them.
pub(super) fn steps(seen: &Seen, judged: &Judged) -> Vec<Step> {
    let overlay = overlay(seen, judged.overlay);
    let underlay = underlay(seen, judged.underlay, overlay.outcome == Outcome::Ok);
    let mut steps = vec![route(seen)];
    steps.extend(neighbour(seen));
    steps.extend(fdb(seen));
    steps.extend(peer(seen, underlay.outcome == Outcome::Failed));
    steps.push(underlay);
    steps.push(rules(seen));
    steps.push(overlay);
    steps.extend(pod(seen));
    steps
}

fn step(name: StepName, (outcome, text): (Outcome, String)) -> Step {
    Step { name, outcome, text, questions: Vec::new() }
}

fn route(seen: &Seen) -> Step {
    let to = seen.to;
    let wanted = seen.wanted.route.as_ref();
    let wants =
        wanted.map(|(_, route)| format!("; the lease needs {}", spec(route))).unwrap_or_default();
    let found = match (&seen.fate, wanted) {
        (Err(why), _) => (Outcome::NotAsked, format!("not known: {why}")),
        (Ok(Fate::NoRoute), _) => (Outcome::Failed, format!("no route leads to {to}{wants}")),
        (Ok(Fate::Dropped(Some(hop))), _) => (
            Outcome::Failed,
            format!("packets to {to} are dropped by the route {}{wants}", shown(hop)),
        ),
        (Ok(Fate::Dropped(None)), _) => {
            (Outcome::Failed, format!("packets to {to} are dropped by a rule or a route{wants}"))
        }
        (Ok(Fate::Sent(hop)), None) => (
            Outcome::Failed,
            format!(
                "packets to {to} leave by {}; this node needs no route to {}: the lease is not inside its network",
                shown(hop),
                seen.target.subnet
            ),
        ),
        (Ok(Fate::Sent(hop)), Some((net, route)))
            if hop.dev == route.dev && hop.route.via == route.via =>
        {
            (Outcome::Ok, format!("{net} {}", spec(route)))
        }
        (Ok(Fate::Sent(hop)), Some((net, _))) => {
            let why = match hop.route.net.prefix_len() {
                _ if by_rule(hop) => format!(": a rule leads to table {}", hop.route.table),
                0 => format!(": there is no route to {net}"),
                _ => String::new(),
            };
            (Outcome::Failed, format!("packets to {to} leave by {}{why}{wants}", shown(hop)))
        }
    };
    step(StepName::Route, found)
}

fn neighbour(seen: &Seen) -> Option<Step> {
    let (dev, ip, mac) = seen.wanted.neighbour?;
    let found = match seen.neighbour.as_ref()? {
        Err(why) => (Outcome::NotAsked, format!("not known: {why}")),
        Ok(Neighbour::Known(known)) if *known == mac => {
            (Outcome::Ok, format!("{ip} is {mac}, as leased"))
        }
        Ok(Neighbour::Known(other)) => {
            (Outcome::Failed, format!("{ip} is {other} on {dev}; the lease has {mac}"))
        }
        Ok(Neighbour::Silent | Neighbour::Absent) => {
            (Outcome::Failed, format!("{ip} is unknown on {dev}; the lease has {mac}"))
        }
    };
    Some(step(StepName::Neighbour, found))
}

fn fdb(seen: &Seen) -> Option<Step> {
    let (dev, mac, ip) = seen.wanted.fdb?;
    let found = match seen.fdb.as_ref()? {
        Err(why) => (Outcome::NotAsked, format!("not known: {why}")),
        Ok(Some(known)) if *known == ip => {
            (Outcome::Ok, format!("{mac} is behind {ip}, as leased"))
        }
        Ok(Some(other)) => {
            (Outcome::Failed, format!("{mac} is behind {other} on {dev}; the lease has {ip}"))
        }
        Ok(None) => {
            (Outcome::Failed, format!("{mac} is unknown on {dev}; the lease has it behind {ip}"))
        }
    };
    Some(step(StepName::Fdb, found))
}

/// If `address_fails` is true, a missing handshake is not a failure of this step.
fn peer(seen: &Seen, address_fails: bool) -> Option<Step> {
    let (dev, net, key) = seen.wanted.tunnelled?;
    let found = match seen.tunnelled.as_ref()? {
        Err(why) => (Outcome::NotAsked, format!("not known: {why}")),
        Ok(None) => (
            Outcome::Failed,
            format!("no peer on {dev} has the allowed IP {net}; the lease has {key}"),
        ),
        Ok(Some(other)) if other.key != key => (
            Outcome::Failed,
            format!("{net} belongs to {} on {dev}; the lease has {key}", other.key),
        ),
        Ok(Some(found)) => {
            let endpoint = found.peer.endpoint.map_or_else(
                || "without an endpoint".to_owned(),
                |endpoint| format!("at {endpoint}"),
            );
            let ago = found.session.handshake;
            let handshake = ago.map_or_else(
                || "no handshake yet".to_owned(),
                |ago| format!("last handshake {} s ago", ago.as_secs()),
            );
            let outcome = match ago.is_some_and(|ago| ago < SESSION) || seen.replies.through() {
                true => Outcome::Ok,
                false if address_fails => Outcome::NotAsked,
                false => Outcome::Failed,
            };
            (outcome, format!("{key} {endpoint}, {handshake}"))
        }
    };
    Some(step(StepName::Peer, found))
}

fn outcome(verdict: Verdict) -> Outcome {
    match verdict.state.impact() {
        Impact::Unknown => Outcome::NotAsked,
        Impact::None => Outcome::Ok,
        Impact::Some | Impact::All => Outcome::Failed,
    }
}

/// `works` is true if the path over the overlay works.
fn underlay(seen: &Seen, verdict: Verdict, works: bool) -> Step {
    let replies = &seen.replies;
    let (asked, ping) = (replies.underlay, replies.underlay_ping);
    let kinds = [(QuestionKind::Question, asked), (QuestionKind::Ping, ping)];
    let place = place(seen.target.address, &seen.underlay);
    let port = seen.own.probes;
    let found = match &seen.underlay {
        Ok(Fate::NoRoute) if !works => (Outcome::Failed, format!("no route leads to {place}")),
        Ok(Fate::Dropped(hop)) if !works => {
            let by =
                hop.as_ref().map(|hop| format!(" by the route {}", shown(hop))).unwrap_or_default();
            (Outcome::Failed, format!("packets to {place} are dropped{by}"))
        }
        _ if !verdict.state.passes() && works && asked.asked + ping.asked > 0 => (
            Outcome::NotAsked,
            format!(
                "{place}: nothing replies over the underlay, but the overlay works: a firewall accepts only the tunnel"
            ),
        ),
        _ => {
            let text = match verdict.state {
                _ if asked.asked + ping.asked == 0 => {
                    format!(
                        "{place}: not probed{}",
                        replies.silenced.as_ref().map(|why| format!(": {why}")).unwrap_or_default()
                    )
                }
                state if !state.passes() && ping.asked == 0 => {
                    format!(
                        "{place}: {} replied; this node cannot ping (CAP_NET_RAW), and UDP {port} may be filtered",
                        count(asked)
                    )
                }
                state if !state.passes() && asked.asked == 0 => {
                    format!("{place}: {} pings answered", count(ping))
                }
                state if !state.passes() => {
                    format!("{place}: {} replied, not even to ping", count(asked))
                }
                _ if !verdict.ping_only => {
                    format!("{place}: {} replied{}", count(asked), rtt(asked.rtt_us))
                }
                _ if ping.answered > 0 => format!(
                    "{place}: {} pings answered{}{}",
                    count(ping),
                    rtt(ping.rtt_us),
                    unanswered(asked, port)
                ),
                _ => format!("{place} refuses UDP {port}, so packets get there"),
            };
            (outcome(verdict), text)
        }
    };
    Step { questions: questions(&kinds), ..step(StepName::Underlay, found) }
}

/// Why the peer replies only to pings.
fn unanswered(asked: Tally, port: u16) -> String {
    if asked.asked > 0 {
        format!("; UDP {port} does not respond: the peer runs Go flannel, or the port is filtered")
    } else {
        String::new()
    }
}

fn rules(seen: &Seen) -> Step {
    let found = match &seen.rules {
        Rules::Clear => {
            let port = seen
                .own
                .tunnel
                .map(|tunnel| {
                    format!(
                        "no rule blocks {}; ",
                        tunnel.port().map_or_else(|| named(tunnel), |port| format!("UDP {port}"))
                    )
                })
                .unwrap_or_default();
            (Outcome::Ok, format!("{port}FORWARD lets {} pass", seen.own.network))
        }
        Rules::Broken(findings) => (
            Outcome::Failed,
            findings.iter().map(|finding| finding.what.as_str()).collect::<Vec<_>>().join("; "),
        ),
        Rules::Unknown(check) => (Outcome::NotAsked, format!("unknown: {}", check.why)),
        Rules::NotLooked => (Outcome::NotAsked, "unknown: no check has run yet".to_owned()),
    };
    step(StepName::Rules, found)
}

fn overlay(seen: &Seen, verdict: Verdict) -> Step {
    use QuestionKind::{LongPing, LongQuestion, Ping, Question};
    let replies = &seen.replies;
    let kinds = [
        (Question, replies.small),
        (LongQuestion, replies.full),
        (Ping, replies.ping),
        (LongPing, replies.full_ping),
    ];
    Step {
        questions: questions(&kinds),
        ..step(StepName::Overlay, (outcome(verdict), through(seen, verdict)))
    }
}

/// Describes the peer's replies over the overlay.
fn through(seen: &Seen, verdict: Verdict) -> String {
    let replies = &seen.replies;
    let (small, full, ping, mtu) = (replies.small, replies.full, replies.ping, replies.mtu);
    let peer = title(&seen.target);
    let asked = if small.asked > 0 { small } else { ping };
    match verdict.state {
        State::WrongNode => {
            let other = replies.answered_by.as_deref().unwrap_or_default();
            format!("{} replies instead of {peer}", types::printable::value(other))
        }
        State::Unknown if !replies.asked_through() => match &replies.silenced {
            Some(why) => format!("not asked: {why}"),
            None if !replies.overlay => format!(
                "not probed: {} has an address to probe once pods run on this node and on {peer}",
                seen.own.backend.unwrap_or("the backend")
            ),
            None => "not probed: flanneld has no probe socket".to_owned(),
        },
        // Without pings, a filtered port looks like a cut path.
        State::Unknown => format!(
            "{} replied; this node cannot ping (CAP_NET_RAW), and UDP {} may be filtered",
            count(asked),
            seen.own.probes
        ),
        State::OneWay | State::OverlayCut | State::CutOff => {
            format!("{} replied, not even to ping{}", count(asked), peer_report(seen))
        }
        State::Well | State::Slow | State::LosesSome | State::SmallMtu if !verdict.ping_only => {
            format!(
                "{} replied, {} of {mtu} bytes{}{}",
                count(small),
                count(full),
                rtt(small.rtt_us),
                peer_report(seen)
            )
        }
        State::Well | State::Slow | State::LosesSome | State::SmallMtu => {
            match ping.answered + replies.full_ping.answered {
                0 => {
                    format!("{peer} refuses UDP {}, so packets get there and back", seen.own.probes)
                }
                _ => {
                    let long = if replies.full_ping.asked > 0 {
                        format!(", {} of {mtu} bytes", count(replies.full_ping))
                    } else {
                        String::new()
                    };
                    format!(
                        "{} pings answered{long}{}{}",
                        count(ping),
                        rtt(ping.rtt_us),
                        unanswered(small, seen.own.probes)
                    )
                }
            }
        }
    }
}

/// When the peer last received this node's probes, according to the peer.
fn peer_report(seen: &Seen) -> String {
    let replies = &seen.replies;
    if replies.small.answered + replies.full.answered + replies.underlay.answered == 0 {
        return String::new();
    }
    let ago = |ms: Option<u64>| match ms.map(Duration::from_millis) {
        None => "never".to_owned(),
        Some(time) if time < Duration::from_millis(50) => "just now".to_owned(),
        Some(time) if time < Duration::from_secs(10) => format!("{:.1} s ago", time.as_secs_f64()),
        Some(time) => format!("{} s ago", time.as_secs()),
    };
    let underlay = replies
        .hears_us_on_underlay
        .map(|ms| format!(", over the underlay {}", ago(Some(ms))))
        .unwrap_or_default();
    format!(
        "; {} reports: received over the overlay {}{underlay}",
        title(&seen.target),
        ago(replies.hears_us)
    )
}

fn pod(seen: &Seen) -> Option<Step> {
    let pod = seen.pod?;
    let (found, tally) = match &seen.pinged {
        None => (
            (Outcome::NotAsked, "not probed: no reply arrived over the overlay".to_owned()),
            Tally::default(),
        ),
        Some(Err(why)) => ((Outcome::NotAsked, format!("not asked: {why}")), Tally::default()),
        Some(Ok(tally)) => (answer(pod, *tally), *tally),
    };
    Some(Step {
        questions: questions(&[(QuestionKind::Ping, tally)]),
        ..step(StepName::Pod, found)
    })
}

/// Missing replies do not prove a fault, because a pod may block ping.
pub(super) fn answer(pod: std::net::IpAddr, tally: Tally) -> (Outcome, String) {
    if tally.answered > 0 {
        (Outcome::Ok, format!("{pod}: {} pings answered{}", count(tally), rtt(tally.rtt_us)))
    } else {
        (
            Outcome::NotAsked,
            format!("{pod} does not reply to ping: the pod does not exist, or it blocks ping"),
        )
    }
}
