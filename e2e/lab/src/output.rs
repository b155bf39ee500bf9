//! Access to the output of a program.

use std::process::Output;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Returns the standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the standard output followed by the standard error.
pub fn texts(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// Returns the exit status and all output, for a failure message.
pub fn outcome(output: &Output) -> String {
    format!(
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        stdout(output).trim_end(),
        stderr(output).trim_end()
    )
}

/// Parses the standard output as a JSON document. Ignores the exit code.
///
/// # Errors
/// Returns an error with all output if the standard output is not JSON.
pub fn json(output: &Output) -> Result<Value> {
    serde_json::from_slice(&output.stdout).with_context(|| outcome(output))
}

/// Returns the standard output of a program that succeeded.
///
/// # Errors
/// Returns an error with all output if the exit code is not 0.
pub fn succeeded(command: &str, output: &Output) -> Result<String> {
    if !output.status.success() {
        bail!("{command}: {}: {}", output.status, texts(output).trim());
    }
    Ok(stdout(output))
}
