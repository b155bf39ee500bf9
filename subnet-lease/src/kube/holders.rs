//! Who has which subnet among the Nodes that claim it: pure.
//!
//! Each node asks this about itself, and about the others: both get the same answer, whatever was seen in which order.

use crate::admission::UsedSubnets;
use ipnet::IpNet;
use std::collections::BTreeMap;
use types::Subnets;

/// A Node with the podCIDRs that it was given. The order is that of age: of those of one second the first by name is the older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim<'a> {
    /// When it was created, in whole seconds.
    pub created: i64,
    /// Its name.
    pub name: &'a str,
    /// Its podCIDRs, inside the network.
    pub subnets: Subnets,
}

/// The subnets that were given away, the oldest Node's first.
#[derive(Debug, Default)]
pub(super) struct Holders<'a> {
    used: UsedSubnets,
    names: BTreeMap<IpNet, &'a str>,
}

impl<'a> Holders<'a> {
    /// The holders among all of these. A Node that gets nothing, because of an older one, is in nobody's way.
    pub(super) fn among(mut claims: Vec<Claim<'a>>) -> Self {
        claims.sort_unstable();
        let mut holders = Self::default();
        for claim in claims {
            let _ = holders.take(&claim);
        }
        holders
    }

    /// Takes a Node's subnets; the Nodes come in the order of age.
    ///
    /// # Errors
    /// An older one, with this name, has them or a part of them.
    pub(super) fn take(&mut self, claim: &Claim<'a>) -> Result<(), &'a str> {
        if let Some(holder) = self.holder(&claim.subnets) {
            return Err(holder);
        }
        self.used.take(&claim.subnets);
        self.names
            .extend(claim.subnets.nets().map(|net| (net, claim.name)));
        Ok(())
    }

    /// The Node that has these subnets, or a part of them.
    pub(super) fn holder(&self, subnets: &Subnets) -> Option<&'a str> {
        self.used
            .taken(subnets)
            .and_then(|net| self.names.get(&net).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim<'a>(created: i64, name: &'a str, net: &str) -> Claim<'a> {
        Claim {
            created,
            name,
            subnets: net.parse::<IpNet>().unwrap().into(),
        }
    }

    #[test]
    fn rejected_claim_does_not_block_others() {
        let holders = Holders::among(vec![
            claim(3, "c", "10.244.1.0/24"),
            // Between both: it overlaps the older one, and the younger one overlaps it.
            claim(2, "b", "10.244.0.0/23"),
            claim(1, "a", "10.244.0.0/24"),
            claim(1, "b2", "10.244.0.128/25"),
        ]);
        let holder = |net: &str| holders.holder(&net.parse::<IpNet>().unwrap().into());
        assert_eq!(
            (
                holder("10.244.0.0/24"),
                holder("10.244.1.0/24"),
                holder("10.244.2.0/24")
            ),
            (Some("a"), Some("c"), None)
        );
    }
}
