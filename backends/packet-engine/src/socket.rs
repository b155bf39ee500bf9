//! UDP socket that sends and receives many datagrams in one system call. The kernel segments and coalesces
//! them if it can (udp(7), `UDP_SEGMENT`, `UDP_GRO`).

#![allow(unsafe_code)]
#![allow(
    clippy::useless_conversion,
    reason = "lengths of control messages are 32 bits wide in musl"
)]

pub mod endpoint;

use crate::features::Features;
use crate::socket::endpoint::Endpoint;
use nix::sys::socket::SockaddrStorage;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use types::{Family, Problem};

/// Receive buffer in bytes: the longest that `UDP_GRO` coalesces.
pub(crate) const SLOT: usize = 65_536;
/// Distance between receive buffers in bytes. With a power of two, the beginnings of the buffers would share
/// few lines of the CPU cache.
const STRIDE: usize = SLOT + 1600;
/// Socket buffers in bytes; the kernel's default is too small for bursts.
const BUFFER: libc::c_int = 8 << 20;
/// The largest payload of one send in bytes, for both families.
pub const LARGEST: usize = 65_487;

/// What the engine's threads need of a socket, so that tests can inject errors.
pub(crate) trait Port: AsFd {
    fn is_ipv6(&self) -> bool;
    /// Fills at most `most` receive buffers and returns their number. `WouldBlock` if no datagram waits.
    fn receive(&self, receiver: &mut Receiver, most: usize) -> io::Result<usize>;
    /// Sends until a send fails. Returns the number of sent messages, and the error of the next one. If the
    /// kernel refuses the source address of a message, it leaves from the address that the route selects.
    fn send(
        &self,
        sender: &mut Sender,
        messages: &[Message],
        pieces: Pieces<'_>,
    ) -> (usize, Option<io::Error>);
}

pub struct Socket {
    socket: socket2::Socket,
    family: Family,
}

impl Socket {
    /// A socket with `port` 0 only sends; the kernel chooses its port.
    pub fn bind(address: IpAddr, port: u16, features: &Features) -> io::Result<Self> {
        let kind = socket2::Type::DGRAM.nonblocking().cloexec();
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(SocketAddr::new(address, port)),
            kind,
            Some(socket2::Protocol::UDP),
        )?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if features.queues > 1 && port != 0 {
            socket.set_reuse_port(true)?;
        }
        let socket = Self { socket, family: address.into() };
        // The address may be assigned to this host only later.
        socket.set_freebind(true);
        socket.socket.bind(&SocketAddr::new(address, port).into())?;
        socket.set_buffers_and_options(features, port != 0, address.is_unspecified());
        Ok(socket)
    }

    /// `None` if the file is not an IP socket.
    #[must_use]
    pub fn bound(fd: &OwnedFd) -> Option<SocketAddr> {
        socket2::SockRef::from(fd).local_addr().ok()?.as_socket()
    }

    /// Adopts a socket of a previous process, which must be bound to this address and port.
    pub fn inherit_if_bound_to(
        fd: OwnedFd,
        address: IpAddr,
        port: u16,
        features: &Features,
    ) -> Result<Self, Problem> {
        let unusable = |text| Problem::new("inherited-socket-unusable", text);
        let socket = socket2::Socket::from(fd);
        let bound = socket
            .local_addr()
            .map_err(|error| unusable(format!("the inherited file is not a UDP socket: {error}")))?
            .as_socket();
        let wanted = SocketAddr::new(address, port);
        if bound.is_none_or(|bound| (bound.ip(), bound.port()) != (address, port)) {
            return Err(unusable(format!(
                "the inherited socket is bound to {bound:?}, not to {wanted}"
            )));
        }
        let _ = socket.set_nonblocking(true);
        let socket = Self { socket, family: address.into() };
        socket.set_buffers_and_options(features, true, address.is_unspecified());
        Ok(socket)
    }

    /// `IP_FREEBIND`: whether the socket may use addresses that this host does not have.
    fn set_freebind(&self, free: bool) {
        self.set_of_family(libc::IP_FREEBIND, libc::IPV6_FREEBIND, free.into());
    }

    /// Sets buffer sizes and kernel features. `any`: the socket is bound to all addresses of this host.
    fn set_buffers_and_options(&self, features: &Features, receives: bool, any: bool) {
        // With CAP_NET_ADMIN the limit net.core.*mem_max does not apply.
        let sizes = [
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, true),
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receives),
        ];
        for (force, plain, _) in sizes.into_iter().filter(|(_, _, wanted)| *wanted) {
            if self.set(libc::SOL_SOCKET, force, BUFFER).is_err() {
                let _ = self.set(libc::SOL_SOCKET, plain, BUFFER);
            }
        }
        if any {
            // The socket must not send from an address that this host has lost.
            self.set_freebind(false);
        }
        // An outer packet that is too large for a part of the path is then fragmented, not dropped.
        self.set_of_family(libc::IP_MTU_DISCOVER, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_DONT);
        if receives {
            self.set_of_family(libc::IP_RECVTOS, libc::IPV6_RECVTCLASS, 1);
            // Set in any case: an inherited socket may have it enabled.
            let _ = self.set(libc::SOL_UDP, libc::UDP_GRO, features.gso.into());
            self.set_of_family(libc::IP_PKTINFO, libc::IPV6_RECVPKTINFO, any.into());
        }
    }

    /// Sets the option of the socket's family, if the kernel has it.
    fn set_of_family(&self, v4: libc::c_int, v6: libc::c_int, value: libc::c_int) {
        let (level, name) = self.family.pick((libc::IPPROTO_IP, v4), (libc::IPPROTO_IPV6, v6));
        let _ = self.set(level, name, value);
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option's value is one int, which lives until the call returns.
        let result = unsafe {
            libc::setsockopt(self.socket.as_raw_fd(), level, name, (&raw const value).cast(), size)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// In bytes as the kernel counts them: twice what was requested.
    pub(crate) fn receive_buffer(&self) -> usize {
        self.socket.recv_buffer_size().unwrap_or(0)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The place of a piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whether it is in the buffer of generated headers. Pieces of packets are in the read buffer.
    pub made: bool,
    /// The offset in the buffer, in bytes.
    pub at: u32,
    /// In bytes.
    pub len: u32,
}

/// The pieces of messages, and the buffers that hold them.
#[derive(Clone, Copy)]
pub struct Pieces<'b> {
    pub all: &'b [Piece],
    /// Generated headers.
    pub made: &'b [u8],
    /// Packets.
    pub read: &'b [u8],
}

impl Pieces<'_> {
    fn bytes(&self, piece: &Piece) -> Option<&[u8]> {
        let buffer = if piece.made { self.made } else { self.read };
        buffer.get(piece.at as usize..(piece.at + piece.len) as usize)
    }
}

