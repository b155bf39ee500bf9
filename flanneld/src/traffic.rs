//! Keeps the traffic rules in the kernel; what they are and how they get there is in [`backends::traffic`].

use crate::health::Health;
use backends::traffic::notices::Notices;
use backends::traffic::{Wanted, apply_iptables, apply_nft, clear_other};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The name under which trouble with the rules is told to [`Health`].
pub const CONDITION: &str = "rules";
/// Others' changes are collected this long before the rules are looked at.
const QUIET: Duration = Duration::from_millis(50);
/// More repairs a minute than this are a war, which is told and not fought.
const REPAIRS: usize = 3;
const MINUTE: Duration = Duration::from_secs(60);

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
            let cleared = clear_other(self.wanted.nftables).await;
            for removed in cleared.removed {
                info!("removed what is not used any more: {removed}");
            }
            for complaint in cleared.complaints {
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
}
