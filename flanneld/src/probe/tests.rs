//! Tests traces of working and broken paths to peers and pods: the outcome of each step, the sentence and the
//! commands.

use super::here;
use super::seen::{Local, Own, ProbeReplies, Rules, Seen, Wanted};
use super::{end, report_no_ping, steps};
use doctor::finding::{DaemonState, Unknown};
use doctor::{Finding, Report, Severity};
use netstate::host::Route;
use netstate::host::lookup::{Fate, Hop, Neighbour};
use netstate::kernel::KernelError;
use netstate::names::{LinkName, Mac};
use netstate::object::route::{RouteKind, RouteSpec};
use netstate::object::wireguard_peer::{PublicKey, SeenPeer, Session, WireguardPeer};
use netstate::object::{Key, Value};
use node_api::probe::{Outcome, Step, StepName};
use probing::target::Target;
use probing::view::Tally;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;
use types::reachability::{State, Verdict};
use types::{Encapsulation, Family, Problem};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 3]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Of severity `Broken`.
fn finding(check: &str, what: &str) -> Finding {
    Finding::new(check, Severity::Broken, "", what, "")
}

fn dev(text: &str) -> LinkName {
    LinkName::parse(text).unwrap()
}

fn hop(net: &str, via: Option<&str>, device: &str) -> Hop {
    let route = Route {
        net: net.parse().unwrap(),
        via: via.map(ip),
        index: 7,
        protocol: 4,
        table: 254,
        ..Route::default()
    };
    Hop { route, dev: LinkName::parse(device).unwrap_or_default() }
}

fn hop_with(mut hop: Hop, change: impl FnOnce(&mut Route)) -> Hop {
    change(&mut hop.route);
    hop
}

fn all(rtt_us: u32) -> Tally {
    Tally { asked: 5, answered: 5, refused: 0, rtt_us: Some(rtt_us) }
}

fn none() -> Tally {
    Tally { asked: 5, ..Tally::default() }
}

fn some(answered: u8) -> Tally {
    Tally { asked: 5, answered, refused: 0, rtt_us: Some(500) }
}

/// A working vxlan path to a pod.
fn well() -> Seen {
    let via = ip("10.244.3.0");
    let route = RouteSpec {
        via: Some(via),
        dev: dev("flannel.1"),
        onlink: true,
        kind: RouteKind::Unicast,
        scope: 0,
        protocol: 241,
    };
    let (name, address) = ("node-3".to_owned(), ip("192.0.2.3"));
    let wanted = Wanted::of(&[
        (Key::Fdb(dev("flannel.1"), MAC), Value::Fdb(address)),
        (Key::Neighbor(dev("flannel.1"), via), Value::Neighbor(MAC)),
        (Key::Route("10.244.3.0/24".parse().unwrap(), 0), Value::Route(route)),
    ]);
    Seen {
        target: Target {
            id: Some("3".into()),
            name: Some(name.into()),
            subnet: "10.244.3.0/24".parse().unwrap(),
            address,
            primary: true,
            on_link: true,
        },
        pod: Some(ip("10.244.3.7")),
        to: ip("10.244.3.7"),
        wanted,
        fate: Ok(Fate::Sent(hop_with(
            hop("10.244.3.0/24", Some("10.244.3.0"), "flannel.1"),
            |route| route.protocol = 241,
        ))),
        neighbour: Some(Ok(Neighbour::Known(MAC))),
        fdb: Some(Ok(Some(address))),
        tunnelled: None,
        underlay: Ok(Fate::Sent(hop_with(hop("192.0.2.0/24", None, "eth1"), |route| {
            route.source = Some(ip("192.0.2.1"));
        }))),
        replies: ProbeReplies {
            overlay: true,
            mtu: 1450,
            small: all(520),
            full: all(610),
            underlay: all(390),
            ping: all(300),
            full_ping: all(320),
            underlay_ping: all(200),
            hears_us: Some(200),
            hears_us_on_underlay: Some(200),
            ..ProbeReplies::default()
        },
        rules: Rules::Clear,
        pinged: Some(Ok(Tally { asked: 3, answered: 3, refused: 0, rtt_us: Some(600) })),
        own: Own {
            network: "10.244.0.0/16".parse().unwrap(),
            backend: Some("vxlan"),
            tunnel: Some(Encapsulation::udp(8472)),
            probes: 8473,
            interface: "eth1".to_owned(),
            address: Some(ip("192.0.2.1")),
            overlay: Some(ip("10.244.1.0")),
        },
    }
}

