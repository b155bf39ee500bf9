//! Tests of changes to the network configuration that pods mount: a correction while nodes wait, a change during use, and a Node-by-Node migration.

use anyhow::{Context, Result, ensure};
use lab::{Answer, Call, Lab, NodeObject, until, until_ok};

use crate::kube::bed::{Bed, DUAL, VXLAN};

/// Returns the network configuration with other pod network ranges, as for a cluster that migrates.
fn elsewhere(net_conf: &str) -> String {
    net_conf
        .replace("10.244.0.0/16", "10.42.0.0/16")
        .replace("fd10:244::/48", "fd10:42::/48")
}

/// Starts a daemon on each of three nodes with an unusable network configuration, and corrects the configuration.
fn corrected(title: &str, wrong: &str, right: &str) -> Result<()> {
    Lab::run(title, |lab| {
        let mut bed = Bed::empty(lab, 3, wrong)?;
        for number in 1..=3 {
            bed.admin().create_node(&bed.node(number))?;
        }
        bed.daemons = bed
            .hosts
            .iter()
            .zip(&bed.options)
            .map(|(host, options)| host.start_flanneld(options))
            .collect::<Result<_>>()?;
        for daemon in &bed.daemons {
            until("it says that it waits", || {
                daemon.log().contains("is not inside the Network")
            })
            .with_context(|| daemon.log())?;
        }
        std::fs::write(&bed.net_conf, right)?;
        for daemon in &mut bed.daemons {
            daemon.wait_ready()?;
        }
        bed.start_pods()?;
        bed.reach()?;
        for daemon in &mut bed.daemons {
            ensure!(
                daemon.is_running() && !daemon.log().contains("does not use"),
                "{}",
                daemon.log()
            );
        }
        Ok(())
    })
}

#[test]
fn network_corrected_while_nodes_wait_connects_all_nodes() -> Result<()> {
    corrected("Node API: a wrong Network", &elsewhere(VXLAN), VXLAN)
}

#[test]
fn family_added_while_nodes_wait_connects_all_nodes() -> Result<()> {
    corrected("Node API: a family is added", &elsewhere(VXLAN), DUAL)
}

