//! The place of most end-to-end tests: nodes on one switch, each with a daemon and a pod, and their store of leases.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! lab::Scene::with_title("bad peers").etcd().net(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#).run(|s| {
//!     s.put("10.5.3.0-24", r#"{"PublicIP":"10.99.0.5","BackendType":"host-gw"}"#)?;
//!     s.wait_leases_applied()?;
//!     s.check_each_node(|node| node.wait_metric_value(r#"flannel_leases_refused{reason="off-link"}"#, 1.0))?;
//!     s.wait_first_pods_connected()
//! })
//! # }
//! ```

use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::process::ExitStatus;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::daemon::flanneld::{Flanneld, FlanneldOptions};
use crate::host::Host;
use crate::host::pod::Pod;
use crate::host::uplink::Uplink;
use crate::lab::Lab;
use crate::measure::mesh::Mesh;
use crate::measure::ping::wait_pods_connected;
use crate::measure::probe::{Probe, ProbeOptions};
use crate::net::switch::Switch;
use crate::store::Store;
use crate::store::etcd::{Etcd, EtcdOptions};
use wait::until_ok;

/// Of another backend than the scene's: no daemon uses it, and each daemon lists it. See [`Scene::wait_leases_applied`].
const MARKER: &str = r#"{"PublicIP":"192.168.56.254","PublicIPv6":null,"BackendType":"marker"}"#;

/// Two nodes, leases in a directory, and vxlan, unless something else is said.
pub struct SceneOptions<'a> {
    title: String,
    nodes: u8,
    etcd: Option<EtcdOptions>,
    net_conf: String,
    options: Box<dyn Fn(usize, FlanneldOptions) -> FlanneldOptions + 'a>,
    running: bool,
    pods: bool,
}

/// Nodes, their store, and the switch that connects them. Rust drops the fields in the order of their declaration.
pub struct Scene<'a> {
    /// `h1`, `h2`, … in order; `scene[0]` is the first one.
    pub nodes: Vec<Node>,
    pub store: Store,
    /// On a host of its own (192.168.56.199), unless leases are in a directory.
    pub etcd: Option<Etcd>,
    /// Connects the interfaces `enp0s8` of all hosts.
    pub lan: Switch,
    /// For further hosts.
    pub lab: &'a Lab,
}

/// With the options of its daemon, its daemon if one runs, and its pods. A node is also its [`Host`].
#[derive(Debug)]
pub struct Node {
    daemon: Option<Flanneld>,
    /// The daemon starts next with these.
    pub options: FlanneldOptions,
    /// In the order of their creation.
    pub pods: Vec<Pod>,
    host: Host,
}

impl<'a> Scene<'a> {
    pub fn with_title(title: &str) -> SceneOptions<'a> {
        SceneOptions {
            title: title.to_owned(),
            nodes: 2,
            etcd: None,
            net_conf: r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#.to_owned(),
            options: Box::new(|_, options| options),
            running: true,
            pods: true,
        }
    }
}

impl<'a> SceneOptions<'a> {
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    #[must_use]
    pub fn etcd(self) -> Self {
        self.etcd_with(EtcdOptions::default())
    }

    #[must_use]
    pub fn etcd_with(mut self, options: EtcdOptions) -> Self {
        self.etcd = Some(options);
        self
    }

    #[must_use]
    pub fn net(mut self, net_conf: &str) -> Self {
        net_conf.clone_into(&mut self.net_conf);
        self
    }

    /// Changes those of each node's daemon; the first node has the number 0.
    #[must_use]
    pub fn options(
        mut self,
        change: impl Fn(usize, FlanneldOptions) -> FlanneldOptions + 'a,
    ) -> Self {
        self.options = Box::new(change);
        self
    }

    #[must_use]
    pub fn daemon_arg(self, arg: &'a str) -> Self {
        let before = self.options;
        Self { options: Box::new(move |number, options| before(number, options).arg(arg)), ..self }
    }

    /// No daemon, and so no pod.
    #[must_use]
    pub fn without_daemons(mut self) -> Self {
        self.running = false;
        self
    }

    #[must_use]
    pub fn without_pods(mut self) -> Self {
        self.pods = false;
        self
    }

