//! Traffic rules: the desired rules are data, and two appliers (iptables and nftables) write them
//! to the kernel. The daemon applies them repeatedly, so that they remain there.

#![warn(clippy::must_use_candidate)]

pub mod error;
mod iptables_text;
mod lock;
pub mod nftables_text;
pub mod notices;
pub mod pace;
pub mod programs;
pub mod reader;
pub mod rules;
#[cfg(test)]
mod tests;
pub mod variant;

use error::{ProgramError, RulesError};
use netlink::KernelError;
use notices::list_chains;
use programs::{
    Iptables, Variant, legacy_tables, nft, nft_check, nft_table, no_tables, pick_variant,
};
pub use rules::Wanted;
use rules::{OtherDaemons, Ruleset, TABLES};
use std::borrow::Cow;
use std::collections::BTreeSet;
use types::{Errno, Family};

/// The lock that daemons take before they write nftables rules.
const NFTABLES: &str = "nftables";

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
                if self.stand_in.is_some() {
                    let mut cleanup = Cleanup::new(self.family, &rules.others);
                    if cleanup.clear_nft().await.is_ok() && cleanup.report.errors.is_empty() {
                        self.stand_in = None;
                    }
                }
                return Ok(applied);
            }
            Err(error) => error,
        };
        match self.apply_nft(rules).await {
            Err(RulesError::Program { .. }) => Err(error.into()),
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
            // No program is needed if no rules are desired.
            Err(ProgramError::Missing { .. }) if rules.is_empty() => return Ok(Applied::default()),
            pinned => pinned?,
        };
        // Other daemons must not write between our read and our write.
        let _lock = lock::acquire_lock(programs.variant).await;
        let saved = programs.list(Some(rules.slot)).await?;
        let unknown_senders =
            rules.peers().map(|_| iptables_text::unknown_senders(&saved, rules.slot).unwrap_or(0));
        let is_right = || iptables_text::restore_input(rules, &saved).is_none();
        let wanted = self.supported(rules, is_right, programs.probe()).await?;
        let payload = iptables_text::restore_input(&wanted, &saved);
        if let Some(payload) = &payload {
            programs.apply(payload).await?;
            if iptables_text::lacks_chains(rules, &programs.list(Some(rules.slot)).await?) {
                return Err(ProgramError::WithoutEffect { program: programs.restore() });
            }
        }
        Ok(Applied { wrote: payload.is_some(), unknown_senders })
    }

    async fn apply_nft(&mut self, rules: &Ruleset) -> Result<Applied, RulesError> {
        let (family, name) = nftables_text::table_of(rules.family, rules.slot);
        // Other daemons must not write between our read and our write.
        let _lock = lock::acquire_lock(NFTABLES).await;
        let listing = match nft_table(family, &name).await {
            Err(ProgramError::Missing { .. }) if rules.is_empty() => return Ok(Applied::default()),
            listing => listing?,
        };
        let listing = listing.as_ref();
        let unknown_senders =
            rules.peers().map(|_| listing.and_then(nftables_text::unknown_senders).unwrap_or(0));
        let is_right = || nftables_text::update_script(rules, listing).is_none();
        let probe = nftables_text::probe_script(rules.family);
        let wanted = self.supported(rules, is_right, nft_check(&probe)).await?;
        let Some(script) = nftables_text::update_script(&wanted, listing) else {
            return Ok(Applied { wrote: false, unknown_senders });
        };
        match nft(&script).await {
            // A kernel that cannot guard the port must still masquerade.
            Err(error @ (ProgramError::Refused { .. } | ProgramError::NotFound { .. }))
                if wanted.encap.is_some()
                    && !nftables_text::holds_except_encap(&wanted, listing) =>
            {
                let bare = Ruleset { encap: None, ..wanted.into_owned() };
                if let Some(script) = nftables_text::update_script(&bare, listing) {
                    nft(&script).await?;
                }
                return Err(RulesError::Unguarded { error });
            }
            done => done?,
        }
        if nft_table(family, &name).await?.is_none() && !rules.is_empty() {
            return Err(ProgramError::WithoutEffect { program: "nft".to_owned() }.into());
        }
        Ok(Applied { wrote: true, unknown_senders })
    }

    /// The rules with random ports for masqueraded connections only if this host supports them. The
    /// first write runs the test. If the test cannot run, nothing is recorded.
    async fn supported<'a>(
        &mut self,
        rules: &'a Ruleset,
        is_right: impl FnOnce() -> bool,
        test: impl Future<Output = Result<(), ProgramError>>,
    ) -> Result<Cow<'a, Ruleset>, ProgramError> {
        let plain = rules.without_random_ports();
        if self.random.is_none() && plain != *rules && !is_right() {
            self.random = Some(match test.await {
                Ok(()) => true,
                Err(
                    why @ (ProgramError::Refused { .. }
                    | ProgramError::NotFound { .. }
                    | ProgramError::Lost { .. }),
                ) => {
                    let family = self.family;
                    self.notes.push(Note::Warn(format!(
                        "cannot use random ports for masqueraded {family} connections on this system ({why}); parallel connections from \
                         pods to the same server may collide"
                    )));
                    false
                }
                Err(failure) => return Err(failure),
            });
        }
        Ok(if self.random == Some(false) { Cow::Owned(plain) } else { Cow::Borrowed(rules) })
    }

    /// The first call chooses the iptables variant.
    async fn pin(&mut self) -> Result<Iptables, ProgramError> {
        if let Some(programs) = &self.pinned {
            return Ok(programs.clone());
        }
        let mut found = Vec::new();
        let program = "iptables-save".to_owned();
        let mut failure = ProgramError::Missing { program, errno: Errno(libc::ENOENT) };
        for (programs, is_system) in Iptables::installed(self.family).await? {
            // The first names a chain that cannot be listed; only the second has the rules of other programs.
            let listed = match programs.list(None).await {
                Ok(_) => programs.dump_tables(&TABLES).await,
                failed => failed,
            };
            match listed {
                Ok(saved) => found.push((programs, saved, is_system)),
                // Other programs may use the variant whose rules cannot be listed.
                Err(error @ ProgramError::Unusable { .. }) => return Err(error),
                // The failure of the default counts.
                Err(error) if is_system || matches!(failure, ProgramError::Missing { .. }) => {
                    failure = error;
                }
                Err(_) => {}
            }
        }
        let Some(pick) = pick_variant(&found) else {
            return Err(failure);
        };
        let (programs, ..) = found.swap_remove(pick.index);
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

/// What holds the rules of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActiveRules {
    /// The family needs no rules.
    Nothing,
    Nftables,
    Iptables(Variant),
}

