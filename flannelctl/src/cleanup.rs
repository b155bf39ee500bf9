//! `flannelctl cleanup`: removes only objects that flannel-rs or Go flannel left on this node.

mod files;
mod report;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use backends::profiles;
use ipnet::IpNet;
use netstate::cleanup::{self, Evidence, FlannelNetwork, decide_removals};
use netstate::kernel::Kernel;
use netstate::netlink::NetlinkKernel;
use run_dir::instance;
use run_dir::instance::running::OtherInstances;
use run_dir::subnet_env;
use subnet_lease::NetworkConfig;

use crate::place::SUBNET_FILE;
use report::Report;
use terminal::out;
use terminal::rights;

/// Options of `flannelctl cleanup`: the objects to remove, and the safeguards.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only lists the objects that cleanup would remove.
    #[arg(long)]
    dry_run: bool,
    /// Proceeds even while flanneld runs on this node and restores the removed objects.
    #[arg(long)]
    force: bool,
    /// A former flannel network that no subnet.env names; cleanup removes the routes of Go flannel's host-gw inside this network. Repeatable.
    #[arg(long, value_name = "CIDR")]
    network: Vec<IpNet>,
    /// The subnet.env of flanneld if it is not /run/flannel/subnet.env; cleanup also removes this file.
    #[arg(long, value_name = "FILE", env = "FLANNELD_SUBNET_FILE")]
    subnet_file: Option<PathBuf>,
    /// The protocol number of flannel's routes, equal to flanneld's --route-protocol.
    #[arg(long, value_name = "NUMBER", env = "FLANNELD_ROUTE_PROTOCOL", default_value_t = 241, value_parser = clap::value_parser!(u8).range(5..))]
    route_protocol: u8,
    /// Also removes the CNI plugin's bridge cni0 and the plugin's files: pods on this node lose their network.
    #[arg(long)]
    cni: bool,
    /// Directory of the CNI plugin's files.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni/flannel")]
    cni_dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    rights::network("find and remove flannel's leftovers")?;
    traffic_rules::programs::search_sbin();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    runtime.block_on(clean(args))
}

async fn clean(args: &Args) -> Result<()> {
    let subnet_files = subnet_files(args);
    let networks = networks(args, &subnet_files)?;
    // A daemon of another network keeps its resources. Without evidence of a network, every daemon is assumed to serve this one.
    let targets: BTreeSet<IpNet> = networks.iter().map(|known| known.network).collect();
    let instances = if targets.is_empty() {
        OtherInstances::default()
    } else {
        instance::running::others(&targets)
    };
    require_no_daemon(args, &subnet_files, &instances)?;
    if networks.is_empty() {
        out::complain(
            "no subnet.env names flannel's network, so cleanup does not search for routes of Go flannel's host-gw; name the network with --network",
        );
    }
    let others =
        cleanup::OtherDaemons { networks: instances.networks.clone(), devices: instances.devices };
    let (backends, protocol) = (profiles(), args.route_protocol);
    let evidence = Evidence { backends, networks, protocol, bridge: args.cni, others };
    let mut report = Report { dry_run: args.dry_run, ..Report::default() };
    kernel(&evidence, &mut report).await;
    let others = traffic_rules::rules::OtherDaemons {
        own: targets,
        served: instances.networks,
        unknown: false,
        slots: instances.slots,
    };
    let rules = traffic_rules::clear_except(&others, args.dry_run).await;
    rules.removed.iter().for_each(|what| report.removed(what));
    rules.errors.into_iter().for_each(|why| report.complaint(why));
    for file in &subnet_files {
        files::subnet_env(file, &mut report);
    }
    if args.cni {
        files::cni(&args.cni_dir, &mut report);
    }
    report.end()
}

/// Reports daemons that serve other networks. Fails if one serves the network of this cleanup, unless
/// `--force` or `--dry-run` is set.
fn require_no_daemon(
    args: &Args,
    subnet_files: &[PathBuf],
    instances: &OtherInstances,
) -> Result<()> {
    let mut running: Vec<String> =
        subnet_files.iter().flat_map(|file| instance::running::running(file)).collect();
    running.sort();
    running.dedup();
    running.retain(|who| !instances.who.contains(who));
    for who in &instances.who {
        let served: Vec<String> = instances.networks.iter().map(IpNet::to_string).collect();
        out::complain(format!(
            "flanneld serves {} on this host ({who}): cleanup keeps flanneld's resources",
            served.join(", ")
        ));
    }
    if !running.is_empty() {
        let who = running.join("; ");
        if args.dry_run {
            out::complain(format!(
                "flanneld runs here ({who}): without --dry-run, cleanup refuses to run; stop flanneld first"
            ));
        } else if !args.force {
            bail!(
                "flanneld runs here ({who}) and would restore everything; stop flanneld first (systemctl disable --now flanneld), or use --force"
            );
        }
    }
    Ok(())
}

