//! Checks for conflicting addresses and for MTUs that are too large.

use crate::check::Check;
use crate::command::Command;
use crate::facts::daemon::Launch;
use crate::facts::host::{FLANNELD, Interface};
use crate::facts::mesh::State;
use crate::facts::{Facts, Network};
use crate::finding::{Finding, Severity, capped, named};
use crate::need::Need;
use crate::shell::word;
use ipnet::IpNet;
use netstate::host::{is_link_local, serves_pods};
use std::collections::BTreeSet;
use types::{Access, Family, barred_by};

pub const CHECKS: &[Check] = &[
    Check {
        id: "stale-bridge",
        severity: Severity::Broken,
        title: "The pods' bridge has an address of another subnet",
        needs: &[Need::Network, Need::Interfaces],
        explains: &["network-overlap", "pods-lost"],
        waits: false,
        judge: stale_bridge,
    },
    Check {
        id: "network-overlap",
        severity: Severity::Broken,
        title: "The pods' network overlaps another network",
        needs: &[Need::Network, Need::Interfaces, Need::Routes, Need::NameServers, Need::Peers],
        explains: &["pod-route", "pods-lost"],
        waits: false,
        judge: network_overlap,
    },
    Check {
        id: "mtu",
        severity: Severity::Broken,
        title: "The path to a peer does not carry the largest packets of pods",
        needs: &[Need::Network, Need::Mesh, Need::Choice],
        explains: &[],
        waits: true,
        judge: mtu,
    },
    Check {
        id: "bridge-mtu",
        severity: Severity::Degraded,
        title: "Pods send packets that are too large",
        needs: &[Need::Network, Need::Interfaces],
        explains: &[],
        waits: false,
        judge: bridge_mtu,
    },
];

/// The most findings about overlapping networks.
const MAX_ALIKE: usize = 8;

/// Routes that the kernel adds for an address. The check ignores them, because it already covers the addresses of interfaces.
const RTPROT_KERNEL: u8 = 2;

fn interfaces(facts: &Facts) -> &[Interface] {
    facts.host.interfaces.known().map_or(&[], Vec::as_slice)
}

fn overlap(a: &IpNet, b: &IpNet) -> bool {
    types::nets_overlap(a, b)
}

fn underlay(facts: &Facts) -> Option<&str> {
    Some(&facts.daemon.choice.known()?.interface)
}

fn is_pods_bridge(name: &str) -> bool {
    matches!(name, "cni0" | "docker0")
}

fn network_overlap(facts: &Facts) -> Vec<Finding> {
    let Some(network) = facts.network.known() else {
        return Vec::new();
    };
    let mut findings = links_inside(facts, network);
    findings.extend(routes_inside(facts, network));
    findings.extend(services_inside(facts, network));
    findings.extend(name_servers_inside(facts, network));
    // A VPN may add hundreds of routes.
    capped(findings, MAX_ALIKE)
}

/// Each with its node. There may be thousands.
fn leased_nets<'a>(facts: &'a Facts, network: &Network) -> impl Iterator<Item = (IpNet, &'a str)> {
    let own = network.own.nets().map(|net| (net, "this node"));
    let peers = facts.leases.peers.known().into_iter().flatten();
    own.chain(peers.flat_map(|peer| peer.subnets.nets().map(|net| (net, &*peer.name))))
}

fn links_inside(facts: &Facts, network: &Network) -> Vec<Finding> {
    // flannel's own devices belong there, and a bridge of pods has a check of its own.
    let own = |net: IpNet| network.own.contains(&net);
    let foreign = interfaces(facts).iter().filter(|interface| {
        !interface.loopback
            && interface.name != "cni0"
            && !serves_pods(interface, interfaces(facts), &facts.backends, own)
    });
    let nets = foreign.flat_map(|interface| interface.nets().map(move |net| (interface, net)));
    nets.filter_map(|(interface, net)| link_inside(facts, network, &interface.name, net)).collect()
}

fn link_inside(facts: &Facts, network: &Network, name: &str, net: IpNet) -> Option<Finding> {
    let whole = barred_by(&net, &network.networks);
    let within = network.networks.overlaps(&whole.into());
    // The address of a single host shows nothing about a network.
    if !within || net.prefix_len() >= if net.addr().is_ipv6() { 127 } else { 31 } {
        return None;
    }
    let used = leased_nets(facts, network).find(|(subnet, _)| overlap(subnet, &whole));
    let (severity, why) = match used {
        Some((subnet, node)) => (
            Severity::Broken,
            format!(
                "{subnet} is the subnet of {node}: packets to that node's pods stay on {name}, or packets to hosts on {name} go to pods"
            ),
        ),
        // Addresses of nodes may be inside the pods' network as long as no subnet contains them.
        None if underlay(facts) == Some(name) => return None,
        None => (
            Severity::Risk,
            format!(
                "as soon as a node leases a subnet in this range, packets to its pods stay on {name}"
            ),
        ),
    };
    Some(
        Finding::new(
            "network-overlap",
            severity,
            format!("{name} {whole}"),
            format!("{whole} on {name} is inside the network of pods, {}", network.networks),
            why,
        )
        .seen(format!("{net} on {name}"), "ip address")
        .seen(format!("the network of pods is {}", network.networks), "the network configuration")
        .on("the administrator of the network configuration or of the interface"),
    )
}

