//! Traffic rules: the desired rules are data, and two appliers (iptables and nftables) write them
//! to the kernel. The daemon applies them repeatedly, so that they remain there.

#![warn(clippy::must_use_candidate)]

pub mod error;
pub mod iptables_text;
mod kernel_listing;
pub mod lock;
pub mod nftables_text;
pub mod notices;
pub mod pace;
pub mod programs;
pub mod reader;
pub mod rules;
#[cfg(test)]
mod tests;
pub mod variant;
mod words;

use error::{ProgramError, RulesError};
use kernel_listing::chains;
use netlink::KernelError;
use programs::{Iptables, Variant, legacy_tables, nft, nft_check, nft_table, pick};
use rules::{Ends, OtherDaemons, RuleOptions, Ruleset, TABLES, guard, ruleset};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use types::{Encapsulation, Family, Subnets};

/// The lock that daemons take before they write nftables rules.
const NFTABLES: &str = "nftables";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The networks of the cluster.
    pub networks: Subnets,
    /// This node's.
    pub own: Subnets,
    pub options: RuleOptions,
    /// The daemon uses nftables instead of iptables.
    pub nftables: bool,
    /// The interval at which the daemon checks the iptables rules.
    pub resync: Duration,
    /// The encapsulation of pod packets, if other senders can forge them. With
    /// `Encapsulation::None`, no guard is necessary.
    pub encapsulation: Encapsulation,
    /// This host's public addresses, and its addresses on the underlay.
    pub hosts: BTreeSet<IpAddr>,
    /// The public addresses of the other nodes, and of nodes of other pod networks that send to the
    /// same port.
    pub peers: BTreeSet<IpAddr>,
    /// The number in the names of this daemon's chains and tables.
    pub slot: u16,
    pub others: OtherDaemons,
}

impl Wanted {
    /// The rules depend on the addresses of the other nodes.
    #[must_use]
    pub fn follows_peers(&self) -> bool {
        !self.encapsulation.is_none() && self.options.guard.is_some()
    }

    #[must_use]
    pub fn rulesets(&self) -> Vec<Ruleset> {
        let mut out = Vec::new();
        let mut others = self.others.clone();
        others.own.extend(self.networks.nets());
        for family in Family::ALL {
            let pods = self.networks.of(family).zip(self.own.of(family));
            let ends = Ends {
                encapsulation: self.encapsulation,
                pods,
                hosts: &self.hosts,
                peers: &self.peers,
            };
            // Packets of one family may be encapsulated in the other.
            let has_ends = pods.is_some() || self.hosts.iter().any(|ip| Family::from(ip) == family);
            let encap = if has_ends { guard(family, ends, self.options.guard) } else { None };
            let rules = match pods {
                Some((network, own)) => ruleset(network, own, &self.options),
                None if encap.is_some() => Ruleset::empty(family),
                None => continue,
            };
            out.push(Ruleset { encap, slot: self.slot, others: others.clone(), ..rules });
        }
        out
    }
}

/// The result of one pass over the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub wrote: bool,
    /// Packets from unknown senders that reached the encapsulation port, if a rule counts them.
    pub unknown_senders: Option<u64>,
}

/// The daemon logs it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    Info(String),
    /// The operator should act.
    Warn(String),
}

/// Applies the rules of one family.
#[derive(Debug)]
pub struct Applier {
    nftables: bool,
    family: Family,
    /// The chosen variant, which stays the same even if the system default changes.
    pinned: Option<Iptables>,
    /// Whether `--random-fully` works on this host; `None` before the first test.
    random: Option<bool>,
    /// Why nftables holds the rules instead of iptables.
    stand_in: Option<ProgramError>,
    notes: Vec<Note>,
}

impl Applier {
    /// The applier has not examined the host yet.
    #[must_use]
    pub fn new(nftables: bool, family: Family) -> Self {
        Self { nftables, family, pinned: None, random: None, stand_in: None, notes: Vec::new() }
    }

    /// `None` before the first pass, and with nftables.
    #[must_use]
    pub fn variant(&self) -> Option<Variant> {
        self.pinned.as_ref().map(|programs| programs.variant)
    }

