//! Parses the output of `iptables-save` and `ip6tables-save`.

use super::model::{
    Base, Condition, Elements, Hook, Key, Layer, Name, Program, Rule, Rules, Source, Step, Table,
    Value, Verdict,
};
use super::ranges::Ranges;
use super::words;
use crate::variant::Variant;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use types::Family;

/// Match modules whose options contain the whole condition.
const PLAIN: [&str; 17] = [
    "tcp",
    "udp",
    "sctp",
    "dccp",
    "udplite",
    "icmp",
    "icmp6",
    "ipv6-icmp",
    "multiport",
    "conntrack",
    "state",
    "mark",
    "comment",
    "iprange",
    "addrtype",
    "physdev",
    "length",
];
/// Targets after which the packet continues with the next rule.
const ONWARD: [&str; 21] = [
    "LOG",
    "NFLOG",
    "ULOG",
    "TRACE",
    "TCPMSS",
    "TCPOPTSTRIP",
    "CHECKSUM",
    "CLASSIFY",
    "DSCP",
    "TOS",
    "ECN",
    "HL",
    "TTL",
    "SET",
    "AUDIT",
    "TEE",
    "SECMARK",
    "CONNSECMARK",
    "IDLETIMER",
    "LED",
    "RATEEST",
];

/// The listing is of one family and variant, with or without packet counters.
pub fn read(saved: &str, family: Family, variant: Variant) -> Rules {
    let mut rules = Rules::default();
    for line in saved.lines().map(str::trim_end) {
        if let Some(name) = line.strip_prefix('*') {
            let table = Table {
                layer: Layer::of(family),
                name: name.to_owned(),
                program: Program::Iptables(variant),
                chains: BTreeMap::new(),
                sets: BTreeMap::new(),
            };
            rules.tables.push(table);
        }
        let Some(table) = rules.tables.last_mut() else {
            continue;
        };
        if let Some((name, policy)) = line.strip_prefix(':').and_then(|rest| rest.split_once(' ')) {
            let chain = table.chains.entry(name.to_owned()).or_default();
            chain.rules.get_or_insert_default();
            chain.base = base(&table.name, name, policy.split(' ').next().unwrap_or_default());
        }
        // With `-c`, a rule starts with its counters.
        let counted = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
        let packets = counted
            .and_then(|(counters, _)| counters.split_once(':'))
            .and_then(|(packets, _)| packets.parse().ok());
        let line = counted.map_or(line, |(_, rule)| rule);
        if let Some((chain, rest)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' '))
        {
            let rule = Rule {
                steps: steps(&split(rest), family),
                handle: None,
                text: line.to_owned(),
                packets,
            };
            table
                .chains
                .entry(chain.to_owned())
                .or_default()
                .rules
                .get_or_insert_default()
                .push(rule);
        }
    }
    rules
}

fn base(table: &str, chain: &str, policy: &str) -> Option<Base> {
    if policy == "-" {
        return None;
    }
    let hook = Hook::named(chain)?;
    let priority = match (table, hook) {
        ("raw", _) => -300,
        ("mangle", _) => -150,
        ("nat", Hook::Prerouting | Hook::Output) => -100,
        ("nat", _) => 100,
        ("security", _) => 50,
        _ => 0,
    };
    Some(Base { hook, priority, drops: policy == "DROP", nat: table == "nat", device: None })
}

/// A word in quotation marks may contain spaces.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut some) = (Vec::new(), String::new(), false, false);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if quoted => word.extend(letters.next()),
            '"' => {
                quoted = !quoted;
                some = true;
            }
            ' ' if !quoted => {
                if some {
                    words.push(std::mem::take(&mut word));
                }
                some = false;
            }
            _ => {
                word.push(letter);
                some = true;
            }
        }
    }
    if some {
        words.push(word);
    }
    words
}

/// An option with its values.
#[derive(Debug)]
struct Given<'a> {
    name: &'a str,
    values: Vec<&'a str>,
    negated: bool,
}

