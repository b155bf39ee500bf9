//! Tests with a hostile host, which forges addresses, sends unsolicited replies and sends false reports. The hostile host changes no verdict on other nodes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Bed, Host, Lab, Uplink, craft, throughout, until_ok};
use serde_json::Value;

use crate::mesh::{
    PROBES, REPORTED, V4, peer, reached_v4_now, require_verdict_v4, wait_verdict_v4,
};

const ROW_REQUEST: u8 = 3;
const ROW_REPLY: u8 = 4;
const ECHO: usize = 72;
const ROW: usize = 1232;
/// Number of the state "cut off" in probe messages.
const CUT_OFF: u8 = 7;

/// Returns a probe message as `docs/probing.md` describes it, with zeros after the header.
fn message(kind: u8, length: usize, nonce: u64, from: [u8; 8], to: [u8; 8]) -> Vec<u8> {
    let mut bytes = [
        &b"flpr\x01"[..],
        &[kind],
        &(length as u16).to_be_bytes(),
        &nonce.to_be_bytes(),
        &from,
        &to,
    ]
    .concat();
    bytes.resize(length, 0);
    bytes
}

/// Returns a peer report with an extreme or false value in each field, and with a terminal escape sequence in the name.
fn lies(question: &[u8]) -> Vec<u8> {
    let (nonce, from, to) = (&question[8..16], &question[16..24], &question[24..32]);
    let mut bytes = [
        &b"flpr\x01"[..],
        &[ROW_REPLY],
        &question[6..8],
        nonce,
        to,
        from,
    ]
    .concat();
    bytes.extend([0; 1]);
    bytes.extend([0xff; 6]);
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

/// Instance of each node, by the source address of the node's probes.
type Instances = BTreeMap<IpAddr, [u8; 8]>;
type Numbers = Mutex<Instances>;

/// Runs on a host in place of the host's daemon. Replies to each request for the host's peer report with false data, and records the senders.
fn lie(socket: &UdpSocket, numbers: &Numbers, stop: &AtomicBool) {
    let mut buffer = [0; 2048];
    while !stop.load(Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let question = &buffer[..length];
        if length < ECHO || !question.starts_with(b"flpr\x01") {
            continue;
        }
        numbers
            .lock()
            .unwrap()
            .insert(from.ip(), question[16..24].try_into().unwrap());
        if question[5] == ROW_REQUEST {
            let _ = socket.send_to(&lies(question), from);
        }
    }
}

fn document(bed: &Bed, node: usize, path: &str) -> Result<Value> {
    let (code, text) = bed.daemons[node].api(path)?;
    ensure!(code == 200, "{code}: {text}");
    Ok(serde_json::from_str(&text)?)
}

fn overlay_of(bed: &Bed, node: usize) -> Result<IpAddr> {
    Ok(bed.daemons[node]
        .subnet_env()?
        .subnet
        .context("a v4 subnet")?
        .network()
        .into())
}

/// Sends forged probes, forged replies and junk to the node `to` over the underlay and in the tunnel, with the addresses of the node `name_of`.
fn forge(
    bed: &Bed,
    outsider: &Host,
    name_of: usize,
    to: usize,
    known: &Instances,
    round: u64,
) -> Result<()> {
    let number = |node: usize| -> Result<[u8; 8]> {
        Ok(known
            .get(&IpAddr::from(bed.hosts[node].v4()?))
            .copied()
            .unwrap_or([9; 8]))
    };
    let (from, meant) = (number(name_of)?, number(to)?);
    let mut messages = Vec::new();
    for kind in 0..=5 {
        let length = if kind == ROW_REQUEST || kind == ROW_REPLY {
            ROW
        } else {
            ECHO
        };
        messages.push(message(kind, length, round, from, meant));
        messages.push(message(kind, 1400, round.wrapping_mul(7919), from, meant));
    }
    messages.push(b"flpr".to_vec());
    messages.push(vec![0xff; 900]);
    let at = |ip: IpAddr| SocketAddr::new(ip, PROBES);
    let (underlay, overlay) = (
        (bed.hosts[name_of].v4()?, bed.hosts[to].v4()?),
        (overlay_of(bed, name_of)?, overlay_of(bed, to)?),
    );
    let packets = |from: IpAddr, to: IpAddr| {
        messages
            .iter()
            .map(|message| craft::udp_packet(at(from), at(to), 64, message))
            .collect::<Vec<_>>()
    };
    craft::send_raw(
        outsider.netns(),
        &packets(underlay.0.into(), underlay.1.into()),
    )?;
    // Here a pod sends with that node's address.
    craft::send_raw(bed.pods[to].netns(), &packets(overlay.0, overlay.1))?;
    // VXLAN has no authentication: any host that reaches the port can send any frame.
    let link = bed.hosts[to].netns().sh("ip -br link show flannel.1")?;
    let mac = link
        .split_whitespace()
        .nth(2)
        .with_context(|| link.clone())?;
    let mac: Vec<u8> = mac
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect::<Result<_, _>>()?;
    let mac: [u8; 6] = mac.try_into().ok().context("no MAC")?;
    let frames: Vec<Vec<u8>> = packets(overlay.0, overlay.1)
        .iter()
        .map(|packet| craft::vxlan(1, mac, 0x0800, packet))
        .collect();
    let from = SocketAddr::new(outsider.v4()?.into(), 0);
    craft::send_from(
        outsider.netns(),
        from,
        SocketAddr::new(underlay.1.into(), 8472),
        &frames,
    )
}

/// Minimum number of forged probes that a host must receive for a valid test.
const PROBES_NEEDED: u64 = 1000;
/// Maximum number of times that the hostile host sends its set of forged packets. This is several times the number that `PROBES_NEEDED` probes require.
const MAX_ROUNDS: u64 = 1000;

/// Counts probes to a host's probe port and the replies that the host sends, in packets and bytes.
const COUNTERS: &str = "table inet count {
    chain in { type filter hook input priority -300; udp dport 8473 @th,104,8 { 1, 3 } counter; }
    chain out { type filter hook output priority 300; udp dport 8473 @th,104,8 { 2, 4 } counter; }
}";

