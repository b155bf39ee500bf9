//! Faults for the tests: changes to a healthy node's facts, each with the check that finds it.

use super::healthy::{address, healthy, interface, peer};
use crate::fact::Fact;
use crate::facts::Facts;
use crate::facts::daemon::{Choice, Drift, Drifting, ExitReport, Launch};
use crate::facts::host::{
    Fill, Foreign, ForeignObject, Interface, LookupPurpose, Module, Neighbour, Port, Route,
    RouteError, RouteLookup, Sysctls,
};
use crate::facts::kubernetes::Kubernetes;
use crate::facts::leases::{Own, RefusedLease};
use crate::facts::mesh::{CommonOutage, Path, State};
use crate::facts::pods::{CniFile, Ipam, Kept, LostPackets, PodPath};
use crate::facts::store::NextConfig;
use crate::facts::wireguard::{Holder, Silent, Wireguard};
use crate::facts::{Network, host};
use crate::firewalls::Firewalld;
use crate::firewalls::{Barrier, Block, Carried, Drop, Firewalls, Table};
use jiff::Timestamp;
use netstate::names::Mac;
use std::collections::BTreeMap;
use traffic_rules::programs::Variant;
use traffic_rules::reader::model::Program;
use traffic_rules::reader::{Hook, Stop};
use types::problem::{ConfigPlace, PortPurpose, StoreCause};
use types::{Access, Detail, Dual, Encapsulation, Problem};

/// A node with the faults of `check` in [`CASES`].
pub(super) fn spoiled(check: &str) -> Facts {
    let mut facts = healthy();
    for (_, spoil) in CASES.iter().filter(|(id, _)| *id == check) {
        spoil(&mut facts);
    }
    facts
}

/// A node with each prepared fault, and the check that finds it.
pub(super) fn faults() -> impl Iterator<Item = (&'static str, Facts)> {
    CASES.iter().map(|(check, spoil)| {
        let mut facts = healthy();
        spoil(&mut facts);
        (*check, facts)
    })
}

/// A daemon in a pod of `namespace`.
pub(super) fn in_cluster(namespace: &str) -> Launch {
    Launch::Kubernetes { namespace: namespace.to_owned(), assumed: false }
}

/// Each prepared fault, under systemd and in a cluster.
pub(super) fn everywhere() -> impl Iterator<Item = (&'static str, Facts)> {
    [Launch::Systemd, in_cluster("kube-flannel")].into_iter().flat_map(|launch| {
        CASES.iter().map(move |(check, spoil)| {
            let mut facts = healthy();
            if launch != Launch::Systemd {
                facts.store.access = Access::Kubernetes;
            }
            facts.daemon.launch = launch.clone();
            spoil(&mut facts);
            (*check, facts)
        })
    })
}

pub(super) fn port(number: u16, udp: bool, purpose: PortPurpose) -> Port {
    Port { number, udp, purpose, owner: None }
}

/// Adds a fault to the facts of a healthy node.
pub(super) type Spoil = fn(&mut Facts);

pub(super) fn inside<T>(fact: &mut Fact<T>) -> &mut T {
    match fact {
        Fact::Known(value) => value,
        _ => panic!("a healthy node's fact is known"),
    }
}

fn sysctls(facts: &mut Facts) -> &mut Sysctls {
    inside(&mut facts.host.sysctls)
}

fn network(facts: &mut Facts) -> &mut Network {
    inside(&mut facts.network)
}

fn interfaces(facts: &mut Facts) -> &mut Vec<Interface> {
    inside(&mut facts.host.interfaces)
}

pub(super) fn named<'a>(facts: &'a mut Facts, name: &str) -> &'a mut Interface {
    interfaces(facts).iter_mut().find(|interface| interface.name == name).unwrap()
}

pub(super) fn paths(facts: &mut Facts) -> &mut Vec<Path> {
    &mut inside(&mut facts.mesh).paths
}

pub(super) fn problem(detail: Detail, text: &str) -> Problem {
    Problem { code: "x".into(), text: text.to_owned(), detail, parts: Vec::new() }
}

pub(super) fn of_store(cause: StoreCause, text: &str) -> Problem {
    problem(Detail::Store { cause, status: None, server: None }, text)
}

