//! Renders the rules as an nft script and parses the output of `nft -j`. Pure.
//!
//! flannel-rs uses Go flannel's names and comments for the table and the chains, so that each
//! program finds and replaces the other's rules. The nftables rules have the same effect as the
//! iptables rules. Unlike in Go flannel, conditions on the mark use a mask, and the fourth
//! masquerade rule matches packets to this node's subnet.

use super::iptables_text::slot_of_chain;
use super::reader::words::number;
use super::rules::{
    Match, Named, OtherDaemons, Rule, Ruleset, Verdict, join_values, slot_name, slot_of,
};
use ipnet::IpNet;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;
use types::{Encapsulation, Family};

/// The nftables family and the name of flannel's table in slot 0. Go flannel uses these names.
const fn table(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::V4 => ("ip", "flannel-ipv4"),
        Family::V6 => ("ip6", "flannel-ipv6"),
    }
}

/// The nftables family and the name of a daemon's table.
pub(crate) fn table_of(family: Family, slot: u16) -> (&'static str, String) {
    let (layer, name) = table(family);
    (layer, slot_name(name, slot))
}

/// The slot of flannel's table; `None` for another table.
#[must_use]
pub fn slot_of_table(family: Family, name: &str) -> Option<u16> {
    slot_of(name, table(family).1)
}

/// A chain that flannel's table may contain.
struct Chain {
    name: &'static str,
    kind: &'static str,
    hook: &'static str,
    priority: i64,
    comment: &'static str,
    /// The chain guards an encapsulation port.
    guard: bool,
}

const CHAINS: [Chain; 4] = [
    Chain {
        name: "postrtg",
        kind: "nat",
        hook: "postrouting",
        priority: 100,
        comment: "chain to manage traffic masquerading by flannel",
        guard: false,
    },
    Chain {
        name: "forward",
        kind: "filter",
        hook: "forward",
        priority: 0,
        comment: "chain to accept flannel traffic",
        guard: false,
    },
    Chain {
        name: "encap-in",
        kind: "filter",
        hook: "prerouting",
        priority: -300,
        comment: "chain to guard the encapsulation port",
        guard: true,
    },
    Chain {
        name: "encap-out",
        kind: "filter",
        hook: "output",
        priority: -300,
        comment: "chain for encapsulated packets of this host",
        guard: true,
    },
];
/// The set of addresses that may send to the encapsulation port.
const PEERS: &str = "peers";
/// The counter of encapsulated packets from unknown senders.
const UNKNOWN_SENDERS: &str = "strangers";

impl Chain {
    /// `None` if the chain should not exist.
    fn wanted<'a>(&self, rules: &'a Ruleset) -> Option<&'a Vec<Rule>> {
        let encap = rules.encap.as_ref();
        let wanted = match self.name {
            "postrtg" => rules.masquerade.as_ref(),
            "forward" => rules.forward.as_ref(),
            "encap-in" => encap.map(|encap| &encap.incoming),
            _ => encap.map(|encap| &encap.outgoing),
        };
        wanted.filter(|rules| !self.guard || !rules.is_empty())
    }

    /// True if the chain in the kernel has the same properties.
    fn is_like(&self, chain: &Value) -> bool {
        let words = ["name", "type", "hook", "policy"].map(|field| text(chain, field));
        words == [self.name, self.kind, self.hook, "accept"]
            && chain.get("prio").and_then(priority) == Some(self.priority)
    }

    /// What all rules of a guard chain match; `Encapsulation::None` for other chains.
    fn encapsulation(&self, rules: &Ruleset) -> Encapsulation {
        let encap = rules.encap.as_ref().filter(|_| self.guard);
        encap.map(|encap| encap.encapsulation).unwrap_or_default()
    }
}

