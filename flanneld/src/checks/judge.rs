//! From facts about the host to what is wrong with it, and to what may be set right: pure.

use super::firewalls::{Firewalls, Table};
use super::nftables::{Barrier, Base};
use super::subject::Subject;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// Every check, as the metric names it.
pub const CHECKS: [&str; 9] =
    ["ip-forward", "ipv6-forwarding", "br-netfilter", "bridge-nf-call", "rp-filter", "forward-policy", "forward-reject", "firewalld", "ufw"];

/// What is known of the host; what could not be read is none, and no reason to complain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The underlay's name.
    pub underlay: String,
    /// net.ipv4.ip_forward
    pub ip_forward: Option<i64>,
    /// net.ipv6.conf.all.forwarding
    pub v6_forwarding: Option<i64>,
    /// accept_ra of the underlay.
    pub accept_ra: Option<i64>,
    /// Whether br_netfilter is there.
    pub br_netfilter: bool,
    /// Why it could not be loaded.
    pub module: Option<String>,
    /// net.bridge.bridge-nf-call-iptables
    pub call_iptables: Option<i64>,
    /// net.bridge.bridge-nf-call-ip6tables
    pub call_ip6tables: Option<i64>,
    /// Tunnel devices on which rp_filter is strict.
    pub strict_tunnels: Vec<String>,
    /// Peers' addresses that this node would answer by another interface, where rp_filter is strict on the underlay.
    pub astray: Vec<IpAddr>,
    /// Firewalls.
    pub firewalls: Firewalls,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which of [`CHECKS`].
    pub check: &'static str,
    /// The family or device, where a check has several.
    pub about: String,
    /// What is so.
    pub what: String,
    /// What comes of it.
    pub consequence: String,
    /// What to type.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; remedy: {}", self.what, self.consequence, self.remedy)
    }
}

impl Finding {
    /// For /status.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({"check": self.check, "what": self.what, "consequence": self.consequence, "remedy": self.remedy})
    }
}

/// A sysctl to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// As sysctl(8) names it.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// What it is.
    pub old: i64,
    /// What it shall be.
    pub new: i64,
    /// Why, for the log.
    pub why: String,
}

impl Correction {
    fn new(name: &str, old: i64, new: i64, why: &str) -> Self {
        // A device's name may have a dot in it, as flannel.1: such a name is written with slashes.
        let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
        Self { name: name.to_owned(), path: PathBuf::from("/proc/sys").join(path), old, new, why: why.to_owned() }
    }
}

/// What `--set-sysctls` sets, in order.
pub fn corrections(subject: &Subject, facts: &Facts) -> Vec<Correction> {
    let (v4, v6) = (subject.networks.v4().is_some(), subject.networks.v6().is_some());
    let mut list = Vec::new();
    let forwards = "pods' packets pass through this node";
    if let Some(old @ 0) = facts.ip_forward.filter(|_| v4) {
        list.push(Correction::new("net.ipv4.ip_forward", old, 1, forwards));
    }
    if let Some(old @ 0) = facts.v6_forwarding.filter(|_| v6) {
        // First, or a default route from a router would be lost.
        if facts.accept_ra == Some(1) {
            let why = "a node that forwards listens to router advertisements with 2 only";
            list.push(Correction::new(&format!("net/ipv6/conf/{}/accept_ra", facts.underlay), 1, 2, why));
        }
        list.push(Correction::new("net.ipv6.conf.all.forwarding", old, 1, forwards));
    }
    let bridged = "packets on the pods' bridge meet the rules of services";
    if let Some(old @ 0) = facts.call_iptables.filter(|_| v4) {
        list.push(Correction::new("net.bridge.bridge-nf-call-iptables", old, 1, bridged));
    }
    if let Some(old @ 0) = facts.call_ip6tables.filter(|_| v6) {
        list.push(Correction::new("net.bridge.bridge-nf-call-ip6tables", old, 1, bridged));
    }
    list
}

/// What is wrong.
pub fn judge(subject: &Subject, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    sysctls(subject, facts, &mut findings);
    for table in &facts.firewalls.tables {
        // Our rules are in one variant only; while they are in none, they are on their way.
        let family = |other: &&Table| other.network == table.network;
        let coming = subject.forward && !subject.nftables && !facts.firewalls.tables.iter().filter(family).any(|other| other.jump);
        forward(subject, table, coming, &mut findings);
        ufw(subject, table, &mut findings);
    }
    facts.firewalls.barriers.iter().for_each(|barrier| nftables(barrier, &mut findings));
    firewalld(subject, facts, &mut findings);
    findings
}

/// A chain of nftables: what others accept cannot overrule it.
fn nftables(barrier: &Barrier, findings: &mut Vec<Finding>) {
    let Barrier { base: Base { family, table, chain, .. }, network, by_rule } = barrier;
    let place = format!("{family} {table} {chain}");
    let words = if network.addr().is_ipv6() { "ip6" } else { "ip" };
    let (check, what) = match by_rule {
        false => ("forward-policy", format!("the policy of the nftables chain {place} (hook forward) is drop, and no rule of it accepts {network}")),
        true => ("forward-reject", format!("the nftables chain {place} (hook forward) refuses everything before any rule of it accepts {network}")),
    };
    findings.push(Finding {
        check,
        about: format!("{place} {network}"),
        what,
        consequence: "packets from and to pods of other nodes are dropped: what flannel's rules accept cannot overrule it".to_owned(),
        remedy: format!("nft insert rule {place} {words} saddr {network} accept; nft insert rule {place} {words} daddr {network} accept"),
    });
}

