//! The listings of the programs that manage firewalls.

use crate::fact::Fact;
use crate::facts::Network;
use crate::firewalld::firewalld;
use crate::firewalls::{self, Firewalls};
use crate::nftables::{self, Barrier};
use crate::surroundings::Surroundings;
use ipnet::IpNet;
use std::path::Path;
use traffic_rules::programs::{Iptables, ProgramError, Variant, nft_table, run};

/// The programs that list firewalls.
#[derive(Debug, Default)]
pub struct Programs {
    /// Looked for once; `None` before.
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
                    let installed = Iptables::installed(net.addr().is_ipv6()).await.inspect_err(|why| tracing::debug!("{why}"));
                    found.extend(installed.unwrap_or_default().into_iter().map(|(programs, _)| (net, programs)));
                }
                found
            }
        };
        let (mut tables, mut blind) = (Vec::new(), None);
        for (net, programs) in &iptables {
            match programs.dump_filter().await {
                Ok(saved) => tables.push(firewalls::table(&saved, net, network.tunnel(), around, &programs.command())),
                Err(why) => {
                    tracing::debug!("{why}");
                    // The other variant's modules may not be there; then it holds no rules either.
                    if blinds(&why) && programs.variant == Variant::Nft {
                        blind = Some(why.to_string());
                    }
                }
            }
        }
        self.iptables = Some(iptables);
        let listing = nft_table("inet", "firewalld").await.inspect_err(|why| tracing::debug!("{why}")).ok().flatten();
        let firewalld = listing.map(|listing| firewalld(&listing, network, around));
        let barriers = self.barriers(network).await;
        match blind {
            Some(why) if tables.is_empty() && barriers.is_empty() && firewalld.is_none() => Fact::Unavailable(why),
            _ => Fact::Known(Firewalls { tables, firewalld, barriers }),
        }
    }

    /// Whether there are rules without change notices.
    pub fn has_silent(&self) -> bool {
        self.iptables.iter().flatten().any(|(_, programs)| programs.variant == Variant::Legacy)
    }

    /// The nftables chains that block pods' packets. Lists whole tables only for chains that drop: kube-proxy's table is large.
    async fn barriers(&self, network: &Network) -> Vec<Barrier> {
        let list = async |args: &[&str]| {
            let text = run(Path::new("nft"), args, None).await.inspect_err(|why| tracing::debug!("{why}")).ok()?;
            serde_json::from_str::<serde_json::Value>(&text).inspect_err(|why| tracing::debug!("the output of nft -j is not JSON: {why}")).ok()
        };
        let Some(chains) = list(&["-j", "list", "chains"]).await else { return Vec::new() };
        let listed =
            |ipv6: bool| self.iptables.iter().flatten().any(|(net, programs)| net.addr().is_ipv6() == ipv6 && programs.variant == Variant::Nft);
        let mut found = Vec::new();
        for base in nftables::bases(&chains, [listed(false), listed(true)]) {
            let (family, table, chain) = (base.family.as_str(), base.table.as_str(), base.chain.as_str());
            let judged = |listing: &serde_json::Value| -> Vec<Barrier> {
                network.networks.nets().filter_map(|net| nftables::barrier(&base, listing, &net)).collect()
            };
            if !base.drops {
                let alone = list(&["-j", "list", "chain", family, table, chain]).await;
                if alone.is_none_or(|listing| judged(&listing).is_empty()) {
                    continue;
                }
                // A chain that it jumps to may accept them before.
            }
            found.extend(list(&["-j", "list", "table", family, table]).await.iter().flat_map(judged));
        }
        found
    }
}
