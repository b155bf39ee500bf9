//! No subnet has two owners and no packet is lost or misdelivered when leases are lost, hostile or restored, and while etcd is away.

use std::collections::BTreeMap;
use std::net::UdpSocket;

use anyhow::{Context, Result, ensure};
use lab::{Mesh, Monitor, Probe, ProbeOptions, Scene, until, until_ok};
use serde_json::Value;

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.90.0","Backend":{"Type":"vxlan"}}"#;

fn vxlan_lease_value(public: &str, mac: &str) -> String {
    format!(
        r#"{{"PublicIP":"{public}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
    )
}

/// A peer that has no daemon.
fn put_peer(s: &Scene<'_>, number: usize) -> Result<()> {
    s.put(
        &format!("10.5.10{number}.0-24"),
        &vxlan_lease_value(&format!("192.168.56.20{number}"), &format!("02:00:00:00:aa:0{number}")),
    )
}

/// The first two nodes have routes to the peers.
fn wait_peer_routes_on_first_nodes(
    s: &Scene<'_>,
    mut peers: impl Iterator<Item = usize>,
) -> Result<()> {
    peers.try_for_each(|number| {
        let subnet = format!("10.5.10{number}.0/24");
        s.nodes[..2]
            .iter()
            .try_for_each(|node| node.wait_output_contains("ip route show dev flannel.1", &subnet))
    })
}

/// The kernel reported no change of the objects for the good subnets, given by their beginnings such as `10.5.101.`.
fn require_good_subnets_unchanged(good: &[String], monitor: &mut Monitor) -> Result<()> {
    let reports = monitor.read_new_reports()?;
    let changes: Vec<_> = reports
        .lines()
        .filter(|line| line.contains("flannel") && good.iter().any(|subnet| line.contains(subnet)))
        .collect();
    ensure!(changes.is_empty(), "{changes:#?}");
    Ok(())
}

/// The beginnings of the first two nodes' subnets and of those of the first three peers.
fn good_subnet_prefixes(s: &Scene<'_>) -> Result<Vec<String>> {
    let nodes = s.nodes[..2].iter().map(|node| Ok(node.subnet()?.replace("0/24", "")));
    nodes.chain((1..=3).map(|number| Ok(format!("10.5.10{number}.")))).collect()
}

#[test]
fn a_subnet_reassigned_while_its_owner_was_stopped_has_one_owner() -> Result<()> {
    let pool = |max: u8| {
        format!(
            r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.{max}.0","Backend":{{"Type":"vxlan"}}}}"#
        )
    };
    Scene::with_title("zombie").nodes(3).etcd().net(&pool(11)).without_daemons().run(|s| {
        let etcd = s.etcd.as_ref().unwrap().client_on_first_member()?;
        for number in 0..3 {
            if number == 2 {
                // The only free subnet is then that of h1.
                s[0].daemon()?.send_sigstop()?;
                let entry = etcd.get(&s.store.key(&format!("subnets/{}", s[0].lease_name()?)))?;
                etcd.revoke(entry.context("the lease of h1")?.lease)?;
            }
            s[number].start_daemon()?;
            s[number].create_pod("p1")?;
        }
        let subnet = s[2].subnet()?;
        ensure!(subnet == s[0].subnet()?, "h3 got another subnet");
        let astray = s[0].pods[0].netns().run(|| UdpSocket::bind("0.0.0.0:7100"))??;
        astray.set_nonblocking(true)?;
        let probe = || -> Result<Probe> {
            let probe = Probe::start(
                &s[1].pods[0],
                &s[2].pods[0],
                &ProbeOptions::default().receiver_port(7100),
            )?;
            probe.wait_flowing()?;
            Ok(probe)
        };
        // Until h2 knows the new owner, it sends packets to the old one.
        drop(probe()?);
        while astray.recv_from(&mut [0; 2048]).is_ok() {}
        let probe = probe()?;

        s[0].daemon()?.send_sigcont()?;
        let status = s[0].daemon_mut()?.wait()?;
        ensure!(status.code() == Some(5), "{status}");
        // A supervisor restarts the daemon, which then waits for a free subnet.
        s[0].launch_daemon()?;
        until("h1 waits for a subnet", || {
            s[0].get_health_endpoint("/readyz")
                .is_ok_and(|(code, text)| code == 503 && text.contains("lease:"))
        })?;
        s.store.configure(&pool(12))?;
        s[0].kill_daemon()?;
        s[0].start_daemon()?;
        ensure!(s[0].subnet()? != subnet, "h1 has the subnet of h3");
        probe.wait_flowing()?;
        probe.finish()?.require_clean()?;
        ensure!(
            astray.recv_from(&mut [0; 2048]).is_err(),
            "a packet for h3's pod was delivered to h1's"
        );
        Ok(())
    })
}

