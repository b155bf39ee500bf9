//! The daemon on a host: ours, or any other with flannel's command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};

use crate::binaries;
use crate::daemon::file_store::{FileStore, FileStoreHandle};
use crate::host::Host;
use crate::host::process::{Launch, Process};
use crate::host::subnet_env::SubnetEnv;
use crate::net::http;
use crate::net::netns::Netns;
use crate::store::Store;

/// How a daemon is started.
#[derive(Debug, Clone)]
pub struct FlanneldOptions {
    args: Vec<String>,
    env: Vec<(String, String)>,
    binary: Option<PathBuf>,
    healthz_port: Option<u16>,
    deadline: Duration,
    file_store: Option<FileStoreHandle>,
    second: Option<String>,
}

impl FlanneldOptions {
    /// Our own daemon on this store, with its health endpoint on port 8471.
    pub fn new(store: &Store) -> FlanneldOptions {
        FlanneldOptions::with(store.args())
    }

    /// Our own daemon without any arguments: the caller adds those of a store.
    pub fn bare() -> FlanneldOptions {
        FlanneldOptions::with(Vec::new())
    }

    fn with(args: Vec<String>) -> FlanneldOptions {
        FlanneldOptions {
            args,
            env: Vec::new(),
            binary: None,
            healthz_port: Some(8471),
            deadline: Duration::from_secs(60),
            file_store: None,
            second: None,
        }
    }

    /// Our own daemon on the Node API: as the Node with this name, with this net-conf.json.
    pub fn kube(node: &str, net_conf: &Path) -> FlanneldOptions {
        let args = vec![
            "--kube-subnet-mgr".to_owned(),
            format!("--net-config-path={}", net_conf.display()),
        ];
        FlanneldOptions::with(args).env("NODE_NAME", node)
    }

    /// For a second daemon on the same host: it has `<name>.env` instead of `subnet.env`, and a log of its own.
    #[must_use]
    pub fn second(mut self, name: &str) -> FlanneldOptions {
        self.second = Some(name.to_owned());
        self
    }

    /// `--iface`: a name or an address; more of them are tried in order.
    #[must_use]
    pub fn iface(self, iface: &str) -> FlanneldOptions {
        self.arg(&format!("--iface={iface}"))
    }

    /// Adds an argument to the command line.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> FlanneldOptions {
        self.args.push(arg.to_owned());
        self
    }

    /// Sets an environment variable of the daemon.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> FlanneldOptions {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another daemon with flannel's command line, such as Go flannel: ready when it has written `subnet.env`.
    #[must_use]
    pub fn binary(mut self, path: &Path) -> FlanneldOptions {
        self.binary = Some(path.to_owned());
        self
    }

    /// The port of `/healthz`, `/readyz`, `/metrics` and `/status`; none without.
    #[must_use]
    pub fn healthz_port(mut self, port: Option<u16>) -> FlanneldOptions {
        self.healthz_port = port;
        self
    }

    /// Leaves its files to a store, and gets those that the daemon before it left there.
    #[must_use]
    pub fn file_store(mut self, store: &FileStore) -> FlanneldOptions {
        self.file_store = Some(store.handle());
        self.env("NOTIFY_SOCKET", &store.socket().to_string_lossy())
    }

    /// How long [`Host::flanneld`] waits for it to be ready.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> FlanneldOptions {
        self.deadline = deadline;
        self
    }
}

/// A running daemon: a [`Process`] that knows its host, its `subnet.env` and its health endpoint.
#[derive(Debug)]
pub struct Flanneld {
    process: Process,
    pub(super) netns: Netns,
    subnet_file: PathBuf,
    started: (Instant, SystemTime),
    health: Option<SocketAddr>,
    foreign: bool,
}

impl Host {
    /// Starts the daemon and waits until it is ready.
    ///
    /// # Errors
    /// When it ends, or is not ready in time; the error holds the end of its log.
    pub fn flanneld(&self, options: &FlanneldOptions) -> Result<Flanneld> {
        let mut daemon = self.start_flanneld(options)?;
        daemon.wait_ready(options.deadline)?;
        Ok(daemon)
    }

    /// Starts the daemon and does not wait.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_flanneld(&self, options: &FlanneldOptions) -> Result<Flanneld> {
        Flanneld::start(self, options)
    }
}

