//! Checks of the daemon itself: whether it runs, whether it hangs, and whether its ports are free.

use super::daemon_set;
use super::devices::is_flannels;
use super::interface_remedy::{restart, set_option};
use crate::check::Check;
use crate::facts::Facts;
use crate::facts::daemon::Launch;
use crate::facts::host::{Interface, Port};
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::shell::word;
use types::problem::PortPurpose;

pub const PORT_TAKEN: &str = "port-taken";

pub const CHECKS: &[Check] = &[
    Check::new(
        PORT_TAKEN,
        Severity::Broken,
        "Another program uses a port that flanneld needs",
        &[Need::Ports],
        &[
            "not-running",
            "encap-blocked",
            "wireguard-silent",
            "overlay-cut",
            "one-way",
            "probe-filtered",
        ],
        port_taken,
    ),
    Check::new(
        "not-running",
        Severity::Broken,
        "flanneld does not run",
        &[Need::Running],
        &["subnet-env", "lease"],
        not_running,
    ),
    Check::new("hangs", Severity::Broken, "flanneld hangs", &[Need::Silent], &["lease"], hangs),
];

fn not_running(facts: &Facts) -> Vec<Finding> {
    if facts.daemon.running.known() != Some(&false) {
        return Vec::new();
    }
    let report = facts.daemon.exit_report.known();
    let failed = report.filter(|report| report.code != 0);
    let cause = failed.map(|report| format!(": {}", report.text)).unwrap_or_default();
    let mut finding = Finding::new(
        "not-running",
        Severity::Broken,
        "",
        format!("flanneld does not run on this node{cause}"),
        "existing routes keep working, but this node receives no network changes, and its lease expires",
    );
    let place = match &facts.daemon.launch {
        Launch::Systemd => "journalctl -u flanneld",
        Launch::Kubernetes { .. } => "kubectl logs",
    };
    if let Some(words) = report {
        finding = finding.seen(
            format!("flanneld ended at {} with exit code {}: {}", words.at, words.code, words.text),
            "its exit report",
        );
    } else {
        finding = finding
            .seen(format!("no process holds {}.status", facts.daemon.subnet_file.display()), place);
    }
    vec![match &facts.daemon.launch {
        // Systemd has started the daemon again and again.
        Launch::Systemd if failed.is_some() => finding.run("journalctl -u flanneld -n 50"),
        Launch::Systemd => finding.run("systemctl start flanneld"),
        Launch::Kubernetes { .. } => finding.run(restart(facts)),
    }]
}

fn hangs(facts: &Facts) -> Vec<Finding> {
    let Some(silent) = facts.daemon.silent.known().filter(|silent| !silent.is_empty()) else {
        return Vec::new();
    };
    let mut finding = Finding::new(
        "hangs",
        Severity::Broken,
        "",
        "flanneld runs but hangs",
        "a disk, a program or the kernel blocks one of flanneld's tasks; existing routes keep working",
    );
    for task in silent.iter().take(5) {
        finding = finding.seen(task, "livez");
    }
    vec![finding.run(restart(facts))]
}

fn port_taken(facts: &Facts) -> Vec<Finding> {
    let ports = facts.host.ports.known().into_iter().flatten();
    ports
        .map(|port| {
            let Some(flag) = port.flag() else { return tunnel_taken(facts, port) };
            let wanted_for = port.wanted_for();
            let (kind, list) = if port.udp { ("UDP", "ss -ulpn") } else { ("TCP", "ss -ltnp") };
            let what = format!("{kind} port {}, which flanneld needs for its {wanted_for}, is already in use", port.number);
            let finding = Finding::new(
                PORT_TAKEN,
                // Pod packets are not affected.
                Severity::Risk,
                format!("{} {}", kind.to_lowercase(), port.number),
                what,
                format!("flanneld runs without its {wanted_for} until the port is free or you configure another port"),
            );
            let finding = match &port.owner {
                Some(owner) => finding.seen(format!("{owner} uses the port"), list),
                None => finding.seen("another program uses the port", format!("{list} sport = :{}", port.number)),
            };
            // Probes have to use the same port on all nodes, so no other port is suggested for them.
            match (port.number.checked_add(100).filter(|_| port.purpose != PortPurpose::Probes), &facts.daemon.launch) {
                (Some(other), Launch::Kubernetes { namespace, .. }) if port.purpose == PortPurpose::Health => {
                    finding.run(daemon_set::move_health_port(namespace, port.number, other))
                }
                (Some(other), _) => finding.run_all(set_option(facts, flag, &other.to_string())),
                (None, _) => finding.run(format!("{list} sport = :{}", port.number)),
            }
        })
        .collect()
}

fn tunnel_taken(facts: &Facts, port: &Port) -> Finding {
    let number = port.number;
    let backend = facts.network.known().and_then(|network| network.backend);
    let key = backend.and_then(|backend| backend.keys.port).unwrap_or("Port");
    // Ports of tunnels in the kernel belong to no process, so the list of these devices is also shown.
    let kinds = backend
        .into_iter()
        .flat_map(|backend| backend.devices)
        .filter_map(|device| device.kinds.first());
    let kind = kinds.copied().find(|kind| *kind != "tun").unwrap_or("vxlan");
    let is_holder = |other: &&Interface| {
        other.vxlan.is_some_and(|(_, port)| port == number) && !is_flannels(facts, other)
    };
    let device = facts.interfaces().iter().find(is_holder);
    let (list, owner) = match device {
        Some(device) => (
            format!("ip -details link show dev {}", word(&device.name)),
            format!("the vxlan device {} of another program", device.name),
        ),
        None => (
            format!("ss -ulpn sport = :{number}"),
            port.owner.clone().unwrap_or_else(|| "another program".to_owned()),
        ),
    };
    Finding::new(
        PORT_TAKEN,
        Severity::Broken,
        format!("udp {number}"),
        format!("UDP port {number} of this node, which carries packets of pods between nodes, is already in use"),
        format!(
            "no packets of pods leave or reach this node until the program that uses the port ends. To use another port on all nodes, set {key} in the Backend of the network configuration"
        ),
    )
    .seen(format!("{owner} uses the port"), &list)
    .run(list)
    .run(format!("ip -details link show type {kind}"))
}
