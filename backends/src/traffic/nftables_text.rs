//! The rules as an nft script, and as `nft -j` tells them back: text in, text out.
//!
//! Table, chain and comment names are Go flannel's, so that either tool finds and replaces the other's rules; the rules
//! themselves do what the iptables set does (the mark is masked, rule 4 is about this node's pods).

use super::rules::{Match, Rule, Ruleset, Verdict};
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
}

const CHAINS: [Chain; 4] = [
    Chain { name: "postrtg", kind: "nat", hook: "postrouting", priority: 100, comment: "chain to manage traffic masquerading by flannel" },
    Chain { name: "forward", kind: "filter", hook: "forward", priority: 0, comment: "chain to accept flannel traffic" },
    Chain { name: "encap-in", kind: "filter", hook: "prerouting", priority: -300, comment: "chain to guard the encapsulation port" },
    Chain { name: "encap-out", kind: "filter", hook: "output", priority: -300, comment: "chain for encapsulated packets of this host" },
];
/// The set of those who may send to the encapsulation port.
const PEERS: &str = "peers";
/// The counter of packets of others.
const STRANGERS: &str = "strangers";

/// What is wanted in each of [`CHAINS`].
fn wanted(rules: &Ruleset) -> [Option<&Vec<Rule>>; 4] {
    let encap = rules.encap.as_ref();
    let filled = |rules: Option<&'_ Vec<Rule>>| -> bool { rules.is_some_and(|rules| !rules.is_empty()) };
    let (incoming, outgoing) = (encap.map(|encap| &encap.incoming), encap.map(|encap| &encap.outgoing));
    [rules.masquerade.as_ref(), rules.forward.as_ref(), incoming.filter(|_| filled(incoming)), outgoing.filter(|_| filled(outgoing))]
}

/// The port that all rules of a chain are about.
fn port(rules: &Ruleset, chain: &str) -> Option<u16> {
    rules.encap.as_ref().filter(|_| chain.starts_with("encap-")).map(|encap| encap.port)
}

