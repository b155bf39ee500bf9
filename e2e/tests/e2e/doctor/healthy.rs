//! The doctor has no findings in a network without faults. The test loads all processors and links, restarts daemons, adds a node, and releases its
//! lease.
//!
//! It is a part of `make soak`. `FLANNEL_TEST_QUIET` is its duration with each backend, in seconds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{
    Node, PingMatrix, Pod, Scene, Transfer, TransferOptions, binaries, require_success,
    stdout_json, until_ok, write_script,
};

use crate::healing::scenarios;

/// Between two actions of the test. Meanwhile, the doctor and the probes run several times.
const PAUSE: Duration = Duration::from_secs(12);
/// Bytes that a stream sends before the next one starts.
const PIECE: u64 = 16 << 20;

/// The duration with each backend.
fn duration_per_backend() -> Duration {
    Duration::from_secs(
        std::env::var("FLANNEL_TEST_QUIET").ok().and_then(|text| text.parse().ok()).unwrap_or(120),
    )
}

/// Three nodes, and a fourth one that joins and leaves, with all unexpected findings.
struct Watch<'a, 'lab> {
    s: &'a mut Scene<'lab>,
    /// Daemons carry the packets of pods. The pods of the node `ended` then lose packets while its daemon does not run, and its peers correctly
    /// report it.
    carried: bool,
    ended: usize,
    reported: BTreeSet<String>,
}

impl Watch<'_, '_> {
    /// Records the findings on a node. Fails if the doctor fails.
    fn record_unexpected_findings(&mut self, node: usize, when: &str) -> Result<()> {
        let node = &self.s[node];
        let report = stdout_json(&node.daemon()?.flannelctl(&["doctor", "-o", "json"])?)?;
        let findings = report["findings"].as_array().context("no findings")?;
        ensure!(findings.is_empty() || report["daemon"] == "running", "{report:#}");
        let ended = self.s[self.ended].name();
        for finding in findings {
            let about = finding["about"].as_str().unwrap_or_default();
            let is_true =
                finding["check"] == "overlay-cut" && about.split(' ').next() == Some(ended);
            if !(self.carried && is_true) {
                self.reported.insert(format!("{}, {when}: {finding}", node.name()));
            }
        }
        Ok(())
    }

    /// Records the findings of the first three nodes, except one, for a time.
    fn record_findings_for_duration(
        &mut self,
        when: &str,
        except: Option<usize>,
        time: Duration,
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            for node in (0..3).filter(|node| Some(*node) != except) {
                until_ok("the doctor can be asked", || {
                    self.record_unexpected_findings(node, when)
                })?;
            }
            if begun.elapsed() >= time {
                return Ok(());
            }
            // Keeps the doctor's own load small.
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Ends the daemon by SIGTERM or by a kill. Records the findings of the other nodes during the restart.
    fn restart_and_record_findings(
        &mut self,
        node: usize,
        end: fn(&mut Node) -> Result<()>,
        when: &str,
    ) -> Result<()> {
        self.ended = node;
        end(&mut self.s[node])?;
        self.s[node].launch_daemon()?;
        self.record_findings_for_duration(when, Some(node), Duration::ZERO)?;
        self.s[node].daemon_mut()?.wait_ready()?;
        self.record_findings_for_duration(when, None, PAUSE)
    }

    /// Ends the fourth node's daemon first.
    fn stop_and_release_fourth_node(&mut self) -> Result<()> {
        self.ended = 3;
        let key = self.s[3].lease_name()?;
        self.s[3].stop_daemon()?;
        let place = self.s.store.daemon_args();
        let words = ["release", &key, "--force", "--yes", &place[0]];
        require_success("release", &self.s[0].flannelctl(&words)?)?;
        self.record_findings_for_duration("after a node was released", None, PAUSE)
    }

    fn run_rounds_until(&mut self, end: Instant) -> Result<()> {
        self.record_findings_for_duration("under load", None, PAUSE)?;
        for round in 0.. {
            if round > 0 && Instant::now() >= end {
                break;
            }
            self.restart_and_record_findings(round % 3, Node::stop_daemon, "after a restart")?;
            self.s[3].start_daemon()?;
            self.record_findings_for_duration("after a node joined", None, PAUSE)?;
            self.restart_and_record_findings((round + 1) % 3, Node::kill_daemon, "after a kill")?;
            self.stop_and_release_fourth_node()?;
        }
        Ok(())
    }
}

/// A script that runs flanneld with a test folder in place of the machine's /etc/default and /etc/cni/net.d.
fn write_isolated_flanneld_script(files: &Path) -> Result<PathBuf> {
    std::fs::write(files.join("10-flannel.conflist"), r#"{"plugins":[{"type":"flannel"}]}"#)?;
    let (wrapper, flanneld) = (files.join("flanneld"), binaries::flannel_binary("flanneld")?);
    let mount =
        |place: &str| format!("mkdir -p {place}; mount --bind '{}' {place}\n", files.display());
    write_script(
        &wrapper,
        &format!(
            "#!/bin/sh -e\n{}{}exec '{}' \"$@\"",
            mount("/etc/default"),
            mount("/etc/cni/net.d"),
            flanneld.display()
        ),
    )?;
    Ok(wrapper)
}

/// Keeps all processors busy and runs streams between all pods until `stop`. Counts their bytes.
fn start_cpu_and_traffic_load<'scope, 'env>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    pods: &'env [Pod],
    stop: &'env AtomicBool,
    bytes: &'env AtomicU64,
) {
    for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
    }
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        scope.spawn(move || {
            while !stop.load(Relaxed) {
                // A stream may break while a daemon restarts. Then the next one starts.
                if let Ok(done) =
                    Transfer::run(&pods[from], &pods[to], PIECE, &TransferOptions::default())
                {
                    bytes.fetch_add(done.bytes, Relaxed);
                }
            }
        });
    }
}