/// No reply arrives over the overlay.
fn cut() -> Seen {
    let mut seen = well();
    (seen.replies.small, seen.replies.full, seen.replies.ping, seen.replies.full_ping) =
        (none(), none(), none(), none());
    (seen.replies.hears_us, seen.pinged) = (Some(183_000), None);
    seen
}

/// A host-gw path has no overlay device and no tunnel.
fn host_gw(overlay: bool) -> Seen {
    let mut seen = well();
    let route = RouteSpec {
        via: Some(ip("192.0.2.3")),
        dev: dev("eth1"),
        onlink: false,
        kind: RouteKind::Unicast,
        scope: 0,
        protocol: 241,
    };
    seen.wanted =
        Wanted { route: Some(("10.244.3.0/24".parse().unwrap(), route)), ..Wanted::default() };
    (seen.neighbour, seen.fdb, seen.own.tunnel) = (None, None, None);
    seen.own.backend = Some("host-gw");
    seen.fate = Ok(Fate::Sent(hop("10.244.3.0/24", Some("192.0.2.3"), "eth1")));
    if !overlay {
        seen.own.overlay = None;
        seen.replies = ProbeReplies {
            mtu: 1500,
            underlay: all(300),
            underlay_ping: all(200),
            ..ProbeReplies::default()
        };
    }
    seen
}

const KEY: PublicKey = PublicKey([7; 32]);

/// `handshake` is the time in seconds since the last one.
fn wireguard_peer(key: PublicKey, endpoint: &str, handshake: Option<u64>) -> SeenPeer {
    SeenPeer {
        key,
        peer: WireguardPeer { endpoint: endpoint.parse().ok(), preshared: None, keepalive: 0 },
        session: Session { handshake: handshake.map(Duration::from_secs), ..Session::default() },
        allowed: Vec::new(),
    }
}

/// The node sends only pings over the underlay.
fn wireguard(handshake: Option<u64>) -> Seen {
    let mut seen = well();
    let (net, network) = ("10.244.3.0/24".parse().unwrap(), "10.244.0.0/16".parse().unwrap());
    seen.wanted = Wanted::of(&[(Key::AllowedIp(dev("flannel-wg"), net), Value::AllowedIp(KEY))])
        .in_network(network);
    (seen.neighbour, seen.fdb, seen.own.tunnel) = (None, None, Some(Encapsulation::udp(51820)));
    seen.tunnelled = Some(Ok(Some(wireguard_peer(KEY, "192.0.2.3:51820", handshake))));
    seen.fate = Ok(Fate::Sent(hop_with(hop("10.244.0.0/16", None, "flannel-wg"), |route| {
        route.protocol = 241;
    })));
    (seen.replies.underlay, seen.replies.hears_us_on_underlay) = (Tally::default(), None);
    if handshake.is_none() {
        let replies = &mut seen.replies;
        (replies.small, replies.full, replies.ping, replies.full_ping) =
            (none(), none(), none(), none());
        (replies.hears_us, seen.pinged) = (None, None);
    }
    seen
}

fn of(steps: &[Step], name: StepName) -> Option<&Step> {
    steps.iter().find(|step| step.name == name)
}

/// One sign per step: `+` for a working step, `x` for a failed step, `-` for an untested step.
fn signs(steps: &[Step]) -> String {
    let sign = |step: &Step| match step.outcome {
        Outcome::Ok => '+',
        Outcome::Failed => 'x',
        Outcome::NotAsked => '-',
    };
    steps.iter().map(sign).collect()
}

