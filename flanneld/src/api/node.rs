//! `GET /api/v1/node`: the node document, which flanneld assembles from the state of its tasks.

use super::kernel;
use crate::health::Health;
use doctor::Report;
use node_api::routes::Routes;
use node_api::{File, FileState, Lease, LostPods, Node, Peer, PodPath};
use probing::node::Client;
use probing::pods::{self, IdleError};
use run_dir::subnet_env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::LeaseTable;
use subnet_lease::manager::{Held, boot_time};
use types::{Problem, Subnets, printable};

#[derive(Clone, Debug)]
pub struct StatusSource {
    health: Health,
    subnet_file: PathBuf,
}

impl StatusSource {
    /// Has no network yet.
    pub fn new(health: Health, subnet_file: PathBuf) -> Self {
        Self { health, subnet_file }
    }

    pub async fn routes(&self) -> Result<Routes, Problem> {
        let kernel_audit = self.health.network().and_then(|running| running.kernel_audit);
        let document = self.health.document();
        kernel::routes(kernel_audit, document.node, document.rules).await
    }

    /// Runs the checks first. The previous report if they take very long.
    pub async fn fresh_report(&self) -> Option<Arc<Report>> {
        const PATIENCE: Duration = Duration::from_secs(10);
        self.health.fresh_report(PATIENCE).await
    }

    /// `None` before the doctor's first round.
    pub fn report(&self) -> Option<Arc<Report>> {
        self.health.report()
    }

    pub fn node(&self) -> Node {
        let mut node = self.health.document();
        if let Some(report) = self.report() {
            node.findings = Some(report.findings.clone());
            node.unknown.clone_from(&report.unknown);
        }
        if let Some(running) = self.health.network() {
            node.mesh = running.prober.as_ref().map(|prober| Arc::unwrap_or_clone(prober.view()));
            node.pod_paths = running
                .pod_paths
                .as_ref()
                .map(|paths| paths.borrow().iter().map(pod_path).collect());
            node.network.lease = Some(lease(&running.held.borrow()));
            node.peers = peers(&running.leases.borrow(), &running.network.own);
            node.network.underlay = Some(shown(&running.underlay.borrow(), &running.why));
            let env = running.env.borrow().clone();
            node.network.mtu = Some(env.mtu);
            let state = match self.subnet_file.exists() {
                false => FileState::Missing,
                true if subnet_env::matches(&self.subnet_file, &env) => FileState::Right,
                true => FileState::Different,
            };
            node.network.subnet_env = Some(File { path: self.subnet_file.clone(), state });
        }
        if let Some(store) = &mut node.store {
            let counters = self.health.store();
            store.trouble = counters
                .as_ref()
                .and_then(|counters| counters.why_unavailable())
                .map(|(why, _)| why.text);
            store.heard = counters.and_then(|counters| counters.last_heard()).and_then(wall_clock);
        }
        node
    }

    /// Makes the prober request the reports of other nodes for a client.
    pub fn look(&self, client: Client) {
        if let Some(prober) = self.health.network().and_then(|running| running.prober) {
            prober.request_rows(client);
        }
    }

    /// The source of the documents.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// JSON that is safe to print on a terminal.
    pub fn text(&self, rows: bool) -> serde_json::Result<String> {
        let mut node = self.node();
        // The reports of all nodes of a large cluster are large, so only clients that request them get them.
        if let Some(mesh) = node.mesh.as_mut().filter(|_| !rows) {
            mesh.rows.clear();
        }
        safe(&node)
    }
}

fn pod_path((family, path): (&types::Family, &pods::PodPath)) -> PodPath {
    let (obstacle, detail) = match &path.obstacle {
        None => (None, None),
        Some(IdleError::NoBridge) => (Some("no-bridge"), None),
        Some(IdleError::SmallSubnet) => (Some("small-subnet"), None),
        Some(IdleError::Flooded) => (Some("flooded"), None),
        Some(IdleError::Filtered) => (Some("filtered"), None),
        Some(IdleError::NobodyAnswers) => (Some("nobody-answers"), None),
        Some(IdleError::Taken(mac)) => (Some("taken"), Some(mac.clone())),
        Some(IdleError::Refused(error)) => (Some("refused"), Some(error.clone())),
    };
    let lost = |(subnet, what): (&ipnet::IpNet, &pods::LostPackets)| LostPods {
        subnet: *subnet,
        what: *what,
    };
    PodPath {
        family: *family,
        state: path.state(),
        address: path.address,
        obstacle: obstacle.map(str::to_owned),
        detail,
        asked: path.asked,
        answered: path.answered,
        lost: path.lost.iter().map(lost).collect(),
    }
}

pub fn shown(underlay: &backends::Underlay, why: &str) -> node_api::Underlay {
    node_api::Underlay {
        interface: underlay.name.clone(),
        addresses: underlay.addresses.ips().collect(),
        public: underlay.public.ips().collect(),
        mtu: underlay.mtu,
        why: why.to_owned(),
    }
}

fn lease(held: &Held) -> Lease {
    Lease {
        until: held.until.and_then(wall_clock),
        renewed: held.renewed.and_then(wall_clock),
        trouble: held.trouble.as_ref().map(ToString::to_string),
    }
}

/// Shortens long strings and escapes unprintable characters, so that the text is safe for terminals.
pub fn safe(document: &impl serde::Serialize) -> serde_json::Result<String> {
    let mut document = serde_json::to_value(document)?;
    printable::bound(&mut document);
    Ok(printable::json(&document.to_string()).into_owned())
}

fn peers(leases: &LeaseTable, own: &Subnets) -> Vec<Peer> {
    let others = leases.iter().filter(|lease| lease.subnets != *own);
    let peer = |lease: &subnet_lease::Lease| Peer {
        node: lease.attrs.node.as_ref().map(|node| node.name.to_string()),
        subnets: lease.subnets.nets().collect(),
        addresses: lease.attrs.addresses().collect(),
    };
    let mut peers: Vec<Peer> = others.map(peer).collect();
    peers.sort_by_key(|peer| peer.subnets.first().map(|net| net.addr()));
    peers
}

/// Converts a time of the boot-time clock to the wall clock.
fn wall_clock(time: Duration) -> Option<jiff::Timestamp> {
    let now = boot_time();
    let ahead = |by: Duration| jiff::SignedDuration::try_from(by).ok();
    let offset = if time >= now { ahead(time - now)? } else { -ahead(now - time)? };
    jiff::Timestamp::now().checked_add(offset).ok()
}

#[cfg(test)]
mod tests;
