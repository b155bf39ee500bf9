//! Interface names and MACs in few bytes, because the kernel state repeats them for every peer.
//!
//! ```
//! use netstate::names::{LinkName, Mac};
//!
//! assert_eq!(LinkName::parse("flannel.1").unwrap().as_str(), "flannel.1");
//! assert_eq!(LinkName::parse("longer-than-15-bytes"), None);
//!
//! let mac = Mac::parse("6A-50-3C-FC-DD-7B").unwrap();
//! assert_eq!(mac.to_string(), "6a:50:3c:fc:dd:7b");
//! assert!(mac.is_station());
//! ```

use std::fmt;

/// Stored inline: the kernel state of ten thousand peers contains the name thirty thousand times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LinkName([u8; Self::LONGEST]);

impl LinkName {
    /// In bytes: IFNAMSIZ without the terminating zero.
    pub const LONGEST: usize = 15;

    /// Accepts what the kernel accepts: 1 to 15 bytes without slashes, white space or zero bytes.
    #[must_use]
    pub const fn parse(text: &str) -> Option<Self> {
        let (mut name, mut rest) = ([0; Self::LONGEST], text.as_bytes());
        if rest.is_empty() || rest.len() > name.len() {
            return None;
        }
        name.split_at_mut(rest.len()).0.copy_from_slice(rest);
        while let [byte, after @ ..] = rest {
            if matches!(byte, b'/' | 0) || byte.is_ascii_whitespace() {
                return None;
            }
            rest = after;
        }
        Some(Self(name))
    }

    /// Of a name in the source text. In a constant, a name that [`LinkName::parse`] refuses fails the build.
    #[must_use]
    #[allow(clippy::expect_used, reason = "the compiler evaluates it")]
    pub const fn constant(name: &str) -> Self {
        Self::parse(name).expect("a name that the kernel accepts")
    }

    /// Empty for the default value.
    #[must_use]
    pub fn as_str(&self) -> &str {
        netlink::wire::read_text(&self.0)
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Accepts six bytes in any form that Go's `net.ParseMAC` accepts: colons, hyphens, or groups
    /// of four digits with dots.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (groups, separator) = [(6, ':'), (6, '-'), (3, '.')]
            .into_iter()
            .find(|(groups, separator)| text.split(*separator).count() == *groups)?;
        let digits = text.replace(separator, "");
        let [_, _, mac @ ..] = u64::from_str_radix(&digits, 16).ok()?.to_be_bytes();
        let is_whole = |group: &str| group.len() == 12 / groups && !group.starts_with('+');
        text.split(separator).all(is_whole).then_some(Self(mac))
    }

    /// Neither multicast nor zero, so that a device can have it.
    #[must_use]
    pub fn is_station(&self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_in_gos_forms() {
        let mac = Mac([0x6a, 0x50, 0x3c, 0xfc, 0xdd, 0x7b]);
        for text in ["6a:50:3c:fc:dd:7b", "6A-50-3C-FC-DD-7B", "6a50.3cfc.dd7b"] {
            assert_eq!(Mac::parse(text), Some(mac), "{text}");
        }
        assert_eq!(mac.to_string(), "6a:50:3c:fc:dd:7b");
        for text in [
            "",
            "6a",
            "6a:50:3c:fc:dd",
            "6a:50:3c:fc:dd:7b:00:11",
            "6a:50-3c:fc:dd:7b",
            "6a503cfcdd7b",
            "+a:50:3c:fc:dd:7b",
            "6a50.3cfc.dd7b.0000",
            "ä:::::",
        ] {
            assert_eq!(Mac::parse(text), None, "{text}");
        }
        assert!(mac.is_station());
        assert!(!Mac([0; 6]).is_station());
        assert!(!Mac([1, 0, 0, 0, 0, 1]).is_station());
    }

    #[test]
    fn names_fit_the_kernel() {
        assert_eq!(LinkName::parse("flannel.1").unwrap().as_str(), "flannel.1");
        for text in ["", "sixteen-bytes-xx", "a/b", "a b"] {
            assert_eq!(LinkName::parse(text), None, "{text}");
        }
        assert!(LinkName::parse("a").unwrap() < LinkName::parse("ab").unwrap());
    }
}
