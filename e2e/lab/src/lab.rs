//! The lab, which owns all objects that tests build in it and removes them on drop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

use crate::host::Host;
use crate::host::nat::NatBox;
use crate::host::uplink::Uplink;
use crate::net::switch::Switch;
use crate::site::name::{self, KEPT, LabName, OWNER, create_folder_of_labs};
use crate::site::{Site, sweep};

/// Like `std::eprintln!`, but does not panic when stderr is closed, because the program still has to remove the lab.
macro_rules! eprintln {
    ($($text:tt)*) => { { use std::io::Write as _; let _ = writeln!(std::io::stderr(), $($text)*); } };
}

/// Prevents the removal of labs.
const KEEP: &str = "FLANNEL_LAB_KEEP";
/// Lines of each log in a failure message.
const TAIL: usize = 25;

/// A drop removes all hosts, switches and processes.
#[derive(Debug)]
pub struct Lab {
    site: Arc<Site>,
    title: String,
}

impl Lab {
    /// Also removes the labs of dead processes. Needs root.
    pub fn create(title: &str) -> Result<Lab> {
        if !nix::unistd::geteuid().is_root() {
            bail!("a lab creates network namespaces and interfaces: run the lab as root");
        }
        wait::start_test_time_limit();
        create_folder_of_labs()?;
        // Another process may be removing the same remains at this moment.
        let _ = sweep::remove_stale_unkept_labs();
        let site = Arc::new(Site {
            name: LabName::next(),
            kept: AtomicBool::new(std::env::var_os(KEEP).is_some()),
        });
        let lab = Lab { site, title: title.to_owned() };
        // Before the first namespace, because a sweep must know the owner of remains.
        std::fs::write(lab.ensure_folder("")?.join(OWNER), sweep::current_process_identity())?;
        std::fs::write(lab.ensure_folder("")?.join("title"), title)?;
        if lab.site.is_kept() {
            lab.keep()?;
            eprintln!(
                "lab {title} ({}) is kept because of {KEEP}: remove the lab with `flannelctl lab --remove`",
                lab.prefix()
            );
        }
        Ok(lab)
    }

    /// Opens a lab for `work`, and adds the last lines of its logs to an error.
    pub fn run<T>(title: &str, work: impl FnOnce(&Lab) -> Result<T>) -> Result<T> {
        let lab = Lab::create(title)?;
        // The cause comes first because test runners may truncate failures.
        work(&lab).map_err(|error| {
            let context = format!("lab {title}: {error:#}\nIts logs end so:\n{}", lab.log_tails());
            error.context(context)
        })
    }

    /// The lab's namespaces have names with this prefix.
    pub fn prefix(&self) -> String {
        self.site.name.prefix()
    }

    /// Creates the folder if it is missing. It is removed with the lab.
    pub fn ensure_folder(&self, name: &str) -> Result<PathBuf> {
        self.site.ensure_folder(name)
    }

    /// A bridge in its own namespace.
    pub fn create_switch(&self, name: &str) -> Result<Switch> {
        Switch::build(self.site.create_netns(&format!("sw-{name}"))?)
    }

    /// It forwards packets, as every flannel node does.
    pub fn create_host(&self, name: &str, uplinks: &[Uplink]) -> Result<Host> {
        Host::build(&self.site, name, uplinks)
    }

    /// `h1`, `h2`, … on a switch. Their interfaces `enp0s8` have 192.168.56.101, .102, … and fd00:56::101, ….
    pub fn create_hosts(&self, switch: &Switch, count: u8) -> Result<Vec<Host>> {
        (1..=count)
            .map(|number| {
                self.create_host(&format!("h{number}"), &[Uplink::enp0s8(switch, number)?])
            })
            .collect()
    }

    /// Packets that enter by the inner interface leave by the outer one, with its address as source.
    pub fn create_nat_box(
        &self,
        name: &str,
        inner: (&Switch, &str),
        outer: (&Switch, &str),
    ) -> Result<NatBox> {
        NatBox::build(&self.site, name, inner, outer)
    }

    /// The lab survives a drop, until [`crate::remove_labs_of_ended_processes`].
    pub fn keep(&self) -> Result<()> {
        std::fs::write(self.ensure_folder("")?.join(KEPT), "")?;
        self.site.kept.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The last lines of every log, for a failure message.
    pub fn log_tails(&self) -> String {
        let mut text = String::new();
        for path in log_files(&self.site.name.folder()) {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines.get(lines.len().saturating_sub(TAIL)..).unwrap_or_default();
            text.push_str(&format!(
                "--- {} ({} lines)\n{}\n",
                path.display(),
                lines.len(),
                tail.join("\n")
            ));
        }
        text
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "lab {} ({}) failed; the ends of its logs:\n{}",
                self.title,
                self.prefix(),
                self.log_tails()
            );
        }
        if self.site.is_kept() {
            return;
        }
        if let Err(error) = sweep::remove_lab(&self.site.name) {
            eprintln!("lab {} ({}): {error:#}", self.title, self.prefix());
        }
    }
}

fn log_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in name::folder_entries(folder) {
        let path = folder.join(name);
        if path.is_dir() {
            found.extend(log_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "log") {
            found.push(path);
        }
    }
    found.sort();
    found
}
