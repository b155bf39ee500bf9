//! A socket of the prober, either for probes and replies or for ping. The kernel timestamps received packets.

use super::option::{do_not_fragment, register};
use crate::pods;
use crate::wire::POD_QUESTION_KIND;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::collections::BTreeSet;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::unix::AsyncFd;

/// In bytes. The buffer holds packets that arrive while the kernel does not schedule this program.
const RECEIVE_BUFFER: usize = 1 << 20;
/// In bytes; longer than every probed MTU.
pub(super) const MAX_DATAGRAM: usize = 65_536;
/// The first four bytes of every message between probers.
const MAGIC: u32 = u32::from_be_bytes(*b"flpr");

/// Offset in bytes of a message's kind from the beginning of the UDP header.
const KIND: u32 = 8 + 5;

/// Instruction codes of socket filters, from linux/bpf_common.h.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF_AT: u16 = 0x48;
const LOAD_BYTE_AT: u16 = 0x50;
const LOAD_WORD_AT: u16 = 0x40;
const HEADER_LENGTH: u16 = 0xb1;
const SHIFT_LEFT: u16 = 0x64;
const ADD_INDEX: u16 = 0x0c;
const TO_INDEX: u16 = 0x07;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const UDP: u32 = 17;
/// Base of offsets that are relative to the IP header (SKF_NET_OFF).
const IP: u32 = 0xfff0_0000;
const RETURN: u16 = 0x06;

pub(super) struct Registered {
    socket: Socket,
    /// `None` while packets do not wake the program.
    registered: Option<AsyncFd<Socket>>,
    pub address: SocketAddr,
    /// Time at which a read last found the socket empty. The packets of the current read arrived after it.
    emptied: Instant,
}

pub(super) struct Read {
    pub from: IpAddr,
    pub port: u16,
    /// Number of bytes written to the buffer.
    pub length: usize,
    /// Since the arrival of the packet.
    pub age: Duration,
}

impl Registered {
    /// Opens a socket for probes and replies. The host need not have the address yet. `hosts` is the mask of an
    /// address's host bits, at most the last 32, by which the filter recognises senders in the overlay. Without it,
    /// the socket accepts any source address.
    pub(super) fn datagrams(
        address: SocketAddr,
        hosts: Option<&BTreeSet<u32>>,
    ) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM.nonblocking().cloexec(),
            Some(Protocol::UDP),
        )?;
        socket.attach_filter(&senders(address, hosts))?;
        Self::open(socket, address)
    }

    pub(super) fn let_send(&self, hosts: Option<&BTreeSet<u32>>) -> io::Result<()> {
        self.socket.attach_filter(&senders(self.address, hosts))
    }

    /// Opens a socket for pings with the identifier `id`. It also receives the ICMP errors with which hosts refuse
    /// probes to the port `port`.
    pub(super) fn pings(address: IpAddr, id: u16, port: u16) -> io::Result<Self> {
        let address = SocketAddr::new(address, 0);
        let protocol = if address.is_ipv6() { Protocol::ICMPV6 } else { Protocol::ICMPV4 };
        let socket = Socket::new(
            Domain::for_address(address),
            Type::RAW.nonblocking().cloexec(),
            Some(protocol),
        )?;
        // Without a filter, every raw socket of a host receives all ICMP packets.
        socket.attach_filter(&if address.is_ipv6() {
            pongs_v6(id, port)
        } else {
            pongs_v4(id, port)
        })?;
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
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        }
        socket.bind(&address.into())?;
        let registered = Some(register(socket.try_clone()?)?);
        Ok(Self { socket, registered, address, emptied: Instant::now() })
    }

    /// True if received packets now wake the program.
    pub(super) fn wake_on_packets(&mut self, on: bool) -> bool {
        if !on {
            self.registered = None;
        } else if self.registered.is_none() {
            self.registered = self.socket.try_clone().and_then(register).ok();
        }
        self.registered.is_some()
    }

    /// True if packets may have arrived since the last call.
    pub(super) fn poll_readable(
        &self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        let Some(registered) = &self.registered else {
            return std::task::Poll::Pending;
        };
        registered.poll_read_ready(context).map(|ready| {
            // All packets are read after this. Later packets are reported again.
            ready.map(|mut ready| ready.clear_ready())
        })
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Option<Read> {
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
                // The kernel returns each ICMP error that one of our datagrams caused once, in place of a packet.
                Err(
                    nix::Error::EINTR
                    | nix::Error::ECONNREFUSED
                    | nix::Error::EHOSTUNREACH
                    | nix::Error::ENETUNREACH,
                ) => continue,
                Err(_) => {
                    self.emptied = Instant::now();
                    return None;
                }
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
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // The timestamps are of the wall clock, which may be set. The monotonic clock gives an upper limit of the age.
            let age = stamp
                .map(|stamp| now.saturating_sub(stamp))
                .unwrap_or_default()
                .min(self.emptied.elapsed());
            let from = message.address.and_then(|from| {
                let v4 =
                    from.as_sockaddr_in().map(|from| SocketAddr::from((from.ip(), from.port())));
                v4.or_else(|| {
                    from.as_sockaddr_in6().map(|from| SocketAddr::from((from.ip(), from.port())))
                })
            })?;
            return Some(Read { from: from.ip(), port: from.port(), length: message.bytes, age });
        }
    }

    /// The prober treats a packet that the kernel does not send as lost on the path.
    pub(super) fn send(&self, to: SocketAddr, bytes: &[u8]) {
        let _ = self.socket.send_to(bytes, &to.into());
    }
}

