//! Routes of the main table.

use crate::kernel::{ExistingState, FailureKind};
use crate::names::LinkName;
use crate::netlink::NetlinkKernel;
use crate::netlink::watched::Watched;
use crate::object::route::{BOOT, RouteSpec};
use crate::object::{Key, Op, Value};
use crate::report::survey::{Origin, Seen};
use crate::scope::Scope;
use ipnet::IpNet;
use netlink::header::route_header;
use netlink::route::{Route, routes_of_table};
use netlink::uapi::*;
use netlink::{KernelError, Message, Query, Received, family_number};
use std::collections::BTreeSet;
use types::Problem;

/// A route of the main table without a type of service, as flannel's routes are.
pub(crate) struct PlainRoute {
    pub net: IpNet,
    pub metric: u32,
    /// Of the outgoing link.
    pub index: u32,
    /// Its device has no name yet.
    pub spec: RouteSpec,
}

impl PlainRoute {
    pub(crate) fn decode(message: &Received<'_>) -> Option<Self> {
        let route = Route::decode(message)?;
        (route.tos == 0 && route.is_of_main_table()).then(|| Self {
            net: route.net,
            metric: route.metric,
            index: route.index,
            spec: RouteSpec {
                via: route.via,
                dev: LinkName::default(),
                onlink: route.flags & RTNH_F_ONLINK != 0,
                kind: route.kind,
                scope: route.scope,
                protocol: route.protocol,
            },
        })
    }

    pub(crate) fn key(&self) -> Key {
        Key::Route(self.net, self.metric)
    }

    /// With the name of the outgoing link.
    pub(crate) fn named(self, name: impl FnOnce(u32) -> Option<LinkName>) -> RouteSpec {
        let dev = if self.spec.kind.drops() { None } else { name(self.index) };
        RouteSpec { dev: dev.unwrap_or_default(), ..self.spec }
    }
}

pub(crate) fn main_table(family: u8) -> Query {
    routes_of_table(family, RT_TABLE_MAIN)
}

pub(super) fn read_routes(
    kernel: &mut NetlinkKernel,
    scope: &Scope,
    family: u8,
    found: &mut ExistingState,
) -> Result<(), KernelError> {
    let ours: Vec<u32> = kernel.links.iter().map(|(_, index)| *index).collect();
    let underlay = kernel.underlay.0;
    let begin = || (Vec::new(), BTreeSet::new());
    let all = kernel.client.fold_dump(
        &main_table(family),
        begin,
        |(list, foreign): &mut (Vec<PlainRoute>, BTreeSet<Key>), message| {
            let Some(seen) = PlainRoute::decode(message) else {
                return;
            };
            if !scope.covers(&seen.net) {
                // The protocol number alone is not sufficient: the daemon of another network on this host uses the same one.
                let place =
                    ours.contains(&seen.index) || seen.index == underlay || seen.spec.kind.drops();
                if scope.covered(&seen.net) && seen.spec.protocol == scope.protocol && place {
                    list.push(seen);
                }
                return;
            }
            let marked = seen.spec.protocol == scope.protocol
                || (seen.spec.protocol != RTPROT_KERNEL && ours.contains(&seen.index));
            if marked || seen.spec.protocol == BOOT {
                // A replacement affects the first of several equal routes. Our route cannot be replaced if it comes after another one.
                if !foreign.contains(&seen.key()) {
                    list.push(seen);
                }
            } else {
                foreign.insert(seen.key());
            }
        },
    );
    let (mut list, _) = all?;
    let names = kernel.names(list.iter().map(|seen| seen.index))?;
    // From the last route to the first, because the first of several equal routes applies. The list shrinks while the objects grow: there may be ten
    // thousand routes.
    let (mut objects, mut leftovers) = (Vec::with_capacity(list.len()), Vec::new());
    while let Some(seen) = list.pop() {
        if list.len().is_multiple_of(1024) {
            list.shrink_to_fit();
        }
        let (key, index) = (seen.key(), seen.index);
        let route = seen.named(|index| names.get(&index).copied());
        if route.protocol == scope.protocol || ours.contains(&index) {
            objects.push((key, Value::Route(route)));
        } else {
            leftovers.push((key, route));
        }
    }
    found.ours.add(objects);
    found.leftovers.extend(leftovers.into_iter().rev());
    Ok(())
}

