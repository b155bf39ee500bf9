//! Tests of nodes with IPv6 only, and of nodes with one address family in a dual-stack cluster.

use anyhow::{Context, Result, ensure};
use lab::{ANNOTATIONS, Lab, NodeObject, wait_ping_answered};

use crate::kube::testbed::{ApiTestbed, DUAL, V6_ONLY};

#[test]
fn ipv6_only_nodes_reach_each_other() -> Result<()> {
    Lab::run("Node API: IPv6 alone", |lab| {
        let mut bed = ApiTestbed::with_fake_api(lab, 2, V6_ONLY)?;
        for number in 1..=2u16 {
            let node = NodeObject::new(&format!("h{number}"))
                .pod_cidr(&format!("fd10:244:0:{number}::/64"));
            bed.admin().create_node(
                &node.add_internal_address(bed.hosts[usize::from(number) - 1].v6()?),
            )?;
        }
        bed.start_ready_daemons()?;
        bed.start_connected_pods("p1")?;
        let annotations = &bed.admin().node("h1")?["metadata"]["annotations"];
        ensure!(
            annotations[format!("{ANNOTATIONS}public-ipv6")] == "fd00:56::101",
            "{annotations}"
        );
        ensure!(annotations.get(format!("{ANNOTATIONS}public-ip")).is_none(), "{annotations}");
        ensure!(bed.daemons[0].subnet_env()?.mtu == 1430, "the MTU is not the IPv6 device's");
        Ok(())
    })
}

#[test]
fn node_that_lacks_a_family_works_in_the_other() -> Result<()> {
    Lab::run("Node API: a family is missing", |lab| {
        // h1 has both families, h2 no IPv6 podCIDR, and h3 no IPv4 one. podCIDRs come in any order.
        let mut bed = ApiTestbed::with_fake_api(lab, 3, DUAL)?;
        let [v4, v6] = [bed.hosts[1].v4()?, bed.hosts[2].v4()?];
        let nodes = [
            NodeObject::new("h1")
                .pod_cidr("fd10:244:0:1::/64")
                .pod_cidr("10.244.1.0/24")
                .add_internal_address(bed.hosts[0].v4()?)
                .add_internal_address(bed.hosts[0].v6()?),
            NodeObject::new("h2").pod_cidr("10.244.2.0/24").add_internal_address(v4),
            NodeObject::new("h3")
                .pod_cidr("fd10:244:0:3::/64")
                .add_internal_address(v6)
                .add_internal_address(bed.hosts[2].v6()?),
        ];
        nodes.iter().try_for_each(|node| bed.admin().create_node(node).map(drop))?;
        bed.start_ready_daemons()?;
        bed.create_pod_on_each_host("p1")?;
        let reach = |from: usize, to: std::net::IpAddr| -> Result<()> {
            wait_ping_answered(bed.pods[from].netns(), to)
        };
        reach(0, bed.pods[1].v4()?.into()).context("IPv4 of a peer without IPv6")?;
        reach(1, bed.pods[0].v4()?.into()).context("IPv4 from a node without IPv6")?;
        reach(0, bed.pods[2].v6()?.into()).context("IPv6 of a peer without IPv4")?;
        reach(2, bed.pods[0].v6()?.into()).context("IPv6 from a node without IPv4")?;
        for (host, has_v4, has_v6) in [(0, true, true), (1, true, false), (2, false, true)] {
            let env = bed.daemons[host].subnet_env()?;
            ensure!(
                env.subnet.is_some() == has_v4 && env.v6_subnet.is_some() == has_v6,
                "h{}: {env:?}",
                host + 1
            );
            ensure!(
                bed.admin().is_network_marked_available(bed.hosts[host].name()),
                "h{}",
                host + 1
            );
        }
        Ok(())
    })
}
