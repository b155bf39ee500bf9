//! Renewal of userspace WireGuard sessions while an attacker with a valid cookie floods the node with handshakes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use lab::{Host, Uplink};
use nix::sys::socket::{setsockopt, sockopt};

use crate::answers::{receive_datagram_for_peer, send_datagram_from_peer};
use crate::junk::{DROPPED, INITIATION, VOLLEY, send_flood_until_stopped};
use crate::scale::{
    DEADLINE, Fleet, peer_underlay_address, stop_daemon_without_errors, sum_metrics,
};
use crate::table::Table;
use crate::wireguard::{NET_CONF, PORT, key_of, peer_private_key, wireguard_lease_value};

const PEERS: u32 = 100;
const ROUNDS: usize = 3;
/// Between the first initiations of two consecutive peers.
const START_INTERVAL: Duration = Duration::from_millis(100);
/// After this time without a response, a peer sends another initiation.
const RETRY_INTERVAL: Duration = Duration::from_millis(5200);
/// For a renewal: a peer renews a session at an age of 120 s, and the session ends at 180 s.
const IN_TIME: Duration = Duration::from_secs(60);
/// Of a handshake response, in bytes.
const ANSWER: usize = 92;
const COOKIE: usize = 64;

/// The tunnel has no rate limit.
fn tunnel_without_rate_limit(private: StaticSecret, node: PublicKey, number: u32) -> Tunn {
    let limiter = RateLimiter::new(&PublicKey::from(&private), u64::MAX);
    Tunn::new(private, node, None, None, number, Some(Arc::new(limiter)))
}

fn handshake_initiation(tunn: &mut Tunn) -> Result<Vec<u8>> {
    match tunn.format_handshake_initiation(&mut [0; INITIATION], true) {
        TunnResult::WriteToNetwork(message) => Ok(message.to_vec()),
        other => Err(anyhow!("no initiation: {other:?}")),
    }
}

/// A handshake initiation with a valid cookie, but of an unknown peer. Floods the node first, because it sends cookies only under load.
fn flood_until_initiation_with_cookie(socket: &UdpSocket, node: PublicKey) -> Result<Vec<u8>> {
    let mut unknown =
        tunnel_without_rate_limit(StaticSecret::from(rand::random::<[u8; 32]>()), node, 1);
    let message = vec![handshake_initiation(&mut unknown)?; VOLLEY];
    socket.set_read_timeout(Some(Duration::from_millis(1)))?;
    let (start, mut buffer) = (Instant::now(), [0; 2048]);
    while start.elapsed() < DEADLINE {
        flood_for(socket, &message, Duration::from_millis(50))?;
        while let Ok(length) = socket.recv(&mut buffer) {
            let cookie = buffer.get(..length).unwrap_or_default();
            if length == COOKIE
                && !matches!(unknown.decapsulate(None, cookie, &mut [0; 256]), TunnResult::Err(_))
            {
                return handshake_initiation(&mut unknown);
            }
        }
    }
    Err(anyhow!("the node never asked for a proof within {DEADLINE:?}"))
}

fn flood_for(socket: &UdpSocket, messages: &[Vec<u8>], time: Duration) -> Result<f64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| send_flood_until_stopped(socket, messages, &stop));
        std::thread::sleep(time);
        stop.store(true, Relaxed);
        flooding.join().map_err(|_| anyhow!("the flood panicked"))
    })
}

struct Renewal {
    tunn: Tunn,
    /// The renewal begins at `begins`, and the next initiation is at `next`.
    begins: Instant,
    next: Instant,
    done: Option<Duration>,
}