fn counted(host: &Host, chain: &str) -> Result<(u64, u64)> {
    let text = host
        .netns()
        .sh(&format!("nft list chain inet count {chain}"))?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let after = |name: &str| {
        words
            .iter()
            .position(|word| *word == name)
            .and_then(|place| words.get(place + 1)?.parse().ok())
    };
    after("packets")
        .zip(after("bytes"))
        .with_context(|| text.clone())
}

#[test]
fn verdicts_are_unchanged_when_a_host_forges_probes() {
    Lab::run("mesh-hostile", |lab| {
        let mut bed = Bed::start(lab, 3, V4, |_, options| options)?;
        let outsider = lab.host("outsider", &[Uplink::enp0s8(&bed.lan, 50)?])?;
        wait_verdict_v4(&bed, "well", &[(0, 1), (0, 2), (1, 0), (1, 2)])?;
        let third = [IpAddr::from(bed.hosts[2].v4()?), overlay_of(&bed, 2)?];
        bed.daemons[2].terminate()?;
        let (numbers, stop) = (Numbers::default(), AtomicBool::new(false));
        let sockets = third.map(|address| -> Result<UdpSocket> {
            let socket = bed.hosts[2]
                .netns()
                .run(|| UdpSocket::bind((address, PROBES)))??;
            socket.set_read_timeout(Some(Duration::from_millis(200)))?;
            Ok(socket)
        });
        let sockets: Vec<UdpSocket> = sockets.into_iter().collect::<Result<_>>()?;
        std::thread::scope(|scope| {
            for socket in &sockets {
                scope.spawn(|| lie(socket, &numbers, &stop));
            }
            let outcome = verdicts_hold(&bed, &outsider, &numbers);
            stop.store(true, Relaxed);
            outcome
        })
    })
    .unwrap();
}

fn verdicts_hold(bed: &Bed, outsider: &Host, numbers: &Numbers) -> Result<()> {
    lies_are_attributed(bed)?;
    let known = instances(bed, numbers)?;
    let rounds = forged_packets_are_answered_sparingly(bed, outsider, &known)?;
    silent_peer_stays_cut_off(bed, outsider, &known, rounds)?;
    let junk = bed.daemons[0].metric("flannel_probe_dropped_total{reason=\"junk\"}")?;
    ensure!(
        junk > 100.0,
        "{junk}: {:?}",
        bed.daemons[0].get("/metrics")?
    );
    for daemon in &bed.daemons[..2] {
        ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
    }
    Ok(())
}

