//! The doctor's commands for ufw and firewalld admit only peers' packets, even after a reload of the firewall.

use std::net::{Ipv4Addr, UdpSocket};

use anyhow::{Context, Result, ensure};
use lab::{Launch, Process, Scene, binaries, until_ok, write_script};

use super::node::{Node, run_with_healthy_nodes, wait_all_nodes_healthy};

/// Outside the underlay.
const STRANGER: &str = "203.0.113.9";

/// Counts packets to port 8472 behind all firewalls, separately for a peer's address and for one outside the underlay.
const COUNTERS: &str = "ip route add 203.0.113.9 dev enp0s8
nft 'table ip counted {
    counter peer { }
    counter stranger { }
    chain input {
        type filter hook input priority 300; policy accept
        udp dport 8472 ip saddr 192.168.56.102 counter name peer
        udp dport 8472 ip saddr 203.0.113.9 counter name stranger
    }
}'";

/// Two healthy nodes, the first behind a firewall that `begin` starts and `reload` starts again. The second one also has an address outside the
/// underlay.
fn firewall_remedy_admits_peers_only(
    check: &str,
    begin: impl FnOnce(&mut Node) -> Result<Vec<Process>>,
    reloads: &[&str],
    end: &str,
) -> Result<()> {
    run_with_healthy_nodes(Scene::with_title(&format!("doctor: {check}")), |_, nodes| {
        nodes[0].run(COUNTERS)?;
        nodes[1].run(&format!("ip address add {STRANGER}/32 dev enp0s8"))?;
        ensure!(
            packets_reach_tunnel_port(nodes, STRANGER)?,
            "without a firewall everybody gets in"
        );
        let mut processes = begin(&mut nodes[0])?;
        ensure!(!packets_reach_tunnel_port(nodes, STRANGER)?, "the firewall is active");
        nodes[0].wait_exact_causes(&[check])?;
        nodes[0].run_first_finding_commands()?;
        for reload in [&["true"], reloads].concat() {
            nodes[0].run(reload)?;
            let peer = nodes[1].host.v4()?.to_string();
            ensure!(
                packets_reach_tunnel_port(nodes, &peer)?,
                "{reload}: the peer's packets are dropped"
            );
            ensure!(
                !packets_reach_tunnel_port(nodes, STRANGER)?,
                "{reload}: the port is open to {STRANGER}"
            );
        }
        wait_all_nodes_healthy(nodes).context("after its commands")?;
        processes.clear();
        nodes[0].run(end)?;
        wait_all_nodes_healthy(nodes).context("without the firewall")
    })
}

/// True if packets to the tunnel's port of the first node pass. `from` is one of the second node's two addresses.
fn packets_reach_tunnel_port(nodes: &mut [Node], from: &str) -> Result<bool> {
    let to = nodes[0].host.v4()?;
    let from: Ipv4Addr = from.parse()?;
    let name = if from.to_string() == STRANGER { "stranger" } else { "peer" };
    let counter = format!("nft list counter ip counted {name}");
    let before = nodes[0].sh(&counter)?;
    for _ in 0..10 {
        nodes[1].host.netns().run(|| {
            UdpSocket::bind((from, 0)).and_then(|socket| socket.send_to(b"no vxlan", (to, 8472)))
        })??;
    }
    // There is no queue between two hosts of a lab, so a packet has arrived when it is sent.
    Ok(nodes[0].sh(&counter)? != before)
}

/// The script runs a program from a package that is unpacked but not installed.
fn write_python_wrapper(
    node: &Node,
    name: &str,
    packages: &std::path::Path,
    environment: &str,
    program: &str,
) -> Result<()> {
    let modules = packages.join("usr/lib/python3/dist-packages");
    let text = format!(
        "#!/bin/sh\nexport PYTHONPATH='{}' {environment}\nexec /usr/bin/python3 -W ignore {program} \"$@\"\n",
        modules.display()
    );
    write_script(&node.files.join("bin").join(name), &text)
}

