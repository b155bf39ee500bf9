//! Faults between nodes that only probes detect: packets that a firewall or a switch drops or changes, and wrong clocks.

use anyhow::{Context, Result, bail, ensure};
use lab::{Scene, Switch, binaries};

use super::node::{Node, run_with_healthy_nodes, wait_all_nodes_healthy};

/// Applies nft rules to the frames that the switch forwards.
pub(crate) fn add_switch_nft_rules(lan: &Switch, rules: &str) -> Result<()> {
    let table = format!(
        "table bridge faults {{ chain c {{ type filter hook forward priority 0; policy accept;\n{rules}\n}}; }}\n"
    );
    lan.netns().exec_with_input("nft", &["-f", "-"], &table).map(drop)
}

pub(crate) fn remove_switch_fault(lan: &Switch) -> Result<()> {
    let delete = ["delete", "table", "bridge", "faults"];
    lan.netns().exec("nft", &delete).map(drop)
}

/// Applies rules to the frames on the switch, until all nodes have only the finding `check`. A verdict makes no node unready.
fn break_switch_and_wait_finding(
    lan: &Switch,
    rules: &str,
    check: &str,
    nodes: &mut [Node],
) -> Result<()> {
    add_switch_nft_rules(lan, rules)?;
    for node in nodes {
        node.wait_exact_causes(&[check])?;
        node.require_readyz(200)?;
    }
    Ok(())
}

/// The pod network contains the nodes' addresses, and one peer is behind a gateway. Packets to its underlay address therefore use flannel's route for
/// the whole pod network.
#[test]
fn route_to_a_peer_through_its_tunnel_is_found() -> Result<()> {
    let network = r#"{"Network":"192.168.0.0/16","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;
    let scene = Scene::with_title("doctor: tunnel loop").net(network).nodes(3);
    run_with_healthy_nodes(scene, |_, nodes| {
        let gateway = nodes[2].host.v4()?;
        nodes[0].run(&format!(
            "ip route add {gateway}/32 dev enp0s8; ip route add default via {gateway} dev enp0s8; ip route del 192.168.56.0/24 dev enp0s8"
        ))?;
        nodes[0].wait_exact_causes(&["tunnel-loop"])?;
        nodes[0].require_readyz(200)?;
        nodes[0].run_first_finding_commands()?;
        wait_all_nodes_healthy(nodes)
    })
}

/// A firewall drops the packets of `ipip`, which uses no UDP port. The test needs a kernel that supports IPIP.
pub(crate) fn dropped_protocol_4_is_found_and_fixed() -> Result<()> {
    let network = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"ipip"}}"#;
    run_with_healthy_nodes(
        Scene::with_title("doctor: protocol 4").net(network).nodes(3),
        |_, nodes| {
            nodes[0].run("iptables -A INPUT -p 4 -j DROP")?;
            nodes[0].wait_exact_causes(&["encap-blocked"])?;
            nodes[0].run_first_finding_commands()?;
            wait_all_nodes_healthy(nodes)
        },
    )
}

#[test]
fn dropped_tunnel_and_probes_are_found_and_fixed() -> Result<()> {
    run_with_healthy_nodes(Scene::with_title("doctor: the mesh").nodes(3), |s, nodes| {
        nodes[0].run("iptables -A INPUT -p udp --dport 8472 -j DROP")?;
        nodes[0].wait_exact_causes(&["encap-blocked"])?;
        nodes[0].run_first_finding_commands()?;
        wait_all_nodes_healthy(nodes).context("after its commands")?;
        // Simulates a boot: the firewall's rule is back, and the remedy's units run.
        nodes[0].run("iptables -F INPUT; iptables -A INPUT -p udp --dport 8472 -j DROP")?;
        nodes[0].wait_exact_causes(&["encap-blocked"])?;
        nodes[0]
            .run("cat /etc/systemd/system/flannel-*.service | sed -n 's/^ExecStart=//p' | sh -e")?;
        wait_all_nodes_healthy(nodes).context("after a start of the host")?;

        break_switch_and_wait_finding(&s.lan, "udp dport 8472 drop", "encap-blocked", nodes)?;
        remove_switch_fault(&s.lan)?;
        wait_all_nodes_healthy(nodes).context("after the switch")?;

        nodes[1].run("iptables -A INPUT -p udp --dport 8473 -j DROP")?;
        nodes[0].wait_exact_causes(&["probe-filtered"])?;
        nodes[0].require_readyz(200)?;
        ensure!(nodes[0].first_finding()?["remedy"]["on"] == "h2");
        let commands = nodes[0].first_finding_commands()?;
        nodes[1].run_commands(&commands)?;
        wait_all_nodes_healthy(nodes)
    })
}

