//! The WireGuard keys of a running node. It adopts keys that an operator changes in the key files,
//! and creates another private key if an older node has the same one.

use super::config::Config;
use super::keys::{self, Content, FileError};
use crate::backend::{Renewal, Setup};
use arc_swap::ArcSwap;
use netstate::wireguard::{PublicKey, Secret};
use nix::sys::prctl;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use types::Problem;
use types::file::Links;
use types::wireguard::{KEY_VARIABLE, PRESHARED_VARIABLE};

const REREAD: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Files {
    pub key: PathBuf,
    /// Whether the private key's file may be a symbolic link: yes if an operator named it.
    pub(crate) key_links: Links,
    pub preshared: Option<PathBuf>,
    /// Key files that other users can read are refused.
    pub refuse_insecure: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub private: Secret,
    pub public: PublicKey,
    /// The same on all nodes.
    pub preshared: Option<Secret>,
}

pub(super) struct Secrets(ArcSwap<Keys>);

impl Secrets {
    fn new(private: &Secret, preshared: Option<Secret>) -> Self {
        let private = private.clamped();
        Self(ArcSwap::from_pointee(Keys { public: private.public(), private, preshared }))
    }

    pub(super) fn now(&self) -> Arc<Keys> {
        self.0.load_full()
    }

    #[cfg(test)]
    pub(super) fn with(private: &Secret, preshared: Option<Secret>) -> Self {
        Self::new(private, preshared)
    }

    fn set(&self, private: Secret, preshared: Option<Secret>) {
        self.0.store(Arc::new(Keys { public: private.public(), private, preshared }));
    }
}

impl Files {
    /// The files that the environment or the configuration names.
    pub(super) fn of(config: &Config, setup: &Setup) -> Self {
        let (key, key_links) = match &setup.key_file {
            Some(key) => (key.clone(), Links::Followed),
            None => (keys::KEY_FILE.into(), Links::Refused),
        };
        let preshared = setup.preshared_file.as_ref();
        Self {
            key,
            key_links,
            preshared: preshared.or(config.preshared_file.as_ref()).cloned(),
            refuse_insecure: setup.refuse_insecure,
        }
    }

    /// Warns of each key file that other users can read; with `refuse_insecure`, fails instead.
    fn guard(&self) -> Result<(), Problem> {
        let private = keys::exposed(keys::PRIVATE, &self.key);
        for exposed in private
            .into_iter()
            .chain(self.preshared.as_ref().and_then(|path| keys::exposed(keys::PRESHARED, path)))
        {
            if self.refuse_insecure {
                let text = format!("{exposed}; --refuse-insecure is set");
                return Err(Problem::new("secret-exposed", text));
            }
            tracing::warn!(error = %exposed, "a file with a WireGuard key is exposed");
        }
        Ok(())
    }

    /// A warning if other users can read the key file, and whether the daemon may use the key. With
    /// `refuse_insecure`, it must not use a changed key from such a file.
    fn trust(&self, kind: &str, path: &Path, changed: bool) -> (String, bool) {
        match (keys::exposed(kind, path), self.refuse_insecure, changed) {
            (None, ..) => (String::new(), true),
            (Some(text), false, _) => (text, true),
            (Some(text), true, false) => {
                (format!("{text}; --refuse-insecure refuses the file at the next start"), true)
            }
            (Some(text), true, true) => {
                (format!("{text}; keeping the key in use, because --refuse-insecure is set"), false)
            }
        }
    }

    /// Generates a private key if none exists. Fails if the preshared key file contains no key, and
    /// with `refuse_insecure` also for a key file that other users can read.
    pub(super) fn load(&self, configured: Option<Secret>) -> Result<Secrets, Problem> {
        self.guard()?;
        hide_memory();
        let private = keys::own(&self.key, self.key_links).map_err(|why| {
            let path = self.key.display();
            let text = format!(
                "cannot read or write the WireGuard private key {path}: {why}; make the file's folder writable, or name another file in {KEY_VARIABLE}"
            );
            Problem::new("private-key-unusable", text)
        })?;
        let preshared = self.preshared.as_deref().map(load_preshared).transpose()?;
        Ok(Secrets::new(&private, preshared.or(configured)))
    }
}

fn load_preshared(path: &Path) -> Result<Secret, Problem> {
    let content = keys::read(path, Links::Followed);
    let path = path.display();
    let (code, text) = match content {
        Ok(Content::Key(key)) => return Ok(key),
        Ok(Content::Garbled) => (
            "preshared-key-unusable",
            format!(
                "cannot use the preshared key of {path}: the file does not hold 32 bytes in base64; write the output of `wg genpsk` into the file"
            ),
        ),
        Ok(Content::Missing) => (
            "preshared-key-missing",
            format!(
                "cannot use the preshared key of {path}: the file does not exist; create it, or correct PSKFile in the Backend or {PRESHARED_VARIABLE}"
            ),
        ),
        Err(why) => {
            ("preshared-key-unusable", format!("cannot read the preshared key of {path}: {why}"))
        }
    };
    Err(Problem::new(code, text))
}

