//! Separates failures of single peers from failures of this node. Pure.
//!
//! Any node of the cluster may publish an address that this node's kernel refuses, which is not a
//! fault of this node.

use netstate::{FailureKind, KernelState, Key, OpError};
use std::collections::{BTreeMap, BTreeSet};
use types::Family;
use types::kernel_object::Holder;

/// The kernel refuses its objects for a reason that concerns only this peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedPeer {
    /// The peer in one address family.
    pub peer: Holder,
    /// The first one for an object of the peer.
    pub why: OpError,
}

/// The failures of one pass of the reconciler.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// Failures of this node's own objects, and failures with a cause on this host.
    pub node: Vec<OpError>,
    /// Peers that failed for a reason that concerns only them.
    pub peers: Vec<FailedPeer>,
}

impl Failures {
    /// Assigns each error of a pass to this node or to a peer. `own` are the objects that the node
    /// needs even without peers; `holders` and `owners` are as in
    /// [`holders`](crate::plan::holders).
    ///
    /// If an address family has several peers and all of them fail, the cause is on this host.
    #[must_use]
    pub fn of(
        errors: Vec<OpError>,
        own: &KernelState,
        holders: &[Holder],
        owners: &BTreeMap<Key, usize>,
    ) -> Self {
        let owner = |error: &OpError| {
            let place = owners
                .get(&error.key)
                .filter(|_| error.kind == FailureKind::Conflict && !own.0.contains_key(&error.key));
            place.and_then(|place| Some((*place, holders.get(*place)?)))
        };
        let failed: BTreeSet<usize> =
            errors.iter().filter_map(|error| Some(owner(error)?.0)).collect();
        let peers: BTreeSet<usize> = owners.values().copied().collect();
        let all_failed = Family::ALL.map(|family| {
            let count = |places: &BTreeSet<usize>| {
                let holders = places.iter().filter_map(|place| holders.get(*place));
                holders.filter(|holder| Family::from(holder.subnet) == family).count()
            };
            count(&failed) > 1 && count(&failed) == count(&peers)
        });
        let mut failures = Self::default();
        let mut reported = BTreeSet::new();
        for error in errors {
            match owner(&error) {
                Some((place, peer))
                    if !Family::from(peer.subnet).pick(all_failed[0], all_failed[1]) =>
                {
                    if reported.insert(place) {
                        failures.peers.push(FailedPeer { peer: peer.clone(), why: error });
                    }
                }
                _ => failures.node.push(error),
            }
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink::kernel_refusal;
    use netstate::{LinkName, Mac};
    use proptest::prelude::*;
    use types::Errno;
    use types::Family::{V4, V6};

    fn subnet(peer: u8, family: Family) -> ipnet::IpNet {
        family.pick(
            format!("10.244.{peer}.0/24").parse().unwrap(),
            format!("fd00:0:0:{peer:x}::/64").parse().unwrap(),
        )
    }

    fn route(peer: u8, family: Family) -> Key {
        Key::Route(subnet(peer, family), 0)
    }

    fn fdb(peer: u8) -> Key {
        Key::Fdb(LinkName::parse("flannel.1").unwrap(), Mac([2, 0, 0, 0, 0, peer]))
    }

    fn error(key: Key, kind: FailureKind) -> OpError {
        OpError { verb: "add", key, kind, why: kernel_refusal(Errno(libc::EINVAL)) }
    }

    /// Each peer has a route and an FDB entry. The result is the number of this node's failures,
    /// and the subnets of the failed peers.
    fn sorted(
        peers: &[(u8, Family)],
        own: &[Key],
        errors: Vec<OpError>,
    ) -> (usize, Vec<ipnet::IpNet>) {
        let mut owners = BTreeMap::new();
        let mut holders = Vec::new();
        for (place, (peer, family)) in peers.iter().enumerate() {
            holders.push(Holder {
                node: None,
                subnet: subnet(*peer, *family),
                address: [192, 168, 56, *peer].into(),
            });
            owners.insert(route(*peer, *family), place);
            owners.entry(fdb(*peer)).or_insert(place);
        }
        let mut state = KernelState::default();
        own.iter().for_each(|key| state.set(*key, netstate::object::Value::Address));
        let failures = Failures::of(errors, &state, &holders, &owners);
        (failures.node.len(), failures.peers.into_iter().map(|failed| failed.peer.subnet).collect())
    }

    #[test]
    fn refusal_is_the_nodes_if_it_is_local_or_hits_all_of_several_peers() {
        let (two, dual) = ([(2, V4), (3, V4)], [(2, V4), (3, V4), (2, V6), (3, V6)]);
        let link = Key::Link(LinkName::parse("flannel.1").unwrap());
        let own = [link, route(9, V4), route(3, V4)];
        let all = |family| vec![route(2, family), route(3, family)];
        let conflict = FailureKind::Conflict;
        for (peers, own, keys, kind, wanted) in [
            (&two[..1], &[][..], vec![route(2, V4)], conflict, (0, vec![subnet(2, V4)])),
            (&two, &[], all(V4), conflict, (2, vec![])),
            // The other family works.
            (&dual, &[], all(V6), conflict, (2, vec![])),
            (&dual, &[], vec![route(2, V6)], conflict, (0, vec![subnet(2, V6)])),
            (&two, &[], vec![route(3, V4)], FailureKind::Other, (1, vec![])),
            (&two, &[], vec![route(3, V4)], FailureKind::Unsupported, (1, vec![])),
            (&two, &own, own.to_vec(), conflict, (3, vec![])),
            // A leftover object that belongs to no peer.
            (&two[..1], &[], vec![route(77, V4)], conflict, (1, vec![])),
        ] {
            let errors = keys.iter().map(|key| error(*key, kind)).collect();
            assert_eq!(sorted(peers, own, errors), wanted, "{keys:?} {kind:?}");
        }
    }

    proptest! {
        /// Failures of peers do not become failures of the node while another peer works, and no failure is lost.
        #[test]
        fn bad_peers_never_hold_back_a_node_with_a_good_one(bad in proptest::collection::btree_set(3u8..60, 0..58), twice: bool, broken in 0usize..3) {
            let peers: Vec<(u8, Family)> = (2..60).map(|peer| (peer, V4)).collect();
            let mut errors: Vec<OpError> = bad.iter().map(|peer| error(route(*peer, V4), FailureKind::Conflict)).collect();
            if twice {
                errors.extend(bad.iter().map(|peer| error(fdb(*peer), FailureKind::Conflict)));
            }
            errors.extend((0..broken).map(|_| error(Key::Link(LinkName::parse("flannel.1").unwrap()), FailureKind::Other)));
            let (node, failed) = sorted(&peers, &[], errors);
            prop_assert_eq!(node, broken);
            prop_assert_eq!(failed, bad.iter().map(|peer| subnet(*peer, V4)).collect::<Vec<_>>());
        }
    }
}
