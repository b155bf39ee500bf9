//! Maintains the traffic rules. The crate [`traffic_rules`] defines and writes the rules.

mod neighbours;

use crate::health::Health;
use crate::health::condition::Condition;
use backends::Underlay;
use ipnet::IpNet;
use neighbours::Neighbours;
use netlink::uapi::NETLINK_ROUTE;
use netlink::{Client, Subscription};
use netstate::host::tunnels::{TUNNEL_GROUPS, is_tunnel_change, read_tunnel_destinations};
use run_dir::instance::running::foreign_flanneld;
use run_dir::instance::taken::RuleSlot;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::LeaseTable;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use traffic_rules::error::problem_of;
use traffic_rules::notices::{is_of_nftables, subscribe_to_rules, wait_for_nftables};
use traffic_rules::pace;
use traffic_rules::rules::OtherDaemons;
use traffic_rules::{ActiveRules, Applier, Note, Wanted, clear_inactive};
use types::backoff::Backoff;
use types::{Family, Problem, Subnets};

/// flanneld's start waits this long until the traffic rules are in place. A longer wait would delay the node's
/// readiness.
pub const START_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which the keeper collects rule changes by other programs before it checks the rules.
const QUIET: Duration = Duration::from_millis(50);
/// The same when other programs recently changed only their own rules. Frequent changes by another program thus do
/// not keep flanneld busy.
const FOREIGN_QUIET: Duration = Duration::from_millis(500);
/// Number of consecutive passes without a repair after which [`FOREIGN_QUIET`] replaces [`QUIET`].
const IDLE_PASSES: u32 = 3;
/// Time for which the keeper collects changes of peers' addresses before it updates the rules.
const PEER_QUIET: Duration = Duration::from_millis(200);
/// Repairs per minute. Above this, the keeper logs that another program keeps changing the rules, and repairs less
/// often.
const REPAIRS: usize = 3;
const MINUTE: Duration = Duration::from_secs(60);
/// Delay after a failure to write the rules.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Delay after a failed removal of unused rules (iptables rules with nftables, nftables rules with iptables).
const RETRY_CLEAR: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(600));

/// This daemon's rules in use, and the other daemons on this host, whose rules flanneld keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InUse {
    tools: [ActiveRules; 2],
    slot: u16,
    others: OtherDaemons,
}

#[derive(Clone, Debug)]
pub struct Nodes {
    /// The leases in force.
    pub leases: watch::Receiver<Arc<LeaseTable>>,
    pub underlay: watch::Receiver<Underlay>,
}

impl Nodes {
    /// The addresses of this host and of the other nodes.
    fn now(&mut self, own: &Subnets) -> (BTreeSet<IpAddr>, BTreeSet<IpAddr>) {
        let underlay = self.underlay.borrow_and_update().clone();
        let hosts = underlay.public.ips().chain(underlay.addresses.ips());
        let hosts = hosts.collect();
        let leases = self.leases.borrow_and_update().clone();
        let others = leases.iter().filter(|lease| lease.subnets != *own);
        let peers = others.flat_map(|lease| lease.attrs.addresses()).collect();
        (hosts, peers)
    }

    /// Waits until an address of a node may have changed.
    async fn changed(&mut self) {
        let ended = tokio::select! {
            changed = self.leases.changed() => changed.is_err(),
            changed = self.underlay.changed() => changed.is_err(),
        };
        if ended {
            // The sender is gone: the daemon is about to end.
            std::future::pending::<()>().await;
        }
    }
}

/// The peers of other networks whose tunnels on this host use the same UDP port.
struct Sharers {
    port: u16,
    /// Of this network; their peers are left out.
    devices: Vec<String>,
    client: Client,
    changes: Subscription,
    known: BTreeSet<IpAddr>,
}

impl Sharers {
    /// Reads the addresses from the kernel. Keeps the previous ones if the read fails.
    fn refresh(&mut self) {
        match read_tunnel_destinations(&mut self.client, self.port, &self.devices) {
            Ok(found) => self.known = found,
            Err(error) => {
                tracing::debug!(error = %error, "cannot read the peers of other networks' tunnels");
            }
        }
    }
}

