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

use crate::output::require_success;

/// Where `ip netns` keeps the handles of named namespaces.
pub(crate) const NETNS: &str = "/run/netns";

/// A clone is the same namespace. The lab removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// A handle of an existing namespace.
    pub fn handle_for_name(name: impl Into<String>) -> Netns {
        Netns { name: name.into() }
    }

    /// The loopback interface is up, and there is no duplicate address detection.
    pub(crate) fn create(name: impl Into<String>) -> Result<Netns> {
        let netns = Netns::handle_for_name(name);
        run_program("ip", ["netns", "add", netns.name.as_str()])?;
        netns.run_ip_batch("link set lo up")?;
        // A tentative IPv6 address cannot be bound for a second or two after it was set.
        netns.sysctl("net/ipv6/conf/all/accept_dad", "0")?;
        netns.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        netns.sysctl("net/ipv6/conf/all/accept_ra", "0")?;
        netns.sysctl("net/ipv6/conf/default/accept_ra", "0")?;
        Ok(netns)
    }

    /// Names the namespace of a process, unless it already has this name.
    pub(crate) fn name_namespace_of_process(name: impl Into<String>, pid: u32) -> Result<Netns> {
        let netns = Netns::handle_for_name(name);
        if !netns.exists() {
            run_program("ip", ["netns", "attach", netns.name.as_str(), &pid.to_string()])?;
        }
        Ok(netns)
    }

    /// `ip netns exec` accepts this name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that refers to the namespace.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS).join(&self.name)
    }

    /// `/run/netns` contains its name.
    pub fn exists(&self) -> bool {
        self.path().exists()
    }

    /// Runs on a separate thread inside the namespace. Sockets that the closure creates stay there.
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

    /// The result is the standard output. If the exit code is not 0, the error contains the whole output.
    pub fn exec<S: AsRef<OsStr> + Sync>(&self, program: &str, args: &[S]) -> Result<String> {
        let output = self.output(program, args)?;
        require_success(&command_line(program, args), &output)
            .with_context(|| format!("in {}", self.name))
    }

    /// The exit code does not matter.
    pub fn output<S: AsRef<OsStr> + Sync>(&self, program: &str, args: &[S]) -> Result<Output> {
        self.run(|| Command::new(program).args(args).stdin(Stdio::null()).output())?
            .with_context(|| format!("starting {program}"))
    }

    /// The result is the standard output; fails if the exit code is not 0.
    pub fn sh(&self, script: &str) -> Result<String> {
        self.exec("sh", &["-ec", script])
    }

    /// Runs one command per line of `batch`, in one process, up to the first that fails.
    pub fn run_ip_batch(&self, batch: &str) -> Result<String> {
        self.exec_with_input("ip", &["-batch", "-"], batch)
    }

    /// Gives `input` on standard input. The result is the standard output.
    pub fn exec_with_input(&self, program: &str, args: &[&str], input: &str) -> Result<String> {
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
        require_success(&format!("{} <<< {input:?}", command_line(program, args)), &output?)
            .with_context(|| format!("in {}", self.name))
    }

    /// `key` is below `/proc/sys`. Each network namespace has its own parameters below `net`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key);
        self.run(|| std::fs::write(&path, value))?
            .with_context(|| format!("writing {value} to {}", path.display()))
    }

    pub fn pids(&self) -> Vec<i32> {
        let found = run_program("ip", ["netns", "pids", self.name.as_str()]).unwrap_or_default();
        found.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Waits up to about a second until the processes are gone.
    pub(crate) fn kill_all(&self) {
        let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
        for _ in 0..200 {
            let pids: Vec<i32> = self
                .pids()
                .into_iter()
                .filter(|pid| *pid != own && !is_zombie_or_gone(*pid))
                .collect();
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Deletes its processes and interfaces too.
    pub(crate) fn kill_processes_and_delete(&self) -> Result<()> {
        self.kill_all();
        run_program("ip", ["netns", "del", self.name.as_str()]).map(drop)
    }

    pub(crate) fn open(&self) -> Result<File> {
        File::open(self.path()).with_context(|| format!("namespace {} does not exist", self.name))
    }
}

/// True if the process has ended: `/proc` lists a killed child until its parent has waited for it.
pub(crate) fn is_zombie_or_gone(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

/// Runs in the namespace of this process. The result is the standard output.
pub(crate) fn run_program<S: AsRef<OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = S>,
) -> Result<String> {
    let args: Vec<S> = args.into_iter().collect();
    let output = Command::new(program)
        .args(&args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {program}"))?;
    require_success(&command_line(program, &args), &output)
}

fn command_line<S: AsRef<OsStr>>(program: &str, args: &[S]) -> String {
    let args: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
    format!("{program} {}", args.join(" "))
}
