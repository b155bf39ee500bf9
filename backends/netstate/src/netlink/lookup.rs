//! Looks up the path of one packet in the kernel, without a cache: the route, and the state of the next hop.

use super::decode::{SeenRoute, link, neighbor, route};
use super::header::{link_header, lookup_header, neighbor_header, route_header};
use super::socket::{Answer, Requests, answer_problem};
use super::uapi::*;
use super::wire::Message;
use super::wireguard;
pub use super::wireguard::PeerStatus;
use crate::error::KernelError;
use crate::names::{LinkName, Mac};
use crate::route::RouteKind;
use ipnet::IpNet;
use std::net::IpAddr;
use types::Problem;

/// Works in the network namespace of the thread that opened it.
pub struct Lookup {
    requests: Requests,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The destination of the route.
    pub net: IpNet,
    /// `None` if the destination is on-link.
    pub via: Option<IpAddr>,
    /// Empty if the route has no interface.
    pub dev: LinkName,
    pub index: u32,
    /// What the kernel selects for this host's packets on the route.
    pub source: Option<IpAddr>,
    pub kind: RouteKind,
    /// The program that added the route.
    pub protocol: u8,
    pub metric: u32,
    pub table: u32,
}

/// What happens to a packet of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Sent(Hop),
    /// A route drops the packet; `None` if the lookup did not find it.
    Dropped(Option<Hop>),
    /// ENETUNREACH: no route matches the destination.
    NoRoute,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    Known(Mac),
    /// No host has answered, so the kernel does not know the MAC.
    Silent,
    /// The address has no entry.
    Absent,
}

impl Lookup {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, KernelError> {
        Ok(Self { requests: Requests::open()? })
    }

    /// The route of this host's packets to an address, like `ip route get`.
    pub async fn fate(&mut self, to: IpAddr) -> Result<Fate, KernelError> {
        let failed = |why| KernelError::new(format!("look up the route to {to}"), why);
        let (family, len) = family(to);
        // For IPv6 the kernel always returns the table, and refuses requests for it.
        let table = if to.is_ipv4() { RTM_F_LOOKUP_TABLE } else { 0 };
        let query = |flags| {
            Message::new(RTM_GETROUTE, 0, &lookup_header(family, len, table | flags))
                .ip(RTA_DST, to)
        };
        // The result for the packet, and the route that matched.
        let mut seen: [Option<SeenRoute>; 2] = [None, None];
        let answers =
            self.requests.batch(vec![query(0), query(RTM_F_FIB_MATCH)], 2, |which, message| {
                if let Some(place) = seen.get_mut(which) {
                    *place = route(message);
                }
            });
        let answers = answers.await;
        match answers.first() {
            Some(Answer::Done) => {}
            Some(Answer::Refused(libc::ENETUNREACH, _)) => return Ok(Fate::NoRoute),
            // The errnos of dropping routes for IPv4. For IPv6 the kernel returns the route itself.
            Some(Answer::Refused(libc::EINVAL | libc::EHOSTUNREACH | libc::EACCES, _)) => {
                return Ok(Fate::Dropped(self.obstacle(to).await?));
            }
            answer => return Err(failed(answer_problem(answer))),
        }
        let [Some(way), matched] = seen else {
            let why = Problem::new("kernel-answer-unusable", "the kernel returned no route");
            return Err(failed(why));
        };
        // Kernels before 4.13 return only the lookup's result.
        let from = matched.as_ref().unwrap_or(&way);
        let hop = Hop {
            net: from.net,
            via: way.spec.via,
            dev: self.name(way.oif).await,
            index: way.oif,
            source: way.source,
            kind: way.spec.kind,
            protocol: from.spec.protocol,
            metric: from.metric,
            table: from.table,
        };
        Ok(if drops(hop.kind) { Fate::Dropped(Some(hop)) } else { Fate::Sent(hop) })
    }

