//! Reads flannel's kernel objects with filtered dumps, one dump for each kind of object.

use super::decode::{PlainRoute, SeenLink, decode_link, decode_plain_route};
use super::{NetlinkKernel, ethtool};
use crate::cleanup::Inventory;
use crate::kernel::{ExistingState, Facts};
use crate::link::LinkKind;
use crate::names::{LinkName, Mac};
use crate::object::{KernelState, Key, Value};
use crate::route::BOOT;
use crate::scope::Scope;
use crate::underlay::Underlay;
use ipnet::IpNet;
use netlink::address::{Address, addresses_of_link};
use netlink::link::{Link, all_links, link_of_index, link_of_name, look_up_links};
use netlink::neighbor::{Neighbor, fdb_of_link, neighbors_of_link};
use netlink::route::{Route, route_to, routes_of_table};
use netlink::uapi::*;
use netlink::{KernelError, Query, family_number};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

type Links = BTreeMap<LinkName, SeenLink>;

impl NetlinkKernel {
    pub(super) fn read_all(&mut self, scope: &Scope) -> Result<ExistingState, KernelError> {
        let mut links = self.links_by_name(&scope.links)?;
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
                    LinkKind::Wireguard(self.wireguard(scope, name, link.index, &mut found)?);
            }
            found.ours.set(Key::Link(name), Value::Link(Box::new(link.spec)));
            if foreign {
                continue;
            }
            for family in families(scope) {
                self.read_addresses(scope, name, link.index, family, &mut found.ours)?;
                self.read_neighbors(scope, name, link.index, family, &mut found.ours)?;
            }
            if vxlan {
                self.read_fdb(name, link.index, &mut found.ours)?;
            }
        }
        for family in families(scope) {
            self.read_routes(scope, family, &mut found)?;
        }
        Ok(found)
    }

    /// Reads the interfaces that were flannel's WireGuard interfaces at the last full read.
    pub(super) fn peers_of_all(&mut self, scope: &Scope) -> Result<ExistingState, KernelError> {
        let mut found = ExistingState::default();
        for (name, index) in self.wireguards.clone() {
            self.wireguard(scope, name, index, &mut found)?;
        }
        Ok(found)
    }

    /// The result omits links that do not exist.
    pub(super) fn links_by_name(&mut self, names: &[LinkName]) -> Result<Links, KernelError> {
        let requests = names.iter().map(|name| link_of_name(name.as_str())).collect();
        let links = look_up_links(&mut self.client, requests, decode_link)?;
        Ok(links.into_iter().map(|link| (link.name, link)).collect())
    }

    /// Includes the links of other programs.
    pub(super) fn all_links(&mut self) -> Result<Vec<SeenLink>, KernelError> {
        self.client.dump(&all_links(), |message| decode_link(&Link::decode(message)?))
    }

    /// The plain routes of one address family that `keep` selects.
    pub(super) fn main_routes(
        &mut self,
        family: u8,
        keep: impl Fn(&PlainRoute) -> bool,
    ) -> Result<Vec<PlainRoute>, KernelError> {
        self.client.dump(&main_table(family), |message| decode_plain_route(message).filter(&keep))
    }

    pub(super) fn list_all(&mut self) -> Result<Inventory, KernelError> {
        let links = self.all_links()?;
        let mut routes = Vec::new();
        for family in [AF_INET, AF_INET6] {
            for mut seen in self.main_routes(family, |_| true)? {
                let dev =
                    links.iter().find(|link| link.index == seen.index && !seen.spec.kind.drops());
                seen.spec.dev = dev.map(|link| link.name).unwrap_or_default();
                routes.push((seen.net, seen.metric, seen.spec));
            }
        }
        Ok(Inventory {
            links: links.into_iter().map(|link| (link.name, link.spec)).collect(),
            routes,
        })
    }

    fn links_by_index(&mut self, indices: &[u32]) -> Result<Vec<SeenLink>, KernelError> {
        let requests = indices.iter().map(|index| link_of_index(*index)).collect();
        look_up_links(&mut self.client, requests, decode_link)
    }

    fn read_addresses(
        &mut self,
        scope: &Scope,
        name: LinkName,
        index: u32,
        family: u8,
        into: &mut KernelState,
    ) -> Result<(), KernelError> {
        for Address { net, .. } in self.addresses_of(index, family)? {
            // In a former network, only an address in the form that flanneld writes is ours. An operator's address with a subnet mask is not.
            let former =
                net.prefix_len() == net.max_prefix_len() && scope.covered(&IpNet::from(net.addr()));
            if scope.covers_ip(&net.addr()) || former {
                into.set(Key::Address(name, net), Value::Address);
            }
        }
        Ok(())
    }

    pub(super) fn addresses_of(
        &mut self,
        index: u32,
        family: u8,
    ) -> Result<Vec<Address>, KernelError> {
        self.client.dump(&addresses_of_link(index, family), |message| {
            let is_wanted = |address: &Address| {
                address.index == index && address.net.addr().is_ipv4() == (family == AF_INET)
            };
            Address::decode(message).filter(is_wanted)
        })
    }

    fn read_neighbors(
        &mut self,
        scope: &Scope,
        name: LinkName,
        index: u32,
        family: u8,
        into: &mut KernelState,
    ) -> Result<(), KernelError> {
        let all = self.client.dump(&neighbors_of_link(index, family), |message| {
            let seen = Neighbor::decode(message).filter(|seen| {
                seen.family == family && seen.index == index && seen.is_permanent()
            })?;
            let (ip, mac) = seen.destination.zip(seen.mac)?;
            (scope.covers_ip(&ip) || scope.covered(&IpNet::from(ip))).then_some((ip, Mac(mac)))
        });
        into.add(all?.into_iter().map(|(ip, mac)| (Key::Neighbor(name, ip), Value::Neighbor(mac))));
        Ok(())
    }

    fn read_fdb(
        &mut self,
        name: LinkName,
        index: u32,
        into: &mut KernelState,
    ) -> Result<(), KernelError> {
        let all = self.client.dump(&fdb_of_link(index), |message| {
            let seen = Neighbor::decode(message).filter(|seen| {
                seen.family == AF_BRIDGE && seen.index == index && seen.is_permanent()
            })?;
            Some((Mac(seen.mac?), seen.destination?))
        });
        into.add(all?.into_iter().map(|(mac, ip)| (Key::Fdb(name, mac), Value::Fdb(ip))));
        Ok(())
    }

    fn read_routes(
        &mut self,
        scope: &Scope,
        family: u8,
        found: &mut ExistingState,
    ) -> Result<(), KernelError> {
        let ours: Vec<u32> = self.links.iter().map(|(_, index)| *index).collect();
        let underlay = self.underlay.0;
        let begin = || (Vec::new(), BTreeSet::new());
        let all = self.client.fold_dump(
            &main_table(family),
            begin,
            |(list, foreign): &mut (Vec<PlainRoute>, BTreeSet<Key>), message| {
                let Some(seen) = decode_plain_route(message) else {
                    return;
                };
                if !scope.covers(&seen.net) {
                    // The protocol number alone is not sufficient: the daemon of another network on this host uses the same one.
                    let place = ours.contains(&seen.index)
                        || seen.index == underlay
                        || seen.spec.kind.drops();
                    if scope.covered(&seen.net) && seen.spec.protocol == scope.protocol && place {
                        list.push(seen);
                    }
                    return;
                }
                let marked = seen.spec.protocol == scope.protocol
                    || (seen.spec.protocol != RTPROT_KERNEL && ours.contains(&seen.index));
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
        let (mut list, _) = all?;
        let names = self.names(list.iter().map(|seen| seen.index))?;
        // From the last route to the first, because the first of several equal routes applies. The list shrinks while the objects grow: there may be ten
        // thousand routes.
        let (mut objects, mut leftovers) = (Vec::with_capacity(list.len()), Vec::new());
        while let Some(mut seen) = list.pop() {
            if list.len().is_multiple_of(1024) {
                list.shrink_to_fit();
            }
            seen.spec.dev = names
                .get(&seen.index)
                .copied()
                .filter(|_| !seen.spec.kind.drops())
                .unwrap_or_default();
            let key = Key::Route(seen.net, seen.metric);
            if seen.spec.protocol == scope.protocol || ours.contains(&seen.index) {
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
    fn names(
        &mut self,
        indices: impl Iterator<Item = u32>,
    ) -> Result<BTreeMap<u32, LinkName>, KernelError> {
        let mut names: BTreeMap<u32, LinkName> =
            self.links.iter().map(|(name, index)| (*index, *name)).collect();
        names.insert(self.underlay.0, self.underlay.1);
        let unknown: BTreeSet<u32> =
            indices.filter(|index| *index != 0 && !names.contains_key(index)).collect();
        let unknown: Vec<u32> = unknown.into_iter().collect();
        names
            .extend(self.links_by_index(&unknown)?.into_iter().map(|link| (link.index, link.name)));
        Ok(names)
    }

    pub(super) fn gather(
        &mut self,
        underlay: &Underlay,
        queries: &[IpAddr],
    ) -> Result<Facts, KernelError> {
        if self.underlay.0 != underlay.index {
            // Results for another link do not apply to this one.
            self.on_link.clear();
        }
        let mut now = underlay.clone();
        let link = self.links_by_index(&[underlay.index])?.into_iter().next();
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
        self.on_link = self.on_link_of(queries, underlay.index);
        Ok(Facts { underlay: now, on_link: self.on_link.clone(), accepted_macs: BTreeMap::new() })
    }

    /// The queried addresses that the link reaches without a gateway. If a lookup fails, the last
    /// result for the address applies.
    pub(super) fn on_link_of(&mut self, queries: &[IpAddr], index: u32) -> BTreeSet<IpAddr> {
        let requests = queries.iter().map(|ip| route_to(*ip, 0)).collect();
        let found = self.client.look_up(requests, |message| {
            let route = Route::decode(message)?;
            Some(route.via.is_none() && route.index == index && route.kind == RTN_UNICAST)
        });
        let near = queries.iter().zip(found).filter(|(ip, direct)| match direct {
            Ok(direct) => *direct == Some(true),
            Err(_) => self.on_link.contains(*ip),
        });
        near.map(|(ip, _)| *ip).collect()
    }
}

fn main_table(family: u8) -> Query {
    routes_of_table(family, u32::from(RT_TABLE_MAIN))
}

pub(super) fn families(scope: &Scope) -> impl Iterator<Item = u8> + use<> {
    let nets = scope.former.map_or(scope.networks, |former| scope.networks.or(former));
    nets.families().map(family_number)
}