/// Repairs of rules that another program had changed.
#[derive(Default)]
struct Repairs {
    /// Within the last minute.
    recent: Vec<Instant>,
    total: u64,
    /// Whether there were more than [`REPAIRS`] repairs within a minute. Then the keeper repairs the rules only once
    /// a minute.
    contended: bool,
}

impl Repairs {
    /// Logs a warning once when more than [`REPAIRS`] repairs occur within a minute.
    fn count(&mut self, repaired: bool) {
        let now = Instant::now();
        self.recent.retain(|at| now.duration_since(*at) < MINUTE);
        if repaired {
            self.recent.push(now);
            self.total += 1;
            info!("another program changed the traffic rules; restored them");
        }
        let contended = self.recent.len() > REPAIRS;
        if contended && !self.contended {
            warn!(
                count = self.recent.len(),
                seconds = MINUTE.as_secs(),
                remedy = "look for another program that owns these chains (`nft monitor`, another flanneld, a firewall service)",
                "another program keeps changing the traffic rules; from now on, flanneld repairs them once a minute"
            );
        }
        self.contended = contended;
    }
}

pub struct Keeper {
    wanted: Wanted,
    nodes: Nodes,
    neighbours: Neighbours,
    slot: Option<RuleSlot>,
    sharers: Option<Sharers>,
    health: Health,
    appliers: [Applier; 2],
    repairs: Repairs,
    trouble: Option<Problem>,
    /// Number of consecutive passes after which the rules had a problem.
    failures: u32,
    writes: u64,
    /// Processor time of the last pass.
    cost: Duration,
    /// Number of times that the keeper wrote rules.
    written: watch::Sender<u64>,
}

impl Keeper {
    /// Has written no rules yet. `before` are the networks of the previous daemon; `devices` are the devices of this
    /// network.
    pub fn new(
        wanted: Wanted,
        nodes: Nodes,
        before: BTreeSet<IpNet>,
        devices: Vec<String>,
        slot: Option<RuleSlot>,
        health: Health,
    ) -> Self {
        let text = "flanneld is still applying the traffic rules";
        health.fail(Condition::Rules, Problem::new("rules-pending", text));
        let appliers = Family::ALL.map(|family| Applier::new(wanted.nftables, family));
        let neighbours = Neighbours::new(wanted.networks.nets().collect(), before);
        // vxlan networks on one host share their port.
        let port = wanted.encapsulation.ports().first().copied().filter(|_| wanted.follows_peers());
        let sharers = port.and_then(|port| {
            let client = Client::open()
                .inspect_err(|error| {
                    tracing::debug!(error = %error, "cannot read other networks' tunnels");
                })
                .ok()?;
            let changes = Subscription::open(NETLINK_ROUTE, TUNNEL_GROUPS);
            Some(Sharers { port, devices, client, changes, known: BTreeSet::new() })
        });
        Self {
            wanted,
            nodes,
            neighbours,
            slot,
            sharers,
            health,
            appliers,
            repairs: Repairs::default(),
            trouble: None,
            failures: 0,
            writes: 0,
            cost: Duration::ZERO,
            written: watch::Sender::new(0),
        }
    }

    /// Number of times that the keeper wrote rules.
    pub fn written(&self) -> watch::Receiver<u64> {
        self.written.subscribe()
    }

    /// Applies the rules, signals `applied`, then maintains the rules until `stop`. Also removes flanneld's unused
    /// iptables rules or nftables rules.
    pub async fn keep(mut self, applied: oneshot::Sender<()>, stop: CancellationToken) {
        let (kept_out, kept) = watch::channel(None);
        let others = Box::pin(remove_unused(kept));
        let run = Box::pin(async {
            let mut notices = self.wanted.nftables.then(subscribe_to_rules);
            self.follow();
            self.pass().await;
            let _ = applied.send(());
            self.publish(&kept_out);
            let mut next =
                Instant::now() + self.pause(notices.as_ref().is_some_and(Subscription::is_open));
            let mut idle_passes = 0;
            loop {
                let (repairing, noticed) = tokio::select! {
                    () = changed(&mut self.nodes, &mut self.sharers), if self.wanted.follows_peers() => {
                        tokio::time::sleep(PEER_QUIET).await;
                        if !self.follow() {
                            continue;
                        }
                        (false, false)
                    }
                    () = wait_for_nftables(&mut notices), if !self.repairs.contended => {
                        tokio::time::sleep(if idle_passes < IDLE_PASSES { QUIET } else { FOREIGN_QUIET }).await;
                        notices.iter_mut().for_each(|notices| _ = notices.take_queued(is_of_nftables));
                        (true, true)
                    }
                    () = tokio::time::sleep_until(next) => (true, false),
                };
                let before = self.writes;
                let was_well = self.trouble.is_none();
                let wrote = self.pass().await;
                idle_passes = if noticed && self.writes == before { idle_passes + 1 } else { 0 };
                self.count_repair(repairing && was_well && wrote);
                self.publish(&kept_out);
                next = Instant::now()
                    + self.pause(notices.as_ref().is_some_and(Subscription::is_open));
            }
        });
        stop.run_until_cancelled(async { tokio::join!(run, others) }).await;
    }

