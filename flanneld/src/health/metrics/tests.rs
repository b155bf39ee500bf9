use super::super::figures::{Counts, StoreCounts};
use super::super::prometheus_text::from_openmetrics;
use super::*;
use backends::status::{EngineStatus, Traffic};
use doctor::Severity;
use netlink::link::{Counters as DeviceCounters, DirectionCounters};
use probing::prober::Figures;
use probing::target::Path;
use probing::view::{Ages, PathState, PeerView};
use std::collections::BTreeSet;
use std::time::Duration;
use types::Histogram;
use types::reachability::State;

fn peer(number: u32) -> PeerView {
    PeerView {
        id: None,
        name: Some(format!("node-{number}").into()),
        subnet: format!("10.{}.{}.0/24", number / 256, number % 256).parse().unwrap(),
        address: "192.0.2.2".parse().unwrap(),
        overlay: None,
        state: State::CutOff,
        state_age_ms: 1,
        ping_only: false,
        inferred: false,
        refuses: false,
        rtt_us: Some(1500),
        lost: 4,
        asked: 16,
        losses: (0, 16),
        carries: None,
        mtu: 1450,
        ages: Ages::default(),
        clock_offset_ms: None,
        answered_by: None,
        others: Vec::new(),
    }
}

/// No optional field is `None`.
fn counts() -> Counts {
    let histogram = Histogram::default();
    histogram.record(Duration::from_micros(300));
    histogram.record(Duration::from_secs(20));
    let direction = DirectionCounters { packets: 1, bytes: 2, errors: 3, dropped: 4 };
    Counts {
        lease_age_seconds: Some(7),
        store: Some(StoreCounts {
            available: true,
            heard_age_seconds: Some(8),
            durations: histogram.snapshot(),
        }),
        errors: BTreeMap::from([("store", 5), ("kernel", 0)]),
        repairs_by_kind: BTreeMap::from([("route", 2)]),
        kernel: Some(KernelCounts {
            in_sync: true,
            trouble: String::new(),
            failed_peers: Vec::new(),
            passes: 1,
            writes: 1,
            failures: 0,
            repairs: 2,
        }),
        devices: BTreeMap::from([(
            "flannel.1".to_owned(),
            DeviceCounters { sent: direction, received: DirectionCounters::default() },
        )]),
        probes: Some(Figures {
            traffic: probing::view::Traffic {
                answered: 10,
                lost: 2,
                refused: 1,
                ..probing::view::Traffic::default()
            },
            paths: BTreeMap::from([((Path::Underlay, PathState::Silent), 3)]),
            round_trips: histogram.snapshot(),
            ..Figures::default()
        }),
        ..Counts::default()
    }
}

#[test]
fn figures_are_in_both_formats() {
    let open = text(&Node::default(), &counts());
    let plain = from_openmetrics(&open);
    for line in [
        "flannel_lease_age_seconds 7",
        "flannel_store_available 1",
        "flannel_store_heard_age_seconds 8",
        "flannel_store_request_duration_seconds_bucket{le=\"0.0005\"} 1",
        "flannel_store_request_duration_seconds_bucket{le=\"+Inf\"} 2",
        "flannel_store_request_duration_seconds_sum 20.0003",
        "flannel_store_request_duration_seconds_count 2",
        "flannel_errors_total{class=\"store\"} 5",
        "flannel_kernel_repaired_objects_total{kind=\"route\"} 2",
        "flannel_kernel_pass_duration_seconds_count 0",
        "flannel_device_bytes_total{device=\"flannel.1\",direction=\"sent\"} 2",
        "flannel_device_dropped_packets_total{device=\"flannel.1\",direction=\"sent\"} 4",
        "flannel_probe_outcomes_total{outcome=\"lost\"} 2",
        "flannel_probe_paths{path=\"underlay\",state=\"silent\"} 3",
        "flannel_probe_rtt_seconds_count 2",
    ] {
        for (format, text) in [("OpenMetrics", &open), ("0.0.4", &plain)] {
            assert!(text.lines().any(|found| found == line), "{format}: {line}\n{text}");
        }
    }
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_threads",
        "process_start_time_seconds",
    ] {
        let value = plain.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value: f64 = value.unwrap_or_else(|| panic!("{name}")).parse().unwrap();
        assert!(value > 0.0, "{name} {value}");
    }
}

#[test]
fn every_series_has_help_and_a_type() {
    let plain = from_openmetrics(&text(&Node::default(), &counts()));
    let described = |word: &str| -> BTreeSet<&str> {
        let prefix = format!("# {word} ");
        let lines = plain.lines();
        lines.filter_map(|line| line.strip_prefix(&prefix)?.split(' ').next()).collect()
    };
    let (help, types) = (described("HELP"), described("TYPE"));
    assert_eq!(help, types);
    for line in plain.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let parts = ["_bucket", "_sum", "_count"];
        let base = parts.iter().find_map(|part| name.strip_suffix(part));
        assert!(help.contains(name) || base.is_some_and(|base| help.contains(base)), "{line}");
    }
}

#[test]
fn peers_have_series_only_on_request() {
    let mut counts = counts();
    assert!(!text(&Node::default(), &counts).contains("peer=\""));
    counts.each_peer = vec![peer(1), peer(2)];
    let text = text(&Node::default(), &counts);
    for line in [
        "flannel_peer_state{peer=\"node-1\",subnet=\"10.0.1.0/24\",state=\"cut-off\"} 1",
        "flannel_peer_rtt_seconds{peer=\"node-2\",subnet=\"10.0.2.0/24\"} 0.0015",
        "flannel_peer_lost_ratio{peer=\"node-2\",subnet=\"10.0.2.0/24\"} 0.25",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// The length of the metrics text does not depend on the number of leases.
#[test]
fn text_is_small_with_every_part() {
    let mut counts = counts();
    let severities = [Severity::Broken, Severity::Degraded, Severity::Risk];
    for check in doctor::table::checks() {
        for severity in severities {
            counts.findings.findings.insert((check.id, severity), 1);
        }
        counts.findings.unknown.insert(check.id, 1);
    }
    let direction = Traffic {
        // More than there are reasons.
        dropped: doctor::table::checks().map(|check| (check.id, 1)).take(50).collect(),
        ..Traffic::default()
    };
    for device in ["flannel-wg", "flannel-wg-v6"] {
        counts.datapath.push(EngineStatus {
            device: device.to_owned(),
            sent: direction.clone(),
            received: direction.clone(),
            handshakes: Some([("initiated", 1); 5]),
            ..EngineStatus::default()
        });
    }
    (counts.leases, counts.peers) = (10_000, 10_000);
    let size = text(&Node::default(), &counts).len();
    assert!(size < 64 << 10, "{size}");
}
