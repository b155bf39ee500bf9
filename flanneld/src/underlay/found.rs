//! A chosen interface, with the facts behind the choice, for the acquisition of a lease.

use super::choice::Chosen;
use super::facts::HostFacts;
use super::request::{Request, StoreAt};
use super::{arp, hint};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

#[derive(Clone, Debug)]
pub struct Found {
    pub chosen: Chosen,
    /// At the time of the choice.
    pub request: Request,
    /// At the time of the choice.
    pub facts: HostFacts,
}

impl Found {
    /// Warns if the default route's interface may not reach the other nodes.
    pub fn trap_hint(&self) -> Option<String> {
        hint::trap_hint(&self.request, &self.chosen, &self.facts)
    }

    /// This host's interfaces as text. For the one that reaches the store, it also shows the flag that selects it.
    pub fn advice(&self) -> String {
        hint::interfaces_text(&self.request.store, &self.facts)
    }

    /// True if packets to the store leave through the chosen interface.
    pub fn store_via_underlay(&self) -> bool {
        hint::store_via_underlay(&self.request, &self.chosen, &self.facts)
    }

    pub fn nets(&self) -> Vec<IpNet> {
        let interface = self.facts.by_index(self.chosen.underlay.index);
        interface.map(|interface| interface.nets().collect()).unwrap_or_default()
    }

    /// True if the link proves that no other host has this node's address: `others` or the store answer on the link,
    /// and nobody answers at the address.
    pub async fn is_alone_at_address(&self, others: impl Iterator<Item = IpAddr>) -> bool {
        let public = self.chosen.underlay.public;
        // Go flannel identifies a lease by the IPv4 address, if there is one.
        let own = public.v4().copied().map(IpAddr::V4);
        let own = own.or(public.v6().copied().map(IpAddr::V6));
        let store = match &self.request.store {
            StoreAt::There(addresses) => &addresses[..],
            StoreAt::Here | StoreAt::Unknown(_) => &[],
        };
        let hosts: Vec<IpAddr> = others.chain(store.iter().copied()).collect();
        let own: Vec<IpAddr> = own.into_iter().collect();
        !arp::unshared(&self.facts, &own, &hosts).await.is_empty()
    }

    /// True if packets to `target` get a source address of the chosen interface; false for an address of this host.
    /// Queries the kernel in each call, so that the result is current.
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
        let source = UdpSocket::bind((any, 0))
            .and_then(|socket| socket.connect((target, 9)).and_then(|()| socket.local_addr()));
        source.is_ok_and(|source| self.nets().iter().any(|net| net.addr() == source.ip()))
    }
}
