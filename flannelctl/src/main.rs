//! `flannelctl`, the operator's command: one module for each subcommand, with its `Args` and its `run`.

#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "other hosts write the store's texts, so `out` makes the texts printable"
)]

mod ask;
mod cleanup;
mod columns;
mod completion;
mod dashboard;
mod doctor;
mod form;
mod kubernetes;
mod lab;
mod leases;
mod peers;
mod place;
mod probe;
mod release;
mod remote;
mod reserve;
mod routes;
mod status;
mod store;
mod support_bundle;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use terminal::out;

/// Inspects a flannel network, removes its leftover objects, or builds a network for a trial.
#[derive(Debug, Parser)]
#[command(name = "flannelctl", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows this node: subnet, address, store, kernel, rules, peers and problems.
    Status(status::Args),
    /// Lists the other nodes, and whether packets reach them.
    Peers(peers::Args),
    /// Compares desired and actual kernel state and lists conflicting objects.
    Routes(routes::Args),
    /// Traces the path to a peer, pod or TCP port and shows where the path breaks.
    Probe(probe::Args),
    /// Lists the leases in the store, their holders and problems.
    Leases(leases::Args),
    /// Gives a node a fixed subnet, or makes a lease permanent.
    Reserve(reserve::Args),
    /// Frees the lease of a node that is gone.
    Release(release::Args),
    /// Removes objects that flannel-rs or Go flannel left on this node.
    Cleanup(cleanup::Args),
    /// Diagnoses this node or all nodes and prints the commands that fix problems. Works without a running daemon.
    Doctor(doctor::Args),
    /// Opens this node's status page in a browser, or prints how to reach it.
    Dashboard(dashboard::Args),
    /// Collects diagnostics into one archive. Secrets are redacted.
    SupportBundle(support_bundle::Args),
    /// Builds hosts in network namespaces on this machine and demonstrates flannel.
    Lab(terminal::lab::Args),
    /// Prints a shell's completions for flanneld and flannelctl.
    Completion(completion::Args),
    /// Writes the manual pages of flanneld and flannelctl into a directory.
    Man(completion::ManArgs),
}

/// Maximum width of help texts in columns, as of a standard terminal.
const WIDTH: usize = 80;

fn command() -> clap::Command {
    Cli::command().max_term_width(WIDTH).mut_subcommands(options::adapt_flags)
}

fn main() -> ExitCode {
    // Only the help of the first command names the variables.
    let cli = match command()
        .try_get_matches()
        .and_then(|_| {
            command()
                .mut_subcommands(|command| {
                    options::apply_variables(command, &|name| std::env::var_os(name))
                })
                .try_get_matches()
        })
        .and_then(|matches| Cli::from_arg_matches(&matches))
    {
        Ok(cli) => cli,
        Err(error) => return complain_of_usage(&error),
    };
    let mut code = ExitCode::SUCCESS;
    let outcome = match cli.command {
        Command::Status(args) => status::run(&args).map(|found| code = found),
        Command::Peers(args) => peers::run(&args).map(|found| code = found),
        Command::Routes(args) => routes::run(&args).map(|found| code = found),
        Command::Probe(args) => probe::run(&args).map(|found| code = found),
        Command::Leases(args) => leases::run(&args),
        Command::Reserve(args) => reserve::run(&args),
        Command::Release(args) => release::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Doctor(args) => doctor::run(&args).map(|found| code = found),
        Command::Dashboard(args) => dashboard::run(&args).map(|found| code = found),
        Command::SupportBundle(args) => support_bundle::run(&args),
        Command::Lab(_) => lab::run(),
        Command::Completion(args) => completion::run(&args, &command()),
        Command::Man(args) => completion::manual(&args, &command()),
    };
    match outcome.and_then(|()| out::end()) {
        Ok(()) => code,
        Err(error) => {
            out::complain(format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Help or version in colours, an error in printable form, because the command line may contain any
/// characters.
fn complain_of_usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        out::note(error.render().to_string().trim_end());
    } else {
        // A closed pipe (`--help | head`) is not an error.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_line_passes_claps_checks() {
        super::command().debug_assert();
    }

    #[test]
    fn help_fits_into_80_columns() {
        let mut command = super::command();
        command.build();
        let mut all = vec![command.clone()];
        all.extend(command.get_subcommands().cloned());
        assert!(all.len() > 5, "with the subcommands, help among them");
        for mut command in all {
            for text in [command.render_help().to_string(), command.render_long_help().to_string()]
            {
                for line in text.lines() {
                    assert!(line.chars().count() <= 80, "{} --help: {line}", command.get_name());
                }
            }
        }
    }
}
