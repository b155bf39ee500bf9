//! Checks that no healthy node becomes unready because of unusable Nodes, or because of other programs' routes in place of a peer's route.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Lab, NodeObject, throughout, until, until_ok};
use serde_json::{Value, json};

use crate::kube::bed::{Bed, VXLAN};
use crate::kube::nodes::hostile_nodes;

/// Time longer than the ten seconds after which a node that is not in sync is not ready.
const HOLDS: Duration = Duration::from_secs(15);
const HOST_GW: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#;
const UDP: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"udp"}}"#;
/// An address outside the link that all nodes share.
const FAR: &str = "10.99.0.5";

/// Each backend's name in the annotations of Nodes, and a network configuration with the backend.
const BACKENDS: [(&str, &str); 3] = [("vxlan", VXLAN), ("host-gw", HOST_GW), ("", UDP)];

/// Returns Nodes, each with a subnet and with an address that at least one kernel or backend refuses.
fn odd_addresses(backend: &str) -> Vec<NodeObject> {
    let addresses = [
        FAR,
        "192.168.56.255",
        "192.168.56.0",
        "240.0.0.1",
        "0.1.2.3",
        "169.254.9.9",
        "100.64.0.1",
    ];
    let odd = (0u8..).zip(addresses).map(|(number, address)| {
        let node = NodeObject::new(&format!("odd-{number}"))
            .pod_cidr(&format!("10.244.166.{}/28", number * 16));
        let data = json!({ "VNI": 1, "VtepMAC": format!("02:00:00:66:00:0{number}") }).to_string();
        let node = node
            .flannel("kube-subnet-manager", "true")
            .flannel("backend-type", backend);
        node.flannel("backend-data", &data)
            .flannel("public-ip", address)
    });
    odd.collect()
}

fn status(daemon: &lab::Flanneld) -> Result<Value> {
    Ok(serde_json::from_str(&daemon.get("/status")?.1)?)
}

/// Checks that all daemons stay ready, that each Node has the condition NetworkUnavailable=False, and that pods reach each other.
fn require_healthy(bed: &Bed) -> Result<()> {
    throughout(HOLDS, "every healthy node is ready", || {
        for daemon in &bed.daemons {
            ensure!(
                daemon.is_ready(),
                "{:?}\n{}",
                daemon.get("/readyz")?,
                daemon.log_tail(10)
            );
        }
        Ok(())
    })?;
    for number in 1..=bed.hosts.len() {
        let node = format!("h{number}");
        until("NetworkUnavailable is False", || {
            bed.admin().has_network(&node)
        })?;
    }
    bed.reach()
}

#[test]
fn healthy_nodes_are_ready_among_hostile_nodes_with_every_backend() -> Result<()> {
    for (name, conf) in BACKENDS {
        among_hostile_nodes(name, conf).with_context(|| format!("backend {name:?}"))?;
    }
    Ok(())
}

fn among_hostile_nodes(backend: &str, conf: &str) -> Result<()> {
    Lab::run(
        &format!(
            "hostile Nodes: {}",
            if backend.is_empty() { "udp" } else { backend }
        ),
        |lab| {
            let mut bed = Bed::empty(lab, 2, conf)?;
            for number in 1..=2 {
                // This is how a cloud creates Nodes: pods are scheduled once the condition is False.
                bed.admin()
                    .create_node(&bed.node(number).network_unavailable("True"))?;
            }
            let mut taken = 0;
            for node in hostile_nodes(backend).iter().chain(&odd_addresses(backend)) {
                let (code, answer) = bed.admin().request(
                    "POST",
                    "/api/v1/nodes",
                    Some(("application/json", &node.json())),
                )?;
                ensure!(code < 300 || matches!(code, 400 | 422), "{code} {answer}");
                taken += usize::from(code < 300);
            }
            ensure!(taken >= 55, "the API server took {taken} only");
            bed.start_daemons()?;
            bed.start_pods()?;
            for daemon in &bed.daemons {
                until("the hostile Nodes are known", || {
                    daemon
                        .metric("flannel_leases")
                        .is_ok_and(|leases| leases > 5.0)
                })?;
            }
            require_healthy(&bed)?;
            for daemon in &bed.daemons {
                let status = status(daemon)?;
                let refused = status["refused"].as_array().context("a list")?;
                let far = refused
                    .iter()
                    .filter(|refused| {
                        refused["text"]
                            .as_str()
                            .is_some_and(|text| text.contains(FAR))
                    })
                    .count();
                let counted = daemon
                    .metric("flannel_leases_refused{reason=\"off-link\"}")
                    .unwrap_or_default();
                // The other backends send packets to any address.
                ensure!(
                    (far, counted >= 1.0)
                        == if backend == "host-gw" {
                            (1, true)
                        } else {
                            (0, false)
                        },
                    "{counted}: {status}"
                );
                ensure!(
                    !daemon.log().contains("panicked at"),
                    "{}",
                    daemon.log_tail(20)
                );
            }
            Ok(())
        },
    )
}

