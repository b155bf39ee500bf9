//! An unreachable peer does not affect other nodes. flanneld reports the unreachable peer, and the other nodes stay ready and reach each other.

use anyhow::{Result, ensure};
use lab::{Scene, SceneOptions};

use crate::healing::scenarios;

scenarios! { bad_peers_hold_no_node_back;
    bad_peers_in_a_directory_hold_no_node_back => Scene::with_title("bad peers: directory"),
    bad_peers_in_etcd_hold_no_node_back => Scene::with_title("bad peers: etcd").etcd(),
}

fn bad_peers_hold_no_node_back(scene: SceneOptions<'_>) -> Result<()> {
    let conf = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"host-gw"}}"#;
    scene.net(conf).run(|s| {
        // An address off the link, a subnet to which another program has a route, and the link's broadcast address.
        s.check_each_node(|node| node.sh("ip route add unreachable 10.5.4.0/24").map(drop))?;
        s.put("10.5.3.0-24", r#"{"PublicIP":"10.99.0.5","PublicIPv6":null,"BackendType":"host-gw"}"#)?;
        s.put("10.5.4.0-24", r#"{"PublicIP":"192.168.56.104","PublicIPv6":null,"BackendType":"host-gw"}"#)?;
        s.put("10.5.5.0-24", r#"{"PublicIP":"192.168.56.255","PublicIPv6":null,"BackendType":"host-gw"}"#)?;
        s.wait_leases_applied()?;
        s.check_each_node(|node| {
            node.wait_metric_value("flannel_leases_refused{reason=\"off-link\"}", 1.0)?;
            node.wait_metric_value("flannel_leases_refused{reason=\"no-host-address\"}", 1.0)?;
            node.wait_metric_value("flannel_peers_failed", 1.0)?;
            node.wait_status_value("/refused/0/lease", "10.5.3.0/24")?;
            node.wait_status_value("/figures/kernel/failed_peers/0/subnet", "10.5.4.0/24")?;
            node.require_ready()
        })?;
        s.wait_first_pods_connected()?;
        // The peers count as on the link while the address of one node is absent for a moment.
        s[0].sh("ip address delete 192.168.56.101/24 dev enp0s8; ip address add 192.168.56.101/24 dev enp0s8")?;
        s.wait_first_pods_connected()?;
        let refused = s[0].daemon()?.log().matches("is on no network of this node's underlay").count();
        ensure!(refused == 1, "the far one alone is ever refused: {}", s[0].daemon()?.log());
        // An address in the far peer's network makes it a peer, and so does a route.
        for path in ["address add 10.99.0.1/24 dev enp0s8", "route add 10.99.0.0/24 dev enp0s8 scope link"] {
            s[0].sh(&format!("ip {path}"))?;
            s[0].wait_output_contains("ip route show 10.5.3.0/24", "via 10.99.0.5")?;
            s[0].sh(&format!("ip {}", path.replacen(" add", " delete", 1)))?;
        }
        s.require_no_errors()
    })
}
