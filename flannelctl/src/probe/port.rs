//! `flannelctl probe HOST:PORT`: tests whether a port accepts TCP connections from this node and from the address of its pods' bridge.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ipnet::IpNet;
use netlink::Client;
use netstate::host::lookup::{Fate, Hop, look_up_fate};
use node_api::probe::{Next, Outcome, PROBE, Probe, Step, StepName, Target};
use run_dir::subnet_env;
use socket2::{Domain, Protocol, Socket, Type};

use crate::ask;

/// For a connection.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A TCP port of a host, as the operator typed both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    host: String,
    port: u16,
}

/// `name:443`, `10.96.0.1:443` or `[fd00::1]:443`. `None` for the name of a peer or the address of a pod.
pub(super) fn parse(target: &str) -> Option<Port> {
    let (host, port) = target.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inside) => inside.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then(|| Port { host: host.to_owned(), port })
}

/// Traces the path step by step, and opens a TCP connection. `told` gets each step as soon as it is complete.
pub(super) fn probe(port: &Port, subnet_file: &Path, mut told: impl FnMut(&Step)) -> Result<Probe> {
    let node = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default();
    let mut steps = Vec::new();
    let mut tell = |step: Step| {
        told(&step);
        steps.push(step);
    };
    let address = resolved(port, &mut tell);
    // The daemon knows the path to pods of other nodes.
    let path = address.and_then(|to| path(subnet_file, to.ip()));
    for step in path.iter().flat_map(|path| &path.steps) {
        tell(step.clone());
    }
    if let Some(to) = address {
        if path.is_none() {
            tell(route(to)?);
        }
        let here = connect(to, None);
        let is_open = here.is_ok();
        tell(connected(StepName::Connection, to, here));
        let bridge = bridge(subnet_file, to.ip());
        tell(as_pod(to, bridge, is_open));
    }
    let ends_at = steps.iter().find(|step| step.outcome == Outcome::Failed).map(|step| step.name);
    let (sentence, next) = match path {
        Some(path) if path.ends_at.is_some() => (path.sentence, path.next),
        _ => end(port, address, ends_at),
    };
    Ok(Probe {
        schema: PROBE.to_owned(),
        at: jiff::Timestamp::now(),
        node,
        target: Target {
            node: Some(format!("{}, TCP port {}", port.host, port.port)),
            address: address.map(|to| to.ip()),
            ..Target::default()
        },
        state: None,
        steps,
        ends_at,
        sentence,
        next,
    })
}

/// The path to a pod of the network, as the daemon traces it.
fn path(subnet_file: &Path, to: IpAddr) -> Option<Probe> {
    let networks = subnet_env::read(subnet_file).networks()?;
    let is_pod = networks.nets().any(|net| net.contains(&to));
    let path = is_pod.then(|| ask::probe(subnet_file, &to.to_string()));
    path.and_then(Result::ok)
}

fn step(name: StepName, outcome: Outcome, text: impl Into<String>) -> Step {
    Step { name, outcome, text: text.into(), questions: Vec::new() }
}

/// If the host has several addresses, the first, which most programs use.
fn resolved(port: &Port, tell: &mut impl FnMut(Step)) -> Option<SocketAddr> {
    if let Ok(address) = port.host.parse::<IpAddr>() {
        return Some(SocketAddr::new(address, port.port));
    }
    let found: Result<Vec<SocketAddr>, _> =
        (port.host.as_str(), port.port).to_socket_addrs().map(Iterator::collect);
    let (outcome, text, first) = match found {
        Ok(all) if !all.is_empty() => {
            let mut addresses: Vec<String> = all.iter().map(|to| to.ip().to_string()).collect();
            addresses.dedup();
            (Outcome::Ok, addresses.join(", "), all.first().copied())
        }
        Ok(_) => (Outcome::Failed, "the host name has no address".to_owned(), None),
        Err(error) => (Outcome::Failed, format!("this node's resolver: {error}"), None),
    };
    tell(step(StepName::Name, outcome, text));
    first
}