/// Removes all rules of flannel-rs and Go flannel from nftables and from both variants of iptables,
/// except those of other flanneld daemons. A dry run only reports them.
pub async fn clear_except(others: &OtherDaemons, dry_run: bool) -> CleanupReport {
    run_cleanups(Family::ALL.map(|family| Cleanup { dry_run, ..Cleanup::new(family, others) }))
        .await
}

/// Removes all rules of flannel outside this daemon's slot in the tools in use: those of the unused
/// tool, of the unused iptables variant, of a family that needs none, of a daemon that has ended,
/// and this daemon's rules in another slot. The rules of other flanneld daemons stay.
pub async fn clear_inactive(
    [v4, v6]: [ActiveRules; 2],
    slot: u16,
    others: &OtherDaemons,
) -> CleanupReport {
    run_cleanups(Family::ALL.map(|family| {
        let tool = family.pick(v4, v6);
        Cleanup { tool, slot, ..Cleanup::new(family, others) }
    }))
    .await
}

async fn run_cleanups(cleanups: [Cleanup<'_>; 2]) -> CleanupReport {
    let mut report = CleanupReport::default();
    for mut cleanup in cleanups {
        cleanup.clear_all().await;
        report.removed.append(&mut cleanup.report.removed);
        report.errors.append(&mut cleanup.report.errors);
    }
    report
}

/// A removal of flannel's rules of one family.
struct Cleanup<'a> {
    family: Family,
    others: &'a OtherDaemons,
    /// What holds this daemon's rules of the family.
    tool: ActiveRules,
    /// This daemon's chains and tables in that tool have this slot.
    slot: u16,
    dry_run: bool,
    report: CleanupReport,
}

impl<'a> Cleanup<'a> {
    /// This daemon keeps no rules of its own.
    fn new(family: Family, others: &'a OtherDaemons) -> Self {
        let (tool, report) = (ActiveRules::Nothing, CleanupReport::default());
        Self { family, others, tool, slot: 0, dry_run: false, report }
    }

    fn slot_in(&self, tool: ActiveRules) -> Option<u16> {
        (self.tool == tool).then_some(self.slot)
    }

