//! The configuration of the network while a node waits for its lease: the current content of the file applies.

use super::end::End;
use crate::problem::DaemonProblem;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::NetworkConfig;
use subnet_lease::manager::SubnetManager;

/// How often the configuration is read while the node waits for its lease.
const CONFIGURATION: Duration = Duration::from_secs(2);

/// Returns when the configuration of a store that knows its nodes differs from this: while the node waits for its lease, the current one
/// applies. A file that cannot be used changes nothing.
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
