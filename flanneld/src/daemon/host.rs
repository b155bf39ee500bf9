//! Prepares the host before flanneld acquires a lease: creates the backend, and claims the right to serve the
//! network.

use super::end::EndError;
use super::{Daemon, bridge, left_behind, requirement, retry, rights};
use crate::identity;
use backends::{Backend, Setup};
use ipnet::IpNet;
use run_dir::subnet_env::{self, Previous};
use std::sync::Arc;
use subnet_lease::manager::{NodeInfo, SubnetManager};
use subnet_lease::{NetworkConfig, NodeId};
use tracing::{info, warn};
use types::Subnets;

pub(super) struct Host {
    pub config: NetworkConfig,
    /// `None` if the store does not know nodes.
    pub info: Option<NodeInfo>,
    pub node: NodeId,
    pub backend: Box<dyn Backend>,
    /// The contents of subnet.env at the start.
    pub previous: Previous,
    /// The bridges from which flanneld removed the gateway of the previous subnet.
    pub released: Vec<String>,
}

impl Daemon {
    /// Reads the configuration and claims its network, before flanneld changes anything on the host.
    pub(super) async fn claim_host(
        &mut self,
        manager: &Arc<dyn SubnetManager>,
    ) -> Result<Host, EndError> {
        let (config, info) = self.find_node_info(manager).await?;
        info!(
            network = %config.networks,
            backend = if config.backend.is_empty() {
                "(none)"
            } else {
                config.backend.as_str()
            },
            "read the network configuration"
        );
        let node = identity::node(
            info.as_ref().map(|info| info.id.as_str()).or(self.settings.node.id.as_deref()),
        );
        self.health.node(|document| {
            if let Some(info) = &info {
                document.node.clone_from(&info.id);
            }
            document.node_id = Some(node.id.to_string());
            document.network.networks = config.networks.nets().collect();
            document.network.backend = Some(config.backend.clone());
        });
        requirement::check(&self.settings.node.require_backend, &config, &self.settings.store)
            .map_err(EndError::failed)?;
        let backend = backends::create_backend(&self.setup(&config, &node).await)
            .map_err(EndError::failed)?;
        let wants = rights::wants(&*backend).await;
        let claim = || rights::claim(&config, &wants, &self.settings.node.subnet_file);
        self.rights = retry::briefly(claim).await.map_err(EndError::failed)?;
        subnet_env::clear(&self.settings.node.subnet_file);
        let previous = subnet_env::last_served(&self.settings.node.subnet_file);
        let released = match info.as_ref().and_then(|info| info.subnets) {
            Some(subnets) => self.forget_another_subnet(&previous, &subnets).await,
            None => Vec::new(),
        };
        Ok(Host { config, info, node, backend, previous, released })
    }

    /// Sets subnet.env aside and removes the former gateway, if the store has assigned a new subnet to this node. It
    /// may have done so while no daemon ran. No pod may get an address of the former subnet, and no bridge may keep
    /// the former gateway. Returns the bridges that lost it.
    ///
    /// Only stores that assign subnets to nodes need this. If nodes choose their subnets, flanneld ends on a node
    /// that loses its subnet, and the operator decides about the node's pods.
    async fn forget_another_subnet(
        &mut self,
        previous: &Previous,
        subnets: &Subnets,
    ) -> Vec<String> {
        let was: Vec<IpNet> = previous.subnets().iter().flat_map(Subnets::nets).collect();
        if was.iter().all(|net| subnets.nets().any(|now| now == net.trunc())) {
            return Vec::new();
        }
        if let Err(error) = subnet_env::set_aside(&self.settings.node.subnet_file) {
            warn!(code = &*error.code, error = %error, "cannot set subnet.env aside");
        }
        let health = self.health.clone();
        let count = move |released: &[String]| {
            health.figures(|figures| {
                figures.bridge_addresses_removed += u64::try_from(released.len()).unwrap_or(0);
            });
        };
        let released = bridge::release(&was, subnets, true).await;
        count(&released);
        self.spawn_until_stop(bridge::keep_released(was, *subnets, count));
        released
    }

    pub(super) async fn setup(&self, config: &NetworkConfig, node: &NodeId) -> Setup {
        let previous = subnet_env::last_served(&self.settings.node.subnet_file);
        let former = previous.networks();
        Setup {
            config: config.clone(),
            node_id: node.id.to_string(),
            route_protocol: self.settings.node.route_protocol,
            files: Some(self.inherited.clone()),
            left_behind: left_behind::devices(config.networks, former).await,
            former,
            refuse_insecure: self.settings.node.refuse_insecure,
            key_file: self.settings.node.key_file.clone(),
            preshared_file: self.settings.node.preshared_file.clone(),
            key_requests: self.key_requests.clone(),
            features: self.settings.features,
        }
    }
}
