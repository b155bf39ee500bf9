//! Renders the rules in iptables syntax and builds the input for iptables-restore. Pure: text to
//! text.

use super::ownership::{NetMatch, OtherDaemons, Owner, change};
use super::reader::iptables::{conditions, network};
use super::rules::{BUILT_IN, Encap, Match, Rule, Ruleset, Verdict, head};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use types::{Encapsulation, Family};

/// Daemon 0 guards its encapsulation port in this chain. The chains of other daemons end with the
/// daemon's number.
const GUARD_CHAIN: &str = "FLANNEL-ENCAP";

/// A chain that flannel manages, and the jumps to it.
struct ManagedChain {
    table: &'static str,
    chain: String,
    comment: &'static str,
    /// Other flanneld daemons may also have rules in the chain.
    shared: bool,
    /// `None` if the chain should not exist.
    rules: Option<Vec<String>>,
    jumps: Vec<HookJump>,
}

/// A built-in chain, and the jump that it should contain.
struct HookJump {
    builtin: &'static str,
    jump: Option<String>,
    first: bool,
}

fn managed_chains(rules: &Ruleset, saved: &str) -> Vec<ManagedChain> {
    let managed =
        |table, builtin, chain: &str, comment, rules: Option<&Vec<Rule>>, first| ManagedChain {
            table,
            chain: chain.to_owned(),
            comment,
            shared: true,
            rules: rules
                .map(|rules| rules.iter().map(|rule| render(chain, comment, rule)).collect()),
            jumps: vec![HookJump {
                builtin,
                jump: rules.map(|_| jump(builtin, "", comment, chain)),
                first,
            }],
        };
    let mut chains = vec![
        managed(
            "nat",
            "POSTROUTING",
            "FLANNEL-POSTRTG",
            "flanneld masq",
            rules.masquerade.as_ref(),
            false,
        ),
        managed(
            "filter",
            "FORWARD",
            "FLANNEL-FWD",
            "flanneld forward",
            rules.forward.as_ref(),
            rules.forward_insert,
        ),
    ];
    let own = rules.encap.as_ref().map(|_| rules.guard_slot);
    // Guard chains without an owner are removed.
    let orphans = guards(saved)
        .into_iter()
        .filter(|slot| Some(*slot) != own && !rules.others.keeps_guard(*slot));
    chains.extend(own.map(|slot| encap(rules.encap.as_ref(), slot)));
    chains.extend(orphans.map(|slot| encap(None, slot)));
    chains
}

/// The chain in which a daemon guards its encapsulation port.
fn guard_chain(slot: u16) -> String {
    if slot == 0 { GUARD_CHAIN.to_owned() } else { format!("{GUARD_CHAIN}-{slot}") }
}

/// A daemon's number from the name of its guard chain; `None` for another name.
fn guard_slot(chain: &str) -> Option<u16> {
    let slot = match chain.strip_prefix(GUARD_CHAIN)? {
        "" => 0,
        rest => rest.strip_prefix('-')?.parse().ok()?,
    };
    (guard_chain(slot) == chain).then_some(slot)
}

/// The daemons whose guard chain occurs in `saved`, as a chain, in a rule or in a jump.
fn guards(saved: &str) -> BTreeSet<u16> {
    let words = |line: &str| {
        let chain = line
            .strip_prefix(':')
            .or_else(|| line.strip_prefix("-A "))
            .and_then(|rest| rest.split(' ').next())
            .and_then(guard_slot);
        chain
            .into_iter()
            .chain(line.rsplit_once("-j ").and_then(|(_, target)| guard_slot(target)))
            .collect::<Vec<_>>()
    };
    lines(saved).filter(|(table, _)| *table == "raw").flat_map(|(_, line)| words(line)).collect()
}

/// iptables options.
fn encapsulated(encapsulation: &Encapsulation) -> String {
    match encapsulation {
        Encapsulation::None => String::new(),
        Encapsulation::Ipip => " -p 4".to_owned(),
        Encapsulation::Udp { .. } => {
            match encapsulation.ports().iter().map(u16::to_string).collect::<Vec<_>>().as_slice() {
                [port] => format!(" -p udp -m udp --dport {port}"),
                ports => format!(" -p udp -m multiport --dports {}", ports.join(",")),
            }
        }
    }
}

/// True if the listing contains the table as a whole, and the chain.
pub(crate) fn lists(saved: &str, table: &str, chain: Option<&str>) -> bool {
    let mut of_table = lines(saved).filter(|(of, _)| *of == table);
    let start = chain.map(|chain| format!(":{chain} "));
    start.is_none_or(|start| of_table.any(|(_, line)| line.starts_with(&start)))
        && of_table.any(|(_, line)| line == "COMMIT")
}