/// Keeps the order, and omits comments and log prefixes.
fn options(words: &[String]) -> Vec<Given<'_>> {
    let mut all: Vec<Given<'_>> = Vec::new();
    let mut negated = false;
    let mut words = words.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        match word {
            "!" => negated = true,
            "--comment" | "--log-prefix" | "--nflog-prefix" => {
                words.next();
            }
            _ if word.starts_with('-') => all.push(Given {
                name: word,
                values: Vec::new(),
                negated: std::mem::take(&mut negated),
            }),
            _ => all.iter_mut().next_back().into_iter().for_each(|last| last.values.push(word)),
        }
    }
    all
}

fn steps(words: &[String], family: Family) -> Vec<Step> {
    let options = options(words);
    let place = options
        .iter()
        .position(|option| matches!(option.name, "-j" | "-g"))
        .unwrap_or(options.len());
    let (conditions, target) = options.split_at(place);
    let mut steps: Vec<Step> = Vec::new();
    for option in conditions {
        steps.extend(condition(option, family).into_iter().map(Step::When));
    }
    let Some((verb, arguments)) = target.split_first() else {
        return steps;
    };
    steps.extend(target_of(verb, arguments));
    steps
}

fn target_of(verb: &Given<'_>, arguments: &[Given<'_>]) -> Vec<Step> {
    let name = verb.values.first().copied().unwrap_or_default();
    let unknown = Step::Verdict(Verdict::Unknown);
    let verdict = match name {
        "ACCEPT" => Verdict::Accept,
        "DROP" | "REJECT" => Verdict::Drop,
        "RETURN" => Verdict::Return,
        "MASQUERADE" | "SNAT" => Verdict::Accept,
        "MARK" => return vec![arguments.iter().find_map(mark).unwrap_or(Step::MarkUnknown)],
        "CONNMARK" if arguments.iter().any(|option| option.name == "--restore-mark") => {
            return vec![Step::MarkUnknown];
        }
        "CONNMARK" => Verdict::Continue,
        "NOTRACK" => return vec![Step::Untrack],
        "CT" if arguments.iter().any(|option| option.name == "--notrack") => {
            return vec![Step::Untrack];
        }
        "CT" => Verdict::Continue,
        name if ONWARD.contains(&name) => Verdict::Continue,
        name if verb.name == "-g" => Verdict::Goto(name.to_owned()),
        name if arguments.is_empty() => Verdict::Jump(name.to_owned()),
        _ => return vec![unknown],
    };
    vec![Step::Verdict(verdict)]
}

/// `--set-xmark value/mask` clears the bits of `mask`, then inverts the bits of `value`.
fn mark(option: &Given<'_>) -> Option<Step> {
    let (value, mask) = with_mask(option.values.first()?)?;
    match option.name {
        "--set-xmark" => Some(Step::Mark(!mask, value)),
        "--set-mark" => Some(Step::Mark(!(mask | value), value)),
        _ => None,
    }
}

fn with_mask(text: &str) -> Option<(u32, u32)> {
    match text.split_once('/') {
        Some((value, mask)) => Some((words::number(value)?, words::number(mask)?)),
        None => Some((words::number(text)?, u32::MAX)),
    }
}

