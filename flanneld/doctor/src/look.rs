//! Gathers facts about the host from netlink, /proc, files, and the rules of firewalls. Does not change the host.

pub mod alone;
mod cni;
mod firewalls;
mod kubernetes;
mod netlink;
mod options;
mod places;
mod ports;
mod problems;
mod proc;
mod tally;

pub use firewalls::Programs;
pub use kubernetes::{daemon_logs, namespace_of_pod};
pub use netlink::Target;
pub use options::Options;
pub use places::Places;
pub use ports::owner;
pub use problems::{missing_modules, taken_ports};
pub use proc::{has_br_netfilter, is_strict, network_managers, sysctls};

use crate::fact::Fact;
use crate::facts::Network;
use crate::facts::daemon::Daemon;
use crate::facts::host::{Checksums, Host, LookupPurpose, Neighbour, PodPeer};
use crate::facts::pods::{Env, Pods};
use crate::pod_path;
use netlink::PodsOf;
use netstate::names::Mac;
use run_dir::subnet_env;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tally::Tally;
use types::Family;

/// The most hardware addresses that the doctor remembers.
const MAX_MACS: usize = 4096;

/// A peer that probes this node sends its next packet by flannel's device within this time.
const RECEIVES: Duration = Duration::from_secs(60);

/// Reads facts from the host, and remembers earlier ones.
#[derive(Debug, Default)]
pub struct Look {
    pub places: Places,
    /// List firewalls.
    pub programs: Programs,
    /// Earlier samples, by the time between `began` and the sample.
    checksums: Tally,
    began: Option<Instant>,
    /// Packets that flannel's devices had received at the last read.
    received: u64,
    last_received: Option<Instant>,
    /// The last known hardware addresses of the neighbours on the underlay. A cloned machine with a duplicate one may stop answering ARP
    /// requests, so that the kernel loses it.
    macs: BTreeMap<IpAddr, Mac>,
}

impl Look {
    /// All facts about the host except its firewalls. The caller lists these less often, because each listing starts processes.
    ///
    /// Also looks up the routes to `targets` and to the pods of `peers`.
    pub async fn host(
        &mut self,
        network: Option<&Network>,
        underlay: Option<&str>,
        targets: &[Target],
        peers: &[PodPeer],
    ) -> Host {
        let pods = network.map(|network| PodsOf { network, underlay, peers });
        // `sysctls`, `firewalls` and `foreign` are derived from the other facts, below or by the caller.
        let mut host = Host {
            name: proc::hostname(),
            // The caller calls `rival` if peers do not respond.
            rival: Fact::Absent,
            name_servers: proc::name_servers(&self.places.resolv),
            conntrack: proc::conntrack(),
            checksums: self.checksums(),
            ports: Fact::Known(Vec::new()),
            modules: Fact::Known(Vec::new()),
            daemons: Fact::Known(run_dir::instance::running::served().len()),
            ..netlink::read(targets, pods.as_ref())
        };
        if let Fact::Known(neighbours) = &mut host.underlay_neighbours {
            self.remember(neighbours);
        }
        host.foreign = cni::foreign(&self.places, &host);
        let devices = Family::ALL.map(|family| host.named(&network?.device(family)?));
        let received = devices.into_iter().flatten().map(|device| device.received).sum();
        let before = std::mem::replace(&mut self.received, received);
        if before > 0 && received > before {
            self.last_received = Some(Instant::now());
        }
        let is_late = |at: Instant| at.elapsed() < RECEIVES;
        host.tunnel_receives = self.last_received.is_some_and(is_late);
        if let Some(underlay) = underlay {
            let mut sysctls = sysctls(underlay);
            if is_strict(underlay) {
                sysctls.astray = astray(&host, underlay);
            }
            if let Some(network) = network {
                sysctls.closed = closed(&host, network, underlay);
            }
            host.sysctls = Fact::Known(sysctls);
        } else {
            host.sysctls = network.map_or_else(
                || Fact::unavailable("the network of this node is unknown"),
                |_| Fact::Known(sysctls("")),
            );
        }
        host
    }

