//! What nftables chains on the forward hook do to pods' packets, whichever program created them: listings in, facts out.
//!
//! A packet traverses all chains of a hook: an accept in one chain does not override a drop in another.

use ipnet::IpNet;
use serde_json::Value;
use std::net::IpAddr;

/// Maximum depth to which jumps are followed.
const DEPTH: usize = 8;

/// A chain on the forward hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// ip, ip6 or inet.
    pub family: String,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
    /// Whether its policy is drop.
    pub drops: bool,
}

/// A chain that blocks packets of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// The chain.
    pub base: Base,
    /// The network.
    pub network: IpNet,
    /// Whether a rule rejects everything, rather than the policy.
    pub by_rule: bool,
}

/// The chains on the forward hook to check, from `nft -j list chains`: not ours, not firewalld's, which has its own
/// check, and not those of iptables if that program has listed them.
pub fn bases(listing: &Value, iptables: [bool; 2]) -> Vec<Base> {
    let chains = items(listing, "chain").filter(|chain| text(chain, "hook") == "forward" && text(chain, "type") == "filter");
    let all = chains.map(|chain| Base {
        family: text(chain, "family").to_owned(),
        table: text(chain, "table").to_owned(),
        chain: text(chain, "name").to_owned(),
        drops: text(chain, "policy") == "drop",
    });
    let judged = |base: &Base| match (base.family.as_str(), base.table.as_str(), base.chain.as_str()) {
        ("ip", "flannel-ipv4", _) | ("ip6", "flannel-ipv6", _) | ("inet", "firewalld", _) => false,
        ("ip", "filter", "FORWARD") => !iptables[0],
        ("ip6", "filter", "FORWARD") => !iptables[1],
        ("ip" | "ip6" | "inet", ..) => true,
        _ => false,
    };
    all.filter(judged).collect()
}

/// Whether a chain blocks packets of a network, given a listing of the chain or its table.
pub fn barrier(base: &Base, listing: &Value, network: &IpNet) -> Option<Barrier> {
    let other = if network.addr().is_ipv6() { "ip" } else { "ip6" };
    if base.family == other {
        return None;
    }
    let by_rule = match run(listing, &base.chain, network, DEPTH) {
        Some(Fate::Passes) => return None,
        Some(Fate::Refused) => true,
        None if base.drops => false,
        None => return None,
    };
    Some(Barrier { base: base.clone(), network: *network, by_rule })
}

/// The fate of a network's packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Some of them are accepted: the author of the rules considered them.
    Passes,
    /// All remaining ones are rejected.
    Refused,
}

/// The first fate decided by the rules of a chain.
fn run(listing: &Value, chain: &str, network: &IpNet, depth: usize) -> Option<Fate> {
    items(listing, "rule").filter(|rule| text(rule, "chain") == chain).find_map(|rule| fate(listing, rule, network, depth))
}

fn fate(listing: &Value, rule: &Value, network: &IpNet, depth: usize) -> Option<Fate> {
    let expressions = rule.get("expr").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut about = About::Everything;
    for expression in expressions {
        if let Some(condition) = expression.get("match") {
            about = about.and(judge(listing, condition, network));
        }
        let target = ["jump", "goto"].iter().find_map(|verb| Some(text(expression.get(verb)?, "target")));
        match target {
            Some(target) if about != About::Other && depth > 0 => {
                // If only some packets jump, it is not known whether the target rejects all of ours.
                return run(listing, target, network, depth - 1).filter(|fate| about == About::Everything || *fate == Fate::Passes);
            }
            _ => {}
        }
        if let Some(map) = expression.get("vmap").filter(|_| about != About::Other)
            && let Some(fate) = mapped(listing, map, network, depth)
        {
            return Some(fate);
        }
        let verdict = |name: &str| expression.get(name).is_some();
        if verdict("accept") && about != About::Other {
            return Some(Fate::Passes);
        }
        if (verdict("drop") || verdict("reject")) && about == About::Everything {
            return Some(Fate::Refused);
        }
    }
    None
}

/// Which packets the conditions of a rule select.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// All packets.
    Everything,
    /// Packets of the network, or of flannel's devices.
    Pods,
    /// Other packets: by connection state, port or other addresses.
    Other,
}

impl About {
    fn and(self, other: About) -> About {
        match (self, other) {
            (About::Everything, other) => other,
            (about, About::Everything) => about,
            (About::Pods, About::Pods) => About::Pods,
            _ => About::Other,
        }
    }
}