/// Keeps ufw's files in the node's folder.
fn install_ufw(node: &mut Node) -> Result<()> {
    let packages = binaries::cached_file("firewalls/complete")?.with_file_name("");
    let (from, root) =
        (packages.display().to_string(), node.files.join("ufw").display().to_string());
    node.run(&format!(
        "mkdir -p {root}/etc/default {root}/lib; cp -r {from}/etc/ufw {root}/etc/; cp {from}/etc/default/ufw {root}/etc/default/
        if [ -d {from}/lib/ufw ]; then cp -r {from}/lib/ufw {root}/lib/; else cp -r {from}/usr/lib/ufw {root}/lib/; fi
        cd {from}/usr/share/ufw; cp *.rules *.init ufw.conf {root}/etc/ufw/; cp iptables/*.rules {root}/etc/ufw/"
    ))?;
    write_python_wrapper(
        node,
        "ufw",
        &packages,
        "",
        &format!("{from}/usr/sbin/ufw --rootdir={root} --datadir={root}"),
    )
}

#[test]
fn ufw_remedy_admits_peers_only() -> Result<()> {
    let begin = |node: &mut Node| {
        install_ufw(node)?;
        // Rules that admit somebody else do not hide the finding.
        node.run("ufw --force enable; ufw allow from 203.0.113.77; ufw allow 8472/tcp")?;
        Ok(Vec::new())
    };
    // The second one reads its files again, as at a boot.
    let reloads = ["ufw reload", "ufw --force disable; ufw --force enable"];
    firewall_remedy_admits_peers_only("ufw", begin, &reloads, "ufw --force disable")
}

/// Keeps firewalld's files in the node's folder, and gives it a D-Bus of its own. It runs until the lab removes the host.
fn start_firewalld(node: &mut Node) -> Result<Vec<Process>> {
    let packages = binaries::cached_file("firewalls/complete")?.with_file_name("");
    let folder = node.files.join("firewalld");
    let (from, root) = (packages.display().to_string(), folder.display().to_string());
    node.run(&format!("mkdir -p {root}; cp -r {from}/etc/firewalld {root}/etc"))?;
    let every = ["method_call", "method_return", "error", "signal"];
    let allow: String = every
        .map(|kind| format!("<allow send_type=\"{kind}\"/><allow receive_type=\"{kind}\"/>"))
        .concat();
    std::fs::write(
        folder.join("bus.conf"),
        format!(
            "<busconfig><type>system</type><listen>unix:path={root}/bus</listen><auth>EXTERNAL</auth>\
             <policy context=\"default\"><allow user=\"*\"/><allow own=\"*\"/>{allow}</policy></busconfig>"
        ),
    )?;
    let bus = format!("DBUS_SYSTEM_BUS_ADDRESS='unix:path={root}/bus'");
    write_python_wrapper(
        node,
        "firewall-cmd",
        &packages,
        &bus,
        &format!("{from}/usr/bin/firewall-cmd"),
    )?;
    let files = format!(
        "--system-config {root}/etc --default-config {from}/usr/lib/firewalld --log-file {root}/log"
    );
    write_python_wrapper(
        node,
        "firewalld",
        &packages,
        &bus,
        &format!("{from}/usr/sbin/firewalld --nofork --nopid {files}"),
    )?;
    let config = format!("--config-file={root}/bus.conf");
    let bus = node.host.spawn(
        "bus",
        &Launch::new("dbus-daemon").args([config.as_str(), "--nofork", "--nopidfile"]),
    )?;
    let daemon = node.host.spawn("firewalld", &Launch::new(node.files.join("bin/firewalld")))?;
    until_ok("firewalld runs", || node.run("firewall-cmd --state"))?;
    Ok(vec![bus, daemon])
}

#[test]
fn firewalld_remedy_admits_peers_only() -> Result<()> {
    let begin = |node: &mut Node| {
        let processes = start_firewalld(node)?;
        // The interface is not in the default zone, where a rule would fix nothing.
        node.run("firewall-cmd --zone=internal --change-interface=enp0s8; firewall-cmd --permanent --zone=internal --change-interface=enp0s8")?;
        Ok(processes)
    };
    let end = "nft delete table inet firewalld || true";
    firewall_remedy_admits_peers_only("firewalld", begin, &["firewall-cmd --complete-reload"], end)
}
