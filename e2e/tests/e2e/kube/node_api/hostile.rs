//! Unusable Nodes harm no healthy node, and another program's device in place of the node's own makes it unready.

use anyhow::{Result, ensure};
use lab::{Lab, NodeObject, Scene, until};

use crate::kube::testbed::{ApiTestbed, VXLAN};

/// Outside the link that all nodes share.
const FAR: &str = "10.99.0.5";
const GOOD_DATA: &str = r#"{"VNI":1,"VtepMAC":"02:00:00:00:66:66"}"#;
const DATA: [&str; 6] = [
    "",
    "null",
    r#"{"VNI":1,"VtepMAC":""}"#,
    r#"{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}"#,
    r#"{"VNI":99999999999999999999,"VtepMAC":"02:00:00:00:66:66"}x"#,
    "🦀",
];
const ADDRESSES: [&str; 10] = [
    "",
    "localhost",
    "::1",
    "127.0.0.1",
    "224.0.0.1",
    "192.168.56.101",
    "192.168.56.102",
    FAR,
    "192.168.56.255",
    "169.254.9.9",
];
const SUBNETS: [&str; 6] = [
    "10.244.1.0/24",
    "10.244.2.0/24",
    "10.244.0.0/16",
    "10.244.1.128/25",
    "0.0.0.0/0",
    "192.168.56.0/24",
];

/// Each Node has one fault.
fn hostile_nodes(backend: &str) -> Vec<NodeObject> {
    let huge = "x".repeat(200 << 10);
    let data = DATA
        .iter()
        .copied()
        .chain([huge.as_str()])
        .map(|data| (data, "192.168.56.66", "10.244.66.0/24", backend));
    let addresses = ADDRESSES.iter().map(|ip| (GOOD_DATA, *ip, "10.244.66.0/24", backend));
    let subnets = SUBNETS.iter().map(|subnet| (GOOD_DATA, "192.168.56.66", *subnet, backend));
    let backends = ["VXLAN", huge.as_str()]
        .map(|backend| (GOOD_DATA, "192.168.56.66", "10.244.66.0/24", backend));
    let all = data.chain(addresses).chain(subnets).chain(backends).enumerate();
    let marked = all.map(|(number, (data, ip, subnet, backend))| {
        // Subnets of their own, so that each is judged by its fault.
        let subnet = subnet.replace(".66.0", &format!(".{}.0", 60 + number));
        let node = NodeObject::new(&format!("hostile-{number}")).pod_cidr(&subnet);
        let node = node
            .add_flannel_annotation("kube-subnet-manager", "true")
            .add_flannel_annotation("backend-type", backend);
        node.add_flannel_annotation("backend-data", data).add_flannel_annotation("public-ip", ip)
    });
    marked.chain([NodeObject::new("hostile-nothing")]).collect()
}

fn require_readiness_among_hostile_nodes(backend: &str) -> Result<()> {
    Lab::run(&format!("hostile Nodes: {backend}"), |lab| {
        let mut bed = ApiTestbed::with_fake_api(lab, 2, &VXLAN.replace("vxlan", backend))?;
        for number in 1..=2 {
            // This is how a cloud creates Nodes: pods are scheduled once the condition is False.
            bed.admin().create_node(&bed.node(number).network_unavailable("True"))?;
        }
        for node in hostile_nodes(backend) {
            let body = node.json();
            let (code, reply) =
                bed.admin().request("POST", "/api/v1/nodes", Some(("application/json", &body)))?;
            // The API server itself refuses some of them.
            ensure!(code < 300 || matches!(code, 400 | 422), "{code} {reply}");
        }
        bed.start_ready_daemons()?;
        bed.start_connected_pods("p1")?;
        // A good peer that follows is applied, so all of them are judged.
        let last = NodeObject::new("last").pod_cidr("10.244.252.0/24");
        bed.admin().create_node(
            &last
                .add_vxlan_annotations("192.168.56.250", "02:00:00:00:02:fa")
                .add_flannel_annotation("backend-type", backend),
        )?;
        for (number, daemon) in bed.daemons.iter().enumerate() {
            let routes = || bed.hosts[number].netns().exec("ip", &["route"]);
            until("the last peer has a route", || {
                routes().is_ok_and(|all| all.contains("10.244.252.0"))
            })?;
            let status = daemon.get_status_api("/api/v1/node")?.1;
            ensure!(daemon.is_ready() && !daemon.log().contains("panicked at"), "{status}");
            let far =
                daemon.metric("flannel_leases_refused{reason=\"off-link\"}").unwrap_or_default();
            // vxlan sends packets to any address.
            ensure!((far >= 1.0) == (backend == "host-gw"), "{far}: {status}");
            until("NetworkUnavailable is False", || {
                bed.admin().is_network_marked_available(&format!("h{}", number + 1))
            })?;
        }
        bed.wait_pods_connected()
    })
}

#[test]
fn healthy_nodes_are_ready_among_hostile_nodes_with_vxlan() -> Result<()> {
    require_readiness_among_hostile_nodes("vxlan")
}

#[test]
fn healthy_nodes_are_ready_among_hostile_nodes_with_host_gw() -> Result<()> {
    require_readiness_among_hostile_nodes("host-gw")
}

#[test]
fn foreign_device_makes_its_node_unready() -> Result<()> {
    Scene::with_title("own device").run(|s| {
        let node = &s[0];
        until("it is not ready", || {
            // Repeated, because the daemon may be faster and create its own device.
            if node.sh("ip link show type bridge | grep -q flannel.1").is_err() {
                let _ = node.sh("ip link delete flannel.1; ip link add flannel.1 type bridge");
            }
            node.get_health_endpoint("/readyz")
                .is_ok_and(|(code, text)| code == 503 && text.contains("kernel"))
        })?;
        node.wait_metric_value("flannel_kernel_in_sync", 0.0)?;
        node.sh("ip link delete flannel.1")?;
        until("it is ready again", || node.require_ready().is_ok())?;
        s.wait_first_pods_connected()
    })
}
