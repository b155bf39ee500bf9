//! Checks of the underlay interface: whether the interface is behind NAT, and whether two machines share an address or an identity.

use super::interface_remedy::{add_line, candidates, edit_unit, lead_out, nat_marks};
use crate::check::Check;
use crate::facts::Facts;
use crate::facts::daemon::Choice;
use crate::facts::host::{Interface, address, joins_hosts};
use crate::facts::leases::{Peer, RefusedLease};
use crate::facts::mesh::{Path, State};
use crate::finding::{Finding, Severity, named};
use crate::need::Need;
use crate::shell::word;
use ipnet::IpNet;
use netstate::host::{LinkClass, is_single};
use std::collections::BTreeMap;
use std::net::IpAddr;
use types::{Detail, Family, Problem};

pub(crate) const WRONG_INTERFACE: &str = "wrong-interface";
/// The most interfaces in state DOWN that a finding lists.
const MAX_DOWN: usize = 8;

pub const CHECKS: &[Check] = &[
    Check::new(
        WRONG_INTERFACE,
        Severity::Broken,
        "flannel uses an interface that does not join the nodes",
        &[Need::Interfaces, Need::Routes, Need::Choice],
        &[
            "nat-interface",
            "duplicate-address",
            "not-running",
            "lease-refused",
            "isolated",
            "peer-cut",
            "overlay-cut",
            "one-way",
            "wrong-node",
            "encap-blocked",
            "wireguard-silent",
            "probe-filtered",
            "silent-node",
            "node-internal-ip",
            "public-ip",
        ],
        wrong_interface,
    ),
    Check::new(
        "nat-interface",
        Severity::Risk,
        "flannel uses the NAT interface of a virtual machine",
        &[Need::Interfaces, Need::Routes, Need::Choice],
        &[],
        nat_interface,
    ),
    Check::new(
        "duplicate-address",
        Severity::Broken,
        "Two nodes have the same address",
        &[Need::Running],
        &["not-running", "wrong-node"],
        duplicate_address,
    ),
    Check::new(
        "clone",
        Severity::Broken,
        "Another machine has this node's identity",
        &[Need::Running],
        &["not-running", "lease"],
        clone,
    ),
    Check::new(
        "no-interface",
        Severity::Broken,
        "No interface matches",
        &[Need::Reasons],
        &[
            "store-unreachable",
            "encap-blocked",
            "wireguard-silent",
            "isolated",
            "peer-cut",
            "overlay-cut",
            "one-way",
            "probe-filtered",
        ],
        no_interface,
    ),
    Check::new(
        "node-internal-ip",
        Severity::Degraded,
        "kubelet reports the address of a NAT interface",
        &[Need::Interfaces, Need::Routes, Need::Choice, Need::Kubernetes],
        &[],
        node_internal_ip,
    ),
];

/// The problem that ended the last run of flanneld; `None` while it runs.
fn end(facts: &Facts) -> Option<&Problem> {
    let words = facts.daemon.exit_report.known().filter(|_| facts.is_stopped())?;
    words.problem.as_ref()
}

/// The part of the exit report about another node that already has this node's address.
fn refused_for_address(facts: &Facts) -> Option<String> {
    let problem = end(facts)?;
    problem.details().find_map(|detail| match detail {
        Detail::AddressInUse { address, holder } => {
            let address = address.map(|ip| format!(" {ip}")).unwrap_or_default();
            Some(format!(
                "the public address{address} of this node is already the address of {holder}"
            ))
        }
        _ => None,
    })
}

/// Other nodes' leases that contain an address of this host.
fn with_our_address(facts: &Facts) -> impl Iterator<Item = &RefusedLease> {
    let refused = facts.leases.refused.known().into_iter().flatten();
    refused.filter(|refused| refused.reason == "our-address")
}

/// The address of another node that somebody put on this host, with its interface: an address beside the underlay's own, or an address of a single
/// host. If its network is on another interface, the address may be this host's own, as behind the NAT of a virtual machine.
fn put_here<'a>(facts: &'a Facts, refused: &RefusedLease) -> Option<(&'a Interface, IpNet)> {
    let address = refused.address?;
    let own = facts.daemon.choice.known()?;
    let interface = facts.host.owner(address)?;
    let net = interface.nets().find(|net| net.addr() == address)?;
    let is_put = interface.name == own.interface && nat_marks(facts, interface).is_none()
        || interface.class() == LinkClass::Virtual
        || is_single(&net);
    (is_put && !own.addresses.contains(&address)).then_some((interface, net))
}

