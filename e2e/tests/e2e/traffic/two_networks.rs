//! Two daemons for two networks on one host. Each has its own chains and tables. A daemon refuses to start only if both need an object
//! that they cannot share.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    Flanneld, FlanneldOptions, Host, Launch, PingMatrix, Pod, Probe, ProbeOptions, Programs, Scene,
    SceneOptions, Store, Uplink, Xtables, binaries, until, until_ok,
};
use serde_json::{Value, json};

use crate::healing::scenarios;
use crate::rules::node::firewall_rules;

/// The network `10.<number>.0.0/16`.
fn net_conf_with_fields(number: u8, fields: &str) -> String {
    format!(r#"{{"Network":"10.{number}.0.0/16",{fields}}}"#)
}

fn vxlan_net_conf(number: u8, nftables: bool) -> String {
    let backend = format!(r#""Backend":{{"Type":"vxlan","VNI":{number}}}"#);
    net_conf_with_fields(number, &format!(r#""EnableNFTables":{nftables},{backend}"#))
}

/// Stopped nodes of network 50.
fn first_network_scene(nftables: bool, flags: &'static [&'static str]) -> SceneOptions<'static> {
    let scene =
        Scene::with_title("two networks").net(&vxlan_net_conf(50, nftables)).without_daemons();
    flags.iter().fold(scene, |scene, flag| scene.daemon_arg(flag))
}

/// The options of the first node, with another store and health port.
fn configure_second_network(
    s: &Scene<'_>,
    net_conf: &str,
    flags: &[&str],
) -> Result<FlanneldOptions> {
    let store = Store::dir(&s.lab.ensure_folder("leases-51")?);
    store.configure(net_conf)?;
    let options = FlanneldOptions::new(&store).iface("enp0s8").second("net51");
    let options = flags.iter().fold(options, |options, flag| options.arg(flag));
    Ok(options.healthz_port(Some(8051)))
}

/// The second network's daemon and its pod.
fn join_second_network(node: &Host, options: &FlanneldOptions) -> Result<(Flanneld, Pod)> {
    let daemon = node.start_flanneld_and_wait_ready(options)?;
    let env = daemon.subnet_env()?;
    let pod = node.create_pod("p51", &env)?;
    // The lab has one bridge per host, which is the gateway of both networks.
    let gateway = env.subnet.context("no subnet")?;
    node.netns().sh(&format!("ip address replace {gateway} dev cni0"))?;
    Ok((daemon, pod))
}

scenarios! { restarts_lose_nothing;
    two_networks_lose_nothing_with_iptables => (false, Xtables::Nft),
    two_networks_lose_nothing_with_iptables_legacy => (false, Xtables::Legacy),
    two_networks_lose_nothing_with_nftables => (true, Xtables::Nft),
}

/// Each daemon of the first host restarts, by SIGTERM and by SIGKILL. Neither network loses packets, and no daemon writes rules.
fn restarts_lose_nothing((nftables, xtables): (bool, Xtables)) -> Result<()> {
    const FLAGS: [&str; 2] = ["--ip-masq", "--iptables-resync=1"];
    first_network_scene(nftables, &FLAGS).run(|s| {
        let path = Programs::with_both_iptables_variants(s.lab, "programs", xtables)?.path();
        let iptables = if xtables == Xtables::Legacy { "iptables-legacy" } else { "iptables" };
        for node in &mut s.nodes {
            node.change_options(|options| options.env("PATH", &path));
            node.sh(&format!("{iptables} -P FORWARD DROP"))?;
            if nftables {
                // A packet that nftables accepts still passes iptables, where the rules are the operator's task.
                node.sh("iptables -A FORWARD -s 10.50.0.0/15 -j ACCEPT; iptables -A FORWARD -d 10.50.0.0/15 -j ACCEPT")?;
            }
        }
        let outside = s.lab.create_host("outside", &[Uplink::enp0s8(&s.lan, 50)?])?;
        s.start_daemons_and_connected_pods()?;
        let options = configure_second_network(s, &vxlan_net_conf(51, nftables), &FLAGS)?.env("PATH", &path);
        let (mut daemon, here) = join_second_network(&s[0], &options)?;
        let (_far, there) = join_second_network(&s[1], &options)?;
        // A ready daemon need not know yet the lease of a node that came later.
        until_ok("pods of the second network reach each other", || {
            PingMatrix::of_main_addresses(&[here.clone(), there.clone()])?.require_complete()
        })?;
        // To the other host's pod, and through masquerade rules to a machine outside. Each packet is a connection.
        let each = ProbeOptions::default().interval(Duration::from_millis(10)).new_port_per_packet();
        let masqueraded = each.clone().seen_as(IpAddr::V4(s[0].v4()?));
        let mut probes = Vec::new();
        for (here, there) in [(&s[0].pods[0], &s[1].pods[0]), (&here, &there)] {
            let from = (here.netns(), here.address()?);
            probes.push(Probe::start_between_addresses(from, (there.netns(), there.address()?), &each)?);
            probes.push(Probe::start_between_addresses(from, (outside.netns(), outside.v4()?.into()), &masqueraded)?);
        }
        let flow = || probes.iter().try_for_each(|probe| probe.wait_flowing().map(drop));
        flow()?;
        let before = firewall_rules(&s[0])?;
        let second = if nftables { "flannel-ipv4-1" } else { "FLANNEL-POSTRTG-1" };
        ensure!(before.contains(second), "{before}");
        for is_killed in [false, true] {
            if is_killed {
                s[0].kill_daemon()?;
                daemon.kill()?;
            } else {
                s[0].stop_daemon()?;
                ensure!(daemon.terminate()?.success(), "{}", daemon.log_tail(10));
            }
            s.start_daemons()?;
            flow()?;
            daemon = s[0].start_flanneld_and_wait_ready(&options)?;
            flow()?;
        }
        for daemon in [s[0].daemon()?, &daemon] {
            // It has checked its rules three times.
            until("it checks its rules", || daemon.metric("flannel_uptime_seconds").is_ok_and(|now| now >= 4.0))?;
            ensure!(daemon.metric("flannel_rule_writes_total")? == 0.0 && daemon.errors().is_empty(), "{}", daemon.log_tail(30));
        }
        ensure!(firewall_rules(&s[0])? == before, "{before}\n{}", firewall_rules(&s[0])?);
        s.require_no_errors()?;
        probes.into_iter().try_for_each(|probe| probe.finish()?.require_clean())
    })
}

/// Two daemons cannot share the object. The second one reports the owner's pid and network, and the first one continues without an error.
#[test]
fn daemon_is_refused_when_another_owns_its_resource() -> Result<()> {
    let vxlan = |vni: u8, more: &str| format!(r#""Backend":{{"Type":"vxlan","VNI":{vni}{more}}}"#);
    let udp = |more: &str| format!(r#""Backend":{{"Type":"udp"{more}}}"#);
    let userspace = |more: &str| vxlan(2, &format!(r#","Mode":"userspace"{more}"#));
    let conflicts = [
        (vxlan(1, ""), net_conf_with_fields(51, &vxlan(1, "")), "VNI 1 on UDP port 8472"),
        (
            vxlan(1, ""),
            net_conf_with_fields(51, &vxlan(1, r#","Port":4789"#)),
            "the device flannel.1",
        ),
        (vxlan(1, ""), net_conf_with_fields(51, &userspace("")), "UDP port 8472"),
        (userspace(r#","Port":8285"#), net_conf_with_fields(51, &udp("")), "UDP port 8285"),
        (udp(""), net_conf_with_fields(51, &udp(r#","Port":8286"#)), "the device flannel0"),
        // One network cannot be served twice, not even by another backend.
        (
            r#""Backend":{"Type":"host-gw"}"#.to_owned(),
            net_conf_with_fields(50, &vxlan(1, "")),
            "the rules for 10.50.0.0/16",
        ),
    ];
    Scene::with_title("refused").nodes(1).without_daemons().run(|s| {
        for (one, two, what) in &conflicts {
            s.store.configure(&net_conf_with_fields(50, one))?;
            s[0].start_daemon()?;
            let mut two = s[0].start_flanneld(&configure_second_network(s, two, &[])?)?;
            let (code, log) = (two.wait()?.code(), two.log());
            let pid = format!("(pid {}, flanneld, network 10.50.0.0/16)", s[0].daemon()?.pid());
            ensure!(
                code == Some(1) && log.contains(what) && log.contains(&pid),
                "{what} {code:?} {log}"
            );
            s[0].require_ready()?;
            s.require_no_errors()?;
            s[0].stop_daemon()?;
        }
        Ok(())
    })
}

fn node_document(daemon: &Flanneld) -> Result<Value> {
    Ok(serde_json::from_str(&daemon.get_status_api("/api/v1/node")?.1)?)
}

/// The tunnel of a second network needs the port of the first one's probes. The tunnel takes precedence, and the doctor names the port's owner.
#[test]
fn probe_port_is_released_when_a_tunnel_needs_it() -> Result<()> {
    first_network_scene(false, &[]).run(|s| {
        s.start_daemons()?;
        let is_probed = |s: &Scene<'_>| {
            s.check_each_node(|node| {
                node.wait_metric_value("flannel_probe_peers{state=\"well\"}", 1.0)
            })
        };
        is_probed(s)?;
        let conf = net_conf_with_fields(51, r#""Backend":{"Type":"vxlan","VNI":51,"Port":8473}"#);
        let options =
            configure_second_network(s, &conf, &["--probe-port=8573", "--status-port=8574"])?;
        let twos = s
            .nodes
            .iter()
            .map(|node| join_second_network(node, &options))
            .collect::<Result<Vec<_>>>()?;
        let pods: Vec<Pod> = twos.iter().map(|(_, pod)| pod.clone()).collect();
        until_ok("the second network's packets pass", || {
            PingMatrix::of_main_addresses(&pods)?.require_complete()
        })?;
        for (node, (two, _)) in s.nodes.iter().zip(&twos) {
            until_ok("the doctor names the owner of the port", || {
                let document = node_document(node.daemon()?)?;
                let owner = format!("pid {}, flanneld, network 10.51.0.0/16", two.pid());
                let findings = document["findings"].as_array().into_iter().flatten();
                let taken: Vec<_> =
                    findings.filter(|finding| finding["check"] == "port-taken").collect();
                ensure!(
                    taken.len() == 1
                        && taken[0]["evidence"][0]["text"].to_string().contains(&owner),
                    "{taken:?}"
                );
                Ok(())
            })?;
            // Peers are still probed by ping.
            node.require_ready()?;
        }
        is_probed(s)?;
        // Without the tunnel and its device the port is free again.
        drop(twos);
        s.check_each_node(|node| node.sh("ip link delete flannel.51").map(drop))?;
        s.check_each_node(|node| {
            until_ok("the first network probes by UDP again", || {
                let mesh = &node_document(node.daemon()?)?["mesh"];
                let peer = &mesh["peers"][0];
                ensure!(
                    mesh["problems"] == json!([])
                        && peer["state"] == "well"
                        && peer["ping_only"] == false,
                    "{mesh}"
                );
                Ok(())
            })
        })
    })
}

scenarios! { guard_admits_peers_of_all_networks_on_its_port;
    iptables_guard_admits_peers_of_all_networks_on_its_port => false,
    nftables_guard_admits_peers_of_all_networks_on_its_port => true,
}

/// Some nodes join later. Network 50 has the first two nodes, and network 51 the first and the third one.
fn guard_admits_peers_of_all_networks_on_its_port(nftables: bool) -> Result<()> {
    const GUARD: [&str; 2] = ["--encap-peers=drop", "--iptables-resync=1"];
    first_network_scene(nftables, &GUARD).nodes(3).run(|s| {
        for number in 0..2 {
            s[number].start_daemon()?;
            s[number].create_pod("p1")?;
        }
        let guarded = configure_second_network(s, &vxlan_net_conf(51, nftables), &GUARD)?;
        let (mut daemon, here) = join_second_network(&s[0], &guarded)?;
        let (_far, there) = join_second_network(&s[2], &guarded)?;
        let pairs = [[s[1].pods[0].clone(), s[0].pods[0].clone()], [there, here]];
        let is_admitted = || {
            pairs.iter().try_for_each(|pair| {
                until_ok("nodes of both networks are admitted", || {
                    PingMatrix::of_main_addresses(pair)?.require_complete()
                })
            })
        };
        is_admitted()?;
        // The rules do not change once each daemon knows all of its peers.
        let now = firewall_rules(&s[0])?;
        ensure!(
            now.contains("192.168.56.102")
                && now.contains("192.168.56.103")
                && !now.contains("192.168.56.199"),
            "{now}"
        );
        // The second network continues without a guard. The first one's guard still admits both.
        daemon.kill()?;
        daemon = s[0].start_flanneld_and_wait_ready(&configure_second_network(
            s,
            &vxlan_net_conf(51, nftables),
            &GUARD[1..],
        )?)?;
        let left = if nftables { "chain encap-in" } else { "chain FLANNEL-ENCAP" };
        until("one guard is left", || {
            firewall_rules(&s[0]).is_ok_and(|now| now.matches(left).count() == 1)
        })?;
        is_admitted()?;
        ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
        s.require_no_errors()
    })
}

scenarios! { cleanup_leaves_the_other_network_alone;
    cleanup_leaves_the_other_network_alone_with_iptables => false,
    cleanup_leaves_the_other_network_alone_with_nftables => true,
}

/// flannelctl refuses a cleanup while the network's daemon runs. After its end, cleanup removes all objects of the network, and the other one loses
/// nothing.
fn cleanup_leaves_the_other_network_alone(nftables: bool) -> Result<()> {
    const FLAGS: [&str; 4] =
        ["--ip-masq", "--iptables-resync=1", "--encap-peers=count", "--ip-blackhole-route"];
    first_network_scene(nftables, &FLAGS).run(|s| {
        s.start_daemons()?;
        let options = configure_second_network(s, &vxlan_net_conf(51, nftables), &FLAGS)?;
        let (mut daemon, _far) = (
            s[0].start_flanneld_and_wait_ready(&options)?,
            s[1].start_flanneld_and_wait_ready(&options)?,
        );
        s.wait_leases_applied()?;
        let has = |s: &Scene<'_>, network: &str| {
            let routes =
                s[0].sh("ip route show; ip -d link show type vxlan; ip route show type blackhole")?;
            Ok::<_, anyhow::Error>((firewall_rules(&s[0])? + &routes).contains(network))
        };
        let cleanup = |s: &Scene<'_>| {
            let file = format!(
                "--subnet-file={}",
                s[0].subnet_file()?.with_file_name("net51.env").display()
            );
            let launch =
                Launch::new(binaries::flannel_binary("flannelctl")?).args(["cleanup", &file]);
            let mut process = s[0].spawn("cleanup", &launch)?;
            Ok::<_, anyhow::Error>((process.wait()?.success(), process.log()))
        };
        let (is_done, output) = cleanup(s)?;
        ensure!(!is_done && output.contains(&format!("(pid {}", daemon.pid())), "{output}");
        ensure!(daemon.terminate()?.success() && has(s, "10.50.")? && has(s, "10.51.")?);
        let (is_done, output) = cleanup(s)?;
        ensure!(is_done && output.contains(&format!("(pid {}", s[0].daemon()?.pid())), "{output}");
        ensure!(
            output.contains("removed device flannel.51") && !output.contains("flannel.50"),
            "{output}"
        );
        ensure!(has(s, "10.50.")? && !has(s, "10.51.")?, "{output}");
        s.wait_leases_applied()?;
        s[0].wait_metric_value("flannel_kernel_repairs_total", 0.0)?;
        ensure!(s[0].metric_or_zero("flannel_rule_repairs_total") == 0.0, "{output}");
        s.require_no_errors()
    })
}
