//! Number and size of the nodes' probes, which nftables counts on the switch.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Bed, Host, Netns, Switch, until_ok};
use serde_json::Value;

use super::NODES;

/// Duration of two probe cycles, in which each node probes each other node at least once.
const WINDOW: Duration = Duration::from_secs(11);

/// Counts packets by sender, and probes by sender and target. In the tunnel, a probe follows the headers of UDP, VXLAN, Ethernet, IP and UDP.
const COUNTERS: &str = "table bridge probes {
    set sent { type ipv4_addr; flags dynamic; size 1000; }
    set asked { type ipv4_addr . ipv4_addr; flags dynamic; size 10000; }
    chain c {
        type filter hook forward priority 0; policy accept;
        udp dport 8472 @th,464,32 0x666c7072 update @sent { ip saddr counter }
        udp dport 8473 update @sent { ip saddr counter }
        udp dport 8472 @th,464,32 0x666c7072 @th,504,8 1 update @asked { ip saddr . ip daddr counter }
        udp dport 8473 @th,104,8 1 update @asked { ip saddr . ip daddr counter }
    }
    counter broadcasts {}
    chain floods {
        type filter hook forward priority 1; policy accept;
        ether daddr ff:ff:ff:ff:ff:ff arp operation request counter name broadcasts
    }
}";

/// Numbers of packets and bytes, by sender.
type Sent = BTreeMap<Ipv4Addr, (u64, u64)>;
/// Numbers of probes, by sender and target.
type Asked = BTreeMap<(Ipv4Addr, Ipv4Addr), u64>;

fn counted(lan: &Switch) -> Result<(Sent, Asked)> {
    let text = lan
        .netns()
        .exec("nft", &["-j", "list", "table", "bridge", "probes"])?;
    let listing: Value = serde_json::from_str(&text)?;
    let elements = |name: &str| -> Result<Vec<Value>> {
        let set = listing["nftables"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|object| object["set"]["name"] == name);
        Ok(
            set.with_context(|| format!("no set {name} in {text}"))?["set"]["elem"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
        )
    };
    let address =
        |value: &Value| -> Result<Ipv4Addr> { Ok(value.as_str().context("no address")?.parse()?) };
    let number = |element: &Value, what: &str| {
        element["elem"]["counter"][what]
            .as_u64()
            .with_context(|| format!("no {what} in {element}"))
    };
    let (mut sent, mut asked) = (Sent::new(), Asked::new());
    for element in elements("sent")? {
        sent.insert(
            address(&element["elem"]["val"])?,
            (number(&element, "packets")?, number(&element, "bytes")?),
        );
    }
    for element in elements("asked")? {
        let pair = &element["elem"]["val"]["concat"];
        asked.insert(
            (address(&pair[0])?, address(&pair[1])?),
            number(&element, "packets")?,
        );
    }
    Ok((sent, asked))
}

/// Starts to count.
pub(super) fn count(lan: &Switch) -> Result<()> {
    lan.netns().feed("nft", &["-f", "-"], COUNTERS).map(drop)
}

/// Returns the number of ARP broadcasts since [`count`]. The switch sends a copy of each broadcast frame to all ports except the sender's port.
pub(super) fn broadcasts(lan: &Switch) -> Result<u64> {
    let text = lan.netns().exec(
        "nft",
        &["-j", "list", "counter", "bridge", "probes", "broadcasts"],
    )?;
    let listing: Value = serde_json::from_str(&text)?;
    let packets = listing["nftables"]
        .as_array()
        .into_iter()
        .flatten()
        .find_map(|object| object["counter"]["packets"].as_u64());
    // The hook sees one packet for each port from which the frame leaves.
    Ok(packets.with_context(|| text.clone())? / u64::from(NODES - 1))
}

/// Returns the number of neighbour entries of a host's uplink.
fn neighbours(netns: &Netns) -> Result<usize> {
    Ok(netns
        .exec("ip", &["neighbour", "show", "dev", "enp0s8"])?
        .lines()
        .count())
}

/// Checks that each host has fewer neighbour entries than the number of nodes.
pub(super) fn require_bounded_neighbours(hosts: &[Host]) -> Result<()> {
    for host in hosts {
        let entries = neighbours(host.netns())?;
        ensure!(
            entries < usize::from(NODES),
            "{}: {entries} neighbours",
            host.name()
        );
    }
    Ok(())
}

/// Checks that nodes without faults probe each peer rarely, and do not send an ARP broadcast for each probe.
pub(super) fn require_frugal(bed: &Bed) -> Result<()> {
    let addresses = bed.hosts.iter().map(Host::v4).collect::<Result<Vec<_>>>()?;
    // On a busy machine replies are late and probes are repeated, so it measures again.
    until_ok("nodes at rest", || {
        let (begun, (sent_before, asked_before)) = (Instant::now(), counted(&bed.lan)?);
        let before = broadcasts(&bed.lan)?;
        std::thread::sleep(WINDOW);
        let (sent, asked) = counted(&bed.lan)?;
        let seconds = begun.elapsed().as_secs_f64();
        let (mut most, mut dearest) = (0.0, 0.0);
        for from in &addresses {
            let bytes = sent.get(from).copied().unwrap_or_default().1
                - sent_before.get(from).copied().unwrap_or_default().1;
            let mut questions = 0;
            for to in addresses.iter().filter(|to| *to != from) {
                let count = |asked: &Asked| asked.get(&(*from, *to)).copied().unwrap_or_default();
                let count = count(&asked) - count(&asked_before);
                ensure!(
                    (1..=4).contains(&count),
                    "{from} asked {to} {count} times in {seconds:.1} s"
                );
                questions += count;
            }
            let (questions, bytes) = (questions as f64 / seconds, bytes as f64 / seconds);
            ensure!(
                questions <= 8.0 && bytes <= 2000.0,
                "{from}: {questions:.1} questions and {bytes:.0} bytes a second"
            );
            (most, dearest) = (questions.max(most), bytes.max(dearest));
        }
        let broadcasts = (broadcasts(&bed.lan)? - before) as f64 / seconds;
        // Each probe would need a broadcast if no neighbour entry were kept.
        ensure!(
            broadcasts <= f64::from(NODES),
            "{broadcasts:.1} broadcasts a second"
        );
        println!(
            "{NODES} nodes at rest: at most {most:.1} questions and {dearest:.0} bytes a second of each, headers of the tunnel included; \
             {broadcasts:.1} ARP broadcasts a second of all"
        );
        Ok(())
    })
}
