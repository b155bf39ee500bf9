//! Traffic rules: what is wanted is data, two appliers bring it into the kernel, and one task keeps it there.

pub mod iptables_text;
pub mod nftables_text;
mod notices;
pub mod programs;
pub mod rules;
#[cfg(test)]
mod tests;

use crate::health::Health;
use ipnet::IpNet;
use notices::Notices;
use programs::{Iptables, nft, nft_table};
use rules::{Choices, Ruleset, ruleset};
use std::time::Duration;
use subnet_lease::{Dual, Subnets};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The name under which trouble with the rules is told to [`Health`].
pub const CONDITION: &str = "rules";
/// Others' changes are collected this long before the rules are looked at.
const QUIET: Duration = Duration::from_millis(50);
/// More repairs a minute than this are a war, which is told and not fought.
const REPAIRS: usize = 3;
const MINUTE: Duration = Duration::from_secs(60);

/// Which rules, and by what they are applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The cluster's networks.
    pub networks: Subnets,
    /// This node's subnets.
    pub own: Subnets,
    /// What the operator chose.
    pub choices: Choices,
    /// By nftables instead of iptables.
    pub nftables: bool,
    /// How often the iptables rules are looked at.
    pub resync: Duration,
}

impl Wanted {
    /// The rules, a set a family.
    pub fn rulesets(&self) -> Vec<Ruleset> {
        let nets = |subnets: &Subnets| (subnets.v4().copied().map(IpNet::V4), subnets.v6().copied().map(IpNet::V6));
        let ((v4, v6), (own_v4, own_v6)) = (nets(&self.networks), nets(&self.own));
        let families = [v4.zip(own_v4), v6.zip(own_v6)];
        families.into_iter().flatten().map(|(network, own)| ruleset(network, own, &self.choices)).collect()
    }
}

/// Keeps the rules in the kernel.
pub struct Keeper {
    wanted: Wanted,
    health: Health,
    repairs: Vec<tokio::time::Instant>,
    trouble: String,
    at_war: bool,
    writes: u64,
}

impl Keeper {
    /// Nothing is applied yet.
    pub fn new(wanted: Wanted, health: Health) -> Self {
        Self { wanted, health, repairs: Vec::new(), trouble: String::new(), at_war: false, writes: 0 }
    }

    /// Brings the rules into the kernel where they are not there.
    pub async fn begin(&mut self) {
        self.pass().await;
    }

    /// Removes the set of the other kind, then keeps ours until `stop`.
    pub async fn keep(mut self, stop: CancellationToken) {
        let mut notices = if self.wanted.nftables { Notices::open() } else { None };
        let run = async {
            for complaint in self.clear_other().await {
                warn!("{complaint}");
            }
            loop {
                let pause = if self.at_war { MINUTE } else { self.wanted.resync };
                match &mut notices {
                    Some(notices) if !self.at_war => {
                        let _ = tokio::time::timeout(self.wanted.resync.max(Duration::from_secs(10)), notices.next()).await;
                        tokio::time::sleep(QUIET).await;
                        notices.drain();
                    }
                    _ => tokio::time::sleep(pause).await,
                }
                let before = self.writes;
                self.pass().await;
                self.war(before);
            }
        };
        stop.run_until_cancelled(run).await;
    }

    /// Counts repairs; too many in a minute are told once, and then made once a minute.
    fn war(&mut self, before: u64) {
        let now = tokio::time::Instant::now();
        self.repairs.retain(|at| now.duration_since(*at) < MINUTE);
        if self.writes > before {
            self.repairs.push(now);
            info!("the traffic rules had been changed by somebody: they are as they should be again");
        }
        let war = self.repairs.len() > REPAIRS;
        if war && !self.at_war {
            warn!(
                "somebody changes the traffic rules again and again ({} times within a minute): they are repaired once a minute from now on; \
                 look for another program that owns these chains (`nft monitor`, another flanneld, a firewall service)",
                self.repairs.len()
            );
        }
        self.at_war = war;
    }

    /// One look, and what it takes.
    async fn pass(&mut self) {
        let mut complaints = Vec::new();
        let nftables = self.wanted.nftables;
        let families = self.wanted.rulesets();
        let work = families.iter().map(|rules| async move { if nftables { apply_nft(rules).await } else { apply_iptables(rules).await } });
        for result in futures_util::future::join_all(work).await {
            match result {
                Ok(wrote) => self.writes += u64::from(wrote),
                Err(why) => complaints.push(why),
            }
        }
        let writes = self.writes;
        self.health.figures(|figures| figures.rule_writes = writes);
        complaints.dedup();
        let text = complaints.join("; ");
        if text != self.trouble {
            if text.is_empty() {
                info!("the traffic rules are in place");
            } else {
                warn!("the traffic rules cannot be applied, trying again: {text}");
            }
            self.trouble.clone_from(&text);
        }
        self.health.condition(CONDITION, (!text.is_empty()).then_some(text.as_str()));
    }

