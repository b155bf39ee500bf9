//! `flannelctl probe`: traces the path to a peer, a pod or a port step by step, and shows where the path ends.

mod port;
mod text;

use std::process::ExitCode;

use anyhow::Result;
use node_api::Probe;
use node_api::probe::Step;

use crate::ask;
use crate::form::{ShowArgs, exit_code};
use terminal::out;
use terminal::screen::Screen;

/// Options of `flannelctl probe`: the target, and the output format.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A peer (name, subnet or address), a pod's address, or a TCP port of any host or Service.
    #[arg(value_name = "PEER|POD-IP|HOST:PORT")]
    peer: String,
    #[command(flatten)]
    show: ShowArgs,
}

/// It is a fault if the path ends before the target.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let ShowArgs { output, remote, place } = &args.show;
    if let Some(code) = remote.run()? {
        return Ok(code);
    }
    let screen = Screen::open();
    let probe = if let Some(port) = port::parse(&args.peer) {
        // Each step may take seconds, so it is printed at once.
        let early = |step: &Step| {
            if output.is_text() {
                screen.print(text::early(step, screen));
            }
        };
        let probe = port::probe(&port, &place.subnet_file, early)?;
        output.print(&probe, screen, |probe, _| text::end(probe, screen))?;
        probe
    } else {
        let probe = asked(args, screen)?;
        output.print(&probe, screen, |probe, _| text::text(probe, screen))?;
        probe
    };
    Ok(exit_code(probe.ends_at.is_some()))
}

/// Shows the target on a terminal until the daemon responds.
fn asked(args: &Args, screen: Screen) -> Result<Probe> {
    let waits = args.show.output.is_text() && screen.is_terminal();
    if waits {
        let dots = if screen.has_signs() { "…" } else { "..." };
        out::begin(format!("probing {} {dots}", args.peer));
    }
    let probe = ask::probe(&args.show.place.subnet_file, &args.peer);
    if waits {
        out::back();
    }
    Ok(probe?)
}
