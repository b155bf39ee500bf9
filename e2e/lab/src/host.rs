//! A host: a network namespace with uplinks, for daemons and pods.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use ipnet::IpNet;
use parking_lot::Mutex;

use crate::host::process::{Launch, Machine, Process};
use crate::host::uplink::Uplink;
use crate::net::netns::Netns;
use crate::net::switch::Port;
use crate::site::Site;

pub(crate) mod cable;
pub(crate) mod cni;
pub(crate) mod hang;
pub(crate) mod monitor;
pub(crate) mod nat;
pub(crate) mod pod;
pub(crate) mod process;
pub(crate) mod subnet_env;
pub(crate) mod uplink;

#[derive(Debug)]
struct Inner {
    site: Arc<Site>,
    name: String,
    netns: Netns,
    uplinks: Mutex<Vec<(Uplink, Port)>>,
    pods: AtomicU32,
}

/// A clone is the same host.
#[derive(Debug, Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

impl Host {
    pub(crate) fn build(site: &Arc<Site>, name: &str, uplinks: &[Uplink]) -> Result<Host> {
        let netns = create_forwarding_netns(site, name)?;
        let inner = Inner {
            site: Arc::clone(site),
            name: name.to_owned(),
            netns,
            uplinks: Mutex::default(),
            pods: AtomicU32::new(0),
        };
        let host = Host { inner: Arc::new(inner) };
        for uplink in uplinks {
            host.attach(uplink)?;
        }
        Ok(host)
    }

    /// The host's name in the lab, and its hostname.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn netns(&self) -> &Netns {
        &self.inner.netns
    }

    /// Creates the folder if it is missing.
    pub fn folder(&self) -> Result<PathBuf> {
        self.inner.site.ensure_folder(&self.inner.name)
    }

    /// It is in the host's `/run/flannel`, which a reboot clears.
    pub fn subnet_file(&self) -> Result<PathBuf> {
        Ok(self.folder()?.join("run/flannel/subnet.env"))
    }

    pub(crate) fn site(&self) -> &Arc<Site> {
        &self.inner.site
    }

    /// The first pod has the number 1.
    fn take_pod_number(&self) -> u32 {
        self.inner.pods.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds an interface with its addresses and gateways.
    pub fn attach(&self, uplink: &Uplink) -> Result<()> {
        let port = uplink.attach(&self.inner.netns)?;
        self.inner.uplinks.lock().push((uplink.clone(), port));
        Ok(())
    }

    /// The uplinks' first IPv4 address.
    pub fn v4(&self) -> Result<Ipv4Addr> {
        self.find_uplink_address(
            |net| if let IpNet::V4(net) = net { Some(net.addr()) } else { None },
        )
        .with_context(|| format!("{} has no v4 address", self.name()))
    }

    /// The uplinks' first IPv6 address.
    pub fn v6(&self) -> Result<Ipv6Addr> {
        self.find_uplink_address(
            |net| if let IpNet::V6(net) = net { Some(net.addr()) } else { None },
        )
        .with_context(|| format!("{} has no v6 address", self.name()))
    }

    /// The original address of the uplink.
    pub fn v4_of(&self, interface: &str) -> Result<Ipv4Addr> {
        let uplinks = self.inner.uplinks.lock();
        let mut addresses = uplinks
            .iter()
            .filter(|(uplink, _)| uplink.interface == interface)
            .flat_map(|(uplink, _)| &uplink.addresses);
        let found = addresses
            .find_map(|net| if let IpNet::V4(net) = net { Some(net.addr()) } else { None });
        found.with_context(|| format!("{} has no v4 address on {interface}", self.name()))
    }

    fn find_uplink_address<T>(&self, pick: impl Fn(&IpNet) -> Option<T>) -> Option<T> {
        let uplinks = self.inner.uplinks.lock();
        uplinks.iter().flat_map(|(uplink, _)| &uplink.addresses).find_map(pick)
    }

    /// The uplink drops all packets, but keeps its carrier: the host does not detect the cut.
    pub fn block_packets(&self, interface: &str) -> Result<()> {
        self.port(interface)?.set_forwarding(false)
    }

    /// Lets packets pass again after [`Host::block_packets`].
    pub fn unblock_packets(&self, interface: &str) -> Result<()> {
        self.port(interface)?.set_forwarding(true)
    }

    /// Removes the carrier of an uplink, as if the cable were unplugged.
    pub fn remove_carrier(&self, interface: &str) -> Result<()> {
        self.port(interface)?.set_carrier(false)
    }

    /// Restores the carrier after [`Host::remove_carrier`].
    pub fn restore_carrier(&self, interface: &str) -> Result<()> {
        self.port(interface)?.set_carrier(true)
    }

    fn port(&self, interface: &str) -> Result<Port> {
        let uplinks = self.inner.uplinks.lock();
        let found = uplinks
            .iter()
            .find(|(_, port)| port.interface == interface)
            .map(|(_, port)| port.clone());
        found.with_context(|| format!("{} has no uplink {interface}", self.name()))
    }

    /// Kills the host's processes. The host loses its kernel state, its pods and its `/run`.
    pub fn power_off(&self) -> Result<()> {
        self.inner.netns.kill_all();
        for (_, port) in self.inner.uplinks.lock().iter() {
            // The kernel removes the interfaces some time after the namespace; the switch must forget them now.
            port.remove_cable()?;
        }
        self.inner.netns.kill_processes_and_delete()?;
        let _ = std::fs::remove_dir_all(self.folder()?.join("run"));
        Ok(())
    }

    /// Follows [`Host::power_off`]. The host keeps its uplinks, but not its pods and its kernel state.
    pub fn power_on(&self) -> Result<()> {
        create_forwarding_netns(&self.inner.site, &self.inner.name)?;
        self.inner.pods.store(0, Ordering::Relaxed);
        for (uplink, port) in self.inner.uplinks.lock().iter_mut() {
            *port = uplink.attach(&self.inner.netns)?;
        }
        Ok(())
    }

    /// The program has the host's name, `/run` and files. Its output goes to `<folder>/<log>.log`.
    pub fn spawn(&self, log: &str, launch: &Launch) -> Result<Process> {
        let folder = self.folder()?;
        let machine = Machine {
            netns: self.inner.netns.clone(),
            hostname: self.inner.name.clone(),
            run: self.inner.site.ensure_folder(&format!("{}/run", self.name()))?,
            places: self.inner.site.ensure_folder(&format!("{}/places", self.name()))?,
        };
        Process::spawn(
            &machine,
            launch,
            &folder.join(format!("{log}.log")),
            Arc::clone(&self.inner.site),
        )
    }
}

/// An empty namespace that forwards packets.
fn create_forwarding_netns(site: &Site, name: &str) -> Result<Netns> {
    let netns = site.create_netns(name)?;
    netns.sysctl("net/ipv4/ip_forward", "1")?;
    netns.sysctl("net/ipv6/conf/all/forwarding", "1")?;
    netns.sysctl("net/ipv6/conf/default/forwarding", "1")?;
    // A new namespace inherits rp_filter from the machine, and its value differs between distributions.
    netns.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
    netns.sysctl("net/ipv4/conf/default/rp_filter", "0")?;
    Ok(netns)
}
