//! From facts about the host to findings and corrections: pure.

use super::firewalls::{Firewalls, Table};
use super::nftables::{Barrier, Base};
use super::subject::Subject;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// The names of all checks, as in the metric.
pub const CHECKS: [&str; 9] =
    ["ip-forward", "ipv6-forwarding", "br-netfilter", "bridge-nf-call", "rp-filter", "forward-policy", "forward-reject", "firewalld", "ufw"];

/// What is known of the host. A value that could not be read is `None` and causes no finding.
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
    /// Whether br_netfilter is loaded.
    pub br_netfilter: bool,
    /// Why it could not be loaded.
    pub module: Option<String>,
    /// net.bridge.bridge-nf-call-iptables
    pub call_iptables: Option<i64>,
    /// net.bridge.bridge-nf-call-ip6tables
    pub call_ip6tables: Option<i64>,
    /// Tunnel devices on which rp_filter is strict.
    pub strict_tunnels: Vec<String>,
    /// Addresses of peers that this node reaches through another interface while rp_filter is strict on the underlay.
    pub astray: Vec<IpAddr>,
    /// Firewalls.
    pub firewalls: Firewalls,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// One of [`CHECKS`].
    pub check: &'static str,
    /// The family or device, if a check has several.
    pub about: String,
    /// The state that was found.
    pub what: String,
    /// Its consequence.
    pub consequence: String,
    /// The commands that fix it.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; remedy: {}", self.what, self.consequence, self.remedy)
    }
}

impl Finding {
    /// The entry in /status.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({"check": self.check, "what": self.what, "consequence": self.consequence, "remedy": self.remedy})
    }
}

/// A sysctl to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Its name, as in sysctl(8).
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// The current value.
    pub old: i64,
    /// The desired value.
    pub new: i64,
    /// The reason, for the log.
    pub why: String,
}

impl Correction {
    fn new(name: &str, old: i64, new: i64, why: &str) -> Self {
        // A device name such as flannel.1 contains a dot: such a name is written with slashes.
        let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
        Self { name: name.to_owned(), path: PathBuf::from("/proc/sys").join(path), old, new, why: why.to_owned() }
    }
}

/// The sysctls that `--set-sysctls` sets, in order.
pub fn corrections(subject: &Subject, facts: &Facts) -> Vec<Correction> {
    let (v4, v6) = (subject.networks.v4().is_some(), subject.networks.v6().is_some());
    let mut list = Vec::new();
    let forwards = "this node has to forward pods' packets";
    if let Some(old @ 0) = facts.ip_forward.filter(|_| v4) {
        list.push(Correction::new("net.ipv4.ip_forward", old, 1, forwards));
    }
    if let Some(old @ 0) = facts.v6_forwarding.filter(|_| v6) {
        // This one first, or a default route learned from a router would be lost.
        if facts.accept_ra == Some(1) {
            let why = "a node that forwards accepts router advertisements only with 2";
            list.push(Correction::new(&format!("net/ipv6/conf/{}/accept_ra", facts.underlay), 1, 2, why));
        }
        list.push(Correction::new("net.ipv6.conf.all.forwarding", old, 1, forwards));
    }
    let bridged = "service rules have to apply to packets on the pods' bridge";
    if let Some(old @ 0) = facts.call_iptables.filter(|_| v4) {
        list.push(Correction::new("net.bridge.bridge-nf-call-iptables", old, 1, bridged));
    }
    if let Some(old @ 0) = facts.call_ip6tables.filter(|_| v6) {
        list.push(Correction::new("net.bridge.bridge-nf-call-ip6tables", old, 1, bridged));
    }
    list
}

/// The findings for these facts.
pub fn judge(subject: &Subject, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    sysctls(subject, facts, &mut findings);
    for table in &facts.firewalls.tables {
        // Our rules are in one variant only; if they are in none, they are about to be added.
        let family = |other: &&Table| other.network == table.network;
        let coming = subject.forward && !subject.nftables && !facts.firewalls.tables.iter().filter(family).any(|other| other.jump);
        forward(subject, table, coming, &mut findings);
        ufw(subject, table, &mut findings);
    }
    facts.firewalls.barriers.iter().for_each(|barrier| nftables(barrier, &mut findings));
    firewalld(subject, facts, &mut findings);
    findings
}