    #[must_use]
    pub fn uses_nftables(&self) -> bool {
        self.nftables || self.stand_in.is_some()
    }

    /// `None` while nftables only bridges a failure of iptables, whose earlier rules may be in
    /// force.
    #[must_use]
    pub fn active(&self) -> Option<ActiveRules> {
        match (self.variant(), self.uses_nftables()) {
            (Some(_), true) => None,
            (None, true) => Some(ActiveRules::Nftables),
            (Some(variant), false) => Some(ActiveRules::Iptables(variant)),
            (None, false) => Some(ActiveRules::Nothing),
        }
    }

    /// The messages since the last call.
    pub fn notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Writes the rules if necessary. The error contains the remedy if one is known.
    pub async fn apply(&mut self, rules: &Ruleset) -> Result<Applied, RulesError> {
        if self.nftables {
            return self.apply_nft(rules).await;
        }
        let error = match self.apply_iptables(rules).await {
            Ok(applied) => {
                let mut cleared = CleanupReport::default();
                let kept = Kept::nothing(&rules.others);
                if self.stand_in.is_some()
                    && clear_nft(self.family, kept, false, &mut cleared).await.is_ok()
                    && cleared.errors.is_empty()
                {
                    self.stand_in = None;
                }
                return Ok(applied);
            }
            Err(error) => error,
        };
        match self.apply_nft(rules).await {
            Err(RulesError::Program { .. }) => Err(RulesError::Program { error, nftables: false }),
            done => {
                if self.stand_in.as_ref() != Some(&error) {
                    self.notes.push(Note::Warn(format!(
                        "the {} rules are in nftables until iptables can be used, and rules of iptables that drop forwarded packets take precedence: {error}",
                        self.family
                    )));
                    self.stand_in = Some(error);
                }
                done
            }
        }
    }

    async fn apply_iptables(&mut self, rules: &Ruleset) -> Result<Applied, ProgramError> {
        let programs = match self.pin().await {
            Ok(programs) => programs,
            // No program is needed if no rules are desired.
            Err(ProgramError::Missing { .. }) if rules.is_empty() => return Ok(Applied::default()),
            Err(failure) => return Err(failure),
        };
        // Other daemons must not write between our read and our write.
        let _lock = lock::acquire(&programs.variant.to_string()).await;
        let saved = programs.list(Some(rules.slot)).await?;
        let unknown_senders = rules
            .counts_unknown_senders()
            .then(|| iptables_text::unknown_senders(&saved, rules.slot).unwrap_or(0));
        let plain = rules.without_random_ports();
        let mut wanted = if self.random == Some(false) { &plain } else { rules };
        let is_right = |wanted| iptables_text::payload(wanted, &saved).is_none();
        if !is_right(wanted) && self.random.is_none() && plain != *rules {
            self.probed(programs.probe().await)?;
            if self.random == Some(false) {
                wanted = &plain;
            }
        }
        let Some(payload) = iptables_text::payload(wanted, &saved) else {
            return Ok(Applied { wrote: false, unknown_senders });
        };
        programs.apply(&payload).await?;
        if iptables_text::lacks_chains(rules, &programs.list(Some(rules.slot)).await?) {
            return Err(ProgramError::WithoutEffect {
                program: programs.restore.display().to_string(),
            });
        }
        Ok(Applied { wrote: true, unknown_senders })
    }

