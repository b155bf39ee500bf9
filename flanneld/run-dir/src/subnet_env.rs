//! subnet.env, which the CNI plugin and Docker read: its exact bytes, a lenient reader and an atomic writer.
//!
//! ```
//! use run_dir::subnet_env::{SubnetEnv, parse};
//! use types::Subnets;
//!
//! let env = SubnetEnv {
//!     networks: Subnets::V4("10.244.0.0/16".parse()?),
//!     subnets: Subnets::V4("10.244.1.0/24".parse()?),
//!     mtu: 1450,
//!     ip_masq: true,
//!     range_ends: Vec::new(),
//! };
//! let text = env.render();
//! assert!(text.starts_with("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n"));
//! assert_eq!(parse(text.as_bytes()).subnets(), Some(env.subnets));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod parse;

pub use parse::{Previous, parse};

use crate::replace::{create, folder, replace, temporary_prefix};
use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use types::file::{self, Links};
use types::{Problem, Subnets};

/// In bytes. flanneld never writes a longer file.
const MAX_FILE: u64 = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetEnv {
    pub networks: Subnets,
    pub subnets: Subnets,
    /// Of pods, in bytes.
    pub mtu: u32,
    /// `--ip-masq`: whether this node masquerades traffic that leaves the network.
    pub ip_masq: bool,
    /// Last address that a pod may have, per address family; empty if pods may have all addresses. Go flannel does
    /// not write these, and its plugin ignores them.
    pub range_ends: Vec<IpAddr>,
}

impl SubnetEnv {
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        if let (Some(network), Some(subnet)) = (self.networks.v4(), self.subnets.v4()) {
            let first = Ipv4Addr::from_bits(subnet.network().to_bits().wrapping_add(1));
            let _ = write!(
                out,
                "FLANNEL_NETWORK={}\nFLANNEL_SUBNET={first}/{}\n",
                network.trunc(),
                subnet.prefix_len()
            );
        }
        if let (Some(network), Some(subnet)) = (self.networks.v6(), self.subnets.v6()) {
            let first = Ipv6Addr::from_bits(subnet.network().to_bits().wrapping_add(1));
            let _ = write!(
                out,
                "FLANNEL_IPV6_NETWORK={}\nFLANNEL_IPV6_SUBNET={first}/{}\n",
                network.trunc(),
                subnet.prefix_len()
            );
        }
        let _ = write!(out, "FLANNEL_MTU={}\nFLANNEL_IPMASQ={}\n", self.mtu, self.ip_masq);
        for end in &self.range_ends {
            let key = match end {
                IpAddr::V4(_) => "FLANNEL_RANGE_END",
                IpAddr::V6(_) => "FLANNEL_IPV6_RANGE_END",
            };
            let _ = writeln!(out, "{key}={end}");
        }
        out
    }
}

/// `step` is the code of a step in the write of subnet.env, and the step as a phrase.
fn report_unwritten(path: &Path, step: (&'static str, &str), why: &io::Error) -> Problem {
    let text = format!(
        "cannot write {}: {}: {why}; pods cannot start on this node without this file; check the directory's permissions and free space, or choose another file with --subnet-file",
        path.display(),
        step.1
    );
    Problem::new(step.0, text)
}

/// Reads what an earlier run wrote. Empty if the file does not exist, and empty with a warning if the read fails.
pub fn read(path: &Path) -> Previous {
    // The file has at most eight short lines. A larger file was not written by flanneld, and must not exhaust memory.
    match file::read(path, MAX_FILE, Links::Refused) {
        Ok(bytes) => parse(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Previous::default(),
        Err(error) => Previous {
            warnings: vec![format!("cannot read the file: {error}")],
            ..Previous::default()
        },
    }
}

/// Writes the file atomically: syncs a temporary file in the same directory and renames it over the target. If a step
/// fails, the error names it and the old file stays unchanged.
pub fn write(path: &Path, env: &SubnetEnv) -> Result<(), Problem> {
    // A mode set by an operator is kept. A link is replaced, so the mode of its target does not matter.
    let mode = match std::fs::symlink_metadata(path) {
        Ok(old) if old.is_file() => old.permissions().mode() & 0o7777,
        _ => 0o644,
    };
    let step = Cell::new(("subnet-env-directory", "creating its directory"));
    replace(path, |temporary| {
        step.set(("subnet-env-temporary", "creating a temporary file in its folder"));
        let mut file = create(temporary)?;
        step.set(("subnet-env-write", "writing a temporary file in its folder"));
        file.write_all(env.render().as_bytes())?;
        // Set after opening, so that the umask does not apply.
        step.set(("subnet-env-mode", "setting its mode"));
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        step.set(("subnet-env-sync", "syncing it"));
        file.sync_all()?;
        step.set(("subnet-env-rename", "renaming the temporary file"));
        Ok(())
    })
    .map_err(|why| report_unwritten(path, step.get(), &why))?;
    // The node serves the new subnet, so the former file no longer matters. If it cannot be removed, the new file takes precedence.
    let _ = std::fs::remove_file(former_path(path));
    // Every reader sees the new name. Only a power loss could undo it, and /run is lost then anyway.
    let folder = folder(path);
    if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
        tracing::debug!(path = %folder.display(), error = %error, "cannot sync the folder of subnet.env");
    }
    Ok(())
}

/// After a restart without changes, the daemon does not write the file again.
pub fn matches(path: &Path, wanted: &SubnetEnv) -> bool {
    file::read(path, MAX_FILE, Links::Refused)
        .is_ok_and(|bytes| bytes == wanted.render().as_bytes())
}

/// True for a temporary file created by [`write()`].
pub fn is_temporary(path: &Path, name: &str) -> bool {
    let random = name.strip_prefix(&temporary_prefix(path));
    random.is_some_and(|random| {
        random.len() == 16 && random.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Where [`set_aside`] puts the subnet.env of a subnet that this node has lost. [`write()`] removes it.
pub fn former_path(path: &Path) -> PathBuf {
    let mut former = path.as_os_str().to_owned();
    former.push(".former");
    former.into()
}

/// Renames subnet.env to [`former_path`], so that no pod gets an address of the lost subnet. After a restart, the
/// daemon reads the lost subnet from there. Succeeds if the file does not exist.
pub fn set_aside(path: &Path) -> Result<(), Problem> {
    match std::fs::rename(path, former_path(path)) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => {
            Err(report_unwritten(path, ("subnet-env-set-aside", "renaming it"), &why))
        }
        _ => Ok(()),
    }
}

/// Reads the subnet that this node served last: from the file of an earlier run, or from the file that [`set_aside`] renamed.
pub fn last_served(path: &Path) -> Previous {
    let present = read(path);
    if present.subnets().is_some() {
        present
    } else {
        Previous { warnings: present.warnings, ..read(&former_path(path)) }
    }
}

/// Removes the temporary files of a daemon that ended during a write. The caller must hold the lock next to subnet.env.
pub fn clear(path: &Path) {
    for entry in std::fs::read_dir(folder(path)).into_iter().flatten().flatten() {
        let ours = is_temporary(path, &entry.file_name().to_string_lossy())
            && entry.file_type().is_ok_and(|kind| kind.is_file());
        if ours && std::fs::remove_file(entry.path()).is_ok() {
            tracing::info!(path = %entry.path().display(), "removed a temporary file left by a killed flanneld");
        }
    }
}

#[cfg(test)]
mod tests;
