//! Probes detect each fault between two nodes on both, and nodes report no fault if a firewall drops probes.

pub(crate) mod hostile;
pub(crate) mod hundred;
pub(crate) mod mixed;
pub(crate) mod ping_only;
pub(crate) mod pod_probes;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Flanneld, Host, Netns, Scene, Uplink, stdout_json, until_ok};
use serde_json::Value;

const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":{"Type":"vxlan"}}"#;
pub(crate) const V4: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
pub(crate) const PROBES: u16 = 8473;

/// What a node says of a peer, by its name: a document for each address family.
pub(crate) fn peer_verdicts(daemon: &Flanneld, of: &str) -> Result<Vec<Value>> {
    let (code, text) = daemon.get_status_api("/api/v1/node")?;
    ensure!(code == 200, "{code}: {text}");
    let document: Value = serde_json::from_str(&text)?;
    let peers = document["mesh"]["peers"].as_array().into_iter().flatten();
    let found: Vec<Value> = peers.filter(|peer| peer["name"] == of).cloned().collect();
    ensure!(!found.is_empty(), "{of} is no peer in {text}");
    Ok(found)
}

/// What nodes say of peers, given as pairs of their numbers, in all address families.
fn require_verdicts(
    s: &Scene<'_>,
    pairs: &[(usize, usize)],
    holds: impl Fn(&Value) -> bool,
) -> Result<()> {
    for (node, of) in pairs {
        for said in peer_verdicts(s[*node].daemon()?, s[*of].name())? {
            ensure!(holds(&said), "{} says of {}: {said}", s[*node].name(), s[*of].name());
        }
    }
    Ok(())
}

pub(crate) fn wait_verdict(s: &Scene<'_>, state: &str, pairs: &[(usize, usize)]) -> Result<()> {
    until_ok(state, || require_verdicts(s, pairs, |peer| peer["state"] == state))
}

/// Peers have replied to packets that were sent after this call, and nobody calls them broken.
pub(crate) fn wait_new_answers_without_fault(
    s: &Scene<'_>,
    pairs: &[(usize, usize)],
) -> Result<()> {
    let begun = Instant::now();
    until_ok("a later packet is answered", || {
        let later = |peer: &Value| {
            peer["answered_age_ms"]
                .as_u64()
                .is_some_and(|age| u128::from(age) < begun.elapsed().as_millis())
        };
        require_verdicts(s, pairs, later)
    })?;
    // A busy machine may be slow.
    require_verdicts(s, pairs, |peer| peer["state"] == "well" || peer["state"] == "slow")
}

pub(crate) fn all_pairs(s: &Scene<'_>) -> Vec<(usize, usize)> {
    let nodes = 0..s.nodes.len();
    nodes.clone().flat_map(|a| nodes.clone().map(move |b| (a, b))).filter(|(a, b)| a != b).collect()
}

/// Frames that match a line of `matches`.
fn drop_on_the_switch(s: &Scene<'_>, matches: &str) -> Result<()> {
    let rules = matches.trim().replace('\n', " drop\n");
    let table = format!(
        "table bridge faults {{ chain c {{ type filter hook forward priority 0; policy accept;\n{rules} drop\n}}; }}\n"
    );
    s.lan.netns().exec_with_input("nft", &["-f", "-"], &table).map(drop)
}

