//! A hostile host forges the addresses of nodes, sends unsolicited replies and false reports. It changes no verdict on other nodes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Host, Node, Scene, Uplink, craft, until_ok};

use crate::mesh::{PROBES, V4, peer_verdicts, wait_new_answers_without_fault, wait_verdict};

const ROW_REQUEST: u8 = 3;
const ROW_REPLY: u8 = 4;
const ECHO: usize = 72;
const ROW: usize = 1232;
/// The state "cut off" in probe messages.
const CUT_OFF: u8 = 7;

/// Of each node's daemon, by the source address of its probes.
type Numbers = Mutex<BTreeMap<IpAddr, [u8; 8]>>;

/// A message as `docs/probing.md` describes it, with zeros after the header.
fn probe_message(kind: u8, length: usize, nonce: [u8; 8], from: [u8; 8], to: [u8; 8]) -> Vec<u8> {
    let mut bytes =
        [&b"flpr\x01"[..], &[kind], &(length as u16).to_be_bytes(), &nonce, &from, &to].concat();
    bytes.resize(length, 0);
    bytes
}

/// An extreme or false value in each field, and a terminal escape sequence in the name.
fn false_peer_report(question: &[u8]) -> Vec<u8> {
    let (nonce, from, to) = (&question[8..16], &question[16..24], &question[24..32]);
    let mut bytes =
        [&b"flpr\x01"[..], &[ROW_REPLY], &question[6..8], nonce, to, from, &[0], &[0xff; 6]]
            .concat();
    bytes.extend(b"\x1b[31mwrong\n\0\0\0\0\0\0\0\0\0\0\0\0\0");
    bytes.truncate(32 + 31);
    bytes.push(9);
    bytes.extend([0xff; 9 * 4 + 4]);
    bytes.extend(140u16.to_be_bytes());
    while bytes.len() + 8 <= ROW {
        bytes.extend([bytes.len() as u8, 0, 0, 0, CUT_OFF, 0, 255, 0]);
    }
    bytes
}

/// Runs in place of a host's daemon: replies to each request for its report with false data, and records the senders.
fn record_senders_and_reply_falsely(socket: &UdpSocket, numbers: &Numbers, stop: &AtomicBool) {
    let mut buffer = [0; 2048];
    while !stop.load(Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let question = &buffer[..length];
        if length < ECHO || !question.starts_with(b"flpr\x01") {
            continue;
        }
        numbers.lock().unwrap().insert(from.ip(), question[16..24].try_into().unwrap());
        if question[5] == ROW_REQUEST {
            let _ = socket.send_to(&false_peer_report(question), from);
        }
    }
}

fn overlay_of(node: &Node) -> Result<IpAddr> {
    let subnet = node.daemon()?.subnet_env()?.subnet;
    Ok(subnet.context("a v4 subnet")?.network().into())
}

/// Sends forged probes, forged replies and junk to the first node, over the underlay and in the tunnel, with the addresses of the second one.
fn forge_probes_of_second_node_to_first(
    s: &Scene<'_>,
    outsider: &Host,
    numbers: &Numbers,
    round: u64,
) -> Result<()> {
    let (name_of, to) = (&s[1], &s[0]);
    let number = |node: &Node| -> Result<[u8; 8]> {
        let known = numbers.lock().unwrap().get(&IpAddr::from(node.v4()?)).copied();
        known.with_context(|| format!("{} has sent no probe", node.name()))
    };
    let (from, meant) = (number(name_of)?, number(to)?);
    let kinds = (0..=5).flat_map(|kind| [ECHO, ROW, 1400].map(|length| (kind, length)));
    let mut messages: Vec<_> = kinds
        .map(|(kind, length)| probe_message(kind, length, round.to_be_bytes(), from, meant))
        .collect();
    messages.extend([b"flpr".to_vec(), vec![0xff; 900]]);
    let at = |ip: IpAddr| SocketAddr::new(ip, PROBES);
    let packets = |from: IpAddr, to: IpAddr| -> Vec<Vec<u8>> {
        messages.iter().map(|message| craft::udp_packet(at(from), at(to), 64, message)).collect()
    };
    let underlay = (name_of.v4()?, to.v4()?);
    let inner = packets(overlay_of(name_of)?, overlay_of(to)?);
    craft::send_raw(outsider.netns(), &packets(underlay.0.into(), underlay.1.into()))?;
    // Here a pod sends with that node's address.
    craft::send_raw(to.pods[0].netns(), &inner)?;
    // VXLAN has no authentication: any host that reaches the port can send any frame.
    let mac = to.netns().link("flannel.1")?.context("no device")?.address;
    let mac: Vec<u8> =
        mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>()?;
    let mac: [u8; 6] = mac.try_into().ok().context("no MAC")?;
    let frames: Vec<_> =
        inner.iter().map(|packet| craft::vxlan_datagram(1, mac, 0x0800, packet)).collect();
    let (from, to) =
        (SocketAddr::new(outsider.v4()?.into(), 0), SocketAddr::new(underlay.1.into(), 8472));
    craft::send_from(outsider.netns(), from, to, &frames)
}

