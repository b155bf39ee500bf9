//! `--probe-pods`: faults on pods' paths that only pod probes detect, and the lifetime of the probes' bridge port.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use lab::{FlanneldOptions, Pod, Scene, binaries, until_ok};
use serde_json::Value;

use crate::doctor::node::{Node, create_pod_on_each_node, run_with_healthy_nodes_and_options};
use crate::doctor::verdicts::{are_well, get_pod_path_probes};
use crate::healing::scenarios;

/// The devices of the probes' bridge port, and the neighbour entry that leads to it.
const TRACES: &str = "{ ip -o link show; ip neighbour show dev cni0; } | grep -e flpod -e flprobe -e 02:66:6c:70:6f:64";

/// Three nodes that probe the path of their pods, with one pod each.
fn run_with_pod_probes(
    backend: &str,
    work: impl FnOnce(&mut [Node], &[Pod]) -> Result<()>,
) -> Result<()> {
    let options = FlanneldOptions::bare().arg("--probe-pods");
    let network = format!(r#"{{"Network":"10.5.0.0/16",{backend}}}"#);
    let scene = Scene::with_title("probes of pods").net(&network).nodes(3);
    run_with_healthy_nodes_and_options(scene, &options, |_, nodes| {
        let pods = create_pod_on_each_node(nodes)?;
        work(nodes, &pods)
    })
}

/// Waits until a node's pod probes succeed in exactly this number of families.
fn wait_until_pod_probes_pass(node: &mut Node, families: usize) -> Result<()> {
    until_ok("probes pass", || {
        let paths = get_pod_path_probes(node)?;
        ensure!(paths.len() == families && are_well(&paths), "{paths:?}");
        Ok(())
    })
}

/// A node probes the path of its pods from this address.
fn pod_probe_source_address(node: &mut Node) -> Result<String> {
    let path = get_pod_path_probes(node)?.remove(0);
    path["address"].as_str().map(str::to_owned).context("no address")
}

#[test]
fn fault_unknown_to_checks_is_found_by_pod_probes() -> Result<()> {
    run_with_pod_probes(r#""Backend":{"Type":"vxlan"}"#, |nodes, pods| {
        for (make, clear, check) in [
            (
                "nft 'table ip odd { chain c { type filter hook forward priority 0; ip saddr 10.5.0.0/16 numgen inc mod 2 vmap { 0 : drop, 1 : drop }; }; }'",
                "nft delete table ip odd",
                "pods-lost",
            ),
            (
                "iptables -t nat -I POSTROUTING -s 10.5.0.0/16 -o flannel.1 -j MASQUERADE",
                "iptables -t nat -F POSTROUTING",
                "pods-masqueraded",
            ),
        ] {
            nodes.iter_mut().try_for_each(|node| wait_until_pod_probes_pass(node, 1))?;
            nodes[1].run(make)?;
            nodes[1].wait_exact_causes(&[check])?;
            ensure!(get_pod_path_probes(&mut nodes[1])?[0]["state"] == "all");
            ensure!(nodes[1].daemon()?.metric("flannel_pod_paths{state=\"all\"}")? == 1.0);
            for other in [0, 2] {
                nodes[other].wait_exact_causes(&[]).context(check)?;
            }
            nodes[1].run(clear)?;
            nodes[1].wait_exact_causes(&[]).context(check)?;
        }
        require_pod_address_conflict_reported(&mut nodes[1], &pods[1])?;
        require_pod_flood_suspends_verdict(&mut nodes[1], &pods[1])
    })
}

/// Floods the pod probes' address: the node then reports no verdict and no loss.
fn require_pod_flood_suspends_verdict(node: &mut Node, pod: &Pod) -> Result<()> {
    wait_until_pod_probes_pass(node, 1)?;
    let address = pod_probe_source_address(node)?;
    pod.netns().sh(&format!("ip neighbour add {address} lladdr 02:66:6c:70:6f:64 dev eth0"))?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            pod.netns().run(|| -> Result<()> {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                while !is_over.load(Ordering::Relaxed) {
                    let _ = socket.send_to(b"junk", (address.as_str(), 50_000));
                }
                Ok(())
            })?
        });
        let quiet = until_ok("the flood is noticed", || {
            let path = get_pod_path_probes(node)?.swap_remove(0);
            ensure!(path["obstacle"] == "flooded", "{path}");
            Ok(())
        })
        .and_then(|()| node.wait_full_doctor_round())
        .and_then(|()| node.run_doctor_and_require_causes(&[]));
        is_over.store(true, Ordering::Relaxed);
        flood.join().map_err(|_| anyhow!("the flood panicked"))??;
        quiet
    })?;
    node.wait_exact_causes(&[])?;
    wait_until_pod_probes_pass(node, 1)
}

