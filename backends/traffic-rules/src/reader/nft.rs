//! Parses the JSON listings of nftables that `nft -j list` prints.

use super::model::{
    Base, Condition, Elements, Hook, Key, Layer, Name, Program, Rule, Rules, Source, Step, Table,
    Value, Verdict,
};
use super::ranges::Ranges;
use super::words;
use ipnet::IpNet;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use types::Family;

/// What a listing contains of chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Rules,
    /// Only names, hooks and policies.
    Names,
}

pub fn read(listing: &Json, extent: Extent) -> Rules {
    let mut rules = Rules::default();
    for item in listing
        .get("nftables")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
        .filter_map(Json::as_object)
        .flatten()
    {
        let (kind, body) = item;
        let name = text(body, "name").to_owned();
        let Some(layer) = Layer::named(text(body, "family")) else {
            continue;
        };
        let Some(table) =
            table(&mut rules, layer, if kind == "table" { &name } else { text(body, "table") })
        else {
            continue;
        };
        match kind.as_str() {
            "chain" => {
                let chain = table.chains.entry(name).or_default();
                chain.base = base(body);
                if extent == Extent::Rules {
                    chain.rules.get_or_insert_default();
                }
            }
            "set" | "map" => {
                let keys = keys_of_type(body.get("type"));
                table.sets.insert(
                    name,
                    elements(body.get("elem").unwrap_or(&Json::Null), keys.as_deref()),
                );
            }
            "rule" => {
                let steps = body
                    .get("expr")
                    .and_then(Json::as_array)
                    .into_iter()
                    .flatten()
                    .flat_map(steps)
                    .collect();
                let handle = body.get("handle").and_then(Json::as_u64);
                let packets = body
                    .get("expr")
                    .and_then(Json::as_array)
                    .into_iter()
                    .flatten()
                    .find_map(|step| step.get("counter")?.get("packets")?.as_u64());
                let chain = table.chains.entry(text(body, "chain").to_owned()).or_default();
                chain.rules.get_or_insert_default().push(Rule {
                    steps,
                    handle,
                    text: String::new(),
                    packets,
                });
            }
            _ => {}
        }
    }
    rules
}

/// Added if it is missing.
fn table<'a>(rules: &'a mut Rules, layer: Layer, name: &str) -> Option<&'a mut Table> {
    let is_it = |table: &Table| table.layer == layer && table.name == name;
    if !rules.tables.iter().any(is_it) {
        rules.tables.push(Table {
            layer,
            name: name.to_owned(),
            program: Program::Nft,
            chains: BTreeMap::new(),
            sets: BTreeMap::new(),
        });
    }
    rules.tables.iter_mut().find(|table| is_it(table))
}

fn base(chain: &Json) -> Option<Base> {
    Some(Base {
        hook: Hook::named(text(chain, "hook"))?,
        priority: chain
            .get("prio")
            .and_then(Json::as_i64)
            .and_then(|number| i32::try_from(number).ok())
            .unwrap_or_default(),
        drops: text(chain, "policy") == "drop",
        nat: text(chain, "type") == "nat",
        device: chain.get("dev").and_then(Json::as_str).map(str::to_owned),
    })
}

fn steps(expression: &Json) -> Vec<Step> {
    let Some((kind, body)) = expression.as_object().and_then(|object| object.iter().next()) else {
        return vec![Step::When(Condition::unknown())];
    };
    match kind.as_str() {
        "match" => conditions(body).into_iter().map(Step::When).collect(),
        "vmap" => lookup(body),
        "mangle" => mangle(body),
        "notrack" => vec![Step::Untrack],
        // It is not known which packets fulfil these.
        "limit" | "quota" | "ct count" | "meter" => vec![Step::When(Condition::unknown())],
        "xt" if text(body, "type") == "match" => vec![Step::When(Condition::unknown())],
        "counter" | "log" | "set" | "map" | "ct helper" | "ct timeout" | "ct expectation"
        | "secmark" | "flow" | "dup" | "last" => Vec::new(),
        "snat" | "masquerade" => vec![Step::Verdict(Verdict::Accept)],
        _ => vec![Step::Verdict(verdict(expression).unwrap_or(Verdict::Unknown))],
    }
}

