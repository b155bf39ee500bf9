//! Determines which of the claiming Nodes holds each subnet. Pure.
//!
//! Each node computes the holders of its own subnets and of the others'. All get the same result, in whatever order they receive the Nodes.

use crate::admission::UsedSubnets;
use ipnet::IpNet;
use std::collections::BTreeMap;
use types::Subnets;

/// A Node with its podCIDRs. Claims sort by the age of their Nodes, and within one second by the Nodes' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim<'a> {
    /// In whole seconds since 1970.
    pub created: i64,
    pub name: &'a str,
    /// Inside the network.
    pub subnets: Subnets,
}

/// An older Node takes precedence over a younger one.
#[derive(Debug, Default)]
pub(super) struct Holders<'a> {
    used: UsedSubnets,
    names: BTreeMap<IpNet, &'a str>,
}

impl<'a> Holders<'a> {
    /// A Node that overlaps an older holder holds no subnets, and prevents no other Node from holding some.
    pub(super) fn among(mut claims: Vec<Claim<'a>>) -> Self {
        claims.sort_unstable();
        let mut holders = Self::default();
        for claim in claims {
            let _ = holders.take(&claim);
        }
        holders
    }

    /// Nodes must be passed from the oldest to the newest. The error names an older Node that already has the subnets or a part of them.
    pub(super) fn take(&mut self, claim: &Claim<'a>) -> Result<(), &'a str> {
        if let Some(holder) = self.holder(&claim.subnets) {
            return Err(holder);
        }
        self.used.take(&claim.subnets);
        self.names.extend(claim.subnets.nets().map(|net| (net, claim.name)));
        Ok(())
    }

    /// The Node that holds the given subnets, or a part of them.
    pub(super) fn holder(&self, subnets: &Subnets) -> Option<&'a str> {
        self.used.taken(subnets).and_then(|net| self.names.get(&net).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim<'a>(created: i64, name: &'a str, net: &str) -> Claim<'a> {
        Claim { created, name, subnets: net.parse::<IpNet>().unwrap().into() }
    }

    #[test]
    fn rejected_claim_does_not_block_others() {
        let holders = Holders::among(vec![
            claim(3, "c", "10.244.1.0/24"),
            // Overlaps the older Node's subnet, and the younger Node's.
            claim(2, "b", "10.244.0.0/23"),
            claim(1, "a", "10.244.0.0/24"),
            claim(1, "b2", "10.244.0.128/25"),
        ]);
        let holder = |net: &str| holders.holder(&net.parse::<IpNet>().unwrap().into());
        assert_eq!(
            (holder("10.244.0.0/24"), holder("10.244.1.0/24"), holder("10.244.2.0/24")),
            (Some("a"), Some("c"), None)
        );
    }
}
