//! The option `-o`: text for people or JSON for programs.

use anyhow::Result;
use serde::Serialize;

use terminal::out;

/// The form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Prints a document as JSON.
///
/// # Errors
/// The document cannot be written as JSON.
pub(crate) fn print(document: &impl Serialize) -> Result<()> {
    out::document(&serde_json::to_string_pretty(document)?);
    Ok(())
}