/// One transaction that replaces the rules in `listing` (the output of `nft -j list table`, or
/// `None` if the table does not exist) with the desired ones and keeps those of other networks.
/// `None` if they are there already. If no rules remain, it deletes the table. If only the peers
/// differ, it changes only their set.
pub(crate) fn update_script(rules: &Ruleset, listing: Option<&Value>) -> Option<String> {
    let (family, name) = table_of(rules.family, rules.slot);
    let table = format!("{family} {name}");
    let (found, peers) = (TableState::read(listing, rules), rules.peers());
    if found.is_right(rules, |_| true) {
        match (&found.peers, peers) {
            (have, want) if have.as_ref() == want => return None,
            (Some(have), Some(want)) => {
                let gone = change_peers("delete", &table, &(have - want));
                return Some(gone + &change_peers("add", &table, &(want - have)));
            }
            _ => {}
        }
    }
    if rules.is_empty() && found.chains.values().all(|chain| chain.foreign.is_empty()) {
        return Some(removal_of_table(&table));
    }
    // Objects that cannot be corrected in place are deleted with the table.
    let mut out = if found.is_wrong { removal_of_table(&table) } else { String::new() };
    let _ = writeln!(out, "add table {table} {{ comment \"rules for {name}\"; }}");
    if let Some(peers) = peers {
        let kind = rules.family.pick("ipv4_addr", "ipv6_addr");
        let _ = writeln!(out, "add set {table} {PEERS} {{ type {kind}; }}");
        let _ = writeln!(out, "flush set {table} {PEERS}");
        out.push_str(&change_peers("add", &table, peers));
        let _ = writeln!(out, "add counter {table} {UNKNOWN_SENDERS}");
    }
    for chain in &CHAINS {
        out.push_str(&chain_lines(chain, family, &table, rules, &found));
    }
    if !found.is_wrong && peers.is_none() {
        // The chains are gone by now: objects in use cannot be deleted.
        if found.peers.is_some() {
            let _ = writeln!(out, "delete set {table} {PEERS}");
        }
        if listing.and_then(unknown_senders).is_some() {
            let _ = writeln!(out, "delete counter {table} {UNKNOWN_SENDERS}");
        }
    }
    Some(out)
}

/// Adds addresses to the set of peers, or deletes them.
fn change_peers(verb: &str, table: &str, peers: &BTreeSet<IpAddr>) -> String {
    match join_values(peers, ", ") {
        none if none.is_empty() => none,
        peers => format!("{verb} element {table} {PEERS} {{ {peers} }}\n"),
    }
}

/// The lines of the nft script for one chain.
fn chain_lines(
    chain: &Chain,
    family: &str,
    table: &str,
    rules: &Ruleset,
    found: &TableState,
) -> String {
    let Chain { name, kind, hook, priority, comment, .. } = chain;
    let (wanted, present) = (chain.wanted(rules), found.chains.get(name));
    let foreign = present.map(|present| present.foreign.as_slice()).unwrap_or_default();
    // An unwanted chain stays as it is while it has rules of other networks.
    let stays = !foreign.is_empty() && !found.is_wrong;
    if wanted.is_none() && (present.is_none() || stays) {
        return String::new();
    }
    let path = format!("{table} {name}");
    // Adding the chain first makes the flush and the deletion safe.
    let mut lines = format!(
        "add chain {path} {{ type {kind} hook {hook} priority {priority}; policy accept; comment \"{comment}\"; }}\nflush chain {path}\n"
    );
    if wanted.is_none() && foreign.is_empty() {
        let _ = writeln!(lines, "delete chain {path}");
    }
    for rule in wanted.into_iter().flatten().chain(foreign) {
        let rule = render_rule(family, chain.encapsulation(rules), rule);
        let _ = writeln!(lines, "add rule {path}{rule}");
    }
    lines
}

/// One transaction that deletes a table.
fn removal_of_table(table: &str) -> String {
    format!("add table {table}\ndelete table {table}\n")
}

/// One transaction that removes a table of flannel, or the rules in it that no other daemon keeps,
/// with a description; `None` if there is nothing to remove. The rules of the slot in use stay.
pub(crate) fn removal(
    table: &str,
    slot: u16,
    others: &OtherDaemons,
    in_use: Option<u16>,
    listing: &Value,
) -> Option<(String, String)> {
    let is_used = in_use == Some(slot);
    let chains = CHAINS.iter().filter(|chain| !chain.guard);
    let rules = chains.flat_map(|chain| rules_of(listing, chain.name));
    let Some(left) = others.left(slot, is_used, rules, |rule| named(rule)) else {
        return Some((removal_of_table(table), format!("table {table}")));
    };
    let mut script: String =
        left.into_iter().filter_map(|rule| removal_of_rule(table, rule)).collect();
    // A guard that no daemon updates would drop the packets of new nodes.
    for (kind, plain) in GUARD_OBJECTS {
        for name in items(listing, kind).map(|object| text(object, "name")) {
            let goes = match slot_of(name, plain) {
                None => false,
                Some(0) => !is_used && !others.slots.contains(&slot),
                // Before each daemon had a table, its guard had a number in the table of slot 0.
                Some(number) => !is_used && slot == 0 && !others.slots.contains(&number),
            };
            if goes && kind == "chain" {
                let _ = writeln!(script, "flush chain {table} {name}");
            }
            if goes {
                let _ = writeln!(script, "delete {kind} {table} {name}");
            }
        }
    }
    (!script.is_empty()).then(|| (script, format!("rules in table {table}")))
}