fn condition(option: &Given<'_>, family: Family) -> Vec<Condition> {
    let first = option.values.first().copied().unwrap_or_default();
    let one = |key: Key, value: Option<Value>| Condition {
        keys: vec![key],
        source: Source::Here(Elements::one(value.unwrap_or(Value::Unknown))),
        negated: option.negated,
    };
    let device = |key: Key| one(key, Some(Value::Name(Name::new(first, '+'))));
    let numbers = |key: Key, numbers: Option<Ranges>| one(key, numbers.map(Value::Numbers));
    let only = match option.name {
        "-s" => numbers(Key::Source, networks(first)),
        "-d" => numbers(Key::Destination, networks(first)),
        "--src-range" => numbers(Key::Source, addresses(first)),
        "--dst-range" => numbers(Key::Destination, addresses(first)),
        "-i" => device(Key::Incoming),
        "-o" => device(Key::Outgoing),
        "--physdev-in" => device(Key::PortIn),
        "--physdev-out" => device(Key::PortOut),
        "--physdev-is-bridged" => numbers(Key::Bridged, Some(Ranges::one(1_u32))),
        "-p" if first == "all" => return Vec::new(),
        "-p" => numbers(Key::Protocol, words::protocol(first).map(Ranges::one)),
        "--dport" | "--dports" => numbers(Key::DestinationPort, ports(first)),
        "--sport" | "--sports" => numbers(Key::SourcePort, ports(first)),
        "--ctstate" | "--state" => return vec![states(first, option.negated)],
        "--mark" => match with_mask(first) {
            Some((value, mask)) => numbers(Key::Mark(mask), Some(Ranges::one(value))),
            None => Condition::unknown(),
        },
        "--length" => numbers(Key::Length, ports(first)),
        "--dst-type" => numbers(
            Key::DestinationKind,
            first
                .split(',')
                .map(|kind| words::kind(kind).map(Ranges::one))
                .collect::<Option<Vec<_>>>()
                .map(|all| Ranges::union(&all)),
        ),
        "--icmp-type" | "--icmpv6-type" => {
            let (kind, code) =
                first.split_once('/').map_or((first, None), |(kind, code)| (kind, Some(code)));
            if first == "any" {
                return Vec::new();
            }
            if option.negated && code.is_some() {
                return vec![Condition::unknown()];
            }
            let kind =
                numbers(Key::IcmpType(family), words::icmp_type(kind, family).map(Ranges::one));
            return [kind]
                .into_iter()
                .chain(
                    code.map(|code| numbers(Key::IcmpCode, words::number(code).map(Ranges::one))),
                )
                .collect();
        }
        // A module whose condition is in its options.
        "-m" if PLAIN.contains(&first) => return Vec::new(),
        _ => Condition::unknown(),
    };
    vec![only]
}

/// Texts that two rules without their targets share exactly if the rules match the same packets.
/// Unknown options count by their words.
pub(crate) fn conditions(rule: &str, family: Family) -> BTreeSet<String> {
    let words = split(rule);
    let options = options(&words).into_iter();
    let texts = options.map(|option| match condition(&option, family) {
        unknown if unknown.contains(&Condition::unknown()) => format!("{option:?}"),
        known => format!("{known:?}"),
    });
    texts.filter(|text| text != "[]").collect()
}

/// The prefix length may be written as a mask.
pub(crate) fn network(text: &str) -> Option<IpNet> {
    let Some((address, mask)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(IpNet::from);
    };
    let net = text.parse().ok();
    net.or_else(|| IpNet::with_netmask(address.parse().ok()?, mask.parse().ok()?).ok())
}

fn networks(text: &str) -> Option<Ranges> {
    let net = |text: &str| network(text).map(|net| Ranges::net(&net));
    text.split(',').map(net).collect::<Option<Vec<_>>>().map(|all| Ranges::union(&all))
}

fn addresses(text: &str) -> Option<Ranges> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(Ranges::addresses(first.parse().ok()?, last.parse().ok()?))
}

/// Ports and port ranges, such as `53,8000:9000`.
fn ports(text: &str) -> Option<Ranges> {
    let span = |text: &str| {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        let first: u16 = if first.is_empty() { 0 } else { first.parse().ok()? };
        let last: u16 = if last.is_empty() { u16::MAX } else { last.parse().ok()? };
        Some(Ranges::span(first, last))
    };
    text.split(',').map(span).collect::<Option<Vec<_>>>().map(|all| Ranges::union(&all))
}

/// The states DNAT and SNAT mean that the kernel rewrites the connection's addresses.
fn states(text: &str, negated: bool) -> Condition {
    let (translated, plain): (Vec<&str>, Vec<&str>) =
        text.split(',').partition(|name| matches!(*name, "DNAT" | "SNAT"));
    let Some(plain) =
        plain.iter().map(|name| words::state_of(name).map(Ranges::one)).collect::<Option<Vec<_>>>()
    else {
        return Condition::unknown();
    };
    let plain = Value::Numbers(Ranges::union(&plain));
    // Either kind suffices: each element is a pair of fields, of which one may have any value.
    let any = || Value::Numbers(Ranges::all());
    let mut elements = vec![(vec![plain, any()], None)];
    if !translated.is_empty() {
        elements.push((vec![any(), Value::Numbers(Ranges::one(1_u32))], None));
    }
    Condition {
        keys: vec![Key::State, Key::Translated],
        source: Source::Here(Elements(elements)),
        negated,
    }
}
