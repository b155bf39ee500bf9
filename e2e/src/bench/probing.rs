//! Memory and processor time of probes to a thousand peers, and how soon nodes detect that a node is cut off.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use lab::{Flanneld, Host, Lab, Testbed, Uplink, binaries};

use crate::answers;
use crate::scale::{Fleet, resident_memory_and_peak, stop_daemon_without_errors, sum_metrics};
use crate::table::Table;

pub(crate) const PEERS: u32 = 1000;
/// Each one measures a daemon once without probes and once with them.
const ROUNDS: usize = 4;
/// Between the daemon's readiness and the measurement.
const SETTLED: Duration = Duration::from_secs(20);
const WINDOW: Duration = Duration::from_secs(40);
/// With an open status page. In 100 s, the node requests each peer's report once.
const PAGE_WINDOW: Duration = Duration::from_secs(100);
/// How often the benchmark disconnects a node.
const CUTS: usize = 5;
const DEADLINE: Duration = Duration::from_secs(120);
const THREE_NODES: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// The time of all threads, in seconds, from schedstat: /proc/PID/stat has a resolution of only 10 ms.
pub(crate) fn processor_seconds(daemon: &Flanneld) -> Result<f64> {
    let mut sum = 0.0;
    for task in std::fs::read_dir(format!("/proc/{}/task", daemon.pid()))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        sum += text.split_whitespace().next().context("an empty schedstat")?.parse::<f64>()? / 1e9;
    }
    Ok(sum)
}

/// What a daemon uses: memory in MiB, and shares of a processor in percent.
struct ResourceUse {
    memory: f64,
    rest: f64,
    /// While a status page is open.
    page: f64,
    /// After all peers stop replying.
    silence: f64,
}

/// The share of a processor, in percent.
fn measure_processor_percent(daemon: &Flanneld, window: Duration) -> Result<f64> {
    let (start, before) = (Instant::now(), processor_seconds(daemon)?);
    std::thread::sleep(window);
    Ok((processor_seconds(daemon)? - before) / start.elapsed().as_secs_f64() * 100.0)
}

/// While a status page is open. Each response contains the whole document, even if it has not changed.
fn measure_percent_with_open_page(daemon: &Flanneld) -> Result<f64> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                // The pause of the page.
                std::thread::sleep(Duration::from_secs(2));
                let _ = daemon.get_status_api("/api/v1/view");
            }
        });
        let share = measure_processor_percent(daemon, PAGE_WINDOW);
        ended.store(true, Relaxed);
        share
    })
}

/// Measures first while all peers reply and then while none does.
fn measure_daemon_usage(fleet: &Fleet, peers: &Host, probes: bool) -> Result<ResourceUse> {
    let options =
        if probes { fleet.options.clone() } else { fleet.options.clone().arg("--probe-port=0") };
    let mut daemon = fleet.node.start_flanneld(&options)?;
    daemon.wait_ready()?;
    std::thread::sleep(SETTLED);
    let rest = measure_processor_percent(&daemon, WINDOW)?;
    let (resident, _) = resident_memory_and_peak(&daemon)?;
    let page = if probes { measure_percent_with_open_page(&daemon)? } else { rest };
    if probes {
        let (sent, answers) = (
            sum_metrics(&daemon, "flannel_probe_sent_total")?,
            sum_metrics(&daemon, "flannel_probe_answered_total")?,
        );
        eprintln!(
            "  {sent} questions sent, {answers} answers, {resident:.1} MiB, {rest:.3} %, with a page {page:.3} %"
        );
        let (_, text) = daemon.get_health_endpoint("/metrics")?;
        let peers = text.lines().filter(|line| line.starts_with("flannel_probe_peers{"));
        // Some peers are not probed yet, and on a busy machine some are slow.
        let harmed = peers.filter(|line| {
            !["well", "slow", "unknown"].iter().any(|state| line.contains(&format!("\"{state}\"")))
        });
        let harmed: Vec<&str> = harmed.filter(|line| !line.ends_with(" 0")).collect();
        ensure!(harmed.is_empty(), "peers are not well: {harmed:?}");
    } else {
        eprintln!("  without probes: {resident:.1} MiB, {rest:.3} %");
    }
    peers.block_packets("enp0s8")?;
    let silence = measure_processor_percent(&daemon, WINDOW)?;
    if probes {
        let cut = sum_metrics(&daemon, "flannel_probe_peers{state=\"cut-off\"}")?;
        eprintln!("  {cut} peers are cut off, {silence:.3} %");
        ensure!(cut as u32 == PEERS, "a fault of all is known of {cut} peers alone");
    }
    peers.unblock_packets("enp0s8")?;
    stop_daemon_without_errors(daemon)?;
    Ok(ResourceUse { memory: resident, rest, page, silence })
}

