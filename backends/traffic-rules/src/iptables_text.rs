//! Renders the rules in iptables syntax and builds the input for iptables-restore. Pure: text to
//! text.

use super::reader::iptables::{conditions, network};
use super::rules::{
    BUILT_IN, Encap, Match, Named, OtherDaemons, Rule, Ruleset, Verdict, join_values, slot_name,
    slot_of,
};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fmt::Write;
use types::{Encapsulation, Family};

/// A chain of flannel, with the name that it has in slot 0.
struct Chain {
    table: &'static str,
    name: &'static str,
    /// What the comments of its rules call it.
    purpose: &'static str,
    /// The built-in chains that may jump to it.
    hooks: &'static [&'static str],
}

const GUARD: Chain = Chain {
    table: "raw",
    name: "FLANNEL-ENCAP",
    purpose: "encap",
    hooks: &["PREROUTING", "OUTPUT"],
};

const CHAINS: [Chain; 3] = [
    Chain { table: "nat", name: "FLANNEL-POSTRTG", purpose: "masq", hooks: &["POSTROUTING"] },
    Chain { table: "filter", name: "FLANNEL-FWD", purpose: "forward", hooks: &["FORWARD"] },
    GUARD,
];

impl Chain {
    fn is_guard(&self) -> bool {
        self.name == GUARD.name
    }

    /// The networks that a rule of the chain matches. A guard belongs to no network, and neither does a
    /// rule without flannel's comment.
    fn named(&self, line: &str) -> Named {
        let is_of_network = !self.is_guard() && line.contains("flanneld ");
        is_of_network.then(|| named(line)).flatten().unwrap_or_default()
    }

    /// The comment of a slot's rules. Without its number, daemons before the slots would take a
    /// slot's jump for one of Go flannel's former rules and remove it.
    fn comment(&self, slot: u16) -> String {
        match slot {
            0 => format!("flanneld {}", self.purpose),
            slot => format!("flanneld {slot} {}", self.purpose),
        }
    }

    /// This daemon's chain, as it should be.
    fn wanted(&self, rules: &Ruleset) -> WantedChain {
        let (chain, comment) = (slot_name(self.name, rules.slot), self.comment(rules.slot));
        let encap = rules.encap.as_ref().filter(|_| self.is_guard());
        let of_rules = |rules: &Vec<Rule>| {
            rules.iter().map(|rule| render_rule(&chain, &comment, rule)).collect()
        };
        let lines: Option<Vec<String>> = match self.purpose {
            "masq" => rules.masquerade.as_ref().map(of_rules),
            "forward" => rules.forward.as_ref().map(of_rules),
            _ => encap.map(|encap| guard_lines(&chain, &comment, encap)),
        };
        let jump = |hook: &str| {
            let is_wanted = match (encap, hook) {
                (Some(encap), "OUTPUT") => !encap.outgoing.is_empty(),
                (Some(encap), _) => !encap.incoming.is_empty(),
                (None, _) => lines.is_some(),
            };
            let matches = encap.map(|encap| encapsulated(&encap.encapsulation)).unwrap_or_default();
            is_wanted.then(|| {
                format!("-A {hook}{matches} -m comment --comment \"{comment}\" -j {chain}")
            })
        };
        WantedChain {
            jumps: self.hooks.iter().map(|hook| (*hook, jump(hook))).collect(),
            first: self.purpose == "forward" && rules.forward_insert,
            chain,
            lines,
        }
    }
}

