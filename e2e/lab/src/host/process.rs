//! A process on a host, with a log file; a drop kills it.

#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, sethostname};

use crate::net::netns::Netns;
use crate::site::Site;
use wait::Wait;

/// May contain a node's files on this machine, which a daemon or the doctor in the lab would otherwise read. Each host has its own folders at these
/// paths.
const PLACES: [&str; 6] = [
    "/etc/cni",
    "/etc/default",
    "/etc/systemd/system",
    "/usr/lib/systemd/system",
    "/var/lib/cni",
    "/var/log/pods",
];
/// By this folder the doctor recognises a Kubernetes node. Hosts in the lab do not see this machine's, but may have their own.
const KUBELET: (&str, &str) = ("/var/lib", "kubelet");

/// The most open files that a program inherits.
const FILES: usize = 32;

#[derive(Debug, Clone)]
pub struct Launch {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    files: Vec<(String, Arc<OwnedFd>)>,
    confinement: Option<Confinement>,
}

/// What a systemd unit leaves to its program, with numbers as in the kernel's headers.
#[derive(Debug, Clone)]
pub(crate) struct Confinement {
    /// RestrictAddressFamilies=.
    pub(crate) families: Vec<u32>,
    /// CapabilityBoundingSet=.
    pub(crate) capabilities: Vec<u32>,
    /// ProtectSystem=: folders that the program cannot write to.
    pub(crate) read_only: Vec<&'static str>,
}

impl Launch {
    /// `program` is a path or a name on `PATH`.
    pub fn new(program: impl Into<PathBuf>) -> Launch {
        Launch {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            files: Vec::new(),
            confinement: None,
        }
    }

    /// Confines the program as systemd does.
    #[must_use]
    pub(crate) fn confined(mut self, confinement: Confinement) -> Launch {
        self.confinement = Some(confinement);
        self
    }

    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Launch {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Launch {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Launch {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs the program in a namespace of another process. `namespace` is the option of `nsenter` that selects it.
    #[must_use]
    pub(crate) fn through_nsenter(mut self, namespace: &str) -> Launch {
        let program = std::mem::replace(&mut self.program, PathBuf::from("nsenter"));
        self.args.splice(0..0, [namespace.into(), "--".into(), program.into_os_string()]);
        self
    }

    /// Named open files, passed as systemd does (sd_listen_fds(3)).
    #[must_use]
    pub fn files(mut self, files: Vec<(String, Arc<OwnedFd>)>) -> Launch {
        self.files = files;
        self
    }

    fn command(&self) -> Command {
        let mut command = self.unconfined_command();
        if let Some(confinement) = self.confinement.clone() {
            let filter = filter_allowing_socket_families(&confinement.families);
            let confine = move || {
                let checked = |code| nix::errno::Errno::result(code).map(drop);
                let program = libc::sock_fprog {
                    len: u16::try_from(filter.len()).unwrap_or_default(),
                    filter: filter.as_ptr().cast_mut(),
                };
                // SAFETY: the kernel copies the program, which outlives the call.
                checked(unsafe { libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program) })?;
                for other in (0..64).filter(|number| !confinement.capabilities.contains(number)) {
                    // SAFETY: the call takes only numbers.
                    match checked(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, other) }) {
                        // The kernel knows no such capability.
                        Err(nix::errno::Errno::EINVAL) => {}
                        done => done?,
                    }
                }
                // SAFETY: the call takes only numbers.
                checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
                Ok(())
            };
            // SAFETY: the closure allocates nothing and calls only prctl.
            unsafe { command.pre_exec(confine) };
        }
        command
    }

