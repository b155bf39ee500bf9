//! Checks the chosen interface while the daemon runs, and delays the report of a problem.

use super::facts::HostFacts;
use backends::Underlay;
use netstate::host::{Interface, is_usable, unusable_state};
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;
use types::Problem;

/// Time for which a problem must last before flanneld reports it. During the renewal of an address, for example, the
/// address is missing for a moment.
const GRACE: Duration = Duration::from_secs(1);

/// Why the underlay cannot carry packets. `elsewhere` are the addresses of [`elsewhere`].
pub(super) fn find_problem(
    underlay: &Underlay,
    facts: &HostFacts,
    elsewhere: &[IpAddr],
) -> Option<Problem> {
    let name = &underlay.name;
    let Some(interface) = facts.by_index(underlay.index) else {
        return Some(Problem::new(
            "underlay-gone",
            format!(
                "interface {name} is gone: no packets reach the other nodes; bring it back, or choose another interface with --iface and restart flanneld"
            ),
        ));
    };
    if !interface.up {
        return Some(Problem::new(
            "underlay-down",
            format!("interface {name} is down; bring it up with `ip link set {name} up`"),
        ));
    }
    if !interface.carrier {
        return Some(Problem::new(
            "underlay-no-carrier",
            format!(
                "interface {name} has no carrier; check its cable and the other end of the link"
            ),
        ));
    }
    let mut addresses = underlay.addresses.ips();
    addresses.find_map(|address| unusable(address, interface, facts, elsewhere))
}

fn unusable(
    address: IpAddr,
    interface: &Interface,
    facts: &HostFacts,
    elsewhere: &[IpAddr],
) -> Option<Problem> {
    let name = &interface.name;
    let (code, text) = match interface.addresses.iter().find(|own| own.ip() == address) {
        Some(own) if is_usable(own) => return None,
        Some(own) => (
            "underlay-address-unusable",
            format!(
                "interface {name} cannot use its address {address}: {}; see `ip address show {name}`",
                unusable_state(own)
            ),
        ),
        None => match facts.owner(address) {
            Some(_) if elsewhere.contains(&address) => return None,
            Some(Interface { name: to, .. }) => (
                "underlay-address-moved",
                format!(
                    "{address} has moved from {name} to {to}; restart flanneld with --iface={to}, or move the address back to {name}"
                ),
            ),
            None => (
                "underlay-address-lost",
                format!(
                    "interface {name} has lost its address {address}; restore it with `ip address add`, and find the program that removed it"
                ),
            ),
        },
    };
    Some(Problem::new(code, text))
}

/// The underlay's addresses that belong to another interface, such as a router's `lo`. flanneld computes them once,
/// right after the choice of the interface.
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

/// Delays the report of a problem by [`GRACE`], and reports its end immediately.
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
    /// The report that is due, if any, and the time of the next necessary check, if any.
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
