//! Conditions that select the underlay interface, which carries packets between nodes.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The interface of the default route, which an empty value of the named flag or variable selects.
    DefaultRoute(String),
    /// `--iface=auto`: the interface of the route to the store.
    Auto,
    /// `--iface=<address>`: the interface with this address.
    Address(IpAddr),
    /// `--iface=<name>`: the interface with this name.
    Name(String),
    /// `--iface-cidr`: an interface with an address in this network.
    Cidr(IpNet),
    /// `--iface-regex`: an interface whose address or name matches the pattern.
    Regex(Pattern),
    /// `--iface-can-reach`: the interface of the route to this address.
    CanReach(IpAddr),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultRoute(from) => {
                write!(f, "{from}= (empty: the interface of the default route)")
            }
            Self::Auto => f.write_str("--iface=auto"),
            Self::Address(ip) => write!(f, "--iface={ip}"),
            Self::Name(name) => write!(f, "--iface={name}"),
            Self::Cidr(net) => write!(f, "--iface-cidr={net}"),
            Self::Regex(pattern) => write!(f, "--iface-regex={pattern}"),
            Self::CanReach(ip) => write!(f, "--iface-can-reach={ip}"),
        }
    }
}

/// A compiled `--iface-regex`. Two patterns are equal if their texts are equal.
#[derive(Clone, Debug)]
pub struct Pattern(regex::Regex);

impl Pattern {
    /// The error shows the invalid part of the text.
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        regex::Regex::new(text).map(Self)
    }

    /// True if the pattern matches any part of the text.
    pub fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}