/// The name, the facts about a path, the signs of the steps, and parts of the expected texts.
type Case = (&'static str, Seen, &'static str, &'static str, &'static str, &'static str);

/// [`well`], the working path, after `change`.
fn with(change: fn(&mut Seen)) -> Seen {
    let mut seen = well();
    change(&mut seen);
    seen
}

/// [`cut`] after `change`.
fn cut_with(change: fn(&mut Seen)) -> Seen {
    let mut seen = cut();
    change(&mut seen);
    seen
}

fn cases() -> Vec<Case> {
    [
        tunnel_cases(),
        route_cases(),
        entry_cases(),
        loss_cases(),
        working_cases(),
        unanswered_cases(),
        wireguard_cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// No reply arrives over the overlay, or none from the peer at all.
fn tunnel_cases() -> Vec<Case> {
    vec![
        (
            "cut",
            cut(),
            "+++++x-",
            "overlay 183 s ago",
            "UDP port 8472 breaks",
            "node-3 tcpdump -c 5 -ni any udp port 8472 and host 192.0.2.1",
        ),
        (
            "one way",
            cut_with(|seen| seen.replies.hears_us = Some(300)),
            "+++++x-",
            "over the overlay 0.3 s ago",
            "reverse path",
            "here tcpdump -c 5 -ni eth1 udp port 8472 and host 192.0.2.3",
        ),
        (
            "all silent",
            cut_with(|seen| {
                (seen.replies.underlay, seen.replies.underlay_ping, seen.replies.hears_us) =
                    (none(), none(), None);
            }),
            "+++x+x-",
            "0 of 5",
            "nothing replies",
            "here tcpdump -c 5 -ni eth1 host 192.0.2.3",
        ),
        (
            "no route to the node",
            cut_with(|seen| {
                (
                    seen.underlay,
                    seen.replies.underlay,
                    seen.replies.underlay_ping,
                    seen.replies.hears_us,
                ) = (Ok(Fate::NoRoute), none(), none(), None);
            }),
            "+++x+x-",
            "no route leads to 192.0.2.3",
            "do not leave",
            "here ip route get 192.0.2.3",
        ),
    ]
}

/// The kernel does not send packets for the peer's pods over flannel's route.
fn route_cases() -> Vec<Case> {
    vec![
        (
            "another route",
            with(|seen| {
                seen.fate = Ok(Fate::Sent(hop("10.244.3.0/25", Some("192.0.2.254"), "eth0")));
            }),
            "x++++++",
            "via 192.0.2.254 dev eth0",
            "flannel's route",
            "here ip route get 10.244.3.7",
        ),
        (
            "a rule",
            with(|seen| {
                seen.fate = Ok(Fate::Sent(hop_with(hop("10.244.0.0/16", None, "eth0"), |route| {
                    route.table = 100;
                })));
            }),
            "x++++++",
            "table 100",
            "The path breaks here",
            "here flannelctl doctor",
        ),
        (
            "the default route",
            with(|seen| {
                seen.fate = Ok(Fate::Sent(hop_with(
                    hop("0.0.0.0/0", Some("192.0.2.254"), "eth0"),
                    |route| {
                        route.protocol = 16;
                        route.metric = 100;
                    },
                )));
            }),
            "x++++++",
            "proto dhcp metric 100",
            "The path breaks here",
            "here ip route get",
        ),
        (
            "no route",
            with(|seen| seen.fate = Ok(Fate::NoRoute)),
            "x++++++",
            "no route",
            "The path breaks here",
            "here ip route get",
        ),
        (
            "a blackhole",
            with(|seen| {
                seen.fate =
                    Ok(Fate::Dropped(Some(hop_with(hop("10.244.3.0/25", None, ""), |route| {
                        route.kind = RouteKind::Blackhole;
                    }))));
            }),
            "x++++++",
            "blackhole 10.244.3.0/25",
            "The path breaks here",
            "here ip route get",
        ),
    ]
}

/// The kernel's entries for the peer, or the traffic rules, are wrong or unreadable.
fn entry_cases() -> Vec<Case> {
    vec![
        (
            "another neighbour",
            with(|seen| seen.neighbour = Some(Ok(Neighbour::Known(Mac([6; 6]))))),
            "+x+++++",
            "06:06:06:06:06:06",
            "the kernel's entries",
            "here ip neighbour show dev flannel.1",
        ),
        (
            "no neighbour",
            with(|seen| seen.neighbour = Some(Ok(Neighbour::Absent))),
            "+x+++++",
            "10.244.3.0 is unknown",
            "the kernel's entries",
            "here flannelctl doctor",
        ),
        (
            "another FDB entry",
            with(|seen| seen.fdb = Some(Ok(Some(ip("192.0.2.9"))))),
            "++x++++",
            "192.0.2.9",
            "the kernel's entries",
            "here bridge fdb show dev flannel.1",
        ),
        (
            "no FDB entry",
            with(|seen| seen.fdb = Some(Ok(None))),
            "++x++++",
            "is unknown",
            "the kernel's entries",
            "here flannelctl doctor",
        ),
        (
            "rules",
            with(|seen| {
                seen.rules = Rules::Broken(vec![finding(
                    "forward-policy",
                    "the policy of FORWARD in iptables is DROP",
                )]);
            }),
            "++++x++",
            "the policy of FORWARD in iptables is DROP",
            "this node's own rules",
            "here flannelctl doctor",
        ),
        (
            "the kernel is silent",
            with(|seen| {
                let silence = || Problem::new("kernel-silent", "the kernel does not respond");
                let why = || KernelError::new("look up the route to 192.0.2.1", silence());
                (seen.fate, seen.underlay) = (Err(why()), Err(why()));
                (seen.neighbour, seen.fdb) = (Some(Err(why())), Some(Err(why())));
                seen.rules = Rules::NotLooked;
            }),
            "---+-++",
            "",
            "The path works",
            "",
        ),
    ]
}

/// The path loses some packets, or another node replies instead of the peer.
fn loss_cases() -> Vec<Case> {
    vec![
        (
            "large packets",
            with(|seen| (seen.replies.full, seen.replies.full_ping) = (none(), none())),
            "+++++x+",
            "0 of 5 of 1450 bytes",
            "large packets",
            "node-3 flannelctl doctor",
        ),
        (
            "large pings",
            with(|seen| {
                (seen.replies.small, seen.replies.full, seen.replies.full_ping) =
                    (none(), none(), none());
            }),
            "+++++x+",
            "0 of 5 of 1450 bytes",
            "large packets",
            "node-3 flannelctl doctor",
        ),
        (
            "losses",
            with(|seen| seen.replies.small = some(3)),
            "+++++x+",
            "3 of 5 replied",
            "loses packets",
            "node-3 flannelctl doctor",
        ),
        (
            "losses on the underlay",
            with(|seen| seen.replies.underlay = some(2)),
            "+++x+++",
            "2 of 5 replied",
            "network between",
            "here flannelctl doctor",
        ),
        (
            "another node",
            with(|seen| {
                (seen.replies.small, seen.replies.full, seen.replies.answered_by) =
                    (none(), none(), Some("node-9\n".to_owned()));
            }),
            "+++++x+",
            "node-9\\n",
            "another node",
            "node-3 flannelctl doctor",
        ),
        (
            "host-gw, cut",
            {
                let mut seen = host_gw(true);
                (
                    seen.replies.small,
                    seen.replies.full,
                    seen.replies.ping,
                    seen.replies.full_ping,
                    seen.replies.hears_us,
                    seen.pinged,
                ) = (none(), none(), none(), none(), None, None);
                seen
            },
            "+++x-",
            "0 of 5 replied",
            "drops packets",
            "node-3 tcpdump -c 5 -ni any host 10.244.1.0",
        ),
    ]
}

/// The path works for pod packets.
fn working_cases() -> Vec<Case> {
    vec![
        (
            "host-gw",
            host_gw(true),
            "+++++",
            "",
            "The path works: packets reach the pod 10.244.3.7",
            "",
        ),
        (
            "host-gw without a pod here",
            host_gw(false),
            "+++-+",
            "",
            "The path works: packets reach the pod 10.244.3.7",
            "",
        ),
        (
            "host-gw, asked in vain",
            {
                let mut seen = host_gw(false);
                seen.pod = None;
                seen
            },
            "+++-",
            "",
            "no fault",
            "",
        ),
        ("no pod", with(|seen| seen.pod = None), "++++++", "", "including large packets", ""),
        (
            "a silent pod",
            with(|seen| seen.pinged = Some(Ok(none()))),
            "++++++-",
            "",
            "unknown whether 10.244.3.7",
            "",
        ),
        ("one loss", with(|seen| seen.replies.full = some(4)), "+++++++", "", "The path works", ""),
        (
            "Go flannel",
            with(|seen| {
                (seen.replies.small, seen.replies.full, seen.replies.underlay) =
                    (none(), none(), none());
                (seen.target.id, seen.target.name) = (None, None);
            }),
            "+++++++",
            "",
            "packets reach the pod 10.244.3.7 on 192.0.2.3",
            "",
        ),
        (
            "the tunnel alone is let in",
            with(|seen| (seen.replies.underlay, seen.replies.underlay_ping) = (none(), none())),
            "+++-+++",
            "",
            "The path works",
            "",
        ),
    ]
}

/// The path has no fault, but this node cannot send probes or pings, or gets no reply.
fn unanswered_cases() -> Vec<Case> {
    vec![
        (
            "a port that is refused",
            with(|seen| {
                let refused = Tally { refused: 5, ..none() };
                (seen.replies.small, seen.replies.full, seen.replies.underlay) =
                    (refused, refused, refused);
                (seen.replies.ping, seen.replies.full_ping, seen.replies.underlay_ping) =
                    (none(), none(), none());
            }),
            "+++++++",
            "",
            "The path works",
            "",
        ),
        (
            "neither ping nor the port",
            cut_with(|seen| {
                let h = &mut seen.replies;
                (h.underlay, h.ping, h.full_ping, h.underlay_ping, h.hears_us) =
                    (none(), Tally::default(), Tally::default(), Tally::default(), None);
            }),
            "+++-+--",
            "",
            "no fault",
            "",
        ),
        (
            "no probes",
            with(|seen| {
                let h = &mut seen.replies;
                *h = ProbeReplies {
                    overlay: true,
                    silenced: Some(Problem::in_words("this node does not probe")),
                    ping: h.ping,
                    underlay_ping: h.underlay_ping,
                    ..ProbeReplies::default()
                };
            }),
            "+++++++",
            "",
            "The path works",
            "",
        ),
        (
            "no ping either",
            with(|seen| {
                seen.replies = ProbeReplies {
                    overlay: true,
                    silenced: Some(report_no_ping(&ErrorKind::PermissionDenied.into())),
                    ..ProbeReplies::default()
                };
                seen.pinged = Some(Err(report_no_ping(&ErrorKind::PermissionDenied.into())));
            }),
            "+++-+--",
            "",
            "no fault",
            "",
        ),
    ]
}

/// A whole path, and WireGuard paths.
fn wireguard_cases() -> Vec<Case> {
    let with_peer = |peer| Seen { tunnelled: Some(Ok(peer)), ..wireguard(None) };
    let other = wireguard_peer(PublicKey([8; 32]), "", Some(0));
    // The blackhole of the whole network drops the packets.
    let blackhole =
        hop_with(hop("10.244.0.0/16", None, ""), |route| route.kind = RouteKind::Blackhole);
    vec![
        (
            "vxlan",
            well(),
            "+++++++",
            "",
            "The path works: packets reach the pod 10.244.3.7 on node-3",
            "",
        ),
        ("a peer with a handshake", wireguard(Some(31)), "++++++", "", "The path works", ""),
        (
            "no handshake",
            wireguard(None),
            "+x++x-",
            "no handshake yet",
            "completes no handshake",
            "here wg show flannel-wg",
        ),
        (
            "another key",
            with_peer(Some(other)),
            "+x++x-",
            "belongs to CAgI",
            "differ from its lease",
            "",
        ),
        (
            "no peer",
            with_peer(None),
            "+x++x-",
            "allowed IP 10.244.3.0/24",
            "differ from its lease",
            "",
        ),
        (
            "no device",
            Seen { fate: Ok(Fate::Dropped(Some(blackhole))), ..wireguard(None) },
            "xx++x-",
            "needs dev flannel-wg",
            "",
            "",
        ),
    ]
}

#[test]
fn wireguard_path_ends_at_the_underlay_when_the_machine_is_silent() {
    let mut seen = wireguard(None);
    seen.replies.underlay_ping = none();
    let judged = seen.replies.judged();
    let end = end::end(&seen, &judged, &steps::steps(&seen, &judged));
    assert_eq!(end.at, Some(StepName::Underlay));
}

#[test]
fn path_ends_at_the_step_of_the_fault() {
    for (what, seen, wanted, text, sentence, command) in cases() {
        let steps = steps::steps(&seen, &seen.replies.judged());
        let end = end::end(&seen, &seen.replies.judged(), &steps);
        assert_eq!(signs(&steps), wanted, "{what}: {steps:#?}");
        assert!(end.sentence.contains(sentence), "{what}: {}", end.sentence);
        let commands: Vec<String> = end
            .next
            .iter()
            .map(|next| format!("{} {}", next.on.as_deref().unwrap_or("here"), next.command))
            .collect();
        match wanted.find('x') {
            Some(place) => {
                assert_eq!(end.at, Some(steps[place].name), "{what}");
                assert!(steps[place].text.contains(text), "{what}: {}", steps[place].text);
                assert!(
                    commands.iter().any(|line| line.starts_with(command)),
                    "{what}: {commands:#?}"
                );
            }
            None => assert!(end.at.is_none() && commands.is_empty(), "{what}: {end:?}"),
        }
        let whole = format!("{steps:?}{end:?}");
        assert!(
            !whole.contains('\u{1b}')
                && steps.iter().all(|step| !step.text.contains('\n') && !step.text.is_empty()),
            "{what}: {whole}"
        );
    }
}

#[test]
fn verdict_of_a_trace_is_that_of_the_prober() {
    let verdicts: BTreeMap<&str, Verdict> =
        cases().into_iter().map(|(what, seen, ..)| (what, seen.replies.judged().whole)).collect();
    for (what, verdict) in [
        ("one loss", Verdict::of(State::Well)),
        ("losses", Verdict::of(State::LosesSome)),
        ("large packets", Verdict::of(State::SmallMtu)),
        ("large pings", Verdict::by_ping(State::SmallMtu)),
        ("one way", Verdict::of(State::OneWay)),
        ("cut", Verdict::of(State::OverlayCut)),
        ("all silent", Verdict::of(State::CutOff)),
        ("another node", Verdict::of(State::WrongNode)),
        ("Go flannel", Verdict::by_ping(State::Well)),
        ("no probes", Verdict::by_ping(State::Well)),
        ("host-gw without a pod here", Verdict::of(State::Well)),
    ] {
        assert_eq!(verdicts[what], verdict, "{what}");
    }
}

#[test]
fn route_step_fails_when_no_route_is_wanted() {
    let mut seen = well();
    seen.wanted = Wanted::default();
    let steps = steps::steps(&seen, &seen.replies.judged());
    assert!(
        steps[0].outcome == Outcome::Failed
            && steps[0].text.contains("this node needs no route to 10.244.3.0/24"),
        "{steps:#?}"
    );
    assert!(
        of(&steps, StepName::Neighbour).is_none() && of(&steps, StepName::Fdb).is_none(),
        "{steps:#?}"
    );
}

fn report(findings: &[(&str, Option<Family>, Severity)], unknown: &[&str]) -> Report {
    Report {
        schema: String::new(),
        node: String::new(),
        at: jiff::Timestamp::UNIX_EPOCH,
        daemon: DaemonState::Running,
        checks: 0,
        findings: findings
            .iter()
            .map(|(check, family, severity)| Finding {
                family: *family,
                severity: *severity,
                ..finding(check, check)
            })
            .collect(),
        unknown: unknown
            .iter()
            .map(|check| Unknown { check: (*check).to_owned(), why: "no nft".to_owned() })
            .collect(),
    }
}

/// The checks whose findings break the rules.
fn breakers(rules: Rules) -> Vec<String> {
    match rules {
        Rules::Clear => Vec::new(),
        Rules::Broken(findings) => findings.into_iter().map(|found| found.check).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rules_are_broken_by_findings_of_their_family() {
    use Severity::{Broken, Risk};
    let (v4, v6) = (Some(Family::V4), Some(Family::V6));
    let both = [("ipv6-forwarding", None, Broken), ("ufw", v6, Broken)];
    for (findings, by_v4, by_v6) in [
        (&[][..], &[][..], &[][..]),
        (&[("mtu", None, Broken), ("ufw", v4, Risk)], &[], &[]),
        (&[("ufw", v4, Broken)], &["ufw"], &[]),
        (&[("ufw", v6, Broken)], &[], &["ufw"]),
        (&[("forward-policy", v4, Broken)], &["forward-policy"], &[]),
        (&[("forward-reject", v6, Broken)], &[], &["forward-reject"]),
        (&[("forward-policy", v6, Broken)], &[], &["forward-policy"]),
        (&[("firewalld", None, Broken)], &["firewalld"], &["firewalld"]),
        (&[("ip-forward", None, Broken)], &["ip-forward"], &[]),
        (&both, &[], &["ipv6-forwarding", "ufw"]),
    ] {
        let report = report(findings, &[]);
        let of = |family| breakers(Rules::of(Some(&report), family));
        assert_eq!(of(Family::V4), by_v4, "{findings:?}");
        assert_eq!(of(Family::V6), by_v6, "{findings:?}");
    }
}

#[test]
fn rules_are_unknown_when_a_check_of_them_failed() {
    let of = |report: &Report| Rules::of(Some(report), Family::V4);
    let unknown = of(&report(&[], &["ufw"]));
    assert!(matches!(unknown, Rules::Unknown(unknown) if unknown.check == "ufw"));
    let broken = report(&[("ip-forward", None, Severity::Broken)], &["ufw"]);
    assert_eq!(breakers(of(&broken)), ["ip-forward"]);
    assert_eq!(of(&report(&[], &["mtu"])), Rules::Clear);
    assert_eq!(Rules::of(None, Family::V4), Rules::NotLooked);
}

/// For a pod of this node: the name, the facts, the signs of the steps, and parts of the expected texts.
type LocalCase = (&'static str, Local, &'static str, &'static str, &'static str);

fn local_cases() -> Vec<LocalCase> {
    let local = |fate, neighbour, pinged| Local {
        pod: ip("10.244.1.7"),
        subnet: "10.244.1.0/24".parse().unwrap(),
        fate: Ok(fate),
        neighbour: Ok(neighbour),
        pinged: Some(Ok(pinged)),
    };
    let bridge = || {
        Fate::Sent(hop_with(hop("10.244.1.0/24", None, "cni0"), |route| {
            route.source = Some(ip("10.244.1.1"));
        }))
    };
    let own = || {
        Fate::Sent(hop_with(hop("10.244.1.7/32", None, "lo"), |route| {
            route.kind = RouteKind::Other(2);
        }))
    };
    let away = || Fate::Sent(hop("0.0.0.0/0", Some("192.0.2.254"), "eth0"));
    vec![
        (
            "well",
            local(bridge(), Neighbour::Known(MAC), all(50)),
            "+++",
            "10.244.1.0/24 dev cni0 from 10.244.1.1",
            "on this node",
        ),
        (
            "a silent pod",
            local(bridge(), Neighbour::Known(MAC), none()),
            "++-",
            "dev cni0",
            "does not reply",
        ),
        ("no pod", local(bridge(), Neighbour::Silent, none()), "+x-", "dev cni0", "does not exist"),
        ("nobody asked", local(bridge(), Neighbour::Absent, none()), "+--", "dev cni0", "no fault"),
        (
            "no bridge",
            local(away(), Neighbour::Absent, none()),
            "x",
            "default via 192.0.2.254",
            "no bridge",
        ),
        ("no route", local(Fate::NoRoute, Neighbour::Absent, none()), "x", "no route", "no bridge"),
        ("an own address", local(own(), Neighbour::Absent, none()), "+", "itself", "own address"),
    ]
}

#[test]
fn local_pod_is_probed_over_its_bridge() {
    for (what, local, wanted, text, sentence) in local_cases() {
        let steps = here::steps(&local);
        let end = here::end(&local, &steps);
        assert_eq!(signs(&steps), wanted, "{what}: {steps:#?}");
        assert!(steps[0].text.contains(text), "{what}: {steps:#?}");
        assert!(end.sentence.contains(sentence), "{what}: {}", end.sentence);
        assert_eq!(end.at.is_some(), wanted.contains('x'), "{what}");
        assert_eq!(end.next.is_empty(), end.at.is_none(), "{what}: {:?}", end.next);
    }
}