/// Name servers inside the pod network, but outside this node's subnets.
fn name_servers_inside(facts: &Facts, network: &Network) -> Vec<Finding> {
    let servers = facts.host.name_servers.known().into_iter().flatten();
    let inside = servers.filter(|server| {
        let address = IpNet::from(**server);
        network.contains(&address)
            && !network.own.contains(&address)
            && facts.host.owner(**server).is_none()
    });
    inside
        .map(|server| {
            Finding::new(
                "network-overlap",
                Severity::Risk,
                format!("name server {server}"),
                format!("the name server {server} is inside the network of pods, {}", network.networks),
                "as soon as another node leases a subnet with this address, this node cannot reach the name server and resolves no names",
            )
            .seen(format!("nameserver {server}"), "cat /etc/resolv.conf")
        })
        .collect()
}

/// Routes of other programs, such as a VPN, to a part of the pod network.
///
/// A separate check covers routes to a peer's subnet. A foreign route to a larger network is only a fallback behind flannel's route.
fn routes_inside(facts: &Facts, network: &Network) -> Vec<Finding> {
    let routes = facts.host.routes.known().map_or(&[][..], Vec::as_slice);
    let ours = routes.iter().filter(|route| route.protocol == FLANNELD).map(|route| route.net);
    let underlay = underlay(facts);
    let foreign = routes.iter().filter(|route| {
        !matches!(route.protocol, FLANNELD | RTPROT_KERNEL) && network.contains(&route.net)
    });
    let mut findings = Vec::new();
    for route in foreign {
        let to = route.net;
        let device = facts.host.interface(route.index).map(|interface| interface.name.as_str());
        let overlapped = leased_nets(facts, network).find(|(subnet, _)| overlap(subnet, &to));
        let is_of_pods = device.is_some_and(|name| {
            name == "lo"
                || name.starts_with("flannel")
                || is_pods_bridge(name) && overlapped.is_none()
        });
        let own = network.own.overlaps(&to.into());
        // Addresses of nodes may be inside the pods' network, with routes between the nodes.
        let of_nodes = overlapped.is_none() && device == underlay;
        let is_leased = || leased_nets(facts, network).any(|(subnet, _)| subnet == to);
        if is_of_pods || own || of_nodes || is_leased() {
            continue;
        }
        // The kernel uses the route with the longest prefix.
        let wins = ours
            .clone()
            .filter(|known| known.contains(&to) || to.contains(known))
            .all(|known| known.prefix_len() < to.prefix_len());
        let (severity, why) = match overlapped {
            Some((subnet, node)) if wins => (
                Severity::Broken,
                format!("packets to pods of {node}, {subnet}, take this route"),
            ),
            Some((subnet, node)) => (
                Severity::Risk,
                format!("packets to hosts behind this route go to pods of {node}, {subnet}, instead"),
            ),
            None => (
                Severity::Risk,
                "as soon as a node leases a subnet in this range, its pods or the hosts behind this route are unreachable".to_owned(),
            ),
        };
        let by = device.map(|name| format!(" by {name}")).unwrap_or_default();
        let ip = if to.addr().is_ipv6() { "ip -6" } else { "ip" };
        let what =
            format!("a route to {to}{by} is inside the network of pods, {}", network.networks);
        let finding = Finding::new("network-overlap", severity, format!("route {to}"), what, why)
            .seen(
                format!("{to}{by}, a route that flannel did not add"),
                format!("{ip} route show {to}"),
            );
        // Only pods of this node are on the bridge, so the command can delete a route to another subnet.
        findings.push(match device.filter(|name| is_pods_bridge(name)) {
            Some(name) => finding
                .run(format!("{ip} route delete {to} dev {}", word(name)))
                .note("the program that added the route may add it again"),
            None => finding.on("the administrator of the network configuration or of the route"),
        });
    }
    findings
}

