//! Builds a network of hosts on this machine and sends traffic through it, for `flannelctl lab`.

mod build;
mod checks;
mod interrupt;
mod key;
mod kube;
mod page;
mod plan;
mod show;
mod traffic;
mod trap;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use terminal::lab::{Args, Backend};
use terminal::screen::Screen;
use terminal::{out, rights};
use types::Family;

use crate::build::Network;
use crate::plan::Plan;

/// Builds hosts in network namespaces on this machine and demonstrates flannel.
#[derive(Debug, Parser)]
#[command(name = "flannel-lab", version, max_term_width = 80)]
struct Cli {
    #[command(flatten)]
    args: Args,
    /// Forwards connections to the status page in this network namespace. Standard input is the socket on which the program accepts the connections.
    /// The program ends after the removal of the namespace.
    #[arg(long, hide = true)]
    forward_page: Option<String>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(netns) = &cli.forward_page {
        page::forward_page_until_netns_removed(netns);
        return ExitCode::SUCCESS;
    }
    match run_lab_command(&cli.args).and_then(|()| out::end()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The error contains the ends of logs, which need several lines.
            out::complain_at_length(error);
            ExitCode::FAILURE
        }
    }
}

/// Removes the lab at the end.
fn run_lab_command(args: &Args) -> Result<()> {
    rights::root("build hosts in network namespaces")?;
    if args.remove {
        out::print(format!("removed {} lab(s)", lab::remove_labs_of_ended_processes()?));
        return Ok(());
    }
    interrupt::remove_labs_on_signals()?;
    demonstrate_flannel(args).map_err(interrupt::wait_for_exit_if_interrupted)
}

fn demonstrate_flannel(args: &Args) -> Result<()> {
    let screen = Screen::open();
    if args.kube.kube {
        let (images, manifest) = (&args.kube.images, &args.kube.manifest);
        return kube::demonstrate_cluster(
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
    let families = if args.ipv6 { &Family::ALL[..] } else { &[Family::V4] };
    let plan = Plan {
        backend: args.backend,
        hosts: args.hosts,
        store: args.store,
        families,
        vagrant: args.vagrant,
    };
    screen.heading(plan.title());
    screen.step("requirements of the lab", || {
        checks::check_lab_requirements(&plan).map(|()| ((), String::new()))
    })?;
    let mut network = Network::build_and_start_daemons(&plan, screen)?;
    let pods = network.create_pod_per_host(screen)?;
    if args.status {
        return page::demonstrate_page_with_broken_host(&network, screen);
    }
    let complete = if plan.backend == Backend::Alloc {
        screen
            .print("  alloc only leases subnets: pods of different hosts do not reach each other");
        true
    } else {
        traffic::demonstrate_traffic_and_restart(&mut network, &pods, args.seconds, screen)?
    };
    show::print_stored_leases(&network, screen)?;
    show::print_first_host_kernel_state(&network, &plan, screen)?;
    if args.keep {
        network.lab.keep()?;
    }
    let first = network.hosts.first().filter(|_| args.keep);
    let page = first.map(|host| page::spawn_page_forwarder(host.netns())).transpose()?;
    show::print_suggested_commands(&network, &pods, page, screen)?;
    if !complete {
        bail!(
            "not every pod reaches every other; the last lines of the daemons' logs:\n{}",
            network.lab.log_tails()
        );
    }
    Ok(())
}