#[test]
fn route_conflict_of_one_peer_keeps_nodes_ready() -> Result<()> {
    for (name, conf) in &BACKENDS[..2] {
        foreign_route(name, conf).with_context(|| format!("backend {name}"))?;
    }
    Ok(())
}

fn foreign_route(backend: &str, conf: &str) -> Result<()> {
    Lab::run(&format!("foreign route: {backend}"), |lab| {
        let mut bed = Bed::start(lab, 3, conf)?;
        ensure!(
            bed.daemons[0].terminate()?.success(),
            "{}",
            bed.daemons[0].log()
        );
        let route = "10.244.3.0/24 via 192.168.56.250 dev enp0s8 proto static";
        bed.hosts[0].netns().ip(&format!("route replace {route}"))?;
        let wrong = json!({ "status": { "conditions": [{ "type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated" }] } });
        bed.admin().patch_node_status("h1", &wrong)?;
        bed.restart(0)?;
        let daemon = &bed.daemons[0];
        until("the peer is counted", || {
            daemon
                .metric("flannel_peers_failed")
                .is_ok_and(|failed| failed == 1.0)
        })?;
        throughout(HOLDS, "the node is ready", || {
            ensure!(daemon.is_ready(), "{:?}", daemon.get("/readyz")?);
            Ok(())
        })?;
        until("NetworkUnavailable is False", || {
            bed.admin().has_network("h1")
        })?;
        let status = status(daemon)?;
        let kernel = &status["figures"]["kernel"];
        let failed = &kernel["failed_peers"];
        let (node, subnet, text) = (
            &failed[0]["node"],
            &failed[0]["subnet"],
            failed[0]["text"].as_str().unwrap_or_default(),
        );
        ensure!(
            (node, subnet) == (&json!("h3"), &json!("10.244.3.0/24"))
                && text.contains("File exists"),
            "{status}"
        );
        ensure!(
            daemon.metric("flannel_kernel_in_step")? == 1.0 && kernel["trouble"] == "",
            "{status}"
        );
        let document: Value = serde_json::from_str(&daemon.api("/api/v1/node")?.1)?;
        ensure!(
            document["kernel"]["failed_peers"] == *failed && document["kernel"]["in_sync"] == true,
            "{document}"
        );
        ensure!(
            daemon.log().contains("cannot program a peer"),
            "{}",
            daemon.log_tail(20)
        );
        // The route to the other peer stays.
        let kept = bed.hosts[0]
            .netns()
            .exec("ip", &["route", "show", "10.244.2.0/24"])?;
        ensure!(kept.contains("proto 241"), "{kept}");
        bed.hosts[0].netns().ip(&format!("route delete {route}"))?;
        until_ok("it is repaired", || {
            ensure!(
                daemon.metric("flannel_peers_failed")? == 0.0,
                "{}",
                daemon.log_tail(5)
            );
            Ok(())
        })?;
        bed.reach()
    })
}

/// Only a problem with the node's own device makes a node unready.
#[test]
fn foreign_device_makes_its_node_unready() -> Result<()> {
    Lab::run("own device", |lab| {
        let bed = Bed::start(lab, 2, VXLAN)?;
        let netns = bed.hosts[0].netns();
        until("it is not ready", || {
            // Repeated, because the daemon may be faster and create its own device.
            if netns
                .sh("ip link show type bridge | grep -q flannel.1")
                .is_err()
            {
                let _ = netns.ip("link delete flannel.1\nlink add flannel.1 type bridge");
            }
            bed.daemons[0]
                .get("/readyz")
                .is_ok_and(|(code, text)| code == 503 && text.contains("kernel"))
        })?;
        ensure!(
            bed.daemons[0].metric("flannel_kernel_in_step")? == 0.0,
            "{}",
            bed.daemons[0].log_tail(10)
        );
        netns.sh("ip link delete flannel.1")?;
        until("it is ready again", || bed.daemons[0].is_ready())?;
        bed.reach()
    })
}
