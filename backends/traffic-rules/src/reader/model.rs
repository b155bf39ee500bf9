//! The model: tables, chains, rules, sets and verdict maps, of nftables and of both variants of iptables.

use super::ranges::Ranges;
use crate::variant::Variant;
use std::collections::BTreeMap;
use types::Family;

/// The family of a table, which determines the packets that the table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The family `ip`: IPv4 packets.
    Ip,
    /// The family `ip6`: IPv6 packets.
    Ip6,
    /// The family `inet`: IPv4 and IPv6 packets.
    Inet,
    /// The family `bridge`: frames that a bridge forwards.
    Bridge,
    /// The family `netdev`: all packets that one device receives.
    Netdev,
    /// The family `arp`: ARP packets, which are not IP packets.
    Arp,
}

impl Layer {
    /// Returns the layer of an address family.
    pub fn of(family: Family) -> Self {
        family.pick(Layer::Ip, Layer::Ip6)
    }

    /// Returns the layer's name in nft commands.
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

    /// Returns whether a table sees packets at a hook of a layer.
    pub(super) fn sees(self, other: Layer) -> bool {
        self == other || self == Layer::Inet && matches!(other, Layer::Ip | Layer::Ip6)
    }
}

/// The point of packet processing at which the kernel calls a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// Point after a device has received a packet.
    Ingress,
    /// Before the routing decision.
    Prerouting,
    /// Point before the kernel delivers a packet to this host.
    Input,
    /// Point at which the kernel forwards a packet from one interface to another interface.
    Forward,
    /// Point at which this host sends a packet.
    Output,
    /// Point after routing, when a packet leaves.
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

/// The rules of a host, as far as the listings contain them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The tables, in the order of the listing.
    pub tables: Vec<Table>,
}

impl Rules {
    /// Adds the tables of another listing, and merges parts of the same table. For a table that iptables keeps in nftables, the listing of iptables
    /// takes precedence, because nft does not know all conditions of iptables.
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

/// The program that created a table and lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// nft.
    Nft,
    /// One of the variants of iptables or ip6tables.
    Iptables(Variant),
}

/// A table of nftables or iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The family, which determines the packets that the table sees.
    pub layer: Layer,
    /// The name of the table.
    pub name: String,
    /// The program that created the table.
    pub program: Program,
    /// The chains by name.
    pub chains: BTreeMap<String, Chain>,
    /// The table's named sets and verdict maps.
    pub sets: BTreeMap<String, Elements>,
}

/// A chain: its hook, if the kernel calls the chain, and its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The point at which the kernel calls the chain. The field is `None` if only rules call the chain.
    pub base: Option<Base>,
    /// The chain's rules, in order. The field is `None` if the listing contains only the chain's name.
    pub rules: Option<Vec<Rule>>,
}

/// The point at which the kernel calls a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The hook at which the kernel calls the chain.
    pub hook: Hook,
    /// The priority. Chains with lower priorities come first.
    pub priority: i32,
    /// Whether the kernel drops packets about which no rule decides.
    pub drops: bool,
    /// Whether the chain rewrites addresses. A chain that rewrites addresses sees only the first packet of a connection.
    pub nat: bool,
    /// The device of a chain that sees only one device's packets.
    pub device: Option<String>,
}

/// A rule of a chain, as a sequence of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The rule's steps, in order. The first condition that a packet does not fulfil ends the rule.
    pub steps: Vec<Step>,
    /// The rule's handle, in nftables.
    pub handle: Option<u64>,
    /// The rule as iptables saves it. Empty for nftables.
    pub text: String,
    /// The number of packets that the rule has counted. The field is `None` if the rule has no counter.
    pub packets: Option<u64>,
}

/// A step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Condition that a packet must fulfil for the rule to continue.
    When(Condition),
    /// Keeps only the bits of the mark that are set in the first number, then inverts the bits that are set in the second number.
    Mark(u32, u32),
    /// Sets the mark to an unknown value.
    MarkUnknown,
    /// Excludes the connection from tracking.
    Untrack,
    /// The verdict about the packet.
    Verdict(Verdict),
    /// Looks up the verdict in a map.
    Lookup(Vec<Key>, Source),
}

/// A comparison of fields of a packet with values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The fields that the condition compares.
    pub keys: Vec<Key>,
    /// The values for the comparison.
    pub source: Source,
    /// Whether the fields must not have these values.
    pub negated: bool,
}

impl Condition {
    /// Returns a condition that a field has one of these numbers.
    pub(super) fn number(key: Key, numbers: Ranges) -> Self {
        Self {
            keys: vec![key],
            source: Source::Here(Elements::one(Value::Numbers(numbers))),
            negated: false,
        }
    }

    /// Returns a condition that the reader does not understand.
    pub(super) fn unknown() -> Self {
        Self {
            keys: vec![Key::Unknown],
            source: Source::Here(Elements::one(Value::Unknown)),
            negated: false,
        }
    }
}

/// The location of the values of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// List of the values in the rule itself.
    Here(Elements),
    /// Named set or map that holds the values.
    Named(String),
}

/// The elements of a set or a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements(pub Vec<(Vec<Value>, Option<Verdict>)>);

impl Elements {
    /// Returns elements with one value.
    pub(super) fn one(value: Value) -> Self {
        Self(vec![(vec![value], None)])
    }

    /// Merges the numbers of plain elements. After the merge, a field fits with certainty even if its possible values spread over several elements.
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
    /// A value that the reader does not understand.
    Unknown,
}

/// The name of an interface, or a prefix of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name or prefix.
    pub text: String,
    /// Whether `text` is a prefix.
    pub(crate) is_prefix: bool,
}

impl Name {
    /// Parses a name, or a prefix that ends with this wildcard.
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

/// A field that a condition compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// The address family: 2 (IPv4) or 10 (IPv6).
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
    /// The ICMP type, whose names depend on the family.
    IcmpType(Family),
    /// The ICMP code.
    IcmpCode,
    /// The length of the IP packet in bytes.
    Length,
    /// The state of the connection, as a bit.
    State,
    /// Whether the kernel rewrites the connection's addresses: 0 or 1.
    Translated,
    /// The type of the destination address: local, unicast, broadcast …
    DestinationKind,
    /// These bits of the mark.
    Mark(u32),
    /// The incoming interface.
    Incoming,
    /// The outgoing interface.
    Outgoing,
    /// The bridge port on which the packet arrives.
    PortIn,
    /// The bridge port on which the packet leaves.
    PortOut,
    /// Whether a bridge forwards the packet: 0 or 1.
    Bridged,
    /// A field that this reader does not know.
    Unknown,
}

impl Key {
    /// Returns whether the field identifies packets by interface or address.
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
    /// Accepts the packet in the base chain.
    Accept,
    /// The packet is dropped.
    Drop,
    /// Continues after the rule that led to this chain.
    Return,
    /// Continues with the next rule.
    Continue,
    /// Enters another chain, and then continues after this rule.
    Jump(String),
    /// Enters another chain instead of the rest of this chain.
    Goto(String),
    /// A verdict that the reader does not understand.
    Unknown,
}
