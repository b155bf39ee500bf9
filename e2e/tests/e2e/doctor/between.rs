//! Faults between nodes that only probes detect: packets that a firewall or a switch drops or changes, and wrong clocks.

use anyhow::{Context, Result, bail, ensure};
use lab::{Lab, Switch, binaries, code_or_text};

use super::NETWORK;
use super::fault::in_parallel;
use super::node::{Node, all_well, well_nodes};

/// Runs a test with `count` nodes on one switch. Checks that no node has a finding at the end of the test.
fn nodes_on_a_switch(
    title: &str,
    count: u8,
    work: impl FnOnce(&Lab, &Switch, &mut [Node]) -> Result<()>,
) -> Result<()> {
    nodes_of(NETWORK, title, count, work)
}

/// Runs a test as [`nodes_on_a_switch`] does, with the network configuration `network`.
fn nodes_of(
    network: &str,
    title: &str,
    count: u8,
    work: impl FnOnce(&Lab, &Switch, &mut [Node]) -> Result<()>,
) -> Result<()> {
    well_nodes(network, title, count, |lab, lan, nodes| {
        work(lab, lan, nodes)?;
        all_well(nodes).context("at the end")
    })
}

/// Applies nftables rules to the frames that the switch forwards.
fn on_the_switch(lan: &Switch, rules: &str) -> Result<()> {
    let table = format!(
        "table bridge faults {{ chain c {{ type filter hook forward priority 0; policy accept;\n{rules}\n}}; }}\n"
    );
    lan.netns().feed("nft", &["-f", "-"], &table).map(drop)
}

fn remove_switch_fault(lan: &Switch) -> Result<()> {
    lan.netns()
        .exec("nft", &["delete", "table", "bridge", "faults"])
        .map(drop)
}

/// Checks that all nodes are ready: a verdict on another node does not make a node unready.
fn all_ready(nodes: &mut [Node]) -> Result<()> {
    for node in nodes {
        let answer = node.readyz()?;
        ensure!(answer.0 == 200, "{answer:?}");
    }
    Ok(())
}

/// The pod network contains the nodes' addresses, and one peer is behind a gateway. Packets to the peer's
/// underlay address therefore use flannel's route for the whole pod network.
#[test]
fn route_to_a_peer_through_its_tunnel_is_found() -> Result<()> {
    let network = r#"{"Network":"192.168.0.0/16","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;
    nodes_of(network, "doctor: tunnel loop", 3, |_, _, nodes| {
        let addresses = nodes
            .iter()
            .map(|node| node.host.v4())
            .collect::<Result<Vec<_>>>()?;
        let (peer, gateway) = (addresses[1], addresses[2]);
        nodes[0].run(&format!(
            "ip route add {gateway}/32 dev enp0s8; ip route add default via {gateway} dev enp0s8; ip route del 192.168.56.0/24 dev enp0s8"
        ))?;
        nodes[0].expect(&["tunnel-loop"])?;
        let first = nodes[0].first()?;
        let inside = format!("at {peer} is inside");
        ensure!(
            first["what"]
                .as_str()
                .is_some_and(|what| what.contains(code_or_text("tunnel-loop", &inside))),
            "{first:#}"
        );
        let commands = nodes[0].commands()?;
        ensure!(
            commands[0] == format!("ip route add {peer}/32 via {gateway} dev enp0s8"),
            "{first:#}"
        );
        ensure!(
            commands.len() == 2
                && commands[1].starts_with("# this change does not survive a reboot"),
            "{first:#}"
        );
        all_ready(nodes)?;
        nodes[0].mend()?;
        all_well(nodes).context("after its command")
    })
}

/// A firewall drops the packets of `ipip`, which uses no UDP port. The test needs a kernel that supports IPIP.
pub(crate) fn protocol_4_is_dropped() -> Result<()> {
    nodes_of(
        &NETWORK.replace("vxlan", "ipip"),
        "doctor: protocol 4",
        3,
        |_, lan, nodes| {
            nodes[0].run("iptables -A INPUT -p 4 -j DROP")?;
            nodes[0].expect(&["encap-blocked"])?;
            let first = nodes[0].first()?;
            ensure!(
                first["what"]
                    == code_or_text(
                        "encap-blocked",
                        "IP protocol 4 (IPIP) is blocked to this node"
                    ),
                "{first:#}"
            );
            let commands = nodes[0].commands()?;
            ensure!(
                commands[0].ends_with(" -I INPUT -i enp0s8 -s 192.168.56.0/24 -p 4 -j ACCEPT"),
                "{first:#}"
            );
            nodes[0].mend()?;
            all_well(nodes).context("after the firewall of a host")?;

            on_the_switch(lan, "ip protocol 4 drop")?;
            nodes[1].expect(&["encap-blocked"])?;
            remove_switch_fault(lan)
        },
    )
}

