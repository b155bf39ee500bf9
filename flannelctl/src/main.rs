//! `flannelctl`, what an operator types: one module for each subcommand, with its `Args` and its `run`.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "the store's texts are foreign: `out` makes them printable")]

mod cleanup;
mod lab;
mod leases;
mod out;
mod release;
mod screen;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Look at a flannel network, mend it, or build one to play with.
#[derive(Debug, Parser)]
#[command(name = "flannelctl", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the leases in the store: who holds which subnet, and what is odd about it.
    Leases(leases::Args),
    /// Free the lease of a node that is gone.
    Release(release::Args),
    /// Remove from this node what flannel (this one or Go's) left in the kernel, in the firewalls and in its files.
    Cleanup(cleanup::Args),
    /// Build hosts in network namespaces on this machine, join them by flannel, and show it at work.
    Lab(lab::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return complain_of_usage(&error),
    };
    let long = matches!(cli.command, Command::Lab(_));
    let outcome = match cli.command {
        Command::Leases(args) => leases::run(&args),
        Command::Release(args) => release::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Lab(args) => lab::run(&args),
    };
    match outcome.and_then(|()| out::end()) {
        Ok(()) => ExitCode::SUCCESS,
        // With the ends of logs.
        Err(error) if long => {
            out::complain_at_length(error);
            ExitCode::FAILURE
        }
        Err(error) => {
            out::complain(format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Help and version, with their colours; or what is wrong with the command line, which may hold anything.
fn complain_of_usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        out::note(error.render().to_string().trim_end());
    } else {
        // A closed pipe (`--help | head`) is not worth an error.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
