//! The WireGuard keys of a running node. On request, it reads the key files again, or creates another
//! private key because an older node has the same one.

use super::config::Config;
use super::keys;
use crate::backend::{KeyRequests, Setup};
use arc_swap::ArcSwap;
use netlink::run_blocking;
use netstate::{PublicKey, Secret};
use nix::sys::prctl;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::Problem;
use types::file::Links;
use types::wireguard::{KEY_VARIABLE, PRESHARED_VARIABLE};

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
    pub(super) fn new(private: &Secret, preshared: Option<Secret>) -> Self {
        Self(ArcSwap::from_pointee(Keys::new(private.clamped(), preshared)))
    }

    pub(super) fn now(&self) -> Arc<Keys> {
        self.0.load_full()
    }

    fn replace(&self, private: Secret, preshared: Option<Secret>) {
        self.0.store(Arc::new(Keys::new(private, preshared)));
    }
}

impl Keys {
    fn new(private: Secret, preshared: Option<Secret>) -> Self {
        Self { public: private.public(), private, preshared }
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
        let private = keys::is_exposed("WireGuard private key", &self.key);
        let preshared =
            self.preshared.as_ref().and_then(|path| keys::is_exposed("preshared key", path));
        for exposed in private.into_iter().chain(preshared) {
            if self.refuse_insecure {
                let text = format!("{exposed}; --refuse-insecure is set");
                return Err(Problem::new("secret-exposed", text));
            }
            tracing::warn!(error = %exposed, "a file with a WireGuard key is exposed");
        }
        Ok(())
    }

    fn unusable_key(&self, why: &io::Error) -> Problem {
        let (path, why) = (self.key.display(), keys::reason(why));
        let text = format!(
            "cannot read or write the WireGuard private key {path}: {why}; make the file's folder writable, or name another file in {KEY_VARIABLE}"
        );
        Problem::new("private-key-unusable", text)
    }

    /// Generates a private key if none exists. Fails if the preshared key file contains no key, and
    /// with `refuse_insecure` also for a key file that other users can read.
    pub(super) fn load(&self, configured: Option<Secret>) -> Result<Secrets, Problem> {
        self.guard()?;
        hide_memory();
        let private = keys::load_or_create_key(&self.key, self.key_links)
            .map_err(|why| self.unusable_key(&why))?;
        Ok(Secrets::new(&private, self.preshared_or(configured)?))
    }

    fn preshared_or(&self, otherwise: Option<Secret>) -> Result<Option<Secret>, Problem> {
        self.preshared.as_deref().map_or(Ok(otherwise), |path| load_preshared(path).map(Some))
    }
}

fn load_preshared(path: &Path) -> Result<Secret, Problem> {
    let content = keys::read_key(path, Links::Followed);
    let path = path.display();
    let (code, text) = match content {
        Ok(Some(key)) => return Ok(key),
        Ok(None) => (
            "preshared-key-unusable",
            format!(
                "cannot use the preshared key of {path}: the file does not hold 32 bytes in base64; write the output of `wg genpsk` into the file"
            ),
        ),
        Err(why) if why.kind() == io::ErrorKind::NotFound => (
            "preshared-key-missing",
            format!(
                "cannot use the preshared key of {path}: the file does not exist; create it, or correct PSKFile in the Backend or {PRESHARED_VARIABLE}"
            ),
        ),
        Err(why) => (
            "preshared-key-unusable",
            format!("cannot read the preshared key of {path}: {}", keys::reason(&why)),
        ),
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

/// Changes keys on request; ends when a key has changed.
pub(super) async fn serve_key_requests(secrets: &Secrets, files: &Files, requests: &KeyRequests) {
    loop {
        let done = tokio::select! {
            () = requests.renewal.notified() => run_blocking(|| renew_secrets(secrets, files)),
            () = requests.reading.notified() => run_blocking(|| read_again(secrets, files)),
        };
        match done {
            Ok(true) => return,
            Ok(false) => tracing::info!("the WireGuard keys are unchanged"),
            Err(error) => {
                tracing::error!(code = &*error.code, error = %error, "keeping the WireGuard keys in use");
            }
        }
    }
}

fn renew_secrets(secrets: &Secrets, files: &Files) -> Result<bool, Problem> {
    let key = keys::write_new_key(&files.key).map_err(|why| files.unusable_key(&why))?;
    secrets.replace(key, secrets.now().preshared.clone());
    Ok(true)
}

/// True if a key has changed. A file that holds no usable key changes none.
fn read_again(secrets: &Secrets, files: &Files) -> Result<bool, Problem> {
    files.guard()?;
    let now = secrets.now();
    let private = match keys::read_key(&files.key, files.key_links) {
        Ok(Some(key)) => key.clamped(),
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(files.unusable_key(&why)),
        _ => return Err(files.unusable_key(&io::Error::other("the file holds no key"))),
    };
    let preshared = files.preshared_or(now.preshared.clone())?;
    if (&private, &preshared) == (&now.private, &now.preshared) {
        return Ok(false);
    }
    tracing::info!(
        path = %files.key.display(),
        public_key = %private.public(),
        is_new = private != now.private,
        is_preshared_new = preshared != now.preshared,
        "read other WireGuard keys; sessions continue, and the next handshakes use a new preshared key"
    );
    secrets.replace(private, preshared);
    Ok(true)
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

    /// This holds at the start and when the files are read again.
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
        write("key", &second, 0o644);
        let error = read_again(&secrets, &strict).unwrap_err();
        assert_eq!((error.code.as_ref(), secrets.now().public), ("secret-exposed", first.public()));
        write("key", &second, 0o600);
        assert_eq!(read_again(&secrets, &strict), Ok(true));
        assert_eq!(secrets.now().public, second.public());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn keys_are_read_again_and_a_file_without_a_key_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (key, preshared) = (folder.path().join("key"), folder.path().join("psk"));
        let files = files(Some(key.clone()), Some(preshared.clone()));
        assert!(files.load(None).err().unwrap().to_string().contains("the file does not exist"));
        let (first, second) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        fs::write(&preshared, &*first.text()).unwrap();
        let secrets = files.load(None).unwrap();
        let made = secrets.now().private.clone();
        assert_eq!(secrets.now().preshared, Some(first.clone()));
        assert_eq!(read_again(&secrets, &files), Ok(false));
        fs::write(&preshared, format!("{}\n", &*second.text())).unwrap();
        assert_eq!(read_again(&secrets, &files), Ok(true));
        assert_eq!(secrets.now().preshared, Some(second.clone()));
        let code = |secrets: &Secrets| read_again(secrets, &files).unwrap_err().code;
        for garbled in [Some("AAAA"), None] {
            match garbled {
                Some(text) => fs::write(&preshared, text).unwrap(),
                None => fs::remove_file(&preshared).unwrap(),
            }
            assert!(code(&secrets).starts_with("preshared-key-"));
        }
        fs::write(&preshared, &*second.text()).unwrap();
        fs::write(&key, "").unwrap();
        assert_eq!(code(&secrets), "private-key-unusable");
        fs::remove_file(&key).unwrap();
        assert_eq!(code(&secrets), "private-key-unusable");
        assert!(
            !key.exists()
                && secrets.now().private == made
                && secrets.now().preshared == Some(second)
        );
        fs::write(&key, &*first.text()).unwrap();
        assert_eq!(read_again(&secrets, &files), Ok(true));
        assert_eq!(
            (&secrets.now().private, secrets.now().public),
            (&first.clamped(), first.public())
        );
    }
}