/// Packets that a firewall, the switch or a disconnected cable drops.
fn dropped() -> Result<()> {
    nodes_on_a_switch("doctor: the mesh", 3, |_, lan, nodes| {
        // A firewall of this host drops incoming packets.
        nodes[0].run("iptables -A INPUT -p udp --dport 8472 -j DROP")?;
        nodes[0].expect(&["encap-blocked"])?;
        all_ready(nodes)?;
        nodes[0].mend()?;
        all_well(nodes).context("after encap-blocked")?;
        // Simulates a boot: the firewall's rule is back, and the remedy's units run.
        nodes[0].run("iptables -F INPUT; iptables -A INPUT -p udp --dport 8472 -j DROP")?;
        nodes[0].expect(&["encap-blocked"])?;
        nodes[0].run_units()?;
        all_well(nodes).context("after a start of the host")?;

        // The switch drops tunnel packets of all nodes.
        on_the_switch(lan, "udp dport 8472 drop")?;
        for node in nodes.iter_mut() {
            node.expect(&["encap-blocked"])?;
        }
        all_ready(nodes)?;
        remove_switch_fault(lan)?;
        all_well(nodes).context("after encap-blocked on the switch")?;

        // The second host sends no tunnel packets to the first one.
        nodes[1].run("iptables -A OUTPUT -p udp --dport 8472 -d 192.168.56.101 -j DROP")?;
        nodes[0].expect(&["one-way"])?;
        nodes[1].expect(&["overlay-cut"])?;
        nodes[2].expect(&[])?;
        all_ready(nodes)?;
        nodes[1].run("iptables -F OUTPUT")?;
        all_well(nodes).context("after one-way")?;

        // The third host is cut off.
        nodes[2].host.clone().cut("enp0s8")?;
        nodes[0].expect(&["peer-cut"])?;
        nodes[2].expect(&["isolated"])?;
        all_ready(nodes)?;
        nodes[2].host.clone().reconnect("enp0s8")?;
        all_well(nodes).context("after peer-cut")?;

        // Only probes are dropped.
        nodes[1].run("iptables -A INPUT -p udp --dport 8473 -j DROP")?;
        nodes[0].expect(&["probe-filtered"])?;
        all_ready(nodes)?;
        let first = nodes[0].first()?;
        ensure!(first["remedy"]["on"] == "h2", "{first}");
        let commands = nodes[0].commands()?;
        nodes[1].type_in(&commands)
    })
}

/// The switch drops packets of more than 1400 bytes, although the nodes' interfaces have a larger MTU.
fn small_mtu() -> Result<()> {
    nodes_on_a_switch("doctor: mtu", 2, |_, lan, nodes| {
        on_the_switch(lan, "ip length > 1400 drop")?;
        for node in nodes.iter_mut() {
            node.expect(&["mtu"])?;
            let first = node.first()?.to_string();
            ensure!(
                code_or_text("mtu", "1350 bytes|set Backend.MTU to 1400")
                    .split('|')
                    .all(|words| first.contains(words)),
                "{first}"
            );
        }
        all_ready(nodes)?;
        let first = nodes[0].first()?;
        ensure!(first["remedy"]["on"] == "the other nodes", "{first}");
        let commands = nodes[0].commands()?;
        // The second node has the same finding, so the command in the note applies.
        let [ask, note] = commands.as_slice() else {
            bail!("{commands:?}")
        };
        let (_, command) = note
            .split_once("on one node: ")
            .with_context(|| note.clone())?;
        ensure!(
            ask == "flannelctl doctor" && command.contains(".Backend.MTU = 1400"),
            "{commands:?}"
        );
        nodes[0].type_in(&[command.to_owned()])?;
        nodes.iter_mut().try_for_each(Node::restart)?;
        all_well(nodes).context("after its commands, with the same switch")?;
        ensure!(
            nodes[0].daemon()?.subnet_env()?.mtu == 1350,
            "{:?}",
            nodes[0].daemon()?.subnet_env()?
        );
        remove_switch_fault(lan)
    })
}

/// The switch drops a random third of the first node's tunnel packets.
fn lossy() -> Result<()> {
    nodes_on_a_switch("doctor: lossy", 2, |_, lan, nodes| {
        // The loss is random. Otherwise, every third packet could always be one that no probe depends on.
        on_the_switch(
            lan,
            "ip saddr 192.168.56.101 udp dport 8472 numgen random mod 3 == 0 drop",
        )?;
        for node in nodes.iter_mut() {
            node.expect(&["lossy"])?;
        }
        all_ready(nodes)?;
        remove_switch_fault(lan)
    })
}

/// Simulates a network card that computes wrong checksums of inner packets. The switch overwrites
/// the inner UDP checksum, 56 bytes after the start of the outer UDP header.
fn checksums() -> Result<()> {
    nodes_on_a_switch("doctor: checksum", 2, |_, lan, nodes| {
        // The kernel has to compute the checksums, because veth computes none that the sender left to its hardware.
        for node in nodes.iter_mut() {
            node.run("ethtool -K flannel.1 tx-checksum-ip-generic off")?;
        }
        on_the_switch(lan, "udp dport 8472 @th,312,8 17 @th,448,16 set 0xbad1")?;
        for node in nodes.iter_mut() {
            node.expect(&["checksum"])?;
        }
        all_ready(nodes)?;
        let commands = nodes[0].commands()?;
        nodes
            .iter_mut()
            .try_for_each(|node| node.type_in(&commands))?;
        remove_switch_fault(lan)
    })
}

/// One node's clock is 60 seconds ahead.
fn clock() -> Result<()> {
    nodes_on_a_switch("doctor: clock", 3, |_, _, nodes| {
        let library = binaries::faketime()?;
        nodes[2].wrap(&format!(
            "export LD_PRELOAD='{}' FAKETIME=+60 FAKETIME_DONT_FAKE_MONOTONIC=1",
            library.display()
        ))?;
        nodes[2].restart()?;
        nodes[2].expect(&["clock"])?;
        let first = nodes[2].first()?["what"].to_string();
        ensure!(
            first.contains(code_or_text("clock", "ahead of the clocks of most peers")),
            "{first}"
        );
        nodes[0].expect(&[])?;
        all_ready(nodes)?;
        nodes[2].wrap("")?;
        nodes[2].restart()
    })
}

#[test]
fn faults_between_nodes_are_found_and_fixed() -> Result<()> {
    in_parallel(&[dropped, small_mtu, lossy, checksums, clock])
}
