//! Checks that the doctor reports no finding for healthy networks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{FlanneldOptions, Lab, Store};

use super::node::Node;

/// Returns configurations of healthy networks: three backends, each with iptables and with nftables rules, and with one and two address families.
fn healthy() -> Vec<String> {
    let mut all = Vec::new();
    for backend in ["vxlan", "udp", "host-gw"] {
        for nftables in [false, true] {
            for v6 in ["", r#""EnableIPv6":true,"IPv6Network":"fd10:5::/48","#] {
                all.push(format!(r#"{{"Network":"10.5.0.0/16",{v6}"EnableNFTables":{nftables},"Backend":{{"Type":"{backend}"}}}}"#));
            }
        }
    }
    all
}

#[test]
fn healthy_network_raises_no_finding() -> Result<()> {
    let configs = healthy();
    let labs = configs
        .iter()
        .map(|_| Lab::new("doctor: healthy"))
        .collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for (lab, config) in labs.iter().zip(&configs) {
        let lan = lab.switch("lan")?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(config)?;
        let options = FlanneldOptions::bare().iface("enp0s8");
        for host in &lab.hosts(&lan, 2)? {
            let mut node = Node::new(lab, host, &options, &store)?;
            node.start()?;
            all.push((config, node));
        }
    }
    for (_, node) in &mut all {
        node.ready()?;
    }
    for (config, node) in &mut all {
        let env = node.daemon()?.subnet_env()?;
        let _pod = node.host.pod("p1", &env)?;
        node.expect(&[]).with_context(|| config.to_string())?;
    }
    // Longer than a round of the doctor and its grace periods. No event shows that a round found nothing.
    std::thread::sleep(Duration::from_secs(12));
    for (config, node) in &mut all {
        node.expect(&[])
            .with_context(|| format!("{config}, later"))?;
        let log = node.daemon()?.log();
        ensure!(!log.contains("WARN this node"), "{config}: {log}");
    }
    Ok(())
}
