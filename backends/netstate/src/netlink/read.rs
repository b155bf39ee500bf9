//! Reads flannel's kernel objects with filtered dumps, and the facts about the underlay.

use super::NetlinkKernel;
use super::watched::Watched;
use crate::cleanup::Inventory;
use crate::kernel::{ExistingState, Facts, Kernel, OpError};
use crate::kinds;
use crate::kinds::route::{PlainRoute, main_table};
use crate::names::LinkName;
use crate::object::link::SeenLink;
use crate::object::{KernelState, Op};
use crate::report::survey::Survey;
use crate::scope::Scope;
use crate::underlay::Underlay;
use async_trait::async_trait;
use netlink::address::{Address, addresses_of_link};
use netlink::link::{Link, all_links, link_of_index, link_of_name, look_up_links};
use netlink::route::{Route, route_to};
use netlink::uapi::*;
use netlink::{KernelError, Notified, Subscription};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

type Links = BTreeMap<LinkName, SeenLink>;

#[async_trait]
impl Kernel for NetlinkKernel {
    async fn read(
        &mut self,
        scope: &Scope,
        _want: &KernelState,
    ) -> Result<ExistingState, KernelError> {
        kinds::read_existing(self, scope)
    }

    async fn survey(&mut self, scope: &Scope) -> Result<Survey, KernelError> {
        Ok(Survey { links: self.all_links()?, objects: kinds::survey_objects(self, scope)? })
    }

    async fn facts(
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
        self.on_link = self.look_up_on_link(queries);
        Ok(Facts { underlay: now, on_link: self.on_link.clone(), accepted_macs: BTreeMap::new() })
    }

    async fn on_link(&mut self, queries: &[IpAddr]) -> BTreeSet<IpAddr> {
        self.asking |= !queries.is_empty();
        let near = self.look_up_on_link(queries);
        self.on_link.retain(|ip| !queries.contains(ip));
        self.on_link.extend(&near);
        near
    }

    async fn apply(&mut self, ops: &[Op]) -> Vec<OpError> {
        self.apply_all(ops)
    }

    async fn wait_for_change(&mut self, scope: &Scope, known: Option<&KernelState>) {
        let (subscription, watched) = self.watched(scope, known);
        subscription.wait(|message| kinds::concerns_flannel(message, &watched)).await;
    }

    fn change_pending(&mut self, scope: &Scope, known: Option<&KernelState>) -> bool {
        let (subscription, watched) = self.watched(scope, known);
        subscription.take_queued(|message| kinds::concerns_flannel(message, &watched)) != Notified::Nothing
            // Changes are not announced.
            || !subscription.is_open()
    }
}

impl NetlinkKernel {
    /// Flannel's links, once for each family of its networks.
    pub(crate) fn links_by_family(&self, scope: &Scope) -> Vec<(LinkName, u32, u8)> {
        let of = |(name, index): &(LinkName, u32)| {
            let (name, index) = (*name, *index);
            scope.family_numbers().map(move |family| (name, index, family))
        };
        self.links.iter().flat_map(of).collect()
    }

    /// The result omits links that do not exist.
    pub(crate) fn links_by_name(&mut self, names: &[LinkName]) -> Result<Links, KernelError> {
        let requests = names.iter().map(|name| link_of_name(name.as_str())).collect();
        let links = look_up_links(&mut self.client, requests, SeenLink::decode)?;
        Ok(links.into_iter().map(|link| (link.name, link)).collect())
    }

    /// Includes the links of other programs.
    pub(super) fn all_links(&mut self) -> Result<Vec<SeenLink>, KernelError> {
        self.client.dump(&all_links(), |message| SeenLink::decode(&Link::decode(message)?))
    }

    /// All interfaces, and all routes of the main table except cached ones and those with a type of
    /// service (TOS).
    pub fn inventory(&mut self) -> Result<Inventory, KernelError> {
        let links = self.all_links()?;
        let mut routes = Vec::new();
        for family in [AF_INET, AF_INET6] {
            for seen in self.client.dump(&main_table(family), PlainRoute::decode)? {
                let name = |index| Some(links.iter().find(|link| link.index == index)?.name);
                routes.push((seen.net, seen.metric, seen.named(name)));
            }
        }
        Ok(Inventory { links, routes })
    }

    fn links_by_index(&mut self, indices: &[u32]) -> Result<Vec<SeenLink>, KernelError> {
        let requests = indices.iter().map(|index| link_of_index(*index)).collect();
        look_up_links(&mut self.client, requests, SeenLink::decode)
    }

    pub(crate) fn addresses_of(
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

    /// Queries the kernel for the names of unknown indices.
    pub(crate) fn names(
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

    fn watched<'a>(
        &'a mut self,
        scope: &'a Scope,
        known: Option<&'a KernelState>,
    ) -> (&'a mut Subscription, Watched<'a>) {
        let Self { subscription, links, underlay, asking, on_link, .. } = self;
        let (underlay, asking) = (*underlay, *asking);
        (subscription, Watched { links, underlay, asking, on_link, scope, known })
    }

    /// The queried addresses that the underlay reaches without a gateway. If a lookup fails, the last
    /// result for the address applies.
    fn look_up_on_link(&mut self, queries: &[IpAddr]) -> BTreeSet<IpAddr> {
        let index = self.underlay.0;
        let requests = queries.iter().map(|ip| route_to(*ip, 0)).collect();
        let found = self
            .client
            .look_up(requests, |message| Some(Route::decode(message)?.link() == Some(index)));
        let near = queries.iter().zip(found).filter(|(ip, direct)| match direct {
            Ok(direct) => *direct == Some(true),
            Err(_) => self.on_link.contains(*ip),
        });
        near.map(|(ip, _)| *ip).collect()
    }
}
