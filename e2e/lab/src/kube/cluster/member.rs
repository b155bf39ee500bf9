//! A node of a cluster: a machine with its own files, containerd, kubelet and kube-proxy.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context, Result, ensure};

use crate::binaries;
use crate::host::Host;
use crate::host::process::{Launch, Process};
use crate::kube::api_server::Families;
use crate::kube::cluster::config::{self, MACHINE};
use crate::kube::cluster::options::ClusterOptions;
use crate::site::{cgroups, sweep};
use wait::until;

/// kubeadm's arguments for kubelet, relative to `/var/lib`.
const KUBEADM_FLAGS: &str = "kubelet/kubeadm-flags.env";

#[derive(Debug)]
struct Running {
    kubelet: Option<Process>,
    _kube_proxy: Process,
    containerd: Process,
    machine: Process,
}

#[derive(Debug)]
pub struct Member {
    running: Option<Running>,
    host: Host,
    options: ClusterOptions,
    /// kubelet gets `--node-ip`.
    node_ip: bool,
    kubeconfig: PathBuf,
    is_prepared: bool,
}

impl Member {
    pub(super) fn new(
        host: Host,
        options: &ClusterOptions,
        node_ip: bool,
        kubeconfig: &Path,
    ) -> Member {
        Member {
            running: None,
            host,
            options: options.clone(),
            node_ip,
            kubeconfig: kubeconfig.to_owned(),
            is_prepared: false,
        }
    }

    /// The name of the node and of its host.
    pub fn name(&self) -> &str {
        self.host.name()
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn is_started(&self) -> bool {
        self.running.is_some()
    }

    pub(super) fn power_on_host_if_off(&mut self) -> Result<()> {
        if self.host.netns().exists() { Ok(()) } else { self.host.power_on() }
    }

    /// Starts containerd, kube-proxy and kubelet.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.running.is_none(), "{} runs already", self.name());
        self.power_on_host_if_off()?;
        let folder = self.host.folder()?;
        let script = Launch::new("sh").args(["-ec", MACHINE]).arg(&folder);
        let machine = self.host.spawn("machine", &script)?;
        until("a node's machine runs", || folder.join("run/machine-is-up").exists())
            .with_context(|| machine.log_tail(10))?;
        if !self.is_prepared {
            self.write_initial_disk_files(&folder)?;
        }
        let containerd = self.spawn(
            &machine,
            "containerd",
            Launch::new("containerd").args(["--config", "/etc/containerd-lab.toml"]),
        )?;
        let socket = folder.join("run/containerd/containerd.sock");
        until("containerd is up", || socket.exists()).with_context(|| containerd.log_tail(10))?;
        let kube_proxy = self.spawn(&machine, "kube-proxy", self.kube_proxy()?)?;
        self.running =
            Some(Running { kubelet: None, _kube_proxy: kube_proxy, containerd, machine });
        if !self.is_prepared {
            let own = ["images/pause.tar", "images/busybox.tar"]
                .iter()
                .map(|name| binaries::cached_file(name))
                .collect::<Result<Vec<_>>>()?;
            for archive in own.iter().chain(&self.options.images.clone()) {
                self.import_image_archive(archive)?;
            }
            self.is_prepared = true;
        }
        self.start_kubelet()
    }

    /// The files of the disk, before the first start.
    fn write_initial_disk_files(&self, folder: &Path) -> Result<()> {
        let disk = folder.join("disk");
        std::fs::write(
            disk.join("etc/containerd-lab.toml"),
            config::containerd_config(&self.options),
        )?;
        std::fs::write(disk.join("etc/kubelet-lab.yaml"), config::kubelet_config(&self.options))?;
        let plugins = disk.join("opt/cni/bin");
        std::fs::create_dir_all(&plugins)?;
        for name in ["bridge", "host-local", "loopback", "portmap"] {
            symlink(binaries::cached_file(&format!("cni-1.9.1/{name}"))?, plugins.join(name))?;
        }
        Ok(())
    }

    fn kube_proxy(&self) -> Result<Launch> {
        let launch = Launch::new(binaries::kubernetes_program("kube-proxy")?)
            .args([
                "--healthz-bind-address=127.0.0.1:10256",
                "--metrics-bind-address=127.0.0.1:10249",
            ])
            // Non-zero values would change settings of this machine.
            .args([
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
            ])
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg(format!("--proxy-mode={}", self.options.proxy.name()))
            .arg(format!("--cluster-cidr={}", self.options.pod_networks()));
        Ok(launch)
    }