/// A node's subnet may contain addresses of Services that are inside the pod network.
fn services_inside(facts: &Facts, network: &Network) -> Option<Finding> {
    let service = facts.kubernetes.known()?.service?;
    network.networks.nets().find(|net| net.contains(&service))?;
    // The configured address may be a node's instead of the Service's.
    let of_host = facts.host.owner(service).is_some_and(|interface| interface.name != "kube-ipvs0");
    if of_host
        || facts
            .leases
            .peers
            .known()
            .into_iter()
            .flatten()
            .any(|peer| peer.addresses().any(|ip| ip == service))
    {
        return None;
    }
    let used = leased_nets(facts, network).find(|(subnet, _)| subnet.contains(&service));
    let (severity, why) = match used {
        Some((subnet, _)) => (
            Severity::Broken,
            format!(
                "{subnet} is the subnet of a node: pods of the node and Services have the same addresses"
            ),
        ),
        None => (
            Severity::Risk,
            "as soon as a node leases a subnet in this range, pods of the node and Services have the same addresses".to_owned(),
        ),
    };
    let what = format!(
        "the addresses of Kubernetes Services are inside the network of pods, {}",
        network.networks
    );
    Some(
        Finding::new(
            "network-overlap",
            severity,
            format!("Service {service}"),
            what,
            why,
        )
        .seen(
            format!("the Service of the API server has the address {service}"),
            "kubectl get service kubernetes",
        )
        .on("the administrator of the network configuration or of the API server (--service-cluster-ip-range)"),
    )
}

fn stale_bridge(facts: &Facts) -> Vec<Finding> {
    let Some(network) = facts.network.known() else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for bridge in interfaces(facts)
        .iter()
        .filter(|interface| is_pods_bridge(&interface.name) && interface.kind == "bridge")
    {
        for net in &bridge.nets().collect::<Vec<_>>() {
            let own = network.own.of(Family::from(net));
            let Some(own) = own.filter(|own| !own.contains(&net.addr())) else {
                continue;
            };
            // The bridge may belong to Docker or to another network, and every bridge has a link-local address.
            if is_link_local(net.addr()) || !network.contains(&IpNet::from(net.addr())) {
                continue;
            }
            let name = &bridge.name;
            // If Docker chose the address, the problem is an overlap of networks, not a leftover of flannel.
            if name == "docker0" && facts.pods.docker.known() != Some(net) {
                continue;
            }
            let finding = Finding::new(
                "stale-bridge",
                Severity::Broken,
                format!("{name} {net}"),
                format!("{name} has {net}, an address outside of this node's subnet {own}"),
                match name.as_str() {
                    "docker0" => "mk-docker-opts.sh gave Docker this address of an earlier subnet, so Docker's containers are unreachable. The command restarts Docker, which ends all its containers",
                    _ => "pods of an earlier subnet are unreachable, and new pods do not start; after the command, restart the pods of this node",
                },
            )
            .seen(format!("{net} on {name}"), format!("ip address show {name}"));
            findings.push(match name.as_str() {
                "docker0" => finding.run("systemctl restart docker"),
                _ => finding
                    .run(format!("ip address del {net} dev {}", word(name)))
                    .note("this change need not survive a reboot: the bridge plugin recreates the bridge with the address of the current subnet"),
            });
        }
    }
    findings
}

fn bridge_mtu(facts: &Facts) -> Vec<Finding> {
    let Some(mtu) = facts.network.known().and_then(|network| network.mtu).filter(|mtu| *mtu > 0)
    else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for bridge in interfaces(facts)
        .iter()
        .filter(|interface| interface.name == "cni0" && interface.kind == "bridge")
    {
        let large: Vec<&Interface> = interfaces(facts)
            .iter()
            .filter(|port| port.is_pods_end_in(bridge.index) && port.mtu > mtu)
            .collect();
        let Some(first) = large.first() else { continue };
        let commands =
            large.iter().take(64).map(|port| format!("ip link set {} mtu {mtu}", word(&port.name)));
        findings.push(
            Finding::new(
                "bridge-mtu",
                Severity::Degraded,
                &bridge.name,
                format!("{} pods on {} may send packets of {} bytes, but the network carries only {mtu} bytes", large.len(), bridge.name, first.mtu),
                "large packets between nodes are lost or fragmented: connections start and then stall; new pods get the right MTU",
            )
            .seen(format!("{} has the MTU {}, but FLANNEL_MTU is {mtu}", first.name, first.mtu), "ip link")
            .run_all(commands)
            .note("this change does not survive a reboot; new and restarted pods get the right MTU without this command"),
        );
    }
    findings
}

