//! UDP socket that sends and receives many datagrams in one system call. The kernel segments and coalesces
//! them if it can (udp(7), `UDP_SEGMENT`, `UDP_GRO`).

#![allow(unsafe_code)]
#![allow(
    clippy::useless_conversion,
    reason = "lengths of control messages are 32 bits wide in musl"
)]

pub mod endpoint;

use crate::error::EngineError;
use crate::features::Features;
use crate::socket::endpoint::Endpoint;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use types::Family;

/// Receive buffer in bytes: the longest that `UDP_GRO` coalesces.
pub(crate) const SLOT: usize = 65_536;
/// Distance between receive buffers in bytes. With a power of two, the beginnings of the buffers would share
/// few lines of the CPU cache.
const STRIDE: usize = SLOT + 1600;
/// Socket buffers in bytes; the kernel's default is too small for bursts.
const BUFFER: libc::c_int = 8 << 20;
/// The largest payload of one send in bytes, for both families.
pub const LARGEST: usize = 65_487;

const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

pub struct Socket {
    fd: OwnedFd,
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
        let socket = Self { fd: socket.into(), family: address.into() };
        // The address may be assigned to this host only later.
        socket.set_freebind(true);
        socket2::SockRef::from(&socket.fd).bind(&SocketAddr::new(address, port).into())?;
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
    ) -> Result<Self, EngineError> {
        let bound = socket2::SockRef::from(&fd).local_addr().map(|address| address.as_socket());
        match bound {
            Ok(Some(bound)) if bound.ip() == address && bound.port() == port => {
                let socket = Self { fd, family: address.into() };
                let _ = nix::fcntl::fcntl(
                    &socket.fd,
                    nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
                );
                socket.set_buffers_and_options(features, true, address.is_unspecified());
                Ok(socket)
            }
            Ok(found) => {
                Err(EngineError::OtherSocket { wanted: SocketAddr::new(address, port), found })
            }
            Err(error) => Err(EngineError::NotSocket { errno: error.into() }),
        }
    }

    /// `IP_FREEBIND`: whether the socket may use addresses that this host does not have.
    fn set_freebind(&self, free: bool) {
        let (level, freebind) = self
            .family
            .pick((libc::IPPROTO_IP, libc::IP_FREEBIND), (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND));
        let _ = self.set(level, freebind, libc::c_int::from(free));
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
        let (level, discover) = self.family.pick(
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        );
        let _ = self.set(level, discover, libc::IP_PMTUDISC_DONT);
        if receives {
            let (level, tos) = self.family.pick(
                (libc::IPPROTO_IP, libc::IP_RECVTOS),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
            );
            let _ = self.set(level, tos, 1);
            // Set in any case: an inherited socket may have it enabled.
            let _ = self.set(libc::SOL_UDP, UDP_GRO, libc::c_int::from(features.gro));
            let (level, info) = self.family.pick(
                (libc::IPPROTO_IP, libc::IP_PKTINFO),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            );
            let _ = self.set(level, info, libc::c_int::from(any));
        }
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option's value is one int, which lives until the call returns.
        let result = unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), level, name, (&raw const value).cast(), size)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.family.is_v6()
    }

    /// In bytes as the kernel counts them: twice what was requested.
    pub(crate) fn receive_buffer(&self) -> usize {
        socket2::SockRef::from(&self.fd).recv_buffer_size().unwrap_or(0)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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

/// Room for control messages, aligned as the kernel requires.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

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

impl Sender {
    /// Sends until a send fails. Returns the number of sent messages, and the error of the next one. The
    /// pieces are in `made` and `read`. If the kernel refuses the source address of a message, it leaves from
    /// the address that the route selects.
    pub fn send(
        &mut self,
        socket: &Socket,
        messages: &[Message],
        pieces: &[Piece],
        made: &[u8],
        read: &[u8],
    ) -> (usize, Option<io::Error>) {
        let (mut done, mut error) =
            self.send_without_source_fallback(socket, messages, pieces, made, read);
        // The source is not an address of this host: ENETUNREACH for IPv4, EINVAL for IPv6.
        let lost = |error: &io::Error| {
            matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EINVAL))
        };
        while let (Some(failed), true) = (messages.get(done), error.as_ref().is_some_and(lost))
            && failed.to.source.is_some()
        {
            let plain = Message { to: failed.to.to.into(), ..failed.clone() };
            (_, error) = self.send_without_source_fallback(
                socket,
                std::slice::from_ref(&plain),
                pieces,
                made,
                read,
            );
            // If this also fails, the source was not the cause.
            if error.is_some() {
                break;
            }
            if !self.refused.contains(&failed.to) {
                self.refused.push(failed.to);
            }
            done += 1;
            let rest = messages.get(done..).filter(|rest| !rest.is_empty());
            let Some(rest) = rest else { break };
            let more;
            (more, error) = self.send_without_source_fallback(socket, rest, pieces, made, read);
            done += more;
        }
        (done, error)
    }

    /// Endpoints whose source the kernel refused since the last call, most likely because this host has lost
    /// the address.
    pub fn take_refused_endpoints(&mut self) -> Vec<Endpoint> {
        std::mem::take(&mut self.refused)
    }

    fn send_without_source_fallback(
        &mut self,
        socket: &Socket,
        messages: &[Message],
        pieces: &[Piece],
        made: &[u8],
        read: &[u8],
    ) -> (usize, Option<io::Error>) {
        self.vectors.clear();
        self.controls.clear();
        self.names.clear();
        self.headers.clear();
        // Reserved in advance: the headers point into these vectors, which must not move.
        self.vectors.reserve(messages.iter().map(|message| message.pieces.len()).sum());
        self.controls.reserve(messages.len());
        self.names.reserve(messages.len());
        self.headers.reserve(messages.len());
        let mut broken = None;
        for message in messages {
            let from = self.vectors.len();
            let bytes_of = |piece: &Piece| {
                let source = if piece.made { made } else { read };
                source.get(piece.at as usize..(piece.at + piece.len) as usize)
            };
            let pieces = pieces.get(message.pieces.clone());
            self.vectors.extend(pieces.into_iter().flatten().map_while(bytes_of).map(|bytes| {
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
            }));
            // A datagram without a piece would be another datagram.
            if pieces.is_none_or(|pieces| pieces.len() != self.vectors.len() - from) {
                debug_assert!(false, "the pieces of a message are inside the buffers");
                broken = Some(io::ErrorKind::InvalidData.into());
                break;
            }
            let length = self.vectors.len() - from;
            let mut control = Control([0; CONTROL]);
            let used = write_control_messages(&mut control, message, socket.family);
            self.controls.push(control);
            self.names.push(message.to.to.into());
            // SAFETY: all zeros is a value of mmsghdr.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            if let Some(name) = self.names.last() {
                header.msg_hdr.msg_name = name.as_ptr().cast_mut().cast();
                header.msg_hdr.msg_namelen = name.len();
            }
            header.msg_hdr.msg_iov = self.vectors.as_mut_ptr().wrapping_add(from);
            header.msg_hdr.msg_iovlen = length as _;
            if let (Some(control), true) = (self.controls.last_mut(), used > 0) {
                header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = used as _;
            }
            self.headers.push(header);
        }
        let fd = socket.fd.as_raw_fd();
        if let [one] = self.headers.as_slice() {
            // SAFETY: the header points at names, vectors and controls of this object and at the caller's slices, alive until here.
            let sent = unsafe { libc::sendmsg(fd, &raw const one.msg_hdr, 0) };
            return if sent < 0 { (0, Some(io::Error::last_os_error())) } else { (1, broken) };
        }
        let mut done = 0;
        while let Some(rest) = self.headers.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let count = rest.len().min(1024) as libc::c_uint;
            // SAFETY: as above; the kernel writes msg_len into the headers, which are ours.
            let sent = unsafe { libc::sendmmsg(fd, rest.as_mut_ptr(), count, 0) };
            match usize::try_from(sent) {
                Ok(sent) if sent > 0 => done += sent,
                _ => return (done, Some(io::Error::last_os_error())),
            }
        }
        (done, broken)
    }
}

