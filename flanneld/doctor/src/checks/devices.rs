//! Checks for obstacles to the creation of flannel's device: a missing kernel module, or another device with the same name or VNI.

use super::interface_remedy::restart;
use crate::check::Check;
use crate::command::Command;
use crate::facts::Facts;
use crate::facts::host::Interface;
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::shell::word;
use netstate::cleanup;
use std::collections::BTreeSet;
use types::Family;

pub const CHECKS: &[Check] = &[
    Check::new(
        "module",
        Severity::Broken,
        "A kernel module is missing",
        &[Need::Modules],
        &[
            "foreign-device",
            "not-running",
            "encap-blocked",
            "wireguard-silent",
            "overlay-cut",
            "one-way",
            "probe-filtered",
        ],
        module,
    ),
    Check::new(
        "foreign-device",
        Severity::Broken,
        "Another device has flannel's name or VNI",
        &[Need::Network, Need::Interfaces],
        &[
            "not-running",
            "drift-war",
            "pod-route",
            "encap-blocked",
            "wireguard-silent",
            "overlay-cut",
            "one-way",
            "probe-filtered",
        ],
        foreign_device,
    ),
];

pub(super) fn is_flannels(facts: &Facts, interface: &Interface) -> bool {
    cleanup::is_flannels(&facts.backends, &interface.name, &interface.kind)
}

/// `None` unless flanneld has stopped.
fn start(facts: &Facts) -> Option<Command> {
    (facts.is_stopped()).then(|| restart(facts))
}

fn module(facts: &Facts) -> Vec<Finding> {
    let missing = facts.host.modules.known().into_iter().flatten();
    missing
        .map(|module| {
            let name = &module.name;
            Finding::new(
                "module",
                Severity::Broken,
                name,
                format!("the kernel module {name} is missing"),
                "some distributions package the module separately: linux-modules-extra-$(uname -r) on Ubuntu, kernel-modules-extra on Fedora and RHEL",
            )
            .seen(&module.why, format!("modprobe {name}"))
            .run(format!("modprobe {}", word(name)))
            .run(format!("echo {} > {}", word(name), word(&format!("/etc/modules-load.d/flannel-{name}.conf"))))
            .run_all(start(facts))
        })
        .collect()
}

fn foreign_device(facts: &Facts) -> Vec<Finding> {
    let Some(network) = facts.network.known() else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let used = Family::ALL.into_iter().filter(|family| network.has(*family));
    let wanted: BTreeSet<String> = used.filter_map(|family| network.device(family)).collect();
    for interface in facts.interfaces() {
        let name = &interface.name;
        if wanted.contains(name) && !is_flannels(facts, interface) {
            let kind = if interface.kind.is_empty() { "hardware" } else { &interface.kind };
            findings.push(
                Finding::new(
                    "foreign-device",
                    Severity::Broken,
                    name,
                    format!("a device of another kind has the name {name}"),
                    "flannel needs the name of this device, but does not replace foreign devices; the command renames the device",
                )
                .seen(format!("{name} is of the kind {kind}"), format!("ip -d link show {name}"))
                .run(format!(
                    "ip link set {0} down && ip link set {0} name {1}",
                    word(name),
                    word(&format!("was-{}", name.chars().take(11).collect::<String>()))
                ))
                .run_all(start(facts))
                .note("this change does not survive a reboot: give the device another name where it is configured"),
            );
        }
        let ours = network.vni.zip(network.tunnel().and_then(|tunnel| tunnel.port()));
        if interface.vxlan.is_some() && interface.vxlan == ours && !name.starts_with("flannel") {
            // In dual-stack this may be the device of the other family. Then no device is missing.
            let missing = wanted
                .iter()
                .any(|name| facts.interfaces().iter().all(|other| other.name != *name));
            if missing {
                findings.push(
                    Finding::new(
                        "foreign-device",
                        Severity::Broken,
                        name,
                        format!("the vxlan device {name} has flannel's VNI and UDP port"),
                        "the kernel allows only one device per VNI and port. Give this device another VNI, or set another VNI or Port in the Backend of the network configuration",
                    )
                    .seen(format!("VNI {}, UDP port {}", ours.unwrap_or_default().0, ours.unwrap_or_default().1), format!("ip -d link show {name}")),
                );
            }
        }
    }
    findings
}