/// The route by which the kernel sends the first packet.
fn route(to: SocketAddr) -> Result<Step> {
    let fate = Client::open().and_then(|mut client| look_up_fate(&mut client, to.ip()));
    let fate = fate.with_context(|| format!("cannot look up the route to {}", to.ip()))?;
    let way = |hop: &Hop| {
        let via = hop.route.via.map(|via| format!(" via {via}")).unwrap_or_default();
        format!("{}{via} dev {}", hop.route.net, hop.dev)
    };
    Ok(match fate {
        Fate::Sent(hop) => step(StepName::Route, Outcome::Ok, way(&hop)),
        Fate::Dropped(Some(hop)) => step(
            StepName::Route,
            Outcome::Failed,
            format!("a route drops the packet: {} in table {}", hop.route.net, hop.route.table),
        ),
        Fate::Dropped(None) => step(StepName::Route, Outcome::Failed, "a route drops the packet"),
        Fate::NoRoute => step(StepName::Route, Outcome::Failed, "no route leads to the address"),
    })
}

/// Connects from the address `from`, or else from the one that the kernel selects. The time is that of the
/// handshake.
fn connect(to: SocketAddr, from: Option<IpAddr>) -> io::Result<Duration> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(from) = from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    let begun = Instant::now();
    socket.connect_timeout(&to.into(), TIMEOUT)?;
    Ok(begun.elapsed())
}

fn connected(name: StepName, to: SocketAddr, outcome: io::Result<Duration>) -> Step {
    match outcome {
        Ok(time) => step(
            name,
            Outcome::Ok,
            format!("{to} accepts the connection after {:.1} ms", time.as_secs_f64() * 1000.0),
        ),
        Err(error) => step(name, Outcome::Failed, refusal(to, &error)),
    }
}

fn refusal(to: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => format!("{to} refuses the connection"),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            format!("no response from {to} within {} s", TIMEOUT.as_secs())
        }
        _ => format!("{to}: {error}"),
    }
}

/// The address of the pods' bridge in the family of `to`.
fn bridge(subnet_file: &Path, to: IpAddr) -> Option<IpAddr> {
    let env = subnet_env::read(subnet_file);
    let subnet: IpNet = match to {
        IpAddr::V4(_) => env.subnet?.into(),
        IpAddr::V6(_) => env.v6_subnet?.into(),
    };
    subnet.hosts().next()
}

/// Connects from the address of the pods' bridge. To a target outside of flannel's network, the host
/// masquerades the connection like a pod's.
fn as_pod(to: SocketAddr, bridge: Option<IpAddr>, is_open: bool) -> Step {
    let Some(bridge) = bridge else {
        return step(
            StepName::PodConnection,
            Outcome::NotAsked,
            "not tried: no subnet.env names this node's subnet",
        );
    };
    match connect(to, Some(bridge)) {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => step(
            StepName::PodConnection,
            Outcome::NotAsked,
            format!("not tried: no device has the address {bridge} before the first pod starts"),
        ),
        // A port that is closed for this node proves nothing about pods.
        Err(_) if !is_open => {
            step(StepName::PodConnection, Outcome::NotAsked, format!("also fails from {bridge}"))
        }
        outcome => {
            let shown = connected(StepName::PodConnection, to, outcome);
            Step { text: format!("from {bridge}: {}", shown.text), ..shown }
        }
    }
}

