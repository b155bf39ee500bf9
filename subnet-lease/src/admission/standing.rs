//! Leases in force, which admission updates after each change of the store. If the changed leases conflict with no other, the cost depends only on
//! their number.
//!
//! While admission accepts every lease unmodified, no leases conflict, so it ignores their age. Changed leases without a conflict keep it so. After a
//! conflict, or if the store contains a refused or unreadable lease, admission checks all leases again. Incremental and full admission give the same
//! result.

use super::error::{AdmissionError, UnusedLeaseError};
use super::judge::{admitted, halves_left_out, placed, spoken_here};
use super::taken::{Identities, Nodes, UsedSubnets, identities};
use super::terms::Terms;
use crate::json::excerpt;
use crate::lease::Lease;
use crate::table::LeaseTable;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::Subnets;

#[derive(Default)]
pub struct LeasesInForce {
    admitted: Arc<LeaseTable>,
    refused: Vec<AdmissionError>,
    clear: Option<Clear>,
    /// This node's identities (MACs, keys) that it had before another lease claimed them.
    ours: BTreeSet<String>,
}

/// What the leases use, kept while admission accepts every lease of the store unmodified.
struct Clear {
    terms: Arc<Terms>,
    used: UsedSubnets,
    nodes: Nodes,
    identities: Identities,
}

impl LeasesInForce {
    #[must_use]
    pub fn admitted(&self) -> &Arc<LeaseTable> {
        &self.admitted
    }

    /// Also subnets of dual-stack leases, if only the other subnet is in force.
    #[must_use]
    pub fn refused(&self) -> &[AdmissionError] {
        &self.refused
    }

    /// `changed` contains the changed keys, or is `None` if any key may have changed.
    pub fn update(
        &mut self,
        raw: &LeaseTable,
        changed: Option<&BTreeSet<Subnets>>,
        terms: &Arc<Terms>,
    ) {
        if changed.is_some_and(|changed| self.follow(raw, changed, terms)) {
            return;
        }
        let (admitted, refused) = admitted(raw, &self.admitted, terms);
        (self.admitted, self.refused) = (Arc::new(admitted), refused);
        self.keep_ours(raw, terms);
        self.clear = Clear::of(raw, &self.admitted, &self.refused, terms);
    }

    /// Notes which identities this node has alone. An older lease that claims one of them later did not have it first.
    fn keep_ours(&mut self, raw: &LeaseTable, terms: &Terms) {
        let own = terms.own.iter();
        let own = own.flat_map(|own| identities(&*terms.rules, own));
        for (identity, _) in own {
            let claims = |lease: &Lease| {
                !terms.is_own(&lease.subnets)
                    && identities(&*terms.rules, lease)
                        .iter()
                        .any(|(theirs, _)| *theirs == identity)
            };
            let is_first = terms.history.own.contains(&identity) || !raw.iter().any(claims);
            if is_first {
                self.ours.insert(identity);
            }
        }
        for refused in &mut self.refused {
            if let UnusedLeaseError::OwnIdentity { identity, older } = &mut refused.why {
                *older &= !self.ours.iter().any(|ours| excerpt(ours) == *identity);
            }
        }
    }

    /// Applies changed leases that conflict with no other lease. After a conflict, it discards the kept state and returns false.
    fn follow(
        &mut self,
        raw: &LeaseTable,
        changed: &BTreeSet<Subnets>,
        terms: &Arc<Terms>,
    ) -> bool {
        let Some(mut clear) = self
            .clear
            .take_if(|clear| Arc::ptr_eq(&clear.terms, terms) && raw.unreadable().is_empty())
        else {
            return false;
        };
        let changed: Vec<_> = changed.iter().filter(|subnets| !terms.is_own(subnets)).collect();
        for was in changed.iter().filter_map(|subnets| self.admitted.shared_lease(subnets)) {
            clear.free(was);
        }
        for is in changed.iter().filter_map(|subnets| raw.shared_lease(subnets)) {
            if !clear.take(is) {
                return false;
            }
        }
        for subnets in changed {
            Arc::make_mut(&mut self.admitted).set(subnets, raw.shared_lease(subnets));
        }
        self.clear = Some(clear);
        true
    }
}

impl Clear {
    /// `None` if admission did not accept every lease unmodified.
    fn of(
        raw: &LeaseTable,
        admitted: &LeaseTable,
        refused: &[AdmissionError],
        terms: &Arc<Terms>,
    ) -> Option<Self> {
        let is_in_force = |lease: &&Arc<Lease>| {
            admitted.shared_lease(&lease.subnets).is_some_and(|present| Arc::ptr_eq(present, lease))
        };
        let others = || raw.shared_leases().filter(|lease| !terms.is_own(&lease.subnets));
        if !refused.is_empty()
            || !raw.unreadable().is_empty()
            || !others().all(|lease| is_in_force(&lease))
        {
            return None;
        }
        let mut clear = Self {
            terms: terms.clone(),
            used: UsedSubnets::default(),
            nodes: Nodes::default(),
            identities: Identities::of(terms),
        };
        for lease in others() {
            clear.used.take(&lease.subnets);
            clear.nodes.take(lease);
            clear.identities.take(lease).then_some(())?;
        }
        clear.used.pack();
        clear.nodes.pack();
        Some(clear)
    }

