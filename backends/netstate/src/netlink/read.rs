//! Reads flannel's kernel objects with filtered dumps, one dump for each kind of object.

use super::decode::{SeenLink, SeenRoute, address, link, neighbor, route};
use super::header::{address_header, link_header, neighbor_header, route_header};
use super::socket::{Answer, LOOKUPS, answer_problem};
use super::uapi::*;
use super::wire::Message;
use super::{NetlinkKernel, ethtool};
use crate::cleanup::Inventory;
use crate::error::KernelError;
use crate::kernel::{ExistingState, Facts};
use crate::link::LinkKind;
use crate::names::{LinkName, Mac};
use crate::object::{KernelState, Key, Value};
use crate::route::{BOOT, RouteKind};
use crate::scope::Scope;
use crate::underlay::Underlay;
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

type Links = BTreeMap<LinkName, SeenLink>;

impl NetlinkKernel {
    pub(super) async fn read_all(&mut self, scope: &Scope) -> Result<ExistingState, KernelError> {
        let mut links = self.links_by_name(&scope.links).await?;
        for (name, link) in &mut links {
            if self.fixed_ra.contains(name) {
                link.spec.accept_ra = None;
            }
            if scope.checksum_offload && !self.fixed_checksum.contains(name) {
                link.spec.checksum_offload = ethtool::tx_checksum(*name).ok();
            }
        }
        // A link of another kind under our name is not ours, nor are the objects on it.
        let ours = links.values().filter(|link| !matches!(link.spec.kind, LinkKind::Other(_)));
        self.links = ours.map(|link| (link.name, link.index)).collect();
        self.last_index.extend(self.links.iter().copied());
        let wireguards =
            links.values().filter(|link| matches!(link.spec.kind, LinkKind::Wireguard(_)));
        self.wireguards = wireguards.map(|link| (link.name, link.index)).collect();
        let mut found = ExistingState::default();
        for (name, mut link) in links {
            let vxlan = matches!(link.spec.kind, LinkKind::Vxlan(_));
            let foreign = matches!(link.spec.kind, LinkKind::Other(_));
            if matches!(link.spec.kind, LinkKind::Wireguard(_)) {
                link.spec.kind =
                    LinkKind::Wireguard(self.wireguard(scope, name, link.index, &mut found).await?);
            }
            found.ours.set(Key::Link(name), Value::Link(Box::new(link.spec)));
            if foreign {
                continue;
            }
            for family in families(scope) {
                self.addresses(scope, name, link.index, family, &mut found.ours).await?;
                self.neighbors(scope, name, link.index, family, &mut found.ours).await?;
            }
            if vxlan {
                self.fdb(name, link.index, &mut found.ours).await?;
            }
        }
        for family in families(scope) {
            self.routes(scope, family, &mut found).await?;
        }
        Ok(found)
    }

    /// Reads the interfaces that were flannel's WireGuard interfaces at the last full read.
    pub(super) async fn peers_of_all(
        &mut self,
        scope: &Scope,
    ) -> Result<ExistingState, KernelError> {
        let mut found = ExistingState::default();
        for (name, index) in self.wireguards.clone() {
            self.wireguard(scope, name, index, &mut found).await?;
        }
        Ok(found)
    }

    /// The result omits links that do not exist.
    pub(super) async fn links_by_name(&mut self, names: &[LinkName]) -> Result<Links, KernelError> {
        let requests = names
            .iter()
            .map(|name| {
                Message::new(RTM_GETLINK, 0, &[0; IFINFOMSG]).text(IFLA_IFNAME, name.as_str())
            })
            .collect();
        Ok(self.links_of(requests).await?.into_iter().map(|link| (link.name, link)).collect())
    }

    /// Includes the links of other programs.
    pub(super) async fn all_links(&mut self) -> Result<Vec<SeenLink>, KernelError> {
        let request = || Message::new(RTM_GETLINK, 0, &[0; IFINFOMSG]);
        self.requests
            .dump("network interfaces", request, Vec::new, |list: &mut Vec<SeenLink>, message| {
                list.extend(link(message));
            })
            .await
    }

    /// The plain routes of one address family that `keep` selects.
    pub(super) async fn main_routes(
        &mut self,
        family: u8,
        keep: impl Fn(&SeenRoute) -> bool,
    ) -> Result<Vec<SeenRoute>, KernelError> {
        let header = route_header(family, 0, 0, 0, 0, RT_TABLE_MAIN);
        self.requests
            .dump(
                "routes",
                || Message::new(RTM_GETROUTE, 0, &header),
                Vec::new,
                |list: &mut Vec<SeenRoute>, message| {
                    list.extend(route(message).filter(|seen| seen.plain && keep(seen)));
                },
            )
            .await
    }

