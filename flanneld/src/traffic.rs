//! Keeps the traffic rules in the kernel; what they are and how they get there is in [`traffic_rules`].

mod neighbours;

use crate::health::Health;
use crate::health::condition::Condition;
use backends::Underlay;
use ipnet::IpNet;
use neighbours::Neighbours;
use netstate::netlink::tunnels::Tunnels;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::backoff::Backoff;
use subnet_lease::{LeaseTable, Subnets};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use traffic_rules::notices::{Notices, wait_for_notice};
use traffic_rules::ownership::OtherDaemons;
use traffic_rules::{ActiveRules, Applier, Note, Wanted, clear_inactive, uncommented_rules};

/// How long the start waits for the rules; what holds them up shall not hold up the node.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Others' changes are collected this long before the rules are looked at.
const QUIET: Duration = Duration::from_millis(50);
/// And this long while they turn out, look after look, to be about rules that are not ours: a busy writer shall not keep us busy.
const FOREIGN: Duration = Duration::from_millis(500);
/// So many looks for nothing make a busy writer.
const FOR_NOTHING: u32 = 3;
/// Changes of the peers are collected this long.
const CALM: Duration = Duration::from_millis(200);
/// More repairs a minute than this are a war, which is told and not fought.
const REPAIRS: usize = 3;
const MINUTE: Duration = Duration::from_secs(60);
/// Before what failed is tried again.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Before the set of the other kind, which could not be removed, is looked at again.
const RETRY_CLEAR: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(600));

/// What of ours is in use, and what of others stays.
type InUse = ([ActiveRules; 2], OtherDaemons);

/// Who the nodes are, as it changes.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// The leases in force.
    pub leases: watch::Receiver<Arc<LeaseTable>>,
    /// This node's interface.
    pub underlay: watch::Receiver<Underlay>,
}

impl Nodes {
    /// This host's addresses, and the other nodes'.
    fn now(&mut self, own: &Subnets) -> (BTreeSet<IpAddr>, BTreeSet<IpAddr>) {
        let underlay = self.underlay.borrow_and_update().clone();
        let of = |addresses: &subnet_lease::Addresses| [addresses.v4().copied().map(IpAddr::V4), addresses.v6().copied().map(IpAddr::V6)];
        let hosts = [of(&underlay.public), of(&underlay.addresses)].into_iter().flatten().flatten().collect();
        let leases = self.leases.borrow_and_update().clone();
        let others = leases.iter().filter(|lease| lease.subnets != *own);
        let peers = others.flat_map(|lease| [false, true].map(|ipv6| lease.attrs.public_for(ipv6))).flatten().collect();
        (hosts, peers)
    }

    /// Returns when one of them changed.
    async fn changed(&mut self) {
        let ended = tokio::select! {
            changed = self.leases.changed() => changed.is_err(),
            changed = self.underlay.changed() => changed.is_err(),
        };
        if ended {
            // Who told it is gone: the daemon is about to end.
            std::future::pending::<()>().await;
        }
    }
}

/// The nodes of other networks whose packets come to our port.
struct Sharers {
    port: u16,
    /// Our own devices.
    devices: Vec<String>,
    kernel: Tunnels,
    known: BTreeSet<IpAddr>,
}

impl Sharers {
    /// Reads who they are; what cannot be read is as it was.
    async fn look(&mut self) {
        match self.kernel.destinations(self.port, &self.devices).await {
            Ok(found) => self.known = found,
            Err(error) => tracing::debug!("{error}"),
        }
    }
}

/// Keeps the rules in the kernel.
pub struct Keeper {
    wanted: Wanted,
    nodes: Nodes,
    neighbours: Neighbours,
    sharers: Option<Sharers>,
    health: Health,
    appliers: Vec<Applier>,
    repairs: Vec<Instant>,
    trouble: String,
    /// Passes in a row that failed.
    failures: u32,
    at_war: bool,
    writes: u64,
    repaired: u64,
    /// Whether it is known that what nobody here serves belongs to nobody.
    sole: bool,
    /// How often something was written, for others to follow.
    written: watch::Sender<u64>,
}

