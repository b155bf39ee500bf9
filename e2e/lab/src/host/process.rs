//! A process on a host: started with a log file, signalled, waited for, killed on drop.

#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, sethostname};

use crate::net::netns::Netns;
use crate::site::Site;

/// Folders in which this machine's own node may have left files that a daemon or the doctor reads. Each host has its own.
const PLACES: [&str; 6] = [
    "/etc/cni",
    "/etc/default",
    "/etc/systemd/system",
    "/usr/lib/systemd/system",
    "/var/lib/cni",
    "/var/log/pods",
];
/// kubelet's folder, by which the doctor recognises a node of Kubernetes: hosts must not have it.
const KUBELET: (&str, &str) = ("/var/lib", "kubelet");

/// Maximum of files that are handed over.
const FILES: usize = 32;

/// A program, its arguments, environment and inherited files.
#[derive(Debug, Clone)]
pub struct Launch {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    files: Vec<(String, Arc<OwnedFd>)>,
}

impl Launch {
    /// The program by its path, or by its name on `PATH`.
    pub fn new(program: impl Into<PathBuf>) -> Launch {
        Launch {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Adds an argument to the command line.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Launch {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments to the command line, in order.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Launch {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable of the program.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Launch {
        self.env
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs it in a namespace that another process has: `namespace` is nsenter's argument for it.
    #[must_use]
    pub(crate) fn inside(mut self, namespace: &str) -> Launch {
        let program = std::mem::replace(&mut self.program, PathBuf::from("nsenter"));
        self.args.splice(
            0..0,
            [namespace.into(), "--".into(), program.into_os_string()],
        );
        self
    }

    /// Hands over open files by their names, as systemd does (sd_listen_fds(3)).
    #[must_use]
    pub fn files(mut self, files: Vec<(String, Arc<OwnedFd>)>) -> Launch {
        self.files = files;
        self
    }

    fn command(&self) -> Command {
        if self.files.is_empty() {
            let mut command = Command::new(&self.program);
            command.args(&self.args);
            return command;
        }
        // sd_listen_fds(3) compares LISTEN_PID with the program's own process id, which exists only after the fork.
        let mut command = Command::new("sh");
        command
            .args(["-ec", "export LISTEN_PID=$$; exec \"$0\" \"$@\""])
            .arg(&self.program)
            .args(&self.args);
        let names: Vec<&str> = self.files.iter().map(|(name, _)| name.as_str()).collect();
        command
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"));
        let files: Vec<i32> = self
            .files
            .iter()
            .take(FILES)
            .map(|(_, file)| file.as_raw_fd())
            .collect();
        let hand_over = move || {
            // Duplicates to high numbers first, so that no file is overwritten below.
            let mut moved = [0; FILES];
            for (moved, file) in moved.iter_mut().zip(&files) {
                // SAFETY: both calls take numbers only, may be made between fork and exec, and the child is a single thread.
                *moved = unsafe { libc::fcntl(*file, libc::F_DUPFD_CLOEXEC, 200) };
            }
            for (to, from) in (3..).zip(moved.iter().take(files.len())) {
                // SAFETY: as above; `to` belongs to this child only.
                if unsafe { libc::dup2(*from, to) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: the closure calls fcntl and dup2 only.
        unsafe { command.pre_exec(hand_over) };
        command
    }
}

/// The parts of a machine that a process of a host has for itself.
pub(crate) struct Machine {
    pub(crate) netns: Netns,
    pub(crate) hostname: String,
    /// Its `/run`: locks and sockets of one host must not meet those of another.
    pub(crate) run: PathBuf,
    /// The folder of its own [`PLACES`].
    pub(crate) places: PathBuf,
}

/// A running process, killed on drop.
#[derive(Debug)]
pub struct Process {
    child: Child,
    program: String,
    log: PathBuf,
    site: Arc<Site>,
}

impl Process {
    pub(crate) fn spawn(
        machine: &Machine,
        launch: &Launch,
        log: &Path,
        site: Arc<Site>,
    ) -> Result<Process> {
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        let err = out.try_clone()?;
        let netns = machine.netns.open()?;
        // A child has the namespaces of the thread that starts it, so this thread gets all of them and ends.
        let spawned = std::thread::scope(|scope| {
            let spawn = move || -> Result<Child> {
                setns(netns, CloneFlags::CLONE_NEWNET)?;
                furnish(machine).context("giving the host a name and files of its own")?;
                let mut command = launch.command();
                // The tester's own environment must not configure the daemon.
                for (name, _) in std::env::vars_os()
                    .filter(|(name, _)| name.to_string_lossy().starts_with("FLANNELD_"))
                {
                    command.env_remove(name);
                }
                command.envs(launch.env.iter().map(|(name, value)| (name, value)));
                command
                    .stdin(Stdio::null())
                    .stdout(out)
                    .stderr(err)
                    .process_group(0);
                command
                    .spawn()
                    .with_context(|| format!("starting {}", launch.program.display()))
            };
            scope.spawn(spawn).join()
        });
        let Ok(child) = spawned else {
            bail!(
                "the thread that starts {} panicked",
                launch.program.display()
            )
        };
        let program = launch
            .program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok(Process {
            child: child?,
            program,
            log: log.to_owned(),
            site,
        })
    }

    /// The process id in the machine's namespace.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// When it has ended and was waited for.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid())?);
        kill(pid, signal).with_context(|| format!("sending {signal} to {}", self.program))
    }

    /// Freezes the process with SIGSTOP.
    ///
    /// # Errors
    /// When it has ended.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Thaws the process with SIGCONT.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cont(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Kills it (SIGKILL) and waits for its end.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        // It may have ended by itself.
        let _ = self.child.kill();
        self.child
            .wait()
            .map(drop)
            .with_context(|| format!("waiting for {}", self.program))
    }

    /// Asks it to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// When it still runs at the deadline.
    pub fn terminate(&mut self, deadline: Duration) -> Result<ExitStatus> {
        if self.is_running() {
            self.signal(Signal::SIGTERM)?;
        }
        self.wait(deadline)
    }

    /// Waits until the process ends; returns its exit status.
    ///
    /// # Errors
    /// When it still runs at the deadline.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() >= deadline {
                bail!(
                    "{} still runs after {deadline:?}; its log ends so:\n{}",
                    self.program,
                    self.log_tail(20)
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Path of the log, which also contains the output of earlier processes of this name.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The whole content of the log.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines of the log.
    pub fn log_tail(&self, count: usize) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines
            .get(lines.len().saturating_sub(count)..)
            .unwrap_or_default()
            .join("\n")
    }

    /// Seconds of processor time that it has used.
    ///
    /// # Errors
    /// When it has ended.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let fields = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest)
            .context("an unknown form of /proc/PID/stat")?;
        // Fields 14 and 15 of proc_pid_stat(5), in ticks, which are 1/100 s on every architecture that Rust has.
        let ticks: f64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<f64>().ok())
            .sum();
        Ok(ticks / 100.0)
    }

    /// Its resident memory in bytes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("no VmRSS: the process has ended")?;
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
        Ok(kilobytes * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.site.is_kept() {
            let _ = self.kill();
        }
    }
}

/// Gives the calling thread, and so its children, a host name, `/sys`, `/run` and [`PLACES`] of their own.
fn furnish(machine: &Machine) -> Result<()> {
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    // Containers may forbid this one; then /sys/class/net shows the outer interfaces, which the daemon does not read.
    let _ = mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), NONE);
    mount(Some(&machine.run), "/run", NONE, MsFlags::MS_BIND, NONE)?;
    for place in PLACES.into_iter().filter(|place| Path::new(place).is_dir()) {
        let own = machine.places.join(place.replace('/', "-"));
        std::fs::create_dir_all(&own)?;
        mount(Some(&own), place, NONE, MsFlags::MS_BIND, NONE)
            .with_context(|| format!("mounting {place}"))?;
    }
    hide_kubelet(&machine.places)?;
    Ok(sethostname(&machine.hostname)?)
}

/// Puts a folder of links in the place of kubelet's parent: to all that is there but kubelet.
fn hide_kubelet(places: &Path) -> Result<()> {
    const NONE: Option<&str> = None;
    let (parent, kubelet) = KUBELET;
    if !Path::new(parent).join(kubelet).exists() {
        return Ok(());
    }
    let (links, machine) = (places.join("links"), places.join("machine"));
    std::fs::create_dir_all(&links)?;
    std::fs::create_dir_all(&machine)?;
    mount(
        Some(parent),
        &machine,
        NONE,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        NONE,
    )?;
    mount(
        NONE,
        &machine,
        NONE,
        MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY,
        NONE,
    )?;
    for entry in std::fs::read_dir(&machine)?
        .flatten()
        .filter(|entry| entry.file_name() != kubelet)
    {
        // Another process of the host may have made it.
        let _ = symlink(entry.path(), links.join(entry.file_name()));
    }
    mount(Some(&links), parent, NONE, MsFlags::MS_BIND, NONE)
        .with_context(|| format!("mounting {parent}"))
}
