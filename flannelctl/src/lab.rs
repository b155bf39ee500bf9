//! `flannelctl lab`: a network of hosts on this machine, from nothing to traffic.

mod build;
mod checks;
mod interrupt;
mod key;
mod kube;
mod plan;
mod show;
mod traffic;

use anyhow::{Result, bail};
use types::Family;

use crate::lab::build::Network;
use crate::lab::plan::{Backend, Plan, StoreKind};
use crate::out;
use crate::rights;
use crate::screen::Screen;

/// The options of the demonstration.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Backend that carries packets between the hosts.
    #[arg(long, value_enum, default_value_t = Backend::Vxlan)]
    backend: Backend,
    /// Number of hosts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=20))]
    hosts: u8,
    /// Where to keep leases: files in a directory, or etcd on a host of its own.
    #[arg(long, value_enum, default_value_t = StoreKind::Dir)]
    store: StoreKind,
    /// Also give the pods IPv6 addresses.
    #[arg(long)]
    ipv6: bool,
    /// Build the hosts as Vagrant does with VirtualBox: all of them have 10.0.2.15 on their first interface.
    #[arg(long)]
    vagrant: bool,
    /// Seconds of the packet stream during which a daemon is killed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Leave everything running for inspection.
    #[arg(long)]
    keep: bool,
    /// Only remove kept labs and the remains of killed ones.
    #[arg(long, conflicts_with = "keep")]
    remove: bool,
    #[command(flatten)]
    kube: kube::KubeArgs,
}

/// Builds the lab, shows it at work and removes it.
pub fn run(args: &Args) -> Result<()> {
    rights::root("build hosts in network namespaces")?;
    if args.remove {
        out::say(format!("removed {} lab(s)", lab::remove_ended()?));
        return Ok(());
    }
    interrupt::remove_labs_on_signals()?;
    demonstrate(args).map_err(interrupt::give_way)
}

fn demonstrate(args: &Args) -> Result<()> {
    let screen = Screen::open();
    if args.kube.kube {
        let (images, manifest) = (&args.kube.images, &args.kube.manifest);
        return kube::demonstrate(
            &kube::Plan {
                nodes: args.hosts,
                vagrant: args.vagrant,
                images,
                manifest,
                keep: args.keep,
            },
            screen,
        );
    }
    let families = if args.ipv6 {
        &Family::ALL[..]
    } else {
        &[Family::V4]
    };
    let plan = Plan {
        backend: args.backend,
        hosts: args.hosts,
        store: args.store,
        families,
        vagrant: args.vagrant,
    };
    screen.heading(plan.title());
    screen.step("requirements of the lab", || {
        checks::require(&plan).map(|()| ((), String::new()))
    })?;
    let mut network = Network::build(&plan, screen)?;
    let pods = network.pods(screen)?;
    let complete = if plan.backend == Backend::Alloc {
        screen.say("  alloc only leases subnets: pods of different hosts do not reach each other");
        true
    } else {
        traffic::demonstrate(&mut network, &pods, args.seconds, screen)?
    };
    show::store(&network, screen)?;
    show::kernel(&network, &plan, screen)?;
    if args.keep {
        network.lab.keep()?;
    }
    show::hint(&network, &pods, args.keep, screen)?;
    if !complete {
        bail!(
            "not every pod reaches every other; the last lines of the daemons' logs:\n{}",
            network.lab.logs()
        );
    }
    Ok(())
}