/// The operator named `eth0` with `flag`.
pub(super) fn named_by(flag: &str) -> Choice {
    let why = format!("named by {flag}");
    Choice {
        interface: "eth0".to_owned(),
        addresses: Vec::new(),
        why,
        flag: Some(flag.to_owned()),
        named: true,
    }
}

pub(super) fn exit_report(detail: Detail, text: &str) -> Fact<ExitReport> {
    let problem = problem(detail, text);
    Fact::Known(ExitReport {
        at: Timestamp::UNIX_EPOCH,
        code: 1,
        text: problem.to_string(),
        version: String::new(),
        problem: Some(problem),
        choice: None,
    })
}

pub(super) fn reason(facts: &mut Facts, condition: &str, detail: Detail, text: &str) {
    inside(&mut facts.daemon.reasons).insert(condition.to_owned(), problem(detail, text));
}

fn stopped(facts: &mut Facts, detail: Detail, text: &str) {
    facts.daemon.running = Fact::Known(false);
    facts.daemon.exit_report = exit_report(detail, text);
}

/// Also puts another interface on a host-only network.
pub(super) fn behind_nat(facts: &mut Facts) {
    named(facts, "eth0").addresses = vec![address("10.0.2.15/24")];
    inside(&mut facts.kubernetes).internal.clear();
    let routes: &mut Vec<Route> = inside(&mut facts.host.routes);
    routes[0].via = Some("10.0.2.2".parse().unwrap());
    inside(&mut facts.host.lookups)[0].by =
        Ok(Route { index: 5, source: Some("198.51.100.1".parse().unwrap()), ..Route::default() });
}

pub(super) fn all(facts: &mut Facts, state: &State, underlay: bool) {
    for path in paths(facts) {
        (path.verdict.state, path.underlay) = (*state, underlay);
    }
}

pub(super) fn one(facts: &mut Facts, state: State, underlay: bool) {
    let path = &mut paths(facts)[0];
    (path.verdict.state, path.underlay) = (state, underlay);
}

fn another_vni(facts: &mut Facts) {
    for peer in inside(&mut facts.leases.peers) {
        peer.vni = Some(5);
    }
}

fn common(state: State, asked: usize) -> CommonOutage {
    CommonOutage { state, asked, failed: asked, peers: 99 }
}

pub(super) fn table(command: &str) -> Table {
    Table { jump: true, ..Table::empty(&"10.244.0.0/16".parse().unwrap(), command) }
}

/// A route lookup for a silent peer fails.
pub(super) fn unrouted(facts: &mut Facts) {
    inside(&mut facts.host.lookups).push(RouteLookup {
        to: "192.0.2.2".parse().unwrap(),
        whose: "node-2".to_owned(),
        kind: LookupPurpose::SilentPeer,
        by: Err(RouteError::Refused { errno: 22, words: String::new() }),
    });
}

/// The policy of the chain if `rule` is `None`.
pub(super) fn block(chain: &str, rule: Option<&str>) -> Block {
    let stop = Stop {
        program: Program::Iptables(Variant::Nft),
        layer: "ip",
        table: "filter".to_owned(),
        base: chain.to_owned(),
        number: rule.map(|_| 1),
        handle: None,
        chain: chain.to_owned(),
        place: rule.map(|_| 1),
        rule: rule.unwrap_or_default().to_owned(),
        packets: None,
        named: false,
    };
    Block { stop, doubt: false }
}

/// A rule of the iptables table mangle.
pub(super) fn dropped(carried: Carried) -> Drop {
    let rule = "-A PREROUTING -s 10.244.0.0/16 -j DROP";
    let Block { stop, .. } = block("PREROUTING", Some(rule));
    Drop {
        carried,
        family: types::Family::V4,
        stop: Stop { table: "mangle".to_owned(), packets: Some(7), ..stop },
        hook: Hook::Prerouting,
        command: Some("iptables".to_owned()),
        before_policies: false,
    }
}

fn firewall(facts: &mut Facts, change: impl Fn(&mut Firewalls)) {
    change(inside(&mut facts.host.firewalls));
}

fn full(facts: &mut Facts) {
    let kept = |number: u8| Kept {
        address: format!("10.244.1.{number}").parse().unwrap(),
        file: format!("/var/lib/cni/networks/cbr0/10.244.1.{number}").into(),
        container: format!("c{number}"),
        gone: Some(number > 4),
    };
    let kept = (2..=254).map(kept).collect();
    facts.pods.ipam = Fact::Known(vec![Ipam {
        folder: "/var/lib/cni/networks/cbr0".into(),
        kept,
        running: vec!["/run/containers".into()],
        ports: Some(3),
    }]);
}

