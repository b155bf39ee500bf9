//! The `alloc` backend, which only leases a subnet. Other software carries the packets between nodes.

use crate::backend::{Backend, Setup};
use netstate::kernel::Facts;
use netstate::object::{Key, Value};
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use reconcile::plan::{Announced, Plan};
use std::sync::Arc;
use subnet_lease::{Kinds, LeaseAttrs, Peer};
use types::profile::{Keys, Overhead};
use types::{Encapsulation, Problem, Profile, Subnets};

/// The name in the configuration; in leases, it is empty.
pub const KIND: &str = "alloc";

pub static PROFILE: Profile = Profile {
    name: KIND,
    devices: &[],
    overhead: Overhead::of_both(0),
    encapsulation: Encapsulation::None,
    seen_as: None,
    carries: false,
    encrypts: false,
    needs_links: false,
    shares_address: false,
    keys: Keys { port: None, has_mtu: false },
};

pub struct Alloc {
    pub(crate) setup: Setup,
}

impl Backend for Alloc {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    fn announce(
        &mut self,
        underlay: &Underlay,
        _stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, Problem> {
        Ok(Announced::without_data("", underlay.mtu))
    }

    fn plan(&self, own: Subnets) -> Result<Arc<dyn Plan>, Problem> {
        // The software that carries the packets may use a device that looks like one of flannel's.
        let setup = Setup { left_behind: Vec::new(), ..self.setup.clone() };
        Ok(Arc::new(AllocPlan { scope: setup.scope(own, Vec::new()) }))
    }
}

/// The reconciler removes routes with flannel's protocol number that another backend left in the
/// kernel.
struct AllocPlan {
    scope: Scope,
}

impl Plan for AllocPlan {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn kinds(&self) -> Kinds {
        Kinds::Any
    }

    fn of_peer(&self, _peer: &Peer<'_>, _facts: &Facts) -> Vec<(Key, Value)> {
        Vec::new()
    }

    fn announced(&self, facts: &Facts) -> Announced {
        Announced::without_data("", facts.underlay.mtu)
    }
}
