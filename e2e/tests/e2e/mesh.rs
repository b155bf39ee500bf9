//! Checks that probes detect each fault between two nodes on both nodes, and that nodes report no fault if a firewall drops probes.

use anyhow::{Context, Result, ensure};
use lab::{Bed, Host, Lab, Netns, Uplink, json, succeeded, throughout, until_ok};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

/// Deadline of a verdict: thirty times the expected time.
pub(crate) const REPORTED: Duration = Duration::from_secs(300);

const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":{"Type":"TYPE"}}"#;

/// Returns a node's verdict on a peer in one address family: the state, and the peer's whole document.
pub(crate) fn peer(
    bed: &Bed,
    node: usize,
    of: usize,
    ipv6: bool,
) -> Result<(String, serde_json::Value)> {
    let (code, text) = bed.daemons[node].api("/api/v1/node")?;
    ensure!(code == 200, "{code}: {text}");
    let document: serde_json::Value = serde_json::from_str(&text)?;
    let peers = document["mesh"]["peers"]
        .as_array()
        .with_context(|| format!("no mesh in {text}"))?;
    let is_it = |peer: &&serde_json::Value| {
        let subnet = peer["subnet"].as_str().unwrap_or_default();
        peer["name"].as_str() == Some(bed.hosts[of].name()) && subnet.contains("::") == ipv6
    };
    let found = peers.iter().find(is_it).with_context(|| {
        format!(
            "{} is no peer of {} in {text}",
            bed.hosts[of].name(),
            bed.hosts[node].name()
        )
    })?;
    Ok((
        found["state"].as_str().unwrap_or_default().to_owned(),
        found.clone(),
    ))
}

/// Waits until each pair of nodes in `wanted` has the expected state in both address families.
fn wait_verdicts(bed: &Bed, what: &str, wanted: &[(usize, usize, &str)]) -> Result<()> {
    until_ok(what, || {
        for (node, of, state) in wanted {
            for ipv6 in [false, true] {
                let (is, all) = peer(bed, *node, *of, ipv6)?;
                ensure!(
                    is == *state,
                    "{} says of {}: {is}, and not {state}: {all}",
                    bed.hosts[*node].name(),
                    bed.hosts[*of].name()
                );
            }
        }
        Ok(())
    })
}

/// Returns an error unless `check` is true for every peer of every node, in both address families.
fn everybody(bed: &Bed, check: impl Fn(&serde_json::Value) -> bool) -> Result<()> {
    for node in 0..bed.hosts.len() {
        for of in (0..bed.hosts.len()).filter(|of| *of != node) {
            for ipv6 in [false, true] {
                let (_, peer) = peer(bed, node, of, ipv6)?;
                ensure!(check(&peer), "{}: {peer}", bed.hosts[node].name());
            }
        }
    }
    Ok(())
}

fn is_well(peer: &serde_json::Value) -> bool {
    peer["state"] == "well"
}

/// Returns whether a peer is healthy, or slow because the machine is busy.
fn is_reached(peer: &serde_json::Value) -> bool {
    peer["state"] == "well" || peer["state"] == "slow"
}

/// Returns nftables rules for frames that the switch forwards from one host to another, in both address families of the underlay.
fn between(from: &Host, to: &Host, matches: [&str; 2], verdict: &str) -> Result<String> {
    let [v4, v6] = matches;
    Ok(format!(
        "ip saddr {} ip daddr {} {v4} {verdict}\nip6 saddr {} ip6 daddr {} {v6} {verdict}\n",
        from.v4()?,
        to.v4()?,
        from.v6()?,
        to.v6()?
    ))
}

/// Adds the nftables rules `rules` to the switch.
fn drop_on_the_switch(bed: &Bed, rules: &str) -> Result<()> {
    let table = format!(
        "table bridge faults {{ chain c {{ type filter hook forward priority 0; policy accept;\n{rules}}}; }}\n"
    );
    bed.lan.netns().feed("nft", &["-f", "-"], &table).map(drop)
}

