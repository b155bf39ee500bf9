//! A cluster changes to wireguard, node by node, with flannel-rs' routes or Go flannel's. Captured frames on the nodes' uplinks show when one
//! contains an unencrypted pod packet.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use lab::{
    Capture, Frame, Mesh, Node, PingMatrix, PingOptions, Pod, ProbeOptions, Scene,
    frame_contains_bytes, until_ok,
};
use serde_json::json;

use crate::healing::scenarios;
use crate::wireguard::keys::{Keys, daemon_key_path_with_folder};

/// Between probes from each pod to each other pod.
const OFTEN: Duration = Duration::from_millis(100);
/// At the start; another node joins later. flanneld recognises a mass deletion only if more than three leases vanish.
const NODES: usize = 5;
/// Of the first nodes' subnets.
const RANGE: &str = r#""SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","IPv6SubnetMin":"fd00:5:0:100::","IPv6SubnetMax":"fd00:5:0:199::","#;
/// Subnets that Go flannel has routes to, and that no node leases until the last one joins.
const LATE: [&str; 2] = ["10.5.7.0/24", "fd00:5:0:7::/64"];
/// An operator's route to subnets without a node. If it contained a node's subnet, packets to it would leave in the clear, as the operator
/// configured.
const OF_OPERATOR: &str = "10.5.200.0/22";

