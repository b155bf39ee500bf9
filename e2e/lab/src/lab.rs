//! The lab: what is built in it goes when it goes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

use crate::host::Host;
use crate::host::nat::NatBox;
use crate::host::router::Router;
use crate::host::uplink::Uplink;
use crate::net::switch::Switch;
use crate::site::name::{self, KEPT, LabName, OWNER};
use crate::site::{Site, sweep};
use crate::turn;

/// As the standard library's, but does not panic when stderr is closed: the lab still has to be removed.
macro_rules! eprintln {
    ($($text:tt)*) => { { use std::io::Write as _; let _ = writeln!(std::io::stderr(), $($text)*); } };
}

/// Environment variable that keeps labs from being removed.
const KEEP: &str = "FLANNEL_LAB_KEEP";
/// Lines of each log that a failure shows.
const TAIL: usize = 25;

/// Hosts, switches and what runs on them; all of it is removed on drop.
#[derive(Debug)]
pub struct Lab {
    site: Arc<Site>,
    title: String,
}

impl Lab {
    /// Opens an empty lab and sweeps up those of dead processes.
    ///
    /// # Errors
    /// When this is not root, or namespaces cannot be made.
    pub fn new(title: &str) -> Result<Lab> {
        if !nix::unistd::geteuid().is_root() {
            bail!("a lab makes network namespaces and interfaces: run it as root");
        }
        turn::lab();
        // Another process may be sweeping the same remains at this moment.
        let _ = sweep::remove_stale();
        let site = Arc::new(Site {
            name: LabName::next(),
            kept: AtomicBool::new(std::env::var_os(KEEP).is_some()),
        });
        let lab = Lab {
            site,
            title: title.to_owned(),
        };
        // Before the first namespace: a sweep must know the owner of remains.
        std::fs::write(lab.folder("")?.join(OWNER), sweep::owner())?;
        std::fs::write(lab.folder("")?.join("title"), title)?;
        if lab.site.is_kept() {
            lab.keep()?;
            eprintln!(
                "lab {title} ({}) is kept because of {KEEP}: `flannelctl lab --remove` removes it",
                lab.prefix()
            );
        }
        Ok(lab)
    }

    /// Opens a lab, works in it, and adds the ends of its logs to a failure.
    ///
    /// # Errors
    /// Those of [`Lab::new`], and those of the work.
    pub fn run<T>(title: &str, work: impl FnOnce(&Lab) -> Result<T>) -> Result<T> {
        let lab = Lab::new(title)?;
        // The cause first: test runners may truncate failures.
        work(&lab).map_err(|error| {
            let context = format!("lab {title}: {error:#}\nIts logs end so:\n{}", lab.logs());
            error.context(context)
        })
    }

    /// The prefix of its namespaces' names.
    pub fn prefix(&self) -> String {
        self.site.name.prefix()
    }

    /// A folder for the lab's files, made when it is not there; it goes with the lab.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        self.site.folder(name)
    }

    /// A switch: a bridge in a namespace of its own.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn switch(&self, name: &str) -> Result<Switch> {
        Switch::build(self.site.netns(&format!("sw-{name}"))?)
    }

    /// A host with the given uplinks; it forwards packets, as every flannel node does.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn host(&self, name: &str, uplinks: &[Uplink]) -> Result<Host> {
        Host::build(&self.site, name, uplinks)
    }

    /// Hosts `h1`, `h2`, … with `enp0s8` = 192.168.56.101, .102, … and fd00:56::101, … on a switch.
    ///
    /// # Errors
    /// When one cannot be built.
    pub fn hosts(&self, switch: &Switch, count: u8) -> Result<Vec<Host>> {
        (1..=count)
            .map(|number| self.host(&format!("h{number}"), &[Uplink::enp0s8(switch, number)?]))
            .collect()
    }

    /// A router with one leg in each switch.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn router(&self, name: &str, legs: &[(&Switch, &str)]) -> Result<Router> {
        Router::build(&self.site, name, legs)
    }

    /// A NAT box: what comes in by the inner leg leaves by the outer one under its own address.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn nat(
        &self,
        name: &str,
        inner: (&Switch, &str),
        outer: (&Switch, &str),
    ) -> Result<NatBox> {
        NatBox::build(&self.site, name, inner, outer)
    }

    /// Leaves everything running when the lab is dropped, until [`crate::remove_ended`].
    ///
    /// # Errors
    /// When the mark cannot be written.
    pub fn keep(&self) -> Result<()> {
        std::fs::write(self.folder("")?.join(KEPT), "")?;
        self.site.kept.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The last lines of every log in the lab, for the reader of a failure.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for path in log_files(&self.site.name.folder()) {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines
                .get(lines.len().saturating_sub(TAIL)..)
                .unwrap_or_default();
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
                "lab {} ({}) failed; its logs end so:\n{}",
                self.title,
                self.prefix(),
                self.logs()
            );
        }
        if self.site.is_kept() {
            return;
        }
        if let Err(error) = sweep::remove(&self.site.name) {
            eprintln!("lab {} ({}): {error:#}", self.title, self.prefix());
        }
    }
}

fn log_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in name::entries(folder) {
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