fn wrong_interface(facts: &Facts) -> Vec<Finding> {
    let (Some(interface), Some(choice)) = (facts.underlay(), facts.daemon.choice.known()) else {
        return Vec::new();
    };
    // A peer on the link of another interface, which an operator may have fixed before this node, refutes nothing while its packets get lost.
    let mut paths: Vec<&Path> = paths_by(facts, interface).collect();
    // An interface that has received packets from a peer is the right one. A silent peer is then off, or the path to that peer is cut.
    if paths.iter().any(|path| path.is_heard() || path.ever) {
        return Vec::new();
    }
    let marks = nat_marks(facts, interface);
    let mut is_cut: fn(&Path) -> bool = |path| path.verdict.state == State::CutOff;
    if marks.is_some() && paths.is_empty() {
        paths = facts.paths().iter().collect();
        is_cut = Path::is_lost;
    }
    let candidates = candidates(facts, interface);
    let led = candidates.iter().any(|candidate| candidate.leads.is_some());
    let silent = all_silent(&paths, is_cut, facts.daemon.young);
    let refused = refused_for_address(facts);
    let ours: Vec<&RefusedLease> =
        with_our_address(facts).filter(|refused| put_here(facts, refused).is_none()).collect();
    // Without probes, only the signs of NAT show a wrong interface. A link behind NAT has no other machine, so a peer with an address there is unreachable.
    let alone = facts.mesh.known().is_none()
        && facts.peers().any(|peer| peer.addresses().any(|ip| is_on_link(interface, ip)));
    if !((silent || refused.is_some() || !ours.is_empty()) && (marks.is_some() || led)
        || alone && marks.is_some())
    {
        return Vec::new();
    }
    let mut finding = suspected(&interface.name, choice, marks);
    if let Some(words) = refused {
        finding = finding.seen(words, "the exit report of flanneld");
    }
    for refused in ours.iter().take(3) {
        finding = finding.seen(&refused.text, "flannelctl leases");
    }
    if silent {
        finding = finding.seen(silence(&paths), "probes");
    }
    if candidates.is_empty() {
        finding = finding.seen(
            "this host has no other interface with an address: add a second interface on a network that joins the machines",
            "ip address",
        );
    }
    vec![lead_out(finding, facts, interface, &candidates)]
}

/// `marks` describes the signs that the interface is behind NAT.
fn suspected(name: &str, choice: &Choice, marks: Option<String>) -> Finding {
    let chosen = match choice.named {
        true => choice.why.clone(),
        false => format!("no flag names an interface ({})", choice.why),
    };
    match marks {
        Some(marks) => {
            let what = format!("flannel uses {name}, the NAT interface of the virtual machine");
            let finding = Finding::new(
                WRONG_INTERFACE,
                Severity::Broken,
                name,
                what,
                format!("{chosen}; no other machine reaches this interface"),
            );
            finding.seen(marks, "ip address, ip route")
        }
        // The peers may be off, so missing replies prove nothing about the interface.
        None => {
            let what = format!(
                "no other node replies on {name}, the interface that flannel uses, and this host has another interface"
            );
            let why = format!(
                "{chosen}. Either the other nodes are off or filter packets, or {name} does not join the nodes. The doctor cannot determine which network joins the machines"
            );
            Finding::new(WRONG_INTERFACE, Severity::Risk, name, what, why)
        }
    }
}

/// Names the first four peers from which nothing arrives.
fn silence(paths: &[&Path]) -> String {
    let cut = paths.iter().filter(|path| path.is_lost());
    let names: Vec<String> = cut.map(|path| format!("{} at {}", path.node, path.address)).collect();
    format!("nothing arrives over the overlay from {}", named(&names, 4))
}

/// At least half of the peers must have a known state: for seconds, a peer with a new address has none.
fn all_silent(paths: &[&Path], is_cut: fn(&Path) -> bool, young: bool) -> bool {
    let is_unknown = |path: &&&Path| path.verdict.state == State::Unknown;
    let cut = paths.iter().filter(|path| is_cut(path)).count();
    let unknown = paths.iter().filter(is_unknown).count();
    cut > 0 && cut + unknown == paths.len() && (unknown == 0 || !young && cut >= unknown)
}

fn is_on_link(interface: &Interface, ip: IpAddr) -> bool {
    interface.nets().any(|net| net.contains(&ip))
}

/// The paths to peers, except peers whose addresses are only in the network of another interface.
fn paths_by<'a>(facts: &'a Facts, interface: &'a Interface) -> impl Iterator<Item = &'a Path> {
    let another = move |ip: IpAddr| {
        let others = facts.interfaces().iter().filter(|other| other.index != interface.index);
        others.filter(|other| joins_hosts(other)).any(|other| is_on_link(other, ip))
    };
    facts
        .paths()
        .iter()
        .filter(move |path| is_on_link(interface, path.address) || !another(path.address))
}

