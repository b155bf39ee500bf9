//! Nodes that operators or other programs re-create, move, or restore from a snapshot.

use anyhow::{Context, Result, ensure};
use lab::{ANNOTATIONS, Answer, CniVersion, Lab, binaries, until, until_ok, wait_ping_answered};
use serde_json::json;

use crate::kube::testbed::{ApiTestbed, DUAL, VXLAN};

#[test]
fn node_changes_apply_soon_and_touch_no_other_peer() -> Result<()> {
    Lab::run("Node API: nodes", |lab| {
        let mut bed = ApiTestbed::populated_with_fake_api(lab, 2, VXLAN)?;
        let probe = bed.probe_first_to_second_pod()?;
        bed.require_recovery_after(
            "public-ip-overwrite, set and removed",
            require_public_ip_overwrite_followed,
        )?;
        bed.require_recovery_after(
            "a peer re-created with another podCIDR",
            recreate_peer_and_wait_tunnels,
        )?;
        bed.require_recovery_after(
            "the own Node gone and back",
            recreate_first_node_and_wait_ready,
        )?;
        bed.require_recovery_after(
            "a store restored from a snapshot",
            require_peers_after_store_restore,
        )?;
        probe.finish()?.require_clean()
    })
}

fn require_public_ip_overwrite_followed(bed: &mut ApiTestbed) -> Result<()> {
    let name = format!("{ANNOTATIONS}public-ip-overwrite");
    // The host has it as a second address, so that packets still arrive.
    let netns = bed.hosts[1].netns();
    netns.run_ip_batch("address add 192.168.56.222/24 dev enp0s8")?;
    for (value, public) in [(Some("192.168.56.222"), "192.168.56.222"), (None, "192.168.56.102")] {
        bed.admin().annotate("h2", &name, value)?;
        until_ok("h1 sends to the other address", || {
            let found = bed.tunnel_destination(0, "10.244.2.0/24")?;
            ensure!(found.as_deref() == Some(public), "{found:?}");
            Ok(())
        })?;
    }
    netns.run_ip_batch("address del 192.168.56.222/24 dev enp0s8").map(drop)
}

fn recreate_peer_and_wait_tunnels(bed: &mut ApiTestbed) -> Result<()> {
    let moved = bed.create_peer_node(41)?;
    bed.wait_tunnel_destinations("10.244.41.0/24", Some("192.168.57.41"))?;
    bed.admin().delete_node(&moved)?;
    // The subnet goes to another Node, and the Node's address to another subnet.
    let peer = |name: &str, third: u8, last: u8| {
        let node = lab::NodeObject::new(name).pod_cidr(&format!("10.244.{third}.0/24"));
        let node = node.add_vxlan_annotations(
            &format!("192.168.57.{last}"),
            &format!("02:00:00:00:44:{last}"),
        );
        bed.admin().create_node(&node)
    };
    peer("heir", 41, 42)?;
    peer(&moved, 43, 41)?;
    bed.wait_tunnel_destinations("10.244.41.0/24", Some("192.168.57.42"))?;
    bed.wait_tunnel_destinations("10.244.43.0/24", Some("192.168.57.41"))?;
    bed.admin().delete_node(&moved)?;
    bed.wait_tunnel_destinations("10.244.43.0/24", None)
}

fn recreate_first_node_and_wait_ready(bed: &mut ApiTestbed) -> Result<()> {
    let daemon = &bed.daemons[0];
    let env = daemon.subnet_env()?;
    bed.admin().delete_node("h1")?;
    until("it is not ready without its Node", || {
        daemon.get_health_endpoint("/readyz").is_ok_and(|(code, _)| code == 503)
    })?;
    bed.admin().create_node(&bed.node(1))?;
    until_ok("annotations and condition are back", || {
        let public = bed.admin().flannel_annotation("h1", "public-ip")?;
        ensure!(public.as_deref() == Some("192.168.56.101"), "{public:?}");
        ensure!(bed.admin().is_network_marked_available("h1"), "no condition");
        Ok(())
    })?;
    until("it is ready", || daemon.is_ready())?;
    ensure!(daemon.subnet_env()? == env, "subnet.env changed");
    Ok(())
}

fn require_peers_after_store_restore(bed: &mut ApiTestbed) -> Result<()> {
    let snapshot = bed.net_conf.with_file_name("restored.db");
    bed.create_peer_node(51)?;
    bed.wait_tunnel_destinations("10.244.51.0/24", Some("192.168.57.51"))?;
    bed.api.snapshot(&snapshot)?;
    bed.admin().delete_node("peer-51")?;
    bed.create_peer_node(52)?;
    bed.wait_tunnel_destinations("10.244.52.0/24", Some("192.168.57.52"))?;
    bed.api.restore_and_restart(&snapshot)?;
    // New revisions are lower than the one that the daemon knows, so a watch from there would stay silent.
    bed.create_peer_node(53)?;
    bed.wait_tunnel_destinations("10.244.51.0/24", Some("192.168.57.51"))?;
    bed.wait_tunnel_destinations("10.244.53.0/24", Some("192.168.57.53"))
}

