//! The rules as iptables writes them, and what has to be restored so that they are there: text in, text out.

use super::rules::{Encap, Match, Rule, Ruleset, Verdict, head};
use super::shared::{Named, Others, Owner, change};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The chain of the guard in the first place; of another, with its number.
const GUARD: &str = "FLANNEL-ENCAP";

/// One chain of ours, and where packets enter it.
struct Place {
    table: &'static str,
    chain: String,
    comment: &'static str,
    /// Other daemons have rules in it, too.
    shared: bool,
    /// The chain's lines; none: no chain.
    rules: Option<Vec<String>>,
    doors: Vec<Door>,
}

/// A built-in chain, and the jump that is wanted there.
struct Door {
    builtin: &'static str,
    jump: Option<String>,
    first: bool,
}

fn places(rules: &Ruleset, saved: &str) -> Vec<Place> {
    let place = |table, builtin, chain: &str, comment, rules: Option<&Vec<Rule>>, first| Place {
        table,
        chain: chain.to_owned(),
        comment,
        shared: true,
        rules: rules.map(|rules| rules.iter().map(|rule| render(chain, comment, rule)).collect()),
        doors: vec![Door { builtin, jump: rules.map(|_| jump(builtin, "", comment, chain)), first }],
    };
    let mut places = vec![
        place("nat", "POSTROUTING", "FLANNEL-POSTRTG", "flanneld masq", rules.masquerade.as_ref(), false),
        place("filter", "FORWARD", "FLANNEL-FWD", "flanneld forward", rules.forward.as_ref(), rules.forward_insert),
    ];
    let own = rules.encap.as_ref().map(|_| rules.place);
    // Guards that nobody has any more go.
    let left = guards(saved).into_iter().filter(|number| Some(*number) != own && !rules.others.keep_guard(*number));
    places.extend(own.map(|number| encap(rules.encap.as_ref(), number)));
    places.extend(left.map(|number| encap(None, number)));
    places
}

/// The chain of the guard in a place.
fn guard_chain(number: u16) -> String {
    if number == 0 { GUARD.to_owned() } else { format!("{GUARD}-{number}") }
}

/// The place of the guard that a chain is, and back.
fn guard_number(chain: &str) -> Option<u16> {
    let number = match chain.strip_prefix(GUARD)? {
        "" => 0,
        rest => rest.strip_prefix('-')?.parse().ok()?,
    };
    (guard_chain(number) == chain).then_some(number)
}

/// The places in which there are guards: a chain, its rules, or jumps to it.
fn guards(saved: &str) -> BTreeSet<u16> {
    let words = |line: &str| {
        let chain = line.strip_prefix(':').or_else(|| line.strip_prefix("-A ")).and_then(|rest| rest.split(' ').next()).and_then(guard_number);
        chain.into_iter().chain(line.rsplit_once("-j ").and_then(|(_, target)| guard_number(target))).collect::<Vec<_>>()
    };
    lines(saved).filter(|(table, _)| *table == "raw").flat_map(|(_, line)| words(line)).collect()
}

/// The port is matched by the jumps, so that other packets meet one rule.
fn encap(encap: Option<&Encap>, number: u16) -> Place {
    let (chain, comment) = (guard_chain(number), "flanneld encap");
    let door = |builtin, used: fn(&Encap) -> bool| Door {
        builtin,
        jump: encap.filter(|encap| used(encap)).map(|encap| jump(builtin, &format!(" -p udp -m udp --dport {}", encap.port), comment, &chain)),
        first: false,
    };
    let lines = |encap: &Encap| {
        let mut lines = Vec::new();
        for rule in encap.outgoing.iter().chain(&encap.incoming) {
            if rule.matches.contains(&Match::Stranger) {
                let known = |ip: &_| Rule { matches: vec![Match::Source(true, IpNet::from(*ip))], verdict: Verdict::Return };
                lines.extend(encap.peers.iter().flatten().map(|ip| render(&chain, comment, &known(ip))));
            }
            lines.push(render(&chain, comment, rule));
        }
        lines
    };
    Place {
        table: "raw",
        comment,
        shared: false,
        rules: encap.map(lines),
        doors: vec![door("PREROUTING", |encap| !encap.incoming.is_empty()), door("OUTPUT", |encap| !encap.outgoing.is_empty())],
        chain,
    }
}