fn remove_switch_fault(bed: &Bed) -> Result<()> {
    bed.lan
        .netns()
        .exec("nft", &["delete", "table", "bridge", "faults"])
        .map(drop)
}

/// Causes all faults at once, each fault between a different pair of nodes.
fn each_fault_has_its_verdict(backend: &str, port: u16, carried: [u64; 2]) -> Result<()> {
    Lab::run(&format!("mesh-{backend}"), |lab| {
        let bed = Bed::start(lab, 4, &DUAL.replace("TYPE", backend), |_, options| options)?;
        until_ok("all peers are well, and carry everything", || {
            everybody(&bed, |peer| {
                is_well(peer) && peer["carries"] == peer["mtu"] && peer["ping_only"] == false
            })
        })?;
        let [h1, h2, h3, h4] = [0, 1, 2, 3].map(|number| &bed.hosts[number]);
        let tunnel = format!("udp dport {port}");
        let tunnel = [tunnel.as_str(); 2];
        let mut rules = String::new();
        // Cuts the overlay only; then one direction; then everything.
        rules += &between(h1, h2, tunnel, "drop")?;
        rules += &between(h2, h1, tunnel, "drop")?;
        rules += &between(h1, h3, tunnel, "drop")?;
        rules += &between(h2, h4, ["", ""], "drop")?;
        rules += &between(h4, h2, ["", ""], "drop")?;
        // The length field of IPv6 counts the payload only.
        let large = ["ip length > 1400", "ip6 length > 1360"];
        rules += &between(h1, h4, large, "drop")?;
        rules += &between(h4, h1, large, "drop")?;
        let tunnel_third = format!("udp dport {port} numgen random mod 3 == 0");
        rules += &between(h3, h4, [tunnel_third.as_str(); 2], "drop")?;
        drop_on_the_switch(&bed, &rules)?;
        wait_verdicts(
            &bed,
            "each fault has its verdict at both ends",
            &[
                (0, 1, "overlay-cut"),
                (1, 0, "overlay-cut"),
                (0, 2, "overlay-cut"),
                (2, 0, "one-way"),
                (1, 3, "cut-off"),
                (3, 1, "cut-off"),
                (0, 3, "small-mtu"),
                (3, 0, "small-mtu"),
                (1, 2, "well"),
                (2, 1, "well"),
            ],
        )?;
        until_ok("the usable MTU to the byte", || {
            for (node, of) in [(0, 3), (3, 0)] {
                for (ipv6, carried) in [(false, carried[0]), (true, carried[1])] {
                    let (_, peer) = peer(&bed, node, of, ipv6)?;
                    ensure!(peer["carries"] == carried, "not {carried}: {peer}");
                }
            }
            Ok(())
        })?;
        wait_verdicts(
            &bed,
            "one in three lost",
            &[(2, 3, "loses-some"), (3, 2, "loses-some")],
        )?;
        // A verdict is about the path to another node, so this node stays ready.
        for daemon in &bed.daemons {
            ensure!(
                daemon.get("/readyz")?.0 == 200,
                "{:?}",
                daemon.get("/readyz")?
            );
        }
        let lines = bed.daemons[0]
            .log()
            .lines()
            .filter(|line| line.contains("from=well to=overlay-cut"))
            .count();
        ensure!(
            lines == 4,
            "a line for each peer and family, not {lines}:\n{}",
            bed.daemons[0].log()
        );
        let cut = bed.daemons[0].metric("flannel_probe_peers{state=\"overlay-cut\"}")?;
        ensure!((cut - 4.0).abs() < 0.1, "{cut}");
        remove_switch_fault(&bed)?;
        let pairs = [(0, 1), (0, 2), (0, 3), (1, 3), (1, 2)];
        let well: Vec<_> = pairs
            .iter()
            .flat_map(|(a, b)| [(*a, *b, "well"), (*b, *a, "well")])
            .collect();
        wait_verdicts(&bed, "all is well again", &well)?;
        bed.require_no_errors()
    })
}

