//! The rules as an nft script, and as `nft -j` tells them back: text in, text out.
//!
//! Table, chain and comment names are Go flannel's, so that either tool finds and replaces the other's rules; the rules
//! themselves do what the iptables set does (the mark is masked, rule 4 is about this node's pods).

use super::rules::{Match, Rule, Ruleset, Verdict};
use super::shared::{Change, Named, Others, Owner, change};
use ipnet::IpNet;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;

/// Go flannel's names for a family's table.
pub fn table(ipv6: bool) -> (&'static str, &'static str) {
    if ipv6 { ("ip6", "flannel-ipv6") } else { ("ip", "flannel-ipv4") }
}

/// A chain that may be in the table.
struct Chain {
    name: &'static str,
    kind: &'static str,
    hook: &'static str,
    priority: i64,
    comment: &'static str,
    /// Each guard of an encapsulation port has its own; the others are for the networks of all daemons.
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
    Chain { name: "forward", kind: "filter", hook: "forward", priority: 0, comment: "chain to accept flannel traffic", guard: false },
    Chain { name: "encap-in", kind: "filter", hook: "prerouting", priority: -300, comment: "chain to guard the encapsulation port", guard: true },
    Chain { name: "encap-out", kind: "filter", hook: "output", priority: -300, comment: "chain for encapsulated packets of this host", guard: true },
];
/// The set of those who may send to the encapsulation port.
const PEERS: &str = "peers";
/// The counter of packets of others.
const STRANGERS: &str = "strangers";

/// The name of what a guard has, by its place: the first has the plain names.
fn at(name: &str, place: u16) -> String {
    if place == 0 { name.to_owned() } else { format!("{name}-{place}") }
}

/// The place of a guard's object with this name.
fn place_of(name: &str, plain: &str) -> Option<u16> {
    let place = match name.strip_prefix(plain)? {
        "" => 0,
        rest => rest.strip_prefix('-')?.parse().ok()?,
    };
    (at(plain, place) == name).then_some(place)
}

impl Chain {
    /// Its name in this daemon's rules.
    fn name_in(&self, rules: &Ruleset) -> String {
        at(self.name, if self.guard { rules.place } else { 0 })
    }

    /// What is wanted in it.
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

    /// The port that all its rules are about.
    fn port(&self, rules: &Ruleset) -> Option<u16> {
        rules.encap.as_ref().filter(|_| self.guard).map(|encap| encap.port)
    }
}

/// One transaction that leaves exactly these rules in the family's table, which `nft -j list table` told as `listing`, beside those of other
/// daemons; where there are none, no table. Where only the peers differ, only they change.
pub fn script(rules: &Ruleset, listing: Option<&Value>) -> String {
    let (family, name) = table(rules.ipv6);
    let found = listing.map(|listing| Found::read(listing, rules)).unwrap_or_default();
    if rules.is_empty() && !found.beside() {
        return removal(rules.ipv6);
    }
    let peers = rules.encap.as_ref().and_then(|encap| encap.peers.as_ref());
    let (set, counter) = (at(PEERS, rules.place), at(STRANGERS, rules.place));
    if found.same_chains(rules)
        && let (Some(Some(have)), Some(want)) = (&found.peers, peers)
    {
        let change = |verb: &str, ips: Vec<String>| match ips.as_slice() {
            [] => String::new(),
            ips => format!("{verb} element {family} {name} {set} {{ {} }}\n", ips.join(", ")),
        };
        let (gone, new) = (have.difference(want).map(IpAddr::to_string), want.difference(have).map(IpAddr::to_string));
        return change("delete", gone.collect()) + &change("add", new.collect());
    }
    // What cannot be put right in place goes with the table, and the other daemons' rules come back with ours.
    let mut out = if found.foreign { removal(rules.ipv6) } else { String::new() };
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line(format!("add table {family} {name} {{ comment \"rules for {name}\"; }}"));
    if let Some(peers) = peers {
        let kind = if rules.ipv6 { "ipv6_addr" } else { "ipv4_addr" };
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
        let mut left = found.left;
        if peers.is_none() {
            left.extend(found.peers.map(|_| ("set", set)));
            left.extend(found.strangers.map(|_| ("counter", counter)));
        }
        // The chains first: what they use cannot be deleted.
        for (kind, object) in &left {
            if *kind == "chain" {
                line(format!("flush chain {family} {name} {object}"));
            }
            line(format!("delete {kind} {family} {name} {object}"));
        }
    }
    out
}