#[test]
fn range_migrated_node_by_node_connects_all_nodes_without_restart() -> Result<()> {
    Lab::run("Node API: another range", |lab| {
        let mut bed = Bed::start(lab, 3, DUAL)?;
        let pids: Vec<u32> = bed.daemons.iter().map(|daemon| daemon.pid()).collect();
        std::fs::write(&bed.net_conf, elsewhere(DUAL))?;
        for daemon in &bed.daemons {
            until("it tells that the file has changed", || {
                daemon
                    .log()
                    .contains("has changed; a restart applies the change")
            })?;
        }
        for number in 1..=3 {
            let name = format!("h{number}");
            bed.admin().delete_node(&name)?;
            let host = &bed.hosts[number - 1];
            let node = NodeObject::new(&name)
                .pod_cidr(&format!("10.42.{number}.0/24"))
                .pod_cidr(&format!("fd10:42:0:{number}::/64"));
            bed.admin()
                .create_node(&node.internal(host.v4()?).internal(host.v6()?))?;
            let daemon = &bed.daemons[number - 1];
            until_ok("it serves the new range", || {
                let env = daemon.subnet_env()?;
                ensure!(
                    env.subnet
                        .is_some_and(|subnet| subnet.to_string() == format!("10.42.{number}.1/24")),
                    "{env:?}"
                );
                ensure!(daemon.is_ready(), "not ready");
                Ok(())
            })
            .with_context(|| daemon.log())?;
        }
        let pods = bed
            .hosts
            .iter()
            .zip(&bed.daemons)
            .map(|(host, daemon)| host.pod("p2", &daemon.subnet_env()?));
        bed.pods = pods.collect::<Result<_>>()?;
        bed.reach()?;
        for ((host, daemon), pid) in bed.hosts.iter().zip(&mut bed.daemons).zip(pids) {
            ensure!(
                daemon.is_running() && daemon.pid() == pid,
                "{}: another process",
                host.name()
            );
            let times = daemon
                .log()
                .matches("has changed; a restart applies the change")
                .count();
            ensure!(
                times == 1,
                "{}: logged {times} times\n{}",
                host.name(),
                daemon.log()
            );
            until_ok("nothing of the old range is left", || {
                // The bridge's neighbours are left out, because they belong to the old pods.
                let neighbours =
                    "ip neighbour show dev flannel.1; ip neighbour show dev flannel-v6.1";
                let all = host.netns().sh(&format!(
                    "ip address; ip route; ip -6 route; {neighbours}; iptables-save; ip6tables-save"
                ))?;
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
        let bed = Bed::empty(lab, 1, VXLAN)?;
        bed.admin().create_node(&bed.node(1))?;
        // The node's interface appears late, and the API server refuses annotations at first.
        let host = &bed.hosts[0];
        bed.proxies.iter().for_each(|proxy| {
            proxy.on(|call: &Call| {
                if call.method == "PATCH" {
                    Answer::status(403, "Forbidden")
                } else {
                    Answer::Pass
                }
            });
        });
        let mut daemon = host.start_flanneld(&bed.options[0].clone().iface("late0"))?;
        until("it waits for its interface", || {
            daemon.log().contains("late0")
        })
        .with_context(|| daemon.log())?;
        std::fs::write(&bed.net_conf, DUAL)?;
        until("it takes the second family", || {
            daemon
                .log()
                .contains("network=\"10.244.0.0/16 and fd10:244::/48\"")
        })
        .with_context(|| daemon.log())?;
        host.netns().ip("link add late0 link enp0s8 type macvlan mode bridge\naddress add 192.168.56.201/24 dev late0\n\
             address add fd00:56::201/64 dev late0 nodad\nlink set late0 up")?;
        until("it waits for the right to publish", || {
            daemon.log().contains("waiting for a lease")
        })
        .with_context(|| daemon.log())?;
        std::fs::write(
            &bed.net_conf,
            DUAL.replace(r#""vxlan""#, r#""vxlan","VNI":7"#),
        )?;
        until("it takes the other VNI", || {
            daemon
                .log()
                .matches("restarting this node's network")
                .count()
                == 2
        })
        .with_context(|| daemon.log())?;
        bed.proxies.iter().for_each(lab::Proxy::pass);
        daemon.wait_ready()?;
        let env = daemon.subnet_env()?;
        ensure!(env.subnet.is_some() && env.v6_subnet.is_some(), "{env:?}");
        let data = bed
            .admin()
            .flannel_annotation("h1", "backend-data")?
            .unwrap_or_default();
        ensure!(data.contains(r#""VNI":7"#), "{data}");
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
        let bed = Bed::start(lab, 1, VXLAN)?;
        let is_event = |call: &Call| call.method == "POST" && call.path.contains("/events");
        bed.proxies.iter().for_each(|proxy| {
            proxy.on(move |call: &Call| {
                if is_event(call) {
                    Answer::Silence
                } else {
                    Answer::Pass
                }
            });
        });
        bed.admin().delete_node("h1")?;
        bed.admin().create_node(
            &NodeObject::new("h1")
                .pod_cidr("10.244.33.0/24")
                .internal(bed.hosts[0].v4()?),
        )?;
        let daemon = &bed.daemons[0];
        // This deadline is shorter than the time after which the client gives up the Event.
        until("it serves the other podCIDR", || {
            daemon.subnet_env().is_ok_and(|env| {
                env.subnet
                    .is_some_and(|subnet| subnet.to_string() == "10.244.33.1/24")
            }) && daemon.is_ready()
        })
        .with_context(|| daemon.log())?;
        until("the Event was posted", || {
            bed.proxies
                .iter()
                .any(|proxy| proxy.calls().iter().any(is_event))
        })
        .map(drop)
    })
}