/// Builds the filter of a datagram socket. It drops packets of other senders before they take space in the receive
/// buffer. Otherwise, a flood of other packets would displace the packets of nodes. Nodes send probes from the probe
/// port. The source address of a node in the overlay is the first or the second address of a subnet, which no pod
/// has. Pod probes may have any source port; their source address is one of a node's overlay addresses or a subnet's
/// pod-probe address.
///
/// Each peer's own prefix length tells its addresses. With many lengths, which only hostile leases have, the filter
/// accepts any source address, and the exact comparison with the leases follows.
fn senders(own: SocketAddr, hosts: Option<&BTreeSet<u32>>) -> Vec<SockFilter> {
    const MANY: usize = 16;
    // The filter sees the UDP header first.
    let port = [
        SockFilter::new(LOAD_HALF, 0, 0, 0),
        SockFilter::new(IF_EQUAL, 1, 0, own.port().into()),
        drop_it(),
    ];
    let magic =
        [SockFilter::new(LOAD_WORD, 0, 0, 8), SockFilter::new(IF_EQUAL, 1, 0, MAGIC), drop_it()];
    let last_word = IP + if own.is_ipv6() { 20 } else { 12 };
    let hosts = hosts.filter(|hosts| hosts.len() <= MANY);
    let place = hosts.map(|hosts| {
        // The instructions from a mask to the end of the masks: four for each.
        let rest = (1..=hosts.len()).rev().filter_map(|masks| u8::try_from(4 * masks).ok());
        let masks = hosts.iter().zip(rest).flat_map(|(hosts, rest)| {
            let pods = pods::host_part(*hosts, own.ip().into());
            [
                SockFilter::new(LOAD_WORD, 0, 0, last_word),
                SockFilter::new(AND, 0, 0, *hosts),
                // A subnet's pod-probe address may send only pod probes. Nodes may send any message.
                SockFilter::new(IF_EQUAL, rest - 2, 0, pods),
                SockFilter::new(IF_GREATER, 0, rest, 1),
            ]
        });
        let ends = [
            drop_it(),
            SockFilter::new(LOAD_BYTE, 0, 0, KIND),
            SockFilter::new(IF_EQUAL, 3, 0, u32::from(POD_QUESTION_KIND)),
            drop_it(),
            SockFilter::new(LOAD_BYTE, 0, 0, KIND),
            SockFilter::new(IF_EQUAL, 0, 1, u32::from(POD_QUESTION_KIND)),
            take(),
        ];
        masks.chain(ends).collect::<Vec<_>>()
    });
    magic.into_iter().chain(place.into_iter().flatten()).chain(port).chain([take()]).collect()
}

/// Builds the IPv4 filter of a ping socket. It accepts only replies to this node's pings, and ICMP errors about this
/// node's probes. A flood of errors about other packets therefore displaces no reply.
fn pongs_v4(id: u16, port: u16) -> Vec<SockFilter> {
    vec![
        SockFilter::new(HEADER_LENGTH, 0, 0, 0),
        SockFilter::new(LOAD_BYTE_AT, 0, 0, 0),
        SockFilter::new(IF_EQUAL, 4, 0, 3),
        SockFilter::new(IF_EQUAL, 0, 2, 0),
        SockFilter::new(LOAD_HALF_AT, 0, 0, 4),
        SockFilter::new(IF_EQUAL, 12, 0, u32::from(id)),
        drop_it(),
        // The packet that the error is about has to be UDP, to the port, with a message.
        SockFilter::new(LOAD_BYTE_AT, 0, 0, 8 + 9),
        SockFilter::new(IF_EQUAL, 0, 8, UDP),
        SockFilter::new(LOAD_BYTE_AT, 0, 0, 8),
        SockFilter::new(AND, 0, 0, 0xf),
        SockFilter::new(SHIFT_LEFT, 0, 0, 2),
        SockFilter::new(ADD_INDEX, 0, 0, 0),
        SockFilter::new(TO_INDEX, 0, 0, 0),
        SockFilter::new(LOAD_HALF_AT, 0, 0, 8 + 2),
        SockFilter::new(IF_EQUAL, 0, 1, u32::from(port)),
        SockFilter::new(LOAD_WORD_AT, 0, 0, 8 + 8),
        SockFilter::new(IF_EQUAL, 0, 1, MAGIC),
        take(),
        drop_it(),
    ]
}

