//! Runs `flannelctl` on hosts.

use std::process::Output;

use anyhow::Result;

use crate::binaries;
use crate::daemon::flanneld::Flanneld;
use crate::host::Host;
use crate::net::netns::Netns;

impl Host {
    /// Runs in this host's namespace. The exit code does not matter.
    pub fn flannelctl(&self, args: &[&str]) -> Result<Output> {
        run_flannelctl(self.netns(), args)
    }
}

impl Flanneld {
    /// Runs in this daemon's namespace, with its `--subnet-file`. The exit code does not matter.
    pub fn flannelctl(&self, args: &[&str]) -> Result<Output> {
        let file = format!("--subnet-file={}", self.subnet_file().display());
        run_flannelctl(&self.netns, &[args, &[file.as_str()]].concat())
    }
}

fn run_flannelctl(netns: &Netns, args: &[&str]) -> Result<Output> {
    netns.output(&binaries::flannel_binary("flannelctl")?.to_string_lossy(), args)
}
