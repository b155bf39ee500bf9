//! What the daemon needs before it asks for a lease: the configured backend, and the right to serve the network on this host.

use super::end::End;
use super::{Daemon, retry, rights};
use crate::health::condition::Condition;
use crate::identity;
use backends::{Backend, Options, Setup};
use run_dir::subnet_env;
use std::sync::Arc;
use subnet_lease::manager::SubnetManager;
use subnet_lease::{NetworkConfig, NodeId};
use tracing::info;

/// A host with the right to serve a network.
pub struct Host {
    pub config: NetworkConfig,
    pub node: NodeId,
    pub backend: Box<dyn Backend>,
}

impl Daemon {
    /// Reads the configuration and claims its network, before anything on the host is changed.
    pub(super) async fn claim_host(&mut self, manager: &Arc<dyn SubnetManager>) -> Result<Host, End> {
        let config = retry::until_available(&self.health, Condition::Config, || manager.network_config()).await?;
        info!("network {}, backend {}", config.networks, if config.backend.is_empty() { "(none)" } else { config.backend.as_str() });
        let node = identity::node(self.settings.node_id.as_deref());
        self.health.fact("node_id", node.id.clone());
        let backend = backends::create(&self.setup(&config, &node)).map_err(End::failed)?;
        let guard = self.settings.rules.guard.is_some() && !backend.guarded_ports().is_empty();
        let wants = rights::wants(&*backend).await;
        let claim = || rights::claim(&config, &wants, guard, &self.settings.subnet_file);
        self.rights = retry::briefly(claim).await.map_err(End::failed)?;
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
            features: self.settings.features,
        }
    }
}