pub(crate) fn measure_probe_cost_and_detection(table: &mut Table) -> Result<()> {
    measure_cut_detection(table)?;
    let fleet = Fleet::build_with_vxlan_leases(PEERS)?;
    let peers = fleet.lab.create_host("peers", &[Uplink::enp0s8(&fleet.lan, 50)?])?;
    // One host receives the packets to all peers.
    fleet.node.netns().run_ip_batch(&format!("route add 198.18.0.0/15 via {}", peers.v4()?))?;
    peers.netns().run_ip_batch("route add local 198.18.0.0/15 dev lo")?;
    let (ended, answered, node) = (AtomicBool::new(false), AtomicU64::new(0), fleet.node.v4()?);
    let (mut memory, mut shares, mut silence) = (Vec::new(), Vec::new(), Vec::new());
    let mut pages = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        let serving =
            scope.spawn(|| answers::answer_and_send_probes(&peers, node, &ended, &answered));
        let outcome = (0..ROUNDS).try_for_each(|_| -> Result<()> {
            let (without, with) = (
                measure_daemon_usage(&fleet, &peers, false)?,
                measure_daemon_usage(&fleet, &peers, true)?,
            );
            memory.push(with.memory - without.memory);
            shares.push(with.rest - without.rest);
            pages.push(with.page - with.rest);
            silence.push(with.silence - without.silence);
            Ok(())
        });
        ended.store(true, Relaxed);
        let served = serving.join().map_err(|_| anyhow!("the peers panicked"))?;
        outcome.and(served)
    })?;
    ensure!(answered.load(Relaxed) > 100, "the peers were asked {answered:?} times");
    table.add_figures_row(
        &format!("{PEERS} peers at rest: additional memory compared with --probe-port=0"),
        memory,
        "MiB",
        "2 MiB",
        "-",
    );
    table.add_figures_row(
        &format!(
            "{PEERS} peers at rest: additional share of a processor compared with --probe-port=0"
        ),
        shares,
        "%",
        "0.1 %",
        "-",
    );
    table.add_figures_row(
        &format!(
            "{PEERS} peers, a status page is open: additional share of a processor compared with no page"
        ),
        pages,
        "%",
        "0.2 %",
        "-",
    );
    table.add_figures_row(
        &format!("{PEERS} peers fall silent: additional share of a processor in the first 40 seconds, compared with --probe-port=0"),
        silence,
        "%",
        "1 %",
        "-",
    );
    Ok(())
}

/// Repeatedly disconnects one of three nodes, and measures how soon the nodes report the fault and the recovery.
fn measure_cut_detection(table: &mut Table) -> Result<()> {
    let lab = Lab::create("bench-probing")?;
    let bed = Testbed::start_with_connected_pods(&lab, 3, THREE_NODES, |_, options| options)?;
    let host = bed.hosts.get(2).context("a third host")?;
    let (mut others, mut itself, mut status, mut recovered) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut is_well = || all_peers_well(&bed);
    wait_for_condition(Instant::now(), "all are well", &mut is_well)?;
    for cut in 0..CUTS {
        // Varying times hit different moments of a probe cycle.
        std::thread::sleep(Duration::from_millis(6000 + 1100 * cut as u64));
        let start = Instant::now();
        host.block_packets("enp0s8")?;
        let times = wait_cut_off_reports(&bed, start)?;
        for (list, time) in [&mut others, &mut status, &mut itself].into_iter().zip(times) {
            list.extend(time);
        }
        let start = Instant::now();
        host.unblock_packets("enp0s8")?;
        recovered.push(wait_for_condition(start, "all are well again", &mut is_well)?);
    }
    for (what, times) in [
        ("one node is cut off: time until both other nodes report the fault", &others),
        ("one node is cut off: time until that node reports the fault", &itself),
        (
            "one node is cut off: time until `flannelctl status` on both other nodes exits with 3",
            &status,
        ),
        (
            "the node is connected again: time until all nodes report all peers as `well`",
            &recovered,
        ),
    ] {
        table.add_times_row(&format!("3 nodes, {what}"), times, "10000 ms", "never");
    }
    Ok(())
}

fn peers_in(bed: &Testbed, node: usize, state: &str) -> Result<f64> {
    sum_metrics(
        bed.daemons.get(node).context("a daemon")?,
        &format!("flannel_probe_peers{{state=\"{state}\"}}"),
    )
}

fn all_peers_well(bed: &Testbed) -> Result<bool> {
    let well = (0..3).map(|node| peers_in(bed, node, "well")).sum::<Result<f64>>()?;
    Ok(well == 6.0)
}

/// Exit code.
fn flannelctl_status_exit_code(bed: &Testbed, node: usize) -> Result<Option<i32>> {
    let program = binaries::flannel_binary("flannelctl")?.to_string_lossy().into_owned();
    let (host, daemon) = bed.hosts.get(node).zip(bed.daemons.get(node)).context("a node")?;
    let file = format!("--subnet-file={}", daemon.subnet_file().display());
    Ok(host.netns().output(&program, &["status".to_owned(), file])?.status.code())
}

/// When three reports say that a node is cut off: the connected nodes' metrics, their `flannelctl status`, and the metrics of the cut-off node.
///
/// One loop polls for all three, so that waiting for one does not falsify the time of another.
fn wait_cut_off_reports(bed: &Testbed, start: Instant) -> Result<[Option<Duration>; 3]> {
    let mut times: [Option<Duration>; 3] = [None; 3];
    wait_for_condition(start, "all know it", &mut || {
        let know = peers_in(bed, 0, "cut-off")? == 1.0 && peers_in(bed, 1, "cut-off")? == 1.0;
        let holds = [
            know,
            know && flannelctl_status_exit_code(bed, 0)? == Some(3)
                && flannelctl_status_exit_code(bed, 1)? == Some(3),
            peers_in(bed, 2, "cut-off")? == 2.0,
        ];
        for (time, _) in times.iter_mut().zip(holds).filter(|(_, holds)| *holds) {
            time.get_or_insert(start.elapsed());
        }
        Ok(times.iter().all(Option::is_some))
    })?;
    Ok(times)
}

/// The result is the time since `start`.
fn wait_for_condition(
    start: Instant,
    what: &str,
    holds: &mut dyn FnMut() -> Result<bool>,
) -> Result<Duration> {
    while !holds()? {
        ensure!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(start.elapsed())
}