fn verdict(expression: &Json) -> Option<Verdict> {
    let (kind, body) = expression.as_object()?.iter().next()?;
    let target = || text(body, "target").to_owned();
    Some(match kind.as_str() {
        "accept" => Verdict::Accept,
        "drop" | "reject" => Verdict::Drop,
        "return" => Verdict::Return,
        "continue" => Verdict::Continue,
        "jump" => Verdict::Jump(target()),
        "goto" => Verdict::Goto(target()),
        _ => return None,
    })
}

fn lookup(body: &Json) -> Vec<Step> {
    let (Some(key), Some(data)) = (body.get("key"), body.get("data")) else {
        return vec![Step::Verdict(Verdict::Unknown)];
    };
    let (keys, needs) = keys(key);
    let source = source(data, Some(&keys));
    needs.into_iter().map(Step::When).chain([Step::Lookup(keys, source)]).collect()
}

/// Handles a statement that changes the packet.
fn mangle(body: &Json) -> Vec<Step> {
    let key = body.get("key").unwrap_or(&Json::Null);
    if text(key.get("meta").unwrap_or(&Json::Null), "key") == "mark" {
        let change = body.get("value").and_then(change);
        return vec![
            change.map_or(Step::MarkUnknown, |(kept, inverted)| Step::Mark(kept, inverted)),
        ];
    }
    let field = key.get("payload").map(|payload| text(payload, "field"));
    match field {
        // Later conditions would see another packet.
        Some(field) if !matches!(field, "dscp" | "ecn" | "ttl" | "hoplimit") => {
            vec![Step::Verdict(Verdict::Unknown)]
        }
        _ => Vec::new(),
    }
}

/// The bits of a packet mark that the rule keeps, and those that it then inverts.
fn change(value: &Json) -> Option<(u32, u32)> {
    if let Some(number) = number(&Key::Mark(u32::MAX), value) {
        return Some((0, number));
    }
    if let Some(meta) = value.get("meta") {
        return (text(meta, "key") == "mark").then_some((u32::MAX, 0));
    }
    let (operator, operands) = value.as_object()?.iter().next()?;
    let [left, right] = operands.as_array()?.as_slice() else {
        return None;
    };
    let (kept, inverted) = change(left)?;
    let bits = number(&Key::Mark(u32::MAX), right)?;
    Some(match operator.as_str() {
        "|" => (kept & !bits, inverted & !bits | bits),
        "&" => (kept & bits, inverted & bits),
        "^" => (kept, inverted ^ bits),
        _ => return None,
    })
}

fn conditions(body: &Json) -> Vec<Condition> {
    let (Some(left), Some(right)) = (body.get("left"), body.get("right")) else {
        return vec![Condition::unknown()];
    };
    let operator = text(body, "op");
    if let Some(tracked) = left.get("ct") {
        return vec![tracking(text(tracked, "key"), operator, right)];
    }
    let (keys, mut needs) = keys(left);
    let compared =
        |source: Source, negated: bool| Condition { keys: keys.clone(), source, negated };
    let beyond = |span: &dyn Fn(u128) -> Ranges| {
        let found = keys
            .first()
            .and_then(|key| number(key, right))
            .map(|number| Value::Numbers(span(u128::from(number))));
        compared(Source::Here(Elements::one(found.unwrap_or(Value::Unknown))), false)
    };
    needs.push(match operator {
        "==" => compared(source(right, Some(&keys)), false),
        "!=" => compared(source(right, Some(&keys)), true),
        ">=" => beyond(&|number| Ranges::span(number, u128::MAX)),
        ">" => beyond(&|number| Ranges::span(number.saturating_add(1), u128::MAX)),
        "<=" => beyond(&|number| Ranges::span(0_u32, number)),
        "<" => beyond(&|number| {
            number.checked_sub(1).map(|last| Ranges::span(0_u32, last)).unwrap_or_default()
        }),
        _ => Condition::unknown(),
    });
    needs
}

