//! Runs the plugin: reads the environment and standard input, prints the result, and gives the exit code.

use crate::call::Call;
use crate::delegate::Programs;
use crate::error::{CniError, IO_FAILURE};
use crate::verbs::{self, Context};
use crate::version;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

/// How long ADD waits for subnet.env, so that it does not fail for a pod on a starting node. Container
/// runtimes wait several minutes for a plugin.
const SUBNET_ENV_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest network configuration, in bytes. For GC, it lists the attachments of all pods on the node.
const LIMIT: u64 = 16 * 1024 * 1024;

/// Executes the call in this process's environment and standard input.
pub fn program() -> ExitCode {
    let command =
        std::env::var_os("CNI_COMMAND").unwrap_or_default().to_string_lossy().into_owned();
    match command.as_str() {
        "" => about(),
        "VERSION" => print(version::answer().as_bytes(), ExitCode::SUCCESS),
        command => {
            let mut cni_version = version::NEWEST.to_owned();
            match run(command, &mut cni_version) {
                Ok(output) => print(&output, ExitCode::SUCCESS),
                Err(error) => print(error.json(&cni_version).as_bytes(), ExitCode::FAILURE),
            }
        }
    }
}

/// Sets `cni_version` to that of the configuration if the plugin supports it.
fn run(command: &str, cni_version: &mut String) -> Result<Vec<u8>, CniError> {
    let call = Call::read(command, |name| std::env::var_os(name), stdin)?;
    if version::supported(&call.conf.cni_version).is_ok() {
        version::of(&call.conf.cni_version).clone_into(cni_version);
    }
    let programs = Programs::new(&std::env::var_os("CNI_PATH").unwrap_or_default());
    verbs::run(&call, Context { delegate: &programs, patience: SUBNET_ENV_TIMEOUT })
}

fn stdin() -> Result<Vec<u8>, CniError> {
    let mut text = Vec::new();
    io::stdin()
        .take(LIMIT)
        .read_to_end(&mut text)
        .map_err(|why| CniError::new(IO_FAILURE, format!("reading from stdin: {why}")))?;
    Ok(text)
}

/// Prints the plugin's version and the supported CNI versions on standard error, for a call without
/// `CNI_COMMAND`.
fn about() -> ExitCode {
    let (version, os, arch) =
        (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
    let supported = version::SUPPORTED.join(", ");
    // There is no other output to report a failure to.
    let _ = writeln!(
        io::stderr(),
        "CNI Plugin flannel version {version} ({os}/{arch}), flannel-rs\nCNI protocol versions supported: {supported}"
    );
    ExitCode::SUCCESS
}

fn print(output: &[u8], code: ExitCode) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(output).and_then(|()| stdout.flush()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}