/// One send to one peer: a datagram, or several of one size.
#[derive(Clone, Debug)]
pub struct Message {
    pub to: Endpoint,
    pub pieces: Range<usize>,
    /// The size in bytes of each datagram except the last.
    pub segment: usize,
    /// The number of datagrams; several are segmented by the kernel (UDP_SEGMENT).
    pub count: usize,
    /// The size of all datagrams together.
    pub bytes: usize,
    /// The outer TOS octet, or traffic class.
    pub tos: u8,
    /// The index of the sending socket.
    pub socket: usize,
}

/// Control messages, aligned as the kernel requires.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control {
    bytes: [u8; CONTROL],
    used: usize,
}

/// The longest control messages of a family, in bytes: `UDP_SEGMENT` or `UDP_GRO`, the ECN field, and an
/// address of this host.
const CONTROL: usize = 96;

/// Sends messages in batches (sendmmsg(2)).
#[derive(Default)]
pub struct Sender {
    vectors: Vec<libc::iovec>,
    controls: Vec<Control>,
    names: Vec<socket2::SockAddr>,
    headers: Vec<libc::mmsghdr>,
    refused: Vec<Endpoint>,
}

// SAFETY: the pointers in it are written and used within one call of `send_without_source_fallback`.
unsafe impl Send for Sender {}

impl Port for Socket {
    fn is_ipv6(&self) -> bool {
        self.family.is_v6()
    }

    fn receive(&self, receiver: &mut Receiver, most: usize) -> io::Result<usize> {
        receiver.vectors.clear();
        for slot in receiver.buffer.chunks_exact_mut(STRIDE) {
            receiver
                .vectors
                .push(libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT });
        }
        let rest = receiver.names.iter_mut().zip(&mut receiver.controls).zip(&mut receiver.vectors);
        for (header, ((name, control), vector)) in receiver.headers.iter_mut().zip(rest) {
            header.msg_len = 0;
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = size_of_val(name) as libc::socklen_t;
            header.msg_hdr.msg_iov = &raw mut *vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.bytes.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL as _;
            header.msg_hdr.msg_flags = 0;
        }
        let count = receiver.headers.len().min(most) as libc::c_uint;
        // SAFETY: each header points at its own name, control and buffer of the receiver.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                receiver.headers.as_mut_ptr(),
                count,
                0,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    fn send(
        &self,
        sender: &mut Sender,
        messages: &[Message],
        pieces: Pieces<'_>,
    ) -> (usize, Option<io::Error>) {
        let (mut done, mut error) = sender.send_without_source_fallback(self, messages, pieces);
        // The source is not an address of this host: ENETUNREACH for IPv4, EINVAL for IPv6.
        let lost = |error: &io::Error| {
            matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EINVAL))
        };
        while let (Some(failed), true) = (messages.get(done), error.as_ref().is_some_and(lost))
            && failed.to.source.is_some()
        {
            let plain = Message { to: failed.to.to.into(), ..failed.clone() };
            (_, error) = sender.send_without_source_fallback(self, &[plain], pieces);
            // If this also fails, the source was not the cause.
            if error.is_some() {
                break;
            }
            if !sender.refused.contains(&failed.to) {
                sender.refused.push(failed.to);
            }
            done += 1;
            let rest = messages.get(done..).unwrap_or_default();
            let more;
            (more, error) = sender.send_without_source_fallback(self, rest, pieces);
            done += more;
        }
        (done, error)
    }
}

