//! The `ipip` backend on a kernel that supports IPIP.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{PingMatrix, PingOptions, Scene, SceneOptions, Uplink, until, until_ok};

use crate::flannelctl::cleanup;
use crate::healing::scenarios;
use crate::lease::golden;
use crate::traffic::Families;
use crate::{doctor, healing, traffic};

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn kernel_state_equals_go_flannels() -> Result<()> {
    golden::wait_first_node_equals_capture("ipip")?;
    golden::wait_first_node_equals_capture("ipip-direct")
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn carries_packets_of_full_size() -> Result<()> {
    traffic::require_traffic_and_leases(("ipip", Families::V4))
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn damaged_kernel_state_is_repaired() -> Result<()> {
    healing::require_repair_of_each_damage(&healing::IPIP)
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn loses_nothing_when_daemons_are_killed() -> Result<()> {
    healing::restart_after_kill_writes_nothing(&healing::IPIP)
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn firewall_that_drops_ipip_is_reported() -> Result<()> {
    doctor::dropped_protocol_4_is_found_and_fixed()
}

fn ipip_scene<'a>(title: &str, rest: &str) -> SceneOptions<'a> {
    Scene::with_title(&format!("vm: ipip {title}")).net(&format!(
        r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0",{rest}"Backend":{{"Type":"ipip"}}}}"#
    ))
}

/// Probes cover only IPv4 too.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn carries_the_ipv4_half_of_two_families() -> Result<()> {
    let dual = ipip_scene("dual", r#""EnableIPv6":true,"IPv6Network":"fd00:5::/48","#);
    dual.without_daemons().run(|s| {
        s.start_daemons()?;
        let pods = [s[0].create_pod("p1")?.clone(), s[1].create_pod("p1")?.clone()];
        until_ok("the pods reach each other", || {
            PingMatrix::of_main_addresses(&pods)?.require_complete()
        })?;
        let v6 = pods[1].v6()?;
        ensure!(
            lab::ping_address(pods[0].netns(), v6.into(), &PingOptions::default())?.is_none(),
            "IPv6 arrives, and the documentation denies it"
        );
        until_ok("the probes know only of IPv4", || {
            let text = s[0].daemon()?.get_status_api("/api/v1/node")?.1;
            let document: serde_json::Value = serde_json::from_str(&text)?;
            let peers = document["mesh"]["peers"].as_array().context("no peers")?;
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

/// Any host on the underlay can send forged IPIP packets.
fn forged_packets_are_dropped(nftables: bool) -> Result<()> {
    ipip_scene("guard", &format!(r#""EnableNFTables":{nftables},"#)).run(|s| {
        // This host has no lease. The reply may go elsewhere, so the pod counts the requests that arrive.
        let forger = s.lab.create_host("forger", &[Uplink::enp0s8(&s.lan, 50)?])?;
        let pod = s[0].pods[0].clone();
        forger.netns().run_ip_batch(&format!(
            "link add forge type ipip local {} remote {}\nlink set forge up\naddress add 10.5.250.1/32 dev forge\n\
             route add {} dev forge src 10.5.250.1",
            forger.v4()?,
            s[0].v4()?,
            pod.v4()?,
        ))?;
        let came = || -> Result<bool> {
            let count = || pod.netns().sh("nstat -asz IcmpInEchos | tail -1");
            let before = count()?;
            let options = PingOptions::default().timeout(Duration::from_millis(300));
            let _ = lab::ping_address(forger.netns(), pod.v4()?.into(), &options)?;
            Ok(count()? != before)
        };
        until("forged packets arrive without a guard", || came().is_ok_and(|came| came))?;
        let options = s[0].options.clone().arg("--encap-peers=drop");
        s[0].options = options.arg("--encap-notrack").arg("--encap-bar-pods");
        s[0].restart_daemon()?;
        until("forged packets are dropped", || came().is_ok_and(|came| !came))?;
        s.wait_first_pods_connected()
    })
}

/// `flannelctl cleanup` removes the tunnels of flannel-rs and Go flannel, and keeps the tunnels of other programs.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn cleanup_leaves_the_tunnels_of_others() -> Result<()> {
    ipip_scene("cleanup", "").without_daemons().run(|s| {
        s[0].sh("ip link add mine type ipip local 192.168.56.101 remote 192.168.56.77; ip address add 172.30.0.1/30 dev mine
            iptables -A FORWARD -i mine -j ACCEPT; ip link set mine up; ip link add wg0 type wireguard; ip address add 172.30.1.1/24 dev wg0; ip link set wg0 up")?;
        let before = cleanup::dump_kernel_objects(&s[0])?;
        s.start_daemons()?;
        s[0].stop_daemon()?;
        // A device that Go flannel left, of a backend that this node once used.
        s[0].sh("ip link add flannel-wg type wireguard; ip address add 10.5.9.0/32 dev flannel-wg; ip link set flannel-wg up")?;
        let printed = cleanup::clean_up_and_require_restored(&s[0], &before, &[])?;
        ensure!(
            printed.contains("removed device flannel.ipip (ipip)")
                && printed.contains("removed device flannel-wg (wireguard)"),
            "{printed}"
        );
        Ok(())
    })
}
