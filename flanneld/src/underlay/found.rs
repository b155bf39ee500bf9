//! A choice with the facts behind it, for the acquisition of a lease.

use super::choice::Chosen;
use super::facts::HostFacts;
use super::hint;
use super::request::Request;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// A chosen interface, with the facts behind the choice.
#[derive(Clone, Debug)]
pub struct Found {
    /// Interface that was chosen.
    pub chosen: Chosen,
    /// Request that led to the choice.
    pub request: Request,
    /// Facts about the host at the time of the choice.
    pub facts: HostFacts,
}

impl Found {
    /// Returns the warning about the default route's interface, if it applies.
    pub fn trap_hint(&self) -> Option<String> {
        hint::trap_hint(&self.request, &self.chosen, &self.facts)
    }

    /// Returns this host's interfaces as text. The text shows the flag to use next to the interface that reaches the store.
    pub fn advice(&self) -> String {
        hint::interfaces_text(&self.request.store, &self.facts)
    }

    /// Returns whether packets to the store leave through the chosen interface.
    pub fn store_via_underlay(&self) -> bool {
        hint::store_via_underlay(&self.request, &self.chosen, &self.facts)
    }

    /// Returns the addresses of the chosen interface with their networks.
    pub fn nets(&self) -> Vec<IpNet> {
        let interface = self.facts.by_index(self.chosen.underlay.index);
        interface
            .map(|interface| interface.nets().collect())
            .unwrap_or_default()
    }

    /// Returns whether packets to an address leave through the chosen interface, judging by their source address; false for an address of this host.
    /// Queries the kernel each time, so the result is current.
    pub fn leads_to(&self, target: IpAddr) -> bool {
        if self.facts.owner(target).is_some() {
            return false;
        }
        let any = if target.is_ipv6() {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        } else {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        };
        // Connecting a datagram socket sends nothing: the kernel only looks up the route. Port 9 is `discard`.
        let source = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket
                .connect((target, 9))
                .and_then(|()| socket.local_addr())
        });
        source.is_ok_and(|source| self.nets().iter().any(|net| net.addr() == source.ip()))
    }
}