    /// Time until the next pass if no event occurs.
    fn pause(&mut self, noticed: bool) -> Duration {
        if self.trouble.is_some() {
            self.failures += 1;
            return RETRY.after(self.failures - 1);
        }
        self.failures = 0;
        let resync = self.wanted.resync;
        match (self.repairs.contended, noticed) {
            (true, _) => MINUTE,
            (false, true) => resync.max(Duration::from_secs(10)),
            // Each listing of iptables-legacy reads the rules of all Services.
            (false, false) => pace::interval(resync, self.cost).min(resync.max(MINUTE)),
        }
    }

    /// Records the current addresses of nodes. True if any has changed.
    fn follow(&mut self) -> bool {
        let (hosts, mut peers) = self.nodes.now(&self.wanted.own);
        if let Some(sharers) = &mut self.sharers {
            sharers.refresh();
            peers.extend(&sharers.known);
        }
        let changed = (&hosts, &peers) != (&self.wanted.hosts, &self.wanted.peers);
        (self.wanted.hosts, self.wanted.peers) = (hosts, peers);
        changed
    }

    fn count_repair(&mut self, repaired: bool) {
        self.repairs.count(repaired);
        let (total, contended) = (self.repairs.total, self.repairs.contended);
        self.health.figures(|figures| {
            figures.rule_repairs = total;
            figures.rules_contended = contended;
        });
    }

    /// Checks the rules and repairs them. True if the pass wrote rules although this daemon's slot and the other daemons
    /// are unchanged. After a change of these, a write is not a repair.
    async fn pass(&mut self) -> bool {
        if self.neighbours.may_take_first_slot()
            && let Some(slot) = self.slot.as_mut().filter(|slot| slot.number > 0)
            && slot.move_to_first()
        {
            info!(
                "moving the traffic rules to flannel's usual chains, which no other daemon uses any longer"
            );
            self.wanted.slot = slot.number;
            self.apply().await;
        }
        let others = self.neighbours.refresh(self.wanted.slot);
        let same = others == self.wanted.others;
        self.wanted.others = others;
        let before = self.writes;
        self.apply().await;
        self.writes > before && same
    }

    async fn apply(&mut self) {
        let mut complaints = Vec::new();
        let mut unknown_senders: Option<u64> = None;
        let mut logged: Vec<Note> = Vec::new();
        let families = self.wanted.rulesets();
        let work = self.appliers.iter_mut().zip(Family::ALL).filter_map(|(applier, family)| {
            let rules = families.iter().find(|rules| rules.family == family)?;
            Some(async move { (applier.apply(rules).await, applier.notes()) })
        });
        let cost = pace::Cost::begin();
        let results = futures_util::future::join_all(work).await;
        self.cost = cost.so_far();
        for (result, notes) in results {
            for note in notes {
                // Both families have the same notes about the programs.
                if logged.contains(&note) {
                    continue;
                }
                match &note {
                    Note::Info(text) => info!(reason = %text, "note on the traffic rules"),
                    Note::Warn(text) => warn!(error = %text, "the traffic rules have a problem"),
                }
                logged.push(note);
            }
            match result {
                Ok(applied) => {
                    self.writes += u64::from(applied.wrote);
                    unknown_senders = applied
                        .unknown_senders
                        .map(|more| more.saturating_add(unknown_senders.unwrap_or(0)))
                        .or(unknown_senders);
                }
                Err(error) => complaints.push(error),
            }
        }
        let writes = self.writes;
        self.written.send_if_modified(|last| std::mem::replace(last, writes) != writes);
        let failed = u64::try_from(complaints.len()).unwrap_or(u64::MAX);
        self.health.figures(|figures| {
            figures.rule_failures += failed;
            figures.rule_writes = writes;
            figures.unknown_senders = unknown_senders;
        });
        let trouble = problem_of(complaints);
        if trouble != self.trouble {
            match &trouble {
                None => info!("the traffic rules are in place"),
                Some(problem) => {
                    warn!(code = %problem.code, error = %problem, "cannot apply the traffic rules, retrying");
                }
            }
            self.trouble = trouble;
        }
        self.describe();
        self.health.condition(Condition::Rules, self.trouble.clone());
    }

