//! The rules as iptables writes them, and what has to be restored so that they are there: text in, text out.

use super::rules::{Encap, Match, Rule, Ruleset, Verdict};
use ipnet::IpNet;
use std::fmt::Write;

/// One chain of ours, and where packets enter it.
struct Place {
    table: &'static str,
    chain: &'static str,
    comment: &'static str,
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

fn places(rules: &Ruleset) -> [Place; 3] {
    let place = |table, builtin, chain, comment, rules: Option<&Vec<Rule>>, first| Place {
        table,
        chain,
        comment,
        rules: rules.map(|rules| rules.iter().map(|rule| render(chain, comment, rule)).collect()),
        doors: vec![Door { builtin, jump: rules.map(|_| jump(builtin, "", comment, chain)), first }],
    };
    [
        place("nat", "POSTROUTING", "FLANNEL-POSTRTG", "flanneld masq", rules.masquerade.as_ref(), false),
        place("filter", "FORWARD", "FLANNEL-FWD", "flanneld forward", rules.forward.as_ref(), rules.forward_insert),
        encap(rules.encap.as_ref()),
    ]
}

/// The port is matched by the jumps, so that other packets meet one rule.
fn encap(encap: Option<&Encap>) -> Place {
    let (chain, comment) = ("FLANNEL-ENCAP", "flanneld encap");
    let door = |builtin, used: fn(&Encap) -> bool| Door {
        builtin,
        jump: encap.filter(|encap| used(encap)).map(|encap| jump(builtin, &format!(" -p udp -m udp --dport {}", encap.port), comment, chain)),
        first: false,
    };
    let lines = |encap: &Encap| {
        let mut lines = Vec::new();
        for rule in encap.outgoing.iter().chain(&encap.incoming) {
            if rule.matches.contains(&Match::Stranger) {
                let known = |ip: &_| Rule { matches: vec![Match::Source(true, IpNet::from(*ip))], verdict: Verdict::Return };
                lines.extend(encap.peers.iter().flatten().map(|ip| render(chain, comment, &known(ip))));
            }
            lines.push(render(chain, comment, rule));
        }
        lines
    };
    Place {
        table: "raw",
        chain,
        comment,
        rules: encap.map(lines),
        doors: vec![door("PREROUTING", |encap| !encap.incoming.is_empty()), door("OUTPUT", |encap| !encap.outgoing.is_empty())],
    }
}

/// What `iptables-restore --noflush` must be given so that the kernel, which `iptables-save` described as `saved`, has these rules;
/// none where it has them. A chain is replaced whole, in one commit a table.
pub fn payload(rules: &Ruleset, saved: &str) -> Option<String> {
    let mut out = String::new();
    for place in places(rules) {
        let present = Present::of(&place, saved);
        let mut lines = String::new();
        let mut line = |text: &str| {
            let _ = writeln!(lines, "{text}");
        };
        if let Some(wanted) = &place.rules
            && present.rules.as_ref() != Some(wanted)
        {
            line(&format!(":{} - [0:0]", place.chain));
            wanted.iter().for_each(|rule| line(rule));
        }
        for (door, found) in place.doors.iter().zip(&present.doors) {
            let right = found.jumps == usize::from(door.jump.is_some()) && !(door.first && found.foreign_first == Some(true));
            found.stale.iter().for_each(|stale| line(&stale.replacen("-A ", "-D ", 1)));
            if let Some(jump) = door.jump.as_ref().filter(|_| !right) {
                (0..found.jumps).for_each(|_| line(&jump.replacen("-A ", "-D ", 1)));
                line(&if door.first { jump.replacen("-A ", "-I ", 1) } else { jump.clone() });
            }
        }
        if place.rules.is_none() && present.rules.is_some() {
            line(&format!("-F {}", place.chain));
            line(&format!("-X {}", place.chain));
        }
        if !lines.is_empty() {
            let _ = write!(out, "*{}\n{lines}COMMIT\n", place.table);
        }
    }
    (!out.is_empty()).then_some(out)
}

/// What `saved` has of ours, in words.
pub fn remains(saved: &str) -> Vec<String> {
    let mut out = Vec::new();
    for place in places(&Ruleset::nothing(false)) {
        let present = Present::of(&place, saved);
        if let Some(rules) = &present.rules {
            out.push(format!("table {}: chain {} with {} rules", place.table, place.chain, rules.len()));
        }
        out.extend(present.doors.iter().flat_map(|door| &door.stale).map(|rule| format!("table {}: {rule}", place.table)));
    }
    out
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

/// How many packets the rule for strangers met; none where there is no such rule, or `saved` holds no counts.
pub fn strangers(saved: &str) -> Option<u64> {
    let ends = ["--comment \"flanneld encap\"", "--comment \"flanneld encap\" -j DROP"];
    let line = saved
        .lines()
        .rfind(|line| line.contains("] -A FLANNEL-ENCAP -m addrtype --dst-type LOCAL ") && ends.iter().any(|end| line.trim_end().ends_with(end)))?;
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

/// What is there of ours in one place.
#[derive(Debug, Default, PartialEq, Eq)]
struct Present {
    /// The rules of our chain; none where there is no chain.
    rules: Option<Vec<String>>,
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
    fn of(place: &Place, saved: &str) -> Self {
        let mut present = Self { rules: None, doors: vec![AtDoor::default(); place.doors.len()] };
        let ours = format!("-A {} ", place.chain);
        let (comment, target) = (format!("--comment \"{}\"", place.comment), format!("-j {}", place.chain));
        let mut before = vec![false; place.doors.len()];
        for (_, line) in lines(saved).filter(|(table, _)| *table == place.table) {
            if line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) == Some(place.chain) {
                present.rules.get_or_insert_default();
            } else if line.starts_with(&ours) {
                present.rules.get_or_insert_default().push(line.to_owned());
            }
            for ((door, found), before) in place.doors.iter().zip(&mut present.doors).zip(&mut before) {
                if line.strip_prefix("-A ").and_then(|rest| rest.strip_prefix(door.builtin)).is_none_or(|rest| !rest.starts_with(' ')) {
                    continue;
                }
                if door.jump.as_deref() == Some(line) {
                    found.jumps += 1;
                    found.foreign_first.get_or_insert(*before);
                } else {
                    *before = true;
                    if line.contains(&comment) || line.ends_with(&target) {
                        found.stale.push(line.to_owned());
                    }
                }
            }
        }
        present
    }
}