/// The objects of a guard, in an order in which the kernel deletes them.
const GUARD_OBJECTS: [(&str, &str); 4] =
    [("chain", "encap-in"), ("chain", "encap-out"), ("set", PEERS), ("counter", UNKNOWN_SENDERS)];

fn removal_of_rule(table: &str, rule: &Value) -> Option<String> {
    let (chain, handle) = (text(rule, "chain"), rule.get("handle")?);
    Some(format!("delete rule {table} {chain} handle {handle}\n"))
}

/// `nft --check` must accept this script before the daemon uses random ports.
pub(crate) fn probe_script(family: Family) -> String {
    let (family, _) = table(family);
    let name = "flannel-probe";
    format!(
        "add table {family} {name}\nadd chain {family} {name} c {{ type nat hook postrouting priority 100; }}\nadd rule {family} {name} c masquerade fully-random\n"
    )
}

fn render_rule(family: &str, encapsulation: Encapsulation, rule: &Rule) -> String {
    let mut out = match encapsulation {
        Encapsulation::None => String::new(),
        Encapsulation::Ipip => " ip protocol 4".to_owned(),
        Encapsulation::Udp { .. } => match encapsulation.port() {
            Some(port) => format!(" udp dport {port}"),
            None => format!(" udp dport {{ {} }}", join_values(&encapsulation.ports(), ", ")),
        },
    };
    let not = |is: bool| if is { "" } else { "!= " };
    for condition in &rule.matches {
        let _ = match condition {
            Match::Source(is, net) => write!(out, " {family} saddr {}{net}", not(*is)),
            Match::Destination(is, net) => write!(out, " {family} daddr {}{net}", not(*is)),
            Match::Mark(bits) => write!(out, " meta mark and {bits:#x} == {bits:#x}"),
            Match::LocalSource => write!(out, " fib saddr type local"),
            Match::LocalDestination => write!(out, " fib daddr type local"),
            Match::UnknownSender => {
                write!(out, " {family} saddr != @{PEERS} counter name {UNKNOWN_SENDERS}")
            }
        };
    }
    out.push_str(match rule.verdict {
        Verdict::Return => " return",
        Verdict::Accept => " accept",
        Verdict::Masquerade(true) => " masquerade fully-random",
        Verdict::Masquerade(false) => " masquerade",
        Verdict::Notrack => " notrack",
        Verdict::Drop => " drop",
        Verdict::Count => "",
    });
    out
}

/// True if flannel's table contains exactly the given rules, apart from those that guard the
/// encapsulation port.
pub(crate) fn holds_except_encap(rules: &Ruleset, listing: Option<&Value>) -> bool {
    TableState::read(listing, rules).is_right(rules, |chain| !chain.guard)
}

/// As a daemon's guard rules have counted them, in packets.
pub(crate) fn unknown_senders(listing: &Value) -> Option<u64> {
    items(listing, "counter")
        .find(|counter| text(counter, "name") == UNKNOWN_SENDERS)?
        .get("packets")?
        .as_u64()
}

/// One transaction that removes flannel's iptables-nft rules from the listed tables and keeps those
/// of other running daemons, with descriptions of the removed objects; `None` without rules of
/// flannel. nft does not print iptables comments, so flannel's jumps are recognised by their
/// targets.
pub(crate) fn iptables_removal<'a>(
    listings: impl IntoIterator<Item = &'a Value>,
    others: &OtherDaemons,
) -> Option<(String, Vec<String>)> {
    // The jumps go first, because the kernel does not delete a chain in use.
    let (mut rules, mut chains, mut words) = (String::new(), String::new(), Vec::new());
    for listing in listings {
        for chain in items(listing, "chain") {
            let (of, name) = (text(chain, "table"), text(chain, "name"));
            let table = format!("{} {of}", text(chain, "family"));
            let Some(slot) = slot_of_chain(of, name) else {
                continue;
            };
            // A guard belongs to no network.
            let named = |rule: &&Value| if of == "raw" { (None, None) } else { named(rule) };
            let Some(left) = others.left(slot, false, rules_of(listing, name), named) else {
                let jumps = items(listing, "rule").filter(|rule| leads_to(rule, name));
                rules.extend(jumps.filter_map(|rule| removal_of_rule(&table, rule)));
                let _ = writeln!(chains, "flush chain {table} {name}\ndelete chain {table} {name}");
                words.push(format!("table {table}: chain {name} and the jumps to it"));
                continue;
            };
            if !left.is_empty() {
                words.push(format!("table {table}: {} rules in chain {name}", left.len()));
                rules.extend(left.into_iter().filter_map(|rule| removal_of_rule(&table, rule)));
            }
        }
    }
    (!words.is_empty()).then(|| (rules + &chains, words))
}

