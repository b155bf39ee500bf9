//! The status file next to subnet.env: whether the daemon is ready, and whether pods can start. The CNI plugin reads it.
//!
//! The daemon holds a lock on the file for life. A file whose lock is free was left by a dead daemon; unlike a pid, this holds across the
//! pid namespaces of containers. Go flannel writes no such file.

use crate::subnet_env::{self, temporary_prefix};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use rand::Rng;
use serde_json::{Value, json};
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use types::problem::text;
use types::{Coded, Problem};

/// The longest file that is read, in bytes: a longer one is not ours.
const MAX_FILE: u64 = 1024 * 1024;

/// A condition that is not met, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The name of the condition.
    pub condition: String,
    /// Why it is not met, as text.
    pub reason: String,
    /// Why it is not met, as a value; earlier versions wrote only the text.
    pub problem: Option<Problem>,
}

impl Reason {
    /// Creates a reason from a condition and the problem that keeps it from being met.
    pub fn new(condition: impl Into<String>, problem: Problem) -> Self {
        Self {
            condition: condition.into(),
            reason: problem.to_string(),
            problem: Some(problem),
        }
    }

    /// Returns why it is not met. For a file of an earlier version, this is only the text.
    pub fn why(&self) -> Problem {
        self.problem
            .clone()
            .unwrap_or_else(|| Problem::in_words(&self.reason))
    }

    /// Returns the object for the file. The plugin reads `condition` and `reason`.
    fn json(&self) -> Value {
        let mut object = json!({ "condition": self.condition, "reason": self.reason });
        if let (Some(problem), Some(fields)) = (
            self.problem
                .as_ref()
                .and_then(|problem| serde_json::to_value(problem).ok()),
            object.as_object_mut(),
        ) {
            fields.insert("problem".to_owned(), problem);
        }
        object
    }

    fn read(object: &Value) -> Self {
        let text = |name: &str| {
            object
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let problem = object
            .get("problem")
            .and_then(|problem| serde_json::from_value(problem.clone()).ok());
        Self {
            condition: text("condition"),
            reason: text("reason"),
            problem,
        }
    }
}

/// A condition and a text.
impl<C: Into<String>, T: Into<String>> From<(C, T)> for Reason {
    fn from((condition, reason): (C, T)) -> Self {
        Self {
            condition: condition.into(),
            reason: reason.into(),
            problem: None,
        }
    }
}

/// The status of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The conditions that keep it from being ready, and why. Empty if it is.
    pub reasons: Vec<Reason>,
    /// The version of the program.
    pub version: String,
    /// The name of this node's device and the hardware address that it publishes, to which peers send also while no daemon runs here.
    pub vtep: Option<(String, String)>,
    /// What a new pod needs of this node's network.
    pub pods: Pods,
}

/// What a new pod needs of a node's network. It outlives the daemon, as the network does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// The conditions that keep a new pod from working, and why.
    pub reasons: Vec<Reason>,
    /// The devices that carry packets of pods to other nodes.
    pub devices: Vec<String>,
}

impl Status {
    fn render(&self) -> String {
        let list =
            |reasons: &[Reason]| -> Vec<Value> { reasons.iter().map(Reason::json).collect() };
        let pods = json!({ "reasons": list(&self.pods.reasons), "devices": self.pods.devices });
        let (ready, reasons) = (self.reasons.is_empty(), list(&self.reasons));
        let mut status = json!({ "ready": ready, "reasons": reasons, "pid": std::process::id(), "version": self.version, "pods": pods });
        if let (Some((device, mac)), Some(fields)) = (&self.vtep, status.as_object_mut()) {
            fields.insert("vtep".to_owned(), json!({ "device": device, "mac": mac }));
        }
        format!("{status}\n")
    }
}

/// Returns the path of the status file that belongs to a subnet.env.
pub fn path(subnet_file: &Path) -> PathBuf {
    let mut path = subnet_file.as_os_str().to_owned();
    path.push(".status");
    path.into()
}

/// Why the file could not be written.
#[derive(Debug)]
pub enum StatusError {
    /// Another running daemon wrote it.
    Held(PathBuf),
    /// A system call failed.
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system call.
        why: io::Error,
    },
}

impl Coded for StatusError {
    fn code(&self) -> &'static str {
        match self {
            Self::Held(_) => "status-file-held",
            Self::Write { .. } => "status-file-write",
        }
    }
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(f, self, |f| match self {
            Self::Held(path) => write!(f, "another flanneld holds {}", path.display()),
            Self::Write { path, why } => write!(
                f,
                "writing {}: {why}; the CNI plugin judges by subnet.env alone: check the directory's permissions and free space",
                path.display()
            ),
        })
    }
}

