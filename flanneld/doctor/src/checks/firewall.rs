//! Checks for firewalls that drop pod packets.

use crate::check::Check;
use crate::encapsulation::words;
use crate::facts::{Facts, Network};
use crate::finding::{Finding, Severity};
use crate::firewalls::{Barrier, Block, Firewalls, Table};
use crate::let_in::{self, Origin, Program, RELOAD};
use crate::need::Need;
use crate::persist;
use crate::shell::{iptables_rule, is_nft_name, word};
use types::Family;

pub const CHECKS: &[Check] = &[
    check(
        "ufw",
        "ufw drops packets of other nodes",
        &["encap-blocked", "wireguard-silent", "one-way", "overlay-cut", "probe-filtered"],
        ufw,
    ),
    check(
        "firewalld",
        "firewalld drops packets of pods",
        &["encap-blocked", "wireguard-silent", "one-way", "overlay-cut", "probe-filtered"],
        firewalld,
    ),
    check(
        "forward-policy",
        "A firewall's policy drops packets of pods",
        &["pods-lost"],
        forward_policy,
    ),
    check(
        "forward-reject",
        "A firewall's rule rejects packets of pods",
        &["pods-lost"],
        forward_reject,
    ),
];

const fn check(
    id: &'static str,
    title: &'static str,
    explains: &'static [&'static str],
    judge: fn(&Facts) -> Vec<Finding>,
) -> Check {
    Check::new(id, Severity::Broken, title, &[Need::Network, Need::Firewalls], explains, judge)
}

fn known(facts: &Facts) -> Option<(&Network, &Firewalls)> {
    facts.network.known().zip(facts.host.firewalls.known())
}

/// The tables of iptables, each with whether flanneld needs its jump rule but no variant has the rule for the address family yet. flanneld adds the
/// jump rule to only one variant.
fn tables<'a>(
    network: &'a Network,
    firewalls: &'a Firewalls,
) -> impl Iterator<Item = (&'a Table, bool)> {
    firewalls.tables.iter().map(move |table| {
        let mut family = firewalls.tables.iter().filter(|other| other.network == table.network);
        (table, network.forward && !network.nftables && !family.any(|other| other.jump))
    })
}

/// `risk` if an earlier rule may accept the packets, otherwise `broken`.
fn by_doubt(doubt: bool) -> Severity {
    if doubt { Severity::Risk } else { Severity::Broken }
}

/// Accepts pod packets after the chains of network policies and before the rule that rejects all packets.
fn let_pass(table: &Table) -> Vec<String> {
    let Table { network, command, .. } = table;
    let rule =
        |place: &str, side: &str| (command.clone(), format!("{place} -{side} {network} -j ACCEPT"));
    let both = |place: &str| vec![rule(place, "s"), rule(place, "d")];
    // With network policies, the rules are not kept for the next boot. The policies' chains do not exist then, and an agent may append its jump after
    // the rules.
    let kept = |rules: &[(String, String)]| {
        if table.policies.is_some() { Vec::new() } else { rules.to_vec() }
    };
    let unit = format!("flannel-forward-{command}");
    let first = both("-I FORWARD");
    let refusal =
        table.refusal().and_then(|block| block.stop.number.map(|number| (&block.stop, number)));
    let mut commands = match (refusal, table.policies) {
        // An accept rule before the rejecting rule would bypass the policies after the rejecting rule. The commands therefore move the rejecting rule
        // to the end.
        (Some((refusal, number)), Some(policies)) if policies > number => {
            if refusal.chain != refusal.base {
                // The rejecting rule is in a chain that FORWARD calls. The commands would have to move that whole chain.
                return Vec::new();
            }
            // The command deletes the rule by its text. With a rule number, a second run of the command would delete another rule.
            let rule = iptables_rule(&refusal.rule);
            let mut now = vec![(command.clone(), rule.replacen("-A", "-D", 1))];
            now.extend(both("-A FORWARD"));
            now.push((command.clone(), rule));
            persist::iptables(&unit, &now, &kept(&first))
        }
        (Some((_, number)), _) if number > 1 => {
            persist::iptables(&unit, &both(&format!("-I FORWARD {number}")), &kept(&first))
        }
        (Some(_), _) => persist::iptables(&unit, &first, &kept(&first)),
        // The policy applies after all rules, so accept rules at the end are enough.
        (None, _) => persist::iptables(&unit, &both("-A FORWARD"), &kept(&both("-A FORWARD"))),
    };
    if table.policies.is_some() {
        commands.push("# these rules do not survive a reboot: rules added at boot would precede the chains of network policies".to_owned());
    }
    commands
}

