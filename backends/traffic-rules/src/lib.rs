//! Traffic rules: what is wanted is data, and two appliers bring it into the kernel. Who keeps it there is the daemon.

pub mod iptables_text;
pub mod nftables_text;
pub mod notices;
pub mod programs;
pub mod rules;
pub mod shared;
#[cfg(test)]
mod tests;
pub mod turn;

use ipnet::IpNet;
use programs::{Failure, Iptables, Variant, legacy_tables, nft, nft_check, nft_table, pick};
use rules::{Choices, Port, Ruleset, guard, ruleset};
use shared::Others;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use subnet_lease::Subnets;

/// Whose turn it is with nftables.
const NFTABLES: &str = "nftables";

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
    /// The backend's UDP port.
    pub port: Option<u16>,
    /// This host's addresses on the network of the nodes.
    pub hosts: BTreeSet<IpAddr>,
    /// The public addresses of the other nodes, and of those of other networks that send to the same port.
    pub peers: BTreeSet<IpAddr>,
    /// Which of the places for guards is this daemon's.
    pub place: u16,
    /// What other daemons keep in the same chains.
    pub others: Others,
}

impl Wanted {
    /// Whether the rules depend on who the other nodes are.
    pub fn follows_peers(&self) -> bool {
        self.port.is_some() && self.choices.guard.is_some()
    }

    /// The rules, a set a family.
    pub fn rulesets(&self) -> Vec<Ruleset> {
        let nets = |subnets: &Subnets| (subnets.v4().copied().map(IpNet::V4), subnets.v6().copied().map(IpNet::V6));
        let ((v4, v6), (own_v4, own_v6)) = (nets(&self.networks), nets(&self.own));
        let mut out = Vec::new();
        for (ipv6, pods) in [(false, v4.zip(own_v4)), (true, v6.zip(own_v6))] {
            let port = self.port.map(|number| Port { number, pods, hosts: &self.hosts, peers: &self.peers });
            // Packets of one family may travel in the other.
            let port = port.filter(|_| pods.is_some() || self.hosts.iter().any(|ip| ip.is_ipv6() == ipv6));
            let encap = port.and_then(|port| guard(ipv6, port, self.choices.guard));
            let rules = match pods {
                Some((network, own)) => ruleset(network, own, &self.choices),
                None if encap.is_some() => Ruleset::nothing(ipv6),
                None => continue,
            };
            out.push(Ruleset { encap, place: self.place, others: self.others.clone(), ..rules });
        }
        out
    }
}

/// What came of one look at the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Something had to be written.
    pub wrote: bool,
    /// Packets of others than peers that came to the encapsulation port, where they are counted.
    pub strangers: Option<u64>,
    /// Networks whose rules stayed only because it is not known whether anybody serves them.
    pub unserved: BTreeSet<IpNet>,
}

/// Something to tell once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// For the record.
    Info(String),
    /// Somebody should do something.
    Warn(String),
}

/// Applies the rules of one family, and keeps what it found out about this host.
#[derive(Debug)]
pub struct Applier {
    nftables: bool,
    ipv6: bool,
    /// The variant of iptables: once chosen it stays, whatever the system's choice becomes.
    pinned: Option<Iptables>,
    /// Whether ports can be chosen at random.
    random: Option<bool>,
    notes: Vec<Note>,
}

impl Applier {
    /// Nothing is known yet.
    pub fn new(nftables: bool, ipv6: bool) -> Self {
        Self { nftables, ipv6, pinned: None, random: None, notes: Vec::new() }
    }

    /// The variant of iptables that it uses; none before the first look, and with nftables.
    pub fn variant(&self) -> Option<Variant> {
        self.pinned.as_ref().map(|programs| programs.variant)
    }

    /// What is to be told since the last call.
    pub fn notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Brings the rules into the kernel where they are not there.
    ///
    /// # Errors
    /// What the programs said, or that there are none, with the remedy.
    pub async fn apply(&mut self, rules: &Ruleset) -> Result<Applied, String> {
        let done = if self.nftables { self.apply_nft(rules).await } else { self.apply_iptables(rules).await };
        done.map_err(|failure| match (&failure, self.nftables) {
            (Failure::Missing { .. }, false) => {
                format!("{failure}; install the package iptables, or set \"EnableNFTables\": true in the network configuration")
            }
            (Failure::Missing { .. }, true) => {
                format!("{failure}; install the package nftables, or set \"EnableNFTables\": false in the network configuration")
            }
            _ => failure.to_string(),
        })
    }