/// A sentence about where the path ends, and the commands to run next.
fn end(port: &Port, address: Option<SocketAddr>, at: Option<StepName>) -> (String, Vec<Next>) {
    let here = |command: String| Next { on: None, command };
    let kubectl = |command: &str| Next {
        on: Some("a node with kubectl".to_owned()),
        command: command.to_owned(),
    };
    let to = address.map(|to| to.ip().to_string()).unwrap_or_default();
    match at {
        None => (
            format!("{}:{} accepts connections.", port.host, port.port),
            Vec::new(),
        ),
        Some(StepName::Name) => (
            "The path breaks at the name: this node's resolver does not know it. Only the cluster's DNS, which pods use, knows names of Services.".to_owned(),
            vec![
                here("cat /etc/resolv.conf".to_owned()),
                kubectl("kubectl get service --all-namespaces"),
            ],
        ),
        Some(StepName::Route) => (
            "The path breaks here: the kernel does not send the packet.".to_owned(),
            vec![
                here(format!("ip route get {to}")),
                here("flannelctl doctor".to_owned()),
            ],
        ),
        Some(StepName::PodConnection) => (
            "The path breaks here for pods: this node reaches the port with its own address, but not with an address of pods. Either packets leave without masquerading, so replies are not routed back, or a rule drops the packets.".to_owned(),
            vec![
                here("flannelctl doctor".to_owned()),
                here(format!("tcpdump -c 5 -ni any host {to} and tcp port {}", port.port)),
            ],
        ),
        Some(_) => (
            "The path breaks at the port: nothing listens there, a Service has no ready endpoint, or a firewall drops the packets.".to_owned(),
            vec![
                here(format!("tcpdump -c 5 -ni any host {to} and tcp port {}", port.port)),
                kubectl("kubectl get service,endpointslices --all-namespaces -o wide"),
            ],
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn only_hosts_with_a_port_are_ports() {
        let port = |host: &str, port| Some(Port { host: host.to_owned(), port });
        for (target, want) in [
            ("example.org:443", port("example.org", 443)),
            ("10.96.0.10:53", port("10.96.0.10", 53)),
            ("[fd00::1]:80", port("fd00::1", 80)),
            ("node-2", None),
            ("10.244.3.7", None),
            ("fd00:10:2::7", None),
            ("fd00:10:2::/64", None),
            ("host:0", None),
            ("host:70000", None),
            (":80", None),
            ("[fd00::1:80", None),
        ] {
            assert_eq!(parse(target), want, "{target}");
        }
    }

    fn tried(port: &Port, env: &str) -> Probe {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("subnet.env");
        std::fs::write(&file, env).unwrap();
        let mut told = Vec::new();
        let probe = probe(port, &file, |step| told.push(step.clone())).unwrap();
        assert_eq!(told, probe.steps, "flannelctl reports each step");
        probe
    }

    #[test]
    fn port_is_open_or_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port =
            Port { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
        let outcomes = |probe: &Probe| -> Vec<(StepName, Outcome)> {
            let of = |step: &Step| (step.name, step.outcome);
            probe.steps.iter().map(of).collect()
        };
        // All addresses of 127.0.0.0/8 belong to this host.
        let env = "FLANNEL_NETWORK=127.5.0.0/16\nFLANNEL_SUBNET=127.5.1.1/24\n";
        let open = tried(&port, env);
        assert_eq!(
            outcomes(&open),
            [
                (StepName::Route, Outcome::Ok),
                (StepName::Connection, Outcome::Ok),
                (StepName::PodConnection, Outcome::Ok)
            ]
        );
        assert!(open.ends_at.is_none() && open.next.is_empty());
        // Binds the port without a listener. A dropped listener does not suffice, because a process that was just forked may keep it open.
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any_port: SocketAddr = "127.0.0.1:0".parse().unwrap();
        held.bind(&any_port.into()).unwrap();
        let port = Port { port: held.local_addr().unwrap().as_socket().unwrap().port(), ..port };
        let closed = tried(&port, "");
        assert_eq!(
            outcomes(&closed)[1..],
            [(StepName::Connection, Outcome::Failed), (StepName::PodConnection, Outcome::NotAsked)]
        );
        assert_eq!(closed.ends_at, Some(StepName::Connection));
        assert!(closed.steps[1].text.contains("refuses"), "{closed:?}");
    }

    #[test]
    fn unknown_name_ends_it() {
        let port = Port { host: "no-such-host.invalid".to_owned(), port: 80 };
        let probe = tried(&port, "");
        assert_eq!(probe.ends_at, Some(StepName::Name));
        assert_eq!(probe.steps.len(), 1);
    }
}
