//! One socket: for questions and answers, or for ping. What it reads has the time of the kernel.

use super::option::{do_not_fragment, register};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::unix::AsyncFd;

/// What waits to be read while this program gets no time.
const BUFFER: usize = 1 << 20;
/// The most that is read of one datagram: more than any MTU that is asked for.
pub(super) const LARGEST: usize = 65_536;
/// The first four bytes of every message.
const MAGIC: u32 = u32::from_be_bytes(*b"flpr");

/// Instructions of a filter, by the codes of linux/bpf_common.h.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF_AT: u16 = 0x48;
const LOAD_BYTE_AT: u16 = 0x50;
const HEADER_LENGTH: u16 = 0xb1;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
/// Offsets from here on count from the header of IP (SKF_NET_OFF).
const IP: u32 = 0xfff0_0000;
const RETURN: u16 = 0x06;

/// A socket of which the runtime tells when something comes in.
pub(super) struct Registered {
    socket: Socket,
    /// Who is told: the same socket, registered.
    told: Option<AsyncFd<Socket>>,
    /// Whom it is bound to.
    pub address: SocketAddr,
}

/// What was read.
pub(super) struct Read {
    /// From whom.
    pub from: IpAddr,
    /// The port, of a datagram.
    pub port: u16,
    /// How many bytes.
    pub length: usize,
    /// How long ago it came in.
    pub age: Duration,
}

impl Registered {
    /// A socket for questions and answers. The address may be assigned later. `hosts` are the bits of a sender's address, its last 32 at most,
    /// that make it the first or the second one of its subnet; none where anybody may send.
    pub(super) fn datagrams(address: SocketAddr, hosts: Option<u32>) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM.nonblocking().cloexec(),
            Some(Protocol::UDP),
        )?;
        socket.attach_filter(&senders(address, hosts))?;
        Self::open(socket, address)
    }

    /// Who may send, anew.
    pub(super) fn let_send(&self, hosts: Option<u32>) -> io::Result<()> {
        self.socket.attach_filter(&senders(self.address, hosts))
    }

    /// A socket for pings with this identifier.
    pub(super) fn pings(address: IpAddr, id: u16) -> io::Result<Self> {
        let address = SocketAddr::new(address, 0);
        let protocol = if address.is_ipv6() {
            Protocol::ICMPV6
        } else {
            Protocol::ICMPV4
        };
        let socket = Socket::new(
            Domain::for_address(address),
            Type::RAW.nonblocking().cloexec(),
            Some(protocol),
        )?;
        // Answers to our own pings, and errors, alone: every raw socket of a host gets all of ICMP.
        if address.is_ipv6() {
            let (refused, answer, id) = (1, 129, u32::from(id));
            let filter = [
                SockFilter::new(LOAD_BYTE, 0, 0, 0),
                SockFilter::new(IF_EQUAL, 3, 0, refused),
                SockFilter::new(IF_EQUAL, 0, 3, answer),
                SockFilter::new(LOAD_HALF, 0, 0, 4),
                SockFilter::new(IF_EQUAL, 0, 1, id),
                take(),
                drop_it(),
            ];
            socket.attach_filter(&filter)?;
        } else {
            let filter = [
                SockFilter::new(HEADER_LENGTH, 0, 0, 0),
                SockFilter::new(LOAD_BYTE_AT, 0, 0, 0),
                SockFilter::new(IF_EQUAL, 3, 0, 3),
                SockFilter::new(IF_EQUAL, 0, 3, 0),
                SockFilter::new(LOAD_HALF_AT, 0, 0, 4),
                SockFilter::new(IF_EQUAL, 0, 1, u32::from(id)),
                take(),
                drop_it(),
            ];
            socket.attach_filter(&filter)?;
        }
        Self::open(socket, address)
    }

    fn open(socket: Socket, address: SocketAddr) -> io::Result<Self> {
        if address.is_ipv6() {
            socket.set_freebind_v6(true)?;
            if address.port() != 0 {
                socket.set_only_v6(true)?;
            }
        } else {
            socket.set_freebind_v4(true)?;
        }
        do_not_fragment(socket.as_fd(), address.ip().into())?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        // With CAP_NET_ADMIN the limit net.core.rmem_max does not apply.
        if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).is_err() {
            let _ = socket.set_recv_buffer_size(BUFFER);
        }
        socket.bind(&address.into())?;
        let told = Some(register(socket.try_clone()?)?);
        Ok(Self {
            socket,
            told,
            address,
        })
    }

    /// Whether the program is to be woken for what comes in. False where it is not, even if it should be.
    pub(super) fn tell(&mut self, on: bool) -> bool {
        if !on {
            self.told = None;
        } else if self.told.is_none() {
            self.told = self.socket.try_clone().and_then(register).ok();
        }
        self.told.is_some()
    }

    /// Whether something may have come in since the last call.
    pub(super) fn poll_readable(
        &self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        let Some(told) = &self.told else {
            return std::task::Poll::Pending;
        };
        told.poll_read_ready(context).map(|ready| {
            // Everything is read after this; what comes later is reported anew.
            ready.map(|mut ready| ready.clear_ready())
        })
    }

    /// Reads one datagram, if there is one.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Option<Read> {
        let mut control = nix::cmsg_space!(libc::timespec);
        loop {
            let mut pieces = [IoSliceMut::new(buffer)];
            let read = recvmsg::<SockaddrStorage>(
                self.socket.as_raw_fd(),
                &mut pieces,
                Some(&mut control),
                MsgFlags::MSG_DONTWAIT,
            );
            let message = match read {
                Ok(message) => message,
                // An error that a datagram of ours caused stands in the way once.
                Err(
                    nix::Error::EINTR
                    | nix::Error::ECONNREFUSED
                    | nix::Error::EHOSTUNREACH
                    | nix::Error::ENETUNREACH,
                ) => continue,
                Err(_) => return None,
            };
            let stamp = message.cmsgs().ok().and_then(|mut all| {
                all.find_map(|one| {
                    if let ControlMessageOwned::ScmTimestampns(time) = one {
                        Some(Duration::from(time))
                    } else {
                        None
                    }
                })
            });
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let age = stamp
                .map(|stamp| now.saturating_sub(stamp))
                .unwrap_or_default();
            let from = message.address.and_then(|from| {
                let v4 = from
                    .as_sockaddr_in()
                    .map(|from| SocketAddr::from((from.ip(), from.port())));
                v4.or_else(|| {
                    from.as_sockaddr_in6()
                        .map(|from| SocketAddr::from((from.ip(), from.port())))
                })
            })?;
            return Some(Read {
                from: from.ip(),
                port: from.port(),
                length: message.bytes,
                age,
            });
        }
    }

    /// Sends. What cannot be sent is lost, as on the way.
    pub(super) fn send(&self, to: SocketAddr, bytes: &[u8]) {
        let _ = self.socket.send_to(bytes, &to.into());
    }
}