/// Probes to a host's probe port and its replies, in packets and bytes.
const COUNTERS: &str = "table inet count {
    chain in { type filter hook input priority -300; udp dport 8473 @th,104,8 { 1, 3 } counter; }
    chain out { type filter hook output priority 300; udp dport 8473 @th,104,8 { 2, 4 } counter; }
}";

fn chain_packets_and_bytes(node: &Node, chain: &str) -> Result<[u64; 2]> {
    let text = node.sh(&format!("nft list chain inet count {chain}"))?;
    let after = |name: &str| -> Result<u64> {
        let rest = text.split_once(name).with_context(|| text.clone())?.1;
        Ok(rest.split_whitespace().next().context("a number")?.parse()?)
    };
    Ok([after("counter packets")?, after("bytes")?])
}

#[test]
fn verdicts_are_unchanged_when_a_host_forges_probes() -> Result<()> {
    Scene::with_title("mesh-hostile").nodes(3).net(V4).run(|s| {
        let outsider = s.lab.create_host("outsider", &[Uplink::enp0s8(&s.lan, 50)?])?;
        wait_verdict(s, "well", &[(0, 1), (0, 2), (1, 0), (1, 2)])?;
        let addresses = [IpAddr::from(s[2].v4()?), overlay_of(&s[2])?];
        s[2].stop_daemon()?;
        let (numbers, stop) = (Numbers::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for address in addresses {
                let socket = s[2].netns().run(|| UdpSocket::bind((address, PROBES)))??;
                socket.set_read_timeout(Some(Duration::from_millis(200)))?;
                let (numbers, stop) = (&numbers, &stop);
                scope.spawn(move || record_senders_and_reply_falsely(&socket, numbers, stop));
            }
            let outcome = forge_probes_and_require_verdicts_hold(s, &outsider, &numbers);
            stop.store(true, Relaxed);
            outcome
        })
    })
}

fn forge_probes_and_require_verdicts_hold(
    s: &Scene<'_>,
    outsider: &Host,
    numbers: &Numbers,
) -> Result<()> {
    // The status API attributes the false report to the hostile host.
    until_ok("the liar's row", || {
        let document: serde_json::Value =
            serde_json::from_str(&s[0].daemon()?.get_status_api("/api/v1/node?rows")?.1)?;
        let mut rows = document["mesh"]["rows"].as_array().context("no rows")?.iter();
        let lies = rows.any(|row| {
            row["name"] == "h3"
                && row["said"]["broken"] == 65535
                && row["counts"]["cut-off"] == u64::from(u32::MAX)
        });
        ensure!(lies, "{document:#}");
        Ok(())
    })?;
    wait_new_answers_without_fault(s, &[(0, 1), (1, 0)])?;
    let second = peer_verdicts(s[0].daemon()?, "h2")?.remove(0);
    ensure!(second["others"] == serde_json::json!([]), "{second}");
    // Forged packets change no verdict, and the node sends no more than it receives.
    s[0].netns().exec_with_input("nft", &["-f", "-"], COUNTERS)?;
    let mut round = 0;
    until_ok("enough has been forged", || {
        for _ in 0..20 {
            round += 1;
            forge_probes_of_second_node_to_first(s, outsider, numbers, round)?;
        }
        // Replies are read first: each follows its probe.
        let ([answered, out], [asked, bytes]) =
            (chain_packets_and_bytes(&s[0], "out")?, chain_packets_and_bytes(&s[0], "in")?);
        ensure!(
            asked > 1000 && answered > 10,
            "{asked} probes, {answered} replies: this shows nothing"
        );
        ensure!(answered <= asked && out <= bytes, "{answered} replies to {asked} probes");
        Ok(())
    })?;
    wait_new_answers_without_fault(s, &[(0, 1), (1, 0)])?;
    let junk = s[0].daemon()?.metric("flannel_probe_dropped_total{reason=\"junk\"}")?;
    ensure!(junk > 100.0, "{junk}");
    // Forged packets in the name of a peer that is cut off do not bring it back.
    s[1].block_packets("enp0s8")?;
    wait_verdict(s, "cut-off", &[(0, 1)])?;
    for round in 0..20 {
        forge_probes_of_second_node_to_first(s, outsider, numbers, round)?;
    }
    wait_new_answers_without_fault(s, &[(0, 2)])?;
    let gone = peer_verdicts(s[0].daemon()?, "h2")?.remove(0);
    ensure!(gone["state"] == "cut-off", "{gone}");
    s[1].unblock_packets("enp0s8")?;
    wait_verdict(s, "well", &[(0, 1), (1, 0)])
}
