//! Admission of leases: the pool may contain the nodes' own network, and flanneld reports the leases that it does not use.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, ensure};
use lab::{Node, Scene, stdout_and_stderr};
use serde_json::Value;

use crate::healing::scenarios;

/// Four subnets, one of which is the nodes' own network, 192.168.56.0/24.
fn net_conf_with_underlay_in_pool(backend: &str) -> String {
    format!(
        r#"{{"Network":"192.168.0.0/16","SubnetMin":"192.168.55.0","SubnetMax":"192.168.58.0","Backend":{backend}}}"#
    )
}

scenarios! { pods_connect_when_pool_contains_underlay;
    vxlan_works_when_the_pool_contains_the_underlay => r#"{"Type":"vxlan"}"#,
    userspace_vxlan_works_when_the_pool_contains_the_underlay => r#"{"Type":"vxlan","Mode":"userspace"}"#,
    host_gw_works_when_the_pool_contains_the_underlay => r#"{"Type":"host-gw"}"#,
    udp_works_when_the_pool_contains_the_underlay => r#"{"Type":"udp"}"#,
}

fn pods_connect_when_pool_contains_underlay(backend: &str) -> Result<()> {
    Scene::with_title("around").net(&net_conf_with_underlay_in_pool(backend)).run(|s| {
        s.check_each_node(|node| {
            ensure!(node.subnet()? != "192.168.56.0/24", "the underlay's subnet");
            node.wait_metric_value("flannel_peers", 1.0)?;
            node.wait_status_value("/refused/0", Value::Null)?;
            node.wait_output_contains("ip -4 route get 192.168.56.103", "dev enp0s8")
        })?;
        s.require_no_errors()
    })
}

