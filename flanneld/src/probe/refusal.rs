//! Errors of a trace, and reasons why a part of it is missing.

use ipnet::IpNet;
use netstate::kernel::KernelError;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use types::problem::text;
use types::{Coded, printable};

/// A peer that this node can probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Name of the peer, or its address if the peer has no name; printable in one line.
    pub title: String,
    /// Subnet of the peer's lease.
    pub subnet: IpNet,
    /// Underlay address of the peer.
    pub address: IpAddr,
}

/// Error when no trace can run. `asked` is the target as the user typed it.
#[derive(Debug)]
pub enum Refusal {
    /// Several nodes with the same name.
    Ambiguous {
        /// The ambiguous name.
        asked: String,
        /// Subnets of the nodes with the ambiguous name.
        subnets: Vec<IpNet>,
    },
    /// A target that is this node itself.
    Itself {
        /// A name or an address of this node.
        asked: String,
    },
    /// A target in a lease that this node does not use.
    Unused {
        /// An address or a subnet.
        asked: String,
        /// The lease: its subnets or its key. This is foreign text.
        lease: String,
        /// Reason why this node does not use the lease.
        why: String,
    },
    /// Lack of any known peer.
    NoPeers {
        /// A name, an address or a subnet.
        asked: String,
    },
    /// Lack of a peer with this name, address or subnet.
    NoSuchPeer {
        /// A name, an address or a subnet.
        asked: String,
        /// Some of the peers.
        some: Vec<Candidate>,
        /// Number of further peers.
        more: usize,
    },
    /// Other traces that are still running.
    Busy,
    /// A trace that took longer than this duration.
    Overtime(Duration),
    /// Panic or abort of the trace's task.
    Ended(tokio::task::JoinError),
    /// A kernel that refuses the netlink socket for the lookups.
    Kernel(KernelError),
    /// End of this subnet's lease during the trace, or a stop of this node.
    LeaseEnded(IpNet),
}

impl Refusal {
    /// Returns whether a retry cannot help, because this node cannot probe the target.
    pub const fn is_final(&self) -> bool {
        match self {
            Refusal::Ambiguous { .. }
            | Refusal::Itself { .. }
            | Refusal::Unused { .. }
            | Refusal::NoPeers { .. }
            | Refusal::NoSuchPeer { .. } => true,
            Refusal::Busy
            | Refusal::Overtime(_)
            | Refusal::Ended(_)
            | Refusal::Kernel(_)
            | Refusal::LeaseEnded(_) => false,
        }
    }
}

impl Coded for Refusal {
    fn code(&self) -> &'static str {
        match self {
            Refusal::Ambiguous { .. } => "probe-target-ambiguous",
            Refusal::Itself { .. } => "probe-target-is-this-node",
            Refusal::Unused { .. } => "probe-target-unused",
            Refusal::NoPeers { .. } => "probe-no-peers",
            Refusal::NoSuchPeer { .. } => "probe-target-unknown",
            Refusal::Busy => "probe-busy",
            Refusal::Overtime(_) => "probe-overtime",
            Refusal::Ended(_) => "probe-ended",
            Refusal::Kernel(_) => "probe-kernel",
            Refusal::LeaseEnded(_) => "probe-lease-ended",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(f, self, |f| match self {
            Refusal::Ambiguous { asked, subnets } => {
                let listed: Vec<String> = subnets.iter().map(IpNet::to_string).collect();
                write!(
                    f,
                    "{} nodes are named {}: name the subnet of one of them, {}",
                    subnets.len(),
                    printable::value(asked),
                    listed.join(" or ")
                )
            }
            Refusal::Itself { asked } => write!(
                f,
                "{} is this node: name a peer, or the address of a pod",
                printable::value(asked)
            ),
            Refusal::Unused { asked, lease, why } => {
                let (asked, lease) = (printable::value(asked), printable::value(lease));
                write!(
                    f,
                    "{asked} is in a lease that this node does not use, {lease}: {}",
                    printable::line(why)
                )
            }
            Refusal::NoPeers { asked } => {
                write!(
                    f,
                    "{} belongs to no peer: no other node has a lease that is active on this node",
                    printable::value(asked)
                )
            }
            Refusal::NoSuchPeer { asked, some, more } => {
                let listed: Vec<String> = some
                    .iter()
                    .map(|one| format!("{} ({}, {})", one.title, one.subnet, one.address))
                    .collect();
                write!(
                    f,
                    "{} is neither a peer nor in a peer's subnet: the peers are {}",
                    printable::value(asked),
                    listed.join(", ")
                )?;
                if *more > 0 {
                    write!(f, " and {more} more; flannelctl peers lists them")
                } else {
                    Ok(())
                }
            }
            Refusal::Busy => {
                f.write_str("another probe is running on this node: try again in a few seconds")
            }
            Refusal::Overtime(time) => write!(
                f,
                "the probe did not finish within {time:?}: this node is overloaded, or its kernel does not respond"
            ),
            Refusal::Ended(error) => write!(f, "the probe failed: {error}"),
            Refusal::Kernel(error) => write!(f, "cannot query the kernel: {error}"),
            Refusal::LeaseEnded(subnet) => write!(
                f,
                "the lease of {subnet} ended during the probe, or flanneld is stopping"
            ),
        })
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Refusal::Ended(error) => Some(error),
            Refusal::Kernel(error) => Some(error),
            _ => None,
        }
    }
}

/// Reason why a part of a trace is missing.
#[derive(Debug)]
pub(super) enum Unasked {
    /// Disabled probing on this node.
    Off,
    /// Failure of this node to open a socket for pings.
    NoPing(io::Error),
}

impl Coded for Unasked {
    fn code(&self) -> &'static str {
        match self {
            Unasked::Off => "probes-off",
            Unasked::NoPing(_) => "no-ping",
        }
    }
}

impl fmt::Display for Unasked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(f, self, |f| match self {
            Unasked::Off => f.write_str("this node does not probe (--probe-port=0)"),
            Unasked::NoPing(error) => write!(f, "this node cannot ping: {error}"),
        })
    }
}

impl std::error::Error for Unasked {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Unasked::Off => None,
            Unasked::NoPing(error) => Some(error),
        }
    }
}
