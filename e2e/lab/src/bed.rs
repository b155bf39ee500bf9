//! The test environment of most packet tests: hosts on one switch, each with a daemon and a pod, and leases in a directory.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::daemon::flanneld::{Flanneld, FlanneldOptions};
use crate::host::Host;
use crate::host::pod::Pod;
use crate::lab::Lab;
use crate::measure::ping::reach;
use crate::net::switch::Switch;
use crate::store::Store;

/// Hosts with a daemon and a pod each. Rust drops the fields in the order of their declaration.
#[derive(Debug)]
pub struct Bed {
    /// One daemon on each host, in the order of the hosts.
    pub daemons: Vec<Flanneld>,
    /// The options with which each daemon starts and restarts.
    pub options: Vec<FlanneldOptions>,
    /// One pod on each host, in the order of the hosts.
    pub pods: Vec<Pod>,
    /// The hosts `h1`, `h2`, … in order.
    pub hosts: Vec<Host>,
    /// The store in the directory [`Bed::leases`].
    pub store: Store,
    /// The directory of the lease files.
    pub leases: PathBuf,
    /// The switch that connects the interfaces `enp0s8` of all hosts.
    pub lan: Switch,
}

impl Bed {
    /// Builds the hosts, the store, the daemons and the pods. `change` adapts the default options of each host's daemon.
    ///
    /// # Errors
    /// Returns an error if the setup of the hosts, the store or a pod fails, or if a daemon is not ready in time.
    pub fn start(
        lab: &Lab,
        hosts: u8,
        net_conf: &str,
        change: impl Fn(usize, FlanneldOptions) -> FlanneldOptions,
    ) -> Result<Bed> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, hosts)?;
        Bed::on(lab, &lan, hosts, net_conf, change)
    }

    /// Builds the test environment on existing hosts.
    ///
    /// # Errors
    /// Returns an error if the setup of the hosts, the store or a pod fails, or if a daemon is not ready in time.
    pub fn on(
        lab: &Lab,
        lan: &Switch,
        hosts: Vec<Host>,
        net_conf: &str,
        change: impl Fn(usize, FlanneldOptions) -> FlanneldOptions,
    ) -> Result<Bed> {
        let mut bed = Bed::without_pods(lab, lan, hosts, net_conf, change)?;
        bed.pods = Bed::pods(&bed.hosts, &bed.daemons)?;
        bed.reach()?;
        Ok(bed)
    }

    /// Builds the test environment on existing hosts, without pods.
    ///
    /// # Errors
    /// Returns an error if the setup of the store fails, or if a daemon does not start or is not ready in time.
    pub fn without_pods(
        lab: &Lab,
        lan: &Switch,
        hosts: Vec<Host>,
        net_conf: &str,
        change: impl Fn(usize, FlanneldOptions) -> FlanneldOptions,
    ) -> Result<Bed> {
        let leases = lab.folder("leases")?;
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
        Ok(Bed { daemons, options, pods: Vec::new(), hosts, store, leases, lan: lan.clone() })
    }

    /// Builds a pod on each host, in the subnet of the host's daemon, for tests whose leases are not in a directory.
    ///
    /// # Errors
    /// Returns an error if a daemon has no subnet, or if the setup of a pod fails.
    pub fn pods(hosts: &[Host], daemons: &[Flanneld]) -> Result<Vec<Pod>> {
        hosts
            .iter()
            .zip(daemons)
            .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
            .collect()
    }

    /// Waits until each pod reaches every other pod, in all address families.
    ///
    /// # Errors
    /// Returns an error with a matrix of all pods if a pod does not reach another pod in time.
    pub fn reach(&self) -> Result<()> {
        reach(&self.pods)
    }

    /// Checks that no daemon has logged an error or a panic.
    ///
    /// # Errors
    /// Returns an error that contains the log lines with errors or panics, if any.
    pub fn require_no_errors(&self) -> Result<()> {
        for (host, daemon) in self.hosts.iter().zip(&self.daemons) {
            let errors = daemon.errors();
            ensure!(errors.is_empty(), "{}: {errors:#?}", host.name());
        }
        Ok(())
    }
}
