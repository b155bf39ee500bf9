//! Tasks that maintain a running network. One method starts each of these tasks, in the order of [`Daemon::serve`].

use super::end::EndError;
use super::node::Leased;
use super::reconfigured::watch_configuration;
use super::reconsider::Reconsider;
use super::tunnel::Tunnel;
use super::{Daemon, readiness_monitor};
use crate::checks::silence::{self, Heard};
use crate::cni_conf::CniConfKeeper;
use crate::health::condition::Condition;
use crate::memory;
use crate::mesh::Mesh;
use crate::network::RunningNetwork;
use crate::pod_probes::{self, PodProbing};
use crate::traffic::{self, Keeper, Nodes};
use crate::underlay::read::follow;
use crate::{subnet_env_keeper, systemd};
use backends::{Announced, Inputs, KeyRequests, Underlay};
use doctor::facts::store::NextConfig;
use ipnet::IpNet;
use probing::pods::PodPaths;
use reconcile::Reconciler;
use run_dir::{exit_report, subnet_env};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::admission::Reason;
use subnet_lease::feed::Reading;
use subnet_lease::manager::{LeaseLostError, NodeState, SubnetManager};
use subnet_lease::{LeaseAttrs, LeaseTable};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use traffic_rules::Wanted;
use traffic_rules::rules::{OtherDaemons, RuleOptions};
use types::{Encapsulation, Family, Problem, Subnets};

/// Longest interval between audits of the kernel at which flanneld uses the audits as a heartbeat.
const FREQUENT_AUDIT: Duration = Duration::from_secs(20);

impl Daemon {
    /// `None` if the tunnel uses the probe port, because the tunnel takes precedence.
    pub(super) fn probe_port(&self, tunnel: &Tunnel) -> Option<u16> {
        let port = self.settings.listen.probe_port?;
        (!tunnel.ports.contains(&port)).then_some(port)
    }

    /// `None` if the backend carries no packets or uses the probe port.
    pub(super) fn mesh(
        &self,
        node: &Leased,
        tunnel: &Tunnel,
        underlay: &watch::Receiver<Underlay>,
    ) -> Option<Mesh> {
        let port = self.probe_port(tunnel);
        if let (None, Some(port)) = (port, self.settings.listen.probe_port) {
            warn!(
                port,
                remedy = "set another UDP port with --probe-port on all nodes",
                "no probes between nodes: the backend uses the UDP port"
            );
        }
        Some(Mesh::new(
            port?,
            &node.claim.node.id,
            node.lease.subnets,
            tunnel.overlay.clone()?,
            underlay.clone(),
            self.health.clone(),
        ))
    }

    /// Applies the traffic rules and keeps them in place. If the first application takes too long, the start
    /// continues, and only readiness reflects the delay. The returned receiver gets a new number whenever flanneld
    /// writes rules.
    pub(super) async fn start_rules(
        &mut self,
        node: &Leased,
        tunnel: &Tunnel,
        underlay: &watch::Receiver<Underlay>,
        leases: &watch::Receiver<Arc<LeaseTable>>,
    ) -> watch::Receiver<u64> {
        let wanted = self.wanted_rules(node, tunnel.guarded);
        if wanted.options.guard.is_some() && wanted.encapsulation.is_none() {
            warn!(
                backend = node.config.backend,
                "--encap-notrack, --encap-peers and --encap-bar-pods have no effect: the backend has no tunnels to guard"
            );
        }
        let previous = subnet_env::last_served(&self.settings.node.subnet_file);
        let before = previous.networks().iter().flat_map(Subnets::nets).collect();
        let keeper = Keeper::new(
            wanted,
            Nodes { leases: leases.clone(), underlay: underlay.clone() },
            before,
            self.rights.devices.clone(),
            self.rights.slot.take(),
            self.health.clone(),
        );
        let written = keeper.written();
        let (applied_out, applied) = oneshot::channel();
        self.run.spawn(keeper.keep(applied_out, self.run.stop.clone()));
        let _ = tokio::time::timeout(traffic::START_TIMEOUT, applied).await;
        written
    }

    fn wanted_rules(&self, node: &Leased, guarded: Encapsulation) -> Wanted {
        let rules = &self.settings.rules.options;
        Wanted {
            networks: node.config.networks,
            own: node.lease.subnets,
            options: RuleOptions {
                non_masquerade: [node.config.non_masquerade.clone(), rules.non_masquerade.clone()]
                    .concat(),
                ..rules.clone()
            },
            nftables: node.config.nftables,
            resync: self.settings.rules.resync,
            encapsulation: guarded,
            hosts: BTreeSet::new(),
            peers: BTreeSet::new(),
            slot: self.rights.slot.as_ref().map_or(0, |slot| slot.number),
            others: OtherDaemons::default(),
        }
    }

