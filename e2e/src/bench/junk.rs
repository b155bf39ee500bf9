//! Packet loss of a peer that sends at a fixed rate while an attacker floods the node with junk handshakes.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use lab::{Host, Lab, Testbed, Uplink};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};

use crate::load::{Small, send_small_packets};
use crate::scale::sum_metrics;
use crate::table::Table;
use crate::wireguard::{PORT, key_of};

const NET_CONF: &str =
    r#"{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;
const ROUNDS: usize = 5;
/// The peer's packets per second; it sends for `TIME`.
const RATE: u64 = 25_000;
const TIME: Duration = Duration::from_secs(2);
/// Attempts to generate the peer's packets fast enough.
const TRIES: usize = 5;
/// Different messages, which the flood repeats.
const MESSAGES: usize = 256;
pub(crate) const VOLLEY: usize = 64;
/// Of a handshake initiation, in bytes.
pub(crate) const INITIATION: usize = 148;
pub(crate) const DROPPED: &str =
    "flannel_datapath_dropped_packets_total{device=\"flannel-wg\",direction=\"received\"";

/// Each has a valid first MAC (`mac1`), which requires only the node's public key. For each one, the node performs an elliptic-curve operation before
/// it finds that the peer is unknown.
fn unknown_initiations(node: PublicKey) -> Result<Vec<Vec<u8>>> {
    let mut buffer = vec![0; 2048];
    let mut unknown = |number: usize| match Tunn::new(
        StaticSecret::from(rand::random::<[u8; 32]>()),
        node,
        None,
        None,
        number as u32,
        None,
    )
    .format_handshake_initiation(&mut buffer, false)
    {
        TunnResult::WriteToNetwork(message) => Ok(message.to_vec()),
        other => Err(anyhow!("no initiation: {other:?}")),
    };
    (0..MESSAGES).map(&mut unknown).collect()
}

/// Type and length of a handshake initiation, with random content.
fn random_initiations() -> Vec<Vec<u8>> {
    let message = |_| {
        let mut bytes: Vec<u8> = (0..INITIATION).map(|_| rand::random()).collect();
        if let Some(kind) = bytes.first_chunk_mut() {
            *kind = 1u32.to_le_bytes();
        }
        bytes
    };
    (0..MESSAGES).map(message).collect()
}

/// Sends from one thread, as fast as possible, until `stop` is true. The result is the number of messages per second.
pub(crate) fn send_flood_until_stopped(
    socket: &UdpSocket,
    messages: &[Vec<u8>],
    stop: &AtomicBool,
) -> f64 {
    let (start, mut sent) = (Instant::now(), 0);
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(VOLLEY, None);
    while !stop.load(Relaxed) {
        for volley in messages.chunks(VOLLEY) {
            let slices: Vec<[IoSlice<'_>; 1]> =
                volley.iter().map(|message| [IoSlice::new(message)]).collect();
            let none = vec![None; slices.len()];
            sent +=
                sendmmsg(socket.as_raw_fd(), &mut headers, &slices, none, [], MsgFlags::empty())
                    .map_or(0, |done| done.count());
        }
    }
    sent as f64 / start.elapsed().as_secs_f64()
}

/// Sends from the second pod to the first. Tries again if this machine does not generate the packets fast enough.
fn stream_small_packets(bed: &Testbed) -> Result<Small> {
    let [to, from] = bed.pods.as_slice() else {
        return Err(anyhow!("there are two pods"));
    };
    let mut last = anyhow!("never tried");
    for _ in 0..TRIES {
        match send_small_packets(from, to, RATE, TIME) {
            Ok(passed) => return Ok(passed),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Sends from the second pod to the first. Also counts the junk packets per second, and the packets that the node's datapath dropped.
fn stream_during_junk(
    bed: &Testbed,
    attacker: &Host,
    messages: &[Vec<u8>],
) -> Result<(Small, f64, f64)> {
    let (host, daemon) = bed.hosts.first().zip(bed.daemons.first()).context("a node")?;
    let socket = attacker.netns().run(|| UdpSocket::bind("0.0.0.0:0"))??;
    socket.connect((host.v4()?, PORT))?;
    let (stop, before) = (AtomicBool::new(false), sum_metrics(daemon, DROPPED)?);
    let (passed, rate) = std::thread::scope(|scope| -> Result<(Small, f64)> {
        let flooding = scope.spawn(|| send_flood_until_stopped(&socket, messages, &stop));
        let passed = stream_small_packets(bed);
        stop.store(true, Relaxed);
        let rate = flooding.join().map_err(|_| anyhow!("the flood panicked"))?;
        Ok((passed?, rate))
    })?;
    // The daemon updates its metrics every second.
    std::thread::sleep(Duration::from_millis(1500));
    Ok((passed, rate, sum_metrics(daemon, DROPPED)? - before))
}

/// Alternates between no junk and each type of junk.
pub(crate) fn measure_loss_during_junk(table: &mut Table) -> Result<()> {
    let lab = Lab::create("bench-junk")?;
    let bed = Testbed::start_with_connected_pods(&lab, 2, NET_CONF, |_, options| options)?;
    let attacker = lab.create_host("attacker", &[Uplink::enp0s8(&bed.lan, 50)?])?;
    let kinds = [
        ("of random bytes", random_initiations()),
        (
            "that have a correct first MAC",
            unknown_initiations(key_of(bed.daemons.first().context("a node")?)?)?,
        ),
    ];
    let (mut undisturbed, mut rates) = (Vec::new(), Vec::new());
    let mut lost = kinds.each_ref().map(|_| Vec::new());
    for _ in 0..ROUNDS {
        undisturbed.push(stream_small_packets(&bed)?.loss() * 100.0);
        for ((kind, messages), lost) in kinds.iter().zip(&mut lost) {
            let (passed, rate, dropped) = stream_during_junk(&bed, &attacker, messages)?;
            ensure!(
                dropped > 10_000.0,
                "no flood of junk handshakes {kind}: the node dropped {dropped} packets"
            );
            lost.push(passed.loss() * 100.0);
            rates.push(rate / 1000.0);
        }
    }
    let what = format!(
        "wireguard in userspace: share of a peer's {RATE} packets per second that get lost"
    );
    table.add_figures_row(&what, undisturbed, "%", "-", "-");
    for ((kind, _), lost) in kinds.iter().zip(lost) {
        table.add_figures_row(
            &format!("{what} during a flood of junk handshakes {kind}"),
            lost,
            "%",
            "20 %",
            "-",
        );
    }
    table.add_figures_row(
        "junk handshakes from one processor, in thousands per second",
        rates,
        "",
        "-",
        "-",
    );
    bed.require_no_errors()
}