fn forward_policy(facts: &Facts) -> Vec<Finding> {
    let Some((network, firewalls)) = known(facts) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for (table, _) in tables(network, firewalls).filter(|(_, coming)| !coming) {
        let Some(Block { doubt, .. }) = table.policy() else {
            continue;
        };
        let command = &table.command;
        let docker = if table.docker { " (set by Docker)" } else { "" };
        let because = match (network.forward, network.nftables) {
            (false, _) => "--iptables-forward-rules is off",
            (true, true) => "flannel's rules in nftables cannot override this policy",
            (true, false) => {
                "flannel's rules in the other variant of iptables cannot override this policy"
            }
        };
        findings.push(doubted(
            *doubt,
            Finding::new(
                "forward-policy",
                by_doubt(*doubt),
                command,
                format!("the policy of FORWARD in {command} is DROP{docker}"),
                format!("this policy drops packets from and to pods of other nodes: {because}"),
            )
            .of(Family::from(table.network))
            .seen("-P FORWARD DROP", format!("{command} -S FORWARD"))
            // A rejecting rule applies before the policy, and its own finding has the commands.
            .run_all(if table.refusal().is_none() {
                let_pass(table)
            } else {
                Vec::new()
            }),
        ));
    }
    findings.extend(firewalls.barriers.iter().filter(|barrier| !barrier.by_rule).map(|barrier| {
        let what =
            format!("the policy of the nftables chain {} (hook forward) is drop, and no rule of the chain accepts {}", path(barrier), barrier.network);
        barred("forward-policy", barrier, what)
    }));
    findings
}

fn doubted(doubt: bool, finding: Finding) -> Finding {
    if doubt {
        finding.seen("an earlier rule may accept the packets: the doctor does not understand all rule conditions", "flanneld")
    } else {
        finding
    }
}

fn forward_reject(facts: &Facts) -> Vec<Finding> {
    let Some((network, firewalls)) = known(facts) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for (table, coming) in tables(network, firewalls) {
        let Some(Block { stop, doubt }) = table.refusal() else {
            continue;
        };
        let rule = &stop.rule;
        let command = &table.command;
        findings.push(doubted(
            *doubt,
            Finding::new(
                "forward-reject",
                by_doubt(*doubt),
                command,
                format!("{command} has the rule `{rule}` before any rule that accepts pods' packets"),
                match table.jump || coming {
                    true => "this rule rejects packets from and to pods of other nodes; --iptables-forward-insert puts flannel's rules first",
                    false => "this rule rejects packets from and to pods of other nodes",
                },
            )
            .of(Family::from(table.network))
            .seen(rule, format!("{command} -S {}", word(&stop.chain)))
            .run_all(let_pass(table)),
        ));
    }
    findings.extend(firewalls.barriers.iter().filter(|barrier| barrier.by_rule).map(|barrier| {
        let what =
            format!("the nftables chain {} (hook forward) rejects all packets before any of its rules accepts {}", path(barrier), barrier.network);
        barred("forward-reject", barrier, what)
    }));
    findings
}

fn path(barrier: &Barrier) -> String {
    let Barrier { family, table, chain, .. } = barrier;
    format!("{family} {table} {chain}")
}

/// An accept rule in another chain cannot override the blocking chain.
fn barred(check: &str, barrier: &Barrier, what: String) -> Finding {
    let Barrier { family, table, chain, .. } = barrier;
    let network = barrier.network;
    let keyword = if network.addr().is_ipv6() { "ip6" } else { "ip" };
    let place = format!("{} {} {}", word(family), word(table), word(chain));
    let rules = ["saddr", "daddr"].map(|side| format!("{keyword} {side} {network} accept"));
    let (verb, at) = match barrier.handle {
        Some(handle) => ("insert", format!("{place} handle {handle}")),
        None => ("add", place.clone()),
    };
    let mut commands: Vec<String> =
        rules.iter().map(|rule| format!("nft {verb} rule {at} {rule}")).collect();
    let kept: Vec<String> =
        rules.iter().map(|rule| format!("{verb} rule {place} {rule}")).collect();
    commands.push(persist::nftables(family, table, &kept));
    // Without the handle of the rejecting rule, no place is known where an accept rule helps and does not bypass network policies.
    let can_be_named = is_nft_name(table) && is_nft_name(chain);
    let commands = if !can_be_named || barrier.by_rule && barrier.handle.is_none() {
        Vec::new()
    } else {
        commands
    };
    doubted(
        barrier.doubt,
        Finding::new(
            check,
            by_doubt(barrier.doubt),
            format!("{} {network}", path(barrier)),
            what,
            "this chain blocks packets from and to pods of other nodes: flannel's accept rules cannot override the chain",
        )
        .of(Family::from(network))
        .seen(
            format!("the chain {}", path(barrier)),
            if can_be_named { format!("nft list chain {place}") } else { "nft list ruleset".to_owned() },
        )
        .run_all(commands),
    )
}

