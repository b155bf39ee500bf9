//! The exit report: a file next to subnet.env in which a daemon records when, with which exit code, and why it ended.

use crate::replace::{create, replace};
use crate::status_file;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use types::Problem;
use types::file::{self, Links};
use types::printable;

/// In bytes. flanneld never writes a longer file.
const MAX_FILE: u64 = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitReport {
    /// Time at which the daemon ended.
    pub at: Timestamp,
    /// `--help` explains the codes.
    pub code: u8,
    pub text: String,
    /// As `--version` prints it.
    pub version: String,
    /// Absent if the daemon ended on request.
    pub problem: Option<Problem>,
    pub choice: Option<Choice>,
}

/// Underlay interface that a daemon chose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    pub interface: String,
    /// One per address family.
    pub addresses: Vec<IpAddr>,
    /// As a phrase: `named by --iface=eth1`.
    pub why: String,
    /// Flag that named the interface: `--iface=eth1`.
    pub flag: Option<String>,
    /// Whether a flag or an environment variable named the interface or its address.
    pub named: bool,
}

/// The path of the exit report that belongs to a subnet.env.
pub fn path(subnet_file: &Path) -> PathBuf {
    let mut path = subnet_file.as_os_str().to_owned();
    path.push(".ended");
    path.into()
}

/// Writes nothing while another daemon with this subnet.env is running.
pub fn write(subnet_file: &Path, words: &ExitReport) -> io::Result<()> {
    if status_file::lives(subnet_file) {
        return Ok(());
    }
    let words = ExitReport { text: printable::lines(&words.text).into_owned(), ..words.clone() };
    replace(&path(subnet_file), |temporary| {
        // The report may quote the store, as the log does, so only root may read it.
        let mut file = create(temporary)?;
        file.write_all(format!("{}\n", serde_json::to_string(&words)?).as_bytes())
    })
}

/// `None` if no report exists. An unreadable file or one that is not an exit report is an error.
pub fn read(subnet_file: &Path) -> io::Result<Option<ExitReport>> {
    match file::read(&path(subnet_file), MAX_FILE, Links::Refused) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A daemon calls this once it is ready.
pub fn remove(subnet_file: &Path) {
    let path = path(subnet_file);
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(path = %path.display(), error = %error, "cannot remove the exit report");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status_file::{Status, Writer};
    use std::os::unix::fs::PermissionsExt;

    fn words(text: &str) -> ExitReport {
        ExitReport {
            at: "2026-01-02T03:04:05Z".parse().unwrap(),
            code: 1,
            text: text.to_owned(),
            version: "1.2.3".to_owned(),
            problem: None,
            choice: None,
        }
    }

    #[test]
    fn exit_report_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("flannel/subnet.env");
        assert_eq!(read(&env).unwrap(), None);
        write(&env, &words("the address is taken\nby \u{1b}[31mnode-2")).unwrap();
        let report = read(&env).unwrap().unwrap();
        assert!(
            report.text.starts_with("the address is taken\nby ") && !report.text.contains('\u{1b}'),
            "{report:?}"
        );
        assert_eq!(ExitReport { text: String::new(), ..report }, words(""));
        assert_eq!(std::fs::metadata(path(&env)).unwrap().permissions().mode() & 0o777, 0o600);
        write(&env, &words("again")).unwrap();
        assert_eq!(read(&env).unwrap().unwrap().text, "again");
        assert_eq!(
            std::fs::read_dir(folder.path().join("flannel")).unwrap().count(),
            1,
            "no temporary file remains"
        );
        remove(&env);
        remove(&env);
        assert_eq!(read(&env).unwrap(), None);
    }

    #[test]
    fn refused_second_daemon_writes_no_exit_report() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("subnet.env");
        let mut living = Writer::new(&env);
        living.put(&Status::default()).unwrap();
        write(&env, &words("another flanneld runs")).unwrap();
        assert_eq!(read(&env).unwrap(), None);
        drop(living);
        write(&env, &words("stopped")).unwrap();
        assert_eq!(read(&env).unwrap().unwrap().text, "stopped");
    }

    #[test]
    fn malformed_exit_reports_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("subnet.env");
        for text in ["", "{", "{}", "[1]", "\0"] {
            std::fs::write(path(&env), text).unwrap();
            read(&env).unwrap_err();
        }
        std::fs::remove_file(path(&env)).unwrap();
        nix::unistd::mkfifo(&path(&env), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        read(&env).unwrap_err();
    }
}
