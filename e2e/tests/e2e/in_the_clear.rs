//! Tests the change of a cluster to wireguard, node by node, with flannel-rs' routes or Go flannel's
//! routes. The tests capture frames on the nodes' uplinks, and check when a frame contains an unencrypted pod
//! packet.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use lab::{
    Bed, Capture, Flanneld, Frame, Host, Lab, Mesh, PingMatrix, PingOptions, Pod, ProbeOptions,
    holds, until_ok,
};
use serde_json::json;

use crate::healing::scenarios;
use crate::wireguard_keys::{Keys, key_file};

/// Interval of the probes from each pod to each other pod.
const OFTEN: Duration = Duration::from_millis(100);
/// Number of nodes at the start. flanneld recognises a mass deletion only if more than three leases vanish. Another node joins later.
const NODES: u8 = 5;

scenarios! { change;
    change_from_direct_routing_sends_nothing_in_the_clear => (r#"{"Type":"vxlan","DirectRouting":true}"#, "userspace", OFTEN),
    change_from_host_gw_sends_nothing_in_the_clear => (r#"{"Type":"host-gw"}"#, "userspace", OFTEN),
}

/// Name, addresses and start time of a node, for the analysis of captured frames.
struct Node {
    name: String,
    mac: Vec<u8>,
    /// Addresses of the node's pod, as bytes.
    pod: Vec<Vec<u8>>,
    /// Time at which the node became ready with wireguard.
    ready: SystemTime,
}

impl Node {
    fn of(host: &Host, pod: &Pod) -> Result<Node> {
        let text = host.netns().link("enp0s8")?.context("no uplink")?.address;
        let mac = text
            .split(':')
            .filter_map(|byte| u8::from_str_radix(byte, 16).ok())
            .collect();
        let bytes = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        Ok(Node {
            name: host.name().to_owned(),
            mac,
            pod: pod.addresses().into_iter().map(bytes).collect(),
            ready: SystemTime::now(),
        })
    }
}

/// Changes five nodes one by one to wireguard while pods exchange packets. The earlier backend does not encapsulate packets.
/// Nodes have flannel-rs' routes or Go flannel's routes. Some of Go flannel's routes lead to a subnet that another node leases at the end.
/// Once two nodes run wireguard, no uplink carries an unencrypted packet between their pods. Once a node runs wireguard, its uplink
/// carries no unencrypted pod packet from the node.
pub(crate) fn change((from, implementation, interval): (&str, &str, Duration)) -> Result<()> {
    let net_conf = |backend: &str| {
        format!(
            r#"{{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48","Backend":{backend}}}"#
        )
    };
    Lab::run("in the clear", |lab| {
        let lan = lab.switch("lan")?;
        let mut hosts = lab.hosts(&lan, NODES + 1)?;
        let newcomer = hosts.pop().context("no host")?;
        let mut bed = Bed::on(lab, &lan, hosts, &net_conf(from), |_, options| options)?;
        // A subnet that Go flannel has routes to, and that no node leases until the last one joins.
        let leased: Vec<String> = bed
            .pods
            .iter()
            .flat_map(Pod::addresses)
            .map(|ip| ip.to_string())
            .collect();
        let is_free = |n: &u8| {
            !leased.iter().any(|ip| {
                ip.starts_with(&format!("10.5.{n}.")) || ip.starts_with(&format!("fd00:5:0:{n}::"))
            })
        };
        let n = (70..90).find(is_free).context("no free subnet")?;
        let late = [format!("10.5.{n}.0/24"), format!("fd00:5:0:{n}::/64")];
        // An operator's route to subnets without a node. If it contained a node's subnet, packets to that node would leave by it in the clear,
        // as the operator configured.
        let holds_no_node = |first: &u8| (*first..first + 4).all(|n| is_free(&n));
        let first = (100..200)
            .step_by(4)
            .find(holds_no_node)
            .context("no free subnets")?;
        let of_operator = format!("10.5.{first}.0/22");
        // The switch has the other end of each uplink, so it sees all frames.
        let capture = Capture::start(bed.lan.netns())?;
        let began = SystemTime::now();
        let probes = ProbeOptions::default().interval(interval);
        let meshes = [
            Mesh::start(&bed.pods, &probes)?,
            Mesh::start(&bed.pods, &probes.v6())?,
        ];
        meshes
            .iter()
            .try_for_each(|mesh| mesh.wait_flowing().map(drop))?;

        bed.store.configure(&net_conf(&format!(
            r#"{{"Type":"wireguard","Implementation":"{implementation}"}}"#
        )))?;
        let mut nodes = Vec::new();
        for number in 0..bed.hosts.len() {
            bed.daemons[number].terminate()?;
            let host = &bed.hosts[number];
            let gateway = &bed.hosts[(number + 1) % bed.hosts.len()];
            add_foreign_routes(host, gateway, number % 2 == 0, &late, &of_operator)?;
            bed.daemons[number] = host.flanneld(&bed.options[number].clone())?;
            nodes.push(Node::of(host, &bed.pods[number])?);
            if number > 0 {
                reach(&bed.pods[..=number])?;
            }
        }
        for mesh in meshes {
            mesh.finish()?;
        }

        nodes.push(join_at(&mut bed, newcomer, n)?);
        let reached = reach(&bed.pods);

        judge(&capture.finish_timed()?, began, &nodes)?;
        reached?;
        for host in bed.hosts.iter().take(NODES.into()) {
            only_the_operators_route_stays(host, &late, &of_operator)?;
        }
        bed.require_no_errors()
    })
}

/// Adds routes to the subnet of a node that joins later, and an operator's route.
/// If `as_go` is true, the function also changes flannel-rs' routes into Go flannel's routes, which have the protocol `boot`.
fn add_foreign_routes(
    host: &Host,
    gateway: &Host,
    as_go: bool,
    late: &[String; 2],
    of_operator: &str,
) -> Result<()> {
    let of_go = if as_go {
        "for f in -4 -6; do ip $f route show proto 241 | grep via | while read -r r; do ip $f route replace ${r% proto 241*} proto boot; done; done"
    } else {
        "true"
    };
    let (v4, v6) = (gateway.v4()?, gateway.v6()?);
    let to_late = format!(
        "ip route add {} via {v4} dev enp0s8; ip -6 route add {} via {v6} dev enp0s8",
        late[0], late[1]
    );
    host.netns()
        .sh(&format!(
            "{of_go}; {to_late}; ip route add {of_operator} via {v4} dev enp0s8"
        ))
        .map(drop)
}

/// Adds a node with the subnet to which Go flannel's routes lead.
fn join_at(bed: &mut Bed, newcomer: Host, n: u8) -> Result<Node> {
    let keys = Keys::new();
    std::fs::write(key_file(&newcomer)?, keys.private_text())?;
    let data = |port| json!({ "PublicKey": keys.public_text(), "Port": port });
    let lease = json!({
        "PublicIP": newcomer.v4()?, "PublicIPv6": newcomer.v6()?, "BackendType": "wireguard",
        "BackendData": data(51820), "BackendV6Data": data(51821),
    });
    std::fs::write(
        bed.leases
            .join(format!("subnets/10.5.{n}.0-24&fd00:5:0:{n}::-64")),
        lease.to_string(),
    )?;
    let last: Flanneld = newcomer.flanneld(&bed.options[0].clone())?;
    let subnet = last.subnet_env()?;
    ensure!(
        subnet.subnet.map(|net| net.trunc().to_string()) == Some(format!("10.5.{n}.0/24")),
        "{subnet:?}"
    );
    let pod = newcomer.pod("p1", &subnet)?;
    let node = Node::of(&newcomer, &pod)?;
    bed.hosts.push(newcomer);
    bed.pods.push(pod);
    bed.daemons.push(last);
    Ok(node)
}

fn only_the_operators_route_stays(
    host: &Host,
    late: &[String; 2],
    of_operator: &str,
) -> Result<()> {
    let routes = host.netns().sh("ip route; ip -6 route")?;
    ensure!(
        late.iter().all(|net| !routes.contains(net)),
        "{}: {routes}",
        host.name()
    );
    ensure!(
        routes.contains(&format!("{of_operator} via")),
        "{}: an operator's route is gone: {routes}",
        host.name()
    );
    Ok(())
}

/// Waits until all of `pods` reach each other in both address families.
fn reach(pods: &[Pod]) -> Result<()> {
    for family in 0..2 {
        let targets: Vec<IpAddr> = pods
            .iter()
            .filter_map(|pod| pod.addresses().get(family).copied())
            .collect();
        until_ok("pods reach each other", || {
            PingMatrix::to(pods, &targets, &PingOptions::default())?.require_complete()
        })?;
    }
    Ok(())
}

/// Returns whether a frame is a WireGuard data message to either address family's tunnel port, and longer than a keepalive.
fn is_sealed(frame: &[u8]) -> bool {
    let ip = match frame.get(12..14) {
        Some([0x08, 0x00]) if frame.get(23) == Some(&17) => 20,
        Some([0x86, 0xdd]) if frame.get(20) == Some(&17) => 40,
        _ => return false,
    };
    let ports = [51820_u16, 51821].map(u16::to_be_bytes);
    let udp = 14 + ip;
    let to = frame.get(udp + 2..udp + 4);
    ports.iter().any(|port| to == Some(port))
        && frame.get(udp + 8) == Some(&4)
        && frame.len() > udp + 8 + 32
}

/// Checks all frames. Prints for each pair of nodes the times of the last unencrypted packet and of the first encrypted packet.
fn judge(frames: &[Frame], began: SystemTime, nodes: &[Node]) -> Result<()> {
    let since = |at: SystemTime| at.duration_since(began).unwrap_or_default();
    let mut wrong = Vec::new();
    let mut clear = vec![None; nodes.len() * nodes.len()];
    let mut sealed = clear.clone();
    for Frame { at, bytes } in frames {
        let (Some(to), Some(from), Some(rest)) =
            (bytes.get(..6), bytes.get(6..12), bytes.get(12..))
        else {
            continue;
        };
        let place = |mac: &[u8]| nodes.iter().position(|node| node.mac == mac);
        if is_sealed(bytes) {
            if let (Some(from), Some(to)) = (place(from), place(to)) {
                sealed[from.min(to) * nodes.len() + from.max(to)].get_or_insert(*at);
            }
            continue;
        }
        let shown: Vec<usize> = (0..nodes.len())
            .filter(|node| nodes[*node].pod.iter().any(|ip| holds(rest, ip)))
            .collect();
        let [first, second] = shown[..] else { continue };
        clear[first * nodes.len() + second] = Some(*at);
        let both = nodes[first].ready.max(nodes[second].ready);
        let sender = place(from).filter(|sender| *at >= nodes[*sender].ready);
        if *at >= both || sender.is_some() {
            wrong.push(format!(
                "{} and {} at {:.3?} from {from:02x?}",
                nodes[first].name,
                nodes[second].name,
                since(*at)
            ));
        }
    }
    eprintln!("{} frames; times since the capture began", frames.len());
    for (number, second) in nodes.iter().enumerate() {
        for (before, first) in nodes.iter().enumerate().take(number) {
            let pair = before * nodes.len() + number;
            let both = since(first.ready.max(second.ready));
            let (last, sealed) = (clear[pair].map(since), sealed[pair].map(since));
            eprintln!(
                "{} and {}: last in the clear {last:.3?}, first sealed {sealed:.3?}, both ready {both:.3?}",
                first.name, second.name
            );
            ensure!(
                sealed.is_some(),
                "{} and {}: nothing sealed was seen",
                first.name,
                second.name
            );
        }
    }
    ensure!(
        clear.iter().any(Option::is_some),
        "the capture sees nothing of the pods, not even before the change"
    );
    ensure!(
        wrong.is_empty(),
        "{} packets of pods in the clear; the first: {:#?}",
        wrong.len(),
        wrong.iter().take(10).collect::<Vec<_>>()
    );
    Ok(())
}