impl std::error::Error for StatusError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Held(_) => None,
            Self::Write { why, .. } => Some(why),
        }
    }
}

/// The daemon's side of the file. The file shows that the daemon has ended once this is dropped or the process has died.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    /// The file in place with its lock, and its content.
    current: Option<(Flock<File>, Status)>,
}

impl Writer {
    /// Prepares the file that belongs to a subnet.env. [`Writer::put`] writes it.
    pub fn new(subnet_file: &Path) -> Self {
        Self {
            path: path(subnet_file),
            current: None,
        }
    }

    /// Puts a status in place, unless it is there already.
    ///
    /// # Errors
    /// Another running daemon wrote the file, or a system call fails. The file stays as it is.
    pub fn put(&mut self, status: &Status) -> Result<(), StatusError> {
        let in_place = self.is_in_place();
        if in_place
            && self
                .current
                .as_ref()
                .is_some_and(|(_, said)| said == status)
        {
            return Ok(());
        }
        if !in_place && is_held(&self.path) {
            return Err(StatusError::Held(self.path.clone()));
        }
        if self.current.is_none() {
            // A daemon that was killed while writing left it.
            subnet_env::clear(&self.path);
        }
        let file = self.replace(status).map_err(|why| StatusError::Write {
            path: self.path.clone(),
            why,
        })?;
        // The lock of the old file is given up only now: at any time, the one in place is locked.
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

    fn replace(&self, status: &Status) -> io::Result<Flock<File>> {
        let folder = self
            .path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)?;
        let temporary = folder.join(format!(
            "{}{:016x}",
            temporary_prefix(&self.path),
            rand::rng().random::<u64>()
        ));
        // A user who can read it can lock it, and make a dead daemon look alive.
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        let written = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| io::Error::from(errno))
            .and_then(|mut file| {
                file.write_all(status.render().as_bytes())?;
                std::fs::rename(&temporary, &self.path)?;
                Ok(file)
            });
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }
}

/// The content of the file, and whether the daemon that wrote it is running.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusFile {
    /// Whether a process holds the file.
    pub alive: bool,
    /// The last status of that daemon.
    pub status: Status,
}

