//! A real etcd on loopback, with its data in a temporary directory.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Debian's version.
    V3_4,
    /// Built by `make setup`.
    V3_7,
}

pub(crate) struct EtcdServer {
    pub version: Version,
    pub folder: tempfile::TempDir,
    pub port: u16,
    peer_port: u16,
    extra: Vec<String>,
    pub tls: bool,
    child: Option<Child>,
}

pub(crate) fn programs(version: Version) -> PathBuf {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into()));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map_or_else(|| home.join(".cache"), PathBuf::from)
        .join("flannel-rs");
    match version {
        // If Debian's package is not installed, `make setup` only unpacks it, so that no server is started.
        Version::V3_4 if Path::new("/usr/bin/etcd").exists() => PathBuf::from("/usr/bin"),
        Version::V3_4 => cache.join("etcd-3.4/usr/bin"),
        Version::V3_7 => std::env::var_os("FLANNEL_ETCD_DIR")
            .map_or_else(|| cache.join("etcd-3.7"), PathBuf::from),
    }
}

/// Outside the range of ephemeral ports: if a server stops for a while, no other program takes the port by chance.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number =
            std::process::id().wrapping_mul(64).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + number % COUNT).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl EtcdServer {
    pub(crate) fn new(version: Version) -> Self {
        Self {
            version,
            folder: tempfile::tempdir().unwrap(),
            port: free_port(),
            peer_port: free_port(),
            extra: Vec::new(),
            tls: false,
            child: None,
        }
    }

    pub(crate) fn with(mut self, extra: &[String], tls: bool) -> Self {
        self.extra = extra.to_vec();
        self.tls = tls;
        self
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http{}://127.0.0.1:{}", if self.tls { "s" } else { "" }, self.port)
    }

    pub(crate) fn start(&mut self) {
        let program = programs(self.version).join("etcd");
        assert!(program.exists(), "{} is missing: run `make setup`", program.display());
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        let mut command = Command::new(&program);
        command.args(["--name", "t", "--data-dir"]).arg(self.data());
        command.args([
            "--listen-client-urls",
            &self.endpoint(),
            "--advertise-client-urls",
            &self.endpoint(),
        ]);
        command.args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &format!("t={peer}"),
        ]);
        command.args(["--unsafe-no-fsync"]).args(&self.extra);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        let answers = wait::until("etcd answers", || {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && (self.tls || self.try_ctl(&["get", "nothing"]).is_ok())
        });
        let log = self.folder.path().join("log");
        assert!(answers.is_ok(), "{answers:?}: {}", std::fs::read_to_string(log).unwrap());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn try_ctl(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new(programs(self.version).join("etcdctl"))
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint(), "--command-timeout=1h"])
            .args(args)
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// With arguments that may not be UTF-8.
    pub(crate) fn ctl_os(&self, args: &[&std::ffi::OsStr]) {
        let mut command = Command::new(programs(self.version).join("etcdctl"));
        let status = command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint()])
            .args(args)
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "etcdctl {args:?}");
    }

    /// The value may have any size and content.
    pub(crate) fn put(&self, key: &str, value: &str) {
        let mut child = Command::new(programs(self.version).join("etcdctl"))
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint(), "put", key])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), value.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "etcdctl put {key}");
    }

    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        self.try_ctl(args).unwrap_or_else(|error| panic!("etcdctl {args:?}: {error}"))
    }

    /// For a later restore.
    pub(crate) fn snapshot(&self) -> PathBuf {
        let file = self.folder.path().join("snapshot.db");
        let _ = std::fs::remove_file(&file);
        self.ctl(&["snapshot", "save", file.to_str().unwrap()]);
        file
    }

    /// Restarts the server with the snapshot's data.
    pub(crate) fn restore(&mut self, snapshot: &Path) {
        self.kill();
        std::fs::remove_dir_all(self.data()).unwrap();
        let tool = match self.version {
            Version::V3_4 => "etcdctl",
            Version::V3_7 => "etcdutl",
        };
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let status = Command::new(programs(self.version).join(tool))
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore", snapshot.to_str().unwrap(), "--name", "t", "--data-dir"])
            .arg(self.data())
            .args([
                "--initial-cluster",
                &format!("t={peer}"),
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        self.start();
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}
