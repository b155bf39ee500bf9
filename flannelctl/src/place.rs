//! The option that selects a daemon by the path of its subnet.env.

use std::path::PathBuf;

/// The daemon's default of `--subnet-file`.
pub(crate) const SUBNET_FILE: &str = "/run/flannel/subnet.env";

/// The selected daemon.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Place {
    /// The subnet.env of flanneld; flanneld's socket and exit report are in the same folder.
    #[arg(long, value_name = "FILE", default_value = SUBNET_FILE, env = "FLANNELD_SUBNET_FILE")]
    pub subnet_file: PathBuf,
}