    fn free(&mut self, lease: &Lease) {
        self.used.free(&lease.subnets);
        self.nodes.free(lease);
        self.identities.free(lease);
    }

    /// Adds a lease, unless it conflicts with another one or admission would modify it. True if it was added.
    fn take(&mut self, lease: &Arc<Lease>) -> bool {
        let terms = &*self.terms;
        let as_it_stands = placed(lease, terms, &self.used, &self.nodes)
            .is_ok_and(|subnets| subnets == lease.subnets);
        let usable = as_it_stands
            && spoken_here(lease, &lease.subnets, terms).is_ok()
            && halves_left_out(lease, &lease.subnets, terms).is_empty()
            && terms.rules.accepts(lease).is_ok()
            && self.identities.take(lease);
        if usable {
            self.used.take(&lease.subnets);
            self.nodes.take(lease);
        }
        usable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NetworkConfig;
    use crate::json::Object;
    use crate::lease::{LeaseAttrs, PeerRules, RawJson, Term};
    use types::Dual;
    use types::Family;

    fn lease(third: u8, node: u8) -> Lease {
        let data =
            RawJson::parse(&format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:00:{node:02x}"}}"#)).ok();
        let attrs = LeaseAttrs {
            public_ip: Some([192, 168, 56, node].into()),
            backend: "vxlan".to_owned(),
            data,
            ..LeaseAttrs::default()
        };
        let subnets = Dual::V4(ipnet::Ipv4Net::new([10, 5, third, 0].into(), 24).unwrap());
        Lease { subnets, attrs, term: Term::Leased, since: i64::from(third) }
    }

    struct VtepMacs;

    impl PeerRules for VtepMacs {
        fn identity(&self, attrs: &LeaseAttrs, family: Family) -> Option<String> {
            let data = family.pick(&attrs.data, &attrs.v6_data);
            Object::parse(data.as_ref()?.as_str()).ok()?.read("VtepMAC").ok().flatten()
        }
    }

    #[test]
    fn lease_without_conflict_changes_no_other() {
        let config =
            NetworkConfig::parse(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#)
                .unwrap();
        let own = Some(lease(1, 1));
        let terms = Arc::new(Terms {
            config,
            own,
            local: Vec::new(),
            underlay: Vec::new(),
            links: None,
            rules: Arc::new(VtepMacs),
            history: Arc::default(),
        });
        let mut raw = LeaseTable::of((1..20).map(|n| lease(n, n)), BTreeSet::new());
        let mut standing = LeasesInForce::default();
        standing.update(&raw, None, &terms);
        assert_eq!((standing.admitted().len(), standing.clear.is_some()), (18, true));
        let mut step = |put: Vec<Lease>, gone: Vec<u8>| {
            let mut changed: BTreeSet<Subnets> = put.iter().map(|lease| lease.subnets).collect();
            put.into_iter()
                .for_each(|lease| raw.set(&lease.subnets.clone(), Some(&Arc::new(lease))));
            for third in gone {
                let subnets = lease(third, 0).subnets;
                raw.set(&subnets, None);
                changed.insert(subnets);
            }
            let followed = standing.follow(&raw, &changed, &terms);
            if !followed {
                standing.update(&raw, None, &terms);
            }
            assert_eq!(**standing.admitted(), admitted(&raw, &LeaseTable::default(), &terms).0);
            followed
        };
        assert!(step(vec![lease(20, 20), lease(21, 21)], vec![]), "two new leases");
        assert!(
            step(vec![lease(1, 1)], vec![5, 6]),
            "this node's own lease, and two deleted leases"
        );
        assert!(step(vec![lease(7, 99)], vec![]), "a lease with a new address and MAC");
        assert!(step(vec![lease(30, 20)], vec![]), "a node's second lease");
        assert!(
            step(vec![lease(40, 41), lease(41, 40)], vec![20]),
            "two new leases, and a node's deleted first lease"
        );
        assert!(
            step(vec![lease(40, 40), lease(41, 41)], vec![]),
            "two leases that swap their addresses"
        );
        let mut same_mac = lease(50, 50);
        same_mac.attrs.data = lease(8, 8).attrs.data;
        assert!(!step(vec![same_mac], vec![]), "a MAC that is in use");
        assert!(!step(vec![lease(51, 51)], vec![]), "a new lease during a conflict");
        assert!(!step(vec![], vec![50]), "the deleted lease that caused the conflict");
        assert!(step(vec![], vec![51]), "a deleted lease after the conflict");
    }
}
