//! Reasons why a running node switches the underlay to another interface.

use super::problem::SelectError;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use types::problem::Coded;

/// Reason why another interface is better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Better {
    /// A new address of this host in the other address family.
    OtherFamily,
    /// A current interface over which no packets of other nodes arrive.
    Than {
        /// The current interface.
        left: SilentInterface,
        /// The better interface.
        interface: String,
        /// Reason why flanneld chose the better interface, as a phrase.
        why: String,
    },
}

/// Reason why flanneld keeps a doubtful underlay interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoBetter {
    /// A doubtful interface that flanneld would choose again.
    Same(SilentInterface),
    /// Lack of another usable interface.
    None(SelectError),
}

/// A doubtful underlay interface over which no packets of other nodes arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentInterface {
    /// Name of the interface.
    pub interface: String,
    /// Minimum time for which no peer has responded.
    pub silence: Duration,
    /// Reason why the interface is in doubt.
    pub against: Against,
}

/// Reason why an interface is in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// An address of the interface that another Node also has.
    Claimed {
        /// The address that both Nodes have.
        ip: IpAddr,
        /// Name of the other Node.
        node: String,
    },
    /// An interface that leads into a NAT that only this machine uses.
    Nat,
}

impl fmt::Display for Better {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherFamily => f.write_str("this host has a new address of the other family"),
            Self::Than { left, interface, why } => write!(f, "{left}; {interface}: {why}"),
        }
    }
}

impl Coded for NoBetter {
    fn code(&self) -> &'static str {
        match self {
            Self::Same(_) => "no-better-interface",
            Self::None(error) => error.code(),
        }
    }
}

impl fmt::Display for NoBetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(left) => write!(f, "{left}; this host has no better interface"),
            Self::None(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NoBetter {}

impl fmt::Display for SilentInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, seconds) = (&self.interface, self.silence.as_secs());
        write!(f, "no peer has responded for {seconds} s, and ")?;
        match &self.against {
            Against::Claimed { ip, node } => {
                write!(f, "{ip} of {name} is also an address of the Node {node}")
            }
            Against::Nat => write!(f, "{name} is behind a NAT that only this machine uses"),
        }
    }
}
