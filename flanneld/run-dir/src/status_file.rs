//! The status file next to subnet.env: whether the daemon is ready, and whether pods can start. The CNI plugin reads
//! it.
//!
//! The daemon holds a lock on it until the daemon ends, so a free lock means that the daemon has ended. Unlike a pid,
//! the lock works across the pid namespaces of containers. Go flannel writes no status file.

use crate::replace::{create, replace};
use crate::subnet_env;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use thiserror::Error;
use types::file::{self, Links};
use types::{Coded, Problem};

/// In bytes. flanneld never writes a longer file.
const MAX_FILE: u64 = 1024 * 1024;

/// A condition that is not met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub condition: String,
    pub reason: String,
    pub problem: Problem,
}

impl Reason {
    pub fn new(condition: impl Into<String>, problem: Problem) -> Self {
        Self { condition: condition.into(), reason: problem.to_string(), problem }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Conditions that keep the daemon from being ready; empty if it is.
    pub reasons: Vec<Reason>,
    pub version: String,
    pub pods: Pods,
}

/// They remain valid after the daemon ends, because the network outlives it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pods {
    /// Conditions that keep a new pod from working.
    pub reasons: Vec<Reason>,
    pub devices: Vec<String>,
}

impl Status {
    fn render(&self) -> String {
        #[derive(Serialize)]
        struct Document<'a> {
            ready: bool,
            pid: u32,
            #[serde(flatten)]
            status: &'a Status,
        }
        let document = serde_json::to_value(Document {
            ready: self.reasons.is_empty(),
            pid: std::process::id(),
            status: self,
        });
        format!("{}\n", document.unwrap_or_default())
    }
}

/// The path of the status file that belongs to a subnet.env.
pub fn path(subnet_file: &Path) -> PathBuf {
    let mut path = subnet_file.as_os_str().to_owned();
    path.push(".status");
    path.into()
}

/// Why the daemon cannot write the status file, which has this path.
#[derive(Debug, Error, Coded)]
pub enum StatusError {
    #[error("another flanneld holds {}", .0.display())]
    #[code("status-file-held")]
    Held(PathBuf),
    #[error(
        "cannot write {}: {why}; check the directory's permissions and free space, because the CNI plugin now relies only on subnet.env",
        .path.display()
    )]
    #[code("status-file-write")]
    Write {
        path: PathBuf,
        #[source]
        why: io::Error,
    },
}

/// The status file, which the daemon writes and locks. Once it drops the [`Writer`] or ends, the free lock shows that
/// it has ended.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    /// The locked file at the path, and its status.
    current: Option<(Flock<File>, Status)>,
}

impl Writer {
    /// [`Writer::put`] writes the file.
    pub fn new(subnet_file: &Path) -> Self {
        Self { path: path(subnet_file), current: None }
    }

    /// Writes nothing if the file already contains this status.
    ///
    /// Fails if another running daemon wrote the file, or if a system call fails. The file then stays unchanged.
    pub fn put(&mut self, status: &Status) -> Result<(), StatusError> {
        let in_place = self.is_in_place();
        if in_place && self.current.as_ref().is_some_and(|(_, written)| written == status) {
            return Ok(());
        }
        if !in_place && is_held(&self.path) {
            return Err(StatusError::Held(self.path.clone()));
        }
        if self.current.is_none() {
            // A daemon that was killed while writing leaves temporary files.
            subnet_env::clear(&self.path);
        }
        // Only root may read the file: a user who can read it can lock it, and make a dead daemon look alive.
        let file = replace(&self.path, |temporary| {
            let mut file = Flock::lock(create(temporary)?, FlockArg::LockExclusiveNonblock)
                .map_err(|(_, errno)| io::Error::from(errno))?;
            file.write_all(status.render().as_bytes())?;
            Ok(file)
        })
        .map_err(|why| StatusError::Write { path: self.path.clone(), why })?;
        // The lock of the old file is released only now, so that the file in place is locked at any time.
        self.current = Some((file, status.clone()));
        Ok(())
    }