struct WantedChain {
    chain: String,
    /// `None` if the chain should not exist.
    lines: Option<Vec<String>>,
    /// Each built-in chain that may jump to the chain, and the jump that it should contain.
    jumps: Vec<(&'static str, Option<String>)>,
    /// The jumps are the first rules of the built-in chains.
    first: bool,
}

/// The slot of flannel's chain in a table; `None` for another chain.
pub(crate) fn slot_of_chain(table: &str, chain: &str) -> Option<u16> {
    CHAINS.iter().filter(|own| own.table == table).find_map(|own| slot_of(chain, own.name))
}

/// True for a built-in chain that may jump to flannel's chains.
pub(crate) fn is_hook(table: &str, chain: &str) -> bool {
    CHAINS.iter().any(|own| own.table == table && own.hooks.contains(&chain))
}

/// iptables options.
fn encapsulated(encapsulation: &Encapsulation) -> String {
    match encapsulation {
        Encapsulation::None => String::new(),
        Encapsulation::Ipip => " -p 4".to_owned(),
        Encapsulation::Udp { .. } => match encapsulation.port() {
            Some(port) => format!(" -p udp -m udp --dport {port}"),
            None => format!(
                " -p udp -m multiport --dports {}",
                join_values(&encapsulation.ports(), ",")
            ),
        },
    }
}

/// True if the listing contains the table as a whole.
pub(crate) fn lists_table(saved: &str, table: &str) -> bool {
    split_tables(saved).any(|(of, line)| of == table && line == "COMMIT")
}

/// Both rules mean the same. Versions of iptables-save differ in the order and the notation of
/// options.
fn is_same(one: &str, other: &str, family: Family) -> bool {
    one == other || meaning(one, family).is_some_and(|one| meaning(other, family) == Some(one))
}

/// The chain, the conditions and the target of a rule.
fn meaning(rule: &str, family: Family) -> Option<(&str, BTreeSet<String>, &str)> {
    let (chain, rest) = rule.strip_prefix("-A ")?.split_once(' ')?;
    let (options, target) = rest.split_at(rest.rfind("-j ").unwrap_or(rest.len()));
    Some((chain, conditions(options, family), target))
}

/// The kernel checks other packets against only one rule, because the jumps match only encapsulated
/// packets.
fn guard_lines(chain: &str, comment: &str, encap: &Encap) -> Vec<String> {
    let mut lines = Vec::new();
    for rule in encap.outgoing.iter().chain(&encap.incoming) {
        if rule.matches.contains(&Match::UnknownSender) {
            let known = |ip: &_| Rule {
                matches: vec![Match::Source(true, IpNet::from(*ip))],
                verdict: Verdict::Return,
            };
            lines.extend(
                encap.peers.iter().flatten().map(|ip| render_rule(chain, comment, &known(ip))),
            );
        }
        lines.push(render_rule(chain, comment, rule));
    }
    lines
}

/// The input for `iptables-restore --noflush` that changes the rules in `saved` (the output of
/// `iptables-save`) into the desired ones; `None` if they are there already.
///
/// iptables-restore commits each table as a whole. The input replaces whole chains of this daemon's
/// slot, and keeps the rules of other networks in them.
pub(crate) fn restore_input(rules: &Ruleset, saved: &str) -> Option<String> {
    let mut out = String::new();
    for of in &CHAINS {
        let wanted = of.wanted(rules);
        let listing = Listing { saved, table: of.table };
        let exists = listing.has_chain(&wanted.chain);
        let (foreign, own): (Vec<&str>, Vec<&str>) =
            listing.rules(&wanted.chain).partition(|line| rules.others.is_foreign(of.named(line)));
        let is_same = |one: &str, other: &str| is_same(one, other, rules.family);
        let mut lines = Vec::new();
        if let Some(wanted_lines) = &wanted.lines
            && !(exists
                && own.len() == wanted_lines.len()
                && own.iter().zip(wanted_lines).all(|(own, wanted)| is_same(own, wanted)))
        {
            lines.push(format!(":{} - [0:0]", wanted.chain));
            lines.extend(wanted_lines.iter().cloned());
            lines.extend(foreign.iter().map(ToString::to_string));
        }
        // An unwanted chain stays as it is while it has rules of other networks.
        let goes = wanted.lines.is_none() && foreign.is_empty();
        if wanted.lines.is_some() || goes {
            for (hook, jump) in &wanted.jumps {
                lines.extend(listing.mend_jump(hook, &wanted, jump.as_deref(), is_same));
            }
        }
        if goes && exists {
            lines.extend(removal_of_chain(&wanted.chain));
        }
        append_commit(&mut out, of.table, &lines);
    }
    (!out.is_empty()).then_some(out)
}

fn append_commit(out: &mut String, table: &str, lines: &[String]) {
    if !lines.is_empty() {
        let _ = write!(out, "*{table}\n{}\nCOMMIT\n", lines.join("\n"));
    }
}

fn removal_of_chain(chain: &str) -> [String; 2] {
    [format!("-F {chain}"), format!("-X {chain}")]
}

/// The listing lacks one of the chains that it should contain.
pub(crate) fn lacks_chains(rules: &Ruleset, saved: &str) -> bool {
    CHAINS.iter().any(|of| {
        let wanted = of.wanted(rules);
        let listing = Listing { saved, table: of.table };
        wanted.lines.is_some() && !listing.has_chain(&wanted.chain)
    })
}

/// Converts the line that appends a rule into the one that deletes it.
fn deletion(line: &str) -> String {
    line.replacen("-A ", "-D ", 1)
}

/// The input for `iptables-restore --noflush` that removes flannel's chains and rules, except those
/// that other daemons keep and those of the slot in use, with descriptions of what it removes.
/// `None` if there is nothing to remove.
pub(crate) fn removal(
    saved: &str,
    others: &OtherDaemons,
    in_use: Option<u16>,
) -> Option<(String, Vec<String>)> {
    let (mut out, mut words) = (String::new(), Vec::new());
    for of in &CHAINS {
        let (table, listing) = (of.table, Listing { saved, table: of.table });
        let (mut lines, mut chains) = (Vec::new(), Vec::new());
        for (chain, slot) in listing.slots(of) {
            let named = |line: &&str| of.named(line);
            match others.left(slot, in_use == Some(slot), listing.rules(chain), named) {
                None => {
                    let rules = listing.rules(chain).count();
                    words.push(format!("table {table}: chain {chain} with {rules} rules"));
                    for jump in of.hooks.iter().flat_map(|hook| listing.jumps(hook, chain)) {
                        words.push(format!("table {table}: {jump}"));
                        lines.push(deletion(jump));
                    }
                    chains.extend(removal_of_chain(chain));
                }
                Some(left) if left.is_empty() => {}
                Some(left) => {
                    words.push(format!("table {table}: {} rules in chain {chain}", left.len()));
                    lines.extend(left.into_iter().map(deletion));
                }
            }
        }
        // Go flannel v0.17 to v0.19 wrote its rules directly into the built-in chains.
        let comment = format!("\"{}\"", of.comment(0));
        for line in of.hooks.iter().flat_map(|hook| listing.rules(hook)) {
            if line.contains(&comment) && others.is_left(of.named(line), false) {
                words.push(format!("table {table}: {line}"));
                lines.push(deletion(line));
            }
        }
        lines.extend(chains);
        append_commit(&mut out, table, &lines);
    }
    (!out.is_empty()).then_some((out, words))
}

/// The networks that a rule of iptables-save names; `None` if the parser does not understand one of
/// them.
fn named(line: &str) -> Option<Named> {
    let (mut source, mut destination) = (None, None);
    let mut words = line.split(' ');
    while let Some(word) = words.next() {
        match word {
            "-s" => source = Some(network(words.next()?)?),
            "-d" => destination = Some(network(words.next()?)?),
            _ => {}
        }
    }
    Some((source, destination))
}

/// The names of other programs' chains, and the number of their rules.
pub(crate) fn others(saved: &str) -> (Vec<&str>, usize) {
    let ours = |line: &str| line.contains("--comment \"flanneld ") || line.contains("FLANNEL-");
    let chains =
        split_tables(saved).filter_map(|(_, line)| line.strip_prefix(':')?.split(' ').next());
    let chains = chains.filter(|name| !BUILT_IN.contains(name) && !ours(name)).collect();
    (chains, split_tables(saved).filter(|(_, line)| line.starts_with("-A ") && !ours(line)).count())
}

/// As a daemon's guard chain has counted them, in packets.
pub(crate) fn unknown_senders(saved: &str, slot: u16) -> Option<u64> {
    let start = format!("] -A {} -m addrtype --dst-type LOCAL ", slot_name(GUARD.name, slot));
    let end = format!("--comment \"{}\"", GUARD.comment(slot));
    let line = saved.lines().rfind(|line| {
        line.contains(&start) && line.trim_end().trim_end_matches(" -j DROP").ends_with(&end)
    })?;
    line.strip_prefix('[')?.split(':').next()?.parse().ok()
}

/// As `iptables -S` and `iptables-save` print it.
fn render_rule(chain: &str, comment: &str, rule: &Rule) -> String {
    let mut out = format!("-A {chain}");
    let not = |is: bool| if is { "" } else { " !" };
    for condition in &rule.matches {
        let _ = match condition {
            Match::Source(is, net) => write!(out, "{} -s {net}", not(*is)),
            Match::Destination(is, net) => write!(out, "{} -d {net}", not(*is)),
            Match::Mark(bits) => write!(out, " -m mark --mark {bits:#x}/{bits:#x}"),
            Match::LocalSource => write!(out, " -m addrtype --src-type LOCAL"),
            Match::LocalDestination => write!(out, " -m addrtype --dst-type LOCAL"),
            // The RETURN rules for the peers come first.
            Match::UnknownSender => Ok(()),
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
        // Every iptables rule counts packets.
        Verdict::Count => "",
    });
    out
}

/// Each line of `iptables-save` with its table and without packet counts.
fn split_tables(saved: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut table = "";
    saved.lines().map(str::trim_end).map(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let counted = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
        let bare = counted.map_or(line, |(_, bare)| bare);
        (table, bare)
    })
}