/// What `iptables-restore --noflush` must be given so that the kernel, which `iptables-save` described as `saved`, has these rules;
/// none where it has them. A chain is replaced whole, in one commit a table; where other daemons have rules in it, ours alone are.
pub fn payload(rules: &Ruleset, saved: &str) -> Option<String> {
    let mut out = String::new();
    for place in places(rules, saved) {
        let present = Present::of(&place, &rules.others, saved);
        let mut lines = chain_lines(&place, &present);
        for (door, found) in place.doors.iter().zip(&present.doors) {
            let right = found.jumps == usize::from(door.jump.is_some()) && !(door.first && found.foreign_first == Some(true));
            lines.extend(found.stale.iter().map(|stale| deletion(stale)));
            if let Some(jump) = door.jump.as_ref().filter(|_| !right) {
                lines.extend((0..found.jumps).map(|_| deletion(jump)));
                lines.push(if door.first { jump.replacen("-A ", "-I ", 1) } else { jump.clone() });
            }
        }
        if place.rules.is_none() && present.rules.is_some() && !present.beside() {
            lines.extend([format!("-F {}", place.chain), format!("-X {}", place.chain)]);
        }
        if !lines.is_empty() {
            let _ = write!(out, "*{}\n{}\nCOMMIT\n", place.table, lines.join("\n"));
        }
    }
    (!out.is_empty()).then_some(out)
}

/// What brings the rules of one chain, which stays.
fn chain_lines(place: &Place, present: &Present) -> Vec<String> {
    let wanted = place.rules.as_deref();
    if !present.beside() {
        let found: Option<Vec<&String>> = present.rules.as_ref().map(|rules| rules.iter().map(|(_, line)| line).collect());
        let Some(wanted) = wanted.filter(|wanted| found != Some(wanted.iter().collect())) else { return Vec::new() };
        return std::iter::once(format!(":{} - [0:0]", place.chain)).chain(wanted.iter().cloned()).collect();
    }
    let found: Vec<(Owner, Option<String>)> = present.rules.iter().flatten().map(|(owner, line)| (*owner, Some(line.clone()))).collect();
    let head = place.head();
    let change = change(&found, wanted.unwrap_or_default(), |line| *line == head);
    let mut lines: Vec<String> = change.remove.iter().filter_map(|at| found.get(*at)?.1.as_deref().map(deletion)).collect();
    lines.extend(change.head.map(|head| head.replacen("-A ", "-I ", 1)));
    lines.extend(change.block);
    lines
}

/// The line that deletes the rule that a line appends.
fn deletion(line: &str) -> String {
    line.replacen("-A ", "-D ", 1)
}

/// What `saved` has of ours, in words.
pub fn remains(saved: &str) -> Vec<String> {
    remains_beside(saved, &Others::default())
}

/// What `saved` has of ours beside what other daemons keep, in words.
pub fn remains_beside(saved: &str, others: &Others) -> Vec<String> {
    let mut out = Vec::new();
    for place in places(&Ruleset { others: others.clone(), ..Ruleset::nothing(false) }, saved) {
        let present = Present::of(&place, others, saved);
        let (table, chain) = (place.table, &place.chain);
        match &present.rules {
            Some(rules) if !present.beside() => out.push(format!("table {table}: chain {chain} with {} rules", rules.len())),
            Some(rules) => {
                let ours = rules.iter().filter(|(owner, _)| *owner == Owner::Ours).count();
                out.extend((ours > 0).then(|| format!("table {table}: {ours} rules in chain {chain}, which another flanneld uses, too")));
            }
            None => {}
        }
        out.extend(present.doors.iter().flat_map(|door| &door.stale).map(|rule| format!("table {table}: {rule}")));
    }
    out
}

/// The networks whose rules stay only because nobody knows whether they are served.
pub fn unserved(saved: &str, others: &Others) -> BTreeSet<IpNet> {
    let shared = ["-A FLANNEL-POSTRTG ", "-A FLANNEL-FWD "];
    let rules = lines(saved).filter(|(_, line)| shared.iter().any(|chain| line.starts_with(chain)));
    let networks = rules.filter_map(|(_, line)| named(line)).filter_map(|(source, destination)| others.network(source, destination));
    networks.filter(|network| !others.own.contains(network) && !others.served.contains(network)).collect()
}