/// Excludes the memory of this process from core dumps and from debuggers without CAP_SYS_PTRACE.
/// It contains keys until the process ends.
fn hide_memory() {
    if let Err(error) = prctl::set_dumpable(false) {
        tracing::warn!(
            error = %error,
            "cannot exclude WireGuard keys from core dumps: prctl(PR_SET_DUMPABLE)"
        );
    }
}

/// Kept so that each warning is logged only once.
#[derive(Default)]
struct Notices {
    /// The private key's file contained no key at the last read.
    lost: bool,
    key: String,
    preshared: String,
}

fn warn_once(last: &mut String, now: String) {
    if *last != now {
        if !now.is_empty() {
            tracing::warn!(error = %now, "a file with a WireGuard key needs attention");
        }
        *last = now;
    }
}

/// Rereads the key files periodically, and generates another private key on request. Notifies
/// `replanned` of each changed key.
pub(super) async fn follow(
    secrets: Arc<Secrets>,
    files: Files,
    renewal: Renewal,
    replanned: Arc<Notify>,
) {
    let mut ticks = interval(REREAD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut notices = Notices::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = renewal.asked() => match keys::renew(&files.key) {
                Ok(key) => {
                    let preshared = secrets.now().preshared.clone();
                    secrets.set(key, preshared);
                    replanned.notify_one();
                }
                Err(error) => tracing::error!(
                    path = %files.key.display(),
                    error = %error,
                    "cannot write another WireGuard key"
                ),
            },
        }
        if reread(&secrets, &files, &mut notices) {
            replanned.notify_one();
        }
    }
}

/// True if a key in the files has changed.
fn reread(secrets: &Secrets, files: &Files, notices: &mut Notices) -> bool {
    let now = secrets.now();
    let private = private(files, &now.private, notices);
    let preshared = match &files.preshared {
        None => now.preshared.clone(),
        Some(path) => preshared(files, path, now.preshared.as_ref(), notices),
    };
    let changed = (private != now.private, preshared != now.preshared);
    if changed.0 {
        tracing::info!(
            path = %files.key.display(),
            public_key = %private.public(),
            "the file holds another WireGuard key"
        );
    }
    if changed.1 {
        tracing::info!(
            "the preshared key of WireGuard has changed; sessions continue, and the next handshakes use the new key"
        );
    }
    if changed.0 || changed.1 {
        secrets.set(private, preshared);
    }
    changed.0 || changed.1
}

/// If two consecutive reads find no key, the key in use is written to the file.
fn private(files: &Files, present: &Secret, notices: &mut Notices) -> Secret {
    let path = &files.key;
    let kept = |why: FileError| {
        format!("cannot read {}: {why}; keeping the WireGuard key in use", path.display())
    };
    match keys::read(path, files.key_links) {
        Ok(Content::Key(key)) => {
            notices.lost = false;
            let key = key.clamped();
            let (text, taken) = files.trust(keys::PRIVATE, path, key != *present);
            warn_once(&mut notices.key, text);
            return if taken { key } else { present.clone() };
        }
        // Another program may be writing the file at this moment.
        Ok(Content::Missing | Content::Garbled) if !notices.lost => {
            notices.lost = true;
            return present.clone();
        }
        Ok(Content::Missing) => {}
        Ok(Content::Garbled) => match keys::set_aside(path) {
            Ok(aside) => tracing::warn!(
                path = %path.display(),
                to = %aside.display(),
                "moved the file, because it held no WireGuard key"
            ),
            Err(error) => {
                warn_once(&mut notices.key, kept(error));
                return present.clone();
            }
        },
        Err(error) => {
            warn_once(&mut notices.key, kept(error));
            return present.clone();
        }
    }
    match keys::write(path, present) {
        Ok(()) => tracing::warn!(
            path = %path.display(),
            "the file lost its WireGuard key; wrote the key in use to the file again"
        ),
        Err(error) => warn_once(
            &mut notices.key,
            format!(
                "cannot write the WireGuard key to {}: {error}; after a restart, this node has another key",
                path.display()
            ),
        ),
    }
    present.clone()
}