/// Like [`pongs_v4`]. The kernel passes IPv6 packets to the filter without the IPv6 header.
fn pongs_v6(id: u16, port: u16) -> Vec<SockFilter> {
    const INNER: u32 = 8 + 40;
    vec![
        SockFilter::new(LOAD_BYTE, 0, 0, 0),
        SockFilter::new(IF_EQUAL, 4, 0, 1),
        SockFilter::new(IF_EQUAL, 0, 2, 129),
        SockFilter::new(LOAD_HALF, 0, 0, 4),
        SockFilter::new(IF_EQUAL, 7, 0, u32::from(id)),
        drop_it(),
        SockFilter::new(LOAD_BYTE, 0, 0, 8 + 6),
        SockFilter::new(IF_EQUAL, 0, 5, UDP),
        SockFilter::new(LOAD_HALF, 0, 0, INNER + 2),
        SockFilter::new(IF_EQUAL, 0, 3, u32::from(port)),
        SockFilter::new(LOAD_WORD, 0, 0, INNER + 8),
        SockFilter::new(IF_EQUAL, 0, 1, MAGIC),
        take(),
        drop_it(),
    ]
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

    /// The addresses from which a socket accepts messages. Each element of `senders` contains an address, whether it
    /// uses the receiver's port, and a message.
    fn read_of(
        hosts: Option<&[u32]>,
        anew: Option<&[u32]>,
        own: &str,
        senders: &[(&str, bool, &[u8])],
    ) -> Vec<IpAddr> {
        let own: IpAddr = own.parse().unwrap();
        let port = UdpSocket::bind((own, 0)).unwrap().local_addr().unwrap().port();
        let set = |hosts: Option<&[u32]>| hosts.map(|hosts| hosts.iter().copied().collect());
        let mut receiver = Registered::datagrams((own, port).into(), set(hosts).as_ref()).unwrap();
        if anew.is_some() {
            receiver.let_send(set(anew).as_ref()).unwrap();
        }
        for (address, same_port, bytes) in senders {
            let address: IpAddr = address.parse().unwrap();
            let sender = UdpSocket::bind((address, if *same_port { port } else { 0 })).unwrap();
            sender.send_to(bytes, (own, port)).unwrap();
        }
        let mut buffer = vec![0; MAX_DATAGRAM];
        // Over loopback, all packets have arrived already.
        std::iter::from_fn(|| receiver.read(&mut buffer).map(|read| read.from)).collect()
    }

    #[tokio::test]
    async fn socket_accepts_only_datagrams_of_nodes() {
        let message: &[u8] = b"flpr\x01\x01";
        let senders = [
            ("127.0.0.1", true, message),
            ("127.0.0.1", false, message),
            ("127.0.0.1", true, &b"junk of a host, not a node"[..]),
            ("127.0.0.1", true, b"fl"),
            ("127.0.0.7", true, message),
            ("127.0.1.0", true, message),
        ];
        let came = |hosts: Option<&[u32]>, anew: Option<&[u32]>| {
            read_of(hosts, anew, "127.0.0.9", &senders)
                .iter()
                .map(IpAddr::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            came(Some(&[0xff]), None),
            ["127.0.0.1", "127.0.1.0"],
            "the first two addresses of a subnet"
        );
        assert_eq!(came(None, None), ["127.0.0.1", "127.0.0.7", "127.0.1.0"], "over the underlay");
        assert_eq!(came(Some(&[0xff]), Some(&[0x3])), ["127.0.0.1", "127.0.1.0"]);
        let question: &[u8] = b"flpr\x01\x05";
        let pods = [
            ("127.0.0.254", false, question),
            ("127.0.0.254", true, question),
            ("127.0.0.254", true, message),
            ("127.0.0.253", false, question),
            ("127.0.0.254", false, &b"junk"[..]),
            ("127.0.1.0", false, question),
        ];
        // A peer with a subnet of four addresses changes nothing for the others.
        for hosts in [&[0xff][..], &[0x3, 0xff], &[0x3, 0xff, 0xfff]] {
            assert_eq!(
                read_of(Some(hosts), None, "127.0.0.9", &pods)
                    .iter()
                    .map(IpAddr::to_string)
                    .filter(|from| !hosts.contains(&0x3) || from != "127.0.0.253")
                    .collect::<Vec<_>>(),
                ["127.0.0.254", "127.0.0.254", "127.0.1.0"],
                "pod probes from any port"
            );
        }
        assert_eq!(came(Some(&[0xff]), Some(&[0x6])), ["127.0.0.1", "127.0.1.0"]);
        assert_eq!(
            came(Some(&[0xff]), Some(&[0])),
            ["127.0.0.1", "127.0.0.7", "127.0.1.0"],
            "subnets of one address"
        );
    }

    /// The kernel runs the filter on a socket pair.
    fn takes(filter: &[SockFilter], packet: &[u8]) -> bool {
        let (here, there) = Socket::pair(Domain::UNIX, Type::DGRAM.nonblocking(), None).unwrap();
        there.attach_filter(filter).unwrap();
        let _ = here.send(packet);
        let mut buffer = [std::mem::MaybeUninit::uninit(); 200];
        there.recv(&mut buffer).is_ok()
    }

    #[test]
    fn socket_accepts_only_our_own_pongs_and_refusals() {
        let udp = |port: u16, magic: &[u8; 4]| {
            let ports = [[0x20, 0x00], port.to_be_bytes()].concat();
            [&ports[..], &[0; 4], magic, &[0; 12]].concat()
        };
        let icmp = |kind: u8, id: u16, rest: &[u8]| {
            let id = id.to_be_bytes();
            [&[kind, 3, 0, 0, id[0], id[1], 0, 0], rest].concat()
        };
        // An IPv4 header has 20 bytes and options, an IPv6 header has 40.
        let v4 = |words: u8, protocol: u8| {
            let mut header = vec![0; usize::from(words) * 4];
            (header[0], header[9]) = (0x40 | words, protocol);
            header
        };
        let v6 = |protocol: u8| {
            let mut header = vec![0; 40];
            (header[0], header[6]) = (0x60, protocol);
            header
        };
        for words in [5, 6, 15] {
            for inner in [5, 7] {
                let of_v4 = |kind, id, protocol, port, magic: &[u8; 4]| {
                    let question = [v4(inner, protocol), udp(port, magic)].concat();
                    let packet = [v4(words, 1), icmp(kind, id, &question)].concat();
                    takes(&pongs_v4(7, 8473), &packet)
                };
                assert!(of_v4(0, 7, 0, 0, b"    "), "our pong");
                assert!(!of_v4(0, 8, 17, 8473, b"flpr"), "another's pong");
                assert!(!of_v4(8, 7, 17, 8473, b"flpr"), "a ping");
                assert!(of_v4(3, 0, 17, 8473, b"flpr"), "a refusal");
                assert!(!of_v4(3, 0, 6, 8473, b"flpr"), "of TCP");
                assert!(!of_v4(3, 0, 17, 53, b"flpr"), "of another port");
                assert!(!of_v4(3, 0, 17, 8473, b"junk"), "of another message");
            }
        }
        let of_v6 = |kind, id, protocol, port, magic: &[u8; 4]| {
            let question = [v6(protocol), udp(port, magic)].concat();
            takes(&pongs_v6(7, 8473), &icmp(kind, id, &question))
        };
        assert!(of_v6(129, 7, 0, 0, b"    ") && of_v6(1, 0, 17, 8473, b"flpr"));
        for (kind, id, protocol, port, magic) in [
            (129, 8, 17, 8473, b"flpr"),
            (128, 7, 17, 8473, b"flpr"),
            (3, 7, 17, 8473, b"flpr"),
            (1, 7, 6, 8473, b"flpr"),
            (1, 7, 17, 53, b"flpr"),
            (1, 7, 17, 8473, b"junk"),
        ] {
            assert!(!of_v6(kind, id, protocol, port, magic), "{kind} {id}");
        }
        assert!(!takes(&pongs_v6(7, 8473), &[1]) && !takes(&pongs_v4(7, 8473), &[0x45]));
    }

    #[tokio::test]
    async fn age_is_at_most_the_time_since_the_socket_was_empty() {
        let mut socket =
            Registered::datagrams(SocketAddr::from(([127, 0, 0, 8], 0)), None).unwrap();
        let own = socket.socket.local_addr().unwrap().as_socket().unwrap();
        let mut filter = senders(own, None);
        filter.clear();
        filter.push(take());
        socket.socket.attach_filter(&filter).unwrap();
        let mut buffer = vec![0; MAX_DATAGRAM];
        assert!(socket.read(&mut buffer).is_none());
        let empty = Instant::now();
        let sender = UdpSocket::bind("127.0.0.8:0").unwrap();
        sender.send_to(b"flpr", own).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        // As if the wall clock had been set forward: the packet looks older than the time since the socket was empty.
        socket.emptied = Instant::now();
        let read = socket.read(&mut buffer).unwrap();
        assert!(read.age < Duration::from_millis(20), "{:?}", read.age);
        socket.emptied = empty;
        sender.send_to(b"flpr", own).unwrap();
        assert!(socket.read(&mut buffer).unwrap().age <= empty.elapsed());
    }
}
