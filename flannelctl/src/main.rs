//! `flannelctl`, what an operator types: one module for each subcommand, with its `Args` and its `run`.

/// As the standard library's, but whoever reads may go (`| head -1`): its own would panic. What else fails is told at the end.
macro_rules! println {
    ($($text:tt)*) => { $crate::screen::out(&format!("{}\n", format_args!($($text)*))) };
}

/// The same without a new line.
macro_rules! print {
    ($($text:tt)*) => { $crate::screen::out(&format!($($text)*)) };
}

/// As the standard library's, without its panic where nobody reads.
macro_rules! eprintln {
    ($($text:tt)*) => { { use std::io::Write as _; let _ = writeln!(std::io::stderr(), $($text)*); } };
}

mod cleanup;
mod lab;
mod leases;
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
    let outcome = match Cli::parse().command {
        Command::Leases(args) => leases::run(&args),
        Command::Release(args) => release::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Lab(args) => lab::run(&args),
    };
    match outcome.and_then(|()| screen::written()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flannelctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
