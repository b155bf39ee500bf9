//! After the lease: the leases of other nodes, the first pass, traffic rules, subnet.env, and the tasks that maintain them.

use super::attrs::{Ends, Following};
use super::end::End;
use super::node::Node;
use super::reconsider::Reconsider;
use super::{Daemon, readiness_monitor};
use crate::checks::{network, silence, vtep};
use crate::cni_conf::CniConfKeeper;
use crate::health::condition::Condition;
use crate::mesh::Mesh;
use crate::network::RunningNetwork;
use crate::traffic::{self, Keeper, Nodes};
use crate::underlay::UnderlayTrouble;
use crate::underlay::read::follow;
use crate::{memory, subnet_env_keeper, systemd};
use backends::{Backend, Inputs, Network, Renewal, Underlay};
use ipnet::IpNet;
use run_dir::{exit_report, subnet_env};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::admission::Reason;
use subnet_lease::feed::{Feed, Reading};
use subnet_lease::manager::{Lost, NodeState, SubnetManager};
use subnet_lease::{Lease, LeaseTable};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use traffic_rules::Wanted;
use traffic_rules::ownership::OtherDaemons;
use traffic_rules::rules::RuleOptions;
use types::{Problem, Subnets};

/// Audits at least this frequent serve as a heartbeat of the network.
const FREQUENT_AUDIT: Duration = Duration::from_secs(20);

/// The leases of the other nodes, as they change.
pub(super) struct Leases {
    table: watch::Receiver<Arc<LeaseTable>>,
    readings: watch::Receiver<Reading>,
}

impl Daemon {
    /// Follows the leases in the store and waits for the first complete list: an unknown network is not an empty one.
    pub(super) async fn follow_leases(&mut self, node: &Node, ends: &Ends) -> Leases {
        let watched = node.manager.clone();
        let terms = ends.terms.clone();
        let (table_out, table) = watch::channel(Arc::new(LeaseTable::default()));
        let (readings_out, readings) = watch::channel(Reading::default());
        let (first_out, first) = oneshot::channel();
        self.run.spawn(async move {
            let (feed, complete) = Feed::begin(watched.watch(), terms).await;
            table_out.send_replace(complete);
            let _ = first_out.send(());
            feed.run(table_out, readings_out).await;
        });
        let _ = first.await;
        Leases { table, readings }
    }