fn sysctls(subject: &Subject, facts: &Facts, findings: &mut Vec<Finding>) {
    let (v4, v6) = (subject.networks.v4().is_some(), subject.networks.v6().is_some());
    let mut find = |check, about: &str, what: String, consequence: &str, remedy: String| {
        findings.push(Finding { check, about: about.to_owned(), what, consequence: consequence.to_owned(), remedy });
    };
    let set = |name: &str| format!("sysctl -w {name}=1 (or start flanneld with --set-sysctls)");
    for (used, value, check, name, words) in [
        (v4, facts.ip_forward, "ip-forward", "net.ipv4.ip_forward", "this node passes on no IPv4 packet between pods and other nodes"),
        (
            v6,
            facts.v6_forwarding,
            "ipv6-forwarding",
            "net.ipv6.conf.all.forwarding",
            "this node passes on no IPv6 packet between pods and other nodes",
        ),
    ] {
        if used && value == Some(0) {
            find(check, "", format!("{name} is 0"), words, set(name));
        }
    }
    let consequence = "pods do not reach pods of the same node by the address of a service";
    if subject.nftables {
    } else if !facts.br_netfilter {
        let why = facts.module.as_ref().map(|why| format!(" and could not be loaded ({why})")).unwrap_or_default();
        let remedy = "modprobe br_netfilter (and a file in /etc/modules-load.d with that word, to keep it)".to_owned();
        find("br-netfilter", "", format!("the kernel module br_netfilter is not there{why}"), consequence, remedy);
    } else {
        for (used, value, name) in
            [(v4, facts.call_iptables, "net.bridge.bridge-nf-call-iptables"), (v6, facts.call_ip6tables, "net.bridge.bridge-nf-call-ip6tables")]
        {
            if used && value == Some(0) {
                find("bridge-nf-call", name, format!("{name} is 0"), consequence, set(name));
            }
        }
    }
    if !v4 {
        return;
    }
    for device in &facts.strict_tunnels {
        find(
            "rp-filter",
            device,
            format!("rp_filter is strict on {device}"),
            "packets out of the tunnel from an address that this node answers by another interface are dropped: those of programs bound to a node's own address",
            format!("sysctl -w net/ipv4/conf/{device}/rp_filter=2"),
        );
    }
    if let Some(first) = facts.astray.first() {
        let underlay = &facts.underlay;
        find(
            "rp-filter",
            underlay,
            format!("rp_filter is strict on {underlay}, and the way to {} peer(s), such as {first}, is not by {underlay}", facts.astray.len()),
            "what they send is dropped before flannel sees it",
            format!("sysctl -w net/ipv4/conf/{underlay}/rp_filter=2, or choose the interface that leads there with --iface"),
        );
    }
}

/// iptables' FORWARD: its policy, and what stands before our jump.
fn forward(subject: &Subject, table: &Table, coming: bool, findings: &mut Vec<Finding>) {
    let Table { network, command, .. } = table;
    let docker = if table.docker { " (Docker is here)" } else { "" };
    let chain = if table.docker { "DOCKER-USER" } else { "FORWARD" };
    let let_pass = format!("{command} -I {chain} -s {network} -j ACCEPT; {command} -I {chain} -d {network} -j ACCEPT");
    if table.policy_drops && !table.accepted && !coming {
        let because = match (subject.forward, subject.nftables) {
            (false, _) => "--iptables-forward-rules is off",
            (true, true) => "flannel's rules in nftables cannot overrule it",
            (true, false) => "flannel's rules in the other variant of iptables cannot overrule it",
        };
        findings.push(Finding {
            check: "forward-policy",
            about: command.clone(),
            what: format!("the policy of FORWARD in {command} is DROP{docker}"),
            consequence: format!("packets from and to pods of other nodes are dropped: {because}"),
            remedy: let_pass.clone(),
        });
    }
    if let Some(rule) = &table.refusal {
        let ours = table.jump || coming;
        findings.push(Finding {
            check: "forward-reject",
            about: command.clone(),
            what: format!("{command} has the rule `{rule}` before any that lets pods' packets pass"),
            consequence: "packets from and to pods of other nodes are refused".to_owned(),
            remedy: if ours { "start flanneld with --iptables-forward-insert".to_owned() } else { let_pass },
        });
    }
}

fn ufw(subject: &Subject, table: &Table, findings: &mut Vec<Finding>) {
    let Some(port) = subject.port.filter(|_| table.ufw && table.input_refuses && !table.port_open) else { return };
    let family = if table.network.addr().is_ipv6() { "IPv6" } else { "IPv4" };
    findings.push(Finding {
        check: "ufw",
        about: family.to_owned(),
        what: format!("ufw is active and does not let {family} UDP port {port} in"),
        consequence: "what other nodes send to pods of this node is dropped".to_owned(),
        remedy: format!("ufw allow {port}/udp"),
    });
}

fn firewalld(subject: &Subject, facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(known) = &facts.firewalls.firewalld else { return };
    let unknown: Vec<String> = subject.networks.nets().filter(|net| !known.networks.contains(net)).map(|net| net.to_string()).collect();
    let shut = subject.port.filter(|_| !known.port);
    if unknown.is_empty() && shut.is_none() {
        return;
    }
    let mut lacks = unknown.clone();
    lacks.extend(shut.map(|port| format!("UDP port {port}")));
    let mut commands: Vec<String> = unknown.iter().map(|net| format!("firewall-cmd --permanent --zone=trusted --add-source={net}")).collect();
    commands.extend(shut.map(|port| format!("firewall-cmd --permanent --add-port={port}/udp")));
    commands.push("firewall-cmd --reload".to_owned());
    findings.push(Finding {
        check: "firewalld",
        about: String::new(),
        what: format!("firewalld is active and knows nothing of {}", lacks.join(" and ")),
        consequence: "it may drop packets from and to pods of other nodes".to_owned(),
        remedy: commands.join(" && "),
    });
}
