//! Packet rates of flannel-rs' engine, the kernel's vxlan, plain routes, and Go flannel if the environment names its binary. Each
//! run measures all datapaths alternately.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    Cable, Etcd, EtcdClient, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, PingOptions, Pod,
    Store, Switch, Uplink,
};
use serde_json::{Value, json};

use super::goals::{self, Loaded, Series};
use super::load::{
    Cpu, Programs, measure_sorted_round_trips, median_figure, run_tcp_streams, send_small_packets,
    sorted_quantile,
};

/// The largest share of processor time for other programs during a sample. Above it, the benchmark repeats the sample, at most twice.
const FOREIGN: f64 = 0.01;
const REPEATS: usize = 2;
/// Rates of small packets, in thousands per second, lowest first.
const LADDER: [u64; 12] = [50, 75, 100, 125, 150, 175, 200, 250, 300, 350, 400, 500];
/// After this many failed attempts, a rate is too high.
const TRIES: usize = 3;
/// With a smaller share of lost packets, a rate counts as lossless.
const NO_LOSS: f64 = 0.005;
/// Skipped if the kernel has no WireGuard.
const KERNEL_WIREGUARD: &str = "wireguard (kernel)";

/// A backend between two separate hosts.
struct Carrier {
    name: String,
    hosts: Vec<Host>,
    daemons: Vec<Flanneld>,
    pods: Vec<Pod>,
}

/// One figure per round.
#[derive(Clone, Default)]
struct Figures {
    tcp1: Vec<f64>,
    tcp4: Vec<f64>,
    cpu: Vec<f64>,
    daemons: Vec<f64>,
    foreign: f64,
    rate: Vec<f64>,
    small_cpu: Vec<f64>,
    idle: Vec<(f64, f64)>,
    loaded: Loaded,
}

/// Backends, number of rounds, and kinds of measurements.
#[derive(Clone)]
pub(crate) struct Plan {
    pub rounds: usize,
    pub time: Duration,
    pub cables: Vec<Cable>,
    /// Names of backends, or prefixes of them. An empty list selects all.
    pub only: Vec<String>,
    /// Print the daemons' metrics at the end.
    pub metrics: bool,
    pub streams_only: bool,
    /// Each round measures only TCP streams and the round trips during these.
    pub latency: bool,
    /// An earlier build of flanneld, for comparison with this one.
    pub before: Option<PathBuf>,
    /// Send small packets at rising rates, which takes a long time.
    pub ladder: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            rounds: 5,
            time: Duration::from_secs(2),
            cables: vec![Cable::Wire, Cable::Veth],
            only: Vec::new(),
            metrics: false,
            streams_only: false,
            latency: false,
            before: None,
            ladder: true,
        }
    }
}

impl Plan {
    /// An argument that has no value. False if the plan does not know it.
    pub(crate) fn apply_flag(&mut self, argument: &str) -> bool {
        match argument {
            "--metrics" => self.metrics = true,
            "--streams" => self.streams_only = true,
            "--latency" => self.latency = true,
            "--no-ladder" => self.ladder = false,
            _ => return false,
        }
        true
    }

    /// Backends and programs exist. The error names the wrong argument or environment variable.
    pub(crate) fn check_backends_and_files_exist(&self) -> Result<()> {
        if let Some(go) = go_flanneld() {
            ensure!(
                go.is_file(),
                "GO_FLANNELD={} is no file; it is the path of Go flannel's flanneld",
                go.display()
            );
        }
        if let Some(before) = &self.before {
            ensure!(
                before.is_file(),
                "--before={} is no file; it is the path of another build of flanneld",
                before.display()
            );
        }
        let names: Vec<String> = all_recipes().into_iter().map(|(name, ..)| name).collect();
        for only in &self.only {
            ensure!(
                names.iter().any(|name| name.starts_with(only.as_str())),
                "--only={only}: there are {}",
                names.join(", ")
            );
        }
        Ok(())
    }
}