/// What a rule of iptables-save names; none where it cannot be read.
fn named(line: &str) -> Option<(Named, Named)> {
    let (mut source, mut destination, mut is) = (None, None, true);
    let mut words = line.split(' ');
    while let Some(word) = words.next() {
        let place = match word {
            "-s" => &mut source,
            "-d" => &mut destination,
            _ => {
                is = word != "!";
                continue;
            }
        };
        *place = Some((is, words.next()?.parse::<IpNet>().ok()?));
        is = true;
    }
    Some((source, destination))
}

/// Rules of Go flannel before v0.17, which have no comment: they look like an operator's, so they are told and not touched.
/// The commands that remove them; `program` is `iptables` or its like.
pub fn bare(saved: &str, program: &str, network: IpNet, own: IpNet) -> Vec<String> {
    let multicast = if matches!(network, IpNet::V6(_)) { "ff00::/8" } else { "224.0.0.0/4" };
    let nat = [
        format!("-A POSTROUTING -s {network} -d {network} -j RETURN"),
        format!("-A POSTROUTING -s {network} ! -d {multicast} -j MASQUERADE"),
        format!("-A POSTROUTING ! -s {network} -d {own} -j RETURN"),
        format!("-A POSTROUTING ! -s {network} -d {network} -j MASQUERADE"),
    ];
    let filter = [format!("-A FORWARD -s {network} -j ACCEPT"), format!("-A FORWARD -d {network} -j ACCEPT")];
    let found = |(table, line): (&str, &str)| {
        let known = match table {
            "nat" => nat.iter().any(|rule| line.strip_suffix(" --random-fully").unwrap_or(line) == rule),
            "filter" => filter.iter().any(|rule| line == rule),
            _ => false,
        };
        known.then(|| format!("{program} -t {table} {}", line.replacen("-A ", "-D ", 1)))
    };
    lines(saved).filter_map(found).collect()
}

/// What others have in there: the names of their chains, and how many rules.
pub fn others(saved: &str) -> (Vec<&str>, usize) {
    let ours = |line: &str| line.contains("--comment \"flanneld ") || line.contains("FLANNEL-");
    let builtin = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
    let chains = lines(saved).filter_map(|(_, line)| line.strip_prefix(':')?.split(' ').next());
    let chains = chains.filter(|name| !builtin.contains(name) && !ours(name)).collect();
    (chains, lines(saved).filter(|(_, line)| line.starts_with("-A ") && !ours(line)).count())
}

/// How many packets the rule for strangers met in the guard of the first place; none where there is no such rule, or no counts.
pub fn strangers(saved: &str) -> Option<u64> {
    strangers_at(saved, 0)
}

/// The same for the guard of any place.
pub fn strangers_at(saved: &str, place: u16) -> Option<u64> {
    let start = format!("] -A {} -m addrtype --dst-type LOCAL ", guard_chain(place));
    let ends = ["--comment \"flanneld encap\"", "--comment \"flanneld encap\" -j DROP"];
    let line = saved.lines().rfind(|line| line.contains(&start) && ends.iter().any(|end| line.trim_end().ends_with(end)))?;
    line.strip_prefix('[')?.split(':').next()?.parse().ok()
}

fn jump(builtin: &str, matches: &str, comment: &str, chain: &str) -> String {
    format!("-A {builtin}{matches} -m comment --comment \"{comment}\" -j {chain}")
}

