//! Checks that the doctor has no findings in a network without faults. The test loads all processors and links, restarts
//! daemons, adds a node, and releases the node's lease.
//!
//! The test is a part of `make soak`. `FLANNEL_TEST_QUIET` is the duration of the test with each backend, in seconds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{
    Flanneld, FlanneldOptions, Host, Lab, PingMatrix, Pod, Store, Transfer, TransferOptions,
    binaries, until_ok, write_script,
};
use serde_json::Value;

use crate::healing::scenarios;

/// Pause between two actions of the test. During a pause, the doctor and the probes run several times.
const PAUSE: Duration = Duration::from_secs(12);
/// Number of bytes that a stream sends before the next stream starts.
const PIECE: u64 = 16 << 20;

/// Returns the duration of the test with each backend.
fn time() -> Duration {
    Duration::from_secs(
        std::env::var("FLANNEL_TEST_QUIET")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(120),
    )
}

/// Three nodes, and a fourth node that joins and leaves.
struct Cluster {
    hosts: Vec<Host>,
    store: Store,
    options: FlanneldOptions,
    daemons: Vec<Flanneld>,
    guest: Option<Flanneld>,
    /// Whether daemons carry the packets of pods. If true, the pods of the node `ended` lose packets
    /// while the node's daemon does not run. Peers of the node correctly report the packet loss.
    carried: bool,
    ended: Option<usize>,
    /// All unexpected findings, with the node and the preceding action.
    reported: BTreeSet<String>,
    looks: u32,
}

impl Cluster {
    fn start(lab: &Lab, net_conf: &str, carried: bool) -> Result<Cluster> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 4)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(net_conf)?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .binary(&alone(&lab.folder("files")?)?);
        let daemons = hosts
            .iter()
            .take(3)
            .map(|host| host.flanneld(&options))
            .collect::<Result<Vec<_>>>()?;
        Ok(Cluster {
            hosts,
            store,
            options,
            daemons,
            guest: None,
            carried,
            ended: None,
            reported: BTreeSet::new(),
            looks: 0,
        })
    }

    /// Records the doctor's findings on a node. Returns an error if the doctor fails.
    fn look(&mut self, node: usize, when: &str) -> Result<()> {
        let program = binaries::own("flannelctl")?.to_string_lossy().into_owned();
        let file = format!(
            "--subnet-file={}",
            self.daemons[node].subnet_file().display()
        );
        let output = self.hosts[node]
            .netns()
            .output(&program, &["doctor", "-o", "json", &file])?;
        let report: Value = match serde_json::from_slice(&output.stdout) {
            Ok(report) if output.status.code() != Some(1) => report,
            _ => bail!(
                "{}: {}",
                self.hosts[node].name(),
                String::from_utf8_lossy(&output.stderr)
            ),
        };
        self.looks += 1;
        let findings = report["findings"].as_array().context("no findings")?;
        ensure!(
            findings.is_empty() || report["daemon"] == "running",
            "{}: {report:#}",
            self.hosts[node].name()
        );
        let ended = self
            .ended
            .filter(|_| self.carried)
            .map(|ended| self.hosts[ended].name());
        let is_true = |finding: &&Value| {
            let about = finding["about"].as_str().unwrap_or_default();
            finding["check"] == "overlay-cut"
                && ended.is_some_and(|ended| about.split(' ').next() == Some(ended))
        };
        for finding in findings.iter().filter(|finding| !is_true(finding)) {
            let line = format!(
                "{}, {when}: {}: {} {}",
                self.hosts[node].name(),
                finding["check"],
                finding["what"],
                finding["evidence"]
            );
            if self.reported.insert(line.clone()) {
                println!("{line}");
            }
        }
        Ok(())
    }

    /// Records the findings of all nodes for the time of [`PAUSE`].
    fn watch(&mut self, when: &str) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < PAUSE {
            for node in 0..self.daemons.len() {
                until_ok("the doctor can be asked", || self.look(node, when))?;
            }
            // Keeps the doctor's own load small.
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    /// Ends the daemon of a node, by SIGTERM or by a kill, and starts it again. Records the findings of the other nodes during the restart.
    fn restart(&mut self, node: usize, kill: bool) -> Result<()> {
        let when = if kill {
            "after a kill"
        } else {
            "after a restart"
        };
        self.ended = Some(node);
        if kill {
            self.daemons[node].kill()?;
        } else {
            ensure!(
                self.daemons[node].terminate()?.success(),
                "{}",
                self.daemons[node].log_tail(20)
            );
        }
        self.daemons[node] = self.hosts[node].start_flanneld(&self.options)?;
        for other in (0..self.daemons.len()).filter(|other| *other != node) {
            until_ok("the doctor can be asked", || self.look(other, when))?;
        }
        self.daemons[node].wait_ready()?;
        self.watch(when)
    }

    /// Starts the fourth node's daemon.
    fn join(&mut self) -> Result<()> {
        self.ended = None;
        self.guest = Some(self.hosts[3].flanneld(&self.options)?);
        self.watch("after a node joined")
    }

    /// Ends the fourth node's daemon, and releases the node's lease.
    fn release(&mut self) -> Result<()> {
        let Some(mut guest) = self.guest.take() else {
            bail!("nobody joined")
        };
        self.ended = Some(3);
        let subnet = guest.subnet_env()?.subnet.context("no subnet")?.trunc();
        ensure!(guest.terminate()?.success(), "{}", guest.log_tail(20));
        let key = self
            .store
            .subnets()?
            .into_iter()
            .map(|(key, _)| key)
            .find(|key| key.contains(&subnet.network().to_string()))
            .context("no lease")?;
        let key = key.rsplit('/').next().context("no key")?.to_owned();
        let program = binaries::own("flannelctl")?.to_string_lossy().into_owned();
        let args = [
            vec!["release".to_owned(), key, "--force".into(), "--yes".into()],
            self.store.args(),
        ]
        .concat();
        let output = self.hosts[0].netns().output(&program, &args)?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.watch("after a node was released")
    }

    fn rounds(&mut self, end: Instant) -> Result<()> {
        self.watch("under load")?;
        for round in 0.. {
            if round > 0 && Instant::now() >= end {
                return Ok(());
            }
            self.restart(round % 3, false)?;
            self.join()?;
            self.restart((round + 1) % 3, true)?;
            self.release()?;
        }
        Ok(())
    }
}