/// A condition on the state or the NAT status of the packet's connection.
fn tracking(key: &str, operator: &str, right: &Json) -> Condition {
    let list = match right.as_array() {
        Some(list) => list.as_slice(),
        None => std::slice::from_ref(right),
    };
    match (key, operator) {
        // Any of these bits.
        ("state", "in" | "!") => {
            let bits: Option<Vec<Ranges>> =
                list.iter().map(|bit| number(&Key::State, bit).map(Ranges::one)).collect();
            let mut found = bits.map_or_else(Condition::unknown, |bits| {
                Condition::number(Key::State, Ranges::union(&bits))
            });
            found.negated = operator == "!";
            found
        }
        ("state", "==" | "!=") => Condition {
            keys: vec![Key::State],
            source: source(right, Some(&[Key::State])),
            negated: operator == "!=",
        },
        ("status", "in" | "==") if list.iter().all(|bit| bit == "dnat" || bit == "snat") => {
            Condition::number(Key::Translated, Ranges::one(1_u32))
        }
        _ => Condition::unknown(),
    }
}

/// The packet fields that an nft expression names, and the conditions under which a packet has
/// them.
fn keys(left: &Json) -> (Vec<Key>, Vec<Condition>) {
    if let Some(parts) = left.get("concat").and_then(Json::as_array) {
        let (keys, needs): (Vec<_>, Vec<_>) = parts.iter().map(keys).unzip();
        return (keys.concat(), needs.concat());
    }
    if let Some(payload) = left.get("payload") {
        let (key, needs) = header_field(text(payload, "protocol"), text(payload, "field"));
        return (vec![key], needs);
    }
    (vec![key_without_header(left)], Vec::new())
}

/// A field of packet metadata, the connection or the route, not of a header.
fn key_without_header(left: &Json) -> Key {
    if let Some([value, mask]) = left.get("&").and_then(Json::as_array).map(Vec::as_slice) {
        let is_mark = value.get("meta").is_some_and(|meta| text(meta, "key") == "mark");
        let mask = number(&Key::Mark(u32::MAX), mask).filter(|_| is_mark);
        return mask.map_or(Key::Unknown, Key::Mark);
    }
    if let Some(meta) = left.get("meta") {
        return match text(meta, "key") {
            "iifname" | "iif" => Key::Incoming,
            "oifname" | "oif" => Key::Outgoing,
            "mark" => Key::Mark(u32::MAX),
            "l4proto" => Key::Protocol,
            "nfproto" | "protocol" => Key::Family,
            "length" => Key::Length,
            _ => Key::Unknown,
        };
    }
    if let Some(tracked) = left.get("ct") {
        return match text(tracked, "key") {
            "state" => Key::State,
            _ => Key::Unknown,
        };
    }
    if let Some(fib) = left.get("fib") {
        let of_destination = fib
            .get("flags")
            .and_then(Json::as_array)
            .is_some_and(|flags| matches!(flags.as_slice(), [flag] if flag == "daddr"));
        if text(fib, "result") == "type" && of_destination {
            return Key::DestinationKind;
        }
    }
    Key::Unknown
}

