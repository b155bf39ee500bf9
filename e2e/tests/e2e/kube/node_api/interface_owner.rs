//! When a node starts, continues or stops using an interface, depending on its own Node and on others.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use lab::{ApiServer, Families, Lab, NodeObject, Uplink, until_ok};

use crate::kube::testbed::{ApiTestbed, VXLAN};

/// Waits until each host publishes its address in the shared network and is ready.
fn wait_public_ips_and_readiness(bed: &ApiTestbed) -> Result<()> {
    for (number, daemon) in (101..).zip(&bed.daemons) {
        let name = format!("h{}", number - 100);
        until_ok(&format!("{name} publishes 192.168.56.{number}"), || {
            let public = bed.admin().flannel_annotation(&name, "public-ip")?;
            ensure!(
                public == Some(format!("192.168.56.{number}")) && daemon.is_ready(),
                "{public:?}"
            );
            Ok(())
        })
        .with_context(|| daemon.log())?;
    }
    Ok(())
}

/// The machine has published an address, and its kubelet reports one.
fn node_with_addresses(number: u8, published: [u8; 4], reported: [u8; 4]) -> NodeObject {
    let node = NodeObject::new(&format!("h{number}")).pod_cidr(&format!("10.244.{number}.0/24"));
    let (published, mac) =
        (Ipv4Addr::from(published).to_string(), format!("02:00:00:00:00:0{number}"));
    let node = node.add_vxlan_annotations(&published, &mac).add_internal_address(reported);
    node.ready("True").boot_id(&format!("boot-{number}"))
}

#[test]
fn nat_interface_is_left_when_no_peer_replies() -> Result<()> {
    Lab::run("Node API: NAT addresses that Go flannel published", |lab| {
        let vagrant = lab.create_vagrant_with_different_addresses(2)?;
        let uplink = Uplink::enp0s8(&vagrant.lan, 99)?.gateway("192.168.56.254")?;
        let api = ApiServer::start_fake(&lab.create_host("api", &[uplink])?, Families::V4)?;
        let mut bed = ApiTestbed::from_api_and_hosts(lab, api, vagrant.hosts, VXLAN)?;
        for number in 1..=2 {
            let nat = [10, 0, 2, 14 + number];
            bed.admin().create_node(&node_with_addresses(number, nat, nat))?;
        }
        // The daemon would keep an interface with which Go flannel worked. This one did not work.
        bed.start_ready_daemons()?;
        wait_public_ips_and_readiness(&bed)?;
        bed.start_connected_pods("p1")
    })
}

#[test]
fn nodes_that_swap_their_addresses_both_start() -> Result<()> {
    Lab::run("Node API: swapped addresses", |lab| {
        let mut bed = ApiTestbed::with_fake_api(lab, 2, VXLAN)?;
        for kubelets_know in [true, false] {
            for number in 1..=2 {
                let (now, before) = ([192, 168, 56, 100 + number], [192, 168, 56, 103 - number]);
                let reported = if kubelets_know { now } else { before };
                bed.admin().create_node(&node_with_addresses(number, before, reported))?;
            }
            bed.launch_daemons()?;
            wait_public_ips_and_readiness(&bed)?;
            bed.daemons.clear();
            for (number, host) in (1..).zip(&bed.hosts) {
                bed.admin().delete_node(&format!("h{number}"))?;
                std::fs::remove_file(host.subnet_file()?)?;
            }
        }
        Ok(())
    })
}
