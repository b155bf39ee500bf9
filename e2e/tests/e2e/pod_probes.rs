//! Tests of `--probe-pods`: faults on pods' paths that only pod probes detect, and the lifetime of the probes' bridge port.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{FlanneldOptions, Pod, binaries, until_ok};
use serde_json::Value;

use crate::doctor::node::{Node, well_nodes_with};

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// Script that lists the devices of the probes' bridge port, and the neighbour entry that leads to the port.
const TRACES: &str = "{ ip -o link show; ip neighbour show dev cni0; } | grep -e flpod -e flprobe -e 02:66:6c:70:6f:64";

/// Runs a test with three nodes that probe the path of their pods. Each node has one pod.
fn run(network: &str, work: impl FnOnce(&mut [Node], &[Pod]) -> Result<()>) -> Result<()> {
    let options = FlanneldOptions::bare().arg("--probe-pods");
    well_nodes_with(network, "probes of pods", 3, options, |_, _, nodes| {
        let mut pods = Vec::new();
        for node in nodes.iter_mut() {
            let env = node.daemon()?.subnet_env()?;
            pods.push(node.host.pod("p1", &env)?);
        }
        work(nodes, &pods)
    })
}

fn paths(node: &mut Node) -> Result<Vec<Value>> {
    let (_, text) = node.daemon()?.api("/api/v1/node")?;
    let document: Value = serde_json::from_str(&text)?;
    let paths = document["pod_paths"].as_array();
    paths.cloned().with_context(|| format!("no paths: {text}"))
}

/// Waits until a node's pod probes succeed in exactly `families` address families.
fn pass(node: &mut Node, families: usize) -> Result<()> {
    until_ok("probes pass", || {
        let paths = paths(node)?;
        ensure!(
            paths.len() == families && paths.iter().all(|path| path["state"] == "well"),
            "{paths:?}"
        );
        Ok(())
    })
}

#[test]
fn fault_unknown_to_checks_is_found_by_pod_probes() -> Result<()> {
    run(VXLAN, |nodes, pods| {
        nodes.iter_mut().try_for_each(|node| pass(node, 1))?;
        for (name, make, clear, check, state) in [
            (
                "a rule that is not understood",
                "nft 'table ip odd { chain c { type filter hook forward priority 0; ip saddr 10.5.0.0/16 numgen inc mod 2 vmap { 0 : drop, 1 : drop }; }; }'",
                "nft delete table ip odd",
                "pods-lost",
                "all",
            ),
            (
                "a foreign MASQUERADE",
                "iptables -t nat -I POSTROUTING -s 10.5.0.0/16 -o flannel.1 -j MASQUERADE",
                "iptables -t nat -F POSTROUTING",
                "pods-masqueraded",
                "all",
            ),
        ] {
            let node = &mut nodes[1];
            node.run(make)?;
            node.expect(&[check]).context(name)?;
            let path = paths(node)?.remove(0);
            ensure!(path["state"] == state, "{name}: {path}");
            ensure!(
                node.daemon()?
                    .metric(&format!("flannel_pod_paths{{state=\"{state}\"}}"))?
                    == 1.0
            );
            // The other nodes find nothing.
            for other in [0, 2] {
                nodes[other].expect(&[]).context(name)?;
            }
            nodes[1].run(clear)?;
            nodes[1].expect(&[]).context(name)?;
            pass(&mut nodes[1], 1)?;
        }
        a_pod_with_the_address(&mut nodes[1], &pods[1])?;
        a_pod_that_floods(&mut nodes[1], &pods[1])
    })
}

/// Floods the pod probes' address from a pod, and checks that the node then reports no verdict and no loss.
fn a_pod_that_floods(node: &mut Node, pod: &Pod) -> Result<()> {
    let path = paths(node)?.swap_remove(0);
    let address = path["address"].as_str().context("no address")?.to_owned();
    pod.netns().sh(&format!(
        "ip neighbour add {address} lladdr 02:66:6c:70:6f:64 dev eth0"
    ))?;
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
        let seen = until_ok("the flood is noticed", || {
            let path = paths(node)?.swap_remove(0);
            ensure!(path["obstacle"] == "flooded", "{path}");
            Ok(())
        });
        // Two rounds and a half of the doctor.
        let begun = Instant::now();
        let mut quiet = Ok(());
        while quiet.is_ok() && begun.elapsed() < Duration::from_secs(8) {
            quiet = node.finds(&[]);
        }
        is_over.store(true, Ordering::Relaxed);
        flood
            .join()
            .map_err(|_| anyhow::anyhow!("the flood panicked"))??;
        seen.and(quiet)
    })?;
    node.expect(&[])?;
    pass(node, 1)
}