fn leads_to(rule: &Value, chain: &str) -> bool {
    array_at(rule, "expr")
        .filter_map(|part| part.get("jump").or_else(|| part.get("goto")))
        .any(|jump| text(jump, "target") == chain)
}

fn rules_of<'a>(listing: &'a Value, chain: &str) -> impl Iterator<Item = &'a Value> {
    items(listing, "rule").filter(move |rule| text(rule, "chain") == chain)
}

/// The networks that a rule matches, regardless of its other conditions.
fn named(rule: &Value) -> Named {
    let (mut source, mut destination) = (None, None);
    for condition in array_at(rule, "expr").filter_map(|part| parse_match(part.get("match")?)) {
        match condition {
            Match::Source(_, net) => source = Some(net),
            Match::Destination(_, net) => destination = Some(net),
            _ => {}
        }
    }
    (source, destination)
}

pub(crate) fn items<'a>(listing: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    array_at(listing, "nftables").filter_map(move |item| item.get(kind))
}

/// Empty if the field is missing or has another type.
fn array_at<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The rules of a chain in the kernel.
#[derive(Debug, Default)]
struct FoundChain {
    /// `None` for a rule with expressions that flannel does not write.
    own: Vec<Option<Rule>>,
    /// The rules of other networks.
    foreign: Vec<Rule>,
}

/// What flannel's table contains.
#[derive(Debug, Default)]
struct TableState {
    /// By the names in [`CHAINS`].
    chains: BTreeMap<&'static str, FoundChain>,
    /// The table contains an object that the daemon cannot correct in place: an unknown chain, an
    /// incorrect hook or a set of another type or with other elements than addresses.
    is_wrong: bool,
    /// The addresses in the set of peers, if it exists.
    peers: Option<BTreeSet<IpAddr>>,
}

impl TableState {
    fn read(listing: Option<&Value>, rules: &Ruleset) -> Self {
        let mut found = Self::default();
        let Some(listing) = listing else {
            return found;
        };
        for chain in items(listing, "chain") {
            let name = text(chain, "name");
            let mut former = CHAINS.iter().filter_map(|known| slot_of(name, known.name));
            if former.any(|slot| slot != 0 && rules.others.slots.contains(&slot)) {
                // The guard of a running daemon without a table of its own.
                continue;
            }
            let known = CHAINS.iter().find(|known| known.name == name);
            found.is_wrong |= !known.is_some_and(|known| known.is_like(chain));
            if let Some(known) = known {
                found.chains.insert(known.name, FoundChain::read(known, listing, rules));
            }
        }
        for set in items(listing, "set").filter(|set| text(set, "name") == PEERS) {
            found.peers =
                array_at(set, "elem").map(|ip| plain(ip).as_str()?.parse().ok()).collect();
            found.is_wrong |= text(set, "type") != rules.family.pick("ipv4_addr", "ipv6_addr")
                || set.get("flags").is_some()
                || found.peers.is_none();
        }
        found
    }

    /// The chains of a kind are as desired.
    fn is_right(&self, rules: &Ruleset, kind: impl Fn(&Chain) -> bool) -> bool {
        let is_right = |known: &Chain| match (self.chains.get(known.name), known.wanted(rules)) {
            (None, wanted) => wanted.is_none(),
            // An unwanted chain stays as it is while it has rules of other networks.
            (Some(found), None) => !found.foreign.is_empty(),
            (Some(found), Some(wanted)) => {
                found.own.iter().map(Option::as_ref).eq(wanted.iter().map(Some))
            }
        };
        !self.is_wrong && CHAINS.iter().filter(|known| kind(known)).all(is_right)
    }
}

impl FoundChain {
    fn read(known: &Chain, listing: &Value, rules: &Ruleset) -> Self {
        let mut found = Self::default();
        for rule in rules_of(listing, known.name) {
            match parse_rule(rule, known.encapsulation(rules)) {
                Some(parsed) if !known.guard && rules.others.is_foreign(named(rule)) => {
                    found.foreign.push(parsed);
                }
                own => found.own.push(own),
            }
        }
        found
    }
}

