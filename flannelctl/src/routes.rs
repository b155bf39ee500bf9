//! `flannelctl routes`: compares the desired with the actual kernel state of this node, and lists conflicting objects.

mod text;

use std::process::ExitCode;

use anyhow::Result;
use node_api::routes::Routes;

use crate::ask;
use crate::form::WatchArgs;

/// Options of `flannelctl routes`: scope and format of the comparison.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Lists every object. Without this flag, flannelctl prints only the number of routes to this node's pods.
    /// If more than 30 objects are in sync, flannelctl prints only their number without this flag.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    watch: WatchArgs,
}

/// An object or the traffic rules that are not in sync, or another program's object that conflicts with flannel's, are
/// a fault.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    args.watch.run(
        |subnet_file| Ok(ask::routes(subnet_file)?),
        |routes, wide, screen| text::text(routes, args.all || wide, screen),
        Routes::is_broken,
    )
}