    /// Brings up the data plane, reports readiness, and starts the tasks that maintain it.
    pub(super) async fn serve(
        &mut self,
        node: Node,
        following: Following,
        ends: Ends,
        leases: Leases,
    ) -> Result<(), End> {
        let Node {
            manager,
            whole,
            config,
            claim,
            found,
            announced,
            lease,
            backend,
            held,
        } = node;
        let env = ends.env;
        let underlay = following.underlay.clone();
        let (profile, encapsulation, guarded) = (
            backend.profile(),
            backend.encapsulation(),
            backend.guarded(),
        );
        let takes = backend.takes(false);
        let devices = takes.devices.clone();
        self.health.carried_by(takes.devices.clone());
        let listens = takes
            .devices
            .into_iter()
            .zip(takes.ports.iter().copied())
            .collect();
        let ports = takes.ports;
        let renewal = backend.renewal();
        // The tunnel needs its port more.
        let probe_port = self
            .settings
            .probe_port
            .filter(|port| !ports.contains(port));
        if let (None, Some(port)) = (probe_port, self.settings.probe_port) {
            warn!(
                "no probes between nodes: UDP port {port} is the backend's; name another one with --probe-port on all nodes"
            );
        }
        let overlay = backend.overlay();
        let mesh = probe_port.zip(overlay.clone());
        let mesh = mesh.map(|(port, overlay)| {
            Mesh::new(
                port,
                &claim.node.id,
                lease.subnets,
                overlay,
                underlay.clone(),
                self.health.clone(),
            )
        });

        let running = self
            .first_pass(backend, &lease, &underlay, &leases.table)
            .await?;
        memory::trim();

        // Rules before subnet.env: pods start once it exists, and rely on the rules.
        let wanted = Wanted {
            networks: config.networks,
            own: lease.subnets,
            options: RuleOptions {
                non_masquerade: [
                    config.non_masquerade.clone(),
                    self.settings.rules.non_masquerade.clone(),
                ]
                .concat(),
                ..self.settings.rules.clone()
            },
            nftables: config.nftables,
            resync: self.settings.rules_resync,
            encapsulation: guarded,
            hosts: BTreeSet::new(),
            peers: BTreeSet::new(),
            guard_slot: self.rights.guard.as_ref().map_or(0, |place| place.number),
            others: OtherDaemons::default(),
        };
        if wanted.options.guard.is_some() && wanted.encapsulation.is_none() {
            warn!(
                "the backend {} has no tunnels to guard: --encap-notrack, --encap-peers and --encap-bar-pods do nothing",
                config.backend
            );
        }
        let nodes = Nodes {
            leases: leases.table.clone(),
            underlay: underlay.clone(),
        };
        let written = self.keep_rules(wanted, nodes).await;

        let (heard_out, heard) = watch::channel(silence::Heard::new());
        let prober = mesh.as_ref().map(|mesh| mesh.prober.clone());
        let network = RunningNetwork {
            network: network(
                &config,
                lease.subnets,
                (profile, encapsulation),
                env.borrow().mtu,
                vtep(announced.data.as_ref()).map(|(vni, _)| vni),
                self.settings.rules.forward,
            ),
            underlay: underlay.clone(),
            why: found.chosen.why.clone(),
            env: env.clone(),
            held: held.1,
            margin: self.settings.renew_margin,
            leases: leases.table.clone(),
            readings: leases.readings.clone(),
            store: manager.counters(),
            heard,
            observer: running.observer(),
            kernel_audit: Some(running.kernel_audit()),
            listens,
            written,
            set_sysctls: self.settings.set_sysctls,
            overlay,
            probe_port: probe_port.unwrap_or_default(),
            prober: prober.clone(),
        };
        if network.set_sysctls {
            // Before the first pods, and without waiting.
            self.sysctls
                .apply(&network.network, &underlay.borrow().name);
        }
        self.health.serves(network.clone());

        if let Err(error) = subnet_env::write(&self.settings.subnet_file, &env.borrow()) {
            // The keeper retries at once and reports failures.
            self.health.fail(Condition::SubnetEnv, error);
        }
        if let Some(conf) = self.settings.cni_conf.clone() {
            // The runtime starts pods once it has this file.
            let mut keeper = CniConfKeeper::new(conf, self.health.clone());
            keeper.pass();
            self.run.spawn(keeper.keep(self.run.stop.clone()));
        }
        self.health.clear(Condition::Start);
        exit_report::remove(&self.settings.subnet_file);
        if let (Some(mesh), Some(prober)) = (mesh, prober) {
            let asks = silence::ask(
                manager.clone(),
                move || {
                    prober
                        .anybody_cut_off()
                        .then(|| prober.peers(|peer| silence::asked(&peer)))
                },
                leases.table.clone(),
                lease.subnets,
                heard_out,
            );
            let stop = self.run.stop.clone();
            self.run
                .spawn(async move { stop.run_until_cancelled(asks).await.unwrap_or_default() });
            self.run
                .spawn(mesh.run(leases.table.clone(), self.run.stop.clone()));
        }
        if let Some(renewal) = renewal {
            let renew = renew_identity(leases.readings, renewal);
            let stop = self.run.stop.clone();
            self.run
                .spawn(async move { stop.run_until_cancelled(renew).await.unwrap_or_default() });
        }
        let (programmed_out, programmed) =
            watch::channel(running.observer().status().kernel.in_step);
        systemd::ready(&format!(
            "subnet {}, {} peers",
            lease.subnets,
            leases.table.borrow().len()
        ));
        self.run.spawn(subnet_env_keeper::keep(
            self.settings.subnet_file.clone(),
            env.clone(),
            self.health.clone(),
            self.run.stop.clone(),
        ));

        let told = self.health.clone();
        let tell = move |trouble: Option<&UnderlayTrouble>| {
            told.condition(Condition::Underlay, trouble.map(Problem::of));
        };
        if let Some(changes) = manager.node_info_changes() {
            let reconsider = Reconsider {
                manager: manager.clone(),
                settings: self.settings.clone(),
                config: whole,
                chosen: found.chosen.clone(),
                network: network.clone(),
                devices,
                left: self.left.clone(),
                known: self.known.clone(),
            };
            let stop = self.run.stop.clone();
            self.run.tasks.spawn(async move {
                stop.run_until_cancelled(reconsider.watch(changes))
                    .await
                    .unwrap_or(Ok(()))
            });
        }
        self.run.spawn(follow(
            found.chosen,
            profile.needs_links,
            ends.underlay,
            tell,
            self.run.stop.clone(),
        ));
        self.run.spawn(report_addresses(
            manager.clone(),
            underlay.clone(),
            self.run.stop.clone(),
        ));
        let monitor = readiness_monitor::ReadinessMonitor {
            network,
            audits: self
                .settings
                .audit
                .is_some_and(|audit| audit <= FREQUENT_AUDIT),
            programmed: programmed_out,
            health: self.health.clone(),
        };
        self.run.spawn(monitor.watch(self.run.stop.clone()));
        let inputs = Inputs {
            leases: leases.table,
            underlay,
            stop: self.run.stop.clone(),
        };
        let announcements = ends.announced;
        self.run.tasks.spawn(async move {
            running
                .run(inputs, announcements)
                .await
                .map_err(End::failed)
        });
        self.run.spawn(following.run(self.run.stop.clone()));
        let stop = self.run.stop.clone();
        let state = NodeState {
            attrs: ends.attrs,
            programmed,
        };
        let health = self.health.clone();
        self.run.tasks.spawn(async move {
            tokio::select! {
                // A stop ends what `hold` follows, too: that is no loss of the lease.
                biased;
                () = stop.cancelled() => Ok(()),
                lost = manager.hold(&claim, &config, state, held.0) => Err(match lost {
                    Lost::Taken(why) => {
                        health.lost(why.clone());
                        End::LeaseLost(Box::new(why))
                    }
                    Lost::Displaced(why) => {
                        health.lost(why.clone());
                        End::failed(why)
                    }
                    Lost::Moved(why) => End::moved(why),
                }),
            }
        });
        Ok(())
    }

