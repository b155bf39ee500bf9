//! The listings of the programs that manage firewalls.

use crate::fact::Fact;
use crate::facts::Network;
use crate::firewalls::{Barrier, Firewalls};
use crate::passage::{self, FIREWALLD, Gate};
use crate::surroundings::Surroundings;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::path::Path;
use traffic_rules::programs::{Iptables, ProgramError, Variant, nft_table, run};
use traffic_rules::reader::model::{Base, Table};
use traffic_rules::reader::nft::Extent;
use traffic_rules::reader::walk::Missing;
use traffic_rules::reader::{self, Packet, Rules, Walk};
use types::Family;

/// Limit on the chains, sets and maps that are listed one by one.
const PARTS: usize = 64;

/// The programs that list firewalls.
#[derive(Debug, Default)]
pub struct Programs {
    /// The variants of iptables that are installed; `None` before the first use.
    iptables: Option<Vec<(IpNet, Iptables)>>,
}

/// Whether a failure is more than that the program is not there.
fn blinds(error: &ProgramError) -> bool {
    !matches!(error, ProgramError::Missing { .. })
}

impl Programs {
    /// Lists the firewalls. A program that is not installed lists nothing; one that fails makes the firewalls unknown.
    pub async fn firewalls(&mut self, network: &Network, around: &Surroundings) -> Fact<Firewalls> {
        let iptables = match self.iptables.take() {
            Some(known) => known,
            None => {
                let mut found = Vec::new();
                for net in network.networks.nets() {
                    let installed = Iptables::installed(net.into()).await.inspect_err(
                        |error| tracing::debug!(error = %error, "cannot look for iptables"),
                    );
                    found.extend(
                        installed
                            .unwrap_or_default()
                            .into_iter()
                            .map(|(programs, _)| (net, programs)),
                    );
                }
                found
            }
        };
        let (mut tables, mut blind) = (Vec::new(), None);
        for (net, programs) in &iptables {
            match programs.dump_filter().await {
                Ok(saved) => {
                    let rules =
                        reader::iptables::read(&saved, Family::from(net.addr()), programs.variant);
                    tables.push(passage::table(
                        &rules,
                        net,
                        network,
                        around,
                        &programs.command(),
                    ));
                }
                Err(error) => {
                    tracing::debug!(error = %error, "cannot list the rules of iptables");
                    // The other variant's modules may not be there; then it holds no rules either.
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
        let barriers = barriers(network, around, &listed).await;
        match blind {
            Some(why) if tables.is_empty() && barriers.is_empty() && firewalld.is_none() => {
                Fact::Unavailable(why)
            }
            _ => Fact::Known(Firewalls {
                tables,
                firewalld,
                barriers,
            }),
        }
    }

    /// Whether there are rules without change notices.
    pub fn has_silent(&self) -> bool {
        self.iptables
            .iter()
            .flatten()
            .any(|(_, programs)| programs.variant == Variant::Legacy)
    }
}

/// What nft prints for these words; `None` if it prints nothing that can be read.
async fn list(args: &[&str], extent: Extent) -> Option<Rules> {
    let args: Vec<&str> = ["-j", "-a", "list"].iter().chain(args).copied().collect();
    let text = run(Path::new("nft"), &args, None)
        .await
        .inspect_err(|error| tracing::debug!(error = %error, "cannot list the rules of nftables"))
        .ok()?;
    let listing = serde_json::from_str(&text)
        .inspect_err(|error| tracing::debug!(error = %error, "the output of nft -j is not JSON"))
        .ok()?;
    Some(reader::nft::read(&listing, extent))
}

/// The nftables chains that block pods' packets. Lists only what packets of pods come to: kube-proxy's table is large.
async fn barriers(network: &Network, around: &Surroundings, iptables: &[Family]) -> Vec<Barrier> {
    let Some(mut rules) = list(&["chains"], Extent::Names).await else {
        return Vec::new();
    };
    let gates = passage::gates(&rules, iptables);
    let packets: Vec<Packet> = network
        .networks
        .nets()
        .flat_map(|net| passage::of_pods(&net, network, around))
        .collect();
    let mut asked = BTreeSet::new();
    while asked.len() < PARTS {
        let missing = missing(&rules, &gates, &packets, &asked);
        if missing.is_empty() {
            break;
        }
        for part in missing {
            let Missing {
                layer,
                table,
                name,
                part: kind,
            } = &part;
            if let Some(found) = list(&[kind.name(), layer, table, name], Extent::Rules).await {
                rules.extend(found);
            }
            asked.insert(part);
        }
    }
    gates
        .iter()
        .flat_map(|gate| {
            network
                .networks
                .nets()
                .filter_map(|net| passage::barrier(&rules, gate, &net, network, around))
        })
        .collect()
}

/// Returns which of these chains, and of those that they lead to, packets traverse and have not been listed yet.
fn missing(
    rules: &Rules,
    gates: &[Gate],
    packets: &[Packet],
    asked: &BTreeSet<Missing>,
) -> BTreeSet<Missing> {
    let only = |table: &Table, chain: &str, _: &Base| {
        gates
            .iter()
            .any(|gate| passage::is_gate(gate, table, chain))
    };
    let walk = Walk::through(rules).only(&only);
    packets
        .iter()
        .flat_map(|packet| walk.missing(packet))
        .filter(|part| !asked.contains(part))
        .collect()
}
