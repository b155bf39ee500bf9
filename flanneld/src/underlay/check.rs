//! Checks the chosen interface while the daemon runs, and delays the report of an error.

use super::facts::HostFacts;
use backends::Underlay;
use netstate::host::Interface;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;
use tokio::time::Instant;
use types::Coded;

/// Time for which a problem must last before flanneld reports the problem. During the renewal of an address, for
/// example, the address is missing for a moment.
const GRACE: Duration = Duration::from_secs(1);

/// Why the underlay cannot carry packets.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum UnderlayError {
    #[error(
        "interface {interface} is gone: no packets reach the other nodes; bring it back, or choose another interface with --iface and restart flanneld"
    )]
    #[code("underlay-gone")]
    Gone { interface: String },
    #[error("interface {interface} is down; bring it up with `ip link set {interface} up`")]
    #[code("underlay-down")]
    Down { interface: String },
    #[error("interface {interface} has no carrier; check its cable and the other end of the link")]
    #[code("underlay-no-carrier")]
    NoCarrier { interface: String },
    #[error(
        "interface {interface} cannot use its address {address}: {state}; see `ip address show {interface}`"
    )]
    #[code("underlay-address-unusable")]
    Unusable { interface: String, address: IpAddr, state: &'static str },
    /// The address is now on another interface of this host.
    #[error(
        "{address} has moved from {from} to {to}; restart flanneld with --iface={to}, or move the address back to {from}"
    )]
    #[code("underlay-address-moved")]
    Moved { address: IpAddr, from: String, to: String },
    #[error(
        "interface {interface} has lost its address {address}; restore it with `ip address add`, and find the program that removed it"
    )]
    #[code("underlay-address-lost")]
    Lost { interface: String, address: IpAddr },
}

/// `elsewhere` are the addresses of [`elsewhere`].
pub(super) fn find_error(
    underlay: &Underlay,
    facts: &HostFacts,
    elsewhere: &[IpAddr],
) -> Option<UnderlayError> {
    let name = || underlay.name.clone();
    let Some(interface) = facts.by_index(underlay.index) else {
        return Some(UnderlayError::Gone { interface: name() });
    };
    if !interface.up {
        return Some(UnderlayError::Down { interface: name() });
    }
    if !interface.carrier {
        return Some(UnderlayError::NoCarrier { interface: name() });
    }
    let mut addresses = underlay.addresses.ips();
    addresses.find_map(|address| unusable(address, interface, facts, elsewhere))
}

fn unusable(
    address: IpAddr,
    interface: &Interface,
    facts: &HostFacts,
    elsewhere: &[IpAddr],
) -> Option<UnderlayError> {
    let name = interface.name.clone();
    match interface.addresses.iter().find(|own| own.ip() == address) {
        Some(own) if own.usable() => None,
        Some(own) => Some(UnderlayError::Unusable { interface: name, address, state: own.state() }),
        None => match facts.owner(address) {
            Some(_) if elsewhere.contains(&address) => None,
            Some(other) => {
                Some(UnderlayError::Moved { address, from: name, to: other.name.clone() })
            }
            None => Some(UnderlayError::Lost { interface: name, address }),
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