/// It completes no handshake.
pub(super) fn silent(name: &str, number: u8) -> Silent {
    let peer = peer(name, number);
    Silent {
        key: "8zW86T16o0QhEmGDr8pSAZ++CK9d74PZLGvnUE5aHSM=".to_owned(),
        device: "flannel-wg".to_owned(),
        port: Some(51820),
        endpoint: format!("192.0.2.{number}:51821").parse().ok(),
        handshake: None,
        silence: 40,
        initiates: false,
        holder: Some(Holder {
            name: peer.name.to_string(),
            subnets: peer.subnets,
            public: peer.addresses().collect(),
        }),
    }
}

pub(super) fn tunnels(facts: &mut Facts, silent: Vec<Silent>) {
    network(facts).backend = backends::profile("wireguard");
    (network(facts).encapsulation, network(facts).vni) = (Some(Encapsulation::udp(51820)), None);
    let device = named(facts, "flannel.1");
    (device.name, device.kind, device.vxlan) =
        ("flannel-wg".to_owned(), "wireguard".to_owned(), None);
    facts.wireguard = Fact::Known(Wireguard { peers: 40, silent, has_tool: true });
}

/// Each with the only check that then has an unexplained finding on this node.
pub(super) const CASES: &[(&str, Spoil)] = &[
    ("wrong-interface", |facts| {
        behind_nat(facts);
        all(facts, &State::CutOff, false);
    }),
    ("nat-interface", |facts| {
        behind_nat(facts);
        inside(&mut facts.mesh).paths.clear();
        inside(&mut facts.leases.peers).clear();
    }),
    ("duplicate-address", |facts| {
        let address = Some(Dual::V4([192, 0, 2, 2].into()));
        inside(&mut facts.leases.peers).iter_mut().for_each(|peer| peer.public = address);
    }),
    ("duplicate-address", |facts| {
        let taken = Detail::AddressInUse {
            address: Some("192.0.2.1".parse().unwrap()),
            holder: "node n2".to_owned(),
        };
        stopped(facts, taken, "the address is taken");
    }),
    ("clone", |facts| {
        stopped(
            facts,
            Detail::IdentityInUse { holder: "n2".to_owned() },
            "another machine is this one",
        );
    }),
    ("pods-dropped", |facts| {
        firewall(facts, |firewalls| {
            firewalls.drops = vec![dropped(Carried::Pods)];
        });
    }),
    ("pod-bridge", |facts| named(facts, "cni0").up = false),
    ("pod-bridge", |facts| {
        named(facts, "cni0").addresses.retain(|address| address.net.addr().is_ipv6());
    }),
    ("pod-route", |facts| {
        inside(&mut facts.host.pod_routes)[0].by =
            Err(RouteError::Refused { errno: 22, words: String::new() });
    }),
    ("pod-route", |facts| {
        inside(&mut facts.host.pod_routes)[1].by =
            Ok(Route { index: 2, source: None, ..Route::default() });
    }),
    ("ip-forward", |facts| {
        sysctls(facts).closed = vec!["cni0".to_owned()];
    }),
    ("encap-blocked", |facts| {
        all(facts, &State::OneWay, true);
        firewall(facts, |firewalls| {
            firewalls.drops = vec![dropped(Carried::TunnelIn)];
        });
    }),
    ("peer-unrouted", |facts| {
        one(facts, State::CutOff, false);
        unrouted(facts);
    }),
    ("public-ip", |facts| {
        all(facts, &State::OneWay, true);
        inside(&mut facts.leases.own).published = vec!["192.0.2.99".parse().unwrap()];
    }),
    ("address-conflict", |facts| {
        one(facts, State::OneWay, true);
        facts.host.rival = Fact::of(Mac::parse("02:00:00:00:00:77"));
    }),
    ("duplicate-mac", |facts| {
        one(facts, State::CutOff, false);
        let mac = named(facts, "eth0").mac;
        facts.host.underlay_neighbours =
            Fact::Known(vec![Neighbour { address: "192.0.2.2".parse().unwrap(), mac }]);
    }),
    ("no-interface", |facts| {
        facts.daemon.choice = Fact::Absent;
        reason(facts, "underlay", Detail::None, "no interface eth7");
    }),
    ("node-internal-ip", |facts| {
        behind_nat(facts);
        inside(&mut facts.daemon.choice).interface = "eth1".to_owned();
        inside(&mut facts.kubernetes).internal = vec!["10.0.2.15".parse().unwrap()];
    }),
    ("not-running", |facts| {
        stopped(facts, Detail::None, "the network is another one now");
    }),
    ("hangs", |facts| {
        inside(&mut facts.daemon.silent).push("no heartbeat from kernel for 80 s".to_owned());
    }),
    ("port-taken", |facts| {
        inside(&mut facts.host.ports).push(port(8472, true, PortPurpose::Tunnel));
        all(facts, &State::OverlayCut, true);
    }),
    ("port-taken", |facts| {
        inside(&mut facts.host.ports).push(Port {
            number: 8473,
            udp: true,
            purpose: PortPurpose::Probes,
            owner: Some("socat (pid 7)".to_owned()),
        });
    }),
    ("store-unreachable", |facts| {
        facts.store.trouble = Fact::Known(of_store(StoreCause::Refused, "Connection refused"));
    }),
    ("config", |facts| {
        facts.store.config = Fact::Known(problem(
            Detail::ConfigInvalid { place: None },
            "SubnetLen must be less than /31",
        ));
    }),
    ("next-config", |facts| {
        facts.store.next_config = Fact::Known(NextConfig::Other(vec!["Backend".to_owned()]));
    }),
    ("next-config", |facts| {
        facts.store.next_config = Fact::Known(NextConfig::Unusable {
            problem: problem(
                Detail::ConfigMissing {
                    place: ConfigPlace::Key("/n/config".to_owned()),
                    example: "{}".to_owned(),
                },
                "there is none",
            ),
            in_use: Some("{\"Network\":\"10.5.0.0/16\"}".to_owned()),
        });
    }),
    ("lease", |facts| {
        facts.leases.own = Fact::Known(Own {
            ends_in: Some(60),
            within_margin: true,
            trouble: Some(of_store(StoreCause::Silent, "no answer")),
            ..Own::default()
        });
    }),
    ("lease", |facts| {
        facts.leases.own = Fact::Absent;
        reason(facts, "lease", Detail::OutOfSubnets, "out of subnets: every subnet is taken");
    }),
    ("lease", |facts| {
        inside(&mut facts.leases.own).trouble =
            Some(problem(Detail::None, "somebody overwrote it"));
    }),
    ("lease-refused", |facts| {
        facts.leases.refused = Fact::Known(vec![RefusedLease {
            lease: "10.244.9.0/24".to_owned(),
            reason: "overlaps-older".to_owned(),
            text: "10.244.9.0/24 overlaps".to_owned(),
            address: None,
        }]);
    }),
    ("silent-node", |facts| {
        inside(&mut facts.leases.peers)[0] = {
            let mut peer = peer("node-2", 2);
            peer.subnets = types::Subnets::V4("10.244.2.0/24".parse().unwrap());
            peer.silent = Some(900);
            peer
        };
        one(facts, State::CutOff, false);
    }),
    ("api-by-service", |facts| {
        inside(&mut facts.kubernetes).by_service_unanswered = true;
    }),
    ("rbac", |facts| {
        inside(&mut facts.kubernetes).refusal =
            Some(of_store(StoreCause::Role, "403 Forbidden: cannot patch nodes/status"));
    }),
    ("pod-cidr", |facts| {
        inside(&mut facts.kubernetes).pod_cidrs = Some(Vec::new());
    }),
    ("daemon-set", |facts| {
        inside(&mut facts.daemon.pods)[0].owner = None;
    }),
    ("daemon-set", |facts| {
        let mut other = inside(&mut facts.daemon.pods)[0].clone();
        (other.name, other.owner) = ("flannel-x".to_owned(), Some("DaemonSet/flannel".to_owned()));
        inside(&mut facts.daemon.pods).push(other);
    }),
    ("daemon-set", |facts| {
        inside(&mut facts.daemon.pods)[0].labels.remove("k8s-app");
    }),
    ("ip-forward", |facts| sysctls(facts).ip_forward = Some(0)),
    ("ipv6-forwarding", |facts| {
        sysctls(facts).v6_forwarding = Some(0);
    }),
    ("br-netfilter", |facts| {
        *sysctls(facts) = Sysctls {
            br_netfilter: false,
            call_iptables: None,
            call_ip6tables: None,
            module: Some("not permitted".to_owned()),
            ..sysctls(facts).clone()
        };
    }),
    ("bridge-nf-call", |facts| {
        (sysctls(facts).call_iptables, sysctls(facts).call_ip6tables) = (Some(0), Some(0));
    }),
    ("rp-filter", |facts| {
        one(facts, State::OneWay, true);
        sysctls(facts).astray = paths(facts).iter().map(|path| path.address).collect();
    }),
    ("forward-policy", |facts| {
        network(facts).nftables = true;
        firewall(facts, |seen| {
            seen.tables.push(Table {
                forward: vec![block("FORWARD", None)],
                jump: false,
                ..table("iptables")
            });
        });
    }),
    ("forward-policy", |facts| {
        firewall(facts, |seen| {
            seen.barriers.push(Barrier {
                family: "inet".to_owned(),
                table: "wall".to_owned(),
                chain: "gate".to_owned(),
                network: "10.244.0.0/16".parse().unwrap(),
                by_rule: false,
                handle: None,
                doubt: false,
            });
        });
    }),
    ("forward-reject", |facts| {
        firewall(facts, |seen| {
            seen.tables.push(Table {
                forward: vec![block("FORWARD", Some("-A FORWARD -j REJECT"))],
                ..table("iptables")
            });
        });
    }),
    ("ufw", |facts| {
        all(facts, &State::OneWay, true);
        firewall(facts, |seen| {
            seen.tables.push(Table {
                ufw: true,
                input: Some(block("INPUT", None)),
                ..table("iptables")
            });
        });
    }),
    ("firewalld", |facts| {
        all(facts, &State::OneWay, true);
        firewall(facts, |seen| seen.firewalld = Some(Firewalld::default()));
    }),
    ("module", |facts| {
        inside(&mut facts.host.modules)
            .push(Module { name: "vxlan".to_owned(), why: "not found".to_owned() });
    }),
    ("drift-war", |facts| {
        inside(&mut facts.daemon.drift).push(Drift {
            object: "route to 10.244.2.0/24".to_owned(),
            kind: Drifting::Route,
            times: 4,
            by: vec!["NetworkManager".to_owned()],
        });
    }),
    ("foreign-route", |facts| {
        let route = Route {
            via: Some("192.0.2.77".parse().unwrap()),
            index: 2,
            protocol: 4,
            net: "10.244.2.0/24".parse().unwrap(),
            ..Route::default()
        };
        inside(&mut facts.host.routes)[1] = route;
    }),
    ("foreign-device", |facts| {
        named(facts, "flannel.1").kind = "bridge".to_owned();
        inside(&mut facts.host.routes).clear();
    }),
    ("foreign-device", |facts| {
        named(facts, "flannel.1").name = "vx1".to_owned();
        inside(&mut facts.host.routes).clear();
    }),
    ("rules", |facts| {
        reason(
            facts,
            "rules",
            Detail::RulesLocked { file: "/run/xtables.lock".into() },
            "iptables timed out after 5 s waiting for /run/xtables.lock",
        );
    }),
    ("network-overlap", |facts| {
        interfaces(facts).push(interface(9, "eth9", &["10.244.2.7/24"]));
    }),
    ("network-overlap", |facts| {
        interfaces(facts).push(interface(9, "eth9", &["10.244.77.7/24"]));
    }),
    ("network-overlap", |facts| {
        interfaces(facts).push(interface(9, "eth9", &["10.244.1.50/24"]));
    }),
    ("network-overlap", |facts| {
        let to = "10.244.2.128/25".parse().unwrap();
        inside(&mut facts.host.routes).push(Route {
            via: Some("192.0.2.1".parse().unwrap()),
            index: 2,
            protocol: 4,
            net: to,
            ..Route::default()
        });
    }),
    ("network-overlap", |facts| {
        inside(&mut facts.kubernetes).service = Some("10.244.200.1".parse().unwrap());
    }),
    ("network-overlap", |facts| {
        inside(&mut facts.host.name_servers).push("10.244.99.53".parse().unwrap());
    }),
    ("tunnel-loop", |facts| {
        let (to, whose) = ("10.244.200.2".parse().unwrap(), "node-2".to_owned());
        inside(&mut facts.host.lookups).push(RouteLookup {
            to,
            whose,
            kind: LookupPurpose::Peer,
            by: Ok(Route { index: 3, source: None, ..Route::default() }),
        });
    }),
    ("stale-bridge", |facts| {
        named(facts, "cni0").addresses.push(address("10.244.9.1/24"));
    }),
    ("stale-bridge", |facts| {
        named(facts, "docker0").addresses.push(address("10.244.9.1/24"));
        facts.pods.docker = Fact::Known("10.244.9.1/24".parse().unwrap());
    }),
    ("mtu", |facts| {
        one(facts, State::SmallMtu, true);
        paths(facts)[0].carries = Some(1350);
    }),
    ("bridge-mtu", |facts| named(facts, "veth1").mtu = 1500),
    ("encap-blocked", |facts| {
        all(facts, &State::OverlayCut, true);
    }),
    ("encap-blocked", |facts| all(facts, &State::OneWay, true)),
    ("encap-blocked", |facts| {
        let mut refusal = block("INPUT", Some("-A INPUT -p udp -m udp --dport 8472 -j DROP"));
        refusal.stop.number = Some(3);
        firewall(facts, |seen| {
            seen.tables.push(Table { input: Some(refusal.clone()), ..table("iptables") });
        });
        all(facts, &State::OneWay, true);
    }),
    ("encap-blocked", |facts| {
        another_vni(facts);
        all(facts, &State::OverlayCut, true);
    }),
    ("encap-blocked", |facts| {
        network(facts).encapsulation = Some(Encapsulation::Ipip);
        all(facts, &State::OverlayCut, true);
    }),
    ("wireguard-silent", |facts| {
        tunnels(facts, vec![silent("node-2", 2)]);
        one(facts, State::OverlayCut, true);
    }),
    ("wireguard-silent", |facts| {
        tunnels(facts, vec![Silent { holder: None, endpoint: None, ..silent("", 9) }]);
    }),
    ("encap-blocked", |facts| {
        // One peer responds in spite of a fault that the others have in common.
        one(facts, State::OneWay, true);
        inside(&mut facts.mesh).faults.push(common(State::OneWay, 13));
    }),
    ("isolated", |facts| {
        all(facts, &State::CutOff, false);
        inside(&mut facts.mesh).faults.push(common(State::CutOff, 13));
    }),
    ("peer-cut", |facts| one(facts, State::CutOff, false)),
    ("overlay-cut", |facts| one(facts, State::OverlayCut, true)),
    ("overlay-cut", |facts| {
        another_vni(facts);
        one(facts, State::OverlayCut, true);
    }),
    ("one-way", |facts| one(facts, State::OneWay, true)),
    ("one-way", |facts| {
        another_vni(facts);
        one(facts, State::OneWay, true);
    }),
    ("wrong-node", |facts| {
        one(facts, State::WrongNode, true);
        paths(facts)[0].answered_by = Some("node-9".to_owned());
    }),
    ("lossy", |facts| {
        one(facts, State::LosesSome, true);
        paths(facts)[0].losses = (5, 37);
        paths(facts)[0].others = Some((3, 0));
    }),
    ("lossy", |facts| {
        inside(&mut facts.mesh).lost_everywhere = Some((24, 1200));
    }),
    ("slow", |facts| one(facts, State::Slow, true)),
    ("probe-filtered", |facts| {
        paths(facts)[0].verdict.ping_only = true;
    }),
    ("clock", |facts| {
        paths(facts).iter_mut().for_each(|path| path.clock_ahead = Some(-9000));
    }),
    ("foreign-cni", |facts| {
        inside(&mut facts.host.foreign).push(Foreign {
            program: "Calico".to_owned(),
            object: ForeignObject::Configuration("/etc/cni/net.d/10-calico.conflist".into()),
        });
    }),
    ("subnet-env", |facts| facts.pods.env = Fact::Absent),
    ("subnet-env", |facts| {
        inside(&mut facts.pods.env).subnets =
            Some(super::healthy::subnets("10.244.8.0/24", "fd10:244:0:8::/64"));
    }),
    ("subnet-env", |facts| {
        inside(&mut facts.pods.env).obstacle = Some("it is a directory".to_owned());
    }),
    ("subnet-env", |facts| {
        reason(facts, "subnet.env", Detail::None, "no space left on device");
    }),
    ("cni-config", |facts| {
        inside(&mut facts.pods.cni).files.clear();
    }),
    ("cni-config", |facts| {
        inside(&mut facts.pods.cni)
            .files
            .insert(0, CniFile { name: "05-other.conf".to_owned(), flannel: Some(false) });
    }),
    ("cni-config", |facts| {
        reason(facts, "cni-conf", Detail::None, "read-only file system");
    }),
    ("ipam-full", full),
    ("checksum", |facts| {
        facts.host.checksums = Fact::Known(host::Checksums { udp: 7, tcp: 0 });
        paths(facts)[0].verdict.ping_only = true;
    }),
    ("other-store", |facts| {
        inside(&mut facts.mesh).strangers = vec!["192.0.2.77".parse().unwrap()];
    }),
    ("conntrack-full", |facts| {
        facts.host.conntrack = Fact::Known(Fill { used: 65_000, limit: 65_536 });
    }),
    ("pods-lost", |facts| {
        pod_path(facts).lost = vec![("node-2".to_owned(), LostPackets::Everything)];
    }),
    ("pods-lost", |facts| {
        let path = pod_path(facts);
        path.lost = vec![("node-2".to_owned(), LostPackets::Calls)];
        path.others_pass = false;
    }),
    ("pods-lost", |facts| {
        pod_path(facts).lost = vec![("node-2".to_owned(), LostPackets::Answers)];
    }),
    ("pods-masqueraded", |facts| {
        pod_path(facts).lost = vec![("node-2".to_owned(), LostPackets::Address)];
    }),
    ("probe-address", |facts| {
        pod_path(facts).taken_by = Some("02:00:00:00:00:09".to_owned());
    }),
];

