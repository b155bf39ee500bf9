//! Detects changes of the network's configuration. While a node waits for its lease, the current configuration in the
//! store applies. Afterwards, only a restart applies a changed one.

use super::end::EndError;
use crate::error::is_about_config;
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

/// Ends when the store's configuration differs from `waiting_with`; never if the store does not know its nodes.
/// Ignores an unusable configuration.
pub(super) async fn another_configuration(
    manager: &Arc<dyn SubnetManager>,
    waiting_with: &NetworkConfig,
) -> EndError {
    if manager.node_info_changes().is_none() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(CONFIGURATION).await;
        if manager.network_config().await.is_ok_and(|now| now != *waiting_with) {
            let text = "the network configuration has changed";
            return EndError::start_over(Problem::new("config-changed", text));
        }
    }
}

/// Interval at which a node with a lease reads the configuration.
const NEXT_CONFIGURATION: Duration = Duration::from_secs(15);

/// Logs and publishes each configuration that differs from the one in use, once. Never ends.
pub(super) async fn watch_configuration(
    manager: Arc<dyn SubnetManager>,
    in_use: NetworkConfig,
    found: watch::Sender<Option<NextConfig>>,
) {
    loop {
        tokio::time::sleep(NEXT_CONFIGURATION).await;
        let read = manager.next_config().await.map_err(Problem::from);
        if let Some(next) = compared(&in_use, read) {
            publish(next, &found);
        }
    }
}

/// `Some` if the configuration differs from the one in use. The outer option is `None` if the store does not respond.
fn compared(
    in_use: &NetworkConfig,
    read: Result<NetworkConfig, Problem>,
) -> Option<Option<NextConfig>> {
    match read {
        Ok(config) => {
            let members = in_use.differences(&config).into_iter().map(str::to_owned);
            let members: Vec<String> = members.collect();
            Some((!members.is_empty()).then_some(NextConfig::Other(members)))
        }
        Err(problem) if is_about_config(&problem) => {
            Some(Some(NextConfig::Unusable { problem, in_use: in_use.to_json() }))
        }
        Err(_) => None,
    }
}

/// Publishes and logs the next configuration, unless it equals the published one.
fn publish(next: Option<NextConfig>, found: &watch::Sender<Option<NextConfig>>) {
    if next == *found.borrow() {
        return;
    }
    match &next {
        Some(NextConfig::Other(members)) => warn!(
            members = members.join(" "),
            remedy = "restart flanneld on all nodes",
            "the network configuration has changed; a restart applies the change"
        ),
        Some(NextConfig::Unusable { problem, .. }) => warn!(
            error = %problem,
            remedy = "see flannelctl doctor",
            "the store has no usable network configuration: flanneld continues with the configuration that it read"
        ),
        None => info!(
            "resolved: the network configuration in the store equals the configuration in use"
        ),
    }
    found.send_replace(next);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> NetworkConfig {
        NetworkConfig::parse(text).unwrap()
    }

    fn read(text: &str) -> Result<NetworkConfig, Problem> {
        NetworkConfig::parse(text)
    }

    #[test]
    fn configuration_in_use_is_never_reported_and_each_change_is() {
        let in_use = config(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#);
        let same = read(r#"{ "Network": "10.5.0.0/16", "Backend": { "Type": "vxlan" } }"#);
        assert_eq!(compared(&in_use, same), Some(None));
        let other = read(r#"{"Network":"10.5.0.0/16","SubnetLen":25,"Backend":{"Type":"udp"}}"#);
        assert_eq!(
            compared(&in_use, other),
            Some(Some(NextConfig::Other(vec!["SubnetLen".to_owned(), "Backend".to_owned()])))
        );
        let mut seen = Vec::new();
        for broken in ["{", "{}"] {
            let next = compared(&in_use, read(broken)).unwrap();
            assert!(matches!(next, Some(NextConfig::Unusable { .. })), "{next:?}");
            seen.push(next);
        }
        // One fault after another is news: a remedy for the first might harm with the second.
        assert_ne!(seen[0], seen[1]);
    }
}
