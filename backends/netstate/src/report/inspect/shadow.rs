//! Finds foreign routes that divert the packets to a peer. Among matching routes, the kernel prefers the longer prefix, then the lower metric, then the older route.

use crate::object::route::{RouteKind, metric};
use crate::object::{Key, Value};
use crate::report::sighting::Sighting;
use crate::report::survey::Seen;
use ipnet::IpNet;
use types::kernel_object::Holder;

/// A message names at most so many peers for one foreign route.
const NAMED: usize = 16;

/// The peers: network and metric of the peer's route, and whether the route exists.
pub(super) struct Shadows<'a> {
    peers: Vec<(&'a Holder, IpNet, u32, bool)>,
}

impl<'a> Shadows<'a> {
    /// `is_there` tells whether a desired object exists in the kernel.
    pub(super) fn of(sighting: &'a Sighting, is_there: impl Fn(&Key) -> bool) -> Self {
        // A route for all peers, such as the one to the packet engine's device, has no holder.
        let common = sighting.want.0.iter().filter_map(|(key, value)| match (key, value) {
            (Key::Route(net, metric), Value::Route(route))
                if route.kind == RouteKind::Unicast && !sighting.owners.contains_key(key) =>
            {
                Some((*net, *metric))
            }
            _ => None,
        });
        let common: Vec<(IpNet, u32)> = common.collect();
        let peers = sighting.holders.iter().filter_map(|holder| {
            let exact = (holder.subnet, metric(&holder.subnet));
            let is_wanted = sighting.want.0.contains_key(&Key::Route(exact.0, exact.1));
            let covering = || common.iter().find(|(net, _)| net.contains(&holder.subnet)).copied();
            let (net, metric) = if is_wanted { exact } else { covering()? };
            Some((holder, net, metric, is_there(&Key::Route(net, metric))))
        });
        Self { peers: peers.collect() }
    }

    /// The peers whose traffic from this node a foreign route diverts.
    pub(super) fn cast_by(&self, seen: &Seen) -> Vec<String> {
        let Key::Route(net, metric) = &seen.key else {
            return Vec::new();
        };
        let cut = self.peers.iter().filter(|(holder, ours, our_metric, in_place)| {
            let overlaps = net.contains(&holder.subnet) || holder.subnet.contains(net);
            let better = net.prefix_len() > ours.prefix_len()
                || net == ours && (metric < our_metric || metric == our_metric && !in_place);
            overlaps && better
        });
        let mut named: Vec<String> = cut.map(|(holder, ..)| title(holder)).collect();
        if named.len() > NAMED {
            let more = named.len() - NAMED;
            named.truncate(NAMED);
            named.push(format!("and {more} more"));
        }
        named
    }
}

fn title(holder: &Holder) -> String {
    match &holder.node {
        Some(node) => format!("{} ({node})", holder.subnet),
        None => holder.subnet.to_string(),
    }
}
