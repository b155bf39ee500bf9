//! Firewalls that drop pods' packets.

use crate::carrier::{Kind, kinds, words};
use crate::check::Check;
use crate::facts::{Facts, Network};
use crate::finding::{Finding, Severity};
use crate::firewalls::{Firewalls, Table};
use crate::need::Need;
use crate::nftables::{Barrier, Base};
use crate::shell::word;

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    check("ufw", "ufw refuses packets of other nodes", &["encap-blocked", "wireguard-silent", "one-way", "overlay-cut", "probe-filtered"], ufw),
    check(
        "firewalld",
        "firewalld drops packets of pods",
        &["encap-blocked", "wireguard-silent", "one-way", "overlay-cut", "probe-filtered"],
        firewalld,
    ),
    check("forward-policy", "A firewall's policy drops packets of pods", &[], forward_policy),
    check("forward-reject", "A firewall's rule rejects packets of pods", &[], forward_reject),
];

const fn check(id: &'static str, title: &'static str, explains: &'static [&'static str], judge: fn(&Facts) -> Vec<Finding>) -> Check {
    Check { id, severity: Severity::Broken, title, needs: &[Need::Network, Need::Firewalls], explains, waits: false, judge }
}

fn known(facts: &Facts) -> Option<(&Network, &Firewalls)> {
    facts.network.known().zip(facts.host.firewalls.known())
}

/// The tables of iptables, each with whether our jump is about to be added to its family: our rules are in one variant only.
fn tables<'a>(network: &'a Network, firewalls: &'a Firewalls) -> impl Iterator<Item = (&'a Table, bool)> {
    firewalls.tables.iter().map(move |table| {
        let mut family = firewalls.tables.iter().filter(|other| other.network == table.network);
        (table, network.forward && !network.nftables && !family.any(|other| other.jump))
    })
}

/// The commands that let pods' packets pass.
fn let_pass(table: &Table) -> [String; 2] {
    let Table { network, command, .. } = table;
    let chain = if table.docker { "DOCKER-USER" } else { "FORWARD" };
    [format!("{command} -I {chain} -s {network} -j ACCEPT"), format!("{command} -I {chain} -d {network} -j ACCEPT")]
}

fn forward_policy(facts: &Facts) -> Vec<Finding> {
    let Some((network, firewalls)) = known(facts) else { return Vec::new() };
    let mut findings = Vec::new();
    for (table, _) in tables(network, firewalls).filter(|(table, coming)| table.policy_drops && !table.accepted && !coming) {
        let command = &table.command;
        let docker = if table.docker { " (set by Docker)" } else { "" };
        let because = match (network.forward, network.nftables) {
            (false, _) => "--iptables-forward-rules is off",
            (true, true) => "flannel's rules in nftables cannot override it",
            (true, false) => "flannel's rules in the other variant of iptables cannot override it",
        };
        findings.push(
            Finding::new(
                "forward-policy",
                Severity::Broken,
                command,
                format!("the policy of FORWARD in {command} is DROP{docker}"),
                format!("packets from and to pods of other nodes are dropped: {because}"),
            )
            .seen("-P FORWARD DROP", format!("{command} -S FORWARD"))
            .run_all(let_pass(table)),
        );
    }
    findings.extend(firewalls.barriers.iter().filter(|barrier| !barrier.by_rule).map(|barrier| {
        let what =
            format!("the policy of the nftables chain {} (hook forward) is drop, and none of its rules accepts {}", path(barrier), barrier.network);
        barred("forward-policy", barrier, what)
    }));
    findings
}

fn forward_reject(facts: &Facts) -> Vec<Finding> {
    let Some((network, firewalls)) = known(facts) else { return Vec::new() };
    let mut findings = Vec::new();
    for (table, coming) in tables(network, firewalls) {
        let Some(rule) = &table.refusal else { continue };
        let command = &table.command;
        findings.push(
            Finding::new(
                "forward-reject",
                Severity::Broken,
                command,
                format!("{command} has the rule `{rule}` before any rule that accepts pods' packets"),
                match table.jump || coming {
                    true => "packets from and to pods of other nodes are rejected; --iptables-forward-insert puts flannel's rules first",
                    false => "packets from and to pods of other nodes are rejected",
                },
            )
            .seen(rule, format!("{command} -S FORWARD"))
            .run_all(let_pass(table)),
        );
    }
    findings.extend(firewalls.barriers.iter().filter(|barrier| barrier.by_rule).map(|barrier| {
        let what =
            format!("the nftables chain {} (hook forward) rejects all packets before any of its rules accepts {}", path(barrier), barrier.network);
        barred("forward-reject", barrier, what)
    }));
    findings
}