fn require_no_findings_under_load(
    backend: &str,
    nftables: bool,
    dual: bool,
    time: Duration,
) -> Result<()> {
    let net_conf = format!(
        r#"{{"Network":"10.5.0.0/16","EnableIPv6":{dual},"IPv6Network":"fd10:5::/48","EnableNFTables":{nftables},"Backend":{{"Type":"{backend}"}}}}"#
    );
    let scene = Scene::with_title(&format!("quiet-{backend}")).nodes(4).net(&net_conf);
    scene.without_daemons().run(|s| {
        let program = write_isolated_flanneld_script(&s.lab.ensure_folder("files")?)?;
        for node in &mut s.nodes {
            node.change_options(|options| options.binary(&program));
        }
        for node in &mut s.nodes[..3] {
            node.start_daemon()?;
            node.create_pod("p1")?;
        }
        let pods: Vec<Pod> = s.pods().into_iter().cloned().collect();
        until_ok("pods reach each other", || {
            PingMatrix::of_main_addresses(&pods)?.require_complete()
        })?;
        let (stop, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        let end = Instant::now() + time;
        let mut watch = Watch { s, carried: backend == "udp", ended: 3, reported: BTreeSet::new() };
        std::thread::scope(|scope| {
            start_cpu_and_traffic_load(scope, &pods, &stop, &bytes);
            let outcome = watch.run_rounds_until(end);
            stop.store(true, Relaxed);
            outcome
        })?;
        ensure!(bytes.load(Relaxed) > 0, "the links carried nothing");
        ensure!(watch.reported.is_empty(), "{net_conf}: {:#?}", watch.reported);
        Ok(())
    })
}

scenarios! { load_and_restarts_cause_no_findings;
    #[ignore = "ten minutes: a part of `make soak`"]
    vxlan_under_load_has_no_findings => "vxlan",
    #[ignore = "ten minutes: a part of `make soak`"]
    udp_under_load_has_no_findings => "udp",
    #[ignore = "ten minutes: a part of `make soak`"]
    host_gw_under_load_has_no_findings => "host-gw",
}

/// Tests iptables rules and nftables rules, each with one and two address families.
fn load_and_restarts_cause_no_findings(backend: &str) -> Result<()> {
    for (nftables, dual) in [(false, false), (true, false), (false, true), (true, true)] {
        require_no_findings_under_load(backend, nftables, dual, duration_per_backend() / 4)?;
    }
    Ok(())
}
