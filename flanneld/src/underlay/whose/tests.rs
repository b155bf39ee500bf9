//! Tests the choice of the underlay interface on hosts of labs and data centres, if the store lists the addresses of
//! Nodes.

use super::*;
use crate::underlay::error::may_come;
use crate::underlay::{Address, Families, Route, RouteError, StoreAt, select};
use options::Selector;
use types::Dual;

const V4: Families = Dual::V4(());
const V6: Families = Dual::V6(());
const BOTH: Families = Dual::Both((), ());

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address(net: &str) -> Address {
    Address { net: net.parse().unwrap(), ..Address::default() }
}

/// A made-up host, and the addresses that the store knows.
struct HostOf {
    facts: HostFacts,
    known: KnownAddresses,
    families: Families,
}

fn host(router: &str, interfaces: &[&str]) -> HostOf {
    let loopback = Interface {
        index: 1,
        name: "lo".to_owned(),
        up: true,
        loopback: true,
        addresses: vec![address("127.0.0.1/8")],
        ..Interface::default()
    };
    let interface = |(index, text): (u32, &&str)| {
        let (name, addresses) = text.split_once(' ').unwrap_or((text, ""));
        let kind = match name.trim_end_matches(char::is_numeric) {
            _ if name.starts_with("veth") => "veth",
            "cni" | "docker" | "br" => "bridge",
            "flannel." | "wg" | "dummy" => "dummy",
            _ => "",
        };
        let addresses = addresses.split_whitespace().map(address).collect();
        Interface {
            index,
            name: name.to_owned(),
            up: true,
            carrier: true,
            mtu: 1500,
            kind: kind.to_owned(),
            addresses,
            ..Interface::default()
        }
    };
    let default = |to: &str, via: Option<IpAddr>| Route {
        net: to.parse().unwrap(),
        via,
        index: 2,
        ..Route::default()
    };
    HostOf {
        facts: HostFacts {
            interfaces: std::iter::once(loopback)
                .chain((2..).zip(interfaces).map(interface))
                .collect(),
            defaults: vec![default("0.0.0.0/0", Some(ip(router))), default("::/0", None)],
            ..HostFacts::default()
        },
        known: KnownAddresses::default(),
        families: V4,
    }
}

impl HostOf {
    fn internal(mut self, addresses: &[&str]) -> Self {
        self.known.internal.extend(addresses.iter().map(|text| ip(text)));
        self
    }

    fn published(mut self, addresses: &[&str]) -> Self {
        self.known.published.extend(addresses.iter().map(|text| ip(text)));
        self
    }

    /// Adds addresses that another Node claims. It publishes those in `publish`, and reports those in `report`
    /// without publishing them.
    fn others(mut self, publish: &[&str], report: &[&str]) -> Self {
        for (list, publishes) in [(publish, true), (report, false)] {
            for text in list {
                self.known.taken.entry(ip(text)).or_insert(Claimant {
                    node: "n2".to_owned(),
                    served: publishes,
                    publishes,
                });
            }
        }
        self
    }

    /// Adds addresses of API servers. The route to a server uses the interface with its network, otherwise the
    /// default route.
    fn servers(mut self, addresses: &[&str]) -> Self {
        self.known.servers.extend(addresses.iter().map(|text| ip(text)));
        self
    }

    fn left(mut self, address: &str) -> Self {
        self.known.left.insert(ip(address));
        self
    }

    fn overwritten(mut self) -> Self {
        self.known.overwritten = true;
        self
    }

    fn answering(mut self, address: &str) -> Self {
        self.facts.answering.push((2, ip(address)));
        self
    }

    fn unshared(mut self, address: &str) -> Self {
        self.facts.unshared.push(ip(address));
        self
    }

    fn families(mut self, families: Families) -> Self {
        self.families = families;
        self
    }

    fn select(mut self) -> Result<Chosen, Problem> {
        let request = Request {
            families: self.families,
            selectors: Vec::new(),
            public: None,
            store: StoreAt::Here,
            known: Some(self.known),
        };
        for target in request.targets() {
            let near = self.facts.interfaces.iter().find_map(|interface| {
                let net =
                    interface.addresses.iter().find(|address| address.net.contains(&target))?;
                Some(Route { index: interface.index, source: Some(net.ip()), ..Route::default() })
            });
            let far = self.facts.by_index(2).map(|first| Route {
                index: 2,
                source: first.usable(Family::from(target)).first().copied(),
                ..Route::default()
            });
            self.facts.routes.push((
                target,
                near.or(far)
                    .ok_or(RouteError::Refused { errno: libc::ENETUNREACH, words: String::new() }),
            ));
        }
        select(&request, &self.facts)
    }

    /// The name and addresses of the chosen interface, and whether the choice has a warning. If flanneld chooses
    /// none, the addresses that other Nodes also have.
    fn choice(self) -> String {
        match self.select() {
            Ok(chosen) => {
                let mark = if chosen.warnings.is_empty() { "" } else { " (in doubt)" };
                format!("{} {}{mark}", chosen.underlay.name, chosen.underlay.addresses)
            }
            Err(error) => {
                let shared = error.text.split_once("have the addresses of this host: ");
                let (shared, _) = shared
                    .and_then(|(_, shared)| shared.split_once(". For example"))
                    .unwrap_or_default();
                format!("refused: {shared}")
            }
        }
    }
}