impl Sender {
    /// Endpoints whose source the kernel refused since the last call, most likely because this host has lost
    /// the address.
    pub fn take_refused_endpoints(&mut self) -> Vec<Endpoint> {
        std::mem::take(&mut self.refused)
    }

    fn send_without_source_fallback(
        &mut self,
        socket: &Socket,
        messages: &[Message],
        pieces: Pieces<'_>,
    ) -> (usize, Option<io::Error>) {
        self.vectors.clear();
        self.controls.clear();
        self.names.clear();
        self.headers.clear();
        // Reserved in advance: the headers point into these vectors, which must not move.
        self.vectors.reserve(messages.iter().map(|message| message.pieces.len()).sum());
        self.controls.reserve(messages.len());
        self.names.reserve(messages.len());
        for message in messages {
            let from = self.vectors.len();
            let own = pieces.all.get(message.pieces.clone()).unwrap_or_default();
            self.vectors.extend(own.iter().filter_map(|piece| pieces.bytes(piece)).map(|bytes| {
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
            }));
            let length = self.vectors.len() - from;
            debug_assert_eq!(length, message.pieces.len(), "all pieces are inside the buffers");
            self.controls.push(Control::of_message(message, socket.family));
            self.names.push(message.to.to.into());
            // SAFETY: all zeros is a value of mmsghdr.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            if let Some(name) = self.names.last() {
                header.msg_hdr.msg_name = name.as_ptr().cast_mut().cast();
                header.msg_hdr.msg_namelen = name.len();
            }
            header.msg_hdr.msg_iov = self.vectors.as_mut_ptr().wrapping_add(from);
            header.msg_hdr.msg_iovlen = length as _;
            if let Some(control) = self.controls.last_mut() {
                header.msg_hdr.msg_control = control.bytes.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = control.used as _;
            }
            self.headers.push(header);
        }
        let mut done = 0;
        while let Some(rest) = self.headers.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let count = rest.len().min(1024) as libc::c_uint;
            // SAFETY: the headers point at names, vectors and controls of this object and at the caller's slices, alive until here. The kernel
            // writes msg_len into the headers, which are ours.
            let sent =
                unsafe { libc::sendmmsg(socket.socket.as_raw_fd(), rest.as_mut_ptr(), count, 0) };
            match usize::try_from(sent) {
                Ok(sent) if sent > 0 => done += sent,
                _ => return (done, Some(io::Error::last_os_error())),
            }
        }
        (done, None)
    }
}

const HEADER: usize = size_of::<libc::cmsghdr>();

const fn aligned_cmsg_length(length: usize) -> usize {
    length.next_multiple_of(size_of::<usize>())
}

impl Control {
    const EMPTY: Self = Self { bytes: [0; CONTROL], used: 0 };

    /// The control messages of a send.
    fn of_message(message: &Message, family: Family) -> Self {
        let mut control = Self::EMPTY;
        if message.count > 1 {
            let segment = u16::try_from(message.segment).unwrap_or(u16::MAX);
            control.append(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        let level = family.pick(libc::IPPROTO_IP, libc::IPPROTO_IPV6);
        if message.tos != 0 {
            let name = family.pick(libc::IP_TOS, libc::IPV6_TCLASS);
            control.append(level, name, &libc::c_int::from(message.tos).to_ne_bytes());
        }
        // in_pktinfo: interface, source, destination; in6_pktinfo: source, interface. The interface stays 0: the route selects it.
        match message.to.source {
            Some(IpAddr::V4(source)) if family.is_v4() => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&source.octets());
                control.append(level, libc::IP_PKTINFO, &info);
            }
            Some(IpAddr::V6(source)) if family.is_v6() => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&source.octets());
                control.append(level, libc::IPV6_PKTINFO, &info);
            }
            _ => {}
        }
        control
    }

    /// Appends a control message (cmsg(3)).
    fn append(&mut self, level: libc::c_int, name: libc::c_int, data: &[u8]) {
        // SAFETY: all zeros is a value of cmsghdr; musl's has padding that cannot be set otherwise.
        let mut head: libc::cmsghdr = unsafe { std::mem::zeroed() };
        head.cmsg_len = (aligned_cmsg_length(HEADER) + data.len()) as _;
        head.cmsg_level = level;
        head.cmsg_type = name;
        // SAFETY: a cmsghdr is plain data of HEADER bytes without uninitialised padding: it began as zeros.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const head).cast::<u8>(), HEADER) };
        let end = self.used + aligned_cmsg_length(HEADER) + aligned_cmsg_length(data.len());
        let Some(room) = self.bytes.get_mut(self.used..end) else {
            return;
        };
        room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let room = room.iter_mut().skip(aligned_cmsg_length(HEADER));
        room.zip(data).for_each(|(to, from)| *to = *from);
        self.used = end;
    }
}

