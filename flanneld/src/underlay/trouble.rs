//! Problems of the chosen interface while the daemon runs, and the delay before flanneld reports a problem.

use super::facts::HostFacts;
use backends::Underlay;
use netstate::host::Interface;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;
use types::Coded;

/// Time for which a problem must last before flanneld reports the problem. During the renewal of an address, for
/// example, the address is missing for a moment.
const GRACE: Duration = Duration::from_secs(1);

/// Reason why the underlay cannot carry packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnderlayTrouble {
    /// An interface that no longer exists.
    Gone {
        /// Name of the interface.
        interface: String,
    },
    /// An interface that is down.
    Down {
        /// Name of the interface.
        interface: String,
    },
    /// An interface without a carrier.
    NoCarrier {
        /// Name of the interface.
        interface: String,
    },
    /// An address of the interface that is not usable, for example because the address is tentative or deprecated.
    Unusable {
        /// Name of the interface.
        interface: String,
        /// Address of this node.
        address: IpAddr,
        /// Reason why the address is unusable, as a phrase.
        state: &'static str,
    },
    /// An address that has moved to another interface of this host.
    Moved {
        /// Address of this node.
        address: IpAddr,
        /// Interface that had the address.
        from: String,
        /// Interface that now has the address.
        to: String,
    },
    /// An address that no interface of this host has any longer.
    Lost {
        /// Interface that had the address.
        interface: String,
        /// Address of this node.
        address: IpAddr,
    },
}

impl Coded for UnderlayTrouble {
    fn code(&self) -> &'static str {
        match self {
            Self::Gone { .. } => "underlay-gone",
            Self::Down { .. } => "underlay-down",
            Self::NoCarrier { .. } => "underlay-no-carrier",
            Self::Unusable { .. } => "underlay-address-unusable",
            Self::Moved { .. } => "underlay-address-moved",
            Self::Lost { .. } => "underlay-address-lost",
        }
    }
}

impl fmt::Display for UnderlayTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone { interface } => write!(
                f,
                "interface {interface} is gone: no packets reach the other nodes; bring it back, or choose another interface with --iface and restart flanneld"
            ),
            Self::Down { interface } => write!(
                f,
                "interface {interface} is down; bring it up with `ip link set {interface} up`"
            ),
            Self::NoCarrier { interface } => write!(
                f,
                "interface {interface} has no carrier; check its cable and the other end of the link"
            ),
            Self::Unusable { interface, address, state } => {
                write!(
                    f,
                    "interface {interface} cannot use its address {address}: {state}; see `ip address show {interface}`"
                )
            }
            Self::Moved { address, from, to } => {
                write!(
                    f,
                    "{address} has moved from {from} to {to}; restart flanneld with --iface={to}, or move the address back to {from}"
                )
            }
            Self::Lost { interface, address } => {
                write!(
                    f,
                    "interface {interface} has lost its address {address}; restore it with `ip address add`, and find the program that removed it"
                )
            }
        }
    }
}

/// Returns the reason why the underlay cannot carry packets; `None` if the underlay can carry packets. The function
/// [`elsewhere`] computes the argument `elsewhere`.
pub(super) fn trouble(
    underlay: &Underlay,
    facts: &HostFacts,
    elsewhere: &[IpAddr],
) -> Option<UnderlayTrouble> {
    let name = || underlay.name.clone();
    let Some(interface) = facts.by_index(underlay.index) else {
        return Some(UnderlayTrouble::Gone { interface: name() });
    };
    if !interface.up {
        return Some(UnderlayTrouble::Down { interface: name() });
    }
    if !interface.carrier {
        return Some(UnderlayTrouble::NoCarrier { interface: name() });
    }
    let mut addresses = underlay.addresses.ips();
    addresses.find_map(|address| unusable(address, interface, facts, elsewhere))
}

fn unusable(
    address: IpAddr,
    interface: &Interface,
    facts: &HostFacts,
    elsewhere: &[IpAddr],
) -> Option<UnderlayTrouble> {
    let name = interface.name.clone();
    match interface.addresses.iter().find(|own| own.ip() == address) {
        Some(own) if own.usable() => None,
        Some(own) => {
            Some(UnderlayTrouble::Unusable { interface: name, address, state: own.state() })
        }
        None => match facts.owner(address) {
            Some(_) if elsewhere.contains(&address) => None,
            Some(other) => {
                Some(UnderlayTrouble::Moved { address, from: name, to: other.name.clone() })
            }
            None => Some(UnderlayTrouble::Lost { interface: name, address }),
        },
    }
}

/// Returns the underlay's addresses that belong to another interface, such as a router's `lo`. flanneld computes the
/// addresses once, right after the choice of the interface.
pub(super) fn elsewhere(underlay: &Underlay, facts: &HostFacts) -> Vec<IpAddr> {
    let own = |address: &IpAddr| {
        facts.by_index(underlay.index).is_some_and(|interface| interface.owns(*address))
    };
    underlay
        .addresses
        .ips()
        .filter(|address| !own(address) && facts.owner(*address).is_some())
        .collect()
}

/// Delays the report of a problem by [`GRACE`], and reports the end of the problem immediately.
#[derive(Debug)]
pub(super) struct Alarm<T> {
    since: Option<Instant>,
    reported: Option<T>,
}

impl<T> Default for Alarm<T> {
    fn default() -> Self {
        Self { since: None, reported: None }
    }
}

impl<T: Clone + PartialEq> Alarm<T> {
    /// Returns the report that is due, if any, and the time of the next necessary check, if any.
    pub(super) fn look(
        &mut self,
        trouble: Option<T>,
        now: Instant,
    ) -> (Option<Option<T>>, Option<Instant>) {
        if trouble.is_none() {
            self.since = None;
            return (self.reported.take().map(|_| None), None);
        }
        let due = *self.since.get_or_insert(now) + GRACE;
        if now < due {
            return (None, Some(due));
        }
        if trouble == self.reported {
            return (None, None);
        }
        self.reported.clone_from(&trouble);
        (Some(trouble), None)
    }
}
