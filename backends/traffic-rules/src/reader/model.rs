//! One model for the rules of nftables and of both variants of iptables: tables, chains, rules, sets and verdict maps.

use super::ranges::Ranges;
use crate::variant::Variant;
use std::collections::BTreeMap;
use types::Family;

/// The family of an nftables or iptables table, which determines the packets that the table sees.
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
    /// Returns `Ip` for IPv4 and `Ip6` for IPv6.
    pub fn of(family: Family) -> Self {
        family.pick(Layer::Ip, Layer::Ip6)
    }

    /// Returns the name of the table family in nft commands.
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

    /// Returns whether a table of this family sees packets at a hook of the family `other`.
    pub(super) fn sees(self, other: Layer) -> bool {
        self == other || self == Layer::Inet && matches!(other, Layer::Ip | Layer::Ip6)
    }
}

/// The point of packet processing at which the kernel calls a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// Point directly after a device has received a packet.
    Ingress,
    /// Point before the routing decision.
    Prerouting,
    /// Point before the kernel delivers a packet to this host.
    Input,
    /// Point at which the kernel forwards a packet from one interface to another interface.
    Forward,
    /// Point after a process of this host has sent a packet.
    Output,
    /// Point after the routing decision, before a packet leaves the host.
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

/// The rules in the nft and iptables listings of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The tables, in the order of the listings.
    pub tables: Vec<Table>,
}

impl Rules {
    /// Adds the tables of another listing. If both listings contain the same table, adds the chains and sets to that table. For a
    /// table that iptables keeps in nftables, the listing of iptables takes precedence, because nft does not know all
    /// conditions of iptables.
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

/// The program that created a table and that lists the table's rules.
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
    /// The table's family, which determines the packets that the table sees.
    pub layer: Layer,
    /// The name of the table.
    pub name: String,
    /// The program that created the table.
    pub program: Program,
    /// The table's chains by name.
    pub chains: BTreeMap<String, Chain>,
    /// The table's named sets and verdict maps.
    pub sets: BTreeMap<String, Elements>,
}

/// A chain of a table: the chain's rules, and for a base chain the hook at which the kernel calls the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The hook of a base chain, or `None` if the kernel does not call the chain and only rules jump to the chain.
    pub base: Option<Base>,
    /// The chain's rules in their order, or `None` if the listing contains only the chain's name.
    pub rules: Option<Vec<Rule>>,
}

/// The properties of a base chain, which the kernel calls at a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The hook at which the kernel calls the chain.
    pub hook: Hook,
    /// The priority. At one hook, the kernel calls chains with lower priorities first.
    pub priority: i32,
    /// Whether the chain's policy is drop: the kernel drops packets that no rule accepts.
    pub drops: bool,
    /// Whether the chain has the type `nat`. A NAT chain sees only the first packet of a connection.
    pub nat: bool,
    /// The device whose packets the chain sees, or `None` if the chain is not bound to one device.
    pub device: Option<String>,
}

/// A rule of a chain, as a sequence of conditions and actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The rule's conditions and actions, in their order. The evaluation of a rule ends at the first condition that the packet does not fulfil.
    pub steps: Vec<Step>,
    /// The handle by which nftables identifies the rule, if known.
    pub handle: Option<u64>,
    /// The rule as iptables-save prints it. Empty for nftables.
    pub text: String,
    /// The value of the rule's packet counter, or `None` if the rule has no counter.
    pub packets: Option<u64>,
}

/// A step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Condition that a packet must fulfil for the rule to continue.
    When(Condition),
    /// Change of the packet mark: keeps only the bits set in the first number, then inverts the bits set in the second number.
    Mark(u32, u32),
    /// Change of the packet mark to a value that the reader does not know.
    MarkUnknown,
    /// Exclusion of the packet from connection tracking.
    Untrack,
    /// The verdict about the packet, such as accept or drop.
    Verdict(Verdict),
    /// Lookup of the verdict in a verdict map, by the values of packet fields.
    Lookup(Vec<Key>, Source),
}

/// A condition of a rule, which compares fields of a packet with values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The packet fields that the condition compares.
    pub keys: Vec<Key>,
    /// The values with which the condition compares the packet fields.
    pub source: Source,
    /// Whether the rule negates the condition.
    pub negated: bool,
}

impl Condition {
    /// Returns the condition that a packet field has one of the given numbers.
    pub(super) fn number(key: Key, numbers: Ranges) -> Self {
        Self {
            keys: vec![key],
            source: Source::Here(Elements::one(Value::Numbers(numbers))),
            negated: false,
        }
    }

    /// Returns a placeholder for a condition that the reader does not understand.
    pub(super) fn unknown() -> Self {
        Self {
            keys: vec![Key::Unknown],
            source: Source::Here(Elements::one(Value::Unknown)),
            negated: false,
        }
    }
}

/// The values of a condition: in the rule itself, or in a named set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Values that the rule itself lists.
    Here(Elements),
    /// Named set or map that holds the values.
    Named(String),
}

/// The elements of an nftables set or map. In a map, each element has a verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements(pub Vec<(Vec<Value>, Option<Verdict>)>);

impl Elements {
    /// Returns a set with one element, which has one value.
    pub(super) fn one(value: Value) -> Self {
        Self(vec![(vec![value], None)])
    }

    /// Merges all elements that are a single number range without a verdict into one element. Without the merge, a
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
    /// Any number in the given ranges.
    Numbers(Ranges),
    /// The name of an interface.
    Name(Name),
    /// Value that the reader does not understand.
    Unknown,
}

/// The name of an interface, or a common prefix of interface names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The interface name, or the prefix of interface names.
    pub text: String,
    /// Whether `text` is a prefix.
    pub(crate) is_prefix: bool,
}

impl Name {
    /// Parses the name of an interface, or a prefix of interface names, which ends with `wildcard`.
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
    /// The address family: 2 (IPv4) or 10 (IPv6).
    Family,
    /// The source address.
    Source,
    /// The destination address.
    Destination,
    /// The protocol number of the transport header, such as 6 for TCP.
    Protocol,
    /// The source port.
    SourcePort,
    /// The destination port.
    DestinationPort,
    /// The ICMP or ICMPv6 type, depending on the family.
    IcmpType(Family),
    /// The ICMP code.
    IcmpCode,
    /// The length of the IP packet in bytes.
    Length,
    /// The state of the packet's connection, as one bit of the kernel's state mask.
    State,
    /// Whether NAT rewrites the addresses of the packet's connection: 1 if yes, 0 if no.
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
    /// Whether a bridge forwards the packet: 1 if yes, 0 if no.
    Bridged,
    /// A packet field that the reader does not know.
    Unknown,
}

impl Key {
    /// Returns whether the field is an interface or an address of the packet.
    pub(super) fn is_whose(&self) -> bool {
        matches!(self, Key::Source | Key::Destination | Key::Incoming | Key::Outgoing)
    }
}

/// The verdict of a rule about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Accepts the packet and ends the current base chain.
    Accept,
    /// Drops the packet.
    Drop,
    /// Leaves this chain and continues after the rule that jumped to this chain.
    Return,
    /// Continues with the next rule of this chain.
    Continue,
    /// Enters another chain, and continues after this rule if the packet returns from that chain.
    Jump(String),
    /// Enters another chain, and does not return to this chain.
    Goto(String),
    /// A verdict that the reader does not understand.
    Unknown,
}
