//! Inputs of admission other than the leases, and the reasons to refuse a lease.

use crate::config::NetworkConfig;
use crate::lease::{Lease, PeerRules};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use types::{Family, Subnets};

/// Inputs of admission other than the leases.
#[derive(Clone)]
pub struct Terms {
    /// The network configuration.
    pub config: NetworkConfig,
    /// This node's own lease; `None` for tools that only read the store.
    pub own: Option<Lease>,
    /// Addresses of all interfaces of this host, each with its network. Admission refuses a lease that publishes an address of this host, or the
    /// broadcast address of such a network.
    pub local: Vec<IpNet>,
    /// Networks of the underlay interface.
    pub underlay: Vec<IpNet>,
    /// Networks that the underlay reaches without a gateway, for a backend that needs a direct link to each
    /// node. `None` if the backend accepts any address.
    pub links: Option<Vec<IpNet>>,
    /// Rules of the backend: which leases the backend accepts, and which data identifies a node.
    pub rules: Arc<dyn PeerRules>,
    /// Who had which MAC or key when this run started.
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
    /// Lease of a subnet that lies outside the configured network or is as wide as this network.
    Outside,
    /// Lease that overlaps this node's own lease.
    OverlapsOurs,
    /// Lease that overlaps the network of the underlay.
    OverlapsUnderlay,
    /// Lease that overlaps an older lease.
    OverlapsOlder,
    /// Lease whose subnet contains the address of a node with an older lease.
    HoldsNode,
    /// Lease that publishes an address of this host.
    OurAddress,
    /// Lease that publishes an address that cannot belong to a node, e.g. a loopback address.
    NoHost,
    /// Lease that publishes an address inside a leased subnet.
    InsideSubnet,
    /// Lease that publishes no address of its subnet's family.
    NoAddress,
    /// Lease that publishes an address that the underlay reaches only through a gateway, although the backend needs a direct link.
    OffLink,
    /// Lease of a node that uses another backend.
    OtherBackend,
    /// Lease that an operator reserved for a node that has not acquired it yet.
    Reserved,
    /// Lease with data that the backend cannot use.
    Unusable,
    /// Lease that claims the identity (a MAC, a key) of another node or of this node.
    SameIdentity,
    /// Lease that has this node's identity (a MAC, a key), is older than this node's lease, and had the identity first.
    OurIdentity,
}

impl Terms {
    /// Returns whether the given subnets belong to this node's own lease.
    pub fn is_own(&self, subnets: &Subnets) -> bool {
        self.own.as_ref().is_some_and(|own| own.subnets == *subnets)
    }

    /// Returns whether the backend cannot reach a node at an address, because the address is on no link of the
    /// underlay. If flanneld knows no link of the address's family, flanneld accepts the address, because the underlay
    /// interface may briefly have no address. IPv6 link-local addresses are on every link.
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
