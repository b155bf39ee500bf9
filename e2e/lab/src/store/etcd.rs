//! A real etcd on hosts of the lab, with one or more members, which tests stop, kill and restore.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::binaries::{self, EtcdVersion};
use crate::host::Host;
use crate::host::process::{Launch, Process};
use crate::net::netns::run_program;
use crate::store::ca::Certificates;
use crate::store::etcd_client::EtcdClient;
use crate::store::{PREFIX, Store};
use wait::until_ok;

#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    interface: Option<String>,
    tls: bool,
    user: Option<(String, String)>,
    args: Vec<String>,
    version: EtcdVersion,
}

impl EtcdOptions {
    #[must_use]
    pub(crate) fn version(mut self, version: EtcdVersion) -> EtcdOptions {
        self.version = version;
        self
    }

    /// Advertises the address of this interface instead of that of the host's first uplink.
    #[must_use]
    pub fn interface(mut self, interface: &str) -> EtcdOptions {
        self.interface = Some(interface.to_owned());
        self
    }

    /// Clients need certificates.
    #[must_use]
    pub fn tls(mut self) -> EtcdOptions {
        self.tls = true;
        self
    }

    /// The user may read and write keys below the default prefix. `password` is also that of the user `root`.
    #[must_use]
    pub fn auth(mut self, name: &str, password: &str) -> EtcdOptions {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    #[must_use]
    pub fn arg(mut self, arg: &str) -> EtcdOptions {
        self.args.push(arg.to_owned());
        self
    }
}

#[derive(Debug)]
struct Member {
    host: Host,
    name: String,
    address: Ipv4Addr,
    data: PathBuf,
    process: Option<Process>,
}

/// One or more members.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    options: EtcdOptions,
    certificates: Option<Certificates>,
}

impl Etcd {
    /// Starts one member on each host and waits until all respond.
    pub fn start(hosts: &[&Host], options: &EtcdOptions) -> Result<Etcd> {
        let mut members = Vec::new();
        for host in hosts {
            let address = options
                .interface
                .as_ref()
                .map_or_else(|| host.v4(), |interface| host.v4_of(interface))?;
            let data = host.folder()?.join("etcd-data");
            members.push(Member {
                host: (*host).clone(),
                name: format!("etcd-{}", host.name()),
                address,
                data,
                process: None,
            });
        }
        let first = hosts.first().context("etcd needs a host")?;
        let mut addresses: Vec<IpAddr> =
            members.iter().map(|member| IpAddr::V4(member.address)).collect();
        addresses.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let folder = first.folder()?.join("certificates");
        let certificates =
            options.tls.then(|| Certificates::create(&folder, &addresses)).transpose()?;
        let mut etcd = Etcd { members, options: options.clone(), certificates };
        etcd.start_all_and_wait()?;
        if let Some((name, password)) = &options.user {
            let root = etcd.anonymous(0)?;
            root.add_user(name, password, PREFIX)?;
            root.etcdctl(&["user", "add", &format!("root:{password}")])?;
            root.etcdctl(&["user", "grant-role", "root", "root"])?;
            root.etcdctl(&["auth", "enable"])?;
        }
        Ok(etcd)
    }

    /// Serves daemons and [`Store`]: etcdctl runs on the first member's host, as the user that the options name.
    pub fn client_on_first_member(&self) -> Result<EtcdClient> {
        self.client_on(0)
    }

    /// Runs on the member's host, as the user that the options name.
    pub fn client_on(&self, member: usize) -> Result<EtcdClient> {
        let client = self.anonymous(member)?;
        Ok(match &self.options.user {
            Some((name, password)) => client.user(name, password),
            None => client,
        })
    }

    pub fn store(&self) -> Result<Store> {
        Ok(Store::etcd(&self.client_on_first_member()?))
    }

    fn anonymous(&self, member: usize) -> Result<EtcdClient> {
        Ok(EtcdClient {
            netns: self.member(member)?.host.netns().clone(),
            etcdctl: binaries::etcd_program("etcdctl", self.options.version)?,
            local: self.url("127.0.0.1", 2379),
            endpoints: self
                .members
                .iter()
                .map(|member| self.url(&member.address.to_string(), 2379))
                .collect(),
            certificates: self.certificates.clone(),
            user: None,
        })
    }