    /// Announces to container runtimes, systemd and clients of the status API that the network is up.
    pub(super) fn publish(&mut self, network: &RunningNetwork) {
        if network.set_sysctls {
            // The sysctls are set before the first pods start, and without waiting.
            self.sysctls.apply(&network.network, &network.underlay.borrow().name);
        }
        self.health.serves(network.clone());
        if let Err(error) =
            subnet_env::write(&self.settings.node.subnet_file, &network.env.borrow())
        {
            // The keeper retries at once and reports failures.
            self.health.fail(Condition::SubnetEnv, error);
        }
        if let Some(conf) = self.settings.node.cni_conf.clone() {
            // The runtime starts pods once it has this file.
            let mut keeper = CniConfKeeper::new(conf, self.health.clone());
            keeper.pass();
            self.run.spawn(keeper.keep(self.run.stop.clone()));
        }
        // A first pass that failed on this node's own objects counts before the node is ready for a moment.
        let kernel = network.observer.status().kernel;
        self.health.condition(Condition::Kernel, kernel.trouble.filter(|_| !kernel.in_sync));
        self.health.clear(Condition::Start);
        exit_report::remove(&self.settings.node.subnet_file);
        systemd::ready(&format!(
            "subnet {}, {} peers",
            network.network.own,
            network.leases.borrow().len()
        ));
    }

    /// Probes the peers, and asks the store about lease holders that are cut off.
    pub(super) fn keep_probing(
        &mut self,
        mesh: Mesh,
        node: &Leased,
        network: &RunningNetwork,
        heard: watch::Sender<Heard>,
    ) {
        let prober = mesh.prober.clone();
        let asks = silence::ask(
            node.manager.clone(),
            move || prober.anybody_cut_off().then(|| prober.peers(|peer| silence::asked(&peer))),
            network.leases.clone(),
            node.lease.subnets,
            heard,
        );
        self.spawn_until_stop(asks);
        let (network, stop) = (network.clone(), self.run.stop.clone());
        self.run.spawn(async move {
            // The start made one pass, and the reconciler begins with another.
            if stop.run_until_cancelled(network.wait_compared(2)).await.is_some() {
                memory::trim();
                mesh.run(network.leases.clone(), stop).await;
            }
        });
    }

    /// Without `--probe-pods`, removes the bridge port that an earlier run created for pod probes.
    pub(super) fn keep_pod_probing(
        &mut self,
        mesh: Option<&Mesh>,
        own: Subnets,
    ) -> Option<watch::Receiver<PodPaths>> {
        let wanted = self.settings.listen.probe_pods;
        if wanted && mesh.is_none() {
            warn!(
                remedy = "remove --probe-pods, or set --probe-port to a free port and use a backend that carries packets",
                "flanneld does not probe the path of pods, because this node sends no probes"
            );
        }
        let Some(mesh) = mesh.filter(|_| wanted) else {
            self.spawn_until_stop(async move { pod_probes::remove_leavings(own) });
            return None;
        };
        let (probing, paths) = PodProbing::new(mesh.prober.clone(), own);
        self.run.spawn(probing.run(self.run.stop.clone()));
        Some(paths)
    }

    /// A changed configuration takes effect only when flanneld restarts.
    pub(super) fn keep_watch_of_config(
        &mut self,
        node: &Leased,
    ) -> watch::Receiver<Option<NextConfig>> {
        let (found, next) = watch::channel(None);
        self.spawn_until_stop(watch_configuration(node.manager.clone(), node.whole.clone(), found));
        next
    }

    /// Requests a new identity from the backend when an older node has this node's identity.
    pub(super) fn keep_identity(&mut self, network: &RunningNetwork) {
        let keys = self.key_requests.clone();
        self.spawn_until_stop(renew_identity(network.readings.clone(), keys));
    }

    pub(super) fn keep_subnet_env(&mut self, network: &RunningNetwork) {
        self.run.spawn(subnet_env_keeper::keep(
            self.settings.node.subnet_file.clone(),
            network.env.clone(),
            self.health.clone(),
            self.run.stop.clone(),
        ));
    }

    /// Re-evaluates the choice of the interface, if the store knows the nodes' addresses.
    pub(super) fn keep_choice(
        &mut self,
        node: &Leased,
        network: &RunningNetwork,
        devices: Vec<String>,
    ) {
        let Some(changes) = node.manager.node_info_changes() else {
            return;
        };
        let reconsider = Reconsider {
            manager: node.manager.clone(),
            settings: self.settings.clone(),
            config: node.whole.clone(),
            chosen: node.found.chosen.clone(),
            network: network.clone(),
            devices,
            left: self.left.clone(),
            known: self.known.clone(),
        };
        let stop = self.run.stop.clone();
        self.run.tasks.spawn(async move {
            stop.run_until_cancelled(reconsider.watch(changes)).await.unwrap_or(Ok(()))
        });
    }

    /// Restarts the network when the underlay begins or ceases to have room for IPv6.
    pub(super) fn keep_families(&mut self, node: &Leased, network: &RunningNetwork) {
        let Some(overlay) = network.overlay.clone().filter(|_| node.whole.networks.has(Family::V6))
        else {
            return;
        };
        let mut underlay = network.underlay.clone();
        let had = overlay.has_room_for_v6(&node.found.chosen.underlay).is_ok();
        let stop = self.run.stop.clone();
        self.run.tasks.spawn(async move {
            let differs = |now: &Underlay| overlay.has_room_for_v6(now).is_ok() != had;
            let changed = stop.run_until_cancelled(underlay.wait_for(differs)).await;
            let Some(Ok(now)) = changed else {
                return Ok(());
            };
            let text = format!("the MTU of {} is now {}", now.name, now.mtu);
            Err(EndError::start_over(Problem::new("mtu-changed", text)))
        });
    }

