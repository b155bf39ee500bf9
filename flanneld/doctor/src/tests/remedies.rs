//! The doctor's firewall and sysctl commands take effect and survive a reboot.

use super::cases::{inside, paths, spoiled};
use super::healthy::healthy;
use super::listings::{around, barriers, listed, network, table};
use super::{causes, commands_of, only, report};
use crate::fact::Fact;
use crate::facts::Facts;
use crate::facts::mesh::State;
use crate::finding::{Finding, Severity};
use crate::firewalls::{Firewalls, Table};
use std::process::Command;
use types::Dual;

/// Runs iptables in a new network namespace with the arguments in each line; the output is that of `iptables-save`.
fn saved(lines: &str) -> String {
    let script: String =
        lines.lines().map(|line| format!("iptables-nft {}\n", line.trim())).collect();
    let output = Command::new("unshare")
        .args(["-n", "sh", "-ec", &format!("{script}iptables-nft-save -t filter")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn read(lines: &str) -> Table {
    table(
        &saved(lines),
        &"10.244.0.0/16".parse().unwrap(),
        network().tunnel(),
        &around(),
        "iptables",
    )
}

/// A node with these rules in iptables and with flannel's rules in nftables.
fn behind(lines: &str) -> Facts {
    by(Firewalls { tables: vec![read(lines)], ..Firewalls::default() })
}

fn by(firewalls: Firewalls) -> Facts {
    let mut facts = healthy();
    inside(&mut facts.network).nftables = true;
    facts.host.firewalls = Fact::Known(firewalls);
    super::healthy::forget_probes(&mut facts);
    facts
}

fn by_iptables(lines: &str) -> Vec<Finding> {
    report(&behind(lines)).findings
}

fn by_nft(script: &str) -> Vec<Finding> {
    let barriers = barriers(&listed(script)[1], &["10.244.0.0/16".parse().unwrap()]);
    report(&by(Firewalls { barriers, ..Firewalls::default() })).findings
}

/// Each before a rule that rejects all packets, with the severity of the finding.
const IPTABLES: &[(&str, Option<Severity>)] = &[
    ("-A FORWARD -s 10.244.0.0/16 -d 10.244.0.0/16 -j ACCEPT", None),
    ("-A FORWARD -i cni0 -o flannel.1 -j ACCEPT\n-A FORWARD -i flannel.1 -o cni0 -j ACCEPT", None),
    ("-A FORWARD -i cni0 -o flannel.1 -j ACCEPT", None),
    ("-A FORWARD -s 10.244.0.0/16 -m conntrack --ctstate NEW -j ACCEPT", None),
    ("-N own\n-A own -s 10.244.0.0/16 -j ACCEPT\n-A FORWARD -j own", None),
    ("-N own\n-A own -j ACCEPT\n-A FORWARD -s 10.244.0.0/16 -g own", None),
    ("-A FORWARD -s 10.244.0.0/17 -j ACCEPT\n-A FORWARD -s 10.244.128.0/17 -j ACCEPT", None),
    ("-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT", Some(Severity::Risk)),
    ("-N own\n-A own -m mark --mark 7 -j ACCEPT\n-A FORWARD -j own", Some(Severity::Risk)),
    // None of these rules accepts pod packets.
    ("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", Some(Severity::Broken)),
    ("-A FORWARD -i docker0 -j ACCEPT\n-A FORWARD -o docker0 -j ACCEPT", Some(Severity::Broken)),
    ("-A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT", Some(Severity::Broken)),
    ("-A FORWARD -s 10.96.0.0/12 -p tcp --dport 443 -j ACCEPT", Some(Severity::Broken)),
];

#[test]
fn iptables_rules_that_let_pods_pass_are_never_broken() {
    for (rules, wanted) in IPTABLES {
        for (check, last) in
            [("forward-reject", "-A FORWARD -j REJECT"), ("forward-policy", "-P FORWARD DROP")]
        {
            let found = by_iptables(&format!("{rules}\n{last}"));
            let severities: Vec<Severity> = found
                .iter()
                .filter(|finding| finding.check == check)
                .map(|finding| finding.severity)
                .collect();
            assert_eq!(severities, wanted.iter().copied().collect::<Vec<_>>(), "{rules}\n{last}");
        }
    }
}

/// Each with the severity of the expected finding, if any. `{pods}` stands for the pods' network.
const NFTABLES: &[(&str, Option<Severity>)] = &[
    ("ip saddr {pods} ct state new accept", None),
    ("ip saddr {pods} ip daddr {pods} accept", None),
    ("ct state new jump own", None),
    ("ct state vmap { established : accept, new : jump own }", None),
    ("ip saddr . ip daddr { {pods} . {pods} } accept", None),
    ("ip saddr 10.244.0.0/17 accept; ip saddr 10.244.128.0/17 accept", None),
    ("iifname . oifname { \"cni0\" . \"flannel.1\", \"flannel.1\" . \"cni0\" } accept", None),
    ("iifname . oifname vmap { \"cni0\" . \"flannel.1\" : accept }", None),
    ("meta mark 7 accept", Some(Severity::Risk)),
    (
        "ct state established,related accept; tcp dport 22 accept; iifname \"docker0\" accept",
        Some(Severity::Broken),
    ),
];

#[test]
fn nftables_rules_that_let_pods_pass_are_never_broken() {
    let pods = "10.244.0.0/16";
    for (rules, wanted) in NFTABLES {
        let rules = rules.replace("{pods}", pods);
        for (policy, last) in [("drop", ""), ("accept", "reject")] {
            let script = format!(
                "table inet wall {{ chain own {{ ip saddr {pods} accept; }}\n chain gate {{ type filter hook forward priority 0; policy {policy}; {rules}; {last}\n }}\n }}"
            );
            let severities: Vec<Severity> =
                by_nft(&script).iter().map(|finding| finding.severity).collect();
            assert_eq!(severities, wanted.iter().copied().collect::<Vec<_>>(), "{script}");
        }
    }
}

/// Applies iptables rules, runs a finding's commands unchanged, and lists the rules of the chain.
fn applied(lines: &str, check: &str, chain: &str) -> Vec<String> {
    let found = by_iptables(lines).into_iter().find(|finding| finding.check == check).unwrap();
    let now = found.remedy.commands.iter().filter(|command| command.starts_with("iptables "));
    let script: String = lines
        .lines()
        .map(str::to_owned)
        .map(|line| format!("iptables {line}\n"))
        .chain(now.map(|command| format!("{command}\n")))
        .collect();
    let output = Command::new("unshare")
        .args(["-n", "sh", "-ec", &format!("{script}iptables -S {chain}")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}{output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("-A"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn accept_rules_come_after_network_policies_and_before_what_rejects() {
    let policies = "-N cali-FORWARD\n-N KUBE-ROUTER-FORWARD\n-A FORWARD -j cali-FORWARD\n-A FORWARD -j KUBE-ROUTER-FORWARD";
    let ours = ["-A FORWARD -d 10.244.0.0/16 -j ACCEPT", "-A FORWARD -s 10.244.0.0/16 -j ACCEPT"];
    let reject = "-A FORWARD -j REJECT --reject-with icmp-port-unreachable";
    let first = ["-A FORWARD -j cali-FORWARD", "-A FORWARD -j KUBE-ROUTER-FORWARD"];
    assert_eq!(
        applied(&format!("{policies}\n-A FORWARD -j REJECT"), "forward-reject", "FORWARD"),
        [&first[..], &ours[..], &[reject]].concat()
    );
    // Packets do not reach policies after the rejecting rule, so that rule moves to the end.
    let behind = "-N cali-FORWARD\n-A FORWARD -j REJECT\n-A FORWARD -j cali-FORWARD";
    let moved = applied(behind, "forward-reject", "FORWARD");
    assert_eq!(moved, ["-A FORWARD -j cali-FORWARD", ours[1], ours[0], reject]);
    assert_eq!(
        applied(&format!("{policies}\n-P FORWARD DROP"), "forward-policy", "FORWARD"),
        [&first[..], &[ours[1], ours[0]]].concat()
    );
    assert_eq!(
        applied("-A FORWARD -j REJECT", "forward-reject", "FORWARD"),
        [&ours[..], &[reject]].concat()
    );
}

#[test]
fn commands_of_all_findings_typed_twice_keep_network_policies() {
    let lines =
        "-P FORWARD DROP\n-N cali-FORWARD\n-A FORWARD -j REJECT\n-A FORWARD -j cali-FORWARD";
    let found = by_iptables(lines);
    assert_eq!(
        found.iter().filter(|finding| finding.check.starts_with("forward-")).count(),
        2,
        "{found:?}"
    );
    let commands: Vec<&String> = found
        .iter()
        .flat_map(|finding| &finding.remedy.commands)
        .filter(|command| !command.starts_with('#'))
        .collect();
    // The chains of policies do not exist yet at boot, so no rules are kept that would come before them.
    assert!(commands.iter().all(|command| command.starts_with("iptables ")), "{commands:?}");
    let script: String = lines
        .lines()
        .map(|line| format!("iptables {line}\n"))
        .chain(commands.iter().chain(&commands).map(|command| format!("{command}\n")))
        .collect();
    let output = Command::new("unshare")
        .args(["-n", "sh", "-c", &format!("{script}iptables -S FORWARD")])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let at = |part: &str| text.lines().position(|line| line.contains(part));
    assert!(
        at("cali-FORWARD").is_some()
            && at("cali-FORWARD") < at("ACCEPT")
            && at("ACCEPT") < at("REJECT"),
        "{text}"
    );
}

/// Packets that arrive over one family prove nothing about the firewall of the other.
#[test]
fn firewall_of_one_family_is_not_acquitted_by_the_other() {
    let mut facts = spoiled("ufw");
    let mut other = paths(&mut facts)[0].clone();
    (other.verdict.state, other.address, other.subnet) =
        (State::Well, "2001:db8::2".parse().unwrap(), "fd00:244:2::/64".parse().unwrap());
    paths(&mut facts).push(other);
    assert_eq!(only(&facts, "ufw").severity, Severity::Broken);
}

#[test]
fn nft_rules_come_before_what_rejects_and_not_before_network_policies() {
    let run = |rules: &str| {
        let script = format!(
            "table inet wall {{ chain cali-FORWARD {{ }}\n chain gate {{ type filter hook forward priority 0; {rules}\n }}\n }}"
        );
        let found = by_nft(&script);
        let now: String = found[0]
            .remedy
            .commands
            .iter()
            .filter(|command| command.starts_with("nft "))
            .map(|command| format!("{command}\n"))
            .collect();
        let script = format!("nft -f - <<'END'\n{script}\nEND\n{now}nft list chain inet wall gate");
        let output = Command::new("unshare").args(["-n", "sh", "-ec", &script]).output().unwrap();
        assert!(output.status.success(), "{script}{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .map(str::trim)
            .filter(|line| {
                ["accept", "reject", "jump"].iter().any(|word| line.contains(word))
                    && !line.starts_with("type")
            })
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let ours = ["ip saddr 10.244.0.0/16 accept", "ip daddr 10.244.0.0/16 accept"];
    assert_eq!(run("policy drop; jump cali-FORWARD"), [&["jump cali-FORWARD"], &ours[..]].concat());
    assert_eq!(
        run("policy accept; jump cali-FORWARD; reject"),
        [&["jump cali-FORWARD"], &ours[..], &["reject"]].concat()
    );
    assert_eq!(
        run("policy accept; reject; jump cali-FORWARD"),
        ["reject", "jump cali-FORWARD"],
        "no command is right"
    );
}

/// All paths to peers in the state.
fn heard(facts: &Facts, state: &State) -> Facts {
    let mut facts = facts.clone();
    paths(&mut facts).iter_mut().for_each(|path| path.verdict.state = *state);
    facts
}

#[test]
fn firewall_that_probes_refute_is_no_finding() {
    for check in ["ufw", "firewalld", "rp-filter"] {
        let mut facts = spoiled(check);
        if let Some(firewalld) = &mut inside(&mut facts.host.firewalls).firewalld {
            // firewalld accepts pod packets, because probes could not refute a finding about those.
            firewalld.networks = network().networks.nets().collect();
        }
        let mut well = heard(&facts, &State::Well);
        assert_eq!(report(&well).findings, [], "{check}");
        let cut = heard(&facts, &State::OneWay);
        assert_eq!(only(&cut, check).severity, Severity::Broken, "{check}");
        assert_eq!(causes(&cut), [check]);
        paths(&mut well)[0].verdict.state = State::OneWay;
        let wanted = if check == "rp-filter" { check } else { "one-way" };
        assert_eq!(causes(&well), [wanted], "the other peer's packets arrive");
    }
}

#[test]
fn rule_of_input_that_is_not_understood_hides_nothing_that_probes_miss() {
    let facts = behind(
        "-P INPUT DROP\n-N ufw-before-input\n-A INPUT -j ufw-before-input\n-A ufw-before-input -m mark --mark 7 -j ACCEPT",
    );
    assert!(report(&heard(&facts, &State::Well)).findings.is_empty());
    assert_eq!(only(&heard(&facts, &State::OneWay), "ufw").severity, Severity::Broken);
}

#[test]
fn tunnel_is_opened_only_where_this_host_is_seen_to_refuse_it() {
    for (lines, place) in [
        ("-A INPUT -i lo -j ACCEPT\n-A INPUT -p udp --dport 8472 -j DROP", Some("2 ")),
        (
            "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -j REJECT",
            Some("2 "),
        ),
        ("-P INPUT DROP", Some("")),
        // Rules for other interfaces, protocols or senders do not drop the tunnel, so another host does.
        ("-A INPUT -i eth9 -j DROP", None),
        ("-A INPUT -p tcp --dport 8472 -j DROP", None),
        ("-A INPUT -s 203.0.113.5 -j DROP", None),
        ("-P INPUT ACCEPT", None),
    ] {
        let state = if place.is_some() { State::OneWay } else { State::OverlayCut };
        let commands = only(&heard(&behind(lines), &state), "encap-blocked").remedy.commands;
        let wanted = place.map_or("flannelctl doctor".to_owned(), |place| {
            format!(
                "iptables -I INPUT {place}-i eth0 -s 192.0.2.0/24 -p udp --dport 8472 -j ACCEPT"
            )
        });
        assert_eq!(commands[0], wanted, "{lines}");
    }
}

#[test]
fn peers_outside_the_underlays_network_are_named_one_by_one() {
    let mut facts = spoiled("ufw");
    inside(&mut facts.leases.peers)[1].public = Some(Dual::V4([198, 18, 7, 9].into()));
    assert_eq!(
        commands_of(&facts, "ufw"),
        ["192.0.2.0/24", "198.18.7.9/32"]
            .map(|net| format!("ufw allow in on eth0 from {net} to any port 8472 proto udp"))
    );
    // If neither nodes nor addresses are known, no command would be right.
    facts.daemon.choice = Fact::Absent;
    facts.leases.peers = Fact::Known(Vec::new());
    assert!(commands_of(&facts, "ufw").is_empty());
}