fn pod_path(facts: &mut Facts) -> &mut PodPath {
    &mut inside(&mut facts.pods.paths)[0]
}

/// Gives the name to every object whose name comes from an untrusted source.
pub(super) fn rename(facts: &mut Facts, name: &str) {
    let text = || name.to_owned();
    if let Fact::Known(interfaces) = &mut facts.host.interfaces {
        interfaces
            .iter_mut()
            .filter(|interface| interface.name == "eth9")
            .for_each(|interface| interface.name = text());
    }
    if let Fact::Known(mesh) = &mut facts.mesh {
        mesh.paths.iter_mut().for_each(|path| path.node = text().into());
    }
    if let Fact::Known(wireguard) = &mut facts.wireguard {
        wireguard
            .silent
            .iter_mut()
            .filter_map(|peer| peer.holder.as_mut())
            .for_each(|holder| holder.name = text());
    }
    if let Fact::Known(peers) = &mut facts.leases.peers {
        peers.iter_mut().for_each(|peer| (peer.name, peer.silent) = (text().into(), Some(900)));
    }
    if let Fact::Known(kubernetes) = &mut facts.kubernetes {
        *kubernetes = Kubernetes {
            node: text(),
            refusal: Some(problem(Detail::None, name)),
            pod_cidrs: Some(Vec::new()),
            ..kubernetes.clone()
        };
    }
    if let Fact::Known(firewalls) = &mut facts.host.firewalls {
        let saved: String = name
            .chars()
            .flat_map(|c| ['\\', c].into_iter().skip(usize::from(!"\"\\".contains(c))))
            .collect();
        for block in firewalls.tables.iter_mut().flat_map(|table| &mut table.forward) {
            block.stop.rule = format!("-A FORWARD -m comment --comment \"{saved}\" -j REJECT");
        }
        for drop in firewalls.drops.iter_mut().filter(|drop| drop.command.is_none()) {
            (drop.stop.table, drop.stop.chain) = (text(), text());
        }
        for barrier in &mut firewalls.barriers {
            (barrier.table, barrier.chain) = (text(), text());
        }
    }
    let reasons =
        ["rules", "lease"].map(|condition| (condition.to_owned(), problem(Detail::None, name)));
    facts.daemon.reasons = Fact::Known(BTreeMap::from(reasons));
    if let Fact::Known(cni) = &mut facts.pods.cni {
        cni.files.insert(0, CniFile { name: text(), flannel: Some(false) });
        cni.files.push(CniFile { name: "10-flannel.conflist".to_owned(), flannel: Some(true) });
    }
}
