//! A host for tests of traffic rules: the start of its daemon, its rules, and the warnings in its log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use lab::{
    Flanneld, FlanneldOptions, Host, Lab, Netns, PingOptions, Pod, Probe, ProbeOptions, Programs,
    Store, Switch, Uplink, Xtables, ping,
};

/// A network without a tunnel device, and therefore without an encapsulation port.
pub(super) const IPTABLES: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#;
pub(super) const NFTABLES: &str =
    r#"{"Network":"10.244.0.0/16","EnableNFTables":true,"Backend":{"Type":"host-gw"}}"#;
/// A dual-stack network with an encapsulation port.
pub(super) const GUARDED_IPTABLES: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","IPv6SubnetLen":64,"Backend":{"Type":"vxlan"}}"#;
pub(super) const GUARDED_NFTABLES: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","IPv6SubnetLen":64,"EnableNFTables":true,"Backend":{"Type":"vxlan"}}"#;
pub(super) const GUARDS: [&str; 2] = ["--encap-notrack", "--encap-bar-pods"];

/// Program that applies the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Applier {
    IptablesNft,
    IptablesLegacy,
    Nftables,
}
pub(super) use Applier::{IptablesLegacy, IptablesNft, Nftables};

pub(super) const APPLIERS: [Applier; 3] = [IptablesNft, IptablesLegacy, Nftables];

impl Applier {
    pub(super) fn net_conf(self) -> String {
        let nftables = self == Nftables;
        format!(
            r#"{{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","EnableNFTables":{nftables},"Backend":{{"Type":"vxlan"}}}}"#
        )
    }

    /// Returns the iptables variant that the command `iptables` runs on a host where this program applies the rules.
    pub(super) fn xtables(self) -> Xtables {
        if self == IptablesLegacy {
            Xtables::Legacy
        } else {
            Xtables::Nft
        }
    }
}

/// Rules by table and chain.
pub(super) type Dump = BTreeMap<String, Vec<String>>;

/// A host with its own lease store and daemon options.
pub(super) struct Node {
    pub(super) host: Host,
    pub(super) store: Store,
    /// Options of the host's daemon: with masquerade rules, and with a check of the rules each second.
    pub(super) options: FlanneldOptions,
}

impl Node {
    /// Builds the only host on a switch. The host's daemon finds the programs of this machine.
    pub(super) fn alone(lab: &Lab, net_conf: &str) -> Result<Node> {
        let lan = lab.switch("lan")?;
        Node::new(lab, &lan, 1, net_conf)
    }

    /// Builds the host `h<number>` on the switch. The host's daemon finds all programs.
    pub(super) fn build(lab: &Lab, lan: &Switch, number: u8, applier: Applier) -> Result<Node> {
        Node::with(
            lab,
            lan,
            number,
            applier,
            &Programs::all(lab, &format!("h{number}"), applier.xtables())?,
        )
    }

    /// Builds a host as [`Node::build`] does. The host's daemon finds only the programs in `programs`.
    pub(super) fn with(
        lab: &Lab,
        lan: &Switch,
        number: u8,
        applier: Applier,
        programs: &Programs,
    ) -> Result<Node> {
        let mut node = Node::new(lab, lan, number, &applier.net_conf())?;
        node.options = node.options.env("PATH", &programs.path());
        Ok(node)
    }

    fn new(lab: &Lab, lan: &Switch, number: u8, net_conf: &str) -> Result<Node> {
        let store = Store::dir(&lab.folder(&format!("leases-{number}"))?);
        store.configure(net_conf)?;
        let host = lab.host(&format!("h{number}"), &[Uplink::enp0s8(lan, number)?])?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg("--ip-masq")
            .arg("--iptables-resync=1");
        Ok(Node {
            host,
            store,
            options,
        })
    }

    pub(super) fn start(&self) -> Result<Flanneld> {
        self.host.flanneld(&self.options)
    }

    /// Configures the mode of `applier` and starts the daemon.
    pub(super) fn start_as(&self, applier: Applier) -> Result<Flanneld> {
        self.store.configure(&applier.net_conf())?;
        self.start()
    }

    pub(super) fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        self.host.netns().exec(program, args)
    }

    pub(super) fn feed(&self, program: &str, args: &[&str], input: &str) -> Result<()> {
        self.host.netns().feed(program, args, input).map(drop)
    }

    /// Returns the rules of all iptables variants and of nftables, without counters.
    pub(super) fn dump(&self) -> Result<Dump> {
        let mut out = BTreeMap::new();
        for (variant, family) in VARIANTS {
            saved(
                &format!("{family}tables-{variant}"),
                &self.run(&format!("{family}tables-{variant}-save"), &[])?,
                &mut out,
            );
        }
        listed(&self.run("nft", &["-s", "list", "ruleset"])?, &mut out);
        Ok(out)
    }

    /// Returns whether the host has neither rules nor empty chains of flannel for `applier`, in either family.
    pub(super) fn is_clean(&self, applier: Applier) -> bool {
        let programs: &[(&str, &[&str])] = match applier {
            IptablesNft => &[("iptables-nft-save", &[]), ("ip6tables-nft-save", &[])],
            IptablesLegacy => &[
                ("iptables-legacy-save", &[]),
                ("ip6tables-legacy-save", &[]),
            ],
            Nftables => &[("nft", &["list", "tables"])],
        };
        programs.iter().all(|(program, args)| {
            let text = self.run(program, args);
            text.is_ok_and(|text| !text.to_lowercase().contains("flannel"))
        })
    }

    pub(super) fn has_rules(&self, applier: Applier) -> bool {
        let text = match applier {
            IptablesNft => self.run("iptables-nft-save", &[]),
            IptablesLegacy => self.run("iptables-legacy-save", &[]),
            Nftables => self.run("nft", &["list", "table", "ip", "flannel-ipv4"]),
        };
        text.is_ok_and(|text| {
            text.to_lowercase().contains("masquerade") && text.contains("10.244.0.0/16")
        })
    }
}

