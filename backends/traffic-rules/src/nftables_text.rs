//! Renders the rules as an nft script and parses the output of `nft -j`. Pure.
//!
//! flannel-rs uses Go flannel's names and comments for the table and the chains, so that each
//! program finds and replaces the other's rules. The nftables rules have the same effect as the
//! iptables rules. Unlike in Go flannel, conditions on the mark use a mask, and the fourth
//! masquerade rule matches packets to this node's subnet.

use super::iptables_text::slot_of_chain;
use super::reader::words::number;
use super::rules::{Match, Named, OtherDaemons, Rule, Ruleset, Verdict, slot_name, slot_of};
use ipnet::IpNet;
use serde_json::Value;
use std::collections::BTreeSet;
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

    /// What all rules of a guard chain match; `None` for other chains.
    fn encapsulation(&self, rules: &Ruleset) -> Option<Encapsulation> {
        rules.encap.as_ref().filter(|_| self.guard).map(|encap| encap.encapsulation)
    }
}

/// One transaction that replaces the rules in `listing` (the output of `nft -j list table`) with
/// the desired ones and keeps those of other networks. If no rules remain, it deletes the table. If
/// only the peers differ, it changes only their set.
pub(crate) fn script(rules: &Ruleset, listing: Option<&Value>) -> String {
    let (family, name) = table_of(rules.family, rules.slot);
    let found = listing.map(|listing| TableState::read(listing, rules)).unwrap_or_default();
    let has_foreign =
        found.chains.iter().any(|chain| chain.foreign(&rules.others).next().is_some());
    if rules.is_empty() && !has_foreign {
        return removal_of_table(family, &name);
    }
    let peers = rules.encap.as_ref().and_then(|encap| encap.peers.as_ref());
    if found.same_chains(rules)
        && let (Some(Some(have)), Some(want)) = (&found.peers, peers)
    {
        let change = |verb: &str, ips: Vec<String>| match ips.as_slice() {
            [] => String::new(),
            ips => format!("{verb} element {family} {name} {PEERS} {{ {} }}\n", ips.join(", ")),
        };
        let (gone, new) = (
            have.difference(want).map(IpAddr::to_string),
            want.difference(have).map(IpAddr::to_string),
        );
        return change("delete", gone.collect()) + &change("add", new.collect());
    }
    // Objects that cannot be corrected in place are deleted with the table.
    let mut out = match found.is_wrong {
        true => removal_of_table(family, &name),
        false => String::new(),
    };
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line(format!("add table {family} {name} {{ comment \"rules for {name}\"; }}"));
    if let Some(peers) = peers {
        let kind = rules.family.pick("ipv4_addr", "ipv6_addr");
        line(format!("add set {family} {name} {PEERS} {{ type {kind}; }}"));
        line(format!("flush set {family} {name} {PEERS}"));
        if !peers.is_empty() {
            let peers: Vec<String> = peers.iter().map(IpAddr::to_string).collect();
            line(format!("add element {family} {name} {PEERS} {{ {} }}", peers.join(", ")));
        }
        line(format!("add counter {family} {name} {UNKNOWN_SENDERS}"));
    }
    for chain in &CHAINS {
        chain_lines(chain, rules, &found).into_iter().for_each(&mut line);
    }
    if !found.is_wrong && peers.is_none() {
        // The chains are gone by now: objects in use cannot be deleted.
        found.peers.iter().for_each(|_| line(format!("delete set {family} {name} {PEERS}")));
        let counter = format!("delete counter {family} {name} {UNKNOWN_SENDERS}");
        found.unknown_senders.iter().for_each(|_| line(counter.clone()));
    }
    out
}

/// The lines of the nft script for one chain.
fn chain_lines(chain: &Chain, rules: &Ruleset, found: &TableState) -> Vec<String> {
    let (family, table) = table_of(rules.family, rules.slot);
    let Chain { name, kind, hook, priority, comment, .. } = chain;
    let (wanted, present) = (chain.wanted(rules), found.chain(name));
    let path = format!("{family} {table} {name}");
    let rule = |rule: &Rule| {
        format!("add rule {path}{}", render(family, chain.encapsulation(rules), rule))
    };
    let foreign: Vec<&Rule> =
        present.into_iter().flat_map(|present| present.foreign(&rules.others)).collect();
    // Adding the chain first makes the flush and the deletion safe.
    let mut lines = vec![
        format!(
            "add chain {path} {{ type {kind} hook {hook} priority {priority}; policy accept; comment \"{comment}\"; }}"
        ),
        format!("flush chain {path}"),
    ];
    match (wanted, present) {
        (Some(wanted), _) => lines.extend(wanted.iter().chain(foreign).map(rule)),
        (None, None) => return Vec::new(),
        (None, Some(_)) if foreign.is_empty() => lines.push(format!("delete chain {path}")),
        (None, Some(_)) if !found.is_wrong => return Vec::new(),
        (None, Some(_)) => lines.extend(foreign.into_iter().map(rule)),
    }
    lines
}

