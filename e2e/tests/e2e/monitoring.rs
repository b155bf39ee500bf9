//! Tests of metrics, alerts and the dashboard with Prometheus' own programs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use lab::{Bed, Lab, binaries, http_get, succeeded, texts, until_ok};
use regex::Regex;
use serde_json::Value;

/// Port of Prometheus on the first host.
const PORT: u16 = 9090;
/// Network configuration with the udp backend, because the userspace datapath has additional metrics.
const NET_CONF: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"udp"}}"#;
/// Metrics that are absent on a healthy node with udp and leases in a directory, with the reasons for their absence.
const ABSENT: [(&str, &str); 9] = [
    (
        "flannel_lease_age_seconds",
        "leases in a directory are not renewed",
    ),
    (
        "flannel_lease_expiry_seconds",
        "leases in a directory do not expire",
    ),
    ("flannel_leases_refused", "no lease is refused"),
    ("flannel_problems", "the nodes are ready"),
    ("flannel_wireguard_peers", "only with wireguard"),
    ("flannel_datapath_handshakes_total", "only with wireguard"),
    (
        "flannel_datapath_dropped_packets_total",
        "no packet is dropped",
    ),
    (
        "flannel_kernel_repaired_objects_total",
        "no object is repaired",
    ),
    ("flannel_checks_unknown", "not in every environment"),
];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Runs promtool. Returns an error with promtool's output if promtool finds a problem.
fn promtool(args: &[&str], input: &str) -> Result<()> {
    let mut child = Command::new(binaries::prometheus("promtool")?)
        .args(args)
        .current_dir(repository("conf/prometheus"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .context("no input")?
        .write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    succeeded(&format!("promtool {}", args.join(" ")), &output)?;
    // `check metrics` also prints what it advises.
    ensure!(
        args != ["check", "metrics"] || output.stderr.is_empty(),
        "{}",
        texts(&output)
    );
    Ok(())
}

#[test]
fn promtool_accepts_rules_and_each_alert_fires() -> Result<()> {
    promtool(&["check", "rules", "--lint-fatal", "flannel.rules.yml"], "")?;
    promtool(&["check", "config", "prometheus.yml"], "")?;
    promtool(&["test", "rules", "flannel.rules.test.yml"], "")?;
    // A test for each alert: one that was added without a test would not be noticed.
    let read = |name: &str| std::fs::read_to_string(repository("conf/prometheus").join(name));
    let (rules, tests) = (read("flannel.rules.yml")?, read("flannel.rules.test.yml")?);
    let alert = Regex::new(r"(?m)^\s*- alert: (\w+)$")?;
    let alerts: BTreeSet<&str> = alert
        .captures_iter(&rules)
        .filter_map(|found| Some(found.get(1)?.as_str()))
        .collect();
    ensure!(alerts.len() > 10, "{alerts:?}");
    for name in alerts {
        let fires = format!("alertname: {name}\n");
        let (with, without) = tests
            .match_indices(&fires)
            .map(|(at, _)| tests[at + fires.len()..].lines().next().unwrap_or_default())
            .fold((0, 0), |(with, without), next| {
                if next.trim() == "exp_alerts: []" {
                    (with, without + 1)
                } else {
                    (with + 1, without)
                }
            });
        ensure!(
            with > 0 && without > 0,
            "{name}: {with} cases fire, {without} stay silent"
        );
    }
    Ok(())
}

/// Prometheus in a host's network namespace.
struct Prometheus<'a> {
    child: Child,
    bed: &'a Bed,
}

impl<'a> Prometheus<'a> {
    fn start(lab: &Lab, bed: &'a Bed) -> Result<Self> {
        let folder = lab.folder("prometheus")?;
        let targets: Vec<String> = bed
            .hosts
            .iter()
            .map(|host| Ok(format!("\"{}:8471\"", host.v4()?)))
            .collect::<Result<_>>()?;
        let example = std::fs::read_to_string(repository("conf/prometheus/prometheus.yml"))?;
        let listed = Regex::new(r"(?m)^  - targets:\n(    - .*\n)+")?;
        ensure!(listed.is_match(&example), "the example has no targets");
        let config = listed
            .replace(&example, format!("  - targets: [{}]\n", targets.join(", ")))
            .replace("30s", "1s");
        std::fs::write(folder.join("prometheus.yml"), config)?;
        let rules = std::fs::read(repository("conf/prometheus/flannel.rules.yml"))?;
        std::fs::write(folder.join("flannel.rules.yml"), rules)?;
        let program = binaries::prometheus("prometheus")?;
        let log = std::fs::File::create(folder.join("log"))?;
        let child = bed.hosts[0].netns().run(|| {
            Command::new(program)
                .arg(format!(
                    "--config.file={}",
                    folder.join("prometheus.yml").display()
                ))
                .arg(format!(
                    "--storage.tsdb.path={}",
                    folder.join("data").display()
                ))
                .arg(format!("--web.listen-address=127.0.0.1:{PORT}"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
        })??;
        Ok(Self { child, bed })
    }

    /// Returns the number of series in the result of a query.
    fn series(&self, query: &str) -> Result<usize> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = format!("/api/v1/query?query={encoded}");
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let (_, text) = http_get(self.bed.hosts[0].netns(), here, &path)?;
        let answer: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        ensure!(answer["status"] == "success", "{query}: {text}");
        Ok(answer["data"]["result"].as_array().map_or(0, Vec::len))
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the dashboard's queries, with values in place of the dashboard's variables.
fn dashboard() -> Result<BTreeMap<String, String>> {
    fn collect(value: &Value, title: &str, found: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(map) => {
                let own = map.get("title").and_then(Value::as_str).unwrap_or(title);
                if let Some(query) = map.get("expr").and_then(Value::as_str) {
                    found.insert(query.to_owned(), own.to_owned());
                }
                map.values().for_each(|value| collect(value, own, found));
            }
            Value::Array(all) => all.iter().for_each(|value| collect(value, title, found)),
            _ => {}
        }
    }
    let text = std::fs::read_to_string(repository("conf/grafana/flannel.json"))?;
    let mut found = BTreeMap::new();
    collect(&serde_json::from_str(&text)?, "", &mut found);
    Ok(found
        .into_iter()
        .map(|(query, title)| {
            let query = query
                .replace("$__rate_interval", "30s")
                .replace("$__interval", "30s")
                .replace("$__range", "1m")
                .replace("${job}", "flannel")
                .replace("$job", "flannel");
            let variable = Regex::new(r"\$\{?\w+(:\w+)?\}?")
                .map(|name| name.replace_all(&query, ".*").into_owned());
            (variable.unwrap_or(query), title)
        })
        .collect())
}

/// Returns the names of metrics in a query.
fn metrics(query: &str) -> Result<BTreeSet<String>> {
    // The name of a recorded series has a colon.
    let name = Regex::new(r"\b(?:flannel|process)_[a-z0-9_:]+")?;
    Ok(name
        .find_iter(query)
        .map(|found| found.as_str().to_owned())
        .filter(|name| !name.contains(':'))
        .collect())
}

#[test]
fn prometheus_finds_every_series_of_alerts_and_dashboard() -> Result<()> {
    Lab::run("prometheus", |lab| {
        let bed = Bed::start(lab, 3, NET_CONF, |_, options| {
            options
                .arg("--healthz-ip=0.0.0.0")
                .arg("--metrics-per-peer")
                .arg("--probe-pods")
        })?;
        bed.hosts[2]
            .netns()
            .sh("nft 'table ip broken { chain in { type filter hook input priority -200; udp dport 8285 drop; }; }'")?;
        until_ok("a finding", || {
            let found = bed.daemons[0].findings("overlay-cut")?;
            ensure!(found.is_some_and(|count| count > 0), "{found:?}");
            Ok(())
        })?;
        for daemon in &bed.daemons {
            let (_, text) = daemon.get("/metrics")?;
            promtool(&["check", "metrics"], &text)?;
        }
        let prometheus = Prometheus::start(lab, &bed)?;
        until_ok("three targets are scraped twice", || {
            let up = prometheus.series("count_over_time((up == 1)[1m:1s]) > 5")?;
            ensure!(up == 3, "{up} targets");
            Ok(())
        })?;
        let rules = std::fs::read_to_string(repository("conf/prometheus/flannel.rules.yml"))?;
        let dashboard = dashboard()?;
        ensure!(dashboard.len() > 20, "{} queries", dashboard.len());
        let mut names = metrics(&rules)?;
        for query in dashboard.keys() {
            names.extend(metrics(query)?);
        }
        let absent = |name: &str| ABSENT.iter().any(|(known, _)| *known == name);
        let mut missing = Vec::new();
        for name in names.iter().filter(|name| !absent(name)) {
            if prometheus.series(&format!("{{__name__=\"{name}\"}}"))? == 0 {
                missing.push(name.clone());
            }
        }
        ensure!(missing.is_empty(), "no series: {missing:?}");
        for (query, title) in &dashboard {
            // A query about an absent metric, or one that filters, may be empty. Prometheus has to accept it.
            let found = prometheus.series(query).with_context(|| title.clone())?;
            let may_be_empty =
                metrics(query)?.iter().any(|name| absent(name)) || query.contains(" > ");
            ensure!(found > 0 || may_be_empty, "{title}: {query} is empty");
        }
        // The fault is an alert as soon as it has lasted.
        ensure!(
            prometheus.series("ALERTS{alertname=\"FlannelPathBroken\"}")? > 0,
            "no alert is pending"
        );
        Ok(())
    })
}
