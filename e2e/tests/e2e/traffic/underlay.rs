//! A daemon's readiness follows events of the underlay interface: removal and return, and changes of state, carrier and address.

use anyhow::{Context, Result, ensure};
use lab::{FlanneldOptions, Node, Scene, Uplink, until_ok, wait_pods_connected};

use crate::healing::scenarios;

scenarios! { readiness_follows_the_underlay;
    readiness_follows_the_underlay_of_vxlan => "vxlan",
    readiness_follows_the_underlay_of_udp => "udp",
}

scenarios! { small_mtu_leaves_ipv4;
    small_mtu_leaves_ipv4_of_vxlan => (r#""Type":"vxlan""#, [1349, 1350]),
    small_mtu_leaves_ipv4_of_userspace_vxlan => (r#""Type":"vxlan","Mode":"userspace""#, [1280, 1350]),
    small_mtu_leaves_ipv4_of_udp => (r#""Type":"udp""#, [1307, 1308]),
    small_mtu_leaves_ipv4_of_wireguard => (r#""Type":"wireguard","Implementation":"userspace""#, [1359, 1360]),
}

/// Dual-stack nodes work with IPv4 while the underlay's MTU leaves less than 1280 bytes for pods, and with both families after it is raised.
fn small_mtu_leaves_ipv4((backend, [small, enough]): (&str, [u32; 2])) -> Result<()> {
    let conf = format!(
        r#"{{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48","Backend":{{{backend}}}}}"#
    );
    Scene::with_title("small mtu").etcd().net(&conf).without_daemons().run(|s| {
        let set = |s: &Scene<'_>, mtu| {
            s.check_each_node(|node| ip_batch_runner(&format!("link set enp0s8 mtu {mtu}"))(node))
        };
        set(s, small)?;
        s.start_daemons_and_connected_pods()?;
        s.check_each_node(|node| {
            let (log, env) = (node.daemon()?.log(), node.daemon()?.subnet_env()?);
            let told = format!("MTU {small} of enp0s8 leaves {} bytes", 1280 - (enough - small));
            ensure!(log.matches(&told).count() == 1 && env.v6_subnet.is_none(), "{env:?}\n{log}");
            node.require_ready()
        })?;
        let both = |s: &Scene<'_>, is_there| {
            s.check_each_node(|node| {
                until_ok("subnet.env has the families that fit", || {
                    let env = node.daemon()?.subnet_env()?;
                    ensure!(env.v6_subnet.is_some() == is_there, "{env:?}");
                    node.require_ready()
                })
            })
        };
        set(s, enough)?;
        both(s, true)?;
        let mut later = Vec::new();
        for node in &mut s.nodes {
            // The bridge keeps the MTU of the pods that started before.
            ip_batch_runner("link set cni0 mtu 1280")(node)?;
            later.push(node.create_pod("later")?.clone());
        }
        wait_pods_connected(&later)?;
        ensure!(later[0].v6().is_ok(), "{:?}", later[0].addresses());
        set(s, small)?;
        both(s, false)?;
        s.wait_first_pods_connected()?;
        s.require_no_errors()
    })
}

/// /readyz returns 503 with the word from `lose` until `restore`, and the log reports the loss once.
fn require_underlay_loss_reported(
    node: &Node,
    word: &str,
    lose: impl FnOnce(&Node) -> Result<()>,
    restore: impl FnOnce(&Node) -> Result<()>,
) -> Result<()> {
    let reports = || {
        Ok::<_, anyhow::Error>(
            node.daemon()?.log().matches("the underlay carries no packets").count(),
        )
    };
    let before = reports()?;
    lose(node)?;
    until_ok(&format!("the node is not ready: {word}"), || {
        let (code, body) = node.get_health_endpoint("/readyz")?;
        let mut lines = body.lines();
        ensure!(
            code == 503 && lines.any(|line| line.starts_with("underlay: ") && line.contains(word)),
            "{code} {body}"
        );
        Ok(())
    })?;
    ensure!(reports()? == before + 1, "{word}: {}", node.daemon()?.log());
    restore(node)?;
    until_ok("the node is ready again", || node.require_ready())
}

fn ip_batch_runner(batch: &str) -> impl FnOnce(&Node) -> Result<()> {
    move |node| node.netns().run_ip_batch(batch).map(drop)
}

fn readiness_follows_the_underlay(backend: &str) -> Result<()> {
    let conf = format!(r#"{{"Network":"10.5.0.0/16","Backend":{{"Type":"{backend}"}}}}"#);
    Scene::with_title(&format!("underlay-{backend}")).nodes(1).net(&conf).run(|s| {
        let uplink = Uplink::enp0s8(&s.lan, 1)?;
        let node = &s[0];
        require_underlay_loss_reported(
            node,
            "down",
            ip_batch_runner("link set enp0s8 down"),
            ip_batch_runner("link set enp0s8 up"),
        )?;
        require_underlay_loss_reported(
            node,
            "carrier",
            |node| node.remove_carrier("enp0s8"),
            |node| node.restore_carrier("enp0s8"),
        )?;
        let back = ip_batch_runner("address add 192.168.56.101/24 dev enp0s8");
        // A virtual address that keepalived or kube-vip puts on the interface is no substitute.
        let virtual_only =
            "address add 192.168.56.200/32 dev enp0s8\naddress del 192.168.56.101/24 dev enp0s8";
        require_underlay_loss_reported(node, "address", ip_batch_runner(virtual_only), back)?;

        // The node stays ready if the interface keeps an address, or is only renamed.
        node.netns().run_ip_batch(
            "address del 192.168.56.101/24 dev enp0s8\naddress add 192.168.56.111/24 dev enp0s8",
        )?;
        until_ok("the new address is followed", || {
            let leases = s.store.lease_names_and_values()?;
            ensure!(leases[0].1.contains("192.168.56.111"), "{leases:?}");
            Ok(())
        })?;
        node.netns().run_ip_batch("address add 192.168.56.101/24 dev enp0s8")?;
        until_ok("the own address is taken again", || {
            let leases = s.store.lease_names_and_values()?;
            ensure!(leases[0].1.contains("192.168.56.101"), "{leases:?}");
            Ok(())
        })?;
        let rename = |from: &str, to: &str| {
            node.netns().run_ip_batch(&format!(
                "link set {from} down\nlink set {from} name {to}\nlink set {to} up"
            ))?;
            until_ok("the new name is followed", || {
                let log = node.daemon()?.log();
                ensure!(log.contains(&format!("to=\"{to} (index ")), "{log}");
                Ok(())
            })
        };
        rename("enp0s8", "wan0")?;
        node.require_ready()?;
        require_underlay_loss_reported(
            node,
            "wan0",
            ip_batch_runner("link set wan0 down"),
            ip_batch_runner("link set wan0 up"),
        )?;
        rename("wan0", "enp0s8")?;
        require_underlay_loss_reported(node, "gone", ip_batch_runner("link del enp0s8"), |node| {
            node.attach(&uplink)
        })?;
        s.require_no_errors()
    })
}

#[test]
fn bridge_of_pods_is_not_taken_for_an_uplink_that_was_made_anew() -> Result<()> {
    Scene::with_title("underlay-anew").nodes(1).without_pods().run(|s| {
        let uplink = Uplink::enp0s8(&s.lan, 1)?;
        let options = FlanneldOptions::new(&s.store).arg("--iface-cidr=0.0.0.0/0");
        let gateway = s[0].daemon()?.subnet_env()?.subnet;
        let gateway = gateway.context("no subnet")?;
        s[0].netns().run_ip_batch(&format!(
            "link add cni0 type bridge\nlink set cni0 up\naddress add {gateway} dev cni0"
        ))?;
        for has_file in [true, false] {
            let node = &mut s[0];
            node.stop_daemon()?;
            node.netns().run_ip_batch("link del enp0s8")?;
            node.attach(&uplink)?;
            if !has_file {
                std::fs::remove_file(node.subnet_file()?)?;
            }
            node.options = options.clone();
            node.start_daemon()?;
            let leases = s.store.lease_names_and_values()?;
            ensure!(leases.len() == 1 && leases[0].1.contains("192.168.56.101"), "{leases:?}");
        }
        s.require_no_errors()
    })
}

#[test]
fn address_on_loopback_has_the_mtu_of_the_link() -> Result<()> {
    Scene::with_title("underlay-lo").nodes(1).without_daemons().run(|s| {
        let options = FlanneldOptions::new(&s.store).arg("--iface=lo");
        let node = &mut s[0];
        node.netns().run_ip_batch("address add 10.9.9.1/32 dev lo")?;
        node.options = options;
        node.start_daemon()?;
        let env = node.daemon()?.subnet_env()?;
        ensure!(env.mtu == 1450, "{env:?}");
        s.require_no_errors()
    })
}
