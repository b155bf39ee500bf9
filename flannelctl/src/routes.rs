//! `flannelctl routes`: compares the desired with the actual kernel state of this node, and lists conflicting objects.

mod text;

use std::process::ExitCode;

use anyhow::Result;

use crate::ask;
use crate::form::{self, Form};
use crate::place::Place;
use crate::remote::RemoteFlags;
use crate::status::BROKEN;

/// Options of `flannelctl routes`: scope and format of the comparison.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Lists every object. Without this flag, flannelctl prints only the number of routes to this node's pods.
    /// If more than 30 objects are in sync, flannelctl prints only their number without this flag.
    #[arg(long)]
    all: bool,
    /// Repeats the output every two seconds, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    remote: RemoteFlags,
    #[command(flatten)]
    place: Place,
}

/// Exits with [`BROKEN`] if an object or the traffic rules are not in sync, or if another program's object
/// conflicts with flannel's.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(code) = args.remote.run()? {
        return Ok(code);
    }
    let routes = form::watched(
        args.watch,
        args.output,
        || Ok(ask::routes(&args.place.subnet_file)?),
        |routes, wide, screen| text::text(routes, args.all || wide, screen),
    )?;
    Ok(if routes.is_broken() { ExitCode::from(BROKEN) } else { ExitCode::SUCCESS })
}
