//! Changes of the network's configuration. While a node waits for its lease, the current configuration applies; afterwards a restart applies it.

use super::end::End;
use crate::problem::{DaemonProblem, is_about_config};
use doctor::facts::store::NextConfig;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::NetworkConfig;
use subnet_lease::manager::SubnetManager;
use tokio::sync::watch;
use tracing::{info, warn};
use types::Problem;

/// Interval at which a node that waits for its lease reads the configuration.
const CONFIGURATION: Duration = Duration::from_secs(2);

/// Returns when the store's configuration differs from `waiting_with`. Only for stores that know their nodes: a node that waits for its lease applies
/// the current configuration. A file that cannot be used changes nothing.
pub(super) async fn another_configuration(
    manager: &Arc<dyn SubnetManager>,
    waiting_with: &NetworkConfig,
) -> End {
    if manager.node_info_changes().is_none() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(CONFIGURATION).await;
        if manager
            .network_config()
            .await
            .is_ok_and(|now| now != *waiting_with)
        {
            return End::start_over(DaemonProblem::ConfigChanged);
        }
    }
}

/// Interval at which a node with a lease reads the configuration.
const NEXT_CONFIGURATION: Duration = Duration::from_secs(15);

/// Watches for a configuration other than the one in use, logs it once, and publishes it. Never ends.
pub(super) async fn watch_configuration(
    manager: Arc<dyn SubnetManager>,
    in_use: NetworkConfig,
    found: watch::Sender<Option<NextConfig>>,
) {
    let mut last = None;
    loop {
        tokio::time::sleep(NEXT_CONFIGURATION).await;
        let read = manager.config().await.map_err(Problem::from);
        let next = match &read {
            Ok(config) => {
                let members = in_use.differences(config).into_iter().map(str::to_owned);
                let members: Vec<String> = members.collect();
                (!members.is_empty()).then_some(NextConfig::Other(members))
            }
            Err(problem) if is_about_config(problem) => Some(NextConfig::Unusable {
                problem: problem.clone(),
                in_use: in_use.to_json(),
            }),
            // The store does not respond, so nothing is known.
            Err(_) => continue,
        };
        let read = read.ok();
        if next.is_some() == found.borrow().is_some() && read == last {
            continue;
        }
        match &next {
            Some(NextConfig::Other(members)) => warn!(
                members = members.join(" "),
                remedy = "restart flanneld on all nodes",
                "the network configuration has changed: a restart applies it"
            ),
            Some(NextConfig::Unusable { problem, .. }) => warn!(
                error = %problem,
                remedy = "put the network configuration back (flannelctl doctor has the command)",
                "the network configuration is gone: flanneld continues with the one it read"
            ),
            None => info!("the network configuration is the one in use again"),
        }
        last = read;
        found.send_replace(next);
    }
}
