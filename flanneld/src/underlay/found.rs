//! A choice with what it rests on, and what the acquisition of a lease asks about it.

use super::choice::Chosen;
use super::facts::HostFacts;
use super::hint;
use super::request::Request;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// What was chosen, and on what it rests.
#[derive(Clone, Debug)]
pub struct Found {
    /// The choice.
    pub chosen: Chosen,
    /// What was asked for.
    pub request: Request,
    /// What was known.
    pub facts: HostFacts,
}

impl Found {
    /// The warning about the default route's interface, where it is due.
    pub fn trap_hint(&self) -> Option<String> {
        hint::trap_hint(&self.request, &self.chosen, &self.facts)
    }

    /// This host's interfaces, the store's marked with the flag to type.
    pub fn advice(&self) -> String {
        hint::interfaces_text(&self.request.store, &self.facts)
    }

    /// Whether packets to the store leave by the chosen interface.
    pub fn store_via_underlay(&self) -> bool {
        hint::store_via_underlay(&self.request, &self.chosen, &self.facts)
    }

    /// The chosen interface's addresses with their networks.
    pub fn nets(&self) -> Vec<IpNet> {
        let interface = self.facts.by_index(self.chosen.underlay.index);
        interface.map(|interface| interface.addresses.iter().map(|address| address.net).collect()).unwrap_or_default()
    }

    /// Whether packets to an address leave by the chosen interface, as far as their source address tells; an own address leads nowhere.
    /// Asks the kernel at once: the answer is today's.
    pub fn leads_to(&self, target: IpAddr) -> bool {
        if self.facts.owner(target).is_some() {
            return false;
        }
        let any = if target.is_ipv6() { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        // Connecting a datagram socket sends nothing: the kernel only looks up the route. Port 9 is `discard`.
        let source = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((target, 9)).and_then(|()| socket.local_addr()));
        source.is_ok_and(|source| self.nets().iter().any(|net| net.addr() == source.ip()))
    }
}