/// Replaces rules by those of ours that mean the same. Versions of iptables-save differ in the
/// order and the notation of options.
fn in_own_words(saved: &str, chains: &[ManagedChain], family: Family) -> String {
    let lines = chains.iter().flat_map(|chain| {
        let jumps = chain.jumps.iter().filter_map(|hook| hook.jump.clone());
        let rules = chain.rules.iter().flatten().cloned();
        rules.chain(jumps).chain([chain.head()])
    });
    let lines: Vec<String> = lines.collect();
    let ours: BTreeMap<_, _> =
        lines.iter().filter_map(|line| Some((meaning(line, family)?, line))).collect();
    let mut out = String::with_capacity(saved.len());
    for line in saved.lines() {
        let rule = line
            .find("-A ")
            .filter(|_| line.contains("FLANNEL-"))
            .and_then(|start| ours.get(&meaning(line.get(start..)?, family)?));
        out.push_str(rule.map_or(line, |rule| rule.as_str()));
        out.push('\n');
    }
    out
}

/// The chain, the conditions and the target of a rule.
fn meaning(rule: &str, family: Family) -> Option<(&str, BTreeSet<String>, &str)> {
    let (chain, rest) = rule.strip_prefix("-A ")?.split_once(' ')?;
    let (options, target) = rest.split_at(rest.rfind("-j ").unwrap_or(rest.len()));
    Some((chain, conditions(options, family), target))
}

/// The jumps to the guard chain match only encapsulated packets, so that the kernel checks other
/// packets against only one rule.
fn encap(encap: Option<&Encap>, slot: u16) -> ManagedChain {
    let (chain, comment) = (guard_chain(slot), "flanneld encap");
    let hook = |builtin, used: fn(&Encap) -> bool| HookJump {
        builtin,
        jump: encap
            .filter(|encap| used(encap))
            .map(|encap| jump(builtin, &encapsulated(&encap.encapsulation), comment, &chain)),
        first: false,
    };
    let lines = |encap: &Encap| {
        let mut lines = Vec::new();
        for rule in encap.outgoing.iter().chain(&encap.incoming) {
            if rule.matches.contains(&Match::UnknownSender) {
                let known = |ip: &_| Rule {
                    matches: vec![Match::Source(true, IpNet::from(*ip))],
                    verdict: Verdict::Return,
                };
                lines.extend(
                    encap.peers.iter().flatten().map(|ip| render(&chain, comment, &known(ip))),
                );
            }
            lines.push(render(&chain, comment, rule));
        }
        lines
    };
    ManagedChain {
        table: "raw",
        comment,
        shared: false,
        rules: encap.map(lines),
        jumps: vec![
            hook("PREROUTING", |encap| !encap.incoming.is_empty()),
            hook("OUTPUT", |encap| !encap.outgoing.is_empty()),
        ],
        chain,
    }
}

/// The input for `iptables-restore --noflush` that changes the rules in `saved` (the output of
/// `iptables-save`) into the desired ones; `None` if they are there already.
///
/// iptables-restore commits each table as a whole. The input replaces a whole chain, or only this
/// daemon's rules if other daemons also have rules in the chain.
///
/// ```
/// use traffic_rules::iptables_text::payload;
/// use traffic_rules::rules::{Match, Rule, Ruleset, Verdict};
/// use types::Family;
///
/// let from_pods = Match::Source(true, "10.244.0.0/16".parse()?);
/// let accept = Rule { matches: vec![from_pods], verdict: Verdict::Accept };
/// let rules = Ruleset { forward: Some(vec![accept]), ..Ruleset::empty(Family::V4) };
/// let input = payload(&rules, "").unwrap();
/// let rule = input.lines().nth(2).unwrap();
/// assert!(rule.starts_with("-A FLANNEL-FWD -s 10.244.0.0/16 ") && rule.ends_with(" -j ACCEPT"));
/// // iptables-save then lists the same lines, and nothing is left to change.
/// assert_eq!(payload(&rules, &input), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn payload(rules: &Ruleset, saved: &str) -> Option<String> {
    let mut out = String::new();
    let chains = managed_chains(rules, saved);
    let saved = &*in_own_words(saved, &chains, rules.family);
    for managed in chains {
        let present = ChainState::of(&managed, &rules.others, saved);
        let mut lines = chain_lines(&managed, &present);
        for (hook, found) in managed.jumps.iter().zip(&present.jumps) {
            let right = found.exact == usize::from(hook.jump.is_some())
                && !(hook.first && found.foreign_first == Some(true));
            lines.extend(found.stale.iter().map(|stale| deletion(stale)));
            if let Some(jump) = hook.jump.as_ref().filter(|_| !right) {
                lines.extend((0..found.exact).map(|_| deletion(jump)));
                lines.push(if hook.first { jump.replacen("-A ", "-I ", 1) } else { jump.clone() });
            }
        }
        if managed.rules.is_none() && present.rules.is_some() && !present.shared() {
            lines.extend([format!("-F {}", managed.chain), format!("-X {}", managed.chain)]);
        }
        if !lines.is_empty() {
            let _ = write!(out, "*{}\n{}\nCOMMIT\n", managed.table, lines.join("\n"));
        }
    }
    (!out.is_empty()).then_some(out)
}