    async fn apply_iptables(&mut self, rules: &Ruleset) -> Result<Applied, Failure> {
        let programs = match self.pin().await {
            Ok(programs) => programs,
            // Who wants no rules misses no program.
            Err(Failure::Missing { .. }) if rules.is_empty() => return Ok(Applied::default()),
            Err(failure) => return Err(failure),
        };
        let (mut applied, first) = self.look_iptables(&programs, rules).await?;
        if first.is_none() {
            return Ok(applied);
        }
        // Nobody of us writes between the look and the write.
        let _turn = turn::take(&programs.variant.to_string()).await;
        let (again, payload) = self.look_iptables(&programs, rules).await?;
        applied = again;
        if let Some(payload) = payload {
            programs.give(&payload).await?;
            applied.wrote = true;
        }
        Ok(applied)
    }

    /// What is there, and what has to be given to iptables-restore.
    async fn look_iptables(&mut self, programs: &Iptables, rules: &Ruleset) -> Result<(Applied, Option<String>), Failure> {
        let saved = programs.saved().await?;
        let strangers = rules.counts_strangers().then(|| iptables_text::strangers_at(&saved, rules.place).unwrap_or(0));
        let unserved = if rules.others.unknown { iptables_text::unserved(&saved, &rules.others) } else { BTreeSet::new() };
        let plain = rules.plain();
        let mut payload = iptables_text::payload(if self.random == Some(false) { &plain } else { rules }, &saved);
        if payload.is_some() && self.random.is_none() && plain != *rules {
            self.probed(programs.probe().await)?;
            if self.random == Some(false) {
                payload = iptables_text::payload(&plain, &saved);
            }
        }
        Ok((Applied { wrote: false, strangers, unserved }, payload))
    }

    async fn apply_nft(&mut self, rules: &Ruleset) -> Result<Applied, Failure> {
        let first = match self.look_nft(rules).await {
            Err(Failure::Missing { .. }) if rules.is_empty() => return Ok(Applied::default()),
            look => look?,
        };
        if first.wanted.is_none() {
            return Ok(first.applied);
        }
        // Nobody of us writes between the look and the write.
        let _turn = turn::take(NFTABLES).await;
        let Look { applied, listing, wanted } = self.look_nft(rules).await?;
        let (Some(wanted), listing) = (wanted, listing.as_ref()) else { return Ok(applied) };
        match nft(&nftables_text::script(&wanted, listing)).await {
            // A kernel that cannot guard the port shall masquerade all the same.
            Err(Failure::Refused(why)) if wanted.encap.is_some() && !nftables_text::holds_but_encap(&wanted, listing) => {
                nft(&nftables_text::script(&Ruleset { encap: None, ..wanted }, listing)).await?;
                Err(Failure::Refused(format!("the encapsulation port is not guarded, the other rules are in place: {why}")))
            }
            done => done.map(|()| Applied { wrote: true, ..applied }),
        }
    }

    /// What is there, and the rules that have to be written.
    async fn look_nft(&mut self, rules: &Ruleset) -> Result<Look, Failure> {
        let (family, name) = nftables_text::table(rules.ipv6);
        let listing = nft_table(family, name).await?;
        let found = listing.as_ref();
        let strangers = rules.counts_strangers().then(|| found.and_then(|found| nftables_text::strangers_at(found, rules.place)).unwrap_or(0));
        let unserved = found.filter(|_| rules.others.unknown).map(|found| nftables_text::unserved(found, &rules.others)).unwrap_or_default();
        let plain = rules.plain();
        let right = |rules: &Ruleset| nftables_text::holds(rules, found) || (found.is_none() && rules.is_empty());
        let mut wanted = if self.random == Some(false) { &plain } else { rules };
        if !right(wanted) && self.random.is_none() && plain != *rules {
            self.probed(nft_check(&nftables_text::probe(rules.ipv6)).await)?;
            if self.random == Some(false) {
                wanted = &plain;
            }
        }
        let wanted = (!right(wanted)).then(|| wanted.clone());
        Ok(Look { applied: Applied { wrote: false, strangers, unserved }, wanted, listing })
    }

