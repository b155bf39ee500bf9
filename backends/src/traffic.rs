//! Traffic rules: what is wanted is data, and two appliers bring it into the kernel. Who keeps it there is the daemon.

pub mod iptables_text;
pub mod nftables_text;
pub mod notices;
pub mod programs;
pub mod rules;
#[cfg(test)]
mod tests;

use ipnet::IpNet;
use programs::{Iptables, nft, nft_table};
use rules::{Choices, Ruleset, ruleset};
use std::time::Duration;
use subnet_lease::Subnets;

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

/// What was removed, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// What was, or in a dry run would be, removed: in words, one thing a line.
    pub removed: Vec<String>,
    /// What could not be removed, and why.
    pub complaints: Vec<String>,
}

/// Brings a family's rules into iptables; whether something had to be written.
///
/// # Errors
/// What the programs said, or that there are none.
pub async fn apply_iptables(rules: &Ruleset) -> Result<bool, String> {
    let programs = Iptables::usual(rules.ipv6);
    let saved = match programs.saved().await {
        Ok(saved) => saved,
        // Who wants no rules misses no program.
        Err(_) if rules.is_empty() => return Ok(false),
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

/// Brings a family's rules into nftables; whether something had to be written.
///
/// # Errors
/// What nft said, or that there is none.
pub async fn apply_nft(rules: &Ruleset) -> Result<bool, String> {
    let (family, name) = nftables_text::table(rules.ipv6);
    let listing = nft_table(family, name).await.map_err(|why| {
        if why.contains("cannot run") {
            format!("{why}; install the package nftables, or set \"EnableNFTables\": false in the network configuration")
        } else {
            why
        }
    })?;
    if nftables_text::holds(rules, listing.as_ref()) || (listing.is_none() && rules.is_empty()) {
        return Ok(false);
    }
    nft(&nftables_text::script(rules)).await.map(|()| true)
}

/// Removes what the applier that is not in use, or the other variant of iptables, has of us.
pub async fn clear_other(nftables: bool) -> Cleared {
    let mut cleared = Cleared::default();
    for ipv6 in [false, true] {
        let usual = Iptables::find(ipv6).await.ok();
        let mut stale = Iptables::other(ipv6, usual.as_ref().map(|usual| usual.variant)).await;
        if nftables {
            stale.extend(usual);
        } else {
            clear_nft(ipv6, false, &mut cleared).await;
        }
        for programs in stale {
            clear_iptables(&programs, ipv6, false, &mut cleared).await;
        }
    }
    cleared
}

/// Removes everything of ours and of Go flannel's from both appliers and both variants of iptables; a dry run only looks.
pub async fn clear(dry_run: bool) -> Cleared {
    let mut cleared = Cleared::default();
    for ipv6 in [false, true] {
        let usual = Iptables::find(ipv6).await.ok();
        let other = Iptables::other(ipv6, usual.as_ref().map(|usual| usual.variant)).await;
        for programs in usual.into_iter().chain(other) {
            clear_iptables(&programs, ipv6, dry_run, &mut cleared).await;
        }
        clear_nft(ipv6, dry_run, &mut cleared).await;
    }
    cleared
}

/// Removes what one variant of iptables has of us.
async fn clear_iptables(programs: &Iptables, ipv6: bool, dry_run: bool, cleared: &mut Cleared) {
    let name = programs.name(ipv6);
    let saved = match programs.saved().await {
        Ok(saved) => saved,
        Err(why) => return cleared.complaints.push(format!("it cannot be told whether flannel has rules in {name}: {why}")),
    };
    let Some(payload) = iptables_text::payload(&Ruleset::nothing(ipv6), &saved) else { return };
    if !dry_run && let Err(why) = programs.give(&payload).await {
        return cleared.complaints.push(format!("flannel's rules in {name} could not be removed: {why}"));
    }
    cleared.removed.extend(iptables_text::remains(&saved).into_iter().map(|what| format!("{name}: {what}")));
}

/// Removes the family's nftables table.
async fn clear_nft(ipv6: bool, dry_run: bool, cleared: &mut Cleared) {
    let (family, name) = nftables_text::table(ipv6);
    match nft_table(family, name).await {
        Ok(None) => {}
        Ok(Some(_)) => match if dry_run { Ok(()) } else { nft(&nftables_text::removal(ipv6)).await } {
            Ok(()) => cleared.removed.push(format!("nftables: table {family} {name}")),
            Err(why) => cleared.complaints.push(format!("flannel's nftables table {family} {name} could not be removed: {why}")),
        },
        // A host without nft has no tables of it that somebody made with it.
        Err(why) => tracing::debug!("{why}"),
    }
}
