//! Checks of kernel limits and hardware faults.

use crate::check::Check;
use crate::facts::Facts;
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::persist::{checksums_off, module, sysctl};
use crate::shell::word;

/// With fewer invalid UDP checksums, the check suspects no hardware fault.
const MIN_ERRORS: u64 = 3;

pub const CHECKS: &[Check] = &[
    Check::new(
        "checksum",
        Severity::Broken,
        "Packets arrive with wrong checksums",
        &[Need::Checksums, Need::Mesh, Need::Interfaces],
        &["probe-filtered", "lossy", "pods-lost"],
        checksum,
    )
    .waiting(),
    Check::new(
        "conntrack-full",
        Severity::Risk,
        "The connection tracking table is nearly full",
        &[Need::Conntrack],
        &["pods-lost"],
        conntrack_full,
    ),
];

fn checksum(facts: &Facts) -> Vec<Finding> {
    // The counters cover the whole host: a few damaged packets from elsewhere are not a fault of a card. Pods have counters in their own network namespaces.
    let Some(errors) = facts.host.checksums.known().filter(|errors| errors.udp >= MIN_ERRORS)
    else {
        return Vec::new();
    };
    // ICMP has its own checksum, which no hardware computes, so ping still works. A host that rejects a probe has received the probe.
    let ping_only = facts.mesh.known().is_some_and(|mesh| {
        mesh.paths.iter().any(|path| path.verdict.ping_only && path.ours && !path.refuses)
    });
    let device = facts
        .interfaces()
        .iter()
        .find(|interface| interface.vxlan.is_some() && interface.name.starts_with("flannel"));
    let Some(device) = device.filter(|_| ping_only) else {
        return Vec::new();
    };
    vec![
        Finding::new(
            "checksum",
            Severity::Broken,
            &device.name,
            "packets over the overlay arrive with wrong checksums",
            "a network card or its driver computes wrong checksums for encapsulated packets. For a permanent fix, set \"ChecksumOffload\": \"off\" in the Backend of the network configuration",
        )
        .seen(format!("{} UDP and {} TCP checksum errors in the last two minutes", errors.udp, errors.tcp), "nstat -az UdpInCsumErrors TcpInCsumErrors")
        .seen("a peer replies to ping over the overlay, but not to UDP probes", "probes")
        .run(format!("ethtool -K {} tx-checksum-ip-generic off", word(&device.name)))
        .run(checksums_off(&device.name))
        .on(crate::finding::EVERYWHERE),
    ]
}

fn conntrack_full(facts: &Facts) -> Vec<Finding> {
    let Some(fill) = facts.host.conntrack.known().filter(|fill| {
        fill.limit > 0 && fill.used.saturating_mul(10) >= fill.limit.saturating_mul(9)
    }) else {
        return Vec::new();
    };
    vec![
        Finding::new(
            "conntrack-full",
            Severity::Risk,
            "",
            format!(
                "the connection tracking table has {} of at most {} entries",
                fill.used, fill.limit
            ),
            "when the table is full, the kernel drops new connections of pods at random",
        )
        .seen(
            format!("nf_conntrack_count = {}, nf_conntrack_max = {}", fill.used, fill.limit),
            "sysctl net.netfilter",
        )
        .run_all(sysctl("net.netfilter.nf_conntrack_max", fill.limit.saturating_mul(2)))
        // The sysctl exists only after the module is loaded.
        .run(module("nf_conntrack")),
    ]
}