    /// Follows the underlay, and reports this host's addresses to the store's client.
    pub(super) fn keep_underlay(
        &mut self,
        node: &Leased,
        network: &RunningNetwork,
        needs_links: bool,
        underlay: watch::Sender<Underlay>,
    ) {
        let health = self.health.clone();
        let report = move |trouble: Option<&Problem>| {
            health.condition(Condition::Underlay, trouble.cloned());
        };
        let mut chosen = node.found.chosen.clone();
        chosen.leased.own.extend(node.lease.subnets.nets());
        self.run.spawn(follow(chosen, needs_links, underlay, report, self.run.stop.clone()));
        self.run.spawn(report_addresses(
            node.manager.clone(),
            network.underlay.clone(),
            self.run.stop.clone(),
        ));
    }

    /// The returned receiver holds whether the kernel is in sync with the leases.
    pub(super) fn keep_ready(&mut self, network: &RunningNetwork) -> watch::Receiver<bool> {
        let (programmed_out, programmed) = watch::channel(network.observer.status().kernel.in_sync);
        let audit = self.settings.node.audit;
        let monitor = readiness_monitor::ReadinessMonitor {
            network: network.clone(),
            audits: audit.is_some_and(|audit| audit <= FREQUENT_AUDIT),
            programmed: programmed_out,
            health: self.health.clone(),
        };
        self.run.spawn(monitor.watch(self.run.stop.clone()));
        programmed
    }

    pub(super) fn keep_kernel(
        &mut self,
        reconciler: Reconciler,
        network: &RunningNetwork,
        announced: watch::Sender<Announced>,
    ) {
        let inputs = Inputs {
            leases: network.leases.clone(),
            underlay: network.underlay.clone(),
            stop: self.run.stop.clone(),
        };
        self.run.tasks.spawn(async move {
            reconciler.run(inputs, announced).await;
            Ok(())
        });
    }

    /// Renews this node's lease and publishes changed attributes, until this node loses it.
    pub(super) fn keep_lease(
        &mut self,
        node: Leased,
        attrs: watch::Receiver<LeaseAttrs>,
        programmed: watch::Receiver<bool>,
    ) {
        let state = NodeState { attrs, programmed };
        let (stop, health) = (self.run.stop.clone(), self.health.clone());
        self.run.tasks.spawn(async move {
            tokio::select! {
                // A stop also ends the tasks on which `hold` depends. The stop is checked first, because it does not mean that the lease is lost.
                biased;
                () = stop.cancelled() => Ok(()),
                lost = node.manager.hold(&node.claim, &node.config, state, node.held.0) => Err(match lost {
                    LeaseLostError::Taken(why) => {
                        health.lost(why.clone());
                        EndError::LeaseLost(Box::new(why))
                    }
                    LeaseLostError::Displaced(why) => {
                        health.lost(why.clone());
                        EndError::failed(why)
                    }
                    LeaseLostError::Moved(why) => EndError::moved(why),
                }),
            }
        });
    }

    /// Starts a task that `stop` cancels at the task's next await point.
    pub(super) fn spawn_until_stop(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.run.stop.clone();
        self.run.spawn(async move { stop.run_until_cancelled(task).await.unwrap_or_default() });
    }
}

/// Requests a new identity when an older node has this node's, because all peers refuse the newer node.
async fn renew_identity(mut readings: watch::Receiver<Reading>, keys: KeyRequests) {
    /// Delay before this node checks again.
    const TIMEOUT: Duration = Duration::from_secs(60);
    loop {
        let older = readings
            .borrow_and_update()
            .refused
            .iter()
            .find(|refused| refused.reason() == Reason::OurIdentity)
            .cloned();
        if let Some(older) = older {
            warn!(peer = %older, "an older node has the same key as this node, as on a cloned disk: creating a new key");
            keys.renew();
            tokio::time::sleep(TIMEOUT).await;
            if readings
                .borrow()
                .refused
                .iter()
                .any(|refused| refused.reason() == Reason::OurIdentity)
            {
                continue;
            }
        }
        if readings.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Reports this host's addresses to the store's client, so that it does not wait for replies to an address that this
/// host has lost.
async fn report_addresses(
    manager: Arc<dyn SubnetManager>,
    mut underlay: watch::Receiver<Underlay>,
    stop: CancellationToken,
) {
    let follow = async {
        while underlay.changed().await.is_ok() {
            let local: Vec<_> =
                underlay.borrow_and_update().local.iter().map(IpNet::addr).collect();
            manager.readdressed(&local);
        }
        std::future::pending::<()>().await;
    };
    stop.run_until_cancelled(follow).await;
}
