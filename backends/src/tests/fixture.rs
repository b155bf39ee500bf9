//! Node 1's underlay and the leases of a dual-stack network, for the tests of all backends.

use netstate::{Facts, Underlay};
use reconcile::Plan;
use reconcile::desired::Desired;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use subnet_lease::{Lease, LeaseAttrs, LeaseTable, Term};
use types::{Addresses, Dual};

/// `eth0` of node 1, with an address of each family.
pub(crate) fn underlay() -> Underlay {
    let addresses = Addresses::Both([192, 168, 56, 1].into(), "fd00:56::1".parse().unwrap());
    Underlay {
        index: 2,
        name: "eth0".into(),
        mtu: 1500,
        addresses,
        public: addresses,
        local: Vec::new(),
        links: Vec::new(),
    }
}

/// `on_link` are addresses on the underlay's link.
pub(crate) fn facts(on_link: impl IntoIterator<Item = IpAddr>) -> Facts {
    Facts {
        underlay: underlay(),
        on_link: on_link.into_iter().collect(),
        accepted_macs: BTreeMap::new(),
    }
}

/// Adds the public addresses of node `n`, which end with `ip`, to the attributes.
pub(crate) fn lease(n: u8, ip: u8, attrs: LeaseAttrs) -> Lease {
    Lease {
        subnets: Dual::Both(
            format!("10.244.{n}.0/24").parse().unwrap(),
            format!("fd10:244:0:{n}::/64").parse().unwrap(),
        ),
        attrs: LeaseAttrs {
            public_ip: Some([192, 168, 56, ip].into()),
            public_ipv6: Some(format!("fd00:56::{ip:x}").parse().unwrap()),
            ..attrs
        },
        term: Term::Leased,
        since: i64::from(n),
    }
}

pub(crate) fn table(leases: impl IntoIterator<Item = Lease>) -> LeaseTable {
    LeaseTable::of(leases, BTreeSet::new())
}

/// Partial updates from table to table yield the same kernel state as a full computation.
pub(crate) fn assert_changes_equal_the_whole(
    plan: &dyn Plan,
    tables: impl IntoIterator<Item = LeaseTable>,
    facts: &Facts,
) {
    let mut leases = LeaseTable::default();
    let mut known = Desired::whole(plan, &leases, facts);
    for next in tables {
        let whole = Desired::whole(plan, &next, facts);
        match known.change(plan, &leases, &next, facts) {
            None => known = whole,
            Some(change) => {
                known.take(change);
                assert_eq!(known, whole);
            }
        }
        leases = next;
    }
}