/// What brings the rules of one chain.
fn chain_lines(chain: &Chain, rules: &Ruleset, found: &Found) -> Vec<String> {
    let (family, table) = table(rules.ipv6);
    let name = chain.name_in(rules);
    let (wanted, present) = (chain.wanted(rules), found.chain(&name));
    let Chain { kind, hook, priority, comment, .. } = chain;
    let path = format!("{family} {table} {name}");
    let rule = |rule: &Rule| format!("{path}{}", render(family, chain.port(rules), rule, rules.place));
    let theirs = present.into_iter().flat_map(|present| present.theirs(&rules.others));
    // Added first, so that flushing and deleting never fails.
    let add = format!("add chain {path} {{ type {kind} hook {hook} priority {priority}; policy accept; comment \"{comment}\"; }}");
    if found.foreign || !present.is_some_and(|present| present.beside(&rules.others)) {
        let there = present.is_some() && !found.foreign;
        let again: Vec<&Rule> = if found.foreign { theirs.collect() } else { Vec::new() };
        return match wanted {
            None if again.is_empty() && !there => Vec::new(),
            None if again.is_empty() => vec![add, format!("flush chain {path}"), format!("delete chain {path}")],
            wanted => {
                let all = wanted.into_iter().flatten().chain(again);
                [add, format!("flush chain {path}")].into_iter().chain(all.map(|one| format!("add rule {}", rule(one)))).collect()
            }
        };
    }
    let Some((present, change)) = present.map(|present| (present, present.change(wanted, &rules.others))) else { return Vec::new() };
    let handles = change.remove.iter().filter_map(|at| present.rules.get(*at)?.handle);
    let mut lines: Vec<String> = handles.map(|handle| format!("delete rule {path} handle {handle}")).collect();
    lines.extend(change.head.iter().map(|one| format!("insert rule {}", rule(one))));
    lines.extend(change.block.iter().map(|one| format!("add rule {}", rule(one))));
    lines
}

/// One transaction that leaves nothing of ours in a family.
pub fn removal(ipv6: bool) -> String {
    let (family, name) = table(ipv6);
    format!("add table {family} {name}\ndelete table {family} {name}\n")
}

/// What `nft --check` must accept before ports are chosen at random.
pub fn probe(ipv6: bool) -> String {
    let (family, _) = table(ipv6);
    let name = "flannel-probe";
    format!(
        "add table {family} {name}\nadd chain {family} {name} c {{ type nat hook postrouting priority 100; }}\nadd rule {family} {name} c masquerade fully-random\n"
    )
}

