//! Gathers facts about a node on which flanneld does not run or does not respond.

use super::kubernetes::{self, namespace_of_pod};
use super::netlink::{PodsOf, Target};
use super::{Look, Options, Places, missing_modules, taken_ports};
use crate::fact::Fact;
use crate::facts::daemon::{Choice, Daemon, ExitReport, Launch};
use crate::facts::host::{FLANNELD, Host, Interface, LookupPurpose, PodPeer};
use crate::facts::leases::Leases;
use crate::facts::pods::Env;
use crate::facts::store::Store;
use crate::facts::wireguard::Wireguard;
use crate::facts::{Facts, Network};
use crate::pod_path;
use crate::surroundings::Surroundings;
use netlink::Client;
use run_dir::status_file::{self, StatusFile};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use types::profile::Device;
use types::{Access, Detail, Encapsulation, Problem, Profile};

/// The most peer subnets for which the doctor looks up the routes of pod packets.
const MAX_LOOKUPS: usize = 32;
/// Why most facts about flanneld are unavailable.
const NO_DAEMON: &str = "flanneld does not respond on this node";

/// For a host on which no daemon responds. `backends` lists the backends that the pod network may have. `other` describes a flanneld without a socket
/// on this node, such as Go flannel.
pub async fn facts(
    look: &mut Look,
    subnet_file: &Path,
    backends: Vec<&'static Profile>,
    other: Option<&str>,
) -> Facts {
    let exit_report = exit_report(subnet_file);
    let ended = exit_report.known().cloned();
    let options = Options::read(&look.places);
    let (place, addresses) = options.store();
    let targets: Vec<Target> = addresses.iter().map(|ip| of_store(*ip)).collect();
    let mut host = look.host(None, None, &targets, &[]).await;
    let choice = choice(&options, ended.as_ref().and_then(|ended| ended.choice.as_ref()), &host);
    let (running, silent, reasons) = by_status_file(status(subnet_file));
    let running = match other {
        Some(who) => Fact::unavailable(format!(
            "another flanneld runs on this node ({who}): Go flannel, or a version without a socket"
        )),
        None if running.known() == Some(&false) && !is_installed(look, subnet_file, &host) => {
            Fact::unavailable("flanneld is not installed on this host")
        }
        None => running,
    };
    let daemon = Daemon {
        running,
        young: false,
        exit_report,
        silent: Fact::Known(silent),
        reasons,
        subnet_file: subnet_file.to_owned(),
        launch: launch(&look.places),
        arguments: options.arguments.clone(),
        id_given: options.get("node-id").is_some(),
        choice: Fact::of(choice),
        drift: Fact::unavailable(NO_DAEMON),
        pods: Fact::Absent,
    };
    let env = super::env(subnet_file);
    let interfaces = host.interfaces.known().cloned().unwrap_or_default();
    let network = env.known().and_then(|env| network(env, &interfaces, &backends));
    look_at_network(look, &mut host, network.as_ref(), &daemon).await;
    let problem = ended.and_then(|ended| ended.problem);
    host.modules = Fact::Known(problem.as_ref().map(missing_modules).unwrap_or_default());
    host.ports = Fact::Known(problem.as_ref().map(taken_ports).unwrap_or_default());
    let pods = look.pods(&daemon, network.as_ref(), &host);
    let network_backend = network.as_ref().and_then(|network| network.backend);
    let alive = daemon.running.known() == Some(&true);
    Facts {
        backends,
        network: match network {
            Some(network) => Fact::Known(network),
            None => Fact::unavailable(format!("{} does not exist", subnet_file.display())),
        },
        host,
        daemon,
        store: Store {
            place,
            addresses,
            access: Access::default(),
            trouble: Fact::unavailable(NO_DAEMON),
            config: config(problem.filter(|_| !alive)),
            next_config: Fact::unavailable(NO_DAEMON),
        },
        leases: Leases {
            own: Fact::unavailable(NO_DAEMON),
            peers: Fact::unavailable(NO_DAEMON),
            refused: Fact::unavailable(NO_DAEMON),
        },
        mesh: Fact::unavailable(NO_DAEMON),
        wireguard: wireguard(network_backend),
        pods,
        kubernetes: Fact::Absent,
    }
}

fn status(subnet_file: &Path) -> Fact<Option<StatusFile>> {
    Fact::from_result(
        status_file::read(subnet_file)
            .map_err(|error| format!("{}: {error}", status_file::path(subnet_file).display())),
    )
}

/// Only flanneld knows the WireGuard peers, so the fact is unavailable; absent if the backend does not encrypt packets.
fn wireguard(backend: Option<&'static Profile>) -> Fact<Wireguard> {
    match backend {
        Some(backend) if !backend.encrypts => Fact::Absent,
        // The backend may be wireguard even if its device is gone.
        _ => Fact::unavailable(NO_DAEMON),
    }
}

