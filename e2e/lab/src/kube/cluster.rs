//! A whole cluster: a control plane on one host, and nodes with containerd, kubelet and kube-proxy on other hosts.
//!
//! Like one that kubeadm has just created, it has no pod network: a test applies a network's manifest with `kubectl apply`.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::binaries;
use crate::host::process::{Launch, Process};
use crate::host::uplink::Uplink;
use crate::kube::api_server::{ApiServer, Families};
use crate::kube::cluster::member::Member;
use crate::kube::users::User;
use crate::lab::Lab;
use crate::net::switch::Switch;
use wait::{until, until_ok};

mod config;
pub(crate) mod member;
mod options;
mod pods;

pub use options::{ClusterOptions, ProxyMode};

/// It gives the control plane's host the address 192.168.56.199 on the nodes' network.
const CONTROL_PLANE: u8 = 99;

/// inotify instances per user that clusters need. With only the usual 128, a containerd that starts during other tests runs without its CRI plugin.
const WATCHES: u32 = 1024;

/// Rust drops the fields in the order of their declaration.
#[derive(Debug)]
pub struct Cluster {
    /// Including nodes that have not started yet.
    pub nodes: Vec<Member>,
    controllers: Vec<Process>,
    pub api: ApiServer,
    /// Connects the nodes.
    pub lan: Switch,
    options: ClusterOptions,
}

impl Cluster {
    /// Starts all nodes at once, and waits until they have registered.
    pub fn start_with_registered_nodes(lab: &Lab, options: &ClusterOptions) -> Result<Cluster> {
        let mut cluster = Cluster::start_control_plane_only(lab, options)?;
        cluster.nodes.iter_mut().try_for_each(Member::power_on_host_if_off)?;
        cluster.start_and_register_nodes(0..usize::from(options.nodes))?;
        Ok(cluster)
    }

    /// Starts the control plane. The nodes are hosts without any processes yet.
    pub fn start_control_plane_only(lab: &Lab, options: &ClusterOptions) -> Result<Cluster> {
        crate::site::limits::raise_kernel_limit(
            "fs/inotify/max_user_instances",
            WATCHES,
            "containerd and kubelets watch many files",
        );
        let (lan, hosts) = if options.equal_nat {
            let vagrant = lab.create_vagrant_with_equal_addresses(options.nodes)?;
            (vagrant.lan, vagrant.hosts)
        } else {
            let lan = lab.create_switch("lan")?;
            let uplink = |number| -> Result<Uplink> {
                let (v4, v6) = has_v4_and_v6(options.families);
                let mut uplink = Uplink::new(&lan, "enp0s8");
                let last = u16::from(number) + 100;
                if v4 {
                    uplink = uplink
                        .address(&format!("192.168.56.{last}/24"))?
                        .gateway("192.168.56.199")?;
                }
                if v6 {
                    uplink =
                        uplink.address(&format!("fd00:56::{last}/64"))?.gateway("fd00:56::199")?;
                }
                Ok(uplink)
            };
            let hosts = (1..=options.nodes)
                .map(|number| lab.create_host(&format!("n{number}"), &[uplink(number)?]))
                .collect::<Result<Vec<_>>>()?;
            (lan, hosts)
        };
        // The API server refuses to start without a default route. The gateways need not exist.
        let outward = Uplink::enp0s8(&lan, CONTROL_PLANE)?
            .gateway("192.168.56.254")?
            .gateway("fd00:56::254")?;
        let host = lab.create_host("control-plane", &[outward])?;
        let api = ApiServer::start(&host, options.families)?;
        let controllers = start_controller_manager_and_scheduler(&api, options)?;
        let admin = api.write_kubeconfig(User::Admin, None)?;
        let has_node_ip = |at: usize| options.node_ip.get(at).copied().unwrap_or(true);
        let nodes = hosts
            .into_iter()
            .enumerate()
            .map(|(at, host)| Member::new(host, options, has_node_ip(at), &admin))
            .collect();
        Ok(Cluster { nodes, controllers, api, lan, options: options.clone() })
    }

    /// The API server and the controllers; the nodes and etcd keep running.
    pub fn kill_api_server_and_controllers(&mut self) -> Result<()> {
        self.api.process()?.kill()?;
        self.api.stop()?;
        // Without the API, the controllers would lose their leases and also end.
        self.controllers.iter_mut().try_for_each(Process::kill)
    }

    pub fn restart_killed_control_plane(&mut self) -> Result<()> {
        self.api.start_after_stop()?;
        self.controllers = start_controller_manager_and_scheduler(&self.api, &self.options)?;
        Ok(())
    }

