//! Netlink encoding: builds messages and parses datagrams. Pure. For malformed input, the parser
//! gives no messages and never panics.
//!
//! The parser reads only known attributes, so an attribute of a newer kernel or of another link
//! cannot make a dump unreadable.

use crate::uapi::{IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO};
use std::net::IpAddr;

/// In bytes.
pub const HEADER: usize = 16;

/// In bytes; sufficient for most messages.
const ROOM: usize = 128;

/// Under construction.
#[derive(Clone)]
pub struct Message(Vec<u8>);

impl Message {
    /// `family` is the fixed header that follows the message header (ifinfomsg, ndmsg, ...).
    #[must_use]
    pub fn new(kind: u16, flags: u16, family: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(ROOM);
        bytes.resize(HEADER, 0);
        bytes.splice(4..8, kind.to_ne_bytes().into_iter().chain(flags.to_ne_bytes()));
        Self(bytes).header(family)
    }

    #[must_use]
    pub fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(attribute_length(value.len() + 4));
        self.0.extend(kind.to_ne_bytes());
        self.header(value)
    }

    /// 4 or 16 bytes.
    #[must_use]
    pub fn ip(self, kind: u16, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => self.attr(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attr(kind, &v6.octets()),
        }
    }

    #[must_use]
    pub fn number(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Zero-terminated.
    #[must_use]
    pub fn text(self, kind: u16, value: &str) -> Self {
        self.attr(kind, &[value.as_bytes(), &[0]].concat())
    }

    #[must_use]
    pub fn nest(self, kind: u16, inside: impl FnOnce(Self) -> Self) -> Self {
        let start = self.0.len();
        let mut this = inside(self.attr(kind | NESTED, &[]));
        let length = attribute_length(this.0.len() - start);
        this.0.splice(start..start + 2, length);
        this
    }

    /// Kind and attributes of a link.
    #[must_use]
    pub fn link_info(self, kind: &str, data: impl FnOnce(Self) -> Self) -> Self {
        self.nest(IFLA_LINKINFO, |info| info.text(IFLA_INFO_KIND, kind).nest(IFLA_INFO_DATA, data))
    }

    /// Appends a header inside a nested attribute.
    #[must_use]
    pub fn header(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// For tests: what `decode` makes of the message if the kernel sends it.
    pub fn read_back<T>(self, decode: impl Fn(&Received<'_>) -> Option<T>) -> Vec<T> {
        split_messages(&self.finish(1, 0)).filter_map(|message| decode(&message)).collect()
    }

    /// In bytes.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// `flags` are added to those of the message.
    #[must_use]
    pub(crate) fn finish(mut self, sequence: u32, flags: u16) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let flags = flags | u16_at(&self.0, 6).unwrap_or(0);
        self.0.splice(0..4, length.to_ne_bytes());
        self.0.splice(6..8, flags.to_ne_bytes());
        self.0.splice(8..12, sequence.to_ne_bytes());
        self.0
    }
}

/// A message with a longer attribute is a mistake of this program. The kernel refuses the message, because
/// the attribute then ends behind it.
fn attribute_length(length: usize) -> [u8; 2] {
    debug_assert!(length <= usize::from(u16::MAX), "an attribute has at most 64 KiB");
    u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes()
}

/// NLA_F_NESTED.
const NESTED: u16 = 0x8000;

/// One message of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    pub kind: u16,
    pub flags: u16,
    /// The number of the request to which the kernel replies.
    pub sequence: u32,
    /// What follows the message header.
    pub body: &'a [u8],
}

/// Up to the first truncated message.
pub fn split_messages(mut datagram: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32_at(datagram, 0)?).ok()?;
        let message = datagram.get(..len)?;
        let received = Received {
            kind: u16_at(message, 4)?,
            flags: u16_at(message, 6)?,
            sequence: u32_at(message, 8)?,
            body: message.get(HEADER..)?,
        };
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(received)
    })
}

/// The attributes after a header of `skip` bytes: type (without flags) and value.
pub fn read_attrs(body: &[u8], skip: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(skip.next_multiple_of(4)..).unwrap_or_default();
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & 0x3fff;
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[must_use]
pub fn read_nested(nest: &[u8], wanted: u16) -> Option<&[u8]> {
    read_attrs(nest, 0).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// 4 or 16 bytes.
#[must_use]
pub fn read_ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok()
}

/// Zero-terminated.
#[must_use]
pub fn read_text(value: &[u8]) -> &str {
    std::str::from_utf8(value.split(|b| *b == 0).next().unwrap_or_default()).unwrap_or_default()
}

#[must_use]
pub fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// Reads host byte order.
#[must_use]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_ne_bytes)
}

/// Reads host byte order.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_ne_bytes)
}

/// Reads host byte order.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_ne_bytes)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Decodes NLMSG_ERROR and NLMSG_DONE: the errno (0 for success) and the kernel's message, which may
/// be empty.
pub(crate) fn decode_verdict(body: &[u8]) -> (i32, String) {
    let errno = u32_at(body, 0).map_or(libc::EPROTO, |code| code.cast_signed().saturating_neg());
    // With NETLINK_CAP_ACK, only the request's header precedes the attributes. 1 is NLMSGERR_ATTR_MSG.
    let words = read_attrs(body, 4 + HEADER)
        .find(|(kind, _)| *kind == 1)
        .map(|(_, value)| read_text(value).to_owned());
    (errno, words.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for message in split_messages(&bytes) {
                let _ = decode_verdict(message.body);
                for skip in [0, 4, 8, 12, 16, 400] {
                    for (_, value) in read_attrs(message.body, skip) {
                        let _ = (read_ip(value), read_text(value), u8_at(value, 0), u16_at(value, 1), u32_at(value, 3));
                    }
                }
            }
        }
    }
}