/// True if packets arrive through the tunnel: they prove that the host's rules accept packets of peers. `family` limits the test to peers with
/// underlay addresses of one family.
fn is_refuted(facts: &Facts, family: Option<Family>) -> bool {
    let mut passing = facts.paths().iter().filter(|path| path.verdict.state.passes());
    passing.any(|path| family.is_none_or(|family| Family::from(path.address) == family))
}

/// True if peers have verdicts, but none of their packets arrives over the overlay.
pub(crate) fn nothing_arrives(facts: &Facts, family: Family) -> bool {
    let judged = facts.judged(family);
    !judged.is_empty() && judged.iter().all(|path| path.is_lost())
}

fn ufw(facts: &Facts) -> Vec<Finding> {
    let Some((network, firewalls)) = known(facts) else {
        return Vec::new();
    };
    let Some(tunnel) = network.tunnel() else {
        return Vec::new();
    };
    let shut = firewalls.tables.iter().filter(|table| table.ufw && table.input.is_some());
    // If an earlier rule is not understood, only missing packets prove that ufw drops them.
    let shut = shut.filter(|table| table.is_shut() || nothing_arrives(facts, table.network.into()));
    let shut = shut.filter(|table| {
        network.travels_in(table.network.into()) && !is_refuted(facts, Some(table.network.into()))
    });
    let what = words(tunnel);
    shut.map(|table| {
        let family = Family::from(table.network);
        Finding::new(
            "ufw",
            Severity::Broken,
            family.to_string(),
            format!("ufw is active and does not allow {what} over {family}"),
            "ufw drops packets from other nodes to pods of this node",
        )
        .of(Family::from(table.network))
        .seen(
            format!("no rule of ufw accepts {what}"),
            format!("{} -S ufw-user-input", table.command),
        )
        .run_all(let_in::commands(
            Program::Ufw,
            &tunnel.each(table.network.into()),
            &Origin::of(facts, family),
            &[],
            "",
        ))
    })
    .collect()
}

fn firewalld(facts: &Facts) -> Vec<Finding> {
    let Some((network, firewalls)) = known(facts) else {
        return Vec::new();
    };
    let Some(known) = &firewalls.firewalld else {
        return Vec::new();
    };
    let unknown: Vec<String> = network
        .networks
        .nets()
        .filter(|net| !known.networks.contains(net))
        .map(|net| net.to_string())
        .collect();
    let shut = network.tunnel().filter(|_| !known.tunnel);
    // Probes refute only the rules for tunnel packets. The kernel does not forward probes, so they prove nothing about rules for pod packets.
    if unknown.is_empty() && (shut.is_none() || is_refuted(facts, None)) {
        return Vec::new();
    }
    let mut missing = unknown.clone();
    missing.extend(shut.map(words));
    let mut commands: Vec<String> = unknown
        .iter()
        .map(|net| format!("firewall-cmd --permanent --zone=trusted --add-source={net}"))
        .collect();
    for family in Family::ALL.into_iter().filter(|family| network.travels_in(*family)) {
        let kinds = shut.map(|tunnel| tunnel.each(family)).unwrap_or_default();
        commands.extend(let_in::commands(
            Program::Firewalld,
            &kinds,
            &Origin::of(facts, family),
            &[],
            "",
        ));
    }
    // One reload at the end is enough.
    commands.retain(|command| command != RELOAD);
    commands.push(RELOAD.to_owned());
    vec![
        Finding::new(
            "firewalld",
            Severity::Broken,
            "",
            format!("firewalld is active and does not accept {}", missing.join(" and ")),
            "firewalld drops packets from and to pods of other nodes",
        )
        .seen(
            "the rules of firewalld drop packets from and to pods",
            "nft list table inet firewalld",
        )
        .run_all(commands),
    ]
}