fn parse_rule(rule: &Value, encapsulation: Encapsulation) -> Option<Rule> {
    let (mut matches, mut verdict, mut counted) = (Vec::new(), None, false);
    let mut expressions = array_at(rule, "expr");
    if !encapsulation.is_none()
        && !matches_encapsulated(expressions.next()?.get("match")?, encapsulation)?
    {
        return None;
    }
    for expression in expressions {
        let (kind, value) = expression.as_object()?.iter().next()?;
        match kind.as_str() {
            "match" => matches.push(parse_match(value)?),
            "counter" => counted |= value.as_str() == Some(UNKNOWN_SENDERS),
            "return" => verdict = Some(Verdict::Return),
            "accept" => verdict = Some(Verdict::Accept),
            "drop" => verdict = Some(Verdict::Drop),
            "notrack" => verdict = Some(Verdict::Notrack),
            "masquerade" => {
                let flags = value.get("flags");
                let random = flags.and_then(only_flag) == Some("fully-random");
                if flags.is_some() && !random {
                    return None;
                }
                verdict = Some(Verdict::Masquerade(random));
            }
            _ => return None,
        }
    }
    if matches.contains(&Match::UnknownSender) != counted {
        return None;
    }
    Some(Rule { matches, verdict: verdict.or(counted.then_some(Verdict::Count))? })
}

/// Depending on its version, nft prints one flag as a string or as a list; `None` for several.
fn only_flag(flags: &Value) -> Option<&str> {
    match flags.as_array().map(Vec::as_slice) {
        Some([flag]) => flag.as_str(),
        _ => flags.as_str(),
    }
}

/// The nft condition matches exactly the packets of this encapsulation.
fn matches_encapsulated(condition: &Value, encapsulation: Encapsulation) -> Option<bool> {
    let payload = condition.pointer("/left/payload")?;
    let what = (text(payload, "protocol"), text(payload, "field"), text(condition, "op"));
    let right = condition.get("right")?;
    Some(match encapsulation {
        Encapsulation::None => false,
        Encapsulation::Udp { .. } => {
            let several = right
                .get("set")
                .and_then(Value::as_array)
                .map_or(std::slice::from_ref(right), Vec::as_slice);
            let found: Option<BTreeSet<u16>> =
                several.iter().map(|port| u16::try_from(port.as_u64()?).ok()).collect();
            what == ("udp", "dport", "==") && found == Some(encapsulation.ports())
        }
        // nft prints the protocol by its name in /etc/protocols, if there is one.
        Encapsulation::Ipip => {
            what == ("ip", "protocol", "==")
                && (*right == 4 || [Some("ipencap"), Some("ipv4")].contains(&right.as_str()))
        }
    })
}

fn parse_match(condition: &Value) -> Option<Match> {
    let is = match condition.get("op")?.as_str()? {
        "==" => true,
        "!=" => false,
        _ => return None,
    };
    let (left, right) = (condition.get("left")?, condition.get("right")?);
    if let Some(key) = left.pointer("/&/0/meta/key") {
        let mask = bits(left.pointer("/&/1")?)?;
        return (key == "mark" && is && bits(right)? == mask).then_some(Match::Mark(mask));
    }
    if let Some(fib) = left.get("fib") {
        let flag = only_flag(fib.get("flags")?)?;
        return match (is, text(fib, "result"), right.as_str()?, flag) {
            (true, "type", "local", "saddr") => Some(Match::LocalSource),
            (true, "type", "local", "daddr") => Some(Match::LocalDestination),
            _ => None,
        };
    }
    let field = left.pointer("/payload/field")?.as_str()?;
    if right.as_str().and_then(|name| name.strip_prefix('@')) == Some(PEERS) {
        return (field == "saddr" && !is).then_some(Match::UnknownSender);
    }
    let net = parse_network(right)?;
    match field {
        "saddr" => Some(Match::Source(is, net)),
        "daddr" => Some(Match::Destination(is, net)),
        _ => None,
    }
}

/// The priority of a base chain. Some versions of nft print names of priorities.
fn priority(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| match value.as_str()? {
        "raw" => Some(-300),
        "filter" => Some(0),
        "srcnat" => Some(100),
        other => other.parse().ok(),
    })
}

/// The value of a set's element. Some versions of nft print an object with more properties.
fn plain(element: &Value) -> &Value {
    element.pointer("/elem/val").unwrap_or(element)
}

fn bits(value: &Value) -> Option<u32> {
    match value.as_str() {
        Some(text) => number(text),
        None => value.as_u64()?.try_into().ok(),
    }
}

fn parse_network(value: &Value) -> Option<IpNet> {
    match value.get("prefix") {
        Some(prefix) => IpNet::new(
            prefix.get("addr")?.as_str()?.parse().ok()?,
            u8::try_from(prefix.get("len")?.as_u64()?).ok()?,
        )
        .ok(),
        None => value.as_str()?.parse::<IpAddr>().ok().map(IpNet::from),
    }
}