#[test]
fn refused_leases_are_reported_while_nodes_stay_ready() -> Result<()> {
    Scene::with_title("refused").net(&net_conf_with_underlay_in_pool(r#"{"Type":"host-gw"}"#)).run(
        |s| {
            let inside = s[0].pods[0].address()?.to_string();
            let leases = [("192.168.56.0-24", "192.168.56.109"), ("192.168.99.0-24", &inside)];
            for (lease, public) in leases {
                s.put(
                    lease,
                    &format!(
                        r#"{{"PublicIP":"{public}","PublicIPv6":null,"BackendType":"host-gw"}}"#
                    ),
                )?;
            }
            s.wait_leases_applied()?;
            s.check_each_node(|node| {
                node.wait_metric_value(
                    "flannel_leases_refused{reason=\"overlaps-underlay\"}",
                    1.0,
                )?;
                node.wait_metric_value(
                    "flannel_leases_refused{reason=\"address-in-subnet\"}",
                    1.0,
                )?;
                let (code, text) = node.get_health_endpoint("/readyz")?;
                ensure!(
                    code == 200
                        && text.contains("192.168.56.0/24")
                        && text.contains("192.168.99.0/24"),
                    "{code} {text}"
                );
                Ok(())
            })?;
            s.wait_first_pods_connected()?;
            leases.iter().try_for_each(|(lease, _)| s.store.delete(lease))?;
            s.check_each_node(|node| node.wait_status_value("/refused/0", Value::Null))?;
            s.require_no_errors()
        },
    )
}

/// flanneld lists a lease of another backend, of no family's address or of an unreadable key as not used, and logs it once.
#[test]
fn peer_of_another_backend_is_reported() -> Result<()> {
    // The nodes take their subnets from the rest of the pool.
    let conf = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"vxlan"}}"#;
    Scene::with_title("other-backend").net(conf).run(|s| {
        s.put("10.5.3.0-24", r#"{"PublicIP":"192.168.56.103","PublicIPv6":null,"BackendType":"host-gw"}"#)?;
        s.put("10.5.4.0-24", r#"{"PublicIP":"192.168.56.104","PublicIPv6":null}"#)?;
        s.put("10.5.5.0-24", r#"{"PublicIPv6":"fd00:56::105","BackendType":"vxlan","BackendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:00:05"}}"#)?;
        let no_text = OsStr::from_bytes(b"10.5.9.0-24\xff");
        std::fs::write(s.lab.ensure_folder("leases/subnets")?.join(no_text), "{}")?;
        s.wait_leases_applied()?;
        s.check_each_node(|node| {
            for reason in ["other-backend", "reserved", "no-address"] {
                node.wait_metric_value(&format!("flannel_leases_refused{{reason=\"{reason}\"}}"), 1.0)?;
            }
            node.wait_metric_value("flannel_leases_unreadable", 1.0)?;
            node.wait_metric_value("flannel_peers", 1.0)?;
            node.require_ready()
        })?;
        let listed = stdout_and_stderr(&s[0].flannelctl(&["leases", &s.store.daemon_args()[0]])?);
        ensure!(listed.matches("not used: ").count() == 3, "{listed}");
        // With the network's backend, the node is a peer, and nothing is logged again.
        s.put("10.5.4.0-24", r#"{"PublicIP":"192.168.56.104","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:04"}}"#)?;
        s.check_each_node(|node| {
            node.wait_metric_value("flannel_peers", 2.0)?;
            let log = node.daemon()?.log();
            for lease in ["10.5.3.0/24", "10.5.5.0/24", "10.5.9.0-24\\xff"] {
                let reports = log.lines().filter(|line| line.contains("WARN") && line.contains(lease)).count();
                ensure!(reports == 1, "{reports} reports of {lease}: {log}");
            }
            Ok(())
        })?;
        s.wait_first_pods_connected()
    })
}

/// An older node that publishes a younger node's MAC takes none of its packets: not while the daemons run, not after their restart, and not
/// with an empty kernel. Packets to the older node's subnet do not leave unencapsulated.
#[test]
fn older_lease_takes_no_mac_of_a_younger_one() -> Result<()> {
    let conf = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"vxlan"}}"#;
    let lease = |mac: &str| {
        format!(
            r#"{{"PublicIP":"192.168.56.103","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
        )
    };
    Scene::with_title("theft").etcd().net(conf).without_daemons().run(|s| {
        s.put("10.5.3.0-24", &lease("02:00:00:00:00:03"))?;
        s.start_daemons_and_connected_pods()?;
        let mac = s[1].sh("ip -o link show flannel.1 | sed 's/.*ether //; s/ .*//'")?;
        let probe = s.start_probe(0, 1)?;
        s.put("10.5.3.0-24", &lease(mac.trim()))?;
        s.wait_leases_applied()?;
        let is_refused = |node: &Node| {
            node.wait_metric_value("flannel_leases_refused{reason=\"duplicate-mac\"}", 1.0)?;
            node.require_ready()
        };
        is_refused(&s[0])?;
        // The last value that the older node had alone stays in force.
        s[0].wait_output_contains(
            "ip neigh show dev flannel.1",
            "10.5.3.0 lladdr 02:00:00:00:00:03",
        )?;
        s[0].restart_daemon()?;
        let barred = "unreachable 10.5.3.0/24";
        s[0].wait_output_contains("ip route", barred)?;
        is_refused(&s[0])?;
        probe.finish()?.require_clean()?;
        // As after a boot.
        s[0].stop_daemon()?;
        s[0].sh("ip link del flannel.1; ip route flush proto 241")?;
        s[0].start_daemon()?;
        s[0].wait_output_contains("ip route", barred)?;
        s.wait_first_pods_connected()?;
        s.put("10.5.3.0-24", &lease("02:00:00:00:00:03"))?;
        s[0].wait_output_contains("ip route", "10.5.3.0/24 via 10.5.3.0 dev flannel.1")?;
        s.check_each_node(|node| node.wait_metric_value("flannel_peers", 2.0))
    })
}