/// The result is a section of docs/performance.md and a diagram of its figures (SVG).
pub(crate) fn measure_datapaths(plan: &Plan) -> Result<(String, String)> {
    let mut text = String::new();
    let mut bars = Vec::new();
    for cable in &plan.cables {
        let figures = measure_over_cable(plan, *cable)?;
        append_figures_table(&mut text, *cable, &figures);
        let series: Vec<Series<'_>> = figures
            .iter()
            .map(|(name, figures)| Series {
                name,
                rate: &figures.tcp1,
                processor: &figures.cpu,
                loaded: &figures.loaded,
            })
            .collect();
        goals::append_kernel_comparison(&mut text, *cable, &series);
        goals::append_loaded_round_trips(&mut text, *cable, &series);
        goals::append_build_comparison(&mut text, &series);
        bars.extend(
            figures
                .into_iter()
                .map(|(name, figures)| (cable.name(), name, median_figure(&figures.tcp1))),
        );
    }
    Ok((text, bar_chart_svg(&bars)))
}

/// The value of the environment variable `GO_FLANNELD`.
fn go_flanneld() -> Option<PathBuf> {
    std::env::var_os("GO_FLANNELD").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Name, configuration on each of the two nodes, mode of flannel-rs' engine, and another flanneld binary to run.
type Recipe = (String, [Value; 2], &'static str, Option<PathBuf>);

fn all_recipes() -> Vec<Recipe> {
    let same = |conf: Value| [conf.clone(), conf];
    let kernel = || json!({ "Type": "vxlan" });
    let ours = || json!({ "Type": "vxlan", "Mode": "userspace" });
    let mut all = vec![
        ("host-gw".to_owned(), same(json!({ "Type": "host-gw" })), "", None),
        ("vxlan (kernel)".to_owned(), same(kernel()), "", None),
        ("vxlan (userspace)".to_owned(), same(ours()), "offload", None),
        ("vxlan (userspace to kernel)".to_owned(), [ours(), kernel()], "offload", None),
        ("vxlan (kernel to userspace)".to_owned(), [kernel(), ours()], "offload", None),
        ("udp".to_owned(), same(json!({ "Type": "udp" })), "offload", None),
        ("udp (batches)".to_owned(), same(json!({ "Type": "udp" })), "mmsg", None),
        ("udp (plain)".to_owned(), same(json!({ "Type": "udp" })), "plain", None),
        (
            "wireguard (userspace)".to_owned(),
            same(json!({ "Type": "wireguard", "Implementation": "userspace" })),
            "offload",
            None,
        ),
        (
            KERNEL_WIREGUARD.to_owned(),
            same(json!({ "Type": "wireguard", "Implementation": "kernel" })),
            "",
            None,
        ),
    ];
    if let Some(go) = go_flanneld() {
        all.push(("udp (Go flannel)".to_owned(), same(json!({ "Type": "udp" })), "", Some(go)));
    }
    all
}

fn selected_recipes(plan: &Plan) -> Vec<Recipe> {
    let mut all = all_recipes();
    let named: Vec<String> = all.iter().map(|(name, ..)| name.clone()).collect();
    let wanted = |name: &str, only: &String| {
        if named.contains(only) { name == only } else { name.starts_with(only.as_str()) }
    };
    all.retain(|(name, ..)| {
        plan.only.is_empty() || plan.only.iter().any(|only| wanted(name, only))
    });
    let Some(before) = &plan.before else {
        return all;
    };
    // Measure each carrier directly before its earlier build, so that the machine is equally busy for both.
    all.into_iter()
        .flat_map(|(name, confs, mode, go)| {
            let ours = !mode.is_empty();
            let former = ours.then(|| {
                let name = format!("{name}{}", goals::BEFORE);
                (name, confs.clone(), mode, Some(before.clone()))
            });
            std::iter::once((name, confs, mode, go)).chain(former)
        })
        .collect()
}

/// The etcd with the leases of all measured backends, each with its own prefix of keys: Go flannel cannot keep leases in a directory. Hosts reach it
/// by an interface that carries no other packets.
struct Registry {
    lan: Switch,
    client: EtcdClient,
    _etcd: Etcd,
}

impl Registry {
    fn start_etcd(lab: &Lab) -> Result<Registry> {
        let lan = lab.create_switch("store")?;
        let host =
            lab.create_host("store", &[Uplink::new(&lan, "enp0s9").address("192.168.57.1/24")?])?;
        // The work for frequent heartbeats would count as foreign processor time, and a single member has no other member that needs them.
        let etcd = Etcd::start(
            &[&host],
            &EtcdOptions::default().arg("--heartbeat-interval=200").arg("--election-timeout=2000"),
        )?;
        Ok(Registry { lan, client: etcd.client_on_first_member()?, _etcd: etcd })
    }

    fn uplink(&self, carrier: usize, host: usize) -> Result<Uplink> {
        Uplink::new(&self.lan, "enp0s9")
            .address(&format!("192.168.57.{}/24", 10 + carrier * 2 + host))
    }
}

fn start_connected_carrier(
    lab: &Lab,
    registry: &Registry,
    number: usize,
    cable: Cable,
    (name, confs, mode, go): Recipe,
) -> Result<Carrier> {
    // A cable connects the two hosts directly: with a switch, the kernel would have to process every frame once more.
    let [first, second] = [0, 1].map(|index| {
        registry
            .uplink(number, index)
            .and_then(|uplink| lab.create_host(&format!("c{number}h{index}"), &[uplink]))
    });
    let hosts = [first?, second?];
    hosts[0].netns().run_ip_batch(&format!(
        "link add enp0s8 type veth peer name enp0s8 netns {}",
        hosts[1].netns().name()
    ))?;
    for (host, last) in hosts.iter().zip([101, 102]) {
        host.netns().run_ip_batch(&format!(
            "link set enp0s8 up\naddress add 192.168.56.{last}/24 dev enp0s8"
        ))?;
    }
    let mut carrier = Carrier { name, hosts: Vec::new(), daemons: Vec::new(), pods: Vec::new() };
    let store = Store::etcd(&registry.client).prefix(&format!("/carrier/{number}"));
    for (host, conf) in hosts.into_iter().zip(&confs) {
        // Both modes of vxlan publish the same data, so the two nodes may have different configurations of one network.
        store.configure(&json!({ "Network": "10.5.0.0/16", "Backend": conf }).to_string())?;
        cable.apply_to_uplink(&host)?;
        let mut options = FlanneldOptions::new(&store).iface("enp0s8");
        if !mode.is_empty() {
            options = options.env("FLANNELD_DATAPATH", mode);
        }
        if let Some(go) = &go {
            options = options.binary(go);
        }
        let daemon = host.start_flanneld_and_wait_ready(&options)?;
        carrier.pods.push(host.create_pod("p1", &daemon.subnet_env()?)?);
        carrier.daemons.push(daemon);
        carrier.hosts.push(host);
    }
    let [from, to] = carrier.pods.as_slice() else {
        return Ok(carrier);
    };
    let target = to.address()?;
    lab::until("an answer of the other pod", || {
        lab::ping_address(
            from.netns(),
            target,
            &PingOptions::default().timeout(Duration::from_millis(20)),
        )
        .is_ok_and(|answer| answer.is_some())
    })?;
    Ok(carrier)
}

fn measure_over_cable(plan: &Plan, cable: Cable) -> Result<Vec<(String, Figures)>> {
    let lab = Lab::create("bench")?;
    let registry = Registry::start_etcd(&lab)?;
    let mut recipes = selected_recipes(plan);
    if registry.lan.netns().run_ip_batch("link add wg0 type wireguard\nlink delete wg0").is_err() {
        recipes.retain(|(name, ..)| name != KERNEL_WIREGUARD);
    }
    ensure!(!recipes.is_empty(), "this kernel has no WireGuard");
    let carriers: Vec<Carrier> = recipes
        .into_iter()
        .enumerate()
        .map(|(number, what)| {
            let name = what.0.clone();
            start_connected_carrier(&lab, &registry, number, cable, what).context(name)
        })
        .collect::<Result<_>>()?;
    let mut all: BTreeMap<usize, Figures> = BTreeMap::new();
    for round in 0..plan.rounds {
        for (number, carrier) in carriers.iter().enumerate() {
            eprintln!("{} round {} of {}: {}", cable.name(), round + 1, plan.rounds, carrier.name);
            carrier
                .sample(plan, all.entry(number).or_default(), round)
                .with_context(|| carrier.name.clone())?;
        }
    }
    for carrier in carriers.iter().filter(|_| plan.metrics) {
        for daemon in &carrier.daemons {
            let (_, text) = daemon.get_health_endpoint("/metrics")?;
            let lines = text
                .lines()
                .filter(|line| line.starts_with("flannel_datapath_") && !line.ends_with(" 0"));
            eprintln!("{}:\n{}", carrier.name, lines.collect::<Vec<_>>().join("\n"));
        }
    }
    Ok(carriers
        .into_iter()
        .enumerate()
        .map(|(number, carrier)| (carrier.name, all.remove(&number).unwrap_or_default()))
        .collect())
}

impl Carrier {
    fn sample(&self, plan: &Plan, figures: &mut Figures, round: usize) -> Result<()> {
        let [from, to] = self.pods.as_slice() else {
            return Ok(());
        };
        let pids: Vec<u32> = self.daemons.iter().map(|daemon| daemon.pid()).collect();
        let mut used = Cpu::default();
        let mut flow = Default::default();
        for _ in 0..=REPEATS {
            let mut before = Cpu::default();
            // Processor time is measured from the start of the streams until they are counted.
            flow = run_tcp_streams(from, to, 1, plan.time, || {
                before = Cpu::now(&pids);
            })?;
            used = Cpu::now(&pids).since(&before);
            if used.foreign < FOREIGN * used.all {
                break;
            }
        }
        let gigabytes = flow.bytes as f64 / 1e9;
        figures.tcp1.push(flow.gigabits_per_second());
        // The processor time of other programs does not belong to this carrier.
        figures.cpu.push((used.all - used.foreign) / gigabytes);
        figures.daemons.push(used.daemons / gigabytes);
        figures.foreign = figures.foreign.max(used.foreign / used.all);
        let beside = |streams, programs| {
            round_trip_quantiles_during_streams(from, to, streams, programs, plan.time)
        };
        if plan.latency {
            figures.loaded.one.push(beside(1, Programs::Ordinary)?);
            figures.loaded.four.push(beside(4, Programs::Ordinary)?);
            figures.loaded.path.push(beside(1, Programs::RealTime)?);
            return Ok(());
        }
        // The remaining measurements take long, so only every third round makes them.
        if plan.streams_only || !round.is_multiple_of(3) {
            return Ok(());
        }
        figures.tcp4.push(run_tcp_streams(from, to, 4, plan.time, || ())?.gigabits_per_second());
        let idle = measure_sorted_round_trips(from, to, plan.time / 2, Programs::Ordinary)?;
        figures.idle.push((sorted_quantile(&idle, 0.5), sorted_quantile(&idle, 0.99)));
        figures.loaded.one.push(beside(1, Programs::Ordinary)?);
        if !plan.ladder {
            return Ok(());
        }
        let (mut best, mut cost) = (0, f64::NAN);
        for rate in LADDER {
            // The machine may pause for longer than any queue can buffer. The carrier is not to blame for that loss, so try again.
            let Some(taken) = (0..TRIES).find_map(|_| {
                lossless_processor_time_per_packet(from, to, rate * 1000, &pids).ok().flatten()
            }) else {
                break;
            };
            (best, cost) = (rate, taken);
        }
        figures.rate.push(best as f64);
        figures.small_cpu.push(cost);
        Ok(())
    }
}

/// Round trips during `streams` TCP streams: median and 99th percentile, in microseconds.
fn round_trip_quantiles_during_streams(
    from: &Pod,
    to: &Pod,
    streams: usize,
    programs: Programs,
    time: Duration,
) -> Result<(f64, f64)> {
    let mut times = Ok(Vec::new());
    run_tcp_streams(from, to, streams, time, || {
        times = measure_sorted_round_trips(from, to, time * 9 / 10, programs);
    })?;
    let times = times?;
    Ok((sorted_quantile(&times, 0.5), sorted_quantile(&times, 0.99)))
}

/// Sends at a fixed rate. The result is the processor time per packet in microseconds, or `None` if packets were lost.
fn lossless_processor_time_per_packet(
    from: &Pod,
    to: &Pod,
    rate: u64,
    pids: &[u32],
) -> Result<Option<f64>> {
    let before = Cpu::now(pids);
    let passed = send_small_packets(from, to, rate, Duration::from_secs(1))?;
    let used = Cpu::now(pids).since(&before);
    Ok((passed.loss() < NO_LOSS).then(|| used.all * 1e6 / passed.received as f64))
}

fn format_figure(figure: f64) -> String {
    match figure {
        figure if figure.is_nan() => "-".to_owned(),
        figure if figure >= 100.0 => format!("{figure:.0}"),
        figure if figure >= 10.0 => format!("{figure:.1}"),
        figure => format!("{figure:.2}"),
    }
}

fn append_figures_table(out: &mut String, cable: Cable, all: &[(String, Figures)]) {
    let of = |name: &str| {
        all.iter()
            .find(|(other, _)| other == name)
            .map_or(f64::NAN, |(_, figures)| median_figure(&figures.tcp1))
    };
    let (kernel, plain, go) = (of("vxlan (kernel)"), of("udp (plain)"), of("udp (Go flannel)"));
    let what = match cable {
        Cable::Wire => "`wire`: every frame crosses by itself, as on a NIC",
        Cable::Veth => "`veth`: GSO packets cross unsegmented, as between hosts of one machine",
    };
    let _ = writeln!(out, "### {what}\n");
    out.push_str("| | TCP 1, Gb/s (worst-best) | of kernel vxlan | of plain udp | of Go's udp | TCP 4, Gb/s | CPU s/GB, all (daemons) | 64 B, kpps without loss | us CPU each | RTT idle p50/p99, us | RTT under TCP p50/p99, us | under TCP 4 | under TCP, real-time programs | foreign CPU |\n");
    out.push_str("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (name, figures) in all {
        let tcp1 = median_figure(&figures.tcp1);
        let (least, most) =
            figures.tcp1.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), figure| {
                (least.min(*figure), most.max(*figure))
            });
        let pair = |pairs: &[(f64, f64)]| {
            let halves: (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
            format!(
                "{}/{}",
                format_figure(median_figure(&halves.0)),
                format_figure(median_figure(&halves.1))
            )
        };
        let _ = writeln!(
            out,
            "| {name} | {} ({}-{}) | {} | {} | {} | {} | {} ({}) | {} | {} | {} | {} | {} | {} | {}% |",
            format_figure(tcp1),
            format_figure(least),
            format_figure(most),
            format_figure(tcp1 / kernel),
            format_figure(tcp1 / plain),
            format_figure(tcp1 / go),
            format_figure(median_figure(&figures.tcp4)),
            format_figure(median_figure(&figures.cpu)),
            format_figure(median_figure(&figures.daemons)),
            format_figure(median_figure(&figures.rate)),
            format_figure(median_figure(&figures.small_cpu)),
            pair(&figures.idle),
            pair(&figures.loaded.one),
            pair(&figures.loaded.four),
            pair(&figures.loaded.path),
            format_figure(figures.foreign * 100.0),
        );
    }
    out.push('\n');
}

/// An SVG bar chart of the rates of one stream, grouped by cable.
fn bar_chart_svg(bars: &[(&str, String, f64)]) -> String {
    const ROW: usize = 24;
    let most = bars.iter().map(|(_, _, rate)| *rate).fold(1.0, f64::max);
    let height = (bars.len() + 3) * ROW;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"760\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"20\" font-weight=\"bold\" fill=\"#1a1a1a\">One TCP stream between pods of two hosts, Gb/s</text>\n"
    );
    let (mut y, mut group) = (30, "");
    for (cable, name, rate) in bars {
        if *cable != group {
            group = cable;
            let _ =
                writeln!(out, "<text x=\"12\" y=\"{}\" fill=\"#555555\">{cable}</text>", y + 17);
            y += ROW;
        }
        let width = 420.0 * rate / most;
        let color = if name.starts_with("udp") {
            "#d9660f"
        } else if name.starts_with("wireguard") {
            "#3d8b57"
        } else if name.contains("userspace") {
            "#2a78c2"
        } else {
            "#8a8f98"
        };
        let _ = writeln!(
            out,
            "<text x=\"230\" y=\"{}\" text-anchor=\"end\" fill=\"#1a1a1a\">{name}</text>",
            y + 15
        );
        let _ = writeln!(
            out,
            "<rect x=\"240\" y=\"{}\" width=\"{width:.1}\" height=\"16\" rx=\"2\" fill=\"{color}\"/>",
            y + 2
        );
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" fill=\"#1a1a1a\">{}</text>",
            246.0 + width,
            y + 15,
            format_figure(*rate)
        );
        y += ROW;
    }
    out.push_str("</svg>\n");
    out
}
