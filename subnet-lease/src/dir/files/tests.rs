use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const KEY: &str = "10.5.1.0-24";
const VALUE: &str = r#"{"PublicIP":"192.168.56.101","PublicIPv6":null}"#;

struct Bed {
    folder: tempfile::TempDir,
    files: Files,
}

fn bed() -> Bed {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("leases");
    fs::create_dir_all(root.join("subnets")).unwrap();
    fs::write(root.join("config"), "{}").unwrap();
    let files = Files::new(root);
    files.config().unwrap();
    Bed { folder, files }
}

impl Bed {
    fn root(&self) -> &Path {
        self.files.root.path()
    }

    fn put(&self) -> Result<Answer, DirError> {
        let write = [Write::Put { key: KEY.to_owned(), value: VALUE.to_owned(), lease: 0 }];
        self.files.txn(&[], &write, KEY)
    }

    /// Because the directory is unavailable.
    fn fails_as_unavailable(&self, why: &str) {
        let asked = [
            self.files.present(),
            self.files.list(None).map(drop),
            self.files.last_seen(KEY).map(drop),
            self.files.touch(KEY).map(drop),
            self.put().map(drop),
            self.files.mark_of(KEY, &Watch::none()).map(drop),
        ];
        for asked in asked {
            let Some(text) = failure_text(&asked, true) else { panic!("{why}: {asked:?}") };
            assert!(text.contains(why), "{text}");
        }
    }
}

/// Text of an error that makes the directory unavailable. With `unavailable` false, only of an error that affects one operation.
fn failure_text<T>(done: &Result<T, DirError>, unavailable: bool) -> Option<String> {
    match done {
        Err(DirError::Unavailable(why)) if unavailable => Some(why.to_string()),
        Err(DirError::Failed(why)) if !unavailable => Some(why.to_string()),
        _ => None,
    }
}

fn fifo(path: &Path) {
    nix::unistd::mkfifo(path, Mode::from_bits_truncate(0o644)).unwrap();
}

#[test]
fn missing_directory_is_neither_read_nor_created() {
    let bed = bed();
    bed.put().unwrap();
    let aside = bed.folder.path().join("aside");
    fs::rename(bed.root(), &aside).unwrap();
    bed.fails_as_unavailable("does not exist");
    assert!(!bed.root().exists());
    // An empty mount point.
    fs::create_dir(bed.root()).unwrap();
    bed.fails_as_unavailable("a directory without a config");
    assert_eq!(fs::read_dir(bed.root()).unwrap().count(), 0);
    // Another directory that could be mistaken for the original one.
    fs::write(bed.root().join("config"), "{}").unwrap();
    bed.fails_as_unavailable("restart flanneld");
    assert_eq!(fs::read_dir(bed.root()).unwrap().count(), 1);
    fs::remove_dir_all(bed.root()).unwrap();
    fs::rename(&aside, bed.root()).unwrap();
    assert_eq!(bed.files.list(None).unwrap().listing.entries.len(), 1);
    assert!(bed.files.touch(KEY).unwrap());
}

#[test]
fn a_configuration_is_a_regular_file() {
    let bed = bed();
    let config = bed.root().join("config");
    let fresh = Files::new(bed.root().to_owned());
    let fails = |why: &str| {
        bed.fails_as_unavailable(why);
        // No directory was recorded yet, so a missing configuration is awaited.
        assert!(failure_text(&fresh.config(), false).is_some());
    };
    fs::remove_file(&config).unwrap();
    fails("no longer has a config");
    fifo(&config);
    fails("not a regular file");
    fs::remove_file(&config).unwrap();
    symlink("/etc/passwd", &config).unwrap();
    fails("not a regular file");
    fs::remove_file(&config).unwrap();
    fs::write(&config, "{}").unwrap();
    assert_eq!(fresh.config(), Ok(b"{}".to_vec()));
}

#[test]
fn links_pipes_and_folders_are_no_leases_and_are_named() {
    let bed = bed();
    let subnets = bed.root().join("subnets");
    let secret = bed.folder.path().join("secret");
    fs::write(&secret, "root:x:0:0").unwrap();
    symlink(&secret, subnets.join("10.5.1.0-24")).unwrap();
    fifo(&subnets.join("10.5.2.0-24"));
    fs::create_dir(subnets.join("10.5.3.0-24")).unwrap();
    symlink("10.5.1.0-24", subnets.join("10.5.4.0-24")).unwrap();
    let whole = bed.files.list(None).unwrap();
    assert_eq!(whole.listing.entries.len(), 4);
    assert!(whole.listing.entries.iter().all(|entry| entry.value.is_empty()));
    assert!(
        whole.flawed["10.5.1.0-24"].to_string().contains("symbolic link")
            && whole.flawed["10.5.2.0-24"].to_string().contains("not a regular file"),
        "{:?}",
        whole.flawed
    );
    let modified = secret.metadata().unwrap().modified().unwrap();
    for key in ["10.5.1.0-24", "10.5.2.0-24", "10.5.3.0-24", "10.5.4.0-24"] {
        assert_eq!(bed.files.touch(key), Ok(false), "{key}");
    }
    assert_eq!(
        secret.metadata().unwrap().modified().unwrap(),
        modified,
        "what a link leads to was touched"
    );
    // A write replaces the link itself. The link's target stays unchanged.
    bed.put().unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "root:x:0:0");
    assert_eq!(fs::read_to_string(subnets.join(KEY)).unwrap(), VALUE);
}