/// The listing lacks one of the chains that it should contain.
pub(crate) fn lacks_chains(rules: &Ruleset, saved: &str) -> bool {
    managed_chains(rules, saved).iter().any(|managed| {
        let present = ChainState::of(managed, &rules.others, saved);
        managed.rules.is_some() && present.rules.is_none()
    })
}

fn chain_lines(managed: &ManagedChain, present: &ChainState) -> Vec<String> {
    let wanted = managed.rules.as_deref();
    if !present.shared() {
        let found: Option<Vec<&String>> =
            present.rules.as_ref().map(|rules| rules.iter().map(|(_, line)| line).collect());
        let Some(wanted) = wanted.filter(|wanted| found != Some(wanted.iter().collect())) else {
            return Vec::new();
        };
        return std::iter::once(format!(":{} - [0:0]", managed.chain))
            .chain(wanted.iter().cloned())
            .collect();
    }
    let found: Vec<(Owner, Option<String>)> =
        present.rules.iter().flatten().map(|(owner, line)| (*owner, Some(line.clone()))).collect();
    let head = managed.head();
    let change = change(&found, wanted.unwrap_or_default(), |line| *line == head);
    let mut lines: Vec<String> =
        change.remove.iter().filter_map(|at| found.get(*at)?.1.as_deref().map(deletion)).collect();
    lines.extend(change.head.map(|head| head.replacen("-A ", "-I ", 1)));
    lines.extend(change.block);
    lines
}

/// Converts the line that appends a rule into the one that deletes it.
fn deletion(line: &str) -> String {
    line.replacen("-A ", "-D ", 1)
}

/// Descriptions of flannel's chains and rules in `saved`.
#[must_use]
pub fn remains(saved: &str) -> Vec<String> {
    remains_except(saved, &OtherDaemons::default())
}

/// Omits the rules that other daemons keep.
pub(crate) fn remains_except(saved: &str, others: &OtherDaemons) -> Vec<String> {
    let mut out = Vec::new();
    for managed in
        managed_chains(&Ruleset { others: others.clone(), ..Ruleset::empty(Family::V4) }, saved)
    {
        let present = ChainState::of(&managed, others, saved);
        let (table, chain) = (managed.table, &managed.chain);
        match &present.rules {
            Some(rules) if !present.shared() => {
                out.push(format!("table {table}: chain {chain} with {} rules", rules.len()));
            }
            Some(rules) => {
                let ours = rules.iter().filter(|(owner, _)| *owner == Owner::Ours).count();
                out.extend((ours > 0).then(|| format!("table {table}: {ours} rules in chain {chain}, which another flanneld also uses")));
            }
            None => {}
        }
        out.extend(
            present
                .jumps
                .iter()
                .flat_map(|hook| &hook.stale)
                .map(|rule| format!("table {table}: {rule}")),
        );
    }
    out
}

/// The networks whose rules stay only because another flanneld may still serve them.
#[must_use]
pub fn unserved(saved: &str, others: &OtherDaemons) -> BTreeSet<IpNet> {
    let shared = ["-A FLANNEL-POSTRTG ", "-A FLANNEL-FWD "];
    let rules = lines(saved).filter(|(_, line)| shared.iter().any(|chain| line.starts_with(chain)));
    let networks = rules
        .filter_map(|(_, line)| named(line))
        .filter_map(|(source, destination)| others.network(source, destination));
    networks
        .filter(|network| !others.own.contains(network) && !others.served.contains(network))
        .collect()
}

/// The source and destination networks that a rule of iptables-save matches; `None` if the parser
/// does not understand one of them.
fn named(line: &str) -> Option<(NetMatch, NetMatch)> {
    let (mut source, mut destination, mut is) = (None, None, true);
    let mut words = line.split(' ');
    while let Some(word) = words.next() {
        let found = match word {
            "-s" => &mut source,
            "-d" => &mut destination,
            _ => {
                is = word != "!";
                continue;
            }
        };
        *found = Some((is, network(words.next()?)?));
        is = true;
    }
    Some((source, destination))
}

/// The names of other programs' chains, and the number of their rules.
#[must_use]
pub fn others(saved: &str) -> (Vec<&str>, usize) {
    let ours = |line: &str| line.contains("--comment \"flanneld ") || line.contains("FLANNEL-");
    let chains = lines(saved).filter_map(|(_, line)| line.strip_prefix(':')?.split(' ').next());
    let chains = chains.filter(|name| !BUILT_IN.contains(name) && !ours(name)).collect();
    (chains, lines(saved).filter(|(_, line)| line.starts_with("-A ") && !ours(line)).count())
}

