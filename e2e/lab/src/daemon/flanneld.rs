//! The daemon on a host: the flanneld of flannel-rs, or another program with flannel's command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::binaries;
use crate::daemon::file_store::{FileStore, FileStoreHandle};
use crate::host::Host;
use crate::host::process::{Confinement, Launch, Process};
use crate::host::subnet_env::SubnetEnv;
use crate::net::http;
use crate::net::netns::Netns;
use crate::store::Store;
use wait::Wait;

#[derive(Debug, Clone)]
pub struct FlanneldOptions {
    args: Vec<String>,
    env: Vec<(String, String)>,
    binary: Option<PathBuf>,
    healthz_port: Option<u16>,
    file_store: Option<FileStoreHandle>,
    second: Option<String>,
}

/// The shipped systemd unit's, so that each feature runs under its restrictions. A script of a test, which prepares the host before it starts the
/// daemon, keeps its capabilities.
fn confinement_of_systemd_unit(is_script: bool) -> Result<Confinement> {
    let unit = include_str!("../../../../conf/flanneld.service");
    let value = |key: &str| {
        unit.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .with_context(|| format!("the unit has no {key}"))
    };
    let numbers = |key, known: &[(&str, u32)]| {
        let number = |name| known.iter().find(|(known, _)| *known == name);
        value(key)?
            .split(' ')
            .map(|name| Ok(number(name).with_context(|| format!("unknown: {name}"))?.1))
            .collect::<Result<Vec<u32>>>()
    };
    ensure!(value("NoNewPrivileges")? == "yes" && value("ProtectSystem")? == "full");
    let mut capabilities =
        numbers("CapabilityBoundingSet", &[("CAP_NET_ADMIN", 12), ("CAP_NET_RAW", 13)])?;
    // CAP_SYS_NICE in place of LimitRTPRIO= and LimitNICE=, which not every container may raise.
    capabilities.push(23);
    if is_script {
        capabilities = (0..64).collect();
    }
    Ok(Confinement {
        families: numbers(
            "RestrictAddressFamilies",
            &[
                ("AF_UNIX", 1),
                ("AF_INET", 2),
                ("AF_INET6", 10),
                ("AF_NETLINK", 16),
                ("AF_PACKET", 17),
            ],
        )?,
        capabilities,
        read_only: if is_script { vec![] } else { vec!["/usr", "/etc"] },
    })
}

impl FlanneldOptions {
    /// flannel-rs' flanneld with a health endpoint on port 8471.
    pub fn new(store: &Store) -> FlanneldOptions {
        FlanneldOptions::with(store.daemon_args())
    }

    /// Without arguments: the caller adds those for a lease store.
    pub fn bare() -> FlanneldOptions {
        FlanneldOptions::with(Vec::new())
    }

    fn with(args: Vec<String>) -> FlanneldOptions {
        FlanneldOptions {
            args,
            env: Vec::new(),
            binary: None,
            healthz_port: Some(8471),
            file_store: None,
            second: None,
        }
    }

    /// Takes Kubernetes' Node objects as lease store. `node` is the daemon's Node, and `net_conf` the path of net-conf.json.
    pub fn kube(node: &str, net_conf: &Path) -> FlanneldOptions {
        let args = vec![
            "--kube-subnet-mgr".to_owned(),
            format!("--net-config-path={}", net_conf.display()),
        ];
        FlanneldOptions::with(args).env("NODE_NAME", node)
    }

    /// A second daemon on a host has `<name>.env` instead of `subnet.env`, and its own log.
    #[must_use]
    pub fn second(mut self, name: &str) -> FlanneldOptions {
        self.second = Some(name.to_owned());
        self
    }

    /// The name or an address of an interface. The daemon tries several `--iface` flags in order.
    #[must_use]
    pub fn iface(self, iface: &str) -> FlanneldOptions {
        self.arg(&format!("--iface={iface}"))
    }