    /// Builds a lab, waits until each daemon is ready and the pods reach each other, runs `work`, and removes all. The error contains the ends of the
    /// lab's logs.
    pub fn run(self, work: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
        Lab::run(&self.title, |lab| {
            let mut scene = self.build_and_start(lab)?;
            work(&mut scene)
        })
    }

    fn build_and_start(&self, lab: &'a Lab) -> Result<Scene<'a>> {
        let lan = lab.create_switch("lan")?;
        let hosts = lab.create_hosts(&lan, self.nodes)?;
        let etcd = match &self.etcd {
            Some(options) => {
                let host = lab.create_host("store", &[Uplink::enp0s8(&lan, 99)?])?;
                Some(Etcd::start(&[&host], options)?)
            }
            None => None,
        };
        let store = match &etcd {
            Some(etcd) => etcd.store()?,
            None => Store::dir(&lab.ensure_folder("leases")?),
        };
        store.configure(&self.net_conf)?;
        let node = |(number, host): (usize, Host)| Node {
            daemon: None,
            options: (self.options)(number, FlanneldOptions::new(&store).iface("enp0s8")),
            pods: Vec::new(),
            host,
        };
        let mut scene = Scene {
            nodes: hosts.into_iter().enumerate().map(node).collect(),
            store,
            etcd,
            lan,
            lab,
        };
        match (self.running, self.pods) {
            (true, true) => scene.start_daemons_and_connected_pods()?,
            (true, false) => scene.start_daemons()?,
            (false, _) => {}
        }
        Ok(scene)
    }
}

impl Scene<'_> {
    /// Starts the daemons that do not run, side by side, and waits until each one is ready.
    pub fn start_daemons(&mut self) -> Result<()> {
        for node in self.nodes.iter_mut().filter(|node| node.daemon.is_none()) {
            node.launch_daemon()?;
        }
        self.nodes.iter_mut().try_for_each(|node| node.daemon_mut()?.wait_ready().map(drop))
    }

    /// Writes as an operator does: `lease` is like `10.5.3.0-24`.
    pub fn put(&self, lease: &str, value: &str) -> Result<()> {
        self.store.put(lease, value)
    }

