//! Access to the output of a program.

use std::process::Output;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Returns a program's standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns a program's standard error output as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a program's standard output followed by its standard error output.
pub fn texts(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// Returns a program's exit status and whole output, for a failure message.
pub fn outcome(output: &Output) -> String {
    format!(
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        stdout(output).trim_end(),
        stderr(output).trim_end()
    )
}

/// Parses the standard output as a JSON document. Ignores the program's exit code.
///
/// # Errors
/// Returns an error with all output if the standard output is not JSON.
pub fn json(output: &Output) -> Result<Value> {
    serde_json::from_slice(&output.stdout).with_context(|| outcome(output))
}

/// Returns the standard output of a program that succeeded.
///
/// # Errors
/// Returns an error with the program's whole output if its exit code is not 0.
pub fn succeeded(command: &str, output: &Output) -> Result<String> {
    if !output.status.success() {
        bail!("{command}: {}: {}", output.status, texts(output).trim());
    }
    Ok(stdout(output))
}
