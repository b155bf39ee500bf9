//! Which daemon is meant: by its subnet.env.

use std::path::PathBuf;

/// Where the daemon puts subnet.env unless it is told otherwise.
pub(crate) const SUBNET_FILE: &str = "/run/flannel/subnet.env";

/// The daemon that is meant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Place {
    /// The subnet.env of flanneld: its socket and last words lie beside it.
    #[arg(long, value_name = "FILE", default_value = SUBNET_FILE, env = "FLANNELD_SUBNET_FILE")]
    pub subnet_file: PathBuf,
}
