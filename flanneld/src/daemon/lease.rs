//! From a host to a node with a lease: the underlay, the announcement, the acquisition.

use super::end::End;
use super::host::Host;
use super::node::Node;
use super::{Daemon, attrs, readiness_monitor, retry};
use crate::api::node;
use crate::checks::known::NodeAddresses;
use crate::health::condition::Condition;
use crate::identity;
use crate::memory;
use crate::problem::DaemonProblem;
use crate::underlay::read::{Wish, wait_for};
use crate::underlay::{Found, SelectError, StoreAt};
use backends::Backend;
use doctor::facts::daemon::Choice;
use run_dir::subnet_env::Previous;
use std::net::IpAddr;
use std::sync::Arc;
use subnet_lease::manager::{Claim, Held, HostEvidence, SubnetManager};
use subnet_lease::{NetworkConfig, NodeId, Term};
use tokio::sync::watch;
use tracing::{info, warn};
use types::Problem;
use types::Subnets;

impl Daemon {
    /// Finds the underlay, prepares what this node will publish, and acquires the lease.
    pub(super) async fn take_lease(
        &self,
        manager: Arc<dyn SubnetManager>,
        host: Host,
    ) -> Result<Node, End> {
        let Host {
            config: whole,
            info,
            node,
            mut backend,
            previous,
            released,
        } = host;
        let (found, config) = match &info {
            None => (self.find_underlay(&whole).await?, whole.clone()),
            Some(info) => self.find_node_underlay(&manager, &whole, info).await?,
        };
        if config != whole {
            // A family that this node lacks is left out.
            backend = backends::create(&self.setup(&config, &node).await).map_err(End::failed)?;
        }
        if let Some(info) = &info {
            let servers = found
                .request
                .known
                .as_ref()
                .map(|known| known.servers.clone())
                .unwrap_or_default();
            NodeAddresses {
                servers,
                ..NodeAddresses::from(info)
            }
            .tell(&self.known);
        }
        let underlay = &found.chosen.underlay;
        let claim = self
            .lease_claim(&config, node, &found, &previous, released, &*backend)
            .await;
        let stored = retry::until_available(&self.health, Condition::Store, || {
            manager.stored(&claim, &config)
        })
        .await?;
        let announced = backend
            .announce(underlay, stored.as_ref())
            .await
            .map_err(End::failed)?;
        let held = watch::channel(Held::default());
        let lease = {
            let _telling = readiness_monitor::tell_trouble(held.1.clone(), self.health.clone());
            manager
                .acquire(&claim, &config, &attrs::of(&announced, underlay), &held.0)
                .await
                .map_err(End::failed)?
        };
        memory::trim();
        self.health.clear(Condition::Lease);
        if let Some(judged) = info
            .as_ref()
            .and_then(|info| info.subnets)
            .filter(|judged| has_others(&lease.subnets, judged))
        {
            // What the host kept of the former subnet was judged before.
            return Err(End::moved(DaemonProblem::SubnetChanged {
                now: lease.subnets,
                before: judged,
            }));
        }
        let how = match &info {
            Some(info) => format!(", the podCIDR of the Node {}", info.id),
            None if lease.term == Term::Reserved => " (no expiry)".to_owned(),
            None => String::new(),
        };
        info!("this node's subnet is {}{how}", lease.subnets);
        self.health
            .node(|node| node.subnets = lease.subnets.nets().collect());
        Ok(Node {
            manager,
            whole,
            config,
            claim,
            found,
            announced,
            lease,
            backend,
            held,
        })
    }

    async fn find_underlay(&self, config: &NetworkConfig) -> Result<Found, End> {
        let wish = Wish::of(&self.settings, config.networks.map(|_| (), |_| ()));
        let found = wait_for(&wish, |why| self.wait_for_interface(why))
            .await
            .map_err(End::failed)?;
        self.tell_underlay(&found);
        Ok(found)
    }

    /// Reports what the node waits for.
    pub(super) fn wait_for_interface(&self, why: &SelectError) {
        warn!("no interface to use yet, waiting for it: {why}");
        self.health.fail(Condition::Underlay, Problem::of(why));
    }

    /// Logs the choice.
    pub(super) fn tell_underlay(&self, found: &Found) {
        self.health.clear(Condition::Underlay);
        let underlay = &found.chosen.underlay;
        info!(
            "packets between nodes use {} ({}, MTU {}), public {}: {}",
            underlay.name, underlay.addresses, underlay.mtu, underlay.public, found.chosen.why
        );
        for warning in found
            .chosen
            .warnings
            .iter()
            .cloned()
            .chain(found.trap_hint())
        {
            warn!("{warning}");
        }
        let chosen = &found.chosen;
        let addresses = underlay
            .addresses
            .v4()
            .copied()
            .map(IpAddr::V4)
            .into_iter()
            .chain(underlay.addresses.v6().copied().map(IpAddr::V6));
        let choice = Choice {
            interface: underlay.name.clone(),
            addresses: addresses.collect(),
            why: chosen.why.clone(),
            flag: chosen.flag.clone(),
            named: chosen.named,
        };
        let store = if let StoreAt::There(addresses) = &found.request.store {
            addresses.clone()
        } else {
            Vec::new()
        };
        self.known
            .send_modify(|known| (known.choice, known.store_addresses) = (Some(choice), store));
        self.health
            .node(|node| node.underlay = Some(node::shown(underlay, &found.chosen.why)));
    }

    /// What this host knows that identifies its own lease.
    async fn lease_claim(
        &self,
        config: &NetworkConfig,
        node: NodeId,
        found: &Found,
        previous: &Previous,
        released: Vec<String>,
        backend: &dyn Backend,
    ) -> Claim {
        let underlay = &found.chosen.underlay;
        let subnet_file = &self.settings.subnet_file;
        for warning in &previous.warnings {
            warn!("{}: {warning}", subnet_file.display());
        }
        let leading = found.clone();
        let host = HostEvidence {
            previous: previous.subnets(),
            released,
            macs: identity::flannel_macs().await,
            named: found.chosen.named,
            store_via_underlay: found.store_via_underlay(),
            via_underlay: Arc::new(move |target| leading.leads_to(target)),
            underlay: attrs::underlay_networks(config, underlay),
            shared_address: backend.profile().shares_address,
            is_own: backend.is_own(),
            choice: Some(subnet_lease::claim::Choice {
                interface: underlay.name.clone(),
                why: found.chosen.why.clone(),
                interfaces: found.advice(),
            }),
        };
        Claim {
            node,
            public: underlay.public,
            host,
        }
    }
}

/// Whether there is a subnet that is not among these.
fn has_others(subnets: &Subnets, known: &Subnets) -> bool {
    subnets
        .nets()
        .any(|net| !known.nets().any(|other| other == net))
}