    /// A test can freeze it.
    pub fn process(&mut self, member: usize) -> Result<&mut Process> {
        let found = self.members.get_mut(member).with_context(|| format!("no member {member}"))?;
        found.process.as_mut().with_context(|| format!("{} does not run", found.name))
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(&mut self, member: usize) -> Result<()> {
        self.process(member)?.terminate()?;
        self.forget_member_process(member);
        Ok(())
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self, member: usize) -> Result<()> {
        self.process(member)?.kill()?;
        self.forget_member_process(member);
        Ok(())
    }

    /// Starts the member with its old data, and waits until it responds.
    pub fn start_stopped_member(&mut self, member: usize) -> Result<()> {
        self.launch(member)?;
        self.wait_member_healthy(member)
    }

    /// Stops all members and restores the cluster, as an operator does after a disaster.
    pub fn restore_and_restart_members(&mut self, snapshot: &Path) -> Result<()> {
        for number in 0..self.members.len() {
            if self.member(number)?.process.is_some() {
                self.stop(number)?;
            }
            let member = self.member(number)?;
            std::fs::remove_dir_all(&member.data)?;
            // etcdctl 3.6 has no `snapshot restore`, and etcd 3.4 has no etcdutl.
            let version = self.options.version;
            let program = binaries::etcd_program("etcdutl", version)
                .or_else(|_| binaries::etcd_program("etcdctl", version))?;
            let peer = format!("http://{}:2380", member.address);
            let args = [
                "snapshot".to_owned(),
                "restore".to_owned(),
                snapshot.to_string_lossy().into_owned(),
                format!("--name={}", member.name),
                format!("--data-dir={}", member.data.display()),
                format!("--initial-cluster={}", self.initial_cluster()),
                format!("--initial-advertise-peer-urls={peer}"),
            ];
            run_program(&program.to_string_lossy(), args)?;
        }
        self.start_all_and_wait()
    }

    fn start_all_and_wait(&mut self) -> Result<()> {
        // A member responds only once most members run.
        for number in 0..self.members.len() {
            self.launch(number)?;
        }
        for number in 0..self.members.len() {
            self.wait_member_healthy(number)?;
        }
        Ok(())
    }

    fn launch(&mut self, number: usize) -> Result<()> {
        let member = self.member(number)?;
        if member.process.is_some() {
            bail!("{} runs already", member.name);
        }
        let (client, peer) = (
            self.url(&member.address.to_string(), 2379),
            format!("http://{}:2380", member.address),
        );
        let mut launch = Launch::new(binaries::etcd_program("etcd", self.options.version)?)
            .args([
                "--unsafe-no-fsync",
                "--log-level=warn",
                "--logger=zap",
                "--log-outputs=stderr",
                "--initial-cluster-state=new",
            ])
            .arg(format!("--name={}", member.name))
            .arg(format!("--data-dir={}", member.data.display()))
            .arg(format!("--listen-client-urls={client},{}", self.url("127.0.0.1", 2379)))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={}", self.initial_cluster()));
        if self.members.len() == 1 {
            // A single member need not wait for other members before it elects itself.
            launch = launch.args(["--heartbeat-interval=20", "--election-timeout=200"]);
        }
        if let Some(files) = &self.certificates {
            launch = launch.arg("--client-cert-auth").arg("--trusted-ca-file").arg(files.ca());
            launch = launch
                .arg("--cert-file")
                .arg(files.server())
                .arg("--key-file")
                .arg(files.server_key());
        }
        let process = member.host.spawn("etcd", &launch.args(&self.options.args))?;
        if let Some(member) = self.members.get_mut(number) {
            member.process = Some(process);
        }
        Ok(())
    }

    fn wait_member_healthy(&mut self, number: usize) -> Result<()> {
        let client = self.client_on(number)?;
        let process = self.process(number)?;
        until_ok("etcd answers", || {
            if !process.is_running() {
                return Ok(Err(process.log_tail(10)));
            }
            client
                .etcdctl(&["--dial-timeout=1s", "--command-timeout=1s", "endpoint", "health"])
                .map(Ok)
        })?
        .map_or_else(|log| bail!("etcd ended:\n{log}"), |_| Ok(()))
    }

    fn member(&self, number: usize) -> Result<&Member> {
        self.members.get(number).with_context(|| format!("no member {number}"))
    }

    fn forget_member_process(&mut self, number: usize) {
        if let Some(member) = self.members.get_mut(number) {
            member.process = None;
        }
    }

    fn initial_cluster(&self) -> String {
        let members: Vec<String> = self
            .members
            .iter()
            .map(|member| format!("{}=http://{}:2380", member.name, member.address))
            .collect();
        members.join(",")
    }

    fn url(&self, address: &str, port: u16) -> String {
        let scheme = if self.options.tls { "https" } else { "http" };
        format!("{scheme}://{address}:{port}")
    }
}
