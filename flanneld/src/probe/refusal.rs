//! Errors of a trace, and reasons why a trace sends no probes or pings.

use ipnet::IpNet;
use netstate::kernel::KernelError;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use types::{Coded, printable};

/// A peer that this node can probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Name of the peer, or the peer's address if the peer has no name. The text is printable on one line.
    pub title: String,
    /// Subnet of the peer's lease.
    pub subnet: IpNet,
    /// Underlay address of the peer.
    pub address: IpAddr,
}

/// Error when no trace can run. `asked` is the target as the user typed it.
#[derive(Debug)]
pub enum Refusal {
    /// A name that several nodes have.
    Ambiguous {
        /// The ambiguous name.
        asked: String,
        /// Subnets of the nodes with the ambiguous name.
        subnets: Vec<IpNet>,
    },
    /// A target that belongs to this node itself.
    Itself {
        /// A name or an address of this node.
        asked: String,
    },
    /// A target in a lease that this node does not use.
    Unused {
        /// The target: an address or a subnet.
        asked: String,
        /// Subnets of the lease, or the lease's key in the store. The key may contain any characters.
        lease: String,
        /// Reason why this node does not use the lease.
        why: String,
    },
    /// Lack of other nodes' leases that this node uses.
    NoPeers {
        /// A name, an address or a subnet.
        asked: String,
    },
    /// Lack of a peer with this name, address or subnet.
    NoSuchPeer {
        /// A name, an address or a subnet.
        asked: String,
        /// The first of the known peers, as a hint for the user.
        some: Vec<Candidate>,
        /// Number of known peers that `some` does not list.
        more: usize,
    },
    /// A previous trace that is still running.
    Busy,
    /// A trace that did not finish within this duration.
    Overtime(Duration),
    /// A trace whose task panicked or was aborted.
    Ended(tokio::task::JoinError),
    /// A kernel that refuses the netlink socket for the lookups.
    Kernel(KernelError),
    /// A lease of this subnet that ended during the trace, or a daemon that is stopping.
    LeaseEnded(IpNet),
}

impl Refusal {
    /// Returns whether a retry cannot help, because this node cannot probe the requested target.
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
        match self {
            Refusal::Ambiguous { asked, subnets } => {
                let listed: Vec<String> = subnets.iter().map(IpNet::to_string).collect();
                write!(
                    f,
                    "{} nodes are named {}; name the subnet of one of them, {}",
                    subnets.len(),
                    printable::value(asked),
                    listed.join(" or ")
                )
            }
            Refusal::Itself { asked } => write!(
                f,
                "{} is this node; name a peer, or the address of a pod",
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
                f.write_str("another probe is running on this node; try again in a few seconds")
            }
            Refusal::Overtime(time) => write!(
                f,
                "the probe did not finish within {time:?}: this node is overloaded, or its kernel does not respond"
            ),
            Refusal::Ended(error) => write!(f, "the probe failed: {error}"),
            Refusal::Kernel(error) => write!(f, "cannot query the kernel: {error}"),
            Refusal::LeaseEnded(subnet) => {
                write!(f, "the lease of {subnet} ended during the probe, or flanneld is stopping")
            }
        }
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

/// Reason why a trace sends no probes or no pings.
#[derive(Debug)]
pub(super) enum Unasked {
    /// A node on which probing is disabled.
    Off,
    /// A node that cannot open a socket for pings.
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
        match self {
            Unasked::Off => f.write_str("this node does not probe (--probe-port=0)"),
            Unasked::NoPing(error) => write!(f, "this node cannot ping: {error}"),
        }
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
