//! flanneld removes the objects of an earlier backend of flannel-rs or Go flannel once the new one works. Objects that other programs use stay.

use anyhow::{Result, ensure};
use lab::{Node, Scene, until_ok};

fn net_conf_with_backend_object(backend: &str) -> String {
    format!(
        r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{backend}}}"#
    )
}

/// Its daemon does not run. Only the device's address identifies the network.
const ANOTHER_NETWORKS: &str = "ip link add flannel.77 type vxlan id 77 local 192.168.56.101 dev enp0s8 dstport 8499
    ip address add 10.99.3.0/32 dev flannel.77; ip link set flannel.77 up; ip route add 10.99.4.0/24 via 10.99.4.0 dev flannel.77 onlink";

/// What Go flannel's vxlan and udp leave, with a route to a subnet that no node has.
fn go_flannel_objects_script(own: &str, peer: &str) -> String {
    format!(
        "ip link add flannel.1 type vxlan id 1 local 192.168.56.101 dev enp0s8 dstport 8472 nolearning
         ip address add {own}/32 dev flannel.1; ip link set flannel.1 up
         ip route add {peer}/24 via {peer} dev flannel.1 onlink; ip route add 10.5.250.0/24 via 10.5.250.0 dev flannel.1 onlink
         ip tuntap add flannel0 mode tun; ip address add {own}/32 dev flannel0; ip link set flannel0 up"
    )
}

/// With the flannel devices that the first node then has.
const BACKENDS: [(&str, &[&str]); 6] = [
    (r#"{"Type":"vxlan"}"#, &["flannel-v6.1", "flannel.1", "flannel.77"]),
    (r#"{"Type":"vxlan","VNI":3,"Port":4789}"#, &["flannel-v6.3", "flannel.3", "flannel.77"]),
    (r#"{"Type":"udp"}"#, &["flannel.77", "flannel0"]),
    (r#"{"Type":"vxlan","Mode":"userspace"}"#, &["flannel-v6.1", "flannel.1", "flannel.77"]),
    (r#"{"Type":"host-gw"}"#, &["flannel.77"]),
    ("Go flannel's", &["flannel.77"]),
];

/// Runs all backends in turn, then puts Go flannel's objects in place of flannel-rs' routes, and runs the last backend again. After each change, only
/// the devices of the current backend remain.
#[test]
fn devices_of_an_earlier_backend_are_removed() -> Result<()> {
    Scene::with_title("left behind").without_daemons().run(|s| {
        s[0].sh(ANOTHER_NETWORKS)?;
        for (backend, wanted) in BACKENDS {
            if backend == "Go flannel's" {
                let [own, peer] = [0, 1].map(|node| s[node].subnet());
                let objects =
                    go_flannel_objects_script(&own?.replace("/24", ""), &peer?.replace("/24", ""));
                s.nodes.iter_mut().try_for_each(Node::stop_daemon)?;
                s[0].sh("ip route flush proto 241")?;
                s[0].sh(&objects)?;
                ensure!(s[0].devices()?.len() == 3, "{:?}", s[0].devices()?);
            } else {
                for node in &mut s.nodes {
                    if node.daemon().is_ok() {
                        node.stop_daemon()?;
                    }
                }
                s.store.configure(&net_conf_with_backend_object(backend))?;
            }
            s.start_daemons_and_connected_pods()?;
            until_ok(&format!("{backend}: its devices, and no others"), || {
                let mut found = s[0].devices()?;
                found.sort();
                ensure!(found == wanted, "{found:?} instead of {wanted:?}");
                Ok(())
            })?;
            s.wait_first_pods_connected()?;
            let routes = s[0].sh("ip route")?;
            ensure!(
                !routes.contains("10.5.250.0") && routes.contains("10.99.4.0/24"),
                "{backend}: {routes}"
            );
            s.require_no_errors()?;
        }
        s[0].wait_log_contains("found a device of an earlier backend")
    })
}
