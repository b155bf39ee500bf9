//! `-o`: for people or for programs.

use anyhow::Result;
use serde::Serialize;

use crate::out;

/// The form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Prints a document for programs.
///
/// # Errors
/// It cannot be written as JSON.
pub fn print(document: &impl Serialize) -> Result<()> {
    out::document(&serde_json::to_string_pretty(document)?);
    Ok(())
}
