//! Wire format of probes and replies, which `docs/probing-format.md` describes. Numbers are big-endian.
//!
//! A node trusts no message. It drops messages that do not fit the format, and those of unknown kinds and versions,
//! which later versions of flanneld may send.

use std::net::{IpAddr, Ipv6Addr};

/// The first bytes of every message.
const MAGIC: [u8; 4] = *b"flpr";
const VERSION: u8 = 1;
/// In bytes; the same for all kinds of messages.
pub const HEADER: usize = 32;
/// Length of an echo reply and of a short echo probe, in bytes.
pub const ECHO: usize = 72;
/// Encoding of the message kind "pod probe".
pub(crate) const POD_QUESTION_KIND: u8 = 5;
/// Length of a pod probe in bytes: the sum of the lengths of its reply and its pod call.
pub const POD_QUESTION: usize = 2 * ECHO;
/// Length of a report request and maximum length of a report, in bytes. A datagram of it fits the minimum MTU of
/// IPv6.
pub const ROW: usize = 1232;
/// Encoding of an unknown age or token.
pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Requests an [`MessageKind::EchoAnswer`].
    EchoQuestion,
    /// Replies to an [`MessageKind::EchoQuestion`] and repeats its nonce.
    EchoAnswer,
    /// Requests a [`MessageKind::RowAnswer`]. A report request is as long as the longest possible report.
    RowQuestion,
    /// Replies to a [`MessageKind::RowQuestion`] with the node's own report.
    RowAnswer,
    /// A probe on the path that packets of pods take. It requests an [`MessageKind::EchoAnswer`] and a
    /// [`MessageKind::PodCall`].
    PodQuestion,
    /// A packet of a new connection to the address that sent the pod probe, with its nonce.
    PodCall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: MessageKind,
    /// The length of the probe in bytes. A reply repeats that of the received probe.
    pub length: u16,
    /// Random number of a probe, which the reply repeats.
    pub nonce: u64,
    pub from: u64,
    /// 0 if the sender does not know it.
    pub to: u64,
}

/// The body of an echo message. A probe carries the tokens; a reply carries the ages and `held_us`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Echo {
    /// The receiver has to repeat it in its probes, which proves that it gets packets at its address.
    pub token: Option<u32>,
    /// A token from an earlier message of the receiver.
    pub repeats: Option<u32>,
    /// Milliseconds since the receiver's last probe, including the current probe, arrived over the overlay.
    pub heard_overlay_ms: Option<u32>,
    /// Milliseconds since the receiver's last probe, including the current probe, arrived over the underlay.
    pub heard_underlay_ms: Option<u32>,
    /// Microseconds between the arrival of the probe and the sending of the reply.
    pub held_us: u32,
    /// The sender's clock: milliseconds since 1970.
    pub wall_ms: u64,
    pub answers_at: Option<IpAddr>,
    /// Milliseconds since the sender started to listen for probes.
    pub up_ms: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// An echo probe, an echo reply, a pod probe or a pod call.
    Echo(Header, Echo),
    /// A report request or a report, with the bytes after the header.
    Row(Header, &'a [u8]),
}

impl MessageKind {
    fn number(self) -> u8 {
        match self {
            MessageKind::EchoQuestion => 1,
            MessageKind::EchoAnswer => 2,
            MessageKind::RowQuestion => 3,
            MessageKind::RowAnswer => 4,
            MessageKind::PodQuestion => POD_QUESTION_KIND,
            MessageKind::PodCall => 6,
        }
    }

    fn of(number: u8) -> Option<Self> {
        [
            MessageKind::EchoQuestion,
            MessageKind::EchoAnswer,
            MessageKind::RowQuestion,
            MessageKind::RowAnswer,
            MessageKind::PodQuestion,
            MessageKind::PodCall,
        ]
        .into_iter()
        .find(|kind| kind.number() == number)
    }

    pub fn asks(self) -> bool {
        matches!(
            self,
            MessageKind::EchoQuestion | MessageKind::RowQuestion | MessageKind::PodQuestion
        )
    }
}