    /// What the trial of random ports yields; a trial that could not be made is none.
    fn probed(&mut self, trial: Result<(), Failure>) -> Result<(), Failure> {
        match trial {
            Ok(()) => self.random = Some(true),
            Err(Failure::Refused(why)) => {
                self.random = Some(false);
                let family = if self.ipv6 { "IPv6" } else { "IPv4" };
                self.notes.push(Note::Warn(format!(
                    "ports of masqueraded {family} connections are not chosen at random: this system cannot ({why}); parallel connections of \
                     pods to one server may clash"
                )));
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// The programs, chosen at the first call.
    async fn pin(&mut self) -> Result<Iptables, Failure> {
        if let Some(programs) = &self.pinned {
            return Ok(programs.clone());
        }
        let mut found = Vec::new();
        for (programs, system) in Iptables::installed(self.ipv6).await? {
            // One that is there and does not work is not chosen, unless it is the only one.
            let saved = programs.saved().await;
            found.push((programs, saved, system));
        }
        if found.iter().any(|(_, saved, _)| saved.is_ok()) {
            found.retain(|(_, saved, _)| saved.is_ok());
        }
        let candidates: Vec<_> =
            found.iter().map(|(programs, saved, system)| (programs.variant, saved.as_ref().map_or("", String::as_str), *system)).collect();
        let Some(pick) = pick(&candidates) else {
            return Err(Failure::Missing { program: "iptables-save".to_owned(), why: "it is not installed".to_owned() });
        };
        let (programs, saved, _) = found.swap_remove(pick.index);
        saved?;
        self.notes.push(Note::Info(format!("rules go to {}: {}", programs.name(self.ipv6), pick.why)));
        self.notes.extend(pick.warning.map(Note::Warn));
        self.pinned = Some(programs.clone());
        Ok(programs)
    }
}

/// What a look at the table of nftables yields.
struct Look {
    applied: Applied,
    listing: Option<serde_json::Value>,
    /// None where they are there.
    wanted: Option<Ruleset>,
}

/// What was removed, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// What was, or in a dry run would be, removed: in words, one thing a line.
    pub removed: Vec<String>,
    /// What could not be removed, and why.
    pub complaints: Vec<String>,
}

/// What of ours stays in a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing: the family has no rules.
    Nothing,
    /// The table of nftables.
    Nftables,
    /// The chains in one variant of iptables.
    Iptables(Variant),
}

/// Removes everything of ours and of Go flannel's from both appliers and both variants of iptables; a dry run only looks.
pub async fn clear(dry_run: bool) -> Cleared {
    clear_beside(&Others::default(), dry_run).await
}

/// The same, but what other daemons keep.
pub async fn clear_beside(others: &Others, dry_run: bool) -> Cleared {
    clear_but([Kept::Nothing; 2], others, dry_run).await
}

/// Removes what is not in use of IPv4 and of IPv6: the other applier's set, the one in the other variant of iptables, a family's without rules.
/// What other daemons keep stays.
pub async fn clear_other(kept: [Kept; 2], others: &Others) -> Cleared {
    clear_but(kept, others, false).await
}

async fn clear_but(kept: [Kept; 2], others: &Others, dry_run: bool) -> Cleared {
    let mut cleared = Cleared::default();
    for (kept, ipv6) in kept.into_iter().zip([false, true]) {
        let installed = match Iptables::installed(ipv6).await {
            Ok(installed) => installed,
            Err(Failure::Missing { .. }) => Vec::new(),
            Err(failure) => {
                cleared.complaints.push(format!("it cannot be told whether iptables holds rules of flannel: {failure}"));
                continue;
            }
        };
        let has = |variant: Variant| installed.iter().any(|(programs, _)| programs.variant == variant);
        for (programs, _) in installed.iter().filter(|(programs, _)| Kept::Iptables(programs.variant) != kept) {
            clear_iptables(programs, ipv6, others, dry_run, &mut cleared).await;
        }
        if !has(Variant::Nft) {
            clear_iptables_by_nft(ipv6, others, dry_run, &mut cleared).await;
        }
        let tables = legacy_tables(ipv6);
        if !has(Variant::Legacy) && !tables.is_empty() && !matches!(kept, Kept::Iptables(_)) {
            let command = if ipv6 { "ip6tables-legacy" } else { "iptables-legacy" };
            cleared.complaints.push(format!(
                "this host has the old iptables tables {} but no {command}: whether rules of flannel are in them cannot be told; \
                 install it and look with `{command}-save | grep -i flannel`, or restart the host",
                tables.join(", ")
            ));
        }
        if kept != Kept::Nftables {
            clear_nft(ipv6, others, dry_run, &mut cleared).await;
        }
    }
    cleared
}

/// Removes what one variant of iptables has of us.
async fn clear_iptables(programs: &Iptables, ipv6: bool, others: &Others, dry_run: bool, cleared: &mut Cleared) {
    let name = programs.name(ipv6);
    let nothing = Ruleset { others: others.clone(), ..Ruleset::nothing(ipv6) };
    let mut turn = None;
    loop {
        let saved = match programs.saved().await {
            Ok(saved) => saved,
            Err(why) => return cleared.complaints.push(format!("it cannot be told whether flannel has rules in {name}: {why}")),
        };
        let Some(payload) = iptables_text::payload(&nothing, &saved) else { return };
        if !dry_run && turn.is_none() {
            turn = Some(turn::take(&programs.variant.to_string()).await);
            continue;
        }
        if !dry_run && let Err(why) = programs.give(&payload).await {
            return cleared.complaints.push(format!("flannel's rules in {name} could not be removed: {why}"));
        }
        return cleared.removed.extend(iptables_text::remains_beside(&saved, others).into_iter().map(|what| format!("{name}: {what}")));
    }
}

/// Removes what iptables-nft has of us, where that program is missing.
async fn clear_iptables_by_nft(ipv6: bool, others: &Others, dry_run: bool, cleared: &mut Cleared) {
    let family = if ipv6 { "ip6" } else { "ip" };
    let _turn = turn::take(&Variant::Nft.to_string()).await;
    let mut listings = Vec::new();
    for table in ["nat", "filter", "raw"] {
        match nft_table(family, table).await {
            Ok(listing) => listings.extend(listing),
            Err(why) => return tracing::debug!("{why}"),
        }
    }
    let Some((script, words)) = nftables_text::iptables_removal(&listings, others) else { return };
    match if dry_run { Ok(()) } else { nft(&script).await } {
        Ok(()) => cleared.removed.extend(words.into_iter().map(|what| format!("iptables (nf_tables), by nft: {what}"))),
        Err(why) => cleared.complaints.push(format!("flannel's iptables rules could not be removed by nft: {why}")),
    }
}

/// Removes the family's nftables table, or our rules in it where other daemons have some.
async fn clear_nft(ipv6: bool, others: &Others, dry_run: bool, cleared: &mut Cleared) {
    let (family, name) = nftables_text::table(ipv6);
    let _turn = turn::take(NFTABLES).await;
    let listing = match nft_table(family, name).await {
        Ok(Some(listing)) => listing,
        Ok(None) => return,
        // A host without nft has no tables that somebody made with it.
        Err(why) => return tracing::debug!("{why}"),
    };
    let nothing = Ruleset { others: others.clone(), ..Ruleset::nothing(ipv6) };
    let shared = nftables_text::beside(&listing, ipv6, others);
    if shared && nftables_text::holds(&nothing, Some(&listing)) {
        return;
    }
    let what =
        if shared { format!("flannel's rules in table {family} {name}, which another flanneld uses, too") } else { format!("table {family} {name}") };
    match if dry_run { Ok(()) } else { nft(&nftables_text::script(&nothing, Some(&listing))).await } {
        Ok(()) => cleared.removed.push(format!("nftables: {what}")),
        Err(why) => cleared.complaints.push(format!("nftables: {what} could not be removed: {why}")),
    }
}

/// Rules of Go flannel before v0.17, which nobody can tell from an operator's: the commands that remove them.
pub async fn bare_rules(networks: &Subnets, own: &Subnets) -> Vec<String> {
    let mut out = Vec::new();
    let v4 = networks.v4().copied().map(IpNet::V4).zip(own.v4().copied().map(IpNet::V4));
    let v6 = networks.v6().copied().map(IpNet::V6).zip(own.v6().copied().map(IpNet::V6));
    for (network, own) in v4.into_iter().chain(v6) {
        for (programs, _) in Iptables::installed(matches!(network, IpNet::V6(_))).await.unwrap_or_default() {
            out.extend(iptables_text::bare(&programs.saved().await.unwrap_or_default(), &programs.command(), network, own));
        }
    }
    out
}