impl Keeper {
    /// Nothing is applied yet. `before` are the networks of this daemon's predecessor; `devices` are our own.
    pub fn new(wanted: Wanted, nodes: Nodes, before: BTreeSet<IpNet>, devices: Vec<String>, health: Health) -> Self {
        health.condition(Condition::Rules, Some("the traffic rules are being applied"));
        let appliers = vec![Applier::new(wanted.nftables, false), Applier::new(wanted.nftables, true)];
        let neighbours = Neighbours::new(wanted.networks.nets().collect(), before, wanted.follows_peers().then_some(wanted.guard_slot));
        let port = wanted.port.filter(|_| wanted.follows_peers());
        let kernel = port.and_then(|port| Some((port, Tunnels::open().inspect_err(|error| tracing::debug!("{error}")).ok()?)));
        let sharers = kernel.map(|(port, kernel)| Sharers { port, devices, kernel, known: BTreeSet::new() });
        Self {
            wanted,
            nodes,
            neighbours,
            sharers,
            health,
            appliers,
            repairs: Vec::new(),
            trouble: String::new(),
            failures: 0,
            at_war: false,
            writes: 0,
            repaired: 0,
            sole: false,
            written: watch::Sender::new(0),
        }
    }

    /// Tells when rules were written.
    pub fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// Applies the rules, tells `applied`, removes the set of the other kind, then keeps ours until `stop`.
    pub async fn keep(mut self, applied: oneshot::Sender<()>, stop: CancellationToken) {
        let (kept_out, mut kept) = watch::channel(None);
        let (networks, own) = (self.wanted.networks, self.wanted.own);
        let others = Box::pin(async {
            if kept.wait_for(Option::is_some).await.is_ok() {
                tell_bare(networks, own).await;
                clear(kept.clone()).await;
                // Once more when it is known what belongs to nobody.
                if kept.wait_for(|kept| kept.as_ref().is_some_and(|(_, others)| !others.unknown)).await.is_ok() {
                    clear(kept).await;
                }
            }
        });
        let run = Box::pin(async {
            let mut notices = if self.wanted.nftables { Notices::open() } else { None };
            self.follow().await;
            self.pass().await;
            let _ = applied.send(());
            kept_out.send_replace(self.kept());
            let mut next = Instant::now() + self.pause(notices.is_some());
            let mut for_nothing = 0;
            loop {
                let (repairing, noticed) = tokio::select! {
                    () = changed(&mut self.nodes, &mut self.sharers), if self.wanted.follows_peers() => {
                        tokio::time::sleep(CALM).await;
                        if !self.follow().await {
                            continue;
                        }
                        (false, false)
                    }
                    () = wait_for_notice(&mut notices), if !self.at_war => {
                        tokio::time::sleep(if for_nothing < FOR_NOTHING { QUIET } else { FOREIGN }).await;
                        notices.iter_mut().for_each(Notices::drain);
                        (true, true)
                    }
                    () = tokio::time::sleep_until(next) => (true, false),
                };
                let before = self.writes;
                let was_well = self.trouble.is_empty();
                let wrote = self.pass().await;
                for_nothing = if noticed && self.writes == before { for_nothing + 1 } else { 0 };
                self.war(repairing && was_well && wrote);
                kept_out.send_replace(self.kept());
                next = Instant::now() + self.pause(notices.is_some());
            }
        });
        stop.run_until_cancelled(async { tokio::join!(run, others) }).await;
    }

    /// How long until the next look, unless something happens before.
    fn pause(&mut self, noticed: bool) -> Duration {
        if !self.trouble.is_empty() {
            let pause = RETRY.after(self.failures);
            self.failures += 1;
            return pause;
        }
        self.failures = 0;
        match (self.at_war, noticed) {
            (true, _) => MINUTE,
            (false, true) => self.wanted.resync.max(Duration::from_secs(10)),
            (false, false) => self.wanted.resync,
        }
    }

    /// Takes over who the nodes are; whether that changes the rules.
    async fn follow(&mut self) -> bool {
        let (hosts, mut peers) = self.nodes.now(&self.wanted.own);
        if let Some(sharers) = &mut self.sharers {
            sharers.look().await;
            peers.extend(&sharers.known);
        }
        let changed = (&hosts, &peers) != (&self.wanted.hosts, &self.wanted.peers);
        (self.wanted.hosts, self.wanted.peers) = (hosts, peers);
        changed
    }

