//! The place of most end-to-end tests: nodes on one switch, each with a daemon and a pod, and their store of leases.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! lab::Scene::of("bad peers").etcd().net(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#).run(|s| {
//!     s.put("10.5.3.0-24", r#"{"PublicIP":"10.99.0.5","BackendType":"host-gw"}"#)?;
//!     s.settled()?;
//!     s.each(|node| node.has_metric(r#"flannel_leases_refused{reason="off-link"}"#, 1.0))?;
//!     s.reach()
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
use crate::measure::ping::reach;
use crate::measure::probe::{Probe, ProbeOptions};
use crate::net::switch::Switch;
use crate::store::Store;
use crate::store::etcd::{Etcd, EtcdOptions};
use crate::wait::until_ok;

/// A lease of another backend than the scene's: no daemon uses it, and each daemon lists it. See [`Scene::settled`].
const MARKER: &str = r#"{"PublicIP":"192.168.56.254","PublicIPv6":null,"BackendType":"marker"}"#;

/// Describes a [`Scene`]: two nodes, leases in a directory, and vxlan, unless something else is said.
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
    /// The nodes `h1`, `h2`, … in order; `scene[0]` is the first one.
    pub nodes: Vec<Node>,
    /// The store of leases.
    pub store: Store,
    /// The etcd of the store, on a host of its own (192.168.56.199), unless leases are in a directory.
    pub etcd: Option<Etcd>,
    /// The switch that connects the interfaces `enp0s8` of all hosts.
    pub lan: Switch,
    /// The lab, for further hosts.
    pub lab: &'a Lab,
}

/// A host with the options of its daemon, its daemon if one runs, and its pods. A node is also its [`Host`].
#[derive(Debug)]
pub struct Node {
    daemon: Option<Flanneld>,
    /// The options with which the daemon starts next.
    pub options: FlanneldOptions,
    /// The pods, in the order of their creation.
    pub pods: Vec<Pod>,
    host: Host,
}

impl<'a> Scene<'a> {
    /// Begins the description of a scene.
    pub fn of(title: &str) -> SceneOptions<'a> {
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
    /// Sets the number of nodes.
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Keeps the leases in etcd.
    #[must_use]
    pub fn etcd(self) -> Self {
        self.etcd_with(EtcdOptions::default())
    }

    /// Keeps the leases in an etcd with these options.
    #[must_use]
    pub fn etcd_with(mut self, options: EtcdOptions) -> Self {
        self.etcd = Some(options);
        self
    }

    /// Sets the network configuration.
    #[must_use]
    pub fn net(mut self, net_conf: &str) -> Self {
        net_conf.clone_into(&mut self.net_conf);
        self
    }

    /// Changes the options of each node's daemon; the first node has the number 0.
    #[must_use]
    pub fn options(
        mut self,
        change: impl Fn(usize, FlanneldOptions) -> FlanneldOptions + 'a,
    ) -> Self {
        self.options = Box::new(change);
        self
    }

    /// Adds an argument to each daemon's command line.
    #[must_use]
    pub fn arg(self, arg: &'a str) -> Self {
        let before = self.options;
        Self { options: Box::new(move |number, options| before(number, options).arg(arg)), ..self }
    }

    /// Starts no daemon, and so no pod.
    #[must_use]
    pub fn stopped(mut self) -> Self {
        self.running = false;
        self
    }

    /// Starts no pod.
    #[must_use]
    pub fn without_pods(mut self) -> Self {
        self.pods = false;
        self
    }

    /// Builds the scene in a lab of its own, waits until each daemon is ready and the pods reach each other, runs `work`, and removes all.
    ///
    /// # Errors
    /// Returns the errors of the scene and of `work`, with the ends of the lab's logs.
    pub fn run(self, work: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
        Lab::run(&self.title, |lab| {
            let mut scene = self.build(lab)?;
            work(&mut scene)
        })
    }