/// Returns the path of a script that runs flanneld with a test folder in place of the machine's /etc/default and /etc/cni/net.d.
fn alone(files: &Path) -> Result<PathBuf> {
    std::fs::write(
        files.join("10-flannel.conflist"),
        r#"{"plugins":[{"type":"flannel"}]}"#,
    )?;
    let (wrapper, flanneld) = (files.join("flanneld"), binaries::own("flanneld")?);
    let mount = |place: &str| {
        format!(
            "mkdir -p {place}; mount --bind '{}' {place}\n",
            files.display()
        )
    };
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

/// Keeps all processors busy and runs streams between all pods until `stop`. Counts the bytes of the streams.
fn load<'scope, 'env>(
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

fn keeps_quiet(backend: &str, nftables: bool, dual: bool, time: Duration) -> Result<()> {
    let v6 = if dual {
        r#""EnableIPv6":true,"IPv6Network":"fd10:5::/48","#
    } else {
        ""
    };
    let net_conf = format!(
        r#"{{"Network":"10.5.0.0/16",{v6}"EnableNFTables":{nftables},"Backend":{{"Type":"{backend}"}}}}"#
    );
    Lab::run(&format!("quiet-{backend}"), |lab| {
        let mut cluster = Cluster::start(lab, &net_conf, backend == "udp")?;
        let pods = cluster
            .hosts
            .iter()
            .zip(&cluster.daemons)
            .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
            .collect::<Result<Vec<_>>>()?;
        until_ok("pods reach each other", || {
            PingMatrix::of(&pods)?.require_complete()
        })?;
        let (stop, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        let end = Instant::now() + time;
        std::thread::scope(|scope| {
            load(scope, &pods, &stop, &bytes);
            let outcome = cluster.rounds(end);
            stop.store(true, Relaxed);
            outcome
        })?;
        let bytes = bytes.load(Relaxed);
        println!(
            "{net_conf}: {} reports, {} findings, {} MB between pods",
            cluster.looks,
            cluster.reported.len(),
            bytes >> 20
        );
        ensure!(bytes > 0, "the links carried nothing");
        ensure!(
            cluster.reported.is_empty(),
            "{net_conf}: {:#?}",
            cluster.reported
        );
        Ok(())
    })
}

scenarios! { has_no_findings;
    #[ignore = "ten minutes: a part of `make soak`"]
    vxlan_under_load_has_no_findings => "vxlan",
    #[ignore = "ten minutes: a part of `make soak`"]
    udp_under_load_has_no_findings => "udp",
    #[ignore = "ten minutes: a part of `make soak`"]
    host_gw_under_load_has_no_findings => "host-gw",
}

/// Tests a backend with iptables rules and with nftables rules, each with one and two address families.
fn has_no_findings(backend: &str) -> Result<()> {
    for (nftables, dual) in [(false, false), (true, false), (false, true), (true, true)] {
        keeps_quiet(backend, nftables, dual, time() / 4)?;
    }
    Ok(())
}
