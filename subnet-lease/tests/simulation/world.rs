//! Simulates flannel-rs nodes, a Go flannel node and an operator on one store with random faults, and checks the invariants.

use super::node::{Node, Process};
use super::store::Store;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;
use subnet_lease::protocol::registry::Write;
use subnet_lease::{NetworkConfig, wire};
use types::Subnets;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    Plain,
    SmallPool,
    SharedAddress,
    Clones,
    ClonesWithOneAddress,
    MovingAddresses,
    /// Machines get a new identity at each boot.
    NewIdentities,
    /// A node publishes the address of another.
    FalseAddress,
}

impl Scenario {
    pub(crate) const ALL: [Scenario; 8] = [
        Scenario::Plain,
        Scenario::SmallPool,
        Scenario::SharedAddress,
        Scenario::Clones,
        Scenario::ClonesWithOneAddress,
        Scenario::MovingAddresses,
        Scenario::NewIdentities,
        Scenario::FalseAddress,
    ];
}

pub(crate) fn config() -> NetworkConfig {
    NetworkConfig::parse(r#"{"Network":"10.5.0.0/20"}"#).unwrap()
}

pub(crate) struct World {
    pub scenario: Scenario,
    pub store: Store,
    nodes: Vec<Node>,
    rng: StdRng,
    now: Duration,
    talk: bool,
    config: NetworkConfig,
    backups: Vec<Store>,
    /// Keys that the operator has made reservations.
    reserved: Vec<(String, Ipv4Addr)>,
    /// Pairs of nodes that believe that they hold overlapping subnets, and since when.
    overlap: Vec<(usize, usize, Duration)>,
    /// Time of the last write to each key by a writer other than a node, and time of the last restore.
    touched: BTreeMap<String, Duration>,
    restored: Option<Duration>,
    /// Longest pause between two faults, in milliseconds.
    calm: u64,
    go_acts: bool,
}

/// Maximum time for which two healthy nodes may hold the same subnet: the grace period after a restore, one minute between two write-backs, and the
/// backoff after lost replies.
const ALLOWED: Duration = Duration::from_secs(150);
const FAULTS_UNTIL: Duration = Duration::from_secs(3_000);
const END: Duration = Duration::from_secs(3_000 + 1_500);

impl World {
    pub(crate) fn new(seed: u64, talk: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let scenario = Scenario::ALL[rng.random_range(0..Scenario::ALL.len())];
        let count = rng.random_range(2..=6);
        // With a small pool, all nodes start at once.
        let together = if scenario == Scenario::SmallPool { 20 } else { 3_000 };
        let mut nodes: Vec<Node> = (0..count)
            .map(|name| {
                let twin = name < 2;
                let address = match scenario {
                    Scenario::SharedAddress | Scenario::ClonesWithOneAddress if twin => {
                        Ipv4Addr::new(10, 0, 2, 15)
                    }
                    _ => Ipv4Addr::new(192, 168, 56, 101 + name as u8),
                };
                let id = match scenario {
                    Scenario::Clones | Scenario::ClonesWithOneAddress if twin => "clone".to_owned(),
                    _ => format!("id{name}"),
                };
                let named = scenario != Scenario::SharedAddress || !twin;
                Node::new(
                    name,
                    id,
                    address,
                    named,
                    Duration::from_millis(rng.random_range(0..together)),
                )
            })
            .collect();
        if scenario == Scenario::FalseAddress {
            nodes[1].address = nodes[0].address;
        }
        let config = match scenario {
            Scenario::SmallPool => NetworkConfig::parse(
                r#"{"Network":"10.5.0.0/20","SubnetMin":"10.5.1.0","SubnetMax":"10.5.4.0"}"#,
            )
            .unwrap(),
            _ => config(),
        };
        let go_acts = rng.random_bool(0.15);
        let calm = if rng.random_bool(0.3) { 600_000 } else { 120_000 };
        Self {
            scenario,
            store: Store { revision: 1, ..Store::default() },
            nodes,
            rng,
            now: Duration::ZERO,
            talk,
            config,
            backups: Vec::new(),
            reserved: Vec::new(),
            overlap: Vec::new(),
            touched: BTreeMap::new(),
            restored: None,
            calm,
            go_acts,
        }
    }

    fn trace(&self, line: &str) {
        if self.talk {
            println!("{:>9.3} {line}", self.now.as_secs_f64());
        }
    }

    pub(crate) fn run(&mut self) -> Result<(), String> {
        let mut fault = Duration::from_secs(5);
        let mut steps = 0u64;
        let mut writes_before_quiet = 0;
        let quiet = END - Duration::from_secs(400);
        while self.now < END {
            steps += 1;
            if steps > 400_000 {
                return Err(format!("{steps} steps by {:?}: a busy loop", self.now));
            }
            let next =
                self.nodes.iter().filter_map(|node| node.next(&self.store)).min().unwrap_or(END);
            let mut to = next.max(self.now + Duration::from_millis(1));
            if fault < FAULTS_UNTIL {
                to = to.min(fault);
            }
            if self.now < quiet && to >= quiet {
                writes_before_quiet = self.store.writes;
            }
            self.now = to;
            if fault <= self.now && fault < FAULTS_UNTIL {
                self.fault();
                fault = self.now + Duration::from_millis(self.rng.random_range(50..self.calm));
            }
            for at in 0..self.nodes.len() {
                if self.nodes[at].next(&self.store).is_some_and(|next| next <= self.now) {
                    let before = self.nodes[at].held();
                    self.nodes[at].alone = self.is_alone(at);
                    let line = self.nodes[at].act(
                        self.now,
                        &mut self.store,
                        &self.config,
                        &mut self.rng,
                        self.talk,
                    );
                    if let Some(line) = line {
                        self.trace(&line);
                    }
                    self.check_gain(at, before)?;
                }
            }
            self.check()?;
        }
        self.check_end(self.store.writes - writes_before_quiet)
    }

    /// Another machine answers on the link of the node's address, and none at the address. A machine with an address outside the lab's network is
    /// alone on its link, behind its own NAT.
    fn is_alone(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let others = || {
            self.nodes.iter().filter(|other| {
                let is_link = |address: Ipv4Addr| address.octets()[..3] == [192, 168, 56];
                other.name != node.name
                    && is_link(node.machine)
                    && is_link(other.machine)
                    && other.down <= self.now
            })
        };
        node.address == node.machine
            && others().any(|other| other.machine != node.address)
            && others().all(|other| other.machine != node.address)
    }

    fn fault(&mut self) {
        let at = self.rng.random_range(0..self.nodes.len());
        let span = Duration::from_millis(self.rng.random_range(100..400_000));
        let short = Duration::from_millis(self.rng.random_range(10..20_000));
        let line = match self.rng.random_range(0..100) {
            kind @ 0..=61 => Some(self.disturb_node(kind, at, span, short)),
            62..=68 => self.delete_key(),
            69..=75 => self.reserve_key(),
            76..=79 => Some(self.leave_backup_key()),
            80..=83 => {
                self.backups.push(self.store.clone());
                Some("backup".to_owned())
            }
            84..=87 => self.restore_store(),
            88..=91 if self.scenario == Scenario::MovingAddresses && self.nodes.len() > 2 => {
                Some(self.swap_addresses(short))
            }
            92..=95 if self.go_acts => self.overwrite_as_go(at),
            _ => None,
        };
        if let Some(line) = line {
            self.trace(&line);
        }
    }

    /// Makes a node crash, reboot, stop or lose its connection.
    fn disturb_node(&mut self, kind: i32, at: usize, span: Duration, short: Duration) -> String {
        let now = self.now;
        match kind {
            0..=24 => {
                self.nodes[at].crash(now + short);
                format!("n{at} crashes")
            }
            25..=31 => {
                self.nodes[at].crash(now + span);
                self.nodes[at].previous = None;
                self.nodes[at].down = now + span;
                if self.scenario == Scenario::NewIdentities {
                    self.nodes[at].id = format!("{}x", self.nodes[at].id);
                }
                format!("n{at} reboots, up after {span:?}")
            }
            32..=46 => {
                self.nodes[at].stopped = now + span;
                if self.rng.random_bool(0.5)
                    && let Some(lease) = self.nodes[at].held().and_then(|held| {
                        self.store.keys.get(&wire::render_key(&held)).map(|entry| entry.lease)
                    })
                {
                    self.store.drop_lease(lease, now);
                    if let Some(held) = self.nodes[at].held() {
                        self.touched.insert(wire::render_key(&held), now + span);
                    }
                }
                format!("n{at} stopped for {span:?}")
            }
            _ => {
                self.nodes[at].cut = now + span;
                format!("n{at} cut off for {span:?}")
            }
        }
    }

    fn delete_key(&mut self) -> Option<String> {
        let keys: Vec<String> = self.store.keys.keys().cloned().collect();
        let key = pick(&mut self.rng, &keys)?;
        // An operator who deletes a reservation gives it up.
        self.reserved.retain(|(reserved, _)| *reserved != key);
        self.touched.insert(key.clone(), self.now);
        self.store.delete(&key, self.now);
        Some(format!("operator deletes {key}"))
    }

    fn reserve_key(&mut self) -> Option<String> {
        let now = self.now;
        let keys: Vec<String> =
            self.store.keys.keys().filter(|key| wire::parse_key(key).is_some()).cloned().collect();
        let key = pick(&mut self.rng, &keys)?;
        let entry = self.store.keys.get(&key).cloned()?;
        let value = String::from_utf8_lossy(&entry.value).into_owned();
        let _ =
            self.store.write(&Write::Put { key: key.clone(), value: value.clone(), lease: 0 }, now);
        if let Ok(attrs) = wire::parse_value(value.as_bytes())
            && let Some(address) = attrs.public_ip
        {
            self.reserved.retain(|(reserved, _)| *reserved != key);
            self.reserved.push((key.clone(), address));
        }
        self.touched.insert(key.clone(), now);
        Some(format!("operator reserves {key}"))
    }

    fn leave_backup_key(&mut self) -> String {
        let now = self.now;
        let key = format!("10.5.{}.0-24.bak", self.rng.random_range(1..16));
        let _ =
            self.store.write(&Write::Put { key: key.clone(), value: "x".into(), lease: 0 }, now);
        format!("operator leaves {key}")
    }

    fn restore_store(&mut self) -> Option<String> {
        let now = self.now;
        let old = self.backups.last().cloned()?;
        self.store.restore(&old, now);
        self.restored = Some(now);
        self.reserved.clear();
        Some("store restored".to_owned())
    }

    fn swap_addresses(&mut self, short: Duration) -> String {
        let now = self.now;
        let (a, b) = (self.nodes[0].address, self.nodes[1].address);
        (self.nodes[0].address, self.nodes[0].machine) = (b, b);
        (self.nodes[1].address, self.nodes[1].machine) = (a, a);
        self.nodes[0].crash(now + short);
        self.nodes[1].crash(now + short + Duration::from_secs(1));
        self.reserved.clear();
        "n0 and n1 swap their addresses".to_owned()
    }

    fn overwrite_as_go(&mut self, at: usize) -> Option<String> {
        let now = self.now;
        let address = self.nodes[at].address;
        let keys: Vec<String> = self
            .store
            .keys
            .values()
            .filter(|entry| {
                wire::parse_value(&entry.value).is_ok_and(|attrs| attrs.public_ip == Some(address))
            })
            .map(|entry| entry.key.clone())
            .collect();
        let key = pick(&mut self.rng, &keys)?;
        self.store.next_lease += 1;
        let lease = self.store.next_lease;
        self.store.leases.insert(lease, now);
        let _ = self.store.write(
            &Write::Put {
                key: key.clone(),
                value: format!(
                    r#"{{"PublicIP":"{address}","PublicIPv6":null,"BackendType":"host-gw"}}"#
                ),
                lease,
            },
            now,
        );
        self.touched.insert(key.clone(), now);
        self.reserved.retain(|(reserved, _)| *reserved != key);
        Some(format!("a Go flannel writes over {key}"))
    }

    /// No node gains a subnet of a healthy node, even for a moment, unless another writer or a restore interfered.
    fn check_gain(&self, at: usize, before: Option<Subnets>) -> Result<(), String> {
        let node = &self.nodes[at];
        let Some(gained) = node.held().filter(|held| Some(*held) != before) else {
            return Ok(());
        };
        let long_ago = |time: Duration| self.now > time + ALLOWED;
        if self.restored.is_some_and(|at| !long_ago(at)) {
            return Ok(());
        }
        for other in self.nodes.iter().filter(|other| {
            other.name != node.name && other.id != node.id && other.address != node.address
        }) {
            let undisturbed = long_ago(other.stopped) && long_ago(other.cut)
                || (other.stopped.is_zero() && other.cut.is_zero());
            let Some(held) = other.held().filter(|held| undisturbed && held.overlaps(&gained))
            else {
                continue;
            };
            if self.touched.get(&wire::render_key(&held)).is_none_or(|at| long_ago(*at)) {
                return Err(format!(
                    "at {:?} n{} takes {gained} from n{}, which is well",
                    self.now, node.name, other.name
                ));
            }
        }
        Ok(())
    }

    /// No two healthy nodes hold overlapping subnets for longer than [`ALLOWED`].
    fn check(&mut self) -> Result<(), String> {
        let now = self.now;
        let mut seen = Vec::new();
        for a in 0..self.nodes.len() {
            for b in a + 1..self.nodes.len() {
                let (one, two) = (&self.nodes[a], &self.nodes[b]);
                let both = one.healthy(now) && two.healthy(now);
                let Some((held_a, held_b)) = one.held().zip(two.held()).filter(|_| both) else {
                    continue;
                };
                if held_a.overlaps(&held_b) {
                    let since = self
                        .overlap
                        .iter()
                        .find(|(x, y, _)| (*x, *y) == (a, b))
                        .map_or(now, |(_, _, since)| *since);
                    if now - since > ALLOWED {
                        return Err(format!(
                            "at {now:?} n{a} and n{b} both hold {} since {since:?}",
                            held_a
                        ));
                    }
                    seen.push((a, b, since));
                }
            }
        }
        self.overlap = seen;
        Ok(())
    }

    /// After the time without faults, every node that can have a lease has one, reservations still exist, and the nodes write only rarely.
    fn check_end(&self, late_writes: u64) -> Result<(), String> {
        let twins = matches!(
            self.scenario,
            Scenario::SharedAddress | Scenario::Clones | Scenario::ClonesWithOneAddress
        );
        let pool = if self.scenario == Scenario::SmallPool { 4 } else { 15 };
        for node in &self.nodes {
            let excused = (twins && node.name < 2)
                || node.machine != node.address
                || self.nodes.len() > pool
                || self.store.keys.len() >= pool;
            if !excused && node.held().is_none() {
                return Err(format!(
                    "n{} has no lease at the end; its exit report: {}",
                    node.name, node.exit_report
                ));
            }
            if let (Process::Holding(..), Some(held)) = (&node.process, node.held()) {
                let key = wire::render_key(&held);
                let Some(entry) = self.store.keys.get(&key) else {
                    return Err(format!("n{} holds {key}, which is not in the store", node.name));
                };
                let attrs =
                    wire::parse_value(&entry.value).map_err(|why| format!("{key}: {why}"))?;
                if attrs.node.as_ref().is_none_or(|id| *id.id != *node.id) {
                    return Err(format!(
                        "n{} believes to hold {key}, which is {:?}'s",
                        node.name, attrs.node
                    ));
                }
            }
        }
        if twins && !self.go_acts && !self.nodes[..2].iter().any(|node| node.held().is_some()) {
            return Err(format!(
                "neither of the twins has a lease; their exit reports: {} / {}",
                self.nodes[0].exit_report, self.nodes[1].exit_report
            ));
        }
        let allowed = 12 + if twins { 40 } else { 0 };
        if late_writes > allowed {
            return Err(format!("{late_writes} writes in the last 400 quiet seconds: a livelock"));
        }
        for (key, address) in &self.reserved {
            match self.store.keys.get(key) {
                Some(entry) if entry.lease == 0 => {}
                other => {
                    let value =
                        other.map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
                    return Err(format!("the reservation {key} of {address} is lost: {value:?}"));
                }
            }
        }
        Ok(())
    }
}

fn pick(rng: &mut StdRng, keys: &[String]) -> Option<String> {
    if keys.is_empty() { None } else { Some(keys[rng.random_range(0..keys.len())].clone()) }
}
