//! `flannelctl probe`: traces the path to a peer, a pod or a port step by step, and shows where the path ends.

mod port;
mod text;

use std::process::ExitCode;

use anyhow::Result;
use node_api::Probe;
use node_api::probe::Step;

use crate::ask;
use crate::form::Form;
use crate::place::Place;
use crate::remote::RemoteFlags;
use crate::status::BROKEN;
use terminal::out;
use terminal::screen::Screen;

/// Options of `flannelctl probe`: the target, and the output format.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A peer (name, subnet or address), a pod's address, or a TCP port of any host or Service.
    #[arg(value_name = "PEER|POD-IP|HOST:PORT")]
    peer: String,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    remote: RemoteFlags,
    #[command(flatten)]
    place: Place,
}

/// Exits with [`BROKEN`] if the path ends before the target.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(code) = args.remote.run()? {
        return Ok(code);
    }
    let screen = Screen::open();
    let file = &args.place.subnet_file;
    let probe = if let Some(port) = port::parse(&args.peer) {
        // Each step may take seconds, so it is printed at once.
        let early = |step: &Step| {
            if args.output.is_text() {
                screen.print(text::early(step, screen));
            }
        };
        let probe = port::probe(&port, file, early)?;
        args.output.print(&probe, screen, |probe, _| text::end(probe, screen))?;
        probe
    } else {
        let probe = asked(args, screen)?;
        args.output.print(&probe, screen, |probe, _| text::text(probe, screen))?;
        probe
    };
    Ok(if probe.ends_at.is_some() { ExitCode::from(BROKEN) } else { ExitCode::SUCCESS })
}

/// Shows the target on a terminal until the daemon responds.
fn asked(args: &Args, screen: Screen) -> Result<Probe> {
    let waits = args.output.is_text() && screen.is_terminal();
    if waits {
        let dots = if screen.has_signs() { "…" } else { "..." };
        out::begin(format!("probing {} {dots}", args.peer));
    }
    let probe = ask::probe(&args.place.subnet_file, &args.peer);
    if waits {
        out::back();
    }
    Ok(probe?)
}