    /// Removes what the other applier, or the other variant of iptables, has of us.
    async fn clear_other(&mut self) -> Vec<String> {
        let mut complaints = Vec::new();
        for ipv6 in [false, true] {
            let nothing = nothing(ipv6);
            let used = if self.wanted.nftables { None } else { Iptables::find(ipv6).await.ok() };
            let mut stale = Iptables::other(ipv6, used.as_ref().map(|used| used.variant)).await;
            if self.wanted.nftables && stale.is_empty() {
                stale.extend(Iptables::find(ipv6).await.ok());
            }
            for programs in stale {
                match programs.saved().await {
                    Ok(saved) => {
                        if let Some(payload) = iptables_text::payload(&nothing, &saved) {
                            match programs.give(&payload).await {
                                Ok(()) => info!("removed flannel's rules from {} ({:?})", programs.restore.display(), programs.variant),
                                Err(why) => complaints.push(format!("flannel's old iptables rules could not be removed: {why}")),
                            }
                        }
                    }
                    Err(why) => tracing::debug!("{why}"),
                }
            }
            if !self.wanted.nftables {
                let (family, name) = nftables_text::table(ipv6);
                if matches!(nft_table(family, name).await, Ok(Some(_)))
                    && let Err(why) = nft(&nftables_text::removal(ipv6)).await
                {
                    complaints.push(format!("flannel's old nftables table {family} {name} could not be removed: {why}"));
                }
            }
        }
        complaints
    }
}

/// Rules of a family of which there are none.
fn nothing(ipv6: bool) -> Ruleset {
    Ruleset { ipv6, masquerade: None, forward: None, forward_insert: false }
}

/// Whether something had to be written.
async fn apply_iptables(rules: &Ruleset) -> Result<bool, String> {
    let programs = Iptables::usual(rules.ipv6);
    let saved = match programs.saved().await {
        Ok(saved) => saved,
        // Who wants no rules misses no program.
        Err(_) if rules.masquerade.is_none() && rules.forward.is_none() => return Ok(false),
        Err(why) if why.contains("cannot run") => {
            return Err(format!("{why}; install the package iptables, or set \"EnableNFTables\": true in the network configuration"));
        }
        Err(why) => return Err(why),
    };
    match iptables_text::payload(rules, &saved) {
        None => Ok(false),
        Some(payload) => programs.give(&payload).await.map(|()| true),
    }
}

async fn apply_nft(rules: &Ruleset) -> Result<bool, String> {
    let (family, name) = nftables_text::table(rules.ipv6);
    let listing = nft_table(family, name).await.map_err(|why| {
        if why.contains("cannot run") {
            format!("{why}; install the package nftables, or set \"EnableNFTables\": false in the network configuration")
        } else {
            why
        }
    })?;
    if nftables_text::holds(rules, listing.as_ref()) || (listing.is_none() && rules.masquerade.is_none() && rules.forward.is_none()) {
        return Ok(false);
    }
    nft(&nftables_text::script(rules)).await.map(|()| true)
}

/// Removes everything of ours and of Go flannel's from both appliers; what could not be done.
pub async fn clear() -> Vec<String> {
    let wanted = Wanted {
        networks: Dual::V4(ipnet::Ipv4Net::default()),
        own: Dual::V4(ipnet::Ipv4Net::default()),
        choices: Choices {
            masquerade: false,
            fully_random: false,
            masquerade_inbound: false,
            non_masquerade: Vec::new(),
            forward: false,
            forward_insert: false,
        },
        nftables: false,
        resync: MINUTE,
    };
    let mut keeper = Keeper::new(wanted, Health::new());
    let mut complaints = keeper.clear_other().await;
    for ipv6 in [false, true] {
        if let Ok(programs) = Iptables::find(ipv6).await
            && let Ok(saved) = programs.saved().await
            && let Some(payload) = iptables_text::payload(&nothing(ipv6), &saved)
            && let Err(why) = programs.give(&payload).await
        {
            complaints.push(why);
        }
    }
    complaints
}