/// Writes the control messages of a send, and returns their length in bytes.
fn write_control_messages(control: &mut Control, message: &Message, family: Family) -> usize {
    let mut used = 0;
    if message.count > 1 {
        used = append_control_message(
            control,
            used,
            libc::SOL_UDP,
            UDP_SEGMENT,
            &u16::try_from(message.segment).unwrap_or(u16::MAX).to_ne_bytes(),
        );
    }
    if message.tos != 0 {
        let (level, name) =
            family.pick((libc::IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IPV6, libc::IPV6_TCLASS));
        used = append_control_message(
            control,
            used,
            level,
            name,
            &libc::c_int::from(message.tos).to_ne_bytes(),
        );
    }
    // in_pktinfo: interface, source, destination; in6_pktinfo: source, interface. The interface stays 0: the route selects it.
    match message.to.source {
        Some(IpAddr::V4(source)) if family.is_v4() => {
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&source.octets());
            used = append_control_message(control, used, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        Some(IpAddr::V6(source)) if family.is_v6() => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&source.octets());
            used = append_control_message(
                control,
                used,
                libc::IPPROTO_IPV6,
                libc::IPV6_PKTINFO,
                &info,
            );
        }
        _ => {}
    }
    used
}

const HEADER: usize = size_of::<libc::cmsghdr>();

