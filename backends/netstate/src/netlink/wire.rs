//! Netlink encoding: builds messages and parses datagrams. Pure. For malformed input, the parser
//! gives no messages and never panics.
//!
//! The parser reads only known attributes, so an attribute of a newer kernel or of another link
//! cannot make a dump unreadable.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zeroize::Zeroizing;

/// In bytes.
pub(super) const HEADER: usize = 16;

/// In bytes; sufficient for most messages.
const ROOM: usize = 128;

/// Under construction. Its buffers may contain keys and are therefore erased.
pub(super) struct Message(Zeroizing<Vec<u8>>);

impl Message {
    /// `family` is the fixed header that follows the message header (ifinfomsg, ndmsg, ...).
    pub(super) fn new(kind: u16, flags: u16, family: &[u8]) -> Self {
        let mut message = Self(Zeroizing::new(Vec::with_capacity(ROOM)));
        message.append(&0u32.to_ne_bytes());
        message.append(&kind.to_ne_bytes());
        message.append(&flags.to_ne_bytes());
        message.append(&[0; 8]);
        message.append(family);
        message.pad();
        message
    }

    pub(super) fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        self.push(kind, value);
        self
    }

    /// 4 or 16 bytes.
    pub(super) fn ip(self, kind: u16, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => self.attr(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attr(kind, &v6.octets()),
        }
    }

    pub(super) fn number(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Zero-terminated.
    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    pub(super) fn nest(mut self, kind: u16, inside: impl FnOnce(Self) -> Self) -> Self {
        let start = self.0.len();
        self.push(kind | NESTED, &[]);
        let mut this = inside(self);
        let len = u16::try_from(this.0.len() - start).unwrap_or(u16::MAX);
        this.put(start, &len.to_ne_bytes());
        this
    }

    /// Appends a header inside a nested attribute.
    pub(super) fn header(mut self, bytes: &[u8]) -> Self {
        self.append(bytes);
        self.pad();
        self
    }

    pub(super) fn finish(mut self, sequence: u32) -> Zeroizing<Vec<u8>> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.put(0, &len.to_ne_bytes());
        self.put(8, &sequence.to_ne_bytes());
        self.0
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.append(&len.to_ne_bytes());
        self.append(&kind.to_ne_bytes());
        self.append(value);
        self.pad();
    }

    /// Erases the old buffer if the message needs a larger one. A growing `Vec` would leave a copy
    /// of the old content in memory.
    fn append(&mut self, bytes: &[u8]) {
        let needed = self.0.len() + bytes.len();
        if needed > self.0.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity(needed.max(self.0.capacity() * 2)));
            larger.extend_from_slice(&self.0);
            self.0 = larger;
        }
        self.0.extend_from_slice(bytes);
    }

    fn pad(&mut self) {
        let missing = self.0.len().next_multiple_of(4) - self.0.len();
        self.append([0; 3].get(..missing).unwrap_or_default());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
}

/// NLA_F_NESTED.
const NESTED: u16 = 0x8000;

/// One message of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received<'a> {
    pub kind: u16,
    pub flags: u16,
    /// The number of the request to which the kernel replies.
    pub sequence: u32,
    /// What follows the message header.
    pub body: &'a [u8],
}

/// Up to the first truncated message.
pub(super) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Received<'_>> {
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
pub(super) fn attrs(body: &[u8], skip: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(skip.next_multiple_of(4)..).unwrap_or_default();
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & 0x3fff;
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(super) fn inside(nest: &[u8], wanted: u16) -> Option<&[u8]> {
    attrs(nest, 0).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// 4 or 16 bytes.
pub(super) fn ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(IpAddr::V4(Ipv4Addr::from(v4)));
    }
    <[u8; 16]>::try_from(value).ok().map(|v6| IpAddr::V6(Ipv6Addr::from(v6)))
}

/// Zero-terminated.
pub(super) fn text(value: &[u8]) -> &str {
    std::str::from_utf8(value.split(|b| *b == 0).next().unwrap_or_default()).unwrap_or_default()
}

pub(super) fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// Reads host byte order.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

/// Reads host byte order.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Reads host byte order.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// Decodes NLMSG_ERROR: the errno (0 for an acknowledgement) and the kernel's message, which may be
/// empty.
pub(super) fn verdict(body: &[u8]) -> Option<(i32, String)> {
    let code = i32::from_ne_bytes(body.get(..4)?.try_into().ok()?);
    // With NETLINK_CAP_ACK, only the request's header precedes the attributes. 1 is NLMSGERR_ATTR_MSG.
    let words = attrs(body, 4 + HEADER)
        .find(|(kind, _)| *kind == 1)
        .map(|(_, value)| text(value).to_owned());
    Some((code.saturating_neg(), words.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for message in messages(&bytes) {
                let _ = verdict(message.body);
                for skip in [0, 4, 8, 12, 16, 400] {
                    for (_, value) in attrs(message.body, skip) {
                        let _ = (ip(value), text(value), u8_at(value, 0), u16_at(value, 1), u32_at(value, 3));
                    }
                }
            }
        }
    }
}