    async fn apply_nft(&mut self, rules: &Ruleset) -> Result<Applied, RulesError> {
        let failed = |error| RulesError::Program { error, nftables: true };
        let (family, name) = nftables_text::table_of(rules.family, rules.slot);
        // Other daemons must not write between our read and our write.
        let _lock = lock::acquire(NFTABLES).await;
        let listing = match nft_table(family, &name).await {
            Err(ProgramError::Missing { .. }) if rules.is_empty() => return Ok(Applied::default()),
            listing => listing.map_err(failed)?,
        };
        let listing = listing.as_ref();
        let unknown_senders = rules
            .counts_unknown_senders()
            .then(|| listing.and_then(nftables_text::unknown_senders).unwrap_or(0));
        let plain = rules.without_random_ports();
        let is_right = |rules: &Ruleset| match listing {
            None => rules.is_empty(),
            listing => nftables_text::holds(rules, listing),
        };
        let mut wanted = if self.random == Some(false) { &plain } else { rules };
        if !is_right(wanted) && self.random.is_none() && plain != *rules {
            self.probed(nft_check(&nftables_text::probe(rules.family)).await).map_err(failed)?;
            if self.random == Some(false) {
                wanted = &plain;
            }
        }
        if is_right(wanted) {
            return Ok(Applied { wrote: false, unknown_senders });
        }
        match nft(&nftables_text::script(wanted, listing)).await {
            // A kernel that cannot guard the port must still masquerade.
            Err(error @ (ProgramError::Refused { .. } | ProgramError::NotFound { .. }))
                if wanted.encap.is_some()
                    && !nftables_text::holds_except_encap(wanted, listing) =>
            {
                let bare = Ruleset { encap: None, ..wanted.clone() };
                nft(&nftables_text::script(&bare, listing)).await.map_err(failed)?;
                return Err(RulesError::Unguarded { error });
            }
            done => done.map_err(failed)?,
        }
        if nft_table(family, &name).await.map_err(failed)?.is_none() && !rules.is_empty() {
            return Err(failed(ProgramError::WithoutEffect { program: "nft".to_owned() }));
        }
        Ok(Applied { wrote: true, unknown_senders })
    }