pub(super) const VARIANTS: [(&str, &str); 4] = [
    ("nft", "ip"),
    ("nft", "ip6"),
    ("legacy", "ip"),
    ("legacy", "ip6"),
];

/// Adds the output of iptables-save to a dump, by table and chain. Leaves out empty chains that have the policy ACCEPT.
fn saved(name: &str, text: &str, out: &mut Dump) {
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split(' ');
            let (chain, policy) = (
                words.next().unwrap_or_default(),
                words.next().unwrap_or_default(),
            );
            if policy != "ACCEPT" {
                out.entry(format!("{name} {table} {chain}"))
                    .or_default()
                    .push(format!("policy {policy}"));
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let chain = rule.split(' ').next().unwrap_or_default();
            out.entry(format!("{name} {table} {chain}"))
                .or_default()
                .push(line.to_owned());
        }
    }
}

/// Adds nft's listing to a dump, by table and chain. Leaves out the tables of iptables-nft, which
/// `iptables-nft-save` lists. nft prints iptables-nft's masquerade rules in only one address family.
fn listed(text: &str, out: &mut Dump) {
    let (mut table, mut place) = (String::new(), String::new());
    for line in text.lines() {
        if line.starts_with("table ") {
            line.trim_end_matches(" {").clone_into(&mut table);
            place.clone_from(&table);
            out.entry(place.clone()).or_default();
        } else if let Some(chain) = line.strip_prefix("\tchain ") {
            place = format!("{table} {}", chain.trim_end_matches(" {"));
        } else if line == "\t}" {
            place.clone_from(&table);
        } else if !line.trim().is_empty() && line != "}" {
            out.entry(place.clone())
                .or_default()
                .push(line.trim().to_owned());
        }
    }
    let theirs = ["raw", "mangle", "nat", "filter"]
        .iter()
        .flat_map(|table| [format!("table ip {table}"), format!("table ip6 {table}")]);
    let theirs: Vec<String> = theirs.collect();
    out.retain(|place, _| {
        !theirs
            .iter()
            .any(|table| place == table || place.starts_with(&format!("{table} ")))
    });
}

/// Returns the warnings and errors in a log. Leaves out the warning that a node is not ready, which only
/// repeats the other warnings' reasons.
pub(super) fn complaints(daemon: &Flanneld) -> Vec<String> {
    let log = daemon.log();
    let warnings = log.lines().filter(|line| {
        line.split_whitespace()
            .take(3)
            .any(|word| matches!(word, "WARN" | "ERROR"))
    });
    warnings
        .filter(|line| !line.contains("WARN not ready reason="))
        .map(str::to_owned)
        .collect()
}

pub(super) fn complaints_about(daemon: &Flanneld, what: &str) -> Vec<String> {
    complaints(daemon)
        .into_iter()
        .filter(|line| line.contains(what))
        .collect()
}

/// Returns the number of lines of a log that contain a text.
pub(super) fn lines_with(log: &str, what: &str) -> usize {
    log.lines().filter(|line| line.contains(what)).count()
}

pub(super) fn reaches(from: &Netns, to: IpAddr) -> bool {
    ping(
        from,
        to,
        &PingOptions::default().timeout(Duration::from_millis(700)),
    )
    .unwrap()
    .is_some()
}

pub(super) fn difference(wanted: &Dump, found: &Dump) -> String {
    let places: BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
    let differ = places
        .into_iter()
        .filter(|place| wanted.get(*place) != found.get(*place));
    differ
        .map(|place| {
            format!(
                "  {place}:\n    wanted {:#?}\n    found {:#?}\n",
                wanted.get(place),
                found.get(place)
            )
        })
        .collect()
}

/// A pod that sends packets through masquerade rules to a machine outside, each packet in a separate connection.
pub(super) struct Stream {
    pub(super) probe: Probe,
    _pod: Pod,
}

impl Stream {
    pub(super) fn start(lab: &Lab, lan: &Switch, node: &Node, daemon: &Flanneld) -> Result<Stream> {
        let outside = lab.host("outside", &[Uplink::enp0s8(lan, 50)?])?;
        let pod = node.host.pod("p1", &daemon.subnet_env()?)?;
        // There are a thousand new connections a second, so conntrack must forget them soon.
        node.host
            .netns()
            .sysctl("net/netfilter/nf_conntrack_udp_timeout", "3")?;
        let options = ProbeOptions::default()
            .interval(Duration::from_millis(1))
            .flow_each()
            .seen_as(IpAddr::V4(node.host.v4()?));
        let probe = Probe::between(
            (pod.netns(), pod.address()?),
            (outside.netns(), IpAddr::V4(outside.v4()?)),
            &options,
        )?;
        probe.wait_flowing()?;
        Ok(Stream { probe, _pod: pod })
    }
}
