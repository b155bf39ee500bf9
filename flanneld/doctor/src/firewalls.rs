//! What the firewalls' listings mean for pods' packets: text in, facts out.
//!
//! A rule that this reader does not understand gets the benefit of the doubt.

use crate::encapsulation::is_protocol;
use crate::fits::Fits;
use crate::nftables::{Barrier, of_others, of_pods};
use crate::policies::holds_policies;
use crate::surroundings::Surroundings;
use ipnet::IpNet;
use std::collections::BTreeMap;
use types::Encapsulation;

/// Maximum depth to which jumps are followed.
const DEPTH: usize = 8;
/// The mark that kube-proxy sets on packets of Services.
const KUBE_PROXY: &str = "0x4000/0x4000";

/// What firewalld accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewalld {
    /// The networks of ours whose packets it forwards.
    pub networks: Vec<IpNet>,
    /// Whether it lets the tunnel's packets in.
    pub tunnel: bool,
}

/// The firewalls of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewalls {
    /// iptables and ip6tables, each variant that could be listed: packets traverse all of them.
    pub tables: Vec<Table>,
    /// firewalld; `None` if it is not active.
    pub firewalld: Option<Firewalld>,
    /// nftables chains that block pods' packets.
    pub barriers: Vec<Barrier>,
}

/// A rule, and its number in its chain: the first one is 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// Its number.
    pub number: usize,
    /// The rule, as it is saved: `-A FORWARD -j REJECT`.
    pub rule: String,
}

/// One family and variant of iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The network of that family.
    pub network: IpNet,
    /// The command that an operator types.
    pub command: String,
    /// Whether our jump is present.
    pub jump: bool,
    /// Whether the policy of FORWARD is DROP.
    pub policy_drops: bool,
    /// Whether a rule accepts packets of the network: our jump, or an operator's rule.
    pub accepted: bool,
    /// The first rule of FORWARD before that which rejects everything.
    pub refusal: Option<Numbered>,
    /// Whether a rule before the refusal, or the policy, may accept packets of the network: it is not understood.
    pub doubt: bool,
    /// The number of the last rule of FORWARD that jumps to a chain of network policies.
    pub policies: Option<usize>,
    /// Whether Docker's chains are present.
    pub docker: bool,
    /// Whether ufw is active.
    pub ufw: bool,
    /// Whether input that no rule accepts is rejected.
    pub input_refuses: bool,
    /// The first rule of INPUT that rejects packets of the tunnel.
    pub input_refusal: Option<Numbered>,
    /// Whether a rule accepts the tunnel's packets.
    pub tunnel: Fits,
}

impl Table {
    /// A table without rules.
    pub fn empty(network: &IpNet, command: &str) -> Self {
        Self {
            network: *network,
            command: command.to_owned(),
            jump: false,
            policy_drops: false,
            accepted: false,
            refusal: None,
            doubt: false,
            policies: None,
            docker: false,
            ufw: false,
            input_refuses: false,
            input_refusal: None,
            tunnel: Fits::No,
        }
    }

    /// Whether its rules reject packets of the tunnel.
    pub fn is_shut(&self) -> bool {
        self.tunnel == Fits::No && (self.input_refuses || self.input_refusal.is_some())
    }
}

