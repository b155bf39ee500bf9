//! What the firewalls' listings mean for pods' packets: text in, facts out.

use crate::carrier::{Carrier, Kind, kinds};
use crate::nftables::{Barrier, of_pods};
use ipnet::IpNet;

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
    /// The first rule before that which rejects everything.
    pub refusal: Option<String>,
    /// Whether Docker's chains are present.
    pub docker: bool,
    /// Whether ufw is active.
    pub ufw: bool,
    /// Whether input that no rule accepts is rejected.
    pub input_refuses: bool,
    /// Whether ufw accepts the tunnel's packets.
    pub tunnel_open: bool,
}

/// Parses the output of `iptables-save` (`ip6tables-save`).
pub fn table(saved: &str, network: &IpNet, carrier: Option<&Carrier>, command: &str) -> Table {
    let mut seen = Table {
        network: *network,
        command: command.to_owned(),
        jump: false,
        policy_drops: false,
        accepted: false,
        refusal: None,
        docker: false,
        ufw: false,
        input_refuses: false,
        tunnel_open: false,
    };
    // What is not let in yet.
    let mut shut = carrier.map(|carrier| kinds(carrier, network.addr().is_ipv6())).unwrap_or_default();
    let mut table = "";
    let mut input_drops = false;
    let mut rejects_rest = false;
    // With `-c`, a rule starts with its counters.
    let bare = |line: &str| line.split_once("] ").filter(|_| line.starts_with('[')).map_or_else(|| line.to_owned(), |(_, rule)| rule.to_owned());
    let lines: Vec<String> = saved.lines().map(|line| bare(line.trim_end())).collect();
    let rules = || lines.iter().map(String::as_str);
    let user_accepts = rules().filter_map(|line| line.strip_prefix("-A DOCKER-USER ")).any(|rule| accepts(rule, network));
    for line in rules() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        if table != "filter" {
            continue;
        }
        seen.policy_drops |= line.starts_with(":FORWARD DROP");
        input_drops |= line.starts_with(":INPUT DROP");
        seen.docker |= line.starts_with(":DOCKER-USER ") || line.starts_with(":DOCKER ");
        let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' ')) else { continue };
        let target = target(rule);
        let own = chain.starts_with("ufw");
        seen.ufw |= matches!(chain, "INPUT" | "FORWARD") && target.is_some_and(|target| target.starts_with("ufw"));
        rejects_rest |= own && chain.ends_with("reject-input") && target == Some("REJECT");
        // A rule that accepts everything from a source also accepts the tunnel.
        // In ufw's own chains, or before them: what flannel's remedies insert stands in INPUT.
        let asked = own && chain.ends_with("-input") || chain == "INPUT";
        if asked && target == Some("ACCEPT") {
            shut.retain(|kind| !lets_in(rule, *kind));
        }
        if chain != "FORWARD" || seen.accepted {
            continue;
        }
        seen.jump |= target == Some("FLANNEL-FWD");
        seen.accepted = target == Some("FLANNEL-FWD") || accepts(rule, network) || target == Some("DOCKER-USER") && user_accepts;
        if seen.refusal.is_none() && !seen.accepted && matches!(target, Some("REJECT" | "DROP")) && conditions(rule).is_empty() {
            seen.refusal = Some(line.to_owned());
        }
    }
    seen.input_refuses = input_drops || rejects_rest;
    seen.tunnel_open = shut.is_empty();
    seen
}

/// The conditions of a rule: the words before its target, without the comment.
fn conditions(rule: &str) -> Vec<&str> {
    let before = rule.split("-j ").next().unwrap_or_default();
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
    let (_, after) = rule.rsplit_once("-j ")?;
    after.split_whitespace().next()
}

/// Whether a rule accepts the network's packets without further conditions. Who names pods' devices, or all but another one, thought of them.
fn accepts(rule: &str, network: &IpNet) -> bool {
    let conditions = conditions(rule);
    let named = match conditions.as_slice() {
        [] => true,
        ["-s" | "-d", net] => net.parse::<IpNet>().is_ok_and(|net| net.contains(network)),
        ["-i" | "-o", device] => of_pods(device),
        ["!", "-i" | "-o", device] => !of_pods(device),
        _ => false,
    };
    named && target(rule) == Some("ACCEPT")
}

fn lets_in(rule: &str, kind: Kind) -> bool {
    let words = conditions(rule);
    let after = |word: &str| words.iter().position(|known| *known == word).and_then(|place| words.get(place + 1)).copied();
    match (after("--dport"), after("--dports"), after("-p")) {
        (Some(ports), ..) | (None, Some(ports), _) => {
            let Kind::Udp(port) = kind else { return false };
            ports.split(',').any(|ports| within(ports, port))
        }
        (None, None, None) => after("-s").is_some() || after("-i").is_some_and(|name| name != "lo"),
        (None, None, Some(protocol)) => kind == Kind::Ipip && kind.is_protocol(protocol),
    }
}

/// Whether a port is that one, or in that range: `8472`, `8000:9000`.
fn within(ports: &str, port: u16) -> bool {
    let (first, last) = ports.split_once(':').unwrap_or((ports, ports));
    first.parse().is_ok_and(|first: u16| first <= port) && last.parse().is_ok_and(|last: u16| port <= last)
}
