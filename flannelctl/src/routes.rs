//! `flannelctl routes`: what flanneld wants in this node's kernel, whether it is there, and what others have in its way.

mod text;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::ask;
use crate::form::{self, Form};
use crate::place::Place;
use crate::status::BROKEN;
use console::out;
use console::screen::Screen;

/// The pause between two looks: each reads the kernel.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Which objects, how often, and in which form.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// List everything: in large clusters, what is as wanted is only counted otherwise, as are the routes to this node's pods.
    #[arg(long)]
    all: bool,
    /// Look again every two seconds, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// The form of the output.
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    place: Place,
}

/// Prints the comparison, once or again and again.
///
/// # Errors
/// The daemon cannot be asked, or cannot read the kernel.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let screen = Screen::open();
    loop {
        let routes = ask::routes(&args.place.subnet_file)?;
        match args.output {
            Form::Json => form::print(&routes)?,
            Form::Text => {
                if args.watch && screen.is_terminal() {
                    out::clear();
                }
                screen.say(text::text(&routes, args.all, screen));
            }
        }
        if !args.watch || out::is_closed() {
            return Ok(if routes.is_broken() {
                ExitCode::from(BROKEN)
            } else {
                ExitCode::SUCCESS
            });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
