//! Proves what becomes of traffic rules when something changes: the mode, the daemon, the programs, and what others do.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{Flanneld, FlanneldOptions, Host, Lab, Launch, PingOptions, Pod, Probe, ProbeOptions, Programs, Store, Switch, Uplink, Xtables};
use lab::{eventually, eventually_ok, ping};

const DEADLINE: Duration = Duration::from_secs(30);
/// What failed is tried again after 30 s at the latest.
const AGAIN: Duration = Duration::from_secs(60);

/// Who applies the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applier {
    IptablesNft,
    IptablesLegacy,
    Nftables,
}
use Applier::{IptablesLegacy, IptablesNft, Nftables};

impl Applier {
    fn net_conf(self) -> String {
        let nftables = self == Nftables;
        format!(
            r#"{{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","EnableNFTables":{nftables},"Backend":{{"Type":"vxlan"}}}}"#
        )
    }

    /// What `iptables` is on a host of this kind.
    fn xtables(self) -> Xtables {
        if self == IptablesLegacy { Xtables::Legacy } else { Xtables::Nft }
    }
}

/// A host with a store of its own.
struct Node {
    host: Host,
    store: Store,
    options: FlanneldOptions,
}

impl Node {
    /// The host with this number in the switch, where a daemon finds all programs.
    fn build(lab: &Lab, lan: &Switch, number: u8, applier: Applier) -> Result<Node> {
        let programs = Programs::all(lab, &format!("h{number}"), applier.xtables())?;
        Node::with(lab, lan, number, applier, &programs)
    }

    /// The same with only some programs.
    fn with(lab: &Lab, lan: &Switch, number: u8, applier: Applier, programs: &Programs) -> Result<Node> {
        let store = Store::dir(&lab.folder(&format!("leases-{number}"))?);
        store.configure(&applier.net_conf())?;
        let host = lab.host(&format!("h{number}"), &[Uplink::enp0s8(lan, number)?])?;
        let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq").arg("--iptables-resync=1").deadline(DEADLINE);
        Ok(Node { host, store, options: options.env("PATH", &programs.path()) })
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        self.host.netns().exec(program, args)
    }

    fn feed(&self, program: &str, args: &[&str], input: &str) -> Result<()> {
        self.host.netns().feed(program, args, input).map(drop)
    }

    /// All rules of all programs, but not how often they were met.
    fn dump(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let mut out = BTreeMap::new();
        for (variant, family) in VARIANTS {
            saved(&format!("{family}tables-{variant}"), &self.run(&format!("{family}tables-{variant}-save"), &[])?, &mut out);
        }
        listed(&self.run("nft", &["-s", "list", "ruleset"])?, &mut out);
        Ok(out)
    }

    /// Whether flannel's masquerade rules are there, whoever applies them.
    fn has_rules(&self, applier: Applier) -> bool {
        let text = match applier {
            IptablesNft => self.run("iptables-nft-save", &[]),
            IptablesLegacy => self.run("iptables-legacy-save", &[]),
            Nftables => self.run("nft", &["list", "table", "ip", "flannel-ipv4"]),
        };
        text.is_ok_and(|text| text.to_lowercase().contains("masquerade") && text.contains("10.244.0.0/16"))
    }
}

const VARIANTS: [(&str, &str); 4] = [("nft", "ip"), ("nft", "ip6"), ("legacy", "ip"), ("legacy", "ip6")];

/// The text of iptables-save by table and chain; chains that are as they come with the kernel are left out.
fn saved(name: &str, text: &str, out: &mut BTreeMap<String, Vec<String>>) {
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split(' ');
            let (chain, policy) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if policy != "ACCEPT" {
                out.entry(format!("{name} {table} {chain}")).or_default().push(format!("policy {policy}"));
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let chain = rule.split(' ').next().unwrap_or_default();
            out.entry(format!("{name} {table} {chain}")).or_default().push(line.to_owned());
        }
    }
}

/// The text of nft's listing by table and chain, without the tables of iptables-nft, which that lists itself: nft prints a masquerade of it
/// in one family and leaves it out in the other.
fn listed(text: &str, out: &mut BTreeMap<String, Vec<String>>) {
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
            out.entry(place.clone()).or_default().push(line.trim().to_owned());
        }
    }
    let theirs = ["raw", "mangle", "nat", "filter"].iter().flat_map(|table| [format!("table ip {table}"), format!("table ip6 {table}")]);
    let theirs: Vec<String> = theirs.collect();
    out.retain(|place, _| !theirs.iter().any(|table| place == table || place.starts_with(&format!("{table} "))));
}

