//! One model for the rules of nftables and of both variants of iptables: tables, chains, rules, sets and verdict maps.

use super::ranges::Ranges;
use crate::variant::Variant;
use std::collections::BTreeMap;
use types::Family;

/// A table's family, which determines the packets that the table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    Ip,
    Ip6,
    /// IPv4 and IPv6 packets.
    Inet,
    /// Frames that a bridge forwards.
    Bridge,
    /// All packets that one device receives.
    Netdev,
    /// ARP packets, which are not IP packets.
    Arp,
}

impl Layer {
    #[must_use]
    pub fn of(family: Family) -> Self {
        family.pick(Layer::Ip, Layer::Ip6)
    }

    /// As in nft commands.
    #[must_use]
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
        [Layer::Ip, Layer::Ip6, Layer::Inet, Layer::Bridge, Layer::Netdev, Layer::Arp]
            .into_iter()
            .find(|layer| layer.name() == name)
    }

    /// True if a table of this family sees packets at a hook of the family `other`.
    pub(super) fn sees(self, other: Layer) -> bool {
        self == other || self == Layer::Inet && matches!(other, Layer::Ip | Layer::Ip6)
    }
}

/// Where in packet processing the kernel calls a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// Directly after a device has received a packet.
    Ingress,
    /// Before the routing decision.
    Prerouting,
    /// Before the kernel delivers a packet to this host.
    Input,
    /// On the way from one interface to another.
    Forward,
    /// After a process of this host has sent a packet.
    Output,
    /// After the routing decision, before a packet leaves the host.
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

/// The nft and iptables rules of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Keeps the order of the listings.
    pub tables: Vec<Table>,
}

impl Rules {
    /// If both listings contain the same table, its chains and sets are merged. For a table that
    /// iptables keeps in nftables, the listing of iptables takes precedence, because nft does not
    /// know all conditions of iptables.
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
                self.tables.retain(|table| !same(table) || table.program != Program::Nft);
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

/// It created a table and lists the table's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    Nft,
    /// One of the variants of iptables or ip6tables.
    Iptables(Variant),
}

/// A table of nftables or iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub layer: Layer,
    pub name: String,
    /// The program that created the table.
    pub program: Program,
    pub chains: BTreeMap<String, Chain>,
    /// Named sets and verdict maps.
    pub sets: BTreeMap<String, Elements>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// `None` if the kernel does not call the chain and only rules jump to it.
    pub base: Option<Base>,
    /// Keeps the order; `None` if the listing contains only the chain's name.
    pub rules: Option<Vec<Rule>>,
}

/// The kernel calls a base chain at a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    pub hook: Hook,
    /// At one hook, the kernel calls chains with lower priorities first.
    pub priority: i32,
    /// The policy: the kernel drops packets that no rule accepts.
    pub drops: bool,
    /// The type `nat`: the chain sees only the first packet of a connection.
    pub nat: bool,
    /// The device whose packets the chain sees; `None` if it is not bound to one.
    pub device: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Conditions and actions, in their order. The evaluation ends at the first condition that the
    /// packet does not fulfil.
    pub steps: Vec<Step>,
    /// Identifies the rule in nftables, if known.
    pub handle: Option<u64>,
    /// As iptables-save prints it; empty for nftables.
    pub text: String,
    /// The rule's packet counter; `None` if it has none.
    pub packets: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A packet must fulfil the condition for the rule to continue.
    When(Condition),
    /// Keeps only the bits of the packet mark that are set in the first number, then inverts those
    /// set in the second.
    Mark(u32, u32),
    /// Sets the packet mark to a value that the reader does not know.
    MarkUnknown,
    /// Excludes the packet from connection tracking.
    Untrack,
    Verdict(Verdict),
    /// Looks up the verdict in a verdict map, by the values of packet fields.
    Lookup(Vec<Key>, Source),
}

/// Compares fields of a packet with values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub keys: Vec<Key>,
    pub source: Source,
    pub negated: bool,
}

impl Condition {
    /// The packet field has one of the given numbers.
    pub(super) fn number(key: Key, numbers: Ranges) -> Self {
        Self {
            keys: vec![key],
            source: Source::Here(Elements::one(Value::Numbers(numbers))),
            negated: false,
        }
    }

    /// Stands for a condition that the reader does not understand.
    pub(super) fn unknown() -> Self {
        Self {
            keys: vec![Key::Unknown],
            source: Source::Here(Elements::one(Value::Unknown)),
            negated: false,
        }
    }
}

/// Where a condition's values are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The rule itself lists the values.
    Here(Elements),
    /// A named set or map holds the values.
    Named(String),
}

/// The elements of an nftables set or map. In a map, each element has a verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements(pub Vec<(Vec<Value>, Option<Verdict>)>);

impl Elements {
    pub(super) fn one(value: Value) -> Self {
        Self(vec![(vec![value], None)])
    }

    /// Merges all elements that are a single number range without a verdict into one. Otherwise, a
    /// packet class that spans several elements would not match any of them completely.
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

/// The value of one packet field in an element or a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Any number in the ranges.
    Numbers(Ranges),
    /// The name of an interface.
    Name(Name),
    /// The reader does not understand the value.
    Unknown,
}

/// The name of an interface, or a common prefix of such names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub text: String,
    pub(crate) is_prefix: bool,
}

impl Name {
    /// A prefix ends with `wildcard`.
    pub(super) fn new(text: &str, wildcard: char) -> Self {
        match text.strip_suffix(wildcard) {
            Some(start) => Self { text: start.to_owned(), is_prefix: true },
            None => Self { text: text.to_owned(), is_prefix: false },
        }
    }

    pub(super) fn is(&self, name: &str) -> bool {
        if self.is_prefix { name.starts_with(&self.text) } else { name == self.text }
    }
}

/// A packet field that a condition compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// 2 (IPv4) or 10 (IPv6).
    Family,
    Source,
    Destination,
    /// The number in the transport header, such as 6 for TCP.
    Protocol,
    SourcePort,
    DestinationPort,
    /// ICMP or ICMPv6, depending on the family.
    IcmpType(Family),
    IcmpCode,
    /// The IP packet's length in bytes.
    Length,
    /// The state of the packet's connection, as one bit of the kernel's state mask.
    State,
    /// 1 if NAT rewrites the addresses of the packet's connection, otherwise 0.
    Translated,
    /// The type of the destination address: local, unicast, broadcast …
    DestinationKind,
    /// The bits of the packet mark that are set in the given mask.
    Mark(u32),
    /// The incoming interface.
    Incoming,
    /// The outgoing interface.
    Outgoing,
    /// The bridge port on which the packet arrives.
    PortIn,
    /// The bridge port on which the packet leaves.
    PortOut,
    /// 1 if a bridge forwards the packet, otherwise 0.
    Bridged,
    /// The reader does not know the field.
    Unknown,
}

impl Key {
    /// The field is an interface or an address.
    pub(super) fn is_whose(&self) -> bool {
        matches!(self, Key::Source | Key::Destination | Key::Incoming | Key::Outgoing)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ends the current base chain.
    Accept,
    Drop,
    /// Leaves this chain and continues after the rule that jumped to it.
    Return,
    /// Continues with the next rule of this chain.
    Continue,
    /// Enters another chain, and continues after this rule if the packet returns.
    Jump(String),
    /// Enters another chain, and does not return.
    Goto(String),
    /// The reader does not understand the verdict.
    Unknown,
}
