//! flanneld's guard rules count or drop tunnel packets of unknown senders to the encapsulation port, and pods cannot send tunnel packets.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Netns, Node, PingOptions, Programs, Scene, ping_address, until, until_ok};

use crate::healing::scenarios;

use super::node::{
    Applier, GUARD, IptablesLegacy, IptablesNft, Nftables, firewall_rules,
    logged_warnings_and_errors, run_on_stopped_masquerading_node,
};

#[test]
fn backend_without_a_port_gets_no_guard() -> Result<()> {
    run_on_stopped_masquerading_node(Nftables, &GUARD, |s| {
        s.store.configure(&Nftables.net_conf().replace("vxlan", "host-gw"))?;
        s.start_daemons()?;
        let found = logged_warnings_and_errors(s[0].daemon()?);
        ensure!(found.len() == 1 && found[0].contains("--encap-notrack"), "{found:?}");
        ensure!(!firewall_rules(&s[0])?.contains("encap"), "{}", firewall_rules(&s[0])?);
        Ok(())
    })
}

fn bind_udp_socket(netns: &Netns, address: &str) -> Result<UdpSocket> {
    let socket = netns.run(|| UdpSocket::bind(address))??;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    Ok(socket)
}

/// Sends packets until one arrives.
fn send_until_packet_arrives(from: &UdpSocket, to: &str, receiver: &UdpSocket) -> Result<()> {
    until(&format!("a packet arrives at {to}"), || {
        from.send_to(b"x", to).is_ok() && receiver.recv(&mut [0; 16]).is_ok()
    })
    .map(drop)
}

/// True if there was a packet.
fn drained_any_packet(socket: &UdpSocket) -> Result<bool> {
    socket.set_nonblocking(true)?;
    let count = std::iter::from_fn(|| socket.recv(&mut [0; 16]).ok()).count();
    socket.set_nonblocking(false)?;
    Ok(count > 0)
}

/// The third host, which is no node, forges tunnel packets to the first node's pod with these devices. Each sender has the address to which it sends.
fn create_forged_tunnel_senders(s: &Scene<'_>) -> Result<[(UdpSocket, String); 2]> {
    let (node, pod, host) = (&s[0], &s[0].pods[0], &s[2]);
    let forged = |name: &str, source: &str, device: &str, from: IpAddr, to: IpAddr, pod: IpAddr| {
        let link = node.netns().link(device)?.context("no such device")?;
        let (mac, more) = (link.address, if to.is_ipv6() { "udp6zerocsumrx" } else { "" });
        host.sh(&format!(
            "set -e; ip link add {name} type vxlan id 1 dstport 8472 local {from} nolearning {more}; ip link set {name} up
             ip address add {source} dev {name} nodad; ip route add {pod} dev {name} src {source}; ip neighbour add {pod} dev {name} lladdr {mac}
             bridge fdb append {mac} dev {name} dst {to}"
        ))?;
        anyhow::Ok(())
    };
    forged(
        "forge4",
        "10.244.250.1",
        "flannel.1",
        host.v4()?.into(),
        node.v4()?.into(),
        pod.v4()?.into(),
    )?;
    forged(
        "forge6",
        "fd10:244:0:fafa::1",
        "flannel-v6.1",
        host.v6()?.into(),
        node.v6()?.into(),
        pod.v6()?.into(),
    )?;
    Ok([
        (bind_udp_socket(host.netns(), "10.244.250.1:0")?, format!("{}:5000", pod.v4()?)),
        (bind_udp_socket(host.netns(), "[fd10:244:0:fafa::1]:0")?, format!("[{}]:5001", pod.v6()?)),
    ])
}

/// Waits until packets of a peer reach the first node's pod.
fn wait_until_guard_admits_peer(s: &Scene<'_>, peer: usize) -> Result<()> {
    until("the guard admits the peer", || {
        let answers = |to| {
            ping_address(s[peer].pods[0].netns(), to, &PingOptions::default())
                .is_ok_and(|time| time.is_some())
        };
        s[0].pods[0].addresses().into_iter().all(answers)
    })
    .map(drop)
}

/// Forged packets, from the other host and from this one, are counted, except in mode `off`, and arrive at the pod, except in mode `drop`.
fn require_forged_packets_counted_or_dropped(
    node: &Node,
    mode: &str,
    forged: &[(UdpSocket, String); 2],
) -> Result<()> {
    let pod = node.pods[0].netns();
    let receivers = [bind_udp_socket(pod, "0.0.0.0:5000")?, bind_udp_socket(pod, "[::]:5001")?];
    let metric = "flannel_encap_stranger_packets";
    if mode != "off" {
        // If listing takes much time of a busy processor, the daemon lists the rules and their counters only once a minute.
        // Any user of this host can send to its own address.
        let local = (bind_udp_socket(node.netns(), "0.0.0.0:0")?, format!("{}:8472", node.v4()?));
        for (sender, to) in forged.iter().chain([&local]) {
            let before = node.daemon()?.metric(metric)?;
            until_ok("it is counted", || {
                // Sends again, because a counter restarts when the rules are written.
                let _ = sender.send_to(b"x", to);
                ensure!(node.daemon()?.metric(metric)? > before);
                Ok(())
            })?;
        }
    } else {
        ensure!(node.daemon()?.metric(metric).is_err());
    }
    for ((sender, to), receiver) in forged.iter().zip(&receivers) {
        if mode == "drop" {
            // The rules have counted packets of this sender.
            ensure!(!drained_any_packet(receiver)?, "{to} got a forged packet");
        } else {
            send_until_packet_arrives(sender, to, receiver)?;
        }
    }
    Ok(())
}