/// The lines of a log that warn or report an error. That a node is not ready is told with the same reasons, by whoever minds readiness.
fn complaints(daemon: &Flanneld) -> Vec<String> {
    let log = daemon.log();
    let warnings = log.lines().filter(|line| line.split_whitespace().take(3).any(|word| matches!(word, "WARN" | "ERROR")));
    warnings.filter(|line| !line.contains("WARN not ready: ")).map(str::to_owned).collect()
}

fn complaints_about(daemon: &Flanneld, what: &str) -> Vec<String> {
    complaints(daemon).into_iter().filter(|line| line.contains(what)).collect()
}

/// Rules of somebody else in each table of each program. What was there before is gone.
fn start_anew(node: &Node) -> Result<()> {
    node.run("nft", &["flush", "ruleset"])?;
    for (variant, family) in VARIANTS {
        let (one, many) = if family == "ip" { ("198.51.100.7", "198.51.100.0/24") } else { ("fd99::7", "fd99::/64") };
        let payload = format!(
            "*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A PREROUTING -s {one} -j ACCEPT\nCOMMIT\n\
             *mangle\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
             -A PREROUTING -s {one} -j MARK --set-xmark 0x7/0xffffffff\nCOMMIT\n\
             *nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n:THEIRS - [0:0]\n\
             -A POSTROUTING -j THEIRS\n-A THEIRS -s {many} -m comment --comment \"not flanneld\" -j MASQUERADE\nCOMMIT\n\
             *filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A FORWARD -s {one} -j DROP\nCOMMIT\n"
        );
        node.feed(&format!("{family}tables-{variant}-restore"), &[], &payload)?;
    }
    let foreign = "table inet foreign { chain forward { type filter hook forward priority 10; policy accept; ip saddr 198.51.100.7 drop; }\n}\n\
                   table ip foreign { chain postrouting { type nat hook postrouting priority 110; policy accept; ip saddr 198.51.100.0/24 masquerade; }\n}\n";
    node.feed("nft", &["-f", "-"], foreign)
}

/// What a host may have of flannel when ours starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Ours(Applier),
    /// Go flannel's chains as they were captured; of the lease that the host has, or of an earlier one.
    GoChains(Xtables, bool),
    /// What Go flannel put straight into the built-in chains from v0.17 to v0.19.
    GoRules(Xtables),
    /// Go flannel's nftables tables.
    GoNftables,
}

const BEFORE: [Before; 10] = [
    Before::Nothing,
    Before::Ours(IptablesNft),
    Before::Ours(IptablesLegacy),
    Before::Ours(Nftables),
    Before::GoChains(Xtables::Nft, true),
    Before::GoChains(Xtables::Nft, false),
    Before::GoChains(Xtables::Legacy, true),
    Before::GoRules(Xtables::Nft),
    Before::GoRules(Xtables::Legacy),
    Before::GoNftables,
];

impl Before {
    /// Where a start ends: with iptables, flannel's rules that are there already decide which variant it is.
    fn end(self, target: Applier) -> Applier {
        let there = match self {
            Before::Ours(IptablesNft) | Before::GoChains(Xtables::Nft, _) | Before::GoRules(Xtables::Nft) => IptablesNft,
            Before::Ours(IptablesLegacy) | Before::GoChains(Xtables::Legacy, _) | Before::GoRules(Xtables::Legacy) => IptablesLegacy,
            Before::Nothing | Before::Ours(Nftables) | Before::GoNftables => target,
        };
        if target == Nftables { Nftables } else { there }
    }