fn path(barrier: &Barrier) -> String {
    let Base { family, table, chain, .. } = &barrier.base;
    format!("{family} {table} {chain}")
}

/// An nftables chain: an accept in another chain does not override it.
fn barred(check: &str, barrier: &Barrier, what: String) -> Finding {
    let Base { family, table, chain, .. } = &barrier.base;
    let network = barrier.network;
    let keyword = if network.addr().is_ipv6() { "ip6" } else { "ip" };
    let place = format!("{} {} {}", word(family), word(table), word(chain));
    Finding::new(
        check,
        Severity::Broken,
        format!("{} {network}", path(barrier)),
        what,
        "packets from and to pods of other nodes are dropped: flannel's accept rules cannot override this chain",
    )
    .seen(format!("the chain {}", path(barrier)), format!("nft list chain {place}"))
    .run(format!("nft insert rule {place} {keyword} saddr {network} accept"))
    .run(format!("nft insert rule {place} {keyword} daddr {network} accept"))
}

fn ufw(facts: &Facts) -> Vec<Finding> {
    let Some((network, firewalls)) = known(facts) else { return Vec::new() };
    let Some(carrier) = &network.carrier else { return Vec::new() };
    let shut = firewalls.tables.iter().filter(|table| table.ufw && table.input_refuses && !table.tunnel_open);
    let shut = shut.filter(|table| network.travels_in(table.network.addr().is_ipv6()));
    let what = words(carrier);
    shut.map(|table| {
        let family = if table.network.addr().is_ipv6() { "IPv6" } else { "IPv4" };
        Finding::new(
            "ufw",
            Severity::Broken,
            family,
            format!("ufw is active and does not allow {what} over {family}"),
            "packets from other nodes to pods of this node are dropped",
        )
        .seen(format!("no rule of ufw accepts {what}"), format!("{} -S ufw-user-input", table.command))
        .run_all(kinds(carrier, table.network.addr().is_ipv6()).into_iter().flat_map(allowed_by_ufw))
    })
    .collect()
}

/// The commands by which ufw lets packets of a tunnel in.
fn allowed_by_ufw(kind: Kind) -> Vec<String> {
    match kind {
        Kind::Udp(port) => vec![format!("ufw allow {port}/udp")],
        // ufw's own language does not know the protocol: a rule at the end of its table filter.
        Kind::Ipip => vec![
            r"sed -i '/^\*filter/,/^COMMIT/ s/^COMMIT$/-A ufw-before-input -p 4 -j ACCEPT\nCOMMIT/' /etc/ufw/before.rules".to_owned(),
            "ufw reload".to_owned(),
        ],
    }
}

fn firewalld(facts: &Facts) -> Vec<Finding> {
    let Some((network, firewalls)) = known(facts) else { return Vec::new() };
    let Some(known) = &firewalls.firewalld else { return Vec::new() };
    let unknown: Vec<String> = network.networks.nets().filter(|net| !known.networks.contains(net)).map(|net| net.to_string()).collect();
    let shut = network.carrier.as_ref().filter(|_| !known.tunnel);
    if unknown.is_empty() && shut.is_none() {
        return Vec::new();
    }
    let mut missing = unknown.clone();
    missing.extend(shut.map(words));
    let mut commands: Vec<String> = unknown.iter().map(|net| format!("firewall-cmd --permanent --zone=trusted --add-source={net}")).collect();
    let added = |kind| match kind {
        Kind::Udp(port) => format!("firewall-cmd --permanent --add-port={port}/udp"),
        Kind::Ipip => "firewall-cmd --permanent --add-protocol=4".to_owned(),
    };
    commands.extend(shut.into_iter().flat_map(|carrier| kinds(carrier, false)).map(added));
    commands.push("firewall-cmd --reload".to_owned());
    vec![
        Finding::new(
            "firewalld",
            Severity::Broken,
            "",
            format!("firewalld is active and does not accept {}", missing.join(" and ")),
            "it may drop packets from and to pods of other nodes",
        )
        .seen("its rules refuse them", "nft list table inet firewalld")
        .run_all(commands),
    ]
}
