//! Reads the objects of any origin in flannel's networks and on flannel's devices.

use super::NetlinkKernel;
use super::decode::{SeenNeighbor, neighbor};
use super::header::neighbor_header;
use super::read::families;
use super::uapi::*;
use super::wire::Message;
use crate::error::KernelError;
use crate::names::LinkName;
use crate::object::{Key, Value};
use crate::scope::Scope;
use crate::survey::{Origin, Seen, Survey};
use std::collections::BTreeMap;

impl NetlinkKernel {
    pub(super) async fn survey_all(&mut self, scope: &Scope) -> Result<Survey, KernelError> {
        let links = self.all_links().await?;
        let names: BTreeMap<u32, LinkName> =
            links.iter().map(|link| (link.index, link.name)).collect();
        let ours = self.links.clone();
        let mut found = Survey::default();
        for family in families(scope) {
            for (name, index) in &ours {
                self.entries(*name, *index, family, &mut found.objects).await?;
            }
            self.routes_inside(scope, family, &names, &mut found.objects).await?;
        }
        for (name, index) in ours {
            self.entries(name, index, AF_BRIDGE, &mut found.objects).await?;
        }
        found.links = links.into_iter().map(|link| (link.index, link.name, link.spec)).collect();
        Ok(found)
    }

    async fn routes_inside(
        &mut self,
        scope: &Scope,
        family: u8,
        names: &BTreeMap<u32, LinkName>,
        into: &mut Vec<Seen>,
    ) -> Result<(), KernelError> {
        let all = self.main_routes(family, |seen| scope.covers(&seen.net));
        into.extend(all.await?.into_iter().map(|mut seen| {
            seen.spec.dev = names
                .get(&seen.oif)
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
    async fn entries(
        &mut self,
        name: LinkName,
        index: u32,
        family: u8,
        into: &mut Vec<Seen>,
    ) -> Result<(), KernelError> {
        let request = || match family {
            AF_BRIDGE => Message::new(RTM_GETNEIGH, 0, &neighbor_header(AF_BRIDGE, index, 0, 0)),
            _ => Message::new(RTM_GETNEIGH, 0, &neighbor_header(family, 0, 0, 0))
                .number(NDA_IFINDEX, index),
        };
        let all = self.requests.dump(
            "neighbours and FDB entries",
            request,
            Vec::new,
            |list: &mut Vec<Seen>, message| {
                let seen = neighbor(message).filter(|seen| {
                    seen.family == family && seen.index == index && seen.says_something()
                });
                list.extend(seen.and_then(|seen| entry(name, &seen)));
            },
        );
        into.extend(all.await?);
        Ok(())
    }
}

fn entry(name: LinkName, seen: &SeenNeighbor) -> Option<Seen> {
    let (ip, mac) = seen.dst.zip(seen.mac)?;
    let (key, value) = match seen.family {
        AF_BRIDGE => (Key::Fdb(name, mac), Value::Fdb(ip)),
        _ => (Key::Neighbor(name, ip), Value::Neighbor(mac)),
    };
    let origin = match (seen.protocol, seen.fed(), seen.permanent()) {
        (Some(protocol), ..) if protocol != 0 => Origin::Protocol(protocol),
        (_, true, _) => Origin::ExternLearn,
        (_, false, true) => Origin::Set,
        (_, false, false) => Origin::Learned,
    };
    Some(Seen { key, value, origin })
}