/// The durations of the renewals that succeed within [`IN_TIME`].
fn renew_peer_sessions(
    socket: &UdpSocket,
    node: Ipv4Addr,
    key: PublicKey,
) -> Result<Vec<Duration>> {
    let start = Instant::now();
    let peer = |number: u32| {
        let begins = start + START_INTERVAL * number;
        (
            peer_underlay_address(number),
            Renewal {
                tunn: tunnel_without_rate_limit(peer_private_key(number), key, number),
                begins,
                next: begins,
                done: None,
            },
        )
    };
    let mut peers: BTreeMap<Ipv4Addr, Renewal> = (0..PEERS).map(peer).collect();
    let mut buffer = vec![0; 65_536];
    while start.elapsed() < START_INTERVAL * PEERS + IN_TIME
        && peers.values().any(|peer| peer.done.is_none())
    {
        for (from, peer) in &mut peers {
            let now = Instant::now();
            if peer.done.is_none() && now >= peer.next && now < peer.begins + IN_TIME {
                peer.next = now + RETRY_INTERVAL;
                send_datagram_from_peer(
                    socket,
                    *from,
                    (node, PORT),
                    &handshake_initiation(&mut peer.tunn)?,
                )?;
            }
        }
        while let Some((length, to)) = receive_datagram_for_peer(socket, &mut buffer)? {
            let message = buffer.get(..length).unwrap_or_default();
            let Some(peer) = peers.get_mut(&to) else {
                continue;
            };
            if let TunnResult::WriteToNetwork(reply) =
                peer.tunn.decapsulate(None, message, &mut [0; 2048])
            {
                send_datagram_from_peer(socket, to, (node, PORT), reply)?;
                if length == ANSWER {
                    peer.done.get_or_insert(peer.begins.elapsed());
                }
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(peers.into_values().filter_map(|peer| peer.done).collect())
}

/// The durations of the successful renewals, and the flood's packets per second.
fn renew_during_flood(
    attacker: &Host,
    socket: &UdpSocket,
    node: Ipv4Addr,
    key: PublicKey,
) -> Result<(Vec<Duration>, f64)> {
    let from = attacker.netns().run(|| UdpSocket::bind("0.0.0.0:0"))??;
    from.connect((node, PORT))?;
    let (message, stop) =
        (vec![flood_until_initiation_with_cookie(&from, key)?; VOLLEY], AtomicBool::new(false));
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| send_flood_until_stopped(&from, &message, &stop));
        let times = renew_peer_sessions(socket, node, key);
        stop.store(true, Relaxed);
        let rate = flooding.join().map_err(|_| anyhow!("the flood panicked"))?;
        Ok((times?, rate))
    })
}

/// Alternates between no flood and a flood of handshakes.
pub(crate) fn measure_session_renewals(table: &mut Table) -> Result<()> {
    let fleet = Fleet::build_with_leases(PEERS, NET_CONF, wireguard_lease_value)?;
    let peers = fleet.lab.create_host("peers", &[Uplink::enp0s8(&fleet.lan, 50)?])?;
    let attacker = fleet.lab.create_host("attacker", &[Uplink::enp0s8(&fleet.lan, 51)?])?;
    // One host receives the packets to all peers.
    fleet.node.netns().run_ip_batch(&format!("route add 198.18.0.0/15 via {}", peers.v4()?))?;
    peers.netns().run_ip_batch("route add local 198.18.0.0/15 dev lo")?;
    let mut daemon = fleet.node.start_flanneld(&fleet.options)?;
    daemon.wait_ready()?;
    let (key, node) = (key_of(&daemon)?, fleet.node.v4()?);
    let socket = peers.netns().run(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20))?;
    let (mut undisturbed, mut flooded, mut shares, mut rates) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let times = renew_peer_sessions(&socket, node, key)?;
        ensure!(
            times.len() == PEERS as usize,
            "without a flood {} of {PEERS} sessions were renewed",
            times.len()
        );
        undisturbed.extend(times);
        let before = sum_metrics(&daemon, DROPPED)?;
        let (times, rate) = renew_during_flood(&attacker, &socket, node, key)?;
        // The daemon updates its metrics every second.
        std::thread::sleep(Duration::from_millis(1500));
        let dropped = sum_metrics(&daemon, DROPPED)? - before;
        ensure!(dropped > 10_000.0, "no flood: the node dropped {dropped} messages");
        shares.push(100.0 - times.len() as f64 / f64::from(PEERS) * 100.0);
        flooded.extend(times);
        rates.push(rate / 1000.0);
    }
    stop_daemon_without_errors(daemon).context("the node")?;
    let what = format!("{PEERS} peers of wireguard in userspace renew their sessions");
    table.add_times_row(&format!("{what}: time until renewal"), &undisturbed, "-", "-");
    let what = format!("{what} during handshakes from one proved address");
    table.add_figures_row(
        &format!("{what}: share of sessions not renewed within {} s", IN_TIME.as_secs()),
        shares,
        "%",
        "5 %",
        "-",
    );
    table.add_times_row(&format!("{what}: time until renewal"), &flooded, "-", "-");
    table.add_figures_row(
        "handshakes from the proved address, in thousands per second",
        rates,
        "",
        "-",
        "-",
    );
    Ok(())
}