    /// Whether the system supports random ports for masqueraded connections. If the test did not
    /// run, nothing is recorded.
    fn probed(&mut self, trial: Result<(), ProgramError>) -> Result<(), ProgramError> {
        match trial {
            Ok(()) => self.random = Some(true),
            Err(
                why @ (ProgramError::Refused { .. }
                | ProgramError::NotFound { .. }
                | ProgramError::Lost { .. }),
            ) => {
                self.random = Some(false);
                let family = self.family;
                self.notes.push(Note::Warn(format!(
                    "cannot use random ports for masqueraded {family} connections on this system ({why}); parallel connections from \
                     pods to the same server may collide"
                )));
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// The first call chooses the iptables variant.
    async fn pin(&mut self) -> Result<Iptables, ProgramError> {
        if let Some(programs) = &self.pinned {
            return Ok(programs.clone());
        }
        let mut found = Vec::new();
        for (programs, system) in Iptables::installed(self.family).await? {
            match programs.list(None).await {
                // Other programs may use the variant whose rules cannot be listed.
                Err(error @ ProgramError::Unusable { .. }) => return Err(error),
                saved => found.push((programs, saved, system)),
            }
        }
        // A program that is installed but fails is chosen only if it is the only one.
        if found.iter().any(|(_, saved, _)| saved.is_ok()) {
            found.retain(|(_, saved, _)| saved.is_ok());
        }
        let candidates: Vec<_> = found
            .iter()
            .map(|(programs, saved, system)| {
                (programs.variant, saved.as_ref().map_or("", String::as_str), *system)
            })
            .collect();
        let Some(pick) = pick(&candidates) else {
            return Err(ProgramError::Missing { program: "iptables-save".to_owned(), errno: None });
        };
        let (programs, saved, _) = found.swap_remove(pick.index);
        saved?;
        self.notes.push(Note::Info(format!(
            "using {} for traffic rules: {}",
            programs.name(),
            pick.why
        )));
        self.notes.extend(pick.warning.map(Note::Warn));
        self.pinned = Some(programs.clone());
        Ok(programs)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanupReport {
    /// One line for each removed object, or in a dry run for each object to remove.
    pub removed: Vec<String>,
    /// One line for each failed removal, with the reason.
    pub errors: Vec<String>,
}

impl CleanupReport {
    fn record(&mut self, what: Vec<String>, tool: &str, result: Result<(), ProgramError>) {
        let lines = what.into_iter();
        match result {
            Ok(()) => self.removed.extend(lines.map(|what| format!("{tool}: {what}"))),
            Err(why) => self
                .errors
                .extend(lines.map(|what| format!("cannot remove {what} from {tool}: {why}"))),
        }
    }
}

/// What holds the rules of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActiveRules {
    /// The family needs no rules.
    Nothing,
    Nftables,
    Iptables(Variant),
}

/// What stays in a removal of flannel's rules.
#[derive(Clone, Copy)]
struct Kept<'a> {
    others: &'a OtherDaemons,
    /// What holds this daemon's rules of the family.
    tool: ActiveRules,
    /// This daemon's chains and tables in that tool have this slot.
    slot: u16,
}

impl<'a> Kept<'a> {
    /// This daemon keeps no rules of its own.
    fn nothing(others: &'a OtherDaemons) -> Self {
        Self { others, tool: ActiveRules::Nothing, slot: 0 }
    }

    fn slot_in(self, tool: ActiveRules) -> Option<u16> {
        (self.tool == tool).then_some(self.slot)
    }
}

/// Removes all rules of flannel-rs and Go flannel from nftables and from both variants of iptables,
/// except those of other flanneld daemons. A dry run only reports them.
pub async fn clear_except(others: &OtherDaemons, dry_run: bool) -> CleanupReport {
    let mut cleared = CleanupReport::default();
    for family in Family::ALL {
        clear_family(Kept::nothing(others), family, dry_run, &mut cleared).await;
    }
    cleared
}

/// Removes all rules of flannel outside this daemon's slot in the tools in use: those of the unused
/// tool, of the unused iptables variant, of a family that needs none, of a daemon that has ended,
/// and this daemon's rules in another slot. The rules of other flanneld daemons stay.
pub async fn clear_inactive(
    in_use: [ActiveRules; 2],
    slot: u16,
    others: &OtherDaemons,
) -> CleanupReport {
    let mut cleared = CleanupReport::default();
    for (tool, family) in in_use.into_iter().zip(Family::ALL) {
        clear_family(Kept { others, tool, slot }, family, false, &mut cleared).await;
    }
    cleared
}

/// Removes the rules of one family with every program that works, and reports what no program could
/// look at.
async fn clear_family(kept: Kept<'_>, family: Family, dry_run: bool, cleared: &mut CleanupReport) {
    // Why programs could not look at the rules.
    let mut blind = Vec::new();
    let installed = Iptables::installed(family).await.unwrap_or_else(|why| {
        blind.push(why.to_string());
        Vec::new()
    });
    let mut seen = vec![kept.tool];
    let mut note = |tool, looked: Result<(), ProgramError>| match looked {
        Ok(()) => seen.push(tool),
        Err(why) => blind.push(why.to_string()),
    };
    let by_nft = ActiveRules::Iptables(Variant::Nft);
    let (mut has_legacy, mut is_listed) = (false, kept.tool == by_nft);
    for (programs, _) in &installed {
        let tool = ActiveRules::Iptables(programs.variant);
        has_legacy |= programs.variant == Variant::Legacy;
        let looked = clear_iptables(programs, kept, dry_run, cleared).await;
        is_listed |= tool == by_nft && looked.is_ok();
        note(tool, looked);
    }
    if !is_listed {
        note(by_nft, clear_iptables_by_nft(family, kept.others, dry_run, cleared).await);
    }
    note(ActiveRules::Nftables, clear_nft(family, kept, dry_run, cleared).await);
    blind.dedup();
    let blind = blind.join("; ");
    let is_seen = seen.contains(&by_nft) && seen.contains(&ActiveRules::Nftables);
    let left = left_in_kernel(family, kept.tool).unwrap_or_else(|error| vec![error.to_string()]);
    // Chains stay in a dry run, and with rules of other daemons.
    if !left.is_empty() && !(is_seen && (dry_run || kept.others.keep_any())) {
        cleared.errors.push(format!(
            "flannel's {family} rules may stay ({}); see to it that iptables or nft works, and run cleanup again: {blind}",
            left.join(", ")
        ));
    }
    // With iptables in use, a legacy table may be one of other programs.
    let legacy = ActiveRules::Iptables(Variant::Legacy);
    if seen.contains(&legacy) || matches!(kept.tool, ActiveRules::Iptables(_)) {
        return;
    }
    let tables = match legacy_tables(family) {
        Ok(tables) if tables.is_empty() => return,
        Ok(tables) => tables.join(", "),
        Err(error) => error.to_string(),
    };
    let command = family.pick("iptables-legacy", "ip6tables-legacy");
    let why = if has_legacy { blind } else { format!("{command} is not installed") };
    cleared.errors.push(format!(
        "cannot check the legacy iptables tables {tables} for flannel's rules, because {why}; \
         install it and run `{command}-save | grep -i flannel`, or restart the host"
    ));
}

/// flannel's chains that nf_tables contains outside the tool in use, according to the kernel.
fn left_in_kernel(family: Family, in_use: ActiveRules) -> Result<Vec<String>, KernelError> {
    let layer = nftables_text::table_of(family, 0).0;
    let mut left = chains(family)?;
    left.retain(|(table, chain)| {
        let is_nft = nftables_text::slot_of_table(family, table).is_some();
        let is_iptables = iptables_text::slot_of_chain(table, chain).is_some();
        is_nft && in_use != ActiveRules::Nftables
            || is_iptables && in_use != ActiveRules::Iptables(Variant::Nft)
    });
    let left = left.into_iter();
    Ok(left.map(|(table, chain)| format!("table {layer} {table}, chain {chain}")).collect())
}

async fn clear_iptables(
    programs: &Iptables,
    kept: Kept<'_>,
    dry_run: bool,
    cleared: &mut CleanupReport,
) -> Result<(), ProgramError> {
    let slot = kept.slot_in(ActiveRules::Iptables(programs.variant));
    let removal = async || {
        let saved = programs.list(None).await?;
        Ok(iptables_text::removal(&saved, kept.others, slot))
    };
    let Some((_, what)) = removal().await? else {
        return Ok(());
    };
    if dry_run {
        cleared.record(what, &programs.name(), Ok(()));
        return Ok(());
    }
    let _lock = lock::acquire(&programs.variant.to_string()).await;
    let Some((payload, what)) = removal().await? else {
        return Ok(());
    };
    let mut result = programs.apply(&payload).await;
    if removal().await?.is_some() && result.is_ok() {
        let program = programs.restore.display().to_string();
        result = Err(ProgramError::WithoutEffect { program });
    }
    cleared.record(what, &programs.name(), result);
    Ok(())
}

/// Removes flannel's iptables-nft rules with nft, on hosts without a working iptables-nft.
async fn clear_iptables_by_nft(
    family: Family,
    others: &OtherDaemons,
    dry_run: bool,
    cleared: &mut CleanupReport,
) -> Result<(), ProgramError> {
    let family = family.pick("ip", "ip6");
    let _lock = lock::acquire(&Variant::Nft.to_string()).await;
    let mut listings = Vec::new();
    for table in TABLES {
        listings.extend(nft_table(family, table).await?);
    }
    let Some((script, words)) = nftables_text::iptables_removal(&listings, others) else {
        return Ok(());
    };
    let result = if dry_run { Ok(()) } else { nft(&script).await };
    cleared.record(words, "iptables (nf_tables, removed with nft)", result);
    Ok(())
}

/// Removes flannel's tables of a family.
async fn clear_nft(
    family: Family,
    kept: Kept<'_>,
    dry_run: bool,
    cleared: &mut CleanupReport,
) -> Result<(), ProgramError> {
    let in_use = kept.slot_in(ActiveRules::Nftables);
    let _lock = lock::acquire(NFTABLES).await;
    // A table without chains is found only in slot 0.
    let mut slots = BTreeSet::from([0]);
    let present = chains(family).map_err(|error| ProgramError::Unusable {
        command: "nft".to_owned(),
        why: format!("the kernel does not tell its tables: {error}"),
    })?;
    slots.extend(
        present.iter().filter_map(|(table, _)| nftables_text::slot_of_table(family, table)),
    );
    for slot in slots {
        let (layer, name) = nftables_text::table_of(family, slot);
        let Some(listing) = nft_table(layer, &name).await? else {
            continue;
        };
        let removal = nftables_text::removal((layer, &name), slot, kept.others, in_use, &listing);
        if let Some((script, what)) = removal {
            let result = if dry_run { Ok(()) } else { nft(&script).await };
            cleared.record(vec![what], "nftables", result);
        }
    }
    Ok(())
}
