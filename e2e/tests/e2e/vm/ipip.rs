//! The `ipip` backend on a kernel that supports IPIP.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Flanneld, FlanneldOptions, Host, Lab, PingMatrix, PingOptions, Store, until_ok};

use crate::healing::scenarios;
use crate::traffic::Families;
use crate::{cleanup, doctor, golden, healing, traffic};

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn kernel_state_equals_go_flannels() -> Result<()> {
    golden::compare("ipip")?;
    golden::compare("ipip-direct")
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn carries_packets_of_full_size() -> Result<()> {
    traffic::carries(("ipip", Families::V4))
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn damaged_kernel_state_is_repaired() -> Result<()> {
    healing::heals(&healing::IPIP)
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn loses_nothing_when_daemons_are_killed() -> Result<()> {
    healing::killed_daemon_writes_nothing(&healing::IPIP)
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn firewall_that_drops_ipip_is_reported() -> Result<()> {
    doctor::protocol_4_is_dropped()
}

fn daemons(hosts: &[Host], options: &FlanneldOptions) -> Result<Vec<Flanneld>> {
    let mut daemons = hosts
        .iter()
        .map(|host| host.start_flanneld(options))
        .collect::<Result<Vec<_>>>()?;
    daemons
        .iter_mut()
        .try_for_each(|daemon| daemon.wait_ready().map(drop))?;
    Ok(daemons)
}

/// In a dual-stack network, the `ipip` backend carries only IPv4, and probes cover only IPv4.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn carries_the_ipv4_half_of_two_families() -> Result<()> {
    Lab::run("vm: ipip dual", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"ipip"}}"#)?;
        let daemons = daemons(&hosts, &FlanneldOptions::new(&store).iface("enp0s8"))?;
        let pods = hosts
            .iter()
            .zip(&daemons)
            .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
            .collect::<Result<Vec<_>>>()?;
        until_ok("the pods reach each other", || {
            PingMatrix::of(&pods)?.require_complete()
        })?;
        ensure!(
            daemons[0].log().contains("ipip carries IPv4 only"),
            "{}",
            daemons[0].log_tail(20)
        );
        let v6 = pods[1].v6()?;
        ensure!(
            lab::ping(pods[0].netns(), v6.into(), &PingOptions::default())?.is_none(),
            "IPv6 arrives, and the documentation denies it"
        );
        until_ok("the probes know only of IPv4", || {
            let (_, text) = daemons[0].api("/api/v1/node")?;
            let document: serde_json::Value = serde_json::from_str(&text)?;
            let peers = document["mesh"]["peers"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            ensure!(peers.len() == 1 && peers[0]["state"] == "well", "{text}");
            Ok(())
        })
    })
}

scenarios! { forged_packets_are_dropped;
    #[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
    forged_packets_are_dropped_by_iptables => false,
    #[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
    forged_packets_are_dropped_by_nftables => true,
}

/// Checks that flanneld's guard rules drop forged IPIP packets, which any host on the underlay can send.
fn forged_packets_are_dropped(nftables: bool) -> Result<()> {
    Lab::run("vm: ipip guard", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 3)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(&format!(r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","EnableNFTables":{nftables},"Backend":{{"Type":"ipip"}}}}"#))?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg("--ip-masq");
        let mut daemons = daemons(&hosts[..2], &options)?;
        let pods = hosts
            .iter()
            .zip(&daemons)
            .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
            .collect::<Result<Vec<_>>>()?;
        until_ok("the pods reach each other", || {
            PingMatrix::of(&pods)?.require_complete()
        })?;
        // The third host has no lease.
        let forger = &hosts[2];
        forger.netns().ip(&format!(
            "link add forge type ipip local {} remote {}\nlink set forge up\naddress add 10.5.250.1/32 dev forge\n\
             route add {} dev forge src 10.5.250.1",
            forger.v4()?,
            hosts[0].v4()?,
            pods[0].v4()?,
        ))?;
        // The reply may go elsewhere, so this counts the requests that arrive.
        let came = || -> Result<bool> {
            let count = || -> Result<u64> {
                let text = pods[0].netns().sh("cat /proc/net/snmp")?;
                let lines: Vec<Vec<&str>> = text
                    .lines()
                    .filter(|line| line.starts_with("Icmp:"))
                    .map(|line| line.split(' ').collect())
                    .collect();
                let at = lines[0]
                    .iter()
                    .position(|name| *name == "InEchos")
                    .unwrap_or_default();
                Ok(lines[1][at].parse()?)
            };
            let before = count()?;
            let options = PingOptions::default().timeout(Duration::from_millis(300));
            let _ = lab::ping(forger.netns(), pods[0].v4()?.into(), &options)?;
            Ok(count()? > before)
        };
        until_ok("forged packets arrive without a guard", || {
            ensure!(came()?, "nothing arrives, so a guard would prove nothing");
            Ok(())
        })?;
        daemons[0].terminate()?;
        daemons[0] = hosts[0].flanneld(
            &options
                .clone()
                .arg("--encap-peers=drop")
                .arg("--encap-notrack")
                .arg("--encap-bar-pods"),
        )?;
        until_ok("forged packets are dropped", || {
            ensure!(!came()?, "they arrive");
            Ok(())
        })?;
        until_ok("those of nodes are not", || {
            PingMatrix::of(&pods)?.require_complete()
        })?;
        ensure!(
            daemons[0].metric("flannel_rule_writes_total").is_ok(),
            "the rules are written"
        );
        Ok(())
    })
}

/// `flannelctl cleanup` removes the tunnels of flannel-rs and Go flannel, and keeps the tunnels of other programs.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn cleanup_leaves_the_tunnels_of_others() -> Result<()> {
    Lab::run("vm: ipip cleanup", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"ipip"}}"#)?;
        let host = &hosts[0];
        let others = "ip link add mine type ipip local 192.168.56.101 remote 192.168.56.77; ip address add 172.30.0.1/30 dev mine
            iptables -A FORWARD -i mine -j ACCEPT; ip link set mine up; ip link add wg0 type wireguard; ip address add 172.30.1.1/24 dev wg0; ip link set wg0 up";
        host.netns().sh(others)?;
        let before = cleanup::dump(host)?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let mut daemons = daemons(&hosts, &options)?;
        daemons[0].terminate()?;
        // A device that Go flannel left, of a backend that this node once used.
        host.netns().sh("ip link add flannel-wg type wireguard; ip address add 10.244.9.0/32 dev flannel-wg; ip link set flannel-wg up")?;
        let printed = cleanup::comes_back_to(host, &before, &[])?;
        ensure!(
            printed.contains("removed device flannel.ipip (ipip)")
                && printed.contains("removed device flannel-wg (wireguard)"),
            "{printed}"
        );
        Ok(())
    })
}
