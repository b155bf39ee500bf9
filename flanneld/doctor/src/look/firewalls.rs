//! Lists the rules of the host's firewalls.

use crate::drops::{self, Commands};
use crate::fact::Fact;
use crate::facts::Network;
use crate::firewalls::{Barrier, Firewalls};
use crate::passage::{self, FIREWALLD, Gate};
use crate::surroundings::Surroundings;
use ipnet::IpNet;
use std::collections::BTreeSet;
use traffic_rules::programs::{Iptables, ProgramError, Variant, nft_table, run_program};
use traffic_rules::reader::model::{Base, Table};
use traffic_rules::reader::nft::Extent;
use traffic_rules::reader::walk::Missing;
use traffic_rules::reader::{self, Layer, Packet, Rules, Walk};
use types::Family;

/// The most chains, sets and maps that the doctor lists separately.
const PARTS: usize = 64;

/// The programs that list firewalls.
#[derive(Debug, Default)]
pub struct Programs {
    /// `None` before the first use.
    iptables: Option<Vec<(IpNet, Iptables)>>,
}

/// True if the failed program may manage firewall rules. One that is not installed manages none.
fn blinds(error: &ProgramError) -> bool {
    !matches!(error, ProgramError::Missing { .. })
}

impl Programs {
    /// The installed variants of iptables for each pod network.
    async fn installed(&mut self, network: &Network) -> Vec<(IpNet, Iptables)> {
        if let Some(known) = self.iptables.take() {
            return known;
        }
        let mut found = Vec::new();
        for net in network.networks.nets() {
            let installed = Iptables::installed(net.into())
                .await
                .inspect_err(|error| tracing::debug!(error = %error, "cannot look for iptables"));
            found.extend(
                installed.unwrap_or_default().into_iter().map(|(programs, _)| (net, programs)),
            );
        }
        found
    }

    /// Ignores programs that are not installed on this host. Unavailable if a program fails and no other one finds rules.
    pub async fn firewalls(&mut self, network: &Network, around: &Surroundings) -> Fact<Firewalls> {
        let iptables = self.installed(network).await;
        let mut all = list(&["chains"], Extent::Names).await;
        if let Some(rules) = &mut all {
            find_devices(rules).await;
        }
        let (mut tables, mut blind, mut commands) = (Vec::new(), None, Commands::new());
        let mut saved_rules = Rules::default();
        for (net, programs) in &iptables {
            let family = Family::from(net.addr());
            match programs.dump_tables(&tables_of(all.as_ref(), family)).await {
                Ok(saved) => {
                    let rules = reader::iptables::read(&saved, family, programs.variant);
                    tables.push(passage::table(&rules, net, network, around, &programs.command));
                    saved_rules.extend(rules);
                    commands.push((family, programs.variant, programs.command.clone()));
                }
                Err(error) => {
                    tracing::debug!(error = %error, "cannot list the rules of iptables");
                    // The legacy variant also fails if its kernel modules are missing, but then it has no rules either.
                    if blinds(&error) && programs.variant == Variant::Nft {
                        blind = Some(error.to_string());
                    }
                }
            }
        }
        let listed = iptables
            .iter()
            .filter(|(_, programs)| programs.variant == Variant::Nft)
            .map(|(net, _)| Family::from(net.addr()))
            .collect::<Vec<_>>();
        self.iptables = Some(iptables);
        let listing = nft_table("inet", FIREWALLD)
            .await
            .inspect_err(
                |error| tracing::debug!(error = %error, "cannot list the table of firewalld"),
            )
            .ok()
            .flatten();
        let firewalld = listing.map(|listing| {
            passage::firewalld(&reader::nft::read(&listing, Extent::Rules), network, around)
        });
        let barriers = match &mut all {
            Some(rules) => barriers(rules, network, around, &listed).await,
            None => Vec::new(),
        };
        let mut rules = all.unwrap_or_default();
        rules.extend(saved_rules);
        list_missing(&mut rules, |rules| drops::missing(rules, network, around)).await;
        let drops = drops::drops(&rules, &commands, network, around);
        match blind {
            Some(why)
                if tables.is_empty()
                    && barriers.is_empty()
                    && drops.is_empty()
                    && firewalld.is_none() =>
            {
                Fact::Unavailable(why)
            }
            _ => Fact::Known(Firewalls { tables, firewalld, barriers, drops }),
        }
    }

    /// True if the legacy variant of iptables is installed, about whose rule changes the kernel sends no notifications.
    pub fn has_silent(&self) -> bool {
        self.iptables.iter().flatten().any(|(_, programs)| programs.variant == Variant::Legacy)
    }
}