    /// Starts the nodes in parallel and waits until they have registered.
    pub fn start_and_register_nodes(&mut self, which: std::ops::Range<usize>) -> Result<()> {
        let nodes = self.nodes.get_mut(which).context("no such nodes")?;
        let outcome: Vec<Result<()>> = std::thread::scope(|scope| {
            let started: Vec<_> =
                nodes.iter_mut().map(|node| scope.spawn(|| node.start())).collect();
            started
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
                .collect()
        });
        outcome.into_iter().collect::<Result<()>>()?;
        let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
        for name in names {
            let registered = || {
                self.api.admin().node(&name).is_ok_and(|node| node["spec"]["podCIDR"].is_string())
            };
            until(&format!("node {name} is registered and has a podCIDR"), registered)?;
        }
        Ok(())
    }

    pub fn started(&self) -> impl Iterator<Item = &Member> {
        self.nodes.iter().filter(|node| node.is_started())
    }

    pub fn node(&mut self, number: usize) -> Result<&mut Member> {
        self.nodes.get_mut(number).with_context(|| format!("no node {number}"))
    }

    /// Runs as the administrator. The result is the standard output.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.api.kubectl(args)
    }

    /// `kubectl apply` with the manifest. The result is the standard output.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        let config = self.api.write_kubeconfig(User::Admin, None)?.display().to_string();
        let program = binaries::kubernetes_program("kubectl")?.display().to_string();
        self.api.host().netns().exec_with_input(
            &program,
            &["--kubeconfig", &config, "apply", "-f", "-"],
            manifest,
        )
    }

    /// Waits until all started nodes are Ready. The result is the duration; the error shows the condition of a node that is not Ready.
    pub fn wait_nodes_ready(&self) -> Result<Duration> {
        let start = std::time::Instant::now();
        let admin = self.api.admin();
        for node in self.started() {
            until_ok("all nodes are Ready", || {
                let condition = admin.condition(node.name(), "Ready")?;
                ensure!(condition["status"] == "True", "{}: {condition}", node.name());
                Ok(())
            })?;
        }
        Ok(start.elapsed())
    }

    /// Waits until it has a ready pod of its current template on each node. The error shows its status.
    pub fn wait_daemon_set(&self, namespace: &str, name: &str) -> Result<()> {
        let admin = self.api.admin();
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
        until_ok("a DaemonSet is ready", || {
            let set = admin.get(&path)?;
            let (status, wanted) = (&set["status"], &set["status"]["desiredNumberScheduled"]);
            let is_current = status["observedGeneration"] == set["metadata"]["generation"]
                && wanted.as_u64() > Some(0);
            ensure!(
                is_current
                    && status["numberReady"] == *wanted
                    && status["updatedNumberScheduled"] == *wanted,
                "{status}"
            );
            Ok(())
        })
    }

    /// A user of this machine can manage the cluster with it.
    pub fn kubectl_command(&self) -> Result<String> {
        let (program, config) = (
            binaries::kubernetes_program("kubectl")?,
            self.api.write_kubeconfig(User::Admin, None)?,
        );
        Ok(format!(
            "ip netns exec {} {} --kubeconfig {}",
            self.api.host().netns().name(),
            program.display(),
            config.display()
        ))
    }
}

/// The controller manager and the scheduler.
fn start_controller_manager_and_scheduler(
    api: &ApiServer,
    options: &ClusterOptions,
) -> Result<Vec<Process>> {
    let admin = api.write_kubeconfig(User::Admin, None)?;
    let controller = Launch::new(binaries::kubernetes_program("kube-controller-manager")?)
        .args([
            "--use-service-account-credentials=true",
            "--allocate-node-cidrs",
            "--leader-elect=false",
            "--secure-port=0",
        ])
        .arg(format!("--kubeconfig={}", admin.display()))
        .arg(format!(
            "--service-account-private-key-file={}",
            api.certificates().server_key().display()
        ))
        .arg(format!("--root-ca-file={}", api.certificates().ca().display()))
        .arg(format!("--cluster-cidr={}", options.pod_networks()))
        .arg(format!("--service-cluster-ip-range={}", options.families.service_ranges()))
        // Detect a lost node within seconds.
        .args(["--node-monitor-grace-period=20s", "--node-monitor-period=2s"]);
    let scheduler = Launch::new(binaries::kubernetes_program("kube-scheduler")?)
        .args(["--leader-elect=false", "--secure-port=0"])
        .arg(format!("--kubeconfig={}", admin.display()));
    Ok(vec![
        api.host().spawn("kube-controller-manager", &controller)?,
        api.host().spawn("kube-scheduler", &scheduler)?,
    ])
}

/// Whether nodes have IPv4 addresses and whether they have IPv6 addresses.
fn has_v4_and_v6(families: Families) -> (bool, bool) {
    (families != Families::V6, families != Families::V4)
}
