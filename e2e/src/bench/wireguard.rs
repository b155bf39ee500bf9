//! Start of a node whose ten thousand userspace WireGuard peers all respond to handshakes: time, memory and processor share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use lab::{Flanneld, Host, Uplink};
use nix::sys::socket::{setsockopt, sockopt};

use crate::answers::{receive_datagram_for_peer, send_datagram_from_peer};
use crate::probing::processor_seconds;
use crate::scale::{
    DEADLINE, Fleet, lease_value, peer_underlay_address, resident_memory_and_peak,
    stop_daemon_without_errors, sum_metrics,
};
use crate::table::Table;

pub(crate) const PEERS: u32 = 10_000;
const ROUNDS: usize = 3;
pub(crate) const PORT: u16 = 51820;
/// The first byte of a WireGuard data message; an empty one is a keepalive.
const DATA: u8 = 4;
/// For the processor share, once all peers have a session.
const WINDOW: Duration = Duration::from_secs(20);
pub(crate) const NET_CONF: &str = r#"{"Network":"10.64.0.0/10","SubnetLen":24,"SubnetMin":"10.127.0.0","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;

/// The private key of peer `number`.
pub(crate) fn peer_private_key(number: u32) -> StaticSecret {
    let mut bytes = [7; 32];
    if let Some(first) = bytes.first_chunk_mut() {
        *first = number.to_be_bytes();
    }
    StaticSecret::from(bytes)
}

pub(crate) fn wireguard_lease_value(number: u32) -> String {
    let key = STANDARD.encode(PublicKey::from(&peer_private_key(number)));
    lease_value(
        number,
        peer_underlay_address(number),
        "wireguard",
        &format!("{{\"PublicKey\":\"{key}\",\"Port\":{PORT}}}"),
    )
}

/// Derives the public key from the file of the node's private key.
pub(crate) fn key_of(daemon: &Flanneld) -> Result<PublicKey> {
    let text = std::fs::read_to_string(daemon.subnet_file().with_file_name("wgkey"))
        .context("the node's key")?;
    let bytes: [u8; 32] =
        STANDARD.decode(text.trim())?.try_into().map_err(|_| anyhow!("the node's key is none"))?;
    Ok(PublicKey::from(&StaticSecret::from(bytes)))
}

/// Responds to the node's handshakes for all peers until `stop` is true. Counts in `sessions` the peers that have a session with it.
fn answer_handshakes_as_peers(
    host: &Host,
    node: Ipv4Addr,
    key: PublicKey,
    stop: &AtomicBool,
    sessions: &AtomicUsize,
) -> Result<()> {
    let socket = host.netns().run(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20))?;
    let (mut peers, mut confirmed) = (BTreeMap::new(), BTreeSet::new());
    let (mut buffer, mut out) = (vec![0; 65_536], vec![0; 65_536]);
    while !stop.load(Relaxed) {
        let Some((length, to)) = receive_datagram_for_peer(&socket, &mut buffer)? else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let number = u32::from(to).wrapping_sub(u32::from(peer_underlay_address(0)));
        let tunn = peers
            .entry(to)
            .or_insert_with(|| Tunn::new(peer_private_key(number), key, None, None, number, None));
        let message = buffer.get(..length).unwrap_or_default();
        match tunn.decapsulate(None, message, &mut out) {
            TunnResult::WriteToNetwork(reply) => {
                send_datagram_from_peer(&socket, to, (node, PORT), reply)?;
            }
            TunnResult::Err(_) => {}
            // The first packet in a session confirms it.
            _ if message.first() == Some(&DATA) => {
                confirmed.insert(to);
                sessions.store(confirmed.len(), Relaxed);
            }
            _ => {}
        }
    }
    Ok(())
}

/// One figure per daemon start.
#[derive(Default)]
struct Figures {
    ready: Vec<Duration>,
    sessions: Vec<Duration>,
    resident: Vec<f64>,
    peak: Vec<f64>,
    share: Vec<f64>,
}

/// The start of a node with [`PEERS`] peers.
pub(crate) fn measure_start_with_sessions(table: &mut Table) -> Result<()> {
    let fleet = Fleet::build_with_leases(PEERS, NET_CONF, wireguard_lease_value)?;
    let peers = fleet.lab.create_host("peers", &[Uplink::enp0s8(&fleet.lan, 50)?])?;
    // One host receives the packets to all peers.
    fleet.node.netns().run_ip_batch(&format!("route add 198.18.0.0/15 via {}", peers.v4()?))?;
    peers.netns().run_ip_batch("route add local 198.18.0.0/15 dev lo")?;
    // The first start creates the node's key.
    let mut daemon = fleet.node.start_flanneld(&fleet.options)?;
    daemon.wait_ready()?;
    let (key, node) = (key_of(&daemon)?, fleet.node.v4()?);
    stop_daemon_without_errors(daemon)?;
    let mut figures = Figures::default();
    for _ in 0..ROUNDS {
        let (ended, sessions) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| -> Result<()> {
            let serving =
                scope.spawn(|| answer_handshakes_as_peers(&peers, node, key, &ended, &sessions));
            let outcome = measure_one_start(&fleet, &sessions, &mut figures);
            ended.store(true, Relaxed);
            let served = serving.join().map_err(|_| anyhow!("the peers panicked"))?;
            outcome.and(served)
        })?;
    }
    let what = format!("{PEERS} peers of wireguard in userspace");
    table.add_times_row(&format!("{what}: time from start to readiness"), &figures.ready, "-", "-");
    table.add_times_row(
        &format!("{what}: time from start to a session with each peer"),
        &figures.sessions,
        "-",
        "-",
    );
    table.add_figures_row(
        &format!("{what}, with a session for each peer: resident memory"),
        figures.resident,
        "MiB",
        "200 MiB",
        "-",
    );
    table.add_figures_row(
        &format!("{what}: peak of the resident memory"),
        figures.peak,
        "MiB",
        "200 MiB",
        "-",
    );
    table.add_figures_row(
        &format!("{what}, with no packets but probes: share of a processor"),
        figures.share,
        "%",
        "-",
        "-",
    );
    Ok(())
}

fn measure_one_start(fleet: &Fleet, sessions: &AtomicUsize, figures: &mut Figures) -> Result<()> {
    let start = Instant::now();
    let mut daemon = fleet.node.start_flanneld(&fleet.options)?;
    figures.ready.push(daemon.wait_ready()?);
    while sessions.load(Relaxed) < PEERS as usize {
        ensure!(start.elapsed() < DEADLINE, "{sessions:?} of {PEERS} sessions within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    figures.sessions.push(start.elapsed());
    let (start, before) = (Instant::now(), processor_seconds(&daemon)?);
    std::thread::sleep(WINDOW);
    figures
        .share
        .push((processor_seconds(&daemon)? - before) / start.elapsed().as_secs_f64() * 100.0);
    let counted = sum_metrics(&daemon, "flannel_wireguard_peers{")?;
    ensure!(counted == f64::from(PEERS), "{counted} peers instead of {PEERS}");
    let (resident, peak) = resident_memory_and_peak(&daemon)?;
    figures.resident.push(resident);
    figures.peak.push(peak);
    stop_daemon_without_errors(daemon)
}
