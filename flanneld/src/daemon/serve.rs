//! Starts the network after the acquisition of the lease: reads other nodes' leases, configures the kernel, writes
//! subnet.env, and starts tasks that maintain the network.

use super::Daemon;
use super::attrs::{Ends, Following};
use super::end::EndError;
use super::node::{Leased, Node};
use super::tunnel::Tunnel;
use crate::checks::{network, silence, vni};
use crate::memory;
use crate::network::RunningNetwork;
use backends::status::NetworkHandle;
use backends::{Backend, Options, Underlay, join_network};
use reconcile::Reconciler;
use std::sync::Arc;
use subnet_lease::feed::{Feed, Reading};
use subnet_lease::{Lease, LeaseTable};
use tokio::sync::{oneshot, watch};
use tracing::info;

pub(super) struct Leases {
    pub table: watch::Receiver<Arc<LeaseTable>>,
    pub readings: watch::Receiver<Reading>,
}

impl Daemon {
    /// Waits for the first complete list, so that the daemon does not regard unread leases as deleted.
    pub(super) async fn follow_leases(&mut self, node: &Leased, ends: &Ends) -> Leases {
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
    ) -> Result<(), EndError> {
        let Node { backend, leased: node } = node;
        let tunnel = Tunnel::of(&*backend);
        self.health.carried_by(tunnel.devices.clone());
        let mesh = self.mesh(&node, &tunnel, &following.underlay);

        let (reconciler, observer) =
            self.first_pass(backend, &node.lease, &following.underlay, &leases.table).await?;
        memory::trim();
        // The rules come before subnet.env: pods start once it exists, and rely on the rules.
        let written = self.start_rules(&node, &tunnel, &following.underlay, &leases.table).await;
        let (heard_out, heard) = watch::channel(silence::Heard::new());
        let network = RunningNetwork {
            network: network(
                &node.config,
                node.lease.subnets,
                (tunnel.profile, tunnel.encapsulation),
                ends.env.borrow().mtu,
                vni(node.announced.data.as_ref(), node.announced.v6_data.as_ref()),
                self.settings.rules.options.forward,
            ),
            underlay: following.underlay.clone(),
            why: node.found.chosen.why.clone(),
            env: ends.env.clone(),
            held: node.held.1.clone(),
            margin: self.settings.renew_margin,
            leases: leases.table,
            readings: leases.readings,
            store: node.manager.counters(),
            next_config: self.keep_watch_of_config(&node),
            heard,
            observer,
            kernel_audit: Some(reconciler.kernel_audit()),
            listens: tunnel.listens.clone(),
            written,
            set_sysctls: self.settings.node.set_sysctls,
            overlay: tunnel.overlay.clone(),
            probe_port: self.probe_port(&tunnel).unwrap_or_default(),
            prober: mesh.as_ref().map(|mesh| mesh.prober.clone()),
            pod_paths: self.keep_pod_probing(mesh.as_ref(), node.lease.subnets),
        };
        self.publish(&network);

        if let Some(mesh) = mesh {
            self.keep_probing(mesh, &node, &network, heard_out);
        }
        if tunnel.profile.encrypts {
            self.keep_identity(&network);
        }
        self.keep_subnet_env(&network);
        self.keep_choice(&node, &network, tunnel.devices);
        self.keep_underlay(&node, &network, tunnel.profile.needs_links, ends.underlay);
        self.keep_families(&node, &network);
        let programmed = self.keep_ready(&network);
        self.keep_kernel(reconciler, &network, ends.announced);
        self.run.spawn(following.run(self.run.stop.clone()));
        self.keep_lease(node, ends.attrs, programmed);
        Ok(())
    }

    /// Brings the kernel in sync with the leases.
    async fn first_pass(
        &self,
        backend: Box<dyn Backend>,
        lease: &Lease,
        underlay: &watch::Receiver<Underlay>,
        leases: &watch::Receiver<Arc<LeaseTable>>,
    ) -> Result<(Reconciler, Arc<dyn NetworkHandle>), EndError> {
        if !backend.hands_over() {
            // An inherited device or socket that no backend takes over would conflict with its own.
            self.inherited.release();
        }
        let (table, present) = (leases.borrow().clone(), underlay.borrow().clone());
        let options =
            Options { audit: self.settings.node.audit, blackhole: self.settings.rules.blackhole };
        let joined = join_network(backend, lease.subnets, &present, &table, options)
            .await
            .map_err(EndError::not_joined)?;
        self.inherited.release();
        let others = table.iter().filter(|other| other.subnets != lease.subnets);
        info!(count = others.count(), "leases of other nodes");
        Ok(joined)
    }
}