    /// Adds the last known hardware addresses of neighbours for which the kernel has none.
    fn remember(&mut self, neighbours: &mut [Neighbour]) {
        for neighbour in neighbours {
            match neighbour.mac {
                Some(mac)
                    if self.macs.len() < MAX_MACS || self.macs.contains_key(&neighbour.address) =>
                {
                    self.macs.insert(neighbour.address, mac);
                }
                Some(_) => {}
                None => neighbour.mac = self.macs.get(&neighbour.address).copied(),
            }
        }
    }

    pub fn pods(&self, daemon: &Daemon, network: Option<&Network>, host: &Host) -> Pods {
        Pods {
            env: env(&daemon.subnet_file),
            cni: cni::configurations(&self.places),
            docker: cni::docker(&self.places),
            paths: Fact::Absent,
            ipam: cni::kept(&self.places, namespace_of_pod(&self.places).is_some(), network, host),
        }
    }

    /// Errors in the last two minutes; zero at the first read.
    fn checksums(&mut self) -> Fact<Checksums> {
        let since = self.began.get_or_insert_with(Instant::now).elapsed();
        Fact::from_result(proc::checksums().map(|now| self.checksums.gained(since, now)))
    }
}

const ARP_TIMEOUT: Duration = Duration::from_millis(300);

/// The hardware address of another host on the underlay that answers ARP requests for this node's address.
///
/// Absent if no host answers or the underlay has no IPv4, unavailable if the process may not send ARP requests.
pub async fn rival(host: &Host, underlay: &str) -> Fact<Mac> {
    ask_for_rival(host, underlay).await.unwrap_or(Fact::Absent)
}

async fn ask_for_rival(host: &Host, underlay: &str) -> Option<Fact<Mac>> {
    let interfaces = host.interfaces.known()?;
    let link =
        interfaces.iter().find(|interface| interface.name == underlay && !interface.noarp)?;
    let address = crate::facts::host::address(link, Family::V4)?.addr();
    // Another interface of this host may answer ARP requests for the address.
    let own: Vec<Mac> = interfaces.iter().filter_map(|interface| interface.mac).collect();
    let (index, from) = (link.index, link.mac?);
    let asked = tokio::task::spawn_blocking(move || {
        netstate::host::arp::find_holders(index, from, &own, &[address], 1, ARP_TIMEOUT)
    });
    match asked.await {
        Ok(Ok(others)) => Some(Fact::of(others.first().map(|(_, mac)| *mac))),
        Ok(Err(error)) => Some(Fact::unavailable(format!("cannot send ARP requests: {error}"))),
        Err(_) => None,
    }
}

/// The devices on the path of pod packets that do not forward IPv4, although the host does.
fn closed(host: &Host, network: &Network, underlay: &str) -> Vec<String> {
    let interfaces = host.links();
    let bridge = pod_path::bridge(interfaces, network)
        .filter(|bridge| pod_path::has_ports(interfaces, bridge));
    let outside = pod_path::outside(interfaces, network, Family::V4, Some(underlay));
    let devices = bridge.into_iter().chain(outside);
    devices
        .filter(|device| network.v4() && proc::is_closed(&device.name))
        .map(|device| device.name.clone())
        .collect()
}

/// The IPv4 addresses of peers that this host reaches through an interface other than the underlay's.
fn astray(host: &Host, underlay: &str) -> Vec<IpAddr> {
    let lookups = host
        .lookups
        .known()
        .into_iter()
        .flatten()
        .filter(|lookup| lookup.kind == LookupPurpose::Peer && lookup.to.is_ipv4());
    let other = lookups.filter(|lookup| {
        let by = lookup.by.as_ref().ok().and_then(|answer| host.interface(answer.index));
        by.is_some_and(|interface| interface.name != underlay && !interface.loopback)
    });
    other.map(|lookup| lookup.to).collect()
}

fn env(path: &Path) -> Fact<Env> {
    if path.is_dir() {
        return Fact::Known(Env {
            networks: None,
            subnets: None,
            mtu: None,
            obstacle: Some("it is a directory".to_owned()),
            warnings: Vec::new(),
        });
    }
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Fact::Absent,
        Err(error) => return Fact::unavailable(format!("{}: {error}", path.display())),
        Ok(_) => {}
    }
    let read = subnet_env::read(path);
    Fact::Known(Env {
        networks: read.networks(),
        subnets: read.subnets(),
        mtu: read.mtu,
        obstacle: None,
        warnings: read.warnings,
    })
}
