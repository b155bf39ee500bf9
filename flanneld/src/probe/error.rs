//! Errors of a trace, and reasons why a trace sends no probes or pings.

use crate::error::joined;
use ipnet::IpNet;
use netstate::kernel::KernelError;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;
use types::{Coded, printable};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The address if the peer has no name. Printable on one line.
    pub title: String,
    pub subnet: IpNet,
    /// In the underlay.
    pub address: IpAddr,
}

/// Why no trace can run. `asked` is the target as the user typed it: a name, an address or a subnet.
#[derive(Debug, Error, Coded)]
pub enum ProbeError {
    /// Several nodes have the name.
    #[error(
        "{} nodes are named {}; name the subnet of one of them, {}",
        .subnets.len(), printable::value(.asked), joined(.subnets, " or ")
    )]
    #[code("probe-target-ambiguous")]
    Ambiguous { asked: String, subnets: Vec<IpNet> },
    #[error("{} is this node; name a peer, or the address of a pod", printable::value(.asked))]
    #[code("probe-target-is-this-node")]
    Itself { asked: String },
    /// `lease` has its subnets, or its key in the store, which may contain any characters. `why` is the reason why
    /// this node does not use it.
    #[error(
        "{} is in a lease that this node does not use, {}: {}",
        printable::value(.asked), printable::value(.lease), printable::line(.why)
    )]
    #[code("probe-target-unused")]
    Unused { asked: String, lease: String, why: String },
    #[error(
        "{} belongs to no peer: no other node has a lease that is active on this node",
        printable::value(.asked)
    )]
    #[code("probe-no-peers")]
    NoPeers { asked: String },
    /// `some` are the first known peers; `more` is the number of the others.
    #[error(
        "{} is neither a peer nor in a peer's subnet: the peers are {}{}",
        printable::value(.asked), joined(.some.iter().map(Candidate::described), ", "), unlisted(*.more)
    )]
    #[code("probe-target-unknown")]
    NoSuchPeer { asked: String, some: Vec<Candidate>, more: usize },
    #[error("another probe is running on this node; try again in a few seconds")]
    #[code("probe-busy")]
    Busy,
    #[error(
        "the probe did not finish within {0:?}: this node is overloaded, or its kernel does not respond"
    )]
    #[code("probe-overtime")]
    Overtime(Duration),
    /// The trace's task panicked or was aborted.
    #[error("the probe failed: {0}")]
    #[code("probe-ended")]
    Ended(#[source] tokio::task::JoinError),
    #[error("cannot query the kernel: {0}")]
    #[code("probe-kernel")]
    Kernel(#[source] KernelError),
    #[error("the lease of {0} ended during the probe, or flanneld is stopping")]
    #[code("probe-lease-ended")]
    LeaseEnded(IpNet),
}

impl Candidate {
    fn described(&self) -> String {
        format!("{} ({}, {})", self.title, self.subnet, self.address)
    }
}

fn unlisted(more: usize) -> String {
    match more {
        0 => String::new(),
        _ => format!(" and {more} more; flannelctl peers lists them"),
    }
}

impl ProbeError {
    /// True if a retry cannot help, because this node cannot probe the requested target.
    pub const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Ambiguous { .. }
                | Self::Itself { .. }
                | Self::Unused { .. }
                | Self::NoPeers { .. }
                | Self::NoSuchPeer { .. }
        )
    }
}

/// Why a trace sends no probes or no pings.
#[derive(Debug, Error, Coded)]
pub(super) enum NotSentError {
    #[error("this node does not probe (--probe-port=0)")]
    #[code("probes-off")]
    Off,
    /// The node cannot open a socket for pings.
    #[error("this node cannot ping: {0}")]
    NoPing(#[source] io::Error),
}