/// The rules of the table `filter`, by chain.
type Chains<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// Parses the output of `iptables-save` (`ip6tables-save`).
pub fn table(saved: &str, network: &IpNet, encapsulation: Option<Encapsulation>, around: &Surroundings, command: &str) -> Table {
    let mut seen = Table::empty(network, command);
    let mut table = "";
    let mut rejects_rest = false;
    let mut chains = Chains::new();
    for line in saved.lines().map(str::trim_end) {
        // With `-c`, a rule starts with its counters.
        let line = line.split_once("] ").filter(|_| line.starts_with('[')).map_or(line, |(_, rule)| rule);
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        if table != "filter" {
            continue;
        }
        seen.policy_drops |= line.starts_with(":FORWARD DROP");
        seen.input_refuses |= line.starts_with(":INPUT DROP");
        seen.docker |= line.starts_with(":DOCKER-USER ") || line.starts_with(":DOCKER ");
        let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' ')) else { continue };
        seen.ufw |= matches!(chain, "INPUT" | "FORWARD") && target(rule).is_some_and(|target| target.starts_with("ufw"));
        rejects_rest |= chain.starts_with("ufw") && chain.ends_with("reject-input") && target(rule) == Some("REJECT");
        chains.entry(chain).or_default().push(rule);
    }
    seen.input_refuses |= rejects_rest;
    forward(&mut seen, &chains);
    let kinds = encapsulation.map(|encapsulation| encapsulation.each(network.into())).unwrap_or_default();
    seen.tunnel = Fits::Yes;
    for kind in kinds {
        let (let_in, refusal) = input(&chains, &Arrival { kind, ipv6: network.addr().is_ipv6(), around });
        seen.tunnel = seen.tunnel.min(let_in);
        seen.input_refusal = seen.input_refusal.or(refusal);
    }
    seen
}

/// What FORWARD does to packets of the network.
fn forward(seen: &mut Table, chains: &Chains<'_>) {
    let network = seen.network;
    let fits = |rule: &str| about(rule, &|name, values| of_network(name, values, &network));
    for (number, rule) in (1..).zip(chains.get("FORWARD").into_iter().flatten()) {
        let target = target(rule);
        if target.is_some_and(holds_policies) {
            seen.policies = Some(number);
        }
        if seen.accepted {
            continue;
        }
        seen.jump |= target == Some("FLANNEL-FWD");
        match grants(chains, rule, &fits, DEPTH) {
            Fits::Yes => seen.accepted = true,
            Fits::Perhaps => seen.doubt |= seen.refusal.is_none(),
            Fits::No => {}
        }
        if seen.refusal.is_none() && !seen.accepted && matches!(target, Some("REJECT" | "DROP")) && conditions(rule).is_empty() {
            seen.refusal = Some(Numbered { number, rule: format!("-A FORWARD {rule}") });
        }
    }
}

/// A packet of the tunnel that arrives.
struct Arrival<'a> {
    kind: Encapsulation,
    ipv6: bool,
    around: &'a Surroundings,
}

/// Whether INPUT accepts a packet of the tunnel, and else the first of its rules that rejects it.
fn input(chains: &Chains<'_>, packet: &Arrival<'_>) -> (Fits, Option<Numbered>) {
    let fits = |rule: &str| about(rule, &|name, values| of_arrival(name, values, packet));
    let mut best = Fits::No;
    for (number, rule) in (1..).zip(chains.get("INPUT").into_iter().flatten()) {
        match grants(chains, rule, &fits, DEPTH) {
            Fits::Yes => return (Fits::Yes, None),
            Fits::Perhaps => best = Fits::Perhaps,
            Fits::No => {}
        }
        if matches!(target(rule), Some("REJECT" | "DROP")) && fits(rule) == Fits::Yes {
            return (best, Some(Numbered { number, rule: format!("-A INPUT {rule}") }));
        }
    }
    (best, None)
}

/// Whether a rule accepts packets, or the chain that it leads to.
fn grants(chains: &Chains<'_>, rule: &str, fits: &dyn Fn(&str) -> Fits, depth: usize) -> Fits {
    let own = fits(rule);
    match target(rule) {
        _ if own == Fits::No => Fits::No,
        Some("ACCEPT" | "FLANNEL-FWD") => own,
        Some(chain) if depth > 0 => {
            let rules = chains.get(chain).into_iter().flatten();
            rules.map(|rule| grants(chains, rule, fits, depth - 1)).fold(Fits::No, Fits::max).min(own)
        }
        _ => Fits::No,
    }
}

