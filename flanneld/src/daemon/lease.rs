//! The steps from a host to a node with a lease: the choice of the underlay, the announcement and the acquisition.

use super::end::EndError;
use super::host::Host;
use super::node::{Leased, Node};
use super::{Daemon, attrs, readiness_monitor, retry};
use crate::api::node;
use crate::checks::known::NodeAddresses;
use crate::health::condition::Condition;
use crate::identity;
use crate::memory;
use crate::underlay::read::{Wish, wait_for};
use crate::underlay::{Found, StoreAt};
use backends::{Announced, Backend, Underlay};
use doctor::facts::daemon::Choice;
use run_dir::subnet_env::Previous;
use std::net::IpAddr;
use std::sync::Arc;
use subnet_lease::admission::History;
use subnet_lease::manager::{
    Claim, Error, Held, HostEvidence, HostQueries, NodeInfo, SubnetManager,
};
use subnet_lease::{Lease, LeaseAttrs, NetworkConfig, NodeId, Term, wire};
use tokio::sync::watch;
use tracing::{info, warn};
use types::{Family, Problem, Subnets};

impl Daemon {
    /// Finds the underlay, prepares the data that this node publishes, and acquires the lease.
    pub(super) async fn take_lease(
        &self,
        manager: Arc<dyn SubnetManager>,
        host: Host,
    ) -> Result<Node, EndError> {
        let Host { config: whole, info, node, mut backend, previous, released } = host;
        let (found, config) = match &info {
            None => (self.find_underlay(&manager, &whole).await?, whole.clone()),
            Some(info) => self.find_node_underlay(&manager, &whole, info).await?,
        };
        let config = self.leave_out_v6(config, &*manager, &*backend, &found).await?;
        let node_at = self.tell_node_apart(&node, info.is_some(), &found);
        if config != whole || node_at != node {
            // The families that this node lacks are left out.
            backend = backends::create_backend(&self.setup(&config, &node_at).await)
                .map_err(EndError::failed)?;
        }
        if let Some(info) = &info {
            self.note_node_addresses(info, &found);
        }
        let underlay = &found.chosen.underlay;
        let mut claim =
            self.lease_claim(&config, node_at, &found, &previous, released, &*backend).await;
        let held = watch::channel(Held::default());
        let (stored, announced, lease) = loop {
            let attempt = self.acquire(&*manager, &claim, &config, underlay, &mut *backend, &held);
            match attempt.await? {
                Ok(acquired) => break acquired,
                Err(why) if is_holder_absent(&why, &*manager, &claim, &found).await => {
                    info!(code = %why.code, error = %why, "other hosts answer on the link, and none at this address: the lease has no holder");
                    claim.host.alone_at_address = true;
                }
                Err(why) => return Err(EndError::failed(why)),
            }
        };
        let rules = backend.rules();
        let published = |family| rules.identity(stored.as_ref()?, family);
        let history = Arc::new(History {
            own: Family::ALL.into_iter().filter_map(published).collect(),
            kernel: backends::identities_in_kernel(&*backend, lease.subnets).await,
        });
        memory::trim();
        self.health.clear(Condition::Lease);
        if let Some(judged) = info
            .as_ref()
            .and_then(|info| info.subnets)
            .filter(|judged| has_others(&lease.subnets, judged))
        {
            // The evidence of this host was evaluated for the former subnet.
            let text = format!(
                "this node's subnet changed from {judged} to {} while flanneld waited for the lease",
                lease.subnets
            );
            return Err(EndError::moved(Problem::new("subnet-changed", text)));
        }
        log_lease(&lease, info.as_ref());
        self.health.node(|node| node.network.subnets = lease.subnets.nets().collect());
        let leased =
            Leased { manager, whole, config, claim, found, announced, lease, history, held };
        Ok(Node { backend, leased })
    }

    /// The result has the attributes that this node published last, the new ones and the lease; or why the store
    /// refuses the lease.
    async fn acquire(
        &self,
        manager: &dyn SubnetManager,
        claim: &Claim,
        config: &NetworkConfig,
        underlay: &Underlay,
        backend: &mut dyn Backend,
        held: &(watch::Sender<Held>, watch::Receiver<Held>),
    ) -> Result<Result<(Option<LeaseAttrs>, Announced, Lease), Problem>, EndError> {
        let stored = retry::until_available(&self.health, Condition::Store, || async {
            match manager.stored(claim, config).await {
                Err(Error::Refused(why)) => Ok(Err(why)),
                other => other.map(Ok),
            }
        });
        let stored = match stored.await? {
            Ok(stored) => stored,
            Err(why) => return Ok(Err(why)),
        };
        let announced = backend.announce(underlay, stored.as_ref()).map_err(EndError::failed)?;
        let _reporting =
            readiness_monitor::report_lease_trouble(held.1.clone(), self.health.clone());
        let attrs = attrs::of(&announced, underlay);
        Ok(manager
            .acquire(claim, config, &attrs, &held.0)
            .await
            .map(|lease| (stored, announced, lease))
            .map_err(Problem::from))
    }

    /// Unless the identity is given, the node's address tells machines without an id apart.
    fn tell_node_apart(&self, node: &NodeId, is_given: bool, found: &Found) -> NodeId {
        if is_given || self.settings.node.id.is_some() {
            return node.clone();
        }
        let told = identity::at_address(node, &found.chosen.underlay.public, identity::id_in);
        let told = told.unwrap_or_else(|| node.clone());
        let id = told.id.to_string();
        self.health.node(|document| document.node_id = Some(id));
        told
    }