    pub(super) async fn list_all(&mut self) -> Result<Inventory, KernelError> {
        let links = self.all_links().await?;
        let mut routes = Vec::new();
        for family in [AF_INET, AF_INET6] {
            for mut seen in self.main_routes(family, |_| true).await? {
                let dev =
                    links.iter().find(|link| link.index == seen.oif && !seen.spec.kind.drops());
                seen.spec.dev = dev.map(|link| link.name).unwrap_or_default();
                routes.push((seen.net, seen.metric, seen.spec));
            }
        }
        Ok(Inventory {
            links: links.into_iter().map(|link| (link.name, link.spec)).collect(),
            routes,
        })
    }

    async fn links_by_index(&mut self, indices: &[u32]) -> Result<Vec<SeenLink>, KernelError> {
        let requests = indices
            .iter()
            .map(|index| Message::new(RTM_GETLINK, 0, &link_header(*index)))
            .collect();
        self.links_of(requests).await
    }

    async fn links_of(&mut self, requests: Vec<Message>) -> Result<Vec<SeenLink>, KernelError> {
        let mut links = Vec::new();
        let answers =
            self.requests.batch(requests, LOOKUPS, |_, message| links.extend(link(message))).await;
        let is_done =
            |answer: &&Answer| matches!(answer, Answer::Done | Answer::Refused(libc::ENODEV, _));
        match answers.iter().find(|answer| !is_done(answer)) {
            None => Ok(links),
            failed => Err(KernelError::new("list network interfaces", answer_problem(failed))),
        }
    }

    async fn addresses(
        &mut self,
        scope: &Scope,
        name: LinkName,
        index: u32,
        family: u8,
        into: &mut KernelState,
    ) -> Result<(), KernelError> {
        for (net, _) in self.addresses_of(index, family).await? {
            // In a former network, only an address in the form that flanneld writes is ours. An operator's address with a subnet mask is not.
            let former =
                net.prefix_len() == net.max_prefix_len() && scope.covered(&IpNet::from(net.addr()));
            if scope.covers_ip(&net.addr()) || former {
                into.set(Key::Address(name, net), Value::Address);
            }
        }
        Ok(())
    }

    /// Each with the address scope.
    pub(super) async fn addresses_of(
        &mut self,
        index: u32,
        family: u8,
    ) -> Result<Vec<(IpNet, u8)>, KernelError> {
        let request = || Message::new(RTM_GETADDR, 0, &address_header(family, 0, index));
        self.requests
            .dump("addresses", request, Vec::new, |list, message| {
                list.extend(address(message, family, index));
            })
            .await
    }

    async fn neighbors(
        &mut self,
        scope: &Scope,
        name: LinkName,
        index: u32,
        family: u8,
        into: &mut KernelState,
    ) -> Result<(), KernelError> {
        let request = || {
            Message::new(RTM_GETNEIGH, 0, &neighbor_header(family, 0, 0, 0))
                .number(NDA_IFINDEX, index)
        };
        let all = self.requests.dump(
            "neighbours",
            request,
            Vec::new,
            |list: &mut Vec<(IpAddr, Mac)>, message| {
                let Some(seen) = neighbor(message).filter(|seen| {
                    seen.family == family && seen.index == index && seen.permanent()
                }) else {
                    return;
                };
                if let (Some(ip), Some(mac)) = (seen.dst, seen.mac)
                    && (scope.covers_ip(&ip) || scope.covered(&IpNet::from(ip)))
                {
                    list.push((ip, mac));
                }
            },
        );
        into.add(
            all.await?.into_iter().map(|(ip, mac)| (Key::Neighbor(name, ip), Value::Neighbor(mac))),
        );
        Ok(())
    }

    async fn fdb(
        &mut self,
        name: LinkName,
        index: u32,
        into: &mut KernelState,
    ) -> Result<(), KernelError> {
        let request = || Message::new(RTM_GETNEIGH, 0, &neighbor_header(AF_BRIDGE, index, 0, 0));
        let all = self.requests.dump(
            "FDB entries",
            request,
            Vec::new,
            |list: &mut Vec<(Mac, IpAddr)>, message| {
                let Some(seen) = neighbor(message).filter(|seen| {
                    seen.family == AF_BRIDGE && seen.index == index && seen.permanent()
                }) else {
                    return;
                };
                if let (Some(ip), Some(mac)) = (seen.dst, seen.mac) {
                    list.push((mac, ip));
                }
            },
        );
        into.add(all.await?.into_iter().map(|(mac, ip)| (Key::Fdb(name, mac), Value::Fdb(ip))));
        Ok(())
    }

