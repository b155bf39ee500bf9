//! The rules as an nft script, and as `nft -j` tells them back: text in, text out.
//!
//! Table, chain and comment names are Go flannel's, so that either tool finds and replaces the other's rules; the rules
//! themselves do what the iptables set does (the mark is masked, rule 4 is about this node's pods).

use super::rules::{Match, Rule, Ruleset, Verdict};
use ipnet::IpNet;
use serde_json::Value;
use std::fmt::Write;

/// Go flannel's names for a family's table.
pub fn table(ipv6: bool) -> (&'static str, &'static str) {
    if ipv6 { ("ip6", "flannel-ipv6") } else { ("ip", "flannel-ipv4") }
}

const POSTROUTING: &str = "postrtg";
const FORWARD: &str = "forward";

/// One transaction that leaves exactly these rules in the family's table; where there are none, no table.
pub fn script(rules: &Ruleset) -> String {
    let (family, name) = table(rules.ipv6);
    if rules.is_empty() {
        return removal(rules.ipv6);
    }
    let mut out = format!("add table {family} {name} {{ comment \"rules for {name}\"; }}\n");
    let chains = [
        (POSTROUTING, "type nat hook postrouting priority 100; policy accept;", "chain to manage traffic masquerading by flannel", &rules.masquerade),
        (FORWARD, "type filter hook forward priority 0; policy accept;", "chain to accept flannel traffic", &rules.forward),
    ];
    for (chain, hook, comment, wanted) in chains {
        // Added first, so that flushing and deleting never fails.
        let _ = writeln!(out, "add chain {family} {name} {chain} {{ {hook} comment \"{comment}\"; }}");
        let _ = writeln!(out, "flush chain {family} {name} {chain}");
        match wanted {
            Some(wanted) => wanted.iter().for_each(|rule| out.push_str(&format!("add rule {family} {name} {chain}{}\n", render(family, rule)))),
            None => out.push_str(&format!("delete chain {family} {name} {chain}\n")),
        }
    }
    out
}

/// One transaction that leaves nothing of ours in a family.
pub fn removal(ipv6: bool) -> String {
    let (family, name) = table(ipv6);
    format!("add table {family} {name}\ndelete table {family} {name}\n")
}

fn render(family: &str, rule: &Rule) -> String {
    let mut out = String::new();
    let not = |is: bool| if is { "" } else { "!= " };
    for condition in &rule.matches {
        let _ = match condition {
            Match::Source(is, net) => write!(out, " {family} saddr {}{net}", not(*is)),
            Match::Destination(is, net) => write!(out, " {family} daddr {}{net}", not(*is)),
            Match::Mark(bits) => write!(out, " meta mark and {bits:#x} == {bits:#x}"),
        };
    }
    out.push_str(match rule.verdict {
        Verdict::Return => " return",
        Verdict::Accept => " accept",
        Verdict::Masquerade(true) => " masquerade fully-random",
        Verdict::Masquerade(false) => " masquerade",
    });
    out
}

/// Whether the family's table, as `nft -j list table` tells it (nothing where there is none), holds exactly these rules.
pub fn holds(rules: &Ruleset, listing: Option<&Value>) -> bool {
    let found = listing.map(read).unwrap_or_default();
    let chain = |name: &str| found.iter().find(|(chain, _)| chain == name).map(|(_, rules)| rules);
    let same = |name: &str, wanted: &Option<Vec<Rule>>| match (chain(name), wanted) {
        (None, None) => true,
        (Some(found), Some(wanted)) => found.as_ref() == Some(wanted),
        _ => false,
    };
    same(POSTROUTING, &rules.masquerade)
        && same(FORWARD, &rules.forward)
        && found.len() == usize::from(rules.masquerade.is_some()) + usize::from(rules.forward.is_some())
}

/// The chains of a table with their rules; none for a chain that is hooked elsewhere or holds a rule that is not one of ours.
fn read(listing: &Value) -> Vec<(String, Option<Vec<Rule>>)> {
    let mut chains: Vec<(String, Option<Vec<Rule>>)> = Vec::new();
    for item in listing.get("nftables").and_then(Value::as_array).into_iter().flatten() {
        if let Some(chain) = item.get("chain") {
            let name = chain.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let field = |name: &str| chain.get(name).and_then(Value::as_str).unwrap_or_default();
            let hook = (field("type"), field("hook"), field("policy"));
            let right = match name.as_str() {
                POSTROUTING => hook == ("nat", "postrouting", "accept"),
                FORWARD => hook == ("filter", "forward", "accept"),
                _ => false,
            };
            chains.push((name, right.then(Vec::new)));
        } else if let Some(rule) = item.get("rule") {
            let name = rule.get("chain").and_then(Value::as_str).unwrap_or_default();
            if let Some((_, rules)) = chains.iter_mut().find(|(chain, _)| chain == name) {
                match (rules.as_mut(), parse(rule)) {
                    (Some(rules), Some(rule)) => rules.push(rule),
                    _ => *rules = None,
                }
            }
        }
    }
    chains
}

fn parse(rule: &Value) -> Option<Rule> {
    let mut matches = Vec::new();
    let mut verdict = None;
    for expression in rule.get("expr")?.as_array()? {
        if let Some(condition) = expression.get("match") {
            matches.push(parse_match(condition)?);
        } else if expression.get("return").is_some() {
            verdict = Some(Verdict::Return);
        } else if expression.get("accept").is_some() {
            verdict = Some(Verdict::Accept);
        } else if let Some(masquerade) = expression.get("masquerade") {
            // One flag is told as a text, several as a list.
            let flags = masquerade.get("flags");
            let random = match flags {
                None => false,
                Some(Value::String(flag)) => flag == "fully-random",
                Some(Value::Array(flags)) => flags.as_slice() == [Value::from("fully-random")],
                Some(_) => return None,
            };
            if flags.is_some() && !random {
                return None;
            }
            verdict = Some(Verdict::Masquerade(random));
        } else if expression.get("counter").is_none() {
            return None;
        }
    }
    Some(Rule { matches, verdict: verdict? })
}

fn parse_match(condition: &Value) -> Option<Match> {
    let is = match condition.get("op")?.as_str()? {
        "==" => true,
        "!=" => false,
        _ => return None,
    };
    let (left, right) = (condition.get("left")?, condition.get("right")?);
    if let Some(masked) = left.get("&").and_then(Value::as_array) {
        let mark = masked.first()?.get("meta")?.get("key")?.as_str()? == "mark";
        let bits = masked.get(1)?.as_u64()?;
        return (mark && is && right.as_u64()? == bits).then(|| u32::try_from(bits).ok().map(Match::Mark))?;
    }
    let net = network(right)?;
    match left.get("payload")?.get("field")?.as_str()? {
        "saddr" => Some(Match::Source(is, net)),
        "daddr" => Some(Match::Destination(is, net)),
        _ => None,
    }
}

fn network(value: &Value) -> Option<IpNet> {
    match value.get("prefix") {
        Some(prefix) => IpNet::new(prefix.get("addr")?.as_str()?.parse().ok()?, u8::try_from(prefix.get("len")?.as_u64()?).ok()?).ok(),
        None => value.as_str()?.parse::<std::net::IpAddr>().ok().map(IpNet::from),
    }
}