const fn aligned_cmsg_length(length: usize) -> usize {
    length.next_multiple_of(size_of::<usize>())
}

/// Appends a control message (cmsg(3)) at offset `at`, and returns the offset after it.
fn append_control_message(
    control: &mut Control,
    at: usize,
    level: libc::c_int,
    name: libc::c_int,
    data: &[u8],
) -> usize {
    // SAFETY: all zeros is a value of cmsghdr; musl's has padding that cannot be set otherwise.
    let mut head: libc::cmsghdr = unsafe { std::mem::zeroed() };
    head.cmsg_len = (aligned_cmsg_length(HEADER) + data.len()) as _;
    head.cmsg_level = level;
    head.cmsg_type = name;
    // SAFETY: a cmsghdr is plain data of HEADER bytes without uninitialised padding: it began as zeros.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const head).cast::<u8>(), HEADER) };
    let end = at + aligned_cmsg_length(HEADER) + aligned_cmsg_length(data.len());
    let Some(room) = control.0.get_mut(at..end) else {
        return at;
    };
    room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    room.iter_mut().skip(aligned_cmsg_length(HEADER)).zip(data).for_each(|(to, from)| *to = *from);
    end
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

/// Receiver of datagrams with its own buffers.
pub struct Receiver {
    buffer: Vec<u8>,
    slots: usize,
    names: Vec<libc::sockaddr_storage>,
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
        let (name, header): (libc::sockaddr_storage, libc::mmsghdr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        Self {
            buffer: vec![0; slots * STRIDE],
            slots,
            names: vec![name; slots],
            controls: vec![Control([0; CONTROL]); slots],
            vectors: Vec::with_capacity(slots),
            headers: vec![header; slots],
        }
    }

    /// The memory that the ranges in [`RecvMeta`] refer to.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Fills at most `most` buffers and returns their number. `WouldBlock` means that no datagram waits.
    pub fn receive(&mut self, socket: &Socket, most: usize) -> io::Result<usize> {
        self.vectors.clear();
        for slot in self.buffer.chunks_exact_mut(STRIDE) {
            self.vectors.push(libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT });
        }
        let rest = self.names.iter_mut().zip(&mut self.controls).zip(&mut self.vectors);
        for (header, ((name, control), vector)) in self.headers.iter_mut().zip(rest) {
            header.msg_len = 0;
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = &raw mut *vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = control.0.len() as _;
            header.msg_hdr.msg_flags = 0;
        }
        let fd = socket.fd.as_raw_fd();
        if let ([one], true) = (self.headers.as_mut_slice(), self.slots == 1) {
            // SAFETY: the header points at a name, a control and a slot of this object.
            let length = unsafe { libc::recvmsg(fd, &raw mut one.msg_hdr, 0) };
            one.msg_len = u32::try_from(length).map_err(|_| io::Error::last_os_error())?;
            return Ok(1);
        }
        // SAFETY: each header points at its own name, control and slot of this object; there are `slots` of each.
        let count = unsafe {
            libc::recvmmsg(
                fd,
                self.headers.as_mut_ptr(),
                self.slots.min(most) as libc::c_uint,
                0,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
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
        let mut rest = self.controls.get(index)?.0.get(..used).unwrap_or_default();
        while rest.len() >= HEADER {
            // SAFETY: there are HEADER bytes, read without regard to alignment.
            let head: libc::cmsghdr = unsafe { std::ptr::read_unaligned(rest.as_ptr().cast()) };
            let length = usize::try_from(head.cmsg_len).unwrap_or(0);
            let Some(data) = rest.get(aligned_cmsg_length(HEADER)..length) else {
                break;
            };
            match (head.cmsg_level, head.cmsg_type) {
                (libc::SOL_UDP, UDP_GRO) => {
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

fn decode_socket_address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the kernel wrote a sockaddr_in, as the family says; a storage is large enough and aligned for it.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            Some(
                SocketAddrV4::new(
                    Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr)),
                    u16::from_be(name.sin_port),
                )
                .into(),
            )
        }
        libc::AF_INET6 => {
            // SAFETY: as above, with a sockaddr_in6.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            Some(
                SocketAddrV6::new(
                    Ipv6Addr::from(name.sin6_addr.s6_addr),
                    u16::from_be(name.sin6_port),
                    0,
                    name.sin6_scope_id,
                )
                .into(),
            )
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