#[test]
fn changed_own_pod_cidr_restarts_the_network_in_process() -> Result<()> {
    Lab::run("Node API: another podCIDR", |lab| {
        let mut bed = ApiTestbed::populated_with_fake_api(lab, 3, DUAL)?;
        let pid = bed.daemons[2].pid();
        let probe = bed.probe_first_to_second_pod()?;
        // A foreign address on the bridge of the pods.
        bed.hosts[2].netns().run_ip_batch("address add fd77::1/64 dev cni0 nodad")?;
        // Another Node gets its old subnet at once.
        bed.admin().delete_node("h3")?;
        bed.create_peer_node(3)?;
        create_h3_node_in_subnet(&bed, 33)?;
        wait_h3_moved_to_subnet(&bed, 3, 33)?;
        bed.wait_tunnel_destinations("10.244.3.0/24", Some("192.168.57.3"))?;
        for host in 0..2 {
            until("the others follow", || {
                bed.tunnel_destination(host, "10.244.33.0/24")
                    .is_ok_and(|to| to.as_deref() == Some("192.168.56.103"))
            })?;
        }
        let daemon = &mut bed.daemons[2];
        ensure!(daemon.is_running() && daemon.pid() == pid, "another process");
        ensure!(
            daemon.metric("flannel_bridge_addresses_removed_total")? == 2.0,
            "{}",
            daemon.get_health_endpoint("/metrics")?.1
        );
        // ADDs that read the former subnet.env put its gateways back.
        for late in ["10.244.3.1/24", "fd10:244:0:3::1/64"] {
            let netns = bed.hosts[2].netns();
            netns.run_ip_batch(&format!("address add {late} dev cni0"))?;
            until_ok("the former gateway is away", || {
                let left = netns.sh("ip address show dev cni0")?;
                ensure!(!left.contains(late), "{left}");
                Ok(())
            })?;
        }
        until_ok("an Event says so", || {
            let events = bed.admin().get("/api/v1/namespaces/default/events")?;
            let mut all = events["items"].as_array().into_iter().flatten();
            ensure!(all.any(|event| event["reason"] == "FlannelPodCIDRChanged"), "{events}");
            Ok(())
        })?;
        until("the condition is there", || bed.admin().is_network_marked_available("h3"))?;
        add_h3_pod_and_wait_reached(&bed)?;

        // The same happens while no daemon runs, and while it waits for a lease after it has read the files on the host.
        terminate_h3_daemon(&mut bed)?;
        bed.admin().delete_node("h3")?;
        create_h3_node_in_subnet(&bed, 34)?;
        bed.start_daemon_again(2)?;
        wait_h3_moved_to_subnet(&bed, 33, 34)?;

        terminate_h3_daemon(&mut bed)?;
        bed.set_proxy_answers(|call| match call.method.as_str() {
            "PATCH" => Answer::failure_status_reply(403, "Forbidden"),
            _ => Answer::Pass,
        });
        bed.admin().annotate("h3", &format!("{ANNOTATIONS}backend-data"), None)?;
        bed.daemons[2] = bed.hosts[2].start_flanneld(&bed.options[2])?;
        until("it waits", || bed.daemons[2].log().contains("waiting for a lease"))?;
        bed.admin().delete_node("h3")?;
        create_h3_node_in_subnet(&bed, 35)?;
        bed.set_proxy_answers(|_| Answer::Pass);
        wait_h3_moved_to_subnet(&bed, 34, 35)?;
        probe.finish()?.require_clean()
    })
}

fn terminate_h3_daemon(bed: &mut ApiTestbed) -> Result<()> {
    let daemon = &mut bed.daemons[2];
    ensure!(daemon.terminate()?.success(), "{}", daemon.log_tail(20));
    Ok(())
}

/// Other podCIDRs in the third host's Node.
fn create_h3_node_in_subnet(bed: &ApiTestbed, third: u8) -> Result<()> {
    let node = bed.node_with(3, &format!("10.244.{third}.0/24"));
    bed.admin().create_node(&node.pod_cidr(&format!("fd10:244:0:{third}::/64"))).map(drop)
}

/// Waits until the third host uses another subnet. Its devices have lost only the addresses of the previous one.
fn wait_h3_moved_to_subnet(bed: &ApiTestbed, before: u8, now: u8) -> Result<()> {
    let (daemon, netns) = (&bed.daemons[2], bed.hosts[2].netns());
    let gateway = format!("10.244.{now}.1/24");
    until("subnet.env has the new subnet", || {
        let subnet = daemon.subnet_env().ok().and_then(|env| env.subnet);
        subnet.is_some_and(|subnet| subnet.to_string() == gateway)
    })?;
    until("it is ready again", || daemon.is_ready()).with_context(|| daemon.log())?;
    let left = netns.sh("for d in cni0 flannel.1; do ip address show dev $d; ip route show dev $d; done; ip -6 route show dev cni0; ip link show master cni0")?;
    for old in [format!("inet 10.244.{before}."), format!("fd10:244:0:{before}::")] {
        ensure!(!left.contains(&old), "{old} is left: {left}");
    }
    for kept in ["fd77::1/64", "veth1"] {
        ensure!(left.contains(kept), "{kept} is gone: {left}");
    }
    Ok(())
}

/// Adds a pod on the third host, with the CNI plugin and the existing bridge. The first host's pod reaches it in both families.
fn add_h3_pod_and_wait_reached(bed: &ApiTestbed) -> Result<()> {
    let host = &bed.hosts[2];
    let folder = host.folder()?;
    let conf = json!({
        "name": "cbr0", "cniVersion": "1.0.0", "type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true},
        "subnetFile": host.subnet_file()?, "dataDir": folder.join("cni"), "ipam": {"dataDir": folder.join("ipam")},
    });
    let pod = host.create_empty_pod_netns("new")?;
    let cni = host.cni(
        &binaries::flannel_binary("flannel")?,
        &binaries::cni_plugins_folder(CniVersion::V111)?,
    );
    let result = cni.call("ADD", Some(&pod), "eth0", &conf)?.ok()?;
    let ips = result["ips"].as_array().context("no addresses")?;
    ensure!(ips.len() == 2, "{result}");
    for ip in ips {
        let net: ipnet::IpNet = ip["address"].as_str().context("no address")?.parse()?;
        wait_ping_answered(bed.pods[0].netns(), net.addr())?;
    }
    Ok(())
}
