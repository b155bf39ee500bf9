//! Inputs of admission other than the leases, and the reasons to refuse a lease.

use crate::config::NetworkConfig;
use crate::lease::{Lease, PeerRules};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use types::{Family, Subnets};

#[derive(Clone)]
pub struct Terms {
    pub config: NetworkConfig,
    /// `None` for tools that only read the store.
    pub own: Option<Lease>,
    /// Addresses of all interfaces of this host, each with its network. Admission refuses a lease that publishes one of them, or the broadcast
    /// address of such a network.
    pub local: Vec<IpNet>,
    /// Networks of the underlay interface.
    pub underlay: Vec<IpNet>,
    /// Networks that the underlay reaches without a gateway, for a backend that needs a direct link to each node. `None` if it accepts any address.
    pub links: Option<Vec<IpNet>>,
    pub rules: Arc<dyn PeerRules>,
    pub history: Arc<History>,
}

/// The MACs and keys that were in force when this run started.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Those of this node's lease, as an earlier run published them.
    pub own: BTreeSet<String>,
    /// Those of the other nodes' subnets in the kernel.
    pub kernel: BTreeMap<IpNet, String>,
}

/// Reason why a lease is not in force on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Its subnet lies outside the configured network or is as wide as it.
    Outside,
    OverlapsOurs,
    OverlapsUnderlay,
    OverlapsOlder,
    /// Its subnet contains the address of a node with an older lease.
    HoldsNode,
    /// It publishes an address of this host.
    OurAddress,
    /// It publishes an address that cannot belong to a node, e.g. a loopback address.
    NoHost,
    /// It publishes an address inside a leased subnet.
    InsideSubnet,
    /// It publishes no address of its subnet's family.
    NoAddress,
    /// The underlay reaches its address only through a gateway, although the backend needs a direct link.
    OffLink,
    OtherBackend,
    /// An operator reserved it for a node that has not acquired it yet.
    Reserved,
    /// The backend cannot use its data.
    Unusable,
    /// It claims the identity (a MAC, a key) of another node or of this node.
    SameIdentity,
    /// It has this node's identity (a MAC, a key), is older than this node's lease, and had the identity first.
    OurIdentity,
}

impl Terms {
    #[must_use]
    pub fn is_own(&self, subnets: &Subnets) -> bool {
        self.own.as_ref().is_some_and(|own| own.subnets == *subnets)
    }

    /// True if the address is on no link of the underlay. If flanneld knows no link of the address's family, it accepts the address, because the
    /// underlay interface may briefly have none. IPv6 link-local addresses are on every link.
    pub(crate) fn is_off_link(&self, address: IpAddr) -> bool {
        if matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            return false;
        }
        let mut links = self
            .links
            .iter()
            .flatten()
            .filter(|net| Family::from(*net) == Family::from(address))
            .peekable();
        links.peek().is_some() && !links.any(|net| net.contains(&address))
    }
}

impl Reason {
    /// Value of the label `reason` in `flannel_leases_refused`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Reason::Outside => "outside-network",
            Reason::OverlapsOurs => "overlaps-ours",
            Reason::OverlapsUnderlay => "overlaps-underlay",
            Reason::OverlapsOlder => "overlaps-older",
            Reason::HoldsNode => "holds-node",
            Reason::OurAddress => "our-address",
            Reason::NoHost => "no-host-address",
            Reason::InsideSubnet => "address-in-subnet",
            Reason::NoAddress => "no-address",
            Reason::OffLink => "off-link",
            Reason::OtherBackend => "other-backend",
            Reason::Reserved => "reserved",
            Reason::Unusable => "unusable-data",
            Reason::SameIdentity => "duplicate-mac",
            Reason::OurIdentity => "our-identity",
        }
    }
}
