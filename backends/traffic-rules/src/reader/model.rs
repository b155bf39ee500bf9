//! The model: tables, chains, rules, sets and maps of verdicts, of nftables and of both variants of iptables.

use super::ranges::Ranges;
use crate::variant::Variant;
use std::collections::BTreeMap;
use types::Family;

/// Whose packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The family `ip`: IPv4 packets.
    Ip,
    /// The family `ip6`: IPv6 packets.
    Ip6,
    /// The family `inet`: IPv4 and IPv6 packets.
    Inet,
    /// Frames that a bridge passes.
    Bridge,
    /// Everything that one device receives.
    Netdev,
    /// Requests for hardware addresses: no packet of IP.
    Arp,
}

impl Layer {
    /// That of one family.
    pub fn of(family: Family) -> Self {
        family.pick(Layer::Ip, Layer::Ip6)
    }

    /// Its name in commands of nft.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Ip => "ip",
            Layer::Ip6 => "ip6",
            Layer::Inet => "inet",
            Layer::Bridge => "bridge",
            Layer::Netdev => "netdev",
            Layer::Arp => "arp",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        [
            Layer::Ip,
            Layer::Ip6,
            Layer::Inet,
            Layer::Bridge,
            Layer::Netdev,
            Layer::Arp,
        ]
        .into_iter()
        .find(|layer| layer.name() == name)
    }

    /// Whether a table sees packets at a hook of a layer.
    pub(super) fn sees(self, other: Layer) -> bool {
        self == other || self == Layer::Inet && matches!(other, Layer::Ip | Layer::Ip6)
    }
}

/// Where in the kernel a chain is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// As soon as a device has received it.
    Ingress,
    /// Before it is decided where the packet goes.
    Prerouting,
    /// Before this host gets it.
    Input,
    /// Packets that pass from one interface to another.
    Forward,
    /// When this host sends it.
    Output,
    /// Packets that leave, after routing.
    Postrouting,
}

impl Hook {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "ingress" => Hook::Ingress,
            "prerouting" => Hook::Prerouting,
            "input" => Hook::Input,
            "forward" => Hook::Forward,
            "output" => Hook::Output,
            "postrouting" => Hook::Postrouting,
            _ => return None,
        })
    }
}

/// The rules of a host, as far as they were listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The tables, in the order in which they were listed.
    pub tables: Vec<Table>,
}

impl Rules {
    /// Adds tables that were listed elsewhere. Parts of the same table are put together. Where iptables keeps a table in nftables, its own listing
    /// applies: nft does not know all conditions in it.
    pub fn extend(&mut self, others: Rules) {
        for other in others.tables {
            let same = |table: &Table| (table.layer, &table.name) == (other.layer, &other.name);
            let by = |table: &Table| table.program == Program::Iptables(Variant::Nft);
            if other.program == Program::Nft
                && self.tables.iter().any(|table| same(table) && by(table))
            {
                continue;
            }
            if by(&other) {
                self.tables
                    .retain(|table| !same(table) || table.program != Program::Nft);
            }
            match self.tables.iter_mut().find(|table| {
                (table.layer, &table.name, table.program)
                    == (other.layer, &other.name, other.program)
            }) {
                Some(table) => {
                    table.chains.extend(other.chains);
                    table.sets.extend(other.sets);
                }
                None => self.tables.push(other),
            }
        }
    }
}

/// The program that made a table, and lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// nft.
    Nft,
    /// iptables or ip6tables, one of its variants.
    Iptables(Variant),
}

/// A table of nftables, or one of iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Whose packets it sees.
    pub layer: Layer,
    /// The name of the table.
    pub name: String,
    /// The program that made the table.
    pub program: Program,
    /// The chains by name.
    pub chains: BTreeMap<String, Chain>,
    /// Its named sets and maps of verdicts.
    pub sets: BTreeMap<String, Elements>,
}

/// A chain: its hook, if the kernel calls it, and its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Where the kernel calls it; `None`: only rules do.
    pub base: Option<Base>,
    /// Its rules, in order; `None` where only the chain's name was listed.
    pub rules: Option<Vec<Rule>>,
}

/// Where the kernel calls a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The hook at which the kernel calls the chain.
    pub hook: Hook,
    /// Lower ones come first.
    pub priority: i32,
    /// Whether the kernel drops packets that no rule decides.
    pub drops: bool,
    /// Whether it rewrites addresses: it sees the first packet of a connection only.
    pub nat: bool,
    /// The device, of a chain that sees one device's packets only.
    pub device: Option<String>,
}

/// A rule of a chain, as a sequence of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its steps, in order: the first condition that is not fulfilled ends it.
    pub steps: Vec<Step>,
    /// Its handle, in nftables.
    pub handle: Option<u64>,
    /// The rule as iptables saves it.
    pub text: String,
    /// How many packets it has counted; `None`: it has no counter.
    pub packets: Option<u64>,
}