/// Parses the output of `nft -j -a list`; `None` if nft fails or prints no JSON.
async fn list(args: &[&str], extent: Extent) -> Option<Rules> {
    let args: Vec<&str> = ["-j", "-a", "list"].iter().chain(args).copied().collect();
    let text = run_program("nft", &args, None)
        .await
        .inspect_err(|error| tracing::debug!(error = %error, "cannot list the rules of nftables"))
        .ok()?;
    let listing = serde_json::from_str(&text)
        .inspect_err(|error| tracing::debug!(error = %error, "the output of nft -j is not JSON"))
        .ok()?;
    Some(reader::nft::read(&listing, extent))
}

/// `filter`, and the other tables that exist; all tables of iptables if nft cannot list them.
fn tables_of(listed: Option<&Rules>, family: Family) -> Vec<&'static str> {
    let is_there = |name: &str| {
        listed.is_none_or(|rules| {
            rules.tables.iter().any(|table| table.layer == Layer::of(family) && table.name == name)
        })
    };
    ["filter", "raw", "mangle", "security"]
        .into_iter()
        .filter(|name| *name == "filter" || is_there(name))
        .collect()
}

/// The nftables chains that block pod packets. Lists only those that pod packets traverse, because the table of kube-proxy is large.
async fn barriers(
    rules: &mut Rules,
    network: &Network,
    around: &Surroundings,
    iptables: &[Family],
) -> Vec<Barrier> {
    let gates = passage::gates(rules, iptables);
    let packets: Vec<Packet> = network
        .networks
        .nets()
        .flat_map(|net| {
            let mut both = passage::of_pods(&net, network, around);
            both.extend(passage::of_connections(&net, network, around));
            both
        })
        .collect();
    list_missing(rules, |rules| missing(rules, &gates, &packets)).await;
    gates
        .iter()
        .flat_map(|gate| {
            network
                .networks
                .nets()
                .filter_map(|net| passage::barrier(rules, gate, &net, network, around))
        })
        .collect()
}

/// Finds the devices of chains in the family netdev. nft before 1.0.7 prints these devices only as text, not as JSON.
async fn find_devices(rules: &mut Rules) {
    let tables = rules.tables.iter_mut().filter(|table| table.layer == Layer::Netdev);
    for table in tables {
        for (name, chain) in &mut table.chains {
            let Some(base) = chain.base.as_mut().filter(|base| base.device.is_none()) else {
                continue;
            };
            let args = ["list", "chain", "netdev", table.name.as_str(), name.as_str()];
            base.device =
                run_program("nft", &args, None).await.ok().and_then(|text| device_in(&text));
        }
    }
}

/// `None` if the chain has several devices or none.
fn device_in(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let name = words.windows(3).find_map(|three| match three {
        ["ingress", "device", name] => Some(*name),
        _ => None,
    })?;
    Some(name.trim_matches('"').to_owned())
}

/// Lists what `missing` returns, at most [`PARTS`].
async fn list_missing(rules: &mut Rules, missing: impl Fn(&Rules) -> BTreeSet<Missing>) {
    let mut asked = BTreeSet::new();
    while asked.len() < PARTS {
        let wanted: Vec<Missing> = missing(rules)
            .into_iter()
            .filter(|part| !asked.contains(part))
            .take(PARTS.saturating_sub(asked.len()))
            .collect();
        if wanted.is_empty() {
            break;
        }
        for part in wanted {
            let Missing { layer, table, name, part: kind } = &part;
            let listed = list(&[kind.name(), layer, table, name], Extent::Rules).await;
            if let Some(mut found) = listed {
                find_devices(&mut found).await;
                rules.extend(found);
            }
            asked.insert(part);
        }
    }
}

/// What packets traverse after a base chain, but the doctor has not listed yet.
fn missing(rules: &Rules, gates: &[Gate], packets: &[Packet]) -> BTreeSet<Missing> {
    let only = |table: &Table, chain: &str, _: &Base| {
        gates.iter().any(|gate| passage::is_gate(gate, table, chain))
    };
    let walk = Walk::through(rules).only(&only);
    packets.iter().flat_map(|packet| walk.missing(packet)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_of_a_chain_is_read_from_its_text() {
        let text = |of: &str| {
            format!(
                "table netdev f {{\n\tchain c {{\n\t\ttype filter hook ingress {of} priority filter; policy accept;\n\t}}\n}}\n"
            )
        };
        assert_eq!(device_in(&text("device \"enp0s8\"")).as_deref(), Some("enp0s8"));
        assert_eq!(device_in(&text("devices = { \"a\", \"b\" }")), None);
        assert_eq!(device_in(""), None);
    }
}
