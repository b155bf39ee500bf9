//! Re-evaluates the choice of the interface while the node runs, because the first node cannot know that later nodes
//! have the same address.
//!
//! The node keeps a working interface even if other Nodes claim its address, because many users may write an address
//! into a Node. The node leaves an interface only if no packets arrive over it, the choice is in doubt, and another
//! interface is better.

use super::end::EndError;
use super::left::Left;
use super::node_info::{SETTLE, families, wish_of};
use super::silence::{Received, SILENCE, Silence};
use crate::checks::known::{Known, NodeAddresses};
use crate::network::RunningNetwork;
use crate::underlay::read::{Wish, neighbours, received};
use crate::underlay::{Chosen, doubt, select};
use options::Settings;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::NetworkConfig;
use subnet_lease::manager::{NodeInfo, SubnetManager};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;
use types::Problem;

/// Interval at which the node checks for received packets, and minimum time between two evaluations of the choice.
const LISTEN: Duration = Duration::from_secs(5);
/// Maximum time between two evaluations of the choice.
const RESELECT_INTERVAL: Duration = Duration::from_secs(30);

pub(super) struct Reconsider {
    pub manager: Arc<dyn SubnetManager>,
    pub settings: Settings,
    /// With all its address families.
    pub config: NetworkConfig,
    pub chosen: Chosen,
    /// Without a prober, the node keeps its interface, because it cannot know whether peers reply.
    pub network: RunningNetwork,
    pub devices: Vec<String>,
    pub left: Left,
    /// Takes this node's addresses, for the doctor.
    pub known: watch::Sender<Known>,
}

impl Reconsider {
    /// Ends when another interface is better.
    pub(super) async fn watch(self, mut changes: watch::Receiver<u64>) -> Result<(), EndError> {
        let mut logged: Option<Problem> = None;
        let (mut silence, mut silent) = (Silence::new(Instant::now()), false);
        let mut evaluated = Instant::now();
        loop {
            let changed = tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(SETTLE).await;
                    true
                }
                () = tokio::time::sleep(LISTEN) => false,
            };
            let was_silent = std::mem::replace(&mut silent, self.is_silent(&mut silence).await);
            if !changed && was_silent == silent && evaluated.elapsed() < RESELECT_INTERVAL {
                continue;
            }
            evaluated = Instant::now();
            changes.borrow_and_update();
            let Ok(Some(info)) = self.manager.node_info(&self.config).await else {
                continue;
            };
            NodeAddresses::from(&info).publish(&self.known);
            match self.better(&info, silent).await {
                Outcome::Stays => logged = None,
                Outcome::Better(why) => {
                    return Err(EndError::start_over(Problem::new("better-interface", why)));
                }
                Outcome::Wanted(why) => {
                    if logged.as_ref() != Some(&why) {
                        warn!(code = &*why.code, error = %why, "the choice of the interface is in doubt");
                        self.manager.tell_operator(&why).await;
                        logged = Some(why);
                    }
                }
            }
            tokio::time::sleep(LISTEN).await;
        }
    }

    /// True without received packets for at least [`SILENCE`].
    async fn is_silent(&self, silence: &mut Silence) -> bool {
        let Some(prober) = self.network.prober.as_ref().filter(|_| !self.chosen.named) else {
            return false;
        };
        // Counters that cannot be read do not prove silence.
        let Ok(received) = received(&self.devices).await else {
            return false;
        };
        silence
            .look(Received { answers: prober.figures().traffic.answered, received }, Instant::now())
            && !self.meets_a_peer().await
    }

    /// True if a peer is on the interface's own link. Its packets may bypass the tunnel, so the tunnel's counters do
    /// not prove silence.
    async fn meets_a_peer(&self) -> bool {
        let leases = self.network.leases.borrow().clone();
        let peers = leases.iter().flat_map(|lease| lease.attrs.addresses());
        let (peers, index): (BTreeSet<IpAddr>, u32) =
            (peers.collect(), self.network.underlay.borrow().index);
        // Neighbours that cannot be read do not prove silence.
        neighbours(index).await.map_or(true, |found| found.iter().any(|ip| peers.contains(ip)))
    }

    async fn better(&self, info: &NodeInfo, silent: bool) -> Outcome {
        let present = self.network.underlay.borrow().clone();
        let Some(subnets) = info.subnets else {
            return Outcome::Stays;
        };
        let all = families(&subnets);
        let wish = async |families| {
            wish_of(
                &self.manager,
                &self.settings,
                (info, self.config.networks),
                families,
                self.left.recent(Instant::now()),
            )
            .await
            .0
        };
        if !present.addresses.same_families(&all) && wish(all).await.choose().await.is_ok() {
            return Outcome::Better("this host has a new address of the other family".to_owned());
        }
        if self.chosen.named || info.overwritten || !silent {
            return Outcome::Stays;
        }
        let wish = wish(present.addresses.map(|_| (), |_| ())).await;
        let Some(known) = wish.known.clone() else {
            return Outcome::Stays;
        };
        // The addresses that this node published are in doubt.
        let wish = Wish {
            known: Some(crate::underlay::KnownAddresses { published: Vec::new(), ..known.clone() }),
            ..wish
        };
        let Ok((request, facts)) = wish.look().await else {
            return Outcome::Stays;
        };
        let doubt = doubt(&present, &known, &facts);
        let claimed = doubt.claimed.iter().find(|(_, claimant)| claimant.served);
        let name = &present.name;
        let against = match (claimed, doubt.is_nat) {
            (Some((ip, claimant)), _) => {
                format!("{ip} of {name} is also an address of the Node {}", claimant.node)
            }
            (None, true) => format!("{name} is behind a NAT that only this machine uses"),
            (None, false) => return Outcome::Stays,
        };
        let left = format!("no peer has responded for {} s, and {against}", SILENCE.as_secs());
        match select(&request, &facts) {
            Ok(chosen) if chosen.underlay.addresses != present.addresses => {
                self.left.note(present.addresses.ips(), Instant::now());
                Outcome::Better(format!("{left}; {}: {}", chosen.underlay.name, chosen.why))
            }
            _ if claimed.is_none() => Outcome::Stays,
            Ok(_) => {
                let text = format!("{left}; this host has no better interface");
                Outcome::Wanted(Problem::new("no-better-interface", text))
            }
            Err(error) => Outcome::Wanted(Problem { parts: Vec::new(), ..error }),
        }
    }
}

enum Outcome {
    Stays,
    /// The reason why another interface is better.
    Better(String),
    /// The current choice is in doubt, but no other interface is usable.
    Wanted(Problem),
}
