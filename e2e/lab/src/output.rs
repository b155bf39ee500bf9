//! What a program printed.

use std::process::Output;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Its standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Its standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Its standard output, followed by its standard error.
pub fn texts(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// Its exit status and all that it printed, for the message of a failure.
pub fn outcome(output: &Output) -> String {
    format!(
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        stdout(output).trim_end(),
        stderr(output).trim_end()
    )
}

/// Its standard output as a JSON document, whatever its exit code.
///
/// # Errors
/// When it is no JSON; the error holds all output.
pub fn json(output: &Output) -> Result<Value> {
    serde_json::from_slice(&output.stdout).with_context(|| outcome(output))
}

/// The standard output of a program that succeeded.
///
/// # Errors
/// When it exited with another code than 0; the error holds all output.
pub fn succeeded(command: &str, output: &Output) -> Result<String> {
    if !output.status.success() {
        bail!("{command}: {}: {}", output.status, texts(output).trim());
    }
    Ok(stdout(output))
}