    /// Writes into the node's status document which tool flanneld uses for the rules, and their purposes.
    fn describe(&self) {
        let variant = self.appliers.iter().find_map(Applier::variant);
        let with = match (self.appliers.iter().any(Applier::uses_nftables), variant) {
            (true, _) => "nftables".to_owned(),
            (false, Some(variant)) => format!("iptables ({variant})"),
            (false, None) => "iptables".to_owned(),
        };
        let options = &self.wanted.options;
        let what = [
            ("masquerade", options.masquerade),
            ("forward", options.forward),
            ("guard", options.guard.is_some()),
        ];
        let what =
            what.into_iter().filter(|(_, on)| *on).map(|(name, _)| name.to_owned()).collect();
        self.health.node(|node| {
            node.rules = Some(node_api::Rules { with, what, ..node_api::Rules::default() });
        });
    }

    /// `None` while the rules have a problem.
    fn kept(&self) -> Option<InUse> {
        let families = self.wanted.rulesets();
        let kept = |family: Family| -> Option<ActiveRules> {
            let applier = family
                .pick(self.appliers.first(), self.appliers.last())
                .filter(|_| families.iter().any(|rules| rules.family == family));
            Some(match applier {
                Some(applier) => applier.active()?,
                None => ActiveRules::Nothing,
            })
        };
        let [Some(v4), Some(v6)] = Family::ALL.map(kept) else {
            return None;
        };
        let (slot, others) = (self.wanted.slot, self.wanted.others.clone());
        self.trouble.is_none().then_some(InUse { tools: [v4, v6], slot, others })
    }

    fn publish(&self, kept_out: &watch::Sender<Option<InUse>>) {
        let kept = self.kept();
        kept_out.send_if_modified(|last| {
            let is_new = *last != kept;
            *last = kept;
            is_new
        });
    }
}

/// Waits until the set of hosts that may send to the encapsulation port may have changed.
async fn changed(nodes: &mut Nodes, sharers: &mut Option<Sharers>) {
    let tunnels = async {
        match sharers {
            Some(sharers) => sharers.changes.wait(is_tunnel_change).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = nodes.changed() => {}
        () = tunnels => {}
    }
}

/// Removes flannel's unused rules once this daemon's rules are in place, and after each change of the tool, the slot or
/// the other daemons. Retries failures and logs each new one. The removal runs as a separate task, so that another
/// process's lock cannot prevent the daemon from repairing its own rules.
async fn remove_unused(mut kept: watch::Receiver<Option<InUse>>) {
    let mut complaints: Vec<String> = Vec::new();
    let mut failures = 0;
    loop {
        let current = kept.borrow_and_update().clone();
        if let Some(InUse { tools, slot, mut others }) = current {
            // It may have started after this daemon.
            others.unknown |= foreign_flanneld();
            let cleared = clear_inactive(tools, slot, &others).await;
            for removed in cleared.removed {
                info!(rule = %removed, "removed unused rules");
            }
            for complaint in cleared.errors.iter().filter(|error| !complaints.contains(error)) {
                warn!(error = %complaint, "cannot remove unused rules, retrying");
            }
            failures = if cleared.errors.is_empty() { 0 } else { failures + 1 };
            complaints = cleared.errors;
        }
        let retry = async {
            match failures {
                0 => std::future::pending().await,
                failures => tokio::time::sleep(RETRY_CLEAR.after(failures - 1)).await,
            }
        };
        tokio::select! {
            changed = kept.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = retry => {}
        }
    }
}
