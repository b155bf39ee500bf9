//! Tests of changes to the network configuration that pods mount: a correction while nodes wait, a change during use, and a Node-by-Node migration.

use anyhow::{Context, Result, ensure};
use lab::{Answer, Call, Flanneld, Lab, until, until_ok};

use crate::kube::testbed::{ApiTestbed, DUAL, VXLAN};

/// Other pod network ranges, as for a cluster that migrates.
fn with_other_pod_networks(net_conf: &str) -> String {
    net_conf.replace("10.244.", "10.42.").replace("fd10:244::", "fd10:42::")
}

fn wait_until_logged(daemon: &Flanneld, text: &str) -> Result<()> {
    let told = until(&format!("it logs {text:?}"), || daemon.log().contains(text));
    told.with_context(|| daemon.log()).map(drop)
}

/// Waits until a daemon is ready in a subnet with this gateway.
fn wait_ready_with_gateway(daemon: &Flanneld, gateway: &str) -> Result<()> {
    until_ok(&format!("it serves {gateway}"), || {
        let env = daemon.subnet_env()?;
        ensure!(env.subnet.is_some_and(|subnet| subnet.to_string() == gateway), "{env:?}");
        ensure!(daemon.is_ready(), "not ready");
        Ok(())
    })
    .with_context(|| daemon.log())
}

#[test]
fn network_and_family_corrected_while_nodes_wait_connect_all_nodes() -> Result<()> {
    Lab::run("Node API: a wrong Network", |lab| {
        let mut bed = ApiTestbed::with_fake_api(lab, 2, &with_other_pod_networks(VXLAN))?;
        for number in 1..=2 {
            bed.admin().create_node(&bed.node(number))?;
        }
        bed.launch_daemons()?;
        bed.daemons
            .iter()
            .try_for_each(|daemon| wait_until_logged(daemon, "is not inside the Network"))?;
        std::fs::write(&bed.net_conf, DUAL)?;
        bed.wait_daemons_ready()?;
        bed.start_connected_pods("p1")
    })
}

#[test]
fn range_migrated_node_by_node_connects_all_nodes_without_restart() -> Result<()> {
    const CHANGED: &str = "has changed; a restart applies the change";
    Lab::run("Node API: another range", |lab| {
        let mut bed = ApiTestbed::populated_with_fake_api(lab, 2, DUAL)?;
        std::fs::write(&bed.net_conf, with_other_pod_networks(DUAL))?;
        bed.daemons.iter().try_for_each(|daemon| wait_until_logged(daemon, CHANGED))?;
        for number in 1..=2 {
            bed.admin().delete_node(&format!("h{number}"))?;
            let node = bed.node_with(number, &format!("10.42.{number}.0/24"));
            bed.admin().create_node(&node.pod_cidr(&format!("fd10:42:0:{number}::/64")))?;
            wait_ready_with_gateway(&bed.daemons[number - 1], &format!("10.42.{number}.1/24"))?;
        }
        bed.start_connected_pods("p2")?;
        for (host, daemon) in bed.hosts.iter().zip(&mut bed.daemons) {
            ensure!(
                daemon.is_running() && daemon.log().matches(CHANGED).count() == 1,
                "{}",
                daemon.log()
            );
            until_ok("nothing of the old range is left", || {
                // The bridge's neighbours are left out, because they belong to the old pods.
                let all = host.netns().sh("ip address; ip route; ip -6 route; ip neighbour show dev flannel.1; ip neighbour show dev flannel-v6.1; iptables-save; ip6tables-save")?;
                let left: Vec<&str> = all
                    .lines()
                    .filter(|line| line.contains("10.244.") || line.contains("fd10:244:"))
                    .collect();
                ensure!(left.is_empty(), "{}: {left:#?}", host.name());
                Ok(())
            })?;
        }
        Ok(())
    })
}

#[test]
fn configuration_changed_while_a_node_waits_for_its_lease_applies() -> Result<()> {
    Lab::run("Node API: changed while it waits", |lab| {
        let bed = ApiTestbed::with_fake_api(lab, 1, VXLAN)?;
        bed.admin().create_node(&bed.node(1))?;
        // The node's interface appears late, and the API server refuses annotations at first.
        bed.set_proxy_answers(|call| match call.method.as_str() {
            "PATCH" => Answer::failure_status_reply(403, "Forbidden"),
            _ => Answer::Pass,
        });
        let host = &bed.hosts[0];
        let mut daemon = host.start_flanneld(&bed.options[0].clone().iface("late0"))?;
        wait_until_logged(&daemon, "late0")?;
        std::fs::write(&bed.net_conf, DUAL)?;
        wait_until_logged(&daemon, "10.244.0.0/16 and fd10:244::/48")?;
        host.netns().run_ip_batch("link add late0 link enp0s8 type macvlan mode bridge\naddress add 192.168.56.201/24 dev late0\n\
             address add fd00:56::201/64 dev late0 nodad\nlink set late0 up")?;
        wait_until_logged(&daemon, "waiting for a lease")?;
        std::fs::write(&bed.net_conf, DUAL.replace(r#""vxlan""#, r#""vxlan","VNI":7"#))?;
        until("it takes the other VNI", || {
            daemon.log().matches("restarting this node's network").count() == 2
        })?;
        bed.set_proxy_answers(|_| Answer::Pass);
        daemon.wait_ready()?;
        let env = daemon.subnet_env()?;
        ensure!(env.subnet.is_some() && env.v6_subnet.is_some(), "{env:?}");
        let data = bed.admin().flannel_annotation("h1", "backend-data")?;
        ensure!(data.as_ref().is_some_and(|data| data.contains(r#""VNI":7"#)), "{data:?}");
        ensure!(
            host.netns().link("flannel.1")?.is_none(),
            "the device of the configuration before is left"
        );
        Ok(())
    })
}

#[test]
fn unanswered_event_delays_no_lease() -> Result<()> {
    Lab::run("Node API: silent Events", |lab| {
        let bed = ApiTestbed::populated_with_fake_api(lab, 1, VXLAN)?;
        let is_event = |call: &Call| call.method == "POST" && call.path.contains("/events");
        bed.set_proxy_answers(
            move |call| if is_event(call) { Answer::Silence } else { Answer::Pass },
        );
        bed.admin().delete_node("h1")?;
        bed.admin().create_node(&bed.node_with(1, "10.244.33.0/24"))?;
        wait_ready_with_gateway(&bed.daemons[0], "10.244.33.1/24")?;
        until("the Event was posted", || bed.proxies[0].calls().iter().any(is_event)).map(drop)
    })
}