    /// Counts repairs; too many in a minute are told once, and then made once a minute.
    fn war(&mut self, repaired: bool) {
        let now = Instant::now();
        self.repairs.retain(|at| now.duration_since(*at) < MINUTE);
        if repaired {
            self.repairs.push(now);
            self.repaired += 1;
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
        let repaired = self.repaired;
        self.health.figures(|figures| {
            figures.rule_repairs = repaired;
            figures.rules_at_war = war;
        });
    }

    /// One look, and what it takes; whether anything of our own had to be written.
    async fn pass(&mut self) -> bool {
        self.wanted.others = self.neighbours.look();
        let before = self.writes;
        let unserved = self.look().await;
        let wrote = self.writes > before;
        if (!unserved.is_empty() || !self.sole) && self.neighbours.is_nobodys() {
            self.sole = true;
            self.wanted.others.unknown = false;
            if !unserved.is_empty() {
                let networks: Vec<String> = unserved.iter().map(IpNet::to_string).collect();
                info!("removing the traffic rules of networks that no flanneld here serves any more: {}", networks.join(", "));
                self.look().await;
            }
        }
        wrote
    }

    /// Applies the rules; the networks whose rules stayed only because it is not known whether anybody serves them.
    async fn look(&mut self) -> BTreeSet<IpNet> {
        let mut unserved = BTreeSet::new();
        let mut complaints = Vec::new();
        let mut strangers: Option<u64> = None;
        let mut told: Vec<Note> = Vec::new();
        let families = self.wanted.rulesets();
        let work = self.appliers.iter_mut().zip([false, true]).filter_map(|(applier, ipv6)| {
            let rules = families.iter().find(|rules| rules.ipv6 == ipv6)?;
            Some(async move { (applier.apply(rules).await, applier.notes()) })
        });
        for (result, notes) in futures_util::future::join_all(work).await {
            for note in notes {
                // Both families have the same to say of the programs.
                if told.contains(&note) {
                    continue;
                }
                match &note {
                    Note::Info(text) => info!("{text}"),
                    Note::Warn(text) => warn!("{text}"),
                }
                told.push(note);
            }
            match result {
                Ok(applied) => {
                    self.writes += u64::from(applied.wrote);
                    unserved.extend(applied.unserved);
                    strangers = applied.unknown_senders.map(|more| more.saturating_add(strangers.unwrap_or(0))).or(strangers);
                }
                Err(why) => complaints.push(why),
            }
        }
        let writes = self.writes;
        self.written.send_if_modified(|told| std::mem::replace(told, writes) != writes);
        self.health.figures(|figures| {
            figures.rule_writes = writes;
            figures.strangers = strangers;
        });
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
        self.health.condition(Condition::Rules, (!text.is_empty()).then_some(text.as_str()));
        unserved
    }

    /// What of ours is in use, once it is there.
    fn kept(&self) -> Option<InUse> {
        let families = self.wanted.rulesets();
        let kept = |ipv6: bool| {
            let applier = self.appliers.get(usize::from(ipv6)).filter(|_| families.iter().any(|rules| rules.ipv6 == ipv6));
            match applier {
                Some(_) if self.wanted.nftables => ActiveRules::Nftables,
                Some(applier) => applier.variant().map_or(ActiveRules::Nothing, ActiveRules::Iptables),
                None => ActiveRules::Nothing,
            }
        };
        self.trouble.is_empty().then(|| ([kept(false), kept(true)], self.wanted.others.clone()))
    }
}

/// Returns when somebody who may send to our port came or went.
async fn changed(nodes: &mut Nodes, sharers: &mut Option<Sharers>) {
    let tunnels = async {
        match sharers {
            Some(sharers) => sharers.kernel.changed().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = nodes.changed() => {}
        () = tunnels => {}
    }
}

/// Tells of rules that are likely an old Go flannel's.
async fn tell_bare(networks: Subnets, own: Subnets) {
    let bare = uncommented_rules(&networks, &own).await;
    if !bare.is_empty() {
        warn!(
            "these rules look like those of Go flannel before v0.17; they stay, because an operator may have made them. They are removed by: {}",
            bare.join("; ")
        );
    }
}

/// Removes the set of the other kind, once ours is there; what fails is tried again, and told when it changes. A lock that somebody holds
/// shall not keep ours from being repaired meanwhile.
async fn clear(mut kept: watch::Receiver<Option<InUse>>) {
    let mut complaints: Vec<String> = Vec::new();
    let mut failures = 0;
    loop {
        let Ok(in_use) = kept.wait_for(Option::is_some).await.map(|kept| kept.clone()) else { return };
        let Some((in_use, others)) = in_use else { continue };
        let cleared = clear_inactive(in_use, &others).await;
        for removed in cleared.removed {
            info!("removed what is not used any more: {removed}");
        }
        for complaint in cleared.errors.iter().filter(|complaint| !complaints.contains(complaint)) {
            warn!("{complaint}");
        }
        if cleared.errors.is_empty() {
            return;
        }
        complaints = cleared.errors;
        tokio::time::sleep(RETRY_CLEAR.after(failures)).await;
        failures += 1;
    }
}