#[test]
fn the_lock_is_a_regular_file() {
    let bed = bed();
    let lock = bed.root().join("subnets/.lock");
    let secret = bed.folder.path().join("secret");
    symlink(&secret, &lock).unwrap();
    assert!(failure_text(&bed.put(), false).unwrap().contains("symbolic link"));
    assert!(!secret.exists());
    fs::remove_file(&lock).unwrap();
    fifo(&lock);
    assert!(failure_text(&bed.put(), false).unwrap().contains("regular"));
    // The directory of the leases must not be a link either.
    fs::remove_dir_all(bed.root().join("subnets")).unwrap();
    symlink(bed.folder.path(), bed.root().join("subnets")).unwrap();
    assert!(failure_text(&bed.put(), true).unwrap().contains("subnets"));
}

#[test]
fn temporary_files_alone_are_removed_after_a_kill() {
    let bed = bed();
    let subnets = bed.root().join("subnets");
    let ours = [".10.5.7.0-24.0123456789abcdef", ".10.5.7.0-24&fd00:5::-64.fedcba9876543210"];
    let others = [
        ".10.5.7.0-24.0123456789abcde",
        ".10.5.7.0-24.0123456789ABCDEF",
        ".notes.0123456789abcdef",
        ".10.5.7.0-24",
        ".hand",
    ];
    for name in ours.iter().chain(&others) {
        fs::write(subnets.join(name), "").unwrap();
    }
    symlink("/etc/passwd", subnets.join(".10.5.8.0-24.0123456789abcdef")).unwrap();
    bed.put().unwrap();
    for name in ours {
        assert!(!subnets.join(name).exists(), "{name}");
    }
    for name in others {
        assert!(subnets.join(name).exists(), "{name}");
    }
    assert!(
        subnets.join(".10.5.8.0-24.0123456789abcdef").symlink_metadata().is_ok(),
        "a link is not ours"
    );
}

#[test]
fn second_node_with_an_address_is_refused_until_it_has_seen_the_first() {
    let bed = bed();
    let public = |ip: &str| Addresses::from_options(Some(ip.parse().unwrap()), None).unwrap();
    let known = || -> Arc<BTreeSet<String>> {
        let listing = bed.files.list(None).unwrap().listing;
        Arc::new(listing.entries.into_iter().map(|entry| entry.key).collect())
    };
    let create = |key: &str, ip: &str, rank: i64, known: &Arc<BTreeSet<String>>| {
        let value = format!(
            r#"{{"PublicIP":"{ip}","NodeID":{{"id":"{key}","name":"n","instance":"0","rank":{rank}}}}}"#
        );
        let write = [Write::Put { key: key.to_owned(), value, lease: 0 }];
        let compare = Compare::NoneElseAt { known: Arc::clone(known), public: public(ip) };
        bed.files.txn(&[compare], &write, key)
    };
    // Both list the leases before either writes. The clock of the first writer may be ahead or behind.
    for (number, rank) in [(1, 1), (2, i64::MAX)] {
        let (first, second) = (format!("10.5.{number}.0-24"), format!("10.5.1{number}.0-24"));
        let ip = format!("10.0.2.{number}");
        let listed = known();
        create(&first, &ip, rank, &listed).unwrap();
        let overtaken = create(&second, &ip, 5, &listed);
        assert!(
            matches!(&overtaken, Err(DirError::Failed(why)) if why.code == "directory-overtaken"),
            "{overtaken:?}"
        );
        // It decides anew with the other lease in view, which is not this condition's task.
        create(&second, &ip, 5, &known()).unwrap();
        // Nodes with other addresses start at once.
        create(&format!("10.5.2{number}.0-24"), "10.0.9.9", 5, &known()).unwrap();
        let other = format!("10.0.8.{number}");
        create(&format!("10.5.3{number}.0-24"), &other, 5, &listed).unwrap();
    }
}

#[test]
fn lock_is_closed_to_other_users_who_could_hold_it_by_reading() {
    let bed = bed();
    let lock = bed.root().join("subnets").join(LOCK);
    for left in [None, Some(0o644)] {
        if let Some(mode) = left {
            fs::set_permissions(&lock, Permissions::from_mode(mode)).unwrap();
        }
        bed.put().unwrap();
        assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600, "{left:?}");
    }
}