    fn unconfined_command(&self) -> Command {
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
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        let files: Vec<i32> =
            self.files.iter().take(FILES).map(|(_, file)| file.as_raw_fd()).collect();
        let hand_over = move || {
            // Duplicate to high numbers first, so that the second loop overwrites no file.
            let mut moved = [0; FILES];
            for (moved, file) in moved.iter_mut().zip(&files) {
                // SAFETY: both calls take only numbers and are allowed between fork and exec; the child has a single thread.
                *moved = unsafe { libc::fcntl(*file, libc::F_DUPFD_CLOEXEC, 200) };
            }
            for (to, from) in (3..).zip(moved.iter().take(files.len())) {
                // SAFETY: as above; `to` belongs only to this child.
                if unsafe { libc::dup2(*from, to) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: the closure calls only fcntl and dup2.
        unsafe { command.pre_exec(hand_over) };
        command
    }
}

/// A seccomp filter that refuses sockets of other address families with EAFNOSUPPORT.
fn filter_allowing_socket_families(families: &[u32]) -> Vec<libc::sock_filter> {
    // From linux/filter.h and linux/seccomp.h. In struct seccomp_data, the number of the system call is at 0 and its first argument at 16.
    const LOAD: u16 = 0x20;
    const UNLESS_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let op = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let allow = op(RETURN, 0, 0x7fff_0000);
    let refuse = op(RETURN, 0, 0x0005_0000 | libc::EAFNOSUPPORT.cast_unsigned());
    let others = u8::try_from(2 * families.len() + 2).unwrap_or_default();
    let socket = u32::try_from(libc::SYS_socket).unwrap_or_default();
    let mut filter = vec![op(LOAD, 0, 0), op(UNLESS_EQUAL, others, socket), op(LOAD, 0, 16)];
    for family in families {
        filter.extend([op(UNLESS_EQUAL, 1, *family), allow]);
    }
    filter.extend([refuse, allow]);
    filter
}

/// What the processes of a host do not share with other hosts.
pub(crate) struct Machine {
    pub(crate) netns: Netns,
    pub(crate) hostname: String,
    /// The host's `/run`, so that locks and sockets of two hosts do not clash.
    pub(crate) run: PathBuf,
    /// Contains the host's own folders for [`PLACES`].
    pub(crate) places: PathBuf,
}

/// A drop kills it.
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
        // A child inherits the namespaces of the thread that starts it. A separate thread enters them and then ends.
        let spawned = std::thread::scope(|scope| {
            let spawn = move || -> Result<Child> {
                setns(netns, CloneFlags::CLONE_NEWNET)?;
                unshare_mounts_and_hostname(machine)
                    .context("cannot give the host its own name and files")?;
                for place in launch.confinement.iter().flat_map(|unit| &unit.read_only) {
                    make_folder_read_only(place).with_context(|| format!("protecting {place}"))?;
                }
                let mut command = launch.command();
                // The environment of the person who runs the tests must not configure the daemon.
                for (name, _) in std::env::vars_os()
                    .filter(|(name, _)| name.to_string_lossy().starts_with("FLANNELD_"))
                {
                    command.env_remove(name);
                }
                command.envs(launch.env.iter().map(|(name, value)| (name, value)));
                command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
                command.spawn().with_context(|| format!("starting {}", launch.program.display()))
            };
            scope.spawn(spawn).join()
        });
        let Ok(child) = spawned else {
            bail!("the thread that starts {} panicked", launch.program.display())
        };
        let program = launch.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Process { child: child?, program, log: log.to_owned(), site })
    }

    /// The process ID in the machine's PID namespace.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Fails if the caller has already waited for the end of the process.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid())?);
        kill(pid, signal).with_context(|| format!("sending {signal} to {}", self.program))
    }

    /// Sends SIGSTOP.
    pub fn send_sigstop(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Sends SIGCONT.
    pub fn send_sigcont(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) -> Result<()> {
        // The process may have ended before.
        let _ = self.child.kill();
        self.child.wait().map(drop).with_context(|| format!("waiting for {}", self.program))
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        if self.is_running() {
            self.signal(Signal::SIGTERM)?;
        }
        self.wait()
    }

    /// Waits until the process ends by itself.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let wait = Wait::start();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            wait.pause_or_time_out(&format!("{} ends", self.program))?;
        }
    }

    /// Also contains the output of earlier processes with this log name.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub fn log_tail(&self, count: usize) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
    }

    /// Processor time that the process has used.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let fields = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest)
            .context("an unknown form of /proc/PID/stat")?;
        // Fields 14 and 15 of proc_pid_stat(5), in ticks. A tick is 1/100 s on every architecture that Rust supports.
        let ticks: f64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<f64>().ok())
            .sum();
        Ok(ticks / 100.0)
    }

    /// Resident, in bytes.
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

/// Gives the calling thread, and therefore its children, a host name, `/sys`, `/run` and [`PLACES`] of its own.
fn unshare_mounts_and_hostname(machine: &Machine) -> Result<()> {
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    // Containers may forbid this mount. Then /sys/class/net shows the outer interfaces, which the daemon does not read.
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

/// Makes a folder of the calling thread read-only, with the mounts in it.
fn make_folder_read_only(folder: &str) -> Result<()> {
    const NONE: Option<&str> = None;
    mount(Some(folder), folder, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
    let within = PLACES.into_iter().filter(|place| place.starts_with(folder));
    for place in within.filter(|place| Path::new(place).is_dir()).chain([folder]) {
        mount(
            NONE,
            place,
            NONE,
            MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY,
            NONE,
        )?;
    }
    Ok(())
}

/// Replaces the parent of kubelet's folder with one of the host's own, with links to all its entries except kubelet's folder.
fn hide_kubelet(places: &Path) -> Result<()> {
    const NONE: Option<&str> = None;
    let (parent, kubelet) = KUBELET;
    let (links, machine) = (places.join("links"), places.join("machine"));
    std::fs::create_dir_all(&links)?;
    std::fs::create_dir_all(&machine)?;
    mount(Some(parent), &machine, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
    mount(NONE, &machine, NONE, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, NONE)?;
    for entry in std::fs::read_dir(&machine)?.flatten().filter(|entry| entry.file_name() != kubelet)
    {
        // Another process of the host may have made the link before.
        let _ = symlink(entry.path(), links.join(entry.file_name()));
    }
    mount(Some(&links), parent, NONE, MsFlags::MS_BIND, NONE)
        .with_context(|| format!("mounting {parent}"))
}