pub(super) fn survey_routes(
    kernel: &mut NetlinkKernel,
    scope: &Scope,
    family: u8,
) -> Result<Vec<Seen>, KernelError> {
    let list = kernel.client.dump(&main_table(family), |message| {
        PlainRoute::decode(message).filter(|seen| scope.covers(&seen.net))
    })?;
    let names = kernel.names(list.iter().map(|seen| seen.index))?;
    let named = list.into_iter().map(|seen| {
        let (key, origin) = (seen.key(), Origin::Protocol(seen.spec.protocol));
        let value = Value::Route(seen.named(|index| names.get(&index).copied()));
        Seen { key, value, origin }
    });
    Ok(named.collect())
}

pub(super) fn concerns_routes(message: &Received<'_>, watched: &Watched<'_>) -> bool {
    let Some(seen) = PlainRoute::decode(message) else {
        return false;
    };
    let Watched { scope, on_link, asking, .. } = watched;
    // Routes to single pods come and go with the pods.
    let pod = seen.net.prefix_len() == seen.net.max_prefix_len();
    let ours = seen.spec.protocol == scope.protocol || watched.name_of(seen.index).is_some();
    let covered = scope.covers(&seen.net);
    // A route outside our networks may change an on-link result. So may one inside them, if it covers addresses of nodes.
    let asked = *asking && (!covered || !ours && on_link.iter().any(|ip| seen.net.contains(ip)));
    let inside = covered && seen.spec.protocol != RTPROT_KERNEL && (ours || !pod);
    let (key, added) = (seen.key(), message.kind == RTM_NEWROUTE);
    let name = |index| {
        watched.name_of(index).or((index == watched.underlay.0).then_some(watched.underlay.1))
    };
    asked || inside && !watched.is_known(&key, Some(&Value::Route(seen.named(name))), added)
}

/// A deletion contains all known properties, such as the protocol number, so that the kernel
/// deletes no other route.
pub(super) fn encode_request(
    op: &Op,
    index: u32,
    net: &IpNet,
    metric: u32,
    route: &RouteSpec,
) -> Message {
    let any_kind = op.is_deletion() && !route.kind.drops();
    let kind = if any_kind { RTN_UNSPEC } else { route.kind.number() };
    let scope = match net {
        _ if !op.is_deletion() => route.scope,
        IpNet::V4(_) => RT_SCOPE_NOWHERE,
        IpNet::V6(_) => 0,
    };
    let family = family_number(net);
    let onlink = if route.onlink && !op.is_deletion() { RTNH_F_ONLINK } else { 0 };
    let header = route_header(family, net.prefix_len(), route.protocol, scope, kind, onlink);
    let (kind, flags) = op.kind_and_flags(RTM_NEWROUTE);
    let mut message = Message::new(kind, flags, &header).ip(RTA_DST, net.network());
    if index != 0 {
        message = message.number(RTA_OIF, index);
    }
    if let Some(via) = route.via.filter(|via| via.is_ipv4() == net.addr().is_ipv4()) {
        message = message.ip(RTA_GATEWAY, via);
    }
    if metric == 0 { message } else { message.number(RTA_PRIORITY, metric) }
}

pub(super) fn explain_refusal(
    op: &Op,
    net: &IpNet,
    route: &RouteSpec,
    errno: i32,
) -> Option<(FailureKind, Problem)> {
    let dev = route.dev;
    let problem = match (errno, op, route.via) {
        (libc::EEXIST, Op::Add(..), _) => Problem::new(
            "route-exists",
            format!(
                "; another route to {net} already exists; find the route with `ip route show {net}` and remove it (an address of cni0 causes a route through cni0: remove the address with `ip address del`, and restart the pods of its subnet)"
            ),
        ),
        (
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL,
            Op::Add(..) | Op::Replace(..),
            Some(via),
        ) => match route.onlink {
            // The interface is the underlay's.
            false => Problem::new(
                "peer-not-on-link",
                format!(
                    "; the peer's address {via} is not on the network of {dev}: host-gw and DirectRouting need a direct link; other peers are not affected"
                ),
            ),
            true => Problem::new(
                "gateway-unreachable",
                format!(
                    "; {via} must be reachable over {dev}; check that the interface is up and that no other route to {via} takes precedence (ip route get {via})"
                ),
            ),
        },
        _ => return None,
    };
    Some((FailureKind::Conflict, problem))
}
