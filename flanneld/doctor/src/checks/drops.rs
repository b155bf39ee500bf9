//! Checks for rules that drop pod packets or tunnel packets at hooks that no other check covers.

use crate::check::Check;
use crate::facts::{Facts, Network};
use crate::finding::{Finding, Severity};
use crate::firewalls::{Carried, Drop};
use crate::let_in::Origin;
use crate::need::Need;
use crate::persist;
use crate::shell::{is_nft_name, word};
use traffic_rules::reader::{Hook, Stop};
use types::Family;

pub const CHECKS: &[Check] = &[Check::new(
    "pods-dropped",
    Severity::Broken,
    "A rule outside of FORWARD drops packets of pods",
    &[Need::Network, Need::Firewalls],
    &["pod-route", "pods-lost"],
    pods_dropped,
)];

pub(super) fn of(facts: &Facts, carried: Carried) -> impl Iterator<Item = &Drop> {
    facts
        .host
        .firewalls
        .known()
        .into_iter()
        .flat_map(|firewalls| &firewalls.drops)
        .filter(move |drop| drop.carried == carried)
}

fn pods_dropped(facts: &Facts) -> Vec<Finding> {
    let Some(network) = facts.network.known() else {
        return Vec::new();
    };
    of(facts, Carried::Pods)
        .map(|drop| {
            let finding = Finding::new(
                "pods-dropped",
                Severity::Broken,
                format!("{} {}", place(drop), number(drop)),
                format!("{} drops packets of pods", subject(drop)),
                "packets between pods of this node and pods of other nodes are lost. Probes do not show the fault, because the host itself sends them",
            )
            .of(drop.family);
            seen(finding, drop).run_all(let_pods_pass(network, drop))
        })
        .collect()
}

/// `policy` if the policy of the chain drops the packets.
fn number(drop: &Drop) -> String {
    drop.stop.place.map_or_else(|| "policy".to_owned(), |number| number.to_string())
}

/// The table and the chain, as iptables or nft prints their names.
fn place(drop: &Drop) -> String {
    let stop = &drop.stop;
    match &drop.command {
        Some(command) => format!("{command} {} {}", stop.table, stop.chain),
        None => format!("{} {} {}", stop.layer, stop.table, stop.chain),
    }
}

pub(super) fn subject(drop: &Drop) -> String {
    let stop = &drop.stop;
    let table = match &drop.command {
        Some(command) => format!("the table {} of {command}", stop.table),
        None => format!("the nftables table {} {}", stop.layer, stop.table),
    };
    match (&stop.rule, stop.place) {
        _ if stop.is_policy() => format!("the policy of the chain {} in {table}", stop.chain),
        (rule, _) if !rule.is_empty() => format!("the rule `{rule}` in {table}"),
        (_, Some(number)) => format!("rule {number} of the chain {} in {table}", stop.chain),
        (_, None) => format!("the chain {} in {table}", stop.chain),
    }
}

pub(super) fn seen(finding: Finding, drop: &Drop) -> Finding {
    let stop = &drop.stop;
    let chain = word(&stop.chain);
    let from = match &drop.command {
        Some(command) => format!("{command} -t {} -nvL {chain}", stop.table),
        None if !can_be_named(drop) => "nft -a list ruleset".to_owned(),
        None => format!("nft -a list chain {} {} {chain}", stop.layer, word(&stop.table)),
    };
    let hook = format!("at the hook {}", hook(drop.hook));
    let text = match stop.packets {
        Some(1) => format!("this rule or policy has dropped 1 packet {hook}"),
        Some(packets) => format!("this rule or policy has dropped {packets} packets {hook}"),
        None => format!("this rule or policy has no counter; the kernel evaluates it {hook}"),
    };
    finding.seen(text, from)
}

/// True if nft can read the names of the table and its chains.
fn can_be_named(drop: &Drop) -> bool {
    let Stop { table, base, chain, .. } = &drop.stop;
    [table, base, chain].iter().all(|name| is_nft_name(name))
}

fn hook(hook: Hook) -> &'static str {
    match hook {
        Hook::Ingress => "ingress",
        Hook::Prerouting => "prerouting",
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
    }
}

/// Accept rules for pod packets before the rule that drops them.
fn let_pods_pass(network: &Network, drop: &Drop) -> Vec<String> {
    let nets = network.networks.nets().filter(|net| Family::from(net.addr()) == drop.family);
    let conditions: Vec<Condition> = nets
        .flat_map(|net| {
            let ip = drop.family.pick("ip", "ip6");
            ["s", "d"].map(|side| Condition {
                iptables: format!("-{side} {net}"),
                nft: format!("{ip} {side}addr {net}"),
            })
        })
        .collect();
    let_pass(drop, &conditions)
}

/// Accept rules for tunnel packets before the rule that drops them.
pub(super) fn let_tunnel_pass(facts: &Facts, network: &Network, drop: &Drop) -> Vec<String> {
    let origin = Origin::of(facts, drop.family);
    if origin.sources.is_empty() {
        return Vec::new();
    }
    let out = drop.carried == Carried::TunnelOut;
    let conditions: Vec<Condition> = network
        .tunnel()
        .map(|tunnel| tunnel.each(drop.family))
        .unwrap_or_default()
        .into_iter()
        .map(|kind| Condition {
            iptables: origin.by_iptables(kind, out),
            nft: origin.by_nft(kind, out),
        })
        .collect();
    let_pass(drop, &conditions)
}

/// One condition, in the syntaxes of iptables and nft.
struct Condition {
    iptables: String,
    nft: String,
}

fn let_pass(drop: &Drop, conditions: &[Condition]) -> Vec<String> {
    let stop = &drop.stop;
    if drop.before_policies {
        return Vec::new();
    }
    let (base, table) = (word(&stop.base), word(&stop.table));
    match &drop.command {
        Some(command) => {
            let rules = |verb: &str| -> Vec<(String, String)> {
                conditions
                    .iter()
                    .map(|condition| {
                        let accepts = format!("-t {table} {verb} {} -j ACCEPT", condition.iptables);
                        (command.clone(), accepts)
                    })
                    .collect()
            };
            let (now, later) = match stop.number {
                Some(number) if number > 1 => (format!("-I {base} {number}"), format!("-I {base}")),
                Some(_) => (format!("-I {base}"), format!("-I {base}")),
                None => (format!("-A {base}"), format!("-A {base}")),
            };
            persist::iptables(
                // iptables has these tables and base chains, and no other.
                &format!("flannel-{table}-{}-{command}", base.to_lowercase()),
                &rules(&now),
                &rules(&later),
            )
        }
        // nft would read more than a name.
        None if !can_be_named(drop) => Vec::new(),
        None => {
            let place = format!("{} {table} {base}", stop.layer);
            let (verb, at) = match stop.handle {
                Some(handle) => ("insert", format!("{place} handle {handle}")),
                None if stop.is_policy() => ("add", place.clone()),
                None => return Vec::new(),
            };
            let accepts = |condition: &Condition| format!("{} accept", condition.nft);
            let mut commands: Vec<String> = conditions
                .iter()
                .map(|condition| format!("nft {verb} rule {at} {}", accepts(condition)))
                .collect();
            let kept: Vec<String> = conditions
                .iter()
                .map(|condition| {
                    format!("{verb} rule {place} {}", accepts(condition).replace('\'', ""))
                })
                .collect();
            commands.push(persist::nftables(stop.layer, &stop.table, &kept));
            commands
        }
    }
}