const NAT: &str = "10.0.2.2";
/// A VirtualBox machine: enp0s3 behind its own NAT, and enp0s8 in the network that connects the machines.
const VAGRANT: [&str; 2] =
    ["enp0s3 10.0.2.15/24 fd17::2/64", "enp0s8 192.168.56.11/24 fd00:56::11/64"];
const RIGHT: &str = "enp0s8 192.168.56.11";

fn vagrant() -> HostOf {
    host(NAT, &VAGRANT).internal(&["10.0.2.15"])
}

fn check_choices(cases: Vec<(&str, HostOf, &str)>) {
    for (case, host, want) in cases {
        assert_eq!(host.choice(), want, "{case}");
    }
}

#[test]
fn nat_interface_is_skipped_when_another_joins_the_machines() {
    check_choices(vec![
        ("the first node of a lab", vagrant(), RIGHT),
        ("before kubelet reports", host(NAT, &VAGRANT), RIGHT),
        (
            "a virtual address in the place of the own one",
            host(NAT, &["enp0s8 192.168.56.200/32 192.168.56.11/24"])
                .published(&["192.168.56.200"])
                .internal(&["192.168.56.11"]),
            RIGHT,
        ),
        (
            "a published address beside the InternalIP",
            host(NAT, &["enp0s8 192.168.56.11/24 192.168.56.12/24"])
                .published(&["192.168.56.12"])
                .internal(&["192.168.56.11"]),
            "enp0s8 192.168.56.12",
        ),
        ("equal addresses, all at once", vagrant().others(&[], &["10.0.2.15"]), RIGHT),
        ("the control plane on the NAT address", vagrant().servers(&["10.0.2.15"]), RIGHT),
        ("the control plane on the right one", vagrant().servers(&["192.168.56.10"]), RIGHT),
        ("kubelet's --node-ip", host(NAT, &VAGRANT).internal(&["192.168.56.11"]), RIGHT),
        ("--node-ip only on the others", vagrant().others(&[], &["192.168.56.12"]), RIGHT),
        (
            "the pods' bridge and tunnels",
            host(
                NAT,
                &[
                    VAGRANT[0],
                    VAGRANT[1],
                    "cni0 10.244.1.1/24",
                    "flannel.1 10.244.1.0/32",
                    "wg0 10.9.0.1/24",
                    "docker0 172.17.0.1/16",
                ],
            ),
            RIGHT,
        ),
        ("only IPv6", vagrant().families(V6), "enp0s8 fd00:56::11"),
        ("both families", vagrant().families(BOTH), "enp0s8 192.168.56.11 and fd00:56::11"),
    ]);
}

#[test]
fn nat_interface_is_used_when_nothing_else_is_certain() {
    check_choices(vec![
        (
            "another machine's NAT",
            host("192.168.121.1", &["eth0 192.168.121.5/24", VAGRANT[1]]),
            "eth0 192.168.121.5",
        ),
        ("a wide network", host(NAT, &["eth0 10.0.2.15/16", VAGRANT[1]]), "eth0 10.0.2.15"),
        ("nothing else, alone", host(NAT, &VAGRANT[..1]), "enp0s3 10.0.2.15 (in doubt)"),
        (
            "nothing else, and not alone",
            host(NAT, &VAGRANT[..1]).others(&[], &["10.0.2.15"]),
            "refused: 10.0.2.15 (Node n2)",
        ),
        (
            "two others, and nothing that speaks for one",
            host(NAT, &[VAGRANT[0], VAGRANT[1], "enp0s9 172.16.0.1/24"]),
            "enp0s3 10.0.2.15 (in doubt)",
        ),
        (
            "two others, and a peer",
            host(NAT, &[VAGRANT[0], "enp0s9 172.16.0.1/24", VAGRANT[1]])
                .others(&["192.168.56.12"], &[]),
            RIGHT,
        ),
    ]);
}

#[test]
fn lan_with_the_routers_address_is_used_when_another_host_answers() {
    let lan = || {
        host(NAT, &["eth0 10.0.2.21/24", "storage0 10.9.0.1/24"])
            .internal(&["10.0.2.21"])
            .answering("10.0.2.22")
    };
    assert_eq!(lan().choice(), "eth0 10.0.2.21");
    assert_eq!(lan().others(&["10.0.2.22"], &[]).choice(), "eth0 10.0.2.21");
    // A host that replies on another link proves nothing about this one.
    let mut elsewhere = lan();
    elsewhere.facts.answering = vec![(3, ip("10.0.2.22"))];
    assert_eq!(elsewhere.choice(), "storage0 10.9.0.1");
}