/// The packet field, and the conditions under which a packet has this header.
fn header_field(header: &str, field: &str) -> (Key, Vec<Condition>) {
    let family = |number: u32| Condition::number(Key::Family, Ranges::one(number));
    let protocol = |name: &str| {
        Condition::number(Key::Protocol, words::protocol(name).map(Ranges::one).unwrap_or_default())
    };
    match (header, field) {
        ("ip", "saddr") => (Key::Source, vec![family(2)]),
        ("ip", "daddr") => (Key::Destination, vec![family(2)]),
        ("ip", "protocol") => (Key::Protocol, vec![family(2)]),
        ("ip", "length") => (Key::Length, vec![family(2)]),
        ("ip6", "saddr") => (Key::Source, vec![family(10)]),
        ("ip6", "daddr") => (Key::Destination, vec![family(10)]),
        ("ip6", "nexthdr") => (Key::Protocol, vec![family(10)]),
        ("ip", _) => (Key::Unknown, vec![family(2)]),
        ("ip6", _) => (Key::Unknown, vec![family(10)]),
        ("th", "sport") => (Key::SourcePort, vec![]),
        ("th", "dport") => (Key::DestinationPort, vec![]),
        ("tcp" | "udp" | "sctp" | "dccp" | "udplite", "sport") => {
            (Key::SourcePort, vec![protocol(header)])
        }
        ("tcp" | "udp" | "sctp" | "dccp" | "udplite", "dport") => {
            (Key::DestinationPort, vec![protocol(header)])
        }
        ("tcp" | "udp" | "sctp" | "dccp" | "udplite", _) => (Key::Unknown, vec![protocol(header)]),
        ("icmp", "type") => (Key::IcmpType(Family::V4), vec![family(2), protocol("icmp")]),
        ("icmp", "code") => (Key::IcmpCode, vec![family(2), protocol("icmp")]),
        ("icmpv6", "type") => (Key::IcmpType(Family::V6), vec![family(10), protocol("icmpv6")]),
        ("icmpv6", "code") => (Key::IcmpCode, vec![family(10), protocol("icmpv6")]),
        ("ether", "type") => (Key::Family, vec![]),
        _ => (Key::Unknown, vec![]),
    }
}

/// The packet fields whose values a set of this type contains; `None` if the reader does not know
/// the type.
fn keys_of_type(kind: Option<&Json>) -> Option<Vec<Key>> {
    let one = |name: &str| {
        Some(match name {
            "ipv4_addr" | "ipv6_addr" => Key::Source,
            "inet_proto" => Key::Protocol,
            "inet_service" => Key::DestinationPort,
            "ifname" | "iface_index" => Key::Incoming,
            "mark" => Key::Mark(u32::MAX),
            "ct_state" => Key::State,
            "ether_type" | "nf_proto" => Key::Family,
            "icmp_type" => Key::IcmpType(Family::V4),
            "icmpv6_type" => Key::IcmpType(Family::V6),
            _ => return None,
        })
    };
    match kind? {
        Json::Object(kind) => kind.get("typeof").map(|fields| keys(fields).0),
        Json::String(name) => Some(vec![one(name)?]),
        Json::Array(names) => names.iter().map(|name| one(name.as_str()?)).collect(),
        _ => None,
    }
}

/// The values on the right side of a comparison, or the map of a lookup.
fn source(right: &Json, keys: Option<&[Key]>) -> Source {
    match right.as_str().and_then(|text| text.strip_prefix('@')) {
        Some(name) => Source::Named(name.to_owned()),
        None => Source::Here(elements(right.get("set").unwrap_or(right), keys)),
    }
}