/// One transaction that deletes a table.
fn removal_of_table(family: &str, name: &str) -> String {
    format!("add table {family} {name}\ndelete table {family} {name}\n")
}

/// One transaction that removes a table of flannel, or the rules in it that no other daemon keeps,
/// with a description; `None` if there is nothing to remove. The rules of the slot in use stay.
pub(crate) fn removal(
    (family, name): (&str, &str),
    slot: u16,
    others: &OtherDaemons,
    in_use: Option<u16>,
    listing: &Value,
) -> Option<(String, String)> {
    let is_used = in_use == Some(slot);
    let chains = CHAINS.iter().filter(|chain| !chain.guard).map(|chain| chain.name);
    let rules: Vec<&Value> = chains.flat_map(|chain| rules_of(listing, chain)).collect();
    let stays = is_used
        || others.slots.contains(&slot)
        || rules.iter().any(|rule| others.keeps(named(rule)));
    if !stays {
        return Some((removal_of_table(family, name), format!("table {family} {name}")));
    }
    let left = rules.into_iter().filter(|rule| others.is_left(named(rule), is_used));
    let mut script: String =
        left.filter_map(|rule| removal_of_rule(&format!("{family} {name}"), rule)).collect();
    // A guard that no daemon updates would drop the packets of new nodes.
    for (kind, plain) in GUARD_OBJECTS {
        let goes = |object: &&Value| match slot_of(text(object, "name"), plain) {
            None => false,
            Some(0) => !is_used && !others.slots.contains(&slot),
            // Before each daemon had a table, its guard had a number in the table of slot 0.
            Some(number) => !is_used && slot == 0 && !others.slots.contains(&number),
        };
        for object in items(listing, kind).filter(goes) {
            let path = format!("{family} {name} {}", text(object, "name"));
            if kind == "chain" {
                let _ = writeln!(script, "flush chain {path}");
            }
            let _ = writeln!(script, "delete {kind} {path}");
        }
    }
    (!script.is_empty()).then(|| (script, format!("rules in table {family} {name}")))
}

/// The objects of a guard, in an order in which the kernel deletes them.
const GUARD_OBJECTS: [(&str, &str); 4] =
    [("chain", "encap-in"), ("chain", "encap-out"), ("set", PEERS), ("counter", UNKNOWN_SENDERS)];

fn removal_of_rule(table: &str, rule: &Value) -> Option<String> {
    let (chain, handle) = (text(rule, "chain"), rule.get("handle")?);
    Some(format!("delete rule {table} {chain} handle {handle}\n"))
}

/// `nft --check` must accept this script before the daemon uses random ports.
pub(crate) fn probe(family: Family) -> String {
    let (family, _) = table(family);
    let name = "flannel-probe";
    format!(
        "add table {family} {name}\nadd chain {family} {name} c {{ type nat hook postrouting priority 100; }}\nadd rule {family} {name} c masquerade fully-random\n"
    )
}

fn render(family: &str, encapsulation: Option<Encapsulation>, rule: &Rule) -> String {
    let mut out = match encapsulation {
        None | Some(Encapsulation::None) => String::new(),
        Some(Encapsulation::Ipip) => " ip protocol 4".to_owned(),
        Some(udp @ Encapsulation::Udp { .. }) => {
            match udp.ports().iter().map(u16::to_string).collect::<Vec<_>>().as_slice() {
                [port] => format!(" udp dport {port}"),
                ports => format!(" udp dport {{ {} }}", ports.join(", ")),
            }
        }
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

/// True if flannel's table in the kernel contains exactly the given rules. `listing` is the output
/// of `nft -j list table`, or `None` if the table does not exist.
pub(crate) fn holds(rules: &Ruleset, listing: Option<&Value>) -> bool {
    let found = listing.map(|listing| TableState::read(listing, rules)).unwrap_or_default();
    let peers = rules.encap.as_ref().and_then(|encap| encap.peers.as_ref());
    found.same_chains(rules) && found.peers.as_ref().map(Option::as_ref) == peers.map(Some)
}

/// The rules that guard the encapsulation port do not count.
pub(crate) fn holds_except_encap(rules: &Ruleset, listing: Option<&Value>) -> bool {
    let bare = Ruleset { encap: None, ..rules.clone() };
    let mut found = listing.map(|listing| TableState::read(listing, &bare)).unwrap_or_default();
    found.chains.retain(|chain| !chain.is_guard());
    found.same_chains(&bare)
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
            let keeps = |rule: &Value| of != "raw" && others.keeps(named(rule));
            if !others.slots.contains(&slot) && !rules_of(listing, name).any(keeps) {
                let jumps = items(listing, "rule").filter(|rule| leads_to(rule, name));
                rules.extend(jumps.filter_map(|rule| removal_of_rule(&table, rule)));
                let _ = writeln!(chains, "flush chain {table} {name}\ndelete chain {table} {name}");
                words.push(format!("table {table}: chain {name} and the jumps to it"));
            } else if of != "raw" {
                let left: Vec<String> = rules_of(listing, name)
                    .filter(|rule| others.is_left(named(rule), false))
                    .filter_map(|rule| removal_of_rule(&table, rule))
                    .collect();
                words.extend(
                    (!left.is_empty())
                        .then(|| format!("table {table}: {} rules in chain {name}", left.len())),
                );
                rules.extend(left);
            }
        }
    }
    (!words.is_empty()).then(|| (rules + &chains, words))
}

