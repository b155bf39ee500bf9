//! What the daemon needs of this host before it asks for a lease: the configuration's backend, and the right to serve its network here.

use super::{Daemon, End, retry};
use crate::health::condition::Condition;
use crate::identity;
use backends::{Backend, Options, Setup, Takes};
use netstate::netlink::NetlinkKernel;
use run_dir::instance::taken::{self, GuardPlace, Taken, Wants};
use run_dir::instance::{self, Instance, InstanceError};
use run_dir::subnet_env;
use std::sync::Arc;
use subnet_lease::manager::SubnetManager;
use subnet_lease::{NetworkConfig, NodeId};
use tracing::info;

/// A host that may serve a network.
pub struct Host {
    pub config: NetworkConfig,
    pub node: NodeId,
    pub backend: Box<dyn Backend>,
}

/// What no other daemon on this host can have.
#[derive(Default)]
pub struct Rights {
    _instance: Option<Instance>,
    _taken: Option<Taken>,
    pub guard: Option<GuardPlace>,
    pub devices: Vec<String>,
}

impl Daemon {
    /// Reads the configuration and claims its network, before anything of the host is changed.
    pub(super) async fn claim_host(&mut self, manager: &Arc<dyn SubnetManager>) -> Result<Host, End> {
        let config = retry::until_available(&self.health, Condition::Config, || manager.network_config()).await?;
        info!("network {}, backend {}", config.networks, if config.backend.is_empty() { "(none)" } else { config.backend.as_str() });
        let node = identity::node(self.settings.node_id.as_deref());
        self.health.fact("node_id", node.id.clone());
        let backend = backends::create(&self.setup(&config, &node)).map_err(End::failed)?;
        self.rights = self.claim(&config, &*backend).await?;
        subnet_env::clear(&self.settings.subnet_file);
        Ok(Host { config, node, backend })
    }

    fn setup(&self, config: &NetworkConfig, node: &NodeId) -> Setup {
        let previous = subnet_env::read(&self.settings.subnet_file);
        Setup {
            config: config.clone(),
            node_id: node.id.clone(),
            route_protocol: self.settings.route_protocol,
            options: Options { audit: self.settings.audit, blackhole: self.settings.blackhole },
            files: self.inherited.files(),
            former: (previous.network, previous.v6_network),
        }
    }

    async fn claim(&self, config: &NetworkConfig, backend: &dyn Backend) -> Result<Rights, End> {
        let wants = wants(backend).await;
        let guarded = self.settings.rules.guard.is_some() && !backend.guarded_ports().is_empty();
        let (network, subnet_file) = (config.networks.to_string(), &self.settings.subnet_file);
        let attempt = || async {
            let _instance = Some(instance::claim(&network, &config.backend, subnet_file)?);
            let _taken = Some(taken::take(&config.networks, &wants)?);
            let guard = if guarded { Some(taken::take_guard_place()?) } else { None };
            Ok::<_, InstanceError>(Rights { _instance, _taken, guard, devices: wants.devices.clone() })
        };
        retry::briefly(attempt).await.map_err(End::failed)
    }
}

/// What the network needs for itself alone.
async fn wants(backend: &dyn Backend) -> Wants {
    let Takes { devices, tunnels, ports, shares_ports } = match NetlinkKernel::open() {
        // Only who leaves the choice to the kernel has to know.
        Ok(mut kernel) if backend.takes(true) != backend.takes(false) => backend.takes(kernel.knows_vxlan().await.unwrap_or(true)),
        _ => backend.takes(true),
    };
    Wants { devices, tunnels, ports, shares_ports }
}
