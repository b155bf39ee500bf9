//! What nftables chains on the forward hook do to pods' packets, whichever program created them: listings in, facts out.
//!
//! A packet traverses all chains of a hook: an accept in one chain does not override a drop in another.

use crate::policies::holds_policies;
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
    /// The handle of that rule, where the chain itself has it and no network policies come after it.
    pub handle: Option<u64>,
    /// Whether a rule before the verdict may accept packets of the network: it is not understood.
    pub doubt: bool,
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
    let mut walk = Walk { listing, network, doubt: false };
    let mut rules = rules(listing, &base.chain);
    let refusing = rules.find_map(|rule| walk.fate(rule, DEPTH).map(|fate| (rule, fate)));
    let (by_rule, handle) = match refusing {
        Some((_, Fate::Passes)) => return None,
        Some((rule, Fate::Refused)) => (true, rule.get("handle").and_then(Value::as_u64).filter(|_| !rules.any(leads_to_policies))),
        None if base.drops => (false, None),
        None => return None,
    };
    Some(Barrier { base: base.clone(), network: *network, by_rule, handle, doubt: walk.doubt })
}

/// Whether a rule leads to a chain of network policies.
fn leads_to_policies(rule: &Value) -> bool {
    let expressions = rule.get("expr").and_then(Value::as_array).into_iter().flatten();
    expressions.filter_map(onward).any(holds_policies)
}

/// The chain that an expression, or a verdict, leads to.
fn onward(expression: &Value) -> Option<&str> {
    ["jump", "goto"].iter().find_map(|verb| Some(text(expression.get(verb)?, "target")))
}

fn rules<'a>(listing: &'a Value, chain: &str) -> impl Iterator<Item = &'a Value> {
    items(listing, "rule").filter(move |rule| text(rule, "chain") == chain)
}

/// The fate of a network's packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Some of them are accepted: the author of the rules considered them.
    Passes,
    /// All remaining ones are rejected.
    Refused,
}

/// A walk through the chains.
struct Walk<'a> {
    listing: &'a Value,
    network: &'a IpNet,
    /// Whether a rule that is not understood may accept packets of the network.
    doubt: bool,
}

impl Walk<'_> {
    /// The first fate decided by the rules of a chain.
    fn run(&mut self, chain: &str, depth: usize) -> Option<Fate> {
        let listing = self.listing;
        rules(listing, chain).find_map(|rule| self.fate(rule, depth))
    }

    /// What a chain means for those packets that a rule selects.
    fn follow(&mut self, chain: &str, about: About, depth: usize) -> Option<Fate> {
        let depth = depth.checked_sub(1)?;
        let fate = self.run(chain, depth);
        match about {
            About::Everything => fate,
            // If only some packets jump, it is not known whether the target rejects all of ours.
            About::Pods => fate.filter(|fate| *fate == Fate::Passes),
            About::Perhaps => {
                self.doubt |= fate == Some(Fate::Passes);
                None
            }
            About::Other => None,
        }
    }

    fn fate(&mut self, rule: &Value, depth: usize) -> Option<Fate> {
        let expressions = rule.get("expr").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut about = About::Everything;
        for expression in expressions {
            if let Some(condition) = expression.get("match") {
                about = about.and(judge(self.listing, condition, self.network));
            }
            if about == About::Other {
                return None;
            }
            if let Some(target) = onward(expression) {
                return self.follow(target, about, depth);
            }
            if let Some(map) = expression.get("vmap")
                && let Some(fate) = self.mapped(map, about, depth)
            {
                return Some(fate);
            }
            let verdict = |name: &str| expression.get(name).is_some();
            if verdict("accept") {
                self.doubt |= about == About::Perhaps;
                return Some(Fate::Passes).filter(|_| about != About::Perhaps);
            }
            if (verdict("drop") || verdict("reject")) && about == About::Everything {
                return Some(Fate::Refused);
            }
        }
        None
    }

    /// The fate by a map of verdicts: that of the first element which is about new connections, pods' devices, or the network.
    fn mapped(&mut self, map: &Value, about: About, depth: usize) -> Option<Fate> {
        let listing = self.listing;
        let data = map.get("data")?;
        let elements = match data.as_str().and_then(|name| name.strip_prefix('@')) {
            Some(name) => items(listing, "map").find(|map| text(map, "name") == name)?.get("elem")?,
            None => data.get("set")?,
        };
        let pairs = elements.as_array()?.iter().filter_map(|pair| pair.as_array()).filter_map(|pair| pair.first().zip(pair.get(1)));
        for (key, verdict) in pairs {
            let about = match key {
                key if key.get("concat").is_some() => About::Perhaps,
                key if key == "new" => about,
                key if names_pods(key) || holds(key, self.network) => about.and(About::Pods),
                _ => continue,
            };
            let fate = match (verdict.get("accept").is_some(), onward(verdict)) {
                (true, _) if about == About::Perhaps => {
                    self.doubt = true;
                    None
                }
                (true, _) => Some(Fate::Passes),
                // Only some packets go there: whether all of ours are rejected is not known.
                (false, Some(target)) => self.follow(target, about.and(About::Pods), depth),
                (false, None) => None,
            };
            if fate.is_some() {
                return fate;
            }
        }
        None
    }
}

