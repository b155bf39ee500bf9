//! Tests that an unreachable peer does not affect other nodes, with leases in etcd and in a directory. flanneld reports
//! the unreachable peer, and the other nodes stay ready and reach each other.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{
    Bed, Etcd, EtcdOptions, Flanneld, FlanneldOptions, Lab, PingMatrix, PingOptions, Pod, Uplink,
    throughout, until, until_ok,
};
use serde_json::Value;

/// Time for which the nodes must stay ready. A node that is not in sync becomes not ready after ten seconds.
const HOLDS: Duration = Duration::from_secs(15);
const HOST_GW: &str =
    r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"host-gw"}}"#;
/// Subnets and leases of two unreachable peers: `FAR` has an address off the link, and `BROADCAST` has the link's broadcast address.
const FAR: (&str, &str) = (
    "10.5.3.0",
    r#"{"PublicIP":"10.99.0.5","PublicIPv6":null,"BackendType":"host-gw"}"#,
);
const BROADCAST: (&str, &str) = (
    "10.5.4.0",
    r#"{"PublicIP":"192.168.56.255","PublicIPv6":null,"BackendType":"host-gw"}"#,
);

/// Checks that all daemons are ready and report both unreachable peers. `/status` lists `FAR` among the
/// refused leases, and `BROADCAST` among the failed peers.
fn require_named_and_ready(daemons: &[Flanneld]) -> Result<()> {
    for daemon in daemons {
        until("the far one is refused", || {
            daemon
                .metric("flannel_leases_refused{reason=\"off-link\"}")
                .is_ok_and(|refused| refused == 1.0)
        })?;
        until("the other one fails", || {
            daemon
                .metric("flannel_peers_failed")
                .is_ok_and(|failed| failed == 1.0)
        })?;
        let status: Value = serde_json::from_str(&daemon.get("/status")?.1)?;
        let far = status["refused"][0]["text"].as_str().unwrap_or_default();
        ensure!(
            far.contains("10.5.3.0/24 is published at 10.99.0.5")
                && far.contains("192.168.56.0/24"),
            "{status}"
        );
        ensure!(
            status["figures"]["kernel"]["failed_peers"][0]["subnet"] == "10.5.4.0/24",
            "{status}"
        );
    }
    throughout(HOLDS, "all nodes are ready", || {
        for daemon in daemons {
            let (code, text) = daemon.get("/readyz")?;
            ensure!(code == 200, "{text}");
        }
        Ok(())
    })
}

#[test]
fn bad_peers_in_a_directory_hold_no_node_back() {
    Lab::run("bad peers: directory", |lab| {
        let bed = Bed::start(lab, 2, HOST_GW, |_, options| options)?;
        for (subnet, value) in [FAR, BROADCAST] {
            std::fs::write(bed.leases.join("subnets").join(format!("{subnet}-24")), value)?;
        }
        require_named_and_ready(&bed.daemons)?;
        bed.reach()?;
        // The peers count as on the link while the address of one node is absent for a moment.
        let netns = bed.hosts[0].netns();
        netns.sh("ip address delete 192.168.56.101/24 dev enp0s8; sleep 0.2; ip address add 192.168.56.101/24 dev enp0s8")?;
        bed.reach()?;
        let refused = bed.daemons[0].log().matches("is on no network of this node's underlay").count();
        ensure!(refused == 1, "only the far one is ever refused:\n{}", bed.daemons[0].log());
        // An address in the far peer's network makes it a peer.
        netns.sh("ip address add 10.99.0.1/24 dev enp0s8")?;
        until("it is a peer", || netns.sh("ip route show 10.5.3.0/24").is_ok_and(|route| route.contains("via 10.99.0.5")))?;
        netns.sh("ip address delete 10.99.0.1/24 dev enp0s8; ip route add 10.99.0.0/24 dev enp0s8 scope link")?;
        until("and by a route alone", || netns.sh("ip route show 10.5.3.0/24").is_ok_and(|route| route.contains("via 10.99.0.5")))?;
        bed.require_no_errors()
    })
    .unwrap();
}

#[test]
fn bad_peers_in_etcd_hold_no_node_back() {
    Lab::run("bad peers: etcd", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store_host = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&store_host], &EtcdOptions::default())?;
        let store = etcd.store()?;
        store.configure(HOST_GW)?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let daemons = hosts
            .iter()
            .map(|host| host.flanneld(&options))
            .collect::<Result<Vec<_>>>()?;
        let pods = hosts
            .iter()
            .zip(&daemons)
            .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
            .collect::<Result<Vec<Pod>>>()?;
        for (subnet, value) in [FAR, BROADCAST] {
            etcd.client()?
                .put(&store.key(&format!("subnets/{subnet}-24")), value)?;
        }
        require_named_and_ready(&daemons)?;
        let targets = pods.iter().map(Pod::address).collect::<Result<Vec<_>>>()?;
        until_ok("pods reach each other", || {
            PingMatrix::to(&pods, &targets, &PingOptions::default())?.require_complete()
        })
        .map(drop)
    })
    .unwrap();
}
