//! Access to the output of a program.

use std::process::Output;

use anyhow::{Context, Result, bail};
use serde_json::Value;

pub fn stdout_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output, then standard error.
pub fn stdout_and_stderr(output: &Output) -> String {
    stdout_text(output) + &stderr_text(output)
}

/// Exit status and whole output, for a failure message.
pub fn describe_outcome(output: &Output) -> String {
    format!(
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        stdout_text(output).trim_end(),
        stderr_text(output).trim_end()
    )
}

/// Ignores the exit code. The error contains all output.
pub fn stdout_json(output: &Output) -> Result<Value> {
    serde_json::from_slice(&output.stdout).with_context(|| describe_outcome(output))
}

/// Fails if the exit code is not 0; the error contains the whole output.
pub fn require_success(command: &str, output: &Output) -> Result<String> {
    if !output.status.success() {
        bail!("{command}: {}: {}", output.status, stdout_and_stderr(output).trim());
    }
    Ok(stdout_text(output))
}