fn mtu(facts: &Facts) -> Vec<Finding> {
    let (Some(network), Some(mesh)) = (facts.network.known(), facts.mesh.known()) else {
        return Vec::new();
    };
    let small: Vec<_> =
        mesh.paths.iter().filter(|path| path.verdict.state == State::SmallMtu).collect();
    let Some(least) = small.iter().filter_map(|path| path.carries).min() else {
        return Vec::new();
    };
    let names: BTreeSet<&str> = small.iter().map(|path| &*path.node).collect();
    let nodes = named(&names.iter().collect::<Vec<_>>(), 4);
    let wanted = network
        .mtu
        .map(|mtu| format!(", but pods send packets of up to {mtu} bytes"))
        .unwrap_or_default();
    let mut finding = Finding::new(
        "mtu",
        Severity::Broken,
        "",
        format!("the path to {nodes} carries packets of up to {least} bytes{wanted}"),
        "small packets pass and large packets are lost: connections start and then stall",
    );
    for path in small.iter().take(8) {
        if let Some(carries) = path.carries {
            finding = finding
                .seen(format!("{} bytes to {} at {}", carries, path.node, path.address), "probes");
        }
    }
    // Peers that do not respond prove nothing about packet sizes.
    let whole: BTreeSet<&str> = mesh
        .paths
        .iter()
        .filter(|path| path.verdict.state.passes())
        .map(|path| &*path.node)
        .collect();
    let whole = whole.difference(&names).count();
    if whole > 0 {
        let text = format!(
            "{whole} other peers receive full-size packets from this node, so the fault is at the link of {nodes} or on the path to that link"
        );
        return vec![finding.seen(text, "probes").run("flannelctl doctor").on(nodes)];
    }
    let family =
        if small.iter().any(|path| path.address.is_ipv6()) { Family::V6 } else { Family::V4 };
    if let (Some(overhead), Some(choice)) = (network.overhead(family), facts.daemon.choice.known())
    {
        let sizes = Sizes { overhead, outer: least + overhead };
        finding = adapt_mtu(finding, facts, network, &choice.interface, sizes);
    }
    vec![finding]
}

/// What flannel adds to a packet, and the largest packet on the underlay, both in bytes.
#[derive(Clone, Copy)]
struct Sizes {
    overhead: u32,
    outer: u32,
}

/// Covers a small MTU of the underlay or of this node's link.
fn adapt_mtu(
    finding: Finding,
    facts: &Facts,
    network: &Network,
    interface: &str,
    Sizes { overhead, outer }: Sizes,
) -> Finding {
    let interface = word(interface);
    let finding = finding
        .seen(
            format!("the underlay carries packets of {outer} bytes, including the {overhead} bytes that flannel adds: set Backend.MTU to {outer}"),
            "the network configuration",
        )
        .seen(
            format!(
                "if only this node has this finding, the MTU of its link is too small: fix that link. `ip link set {interface} mtu {outer}` also limits all other traffic on {interface}, may interrupt the link, and does not survive a reboot"
            ),
            "ip link",
        );
    // Other backends have no MTU key in the network configuration.
    if !network.backend.is_some_and(|backend| backend.keys.has_mtu) {
        return finding;
    }
    // Only the other nodes can show whether the whole underlay has the small MTU.
    let finding = finding.run("flannelctl doctor").on("the other nodes");
    match configure_mtu(facts, outer) {
        Some(command) => finding.note(&format!(
            "use the next command only if the other nodes also have this finding about each other. After the command, restart flanneld and the pods on every node. Run the command on one node: {command}"
        )),
        None => finding,
    }
}

/// Sets the MTU in the network configuration and keeps all other settings. Writes nothing if it cannot read the configuration.
fn configure_mtu(facts: &Facts, mtu: u32) -> Option<Command> {
    let filter = format!("jq -ce '.Backend.MTU = {mtu}'");
    match &facts.store.access {
        Access::Etcd(_) => {
            let (etcdctl, key) = super::store::etcdctl(facts);
            let password =
                super::store::password(facts).map(|line| format!("{line}; ")).unwrap_or_default();
            Some(
                format!(r#"{password}new=$({etcdctl} get --print-value-only {key} | {filter}) && [ -n "$new" ] && {etcdctl} put {key} "$new""#)
                    .into(),
            )
        }
        Access::Directory(folder) => {
            let file = word(&folder.join("config").display().to_string());
            Some(format!(r#"new=$({filter} {file}) && [ -n "$new" ] && printf '%s\n' "$new" > {file}.new && mv {file}.new {file}"#).into())
        }
        Access::Kubernetes => {
            let Launch::Kubernetes { namespace, .. } = &facts.daemon.launch else {
                return None;
            };
            let filter = format!(
                r#"jq '.data["net-conf.json"] |= (fromjson | .Backend.MTU = {mtu} | tojson)'"#
            );
            Some(Command::in_namespace(namespace, |kubectl| {
                format!(
                    "{kubectl} get configmap kube-flannel-cfg -o json | {filter} | {kubectl} replace -f -"
                )
            }))
        }
        Access::Unknown => None,
    }
}
