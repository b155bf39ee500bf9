//! The `host-gw` backend: one route for each peer, over the underlay to the peer itself.

use crate::backend::{Backend, BackendError, Network, Overlay, Setup};
use crate::error::UnderlayError;
use crate::network;
use async_trait::async_trait;
use netstate::kernel::Facts;
use netstate::names::LinkName;
use netstate::netlink::NetlinkKernel;
use netstate::object::{KernelState, Key, Value};
use netstate::plan::{Announced, Plan};
use netstate::route::{RouteSpec, metric};
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use std::sync::Arc;
use subnet_lease::{Kinds, Lease, LeaseAttrs, LeaseTable, Peer};
use types::profile::{Keys, Overhead};
use types::{Encapsulation, Family, Profile};

/// The name in the configuration and in leases.
pub const KIND: &str = "host-gw";

pub static PROFILE: Profile = Profile {
    name: KIND,
    devices: &[],
    overhead: Overhead::of_both(0),
    encapsulation: Encapsulation::None,
    seen_as: None,
    carries: true,
    encrypts: false,
    needs_links: true,
    shares_address: false,
    keys: Keys { port: None, has_mtu: false },
};

/// The backend before the node has a lease. There are no configuration keys.
pub struct HostGw {
    setup: Setup,
}

impl HostGw {
    pub fn new(setup: &Setup) -> Self {
        Self { setup: setup.clone() }
    }
}

#[async_trait]
impl Backend for HostGw {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    async fn announce(
        &mut self,
        underlay: &Underlay,
        _stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, BackendError> {
        let networks = self.setup.config.networks;
        // Peers route to the public address, so it must be on this link. Go flannel checks only IPv4.
        let v4 = networks.v4().is_some() && underlay.public.v4() != underlay.addresses.v4();
        let v6 = networks.v6().is_some()
            && underlay
                .public
                .v6()
                .is_some_and(|ip| underlay.tunnel_source(Family::V6) != Some((*ip).into()));
        if v4 || v6 {
            let Underlay { public, addresses, .. } = *underlay;
            return Err(UnderlayError::Translated {
                public,
                interface: underlay.name.clone(),
                addresses,
            }
            .into());
        }
        Ok(Announced::without_data(KIND, underlay.mtu))
    }

    fn overlay(&self) -> Option<Overlay> {
        // There is no device. Packets of pods may be as large as those of the underlay.
        Some(Overlay {
            kinds: Kinds::Only(KIND),
            device: false,
            outer: None,
            family: None,
            clear: true,
            mtu: Arc::new(|underlay, _| underlay),
        })
    }

    async fn join(
        self: Box<Self>,
        own: Lease,
        underlay: &Underlay,
        leases: &LeaseTable,
    ) -> Result<Box<dyn Network>, BackendError> {
        let kernel = NetlinkKernel::open()?;
        let plan = HostGwPlan { scope: self.setup.scope(own.subnets, Vec::new()) };
        network::join(plan, kernel, Vec::new(), underlay, leases, &self.setup).await
    }
}

struct HostGwPlan {
    scope: Scope,
}

impl Plan for HostGwPlan {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn kinds(&self) -> Kinds {
        Kinds::Only(KIND)
    }

    fn base(&self, _facts: &Facts) -> KernelState {
        KernelState::default()
    }

    fn of_peer(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)> {
        let Some(dev) = LinkName::parse(&facts.underlay.name) else {
            return Vec::new();
        };
        let route = RouteSpec::forwarding(Some(peer.public_ip), dev, self.scope.protocol);
        vec![(Key::Route(peer.subnet, metric(&peer.subnet)), Value::Route(route))]
    }

    fn announced(&self, facts: &Facts) -> Announced {
        Announced::without_data(KIND, facts.underlay.mtu)
    }
}