/// Whether pods' packets come and go by a device of this name, or pattern.
pub fn of_pods(device: &str) -> bool {
    device.starts_with("cni") || device.starts_with("flannel")
}

fn names_pods(value: &Value) -> bool {
    value.as_str().is_some_and(of_pods)
}

/// The fate by a map of verdicts: that of the first element which is about pods' devices, or the network.
fn mapped(listing: &Value, map: &Value, network: &IpNet, depth: usize) -> Option<Fate> {
    let data = map.get("data")?;
    let elements = match data.as_str().and_then(|name| name.strip_prefix('@')) {
        Some(name) => items(listing, "map").find(|map| text(map, "name") == name)?.get("elem")?,
        None => data.get("set")?,
    };
    let pairs = elements.as_array()?.iter().filter_map(|pair| pair.as_array()).filter_map(|pair| pair.first().zip(pair.get(1)));
    let ours = pairs.filter(|(key, _)| names_pods(key) || holds(key, network));
    ours.filter_map(|(_, verdict)| match verdict {
        accept if accept.get("accept").is_some() => Some(Fate::Passes),
        onward => {
            let target = ["jump", "goto"].iter().find_map(|verb| Some(text(onward.get(verb)?, "target")))?;
            // Only some packets go there: whether all of ours are rejected is not known.
            if depth > 0 { run(listing, target, network, depth - 1).filter(|fate| *fate == Fate::Passes) } else { None }
        }
    })
    .next()
}

fn judge(listing: &Value, condition: &Value, network: &IpNet) -> About {
    let (Some(left), Some(right)) = (condition.get("left"), condition.get("right")) else { return About::Other };
    let is_device = |key: &str| matches!(key, "iifname" | "oifname" | "iif" | "oif");
    match text(condition, "op") {
        "==" => {}
        // All devices but others' than pods'.
        "!=" if left.get("meta").is_some_and(|meta| is_device(text(meta, "key"))) && !any(listing, right, &names_pods) => return About::Pods,
        _ => return About::Other,
    }
    let key = left.get("meta").map(|meta| text(meta, "key")).unwrap_or_default();
    let family = if network.addr().is_ipv6() { "ipv6" } else { "ipv4" };
    match key {
        "nfproto" if right == family => return About::Everything,
        key if is_device(key) => return if any(listing, right, &names_pods) { About::Pods } else { About::Other },
        _ => {}
    }
    let field = left.get("payload").map(|payload| text(payload, "field")).unwrap_or_default();
    if matches!(field, "saddr" | "daddr") && any(listing, right, &|value| holds(value, network)) { About::Pods } else { About::Other }
}

/// Whether a value, or an element of the set it names, satisfies a predicate.
fn any(listing: &Value, value: &Value, is: &dyn Fn(&Value) -> bool) -> bool {
    if let Some(name) = value.as_str().and_then(|text| text.strip_prefix('@')) {
        let set = items(listing, "set").find(|set| text(set, "name") == name);
        let elements = set.and_then(|set| set.get("elem")).and_then(Value::as_array).into_iter().flatten();
        return elements.map(|element| element.get("elem").and_then(|element| element.get("val")).unwrap_or(element)).any(is);
    }
    match value.get("set").and_then(Value::as_array) {
        Some(elements) => elements.iter().any(is),
        None => is(value),
    }
}

/// Whether a value contains the whole network.
fn holds(value: &Value, network: &IpNet) -> bool {
    if let Some([first, last]) = value.get("range").and_then(Value::as_array).map(Vec::as_slice) {
        let address = |value: &Value| value.as_str()?.parse::<IpAddr>().ok();
        let (Some(first), Some(last)) = (address(first), address(last)) else { return false };
        return first <= network.network() && network.broadcast() <= last && first.is_ipv6() == network.addr().is_ipv6();
    }
    let Some(prefix) = value.get("prefix") else { return false };
    let address = prefix.get("addr").and_then(Value::as_str).and_then(|address| address.parse().ok());
    let length = prefix.get("len").and_then(Value::as_u64).and_then(|length| u8::try_from(length).ok());
    address.zip(length).and_then(|(address, length)| IpNet::new(address, length).ok()).is_some_and(|net| net.contains(network))
}

fn items<'a>(listing: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    listing.get("nftables").and_then(Value::as_array).into_iter().flatten().filter_map(move |item| item.get(kind))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
