//! A lab of VirtualBox machines, on which every node has the same address on its default route.

use anyhow::{Result, ensure};
use lab::{ANNOTATIONS, Cluster, ClusterOptions, Lab, ProxyMode, eventually_ok};

use crate::kube::bed::{SOON, turn};
use crate::kube::installed::{impatient, install, manifest, require_traffic, with_images};

/// Every node is 10.0.2.15 on its default route; the nodes come all at once or one by one.
fn vagrant(node_ip: bool, one_by_one: bool) -> Result<()> {
    let _turn = turn();
    Lab::run(&format!("cluster: Vagrant, --node-ip: {node_ip}, one by one: {one_by_one}"), |lab| {
        let mut options = with_images(ClusterOptions::new(2).vagrant())?;
        options = if node_ip { options.proxy(ProxyMode::Nftables) } else { options.without_node_ip() };
        let mut cluster = Cluster::prepare(lab, &options)?;
        let text = manifest(|text| impatient(&text))?;
        if one_by_one {
            cluster.start_nodes(0..1)?;
            install(&cluster, &text)?;
            cluster.start_nodes(1..2)?;
        } else {
            cluster.start_nodes(0..2)?;
        }
        install(&cluster, &text)?;
        if !node_ip {
            let node = cluster.api.admin().node("h1")?;
            ensure!(node["status"]["addresses"].to_string().contains("10.0.2.15"), "no trap: {}", node["status"]["addresses"]);
        }
        for node in &cluster.nodes {
            let right = node.host().v4_of("enp0s8")?.to_string();
            eventually_ok(SOON, "the node publishes what joins it with the others", || {
                let public = cluster.api.admin().flannel_annotation(node.name(), "public-ip")?;
                ensure!(public.as_deref() == Some(right.as_str()), "{}: {ANNOTATIONS}public-ip is {public:?} instead of {right}", node.name());
                Ok(())
            })?;
        }
        require_traffic(&cluster)
    })
}

#[test]
fn vagrant_with_node_ip() -> Result<()> {
    vagrant(true, false)
}

#[test]
fn vagrant_without_node_ip_all_at_once() -> Result<()> {
    vagrant(false, false)
}

#[test]
fn vagrant_without_node_ip_one_by_one() -> Result<()> {
    vagrant(false, true)
}