/// Assigns the pod probes' address to a pod, which still receives its packets. The doctor reports the conflict.
fn require_pod_address_conflict_reported(node: &mut Node, pod: &Pod) -> Result<()> {
    let address = pod_probe_source_address(node)?;
    let ping = format!("ping -c 1 -W 1 {address}");
    ensure!(node.sh(&ping)?.0 != 0, "the probe answers no ping");
    let change = |verb| pod.netns().sh(&format!("ip address {verb} {address}/24 dev eth0"));
    change("add")?;
    node.wait_exact_causes(&["probe-address"])?;
    until_ok("the pod is reached", || node.run(&ping))?;
    change("delete")?;
    node.wait_exact_causes(&[])
}

/// The daemon removes the probes' bridge port when it exits. After a kill, the next start or `flannelctl cleanup` does so. The port receives no pod's
/// broadcasts.
#[test]
fn pod_probe_port_is_removed_on_stop_restart_and_cleanup() -> Result<()> {
    run_with_pod_probes(r#""Backend":{"Type":"vxlan"}"#, |nodes, pods| {
        nodes.iter_mut().try_for_each(|node| wait_until_pod_probes_pass(node, 1))?;
        let node = &mut nodes[0];
        // The port has no address. It gets no broadcasts or ARP of pods, so these reach the host only once.
        node.run("grep FLANNEL_RANGE_END=10.5. /run/flannel/subnet.env; ! ip -o address show | grep -e flpod -e flprobe")?;
        node.run("timeout 20 tcpdump -c 1 -ni flpod$(cat /sys/class/net/cni0/ifindex) '(broadcast or multicast) and (arp or ip)' > /run/heard 2>&1 & until grep -q listening /run/heard; do sleep 0.1; done")?;
        pods[0]
            .netns()
            .sh("ping -c 2 -W 1 -b 10.5.255.255 || true; arping -c 2 10.5.0.77 || true")?;
        node.run("! grep '1 packet captured' /run/heard")?;

        node.stop()?;
        node.run(&format!("! {TRACES}"))?;
        node.start_without_waiting()?;
        wait_until_pod_probes_pass(node, 1)?;
        node.daemon()?.kill()?;
        node.run(TRACES)?;
        node.run("flannelctl cleanup --dry-run | grep flprobe; flannelctl cleanup")?;
        node.run(&format!("! {TRACES}"))?;

        let killed = &mut nodes[1];
        killed.daemon()?.kill()?;
        killed.write_flanneld_wrapper(
            "for flag do shift; [ \"$flag\" = --probe-pods ] || set -- \"$@\" \"$flag\"; done",
        )?;
        killed.start_without_waiting()?;
        until_ok("the next start removes it", || killed.run(&format!("! {TRACES}")))?;
        let (_, text) = killed.daemon()?.get_status_api("/api/v1/node")?;
        let document: Value = serde_json::from_str(&text)?;
        ensure!(document["pod_paths"].is_null(), "{text}");
        Ok(())
    })
}

scenarios! { pod_probes_pass;
    pod_probes_of_host_gw_pass => (r#""EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"host-gw"}"#, 2),
    pod_probes_of_userspace_vxlan_pass => (r#""EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan","Mode":"userspace"}"#, 2),
    pod_probes_of_udp_pass => (r#""Backend":{"Type":"udp"}"#, 1),
    pod_probes_of_userspace_wireguard_pass => (r#""EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"wireguard","Implementation":"userspace"}"#, 2),
}

/// The daemon has only the capabilities NET_ADMIN and NET_RAW.
fn pod_probes_pass((backend, families): (&str, usize)) -> Result<()> {
    run_with_pod_probes(backend, |nodes, _| {
        nodes[0].write_flanneld_wrapper(&format!(
            "echo $$ > /run/flanneld.pid; exec setpriv --bounding-set -all,+net_admin,+net_raw '{}' \"$@\"",
            binaries::flannel_binary("flanneld")?.display()
        ))?;
        nodes[0].restart_without_waiting()?;
        nodes.iter_mut().try_for_each(|node| wait_until_pod_probes_pass(node, families))
    })
}
