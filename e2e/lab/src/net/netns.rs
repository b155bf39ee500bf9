//! A named network namespace, which this module creates, enters, configures and deletes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::output::succeeded;

/// Folder in which `ip netns` keeps the handles of named namespaces.
pub(crate) const NETNS: &str = "/run/netns";

/// A named network namespace. A clone refers to the same namespace as its original. The lab removes the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Creates a handle of an existing namespace from its name.
    pub fn named(name: impl Into<String>) -> Netns {
        Netns { name: name.into() }
    }

    /// Creates the namespace, with the loopback interface up and without duplicate address detection.
    pub(crate) fn create(name: impl Into<String>) -> Result<Netns> {
        let netns = Netns::named(name);
        command("ip", ["netns", "add", netns.name.as_str()])?;
        netns.ip("link set lo up")?;
        // A tentative IPv6 address cannot be bound for a second or two after it was set.
        netns.sysctl("net/ipv6/conf/all/accept_dad", "0")?;
        netns.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        netns.sysctl("net/ipv6/conf/all/accept_ra", "0")?;
        netns.sysctl("net/ipv6/conf/default/accept_ra", "0")?;
        Ok(netns)
    }

    /// Names the namespace of a process, unless the namespace already has this name.
    pub(crate) fn attach(name: impl Into<String>, pid: u32) -> Result<Netns> {
        let netns = Netns::named(name);
        if !netns.exists() {
            command("ip", ["netns", "attach", netns.name.as_str(), &pid.to_string()])?;
        }
        Ok(netns)
    }

    /// Returns the name that `ip netns exec` accepts.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the file that refers to the namespace.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS).join(&self.name)
    }

    /// Reports whether `/run/netns` contains the namespace's name.
    pub fn exists(&self) -> bool {
        self.path().exists()
    }

    /// Runs a closure inside the namespace, on a separate thread. Sockets that the closure creates stay in the namespace.
    ///
    /// # Errors
    /// Returns an error if the thread cannot enter the namespace, or if the closure panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let handle = self.open()?;
        std::thread::scope(|scope| {
            scope
                .spawn(move || {
                    setns(handle, CloneFlags::CLONE_NEWNET)?;
                    Ok::<T, nix::Error>(work())
                })
                .join()
        })
        .map_err(|_| anyhow!("a closure in namespace {} panicked", self.name))?
        .with_context(|| format!("entering namespace {}", self.name))
    }

    /// Runs a program inside the namespace. Returns the program's standard output.
    ///
    /// # Errors
    /// Returns an error if the program does not start, or if its exit code is not 0. The error about the exit code contains the program's whole output.
    pub fn exec<S: AsRef<OsStr> + Sync>(&self, program: &str, args: &[S]) -> Result<String> {
        let output = self.output(program, args)?;
        succeeded(&describe(program, args), &output).with_context(|| format!("in {}", self.name))
    }

    /// Runs a program inside the namespace. Returns the program's output, regardless of the exit code.
    ///
    /// # Errors
    /// Returns an error if the program does not start.
    pub fn output<S: AsRef<OsStr> + Sync>(&self, program: &str, args: &[S]) -> Result<Output> {
        self.run(|| Command::new(program).args(args).stdin(Stdio::null()).output())?
            .with_context(|| format!("starting {program}"))
    }

    /// Runs a shell script inside the namespace. Returns the script's standard output.
    ///
    /// # Errors
    /// Returns an error if the script's exit code is not 0.
    pub fn sh(&self, script: &str) -> Result<String> {
        self.exec("sh", &["-ec", script])
    }

    /// Runs `ip` commands, one per line of `batch`, in one process inside the namespace.
    ///
    /// # Errors
    /// Returns an error if a command fails. `ip` does not run the commands after the failed command.
    pub fn ip(&self, batch: &str) -> Result<String> {
        self.feed("ip", &["-batch", "-"], batch)
    }

    /// Runs a program inside the namespace with a text on the program's standard input. Returns the program's standard output.
    ///
    /// # Errors
    /// Returns an error if the program does not start, or if its exit code is not 0.
    pub fn feed(&self, program: &str, args: &[&str], input: &str) -> Result<String> {
        let output = self.run(|| -> Result<Output> {
            let mut child = Command::new(program)
                .args(args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(input.as_bytes())?;
            }
            Ok(child.wait_with_output()?)
        })?;
        succeeded(&format!("{} <<< {input:?}", describe(program, args)), &output?)
            .with_context(|| format!("in {}", self.name))
    }

    /// Sets a kernel parameter below `/proc/sys`. Each network namespace has its own parameters below `net`.
    ///
    /// # Errors
    /// Returns an error if the key does not exist, or if the kernel refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key);
        self.run(|| std::fs::write(&path, value))?
            .with_context(|| format!("writing {value} to {}", path.display()))
    }

    /// Returns the IDs of the processes that run inside the namespace.
    pub fn pids(&self) -> Vec<i32> {
        let found = command("ip", ["netns", "pids", self.name.as_str()]).unwrap_or_default();
        found.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Kills every process inside the namespace, and waits up to about a second until the processes are gone.
    pub(crate) fn kill_all(&self) {
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        for _ in 0..200 {
            let pids: Vec<i32> =
                self.pids().into_iter().filter(|pid| *pid != own && !is_zombie(*pid)).collect();
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Kills the processes inside the namespace, and removes the namespace with its interfaces.
    pub(crate) fn delete(&self) -> Result<()> {
        self.kill_all();
        command("ip", ["netns", "del", self.name.as_str()]).map(drop)
    }

    pub(crate) fn open(&self) -> Result<File> {
        File::open(self.path()).with_context(|| format!("namespace {} does not exist", self.name))
    }
}

/// Reports whether a process has ended. `/proc` still lists a killed child until its parent has waited for it.
pub(crate) fn is_zombie(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

/// Runs a program in the namespace of this process. Returns the program's standard output.
pub(crate) fn command<S: AsRef<OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = S>,
) -> Result<String> {
    let args: Vec<S> = args.into_iter().collect();
    let output = Command::new(program)
        .args(&args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {program}"))?;
    succeeded(&describe(program, &args), &output)
}

fn describe<S: AsRef<OsStr>>(program: &str, args: &[S]) -> String {
    let args: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
    format!("{program} {}", args.join(" "))
}
