//! The `alloc` backend, which only leases a subnet. Other software carries the packets between nodes.

use crate::backend::{Backend, Setup};
use netstate::{Facts, Key, Scope, Underlay, Value};
use reconcile::{Announced, Plan};
use std::sync::Arc;
use subnet_lease::{Kinds, LeaseAttrs, Peer};
use types::{Problem, Profile, Subnets};

/// The name in the configuration; in leases, it is empty.
pub const KIND: &str = "alloc";

pub static PROFILE: Profile = Profile { name: KIND, carries: false, ..Profile::DEFAULT };

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
