//! What admission depends on, and what it says of a lease.

use crate::config::NetworkConfig;
use crate::lease::{Lease, LeaseAttrs};
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use types::{Family, Problem, Subnets};

/// Decides whether the backend can use a lease; says why not.
pub type Accepts = Arc<dyn Fn(&Lease) -> Result<(), Problem> + Send + Sync>;

/// Reads the part of a lease's backend data that only one node can have (a MAC, a key), in canonical form; the flag selects IPv6.
pub type Identity = Arc<dyn Fn(&LeaseAttrs, Family) -> Option<String> + Send + Sync>;

/// What admission depends on, besides the leases.
#[derive(Clone)]
pub struct Terms {
    /// The network.
    pub config: NetworkConfig,
    /// Our own lease; none for tools that only read the store.
    pub own: Option<Lease>,
    /// Every address of this host.
    pub local: Vec<IpAddr>,
    /// Networks of the underlay interface.
    pub underlay: Vec<IpNet>,
    /// Networks that the underlay reaches without a gateway, for a backend that reaches other nodes only there. `None`: any address will do.
    pub links: Option<Vec<IpNet>>,
    /// What the backend can use.
    pub accepts: Accepts,
    /// What identifies a node to the backend.
    pub identity: Identity,
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
    /// The label in metrics.
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
