//! Waits for this node's entry in a store that knows its nodes, and chooses the interface by the addresses in the entry.

use super::end::EndError;
use super::{Daemon, retry};
use crate::health::condition::Condition;
use crate::systemd;
use crate::underlay::read::{Wish, wait_for};
use crate::underlay::{Address, Families, Found, SHARED, needs_servers};
use options::Settings;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::NetworkConfig;
use subnet_lease::manager::{Error, NodeInfo, SubnetManager};
use subnet_lease::reason::LogOnce;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;
use types::backoff::Backoff;
use types::{Detail, Dual, Problem, Subnets};

/// Delay between two requests for this node's entry, unless the store reports a change. Each time, the daemon also
/// reads the network configuration again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
/// Time for which a node waits for an address of its second address family.
const SECOND_FAMILY: Duration = Duration::from_secs(3);
/// Interval at which a node without an interface repeats the choice of the interface, because a relevant change may cause no event.
const RESELECT_INTERVAL: Duration = Duration::from_secs(30);
/// Time for which the node collects changes of Nodes before it re-evaluates the interface.
pub(super) const SETTLE: Duration = Duration::from_millis(500);

impl Daemon {
    /// Reads the configuration, and waits until the store knows this node. The entry is `None` if the store does not
    /// know nodes.
    pub(super) async fn find_node_info(
        &self,
        manager: &Arc<dyn SubnetManager>,
    ) -> Result<(NetworkConfig, Option<NodeInfo>), EndError> {
        let mut changes = manager.node_info_changes();
        let mut logged = LogOnce::default();
        let mut failures = 0;
        loop {
            // An operator may correct the configuration meanwhile.
            let config = retry::until_available(&self.health, Condition::Config, || {
                manager.network_config()
            })
            .await?;
            match manager.node_info(&config).await {
                Ok(info) => {
                    self.health.clear(Condition::Lease);
                    self.health.clear(Condition::Store);
                    return Ok((config, info));
                }
                Err(Error::Refused(why)) => return Err(EndError::failed(why)),
                Err(Error::Unavailable(why)) => {
                    let (is, is_not) = match why.detail {
                        Detail::Store { .. } | Detail::Forbidden { .. } => {
                            (Condition::Store, Condition::Lease)
                        }
                        _ => (Condition::Lease, Condition::Store),
                    };
                    self.health.fail(is, why.clone());
                    self.health.clear(is_not);
                    if logged.news(Some(&why)) {
                        warn!(code = %why.code, error = %why, "waiting");
                        systemd::status(&format!("waiting: {why}"));
                    }
                }
            }
            let pause = tokio::time::sleep(RETRY.after(failures));
            failures += 1;
            match &mut changes {
                Some(changes) => tokio::select! {
                    () = pause => {}
                    _ = changes.changed() => {}
                },
                None => pause.await,
            }
        }
    }

    /// Finds the underlay by this node's addresses in the store. The configuration is for the underlay's address
    /// families.
    pub(super) async fn find_node_underlay(
        &self,
        manager: &Arc<dyn SubnetManager>,
        whole: &NetworkConfig,
        info: &NodeInfo,
    ) -> Result<(Found, NetworkConfig), EndError> {
        let mut changes = manager.node_info_changes();
        let mut info = info.clone();
        let mut logged = None;
        loop {
            let subnets = info.subnets.unwrap_or(whole.networks);
            let (wish, local) = wish_of(
                manager,
                &self.settings,
                (&info, whole.networks),
                families(&subnets),
                self.left.recent(Instant::now()),
            )
            .await;
            withdraw(manager, &wish, &info, &local).await;
            let found = tokio::select! {
                found = self.wait_for_families(manager, &wish, &mut logged) => found.map_err(EndError::failed)?,
                now = another(manager, whole, &info, &local, &mut changes) => {
                    if now.subnets != info.subnets {
                        // The evidence of this host must be evaluated for the new subnet.
                        let text = "this node got another subnet while it waited for an interface";
                        return Err(EndError::moved(Problem::new("subnet-changed", text)));
                    }
                    // Another Node came or went, with addresses that matter for the choice.
                    info = now;
                    continue;
                }
                // The store's servers may have become known, and an address that was given up may be taken again.
                () = tokio::time::sleep(RESELECT_INTERVAL) => continue,
            };
            let present = found.chosen.underlay.addresses;
            let config = whole
                .only(&subnets)
                .only(&subnets.only(|family| present.has(family)).unwrap_or(subnets));
            for net in subnets.nets().filter(|net| {
                !config.networks.nets().any(|other| other.max_prefix_len() == net.max_prefix_len())
            }) {
                let family = if net.addr().is_ipv6() { "IPv6" } else { "IPv4" };
                warn!(
                    interface = found.chosen.underlay.name,
                    family,
                    network = %net,
                    "the interface has no address of this family: until it has one, this node and its pods work without this family"
                );
            }
            self.note_underlay(&found);
            return Ok((found, config));
        }
    }