/// As a daemon's guard chain has counted them, in packets.
pub(crate) fn unknown_senders(saved: &str, slot: u16) -> Option<u64> {
    let start = format!("] -A {} -m addrtype --dst-type LOCAL ", guard_chain(slot));
    let ends = ["--comment \"flanneld encap\"", "--comment \"flanneld encap\" -j DROP"];
    let line = saved.lines().rfind(|line| {
        line.contains(&start) && ends.iter().any(|end| line.trim_end().ends_with(end))
    })?;
    line.strip_prefix('[')?.split(':').next()?.parse().ok()
}

fn jump(builtin: &str, matches: &str, comment: &str, chain: &str) -> String {
    format!("-A {builtin}{matches} -m comment --comment \"{comment}\" -j {chain}")
}

/// As `iptables -S` and `iptables-save` print it.
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
fn lines(saved: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut table = "";
    saved.lines().map(str::trim_end).map(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let bare = if line.starts_with('[') {
            line.split_once("] ").map_or(line, |(_, bare)| bare)
        } else {
            line
        };
        (table, bare)
    })
}

/// The chains and rules of `iptables-save` without counts.
#[must_use]
pub fn uncounted(saved: &str) -> Vec<String> {
    lines(saved)
        .filter(|(_, line)| !line.starts_with('#'))
        .map(|(_, line)| line.split(" [").next().unwrap_or(line).to_owned())
        .collect()
}

impl ManagedChain {
    /// The first rule of the chain, which all flanneld daemons share.
    fn head(&self) -> String {
        render(&self.chain, self.comment, &head())
    }

    fn owner(&self, others: &OtherDaemons, line: &str) -> Owner {
        // A rule without our comment belongs to no other daemon.
        let ours = self.shared && line.contains(self.comment);
        match named(line).filter(|_| ours) {
            Some(_) if line == self.head() => Owner::Head,
            Some((source, destination)) => others.owner(source, destination),
            None => Owner::Ours,
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct ChainState {
    /// `None` if the chain does not exist.
    rules: Option<Vec<(Owner, String)>>,
    /// The jumps to the managed chain, for each built-in chain.
    jumps: Vec<FoundJumps>,
}

/// The jumps to a managed chain in one built-in chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FoundJumps {
    /// Jumps that match the desired one.
    exact: usize,
    /// Another rule comes before the first of these jumps.
    foreign_first: Option<bool>,
    /// Obsolete jumps to the managed chain, and rules with flannel's comment that Go flannel v0.17
    /// to v0.19 wrote.
    stale: Vec<String>,
}

impl ChainState {
    /// Other flanneld daemons have rules in the chain.
    fn shared(&self) -> bool {
        self.rules.iter().flatten().any(|(owner, _)| *owner == Owner::Theirs)
    }

    fn of(managed: &ManagedChain, others: &OtherDaemons, saved: &str) -> Self {
        let mut present =
            Self { rules: None, jumps: vec![FoundJumps::default(); managed.jumps.len()] };
        let ours = format!("-A {} ", managed.chain);
        for (_, line) in lines(saved).filter(|(table, _)| *table == managed.table) {
            if line.strip_prefix(':').and_then(|rest| rest.split(' ').next())
                == Some(&managed.chain)
            {
                present.rules.get_or_insert_default();
            } else if line.starts_with(&ours) {
                present
                    .rules
                    .get_or_insert_default()
                    .push((managed.owner(others, line), line.to_owned()));
            }
        }
        let shared = present.shared();
        for (hook, found) in managed.jumps.iter().zip(&mut present.jumps) {
            *found = FoundJumps::of(managed, hook, others, shared, saved);
        }
        present
    }
}

impl FoundJumps {
    fn of(
        managed: &ManagedChain,
        hook: &HookJump,
        others: &OtherDaemons,
        shared: bool,
        saved: &str,
    ) -> Self {
        let target = format!("-j {}", managed.chain);
        let start = format!("-A {} ", hook.builtin);
        let (mut found, mut before) = (Self::default(), false);
        for (_, line) in
            lines(saved).filter(|(table, line)| *table == managed.table && line.starts_with(&start))
        {
            if hook.jump.as_deref() == Some(line) {
                found.exact += 1;
                found.foreign_first.get_or_insert(before);
                continue;
            }
            before = true;
            let stale = if line.ends_with(&target) {
                // If we have no rules of our own, the jump belongs to the others.
                !shared || managed.rules.is_some()
            } else {
                // The jumps of all guards carry the same comment.
                managed.shared
                    && line.contains(managed.comment)
                    && managed.owner(others, line) == Owner::Ours
            };
            if stale {
                found.stale.push(line.to_owned());
            }
        }
        found
    }
}
