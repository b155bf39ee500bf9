//! Classifies failures of iptables and nft by their error messages in the C locale, because their exit codes do not distinguish the causes.

use crate::error::{ProgramError, XTABLES_LOCK};
use crate::variant::Variant;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitStatus;

/// Finds the reason in the error output.
pub(crate) fn failure(
    program: &str,
    command: String,
    status: ExitStatus,
    words: &str,
) -> ProgramError {
    let words = words.trim();
    if words.contains("xtables lock") {
        ProgramError::Locked {
            program: program.to_owned(),
            holder: lock_holder(Path::new(XTABLES_LOCK)).unwrap_or_else(|| {
                format!("another program (find it with `fuser -v {XTABLES_LOCK}`)")
            }),
        }
    } else if program == "nft" && words.contains("No such file or directory") {
        ProgramError::NotFound { command, status, words: words.to_owned() }
    } else {
        ProgramError::Refused { command, status, words: words.to_owned() }
    }
}

/// The process that holds a lock of flock(2) on a file, as the kernel shows it to this process.
fn lock_holder(file: &Path) -> Option<String> {
    let inode = file.metadata().ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| {
        let [_, "FLOCK", _, _, pid, place, ..] = *line.split_whitespace().collect::<Vec<_>>()
        else {
            return None;
        };
        (place.rsplit(':').next() == Some(&inode)).then_some(pid)
    })?;
    let process = Path::new("/proc").join(pid);
    let user = process.metadata().ok()?.uid();
    let program = std::fs::read_to_string(process.join("comm")).ok()?;
    Some(format!("{:?} (pid {pid}, user {user})", program.trim_end()))
}

/// Reads the output of `iptables --version`.
pub(crate) fn variant(version: &str) -> Variant {
    if version.contains("nf_tables") { Variant::Nft } else { Variant::Legacy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use types::{Coded, Detail};

    #[test]
    fn holder_of_a_lock_is_named() {
        let path = std::env::temp_dir().join(format!("flannel-lock-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        assert_eq!(lock_holder(&path), None);
        file.lock().unwrap();
        let holder = lock_holder(&path).unwrap();
        let user = nix::unistd::getuid();
        let expected = format!("(pid {}, user {user})", std::process::id());
        assert!(holder.ends_with(&expected), "{holder}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn failure_is_known_by_the_words_of_the_program() {
        let failed = |program: &str, words: &str| {
            failure(program, format!("{program} x"), ExitStatus::from_raw(4 << 8), words)
        };
        let lock = "Another app is currently holding the xtables lock; still 1s 0us time ahead to have a chance to grab the lock...\n";
        let locked = failed("iptables-legacy-restore", lock);
        assert_eq!(
            (locked.code(), locked.detail()),
            ("rules-locked", Detail::RulesLocked { file: "/run/xtables.lock".into() })
        );
        let absent = "Error: No such file or directory\nlist table ip nat\n              ^^^\n";
        assert_eq!(failed("nft", absent).code(), "rules-object-missing");
        // iptables prints this for a match or target that the kernel lacks.
        assert_eq!(failed("iptables-restore", absent).code(), "rules-refused");
        let refused = failed("nft", "Error: Could not process rule: Operation not supported\n");
        assert_eq!(refused.code(), "rules-refused");
        assert_eq!(
            refused.to_string(),
            "nft x failed with exit status: 4: Error: Could not process rule: Operation not supported"
        );
        assert_eq!(
            (variant("iptables v1.8.10 (nf_tables)"), variant("iptables v1.8.10 (legacy)")),
            (Variant::Nft, Variant::Legacy)
        );
    }
}