/// Pads the message with zeros to `length` bytes.
pub fn echo(header: &Header, echo: &Echo, length: usize) -> Vec<u8> {
    let mut out = head(header);
    let words = if header.kind.asks() {
        [echo.token, echo.repeats]
    } else {
        [echo.heard_overlay_ms, echo.heard_underlay_ms]
    };
    out.extend(words.iter().flat_map(|word| word.unwrap_or(NONE).to_be_bytes()));
    out.extend(echo.held_us.to_be_bytes());
    out.extend(echo.wall_ms.to_be_bytes());
    out.extend(address_bytes(echo.answers_at));
    out.extend(echo.up_ms.to_be_bytes());
    out.resize(length.max(ECHO), 0);
    out
}

/// Padded to [`ROW`] bytes. `about` is the number of the subnet of a node that the sender does not reach, as
/// [`crate::who::short`] computes it; `repeats` is the receiver's token.
pub fn row_question(header: &Header, about: Option<u32>, repeats: Option<u32>) -> Vec<u8> {
    let mut out = head(header);
    out.extend(about.unwrap_or(0).to_be_bytes());
    out.extend(repeats.unwrap_or(0).to_be_bytes());
    out.resize(ROW, 0);
    out
}

/// The subnet number and the repeated token in a report request, from the bytes after its header.
pub fn row_asks(rest: &[u8]) -> [Option<u32>; 2] {
    let mut read = Reader(rest);
    [read.u32(), read.u32()].map(|word| word.filter(|word| *word != 0))
}

/// `None` if `body` is too long. A body from [`crate::rows::write`] is never too long.
pub fn row_answer(header: &Header, body: &[u8]) -> Option<Vec<u8>> {
    let mut out = head(header);
    out.extend(body);
    (out.len() <= ROW).then_some(out)
}

fn head(header: &Header) -> Vec<u8> {
    let mut out = Vec::with_capacity(ROW);
    out.extend(MAGIC);
    out.extend([VERSION, header.kind.number()]);
    out.extend(header.length.to_be_bytes());
    out.extend(header.nonce.to_be_bytes());
    out.extend(header.from.to_be_bytes());
    out.extend(header.to.to_be_bytes());
    out
}

/// `None` if the message does not fit the format. The length field of a probe has to equal its actual length.
pub fn parse(bytes: &[u8]) -> Option<Message<'_>> {
    let mut read = Reader(bytes);
    if read.take::<4>()? != MAGIC || read.u8()? != VERSION {
        return None;
    }
    let kind = MessageKind::of(read.u8()?)?;
    let header = Header {
        kind,
        length: read.u16()?,
        nonce: read.u64()?,
        from: read.u64()?,
        to: read.u64()?,
    };
    if kind.asks() && usize::from(header.length) != bytes.len() {
        return None;
    }
    match kind {
        MessageKind::PodQuestion if bytes.len() < POD_QUESTION => None,
        MessageKind::EchoQuestion
        | MessageKind::EchoAnswer
        | MessageKind::PodQuestion
        | MessageKind::PodCall => {
            let words = [read.u32()?, read.u32()?].map(|word| (word != NONE).then_some(word));
            let (tokens, ages) = if kind.asks() { (words, [None; 2]) } else { ([None; 2], words) };
            let ([token, repeats], [heard_overlay_ms, heard_underlay_ms]) = (tokens, ages);
            let echo = Echo {
                token,
                repeats,
                heard_overlay_ms,
                heard_underlay_ms,
                held_us: read.u32()?,
                wall_ms: read.u64()?,
                answers_at: address(read.take()?),
                up_ms: read.u32()?,
            };
            Some(Message::Echo(header, echo))
        }
        MessageKind::RowQuestion => (bytes.len() == ROW).then_some(Message::Row(header, read.0)),
        MessageKind::RowAnswer => (bytes.len() <= ROW).then_some(Message::Row(header, read.0)),
    }
}

/// IPv4 as an IPv4-mapped address, zeros for no address.
fn address_bytes(address: Option<IpAddr>) -> [u8; 16] {
    match address {
        Some(IpAddr::V4(v4)) => v4.to_ipv6_mapped().octets(),
        Some(IpAddr::V6(v6)) => v6.octets(),
        None => [0; 16],
    }
}