scenarios! { require_encrypted_change_to_wireguard;
    change_from_direct_routing_sends_nothing_in_the_clear => (r#"{"Type":"vxlan","DirectRouting":true}"#, "userspace", OFTEN),
    change_from_host_gw_sends_nothing_in_the_clear => (r#"{"Type":"host-gw"}"#, "userspace", OFTEN),
}

/// In the analysis of captured frames.
struct Seen {
    name: String,
    mac: Vec<u8>,
    /// The addresses of the pod, as bytes.
    pod: Vec<Vec<u8>>,
    /// When the node became ready with wireguard.
    ready: SystemTime,
}

impl Seen {
    fn record_ready_node(node: &Node) -> Result<Seen> {
        let text = node.netns().link("enp0s8")?.context("no uplink")?.address;
        let bytes = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        Ok(Seen {
            name: node.name().to_owned(),
            mac: text.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect(),
            pod: node.pods[0].addresses().into_iter().map(bytes).collect(),
            ready: SystemTime::now(),
        })
    }
}

/// Five nodes change one by one to wireguard while pods exchange packets. The earlier backend does not encapsulate packets. Some of Go flannel's
/// routes lead to a subnet that another node leases at the end. Once two nodes run wireguard, no uplink carries an unencrypted packet between their
/// pods. Once a node runs wireguard, its uplink carries no unencrypted pod packet from it.
pub(crate) fn require_encrypted_change_to_wireguard(
    (from, implementation, interval): (&str, &str, Duration),
) -> Result<()> {
    let conf = |range: &str, backend: &str| {
        format!(
            r#"{{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48",{range}"Backend":{backend}}}"#
        )
    };
    let scene =
        Scene::with_title("in the clear").nodes(6).net(&conf(RANGE, from)).without_daemons();
    scene.run(|s| {
        for node in &mut s.nodes[..NODES] {
            node.start_daemon()?;
            node.create_pod("p1")?;
        }
        let pods: Vec<Pod> = s.pods().into_iter().cloned().collect();
        wait_until_pods_reach_pods(&pods)?;
        // The switch has the other end of each uplink, so it sees all frames.
        let capture = Capture::start(s.lan.netns())?;
        let probes = ProbeOptions::default().interval(interval);
        let meshes = [Mesh::start(&pods, &probes)?, Mesh::start(&pods, &probes.v6())?];
        meshes.iter().try_for_each(|mesh| mesh.wait_flowing().map(drop))?;

        s.store.configure(&conf(
            "",
            &format!(r#"{{"Type":"wireguard","Implementation":"{implementation}"}}"#),
        ))?;
        let mut nodes = Vec::new();
        for number in 0..NODES {
            s[number].stop_daemon()?;
            add_foreign_routes(&s[number], &s[(number + 1) % NODES], number % 2 == 0)?;
            s[number].start_daemon()?;
            nodes.push(Seen::record_ready_node(&s[number])?);
            if number > 0 {
                wait_until_pods_reach_pods(&pods[..=number])?;
            }
        }
        meshes.into_iter().try_for_each(|mesh| mesh.finish().map(drop))?;

        // A node joins with the subnet to which Go flannel's routes lead.
        let (newcomer, keys) = (&s[NODES], Keys::new());
        std::fs::write(daemon_key_path_with_folder(newcomer)?, keys.private_text())?;
        let data = |port| json!({ "PublicKey": keys.public_text(), "Port": port });
        let lease = json!({
            "PublicIP": newcomer.v4()?, "PublicIPv6": newcomer.v6()?, "BackendType": "wireguard",
            "BackendData": data(51820), "BackendV6Data": data(51821),
        });
        s.put("10.5.7.0-24&fd00:5:0:7::-64", &lease.to_string())?;
        s.start_daemons_and_connected_pods()?;
        ensure!(s[NODES].subnet()? == LATE[0], "{}", s[NODES].subnet()?);
        nodes.push(Seen::record_ready_node(&s[NODES])?);
        s.wait_first_pods_connected()?;
        require_encrypted_pod_packets(&capture.finish_timed()?, &nodes)?;
        for node in &s.nodes[..NODES] {
            let routes = node.sh("ip route; ip -6 route")?;
            let kept = routes.contains(&format!("{OF_OPERATOR} via"));
            ensure!(
                kept && LATE.iter().all(|net| !routes.contains(net)),
                "{}: {routes}",
                node.name()
            );
        }
        s.require_no_errors()
    })
}

/// Adds routes to the subnet of a node that joins later, and an operator's route. With `as_go`, flannel-rs' routes become Go flannel's, which have
/// the protocol `boot`.
fn add_foreign_routes(node: &Node, gateway: &Node, as_go: bool) -> Result<()> {
    if as_go {
        node.sh("for f in -4 -6; do ip $f route show proto 241 | grep via | while read -r r; do ip $f route replace ${r% proto 241*} proto boot; done; done")?;
    }
    let (v4, v6) = (gateway.v4()?, gateway.v6()?);
    let [late, late_v6] = LATE;
    node.sh(&format!("ip route add {late} via {v4} dev enp0s8; ip -6 route add {late_v6} via {v6} dev enp0s8; ip route add {OF_OPERATOR} via {v4} dev enp0s8"))?;
    Ok(())
}

/// Waits until the pods reach each other in both families.
fn wait_until_pods_reach_pods(pods: &[Pod]) -> Result<()> {
    for family in 0..2 {
        let targets: Vec<IpAddr> = pods.iter().map(|pod| pod.addresses()[family]).collect();
        until_ok("pods reach each other", || {
            PingMatrix::between_addresses(pods, &targets, &PingOptions::default())?
                .require_complete()
        })?;
    }
    Ok(())
}

/// A WireGuard data message to either family's tunnel port, and longer than a keepalive.
fn is_wireguard_data_frame(frame: &[u8]) -> bool {
    let udp = match frame.get(12..14) {
        Some([0x08, 0x00]) if frame.get(23) == Some(&17) => 34,
        Some([0x86, 0xdd]) if frame.get(20) == Some(&17) => 54,
        _ => return false,
    };
    let ports = [51820_u16, 51821].map(u16::to_be_bytes);
    ports.iter().any(|port| frame.get(udp + 2..udp + 4) == Some(port))
        && frame.get(udp + 8) == Some(&4)
        && frame.len() > udp + 8 + 32
}

/// No frame shows a packet between two pods after the sender's node or both nodes run wireguard. Each pair has sealed packets.
fn require_encrypted_pod_packets(frames: &[Frame], nodes: &[Seen]) -> Result<()> {
    let count = nodes.len();
    let (mut wrong, mut clear, mut sealed) = (Vec::new(), 0, vec![false; count * count]);
    for Frame { at, bytes } in frames.iter().filter(|frame| frame.bytes.len() > 14) {
        let place = |mac: &[u8]| nodes.iter().position(|node| node.mac == mac);
        let (to, from) = (place(&bytes[..6]), place(&bytes[6..12]));
        if is_wireguard_data_frame(bytes) {
            if let (Some(from), Some(to)) = (from, to) {
                sealed[from.min(to) * count + from.max(to)] = true;
            }
            continue;
        }
        let is_shown =
            |node: &&Seen| node.pod.iter().any(|ip| frame_contains_bytes(&bytes[12..], ip));
        let shown: Vec<&Seen> = nodes.iter().filter(is_shown).collect();
        let [first, second] = shown[..] else { continue };
        clear += 1;
        if *at >= first.ready.max(second.ready) || from.is_some_and(|from| *at >= nodes[from].ready)
        {
            wrong.push(format!("{} and {} from {from:?}: {bytes:02x?}", first.name, second.name));
        }
    }
    for second in 0..count {
        for first in 0..second {
            ensure!(
                sealed[first * count + second],
                "{} and {}: nothing sealed was seen",
                nodes[first].name,
                nodes[second].name
            );
        }
    }
    ensure!(clear > 0, "the capture sees nothing of the pods, not even before the change");
    ensure!(wrong.is_empty(), "{} packets of pods in the clear: {:#?}", wrong.len(), wrong.first());
    Ok(())
}
