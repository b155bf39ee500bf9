//! A simulated node that replies to handshakes with all its current and earlier keys, and records the packets that the node can decrypt.

use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::PublicKey;
use lab::Host;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;

use crate::wireguard_keys::Keys;

const PORT: u16 = 51820;
/// Interval at which the thread checks whether it must send a delayed reply or end.
const GLANCE: Duration = Duration::from_millis(5);
/// Length of the IPv4 and UDP headers, in bytes.
const HEADERS: usize = 28;

/// A packet that a simulated node decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// Index of the simulated node's key that decrypted the packet.
    pub(super) key: usize,
    pub(super) to: Ipv4Addr,
    /// Sequence number in the packet's payload.
    pub(super) number: u64,
    /// Number of the latest step when the simulated node decrypted the packet.
    pub(super) step: usize,
    /// Time at which the kernel received the packet, on the real-time clock.
    pub(super) at: Duration,
    /// Time at which the simulated node first replied to a handshake with the key, on the real-time clock. The daemon had no session with
    /// the key before this time.
    pub(super) answered: Duration,
}

pub(super) struct Player {
    pub(super) address: Ipv4Addr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Tunnel {
    tunn: Tunn,
    /// Delay of the handshake replies.
    late: Duration,
    /// Time of the first handshake reply, on the real-time clock.
    answered: Option<Duration>,
}

struct Shared {
    /// WireGuard tunnel of each key. The datagrams from the remote node carry the index of the tunnel.
    tunnels: Mutex<Vec<Tunnel>>,
    /// Public keys, in the order of the tunnels.
    public: Mutex<Vec<String>>,
    opened: Mutex<Vec<Opened>>,
    end: AtomicBool,
    step: Arc<AtomicUsize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Player {
    /// Listens on a host. Records the current value of `step` with each packet.
    pub(super) fn start(host: &Host, step: &Arc<AtomicUsize>) -> Result<Player> {
        let address = host.v4()?;
        let socket = host.netns().run(|| UdpSocket::bind((address, PORT)))??;
        socket.set_read_timeout(Some(GLANCE))?;
        setsockopt(&socket, sockopt::RcvBufForce, &(16 << 20)).context("a large buffer")?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).context("the times of packets")?;
        let shared = Arc::new(Shared {
            tunnels: Mutex::default(),
            public: Mutex::default(),
            opened: Mutex::default(),
            end: AtomicBool::new(false),
            step: Arc::clone(step),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || play(&socket, &theirs));
        Ok(Player {
            address,
            shared,
            thread: Some(thread),
        })
    }

    /// Generates another key and keeps the simulated node's earlier keys. The simulated node delays handshake replies
    /// with the new key by `late`. Returns the new key's index.
    pub(super) fn take_key(&self, peer: [u8; 32], late: Duration) -> usize {
        let keys = Keys::new();
        lock(&self.shared.public).push(keys.public_text());
        let mut tunnels = lock(&self.shared.tunnels);
        let number = tunnels.len();
        // Nothing floods a player, so the limit is never reached.
        let limiter = Arc::new(RateLimiter::new(&keys.public, u64::MAX));
        tunnels.push(Tunnel {
            tunn: Tunn::new(
                keys.private,
                PublicKey::from(peer),
                None,
                None,
                number as u32,
                Some(limiter),
            ),
            late,
            answered: None,
        });
        number
    }

    /// Returns the public key of the simulated node's key pair `number`, in base64.
    pub(super) fn public_key(&self, number: usize) -> String {
        lock(&self.shared.public)[number].clone()
    }

    /// Returns the packets that the simulated node has decrypted so far.
    pub(super) fn opened(&self) -> Vec<Opened> {
        lock(&self.shared.opened).clone()
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Receives a datagram. Returns the datagram's length, its sender and the time at which the kernel received the
/// datagram.
fn receive(socket: &UdpSocket, datagram: &mut [u8]) -> Option<(usize, SocketAddr, Duration)> {
    let mut space = nix::cmsg_space!(TimeSpec);
    let mut parts = [IoSliceMut::new(datagram)];
    let message = recvmsg::<SockaddrIn>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::empty(),
    )
    .ok()?;
    let at = message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
        _ => None,
    });
    Some((
        message.bytes,
        SocketAddr::V4((*message.address.as_ref()?).into()),
        at?,
    ))
}

/// A handshake reply that a simulated node sends later.
struct Reply {
    due: Instant,
    /// Index of the key.
    key: usize,
    message: Vec<u8>,
    to: SocketAddr,
}

fn play(socket: &UdpSocket, shared: &Shared) {
    let (mut datagram, mut out) = (vec![0; 2048], vec![0; 2048]);
    let mut replies: Vec<Reply> = Vec::new();
    while !shared.end.load(Ordering::Relaxed) {
        replies.retain(|reply| {
            if reply.due > Instant::now() {
                return true;
            }
            if let Some(tunnel) = lock(&shared.tunnels).get_mut(reply.key) {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                tunnel.answered = tunnel.answered.or(now.ok());
            }
            socket.send_to(&reply.message, reply.to).is_err()
        });
        let Some((length, from, at)) = receive(socket, &mut datagram) else {
            continue;
        };
        let message = &datagram[..length];
        let mut tunnels = lock(&shared.tunnels);
        match message {
            // An initiation does not name its key, so each tunnel tries to read it.
            [1, 0, 0, 0, ..] => {
                for (key, tunnel) in tunnels.iter_mut().enumerate().rev() {
                    // Advances the tunnel's clock.
                    let _ = tunnel.tunn.update_timers(&mut out);
                    if let TunnResult::WriteToNetwork(message) =
                        tunnel.tunn.decapsulate(None, message, &mut out)
                    {
                        replies.push(Reply {
                            due: Instant::now() + tunnel.late,
                            key,
                            message: message.to_vec(),
                            to: from,
                        });
                        break;
                    }
                }
            }
            [4, 0, 0, 0, _, a, b, c, ..] => {
                let key = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
                let Some(tunnel) = tunnels.get_mut(key) else {
                    continue;
                };
                let TunnResult::WriteToTunnelV4(packet, _) =
                    tunnel.tunn.decapsulate(None, message, &mut out)
                else {
                    continue;
                };
                let step = shared.step.load(Ordering::SeqCst);
                let to = <[u8; 4]>::try_from(&packet[16..20]).unwrap().into();
                if let (Some(number), Some(answered)) =
                    (packet.get(HEADERS..HEADERS + 8), tunnel.answered)
                {
                    let number = u64::from_be_bytes(number.try_into().unwrap());
                    lock(&shared.opened).push(Opened {
                        key,
                        to,
                        number,
                        step,
                        at,
                        answered,
                    });
                }
            }
            _ => {}
        }
    }
}
