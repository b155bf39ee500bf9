//! The `host-gw` backend: one route for each peer, over the underlay to the peer itself.

use crate::backend::{Backend, Overlay, Setup};
use netstate::{Facts, Key, LinkName, RouteSpec, Scope, Underlay, Value};
use reconcile::{Announced, Plan};
use std::sync::Arc;
use subnet_lease::{Kinds, LeaseAttrs, Peer};
use types::{Family, Problem, Profile, Subnets};

/// The name in the configuration and in leases.
pub const KIND: &str = "host-gw";

pub static PROFILE: Profile = Profile { name: KIND, needs_links: true, ..Profile::DEFAULT };

/// The backend before the node has a lease. There are no configuration keys.
pub struct HostGw {
    pub(crate) setup: Setup,
}

impl Backend for HostGw {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    fn announce(
        &mut self,
        underlay: &Underlay,
        _stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, Problem> {
        let networks = self.setup.config.networks;
        // Peers route to the public address, so it must be on this link. Go flannel checks only IPv4.
        let v4 = networks.v4().is_some() && underlay.public.v4() != underlay.addresses.v4();
        let public_v6 = underlay.public.of(Family::V6);
        let v6 = networks.v6().is_some()
            && public_v6.is_some()
            && public_v6 != underlay.tunnel_source(Family::V6);
        if v4 || v6 {
            let Underlay { public, name, addresses, .. } = underlay;
            let text = format!(
                "your PublicIP differs from interface IP, meaning that probably you're on a NAT, which is not supported by host-gw backend: PublicIP is {public}, {name} has {addresses}; leave out --public-ip and --public-ipv6, choose the interface with --iface, or use the vxlan backend"
            );
            return Err(Problem::new("underlay-address-translated", text));
        }
        Ok(Announced::without_data(KIND, underlay.mtu))
    }

    fn overlay(&self) -> Option<Overlay> {
        // There is no device. Packets of pods may be as large as those of the underlay.
        Some(Overlay { device: false, ..Overlay::new(KIND, |underlay, _| underlay) })
    }

    fn plan(&self, own: Subnets) -> Result<Arc<dyn Plan>, Problem> {
        Ok(Arc::new(HostGwPlan { scope: self.setup.scope(own, Vec::new()) }))
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

    fn of_peer(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)> {
        let Some(dev) = LinkName::parse(&facts.underlay.name) else {
            return Vec::new();
        };
        let route = RouteSpec::forwarding(Some(peer.public_ip), dev, self.scope.protocol);
        vec![route.leading_to(peer.subnet)]
    }

    fn announced(&self, facts: &Facts) -> Announced {
        Announced::without_data(KIND, facts.underlay.mtu)
    }
}