/// Converts the output of `iptables -v -S` to the format of `iptables-save -c`.
pub(crate) fn as_saved(output: &str) -> String {
    let mut saved = String::with_capacity(output.len());
    for line in output.lines().map(str::trim_end) {
        let counted = line.rsplit_once(" -c ").and_then(|(start, rest)| {
            let (packets, rest) = rest.split_once(' ')?;
            let (bytes, end) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
            Some(format!("[{packets}:{bytes}] {start}{end}"))
        });
        let _ = match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["-P", chain, policy, ..] => writeln!(saved, ":{chain} {policy} [0:0]"),
            ["-N", chain] => writeln!(saved, ":{chain} - [0:0]"),
            _ => writeln!(saved, "{}", counted.as_deref().unwrap_or(line)),
        };
    }
    saved
}

/// One table in the output of iptables-save.
#[derive(Clone, Copy)]
struct Listing<'a> {
    saved: &'a str,
    table: &'a str,
}

impl<'a> Listing<'a> {
    fn lines(self) -> impl Iterator<Item = &'a str> {
        split_tables(self.saved)
            .filter(move |(table, _)| *table == self.table)
            .map(|(_, line)| line)
    }

    fn rules(self, chain: &str) -> impl Iterator<Item = &'a str> {
        let start = format!("-A {chain} ");
        self.lines().filter(move |line| line.starts_with(&start))
    }

    fn has_chain(self, chain: &str) -> bool {
        let start = format!(":{chain} ");
        self.lines().any(|line| line.starts_with(&start))
    }

    /// The names and slots of the daemons' chains.
    fn slots(self, of: &Chain) -> impl Iterator<Item = (&'a str, u16)> {
        self.lines().filter_map(move |line| {
            let chain = line.strip_prefix(':')?.split(' ').next()?;
            Some((chain, slot_of(chain, of.name)?))
        })
    }

    fn jumps(self, hook: &str, chain: &str) -> impl Iterator<Item = &'a str> {
        let target = format!("-j {chain}");
        self.rules(hook).filter(move |line| line.ends_with(&target))
    }

    /// The lines after which the built-in chain contains exactly the wanted jump.
    fn mend_jump(
        self,
        hook: &str,
        wanted: &WantedChain,
        jump: Option<&str>,
        is_same: impl Fn(&str, &str) -> bool,
    ) -> Vec<String> {
        let found: Vec<&str> = self.jumps(hook, &wanted.chain).collect();
        let is_right = match (found.as_slice(), jump) {
            ([found], Some(jump)) => {
                let is_first = self.rules(hook).next() == Some(found);
                is_same(found, jump) && (is_first || !wanted.first)
            }
            (found, jump) => found.is_empty() && jump.is_none(),
        };
        if is_right {
            return Vec::new();
        }
        let command = if wanted.first { "-I " } else { "-A " };
        let new = jump.map(|jump| jump.replacen("-A ", command, 1));
        found.into_iter().map(deletion).chain(new).collect()
    }
}