fn leads_to(rule: &Value, chain: &str) -> bool {
    let parts = rule.get("expr").and_then(Value::as_array);
    let mut targets = parts.into_iter().flatten().filter_map(|part| {
        let jump = part.get("jump").or_else(|| part.get("goto"))?;
        Some(text(jump, "target"))
    });
    targets.any(|target| target == chain)
}

fn rules_of<'a>(listing: &'a Value, chain: &'a str) -> impl Iterator<Item = &'a Value> {
    items(listing, "rule").filter(move |rule| text(rule, "chain") == chain)
}

/// The source and the destination network that a rule matches, regardless of its other conditions.
fn named(rule: &Value) -> Named {
    let matches = rule.get("expr").and_then(Value::as_array).into_iter().flatten();
    let (mut source, mut destination) = (None, None);
    for condition in matches.filter_map(|part| parse_match(part.get("match")?)) {
        match condition {
            Match::Source(is, net) => source = Some((is, net)),
            Match::Destination(is, net) => destination = Some((is, net)),
            _ => {}
        }
    }
    (source, destination)
}

pub(crate) fn items<'a>(listing: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    listing
        .get("nftables")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(move |item| item.get(kind))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A chain in the kernel, with its current rules.
#[derive(Debug)]
struct FoundChain {
    name: String,
    /// `None` for a rule with expressions that flannel does not write.
    rules: Vec<Option<Rule>>,
}

impl FoundChain {
    fn is_guard(&self) -> bool {
        CHAINS.iter().any(|known| known.guard && self.name == known.name)
    }

    fn is_foreign(&self, rule: &Rule, others: &OtherDaemons) -> bool {
        !self.is_guard() && others.is_foreign(rule.named())
    }

    /// The rules of other networks.
    fn foreign(&self, others: &OtherDaemons) -> impl Iterator<Item = &Rule> {
        self.rules.iter().flatten().filter(|rule| self.is_foreign(rule, others))
    }

    /// An unwanted chain stays as it is while it has rules of other networks.
    fn is_right(&self, wanted: Option<&Vec<Rule>>, others: &OtherDaemons) -> bool {
        let is_foreign =
            |rule: &Option<Rule>| rule.as_ref().is_some_and(|rule| self.is_foreign(rule, others));
        let Some(wanted) = wanted else {
            return self.foreign(others).next().is_some();
        };
        let rules = self.rules.iter().filter(|rule| !is_foreign(rule));
        rules.map(Option::as_ref).eq(wanted.iter().map(Some))
    }
}

/// What flannel's table contains.
#[derive(Debug, Default)]
struct TableState {
    chains: Vec<FoundChain>,
    /// The table contains an object that the daemon cannot correct in place: an unknown chain, an
    /// incorrect hook or a set of another type.
    is_wrong: bool,
    /// The set of peers, if it exists, and its addresses, if all are valid.
    peers: Option<Option<BTreeSet<IpAddr>>>,
    /// The counter of packets from unknown senders.
    unknown_senders: Option<u64>,
}

impl TableState {
    fn read(listing: &Value, rules: &Ruleset) -> Self {
        let mut found = Self::default();
        items(listing, "chain").for_each(|chain| found.add_chain(chain, rules));
        items(listing, "rule").for_each(|rule| found.add_rule(rule, rules));
        for set in items(listing, "set").filter(|set| text(set, "name") == PEERS) {
            found.add_peers(set, rules.family);
        }
        found.unknown_senders = unknown_senders(listing);
        found
    }

    fn add_chain(&mut self, chain: &Value, rules: &Ruleset) {
        let name = text(chain, "name");
        let mut former = CHAINS.iter().filter_map(|known| slot_of(name, known.name));
        if former.any(|slot| slot != 0 && rules.others.slots.contains(&slot)) {
            // The guard of a running daemon without a table of its own.
            return;
        }
        self.is_wrong |= !CHAINS.iter().any(|known| {
            (name, text(chain, "type"), text(chain, "hook"), text(chain, "policy"))
                == (known.name, known.kind, known.hook, "accept")
                && chain.get("prio").and_then(priority) == Some(known.priority)
        });
        self.chains.push(FoundChain { name: name.to_owned(), rules: Vec::new() });
    }