    #[must_use]
    pub fn arg(mut self, arg: &str) -> FlanneldOptions {
        self.args.push(arg.to_owned());
        self
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> FlanneldOptions {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another program that accepts flannel's command line, such as Go flannel. It is ready when it has written `subnet.env`.
    #[must_use]
    pub fn binary(mut self, path: &Path) -> FlanneldOptions {
        self.binary = Some(path.to_owned());
        self
    }

    /// Serves `/healthz`, `/readyz`, `/metrics` and `/status`. `None` disables the health endpoint.
    #[must_use]
    pub fn healthz_port(mut self, port: Option<u16>) -> FlanneldOptions {
        self.healthz_port = port;
        self
    }

    /// The daemon sends its open files to the store, and gets those of the previous daemon.
    #[must_use]
    pub fn fd_store(mut self, store: &FileStore) -> FlanneldOptions {
        self.file_store = Some(store.handle());
        self.env("NOTIFY_SOCKET", &store.socket().to_string_lossy())
    }
}

/// A running daemon: a [`Process`] with its namespace, its `subnet.env` and its health endpoint.
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
    /// Waits until the daemon is ready. The error shows the log's last lines.
    pub fn start_flanneld_and_wait_ready(&self, options: &FlanneldOptions) -> Result<Flanneld> {
        let mut daemon = self.start_flanneld(options)?;
        daemon.wait_ready()?;
        Ok(daemon)
    }

    /// Does not wait until the daemon is ready.
    pub fn start_flanneld(&self, options: &FlanneldOptions) -> Result<Flanneld> {
        Flanneld::start(self, options)
    }
}

impl Flanneld {
    fn start(host: &Host, options: &FlanneldOptions) -> Result<Flanneld> {
        let binary =
            options.binary.clone().map_or_else(|| binaries::flannel_binary("flanneld"), Ok)?;
        let usual = host.subnet_file()?;
        let (subnet_file, log) = match &options.second {
            Some(name) => (usual.with_file_name(format!("{name}.env")), format!("flanneld-{name}")),
            None => (usual, "flanneld".to_owned()),
        };
        let mut launch = Launch::new(binary)
            .args(&options.args)
            .arg(format!("--subnet-file={}", subnet_file.display()))
            .confined(confinement_of_systemd_unit(options.binary.is_some())?);
        if let Some(port) = options.healthz_port {
            launch = launch.arg(format!("--healthz-port={port}"));
        }
        // Keep the key of each daemon next to its subnet.env.
        launch = launch.env("WIREGUARD_KEY_FILE", subnet_file.with_file_name("wgkey"));
        // The id determines the subnet, and the derived one differs between machines and runs.
        if !options.args.iter().any(|arg| arg.starts_with("--kube-subnet-mgr")) {
            launch = launch.env("FLANNELD_NODE_ID", host.name());
        }
        for (name, value) in &options.env {
            launch = launch.env(name, value);
        }
        if let Some(store) = &options.file_store {
            launch = launch.files(store.files());
        }
        let health = options.healthz_port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
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

    /// Waits until the daemon is ready and has written `subnet.env`. The result is the time since its start; the error shows the log's last lines.
    pub fn wait_ready(&mut self) -> Result<Duration> {
        let wait = Wait::start();
        while !self.is_ready() {
            if !self.process.is_running() {
                let status = self.process.wait()?;
                bail!(
                    "flanneld ended before it was ready: {status}\n{}",
                    self.process.log_tail(20)
                );
            }
            wait.pause_or_time_out("flanneld is ready")?;
        }
        Ok(self.started.0.elapsed())
    }

    /// True if `subnet.env` exists and `/readyz` responds with 200. Without a health endpoint, `subnet.env` is enough.
    pub fn is_ready(&self) -> bool {
        match self.health {
            Some(_) if !self.foreign => {
                self.subnet_file.exists()
                    && matches!(self.get_health_endpoint("/readyz"), Ok((200, _)))
            }
            // Without a health endpoint, only the modification time distinguishes this file from one of an earlier run.
            _ => self.is_subnet_file_new(),
        }
    }

    fn is_subnet_file_new(&self) -> bool {
        let modified = std::fs::metadata(&self.subnet_file).and_then(|meta| meta.modified());
        // The kernel stamps files with the last tick of its clock, up to 10 ms in the past.
        modified.is_ok_and(|modified| modified + Duration::from_millis(10) >= self.started.1)
    }

    /// Fails if the daemon has not written it yet.
    pub fn subnet_env(&self) -> Result<SubnetEnv> {
        SubnetEnv::read(&self.subnet_file)
    }

    /// The path of the daemon's `subnet.env`.
    pub fn subnet_file(&self) -> &Path {
        &self.subnet_file
    }

    /// Sends a GET request for a path of the health endpoint, such as `/readyz` or `/metrics`. The result is the status code and the body.
    pub fn get_health_endpoint(&self, path: &str) -> Result<(u16, String)> {
        http::send_get_request(
            &self.netns,
            self.health.context("this daemon has no health endpoint")?,
            path,
        )
    }

    /// A document of the status API on the default port, such as `/api/v1/node`. The result is the status code and the body.
    pub fn get_status_api(&self, path: &str) -> Result<(u16, String)> {
        http::send_get_request(&self.netns, SocketAddr::from((Ipv4Addr::LOCALHOST, 8474)), path)
    }

    /// `name` is the exact name with its labels. Fails if the metric does not exist.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let (_, text) = self.get_health_endpoint("/metrics")?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .with_context(|| format!("no metric {name}"))?;
        value.trim().parse().with_context(|| format!("metric {name}"))
    }

    /// Counts findings of any severity in the daemon's metrics; `None` if the result of the check is unknown.
    pub fn findings(&self, check: &str) -> Result<Option<u32>> {
        let (_, text) = self.get_health_endpoint("/metrics")?;
        let start = format!("flannel_findings{{check=\"{check}\",");
        let counts: Vec<u32> = text
            .lines()
            .filter_map(|line| line.strip_prefix(&start)?.split_once("} ")?.1.parse().ok())
            .collect();
        Ok((!counts.is_empty()).then(|| counts.iter().sum()))
    }

    /// Log lines that report an error or a panic.
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