/// Reads the file that belongs to a subnet.env; `None` if there is none.
///
/// # Errors
/// The file cannot be read: only root may.
pub fn read(subnet_file: &Path) -> io::Result<Option<StatusFile>> {
    let path = path(subnet_file);
    let bytes = match crate::regular::read(&path, MAX_FILE) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let text = |value: &Value, name: &str| {
        value
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let list = |value: &Value, name: &str| {
        value
            .get(name)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let reasons = |value: &Value| list(value, "reasons").iter().map(Reason::read).collect();
    let vtep = document
        .get("vtep")
        .map(|vtep| (text(vtep, "device"), text(vtep, "mac")));
    let pods = document.get("pods").map(|pods| {
        let devices = list(pods, "devices")
            .iter()
            .filter_map(|device| device.as_str().map(str::to_owned))
            .collect();
        Pods {
            reasons: reasons(pods),
            devices,
        }
    });
    let status = Status {
        reasons: reasons(&document),
        version: text(&document, "version"),
        vtep,
        pods: pods.unwrap_or_default(),
    };
    Ok(Some(StatusFile {
        alive: is_held(&path),
        status,
    }))
}

/// Returns whether a daemon with this subnet.env is running.
pub fn lives(subnet_file: &Path) -> bool {
    is_held(&path(subnet_file))
}

/// Returns whether a process holds the lock of the file.
fn is_held(path: &Path) -> bool {
    let file = crate::regular::open(path, OpenOptions::new().read(true));
    file.is_ok_and(|file| {
        matches!(
            Flock::lock(file, FlockArg::LockSharedNonblock),
            Err((_, Errno::EWOULDBLOCK))
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn status(reason: Option<&str>) -> Status {
        let reasons = reason
            .map(|reason| Reason::from(("lease", reason)))
            .into_iter()
            .collect();
        Status {
            reasons,
            version: "1.2.3".to_owned(),
            ..Status::default()
        }
    }

    #[test]
    fn status_file_is_alive_until_its_writer_ends() {
        let root = tempfile::tempdir().unwrap();
        let env = root.path().join("run/subnet.env");
        let file = path(&env);
        assert_eq!(file, root.path().join("run/subnet.env.status"));
        std::fs::create_dir(root.path().join("run")).unwrap();
        std::fs::write(
            root.path().join("run/.subnet.env.status0123456789abcdef"),
            "{",
        )
        .unwrap();
        let mut writer = Writer::new(&env);
        assert!(!file.exists());
        writer.put(&status(Some("none yet"))).unwrap();
        let said: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let wanted = json!({"ready": false, "reasons": [{"condition": "lease", "reason": "none yet"}], "pid": std::process::id(), "version": "1.2.3",
                   "pods": {"reasons": [], "devices": []}});
        assert_eq!(
            (
                said,
                std::fs::metadata(&file).unwrap().permissions().mode() & 0o777
            ),
            (wanted, 0o600)
        );
        assert_eq!(
            read(&env).unwrap(),
            Some(StatusFile {
                alive: true,
                status: status(Some("none yet"))
            })
        );
        let inode = std::fs::metadata(&file).unwrap().ino();
        writer.put(&status(Some("none yet"))).unwrap();
        assert_eq!(
            std::fs::metadata(&file).unwrap().ino(),
            inode,
            "nothing new, nothing written"
        );
        writer.put(&status(None)).unwrap();
        assert!(
            is_held(&file)
                && std::fs::read_to_string(&file)
                    .unwrap()
                    .contains(r#""ready":true"#)
        );
        let vtep = Some(("flannel.1".to_owned(), "02:00:00:00:00:03".to_owned()));
        let pods = Pods {
            reasons: vec![("rules", "no iptables").into()],
            devices: vec!["flannel.1".to_owned()],
        };
        let with_device = Status {
            vtep,
            pods,
            ..status(None)
        };
        writer.put(&with_device).unwrap();
        drop(writer);
        assert!(file.exists() && !is_held(&file));
        assert_eq!(
            read(&env).unwrap(),
            Some(StatusFile {
                alive: false,
                status: with_device
            })
        );
        assert_eq!(read(&root.path().join("other.env")).unwrap(), None);
        assert_eq!(
            std::fs::read_dir(root.path().join("run")).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn problem_of_a_reason_is_read_back_and_earlier_plugins_still_find_its_text() {
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
        let said = Status {
            reasons: vec![
                Reason::new("kernel", problem.clone()),
                ("store", "silent").into(),
            ],
            ..Status::default()
        };
        Writer::new(&env).put(&said).unwrap();
        let read_back = read(&env).unwrap().unwrap().status;
        assert_eq!(read_back, said);
        assert_eq!(read_back.reasons[0].why(), problem);
        assert_eq!(
            (
                read_back.reasons[1].why().code.as_ref(),
                read_back.reasons[1].why().text.as_str()
            ),
            ("unclassified", "silent")
        );
        let file: Value = serde_json::from_slice(&std::fs::read(path(&env)).unwrap()).unwrap();
        assert_eq!(file["reasons"][0]["reason"], problem.to_string());
        assert_eq!(
            file["reasons"][1],
            json!({ "condition": "store", "reason": "silent" })
        );
        // A problem of a later version is no reason to lose the text.
        std::fs::write(
            path(&env),
            r#"{"reasons":[{"condition":"a","reason":"b","problem":7}]}"#,
        )
        .unwrap();
        assert_eq!(
            read(&env).unwrap().unwrap().status.reasons,
            [("a", "b").into()]
        );
    }

    #[test]
    fn status_file_of_a_running_daemon_is_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        let env = root.path().join("subnet.env");
        let (mut first, mut second) = (Writer::new(&env), Writer::new(&env));
        first.put(&status(None)).unwrap();
        assert!(matches!(
            second.put(&status(Some("second"))),
            Err(StatusError::Held(_))
        ));
        // A deleted file is written again.
        std::fs::remove_file(path(&env)).unwrap();
        first.put(&status(None)).unwrap();
        assert!(is_held(&path(&env)));
        drop(first);
        second.put(&status(Some("second"))).unwrap();
        assert!(
            std::fs::read_to_string(path(&env))
                .unwrap()
                .contains("second")
        );
    }

    #[test]
    fn failed_write_leaves_no_status_file() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("subnet.env.status")).unwrap();
        let error = Writer::new(&root.path().join("subnet.env"))
            .put(&status(None))
            .unwrap_err();
        assert!(matches!(error, StatusError::Write { .. }), "{error}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