    pub fn start_kubelet(&mut self) -> Result<()> {
        let mut launch = Launch::new(binaries::kubernetes_program("kubelet")?)
            .arg("--config=/etc/kubelet-lab.yaml")
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()));
        if self.node_ip {
            let v4 = || self.host.v4_of("enp0s8").map(|address| address.to_string());
            let address = match self.options.families {
                Families::V4 => v4()?,
                Families::V6 => self.host.v6()?.to_string(),
                Families::Dual => format!("{},{}", v4()?, self.host.v6()?),
            };
            launch = launch.arg(format!("--node-ip={address}"));
        }
        // Like kubeadm's systemd unit, add the arguments from kubeadm's file, which a test may have changed.
        let written =
            std::fs::read_to_string(self.host.folder()?.join("disk/var-lib").join(KUBEADM_FLAGS))
                .unwrap_or_default();
        let words = written
            .trim()
            .strip_prefix("KUBELET_KUBEADM_ARGS=")
            .unwrap_or_default()
            .trim_matches('"');
        launch = launch.args(words.split_whitespace());
        let kubelet = self.spawn(&self.running()?.machine, "kubelet", launch)?;
        self.running_mut()?.kubelet = Some(kubelet);
        Ok(())
    }

    /// The node's pods keep running.
    pub fn stop_kubelet(&mut self) -> Result<()> {
        let mut kubelet = self.running_mut()?.kubelet.take().context("kubelet does not run")?;
        kubelet.terminate().map(drop)
    }

    /// Does not wait until containerd is ready. The node's pods keep running.
    pub fn restart_containerd(&mut self) -> Result<()> {
        self.running_mut()?.containerd.kill()?;
        let launch = Launch::new("containerd").args(["--config", "/etc/containerd-lab.toml"]);
        let containerd = self.spawn(&self.running()?.machine, "containerd", launch)?;
        self.running_mut()?.containerd = containerd;
        Ok(())
    }

    /// Kills all the node's processes. The node loses the content of `/run` and the kernel state.
    pub fn power_off(&mut self) -> Result<()> {
        let folder = self.host.folder()?;
        let containers = cgroups::container_ids(&folder);
        self.running = None;
        sweep::kill_processes_with_mount_below(&folder)?;
        self.host.power_off()?;
        cgroups::remove_container_cgroups(&containers);
        Ok(())
    }

    /// Like a real node, it keeps its disk but not `/run` or its kernel state.
    pub fn reboot(&mut self) -> Result<()> {
        self.power_off()?;
        self.start()
    }

    /// An image archive, into the node's containerd.
    pub fn import_image_archive(&self, archive: &Path) -> Result<()> {
        // ctr runs in the node's mount namespace, with another working directory.
        let archive = archive.canonicalize().with_context(|| archive.display().to_string())?;
        let archive = archive.to_str().context("an archive's name")?;
        self.command(&[
            "ctr",
            "--namespace",
            "k8s.io",
            "images",
            "import",
            "--snapshotter",
            self.options.snapshotter(),
            archive,
        ])
        .map(drop)
    }

    /// Runs with the node's network and files. The result is the standard output; fails if the exit code is not 0.
    pub fn command(&self, command: &[&str]) -> Result<String> {
        self.host.netns().exec("nsenter", &self.nsenter_arguments(command)?)
    }

    /// Runs with the node's network and files. The exit code does not matter.
    pub fn output(&self, command: &[&str]) -> Result<Output> {
        self.host.netns().output("nsenter", &self.nsenter_arguments(command)?)
    }

    /// Arguments for `nsenter`, which runs the command in this node's mount namespace.
    fn nsenter_arguments(&self, command: &[&str]) -> Result<Vec<String>> {
        let mount = format!("--mount=/proc/{}/ns/mnt", self.running()?.machine.pid());
        let path = format!("PATH={}", program_search_path()?);
        Ok([mount.as_str(), "--", "env", &path]
            .into_iter()
            .chain(command.iter().copied())
            .map(str::to_owned)
            .collect())
    }

    fn spawn(&self, machine: &Process, log: &str, launch: Launch) -> Result<Process> {
        let launch = launch
            .through_nsenter(&format!("--mount=/proc/{}/ns/mnt", machine.pid()))
            .env("PATH", program_search_path()?);
        self.host.spawn(log, &launch)
    }

    fn running(&self) -> Result<&Running> {
        self.running.as_ref().with_context(|| format!("{} does not run", self.name()))
    }

    fn running_mut(&mut self) -> Result<&mut Running> {
        self.running.as_mut().with_context(|| format!("{} does not run", self.host.name()))
    }
}

/// This machine's folders, preceded by the cache of `make setup` if containerd is not installed.
fn program_search_path() -> Result<String> {
    let usual = std::env::var("PATH").unwrap_or_default();
    let is_installed =
        std::env::split_paths(&usual).any(|folder| folder.join("containerd").is_file());
    let mut path = format!("{usual}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    if !is_installed {
        let (programs, runc) = (
            binaries::cached_file("containerd/usr/bin")?,
            binaries::cached_file("containerd/usr/sbin")?,
        );
        path = format!("{}:{}:{path}", programs.display(), runc.display());
    }
    Ok(path)
}