/// The switch drops packets of more than 1400 bytes, although the nodes' interfaces have a larger MTU.
#[test]
fn small_mtu_of_the_switch_is_found_and_configured() -> Result<()> {
    run_with_healthy_nodes(Scene::with_title("doctor: mtu"), |s, nodes| {
        break_switch_and_wait_finding(&s.lan, "ip length > 1400 drop", "mtu", nodes)?;
        // The second node has the same finding, so the command in the note applies.
        let commands = nodes[0].first_finding_commands()?;
        let [_, note] = commands.as_slice() else { bail!("{commands:?}") };
        let (_, command) = note.split_once("on one node: ").context(note.clone())?;
        nodes[0].run_commands(&[command.to_owned()])?;
        nodes.iter_mut().try_for_each(Node::restart_without_waiting)?;
        wait_all_nodes_healthy(nodes).context("after its commands, with the same switch")?;
        ensure!(nodes[0].daemon()?.subnet_env()?.mtu == 1350);
        Ok(())
    })
}

#[test]
fn switch_that_loses_packets_is_reported_as_lossy() -> Result<()> {
    run_with_healthy_nodes(Scene::with_title("doctor: lossy"), |s, nodes| {
        // No round of probes has seven packets. Of each third packet, one node's probes could lose all and the other's none, as they take turns.
        let rules = "ip saddr 192.168.56.101 udp dport 8472 numgen inc mod 7 { 0, 3 } drop";
        break_switch_and_wait_finding(&s.lan, rules, "lossy", nodes)?;
        remove_switch_fault(&s.lan)?;
        wait_all_nodes_healthy(nodes)
    })
}

/// A network card computes wrong checksums of inner packets: the switch overwrites the inner UDP checksum, 56 bytes after the start of the outer UDP
/// header.
#[test]
fn wrong_checksums_are_found_and_fixed() -> Result<()> {
    run_with_healthy_nodes(Scene::with_title("doctor: checksum"), |s, nodes| {
        // The kernel has to compute the checksums, because veth computes none that the sender left to its hardware.
        for node in nodes.iter_mut() {
            node.run("ethtool -K flannel.1 tx-checksum-ip-generic off")?;
        }
        let rules = "udp dport 8472 @th,312,8 17 @th,448,16 set 0xbad1";
        break_switch_and_wait_finding(&s.lan, rules, "checksum", nodes)?;
        nodes.iter_mut().try_for_each(Node::run_first_finding_commands)?;
        remove_switch_fault(&s.lan)?;
        wait_all_nodes_healthy(nodes)
    })
}

#[test]
fn clock_that_is_ahead_is_found_where_it_is() -> Result<()> {
    run_with_healthy_nodes(Scene::with_title("doctor: clock").nodes(3), |_, nodes| {
        let library = binaries::faketime_library()?;
        nodes[2].write_flanneld_wrapper(&format!(
            "export LD_PRELOAD='{}' FAKETIME=+60 FAKETIME_DONT_FAKE_MONOTONIC=1",
            library.display()
        ))?;
        nodes[2].restart_without_waiting()?;
        nodes[2].wait_exact_causes(&["clock"])?;
        nodes[2].require_readyz(200)?;
        nodes[0].wait_exact_causes(&[])?;
        nodes[2].write_flanneld_wrapper("")?;
        nodes[2].restart_without_waiting()?;
        wait_all_nodes_healthy(nodes)
    })
}