    fn make(self, node: &Node, own: &[String], fresh: &[Fresh]) -> Result<()> {
        let replaced =
            |text: String, captured: [&str; 2]| captured.iter().zip(own).fold(text, |text, (captured, subnet)| text.replace(captured, subnet));
        match self {
            Before::Nothing => Ok(()),
            Before::Ours(applier) => {
                let fresh = fresh.iter().find(|fresh| fresh.applier == applier).context("a fresh start")?;
                let mut daemon = start(&fresh.node, applier)?;
                ensure!(fresh.node.dump()? == fresh.dump, "{applier:?} does not do the same twice");
                daemon.terminate(DEADLINE).map(drop)
            }
            Before::GoChains(which, same_lease) => {
                let text = golden("../../flanneld/tests/golden/masq-dual/iptables.txt")?;
                let text = if same_lease { replaced(text, ["10.244.90.0/24", "fd10:244:0:22::/64"]) } else { text };
                for (header, lines) in sections(&text) {
                    // `# iptables -t nat -S`
                    let words: Vec<&str> = header.split_whitespace().collect();
                    let [program, _, table, ..] = words[..] else { bail!("{header}") };
                    let rules: String = lines.iter().filter(|line| !line.starts_with("-P")).map(|line| format!("{line}\n")).collect();
                    restore(node, &program.replace("tables", &format!("tables-{}", which.name())), &format!("*{table}\n{rules}COMMIT\n"))?;
                }
                Ok(())
            }
            Before::GoRules(which) => {
                let families = [("ip", "10.244.0.0/16", "224.0.0.0/4"), ("ip6", "fd10:244::/48", "ff00::/8")];
                for ((family, network, multicast), subnet) in families.iter().zip(own) {
                    let (masq, forward) = ("-m comment --comment \"flanneld masq\" -j", "-m comment --comment \"flanneld forward\" -j");
                    let payload = format!(
                        "*nat\n-A POSTROUTING -s {network} -d {network} {masq} RETURN\n-A POSTROUTING -s {network} ! -d {multicast} {masq} MASQUERADE --random-fully\n\
                         -A POSTROUTING ! -s {network} -d {subnet} {masq} RETURN\n-A POSTROUTING ! -s {network} -d {network} {masq} MASQUERADE --random-fully\nCOMMIT\n\
                         *filter\n-A FORWARD -s {network} {forward} ACCEPT\n-A FORWARD -d {network} {forward} ACCEPT\nCOMMIT\n"
                    );
                    restore(node, &format!("{family}tables-{}", which.name()), &payload)?;
                }
                Ok(())
            }
            Before::GoNftables => {
                let text = replaced(golden("golden/nft-dual/nft.txt")?, ["10.244.39.0/24", "fd10:244:0:12::/64"]);
                node.feed("nft", &["-f", "-"], &text)
            }
        }
    }
}

fn restore(node: &Node, program: &str, payload: &str) -> Result<()> {
    node.feed(&format!("{program}-restore"), &["--noflush"], payload)
}

fn golden(path: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// A capture's parts: their titles without `# `, and their lines.
fn sections(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("# "), found.last_mut()) {
            (Some(title), _) => found.push((title, Vec::new())),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    found
}

/// Starts the daemon in a mode.
fn start(node: &Node, applier: Applier) -> Result<Flanneld> {
    node.store.configure(&applier.net_conf())?;
    node.host.flanneld(&node.options)
}

/// What a start in a mode leaves on a host that had nothing of flannel.
struct Fresh {
    applier: Applier,
    /// The host, with the programs of this mode.
    node: Node,
    dump: BTreeMap<String, Vec<String>>,
}

/// Every way to a mode ends as a fresh start in it does.
fn every_way_to(target: Applier) {
    Lab::run("ways", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, target)?;
        // Fresh starts of the other variant of iptables have its programs as the usual ones.
        let usual = node.options.clone();
        let mut fresh: Vec<Fresh> = Vec::new();
        let mut own = Vec::new();
        for applier in [IptablesNft, IptablesLegacy, Nftables] {
            start_anew(&node)?;
            let without = node.dump()?;
            let programs = Programs::all(lab, &format!("fresh-{applier:?}"), applier.xtables())?;
            let node = Node { host: node.host.clone(), store: node.store.clone(), options: usual.clone().env("PATH", &programs.path()) };
            let mut daemon = start(&node, applier)?;
            let env = daemon.subnet_env()?;
            own = vec![env.subnet.context("v4")?.trunc().to_string(), env.v6_subnet.context("v6")?.trunc().to_string()];
            let with = node.dump()?;
            ensure!(with != without && node.has_rules(applier), "no rules of {applier:?}: {with:#?}");
            // What is not ours is as it was: all of it is still there, and nothing but rules of ours came.
            for (place, lines) in &without {
                let now = with.get(place).with_context(|| format!("{place} is gone"))?;
                let theirs: Vec<&String> = now.iter().filter(|line| !line.contains("FLANNEL")).collect();
                ensure!(theirs == lines.iter().collect::<Vec<_>>(), "{place} has {now:#?}, and had {lines:#?}");
            }
            daemon.terminate(DEADLINE)?;
            fresh.push(Fresh { applier, node, dump: with });
        }
        let mut wrong = String::new();
        for before in BEFORE {
            start_anew(&node)?;
            before.make(&node, &own, &fresh)?;
            let mut daemon = start(&node, target)?;
            let end = before.end(target);
            let wanted = &fresh.iter().find(|fresh| fresh.applier == end).context("a fresh start")?.dump;
            if eventually(DEADLINE, "the same rules", || node.dump().is_ok_and(|dump| dump == *wanted)).is_err() {
                wrong.push_str(&format!("{before:?} -> {target:?}, which ends as {end:?}:\n{}", difference(wanted, &node.dump()?)));
            }
            ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
            daemon.terminate(DEADLINE)?;
        }
        ensure!(wrong.is_empty(), "{wrong}");
        Ok(())
    })
    .unwrap();
}