/// A step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The rule goes on only if the packet fulfils this condition.
    When(Condition),
    /// Keeps these bits of the mark and inverts those.
    Mark(u32, u32),
    /// Makes the mark something that is not known.
    MarkUnknown,
    /// The connection is not tracked.
    Untrack,
    /// The verdict about the packet.
    Verdict(Verdict),
    /// A map has the verdict.
    Lookup(Vec<Key>, Source),
}

/// A comparison of fields of a packet with values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The fields that are compared.
    pub keys: Vec<Key>,
    /// The values that they may have.
    pub source: Source,
    /// Whether they must not have them.
    pub negated: bool,
}

impl Condition {
    /// A condition that a field has one of these numbers.
    pub(super) fn number(key: Key, numbers: Ranges) -> Self {
        Self {
            keys: vec![key],
            source: Source::Here(Elements::one(Value::Numbers(numbers))),
            negated: false,
        }
    }

    /// A condition that is not understood.
    pub(super) fn unknown() -> Self {
        Self {
            keys: vec![Key::Unknown],
            source: Source::Here(Elements::one(Value::Unknown)),
            negated: false,
        }
    }
}

/// The place of the values of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The rule itself lists the values.
    Here(Elements),
    /// In a named set or map.
    Named(String),
}

/// The elements of a set or a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements(pub Vec<(Vec<Value>, Option<Verdict>)>);

impl Elements {
    /// One value.
    pub(super) fn one(value: Value) -> Self {
        Self(vec![(vec![value], None)])
    }

    /// Puts the numbers of plain elements together: then a field that has all of them fits for certain.
    pub(super) fn of(elements: impl IntoIterator<Item = (Vec<Value>, Option<Verdict>)>) -> Self {
        let (mut numbers, mut others) = (Vec::new(), Vec::new());
        for element in elements {
            match (element.0.as_slice(), &element.1) {
                ([Value::Numbers(ranges)], None) => numbers.push(ranges.clone()),
                _ => others.push(element),
            }
        }
        if !numbers.is_empty() {
            let all = Ranges::union(&numbers);
            others.push((vec![Value::Numbers(all)], None));
        }
        Self(others)
    }
}

/// The value of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// One of these numbers.
    Numbers(Ranges),
    /// The name of an interface.
    Name(Name),
    /// It is not understood.
    Unknown,
}

/// The name of an interface, or how it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name, or its beginning.
    pub text: String,
    /// Whether names only begin like this.
    pub(crate) is_prefix: bool,
}

impl Name {
    /// A name, or a pattern that ends with this character.
    pub(super) fn new(text: &str, wildcard: char) -> Self {
        match text.strip_suffix(wildcard) {
            Some(start) => Self {
                text: start.to_owned(),
                is_prefix: true,
            },
            None => Self {
                text: text.to_owned(),
                is_prefix: false,
            },
        }
    }

    pub(super) fn is(&self, name: &str) -> bool {
        if self.is_prefix {
            name.starts_with(&self.text)
        } else {
            name == self.text
        }
    }
}

/// A field that conditions are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The family: 2 or 10.
    Family,
    /// The source address.
    Source,
    /// The destination address.
    Destination,
    /// The protocol above IP.
    Protocol,
    /// The source port.
    SourcePort,
    /// The destination port.
    DestinationPort,
    /// The type of ICMP, whose names depend on the family.
    IcmpType(Family),
    /// The code of ICMP.
    IcmpCode,
    /// The length of the packet of IP in bytes.
    Length,
    /// The state of the connection, as a bit.
    State,
    /// Whether the connection's addresses are rewritten: 0 or 1.
    Translated,
    /// The type of the destination address: local, unicast, broadcast …
    DestinationKind,
    /// These bits of the mark.
    Mark(u32),
    /// The interface by which it comes.
    Incoming,
    /// The interface by which it leaves.
    Outgoing,
    /// The port of a bridge by which it comes.
    PortIn,
    /// The port of a bridge by which it leaves.
    PortOut,
    /// Whether a bridge passes it on: 0 or 1.
    Bridged,
    /// A field that this reader does not know.
    Unknown,
}

impl Key {
    /// Whether it says whose a packet is: by interfaces or addresses.
    pub(super) fn is_whose(&self) -> bool {
        matches!(
            self,
            Key::Source | Key::Destination | Key::Incoming | Key::Outgoing
        )
    }
}

/// The verdict of a rule about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has passed this hook's chain.
    Accept,
    /// The packet is dropped.
    Drop,
    /// It goes on behind the rule that led here.
    Return,
    /// It goes on with the next rule.
    Continue,
    /// It goes through a chain, and then on.
    Jump(String),
    /// It goes through a chain instead of the rest of this one.
    Goto(String),
    /// It is not understood.
    Unknown,
}
