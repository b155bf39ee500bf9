//! Renders the rules as an nft script and parses the output of `nft -j`. Pure.
//!
//! flannel-rs uses Go flannel's names and comments for the table and the chains, so that each
//! program finds and replaces the other's rules. The nftables rules have the same effect as the
//! iptables rules. Unlike in Go flannel, conditions on the mark use a mask, and the fourth
//! masquerade rule matches packets to this node's subnet.

use super::ownership::{Change, NetMatch, OtherDaemons, Owner, change};
use super::reader::words::number;
use super::rules::{Match, Rule, Ruleset, TABLES, Verdict};
use ipnet::IpNet;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;
use types::{Encapsulation, Family};

/// The nftables family and the name of flannel's table. Go flannel uses these names.
pub(crate) fn table(family: Family) -> (&'static str, &'static str) {
    family.pick(("ip", "flannel-ipv4"), ("ip6", "flannel-ipv6"))
}

/// A chain that flannel's table may contain.
struct Chain {
    name: &'static str,
    kind: &'static str,
    hook: &'static str,
    priority: i64,
    comment: &'static str,
    /// The chain guards an encapsulation port. Each daemon has its own guard chains; all daemons on
    /// the host share the other chains.
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

/// A daemon's chain, set or counter for the encapsulation port. The names of daemon 0 have no
/// suffix.
fn slot_name(name: &str, slot: u16) -> String {
    if slot == 0 { name.to_owned() } else { format!("{name}-{slot}") }
}

/// A daemon's number from the name of a chain, set or counter for the encapsulation port; `None`
/// for another name.
fn slot_of(name: &str, plain: &str) -> Option<u16> {
    let slot = match name.strip_prefix(plain)? {
        "" => 0,
        rest => rest.strip_prefix('-')?.parse().ok()?,
    };
    (slot_name(plain, slot) == name).then_some(slot)
}

impl Chain {
    /// The name of a guard chain ends with this daemon's number, unless it is 0.
    fn name_in(&self, rules: &Ruleset) -> String {
        slot_name(self.name, if self.guard { rules.guard_slot } else { 0 })
    }

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
/// the desired ones and keeps those of other daemons. If no rules remain, it deletes the table. If
/// only the peers differ, it changes only their set.
pub(crate) fn script(rules: &Ruleset, listing: Option<&Value>) -> String {
    let (family, name) = table(rules.family);
    let found = listing.map(|listing| TableState::read(listing, rules)).unwrap_or_default();
    if rules.is_empty() && !found.is_shared() {
        return removal(rules.family);
    }
    let peers = rules.encap.as_ref().and_then(|encap| encap.peers.as_ref());
    let (set, counter) =
        (slot_name(PEERS, rules.guard_slot), slot_name(UNKNOWN_SENDERS, rules.guard_slot));
    if found.same_chains(rules)
        && let (Some(Some(have)), Some(want)) = (&found.peers, peers)
    {
        let change = |verb: &str, ips: Vec<String>| match ips.as_slice() {
            [] => String::new(),
            ips => format!("{verb} element {family} {name} {set} {{ {} }}\n", ips.join(", ")),
        };
        let (gone, new) = (
            have.difference(want).map(IpAddr::to_string),
            want.difference(have).map(IpAddr::to_string),
        );
        return change("delete", gone.collect()) + &change("add", new.collect());
    }
    // Objects that cannot be corrected in place are deleted with the table. The other daemons' rules are then added again together with ours.
    let mut out = if found.foreign { removal(rules.family) } else { String::new() };
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line(format!("add table {family} {name} {{ comment \"rules for {name}\"; }}"));
    if let Some(peers) = peers {
        let kind = rules.family.pick("ipv4_addr", "ipv6_addr");
        line(format!("add set {family} {name} {set} {{ type {kind}; }}"));
        line(format!("flush set {family} {name} {set}"));
        if !peers.is_empty() {
            let peers: Vec<String> = peers.iter().map(IpAddr::to_string).collect();
            line(format!("add element {family} {name} {set} {{ {} }}", peers.join(", ")));
        }
        line(format!("add counter {family} {name} {counter}"));
    }
    for chain in &CHAINS {
        chain_lines(chain, rules, &found).into_iter().for_each(&mut line);
    }
    if !found.foreign {
        let mut orphans = found.orphans;
        if peers.is_none() {
            orphans.extend(found.peers.map(|_| ("set", set)));
            orphans.extend(found.unknown_senders.map(|_| ("counter", counter)));
        }
        // Chains go first: objects in use cannot be deleted.
        for (kind, object) in &orphans {
            if *kind == "chain" {
                line(format!("flush chain {family} {name} {object}"));
            }
            line(format!("delete {kind} {family} {name} {object}"));
        }
    }
    out
}

/// The lines of the nft script for one chain.
fn chain_lines(chain: &Chain, rules: &Ruleset, found: &TableState) -> Vec<String> {
    let (family, table) = table(rules.family);
    let name = chain.name_in(rules);
    let (wanted, present) = (chain.wanted(rules), found.chain(&name));
    let Chain { kind, hook, priority, comment, .. } = chain;
    let path = format!("{family} {table} {name}");
    let rule = |rule: &Rule| {
        format!("{path}{}", render(family, chain.encapsulation(rules), rule, rules.guard_slot))
    };
    let theirs = present.into_iter().flat_map(|present| present.theirs(&rules.others));
    // Adding the chain first makes the flush and the deletion safe.
    let add = format!(
        "add chain {path} {{ type {kind} hook {hook} priority {priority}; policy accept; comment \"{comment}\"; }}"
    );
    if found.foreign || !present.is_some_and(|present| present.is_shared(&rules.others)) {
        let there = present.is_some() && !found.foreign;
        let kept: Vec<&Rule> = if found.foreign { theirs.collect() } else { Vec::new() };
        return match wanted {
            None if kept.is_empty() && !there => Vec::new(),
            None if kept.is_empty() => {
                vec![add, format!("flush chain {path}"), format!("delete chain {path}")]
            }
            wanted => {
                let all = wanted.into_iter().flatten().chain(kept);
                [add, format!("flush chain {path}")]
                    .into_iter()
                    .chain(all.map(|one| format!("add rule {}", rule(one))))
                    .collect()
            }
        };
    }
    let Some((present, change)) =
        present.map(|present| (present, present.change(wanted, &rules.others)))
    else {
        return Vec::new();
    };
    let handles = change.remove.iter().filter_map(|at| present.rules.get(*at)?.handle);
    let mut lines: Vec<String> =
        handles.map(|handle| format!("delete rule {path} handle {handle}")).collect();
    lines.extend(change.head.iter().map(|one| format!("insert rule {}", rule(one))));
    lines.extend(change.block.iter().map(|one| format!("add rule {}", rule(one))));
    lines
}

/// One transaction that deletes flannel's table.
pub(crate) fn removal(family: Family) -> String {
    let (family, name) = table(family);
    format!("add table {family} {name}\ndelete table {family} {name}\n")
}

/// `nft --check` must accept this script before the daemon uses random ports.
pub(crate) fn probe(family: Family) -> String {
    let (family, _) = table(family);
    let name = "flannel-probe";
    format!(
        "add table {family} {name}\nadd chain {family} {name} c {{ type nat hook postrouting priority 100; }}\nadd rule {family} {name} c masquerade fully-random\n"
    )
}

fn render(family: &str, encapsulation: Option<Encapsulation>, rule: &Rule, slot: u16) -> String {
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
            Match::UnknownSender => write!(
                out,
                " {family} saddr != @{} counter name {}",
                slot_name(PEERS, slot),
                slot_name(UNKNOWN_SENDERS, slot)
            ),
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
    let found = listing.map(|listing| TableState::read(listing, &bare)).unwrap_or_default();
    let mut chains = found.chains;
    chains.retain(|chain| !chain.is_guard());
    TableState { chains, foreign: found.foreign, ..TableState::default() }.same_chains(&bare)
}

/// The networks whose rules stay only because a daemon may serve them.
pub(crate) fn unserved(listing: &Value, others: &OtherDaemons) -> BTreeSet<IpNet> {
    let rules = items(listing, "rule").filter_map(|rule| parse(rule, None, 0)?.network(others));
    rules
        .filter(|network| !others.own.contains(network) && !others.served.contains(network))
        .collect()
}

/// As a daemon's guard rules have counted them, in packets.
pub(crate) fn unknown_senders(listing: &Value, slot: u16) -> Option<u64> {
    items(listing, "counter")
        .find(|counter| text(counter, "name") == slot_name(UNKNOWN_SENDERS, slot))?
        .get("packets")?
        .as_u64()
}

/// Other flannel daemons also use the table.
pub(crate) fn is_shared(listing: &Value, family: Family, others: &OtherDaemons) -> bool {
    TableState::read(listing, &Ruleset { others: others.clone(), ..Ruleset::empty(family) })
        .is_shared()
}

/// One transaction that removes flannel's iptables-nft rules from the listed tables and keeps those
/// of other running daemons, with descriptions of the removed objects; `None` without rules of
/// flannel. nft does not print iptables comments, so flannel's jumps are recognised by their
/// targets.
pub(crate) fn iptables_removal<'a>(
    listings: impl IntoIterator<Item = &'a Value>,
    others: &OtherDaemons,
) -> Option<(String, Vec<String>)> {
    let is_ours = |chain: &str| {
        ["FLANNEL-POSTRTG", "FLANNEL-FWD"].contains(&chain)
            || slot_of(chain, "FLANNEL-ENCAP").is_some_and(|slot| !others.keeps_guard(slot))
    };
    let owner = |rule: &Value| {
        let (source, destination) = named(rule);
        others.network(source, destination)?;
        Some(others.owner(source, destination))
    };
    // The jumps go first, because the kernel does not delete a chain in use.
    let (mut rules, mut chains, mut words) = (String::new(), String::new(), Vec::new());
    for listing in listings {
        for chain in items(listing, "chain") {
            let name = text(chain, "name");
            if !is_ours(name) {
                continue;
            }
            let table = format!("{} {}", text(chain, "family"), text(chain, "table"));
            let is_shared = rules_of(listing, name).any(|rule| owner(rule) == Some(Owner::Theirs));
            let goes = |rule: &&Value| match is_shared {
                true => text(rule, "chain") == name && owner(rule) == Some(Owner::Ours),
                false => !is_ours(text(rule, "chain")) && leads_to(rule, name),
            };
            let mut count = 0;
            for rule in items(listing, "rule").filter(goes) {
                if let Some(handle) = rule.get("handle") {
                    let of = text(rule, "chain");
                    let _ = writeln!(rules, "delete rule {table} {of} handle {handle}");
                    count += 1;
                }
            }
            if !is_shared {
                let _ = writeln!(chains, "flush chain {table} {name}\ndelete chain {table} {name}");
                words.push(format!("table {table}: chain {name} and the jumps to it"));
            } else if count > 0 {
                words.push(format!(
                    "table {table}: {count} rules in chain {name}, which another flanneld also uses"
                ));
            }
        }
    }
    (!words.is_empty()).then(|| (rules + &chains, words))
}

/// A chain of a table of iptables with a name of flannel.
pub(crate) fn is_of_iptables(table: &str, chain: &str) -> bool {
    let own = ["FLANNEL-POSTRTG", "FLANNEL-FWD", "FLANNEL-ENCAP"];
    TABLES.contains(&table) && own.iter().any(|own| slot_of(chain, own).is_some())
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
fn named(rule: &Value) -> (NetMatch, NetMatch) {
    let matches = rule.get("expr").and_then(Value::as_array).into_iter().flatten();
    let (mut source, mut destination) = (None, None);
    for condition in matches.filter_map(|part| parse_match(part.get("match")?, 0)) {
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

/// `rule` is `None` if flannel writes no rule with these expressions.
#[derive(Debug)]
struct FoundRule {
    handle: Option<u64>,
    rule: Option<Rule>,
}

/// A chain in the kernel, with its current rules.
#[derive(Debug)]
struct FoundChain {
    name: String,
    rules: Vec<FoundRule>,
}

impl FoundChain {
    fn is_guard(&self) -> bool {
        CHAINS.iter().any(|known| known.guard && slot_of(&self.name, known.name).is_some())
    }

    fn owner(&self, rule: &FoundRule, others: &OtherDaemons) -> Owner {
        rule.rule
            .as_ref()
            .filter(|_| !self.is_guard())
            .map_or(Owner::Ours, |rule| rule.owner(others))
    }

    fn theirs<'a>(&'a self, others: &'a OtherDaemons) -> impl Iterator<Item = &'a Rule> {
        self.rules
            .iter()
            .filter(|rule| self.owner(rule, others) == Owner::Theirs)
            .filter_map(|rule| rule.rule.as_ref())
    }

    /// Other daemons have rules in the chain.
    fn is_shared(&self, others: &OtherDaemons) -> bool {
        self.theirs(others).next().is_some()
    }

    fn change(&self, wanted: Option<&Vec<Rule>>, others: &OtherDaemons) -> Change<Rule> {
        let present: Vec<_> =
            self.rules.iter().map(|rule| (self.owner(rule, others), rule.rule.clone())).collect();
        change(&present, wanted.map_or(&[], Vec::as_slice), Rule::is_head)
    }
}

/// What flannel's table contains.
#[derive(Debug, Default)]
struct TableState {
    /// The chains of this daemon, and those that all daemons share.
    chains: Vec<FoundChain>,
    /// The table contains an object that the daemon cannot correct in place: an unknown chain, an
    /// incorrect hook or a set of another type.
    foreign: bool,
    /// The set of peers, if it exists, and its addresses, if all are valid.
    peers: Option<Option<BTreeSet<IpAddr>>>,
    /// The counter of packets from unknown senders.
    unknown_senders: Option<u64>,
    /// Chains, sets and counters of guards that no running daemon uses: object type and name.
    orphans: Vec<(&'static str, String)>,
    /// Other flannel daemons also use the table.
    is_shared: bool,
}

/// Who owns a chain, set or counter of a guard.
enum GuardOwner {
    Ours,
    Theirs,
    Orphaned,
}

impl GuardOwner {
    fn of(slot: u16, rules: &Ruleset) -> Self {
        if rules.encap.is_some() && slot == rules.guard_slot {
            GuardOwner::Ours
        } else if rules.others.keeps_guard(slot) {
            GuardOwner::Theirs
        } else {
            GuardOwner::Orphaned
        }
    }
}

impl TableState {
    fn read(listing: &Value, rules: &Ruleset) -> Self {
        let mut found = Self::default();
        items(listing, "chain").for_each(|chain| found.add_chain(chain, rules));
        items(listing, "rule").for_each(|rule| found.add_rule(rule, rules));
        items(listing, "set").for_each(|set| found.add_set(set, rules));
        items(listing, "counter").for_each(|counter| found.add_counter(counter, rules));
        found.is_shared |= found.chains.iter().any(|chain| chain.is_shared(&rules.others));
        found
    }

    fn add_chain(&mut self, chain: &Value, rules: &Ruleset) {
        let name = text(chain, "name");
        let known =
            CHAINS.iter().find_map(|known| match (known.guard, slot_of(name, known.name)) {
                (true, Some(slot)) => Some((known, GuardOwner::of(slot, rules))),
                (false, Some(0)) => Some((known, GuardOwner::Ours)),
                _ => None,
            });
        let right = known.as_ref().is_some_and(|(known, _)| {
            (text(chain, "type"), text(chain, "hook"), text(chain, "policy"))
                == (known.kind, known.hook, "accept")
                && chain.get("prio").and_then(priority) == Some(known.priority)
        });
        match known {
            Some((_, GuardOwner::Theirs)) => self.is_shared = true,
            Some((_, GuardOwner::Orphaned)) => self.orphans.push(("chain", name.to_owned())),
            _ => {
                self.foreign |= !right;
                self.chains.push(FoundChain { name: name.to_owned(), rules: Vec::new() });
            }
        }
    }

    fn add_rule(&mut self, rule: &Value, rules: &Ruleset) {
        let name = text(rule, "chain");
        if let Some(chain) = self.chains.iter_mut().find(|chain| chain.name == name) {
            let encapsulation =
                rules.encap.as_ref().filter(|_| chain.is_guard()).map(|encap| encap.encapsulation);
            chain.rules.push(FoundRule {
                handle: rule.get("handle").and_then(Value::as_u64),
                rule: parse(rule, encapsulation, rules.guard_slot),
            });
        }
    }

    fn add_set(&mut self, set: &Value, rules: &Ruleset) {
        let name = text(set, "name");
        match slot_of(name, PEERS).map(|slot| GuardOwner::of(slot, rules)) {
            Some(GuardOwner::Ours) => {
                self.foreign |= text(set, "type") != rules.family.pick("ipv4_addr", "ipv6_addr")
                    || set.get("flags").is_some();
                let elements = set
                    .get("elem")
                    .and_then(Value::as_array)
                    .map(Vec::as_slice)
                    .unwrap_or_default();
                self.peers = Some(
                    elements.iter().map(|element| plain(element).as_str()?.parse().ok()).collect(),
                );
            }
            Some(GuardOwner::Orphaned) => self.orphans.push(("set", name.to_owned())),
            Some(GuardOwner::Theirs) | None => {}
        }
    }

    fn add_counter(&mut self, counter: &Value, rules: &Ruleset) {
        let name = text(counter, "name");
        match slot_of(name, UNKNOWN_SENDERS).map(|slot| GuardOwner::of(slot, rules)) {
            Some(GuardOwner::Ours) => {
                self.unknown_senders = counter.get("packets").and_then(Value::as_u64);
            }
            Some(GuardOwner::Orphaned) => self.orphans.push(("counter", name.to_owned())),
            Some(GuardOwner::Theirs) | None => {}
        }
    }

    fn chain(&self, name: &str) -> Option<&FoundChain> {
        self.chains.iter().find(|chain| chain.name == name)
    }

    /// Other flannel daemons also use the table.
    fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Does not compare the sets of peers.
    fn same_chains(&self, rules: &Ruleset) -> bool {
        let same = |known: &Chain| {
            let (wanted, found) = (known.wanted(rules), self.chain(&known.name_in(rules)));
            match (found, wanted) {
                (None, None) => true,
                (Some(found), wanted) if found.is_shared(&rules.others) => {
                    found.change(wanted, &rules.others).is_empty()
                }
                (Some(found), Some(wanted)) => {
                    found.rules.iter().map(|rule| rule.rule.as_ref()).eq(wanted.iter().map(Some))
                }
                _ => false,
            }
        };
        !self.foreign && self.orphans.is_empty() && CHAINS.iter().all(same)
    }
}

fn parse(rule: &Value, encapsulation: Option<Encapsulation>, slot: u16) -> Option<Rule> {
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
            matches.push(parse_match(condition, slot)?);
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
            counted |= counter.as_str() == Some(&slot_name(UNKNOWN_SENDERS, slot));
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

fn parse_match(condition: &Value, slot: u16) -> Option<Match> {
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
    if right.as_str().and_then(|name| name.strip_prefix('@')) == Some(&slot_name(PEERS, slot)) {
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