fn difference(wanted: &BTreeMap<String, Vec<String>>, found: &BTreeMap<String, Vec<String>>) -> String {
    let places: std::collections::BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
    let differ = places.into_iter().filter(|place| wanted.get(*place) != found.get(*place));
    differ.map(|place| format!("  {place}:\n    wanted {:#?}\n    found {:#?}\n", wanted.get(place), found.get(place))).collect()
}

#[test]
fn every_way_to_iptables_nft_leaves_nothing_behind() {
    every_way_to(IptablesNft);
}

#[test]
fn every_way_to_iptables_legacy_leaves_nothing_behind() {
    every_way_to(IptablesLegacy);
}

#[test]
fn every_way_to_nftables_leaves_nothing_behind() {
    every_way_to(Nftables);
}

/// On a host without rules only those tables come into being that hold ours; looking for others makes none.
#[test]
fn a_fresh_start_makes_no_other_tables() {
    Lab::run("fresh", |lab| {
        let lan = lab.switch("lan")?;
        for (number, applier) in (1..).zip([IptablesNft, IptablesLegacy, Nftables]) {
            let node = Node::build(lab, &lan, number, applier)?;
            let daemon = start(&node, applier)?;
            eventually(DEADLINE, "a few looks", || daemon.metric("flannel_uptime_seconds").is_ok_and(|now| now >= 3.0))?;
            let (ours, none) = (["filter", "nat"], [""; 0]);
            let by_nft = match applier {
                IptablesNft => vec!["table ip filter", "table ip nat", "table ip6 filter", "table ip6 nat"],
                IptablesLegacy => vec![],
                Nftables => vec!["table ip flannel-ipv4", "table ip6 flannel-ipv6"],
            };
            let listed = node.run("nft", &["list", "tables"])?;
            let mut listed: Vec<&str> = listed.lines().collect();
            listed.sort_unstable();
            ensure!(listed == by_nft, "{applier:?}: nft has {listed:?}");
            for file in ["ip_tables_names", "ip6_tables_names"] {
                let names = node.run("cat", &[&format!("/proc/thread-self/net/{file}")]).unwrap_or_default();
                let mut names: Vec<&str> = names.lines().collect();
                names.sort_unstable();
                let wanted: &[&str] = if applier == IptablesLegacy { &ours } else { &none };
                ensure!(names == wanted, "{applier:?}: {file} has {names:?}");
            }
            ensure!(complaints(&daemon).is_empty(), "{:#?}", complaints(&daemon));
        }
        Ok(())
    })
    .unwrap();
}

/// A pod whose packets to a machine outside go through the masquerade, each of them as a connection of its own.
struct Stream {
    probe: Probe,
    _pod: Pod,
}

impl Stream {
    fn start(lab: &Lab, lan: &Switch, node: &Node, daemon: &Flanneld) -> Result<Stream> {
        let outside = lab.host("outside", &[Uplink::enp0s8(lan, 50)?])?;
        let pod = node.host.pod("p1", &daemon.subnet_env()?)?;
        // Thousands of connections a second are to be forgotten soon.
        node.host.netns().sysctl("net/netfilter/nf_conntrack_udp_timeout", "3")?;
        let options = ProbeOptions::default().interval(Duration::from_millis(1)).flow_each().seen_as(IpAddr::V4(node.host.v4()?));
        let probe = Probe::between((pod.netns(), pod.address()?), (outside.netns(), IpAddr::V4(outside.v4()?)), &options)?;
        probe.wait_flowing(DEADLINE)?;
        Ok(Stream { probe, _pod: pod })
    }
}