/// What one filled receive buffer holds: one or more datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvMeta {
    /// The payload in the receiver's buffer.
    pub at: Range<usize>,
    /// The sender. If the socket is bound to several addresses, also the address of this host to which it
    /// sent.
    pub from: Endpoint,
    /// The size in bytes of each datagram except the last.
    pub segment: usize,
    pub ecn: u8,
    /// Whether the kernel truncated the datagram, because the buffer was too small.
    pub truncated: bool,
}

impl RecvMeta {
    /// The places of datagrams of `size` bytes, of which the last may be shorter; at least one, which may be
    /// empty.
    pub(crate) fn datagrams(&self, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (Range { start, end }, size) = (self.at.clone(), size.max(1));
        (start..end.max(start + 1)).step_by(size).map(move |at| at..end.min(at + size))
    }
}

/// Receiver of datagrams with its own buffers.
pub struct Receiver {
    buffer: Vec<u8>,
    names: Vec<SockaddrStorage>,
    controls: Vec<Control>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers in it are written and used within one call of `receive`.
unsafe impl Send for Receiver {}

impl Receiver {
    #[must_use]
    pub fn new(slots: usize) -> Self {
        // SAFETY: all zeros is a value of these structures of the kernel.
        let (name, header): (SockaddrStorage, libc::mmsghdr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        Self {
            buffer: vec![0; slots * STRIDE],
            names: vec![name; slots],
            controls: vec![Control::EMPTY; slots],
            vectors: Vec::with_capacity(slots),
            headers: vec![header; slots],
        }
    }

    /// The memory that the ranges in [`RecvMeta`] refer to.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// The metadata of a buffer that the last call filled; `None` if the sender has no IP address.
    pub fn meta(&self, index: usize) -> Option<RecvMeta> {
        let header = self.headers.get(index)?;
        let length = usize::try_from(header.msg_len).ok()?;
        let start = index * STRIDE;
        let mut meta = RecvMeta {
            at: start..start + length.min(SLOT),
            from: decode_socket_address(self.names.get(index)?)?.into(),
            segment: length,
            ecn: 0,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        };
        let used = usize::try_from(header.msg_hdr.msg_controllen).unwrap_or(0);
        let mut rest = self.controls.get(index)?.bytes.get(..used).unwrap_or_default();
        while rest.len() >= HEADER {
            // SAFETY: there are HEADER bytes, read without regard to alignment.
            let head: libc::cmsghdr = unsafe { std::ptr::read_unaligned(rest.as_ptr().cast()) };
            let length = usize::try_from(head.cmsg_len).unwrap_or(0);
            let Some(data) = rest.get(aligned_cmsg_length(HEADER)..length) else {
                break;
            };
            match (head.cmsg_level, head.cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size = data.first_chunk::<4>().map_or(0, |size| u32::from_ne_bytes(*size));
                    meta.segment = usize::try_from(size).ok().filter(|size| *size > 0)?;
                }
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    // The value is one byte in IPv4, and an int in IPv6.
                    let byte = if cfg!(target_endian = "big") { data.last() } else { data.first() };
                    meta.ecn = byte.map_or(0, |tos| tos & 3);
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let own = data.get(4..).and_then(|rest| rest.first_chunk::<4>());
                    meta.from.source = own.map(|own| Ipv4Addr::from(*own).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let own = data.first_chunk::<16>().map(|own| Ipv6Addr::from(*own));
                    meta.from.source = own.filter(|own| !own.is_multicast()).map(IpAddr::V6);
                }
                _ => {}
            }
            rest = rest.get(aligned_cmsg_length(length)..).unwrap_or_default();
        }
        Some(meta)
    }
}

fn decode_socket_address(name: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = name.as_sockaddr_in().map(|name| SocketAddrV4::from(*name).into());
    v4.or_else(|| name.as_sockaddr_in6().map(|name| SocketAddrV6::from(*name).into()))
}

#[cfg(test)]
mod tests;