/// An nftables chain: an accept in another chain does not override it.
fn nftables(barrier: &Barrier, findings: &mut Vec<Finding>) {
    let Barrier { base: Base { family, table, chain, .. }, network, by_rule } = barrier;
    let path = format!("{family} {table} {chain}");
    let keyword = if network.addr().is_ipv6() { "ip6" } else { "ip" };
    let (check, what) = match by_rule {
        false => {
            ("forward-policy", format!("the policy of the nftables chain {path} (hook forward) is drop, and none of its rules accepts {network}"))
        }
        true => ("forward-reject", format!("the nftables chain {path} (hook forward) rejects all packets before any of its rules accepts {network}")),
    };
    findings.push(Finding {
        check,
        about: format!("{path} {network}"),
        what,
        consequence: "packets from and to pods of other nodes are dropped: flannel's accept rules cannot override this chain".to_owned(),
        remedy: format!("nft insert rule {path} {keyword} saddr {network} accept; nft insert rule {path} {keyword} daddr {network} accept"),
    });
}

fn sysctls(subject: &Subject, facts: &Facts, findings: &mut Vec<Finding>) {
    let (v4, v6) = (subject.networks.v4().is_some(), subject.networks.v6().is_some());
    let mut find = |check, about: &str, what: String, consequence: &str, remedy: String| {
        findings.push(Finding { check, about: about.to_owned(), what, consequence: consequence.to_owned(), remedy });
    };
    let set = |name: &str| format!("sysctl -w {name}=1 (or start flanneld with --set-sysctls)");
    for (used, value, check, name, words) in [
        (v4, facts.ip_forward, "ip-forward", "net.ipv4.ip_forward", "this node forwards no IPv4 packets between pods and other nodes"),
        (
            v6,
            facts.v6_forwarding,
            "ipv6-forwarding",
            "net.ipv6.conf.all.forwarding",
            "this node forwards no IPv6 packets between pods and other nodes",
        ),
    ] {
        if used && value == Some(0) {
            find(check, "", format!("{name} is 0"), words, set(name));
        }
    }
    let consequence = "pods do not reach pods of the same node through a service address";
    if subject.nftables {
    } else if !facts.br_netfilter {
        let why = facts.module.as_ref().map(|why| format!(" and could not be loaded ({why})")).unwrap_or_default();
        let remedy = "modprobe br_netfilter (and list it in a file in /etc/modules-load.d to load it at boot)".to_owned();
        find("br-netfilter", "", format!("the kernel module br_netfilter is not loaded{why}"), consequence, remedy);
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
            "packets from the tunnel are dropped if this node reaches their source through another interface: those of programs bound to a node's own address",
            format!("sysctl -w net/ipv4/conf/{device}/rp_filter=2"),
        );
    }
    if let Some(first) = facts.astray.first() {
        let underlay = &facts.underlay;
        find(
            "rp-filter",
            underlay,
            format!("rp_filter is strict on {underlay}, but the route to {} peer(s), such as {first}, does not use {underlay}", facts.astray.len()),
            "packets from these peers are dropped before flannel sees them",
            format!("sysctl -w net/ipv4/conf/{underlay}/rp_filter=2, or choose the interface that reaches them with --iface"),
        );
    }
}

/// The FORWARD chain of iptables: its policy, and the rules before our jump.
fn forward(subject: &Subject, table: &Table, coming: bool, findings: &mut Vec<Finding>) {
    let Table { network, command, .. } = table;
    let docker = if table.docker { " (set by Docker)" } else { "" };
    let chain = if table.docker { "DOCKER-USER" } else { "FORWARD" };
    let let_pass = format!("{command} -I {chain} -s {network} -j ACCEPT; {command} -I {chain} -d {network} -j ACCEPT");
    if table.policy_drops && !table.accepted && !coming {
        let because = match (subject.forward, subject.nftables) {
            (false, _) => "--iptables-forward-rules is off",
            (true, true) => "flannel's rules in nftables cannot override it",
            (true, false) => "flannel's rules in the other variant of iptables cannot override it",
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
            what: format!("{command} has the rule `{rule}` before any rule that accepts pods' packets"),
            consequence: "packets from and to pods of other nodes are rejected".to_owned(),
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
        what: format!("ufw is active and does not allow {family} UDP port {port}"),
        consequence: "packets from other nodes to pods of this node are dropped".to_owned(),
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
    let mut missing = unknown.clone();
    missing.extend(shut.map(|port| format!("UDP port {port}")));
    let mut commands: Vec<String> = unknown.iter().map(|net| format!("firewall-cmd --permanent --zone=trusted --add-source={net}")).collect();
    commands.extend(shut.map(|port| format!("firewall-cmd --permanent --add-port={port}/udp")));
    commands.push("firewall-cmd --reload".to_owned());
    findings.push(Finding {
        check: "firewalld",
        about: String::new(),
        what: format!("firewalld is active and does not accept {}", missing.join(" and ")),
        consequence: "it may drop packets from and to pods of other nodes".to_owned(),
        remedy: commands.join(" && "),
    });
}