/// The conditions of a rule: the words before its target, without the comment.
fn conditions(rule: &str) -> Vec<&str> {
    let before = rule.split("-j ").next().unwrap_or_default();
    let before = before.split("-g ").next().unwrap_or_default();
    match before.split_once("-m comment --comment ") {
        Some((first, rest)) => {
            // A comment of several words is quoted.
            let rest = match rest.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').map_or("", |(_, rest)| rest),
                None => rest.split_once(' ').map_or("", |(_, rest)| rest),
            };
            first.split_whitespace().chain(rest.split_whitespace()).collect()
        }
        None => before.split_whitespace().collect(),
    }
}

fn target(rule: &str) -> Option<&str> {
    let (_, after) = rule.rsplit_once("-j ").or_else(|| rule.rsplit_once("-g "))?;
    after.split_whitespace().next()
}

/// Whether packets fulfil the conditions of a rule. `judge` gets each option with its values.
fn about(rule: &str, judge: &dyn Fn(&str, &[&str]) -> Fits) -> Fits {
    let words = conditions(rule);
    let mut fits = Fits::Yes;
    let mut negated = false;
    let mut rest = words.as_slice();
    while let Some((name, after)) = rest.split_first() {
        let values = after.iter().take_while(|word| !word.starts_with('-') && **word != "!").count();
        let (values, left) = after.split_at(values);
        rest = left;
        if *name == "!" {
            negated = true;
            continue;
        }
        let found = judge(name, values);
        fits = fits.min(match (std::mem::take(&mut negated), *name) {
            (false, _) => found,
            // All devices but one that is not known to be pods'.
            (true, "-i" | "-o") => Fits::of(found != Fits::Yes),
            (true, _) => found.inverted(),
        });
    }
    fits
}

/// Conditions that are about all packets alike.
fn common(name: &str, values: &[&str]) -> Option<Fits> {
    let first = values.first().copied().unwrap_or_default();
    match name {
        "-m" => Some(Fits::Yes),
        "--ctstate" | "--state" => Some(Fits::of(first.split(',').any(|state| state == "NEW"))),
        _ => None,
    }
}

fn of_network(name: &str, values: &[&str], network: &IpNet) -> Fits {
    let first = values.first().copied().unwrap_or_default();
    match name {
        "-s" | "-d" => match first.parse::<IpNet>() {
            Ok(net) if net.contains(network) => Fits::Yes,
            Ok(net) if !subnet_lease::nets_overlap(&net, network) => Fits::No,
            _ => Fits::Perhaps,
        },
        // A rule that names pods' devices is about pods.
        "-i" | "-o" if of_pods(first) => Fits::Yes,
        "-i" | "-o" if of_others(first) => Fits::No,
        // Not all of what pods send.
        "-p" => Fits::No,
        "--mark" if first == KUBE_PROXY => Fits::No,
        _ => common(name, values).unwrap_or(Fits::Perhaps),
    }
}

fn of_arrival(name: &str, values: &[&str], packet: &Arrival<'_>) -> Fits {
    let first = values.first().copied().unwrap_or_default();
    match (name, packet.kind.port()) {
        ("-p", _) => Fits::of(is_protocol(packet.kind, first)),
        ("--dport" | "--dports", Some(port)) => Fits::of(first.split(',').any(|ports| within(ports, port))),
        ("--dport" | "--dports" | "--sport" | "--sports" | "--icmp-type" | "--icmpv6-type", _) => Fits::No,
        ("-i", _) => match packet.around.underlay.as_deref() {
            _ if first == "lo" => Fits::No,
            Some(underlay) => Fits::of(first.strip_suffix('+').map_or(first == underlay, |start| underlay.starts_with(start))),
            None => Fits::Perhaps,
        },
        ("-s", _) => match first.parse::<IpNet>() {
            Ok(net) => packet.around.comes_from(&net, packet.ipv6),
            Err(_) => Fits::Perhaps,
        },
        _ => common(name, values).unwrap_or(Fits::Perhaps),
    }
}

/// Whether a port is that one, or in that range: `8472`, `8000:9000`.
fn within(ports: &str, port: u16) -> bool {
    let (first, last) = ports.split_once(':').unwrap_or((ports, ports));
    first.parse().is_ok_and(|first: u16| first <= port) && last.parse().is_ok_and(|last: u16| port <= last)
}