/// Drops junk before it takes room, or what nodes send would be lost in a flood of it. Nodes send from the probe port; in the overlay network
/// from the first or the second address of a subnet, which pods have not.
fn senders(own: SocketAddr, hosts: Option<u32>) -> Vec<SockFilter> {
    // The filter sees the UDP header first.
    let port = [
        SockFilter::new(LOAD_HALF, 0, 0, 0),
        SockFilter::new(IF_EQUAL, 1, 0, own.port().into()),
        drop_it(),
    ];
    let magic = [
        SockFilter::new(LOAD_WORD, 0, 0, 8),
        SockFilter::new(IF_EQUAL, 1, 0, MAGIC),
        drop_it(),
    ];
    let last_word = IP + if own.is_ipv6() { 20 } else { 12 };
    let place = |hosts| {
        [
            SockFilter::new(LOAD_WORD, 0, 0, last_word),
            SockFilter::new(AND, 0, 0, hosts),
            SockFilter::new(IF_GREATER, 0, 1, 1),
            drop_it(),
        ]
    };
    let place = hosts.map(place);
    port.into_iter()
        .chain(magic)
        .chain(place.into_iter().flatten())
        .chain([take()])
        .collect()
}

fn take() -> SockFilter {
    SockFilter::new(RETURN, 0, 0, u32::MAX)
}

fn drop_it() -> SockFilter {
    SockFilter::new(RETURN, 0, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// What comes through when this is sent from each of these ports, own or another, and addresses.
    fn read_of(
        hosts: Option<u32>,
        anew: Option<u32>,
        own: &str,
        senders: &[(&str, bool, &[u8])],
    ) -> Vec<IpAddr> {
        let own: IpAddr = own.parse().unwrap();
        let port = UdpSocket::bind((own, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let receiver = Registered::datagrams((own, port).into(), hosts).unwrap();
        if anew.is_some() {
            receiver.let_send(anew).unwrap();
        }
        for (address, same_port, bytes) in senders {
            let address: IpAddr = address.parse().unwrap();
            let sender = UdpSocket::bind((address, if *same_port { port } else { 0 })).unwrap();
            sender.send_to(bytes, (own, port)).unwrap();
        }
        let mut buffer = vec![0; LARGEST];
        // Over loopback all has come in already.
        std::iter::from_fn(|| receiver.read(&mut buffer).map(|read| read.from)).collect()
    }

    #[tokio::test]
    async fn only_what_nodes_send_takes_room() {
        let message: &[u8] = b"flpr\x01\x01";
        let senders = [
            ("127.0.0.1", true, message),
            ("127.0.0.1", false, message),
            ("127.0.0.1", true, &b"junk of a host that is none"[..]),
            ("127.0.0.1", true, b"fl"),
            ("127.0.0.7", true, message),
            ("127.0.1.0", true, message),
        ];
        let came = |hosts, anew| {
            read_of(hosts, anew, "127.0.0.9", &senders)
                .iter()
                .map(IpAddr::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            came(Some(0xff), None),
            ["127.0.0.1", "127.0.1.0"],
            "the first two addresses of a subnet"
        );
        assert_eq!(
            came(None, None),
            ["127.0.0.1", "127.0.0.7", "127.0.1.0"],
            "beside the overlay network"
        );
        assert_eq!(came(Some(0xff), Some(0x3)), ["127.0.0.1", "127.0.1.0"]);
        assert_eq!(came(Some(0xff), Some(0x6)), ["127.0.0.1", "127.0.1.0"]);
        assert_eq!(
            came(Some(0xff), Some(0)),
            ["127.0.0.1", "127.0.0.7", "127.0.1.0"],
            "subnets of one address"
        );
    }
}
