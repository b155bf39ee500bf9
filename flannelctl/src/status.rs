//! `flannelctl status`: summarises this node in about ten lines. Works without a running daemon.

mod text;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use doctor::finding::DaemonState;
use jiff::Timestamp;
use node_api::{STATUS, Status};
use run_dir::exit_report;

use crate::ask::{self, AskError};
use crate::form::WatchArgs;

/// Options of `flannelctl status`: the daemon, and the output format.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    watch: WatchArgs,
}

/// The daemon's state, or the exit report of the last daemon.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    args.watch.run(
        find_out,
        |status, _, screen| text::text(status, Timestamp::now(), screen),
        text::is_broken,
    )
}

fn find_out(file: &Path) -> Result<Status> {
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default();
    let mut status = Status {
        schema: STATUS.to_owned(),
        host,
        daemon: DaemonState::Running,
        trouble: None,
        exit_report: None,
        node: None,
    };
    match ask::node(file, false) {
        Ok(node) => status.node = Some(node),
        Err(
            why @ (AskError::NoSocket(_)
            | AskError::Denied(_)
            | AskError::BadAnswer { .. }
            | AskError::Foreign { .. }
            | AskError::Refused(_)),
        ) => bail!(why),
        Err(why @ AskError::Hangs(..)) => {
            status.daemon = DaemonState::Hanging;
            status.trouble = Some(why.to_string());
        }
        Err(why @ AskError::Stopped(_)) => {
            status.daemon = DaemonState::Stopped;
            match exit_report::read(file) {
                Ok(report) => status.exit_report = report,
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    bail!("{why}; only root may read the exit report of the last daemon")
                }
                // The status can do without an unreadable report.
                Err(_) => {}
            }
            status.trouble = Some(why.to_string());
        }
    }
    Ok(status)
}