    /// Removes the rules with every program that works, and reports what no program could look at.
    async fn clear_all(&mut self) {
        const BY_NFT: ActiveRules = ActiveRules::Iptables(Variant::Nft);
        const LEGACY: ActiveRules = ActiveRules::Iptables(Variant::Legacy);
        let family = self.family;
        // What a program looked at, or why it could not.
        let mut looks = vec![(self.tool, Ok(()))];
        match Iptables::installed(family).await {
            Ok(installed) => {
                for (programs, _) in &installed {
                    let looked = self.clear_iptables(programs).await;
                    looks.push((ActiveRules::Iptables(programs.variant), looked));
                }
            }
            Err(why) => looks.push((ActiveRules::Nothing, Err(why))),
        }
        if !looks.contains(&(BY_NFT, Ok(()))) {
            looks.push((BY_NFT, self.clear_iptables_by_nft().await));
        }
        looks.push((ActiveRules::Nftables, self.clear_nft().await));
        let is_seen = |tool| looks.contains(&(tool, Ok(())));
        let mut blind: Vec<String> = looks
            .iter()
            .filter_map(|(_, looked)| Some(looked.as_ref().err()?.to_string()))
            .collect();
        blind.dedup();
        let blind = blind.join("; ");
        let left = self.left_in_kernel().unwrap_or_else(|error| vec![error.to_string()]);
        // Chains stay in a dry run, and with rules of other daemons.
        let may_stay = self.dry_run || self.others.keep_any();
        let is_all_seen = is_seen(BY_NFT) && is_seen(ActiveRules::Nftables);
        if !(left.is_empty() || may_stay && is_all_seen) {
            self.report.errors.push(format!(
                "flannel's {family} rules may stay ({}); see to it that iptables or nft works, and run cleanup again: {blind}",
                left.join(", ")
            ));
        }
        // With iptables in use, a legacy table may be one of other programs.
        if is_seen(LEGACY) || matches!(self.tool, ActiveRules::Iptables(_)) {
            return;
        }
        let tables = match legacy_tables(family) {
            Ok(tables) if tables.is_empty() => return,
            Ok(tables) => tables.join(", "),
            Err(error) => error.to_string(),
        };
        let command = family.pick("iptables-legacy", "ip6tables-legacy");
        let has_legacy = looks.iter().any(|(tool, _)| *tool == LEGACY);
        let why = if has_legacy { blind } else { format!("{command} is not installed") };
        self.report.errors.push(format!(
            "cannot check the legacy iptables tables {tables} for flannel's rules, because {why}; \
             install it and run `{command}-save | grep -i flannel`, or restart the host"
        ));
    }

    /// flannel's chains that nf_tables contains outside the tool in use, according to the kernel.
    fn left_in_kernel(&self) -> Result<Vec<String>, KernelError> {
        let layer = nftables_text::table_of(self.family, 0).0;
        let mut left = list_chains(self.family)?;
        left.retain(|(table, chain)| {
            let is_nft = nftables_text::slot_of_table(self.family, table).is_some();
            let is_iptables = iptables_text::slot_of_chain(table, chain).is_some();
            is_nft && self.tool != ActiveRules::Nftables
                || is_iptables && self.tool != ActiveRules::Iptables(Variant::Nft)
        });
        let left = left.into_iter();
        Ok(left.map(|(table, chain)| format!("table {layer} {table}, chain {chain}")).collect())
    }

    /// Does the work unless this is a dry run, and reports it.
    async fn remove(
        &mut self,
        what: Vec<String>,
        tool: &str,
        work: impl Future<Output = Result<(), ProgramError>>,
    ) {
        let result = if self.dry_run { Ok(()) } else { work.await };
        let lines = what.into_iter();
        match result {
            Ok(()) => self.report.removed.extend(lines.map(|what| format!("{tool}: {what}"))),
            Err(why) => self
                .report
                .errors
                .extend(lines.map(|what| format!("cannot remove {what} from {tool}: {why}"))),
        }
    }

    async fn clear_iptables(&mut self, programs: &Iptables) -> Result<(), ProgramError> {
        let (others, slot) = (self.others, self.slot_in(ActiveRules::Iptables(programs.variant)));
        let removal =
            async || Ok(iptables_text::removal(&programs.list(None).await?, others, slot));
        let _lock = lock::acquire_lock(programs.variant).await;
        let Some((payload, what)) = removal().await? else {
            return Ok(());
        };
        let work = async {
            programs.apply(&payload).await?;
            match removal().await? {
                None => Ok(()),
                Some(_) => Err(ProgramError::WithoutEffect { program: programs.restore() }),
            }
        };
        self.remove(what, &programs.name(), work).await;
        Ok(())
    }

    /// Removes flannel's iptables-nft rules with nft, on hosts without a working iptables-nft.
    async fn clear_iptables_by_nft(&mut self) -> Result<(), ProgramError> {
        let family = self.family.pick("ip", "ip6");
        let _lock = lock::acquire_lock(Variant::Nft).await;
        let mut listings = Vec::new();
        for table in TABLES {
            listings.extend(nft_table(family, table).await?);
        }
        if let Some((script, what)) = nftables_text::iptables_removal(&listings, self.others) {
            self.remove(what, "iptables (nf_tables, removed with nft)", nft(&script)).await;
        }
        Ok(())
    }

    /// Removes flannel's tables.
    async fn clear_nft(&mut self) -> Result<(), ProgramError> {
        let in_use = self.slot_in(ActiveRules::Nftables);
        let _lock = lock::acquire_lock(NFTABLES).await;
        let present =
            list_chains(self.family).map_err(|error| no_tables("nft".to_owned(), &error))?;
        // A table without chains is found only in slot 0.
        let mut slots = BTreeSet::from([0]);
        slots.extend(
            present
                .iter()
                .filter_map(|(table, _)| nftables_text::slot_of_table(self.family, table)),
        );
        for slot in slots {
            let (layer, name) = nftables_text::table_of(self.family, slot);
            let Some(listing) = nft_table(layer, &name).await? else {
                continue;
            };
            let table = format!("{layer} {name}");
            let removal = nftables_text::removal(&table, slot, self.others, in_use, &listing);
            if let Some((script, what)) = removal {
                self.remove(vec![what], "nftables", nft(&script)).await;
            }
        }
        Ok(())
    }
}