fn address(bytes: [u8; 16]) -> Option<IpAddr> {
    let address = Ipv6Addr::from(bytes);
    (!address.is_unspecified()).then(|| address.to_canonical())
}

/// Reads numbers from the front of a byte slice.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: MessageKind, length: u16) -> Header {
        Header {
            kind,
            length,
            nonce: 0x0102_0304_0506_0708,
            from: 0x1112_1314_1516_1718,
            to: 0x2122_2324_2526_2728,
        }
    }

    #[test]
    fn echo_has_the_documented_bytes() {
        let body = Echo {
            heard_overlay_ms: Some(0x3132_3334),
            heard_underlay_ms: None,
            held_us: 0x4142_4344,
            wall_ms: 0x5152_5354_5556_5758,
            answers_at: Some("10.244.2.0".parse().unwrap()),
            up_ms: 0x6162_6364,
            ..Echo::default()
        };
        let bytes = echo(&header(MessageKind::EchoAnswer, 0x7172), &body, ECHO);
        let want = concat!(
            "666c7072",
            "01",
            "02",
            "7172",
            "0102030405060708",
            "1112131415161718",
            "2122232425262728", // header
            "31323334",
            "ffffffff",
            "41424344",
            "5152535455565758",
            "00000000000000000000ffff0af40200",
            "61626364", // echo
        );
        assert_eq!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), want);
        assert_eq!(bytes.len(), ECHO);
        assert_eq!(
            parse(&bytes),
            Some(Message::Echo(header(MessageKind::EchoAnswer, 0x7172), body))
        );
        let tokens = Echo {
            token: Some(0x8182_8384),
            repeats: Some(0x9192_9394),
            heard_overlay_ms: None,
            ..body
        };
        let question = echo(&header(MessageKind::EchoQuestion, 72), &tokens, ECHO);
        assert_eq!(question[HEADER..HEADER + 8], [0x81, 0x82, 0x83, 0x84, 0x91, 0x92, 0x93, 0x94]);
        assert_eq!(question[HEADER + 8..], bytes[HEADER + 8..]);
    }

    #[test]
    fn malformed_message_is_dropped() {
        let question = echo(&header(MessageKind::EchoQuestion, 1400), &Echo::default(), 1400);
        assert!(parse(&question).is_some());
        // A truncated probe, or one with trailing bytes, would get a reply with a wrong length.
        assert!(parse(&question[..1399]).is_none());
        assert!(parse(&[question.clone(), vec![0]].concat()).is_none());
        for (place, value) in [(0, b'F'), (4, 2), (5, 0), (5, 9)] {
            let mut other = question.clone();
            other[place] = value;
            assert!(parse(&other).is_none(), "byte {place}");
        }
        for asks in [[None, None], [Some(7), None], [None, Some(7)], [Some(u32::MAX), Some(1)]] {
            let head = header(MessageKind::RowQuestion, u16::try_from(ROW).unwrap());
            let rows = row_question(&head, asks[0], asks[1]);
            assert_eq!(rows.len(), ROW);
            let Some(Message::Row(_, rest)) = parse(&rows) else {
                panic!("{asks:?}");
            };
            assert_eq!(row_asks(rest), asks);
        }
        let short = header(MessageKind::RowQuestion, 100);
        assert!(
            parse(&echo(&short, &Echo::default(), 100)).is_none(),
            "a reply to a short report request would be longer than the request"
        );
        assert!(row_answer(&header(MessageKind::RowAnswer, 0), &[0; ROW]).is_none());
        assert!(row_answer(&header(MessageKind::RowAnswer, 0), &[0; ROW - HEADER]).is_some());
    }

    proptest! {
        #[test]
        fn junk_is_read_without_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), like: bool) {
            if like {
                bytes.splice(0..bytes.len().min(5), *b"flpr\x01");
            }
            if let Some(Message::Echo(header, _)) = parse(&bytes) {
                prop_assert!(bytes.len() >= ECHO);
                prop_assert!(!header.kind.asks() || usize::from(header.length) == bytes.len());
            }
        }
    }
}
