//! Problems of the chosen interface while the daemon runs, and when they are reported.

use super::facts::HostFacts;
use backends::Underlay;
use netstate::host::Interface;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;

/// How long a problem lasts before it is reported: an address being renewed is missing for a moment.
const GRACE: Duration = Duration::from_secs(1);

/// Why the underlay cannot carry packets, with the remedy; `None` if it can. `elsewhere`: see [`elsewhere`].
pub fn trouble(underlay: &Underlay, facts: &HostFacts, elsewhere: &[IpAddr]) -> Option<String> {
    let name = &underlay.name;
    let Some(interface) = facts.by_index(underlay.index) else {
        return Some(format!(
            "interface {name} is gone: no packets reach the other nodes; bring it back, or choose another one with --iface and restart flanneld"
        ));
    };
    if !interface.up {
        return Some(format!("interface {name} is down: bring it up with `ip link set {name} up`"));
    }
    if !interface.carrier {
        return Some(format!("interface {name} has no carrier: check its cable and the other end of the link"));
    }
    addresses(underlay).find_map(|address| unusable(address, interface, facts, elsewhere))
}

fn unusable(address: IpAddr, interface: &Interface, facts: &HostFacts, elsewhere: &[IpAddr]) -> Option<String> {
    let name = &interface.name;
    match interface.addresses.iter().find(|own| own.ip() == address) {
        Some(own) if own.usable() => None,
        Some(own) => Some(format!("interface {name} cannot use its address {address}: {}; see `ip address show {name}`", own.state())),
        None => match facts.owner(address) {
            Some(_) if elsewhere.contains(&address) => None,
            Some(other) => Some(format!(
                "{address} has moved from {name} to {0}: restart flanneld with --iface={0}, or move the address back to {name}",
                other.name
            )),
            None => Some(format!("interface {name} has lost its address {address}: restore it with `ip address add`, and find out what removed it")),
        },
    }
}

/// Addresses of the underlay that belong to another interface (a router's `lo`). Computed at the start, right after the choice.
pub fn elsewhere(underlay: &Underlay, facts: &HostFacts) -> Vec<IpAddr> {
    let own = |address: &IpAddr| facts.by_index(underlay.index).is_some_and(|interface| interface.owns(*address));
    addresses(underlay).filter(|address| !own(address) && facts.owner(*address).is_some()).collect()
}

fn addresses(underlay: &Underlay) -> impl Iterator<Item = IpAddr> + use<> {
    let (v4, v6) = (underlay.addresses.v4().copied(), underlay.addresses.v6().copied());
    v4.map(IpAddr::V4).into_iter().chain(v6.map(IpAddr::V6))
}

/// Reports a problem once it lasts, and its end at once.
#[derive(Debug, Default)]
pub struct Alarm {
    since: Option<Instant>,
    told: Option<String>,
}

impl Alarm {
    /// Returns what to report if it is new, and when to check again if necessary.
    pub fn look(&mut self, trouble: Option<String>, now: Instant) -> (Option<Option<String>>, Option<Instant>) {
        if trouble.is_none() {
            self.since = None;
            return (self.told.take().map(|_| None), None);
        }
        let due = *self.since.get_or_insert(now) + GRACE;
        if now < due {
            return (None, Some(due));
        }
        if trouble == self.told {
            return (None, None);
        }
        self.told.clone_from(&trouble);
        (Some(trouble), None)
    }
}