fn nat_interface(facts: &Facts) -> Vec<Finding> {
    let Some(interface) = facts.underlay() else {
        return Vec::new();
    };
    let Some(marks) = nat_marks(facts, interface) else {
        return Vec::new();
    };
    let candidates = candidates(facts, interface);
    if candidates.is_empty() || paths_by(facts, interface).any(Path::is_heard) {
        return Vec::new();
    }
    let name = &interface.name;
    let finding = Finding::new(
        "nat-interface",
        Severity::Risk,
        name,
        format!("flannel uses {name}, the NAT interface of the virtual machine"),
        "other nodes cannot reach this node: each machine has its own NAT on this interface, often with the same address",
    );
    vec![lead_out(finding.seen(marks, "ip address, ip route"), facts, interface, &candidates)]
}

const SHARED: &str = "other nodes cannot distinguish nodes that share an address: packets to one of them arrive at the other";

fn with_interfaces(finding: Finding, facts: &Facts) -> Finding {
    let Some(interface) = facts.underlay() else {
        return finding;
    };
    let candidates = candidates(facts, interface);
    let finding = match nat_marks(facts, interface) {
        Some(marks) => finding.seen(marks, "ip address, ip route"),
        None => finding,
    };
    lead_out(finding, facts, interface, &candidates)
}

/// Another node's lease publishes an address of this host.
fn published_address(facts: &Facts, refused: &RefusedLease) -> Finding {
    let finding = |what: String| {
        Finding::new("duplicate-address", Severity::Broken, &refused.text, what, SHARED)
            .seen(&refused.text, "flannelctl leases")
    };
    let Some((interface, net)) = put_here(facts, refused) else {
        let what = "another node publishes an address of this host".to_owned();
        return with_interfaces(finding(what), facts);
    };
    let (ip, name) = (net.addr(), &interface.name);
    let finding = finding(format!("{ip} of another node is on {name} of this host"))
        .note("stop the program that put the address on this host: keepalived, kube-vip, LVS, the network configuration, or on kube-ipvs0 a Service with this address (externalIPs, loadBalancerIP)");
    // kube-proxy would put the address back.
    match name == "kube-ipvs0" {
        true => finding,
        false => finding.run(format!("ip address del {net} dev {}", word(name))),
    }
}

fn duplicate_address(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(words) = refused_for_address(facts) {
        let what = "flanneld did not start: another node has this node's address";
        let finding = Finding::new("duplicate-address", Severity::Broken, "", what, SHARED);
        let finding = finding.seen(words, "the exit report of flanneld");
        findings.push(with_interfaces(finding, facts));
    }
    findings.extend(with_our_address(facts).map(|refused| published_address(facts, refused)));
    // With a backend that distinguishes nodes by their keys, several nodes may share one address.
    let shares = facts
        .network
        .known()
        .is_some_and(|network| network.backend.is_some_and(|backend| backend.shares_address));
    let published = || facts.peers().filter(|_| !shares);
    let mut addresses: Vec<IpAddr> = published().flat_map(Peer::addresses).collect();
    addresses.sort_unstable();
    // There may be thousands of peers, but few of them share an address.
    let equal = addresses.chunk_by(|a, b| a == b).filter(|equal| equal.len() > 1);
    let mut shared: BTreeMap<IpAddr, Vec<&Peer>> =
        equal.filter_map(|equal| Some((*equal.first()?, Vec::new()))).collect();
    for peer in published() {
        for ip in peer.addresses() {
            shared.entry(ip).and_modify(|nodes| nodes.push(peer));
        }
    }
    for (ip, nodes) in shared {
        let names: Vec<String> =
            nodes.iter().map(|peer| format!("{} ({})", peer.name, peer.subnets)).collect();
        let what = format!("{} nodes publish the address {ip}", nodes.len());
        findings.push(
            Finding::new("duplicate-address", Severity::Broken, ip.to_string(), what, SHARED)
                .within(nodes.iter().flat_map(|peer| peer.subnets.nets()))
                .seen(names.join(", "), "flannelctl leases")
                .on("those nodes"),
        );
    }
    findings
}

/// Stands in a single-quoted script, and gives way to the output of a shell command.
const NEW_ID: &str = "@new-id@";