impl Flanneld {
    fn start(host: &Host, options: &FlanneldOptions) -> Result<Flanneld> {
        let binary = options
            .binary
            .clone()
            .map_or_else(|| binaries::own("flanneld"), Ok)?;
        let usual = host.subnet_file()?;
        let (subnet_file, log) = match &options.second {
            Some(name) => (
                usual.with_file_name(format!("{name}.env")),
                format!("flanneld-{name}"),
            ),
            None => (usual, "flanneld".to_owned()),
        };
        let mut launch = Launch::new(binary)
            .args(&options.args)
            .arg(format!("--subnet-file={}", subnet_file.display()));
        if let Some(port) = options.healthz_port {
            launch = launch.arg(format!("--healthz-port={port}"));
        }
        // Hosts of the lab share /run, and each machine has a key of its own.
        launch = launch.env("WIREGUARD_KEY_FILE", subnet_file.with_file_name("wgkey"));
        for (name, value) in &options.env {
            launch = launch.env(name, value);
        }
        if let Some(store) = &options.file_store {
            launch = launch.files(store.files());
        }
        let health = options
            .healthz_port
            .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let started = (Instant::now(), SystemTime::now());
        let process = host.spawn(&log, &launch)?;
        Ok(Flanneld {
            process,
            netns: host.netns().clone(),
            subnet_file,
            started,
            health,
            foreign: options.binary.is_some(),
        })
    }

    /// Waits until it is ready and has written `subnet.env`; returns how long that took from its start.
    ///
    /// # Errors
    /// When it ends, or is not ready in time; the error holds the end of its log.
    pub fn wait_ready(&mut self, deadline: Duration) -> Result<Duration> {
        let start = Instant::now();
        while !self.is_ready() {
            if !self.process.is_running() {
                let status = self.process.wait(Duration::ZERO)?;
                bail!(
                    "flanneld ended before it was ready: {status}\n{}",
                    self.process.log_tail(20)
                );
            }
            if start.elapsed() >= deadline {
                bail!(
                    "flanneld is not ready after {deadline:?}\n{}",
                    self.process.log_tail(20)
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(self.started.0.elapsed())
    }

    /// Whether `subnet.env` exists and `/readyz` answers 200.
    pub fn is_ready(&self) -> bool {
        match self.health {
            Some(_) if !self.foreign => {
                self.subnet_file.exists() && matches!(self.get("/readyz"), Ok((200, _)))
            }
            // Without an endpoint to ask, a file of an earlier run must not count.
            _ => self.is_subnet_file_new(),
        }
    }

    fn is_subnet_file_new(&self) -> bool {
        let modified = std::fs::metadata(&self.subnet_file).and_then(|meta| meta.modified());
        // File times are those of the last tick of the clock, up to 10 ms in the past.
        modified.is_ok_and(|modified| modified + Duration::from_millis(10) >= self.started.1)
    }

    /// The content of its `subnet.env`.
    ///
    /// # Errors
    /// When it has not written it yet.
    pub fn subnet_env(&self) -> Result<SubnetEnv> {
        SubnetEnv::read(&self.subnet_file)
    }

    /// The path of its `subnet.env`.
    pub fn subnet_file(&self) -> &Path {
        &self.subnet_file
    }

    /// The status code and body of a path of its health endpoint, such as `/readyz` or `/metrics`.
    ///
    /// # Errors
    /// When it has none, or does not answer.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        http::get(
            &self.netns,
            self.health
                .context("this daemon was started without a health endpoint")?,
            path,
        )
    }

    /// The status code and body of a document of its API, such as `/api/v1/node`, on the port where it is by default.
    ///
    /// # Errors
    /// When it does not answer there.
    pub fn api(&self, path: &str) -> Result<(u16, String)> {
        http::get(
            &self.netns,
            SocketAddr::from((Ipv4Addr::LOCALHOST, 8474)),
            path,
        )
    }

    /// The value of a metric line whose name and labels are exactly these.
    ///
    /// # Errors
    /// When there is no such line.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let (_, text) = self.get("/metrics")?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .with_context(|| format!("no metric {name}"))?;
        value
            .trim()
            .parse()
            .with_context(|| format!("metric {name}"))
    }

    /// How many findings of a check the metrics count, of any severity; `None` where the check could not be made.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn findings(&self, check: &str) -> Result<Option<u32>> {
        let (_, text) = self.get("/metrics")?;
        let start = format!("flannel_findings{{check=\"{check}\",");
        let counts: Vec<u32> = text
            .lines()
            .filter_map(|line| line.strip_prefix(&start)?.split_once("} ")?.1.parse().ok())
            .collect();
        Ok((!counts.is_empty()).then(|| counts.iter().sum()))
    }

    /// The lines of its log that report an error.
    pub fn errors(&self) -> Vec<String> {
        let log = self.process.log();
        log.lines()
            .filter(|line| {
                line.split_whitespace().take(3).any(|word| word == "ERROR")
                    || line.contains("panicked at")
            })
            .map(str::to_owned)
            .collect()
    }
}

impl Deref for Flanneld {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Flanneld {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