/// The files to read and remove. The default file is left out if the operator names another one and a daemon
/// uses the default.
fn subnet_files(args: &Args) -> Vec<PathBuf> {
    let usual = PathBuf::from(SUBNET_FILE);
    let named = args
        .subnet_file
        .iter()
        .filter(|file| !file.as_os_str().is_empty() && **file != usual)
        .cloned();
    let mut files: Vec<PathBuf> = named.collect();
    if files.is_empty() || instance::running::holder(&usual).is_none() {
        files.insert(0, usual);
    }
    files
}

/// From the subnet.env files and from `--network`.
fn networks(args: &Args, subnet_files: &[PathBuf]) -> Result<Vec<FlannelNetwork>> {
    let mut known = Vec::new();
    for file in subnet_files {
        let previous = subnet_env::last_served(file);
        let v4 = previous
            .network
            .zip(previous.subnet)
            .map(|(network, own)| (IpNet::V4(network), IpNet::V4(own)));
        let v6 = previous
            .v6_network
            .zip(previous.v6_subnet)
            .map(|(network, own)| (IpNet::V6(network), IpNet::V6(own)));
        known.extend(v4.into_iter().chain(v6).map(|(network, own)| FlannelNetwork {
            network,
            own: Some(own),
            length: own.prefix_len(),
        }));
    }
    for named in &args.network {
        let network = named.trunc();
        // With the whole address space, cleanup would treat every route as flannel's.
        ensure!(
            network.prefix_len() > 0,
            "--network={named} contains every address; give a network such as 10.244.0.0/16"
        );
        if !known.iter().any(|known| known.network == network) {
            known.push(FlannelNetwork { network, own: None, length: usual_length(&network)? });
        }
    }
    Ok(known)
}

/// The daemon's default prefix length for a node's subnet in a network.
fn usual_length(network: &IpNet) -> Result<u8> {
    let text = match network {
        IpNet::V4(_) => format!(r#"{{"Network":"{network}"}}"#),
        IpNet::V6(_) => {
            format!(r#"{{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"{network}"}}"#)
        }
    };
    let config = NetworkConfig::parse(&text).with_context(|| format!("--network={network}"))?;
    let pool = if network.addr().is_ipv4() { config.pools.v4() } else { config.pools.v6() };
    pool.context("the network has no pool of subnets").map(|pool| pool.len)
}

/// Removes flannel's routes and devices from the kernel.
async fn kernel(evidence: &Evidence, report: &mut Report) {
    let mut kernel = match NetlinkKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => return report.complaint(format!("cannot list devices and routes: {error}")),
    };
    let decisions = match kernel.inventory() {
        Ok(inventory) => decide_removals(&inventory, evidence),
        Err(error) => return report.complaint(format!("cannot list devices and routes: {error}")),
    };
    for (op, what) in decisions.remove {
        let failed = if report.dry_run { Vec::new() } else { kernel.apply(&[op]).await };
        match failed.into_iter().next() {
            None => report.removed(&what),
            Some(error) => report.complaint(format!("cannot remove {what}: {}", error.why)),
        }
    }
    for kept in decisions.keep {
        report.kept(&format!("{}: {}; manually: {}", kept.what, kept.why, kept.command));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_prefix_length_is_the_daemons_default() {
        for (network, length) in
            [("10.244.0.0/16", 24), ("10.244.0.0/23", 25), ("fd10:244::/48", 64)]
        {
            assert_eq!(usual_length(&network.parse().unwrap()).unwrap(), length, "{network}");
        }
    }

    #[test]
    fn networks_come_from_the_file_before_the_command_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("subnet.env");
        std::fs::write(
            &file,
            "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.7.1/26\nFLANNEL_MTU=1450\n",
        )
        .unwrap();
        let args = |network: &[&str]| Args {
            dry_run: true,
            force: false,
            network: network.iter().map(|net| net.parse().unwrap()).collect(),
            subnet_file: None,
            route_protocol: 241,
            cni: false,
            cni_dir: PathBuf::new(),
        };
        let found = networks(&args(&["10.5.3.4/16", "fd10:244::/48"]), &[file]).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|net| (net.network.to_string(), net.own.map(|own| own.to_string()), net.length))
            .collect();
        assert_eq!(
            found,
            [
                ("10.5.0.0/16".to_owned(), Some("10.5.7.0/26".to_owned()), 26),
                ("fd10:244::/48".to_owned(), None, 64)
            ]
        );
        assert!(networks(&args(&["0.0.0.0/0"]), &[]).is_err());
    }
}