/// Checks that the status API attributes false reports to the hostile host, and that false reports change no verdict.
fn lies_are_attributed(bed: &Bed) -> Result<()> {
    let liar = bed.hosts[2].name();
    let row = until_ok("the liar's row", || {
        let document = document(bed, 0, "/api/v1/node?rows")?;
        let rows = document["mesh"]["rows"].as_array().context("no rows")?;
        let row = rows
            .iter()
            .find(|row| row["name"] == liar && !row["said_age_ms"].is_null());
        row.cloned()
            .with_context(|| format!("{liar} has sent nothing yet: {rows:?}"))
    })?;
    ensure!(
        row["said"]["broken"] == 65535
            && row["said"]["gravest"].is_null()
            && row["counts"]["cut-off"] == u64::from(u32::MAX),
        "{row}"
    );
    throughout(Duration::from_secs(6), "lies change no verdict", || {
        reached_v4_now(bed, &[(0, 1), (1, 0)])?;
        let document = document(bed, 0, "/api/v1/node?rows")?;
        let findings = document["findings"].as_array().context("no findings")?;
        // A busy machine may cause these two findings; the liar does not.
        ensure!(
            findings
                .iter()
                .all(|finding| finding["check"] == "probe-filtered" || finding["check"] == "slow"),
            "{findings:?}"
        );
        let (_, second) = peer(bed, 0, 1, false)?;
        ensure!(second["others"] == serde_json::json!([]), "{second}");
        Ok(())
    })
}

/// Returns the instances of both nodes, which the hostile host learns from the nodes' probes.
fn instances(bed: &Bed, numbers: &Numbers) -> Result<Instances> {
    until_ok("both have sent probes", || {
        let known = numbers.lock().unwrap().clone();
        for node in 0..2 {
            let address = IpAddr::from(bed.hosts[node].v4()?);
            ensure!(
                known.contains_key(&address),
                "{address} has sent no probe yet: {known:?}"
            );
        }
        Ok(known)
    })
}

/// Checks that forged packets change no verdict on a healthy peer, and that the node sends no more packets or
/// bytes than it receives. Returns the number of times that the hostile host sent its forged packets.
fn forged_packets_are_answered_sparingly(
    bed: &Bed,
    outsider: &Host,
    known: &Instances,
) -> Result<u64> {
    bed.hosts[0].netns().feed("nft", &["-f", "-"], COUNTERS)?;
    let (mut round, begun) = (0, Instant::now());
    // Long enough to change a verdict, and until enough packets have arrived, even on a busy machine.
    while begun.elapsed() < Duration::from_secs(8)
        || counted(&bed.hosts[0], "in")?.0 <= PROBES_NEEDED
    {
        ensure!(
            round < MAX_ROUNDS || begun.elapsed() < REPORTED,
            "{:?} after {round} rounds",
            counted(&bed.hosts[0], "in")?
        );
        for _ in 0..20 {
            round += 1;
            forge(bed, outsider, 1, 0, known, round)?;
        }
        reached_v4_now(bed, &[(0, 1), (1, 0)]).context("forged packets of a peer that is well")?;
    }
    // Replies are read first: each follows its probe.
    let answered = counted(&bed.hosts[0], "out")?;
    let asked = counted(&bed.hosts[0], "in")?;
    println!(
        "{round} rounds: {asked:?} probes and bytes came, {answered:?} replies and bytes went"
    );
    ensure!(
        asked.0 > PROBES_NEEDED && answered.0 > 10,
        "{asked:?} probes, {answered:?} replies: this shows nothing"
    );
    ensure!(
        answered.0 <= asked.0 && answered.1 <= asked.1,
        "{answered:?} replies to {asked:?} probes"
    );
    Ok(round)
}

/// Checks that forged packets in the name of a cut-off peer do not change the peer's state.
fn silent_peer_stays_cut_off(
    bed: &Bed,
    outsider: &Host,
    known: &Instances,
    mut round: u64,
) -> Result<()> {
    bed.hosts[1].cut("enp0s8")?;
    wait_verdict_v4(bed, "cut-off", &[(0, 1)])?;
    throughout(
        Duration::from_secs(8),
        "forged packets of a peer that is gone",
        || {
            round += 1;
            forge(bed, outsider, 1, 0, known, round)?;
            require_verdict_v4(bed, "cut-off", &[(0, 1)])?;
            reached_v4_now(bed, &[(0, 2)])
        },
    )?;
    bed.hosts[1].reconnect("enp0s8")?;
    wait_verdict_v4(bed, "well", &[(0, 1), (1, 0)])
}