/// A pod's packets to the tunnel's port on a host outside the network are dropped, except in mode `off`. Packets to another port pass.
fn require_pod_tunnel_packets_barred(s: &Scene<'_>, mode: &str) -> Result<()> {
    for (address, any) in [("192.168.56.104", "0.0.0.0:0"), ("[fd00:56::104]", "[::]:0")] {
        let [tunnel, other] = [8472, 4000].map(|port| format!("{address}:{port}"));
        let (outside, sender) = (s[3].netns(), bind_udp_socket(s[0].pods[0].netns(), any)?);
        let (at_tunnel, at_other) =
            (bind_udp_socket(outside, &tunnel)?, bind_udp_socket(outside, &other)?);
        send_until_packet_arrives(&sender, &other, &at_other)?;
        if mode == "off" {
            send_until_packet_arrives(&sender, &tunnel, &at_tunnel)?;
        } else {
            let _ = sender.send_to(b"x", &tunnel);
            // A later packet arrives.
            drained_any_packet(&at_other)?;
            send_until_packet_arrives(&sender, &other, &at_other)?;
            ensure!(
                !drained_any_packet(&at_tunnel)?,
                "{mode}: a pod made a tunnel packet to {tunnel}"
            );
        }
    }
    Ok(())
}

/// The kernel's connection tracking records peers' tunnel packets only in mode `off`.
fn wait_peers_tracked_only_when_off(node: &Node, mode: &str) -> Result<()> {
    let script = "grep 'src=192.168.56.102 dst=192.168.56.101' /proc/net/nf_conntrack | grep -c dport=8472 || true";
    // The kernel tracks packets from before the rules for half a minute. The peer's probes keep present entries alive.
    let is_tracked = || Ok::<_, anyhow::Error>(node.sh(script)?.trim() != "0");
    let can_tell = node.sh("test -e /proc/net/nf_conntrack").is_ok();
    until("packets of a peer are tracked only without a guard", || {
        !can_tell || is_tracked().is_ok_and(|is| is == (mode == "off"))
    })
    .map(drop)
}

scenarios! { encapsulation_port_is_guarded;
    encapsulation_port_is_guarded_by_iptables => IptablesNft,
    encapsulation_port_is_guarded_by_iptables_legacy => IptablesLegacy,
    encapsulation_port_is_guarded_by_nftables => Nftables,
}

/// The guard rules accept, count or drop tunnel packets of unknown senders, admit all packets of nodes, and drop those of pods. The first host has a
/// guard, the second one is its peer, and the third one forges packets. The fourth one becomes a node at the end.
fn encapsulation_port_is_guarded(applier: Applier) -> Result<()> {
    Scene::with_title("guard")
        .nodes(4)
        .net(&applier.net_conf())
        .daemon_arg("--ip-masq")
        .daemon_arg("--iptables-resync=1")
        .without_daemons()
        .run(|s| {
            let path =
                Programs::with_both_iptables_variants(s.lab, "all", applier.xtables())?.path();
            for node in &mut s.nodes {
                node.change_options(|options| options.env("PATH", &path));
            }
            let plain = s[0].options.clone();
            s[1].start_daemon()?;
            s[1].create_pod("p2")?;
            let mut forged = None;
            // Mode `off` comes last, because the kernel remembers tracked packets for half a minute.
            for mode in ["drop", "count", "off"] {
                s[0].options = plain.clone().arg(&format!("--encap-peers={mode}"));
                if mode != "off" {
                    s[0].change_options(|options| options.arg(GUARD[1]).arg(GUARD[2]));
                }
                s[0].start_daemon()?;
                if forged.is_none() {
                    s[0].create_pod("p1")?;
                    forged = Some(create_forged_tunnel_senders(s)?);
                }
                wait_until_guard_admits_peer(s, 1)?;
                require_forged_packets_counted_or_dropped(
                    &s[0],
                    mode,
                    forged.as_ref().context("no forger")?,
                )?;
                require_pod_tunnel_packets_barred(s, mode)?;
                wait_peers_tracked_only_when_off(&s[0], mode)?;
                s[0].stop_daemon()?;
            }
            // A host that becomes a node is admitted, and a former node is not.
            s[0].options = plain.arg(GUARD[0]);
            s[0].start_daemon()?;
            s[3].start_daemon()?;
            s[3].create_pod("p4")?;
            wait_until_guard_admits_peer(s, 3)?;
            let is_admitted = |s: &Scene<'_>| {
                firewall_rules(&s[0]).is_ok_and(|now| now.contains("192.168.56.104"))
            };
            ensure!(is_admitted(s));
            s[3].stop_daemon()?;
            let leases = s.store.lease_names_and_values()?;
            let (lease, _) = leases
                .iter()
                .find(|(_, value)| value.contains("192.168.56.104"))
                .context("no lease")?;
            s.store.delete(lease)?;
            until("a former node is not admitted", || !is_admitted(s))?;
            s[0].wait_metric_value("flannel_rule_repairs_total", 0.0)
        })
}