/// All faults at once, each between a different pair of nodes.
#[test]
fn each_fault_of_vxlan_has_its_verdict_at_both_ends() -> Result<()> {
    Scene::with_title("mesh-vxlan").nodes(4).net(DUAL).run(|s| {
        let all = all_pairs(s);
        until_ok("all peers are well, and carry everything", || {
            let whole = |peer: &Value| {
                peer["state"] == "well"
                    && peer["carries"] == peer["mtu"]
                    && peer["ping_only"] == false
            };
            require_verdicts(s, &all, whole)
        })?;
        let tunnel = ["udp dport 8472"; 2];
        // The length field of IPv6 counts the payload only.
        let large = ["ip length > 1400", "ip6 length > 1360"];
        let rules: String = [
            (0, 1, tunnel),
            (1, 0, tunnel),
            (0, 2, tunnel),
            (1, 3, [""; 2]),
            (3, 1, [""; 2]),
            (0, 3, large),
            (3, 0, large),
        ]
        .iter()
        .map(|(from, to, [v4, v6])| {
            let (from, to): (&Host, &Host) = (&s[*from], &s[*to]);
            Ok(format!(
                "ip saddr {} ip daddr {} {v4}\nip6 saddr {} ip6 daddr {} {v6}\n",
                from.v4()?,
                to.v4()?,
                from.v6()?,
                to.v6()?
            ))
        })
        .collect::<Result<_>>()?;
        drop_on_the_switch(s, &rules)?;
        for (state, pairs) in [
            ("overlay-cut", &[(0, 1), (1, 0), (0, 2)][..]),
            ("one-way", &[(2, 0)]),
            ("cut-off", &[(1, 3), (3, 1)]),
            ("small-mtu", &[(0, 3), (3, 0)]),
            ("well", &[(1, 2), (2, 1), (2, 3), (3, 2)]),
        ] {
            wait_verdict(s, state, pairs)?;
        }
        until_ok("the usable MTU to the byte", || {
            let carried = |peer: &Value| {
                peer["carries"]
                    == if peer["subnet"].to_string().contains("::") { 1330 } else { 1350 }
            };
            require_verdicts(s, &[(0, 3), (3, 0)], carried)
        })?;
        // A verdict is about the path to another node, so this node stays ready.
        s.check_each_node(|node| node.require_ready())?;
        s[0].wait_metric_value("flannel_probe_peers{state=\"overlay-cut\"}", 4.0)?;
        s.lan.netns().exec("nft", &["delete", "table", "bridge", "faults"])?;
        wait_verdict(s, "well", &all)?;
        s.require_no_errors()
    })
}

/// No node reports a peer as broken when firewalls reject or drop pings or packets to the probe port.
#[test]
fn filtered_probes_are_not_reported_as_a_fault() -> Result<()> {
    Scene::with_title("mesh-filtered").nodes(3).net(DUAL).run(|s| {
        let all = all_pairs(s);
        wait_verdict(s, "well", &all)?;
        let firewall = |rules: &str| {
            let text = format!(
                "table inet firewall {{}}\ndelete table inet firewall\ntable inet firewall {{ chain c {{ type filter hook input priority 0; policy accept; {rules}; }}; }}"
            );
            s.check_each_node(|node| node.netns().exec_with_input("nft", &["-f", "-"], &text).map(drop))
        };
        let by_ping = |alone: bool| {
            let well = move |peer: &Value| peer["state"] == "well" && peer["ping_only"] == alone;
            until_ok("peers are well", || require_verdicts(s, &all, well))
        };
        firewall("udp dport 8473 drop")?;
        by_ping(true)?;
        // A firewall's rejection proves that the path works.
        for pings in ["drop", "reject"] {
            firewall(&format!("udp dport 8473 reject; icmp type echo-request {pings}; icmpv6 type echo-request {pings}"))?;
            until_ok("peers refuse", || require_verdicts(s, &all, |peer| peer["refuses"] == true))?;
            wait_new_answers_without_fault(s, &all)?;
            s.check_each_node(|node| {
                let report = stdout_json(&node.daemon()?.flannelctl(&["doctor", "-o", "json"])?)?;
                let mut findings = report["findings"].as_array().context("no findings")?.iter();
                ensure!(findings.all(|finding| finding["severity"] != "broken"), "{report:#}");
                Ok(())
            })?;
        }
        firewall("icmp type echo-request drop; icmpv6 type echo-request drop")?;
        by_ping(false)?;
        wait_new_answers_without_fault(s, &all)?;
        s.check_each_node(|node| {
            let log = node.daemon()?.log();
            ensure!(log.lines().all(|line| !line.contains("from=well") || line.contains("to=slow")), "{log}");
            Ok(())
        })?;
        s.require_no_errors()
    })
}

/// A probe as `docs/probing.md` describes it.
fn probe_datagram(length: u16, nonce: [u8; 8]) -> Vec<u8> {
    let mut bytes = [&b"flpr\x01\x01"[..], &length.to_be_bytes(), &nonce, &[7; 16]].concat();
    bytes.resize(length.into(), 0);
    bytes
}

/// Sends a probe from a network namespace. The result is the length of a reply that arrives within 500 ms.
fn send_probe_and_read_reply_length(
    netns: &Netns,
    from: SocketAddr,
    to: IpAddr,
    length: u16,
) -> Result<Option<usize>> {
    netns.run(|| -> Result<Option<usize>> {
        let socket = UdpSocket::bind(from)?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        socket.send_to(&probe_datagram(length, *b"nonce678"), (to, PROBES))?;
        let mut answer = [0; 9000];
        // The node may send a probe of its own meanwhile.
        while let Ok(length) = socket.recv(&mut answer) {
            if answer[..length].windows(8).any(|part| part == b"nonce678") {
                return Ok(Some(length));
            }
        }
        Ok(None)
    })?
}

