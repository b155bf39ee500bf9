//! The goal of the reconciler: the plan, its scope, and the objects that all networks share.

use crate::desired::Desired;
use crate::failures::Failures;
use crate::plan::{Plan, holders};
use netstate::blackhole;
use netstate::{Facts, FailureKind, KernelState, Key, OpError, Scope, Underlay};
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::LeaseTable;
use types::Subnets;

/// The same for all backends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The interval at which the kernel is compared with the desired state. `None` disables it.
    pub audit: Option<Duration>,
    /// Whether this node's own subnets get blackhole routes, for any plan.
    pub blackhole: bool,
}

pub(super) struct Goal {
    pub plan: Arc<dyn Plan>,
    /// Loses the previous run's networks once the kernel has no object in them.
    pub scope: Scope,
    pub underlay: Underlay,
    pub options: Options,
}

impl Goal {
    pub(super) fn new(plan: Arc<dyn Plan>, underlay: &Underlay, options: Options) -> Self {
        Self { scope: plan.scope().clone(), plan, underlay: underlay.clone(), options }
    }

    /// True if the data plane depends on this object. In a dual-stack network, it works even if one
    /// address family fails.
    pub(super) fn needs(&self, key: &Key) -> bool {
        match key {
            Key::Link(_) => true,
            key => matches!(key, Key::Address(..)) && !matches!(self.scope.own, Subnets::Both(..)),
        }
    }

    /// The plan's objects, and those that all networks share.
    pub(super) fn desired(&self, leases: &LeaseTable, facts: &Facts) -> Desired {
        let mut desired = Desired::whole(&*self.plan, leases, facts);
        if self.options.blackhole {
            blackhole::add_blackhole(&mut desired.state, &self.scope);
        }
        blackhole::bar_networks(&mut desired.state, leases.barred(), &self.scope);
        desired
    }

    /// Assigns each error to this node or to a peer.
    pub(super) fn failures(
        &self,
        errors: &[OpError],
        leases: &LeaseTable,
        facts: &Facts,
    ) -> Failures {
        if errors.is_empty() {
            return Failures::default();
        }
        let own = self.desired(&LeaseTable::default(), facts).state;
        let (holders, owners) = holders(&*self.plan, leases, facts);
        // Another program has a route to the subnet of a barred lease. No packet leaves by the default route, so nothing is wrong.
        let is_barred = |key: &Key| {
            let nets = leases.barred().iter().flat_map(Subnets::nets);
            matches!(key, Key::Route(net, _) if nets.into_iter().any(|barred| barred.trunc() == *net))
        };
        let errors = errors
            .iter()
            .filter(|error| error.kind != FailureKind::Conflict || !is_barred(&error.key));
        Failures::of(errors.cloned().collect(), &own, &holders, &owners)
    }

    /// Ends the cleanup of the previous run: what later appears in its networks belongs to other
    /// programs.
    pub(super) fn forget_former(&mut self, want: &KernelState) {
        self.scope.former = None;
        self.scope.links.retain(|name| want.link(*name).is_some());
    }
}
