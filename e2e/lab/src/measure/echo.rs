//! Finds the source address that a receiver sees: the receiver replies to each UDP packet with its source address and port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;

use crate::net::multicast;
use crate::net::netns::Netns;

/// How often the receiver checks whether to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Then the sender repeats a packet without a reply. The first packet may wait for neighbour resolution.
const TIMEOUT: Duration = Duration::from_millis(400);
const ATTEMPTS: u32 = 4;
/// For packets to a multicast group.
const HOPS: u8 = 8;

/// Replies until it is dropped.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// The receiver has a free port.
    pub fn start_source_reporter(netns: &Netns, address: IpAddr) -> Result<Echo> {
        let socket = netns
            .run(|| UdpSocket::bind((address, 0)))?
            .with_context(|| format!("binding {address} in {}", netns.name()))?;
        let address = socket.local_addr()?;
        Echo::spawn_reporting_thread(socket, address)
    }

    /// Receives packets to a multicast group on an interface, and replies from its unicast address.
    pub fn start_group_source_reporter(
        netns: &Netns,
        group: IpAddr,
        interface: &str,
    ) -> Result<Echo> {
        let join = || -> Result<UdpSocket> {
            let index = if_nametoindex(interface)?;
            match group {
                IpAddr::V4(group) => {
                    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                    multicast::join_v4(&socket, group, index)?;
                    Ok(socket)
                }
                IpAddr::V6(group) => {
                    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
                    socket.join_multicast_v6(&group, index)?;
                    Ok(socket)
                }
            }
        };
        let socket = netns
            .run(join)?
            .with_context(|| format!("joining {group} on {interface} in {}", netns.name()))?;
        let address = SocketAddr::new(group, socket.local_addr()?.port());
        Echo::spawn_reporting_thread(socket, address)
    }

    fn spawn_reporting_thread(socket: UdpSocket, address: SocketAddr) -> Result<Echo> {
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while !ended.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let question = buffer.get(..length).unwrap_or_default();
                // The sender repeats a packet whose reply is lost.
                let _ = socket.send_to(&[question, from.to_string().as_bytes()].concat(), from);
            }
        });
        Ok(Echo { address, end, thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends packets to an [`Echo`] from each of the ports of an address. For an unspecified address, the kernel chooses the source.
///
/// The result has the address and port that the receiver saw, for each port. It ends with `None` at the first port without a reply.
pub fn ask_seen_source_per_port(
    netns: &Netns,
    from: IpAddr,
    ports: impl Iterator<Item = u16> + Send,
    to: SocketAddr,
) -> Result<Vec<(u16, Option<SocketAddr>)>> {
    netns.run(|| {
        let mut answers = Vec::new();
        for port in ports {
            let seen = ask_seen_source_address(SocketAddr::new(from, port), to)?;
            answers.push((port, seen));
            // After a port without a reply, further attempts would only cost time.
            if seen.is_none() {
                break;
            }
        }
        Ok(answers)
    })?
}

fn ask_seen_source_address(from: SocketAddr, to: SocketAddr) -> Result<Option<SocketAddr>> {
    let socket = UdpSocket::bind(from).with_context(|| format!("binding {from}"))?;
    if to.ip().is_multicast() {
        multicast::set_multicast_hops(&socket, to.ip(), HOPS)?;
    }
    let nonce = rand::random::<u64>().to_be_bytes();
    let mut buffer = [0; 128];
    for _ in 0..ATTEMPTS {
        // There may be no route yet, or the kernel may return the ICMP error of an earlier packet now.
        let _ = socket.send_to(&nonce, to);
        let end = Instant::now() + TIMEOUT;
        while let Some(left) =
            end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            socket.set_read_timeout(Some(left))?;
            let Ok((length, _)) = socket.recv_from(&mut buffer) else {
                continue;
            };
            let seen = buffer.get(..length).and_then(|answer| answer.strip_prefix(&nonce));
            if let Some(seen) = seen.and_then(|seen| std::str::from_utf8(seen).ok()?.parse().ok()) {
                return Ok(Some(seen));
            }
        }
    }
    Ok(None)
}