/// Leases that a node does not use, by whether their keys or values are unreadable.
fn count_refused_leases_by_unreadable(node: &lab::Node) -> Result<BTreeMap<bool, usize>> {
    let unused = node.status("/refused")?;
    let mut counts = BTreeMap::new();
    for lease in unused.as_array().context("/refused")? {
        *counts.entry(lease["reason"] == "unreadable").or_default() += 1;
    }
    Ok(counts)
}

/// Keys and values of hostile leases, and whether flanneld cannot read them. `subnet` is the beginning of a good node's subnet, and `mac` is the
/// node's address.
fn hostile_entries(subnet: &str, mac: &str) -> Vec<(String, String, bool)> {
    let plain = vxlan_lease_value("192.168.56.240", "02:00:00:00:bb:01");
    let with_data = |data: &str| {
        format!(r#"{{"PublicIP":"192.168.56.243","BackendType":"vxlan","BackendData":{data}}}"#)
    };
    let long = |text: String| format!(r#"{{"PublicIP":"192.168.56.240","x":{text}}}"#);
    let unreadable = [
        "",
        "[]",
        "42",
        "{]",
        "\0",
        r#"{"PublicIP":5}"#,
        r#"{"PublicIP":"x"}"#,
        r#"{"PublicIP":"192.168.56.240","BackendType":7}"#,
    ];
    let unreadable = unreadable.map(str::to_owned).into_iter().chain([
        plain[..40].to_owned(),
        long(format!("{:?}", "y".repeat(1_000_000))),
        long("[".repeat(400_000)),
    ]);
    let macs = ["", "zz", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", mac];
    let refused = macs
        .map(|mac| vxlan_lease_value("192.168.56.242", mac))
        .into_iter()
        .chain(["null", "[]"].map(with_data));
    let refused = refused.chain(
        ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"]
            .map(|public| vxlan_lease_value(public, "02:00:00:00:ee:01")),
    );
    let bad_keys = [
        "0.0.0.0-0",
        "10.5.7.0-24.bak",
        "10.5.7.1-24",
        "10.5.7.0-33",
        "010.005.007.000-24",
        "10.5.7.0",
        "-24",
        "10.5.7.0-24&zz-64",
        "…",
        "::-0",
    ];
    let inside = [format!("{subnet}0-25"), format!("{subnet}254-31"), "10.5.0.0-16".to_owned()];
    let foreign = [
        "0.0.0.0-1",
        "10.0.0.0-8",
        "127.0.0.0-24",
        "224.0.0.0-24",
        "192.168.56.0-24",
        "255.255.255.0-24",
        "10.6.0.0-24",
    ];
    let mut entries: Vec<(String, String, bool)> =
        bad_keys.iter().map(|key| ((*key).to_owned(), plain.clone(), true)).collect();
    entries.extend(
        inside.into_iter().chain(foreign.map(str::to_owned)).map(|key| (key, plain.clone(), false)),
    );
    // Outside the pool, and disjoint from other entries.
    let values =
        unreadable.map(|text| (text, true)).chain(refused.map(|text| (text, false))).enumerate();
    entries.extend(values.map(|(number, (text, is_unreadable))| {
        (format!("10.5.{}.0-24", 130 + number), text, is_unreadable)
    }));
    entries
}

#[test]
fn hostile_files_in_a_directory_change_nothing() -> Result<()> {
    Scene::with_title("hostile").net(VXLAN).run(|s| {
        let mesh = s.start_mesh()?;
        mesh.wait_flowing()?;
        (1..=3).try_for_each(|number| put_peer(s, number))?;
        wait_peer_routes_on_first_nodes(s, 1..=3)?;
        let good = good_subnet_prefixes(s)?;
        let mut monitor = Monitor::watch_routes_and_objects(&s[0], &["neigh"])?;

        let mac = s[0].netns().link("flannel.1")?.context("flannel.1")?.address;
        let entries = hostile_entries(&good[0], &mac);
        for (key, text, _) in &entries {
            s.put(key, text)?;
        }
        // The last good value stays in force. A name that begins with a dot is no lease.
        s.put("10.5.101.0-24", "{")?;
        s.put(".10.5.109.0-24", &vxlan_lease_value("192.168.56.245", "02:00:00:00:ff:01"))?;
        s.wait_leases_applied()?;
        s.check_each_node(|node| {
            let wanted = BTreeMap::from([false, true].map(|kind| {
                (kind, usize::from(kind) + entries.iter().filter(|entry| entry.2 == kind).count())
            }));
            until_ok("hostile leases are counted", || {
                ensure!(
                    count_refused_leases_by_unreadable(node)? == wanted,
                    "{:?} instead of {wanted:?}: {:#}",
                    count_refused_leases_by_unreadable(node)?,
                    node.status("/refused")?
                );
                Ok(())
            })?;
            ensure!(!node.sh("ip route")?.contains("10.5.109."), "a hidden file is no lease");
            node.require_ready()
        })?;
        require_good_subnets_unchanged(&good, &mut monitor)?;
        mesh.finish_and_require_clean()?;
        s.require_no_errors()
    })
}

#[test]
fn etcd_killed_and_restored_loses_no_packet() -> Result<()> {
    Scene::with_title("outage").nodes(3).etcd().net(VXLAN).without_daemons().run(|s| {
        for number in 0..2 {
            s[number].start_daemon()?;
            s[number].create_pod("p1")?;
        }
        let pods = [s[0].pods[0].clone(), s[1].pods[0].clone()];
        Mesh::start(&pods, &ProbeOptions::default())?.wait_flowing()?;
        let mesh = Mesh::start(&pods, &ProbeOptions::default())?;
        mesh.wait_flowing()?;
        (1..=3).try_for_each(|number| put_peer(s, number))?;
        wait_peer_routes_on_first_nodes(s, 1..=3)?;
        let good = good_subnet_prefixes(s)?;
        let mut monitor = Monitor::watch_routes_and_objects(&s[0], &["neigh"])?;
        let etcd = s.etcd.as_mut().unwrap();
        let snapshot = s.lab.ensure_folder("")?.join("snapshot");
        etcd.client_on_first_member()?.snapshot(&snapshot)?;
        etcd.kill(0)?;
        for node in &s.nodes[..2] {
            node.wait_log_contains("the watch of the leases is interrupted")?;
            node.require_ready()?;
            node.wait_metric_value("flannel_store_available", 0.0)?;
            ensure!(node.metric_or_zero("flannel_errors_total{class=\"store\"}") > 0.0);
        }
        s.etcd.as_mut().unwrap().restore_and_restart_members(&snapshot)?;
        s.wait_leases_applied()?;
        for node in &s.nodes[..2] {
            node.wait_metric_value("flannel_store_available", 1.0)?;
        }
        // A node that joins now reaches all others.
        s[2].start_daemon()?;
        s[2].create_pod("p1")?;
        s.wait_first_pods_connected()?;
        require_good_subnets_unchanged(&good, &mut monitor)?;
        mesh.finish_and_require_clean()?;
        s.require_no_errors()
    })
}

/// The durations of the delays are tested with `HoldDown`.
#[test]
fn mass_removal_is_held_down() -> Result<()> {
    Scene::with_title("removal").etcd().net(VXLAN).run(|s| {
        (1..=7).try_for_each(|number| put_peer(s, number))?;
        wait_peer_routes_on_first_nodes(s, 1..=7)?;
        let mesh = s.start_mesh()?;
        mesh.wait_flowing()?;
        let good = good_subnet_prefixes(s)?;
        let mut monitor = Monitor::watch_routes_and_objects(&s[0], &["neigh"])?;
        s.etcd.as_ref().unwrap().client_on_first_member()?.etcdctl(&[
            "del",
            "--prefix",
            &s.store.key("subnets/"),
        ])?;
        // The daemons read changes in order, so the removal comes before this peer.
        put_peer(s, 8)?;
        wait_peer_routes_on_first_nodes(s, 1..=8)?;
        // Living nodes put their leases back, and only they.
        until("the nodes' leases are back", || {
            s.store.lease_names_and_values().is_ok_and(|leases| leases.len() == 3)
        })?;
        (1..=7).try_for_each(|number| put_peer(s, number))?;
        put_peer(s, 9)?;
        wait_peer_routes_on_first_nodes(s, [9].into_iter())?;
        s.check_each_node(|node| node.wait_status_value("/refused/0", Value::Null))?;
        require_good_subnets_unchanged(&good, &mut monitor)?;
        mesh.finish_and_require_clean()?;
        s.require_no_errors()
    })
}
