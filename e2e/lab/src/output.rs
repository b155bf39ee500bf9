//! Access to the output of a program.

use std::process::Output;

use anyhow::{Context, Result, bail};
use serde_json::Value;

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output, then standard error.
pub fn texts(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// Exit status and whole output, for a failure message.
pub fn outcome(output: &Output) -> String {
    format!(
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        stdout(output).trim_end(),
        stderr(output).trim_end()
    )
}

/// Ignores the exit code. The error contains all output.
pub fn json(output: &Output) -> Result<Value> {
    serde_json::from_slice(&output.stdout).with_context(|| outcome(output))
}

/// Fails if the exit code is not 0; the error contains the whole output.
pub fn succeeded(command: &str, output: &Output) -> Result<String> {
    if !output.status.success() {
        bail!("{command}: {}: {}", output.status, texts(output).trim());
    }
    Ok(stdout(output))
}