/// Assigns the pod probes' address to a pod, and checks that the pod still receives its packets and the doctor reports the conflict.
fn a_pod_with_the_address(node: &mut Node, pod: &Pod) -> Result<()> {
    let path = paths(node)?.remove(0);
    let address = path["address"].as_str().context("no address")?.to_owned();
    let ping = format!("ping -c 1 -W 1 {address}");
    ensure!(node.sh(&ping)?.0 != 0, "the probe answers no ping");
    pod.netns()
        .sh(&format!("ip address add {address}/24 dev eth0"))?;
    node.expect(&["probe-address"])?;
    until_ok("the pod is reached", || {
        let (code, text) = node.sh(&ping)?;
        ensure!(code == 0, "{text}");
        Ok(())
    })?;
    pod.netns()
        .sh(&format!("ip address delete {address}/24 dev eth0"))?;
    node.expect(&[])?;
    pass(node, 1)
}

/// The daemon removes the probes' bridge port when the daemon exits. After a kill, the next start or `flannelctl
/// cleanup` removes the port. The port receives no pod's broadcasts.
#[test]
fn pod_probe_port_is_removed_on_stop_restart_and_cleanup() -> Result<()> {
    run(VXLAN, |nodes, pods| {
        let node = &mut nodes[0];
        pass(node, 1)?;
        let (_, env) = node.sh("cat /run/flannel/subnet.env")?;
        ensure!(env.contains("FLANNEL_RANGE_END=10.5."), "{env}");
        // The port has no address. It gets no broadcasts or ARP of pods, so these reach the host only once.
        let (_, addresses) = node.sh("ip -o address show")?;
        ensure!(
            !addresses.contains("flpod") && !addresses.contains("flprobe"),
            "{addresses}"
        );
        node.run("timeout 20 tcpdump -c 1 -ni flpod$(cat /sys/class/net/cni0/ifindex) '(broadcast or multicast) and (arp or ip)' > /run/heard 2>&1 & sleep 1")?;
        pods[0]
            .netns()
            .sh("ping -c 2 -W 1 -b 10.5.255.255 || true; arping -c 2 10.5.0.77 || true")?;
        let (_, heard) = node.sh("cat /run/heard; pkill tcpdump || true")?;
        ensure!(!heard.contains("1 packet captured"), "{heard}");

        node.stop()?;
        ensure!(node.sh(TRACES)?.0 != 0, "stopped: {}", node.sh(TRACES)?.1);
        node.start()?;
        pass(node, 1)?;
        node.daemon()?.kill()?;
        ensure!(node.sh(TRACES)?.0 == 0, "a kill leaves it");
        let (code, text) = node.sh("flannelctl cleanup --dry-run")?;
        ensure!(code == 0 && text.contains("flprobe"), "{text}");
        let (code, text) = node.sh("flannelctl cleanup")?;
        ensure!(code == 0 && text.contains("flprobe"), "{text}");
        ensure!(
            node.sh(TRACES)?.0 != 0,
            "after cleanup: {}",
            node.sh(TRACES)?.1
        );

        let killed = &mut nodes[1];
        pass(killed, 1)?;
        killed.daemon()?.kill()?;
        killed.wrap(
            "for flag do shift; [ \"$flag\" = --probe-pods ] || set -- \"$@\" \"$flag\"; done",
        )?;
        killed.start()?;
        until_ok("the next start removes it", || {
            let (code, text) = killed.sh(TRACES)?;
            ensure!(code != 0, "{text}");
            Ok(())
        })?;
        let (_, text) = killed.daemon()?.api("/api/v1/node")?;
        let document: Value = serde_json::from_str(&text)?;
        ensure!(document["pod_paths"].is_null(), "{text}");
        Ok(())
    })
}

/// Pod probes work with every backend, and need only the capabilities NET_ADMIN and NET_RAW. The test uses both address families, except with udp.
#[test]
fn pod_probes_pass_with_every_backend() -> Result<()> {
    for backend in [
        r#"{"Type":"host-gw"}"#,
        r#"{"Type":"vxlan","Mode":"userspace"}"#,
        r#"{"Type":"udp"}"#,
        r#"{"Type":"wireguard","Implementation":"userspace"}"#,
    ] {
        let v6 = if backend.contains("udp") {
            ""
        } else {
            r#""EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","#
        };
        let network = format!(r#"{{"Network":"10.5.0.0/16",{v6}"Backend":{backend}}}"#);
        run(&network, |nodes, _| {
            let families = if v6.is_empty() { 1 } else { 2 };
            let node = &mut nodes[0];
            node.wrap(&format!(
                "echo $$ > /run/flanneld.pid; exec setpriv --bounding-set -all,+net_admin,+net_raw '{}' \"$@\"",
                binaries::own("flanneld")?.display()
            ))?;
            node.restart()?;
            for node in nodes.iter_mut() {
                pass(node, families)?;
            }
            Ok(())
        })
        .context(backend)?;
    }
    Ok(())
}