    /// Waits [`SECOND_FAMILY`] for an interface with both address families, then for one with either. Reports a
    /// reason for the wait only once, even if other Nodes change.
    async fn wait_for_families(
        &self,
        manager: &Arc<dyn SubnetManager>,
        wish: &Wish,
        logged: &mut Option<Problem>,
    ) -> Result<Found, Problem> {
        let waiting = |why: &Problem| {
            if logged.as_ref() == Some(why) {
                return;
            }
            *logged = Some(why.clone());
            self.wait_for_interface(why);
            let (manager, why) = (manager.clone(), why.clone());
            tokio::spawn(async move { manager.tell_operator(&why).await });
        };
        if wish.families == Dual::Both((), ()) {
            let both = Wish { wait: Some(SECOND_FAMILY), ..wish.clone() };
            match wait_for(&both, |_| ()).await {
                Ok(found) => return Ok(found),
                // The node does not lack an address: it has one that other nodes also have.
                Err(error) if error.has(SHARED) => return wait_for(wish, waiting).await,
                Err(_) => {}
            }
            for families in [Dual::V4(()), Dual::V6(())] {
                let one = Wish { families, wait: Some(Duration::ZERO), ..wish.clone() };
                match wait_for(&one, |_| ()).await {
                    Ok(found) => return Ok(found),
                    Err(error) if error.has(SHARED) => break,
                    Err(_) => {}
                }
            }
        }
        wait_for(wish, waiting).await
    }
}

/// The request of a node that the store knows, and the addresses of this host. It contains the store's servers if the
/// choice of the interface may depend on them.
pub(super) async fn wish_of(
    manager: &Arc<dyn SubnetManager>,
    settings: &Settings,
    (info, networks): (&NodeInfo, Subnets),
    families: Families,
    left: BTreeSet<IpAddr>,
) -> (Wish, Vec<IpAddr>) {
    let bare = Wish::of(settings, families);
    let wish = bare.clone().for_node(info, networks).knowing(left.clone(), Vec::new());
    let Ok((_, facts)) = bare.look().await else {
        return (wish, Vec::new());
    };
    let local = facts
        .interfaces
        .iter()
        .flat_map(|interface| &interface.addresses)
        .map(Address::ip)
        .collect();
    let needed = wish.known.as_ref().is_some_and(|known| needs_servers(known, &facts));
    if needed { (wish.knowing(left, manager.servers().await), local) } else { (wish, local) }
}

/// Withdraws an address that this node published and no longer has, unless flags or annotations set the published addresses.
async fn withdraw(
    manager: &Arc<dyn SubnetManager>,
    wish: &Wish,
    info: &NodeInfo,
    local: &[IpAddr],
) {
    let decided = wish.public.is_some();
    // If the addresses could not be read, the host may still have them.
    if !decided && !local.is_empty() && info.published.iter().any(|ip| !local.contains(ip)) {
        manager.withdraw(local).await;
    }
}

pub(super) fn families(subnets: &Subnets) -> Families {
    subnets.map(|_| (), |_| ())
}

/// Waits until this node's entry in the store changes in a way that affects the choice of the interface. Most changes
/// of Nodes do not.
async fn another(
    manager: &Arc<dyn SubnetManager>,
    config: &NetworkConfig,
    known: &NodeInfo,
    local: &[IpAddr],
    changes: &mut Option<watch::Receiver<u64>>,
) -> NodeInfo {
    let Some(changes) = changes else {
        return std::future::pending().await;
    };
    while changes.changed().await.is_ok() {
        tokio::time::sleep(SETTLE).await;
        changes.borrow_and_update();
        if let Ok(Some(now)) = manager.node_info(config).await
            && concerning(&now, local) != concerning(known, local)
        {
            return now;
        }
    }
    std::future::pending().await
}

/// The fields of an entry on which the choice of the interface depends, with only the Nodes' claims on this host's
/// addresses. The flag tells whether Nodes claim addresses that this host does not have.
fn concerning(info: &NodeInfo, local: &[IpAddr]) -> (NodeInfo, bool) {
    let own = NodeInfo {
        taken: info
            .taken
            .iter()
            .filter(|(ip, _)| local.contains(ip))
            .map(|(ip, by)| (*ip, by.clone()))
            .collect(),
        ..info.clone()
    };
    (own, info.taken.keys().any(|ip| !local.contains(ip)))
}
