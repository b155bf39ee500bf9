//! An installation either installs the whole file or leaves the destination unchanged.

use super::*;
use std::os::unix::fs::MetadataExt;

fn left(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn install_copies_content_and_mode_and_leaves_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let (source, folder) = (root.path().join("source"), root.path().join("bin"));
    std::fs::create_dir(&folder).unwrap();
    let destination = folder.join("flannel");
    for (content, mode) in
        [("first", 0o755), ("second, longer than the first", 0o644), ("3", 0o4755)]
    {
        std::fs::write(&source, content).unwrap();
        std::fs::set_permissions(&source, std::fs::Permissions::from_mode(mode)).unwrap();
        install(&source, &destination).unwrap();
        assert_eq!(std::fs::read_to_string(&destination).unwrap(), content);
        assert_eq!(destination.metadata().unwrap().mode() & 0o7777, mode);
        assert_eq!(left(&folder), ["flannel"]);
    }
}

#[test]
fn open_old_file_stays_readable() {
    let root = tempfile::tempdir().unwrap();
    let (source, destination) = (root.path().join("source"), root.path().join("flannel"));
    std::fs::write(&destination, "old").unwrap();
    std::fs::write(&source, "new").unwrap();
    let mut open = File::open(&destination).unwrap();
    install(&source, &destination).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(
        (text.as_str(), std::fs::read_to_string(&destination).unwrap().as_str()),
        ("old", "new")
    );
}

#[test]
fn link_is_replaced_and_its_target_kept() {
    let root = tempfile::tempdir().unwrap();
    let [source, target, link] = ["source", "target", "link"].map(|name| root.path().join(name));
    std::fs::write(&source, "new").unwrap();
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    install(&source, &link).unwrap();
    assert!(link.symlink_metadata().unwrap().is_file());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
}

#[test]
fn failure_names_the_file_and_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (source, destination) = (root.path().join("source"), root.path().join("folder"));
    std::fs::write(&source, "x").unwrap();
    // A rename cannot replace a folder that is not empty.
    std::fs::create_dir_all(destination.join("full")).unwrap();
    let text = install(&source, &destination).unwrap_err().to_string();
    assert!(
        text.starts_with(&format!(
            "error installing {destination:?}: writing the file through the temporary file "
        )),
        "{text}"
    );
    assert_eq!(left(root.path()), ["folder", "source"]);

    let cases = [
        (root.path().join("none"), destination.clone(), "reading ", "install-read"),
        (
            root.path().to_owned(),
            destination.clone(),
            "not a regular file",
            "install-source-not-regular",
        ),
        (
            source.clone(),
            PathBuf::from("/"),
            "not the path of a file",
            "install-destination-not-a-file",
        ),
    ];
    for (source, destination, part, code) in cases {
        let error = install(&source, &destination).unwrap_err();
        assert!(error.to_string().contains(part) && error.code() == code, "{error:?}");
    }
    let text = install(&source, &root.path().join("no/such/file")).unwrap_err().to_string();
    assert!(
        text.contains("creating a temporary file")
            && text.ends_with("check that the volume is mounted"),
        "{text}"
    );
}

#[test]
fn killed_installers_leave_at_most_one_file() {
    let root = tempfile::tempdir().unwrap();
    let (source, destination) = (root.path().join("source"), root.path().join("flannel"));
    std::fs::write(&source, "new").unwrap();
    for _ in 0..=ATTEMPTS {
        // A killed installer has neither renamed nor removed its file.
        let (mut file, _) = create_temporary(&destination).unwrap();
        file.write_all(b"half of a file that is longer").unwrap();
    }
    assert_eq!(left(root.path()), [".flannel.tmp1-0", "source"]);
    install(&source, &destination).unwrap();
    assert_eq!(left(root.path()), ["flannel", "source"]);
    assert_eq!(std::fs::read_to_string(&destination).unwrap(), "new");
}

#[test]
fn installers_that_run_at_once_have_files_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let destination = root.path().join("flannel");
    std::os::unix::fs::symlink("target", root.path().join(".flannel.tmp1-1")).unwrap();
    let first = create_temporary(&destination).unwrap();
    let second = create_temporary(&destination).unwrap();
    assert!(
        first.1.ends_with(".flannel.tmp1-0") && second.1.ends_with(".flannel.tmp1-2"),
        "{first:?} {second:?}"
    );
    assert!(!root.path().join("target").exists());
    // An installer that opened a file before it was renamed must not write into the installed file.
    std::fs::rename(&first.1, &destination).unwrap();
    let third = create_temporary(&destination).unwrap();
    assert_eq!(third.1, first.1);
    assert_ne!(third.0.metadata().unwrap().ino(), first.0.metadata().unwrap().ino());
}