/// No packet is lost, and none gets out under the pod's own address, while the daemon is ended and started again.
fn restarts(applier: Applier) {
    let count: u32 = std::env::var("RESTARTS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    Lab::run("restarts", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, applier)?;
        let mut daemon = start(&node, applier)?;
        let stream = Stream::start(lab, &lan, &node, &daemon)?;
        for number in 0..count {
            if number % 2 == 0 {
                ensure!(daemon.terminate(DEADLINE)?.success(), "{}", daemon.log_tail(10));
            } else {
                daemon.kill()?;
            }
            daemon = node.host.flanneld(&node.options)?;
            stream.probe.wait_flowing(DEADLINE)?;
            ensure!(daemon.metric("flannel_rule_writes_total")? == 0.0, "restart {number} wrote rules: {}", daemon.log_tail(20));
        }
        let report = stream.probe.finish()?;
        println!("{applier:?}, {count} restarts: {report}");
        report.require_clean()
    })
    .unwrap();
}

#[test]
fn restarts_lose_nothing_with_iptables_nft() {
    restarts(IptablesNft);
}

#[test]
fn restarts_lose_nothing_with_iptables_legacy() {
    restarts(IptablesLegacy);
}

#[test]
fn restarts_lose_nothing_with_nftables() {
    restarts(Nftables);
}

/// New rules come before the old ones go, whichever programs hold them.
#[test]
fn switching_under_load_loses_nothing() {
    Lab::run("switching", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, IptablesNft)?;
        let mut daemon = start(&node, IptablesNft)?;
        let stream = Stream::start(lab, &lan, &node, &daemon)?;
        for (number, applier) in [Nftables, IptablesLegacy, Nftables, IptablesNft].into_iter().enumerate() {
            daemon.terminate(DEADLINE)?;
            let programs = Programs::all(lab, &format!("switch-{number}"), applier.xtables())?;
            let options = node.options.clone().env("PATH", &programs.path());
            let node = Node { host: node.host.clone(), store: node.store.clone(), options };
            daemon = start(&node, applier)?;
            let alone = || [IptablesNft, IptablesLegacy, Nftables].iter().all(|other| node.has_rules(*other) == (*other == applier));
            eventually(DEADLINE, &format!("only the rules of {applier:?} are there"), alone)?;
            stream.probe.wait_flowing(DEADLINE)?;
        }
        let report = stream.probe.finish()?;
        println!("4 switches: {report}");
        report.require_clean()
    })
    .unwrap();
}

/// Killed at any moment of a switch, a daemon leaves a set that works, and the next one finishes the work.
#[test]
fn kills_amid_a_switch_lose_nothing() {
    Lab::run("amid", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, IptablesNft)?;
        let mut daemon = start(&node, IptablesNft)?;
        let stream = Stream::start(lab, &lan, &node, &daemon)?;
        let dump = node.dump()?;
        let mut both = 0;
        for number in 0..30u64 {
            daemon.kill()?;
            both += u32::from(node.has_rules(IptablesNft) && node.has_rules(Nftables));
            node.store.configure(&if number % 3 == 2 { IptablesNft } else { Nftables }.net_conf())?;
            daemon = node.host.start_flanneld(&node.options)?;
            // A whole switch takes about 100 ms here.
            std::thread::sleep(Duration::from_millis(20 + 13 * number % 130));
        }
        daemon.kill()?;
        daemon = start(&node, IptablesNft)?;
        if eventually(DEADLINE, "all is as at first", || node.dump().is_ok_and(|now| now == dump)).is_err() {
            bail!("not all is as at first:\n{}", difference(&dump, &node.dump()?));
        }
        stream.probe.wait_flowing(DEADLINE)?;
        let report = stream.probe.finish()?;
        println!("30 kills, {both} of them between the new set and the old one's end: {report}");
        ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
        report.require_clean()
    })
    .unwrap();
}