    fn add_rule(&mut self, rule: &Value, rules: &Ruleset) {
        let name = text(rule, "chain");
        if let Some(chain) = self.chains.iter_mut().find(|chain| chain.name == name) {
            let encapsulation =
                rules.encap.as_ref().filter(|_| chain.is_guard()).map(|encap| encap.encapsulation);
            chain.rules.push(parse(rule, encapsulation));
        }
    }

    fn add_peers(&mut self, set: &Value, family: Family) {
        self.is_wrong |= text(set, "type") != family.pick("ipv4_addr", "ipv6_addr")
            || set.get("flags").is_some();
        let elements =
            set.get("elem").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        self.peers =
            Some(elements.iter().map(|element| plain(element).as_str()?.parse().ok()).collect());
    }

    fn chain(&self, name: &str) -> Option<&FoundChain> {
        self.chains.iter().find(|chain| chain.name == name)
    }

    /// Does not compare the sets of peers.
    fn same_chains(&self, rules: &Ruleset) -> bool {
        let same = |known: &Chain| match (self.chain(known.name), known.wanted(rules)) {
            (Some(found), wanted) => found.is_right(wanted, &rules.others),
            (None, wanted) => wanted.is_none(),
        };
        !self.is_wrong && CHAINS.iter().all(same)
    }
}

fn parse(rule: &Value, encapsulation: Option<Encapsulation>) -> Option<Rule> {
    let mut matches = Vec::new();
    let mut verdict = None;
    let mut counted = false;
    let mut expressions = rule.get("expr")?.as_array()?.iter();
    if let Some(encapsulation) = encapsulation
        && !matches_encapsulated(expressions.next()?.get("match")?, encapsulation)?
    {
        return None;
    }
    for expression in expressions {
        if let Some(condition) = expression.get("match") {
            matches.push(parse_match(condition)?);
        } else if expression.get("return").is_some() {
            verdict = Some(Verdict::Return);
        } else if expression.get("accept").is_some() {
            verdict = Some(Verdict::Accept);
        } else if expression.get("drop").is_some() {
            verdict = Some(Verdict::Drop);
        } else if expression.get("notrack").is_some() {
            verdict = Some(Verdict::Notrack);
        } else if let Some(masquerade) = expression.get("masquerade") {
            // nft prints one flag as a string, several as a list.
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
        } else if let Some(counter) = expression.get("counter") {
            counted |= counter.as_str() == Some(UNKNOWN_SENDERS);
        } else {
            return None;
        }
    }
    if matches.contains(&Match::UnknownSender) != counted {
        return None;
    }
    Some(Rule { matches, verdict: verdict.or(counted.then_some(Verdict::Count))? })
}

/// The nft condition matches exactly the packets of this encapsulation.
fn matches_encapsulated(condition: &Value, encapsulation: Encapsulation) -> Option<bool> {
    let payload = condition.get("left")?.get("payload")?;
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
    if let Some(masked) = left.get("&").and_then(Value::as_array) {
        let mark = masked.first()?.get("meta")?.get("key")?.as_str()? == "mark";
        let bits = bits(masked.get(1)?)?;
        return (mark && is && self::bits(right)? == bits).then_some(Match::Mark(bits));
    }
    if let Some(fib) = left.get("fib") {
        // Depending on its version, nft prints one flag as a string or as a list.
        let flags = fib.get("flags")?;
        let flag = flags
            .as_str()
            .or_else(|| flags.as_array().filter(|flags| flags.len() == 1)?.first()?.as_str())?;
        return match (is, text(fib, "result"), right.as_str()?, flag) {
            (true, "type", "local", "saddr") => Some(Match::LocalSource),
            (true, "type", "local", "daddr") => Some(Match::LocalDestination),
            _ => None,
        };
    }
    let field = left.get("payload")?.get("field")?.as_str()?;
    if right.as_str().and_then(|name| name.strip_prefix('@')) == Some(PEERS) {
        return (field == "saddr" && !is).then_some(Match::UnknownSender);
    }
    let net = network(right)?;
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

fn network(value: &Value) -> Option<IpNet> {
    match value.get("prefix") {
        Some(prefix) => IpNet::new(
            prefix.get("addr")?.as_str()?.parse().ok()?,
            u8::try_from(prefix.get("len")?.as_u64()?).ok()?,
        )
        .ok(),
        None => value.as_str()?.parse::<IpAddr>().ok().map(IpNet::from),
    }
}
