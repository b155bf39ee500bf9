//! Metrics, alerts and the dashboard with Prometheus' own programs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use lab::{Host, Scene, binaries, http_get, require_success, stdout_and_stderr, until_ok};
use regex::Regex;
use serde_json::Value;

/// Of Prometheus, on the first host.
const PORT: u16 = 9090;
/// On a healthy node with udp and leases in a directory.
const ABSENT: [&str; 9] = [
    // Leases in a directory neither expire nor are they renewed.
    "flannel_lease_age_seconds",
    "flannel_lease_expiry_seconds",
    "flannel_leases_refused",
    "flannel_problems",
    // Only with wireguard.
    "flannel_wireguard_peers",
    "flannel_datapath_handshakes_total",
    "flannel_datapath_dropped_packets_total",
    "flannel_kernel_repaired_objects_total",
    "flannel_checks_unknown",
];

fn repository_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The error contains promtool's output.
fn run_promtool(args: &[&str], input: &str) -> Result<()> {
    let mut child = Command::new(binaries::prometheus_program("promtool")?)
        .args(args)
        .current_dir(repository_path("conf/prometheus"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("no input")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    require_success(&format!("promtool {}", args.join(" ")), &output)?;
    // `check metrics` also prints what it advises.
    ensure!(
        args != ["check", "metrics"] || output.stderr.is_empty(),
        "{}",
        stdout_and_stderr(&output)
    );
    Ok(())
}

#[test]
fn promtool_accepts_rules_and_each_alert_fires() -> Result<()> {
    run_promtool(&["check", "rules", "--lint-fatal", "flannel.rules.yml"], "")?;
    run_promtool(&["check", "config", "prometheus.yml"], "")?;
    run_promtool(&["test", "rules", "flannel.rules.test.yml"], "")?;
    // A test for each alert: one that was added without a test would not be noticed.
    let read = |name: &str| std::fs::read_to_string(repository_path("conf/prometheus").join(name));
    let (rules, tests) = (read("flannel.rules.yml")?, read("flannel.rules.test.yml")?);
    let alert = Regex::new(r"(?m)^\s*- alert: (\w+)$")?;
    let alerts: BTreeSet<&str> =
        alert.captures_iter(&rules).filter_map(|found| Some(found.get(1)?.as_str())).collect();
    ensure!(alerts.len() > 10, "{alerts:?}");
    for name in alerts {
        let fires = format!("alertname: {name}\n");
        let cases: Vec<&str> = tests.split(&fires).skip(1).collect();
        let silent = |case: &&&str| case.trim_start().starts_with("exp_alerts: []");
        let quiet = cases.iter().filter(silent).count();
        ensure!(
            quiet > 0 && quiet < cases.len(),
            "{name}: {quiet} of {} cases are silent",
            cases.len()
        );
    }
    Ok(())
}

/// In the network namespace of a scene's first host.
struct Prometheus<'a> {
    child: Child,
    host: &'a Host,
}

impl<'a> Prometheus<'a> {
    fn start(s: &'a Scene<'_>) -> Result<Self> {
        let folder = s.lab.ensure_folder("prometheus")?;
        let targets = s.nodes.iter().map(|node| Ok(format!("\"{}:8471\"", node.v4()?)));
        let targets = targets.collect::<Result<Vec<_>>>()?.join(", ");
        let example = std::fs::read_to_string(repository_path("conf/prometheus/prometheus.yml"))?;
        let listed = Regex::new(r"(?m)^  - targets:\n(    - .*\n)+")?;
        ensure!(listed.is_match(&example), "the example has no targets");
        let config =
            listed.replace(&example, format!("  - targets: [{targets}]\n")).replace("30s", "1s");
        std::fs::write(folder.join("prometheus.yml"), config)?;
        let rules = repository_path("conf/prometheus/flannel.rules.yml");
        std::fs::copy(rules, folder.join("flannel.rules.yml"))?;
        let program = binaries::prometheus_program("prometheus")?;
        let host: &Host = &s[0];
        let child = host.netns().run(|| {
            Command::new(program)
                .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
                .arg(format!("--web.listen-address=127.0.0.1:{PORT}"))
                .current_dir(&folder)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        })??;
        Ok(Self { child, host })
    }

    /// The number of series in the result.
    fn count_series(&self, query: &str) -> Result<usize> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = format!("/api/v1/query?query={encoded}");
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let (_, text) = http_get(self.host.netns(), here, &path)?;
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

/// Queries, with values in place of the dashboard's variables.
fn dashboard_queries() -> Result<BTreeMap<String, String>> {
    fn collect_panel_queries(value: &Value, title: &str, found: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(map) => {
                let own = map.get("title").and_then(Value::as_str).unwrap_or(title);
                if let Some(query) = map.get("expr").and_then(Value::as_str) {
                    found.insert(query.to_owned(), own.to_owned());
                }
                map.values().for_each(|value| collect_panel_queries(value, own, found));
            }
            Value::Array(all) => {
                all.iter().for_each(|value| collect_panel_queries(value, title, found));
            }
            _ => {}
        }
    }
    let text = std::fs::read_to_string(repository_path("conf/grafana/flannel.json"))?;
    let mut found = BTreeMap::new();
    collect_panel_queries(&serde_json::from_str(&text)?, "", &mut found);
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

/// Their names in a query.
fn metric_names_in_query(query: &str) -> BTreeSet<String> {
    // The name of a recorded series has a colon.
    let name = Regex::new(r"\b(?:flannel|process)_[a-z0-9_:]+").unwrap();
    let found = name.find_iter(query).map(|found| found.as_str().to_owned());
    found.filter(|name| !name.contains(':')).collect()
}

#[test]
fn prometheus_finds_every_series_of_alerts_and_dashboard() -> Result<()> {
    let args = ["--healthz-ip=0.0.0.0", "--metrics-per-peer", "--probe-pods"];
    // The userspace datapath has additional metrics.
    let scene = Scene::with_title("prometheus")
        .nodes(3)
        .net(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"udp"}}"#);
    let scene = args.into_iter().fold(scene, |scene, arg| scene.daemon_arg(arg));
    scene.run(|s| {
        s[2].sh("nft 'table ip broken { chain in { type filter hook input priority -200; udp dport 8285 drop; }; }'")?;
        until_ok("a finding", || {
            let found = s[0].daemon()?.findings("overlay-cut")?;
            ensure!(found.is_some_and(|count| count > 0), "{found:?}");
            Ok(())
        })?;
        s.check_each_node(|node| run_promtool(&["check", "metrics"], &node.get_health_endpoint("/metrics")?.1))?;
        let prometheus = Prometheus::start(s)?;
        // A fault that lasts is an alert.
        for (query, wanted) in [("count_over_time((up == 1)[1m:1s]) > 5", 3), ("ALERTS{alertname=\"FlannelPathBroken\"} > 0", 1)] {
            until_ok(query, || {
                let found = prometheus.count_series(query)?;
                ensure!(found >= wanted, "{found} series");
                Ok(())
            })?;
        }
        let rules = std::fs::read_to_string(repository_path("conf/prometheus/flannel.rules.yml"))?;
        let dashboard = dashboard_queries()?;
        ensure!(dashboard.len() > 20, "{} queries", dashboard.len());
        let all: Vec<&String> = std::iter::once(&rules).chain(dashboard.keys()).collect();
        for name in all.into_iter().flat_map(|query| metric_names_in_query(query)) {
            let found = prometheus.count_series(&format!("{{__name__=\"{name}\"}}"))?;
            ensure!(found > 0 || ABSENT.contains(&&*name), "no series: {name}");
        }
        for (query, title) in &dashboard {
            // A query about an absent metric, or one that filters, may be empty. Prometheus has to accept it.
            let found = prometheus.count_series(query).with_context(|| title.clone())?;
            let may_be_empty = metric_names_in_query(query).iter().any(|name| ABSENT.contains(&&**name)) || query.contains(" > ");
            ensure!(found > 0 || may_be_empty, "{title}: {query} is empty");
        }
        Ok(())
    })
}