    /// Waits until each running daemon has applied all leases and deletions that were written before, by a marker lease that follows them.
    pub fn wait_leases_applied(&self) -> Result<()> {
        let marker = "10.254.254.0-24";
        for is_there in [true, false] {
            if is_there {
                self.put(marker, MARKER)?;
            } else {
                self.store.delete(marker)?;
            }
            for node in self.nodes.iter().filter(|node| node.daemon.is_some()) {
                until_ok("the daemon sees the marker lease", || {
                    let text = node.get_health_endpoint("/status")?.1;
                    ensure!(text.contains("10.254.254.0") == is_there, "{text}");
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Names the node on which the check fails.
    pub fn check_each_node(&self, check: impl Fn(&Node) -> Result<()>) -> Result<()> {
        self.nodes.iter().try_for_each(|node| check(node).with_context(|| node.name().to_owned()))
    }

    pub fn pods(&self) -> Vec<&Pod> {
        self.nodes.iter().flat_map(|node| &node.pods).collect()
    }

    /// Waits until each node's first pod reaches that of every other node, in all families that they share. The error contains a matrix.
    pub fn wait_first_pods_connected(&self) -> Result<()> {
        wait_pods_connected(&self.first_pods()?)
    }

    /// Probes run between the first pods of all nodes, in each direction.
    pub fn start_mesh(&self) -> Result<Mesh> {
        Mesh::start(&self.first_pods()?, &ProbeOptions::default())
    }

    /// The probe runs from one node's first pod to another's.
    pub fn start_probe(&self, from: usize, to: usize) -> Result<Probe> {
        let pods = self.first_pods()?;
        let pod = |number: usize| pods.get(number).context("no such node");
        Probe::start(pod(from)?, pod(to)?, &ProbeOptions::default())
    }

    /// Probes run between the first pods of all nodes, in each direction and in each family that they share.
    pub fn start_mesh_per_family(&self) -> Result<Vec<Mesh>> {
        let (pods, options) = (self.first_pods()?, ProbeOptions::default());
        let has = |v6| {
            let mut addresses = pods.iter().map(Pod::addresses);
            addresses.all(|list| list.iter().any(|address| address.is_ipv6() == v6))
        };
        let families = [(false, options.clone()), (true, options.v6())];
        let families = families.iter().filter(|(v6, _)| has(*v6));
        families.map(|(_, options)| Mesh::start(&pods, options)).collect()
    }

    /// Fails if a daemon has logged an error or a panic.
    pub fn require_no_errors(&self) -> Result<()> {
        self.check_each_node(|node| {
            let errors = node.daemon.as_ref().map(|daemon| daemon.errors());
            ensure!(errors.iter().flatten().count() == 0, "{errors:#?}");
            Ok(())
        })
    }

    /// Starts the daemons that do not run, builds a pod on each node without one, and waits until the pods reach each other
    /// (one node's pod has nobody to reach).
    pub fn start_daemons_and_connected_pods(&mut self) -> Result<()> {
        self.start_daemons()?;
        for node in self.nodes.iter_mut().filter(|node| node.pods.is_empty()) {
            node.create_pod("p1")?;
        }
        if self.nodes.len() > 1 { self.wait_first_pods_connected() } else { Ok(()) }
    }

    /// The first pods of all nodes. Fails if a node has none.
    pub fn first_pods(&self) -> Result<Vec<Pod>> {
        let first = |node: &Node| node.pods.first().cloned();
        let pods = self.nodes.iter().map(first).collect::<Option<Vec<_>>>();
        pods.context("a node has no pod")
    }
}

impl Index<usize> for Scene<'_> {
    type Output = Node;

    #[allow(clippy::indexing_slicing, reason = "a wrong number ends the test")]
    fn index(&self, number: usize) -> &Node {
        &self.nodes[number]
    }
}

impl IndexMut<usize> for Scene<'_> {
    #[allow(clippy::indexing_slicing, reason = "a wrong number ends the test")]
    fn index_mut(&mut self, number: usize) -> &mut Node {
        &mut self.nodes[number]
    }
}

impl Node {
    /// Fails if no daemon runs.
    pub fn daemon(&self) -> Result<&Flanneld> {
        let name = self.host.name();
        let daemon = self.daemon.as_ref();
        daemon.with_context(|| format!("{name} has no daemon"))
    }

    /// Fails if no daemon runs.
    pub fn daemon_mut(&mut self) -> Result<&mut Flanneld> {
        let name = self.host.name();
        let daemon = self.daemon.as_mut();
        daemon.with_context(|| format!("{name} has no daemon"))
    }

    /// Does not wait until the daemon is ready.
    pub fn launch_daemon(&mut self) -> Result<&mut Flanneld> {
        Ok(self.daemon.insert(self.host.start_flanneld(&self.options)?))
    }

    /// Waits until the daemon is ready.
    pub fn start_daemon(&mut self) -> Result<()> {
        self.launch_daemon()?.wait_ready().map(drop)
    }

    /// The daemon has to end by itself. The result is its exit status and the error lines of its log.
    pub fn wait_refused_start(&mut self) -> Result<(ExitStatus, String)> {
        let daemon = self.launch_daemon()?;
        let (status, errors) = (daemon.wait()?, daemon.errors().concat());
        self.daemon = None;
        Ok((status, errors))
    }

    /// Sends SIGTERM. Fails if the daemon does not exit with 0.
    pub fn stop_daemon(&mut self) -> Result<()> {
        let status = self.daemon_mut()?.terminate()?;
        let daemon = self.daemon.take();
        ensure!(status.success(), "{status}: {:?}", daemon.map(|daemon| daemon.log_tail(20)));
        Ok(())
    }

    /// Sends SIGKILL.
    pub fn kill_daemon(&mut self) -> Result<()> {
        self.daemon_mut()?.kill()?;
        self.daemon = None;
        Ok(())
    }

    /// Builds a pod in the daemon's subnet.
    pub fn create_pod(&mut self, name: &str) -> Result<&Pod> {
        let pod = self.host.create_pod(name, &self.daemon()?.subnet_env()?)?;
        self.pods.push(pod);
        self.pods.last().context("a pod")
    }

    /// `path` is of the daemon's health endpoint. The result is the status code and the body.
    pub fn get_health_endpoint(&self, path: &str) -> Result<(u16, String)> {
        self.daemon()?.get_health_endpoint(path)
    }

    /// `pointer` is a JSON pointer, such as `/refused/0/subnet`; `null` if it is not there.
    pub fn status(&self, pointer: &str) -> Result<Value> {
        let status: Value = serde_json::from_str(&self.get_health_endpoint("/status")?.1)?;
        Ok(status.pointer(pointer).cloned().unwrap_or_default())
    }

    /// Waits until a part of the daemon's `/status` has a value. The error contains the last one.
    pub fn wait_status_value(&self, pointer: &str, wanted: impl Into<Value>) -> Result<()> {
        let wanted = wanted.into();
        until_ok(&format!("{pointer} of /status is {wanted}"), || {
            let now = self.status(pointer)?;
            ensure!(now == wanted, "it is {now}");
            Ok(())
        })
    }

    /// Waits until a metric, given by its exact name and labels, has a value. The error contains the last one.
    pub fn wait_metric_value(&self, name: &str, wanted: f64) -> Result<()> {
        until_ok(&format!("{name} is {wanted}"), || {
            let now = self.daemon()?.metric(name)?;
            ensure!(now == wanted, "it is {now}");
            Ok(())
        })
    }

    /// Does not wait. The error is the body of `/readyz`.
    pub fn require_ready(&self) -> Result<()> {
        let (code, body) = self.get_health_endpoint("/readyz")?;
        ensure!(code == 200, "{code} {body}");
        Ok(())
    }

    /// The IPv4 subnet, as `ip route` prints it.
    pub fn subnet(&self) -> Result<String> {
        let subnet = self.daemon()?.subnet_env()?.subnet;
        Ok(subnet.context("no subnet")?.trunc().to_string())
    }

    /// Runs on the host. The result is the output.
    pub fn sh(&self, script: &str) -> Result<String> {
        self.host.netns().sh(script)
    }

    /// Waits until the output of a script on the host contains the text. The error contains the last one.
    pub fn wait_output_contains(&self, script: &str, text: &str) -> Result<()> {
        until_ok(&format!("`{script}` shows {text:?}"), || {
            let now = self.sh(script)?;
            ensure!(now.contains(text), "{now}");
            Ok(())
        })
    }

    /// The daemon starts next with these options.
    pub fn change_options(&mut self, change: impl FnOnce(FlanneldOptions) -> FlanneldOptions) {
        self.options = change(self.options.clone());
    }

    /// The names of the host's devices that begin with `flannel`.
    pub fn devices(&self) -> Result<Vec<String>> {
        let names = self.host.netns().links()?;
        let names = names.into_iter().map(|link| link.ifname);
        Ok(names.filter(|name| name.starts_with("flannel")).collect())
    }

    /// Sends SIGTERM, starts the daemon with the node's options, and waits until it is ready.
    pub fn restart_daemon(&mut self) -> Result<()> {
        self.stop_daemon()?;
        self.start_daemon()
    }

    /// `name` is the exact name with its labels. A counter that is zero has no line.
    pub fn metric_or_zero(&self, name: &str) -> f64 {
        let value = self.daemon().and_then(|daemon| daemon.metric(name));
        value.unwrap_or(0.0)
    }

    /// Waits until the daemon's log contains the text. The error contains its end.
    pub fn wait_log_contains(&self, text: &str) -> Result<()> {
        until_ok(&format!("the log contains {text:?}"), || {
            let daemon = self.daemon()?;
            ensure!(daemon.log().contains(text), "{}", daemon.log_tail(20));
            Ok(())
        })
    }

    /// The node's IPv4 lease in the store, such as `10.5.3.0-24`.
    pub fn lease_name(&self) -> Result<String> {
        Ok(self.subnet()?.replace('/', "-"))
    }
}

impl Deref for Node {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Host {
        &mut self.host
    }
}
