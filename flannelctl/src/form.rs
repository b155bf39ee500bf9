//! What the commands that show a document share: `-o` (text for people, JSON or YAML for programs), `--watch`, the node, and the exit code.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use terminal::out;
use terminal::screen::Screen;

use crate::place::Place;
use crate::remote::RemoteFlags;

/// Between two outputs of `--watch`.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// For a fault that an operator has to fix.
const BROKEN: u8 = 3;

pub(crate) fn exit_code(is_broken: bool) -> ExitCode {
    if is_broken { ExitCode::from(BROKEN) } else { ExitCode::SUCCESS }
}

/// Options of a command that shows a document about a node.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Form,
    #[command(flatten)]
    pub remote: RemoteFlags,
    #[command(flatten)]
    pub place: Place,
}

/// Options of a command that can repeat its output.
#[derive(Debug, clap::Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    show: ShowArgs,
    /// Repeats the output every two seconds, until Ctrl-C.
    // In the help, the flag has the place of the command's first flag.
    #[arg(long, display_order = 0)]
    watch: bool,
}

impl WatchArgs {
    /// Shows the document that `read` makes from the path of subnet.env, or runs the command in the pod of another node.
    pub(crate) fn run<D: Serialize>(
        &self,
        read: impl Fn(&Path) -> Result<D>,
        text: impl Fn(&D, bool, Screen) -> String,
        is_broken: impl Fn(&D) -> bool,
    ) -> Result<ExitCode> {
        let ShowArgs { output, remote, place } = &self.show;
        if let Some(code) = remote.run()? {
            return Ok(code);
        }
        let document = watched(self.watch, *output, || read(&place.subnet_file), text)?;
        Ok(exit_code(is_broken(&document)))
    }
}

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// For people.
    #[default]
    Text,
    /// Text for people, with all known details.
    Wide,
    /// For programs.
    Json,
    /// The JSON document as YAML.
    Yaml,
}

impl Form {
    /// `text` renders the document; its second parameter asks for all known details.
    pub(crate) fn print<D: Serialize>(
        self,
        document: &D,
        screen: Screen,
        text: impl FnOnce(&D, bool) -> String,
    ) -> Result<()> {
        match self {
            Form::Text => screen.print(text(document, false)),
            Form::Wide => screen.print(text(document, true)),
            Form::Json => print(document)?,
            Form::Yaml => out::document(serde_saphyr::to_string(document)?.trim_end()),
        }
        Ok(())
    }

    pub(crate) fn is_text(self) -> bool {
        matches!(self, Form::Text | Form::Wide)
    }
}

pub(crate) fn print(document: &impl Serialize) -> Result<()> {
    out::document(&serde_json::to_string_pretty(document)?);
    Ok(())
}

/// Prints a document once, or with `--watch` until standard output is closed, and returns the last one.
///
/// With `--watch`, an error after the first output is printed and does not end the command: a restarting
/// daemon does not respond for a while.
pub(crate) fn watched<D: Serialize>(
    watch: bool,
    form: Form,
    read: impl Fn() -> Result<D>,
    text: impl Fn(&D, bool, Screen) -> String,
) -> Result<D> {
    let screen = Screen::open();
    let mut last: Option<D> = None;
    loop {
        let document = match read() {
            Ok(document) => document,
            Err(error) => {
                let Some(before) = last.filter(|_| watch) else {
                    return Err(error);
                };
                if out::is_closed() {
                    return Ok(before);
                }
                last = Some(before);
                out::note(format!("flannelctl: {error:#}; retrying"));
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
        };
        if watch && form.is_text() && screen.is_terminal() {
            out::clear();
        }
        form.print(&document, screen, |document, wide| text(document, wide, screen))?;
        if !watch || out::is_closed() {
            return Ok(document);
        }
        last = Some(document);
        std::thread::sleep(POLL_INTERVAL);
    }
}