    fn is_in_place(&self) -> bool {
        let here = std::fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        let ours = self
            .current
            .as_ref()
            .and_then(|(file, _)| file.metadata().ok())
            .map(|file| (file.dev(), file.ino()));
        here.is_ok_and(|here| ours == Some(here))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusFile {
    /// Whether a process holds the lock of the file.
    pub alive: bool,
    /// The last status of the daemon that wrote the file.
    pub status: Status,
}

/// `None` if no file exists. Only root can read a status file.
pub fn read(subnet_file: &Path) -> io::Result<Option<StatusFile>> {
    let path = path(subnet_file);
    let bytes = match file::read(&path, MAX_FILE, Links::Refused) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(StatusFile {
        alive: is_held(&path),
        // A file that flanneld did not write yields an empty status.
        status: serde_json::from_slice(&bytes).unwrap_or_default(),
    }))
}

/// True if a daemon with this subnet.env is running.
pub fn lives(subnet_file: &Path) -> bool {
    is_held(&path(subnet_file))
}

fn is_held(path: &Path) -> bool {
    let file = file::open(path, OpenOptions::new().read(true), Links::Refused);
    file.is_ok_and(|file| {
        matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::os::unix::fs::PermissionsExt;

    fn status(reason: Option<&str>) -> Status {
        let reasons = reason
            .map(|reason| Reason::new("lease", Problem::in_words(reason)))
            .into_iter()
            .collect();
        Status { reasons, version: "1.2.3".to_owned(), ..Status::default() }
    }

    #[test]
    fn status_file_is_alive_until_its_writer_ends() {
        let root = tempfile::tempdir().unwrap();
        let env = root.path().join("run/subnet.env");
        let file = path(&env);
        assert_eq!(file, root.path().join("run/subnet.env.status"));
        std::fs::create_dir(root.path().join("run")).unwrap();
        std::fs::write(root.path().join("run/.subnet.env.status0123456789abcdef"), "{").unwrap();
        let mut writer = Writer::new(&env);
        assert!(!file.exists());
        writer.put(&status(Some("none yet"))).unwrap();
        let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let problem = Problem::in_words("none yet");
        let wanted = json!({"ready": false, "reasons": [{"condition": "lease", "reason": problem.to_string(), "problem": problem}],
                   "pid": std::process::id(), "version": "1.2.3", "pods": {"reasons": [], "devices": []}});
        assert_eq!(
            (written, std::fs::metadata(&file).unwrap().permissions().mode() & 0o777),
            (wanted, 0o600)
        );
        assert_eq!(
            read(&env).unwrap(),
            Some(StatusFile { alive: true, status: status(Some("none yet")) })
        );
        let inode = std::fs::metadata(&file).unwrap().ino();
        writer.put(&status(Some("none yet"))).unwrap();
        assert_eq!(
            std::fs::metadata(&file).unwrap().ino(),
            inode,
            "the daemon does not write an unchanged status"
        );
        writer.put(&status(None)).unwrap();
        assert!(
            is_held(&file) && std::fs::read_to_string(&file).unwrap().contains(r#""ready":true"#)
        );
        let pods = Pods {
            reasons: vec![Reason::new("rules", Problem::in_words("no iptables"))],
            devices: vec!["flannel.1".to_owned()],
        };
        let with_device = Status { pods, ..status(None) };
        writer.put(&with_device).unwrap();
        drop(writer);
        assert!(file.exists() && !is_held(&file));
        assert_eq!(read(&env).unwrap(), Some(StatusFile { alive: false, status: with_device }));
        assert_eq!(read(&root.path().join("other.env")).unwrap(), None);
        assert_eq!(
            std::fs::read_dir(root.path().join("run")).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn problem_of_a_reason_is_read_back_and_the_plugin_finds_its_text() {
        let root = tempfile::tempdir().unwrap();
        let env = root.path().join("subnet.env");
        let taken = types::Detail::PortTaken {
            number: 8472,
            udp: true,
            purpose: types::problem::PortPurpose::Tunnel,
        };
        let problem = Problem {
            code: "port-taken".into(),
            text: "UDP port 8472 is taken".to_owned(),
            detail: taken,
            parts: Vec::new(),
        };
        let status =
            Status { reasons: vec![Reason::new("kernel", problem.clone())], ..Status::default() };
        Writer::new(&env).put(&status).unwrap();
        assert_eq!(read(&env).unwrap().unwrap().status, status);
        let file: Value = serde_json::from_slice(&std::fs::read(path(&env)).unwrap()).unwrap();
        assert_eq!(file["reasons"][0]["reason"], problem.to_string());
    }

    #[test]
    fn status_file_of_a_running_daemon_is_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        let env = root.path().join("subnet.env");
        let (mut first, mut second) = (Writer::new(&env), Writer::new(&env));
        first.put(&status(None)).unwrap();
        assert!(matches!(second.put(&status(Some("second"))), Err(StatusError::Held(_))));
        // A deleted file is written again.
        std::fs::remove_file(path(&env)).unwrap();
        first.put(&status(None)).unwrap();
        assert!(is_held(&path(&env)));
        drop(first);
        second.put(&status(Some("second"))).unwrap();
        assert!(std::fs::read_to_string(path(&env)).unwrap().contains("second"));
    }

    #[test]
    fn failed_write_leaves_no_status_file() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("subnet.env.status")).unwrap();
        let error = Writer::new(&root.path().join("subnet.env")).put(&status(None)).unwrap_err();
        assert!(matches!(error, StatusError::Write { .. }), "{error}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