/// Datagrams as fast as possible, half of them probes.
fn flood_probe_port(netns: &Netns, from: SocketAddr, to: IpAddr) -> Result<()> {
    netns.run(|| -> Result<()> {
        let socket = UdpSocket::bind(from)?;
        for number in 0..50_000u64 {
            let _ = socket.send_to(&probe_datagram(72, number.to_be_bytes()), (to, PROBES));
            let _ = socket.send_to(b"junk", (to, PROBES));
        }
        Ok(())
    })?
}

/// Only nodes with a lease get replies. A reply is never longer than the probe, and junk changes no verdict.
#[test]
fn foreign_hosts_get_no_reply_and_junk_changes_nothing() -> Result<()> {
    Scene::with_title("mesh-strangers").nodes(3).net(V4).run(|s| {
        let outsider = s.lab.create_host("outsider", &[Uplink::enp0s8(&s.lan, 50)?])?;
        wait_verdict(s, "well", &[(0, 1), (0, 2), (1, 0)])?;
        let first = peer_verdicts(s[1].daemon()?, "h1")?.remove(0);
        let overlay: IpAddr = first["overlay"].as_str().context("no overlay address")?.parse()?;
        let node = IpAddr::from(s[0].v4()?);
        // The third node is in the cluster, but its daemon does not run.
        s[2].stop_daemon()?;
        let at = |ip: IpAddr, port| SocketAddr::new(ip, port);
        let (third, stranger) = (IpAddr::from(s[2].v4()?), IpAddr::from(outsider.v4()?));
        for length in [72, 1400] {
            until_ok("a node with a lease is answered", || {
                let answer = send_probe_and_read_reply_length(
                    s[2].netns(),
                    at(third, PROBES),
                    node,
                    length,
                )?;
                ensure!(answer == Some(72), "a question of {length} bytes: {answer:?}");
                Ok(())
            })?;
        }
        let pods = [0, 1].map(|node| &s[node].pods[0]);
        let source = |number: usize| at(pods[number].addresses()[0], PROBES);
        for (who, netns, from, targets) in [
            ("another port", s[2].netns(), at(third, 0), &[node, overlay][..]),
            ("an outsider", outsider.netns(), at(stranger, PROBES), &[node]),
            ("a pod", pods[1].netns(), source(1), &[node, overlay]),
        ] {
            for to in targets {
                let answer = send_probe_and_read_reply_length(netns, from, *to, 72)?;
                ensure!(answer.is_none(), "{who} got {answer:?} from {to}");
            }
        }
        flood_probe_port(outsider.netns(), at(stranger, PROBES), node)?;
        flood_probe_port(pods[1].netns(), source(1), overlay)?;
        flood_probe_port(pods[0].netns(), source(0), overlay)?;
        wait_new_answers_without_fault(s, &[(0, 1), (1, 0)])?;
        let dropped = s[0].daemon()?.metric("flannel_probe_dropped_total{reason=\"stranger\"}")?;
        ensure!(dropped >= 2.0, "{dropped}");
        s.require_no_errors()
    })
}

/// Two machines have the same address, and the wrong one replies to probes.
#[test]
fn wrong_node_that_replies_is_named() -> Result<()> {
    Scene::with_title("mesh-wrong-node").nodes(3).net(V4).run(|s| {
        wait_verdict(s, "well", &[(0, 1), (0, 2)])?;
        s[1].block_packets("enp0s8")?;
        let (address, other) = (s[1].v4()?, s[2].v4()?);
        // Deletes the first address before adding the other, because the kernel removes secondary addresses together with the first one.
        s[2].netns().run_ip_batch(&format!(
            "address del {other}/24 dev enp0s8\naddress add {address}/24 dev enp0s8"
        ))?;
        until_ok("another node answers", || {
            require_verdicts(s, &[(0, 1)], |peer| {
                peer["state"] == "wrong-node" && peer["answered_by"] == "h3"
            })?;
            require_verdicts(s, &[(0, 2)], |peer| {
                peer["state"] == "well" && peer["address"] == address.to_string()
            })
        })
    })
}