fn clone(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let trouble = facts.leases.own.known().and_then(|own| own.trouble.as_ref());
    // If only the address is a duplicate, `duplicate-address` reports it.
    let is_clone = |problem: &&Problem| {
        problem.details().any(|detail| matches!(detail, Detail::IdentityInUse { .. }))
    };
    for (problem, from) in [(end(facts), "the exit report of flanneld"), (trouble, "the lease")] {
        let Some(problem) = problem.filter(is_clone) else {
            continue;
        };
        let finding = Finding::new(
            "clone",
            Severity::Broken,
            "",
            "another machine runs with this node's identity",
            match facts.daemon.id_given {
                true => {
                    "both machines have the same --node-id (FLANNELD_NODE_ID), which is typical of machines cloned from one image. Two nodes with one lease would receive each other's packets"
                }
                false => {
                    "machines cloned from one image share /etc/machine-id and therefore one lease: they would receive each other's packets. The commands give flanneld its own identity. The commands do not change /etc/machine-id, by which DHCP, the journal and kubelet identify this machine. On a new clone, run systemd-machine-id-setup before any other program runs"
                }
            },
        );
        let finding = finding.seen(problem.to_string(), from);
        findings.push(match (facts.daemon.id_given, facts.daemon.argument("node-id")) {
            (true, Some(argument)) => {
                let edit = edit_unit(argument, "node-id", NEW_ID);
                finding.run_all(edit.map(|command| {
                    command.replace(NEW_ID, "'\"$(cat /proc/sys/kernel/random/uuid)\"'")
                }))
            }
            // Systemd applies the last of several assignments to a variable.
            _ => finding.run(add_line("FLANNELD_NODE_ID=$(cat /proc/sys/kernel/random/uuid)")),
        });
        break;
    }
    findings.into_iter().map(|finding| finding.run("systemctl restart flanneld")).collect()
}

const UNDERLAY_DOWN: &str = "underlay-down";

fn no_interface(facts: &Facts) -> Vec<Finding> {
    let Some(reason) = facts.reason("underlay") else {
        return Vec::new();
    };
    let mut finding = Finding::new(
        "no-interface",
        Severity::Broken,
        "",
        "no interface reaches the other nodes",
        "flanneld waits until an interface reaches the other nodes, and then continues",
    );
    finding = finding.seen(reason.to_string(), "readyz");
    let choice = facts.underlay_name();
    // The interfaces may have been read a moment before the chosen one went down.
    let went_down = reason.code == UNDERLAY_DOWN;
    // Physical interfaces and the chosen one, which may also be a bond, a bridge, or a container's veth.
    let down = |interface: &&Interface| {
        let is_chosen = choice == Some(&interface.name);
        (!interface.up || went_down && is_chosen)
            && !interface.loopback
            && (interface.kind.is_empty() || is_chosen)
    };
    let mut listed = 0;
    for interface in facts
        .interfaces()
        .iter()
        .filter(down)
        // A network card may have hundreds of virtual functions.
        .filter(|interface| {
            listed += 1;
            listed <= MAX_DOWN || choice == Some(interface.name.as_str())
        })
    {
        finding = finding.seen(format!("{} is down", interface.name), "ip link");
        if choice == Some(interface.name.as_str()) {
            finding = finding.run(format!("ip link set {} up", word(&interface.name)));
        }
    }
    let is_raised = !finding.remedy.commands.is_empty();
    vec![if is_raised {
        finding.note("this change does not survive a reboot: bring the interface up in its configuration (netplan, NetworkManager, systemd-networkd, ifupdown)")
    } else {
        finding
    }]
}

fn node_internal_ip(facts: &Facts) -> Vec<Finding> {
    let (Some(node), Some(choice)) = (facts.kubernetes.known(), facts.underlay()) else {
        return Vec::new();
    };
    if node.internal.is_empty() || node.internal.iter().any(|ip| choice.owns(*ip)) {
        return Vec::new();
    }
    let behind_nat = node.internal.iter().find_map(|ip| {
        let owner = facts.host.owner(*ip)?;
        Some((*ip, owner, nat_marks(facts, owner)?))
    });
    let Some((ip, owner, marks)) = behind_nat else {
        return Vec::new();
    };
    let Some(right) = address(choice, Family::from(ip)) else {
        return Vec::new();
    };
    vec![
        Finding::new(
            "node-internal-ip",
            Severity::Degraded,
            "",
            format!("the Node's InternalIP {ip} is on {}, but {} joins the nodes", owner.name, choice.name),
            "the API server does not reach this kubelet: kubectl logs, exec and port-forward fail for pods of this node",
        )
        .seen(marks, "ip address, ip route")
        // kubeadm's file has one line with a quoted value. The script removes an existing address before it adds the new one.
        .run(format!(
            "sed -i -E -e 's/ *--node-ip=[^ \"]*//; s/=\" +/=\"/' -e 's/\"$/ --node-ip={}\"/' /var/lib/kubelet/kubeadm-flags.env",
            right.addr()
        ))
        .run("systemctl restart kubelet")
        .note("for k3s and RKE2, set node-ip to the same address in /etc/rancher/k3s/config.yaml or /etc/rancher/rke2/config.yaml, and restart the k3s or RKE2 service"),
    ]
}