    /// The most specific route that drops packets to an address.
    async fn obstacle(&mut self, to: IpAddr) -> Result<Option<Hop>, KernelError> {
        let (family, _) = family(to);
        let request = || Message::new(RTM_GETROUTE, 0, &route_header(family, 0, 0, 0, 0, 0));
        let counts = |seen: &SeenRoute| seen.net.contains(&to) && drops(seen.spec.kind);
        let all = self.requests.dump(
            "routes",
            request,
            Vec::new,
            |list: &mut Vec<SeenRoute>, message| {
                list.extend(route(message).filter(counts));
            },
        );
        let best = all
            .await?
            .into_iter()
            .max_by_key(|seen| (seen.net.prefix_len(), std::cmp::Reverse(seen.metric)));
        let hop = |seen: SeenRoute| Hop {
            net: seen.net,
            via: seen.spec.via,
            dev: LinkName::default(),
            index: seen.oif,
            source: seen.source,
            kind: seen.spec.kind,
            protocol: seen.spec.protocol,
            metric: seen.metric,
            table: seen.table,
        };
        Ok(best.map(hop))
    }

    pub async fn neighbour(&mut self, dev: LinkName, ip: IpAddr) -> Result<Neighbour, KernelError> {
        let Some(index) = self.index(dev).await else {
            return Ok(Neighbour::Absent);
        };
        let (family, _) = family(ip);
        let request = || {
            Message::new(RTM_GETNEIGH, 0, &neighbor_header(family, 0, 0, 0))
                .number(NDA_IFINDEX, index)
        };
        let found = self.requests.dump(
            "neighbours",
            request,
            || Neighbour::Absent,
            |found: &mut Neighbour, message| {
                let Some(seen) = neighbor(message).filter(|seen| {
                    seen.family == family && seen.index == index && seen.dst == Some(ip)
                }) else {
                    return;
                };
                *found = match seen.mac.filter(|_| !seen.unanswered()) {
                    Some(mac) => Neighbour::Known(mac),
                    None => Neighbour::Silent,
                };
            },
        );
        found.await
    }

    /// The underlay address to which a vxlan interface sends frames for a MAC.
    pub async fn fdb(&mut self, dev: LinkName, mac: Mac) -> Result<Option<IpAddr>, KernelError> {
        let Some(index) = self.index(dev).await else {
            return Ok(None);
        };
        let request = || Message::new(RTM_GETNEIGH, 0, &neighbor_header(AF_BRIDGE, index, 0, 0));
        let found = self.requests.dump(
            "FDB entries",
            request,
            || None,
            |found: &mut Option<IpAddr>, message| {
                let seen = neighbor(message).filter(|seen| {
                    seen.family == AF_BRIDGE && seen.index == index && seen.mac == Some(mac)
                });
                *found = found.or(seen.and_then(|seen| seen.dst));
            },
        );
        found.await
    }

    /// The peer whose allowed IPs contain exactly the network `net`. Fails if the kernel has no
    /// WireGuard.
    pub async fn wireguard_peer(
        &mut self,
        dev: LinkName,
        net: IpNet,
    ) -> Result<Option<PeerStatus>, KernelError> {
        match self.index(dev).await {
            Some(index) => wireguard::peer_status(index, net).await,
            None => Ok(None),
        }
    }

    async fn index(&mut self, name: LinkName) -> Option<u32> {
        let request =
            Message::new(RTM_GETLINK, 0, &[0; IFINFOMSG]).text(IFLA_IFNAME, name.as_str());
        let mut found = None;
        self.requests
            .batch(vec![request], 1, |_, message| {
                found = link(message).map(|link| link.index).or(found);
            })
            .await;
        found
    }

    /// Empty if the interface does not exist.
    async fn name(&mut self, index: u32) -> LinkName {
        let mut found = LinkName::default();
        if index != 0 {
            let request = Message::new(RTM_GETLINK, 0, &link_header(index));
            self.requests
                .batch(vec![request], 1, |_, message| {
                    found = link(message).map_or(found, |link| link.name);
                })
                .await;
        }
        found
    }
}

/// Silently or with an ICMP error to the sender.
fn drops(kind: RouteKind) -> bool {
    matches!(kind, RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Other(RTN_PROHIBIT))
}

/// The family's number and full prefix length in bits.
fn family(ip: IpAddr) -> (u8, u8) {
    if ip.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) }
}
