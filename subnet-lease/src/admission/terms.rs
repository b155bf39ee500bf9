//! What admission depends on, and what it says of a lease.

use crate::config::NetworkConfig;
use crate::lease::{Lease, PeerRules};
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Family, Subnets};

/// What admission depends on, besides the leases.
#[derive(Clone)]
pub struct Terms {
    /// The network.
    pub config: NetworkConfig,
    /// Our own lease; none for tools that only read the store.
    pub own: Option<Lease>,
    /// Addresses of all interfaces of this host; a lease that publishes one of them is refused.
    pub local: Vec<IpAddr>,
    /// Networks of the underlay interface.
    pub underlay: Vec<IpNet>,
    /// Networks that the underlay reaches without a gateway, for a backend that reaches other nodes only there. `None`: any address will do.
    pub links: Option<Vec<IpNet>>,
    /// What the backend accepts, and what identifies a node to it.
    pub rules: Arc<dyn PeerRules>,
}

/// Why a lease is not in force here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Outside the network, or as wide as it.
    Outside,
    /// Overlaps our own lease.
    OverlapsOurs,
    /// Overlaps the network of the underlay.
    OverlapsUnderlay,
    /// Overlaps an older lease.
    OverlapsOlder,
    /// Contains the address of a node whose lease is older.
    HoldsNode,
    /// Publishes an address of this host.
    OurAddress,
    /// Publishes an address that no node can have.
    NoHost,
    /// Publishes an address inside a leased subnet.
    InsideSubnet,
    /// Publishes no address of its subnet's family.
    NoAddress,
    /// Publishes an address that the underlay does not reach without a gateway, which the backend needs.
    OffLink,
    /// Belongs to another backend.
    OtherBackend,
    /// Reserved by an operator, and not taken yet.
    Reserved,
    /// The backend cannot use its data.
    Unusable,
    /// Has the identity (a MAC, a key) of an older lease or of ours.
    SameIdentity,
    /// Has our identity, and is older than our lease.
    OurIdentity,
}

impl Terms {
    /// Whether these are our own lease's.
    pub fn is_own(&self, subnets: &Subnets) -> bool {
        self.own.as_ref().is_some_and(|own| own.subnets == *subnets)
    }

    /// Whether the backend cannot reach a node at an address, because it is on no link of the underlay. If no link of a family is known, any
    /// address passes: the underlay may have lost its own for a moment. IPv6 link-local addresses are on every link.
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
    /// Returns the value of the label `reason` in `flannel_leases_refused`.
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
