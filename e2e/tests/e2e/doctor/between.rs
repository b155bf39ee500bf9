//! Faults between nodes that only probes detect: packets that a firewall or a switch drops or changes, and wrong clocks.

use anyhow::{Context, Result, bail, ensure};
use lab::{Scene, Switch, binaries};

use super::node::{Node, all_well, well_nodes};

/// Applies nft rules to the frames that the switch forwards.
pub(crate) fn on_the_switch(lan: &Switch, rules: &str) -> Result<()> {
    let table = format!(
        "table bridge faults {{ chain c {{ type filter hook forward priority 0; policy accept;\n{rules}\n}}; }}\n"
    );
    lan.netns().feed("nft", &["-f", "-"], &table).map(drop)
}

pub(crate) fn remove_switch_fault(lan: &Switch) -> Result<()> {
    let delete = ["delete", "table", "bridge", "faults"];
    lan.netns().exec("nft", &delete).map(drop)
}

/// Applies rules to the frames on the switch, until all nodes have only the finding `check`. A verdict makes no node unready.
fn all_find(lan: &Switch, rules: &str, check: &str, nodes: &mut [Node]) -> Result<()> {
    on_the_switch(lan, rules)?;
    for node in nodes {
        node.expect(&[check])?;
        node.require_readyz(200)?;
    }
    Ok(())
}

/// The pod network contains the nodes' addresses, and one peer is behind a gateway. Packets to its underlay address therefore use flannel's route for
/// the whole pod network.
#[test]
fn route_to_a_peer_through_its_tunnel_is_found() -> Result<()> {
    let network = r#"{"Network":"192.168.0.0/16","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;
    let scene = Scene::of("doctor: tunnel loop").net(network).nodes(3);
    well_nodes(scene, |_, nodes| {
        let gateway = nodes[2].host.v4()?;
        nodes[0].run(&format!(
            "ip route add {gateway}/32 dev enp0s8; ip route add default via {gateway} dev enp0s8; ip route del 192.168.56.0/24 dev enp0s8"
        ))?;
        nodes[0].expect(&["tunnel-loop"])?;
        nodes[0].require_readyz(200)?;
        nodes[0].mend()?;
        all_well(nodes)
    })
}

/// A firewall drops the packets of `ipip`, which uses no UDP port. The test needs a kernel that supports IPIP.
pub(crate) fn protocol_4_is_dropped() -> Result<()> {
    let network = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"ipip"}}"#;
    well_nodes(Scene::of("doctor: protocol 4").net(network).nodes(3), |_, nodes| {
        nodes[0].run("iptables -A INPUT -p 4 -j DROP")?;
        nodes[0].expect(&["encap-blocked"])?;
        nodes[0].mend()?;
        all_well(nodes)
    })
}

#[test]
fn dropped_tunnel_and_probes_are_found_and_fixed() -> Result<()> {
    well_nodes(Scene::of("doctor: the mesh").nodes(3), |s, nodes| {
        nodes[0].run("iptables -A INPUT -p udp --dport 8472 -j DROP")?;
        nodes[0].expect(&["encap-blocked"])?;
        nodes[0].mend()?;
        all_well(nodes).context("after its commands")?;
        // Simulates a boot: the firewall's rule is back, and the remedy's units run.
        nodes[0].run("iptables -F INPUT; iptables -A INPUT -p udp --dport 8472 -j DROP")?;
        nodes[0].expect(&["encap-blocked"])?;
        nodes[0]
            .run("cat /etc/systemd/system/flannel-*.service | sed -n 's/^ExecStart=//p' | sh -e")?;
        all_well(nodes).context("after a start of the host")?;

        all_find(&s.lan, "udp dport 8472 drop", "encap-blocked", nodes)?;
        remove_switch_fault(&s.lan)?;
        all_well(nodes).context("after the switch")?;

        nodes[1].run("iptables -A INPUT -p udp --dport 8473 -j DROP")?;
        nodes[0].expect(&["probe-filtered"])?;
        nodes[0].require_readyz(200)?;
        ensure!(nodes[0].first()?["remedy"]["on"] == "h2");
        let commands = nodes[0].commands()?;
        nodes[1].type_in(&commands)?;
        all_well(nodes)
    })
}

/// The switch drops packets of more than 1400 bytes, although the nodes' interfaces have a larger MTU.
#[test]
fn small_mtu_of_the_switch_is_found_and_configured() -> Result<()> {
    well_nodes(Scene::of("doctor: mtu"), |s, nodes| {
        all_find(&s.lan, "ip length > 1400 drop", "mtu", nodes)?;
        // The second node has the same finding, so the command in the note applies.
        let commands = nodes[0].commands()?;
        let [_, note] = commands.as_slice() else { bail!("{commands:?}") };
        let (_, command) = note.split_once("on one node: ").context(note.clone())?;
        nodes[0].type_in(&[command.to_owned()])?;
        nodes.iter_mut().try_for_each(Node::restart)?;
        all_well(nodes).context("after its commands, with the same switch")?;
        ensure!(nodes[0].daemon()?.subnet_env()?.mtu == 1350);
        Ok(())
    })
}

#[test]
fn switch_that_loses_a_third_is_reported_as_lossy() -> Result<()> {
    well_nodes(Scene::of("doctor: lossy"), |s, nodes| {
        let rules = "ip saddr 192.168.56.101 udp dport 8472 numgen inc mod 3 == 0 drop";
        all_find(&s.lan, rules, "lossy", nodes)?;
        remove_switch_fault(&s.lan)?;
        all_well(nodes)
    })
}

/// A network card computes wrong checksums of inner packets: the switch overwrites the inner UDP checksum, 56 bytes after the start of the outer UDP
/// header.
#[test]
fn wrong_checksums_are_found_and_fixed() -> Result<()> {
    well_nodes(Scene::of("doctor: checksum"), |s, nodes| {
        // The kernel has to compute the checksums, because veth computes none that the sender left to its hardware.
        for node in nodes.iter_mut() {
            node.run("ethtool -K flannel.1 tx-checksum-ip-generic off")?;
        }
        let rules = "udp dport 8472 @th,312,8 17 @th,448,16 set 0xbad1";
        all_find(&s.lan, rules, "checksum", nodes)?;
        nodes.iter_mut().try_for_each(Node::mend)?;
        remove_switch_fault(&s.lan)?;
        all_well(nodes)
    })
}

#[test]
fn clock_that_is_ahead_is_found_where_it_is() -> Result<()> {
    well_nodes(Scene::of("doctor: clock").nodes(3), |_, nodes| {
        let library = binaries::faketime_library()?;
        nodes[2].wrap(&format!(
            "export LD_PRELOAD='{}' FAKETIME=+60 FAKETIME_DONT_FAKE_MONOTONIC=1",
            library.display()
        ))?;
        nodes[2].restart()?;
        nodes[2].expect(&["clock"])?;
        nodes[2].require_readyz(200)?;
        nodes[0].expect(&[])?;
        nodes[2].wrap("")?;
        nodes[2].restart()?;
        all_well(nodes)
    })
}