#[test]
fn idle_daemons_write_nothing() {
    Lab::run("idle", |lab| {
        let lan = lab.switch("lan")?;
        let mut watched = Vec::new();
        for (number, applier) in (1..).zip([IptablesNft, IptablesLegacy, Nftables]) {
            let node = Node::build(lab, &lan, number, applier)?;
            let daemon = start(&node, applier)?;
            let dump = node.dump()?;
            let monitor = node.host.spawn("monitor", &Launch::new("nft").arg("monitor"))?;
            // It says nothing when it has begun to listen.
            eventually_ok(DEADLINE, "nft monitor listens", || {
                node.run("nft", &["add", "table", "ip", "listening"])?;
                node.run("nft", &["delete", "table", "ip", "listening"])?;
                ensure!(monitor.log().contains("delete table ip listening"), "{}", monitor.log());
                Ok(())
            })?;
            watched.push((node, daemon, dump, monitor));
        }
        let seconds: f64 = std::env::var("IDLE").ok().and_then(|text| text.parse().ok()).unwrap_or(15.0);
        let before: Vec<f64> = watched.iter().map(|(_, daemon, ..)| daemon.metric("flannel_rule_writes_total")).collect::<Result<_>>()?;
        let said: Vec<usize> = watched.iter().map(|(.., monitor)| monitor.log().len()).collect();
        let began = watched[0].1.metric("flannel_uptime_seconds")?;
        eventually(Duration::from_secs_f64(seconds) + DEADLINE, "time passes", || {
            watched[0].1.metric("flannel_uptime_seconds").is_ok_and(|now| now >= began + seconds)
        })?;
        for (((node, daemon, dump, monitor), before), said) in watched.iter().zip(before).zip(said) {
            ensure!(daemon.metric("flannel_rule_writes_total")? == before, "{}", daemon.log_tail(10));
            ensure!(monitor.log().len() == said, "somebody wrote: {}", &monitor.log()[said..]);
            ensure!(node.dump()? == *dump, "the rules changed");
            ensure!(complaints(daemon).is_empty(), "{:?}", complaints(daemon));
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_lock_that_is_held_for_ever_holds_up_nothing_else() {
    Lab::run("lock", |lab| {
        let lan = lab.switch("lan")?;
        let one = Node::build(lab, &lan, 1, IptablesLegacy)?;
        let mut two = Node::build(lab, &lan, 2, IptablesLegacy)?;
        two.options = FlanneldOptions::new(&one.store).iface("enp0s8").deadline(DEADLINE);
        // Each host has a /run of its own.
        let run = one.host.folder()?.join("run");
        std::fs::create_dir_all(&run)?;
        let lock = std::fs::File::create(run.join("xtables.lock"))?;
        lock.lock()?;
        let daemon = one.host.start_flanneld(&one.options)?;
        let other = two.host.flanneld(&two.options)?;
        eventually(DEADLINE, "subnet.env is there", || daemon.subnet_env().is_ok())?;
        let here = one.host.pod("p1", &daemon.subnet_env()?)?;
        let there = two.host.pod("p1", &other.subnet_env()?)?;
        for (to, what) in there.addresses().into_iter().zip(["IPv4", "IPv6"]) {
            let reaches = || ping(here.netns(), to, &PingOptions::default()).is_ok_and(|answer| answer.is_some());
            eventually(DEADLINE, &format!("pods reach each other by {what} while the lock is held"), reaches)?;
        }
        eventually(DEADLINE, "the lock is told of", || !complaints_about(&daemon, "xtables.lock").is_empty())?;
        let (code, page) = daemon.get("/readyz")?;
        ensure!(code != 200 && page.contains("xtables.lock"), "/readyz: {code} {page}");
        ensure!(!one.has_rules(IptablesLegacy), "the lock does not hold up the rules: this test proves nothing");
        // Several attempts later it is still told once.
        std::thread::sleep(Duration::from_secs(12));
        let told = complaints_about(&daemon, "lock");
        ensure!(told.len() == 1 && complaints(&daemon).len() == 1, "{:#?}", complaints(&daemon));
        println!("told: {}", told[0]);
        lock.unlock()?;
        let time = eventually(AGAIN, "the rules come when the lock is free", || one.has_rules(IptablesLegacy))?;
        println!("the rules came {time:.1?} after the lock was free");
        eventually(AGAIN, "it is ready", || daemon.is_ready())?;
        ensure!(complaints(&daemon).len() == 1, "{:#?}", complaints(&daemon));
        Ok(())
    })
    .unwrap();
}

#[test]
fn missing_programs_are_told_once_and_used_when_they_come() {
    Lab::run("missing", |lab| {
        let lan = lab.switch("lan")?;
        // nftables needs nothing of iptables, and does not ask for it.
        let node = Node::with(lab, &lan, 1, Nftables, &Programs::none(lab, "nft-only")?.with_nft()?)?;
        let nftables = start(&node, Nftables)?;
        ensure!(node.has_rules(Nftables));

        let programs = Programs::none(lab, "empty")?;
        let node = Node::with(lab, &lan, 2, IptablesNft, &programs)?;
        let daemon = node.host.start_flanneld(&node.options)?;
        eventually(DEADLINE, "subnet.env is there", || daemon.subnet_env().is_ok())?;
        let remedy = "install the package iptables";
        eventually(DEADLINE, "the remedy is told", || !complaints_about(&daemon, remedy).is_empty())?;
        std::thread::sleep(Duration::from_secs(4));
        ensure!(complaints(&daemon).len() == 1, "{:#?}", complaints(&daemon));
        println!("told: {}", complaints(&daemon)[0]);
        let (code, page) = daemon.get("/readyz")?;
        ensure!(code != 200 && page.contains("iptables"), "/readyz: {code} {page}");
        programs.with_iptables(Xtables::Nft)?;
        eventually(AGAIN, "the rules come when the programs do", || node.has_rules(IptablesNft))?;
        eventually(DEADLINE, "it is ready", || daemon.is_ready())?;
        ensure!(complaints(&daemon).len() == 1, "{:#?}", complaints(&daemon));

        // Without nft it is the same the other way round.
        let node = Node::with(lab, &lan, 3, Nftables, &Programs::none(lab, "no-nft")?.with_iptables(Xtables::Nft)?)?;
        let daemon = node.host.start_flanneld(&node.options)?;
        eventually(DEADLINE, "the remedy is told", || !complaints_about(&daemon, "install the package nftables").is_empty())?;
        ensure!(complaints(&daemon).len() == 1, "{:#?}", complaints(&daemon));

        ensure!(complaints(&nftables).is_empty() && !nftables.log().contains("iptables"), "{}", nftables.log());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_deleted_table_is_back_at_once() {
    Lab::run("deleted", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, Nftables)?;
        let daemon = start(&node, Nftables)?;
        let stream = Stream::start(lab, &lan, &node, &daemon)?;
        let dump = node.dump()?;
        let mut times = Vec::new();
        // A fourth time within a minute would be a war.
        for damage in ["delete table ip flannel-ipv4", "flush chain ip flannel-ipv4 postrtg", "flush ruleset"] {
            let start = Instant::now();
            node.run("nft", &damage.split(' ').collect::<Vec<_>>())?;
            eventually(DEADLINE, &format!("healed after {damage}"), || node.dump().is_ok_and(|now| now == dump))?;
            times.push(start.elapsed());
            stream.probe.wait_flowing(DEADLINE)?;
        }
        let report = stream.probe.finish()?;
        println!("healed after {times:.0?}; {} packets under the pod's own address; {report}", report.wrong);
        // The goal is a second; this machine may be busy.
        ensure!(times.iter().all(|time| *time < Duration::from_secs(8)), "{times:?}");
        ensure!(report.wrong > 0, "nothing was ever not masqueraded: this test proves nothing");
        ensure!(report.wrong < 15_000 && report.lost == report.wrong, "{report}");
        ensure!(daemon.metric("flannel_rule_repairs_total")? == 3.0, "{}", daemon.log_tail(20));
        Ok(())
    })
    .unwrap();
}

/// Somebody else's transactions come all the time, and those that meet ours make the kernel ask for another try.
#[test]
fn a_busy_writer_holds_up_no_repair() {
    Lab::run("busy", |lab| {
        let lan = lab.switch("lan")?;
        for (number, applier, damage) in [(1, IptablesNft, "delete table ip nat"), (2, Nftables, "delete table ip flannel-ipv4")] {
            let node = Node::build(lab, &lan, number, applier)?;
            let daemon = start(&node, applier)?;
            let dump = node.dump()?;
            let writes = "while :; do nft 'add table ip busy; add chain ip busy c; delete table ip busy'; sleep 0.01; done";
            let mut writer = node.host.spawn("writer", &Launch::new("sh").args(["-c", writes]))?;
            let before = daemon.cpu_seconds()?;
            let start = Instant::now();
            for _ in 0..3 {
                node.run("nft", &damage.split(' ').collect::<Vec<_>>())?;
                let healed = || node.has_rules(applier);
                eventually(DEADLINE, "healed in spite of the other writer", healed)?;
            }
            println!("{applier:?}: three repairs in {:.0?}, {:.2} s of processor time", start.elapsed(), daemon.cpu_seconds()? - before);
            writer.kill()?;
            if eventually(DEADLINE, "all is as it was", || node.dump().is_ok_and(|now| now == dump)).is_err() {
                bail!("{applier:?}: not all is as it was:\n{}", difference(&dump, &node.dump()?));
            }
            ensure!(complaints(&daemon).is_empty(), "{:#?}", complaints(&daemon));
        }
        Ok(())
    })
    .unwrap();
}

/// A cgroup that limits processes, where this machine allows to make one.
struct Pids {
    folder: PathBuf,
}

impl Pids {
    fn create(lab: &Lab) -> Result<Pids> {
        let mut reasons = String::new();
        for parent in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            let folder = Path::new(parent).join(lab.prefix());
            let made = std::fs::create_dir(&folder).map_err(anyhow::Error::from);
            match made.and_then(|()| Ok(std::fs::metadata(folder.join("pids.max"))?)) {
                Ok(_) => return Ok(Pids { folder }),
                Err(error) => reasons.push_str(&format!("{}: {error}; ", folder.display())),
            }
            let _ = std::fs::remove_dir(&folder);
        }
        bail!("{reasons}")
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        std::fs::write(&path, text).with_context(|| format!("{text} to {}", path.display()))
    }

    /// Nobody in it gets another process or thread.
    fn close(&self) -> Result<()> {
        self.write("pids.max", "0")
    }

    fn open(&self) -> Result<()> {
        self.write("pids.max", "max")
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        // Its processes have been killed by now.
        let gone = || std::fs::remove_dir(&self.folder).is_ok();
        let _ = eventually(Duration::from_secs(5), "the cgroup is empty", gone);
    }
}

#[test]
fn without_processes_it_stays_and_says_so_once() {
    let result = Lab::run("pids", |lab| {
        let lan = lab.switch("lan")?;
        for (number, applier) in [(1, IptablesNft), (2, Nftables)] {
            let pids = match Pids::create(lab) {
                Ok(pids) => pids,
                Err(reason) => {
                    println!("skipped, no cgroup can be made that limits processes: {reason:#}");
                    return Ok(());
                }
            };
            let node = Node::build(lab, &lan, number, applier)?;
            let mut daemon = start(&node, applier)?;
            // What is done once after the start shall be done.
            eventually(DEADLINE, "time passes", || daemon.metric("flannel_uptime_seconds").is_ok_and(|now| now >= 3.0))?;
            ensure!(complaints(&daemon).is_empty(), "{:#?}", complaints(&daemon));
            pids.write("cgroup.procs", &daemon.pid().to_string())?;
            pids.close()?;
            match applier {
                Nftables => node.run("nft", &["delete", "table", "ip", "flannel-ipv4"])?,
                _ => node.run("iptables-nft", &["-t", "nat", "-F"])?,
            };
            eventually(DEADLINE, "it is told", || !complaints(&daemon).is_empty())?;
            // Threads that wait for work end after 10 s, and no new ones can be had; then there is work.
            std::thread::sleep(Duration::from_secs(if applier == Nftables { 12 } else { 3 }));
            let mut options = node.options.clone().arg("--audit-interval=0");
            options = options.env("PATH", &Programs::all(lab, &format!("other-{number}"), applier.xtables())?.path());
            let other = lab.host(&format!("other{number}"), &[Uplink::enp0s8(&lan, 20 + number)?])?.flanneld(&options)?;
            std::thread::sleep(Duration::from_secs(1));
            let told = complaints(&daemon);
            println!("{applier:?}: {told:#?}");
            ensure!(daemon.is_running(), "it ended: {}", daemon.log_tail(20));
            ensure!(told.len() == 1 && !told[0].contains("install"), "{told:#?}");
            ensure!(!node.has_rules(applier), "the limit limits nothing: this test proves nothing");
            pids.open()?;
            let route = other.subnet_env()?.subnet.context("no v4 subnet")?.trunc().to_string();
            let routed = || node.host.netns().routes().is_ok_and(|routes| routes.iter().any(|found| found.dst == route));
            eventually(AGAIN, "a node that came meanwhile has a route", routed)?;
            eventually(AGAIN, "the rules come when there are processes again", || node.has_rules(applier))?;
            eventually(DEADLINE, "it is ready", || daemon.is_ready())?;
            ensure!(complaints(&daemon).len() == 1 && daemon.errors().is_empty(), "{:#?}", complaints(&daemon));
            daemon.terminate(DEADLINE)?;
        }
        Ok(())
    });
    result.unwrap();
}

#[test]
fn both_variants_filled_by_others_are_told_once() {
    Lab::run("filled", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, IptablesNft)?;
        start_anew(&node)?;
        let daemon = start(&node, IptablesNft)?;
        eventually(DEADLINE, "it is told", || !complaints(&daemon).is_empty())?;
        std::thread::sleep(Duration::from_secs(3));
        let told = complaints(&daemon);
        println!("{told:#?}");
        ensure!(told.len() == 1, "{told:#?}");
        let line = &told[0];
        ensure!(line.contains("legacy") && line.contains("nf_tables"), "{line}");
        ensure!(node.has_rules(IptablesNft) && !node.has_rules(IptablesLegacy));
        Ok(())
    })
    .unwrap();
}