    async fn routes(
        &mut self,
        scope: &Scope,
        family: u8,
        found: &mut ExistingState,
    ) -> Result<(), KernelError> {
        let ours: Vec<u32> = self.links.iter().map(|(_, index)| *index).collect();
        let underlay = self.underlay.0;
        let request =
            || Message::new(RTM_GETROUTE, 0, &route_header(family, 0, 0, 0, 0, RT_TABLE_MAIN));
        let begin = || (Vec::new(), BTreeSet::new());
        let all = self.requests.dump(
            "routes",
            request,
            begin,
            |(list, foreign): &mut (Vec<SeenRoute>, BTreeSet<Key>), message| {
                let Some(seen) = route(message).filter(|seen| seen.plain) else {
                    return;
                };
                if !scope.covers(&seen.net) {
                    // The protocol number alone is not sufficient: the daemon of another network on this host uses the same one.
                    let place =
                        ours.contains(&seen.oif) || seen.oif == underlay || seen.spec.kind.drops();
                    if scope.covered(&seen.net) && seen.spec.protocol == scope.protocol && place {
                        list.push(seen);
                    }
                    return;
                }
                let marked = seen.spec.protocol == scope.protocol
                    || (seen.spec.protocol != RTPROT_KERNEL && ours.contains(&seen.oif));
                if marked || seen.spec.protocol == BOOT {
                    // A replacement affects the first of several equal routes. Our route cannot be replaced if it comes after another one.
                    if !foreign.contains(&Key::Route(seen.net, seen.metric)) {
                        list.push(seen);
                    }
                } else {
                    foreign.insert(Key::Route(seen.net, seen.metric));
                }
            },
        );
        let (mut list, _) = all.await?;
        let names = self.names(list.iter().map(|seen| seen.oif)).await?;
        // From the last route to the first, because the first of several equal routes applies. The list shrinks while the objects grow: there may be ten
        // thousand routes.
        let (mut objects, mut leftovers) = (Vec::with_capacity(list.len()), Vec::new());
        while let Some(mut seen) = list.pop() {
            if list.len().is_multiple_of(1024) {
                list.shrink_to_fit();
            }
            seen.spec.dev = names
                .get(&seen.oif)
                .copied()
                .filter(|_| !seen.spec.kind.drops())
                .unwrap_or_default();
            let key = Key::Route(seen.net, seen.metric);
            if seen.spec.protocol == scope.protocol || ours.contains(&seen.oif) {
                objects.push((key, Value::Route(seen.spec)));
            } else {
                leftovers.push((key, seen.spec));
            }
        }
        found.ours.add(objects);
        found.leftovers.extend(leftovers.into_iter().rev());
        Ok(())
    }

    /// Queries the kernel for the names of unknown indices.
    async fn names(
        &mut self,
        indices: impl Iterator<Item = u32>,
    ) -> Result<BTreeMap<u32, LinkName>, KernelError> {
        let mut names: BTreeMap<u32, LinkName> =
            self.links.iter().map(|(name, index)| (*index, *name)).collect();
        names.insert(self.underlay.0, self.underlay.1);
        let unknown: BTreeSet<u32> =
            indices.filter(|index| *index != 0 && !names.contains_key(index)).collect();
        let unknown: Vec<u32> = unknown.into_iter().collect();
        names.extend(
            self.links_by_index(&unknown).await?.into_iter().map(|link| (link.index, link.name)),
        );
        Ok(names)
    }

    pub(super) async fn gather(
        &mut self,
        underlay: &Underlay,
        queries: &[IpAddr],
    ) -> Result<Facts, KernelError> {
        if self.underlay.0 != underlay.index {
            // Results for another link do not apply to this one.
            self.on_link.clear();
        }
        let mut now = underlay.clone();
        let link = self.links_by_index(&[underlay.index]).await?.into_iter().next();
        if let Some(link) = link {
            link.name.as_str().clone_into(&mut now.name);
            // The loopback interface is on no path to another host.
            if link.index != LOOPBACK {
                now.mtu = link.spec.mtu;
            }
            self.underlay = (link.index, link.name);
        } else {
            self.underlay = (underlay.index, LinkName::parse(&underlay.name).unwrap_or_default());
        }
        self.asking = !queries.is_empty();
        self.on_link = self.on_link_of(queries, underlay.index).await;
        Ok(Facts { underlay: now, on_link: self.on_link.clone(), accepted_macs: BTreeMap::new() })
    }

    /// The queried addresses that the link reaches without a gateway. If a lookup fails, the last
    /// result for the address applies.
    pub(super) async fn on_link_of(&mut self, queries: &[IpAddr], index: u32) -> BTreeSet<IpAddr> {
        let requests = queries.iter().map(|ip| {
            let (family, len) = if ip.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
            Message::new(RTM_GETROUTE, 0, &route_header(family, len, 0, 0, 0, 0)).ip(RTA_DST, *ip)
        });
        let mut near = BTreeSet::new();
        let answers = self.requests.batch(requests.collect(), LOOKUPS, |which, message| {
            let direct = route(message).is_some_and(|seen| {
                seen.spec.via.is_none() && seen.oif == index && seen.spec.kind == RouteKind::Unicast
            });
            if let (true, Some(ip)) = (direct, queries.get(which)) {
                near.insert(*ip);
            }
        });
        let answers = answers.await;
        let failed = queries
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| **answer != Answer::Done)
            .map(|(ip, _)| *ip);
        near.extend(failed.filter(|ip| self.on_link.contains(ip)));
        near
    }
}

pub(super) fn families(scope: &Scope) -> impl Iterator<Item = u8> + use<> {
    let nets = scope.former.map_or(scope.networks, |former| scope.networks.or(former));
    nets.families().map(|family| family.pick(AF_INET, AF_INET6))
}
