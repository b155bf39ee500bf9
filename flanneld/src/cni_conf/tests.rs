//! Tests when flanneld installs the CNI configuration, and when flanneld leaves it unchanged.

use super::*;

struct Bed {
    root: tempfile::TempDir,
    keeper: CniConfKeeper,
}

impl Bed {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("net.d")).unwrap();
        let conf = CniConf {
            source: root.path().join("cni-conf.json"),
            destination: root.path().join("net.d/10-flannel.conflist"),
        };
        Self { keeper: CniConfKeeper::new(conf, Health::new()), root }
    }

    fn wants(&self, text: &str) {
        std::fs::write(&self.keeper.conf.source, text).unwrap();
    }

    fn has(&mut self) -> Option<String> {
        self.keeper.pass();
        std::fs::read_to_string(&self.keeper.conf.destination).ok()
    }
}

fn refused(bed: &Bed) -> bool {
    bed.keeper.health.reasons().iter().any(|(condition, _)| *condition == Condition::CniConf)
}

#[test]
fn cni_configuration_follows_its_source() {
    let mut bed = Bed::new();
    bed.wants("{\"a\":1}");
    assert_eq!(bed.has().as_deref(), Some("{\"a\":1}"));
    bed.wants("{\"a\":2}");
    assert_eq!(bed.has().as_deref(), Some("{\"a\":2}"));
    std::fs::remove_file(&bed.keeper.conf.destination).unwrap();
    assert_eq!(bed.has().as_deref(), Some("{\"a\":2}"), "what is missing comes back");
    assert!(bed.keeper.trouble.is_empty());
}

#[test]
fn earlier_configuration_is_replaced_and_later_edits_stay() {
    let mut bed = Bed::new();
    std::fs::write(&bed.keeper.conf.destination, "of the last version").unwrap();
    bed.wants("{}");
    assert_eq!(bed.has().as_deref(), Some("{}"));
    std::fs::write(&bed.keeper.conf.destination, "an operator's").unwrap();
    assert_eq!(bed.has().as_deref(), Some("an operator's"));
    assert_eq!(bed.has().as_deref(), Some("an operator's"));
    bed.wants("{\"new\":true}");
    assert_eq!(bed.has().as_deref(), Some("{\"new\":true}"));
}

#[test]
fn node_is_not_ready_when_the_configuration_cannot_be_installed() {
    let mut bed = Bed::new();
    assert_eq!(bed.has(), None);
    assert!(
        bed.keeper.trouble.contains("cannot read the CNI configuration"),
        "{}",
        bed.keeper.trouble
    );
    for (text, part) in
        [("[]", "is not a JSON object"), ("{\"a\":", "is not JSON"), ("", "is not JSON")]
    {
        bed.wants(text);
        assert_eq!(bed.has(), None);
        assert!(bed.keeper.trouble.contains(part), "{}", bed.keeper.trouble);
        assert!(refused(&bed), "{text}");
    }
    bed.wants("{}");
    std::fs::remove_dir(bed.root.path().join("net.d")).unwrap();
    assert_eq!(bed.has(), None);
    assert!(
        bed.keeper.trouble.ends_with("check that the volume is mounted"),
        "{}",
        bed.keeper.trouble
    );
    std::fs::create_dir(bed.root.path().join("net.d")).unwrap();
    assert_eq!(bed.has().as_deref(), Some("{}"));
    assert!(!refused(&bed));
}

/// Other users may write to the folders of the configuration.
#[tokio::test]
async fn files_that_are_not_regular_stop_nothing() {
    let mut bed = Bed::new();
    let (source, destination) =
        (bed.keeper.conf.source.clone(), bed.keeper.conf.destination.clone());
    let make = |path: &Path, kind: &str| {
        let _ = std::fs::remove_file(path);
        match kind {
            "pipe" => nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
            _ => std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        }
    };
    for kind in ["pipe", "endless"] {
        make(&source, kind);
        assert_eq!(bed.has(), None, "{kind}");
        assert!(refused(&bed));
        assert!(bed.keeper.trouble.contains("not a regular file"));
        std::fs::remove_file(&source).unwrap();
        bed.wants("{\"a\":1}");
        for _ in 0..2 {
            make(&destination, kind);
            assert_eq!(bed.has().as_deref(), Some("{\"a\":1}"), "{kind}");
            assert!(!refused(&bed));
        }
        std::fs::remove_file(&destination).unwrap();
    }
}