/// One transaction that leaves exactly these rules in the family's table, which `nft -j list table` told as `listing`; where there are
/// none, no table. Where only the peers differ, only they change.
pub fn script(rules: &Ruleset, listing: Option<&Value>) -> String {
    let (family, name) = table(rules.ipv6);
    if rules.is_empty() {
        return removal(rules.ipv6);
    }
    let found = listing.map(|listing| Found::read(listing, rules)).unwrap_or_default();
    let peers = rules.encap.as_ref().and_then(|encap| encap.peers.as_ref());
    if found.same_chains(rules)
        && let (Some(Some(have)), Some(want)) = (&found.peers, peers)
    {
        let change = |verb: &str, ips: Vec<String>| match ips.as_slice() {
            [] => String::new(),
            ips => format!("{verb} element {family} {name} {PEERS} {{ {} }}\n", ips.join(", ")),
        };
        let (gone, new) = (have.difference(want).map(IpAddr::to_string), want.difference(have).map(IpAddr::to_string));
        return change("delete", gone.collect()) + &change("add", new.collect());
    }
    // What cannot be put right in place goes with the table.
    let mut out = if found.foreign { removal(rules.ipv6) } else { String::new() };
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line(format!("add table {family} {name} {{ comment \"rules for {name}\"; }}"));
    let left = if found.foreign { Found::default() } else { found };
    if let Some(peers) = peers {
        let kind = if rules.ipv6 { "ipv6_addr" } else { "ipv4_addr" };
        line(format!("add set {family} {name} {PEERS} {{ type {kind}; }}"));
        line(format!("flush set {family} {name} {PEERS}"));
        if !peers.is_empty() {
            let peers: Vec<String> = peers.iter().map(IpAddr::to_string).collect();
            line(format!("add element {family} {name} {PEERS} {{ {} }}", peers.join(", ")));
        }
        line(format!("add counter {family} {name} {STRANGERS}"));
    }
    for (chain, wanted) in CHAINS.iter().zip(wanted(rules)) {
        let Chain { name: chain, kind, hook, priority, comment } = chain;
        if wanted.is_none() && !left.chains.iter().any(|(found, _)| found == chain) {
            continue;
        }
        // Added first, so that flushing and deleting never fails.
        line(format!("add chain {family} {name} {chain} {{ type {kind} hook {hook} priority {priority}; policy accept; comment \"{comment}\"; }}"));
        line(format!("flush chain {family} {name} {chain}"));
        match wanted {
            Some(wanted) => {
                wanted.iter().for_each(|rule| line(format!("add rule {family} {name} {chain}{}", render(family, port(rules, chain), rule))));
            }
            None => line(format!("delete chain {family} {name} {chain}")),
        }
    }
    if peers.is_none() {
        if left.peers.is_some() {
            line(format!("delete set {family} {name} {PEERS}"));
        }
        if left.strangers.is_some() {
            line(format!("delete counter {family} {name} {STRANGERS}"));
        }
    }
    out
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

fn render(family: &str, port: Option<u16>, rule: &Rule) -> String {
    let mut out = port.map(|port| format!(" udp dport {port}")).unwrap_or_default();
    let not = |is: bool| if is { "" } else { "!= " };
    for condition in &rule.matches {
        let _ = match condition {
            Match::Source(is, net) => write!(out, " {family} saddr {}{net}", not(*is)),
            Match::Destination(is, net) => write!(out, " {family} daddr {}{net}", not(*is)),
            Match::Mark(bits) => write!(out, " meta mark and {bits:#x} == {bits:#x}"),
            Match::LocalSource => write!(out, " fib saddr type local"),
            Match::LocalDestination => write!(out, " fib daddr type local"),
            Match::Stranger => write!(out, " {family} saddr != @{PEERS} counter name {STRANGERS}"),
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
    let found = listing.map(|listing| Found::read(listing, rules)).unwrap_or_default();
    let mut chains = found.chains;
    chains.retain(|(name, _)| !name.starts_with("encap-"));
    Found { chains, foreign: found.foreign, ..Found::default() }.same_chains(&Ruleset { encap: None, ..rules.clone() })
}

/// How many packets of others came to the encapsulation port, as the table's counter tells.
pub fn strangers(listing: &Value) -> Option<u64> {
    items(listing, "counter").find(|counter| text(counter, "name") == STRANGERS)?.get("packets")?.as_u64()
}

/// One transaction that removes what iptables-nft left of ours in the tables that `nft -j list table` told; none where that is nothing.
/// nft does not tell iptables' comments, so a jump is known by where it leads.
pub fn iptables_removal<'a>(listings: impl IntoIterator<Item = &'a Value>) -> Option<(String, Vec<String>)> {
    let (mut rules, mut chains, mut words) = (String::new(), String::new(), Vec::new());
    let ours = |name: &str| ["FLANNEL-POSTRTG", "FLANNEL-FWD", "FLANNEL-ENCAP"].contains(&name);
    for listing in listings {
        for chain in items(listing, "chain") {
            let (family, table, name) = (text(chain, "family"), text(chain, "table"), text(chain, "name"));
            if ours(name) {
                let _ = write!(chains, "flush chain {family} {table} {name}\ndelete chain {family} {table} {name}\n");
                words.push(format!("table {family} {table}: chain {name} and the jumps to it"));
            }
        }
        for rule in items(listing, "rule") {
            let (family, table, chain) = (text(rule, "family"), text(rule, "table"), text(rule, "chain"));
            let targets = rule.get("expr").and_then(Value::as_array).into_iter().flatten();
            let leads = |part: &Value| ["jump", "goto"].iter().any(|verb| part.get(verb).is_some_and(|jump| ours(text(jump, "target"))));
            if let Some(handle) = rule.get("handle").and_then(Value::as_u64).filter(|_| !ours(chain) && targets.clone().any(leads)) {
                let _ = writeln!(rules, "delete rule {family} {table} {chain} handle {handle}");
            }
        }
    }
    (!rules.is_empty() || !chains.is_empty()).then(|| (rules + &chains, words))
}

fn items<'a>(listing: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    listing.get("nftables").and_then(Value::as_array).into_iter().flatten().filter_map(move |item| item.get(kind))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// What the table holds.
#[derive(Debug, Default)]
struct Found {
    /// The chains with their rules; none for one that holds a rule that is not one of ours.
    chains: Vec<(String, Option<Vec<Rule>>)>,
    /// Something is there that no rule of ours can replace: an unknown chain, one that is hooked elsewhere, a set of another type.
    foreign: bool,
    /// The set of peers; its addresses, where they can be read.
    peers: Option<Option<BTreeSet<IpAddr>>>,
    /// The counter.
    strangers: Option<u64>,
}

impl Found {
    fn read(listing: &Value, rules: &Ruleset) -> Self {
        let mut found = Self { strangers: strangers(listing), ..Self::default() };
        for chain in items(listing, "chain") {
            let name = text(chain, "name");
            let right = CHAINS.iter().any(|known| {
                (name, text(chain, "type"), text(chain, "hook"), text(chain, "policy")) == (known.name, known.kind, known.hook, "accept")
                    && chain.get("prio").and_then(Value::as_i64) == Some(known.priority)
            });
            found.foreign |= !right;
            found.chains.push((name.to_owned(), right.then(Vec::new)));
        }
        for rule in items(listing, "rule") {
            let name = text(rule, "chain");
            if let Some((_, found)) = found.chains.iter_mut().find(|(chain, _)| chain == name) {
                match (found.as_mut(), parse(rule, port(rules, name))) {
                    (Some(found), Some(rule)) => found.push(rule),
                    _ => *found = None,
                }
            }
        }
        if let Some(set) = items(listing, "set").find(|set| text(set, "name") == PEERS) {
            found.foreign |= text(set, "type") != if rules.ipv6 { "ipv6_addr" } else { "ipv4_addr" } || set.get("flags").is_some();
            let elements = set.get("elem").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            found.peers = Some(elements.iter().map(|element| element.as_str()?.parse().ok()).collect());
        }
        found
    }

    /// Whether the chains are the wanted ones, whoever the peers are.
    fn same_chains(&self, rules: &Ruleset) -> bool {
        let wanted = wanted(rules);
        let chain = |name: &str| self.chains.iter().find(|(chain, _)| chain == name).map(|(_, rules)| rules);
        let same = |(known, wanted): (&Chain, &Option<&Vec<Rule>>)| match (chain(known.name), wanted) {
            (None, None) => true,
            (Some(Some(found)), Some(wanted)) => found == *wanted,
            _ => false,
        };
        !self.foreign && CHAINS.iter().zip(&wanted).all(same)
    }
}

fn parse(rule: &Value, port: Option<u16>) -> Option<Rule> {
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
            counted |= counter.as_str() == Some(STRANGERS);
        } else {
            return None;
        }
    }
    if matches.contains(&Match::Stranger) != counted {
        return None;
    }
    Some(Rule { matches, verdict: verdict.or(counted.then_some(Verdict::Count))? })
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
    if right.as_str().and_then(|name| name.strip_prefix('@')) == Some(PEERS) {
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
