//! Removes the files that flannel left on a node: subnet.env, the files next to it, and the CNI plugin's
//! state files.

use std::fs::{read_dir, remove_dir, remove_file};
use std::io;
use std::path::Path;

use run_dir::instance::lock_path;
use run_dir::instance::taken::slot_path;
use run_dir::{api_socket, exit_report, status_file, subnet_env};
use types::file::{IrregularFileError, Links, read};

use super::report::Report;

/// In bytes.
const LIMIT: u64 = 64 * 1024;

/// In bytes.
const STATE_LIMIT: u64 = 1024 * 1024;

fn is_too_long(error: &io::Error) -> bool {
    let why = error.get_ref().and_then(|why| why.downcast_ref());
    matches!(why, Some(IrregularFileError::TooLong(_)))
}

/// Removes a subnet.env with the daemon's files next to it and temporary files of a crashed daemon. The
/// directory goes too if it is named `flannel` and is empty.
pub(super) fn subnet_env(file: &Path, report: &mut Report) {
    match read(file, LIMIT, Links::Refused) {
        Ok(bytes) if !bytes.is_empty() && !String::from_utf8_lossy(&bytes).contains("FLANNEL_") => {
            return report.kept(&format!(
                "file {}: the contents are not flannel's; to remove the file, run rm {}",
                file.display(),
                file.display()
            ));
        }
        Ok(_) => remove(file, report),
        Err(error) if absent(&error) => {}
        Err(error) if is_too_long(&error) => {
            return report
                .kept(&format!("file {}: the contents are not flannel's", file.display()));
        }
        Err(error) => report.complaint(format!("cannot read file {}: {error}", file.display())),
    }
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let companions = [
        lock_path(file),
        slot_path(file),
        status_file::path(file),
        api_socket::path(file),
        exit_report::path(file),
        subnet_env::former_path(file),
    ];
    let mut others = false;
    for entry in read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let ours = |of: &Path| is_temporary(of, &name.to_string_lossy());
        if companions.contains(&path) || ours(file) || companions.iter().any(|of| ours(of)) {
            remove(&path, report);
        } else {
            others |= path != file;
        }
    }
    let own = folder.file_name().is_some_and(|name| name == "flannel");
    if own && !others && folder.is_dir() {
        let what = format!("directory {}", folder.display());
        if report.dry_run {
            return report.removed(&what);
        }
        match remove_dir(folder) {
            Ok(()) => report.removed(&what),
            // The directory is a mount point, or contains a file whose failed removal has already been reported.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty
                ) => {}
            Err(error) => report.complaint(format!("cannot remove {what}: {error}")),
        }
    }
}

/// True for the temporary files of flannel-rs and of Go flannel.
fn is_temporary(file: &Path, name: &str) -> bool {
    name == ".subnet.env" || subnet_env::is_temporary(file, name)
}

/// Removes the CNI plugin's state files in `folder`.
pub(super) fn cni(folder: &Path, report: &mut Report) {
    let entries = match read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if absent(&error) => return,
        Err(error) => {
            return report
                .complaint(format!("cannot read directory {}: {error}", folder.display()));
        }
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if is_of_cni_plugin(&path) {
            remove(&path, report);
        } else {
            report.kept(&format!("{}: the CNI plugin creates no such file", path.display()));
        }
    }
}

/// Whether flannel's CNI plugin wrote a file: the configuration of a delegate, which names its plugin, or the
/// empty mark of an unfinished ADD.
fn is_of_cni_plugin(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    match read(file, STATE_LIMIT, Links::Refused) {
        Ok(bytes) if bytes.is_empty() => name.starts_with(['+', '.']),
        Ok(bytes) => serde_json::from_slice::<serde_json::Map<_, _>>(&bytes)
            .is_ok_and(|conf| conf.contains_key("type") && conf.contains_key("ipam")),
        Err(_) => false,
    }
}

fn remove(file: &Path, report: &mut Report) {
    let what = format!("file {}", file.display());
    if report.dry_run {
        return report.removed(&what);
    }
    match remove_file(file) {
        Ok(()) => report.removed(&what),
        Err(error) if absent(&error) => {}
        Err(error) => report.complaint(format!("cannot remove {what}: {error}")),
    }
}

fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The names of all files and directories below a directory.
    fn left(folder: &Path) -> Vec<String> {
        let mut out = Vec::new();
        for entry in read_dir(folder).unwrap().flatten() {
            out.push(entry.file_name().to_string_lossy().into_owned());
            if entry.path().is_dir() {
                out.extend(left(&entry.path()));
            }
        }
        out.sort();
        out
    }

    fn bed() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("flannel");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("subnet.env"), "FLANNEL_NETWORK=10.5.0.0/16\n").unwrap();
        for name in [
            ".subnet.env.lock",
            ".subnet.env",
            ".subnet.env0123456789abcdef",
            "subnet.env.status",
            ".subnet.env.status0123456789abcdef",
            "subnet.env.sock",
            "subnet.env.ended",
            "subnet.env.slot",
        ] {
            fs::write(folder.join(name), "").unwrap();
        }
        root
    }

    #[test]
    fn folder_is_removed_when_empty() {
        let root = bed();
        let file = root.path().join("flannel/subnet.env");
        let before = left(root.path());
        let mut dry = Report { dry_run: true, ..Report::default() };
        subnet_env(&file, &mut dry);
        assert_eq!((left(root.path()), dry.removed), (before, 10));
        let mut report = Report::default();
        subnet_env(&file, &mut report);
        assert_eq!((left(root.path()), report.removed, report.complaints), (vec![], 10, 0));
        let mut again = Report::default();
        subnet_env(&file, &mut again);
        assert_eq!((again.removed, again.complaints), (0, 0));
    }

    #[test]
    fn foreign_files_stay() {
        let root = bed();
        let folder = root.path().join("flannel");
        fs::write(folder.join("other.env"), "FLANNEL_NETWORK=10.6.0.0/16\n").unwrap();
        fs::write(folder.join(".subnet.environment"), "x").unwrap();
        subnet_env(&folder.join("subnet.env"), &mut Report::default());
        assert_eq!(left(root.path()), [".subnet.environment", "flannel", "other.env"]);
        let mine = root.path().join("mine.txt");
        fs::write(&mine, "PATH=/bin\n").unwrap();
        subnet_env(&mine, &mut Report::default());
        assert!(mine.exists(), "a file without flannel's keys is not flannel's");
    }

    #[test]
    fn cni_cleanup_removes_only_what_the_plugin_wrote() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("folder")).unwrap();
        let state = r#"{"cniVersion":"1.0.0","type":"bridge","ipam":{"type":"host-local"}}"#;
        for (name, text) in [
            ("0123abcd", state),
            ("+0123abcd", ""),
            ("passwd", "root:x:0:0::/root:/bin/sh\n"),
            ("empty", ""),
            ("other.json", r#"{"name":"x"}"#),
        ] {
            fs::write(root.path().join(name), text).unwrap();
        }
        let mut report = Report::default();
        cni(root.path(), &mut report);
        assert_eq!(
            (left(root.path()), report.removed),
            (["empty", "folder", "other.json", "passwd"].map(str::to_owned).into(), 2)
        );
        cni(&root.path().join("absent"), &mut report);
        assert_eq!(report.complaints, 0);
    }
}
