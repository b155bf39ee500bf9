//! Peers follow changes of a node's address, and a node follows changes of its network and of its device's name.

pub(crate) mod admission;
pub(crate) mod bad_peers;
pub(crate) mod directory;
pub(crate) mod etcd;
pub(crate) mod go_like;
pub(crate) mod golden;
pub(crate) mod ownership;

use anyhow::{Result, ensure};
use lab::{FlanneldOptions, Node, Scene, SceneOptions};

use crate::healing::scenarios;

const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#;

/// Gives the node a new address as an operator or DHCP does.
fn change_node_address(node: &Node, old: &str, new: &str, new_first: bool) -> Result<()> {
    let add = format!("address add 192.168.56.{new}/24 dev enp0s8");
    let delete = format!("address del 192.168.56.{old}/24 dev enp0s8");
    let batch = if new_first { [add, delete] } else { [delete, add] };
    node.netns().run_ip_batch(&batch.join("\n")).map(drop)
}

#[test]
fn changed_address_reaches_the_peers() -> Result<()> {
    Scene::with_title("readdressed").etcd().run(|s| {
        // Without promote_secondaries the kernel drops an interface's other addresses with the first one.
        s[0].netns().sysctl("net/ipv4/conf/all/promote_secondaries", "1")?;
        let etcd = s.etcd.as_ref().unwrap().client_on_first_member()?;
        for (old, new, new_first) in [("101", "51", false), ("51", "52", true), ("52", "53", false)] {
            change_node_address(&s[0], old, new, new_first)?;
            s[1].wait_output_contains("bridge fdb show dev flannel.1", &format!("dst 192.168.56.{new} "))?;
            s.wait_first_pods_connected()?;
            s[0].wait_log_contains(&format!("publishes 192.168.56.{new} instead of 192.168.56.{old}"))?;
            let entry = etcd.get(&s.store.key(&format!("subnets/{}", s[0].lease_name()?)))?;
            ensure!(entry.is_some_and(|entry| entry.lease != 0), "the lease became a reservation");
        }
        // The node is not ready as long as it cannot publish its address.
        let switch = s.lan.netns();
        let cut = "table bridge cut { chain c { type filter hook forward priority 0; tcp dport 2379 drop; }; }";
        switch.exec_with_input("nft", &["-f", "-"], cut)?;
        change_node_address(&s[0], "53", "77", false)?;
        lab::until("the node is not ready", || {
            let page = s[0].get_health_endpoint("/readyz");
            page.is_ok_and(|(code, body)| code == 503 && body.contains("192.168.56.77") && body.contains("192.168.56.53"))
        })?;
        switch.exec("nft", &["delete", "table", "bridge", "cut"])?;
        s[1].wait_output_contains("bridge fdb show dev flannel.1", "dst 192.168.56.77 ")?;
        s.wait_first_pods_connected()?;
        lab::until("the node is ready again", || s[0].require_ready().is_ok()).map(drop)
    })
}

#[test]
fn a_changed_network_leaves_nothing_of_the_old_one() -> Result<()> {
    Scene::with_title("a changed network").net(DUAL).run(|s| {
        ensure!(s[0].devices()?.contains(&"flannel-v6.1".to_owned()), "{:?}", s[0].devices()?);
        // Objects of an operator: outside both networks, or in a form that the daemon does not use.
        s[0].netns().run_ip_batch("address add 10.98.0.1/24 dev flannel.1\nroute add 10.97.0.0/16 dev flannel.1 proto static\nroute add 10.5.200.0/24 dev enp0s8 proto static")?;
        s.store.configure(r#"{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}"#)?;
        for node in &mut s.nodes {
            node.stop_daemon()?;
        }
        s.start_daemons()?;
        let held = "ip address show dev flannel.1; ip route show; ip neighbour show dev flannel.1";
        s[0].wait_output_contains(held, "10.6.")?;
        lab::until_ok("nothing of the old network is left", || {
            let held = s[0].sh(held)?;
            ensure!(!held.lines().any(|line| line.contains("10.5.") && line.contains("flannel.1")), "{held}");
            ensure!(s[0].devices()? == ["flannel.1"], "{:?}", s[0].devices()?);
            Ok(())
        })?;
        ["10.98.0.1/24", "10.97.0.0/16", "10.5.200.0/24"].iter().try_for_each(|theirs| s[0].wait_output_contains(held, theirs))
    })
}

scenarios! { renamed_device_gets_its_name_back;
    a_renamed_vxlan_device_gets_its_name_back => (Scene::with_title("renamed vxlan"), "flannel.1"),
    a_renamed_tun_device_of_vxlan_gets_its_name_back =>
        (Scene::with_title("renamed TUN vxlan").net(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","Mode":"userspace"}}"#), "flannel.1"),
    a_renamed_tun_device_of_udp_gets_its_name_back =>
        (Scene::with_title("renamed TUN udp").net(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}"#), "flannel0"),
}

fn renamed_device_gets_its_name_back((scene, device): (SceneOptions<'_>, &str)) -> Result<()> {
    scene.run(|s| {
        let is_back = |s: &Scene<'_>| {
            s[0].wait_output_contains("ip -o link", &format!(": {device}: "))?;
            s.wait_first_pods_connected()?;
            let links = s[0].sh("ip -o link")?;
            ensure!(!links.contains("other"), "{links}");
            Ok(())
        };
        // The daemon may rename the device back between two of the commands.
        s[0].sh(&format!("ip link set {device} down; ip link set {device} name other7; ip link set other7 up || true"))?;
        is_back(s)?;
        s[0].sh(&format!("ip link set {device} name other8"))?;
        is_back(s)?;
        s[0].stop_daemon()?;
        s[0].sh(&format!("! ip link show {device} || ip link set {device} name other9"))?;
        s[0].start_daemon()?;
        is_back(s)
    })
}

/// A machine that boots with another identity asks on its link, where the other node answers and nobody has its address.
#[test]
fn reborn_machine_takes_its_lease_at_once() -> Result<()> {
    Scene::with_title("reborn").etcd().run(|s| {
        let subnet = s[0].subnet()?;
        s[0].kill_daemon()?;
        let files = s[0].subnet_file()?.with_file_name("*");
        s[0].sh(&format!("ip link delete flannel.1; rm -rf {}", files.display()))?;
        s[0].change_options(|options| options.arg("--node-id=reborn"));
        s[0].start_daemon()?;
        ensure!(s[0].subnet()? == subnet, "another subnet");
        s[0].wait_log_contains("the lease has no holder")?;
        s.wait_first_pods_connected()?;
        // A second machine with the address is told apart by the answers on the link.
        let twin = s.lab.create_host("twin", &[lab::Uplink::enp0s8(&s.lan, 1)?])?;
        let mut refused = twin.start_flanneld(
            &FlanneldOptions::new(&s.store).iface("enp0s8").arg("--node-id=twin"),
        )?;
        ensure!(refused.wait()?.code() == Some(1), "{}", refused.log());
        Ok(())
    })
}

#[test]
fn garbage_in_a_directory_is_reported() -> Result<()> {
    Scene::with_title("garbage").nodes(1).without_pods().run(|s| {
        s.put(&s[0].lease_name()?, "{garbage")?;
        let is_back = || {
            Ok::<_, anyhow::Error>(
                s.store.lease_names_and_values()?[0].1.contains("192.168.56.101"),
            )
        };
        lab::until("the lease is restored", || is_back().unwrap_or(false))?;
        s[0].wait_log_contains("unreadable value")?;
        ensure!(!s[0].daemon()?.log().contains("deleted"), "nothing was deleted");
        s[0].require_ready()
    })
}
