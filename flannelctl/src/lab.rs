//! `flannelctl lab`: runs flannel-lab, which builds hosts, stores and clusters and is not part of an operator's tool.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use terminal::rights;

/// The program that does the work.
const PROGRAM: &str = "flannel-lab";

/// Replaces this process by flannel-lab, with the options that clap has checked here.
pub(crate) fn run() -> Result<()> {
    rights::root("build hosts in network namespaces")?;
    // The program, and the name of the subcommand.
    let options: Vec<OsString> = std::env::args_os().skip(2).collect();
    let own = std::env::current_exe().context("finding flannelctl's folder")?;
    let sibling = own.with_file_name(PROGRAM);
    let program = if sibling.is_file() {
        sibling
    } else {
        PathBuf::from(PROGRAM)
    };
    let error = Command::new(&program).args(options).exec();
    if error.kind() == ErrorKind::NotFound {
        bail!(
            "there is no {PROGRAM} in {} or in PATH: `make install` installs it beside flannelctl, `cargo build -p {PROGRAM}` builds it",
            own.parent().unwrap_or(&own).display()
        );
    }
    Err(error).with_context(|| format!("running {}", program.display()))
}