    /// Brings the kernel in sync with the leases.
    async fn first_pass(
        &self,
        backend: Box<dyn Backend>,
        lease: &Lease,
        underlay: &watch::Receiver<Underlay>,
        leases: &watch::Receiver<Arc<LeaseTable>>,
    ) -> Result<Box<dyn Network>, End> {
        if !backend.hands_over() {
            // An inherited device or socket that no backend takes over would be in the way.
            self.inherited.release();
        }
        let (table, present) = (leases.borrow().clone(), underlay.borrow().clone());
        let network = backend
            .join(lease.clone(), &present, &table)
            .await
            .map_err(End::failed)?;
        self.inherited.release();
        info!(
            "leases of other nodes: {}",
            table
                .iter()
                .filter(|other| other.subnets != lease.subnets)
                .count()
        );
        Ok(network)
    }

    /// Applies the traffic rules and keeps them in place. A delay shows in readiness and delays nothing else. The receiver changes whenever
    /// rules are written.
    async fn keep_rules(&mut self, wanted: Wanted, nodes: Nodes) -> watch::Receiver<u64> {
        let previous = subnet_env::last_served(&self.settings.subnet_file);
        let before = previous.networks().iter().flat_map(Subnets::nets).collect();
        let keeper = Keeper::new(
            wanted,
            nodes,
            before,
            self.rights.devices.clone(),
            self.health.clone(),
        );
        let written = keeper.written();
        let (applied_out, applied) = oneshot::channel();
        self.run
            .spawn(keeper.keep(applied_out, self.run.stop.clone()));
        let _ = tokio::time::timeout(traffic::START_TIMEOUT, applied).await;
        written
    }
}

/// Asks for another identity when an older node has this one's: all peers refuse the later.
async fn renew_identity(mut readings: watch::Receiver<Reading>, renewal: Renewal) {
    /// The new identity has to reach the store and come back.
    const TIMEOUT: Duration = Duration::from_secs(60);
    loop {
        let older = readings
            .borrow_and_update()
            .refused
            .iter()
            .find(|refused| refused.reason() == Reason::OurIdentity)
            .cloned();
        if let Some(older) = older {
            warn!(
                "this node's key is that of an older node, as of a cloned disk ({older}): making another one"
            );
            renewal.ask();
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

/// Reports this host's addresses to the store's client, so that it need not wait for answers to an address that is gone.
async fn report_addresses(
    manager: Arc<dyn SubnetManager>,
    mut underlay: watch::Receiver<Underlay>,
    stop: CancellationToken,
) {
    let follow = async {
        while underlay.changed().await.is_ok() {
            let local: Vec<_> = underlay
                .borrow_and_update()
                .local
                .iter()
                .map(IpNet::addr)
                .collect();
            manager.readdressed(&local);
        }
        std::future::pending::<()>().await;
    };
    stop.run_until_cancelled(follow).await;
}
