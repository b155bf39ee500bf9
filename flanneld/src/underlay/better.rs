//! Why an interface is left for another one while the node runs.

use super::problem::SelectError;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use types::problem::{Coded, text};

/// Why another interface is better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Better {
    /// An address of the other family has come.
    OtherFamily,
    /// Nothing comes in over the present one.
    Than {
        /// The present one.
        unheard: Unheard,
        /// The other one.
        interface: String,
        /// Why that one was chosen, as a clause.
        why: String,
    },
}

/// Another interface is wanted, and there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoBetter {
    /// This host's choice stays what it was.
    Same(Unheard),
    /// None can be chosen.
    None(SelectError),
}

/// An interface over which nothing comes in, and which is in doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unheard {
    /// Its name.
    pub interface: String,
    /// For how long no peer has answered, at least.
    pub silence: Duration,
    /// What speaks against it.
    pub against: Against,
}

/// What speaks against an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// Another Node has its address.
    Claimed {
        /// The address.
        ip: IpAddr,
        /// The Node's name.
        node: String,
    },
    /// It leads into a NAT of its own.
    Nat,
}

impl fmt::Display for Better {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherFamily => f.write_str("an address of the other family has come"),
            Self::Than {
                unheard,
                interface,
                why,
            } => write!(f, "{unheard}; {interface}: {why}"),
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
        text(f, self, |f| match self {
            Self::Same(unheard) => write!(f, "{unheard}; this host has no better interface"),
            Self::None(error) => error.fmt(f),
        })
    }
}

impl std::error::Error for NoBetter {}

impl fmt::Display for Unheard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, seconds) = (&self.interface, self.silence.as_secs());
        write!(f, "no peer has answered for {seconds} s, and ")?;
        match &self.against {
            Against::Claimed { ip, node } => write!(f, "{ip} of {name} is the Node {node}'s, too"),
            Against::Nat => write!(f, "{name} is behind a NAT in which this machine is alone"),
        }
    }
}