    fn build(&self, lab: &'a Lab) -> Result<Scene<'a>> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, self.nodes)?;
        let etcd = match &self.etcd {
            Some(options) => {
                let host = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
                Some(Etcd::start(&[&host], options)?)
            }
            None => None,
        };
        let store = match &etcd {
            Some(etcd) => etcd.store()?,
            None => Store::dir(&lab.folder("leases")?),
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
            (true, true) => scene.populate()?,
            (true, false) => scene.start()?,
            (false, _) => {}
        }
        Ok(scene)
    }
}

impl Scene<'_> {
    /// Starts the daemons that do not run, side by side, and waits until each one is ready.
    ///
    /// # Errors
    /// Returns an error if a daemon does not become ready.
    pub fn start(&mut self) -> Result<()> {
        for node in self.nodes.iter_mut().filter(|node| node.daemon.is_none()) {
            node.launch()?;
        }
        self.nodes.iter_mut().try_for_each(|node| node.daemon_mut()?.wait_ready().map(drop))
    }

    /// Writes a lease as an operator does, such as `10.5.3.0-24` with a lease's value.
    ///
    /// # Errors
    /// Returns an error if the store does not take it.
    pub fn put(&self, lease: &str, value: &str) -> Result<()> {
        self.store.put(lease, value)
    }

    /// Waits until each running daemon has applied all leases and deletions that were written before, by a marker lease that follows them.
    ///
    /// # Errors
    /// Returns an error if a daemon does not see the marker.
    pub fn settled(&self) -> Result<()> {
        let marker = "10.254.254.0-24";
        for is_there in [true, false] {
            if is_there {
                self.put(marker, MARKER)?;
            } else {
                self.store.delete(marker)?;
            }
            for node in self.nodes.iter().filter(|node| node.daemon.is_some()) {
                until_ok("the daemon sees the marker lease", || {
                    let text = node.get("/status")?.1;
                    ensure!(text.contains("10.254.254.0") == is_there, "{text}");
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Runs a check on each node, and names the node on which it fails.
    ///
    /// # Errors
    /// Returns the first error of `check`.
    pub fn each(&self, check: impl Fn(&Node) -> Result<()>) -> Result<()> {
        self.nodes.iter().try_for_each(|node| check(node).with_context(|| node.name().to_owned()))
    }

    /// Returns all pods.
    pub fn pods(&self) -> Vec<&Pod> {
        self.nodes.iter().flat_map(|node| &node.pods).collect()
    }

    /// Waits until each node's first pod reaches that of every other node, in all families that they share.
    ///
    /// # Errors
    /// Returns an error with a matrix of all pods.
    pub fn reach(&self) -> Result<()> {
        reach(&self.firsts()?)
    }

    /// Starts probes between the first pods of all nodes, in each direction.
    ///
    /// # Errors
    /// Returns an error if a probe does not start.
    pub fn mesh(&self) -> Result<Mesh> {
        Mesh::start(&self.firsts()?, &ProbeOptions::default())
    }

    /// Starts a probe from one node's first pod to another's.
    ///
    /// # Errors
    /// Returns an error if the probe does not start.
    pub fn probe(&self, from: usize, to: usize) -> Result<Probe> {
        let pods = self.firsts()?;
        let pod = |number: usize| pods.get(number).context("no such node");
        Probe::start(pod(from)?, pod(to)?, &ProbeOptions::default())
    }

    /// Starts probes between the first pods of all nodes, in each direction and in each address family that they share.
    ///
    /// # Errors
    /// Returns an error if a probe does not start.
    pub fn meshes(&self) -> Result<Vec<Mesh>> {
        let (pods, options) = (self.firsts()?, ProbeOptions::default());
        let has = |v6| {
            let mut addresses = pods.iter().map(Pod::addresses);
            addresses.all(|list| list.iter().any(|address| address.is_ipv6() == v6))
        };
        let families = [(false, options.clone()), (true, options.v6())];
        let families = families.iter().filter(|(v6, _)| has(*v6));
        families.map(|(_, options)| Mesh::start(&pods, options)).collect()
    }

    /// Checks that no daemon has logged an error or a panic.
    ///
    /// # Errors
    /// Returns the log lines with errors or panics.
    pub fn require_no_errors(&self) -> Result<()> {
        self.each(|node| {
            let errors = node.daemon.as_ref().map(|daemon| daemon.errors());
            ensure!(errors.iter().flatten().count() == 0, "{errors:#?}");
            Ok(())
        })
    }

    /// Starts the daemons that do not run, builds a pod on each node without one, and waits until the pods reach each other.
    ///
    /// # Errors
    /// Returns an error if a daemon does not become ready, or with a matrix of all pods.
    pub fn populate(&mut self) -> Result<()> {
        self.start()?;
        for node in self.nodes.iter_mut().filter(|node| node.pods.is_empty()) {
            node.pod("p1")?;
        }
        self.reach()
    }

    /// Returns the first pods of all nodes.
    ///
    /// # Errors
    /// Returns an error if a node has no pod.
    pub fn firsts(&self) -> Result<Vec<Pod>> {
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
    /// Returns the running daemon.
    ///
    /// # Errors
    /// Returns an error if no daemon runs.
    pub fn daemon(&self) -> Result<&Flanneld> {
        let name = self.host.name();
        let daemon = self.daemon.as_ref();
        daemon.with_context(|| format!("{name} has no daemon"))
    }

    /// Returns the running daemon, to change it.
    ///
    /// # Errors
    /// Returns an error if no daemon runs.
    pub fn daemon_mut(&mut self) -> Result<&mut Flanneld> {
        let name = self.host.name();
        let daemon = self.daemon.as_mut();
        daemon.with_context(|| format!("{name} has no daemon"))
    }

    /// Starts the daemon without waiting until it is ready.
    ///
    /// # Errors
    /// Returns an error if the start fails.
    pub fn launch(&mut self) -> Result<&mut Flanneld> {
        Ok(self.daemon.insert(self.host.start_flanneld(&self.options)?))
    }

    /// Starts the daemon and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error if the daemon does not become ready.
    pub fn start(&mut self) -> Result<()> {
        self.launch()?.wait_ready().map(drop)
    }

    /// Starts the daemon, which has to end by itself. Returns its exit status; its log is that of the last daemon.
    ///
    /// # Errors
    /// Returns an error if the daemon does not end.
    pub fn refuses_to_start(&mut self) -> Result<(ExitStatus, String)> {
        let daemon = self.launch()?;
        let (status, errors) = (daemon.wait()?, daemon.errors().concat());
        self.daemon = None;
        Ok((status, errors))
    }

    /// Stops the daemon with SIGTERM.
    ///
    /// # Errors
    /// Returns an error if no daemon runs, or if it does not exit with 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.daemon_mut()?.terminate()?;
        let daemon = self.daemon.take();
        ensure!(status.success(), "{status}: {:?}", daemon.map(|daemon| daemon.log_tail(20)));
        Ok(())
    }

    /// Kills the daemon with SIGKILL.
    ///
    /// # Errors
    /// Returns an error if no daemon runs.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon_mut()?.kill()?;
        self.daemon = None;
        Ok(())
    }

    /// Builds a pod in the daemon's subnet.
    ///
    /// # Errors
    /// Returns an error if the daemon has no subnet.
    pub fn pod(&mut self, name: &str) -> Result<&Pod> {
        let pod = self.host.pod(name, &self.daemon()?.subnet_env()?)?;
        self.pods.push(pod);
        self.pods.last().context("a pod")
    }

    /// Returns the status code and the body of a path of the daemon's health endpoint.
    ///
    /// # Errors
    /// Returns an error if no daemon runs or responds.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        self.daemon()?.get(path)
    }

    /// Returns a part of the daemon's `/status` by its JSON pointer, such as `/refused/0/subnet`; `null` if it is not there.
    ///
    /// # Errors
    /// Returns an error if no daemon runs or responds.
    pub fn status(&self, pointer: &str) -> Result<Value> {
        let status: Value = serde_json::from_str(&self.get("/status")?.1)?;
        Ok(status.pointer(pointer).cloned().unwrap_or_default())
    }

    /// Waits until a part of the daemon's `/status` has a value.
    ///
    /// # Errors
    /// Returns an error with the last value.
    pub fn has_status(&self, pointer: &str, wanted: impl Into<Value>) -> Result<()> {
        let wanted = wanted.into();
        until_ok(&format!("{pointer} of /status is {wanted}"), || {
            let now = self.status(pointer)?;
            ensure!(now == wanted, "it is {now}");
            Ok(())
        })
    }

    /// Waits until a metric, given by its exact name and labels, has a value.
    ///
    /// # Errors
    /// Returns an error with the last value.
    pub fn has_metric(&self, name: &str, wanted: f64) -> Result<()> {
        until_ok(&format!("{name} is {wanted}"), || {
            let now = self.daemon()?.metric(name)?;
            ensure!(now == wanted, "it is {now}");
            Ok(())
        })
    }

    /// Checks that the daemon is ready now.
    ///
    /// # Errors
    /// Returns the body of `/readyz` if it is not.
    pub fn require_ready(&self) -> Result<()> {
        let (code, body) = self.get("/readyz")?;
        ensure!(code == 200, "{code} {body}");
        Ok(())
    }

    /// Returns the node's subnet of IPv4, as `ip route` prints it.
    ///
    /// # Errors
    /// Returns an error if the daemon has none.
    pub fn subnet(&self) -> Result<String> {
        let subnet = self.daemon()?.subnet_env()?.subnet;
        Ok(subnet.context("no subnet")?.trunc().to_string())
    }

    /// Runs a shell script on the host. Returns its output.
    ///
    /// # Errors
    /// Returns an error if it fails.
    pub fn sh(&self, script: &str) -> Result<String> {
        self.host.netns().sh(script)
    }

    /// Waits until the output of a shell script on the host contains a text.
    ///
    /// # Errors
    /// Returns an error with the last output.
    pub fn shows(&self, script: &str, text: &str) -> Result<()> {
        until_ok(&format!("`{script}` shows {text:?}"), || {
            let now = self.sh(script)?;
            ensure!(now.contains(text), "{now}");
            Ok(())
        })
    }

    /// Changes the options with which the daemon starts next.
    pub fn change(&mut self, change: impl FnOnce(FlanneldOptions) -> FlanneldOptions) {
        self.options = change(self.options.clone());
    }

    /// Returns the names of the host's devices that begin with `flannel`.
    ///
    /// # Errors
    /// Returns an error if the kernel's list cannot be read.
    pub fn devices(&self) -> Result<Vec<String>> {
        let names = self.host.netns().links()?;
        let names = names.into_iter().map(|link| link.ifname);
        Ok(names.filter(|name| name.starts_with("flannel")).collect())
    }

    /// Stops the daemon with SIGTERM, starts it with the node's options, and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error if the daemon does not exit with 0 or does not become ready.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start()
    }

    /// Returns the value of a counter, given by its exact name and labels. A counter that is zero has no line.
    pub fn count(&self, name: &str) -> f64 {
        let value = self.daemon().and_then(|daemon| daemon.metric(name));
        value.unwrap_or(0.0)
    }

    /// Waits until the daemon's log contains a text.
    ///
    /// # Errors
    /// Returns an error with the end of the log.
    pub fn logs(&self, text: &str) -> Result<()> {
        until_ok(&format!("the log contains {text:?}"), || {
            let daemon = self.daemon()?;
            ensure!(daemon.log().contains(text), "{}", daemon.log_tail(20));
            Ok(())
        })
    }

    /// Returns the name of the node's IPv4 lease in the store, such as `10.5.3.0-24`.
    ///
    /// # Errors
    /// Returns an error if the daemon has no subnet.
    pub fn lease(&self) -> Result<String> {
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