/// If the file contains no key, the key in use stays.
fn preshared(
    files: &Files,
    path: &Path,
    present: Option<&Secret>,
    notices: &mut Notices,
) -> Option<Secret> {
    let why = match keys::read(path, Links::Followed) {
        Ok(Content::Key(key)) => {
            let (text, taken) = files.trust(keys::PRESHARED, path, present != Some(&key));
            warn_once(&mut notices.preshared, text);
            return if taken { Some(key) } else { present.cloned() };
        }
        Ok(Content::Garbled) => "the file does not hold 32 bytes in base64".to_owned(),
        Ok(Content::Missing) => "the file does not exist".to_owned(),
        Err(error) => error.to_string(),
    };
    warn_once(
        &mut notices.preshared,
        format!(
            "cannot read the preshared key of {}: {why}; keeping the key in use",
            path.display()
        ),
    );
    present.cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use subnet_lease::NetworkConfig;

    /// The environment of the node names these files.
    fn files(key: Option<PathBuf>, preshared: Option<PathBuf>) -> Files {
        let network = NetworkConfig::parse(r#"{"Network":"10.0.0.0/16"}"#).unwrap();
        let setup = Setup { key_file: key, preshared_file: preshared, ..Setup::of(network) };
        Files::of(&Config::parse("{}", &setup.config.networks).unwrap(), &setup)
    }

    #[test]
    fn a_process_with_keys_leaves_no_core_dump() {
        let folder = tempfile::tempdir().unwrap();
        prctl::set_dumpable(true).unwrap();
        files(Some(folder.path().join("key")), None).load(None).unwrap();
        assert_eq!(prctl::get_dumpable(), Ok(false));
    }

    #[test]
    fn only_a_key_file_that_an_operator_named_may_be_a_link() {
        assert_eq!(files(None, None).key_links, Links::Refused);
        let named = files(Some("/etc/flannel/key".into()), None);
        assert_eq!(named.key_links, Links::Followed);
    }

    /// This holds at the start and at each change of a key file.
    #[test]
    fn insecure_files_are_refused_on_request() {
        let folder = std::env::temp_dir().join(format!("flannel-insecure-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let lax = files(Some(folder.join("key")), Some(folder.join("psk")));
        let strict = Files { refuse_insecure: true, ..lax.clone() };
        let write = |name: &str, key: &Secret, mode| {
            fs::write(folder.join(name), &*key.text()).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let (first, second) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        for (modes, named) in
            [((0o600, 0o640), "the preshared key"), ((0o604, 0o600), "the WireGuard private key")]
        {
            write("key", &first, modes.0);
            write("psk", &first, modes.1);
            let error = strict.load(None).err().unwrap().to_string();
            assert!(
                error.contains(named)
                    && error.contains("chmod 600")
                    && error.contains("--refuse-insecure"),
                "{error}"
            );
            assert!(lax.load(None).is_ok());
        }
        write("key", &first, 0o600);
        let secrets = strict.load(None).unwrap();
        let mut notices = Notices::default();
        write("key", &second, 0o644);
        write("psk", &second, 0o644);
        assert!(!reread(&secrets, &strict, &mut notices));
        assert!(
            notices.key.contains("keeping the key in use")
                && notices.preshared.contains("keeping the key in use")
        );
        write("key", &first, 0o644);
        assert!(!reread(&secrets, &strict, &mut notices));
        assert!(
            notices.key.contains("--refuse-insecure refuses the file at the next start"),
            "{}",
            notices.key
        );
        write("key", &second, 0o600);
        write("psk", &second, 0o600);
        assert!(reread(&secrets, &strict, &mut notices));
        assert_eq!(
            (secrets.now().public, notices.key.as_str(), notices.preshared.as_str()),
            (second.public(), "", "")
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn keys_follow_their_files() {
        let folder = std::env::temp_dir().join(format!("flannel-secrets-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let files = files(Some(folder.join("key")), Some(folder.join("psk")));
        assert!(files.load(None).err().unwrap().to_string().contains("the file does not exist"));
        let (first, second) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        fs::write(folder.join("psk"), &*first.text()).unwrap();
        let secrets = files.load(None).unwrap();
        let mut notices = Notices::default();
        let made = secrets.now().private.clone();
        assert_eq!(secrets.now().preshared, Some(first.clone()));
        assert!(!reread(&secrets, &files, &mut notices), "nothing changed");
        // Another preshared key is used. Half a key, or no file, does not lose the key in use.
        fs::write(folder.join("psk"), format!("{}\n", &*second.text())).unwrap();
        assert!(
            reread(&secrets, &files, &mut notices)
                && secrets.now().preshared == Some(second.clone())
        );
        fs::write(folder.join("psk"), "AAAA").unwrap();
        assert!(!reread(&secrets, &files, &mut notices) && notices.preshared.contains("32 bytes"));
        fs::remove_file(folder.join("psk")).unwrap();
        assert!(!reread(&secrets, &files, &mut notices) && secrets.now().preshared == Some(second));
        // A private key that is lost is written again. Another one is used.
        fs::remove_file(folder.join("key")).unwrap();
        assert!(
            !reread(&secrets, &files, &mut notices) && !folder.join("key").exists(),
            "another program may be writing the key file"
        );
        assert!(!reread(&secrets, &files, &mut notices));
        assert!(!reread(&secrets, &files, &mut notices), "the key file exists again");
        assert_eq!(
            keys::read(&folder.join("key"), Links::Refused).unwrap(),
            Content::Key(made.clone())
        );
        fs::write(folder.join("key"), "").unwrap();
        assert!(!reread(&secrets, &files, &mut notices) && !folder.join("key.bad").exists());
        assert!(!reread(&secrets, &files, &mut notices) && folder.join("key.bad").exists());
        assert_eq!(keys::read(&folder.join("key"), Links::Refused).unwrap(), Content::Key(made));
        fs::write(folder.join("key"), &*first.text()).unwrap();
        assert!(reread(&secrets, &files, &mut notices));
        assert_eq!(
            (secrets.now().private.clone(), secrets.now().public),
            (first.clone(), first.public())
        );
        assert!(!reread(&secrets, &files, &mut notices), "nothing changed");
        fs::remove_dir_all(folder).unwrap();
    }
}