/// Which packets the conditions of a rule select.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// All packets.
    Everything,
    /// Packets of the network, or of flannel's devices.
    Pods,
    /// Some packets of the network, or it is not known which.
    Perhaps,
    /// Other packets: by connection state, port or other addresses.
    Other,
}

impl About {
    fn and(self, other: About) -> About {
        match (self, other) {
            (About::Other, _) | (_, About::Other) => About::Other,
            (About::Perhaps, _) | (_, About::Perhaps) => About::Perhaps,
            (About::Everything, other) => other,
            (about, _) => about,
        }
    }
}

/// Whether pods' packets come and go by a device of this name, or pattern.
pub fn of_pods(device: &str) -> bool {
    device.starts_with("cni") || device.starts_with("flannel")
}

/// Whether a device is one of containers beside Kubernetes, of virtual machines, or the loopback: no packet of a pod uses it.
pub fn of_others(device: &str) -> bool {
    device == "lo" || ["docker", "br-", "virbr", "lxdbr", "lxcbr", "incusbr", "podman"].iter().any(|start| device.starts_with(start))
}

fn names_pods(value: &Value) -> bool {
    value.as_str().is_some_and(of_pods)
}

fn judge(listing: &Value, condition: &Value, network: &IpNet) -> About {
    let (Some(left), Some(right)) = (condition.get("left"), condition.get("right")) else { return About::Perhaps };
    let is_device = |key: &str| matches!(key, "iifname" | "oifname" | "iif" | "oif");
    let key = left.get("meta").map(|meta| text(meta, "key")).unwrap_or_default();
    let state = left.get("ct").is_some_and(|tracked| text(tracked, "key") == "state");
    let is_new = |value: &Value| value == "new";
    let is_positive = match text(condition, "op") {
        "==" | "in" => true,
        "!=" => false,
        _ => return About::Perhaps,
    };
    if state {
        // A list stands for any of its states.
        let new = right.as_array().is_some_and(|states| states.iter().any(is_new)) || any(listing, right, &is_new);
        return if new == is_positive { About::Everything } else { About::Other };
    }
    if is_device(key) {
        return match (any(listing, right, &names_pods), is_positive) {
            (true, true) => About::Pods,
            (true, false) => About::Other,
            // All devices but others' than pods'.
            (false, false) => About::Pods,
            (false, true) if any(listing, right, &|value| value.as_str().is_none_or(|name| !of_others(name))) => About::Perhaps,
            (false, true) => About::Other,
        };
    }
    let family = if network.addr().is_ipv6() { "ipv6" } else { "ipv4" };
    match key {
        "nfproto" => return if (right == family) == is_positive { About::Everything } else { About::Other },
        // Not all of what pods send.
        "l4proto" => return About::Other,
        _ => {}
    }
    let Some(payload) = left.get("payload") else { return About::Perhaps };
    match (text(payload, "protocol"), text(payload, "field")) {
        ("tcp" | "udp" | "sctp" | "dccp" | "icmp" | "icmpv6" | "th", _) | ("ip", "protocol") | ("ip6", "nexthdr") => About::Other,
        (protocol @ ("ip" | "ip6"), "saddr" | "daddr") if (protocol == "ip6") != network.addr().is_ipv6() => About::Other,
        ("ip" | "ip6", "saddr" | "daddr") => {
            let whole = any(listing, right, &|value| holds(value, network));
            match any(listing, right, &|value| may_hold_part(value, network)) {
                true if whole && is_positive => About::Pods,
                false if !is_positive => About::Everything,
                false => About::Other,
                true if whole => About::Other,
                true => About::Perhaps,
            }
        }
        _ => About::Perhaps,
    }
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

/// Whether a value has a part of the network in it, or is not understood.
fn may_hold_part(value: &Value, network: &IpNet) -> bool {
    within(value).is_none_or(|(first, last)| first.is_ipv6() == network.addr().is_ipv6() && first <= network.broadcast() && network.network() <= last)
}

/// The first and the last address of a value.
fn within(value: &Value) -> Option<(IpAddr, IpAddr)> {
    let address = |value: &Value| value.as_str()?.parse::<IpAddr>().ok();
    if let Some([first, last]) = value.get("range").and_then(Value::as_array).map(Vec::as_slice) {
        return address(first).zip(address(last));
    }
    let Some(prefix) = value.get("prefix") else { return address(value).map(|one| (one, one)) };
    let length = prefix.get("len").and_then(Value::as_u64).and_then(|length| u8::try_from(length).ok())?;
    let net = IpNet::new(prefix.get("addr").and_then(address)?, length).ok()?;
    Some((net.network(), net.broadcast()))
}

/// Whether a value contains the whole network.
fn holds(value: &Value, network: &IpNet) -> bool {
    within(value)
        .is_some_and(|(first, last)| first.is_ipv6() == network.addr().is_ipv6() && first <= network.network() && network.broadcast() <= last)
}

fn items<'a>(listing: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    listing.get("nftables").and_then(Value::as_array).into_iter().flatten().filter_map(move |item| item.get(kind))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
