//! Collects facts about the host: files below /proc/sys, and the listings of firewall programs.

use super::firewalls::{self, Firewalls};
use super::judge::Facts;
use super::nftables::{self, Barrier};
use super::subject::{Leads, Subject};
use ipnet::IpNet;
use std::net::IpAddr;
use std::path::Path;
use subnet_lease::{LeaseTable, Subnets};
use traffic_rules::programs::{Iptables, Variant, nft_table, run};

/// Limit on the number of peers checked, with one route look-up each.
const PEERS: usize = 32;
const STRICT: i64 = 1;

/// A value below /proc/sys.
fn sysctl(path: &str) -> Option<i64> {
    std::fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?.trim().parse().ok()
}

/// Reads the sysctls.
pub(super) fn sysctls(underlay: &str, own: &Subnets, leases: &LeaseTable, leads: &Leads) -> Facts {
    let all = sysctl("net/ipv4/conf/all/rp_filter").unwrap_or(0);
    // The larger value applies: 2 is loose.
    let strict = |device: &str| sysctl(&format!("net/ipv4/conf/{device}/rp_filter")).unwrap_or(0).max(all) == STRICT;
    let devices = std::fs::read_dir("/proc/sys/net/ipv4/conf").into_iter().flatten().flatten();
    let names = devices.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut strict_tunnels: Vec<String> = names.filter(|name| name.starts_with("flannel") && strict(name)).collect();
    strict_tunnels.sort();
    let mut astray = Vec::new();
    if strict(underlay) {
        let peers = leases.iter().filter(|lease| lease.subnets != *own).filter_map(|lease| lease.attrs.public_ip).map(IpAddr::V4).take(PEERS);
        astray.extend(peers.filter(|ip| !leads(*ip)));
    }
    Facts {
        underlay: underlay.to_owned(),
        ip_forward: sysctl("net/ipv4/ip_forward"),
        v6_forwarding: sysctl("net/ipv6/conf/all/forwarding"),
        accept_ra: sysctl(&format!("net/ipv6/conf/{underlay}/accept_ra")),
        br_netfilter: has_br_netfilter(),
        module: None,
        call_iptables: sysctl("net/bridge/bridge-nf-call-iptables"),
        call_ip6tables: sysctl("net/bridge/bridge-nf-call-ip6tables"),
        strict_tunnels,
        astray,
        firewalls: Firewalls::default(),
    }
}

fn has_br_netfilter() -> bool {
    Path::new("/proc/sys/net/bridge").is_dir()
}

/// The programs that list firewalls.
#[derive(Default)]
pub(super) struct Programs {
    /// Looked for once; `None` before.
    iptables: Option<Vec<(IpNet, Iptables)>>,
}

impl Programs {
    /// Lists the firewalls. A program that is not installed lists nothing.
    pub(super) async fn firewalls(&mut self, subject: &Subject) -> Firewalls {
        let iptables = match self.iptables.take() {
            Some(known) => known,
            None => {
                let mut found = Vec::new();
                for net in subject.networks.nets() {
                    let installed = Iptables::installed(net.addr().is_ipv6()).await.inspect_err(|why| tracing::debug!("{why}"));
                    found.extend(installed.unwrap_or_default().into_iter().map(|(programs, _)| (net, programs)));
                }
                found
            }
        };
        let mut tables = Vec::new();
        for (net, programs) in &iptables {
            match programs.dump().await {
                Ok(saved) => tables.push(firewalls::table(&saved, net, subject.port, &programs.command())),
                Err(why) => tracing::debug!("{why}"),
            }
        }
        self.iptables = Some(iptables);
        let listing = nft_table("inet", "firewalld").await.inspect_err(|why| tracing::debug!("{why}")).ok().flatten();
        let firewalld = listing.map(|listing| firewalls::firewalld(&listing, subject.networks.nets(), subject.port));
        Firewalls { tables, firewalld, barriers: self.barriers(subject).await }
    }

    /// Whether there are rules without change notices.
    pub(super) fn has_silent(&self) -> bool {
        self.iptables.iter().flatten().any(|(_, programs)| programs.variant == Variant::Legacy)
    }

    /// The nftables chains that block pods' packets. Lists whole tables only for chains with policy drop: kube-proxy's table is large.
    async fn barriers(&self, subject: &Subject) -> Vec<Barrier> {
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
            let listing = if base.drops {
                list(&["-j", "list", "table", family, table]).await
            } else {
                list(&["-j", "list", "chain", family, table, chain]).await
            };
            let Some(listing) = listing else { continue };
            found.extend(subject.networks.nets().filter_map(|network| nftables::barrier(&base, &listing, &network)));
        }
        found
    }
}

/// The kernel module br_netfilter. Loading it is tried once each time it is missing.
#[derive(Default)]
pub(super) struct Module {
    tried: bool,
    /// Why it could not be loaded.
    pub complaint: Option<String>,
}

impl Module {
    pub(super) async fn load(&mut self) {
        if has_br_netfilter() {
            *self = Self::default();
        } else if !self.tried {
            self.tried = true;
            match run(Path::new("modprobe"), &["br_netfilter"], None).await {
                Ok(_) => tracing::info!("loaded the kernel module br_netfilter"),
                Err(why) => self.complaint = Some(why.to_string()),
            }
        }
    }
}
