//! Looks again at the choice of the interface while the node runs: the first node of a lab cannot know that its address is everybody's.
//!
//! What works is not given up, whatever other Nodes claim: anybody may write an address into a Node. An interface is left only when nothing comes in
//! over it, something speaks against it, and another one is better.

use super::end::End;
use super::left::Left;
use super::node_info::{SETTLE, families, wish_of};
use super::silence::{Received, SILENCE, Silence};
use crate::checks::known::{Known, NodeAddresses};
use crate::network::RunningNetwork;
use crate::problem::DaemonProblem;
use crate::underlay::read::{Wish, neighbours, received};
use crate::underlay::{Against, Better, Chosen, NoBetter, Unheard, doubt, select};
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
use types::{Coded, Problem};

/// How often it is noted whether something came in; the least time between two looks at the choice.
const LISTEN: Duration = Duration::from_secs(5);
/// The most time between two looks at the choice.
const RESELECT_INTERVAL: Duration = Duration::from_secs(30);

/// What the choice depends on while the node runs.
pub(super) struct Reconsider {
    pub manager: Arc<dyn SubnetManager>,
    pub settings: Settings,
    /// The network's configuration, with all its families.
    pub config: NetworkConfig,
    /// What was chosen.
    pub chosen: Chosen,
    /// The running network; without its probes nothing is known of peers, and no interface is left.
    pub network: RunningNetwork,
    /// The devices of the tunnels.
    pub devices: Vec<String>,
    /// The addresses that this node gave up.
    pub left: Left,
    /// What the doctor is told of this node's addresses.
    pub known: watch::Sender<Known>,
}

impl Reconsider {
    /// Returns when another choice is better.
    pub(super) async fn watch(self, mut changes: watch::Receiver<u64>) -> Result<(), End> {
        let mut told: Option<NoBetter> = None;
        let (mut silence, mut silent) = (Silence::new(Instant::now()), false);
        let mut looked = Instant::now();
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
            if !changed && was_silent == silent && looked.elapsed() < RESELECT_INTERVAL {
                continue;
            }
            looked = Instant::now();
            changes.borrow_and_update();
            let Ok(Some(info)) = self.manager.node_info(&self.config).await else {
                continue;
            };
            NodeAddresses::from(&info).tell(&self.known);
            match self.better(&info, silent).await {
                Outcome::Stays => told = None,
                Outcome::Better(why) => {
                    return Err(End::start_over(DaemonProblem::BetterInterface(why)));
                }
                Outcome::Wanted(why) => {
                    if told.as_ref() != Some(&why) {
                        warn!(code = why.code(), "{why}");
                        self.manager.tell_operator(&Problem::of(&why)).await;
                        told = Some(why);
                    }
                }
            }
            tokio::time::sleep(LISTEN).await;
        }
    }

    /// Whether nothing has come in for long enough.
    async fn is_silent(&self, silence: &mut Silence) -> bool {
        let Some(prober) = self.network.prober.as_ref().filter(|_| !self.chosen.named) else {
            return false;
        };
        // What cannot be read is no silence.
        let Ok(received) = received(&self.devices).await else {
            return false;
        };
        silence.look(
            Received {
                answers: prober.figures().0.answered,
                received,
            },
            Instant::now(),
        ) && !self.meets_a_peer().await
    }

    /// Whether a peer is on the interface's own link: packets to it may go past the tunnel, which then tells nothing.
    async fn meets_a_peer(&self) -> bool {
        let leases = self.network.leases.borrow().clone();
        let peers = leases.iter().flat_map(|lease| lease.attrs.addresses());
        let (peers, index): (BTreeSet<IpAddr>, u32) =
            (peers.collect(), self.network.underlay.borrow().index);
        // What cannot be read is no silence.
        neighbours(index)
            .await
            .map_or(true, |found| found.iter().any(|ip| peers.contains(ip)))
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
                info,
                families,
                self.left.recent(Instant::now()),
            )
            .await
            .0
        };
        if !present.addresses.same_families(&all) && wish(all).await.choose().await.is_ok() {
            return Outcome::Better(Better::OtherFamily);
        }
        if self.chosen.named || info.overwritten || !silent {
            return Outcome::Stays;
        }
        let wish = wish(present.addresses.map(|_| (), |_| ())).await;
        let Some(known) = wish.known.clone() else {
            return Outcome::Stays;
        };
        // What this node published is what is in doubt.
        let wish = Wish {
            known: Some(crate::underlay::KnownAddresses {
                published: Vec::new(),
                ..known.clone()
            }),
            ..wish
        };
        let Ok((request, facts)) = wish.look().await else {
            return Outcome::Stays;
        };
        let doubt = doubt(&present, &known, &facts);
        let claimed = doubt.claimed.iter().find(|(_, claimant)| claimant.served);
        let against = match (claimed, doubt.is_nat) {
            (Some((ip, claimant)), _) => Against::Claimed {
                ip: *ip,
                node: claimant.node.clone(),
            },
            (None, true) => Against::Nat,
            (None, false) => return Outcome::Stays,
        };
        let unheard = Unheard {
            interface: present.name.clone(),
            silence: SILENCE,
            against,
        };
        match select(&request, &facts) {
            Ok(chosen) if chosen.underlay.addresses != present.addresses => {
                let addresses = [
                    present.addresses.v4().copied().map(IpAddr::V4),
                    present.addresses.v6().copied().map(IpAddr::V6),
                ];
                self.left
                    .note(addresses.into_iter().flatten(), Instant::now());
                Outcome::Better(Better::Than {
                    unheard,
                    interface: chosen.underlay.name,
                    why: chosen.why,
                })
            }
            _ if claimed.is_none() => Outcome::Stays,
            Ok(_) => Outcome::Wanted(NoBetter::Same(unheard)),
            Err(error) => Outcome::Wanted(NoBetter::None(error)),
        }
    }
}

/// What a look brings.
enum Outcome {
    /// The choice stands.
    Stays,
    /// Another one is better.
    Better(Better),
    /// Another one would be better, and there is none.
    Wanted(NoBetter),
}
