//! A thousand peers in one thread, which receives all probes to them, over the overlay or the underlay, and replies as a node does. Each peer also
//! probes the node once per cycle, as nodes do.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use lab::{Host, craft};
use nix::libc;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
    sockopt,
};

const TUNNEL: u16 = 8472;
const PROBES: u16 = 8473;
const ECHO: usize = 72;
/// The VXLAN, Ethernet, IP and UDP headers before a message in the tunnel, in bytes.
const HEADERS: usize = 8 + 14 + 20 + 8;
/// The peers send probes in turn. For a thousand peers, a cycle takes a thousand times this interval.
const QUESTION_EVERY: Duration = Duration::from_millis(250);

/// It has received its first probe.
struct Known {
    /// The IDs of the peer and of the node.
    who: [u8; 8],
    node: [u8; 8],
    /// Of the peer and of the node.
    overlay: (Ipv4Addr, Ipv4Addr),
    /// Of the node's VXLAN device.
    mac: [u8; 6],
}

/// On a host that receives all packets for the peers, replies to probes and sends probes until `stop` is true. Counts the replies in `answered`.
pub(crate) fn answer_and_send_probes(
    host: &Host,
    node: Ipv4Addr,
    stop: &AtomicBool,
    answered: &AtomicU64,
) -> Result<()> {
    host.netns().run(|| -> Result<()> {
        let tunnel = UdpSocket::bind(("0.0.0.0", TUNNEL))?;
        let underlay = UdpSocket::bind(("0.0.0.0", PROBES))?;
        tunnel.set_read_timeout(Some(Duration::from_millis(5)))?;
        underlay.set_nonblocking(true)?;
        setsockopt(&underlay, sockopt::Ipv4PacketInfo, &true)?;
        let mut peers: BTreeMap<Ipv4Addr, Known> = BTreeMap::new();
        let (mut buffer, mut due, mut turn) = (vec![0; 65_536], Instant::now(), 0);
        while !stop.load(Relaxed) {
            if let Ok((length, _)) = tunnel.recv_from(&mut buffer)
                && let Some((known, answer)) =
                    probed_peer_and_reply(buffer.get(..length).unwrap_or_default())
            {
                tunnel.send_to(&in_tunnel(&known, &answer), (node, TUNNEL))?;
                answered.fetch_add(1, Relaxed);
                peers.insert(known.overlay.0, known);
            }
            while let Some((length, to)) = receive_datagram_for_peer(&underlay, &mut buffer)? {
                if let Some(answer) = buffer.get(..length).and_then(probe_reply) {
                    send_datagram_from_peer(&underlay, to, (node, PROBES), &answer)?;
                    answered.fetch_add(1, Relaxed);
                }
            }
            if Instant::now() >= due && !peers.is_empty() {
                // Missed turns are skipped.
                due = Instant::now() + QUESTION_EVERY;
                turn += 1;
                if let Some(known) = peers.values().nth(turn % peers.len()) {
                    tunnel.send_to(
                        &in_tunnel(known, &probe_message(known, turn as u64)),
                        (node, TUNNEL),
                    )?;
                }
            }
        }
        Ok(())
    })?
}

/// A probe that arrived through the tunnel: the probed peer and the reply.
fn probed_peer_and_reply(frame: &[u8]) -> Option<(Known, Vec<u8>)> {
    let (message, packet) = (frame.get(HEADERS..)?, frame.get(22..)?);
    let address = |at: usize| -> Option<Ipv4Addr> {
        Some(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?.into())
    };
    let known = Known {
        who: message.get(24..32)?.try_into().ok()?,
        node: message.get(16..24)?.try_into().ok()?,
        overlay: (address(16)?, address(12)?),
        mac: frame.get(14..20)?.try_into().ok()?,
    };
    Some((known, probe_reply(message)?))
}

/// Replies as a node that has received all probes recently; `None` if the message is not a probe.
fn probe_reply(question: &[u8]) -> Option<Vec<u8>> {
    if question.len() < ECHO || !question.starts_with(b"flpr\x01\x01") {
        return None;
    }
    // The reply has the same length and nonce, and the IDs of sender and receiver swapped.
    let mut answer =
        [&b"flpr\x01\x02"[..], question.get(6..16)?, question.get(24..32)?, question.get(16..24)?]
            .concat();
    answer.extend([0; 12]);
    answer.extend(current_time_bytes());
    answer.extend([0; 16]);
    answer.extend(3_600_000u32.to_be_bytes());
    Some(answer)
}

fn probe_message(known: &Known, nonce: u64) -> Vec<u8> {
    let mut bytes =
        [&b"flpr\x01\x01\0"[..], &[ECHO as u8], &nonce.to_be_bytes(), &known.who, &known.node]
            .concat();
    bytes.extend([0xff; 8]);
    bytes.extend([0; 4]);
    bytes.extend(current_time_bytes());
    bytes.resize(ECHO, 0);
    bytes
}

fn current_time_bytes() -> [u8; 8] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(0).to_be_bytes()
}

fn in_tunnel(known: &Known, message: &[u8]) -> Vec<u8> {
    let at = |ip: Ipv4Addr| SocketAddr::new(IpAddr::V4(ip), PROBES);
    craft::vxlan_datagram(
        1,
        known.mac,
        0x0800,
        &craft::udp_packet(at(known.overlay.0), at(known.overlay.1), 64, message),
    )
}

/// Does not block. The result is the datagram's length and its destination peer.
pub(crate) fn receive_datagram_for_peer(
    socket: &UdpSocket,
    buffer: &mut [u8],
) -> Result<Option<(usize, Ipv4Addr)>> {
    let mut control = nix::cmsg_space!(libc::in_pktinfo);
    let mut pieces = [IoSliceMut::new(buffer)];
    let message = match recvmsg::<SockaddrIn>(
        socket.as_raw_fd(),
        &mut pieces,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    ) {
        Ok(message) => message,
        Err(nix::Error::EAGAIN | nix::Error::ECONNREFUSED) => return Ok(None),
        Err(error) => return Err(error).context("receiving for a peer"),
    };
    let to = message.cmsgs()?.find_map(|one| match one {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)))
        }
        _ => None,
    });
    Ok(Some((message.bytes, to.context("no address")?)))
}

/// The source is the address of a peer.
pub(crate) fn send_datagram_from_peer(
    socket: &UdpSocket,
    from: Ipv4Addr,
    to: (Ipv4Addr, u16),
    bytes: &[u8],
) -> Result<()> {
    let from = libc::in_addr { s_addr: u32::from(from).to_be() };
    let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: from, ipi_addr: from };
    let to = SockaddrIn::from(SocketAddrV4::new(to.0, to.1));
    sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        &[ControlMessage::Ipv4PacketInfo(&info)],
        MsgFlags::empty(),
        Some(&to),
    )?;
    Ok(())
}