#[test]
fn each_fault_of_vxlan_has_its_verdict_at_both_ends() {
    each_fault_has_its_verdict("vxlan", 8472, [1350, 1330]).unwrap();
}

#[test]
fn each_fault_of_udp_has_its_verdict_at_both_ends() {
    each_fault_has_its_verdict("udp", 8285, [1372, 1372]).unwrap();
}

/// No node reports a peer as broken when firewalls reject or drop pings or packets to the probe port.
#[test]
fn filtered_probes_are_not_reported_as_a_fault() {
    Lab::run("mesh-filtered", |lab| {
        let bed = Bed::start(lab, 3, &DUAL.replace("TYPE", "vxlan"), |_, options| options)?;
        until_ok("all peers are well", || everybody(&bed, |peer| is_well(peer) && peer["ping_only"] == false))?;
        let firewall = |rules: &str| -> Result<()> {
            let mut text = "table inet firewall {}\ndelete table inet firewall\n".to_owned();
            write!(text, "table inet firewall {{ chain c {{ type filter hook input priority 0; policy accept; {rules}; }}; }}")?;
            bed.hosts.iter().try_for_each(|host| host.netns().feed("nft", &["-f", "-"], &text).map(drop))
        };
        let by_ping_alone = |peer: &serde_json::Value| is_well(peer) && peer["ping_only"] == true;
        firewall("udp dport 8473 drop")?;
        until_ok("ping alone is answered", || everybody(&bed, by_ping_alone))?;
        // A firewall's rejection proves that the path works.
        let refusals = [
            "udp dport 8473 reject; icmp type echo-request drop; icmpv6 type echo-request drop",
            "udp dport 8473 reject; icmp type echo-request reject; icmpv6 type echo-request reject",
        ];
        for rules in refusals {
            firewall(rules)?;
            throughout(Duration::from_secs(20), "nobody is broken", || everybody(&bed, is_reached)).context(rules)?;
            no_peer_is_reported_broken(&bed).context(rules)?;
        }
        firewall("icmp type echo-request drop; icmpv6 type echo-request drop")?;
        until_ok("probes are answered again", || everybody(&bed, |peer| is_well(peer) && peer["ping_only"] == false))?;
        throughout(Duration::from_secs(7), "silence of ping alone is no fault", || everybody(&bed, is_reached))?;
        let findings: Vec<String> = bed
            .daemons
            .iter()
            .flat_map(|daemon| {
                daemon.log().lines().filter(|line| line.contains("from=well") && !line.contains("to=slow")).map(str::to_owned).collect::<Vec<_>>()
            })
            .collect();
        ensure!(findings.is_empty(), "{findings:#?}");
        bed.require_no_errors()
    })
    .unwrap();
}

/// Checks that no peer is broken, and that no finding about filtered probes is more severe than a risk.
fn no_peer_is_reported_broken(bed: &Bed) -> Result<()> {
    for daemon in &bed.daemons {
        succeeded("flannelctl peers", &daemon.flannelctl(&["peers"])?)?;
        let report = json(&daemon.flannelctl(&["doctor", "-o", "json"])?)?;
        let findings = report["findings"].as_array().context("no findings")?;
        ensure!(
            findings
                .iter()
                .all(|finding| finding["severity"] != "broken"),
            "{findings:#?}"
        );
    }
    Ok(())
}

pub(crate) const V4: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
pub(crate) const PROBES: u16 = 8473;

/// Returns a probe as `docs/probing.md` describes it.
fn question(length: u16) -> Vec<u8> {
    let mut bytes = [
        &b"flpr\x01\x01"[..],
        &length.to_be_bytes(),
        b"nonce678",
        &[7; 16],
    ]
    .concat();
    bytes.resize(length.into(), 0);
    bytes
}

/// Binds a UDP socket. A program that another test starts has a copy of a closed socket until the program's exec, so the
/// port may be free only after a moment.
fn bind(from: SocketAddr) -> Result<UdpSocket> {
    until_ok("the port is free", || Ok(UdpSocket::bind(from)?))
}

