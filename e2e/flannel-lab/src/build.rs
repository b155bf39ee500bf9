//! Builds the network: hosts, the store, the daemons and the pods.

use anyhow::{Context, Result};
use lab::{Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Pod, Store, Uplink};

use crate::plan::Plan;
use crate::trap;
use terminal::lab::StoreKind;
use terminal::screen::Screen;

/// Rust drops the fields in their order: the daemons first and the lab last.
pub(crate) struct Network {
    /// In the order of the hosts.
    pub daemons: Vec<Flanneld>,
    /// If etcd stores the leases.
    pub etcd: Option<Etcd>,
    pub store: Store,
    /// Every daemon starts and restarts with these.
    pub options: FlanneldOptions,
    /// `h1`, `h2`, … in order.
    pub hosts: Vec<Host>,
    /// It owns all other parts of the network.
    pub lab: Lab,
}

impl Network {
    /// Prints each step.
    pub(crate) fn build_and_start_daemons(plan: &Plan, screen: Screen) -> Result<Network> {
        let lab = Lab::create("demo")?;
        let (lan, hosts) = screen.step("hosts", || {
            let (lan, hosts) = if plan.vagrant {
                let vagrant = lab.create_vagrant_with_equal_addresses(plan.hosts)?;
                (vagrant.lan, vagrant.hosts)
            } else {
                let lan = lab.create_switch("lan")?;
                let hosts = lab.create_hosts(&lan, plan.hosts)?;
                (lan, hosts)
            };
            let (first, last) =
                (hosts.first().context("no hosts")?, hosts.last().context("no hosts")?);
            let result = format!(
                "{} to {} on one switch, {} to {}",
                first.name(),
                last.name(),
                first.v4_of("enp0s8")?,
                last.v4_of("enp0s8")?
            );
            Ok(((lan, hosts), result))
        })?;
        let (etcd, store) = match plan.store {
            StoreKind::Dir => (None, Store::dir(&lab.ensure_folder("leases")?)),
            StoreKind::Etcd => screen.step("etcd", || {
                let host = lab.create_host("store", &[Uplink::enp0s8(&lan, 99)?])?;
                let etcd = Etcd::start(&[&host], &EtcdOptions::default())?;
                let client = etcd.client_on_first_member()?;
                let result = format!("answers at {}", client.daemon_endpoints().join(","));
                Ok(((Some(etcd), Store::etcd(&client)), result))
            })?,
        };
        screen.step("the network's configuration", || {
            store.configure(&plan.net_conf()).map(|()| ((), plan.net_conf()))
        })?;
        if plan.vagrant {
            trap::demonstrate_address_conflict(&hosts, &FlanneldOptions::new(&store), screen)?;
        }
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let mut network = Network { daemons: Vec::new(), etcd, store, options, hosts, lab };
        network.start_daemons_and_wait(screen)?;
        Ok(network)
    }

    /// Starts all at once, as after a power cut.
    fn start_daemons_and_wait(&mut self, screen: Screen) -> Result<()> {
        for host in &self.hosts {
            self.daemons.push(host.start_flanneld(&self.options)?);
        }
        for (daemon, host) in self.daemons.iter_mut().zip(&self.hosts) {
            screen.timed_step(&format!("flanneld on {} is ready", host.name()), || {
                let took = daemon.wait_ready()?;
                let env = daemon.subnet_env()?;
                let subnets = env
                    .subnet
                    .map(|net| net.trunc().to_string())
                    .into_iter()
                    .chain(env.v6_subnet.map(|net| net.trunc().to_string()));
                let subnets = subnets.collect::<Vec<_>>().join(" and ");
                Ok(((), format!("{subnets}, MTU {}", env.mtu), took))
            })?;
        }
        Ok(())
    }

    /// Creates one on each host.
    pub(crate) fn create_pod_per_host(&self, screen: Screen) -> Result<Vec<Pod>> {
        screen.step("a pod on each host", || {
            let pod =
                |(host, daemon): (&Host, &Flanneld)| host.create_pod("pod", &daemon.subnet_env()?);
            let pods = self.hosts.iter().zip(&self.daemons).map(pod).collect::<Result<Vec<_>>>()?;
            let addresses: Vec<String> = pods
                .iter()
                .map(|pod| pod.address().map(|address| address.to_string()))
                .collect::<Result<_>>()?;
            Ok((pods, addresses.join(", ")))
        })
    }
}
