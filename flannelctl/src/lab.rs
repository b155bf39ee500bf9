//! `flannelctl lab`: runs flannel-lab, which builds hosts, stores and clusters. It is a separate program
//! because operators do not need it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use terminal::rights;

const PROGRAM: &str = "flannel-lab";

/// Replaces this process with flannel-lab, and passes on the options, which clap has already checked.
pub(crate) fn run() -> Result<()> {
    rights::root("build hosts in network namespaces")?;
    // Skips the name of this program and that of the subcommand.
    let options: Vec<OsString> = std::env::args_os().skip(2).collect();
    let own = std::env::current_exe().context("cannot find flannelctl's folder")?;
    let sibling = own.with_file_name(PROGRAM);
    let program = if sibling.is_file() { sibling } else { PathBuf::from(PROGRAM) };
    let error = Command::new(&program).args(options).exec();
    if error.kind() == ErrorKind::NotFound {
        bail!(
            "cannot find {PROGRAM} in {} or in PATH; install it next to flannelctl with `make install`, or build it with `cargo build -p {PROGRAM}`",
            own.parent().unwrap_or(&own).display()
        );
    }
    Err(error).with_context(|| format!("running {}", program.display()))
}
