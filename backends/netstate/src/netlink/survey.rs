//! Reads the objects of any origin in flannel's networks and on flannel's devices.

use super::NetlinkKernel;
use super::read::families;
use crate::names::{LinkName, Mac};
use crate::object::{Key, Value};
use crate::scope::Scope;
use crate::survey::{Origin, Seen, Survey};
use netlink::KernelError;
use netlink::neighbor::{Neighbor, fdb_of_link, neighbors_of_link};
use netlink::uapi::*;
use std::collections::BTreeMap;

impl NetlinkKernel {
    pub(super) fn survey_all(&mut self, scope: &Scope) -> Result<Survey, KernelError> {
        let links = self.all_links()?;
        let names: BTreeMap<u32, LinkName> =
            links.iter().map(|link| (link.index, link.name)).collect();
        let ours = self.links.clone();
        let mut found = Survey::default();
        for family in families(scope) {
            for (name, index) in &ours {
                self.survey_neighbors(*name, *index, family, &mut found.objects)?;
            }
            self.survey_routes(scope, family, &names, &mut found.objects)?;
        }
        for (name, index) in ours {
            self.survey_neighbors(name, index, AF_BRIDGE, &mut found.objects)?;
        }
        found.links = links.into_iter().map(|link| (link.index, link.name, link.spec)).collect();
        Ok(found)
    }

    fn survey_routes(
        &mut self,
        scope: &Scope,
        family: u8,
        names: &BTreeMap<u32, LinkName>,
        into: &mut Vec<Seen>,
    ) -> Result<(), KernelError> {
        let all = self.main_routes(family, |seen| scope.covers(&seen.net));
        into.extend(all?.into_iter().map(|mut seen| {
            seen.spec.dev = names
                .get(&seen.index)
                .copied()
                .filter(|_| !seen.spec.kind.drops())
                .unwrap_or_default();
            Seen {
                key: Key::Route(seen.net, seen.metric),
                value: Value::Route(seen.spec),
                origin: Origin::Protocol(seen.spec.protocol),
            }
        }));
        Ok(())
    }

    /// AF_BRIDGE stands for the FDB entries.
    fn survey_neighbors(
        &mut self,
        name: LinkName,
        index: u32,
        family: u8,
        into: &mut Vec<Seen>,
    ) -> Result<(), KernelError> {
        let query = match family {
            AF_BRIDGE => fdb_of_link(index),
            _ => neighbors_of_link(index, family),
        };
        let all = self.client.dump(&query, |message| {
            let seen = Neighbor::decode(message)
                .filter(|seen| seen.family == family && seen.index == index && seen.is_resolved());
            seen_neighbor(name, &seen?)
        });
        into.extend(all?);
        Ok(())
    }
}

fn seen_neighbor(name: LinkName, seen: &Neighbor) -> Option<Seen> {
    let (ip, mac) = (seen.destination?, Mac(seen.mac?));
    let (key, value) = match seen.family {
        AF_BRIDGE => (Key::Fdb(name, mac), Value::Fdb(ip)),
        _ => (Key::Neighbor(name, ip), Value::Neighbor(mac)),
    };
    let origin = match (seen.protocol, seen.is_learned_by_program(), seen.is_permanent()) {
        (Some(protocol), ..) if protocol != 0 => Origin::Protocol(protocol),
        (_, true, _) => Origin::ExternLearn,
        (_, false, true) => Origin::Set,
        (_, false, false) => Origin::Learned,
    };
    Some(Seen { key, value, origin })
}