/// True with a sign of flannel: its files, a device, a CNI configuration, or kubelet's folder.
fn is_installed(look: &Look, subnet_file: &Path, host: &Host) -> bool {
    let places = &look.places;
    let files = places.units.iter().chain([&places.options, &places.kubelet]);
    let has_device = host
        .interfaces
        .known()
        .is_none_or(|all| all.iter().any(|known| known.name.starts_with("flannel")));
    has_device
        || subnet_file.exists()
        || run_dir::exit_report::path(subnet_file).exists()
        || files.into_iter().any(|path| path.exists())
        || super::cni::names_flannel(places)
}

fn of_store(address: IpAddr) -> Target {
    Target { to: address, whose: "the store".to_owned(), kind: LookupPurpose::Store }
}

/// Whether flanneld runs, whether its socket responds, and why the node is not ready.
fn by_status_file(
    status: Fact<Option<StatusFile>>,
) -> (Fact<bool>, Vec<String>, Fact<BTreeMap<String, Problem>>) {
    let running = match &status {
        Fact::Known(file) => Fact::Known(file.as_ref().is_some_and(|file| file.alive)),
        Fact::Absent => Fact::Known(false),
        Fact::Unavailable(why) => Fact::Unavailable(why.clone()),
    };
    let silent = match running.known() {
        Some(true) => vec!["flanneld runs, but its socket does not respond".to_owned()],
        _ => Vec::new(),
    };
    let reasons = match status {
        // The reasons of a daemon that has ended are out of date.
        Fact::Known(Some(StatusFile { alive: true, status })) => Fact::Known(
            status.reasons.into_iter().map(|reason| (reason.condition, reason.problem)).collect(),
        ),
        _ => Fact::unavailable(NO_DAEMON),
    };
    (running, silent, reasons)
}

/// Reads the sysctls, pod packets' routes, and firewalls on which this node's pod network depends.
async fn look_at_network(
    look: &mut Look,
    host: &mut Host,
    network: Option<&Network>,
    daemon: &Daemon,
) {
    let Some(network) = network else {
        host.firewalls =
            Fact::unavailable("the network of this node is unknown: subnet.env does not exist");
        return;
    };
    let underlay = daemon.choice.known().map(|choice| choice.interface.clone()).unwrap_or_default();
    host.sysctls = Fact::Known(super::sysctls(&underlay));
    let near = host
        .named(&underlay)
        .into_iter()
        .flat_map(Interface::nets)
        .map(|net| net.trunc())
        .collect();
    let underlay = Some(underlay).filter(|name| !name.is_empty());
    look_at_pods(host, network, underlay.as_deref()).await;
    let interfaces = host.links();
    let around = Surroundings {
        bridge: pod_path::bridge(interfaces, network).map(|bridge| bridge.name.clone()),
        underlay,
        peers: Vec::new(),
        near,
    };
    host.firewalls = look.programs.firewalls(network, &around).await;
}

/// Looks up the routes of packets between this node's pods and the subnets to which flannel has routes.
async fn look_at_pods(host: &mut Host, network: &Network, underlay: Option<&str>) {
    let routes = host.routes.known().into_iter().flatten();
    let peers: Vec<PodPeer> = routes
        .filter(|route| route.protocol == FLANNELD)
        .take(MAX_LOOKUPS)
        .map(|route| PodPeer { name: route.net.to_string(), subnet: route.net })
        .collect();
    let pods = PodsOf { network, underlay, peers: &peers };
    let interfaces = host.links();
    host.pod_routes = match Client::open() {
        Ok(mut client) => super::netlink::pod_routes(&mut client, interfaces, Some(&pods)),
        Err(error) => Fact::unavailable(error),
    };
}

/// Comes from the exit report: flanneld ends if it cannot use the network configuration.
fn config(ended: Option<Problem>) -> Fact<Problem> {
    let is_of_config = |problem: &Problem| {
        problem.details().any(|detail| matches!(detail, Detail::ConfigInvalid { .. }))
    };
    match ended.filter(is_of_config) {
        Some(problem) => Fact::Known(problem),
        None => Fact::unavailable(NO_DAEMON),
    }
}

/// flanneld's unit or options file means systemd; otherwise, a pod or kubelet's folder means a DaemonSet.
fn launch(places: &Places) -> Launch {
    if places.units.iter().chain([&places.options]).any(|path| path.exists()) {
        return Launch::Systemd;
    }
    match namespace_of_pod(places) {
        Some(namespace) => Launch::Kubernetes { namespace, assumed: false },
        None if places.kubelet.is_dir() => kubernetes::daemon_set(places),
        None => Launch::Systemd,
    }
}

fn exit_report(subnet_file: &Path) -> Fact<ExitReport> {
    match run_dir::exit_report::read(subnet_file) {
        Ok(report) => Fact::of(report),
        Err(error) => Fact::unavailable(format!(
            "{}: {error}",
            run_dir::exit_report::path(subnet_file).display()
        )),
    }
}