/// Sends a probe from a network namespace, and returns the length of the reply if the reply arrives within 500 ms.
fn asks(netns: &Netns, from: SocketAddr, to: IpAddr, question: &[u8]) -> Result<Option<usize>> {
    netns.run(|| -> Result<Option<usize>> {
        let socket = bind(from)?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        socket.send_to(question, (to, PROBES))?;
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

/// Sends probes until a probe gets a reply, because on a busy machine the first reply may arrive too late.
fn is_answered(netns: &Netns, from: SocketAddr, to: IpAddr, question: &[u8]) -> Result<()> {
    until_ok("a node with a lease is answered", || {
        let answer = asks(netns, from, to, question)?;
        ensure!(
            answer == Some(72),
            "a question of {} bytes: {answer:?}",
            question.len()
        );
        Ok(())
    })
}

/// Sends datagrams as fast as possible, half of them probes.
fn flood(netns: &Netns, from: SocketAddr, to: IpAddr) -> Result<()> {
    netns.run(|| -> Result<()> {
        let socket = bind(from)?;
        let mut junk = question(72);
        for number in 0..100_000u32 {
            if let Some(place) = junk.get_mut(8..16) {
                place.copy_from_slice(&[number.to_be_bytes(), number.to_le_bytes()].concat());
            }
            let _ = socket.send_to(if number % 2 == 0 { &junk } else { b"junk" }, (to, PROBES));
        }
        Ok(())
    })?
}

/// Only nodes with a lease get replies. A reply is never longer than the probe, and junk changes no verdict.
#[test]
fn foreign_hosts_get_no_reply_and_junk_changes_nothing() {
    Lab::run("mesh-strangers", |lab| {
        let mut bed = Bed::start(lab, 3, V4, |_, options| options)?;
        let outsider = lab.host("outsider", &[Uplink::enp0s8(&bed.lan, 50)?])?;
        wait_verdict_v4(&bed, "well", &[(0, 1), (0, 2), (1, 0)])?;
        let (_, first) = peer(&bed, 1, 0, false)?;
        let overlay: IpAddr = first["overlay"]
            .as_str()
            .context("an address in the overlay network")?
            .parse()?;
        let node = IpAddr::from(bed.hosts[0].v4()?);
        let from = |ip: IpAddr, port: u16| SocketAddr::new(ip, port);
        // The third node is in the cluster, but its daemon does not run.
        bed.daemons[2].terminate()?;
        let third = IpAddr::from(bed.hosts[2].v4()?);
        for length in [72, 1400] {
            is_answered(
                bed.hosts[2].netns(),
                from(third, PROBES),
                node,
                &question(length),
            )?;
        }
        let pod = bed.pods[1].addresses()[0];
        for (who, netns, address, port) in [
            ("another port", bed.hosts[2].netns(), third, 0),
            (
                "an outsider",
                outsider.netns(),
                outsider.v4()?.into(),
                PROBES,
            ),
            ("a pod", bed.pods[1].netns(), pod, PROBES),
        ] {
            for to in [node, overlay] {
                if to == overlay && who == "an outsider" {
                    continue;
                }
                let answer = asks(netns, from(address, port), to, &question(72))?;
                ensure!(answer.is_none(), "{who} got {answer:?} from {to}");
            }
        }
        flood(outsider.netns(), from(outsider.v4()?.into(), PROBES), node)?;
        flood(bed.pods[1].netns(), from(pod, PROBES), overlay)?;
        flood(
            bed.pods[0].netns(),
            from(bed.pods[0].addresses()[0], PROBES),
            overlay,
        )?;
        throughout(Duration::from_secs(8), "junk changes nothing", || {
            reached_v4_now(&bed, &[(0, 1), (1, 0)])
        })?;
        ensure!(
            bed.daemons[0].metric("flannel_probe_dropped_total{reason=\"stranger\"}")? >= 2.0,
            "{:?}",
            bed.daemons[0].get("/metrics")?
        );
        bed.require_no_errors()
    })
    .unwrap();
}

pub(crate) fn require_verdict_v4(bed: &Bed, state: &str, pairs: &[(usize, usize)]) -> Result<()> {
    for (node, of) in pairs {
        let (is, all) = peer(bed, *node, *of, false)?;
        ensure!(
            is == state,
            "{} says of {}: {is}, and not {state}: {all}",
            bed.hosts[*node].name(),
            bed.hosts[*of].name()
        );
    }
    Ok(())
}

/// Checks that the peers in `pairs` are currently healthy or slow. Call the function repeatedly to check a period of time.
pub(crate) fn reached_v4_now(bed: &Bed, pairs: &[(usize, usize)]) -> Result<()> {
    for (node, of) in pairs {
        let (_, peer) = peer(bed, *node, *of, false)?;
        ensure!(
            is_reached(&peer),
            "{} says of {}: {peer}",
            bed.hosts[*node].name(),
            bed.hosts[*of].name()
        );
    }
    Ok(())
}

pub(crate) fn wait_verdict_v4(bed: &Bed, state: &str, pairs: &[(usize, usize)]) -> Result<()> {
    until_ok(state, || require_verdict_v4(bed, state, pairs))
}

/// Two machines have the same address, and the wrong machine replies to probes.
#[test]
fn wrong_node_that_replies_is_named() {
    Lab::run("mesh-wrong-node", |lab| {
        let bed = Bed::start(lab, 3, V4, |_, options| options)?;
        wait_verdict_v4(&bed, "well", &[(0, 1), (0, 2)])?;
        bed.hosts[1].cut("enp0s8")?;
        let address = bed.hosts[1].v4()?;
        // Deletes the first address before adding the other, because the kernel removes secondary addresses together with the first one.
        let other = bed.hosts[2].v4()?;
        bed.hosts[2].netns().ip(&format!(
            "address del {other}/24 dev enp0s8\naddress add {address}/24 dev enp0s8"
        ))?;
        until_ok("another node answers", || {
            let (is, all) = peer(&bed, 0, 1, false)?;
            ensure!(is == "wrong-node" && all["answered_by"] == "h3", "{all}");
            let (is, all) = peer(&bed, 0, 2, false)?;
            ensure!(
                is == "well" && all["address"] == address.to_string(),
                "{all}"
            );
            Ok(())
        })
    })
    .unwrap();
}

/// Checks with one backend that both nodes report a healthy peer, then a cut-off peer, and then a healthy peer again.
fn peers_are_healthy_with(title: &str, backend: &str) -> Result<()> {
    Lab::run(title, |lab| {
        let conf = DUAL.replace(r#"{"Type":"TYPE"}"#, backend);
        let bed = Bed::start(lab, 2, &conf, |_, options| options)?;
        until_ok("all is well", || {
            everybody(&bed, |peer| is_well(peer) && peer["ping_only"] == false)
        })?;
        // Rows of other nodes are requested only while a client reads them.
        let (_, text) = bed.daemons[0].api("/api/v1/node")?;
        let document: serde_json::Value = serde_json::from_str(&text)?;
        ensure!(document["mesh"]["rows"] == serde_json::json!([]), "{text}");
        ensure!(
            document["mesh"]["problems"] == serde_json::json!([]),
            "{text}"
        );
        bed.hosts[1].cut("enp0s8")?;
        wait_verdicts(&bed, "cut off", &[(0, 1, "cut-off"), (1, 0, "cut-off")])?;
        bed.hosts[1].reconnect("enp0s8")?;
        wait_verdicts(&bed, "mended", &[(0, 1, "well"), (1, 0, "well")])
    })
}

#[test]
fn host_gw_is_probed() {
    peers_are_healthy_with("mesh-host-gw", r#"{"Type":"host-gw"}"#).unwrap();
}

#[test]
fn vxlan_in_userspace_is_probed() {
    peers_are_healthy_with("mesh-userspace", r#"{"Type":"vxlan","Mode":"userspace"}"#).unwrap();
}
