//! Runs the delegate from a folder of `CNI_PATH`, with this process's environment and a configuration on
//! standard input.

#![allow(unsafe_code)]

use crate::attachment::Attachment;
use crate::call::Verb;
use crate::error::{CniError, INTERNAL, IO_FAILURE};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// Attempts to start the delegate while another process writes its file.
const MAX_ATTEMPTS: u32 = 50;
/// Between two attempts to start the delegate.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// One call of the delegate.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// The file name, without a folder.
    pub program: &'a str,
    pub verb: Verb,
    /// For `CNI_CONTAINERID` and `CNI_IFNAME`.
    pub attachment: &'a Attachment,
    /// `CNI_NETNS`. May be empty.
    pub netns: &'a str,
    /// JSON for standard input.
    pub netconf: &'a [u8],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DelegateError {
    NotFound(CniError),
    /// It made no change.
    NotStarted(CniError),
    /// It may have left an interface or an address.
    Failed(CniError),
}

impl DelegateError {
    /// The CNI error to report to the runtime.
    pub fn into_error(self) -> CniError {
        match self {
            DelegateError::NotFound(error)
            | DelegateError::NotStarted(error)
            | DelegateError::Failed(error) => error,
        }
    }
}

/// Tests implement this trait with a model of the delegate.
pub trait Delegate {
    /// The delegate's standard output. An error is the CNI error that a failed delegate printed.
    fn call(&self, order: &Order<'_>) -> Result<Vec<u8>, DelegateError>;
}

/// Runs delegates from the folders of `CNI_PATH`.
#[derive(Clone, Debug)]
pub struct Programs(Vec<PathBuf>);

impl Programs {
    /// Splits the value of `CNI_PATH`; empty names are ignored.
    pub fn new(path: &std::ffi::OsStr) -> Self {
        Self(std::env::split_paths(path).filter(|folder| !folder.as_os_str().is_empty()).collect())
    }

    fn find(&self, name: &str) -> Result<PathBuf, CniError> {
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            return Err(CniError::new(INTERNAL, format!("invalid plugin name {name:?}")));
        }
        let found = self.0.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        found.ok_or_else(|| {
            let why = "install the reference plugins (bridge, host-local, loopback, portmap) in the same folder as flannel";
            CniError::new(INTERNAL, format!("failed to find plugin {name:?} in path {:?}", self.0)).details(why)
        })
    }
}

impl Delegate for Programs {
    fn call(&self, order: &Order<'_>) -> Result<Vec<u8>, DelegateError> {
        let program = self.find(order.program).map_err(DelegateError::NotFound)?;
        let broken = |what: &str, error: &io::Error| {
            CniError::new(IO_FAILURE, format!("{what} {}: {error}", program.display()))
        };
        // Files instead of pipes: they cannot block, in whatever order they are read and written, and even if the delegate leaves a process running.
        let (input, mut output) = memory(order.netconf)
            .and_then(|input| Ok((input, memory(&[])?)))
            .map_err(|error| DelegateError::NotStarted(broken("creating the files for", &error)))?;
        let mut command = Command::new(&program);
        command.env("CNI_COMMAND", order.verb.as_str());
        let Attachment { container, interface } = order.attachment;
        for (name, value) in [
            ("CNI_CONTAINERID", container.as_str()),
            ("CNI_IFNAME", interface),
            ("CNI_NETNS", order.netns),
        ] {
            if value.is_empty() {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        let started = input
            .try_clone()
            .and_then(|input| Ok((input, output.try_clone()?)))
            .and_then(|(input, output)| {
                command.stdin(input).stdout(output);
                die_together(&mut command);
                start(&mut command)
            });
        let mut child =
            started.map_err(|error| DelegateError::NotStarted(broken("starting", &error)))?;
        let status =
            child.wait().map_err(|error| DelegateError::Failed(broken("waiting for", &error)))?;
        let mut printed = Vec::new();
        output
            .rewind()
            .and_then(|()| output.read_to_end(&mut printed))
            .map_err(|error| DelegateError::Failed(broken("reading the output of", &error)))?;
        if status.success() {
            Ok(printed)
        } else {
            Err(DelegateError::Failed(failure(order.program, status, &printed)))
        }
    }
}

/// A file in memory (memfd), at its start.
fn memory(contents: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"cni", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(contents)?;
    file.rewind()?;
    Ok(file)
}

/// The kernel kills the delegate when this process ends. A runtime kills us after a timeout and may call DEL
/// at once, while the delegate is still running.
fn die_together(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let arm = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the child armed the signal.
        if nix::unistd::getppid() == parent {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
    };
    // SAFETY: between fork and exec, the closure only makes two system calls and allocates nothing.
    unsafe { command.pre_exec(arm) };
}

/// Tries again while another process writes the delegate's file.
fn start(command: &mut Command) -> io::Result<Child> {
    let mut attempts = 1;
    loop {
        match command.spawn() {
            Err(error)
                if error.raw_os_error() == Some(libc::ETXTBSY) && attempts < MAX_ATTEMPTS =>
            {
                std::thread::sleep(RETRY_INTERVAL);
            }
            outcome => return outcome,
        }
        attempts += 1;
    }
}

/// The error for a failed delegate, from its output.
fn failure(program: &str, status: ExitStatus, printed: &[u8]) -> CniError {
    CniError::read(printed).unwrap_or_else(|| {
        let text: String = String::from_utf8_lossy(printed).chars().take(500).collect();
        CniError::new(INTERNAL, format!("plugin {program} failed without a CNI error: {status}"))
            .details(text.trim())
    })
}