/// The values are unknown if `keys` is `None` or does not fit the elements.
fn elements(list: &Json, keys: Option<&[Key]>) -> Elements {
    let list = match list {
        Json::Null => &[],
        Json::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    let is_rest = |element: &Json| *element == "*";
    let read = |element: &Json| {
        // An element of a map is a pair.
        let (value, then) = match element.as_array().map(Vec::as_slice) {
            Some([value, then]) => (value, Some(verdict(then).unwrap_or(Verdict::Unknown))),
            _ => (element, None),
        };
        let value = value.get("elem").and_then(|element| element.get("val")).unwrap_or(value);
        let parts = match value.get("concat").and_then(Json::as_array) {
            Some(parts) => parts.as_slice(),
            None => std::slice::from_ref(value),
        };
        let values = match keys {
            // `*` matches all values that are in no other element.
            Some(keys) if is_rest(value) => keys.iter().map(any).collect(),
            Some(keys) if keys.len() == parts.len() => {
                keys.iter().zip(parts).map(|(key, part)| self::value(key, part)).collect()
            }
            _ => vec![Value::Unknown],
        };
        (is_rest(value), (values, then))
    };
    let (rest, others): (Vec<_>, Vec<_>) = list.iter().map(read).partition(|(is_rest, _)| *is_rest);
    Elements::of(others.into_iter().chain(rest).map(|(_, element)| element))
}

/// Matches every value of the field.
fn any(key: &Key) -> Value {
    match key {
        Key::Incoming | Key::Outgoing | Key::PortIn | Key::PortOut => {
            Value::Name(Name { text: String::new(), is_prefix: true })
        }
        _ => Value::Numbers(Ranges::all()),
    }
}

fn value(key: &Key, json: &Json) -> Value {
    match key {
        Key::Incoming | Key::Outgoing | Key::PortIn | Key::PortOut => match json.as_str() {
            Some(name) => Value::Name(Name::new(name, '*')),
            None => Value::Unknown,
        },
        Key::Source | Key::Destination => addresses(json).map_or(Value::Unknown, Value::Numbers),
        Key::Unknown => Value::Unknown,
        _ => {
            let found = match json.get("range").and_then(Json::as_array).map(Vec::as_slice) {
                Some([first, last]) => number(key, first)
                    .zip(number(key, last))
                    .map(|(first, last)| Ranges::span(first, last)),
                _ => number(key, json).map(Ranges::one),
            };
            found.map_or(Value::Unknown, Value::Numbers)
        }
    }
}

/// An IP address, a network or an address range.
fn addresses(json: &Json) -> Option<Ranges> {
    let address = |json: &Json| json.as_str()?.parse::<IpAddr>().ok();
    if let Some([first, last]) = json.get("range").and_then(Json::as_array).map(Vec::as_slice) {
        return Some(Ranges::addresses(address(first)?, address(last)?));
    }
    let Some(prefix) = json.get("prefix") else {
        return address(json).map(|one| Ranges::addresses(one, one));
    };
    let length =
        prefix.get("len").and_then(Json::as_u64).and_then(|length| u8::try_from(length).ok())?;
    Some(Ranges::net(&IpNet::new(prefix.get("addr").and_then(address)?, length).ok()?))
}

/// A number, or the name of a protocol, a connection state, an address type or an ICMP type.
fn number(key: &Key, json: &Json) -> Option<u32> {
    if let Some(parts) = json.get("|").and_then(Json::as_array) {
        return parts.iter().try_fold(0, |bits, part| Some(bits | number(key, part)?));
    }
    let text = match json {
        Json::Number(number) => {
            return number
                .as_u64()
                .and_then(|number| u32::try_from(number).ok())
                .and_then(|number| ether(key, number));
        }
        Json::String(text) => text.as_str(),
        _ => return None,
    };
    match key {
        Key::Family => match text {
            "ipv4" | "ip" => Some(2),
            "ipv6" | "ip6" => Some(10),
            "arp" | "vlan" | "8021q" | "8021ad" => Some(0),
            _ => None,
        },
        Key::Protocol => words::protocol(text),
        Key::State => words::state_of(text),
        Key::DestinationKind => words::kind(text),
        Key::IcmpType(family) => words::icmp_type(text, *family),
        _ => words::number(text),
    }
}

/// The kernel's number of the address family for an Ethernet type.
fn ether(key: &Key, number: u32) -> Option<u32> {
    Some(match (key, number) {
        (Key::Family, 0x0800) => 2,
        (Key::Family, 0x86dd) => 10,
        _ => number,
    })
}

fn text<'a>(value: &'a Json, field: &str) -> &'a str {
    value.get(field).and_then(Json::as_str).unwrap_or_default()
}