#[test]
fn published_address_stays_when_other_nodes_claim_it() {
    for (case, host, want) in [
        (
            "Go flannel published the NAT address",
            vagrant().published(&["10.0.2.15"]),
            "enp0s3 10.0.2.15",
        ),
        (
            "claimed by a served Node",
            vagrant().published(&["192.168.56.11"]).others(&["192.168.56.11"], &[]),
            RIGHT,
        ),
        (
            "claimed by any Node",
            vagrant().published(&["192.168.56.11"]).others(&[], &["192.168.56.11"]),
            RIGHT,
        ),
        ("left a moment ago", vagrant().published(&["10.0.2.15"]).left("10.0.2.15"), RIGHT),
        ("gone from this host", vagrant().published(&["192.168.56.99"]), RIGHT),
        ("of the other family", vagrant().published(&["fd17::2"]), RIGHT),
        (
            "both families",
            vagrant().families(BOTH).published(&["192.168.56.11", "fd00:56::11"]),
            "enp0s8 192.168.56.11 and fd00:56::11",
        ),
    ] {
        assert_eq!(host.choice(), want, "{case}");
    }
}

#[test]
fn claimed_address_is_skipped_while_another_is_left() {
    let one = || host("192.0.2.1", &["eth0 192.0.2.11/24"]).internal(&["192.0.2.11"]);
    let two = || {
        host("192.0.2.1", &["eth0 192.0.2.11/24", "eth1 198.51.100.11/24"])
            .internal(&["192.0.2.11"])
    };
    for (case, host, want) in [
        ("nobody", two(), "eth0 192.0.2.11"),
        (
            "a Node that reports it, nothing else left",
            one().others(&[], &["192.0.2.11"]),
            "eth0 192.0.2.11 (in doubt)",
        ),
        (
            "a Node that publishes it, nothing else left",
            one().others(&["192.0.2.11"], &[]),
            "refused: 192.0.2.11 (Node n2)",
        ),
        (
            "a Node that publishes it, which nobody else has on the link",
            one().others(&["192.0.2.11"], &[]).unshared("192.0.2.11"),
            "eth0 192.0.2.11",
        ),
        (
            "a Node that reports it, another left",
            two().others(&[], &["192.0.2.11"]),
            "eth1 198.51.100.11",
        ),
        (
            "all addresses claimed by reports",
            two().others(&[], &["192.0.2.11", "198.51.100.11"]),
            "eth0 192.0.2.11 (in doubt)",
        ),
        (
            "the first published",
            two().others(&["192.0.2.11"], &["198.51.100.11"]),
            "eth1 198.51.100.11 (in doubt)",
        ),
        (
            "both published",
            two().others(&["192.0.2.11", "198.51.100.11"], &[]),
            "refused: 192.0.2.11 (Node n2), 198.51.100.11 (Node n2)",
        ),
        (
            "behind an operator's address",
            two().overwritten().others(&["192.0.2.11"], &[]),
            "eth0 192.0.2.11",
        ),
        (
            "an operator's address that this host has",
            two().overwritten().published(&["198.51.100.11"]),
            "eth0 192.0.2.11",
        ),
        (
            "the NAT behind an operator's address",
            vagrant().overwritten().others(&["10.0.2.15"], &[]),
            "enp0s3 10.0.2.15",
        ),
        ("left, and nothing else", one().left("192.0.2.11"), "refused: "),
        ("left, and something else", two().left("192.0.2.11"), "eth1 198.51.100.11"),
        ("the other family's", two().families(BOTH), "refused: "),
    ] {
        assert_eq!(host.choice(), want, "{case}");
    }
}

#[test]
fn named_interface_takes_precedence_over_claims() {
    let lab = vagrant().others(&["10.0.2.15"], &["192.168.56.11"]);
    let (facts, known) = (lab.facts, lab.known);
    let request = |selectors, public: Option<[u8; 4]>| Request {
        families: V4,
        selectors,
        public: public.map(|ip| Dual::V4(ip.into())),
        store: StoreAt::Here,
        known: Some(known.clone()),
    };
    let chosen = select(&request(vec![Selector::Name("enp0s3".to_owned())], None), &facts).unwrap();
    assert_eq!((chosen.underlay.name.as_str(), chosen.named), ("enp0s3", true));
    let chosen = select(&request(Vec::new(), Some([192, 168, 56, 11])), &facts).unwrap();
    assert_eq!((chosen.underlay.name.as_str(), chosen.named), ("enp0s8", true));
}

#[test]
fn servers_are_needed_when_the_addresses_are_in_doubt() {
    let plain = host("192.0.2.1", &["eth0 192.0.2.11/24"]).internal(&["192.0.2.11"]);
    assert!(!needs_servers(&plain.known, &plain.facts));
    for doubtful in [vagrant(), plain.others(&[], &["192.0.2.11"])] {
        assert!(needs_servers(&doubtful.known, &doubtful.facts));
        assert!(!needs_servers(
            &KnownAddresses { overwritten: true, ..doubtful.known },
            &doubtful.facts
        ));
    }
}

#[test]
fn refusal_of_a_shared_address_has_its_code_and_may_end() {
    let error = host(NAT, &VAGRANT[..1]).others(&["10.0.2.15"], &[]).select().unwrap_err();
    assert!(error.has("interface-addresses-shared") && may_come(&error));
}