/// Derived from subnet.env and flannel's devices.
fn network(env: &Env, interfaces: &[Interface], backends: &[&'static Profile]) -> Option<Network> {
    let of = |backend: &&'static Profile| {
        let backend = *backend;
        interfaces.iter().filter_map(move |interface| {
            backend.device(&interface.name).map(|device| (backend, device, interface))
        })
    };
    let is_real =
        |device: &Device, interface: &Interface| device.kinds.contains(&interface.kind.as_str());
    let seen: Vec<_> = backends.iter().flat_map(of).collect();
    let real = seen.iter().find(|(_, device, interface)| is_real(device, interface));
    // If only a device of another kind has the name, its name still shows the backend.
    let found = real.or(seen.first());
    // The kernel reports VNI and port only for its own vxlan devices.
    let vxlan = real.and_then(|(.., interface)| interface.vxlan);
    let assumed = real.and_then(|(backend, ..)| backend.seen_as);
    Some(Network {
        networks: env.networks?,
        own: env.subnets?,
        backend: found.map(|(backend, ..)| *backend),
        encapsulation: vxlan.map(|(_, port)| Encapsulation::udp(port)).or(assumed),
        vni: vxlan
            .map(|(vni, _)| vni)
            .or_else(|| found.and_then(|(_, device, interface)| device.vni_in(&interface.name))),
        mtu: env.mtu,
        // It is unknown whether iptables or nftables has flannel's rules, so both are checked.
        nftables: false,
        forward: true,
    })
}

/// The underlay interface that the last run of flanneld chose, or that the next run would choose.
fn choice(options: &Options, chosen: Option<&Choice>, host: &Host) -> Option<Choice> {
    let named = options.get("iface").filter(|name| host.named(name).is_some());
    let (interface, why, flag) = match (named, chosen) {
        (Some(name), _) => {
            (name.to_owned(), format!("named by --iface={name}"), Some(format!("--iface={name}")))
        }
        (None, Some(chosen)) => return Some(chosen.clone()),
        (None, None) => {
            let default = host
                .routes
                .known()?
                .iter()
                .filter(|route| route.is_default())
                .min_by_key(|route| (route.net.addr().is_ipv6(), route.metric))?;
            (host.interface(default.index)?.name.clone(), "the default route's".to_owned(), None)
        }
    };
    let addresses = host
        .named(&interface)
        .map(|interface| interface.nets().map(|net| net.addr()).collect())
        .unwrap_or_default();
    Some(Choice { interface, addresses, why, named: flag.is_some(), flag })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device's name and kind, and the VNI and UDP port of a vxlan device.
    type Seen<'a> = (&'a str, &'a str, Option<(u32, u16)>);

    fn seen(devices: &[Seen<'_>]) -> (Option<&'static str>, Option<Encapsulation>, Option<u32>) {
        let interface = |(name, kind, vxlan): &Seen<'_>| Interface {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            vxlan: *vxlan,
            ..Interface::default()
        };
        let subnets = |text: &str| Some(types::Subnets::V4(text.parse().unwrap()));
        let env = Env {
            networks: subnets("10.244.0.0/16"),
            subnets: subnets("10.244.1.0/24"),
            ..Env::default()
        };
        let network = network(
            &env,
            &devices.iter().map(interface).collect::<Vec<_>>(),
            &backends::profiles(),
        )
        .unwrap();
        (network.backend.map(|backend| backend.name), network.encapsulation, network.vni)
    }

    #[test]
    fn backend_is_known_by_its_devices() {
        let udp = |port| Some(Encapsulation::udp(port));
        assert_eq!(
            seen(&[("eth0", "", None), ("flannel.7", "vxlan", Some((7, 4789)))]),
            (Some("vxlan"), udp(4789), Some(7))
        );
        assert_eq!(seen(&[("flannel.7", "tun", None)]), (Some("vxlan"), None, Some(7)));
        assert_eq!(seen(&[("flannel0", "tun", None)]), (Some("udp"), udp(8285), None));
        assert_eq!(
            seen(&[("flannel.ipip", "ipip", None)]),
            (Some("ipip"), Some(Encapsulation::Ipip), None)
        );
        // The kernel reports the port of a WireGuard device only to privileged processes.
        assert_eq!(seen(&[("flannel-wg-v6", "wireguard", None)]), (Some("wireguard"), None, None));
        assert_eq!(seen(&[("cni0", "bridge", None)]), (None, None, None));
    }

    #[test]
    fn device_of_another_kind_matters_only_without_a_real_one() {
        assert_eq!(seen(&[("flannel.7", "dummy", None)]), (Some("vxlan"), None, Some(7)));
        assert_eq!(seen(&[("flannel.7", "dummy", None), ("flannel0", "tun", None)]).0, Some("udp"));
    }
}
