//! `flannelctl probe`: the path to a peer or a pod, step by step, and where it ends.

mod text;

use std::process::ExitCode;

use anyhow::Result;

use crate::ask;
use crate::form::{self, Form};
use crate::place::Place;
use crate::status::BROKEN;
use terminal::screen::Screen;

/// Whom, and the form of the output.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A peer by its name, subnet or address, or the address of a pod.
    #[arg(value_name = "PEER|POD-IP")]
    peer: String,
    /// The form of the output.
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    place: Place,
}

/// Prints the steps of the path. Exits with [`BROKEN`] if it ends before the target.
///
/// # Errors
/// The daemon does not answer, or cannot probe the target.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let probe = ask::probe(&args.place.subnet_file, &args.peer)?;
    match args.output {
        Form::Json => form::print(&probe)?,
        Form::Text => {
            let screen = Screen::open();
            screen.print(text::text(&probe, screen));
        }
    }
    Ok(if probe.ends_at.is_some() {
        ExitCode::from(BROKEN)
    } else {
        ExitCode::SUCCESS
    })
}