    /// Leaves out IPv6 where its packets do not fit into those of the underlay, so that IPv4 works.
    async fn leave_out_v6(
        &self,
        config: NetworkConfig,
        manager: &dyn SubnetManager,
        backend: &dyn Backend,
        found: &Found,
    ) -> Result<NetworkConfig, EndError> {
        let overlay = backend.overlay();
        let overlay = overlay.filter(|_| config.networks.has(Family::V6));
        let room = overlay.map(|overlay| overlay.has_room_for_v6(&found.chosen.underlay));
        let problem = room.and_then(Result::err);
        self.health.notice("no-ipv6", problem.clone());
        let Some(problem) = problem else {
            return Ok(config);
        };
        let Some(v4) = config.networks.only(Family::is_v4) else {
            return Err(EndError::failed(problem));
        };
        warn!(code = %problem.code, error = %problem, "this node and its pods work without IPv6");
        manager.tell_operator(&problem).await;
        Ok(config.only(&v4))
    }

    /// Passes the addresses of this Node and of the API servers to the doctor.
    fn note_node_addresses(&self, info: &NodeInfo, found: &Found) {
        let servers =
            found.request.known.as_ref().map(|known| known.servers.clone()).unwrap_or_default();
        NodeAddresses { servers, ..NodeAddresses::from(info) }.publish(&self.known);
    }

    async fn find_underlay(
        &self,
        manager: &Arc<dyn SubnetManager>,
        config: &NetworkConfig,
    ) -> Result<Found, EndError> {
        let listing = retry::until_available(&self.health, Condition::Store, || async {
            manager.list().await.map_err(Error::Unavailable)
        });
        let wish =
            Wish::of(&self.settings, config.networks.map(|_| (), |_| ())).beside(&listing.await?);
        let found =
            wait_for(&wish, |why| self.wait_for_interface(why)).await.map_err(EndError::failed)?;
        self.note_underlay(&found);
        Ok(found)
    }

    /// Logs why no interface is usable yet, and sets [`Condition::Underlay`].
    pub(super) fn wait_for_interface(&self, why: &Problem) {
        warn!(code = &*why.code, error = %why, "no usable interface yet, waiting for an interface");
        self.health.fail(Condition::Underlay, why.clone());
    }

    /// Logs the chosen interface, clears [`Condition::Underlay`], and records the choice for the doctor and the
    /// status API.
    pub(super) fn note_underlay(&self, found: &Found) {
        self.health.clear(Condition::Underlay);
        let underlay = &found.chosen.underlay;
        info!(
            interface = underlay.name,
            address = %underlay.addresses,
            mtu = underlay.mtu,
            public = %underlay.public,
            reason = found.chosen.why,
            "packets between nodes use this interface"
        );
        for warning in found.chosen.warnings.iter().cloned().chain(found.trap_hint()) {
            warn!(error = %warning, "the choice of the interface may be wrong");
        }
        let chosen = &found.chosen;
        let choice = Choice {
            interface: underlay.name.clone(),
            addresses: underlay.addresses.ips().collect(),
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
            .node(|node| node.network.underlay = Some(node::shown(underlay, &found.chosen.why)));
    }

    /// The evidence by which the lease protocol recognises this host's own lease.
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
        let subnet_file = &self.settings.node.subnet_file;
        for warning in &previous.warnings {
            warn!(path = %subnet_file.display(), error = %warning, "cannot use all of subnet.env");
        }
        let queries = Queries { found: found.clone(), identity: backend.identity() };
        let host = HostEvidence {
            previous: previous.subnets(),
            released,
            macs: identity::flannel_macs(),
            queries: Some(Arc::new(queries)),
            named: found.chosen.named,
            store_via_underlay: found.store_via_underlay(),
            alone_at_address: false,
            underlay: attrs::underlay_networks(config, underlay)
                .into_iter()
                .chain(found.facts.shared_networks(&config.networks).map(|(_, net)| net))
                .collect(),
            shared_address: backend.profile().shares_address,
            choice: Some(subnet_lease::claim::Choice {
                interface: underlay.name.clone(),
                why: found.chosen.why.clone(),
                interfaces: found.advice(),
            }),
        };
        Claim { node, public: underlay.public, host }
    }
}

/// True if a lease is refused for a holder that is not at this node's address, as the link of the address proves.
async fn is_holder_absent(
    why: &Problem,
    manager: &dyn SubnetManager,
    claim: &Claim,
    found: &Found,
) -> bool {
    if claim.host.alone_at_address || !["address-in-use", "lease-contested"].contains(&&*why.code) {
        return false;
    }
    let Ok(listing) = manager.list().await else {
        return false;
    };
    let values = listing.entries.iter().map(|entry| &entry.value);
    let others = values.filter_map(|value| wire::parse_value(value).ok());
    found.is_alone_at_address(others.flat_map(|attrs| attrs.addresses())).await
}

#[derive(Debug)]
struct Queries {
    found: Found,
    /// Unique in the backend's lease data, for example a public key.
    identity: Option<String>,
}

impl HostQueries for Queries {
    fn is_own(&self, attrs: &LeaseAttrs) -> bool {
        let of = |family| backends::identity_of(attrs, family);
        self.identity.is_some() && Family::ALL.map(of).contains(&self.identity)
    }

    fn via_underlay(&self, to: IpAddr) -> bool {
        self.found.leads_to(to)
    }
}

fn log_lease(lease: &Lease, info: Option<&NodeInfo>) {
    let source = match info {
        Some(_) => "podCIDR",
        None if lease.term == Term::Reserved => "reservation",
        None => "lease",
    };
    info!(
        subnet = %lease.subnets,
        source,
        node = info.map(|info| info.id.as_str()),
        "this node has a subnet"
    );
}

/// True if one of the subnets is not among the known ones.
fn has_others(subnets: &Subnets, known: &Subnets) -> bool {
    subnets.nets().any(|net| !known.nets().any(|other| other == net))
}
