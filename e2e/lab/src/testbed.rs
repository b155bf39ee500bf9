//! The test environment of most packet tests: hosts on one switch, each with a daemon and a pod, and leases in a directory.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::daemon::flanneld::{Flanneld, FlanneldOptions};
use crate::host::Host;
use crate::host::pod::Pod;
use crate::lab::Lab;
use crate::measure::ping::wait_pods_connected;
use crate::net::switch::Switch;
use crate::store::Store;

/// Rust drops the fields in the order of their declaration.
#[derive(Debug)]
pub struct Testbed {
    /// In the order of the hosts.
    pub daemons: Vec<Flanneld>,
    /// Each daemon starts and restarts with these.
    pub options: Vec<FlanneldOptions>,
    /// One on each host, in the order of the hosts.
    pub pods: Vec<Pod>,
    /// `h1`, `h2`, … in order.
    pub hosts: Vec<Host>,
    /// In the directory [`Testbed::leases`].
    pub store: Store,
    /// The lease files.
    pub leases: PathBuf,
    /// Connects the interfaces `enp0s8` of all hosts.
    pub lan: Switch,
}

impl Testbed {
    /// `change` adapts the default options of each host's daemon.
    pub fn start_with_connected_pods(
        lab: &Lab,
        hosts: u8,
        net_conf: &str,
        change: impl Fn(usize, FlanneldOptions) -> FlanneldOptions,
    ) -> Result<Testbed> {
        let lan = lab.create_switch("lan")?;
        let hosts = lab.create_hosts(&lan, hosts)?;
        Testbed::start_with_connected_pods_on(lab, &lan, hosts, net_conf, change)
    }

    /// Builds the environment on existing hosts.
    pub fn start_with_connected_pods_on(
        lab: &Lab,
        lan: &Switch,
        hosts: Vec<Host>,
        net_conf: &str,
        change: impl Fn(usize, FlanneldOptions) -> FlanneldOptions,
    ) -> Result<Testbed> {
        let mut bed = Testbed::start_without_pods_on(lab, lan, hosts, net_conf, change)?;
        bed.pods = Testbed::create_pod_on_each_host(&bed.hosts, &bed.daemons)?;
        bed.wait_all_pods_connected()?;
        Ok(bed)
    }

    /// Builds the environment on existing hosts, without pods.
    pub fn start_without_pods_on(
        lab: &Lab,
        lan: &Switch,
        hosts: Vec<Host>,
        net_conf: &str,
        change: impl Fn(usize, FlanneldOptions) -> FlanneldOptions,
    ) -> Result<Testbed> {
        let leases = lab.ensure_folder("leases")?;
        let store = Store::dir(&leases);
        store.configure(net_conf)?;
        let options: Vec<_> = (0..hosts.len())
            .map(|number| change(number, FlanneldOptions::new(&store).iface("enp0s8")))
            .collect();
        let mut daemons = hosts
            .iter()
            .zip(&options)
            .map(|(host, options)| host.start_flanneld(options))
            .collect::<Result<Vec<_>>>()?;
        daemons.iter_mut().try_for_each(|daemon| daemon.wait_ready().map(drop))?;
        Ok(Testbed { daemons, options, pods: Vec::new(), hosts, store, leases, lan: lan.clone() })
    }

    /// One pod on each host, in its daemon's subnet, for tests whose leases are not in a directory.
    pub fn create_pod_on_each_host(hosts: &[Host], daemons: &[Flanneld]) -> Result<Vec<Pod>> {
        hosts
            .iter()
            .zip(daemons)
            .map(|(host, daemon)| host.create_pod("p1", &daemon.subnet_env()?))
            .collect()
    }

    /// Waits until each pod reaches every other pod, in all address families. The error shows a matrix of all pods.
    pub fn wait_all_pods_connected(&self) -> Result<()> {
        wait_pods_connected(&self.pods)
    }

    /// Fails if a daemon has logged an error or a panic.
    pub fn require_no_errors(&self) -> Result<()> {
        for (host, daemon) in self.hosts.iter().zip(&self.daemons) {
            let errors = daemon.errors();
            ensure!(errors.is_empty(), "{}: {errors:#?}", host.name());
        }
        Ok(())
    }
}