/// A rule as `iptables -S` and `iptables-save` print it.
fn render(chain: &str, comment: &str, rule: &Rule) -> String {
    let mut out = format!("-A {chain}");
    let not = |is: bool| if is { "" } else { " !" };
    for condition in &rule.matches {
        let _ = match condition {
            Match::Source(is, net) => write!(out, "{} -s {net}", not(*is)),
            Match::Destination(is, net) => write!(out, "{} -d {net}", not(*is)),
            Match::Mark(bits) => write!(out, " -m mark --mark {bits:#x}/{bits:#x}"),
            Match::LocalSource => write!(out, " -m addrtype --src-type LOCAL"),
            Match::LocalDestination => write!(out, " -m addrtype --dst-type LOCAL"),
            // Rules that let the peers go stand before.
            Match::Stranger => Ok(()),
        };
    }
    let _ = write!(out, " -m comment --comment \"{comment}\"");
    out.push_str(match rule.verdict {
        Verdict::Return => " -j RETURN",
        Verdict::Accept => " -j ACCEPT",
        Verdict::Masquerade(true) => " -j MASQUERADE --random-fully",
        Verdict::Masquerade(false) => " -j MASQUERADE",
        Verdict::Notrack => " -j CT --notrack",
        Verdict::Drop => " -j DROP",
        // Every rule counts.
        Verdict::Count => "",
    });
    out
}

/// The lines of `iptables-save`, with the name of their table and without counts.
fn lines(saved: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut table = "";
    saved.lines().map(str::trim_end).map(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let bare = if line.starts_with('[') { line.split_once("] ").map_or(line, |(_, bare)| bare) } else { line };
        (table, bare)
    })
}

impl Place {
    /// The rule that heads the chain for all daemons.
    fn head(&self) -> String {
        render(&self.chain, self.comment, &head())
    }

    /// Whose a rule of the chain is.
    fn owner(&self, others: &Others, line: &str) -> Owner {
        // A rule without our comment is nobody's.
        let ours = self.shared && line.contains(&format!("--comment \"{}\"", self.comment));
        match named(line).filter(|_| ours) {
            Some(_) if line == self.head() => Owner::Head,
            Some((source, destination)) => others.owner(source, destination),
            None => Owner::Ours,
        }
    }
}

/// What is there of ours in one place.
#[derive(Debug, Default, PartialEq, Eq)]
struct Present {
    /// The rules of our chain and whose they are; none where there is no chain.
    rules: Option<Vec<(Owner, String)>>,
    /// What is at its doors.
    doors: Vec<AtDoor>,
}

/// What is there of ours in a built-in chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AtDoor {
    /// Jumps as they are wanted.
    jumps: usize,
    /// Whether something stands before the first of them.
    foreign_first: Option<bool>,
    /// Other jumps to our chain, and rules that carry our comment: Go flannel's from v0.17 to v0.19.
    stale: Vec<String>,
}

impl Present {
    /// Whether other daemons have rules in the chain.
    fn beside(&self) -> bool {
        self.rules.iter().flatten().any(|(owner, _)| *owner == Owner::Theirs)
    }

    fn of(place: &Place, others: &Others, saved: &str) -> Self {
        let mut present = Self { rules: None, doors: vec![AtDoor::default(); place.doors.len()] };
        let ours = format!("-A {} ", place.chain);
        for (_, line) in lines(saved).filter(|(table, _)| *table == place.table) {
            if line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) == Some(&place.chain) {
                present.rules.get_or_insert_default();
            } else if line.starts_with(&ours) {
                present.rules.get_or_insert_default().push((place.owner(others, line), line.to_owned()));
            }
        }
        let beside = present.beside();
        for (door, found) in place.doors.iter().zip(&mut present.doors) {
            *found = AtDoor::of(place, door, others, beside, saved);
        }
        present
    }
}

impl AtDoor {
    fn of(place: &Place, door: &Door, others: &Others, beside: bool, saved: &str) -> Self {
        let (comment, target) = (format!("--comment \"{}\"", place.comment), format!("-j {}", place.chain));
        let start = format!("-A {} ", door.builtin);
        let (mut found, mut before) = (Self::default(), false);
        for (_, line) in lines(saved).filter(|(table, line)| *table == place.table && line.starts_with(&start)) {
            if door.jump.as_deref() == Some(line) {
                found.jumps += 1;
                found.foreign_first.get_or_insert(before);
                continue;
            }
            before = true;
            let stale = if line.ends_with(&target) {
                // Without rules of our own the jump is theirs.
                !beside || place.rules.is_some()
            } else {
                // A guard's jumps carry the comment of every other guard's.
                place.shared && line.contains(&comment) && place.owner(others, line) == Owner::Ours
            };
            if stale {
                found.stale.push(line.to_owned());
            }
        }
        found
    }
}