fn render(family: &str, port: Option<u16>, rule: &Rule, place: u16) -> String {
    let mut out = port.map(|port| format!(" udp dport {port}")).unwrap_or_default();
    let not = |is: bool| if is { "" } else { "!= " };
    for condition in &rule.matches {
        let _ = match condition {
            Match::Source(is, net) => write!(out, " {family} saddr {}{net}", not(*is)),
            Match::Destination(is, net) => write!(out, " {family} daddr {}{net}", not(*is)),
            Match::Mark(bits) => write!(out, " meta mark and {bits:#x} == {bits:#x}"),
            Match::LocalSource => write!(out, " fib saddr type local"),
            Match::LocalDestination => write!(out, " fib daddr type local"),
            Match::Stranger => write!(out, " {family} saddr != @{} counter name {}", at(PEERS, place), at(STRANGERS, place)),
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

/// Whether the family's table, as `nft -j list table` tells it (nothing where there is none), holds exactly these rules.
pub fn holds(rules: &Ruleset, listing: Option<&Value>) -> bool {
    let found = listing.map(|listing| Found::read(listing, rules)).unwrap_or_default();
    let peers = rules.encap.as_ref().and_then(|encap| encap.peers.as_ref());
    found.same_chains(rules) && found.peers.as_ref().map(Option::as_ref) == peers.map(Some)
}

/// Whether at least the rules that do not guard the encapsulation port are there.
pub fn holds_but_encap(rules: &Ruleset, listing: Option<&Value>) -> bool {
    let bare = Ruleset { encap: None, ..rules.clone() };
    let found = listing.map(|listing| Found::read(listing, &bare)).unwrap_or_default();
    let mut chains = found.chains;
    chains.retain(|chain| !chain.is_guard());
    Found { chains, foreign: found.foreign, ..Found::default() }.same_chains(&bare)
}

/// The networks whose rules stay only because nobody knows whether they are served.
pub fn unserved(listing: &Value, others: &Others) -> BTreeSet<IpNet> {
    let rules = items(listing, "rule").filter_map(|rule| parse(rule, None, 0)?.network(others));
    rules.filter(|network| !others.own.contains(network) && !others.served.contains(network)).collect()
}

/// How many packets of others came to the encapsulation port that the first place guards, as the table's counter tells.
pub fn strangers(listing: &Value) -> Option<u64> {
    strangers_at(listing, 0)
}

/// The same for the guard of any place.
pub fn strangers_at(listing: &Value, place: u16) -> Option<u64> {
    items(listing, "counter").find(|counter| text(counter, "name") == at(STRANGERS, place))?.get("packets")?.as_u64()
}

/// Whether other daemons have something in the table.
pub fn beside(listing: &Value, ipv6: bool, others: &Others) -> bool {
    Found::read(listing, &Ruleset { others: others.clone(), ..Ruleset::nothing(ipv6) }).beside()
}

/// One transaction that removes what iptables-nft left of ours in the tables that `nft -j list table` told, but what other daemons keep; none
/// where that is nothing. nft does not tell iptables' comments, so a jump is known by where it leads.
pub fn iptables_removal<'a>(listings: impl IntoIterator<Item = &'a Value>, others: &Others) -> Option<(String, Vec<String>)> {
    let (mut rules, mut chains, mut words) = (String::new(), String::new(), Vec::new());
    let guard = |name: &str| place_of(name, "FLANNEL-ENCAP").is_some_and(|place| !others.keep_guard(place));
    let ours = |name: &str| ["FLANNEL-POSTRTG", "FLANNEL-FWD"].contains(&name) || guard(name);
    let owner = |rule: &Value| {
        let (source, destination) = named(rule);
        others.network(source, destination).map(|_| others.owner(source, destination))
    };
    for listing in listings {
        let within = |chain: &'a str| items(listing, "rule").filter(move |rule| text(rule, "chain") == chain);
        let shared = |chain: &'a str| within(chain).any(|rule| owner(rule) == Some(Owner::Theirs));
        for chain in items(listing, "chain") {
            let (family, table, name) = (text(chain, "family"), text(chain, "table"), text(chain, "name"));
            if !ours(name) {
                continue;
            }
            if shared(name) {
                let mine = within(name).filter(|rule| owner(rule) == Some(Owner::Ours)).filter_map(|rule| rule.get("handle")?.as_u64());
                let mine: Vec<u64> = mine.collect();
                mine.iter().for_each(|handle| {
                    let _ = writeln!(rules, "delete rule {family} {table} {name} handle {handle}");
                });
                let text = format!("table {family} {table}: {} rules in chain {name}, which another flanneld uses, too", mine.len());
                words.extend((!mine.is_empty()).then_some(text));
                continue;
            }
            let _ = write!(chains, "flush chain {family} {table} {name}\ndelete chain {family} {table} {name}\n");
            words.push(format!("table {family} {table}: chain {name} and the jumps to it"));
        }
        for rule in items(listing, "rule") {
            let (family, table, chain) = (text(rule, "family"), text(rule, "table"), text(rule, "chain"));
            let targets = rule.get("expr").and_then(Value::as_array).into_iter().flatten();
            let gone = |name: &str| ours(name) && !items(listing, "chain").any(|chain| text(chain, "name") == name && shared(text(chain, "name")));
            let leads = |part: &Value| ["jump", "goto"].iter().any(|verb| part.get(verb).is_some_and(|jump| gone(text(jump, "target"))));
            if let Some(handle) = rule.get("handle").and_then(Value::as_u64).filter(|_| !ours(chain) && targets.clone().any(leads)) {
                let _ = writeln!(rules, "delete rule {family} {table} {chain} handle {handle}");
            }
        }
    }
    (!rules.is_empty() || !chains.is_empty()).then(|| (rules + &chains, words))
}

/// What a rule names, whatever else is in it.
fn named(rule: &Value) -> (Named, Named) {
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

fn items<'a>(listing: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    listing.get("nftables").and_then(Value::as_array).into_iter().flatten().filter_map(move |item| item.get(kind))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A rule of a chain; none where it is not one of ours.
#[derive(Debug)]
struct FoundRule {
    handle: Option<u64>,
    rule: Option<Rule>,
}

/// A chain of ours.
#[derive(Debug)]
struct FoundChain {
    name: String,
    rules: Vec<FoundRule>,
}

impl FoundChain {
    fn is_guard(&self) -> bool {
        CHAINS.iter().any(|known| known.guard && place_of(&self.name, known.name).is_some())
    }

    fn owner(&self, rule: &FoundRule, others: &Others) -> Owner {
        rule.rule.as_ref().filter(|_| !self.is_guard()).map_or(Owner::Ours, |rule| rule.owner(others))
    }

    /// The rules of other daemons.
    fn theirs<'a>(&'a self, others: &'a Others) -> impl Iterator<Item = &'a Rule> {
        self.rules.iter().filter(|rule| self.owner(rule, others) == Owner::Theirs).filter_map(|rule| rule.rule.as_ref())
    }

    /// Whether there are any.
    fn beside(&self, others: &Others) -> bool {
        self.theirs(others).next().is_some()
    }

    fn change(&self, wanted: Option<&Vec<Rule>>, others: &Others) -> Change<Rule> {
        let present: Vec<_> = self.rules.iter().map(|rule| (self.owner(rule, others), rule.rule.clone())).collect();
        change(&present, wanted.map_or(&[], Vec::as_slice), Rule::is_head)
    }
}

/// What the table holds.
#[derive(Debug, Default)]
struct Found {
    /// Our chains, and those that we share.
    chains: Vec<FoundChain>,
    /// Something is there that no rule of ours can replace: an unknown chain, one that is hooked elsewhere, a set of another type.
    foreign: bool,
    /// The set of peers; its addresses, where they can be read.
    peers: Option<Option<BTreeSet<IpAddr>>>,
    /// The counter.
    strangers: Option<u64>,
    /// What guards of nobody left: kind and name.
    left: Vec<(&'static str, String)>,
    /// Other daemons have something here.
    beside: bool,
}

/// Whose a guard's object is, by its place.
enum Guard {
    Ours,
    Theirs,
    Nobodys,
}

impl Found {
    fn read(listing: &Value, rules: &Ruleset) -> Self {
        let mut found = Self::default();
        let guard = |place: u16| match place {
            place if rules.encap.is_some() && place == rules.place => Guard::Ours,
            place if rules.others.keep_guard(place) => Guard::Theirs,
            _ => Guard::Nobodys,
        };
        for chain in items(listing, "chain") {
            let name = text(chain, "name");
            let known = CHAINS.iter().find_map(|known| match (known.guard, place_of(name, known.name)) {
                (true, Some(place)) => Some((known, guard(place))),
                (false, Some(0)) => Some((known, Guard::Ours)),
                _ => None,
            });
            let right = known.as_ref().is_some_and(|(known, _)| {
                (text(chain, "type"), text(chain, "hook"), text(chain, "policy")) == (known.kind, known.hook, "accept")
                    && chain.get("prio").and_then(Value::as_i64) == Some(known.priority)
            });
            match known {
                Some((_, Guard::Theirs)) => found.beside = true,
                Some((_, Guard::Nobodys)) => found.left.push(("chain", name.to_owned())),
                _ => {
                    found.foreign |= !right;
                    found.chains.push(FoundChain { name: name.to_owned(), rules: Vec::new() });
                }
            }
        }
        for rule in items(listing, "rule") {
            let name = text(rule, "chain");
            if let Some(chain) = found.chains.iter_mut().find(|chain| chain.name == name) {
                let port = rules.encap.as_ref().filter(|_| chain.is_guard()).map(|encap| encap.port);
                chain.rules.push(FoundRule { handle: rule.get("handle").and_then(Value::as_u64), rule: parse(rule, port, rules.place) });
            }
        }
        for set in items(listing, "set") {
            match place_of(text(set, "name"), PEERS).map(guard) {
                Some(Guard::Ours) => {
                    found.foreign |= text(set, "type") != if rules.ipv6 { "ipv6_addr" } else { "ipv4_addr" } || set.get("flags").is_some();
                    let elements = set.get("elem").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                    found.peers = Some(elements.iter().map(|element| element.as_str()?.parse().ok()).collect());
                }
                Some(Guard::Nobodys) => found.left.push(("set", text(set, "name").to_owned())),
                Some(Guard::Theirs) | None => {}
            }
        }
        for counter in items(listing, "counter") {
            match place_of(text(counter, "name"), STRANGERS).map(guard) {
                Some(Guard::Ours) => found.strangers = counter.get("packets").and_then(Value::as_u64),
                Some(Guard::Nobodys) => found.left.push(("counter", text(counter, "name").to_owned())),
                Some(Guard::Theirs) | None => {}
            }
        }
        found.beside |= found.chains.iter().any(|chain| chain.beside(&rules.others));
        found
    }

    fn chain(&self, name: &str) -> Option<&FoundChain> {
        self.chains.iter().find(|chain| chain.name == name)
    }

    /// Whether other daemons have something in the table.
    fn beside(&self) -> bool {
        self.beside
    }

    /// Whether the chains are the wanted ones, whoever the peers are.
    fn same_chains(&self, rules: &Ruleset) -> bool {
        let same = |known: &Chain| {
            let (wanted, found) = (known.wanted(rules), self.chain(&known.name_in(rules)));
            match (found, wanted) {
                (None, None) => true,
                (Some(found), wanted) if found.beside(&rules.others) => found.change(wanted, &rules.others).is_nothing(),
                (Some(found), Some(wanted)) => found.rules.iter().map(|rule| rule.rule.as_ref()).eq(wanted.iter().map(Some)),
                _ => false,
            }
        };
        !self.foreign && self.left.is_empty() && CHAINS.iter().all(same)
    }
}

fn parse(rule: &Value, port: Option<u16>, place: u16) -> Option<Rule> {
    let mut matches = Vec::new();
    let mut verdict = None;
    let mut counted = false;
    let mut expressions = rule.get("expr")?.as_array()?.iter();
    if let Some(port) = port {
        let first = expressions.next()?.get("match")?;
        let payload = first.get("left")?.get("payload")?;
        if (text(payload, "protocol"), text(payload, "field"), text(first, "op")) != ("udp", "dport", "==") || first.get("right")? != port {
            return None;
        }
    }
    for expression in expressions {
        if let Some(condition) = expression.get("match") {
            matches.push(parse_match(condition, place)?);
        } else if expression.get("return").is_some() {
            verdict = Some(Verdict::Return);
        } else if expression.get("accept").is_some() {
            verdict = Some(Verdict::Accept);
        } else if expression.get("drop").is_some() {
            verdict = Some(Verdict::Drop);
        } else if expression.get("notrack").is_some() {
            verdict = Some(Verdict::Notrack);
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
        } else if let Some(counter) = expression.get("counter") {
            counted |= counter.as_str() == Some(&at(STRANGERS, place));
        } else {
            return None;
        }
    }
    if matches.contains(&Match::Stranger) != counted {
        return None;
    }
    Some(Rule { matches, verdict: verdict.or(counted.then_some(Verdict::Count))? })
}

fn parse_match(condition: &Value, place: u16) -> Option<Match> {
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
    if let Some(fib) = left.get("fib") {
        // One flag is told as a text or as a list, as versions go.
        let flags = fib.get("flags")?;
        let flag = flags.as_str().or_else(|| flags.as_array().filter(|flags| flags.len() == 1)?.first()?.as_str())?;
        return match (is, text(fib, "result"), right.as_str()?, flag) {
            (true, "type", "local", "saddr") => Some(Match::LocalSource),
            (true, "type", "local", "daddr") => Some(Match::LocalDestination),
            _ => None,
        };
    }
    let field = left.get("payload")?.get("field")?.as_str()?;
    if right.as_str().and_then(|name| name.strip_prefix('@')) == Some(&at(PEERS, place)) {
        return (field == "saddr" && !is).then_some(Match::Stranger);
    }
    let net = network(right)?;
    match field {
        "saddr" => Some(Match::Source(is, net)),
        "daddr" => Some(Match::Destination(is, net)),
        _ => None,
    }
}

fn network(value: &Value) -> Option<IpNet> {
    match value.get("prefix") {
        Some(prefix) => IpNet::new(prefix.get("addr")?.as_str()?.parse().ok()?, u8::try_from(prefix.get("len")?.as_u64()?).ok()?).ok(),
        None => value.as_str()?.parse::<IpAddr>().ok().map(IpNet::from),
    }
}
