//! Runs the project's benchmarks, and prints each result next to its goal (`make bench`).
//!
//! `--help` lists the arguments.

#[path = "../bench/answers.rs"]
mod answers;
#[path = "../bench/cni.rs"]
mod cni;
#[path = "../bench/datapath.rs"]
mod datapath;
#[path = "../bench/gateway.rs"]
mod gateway;
#[path = "../bench/goals.rs"]
mod goals;
#[path = "../bench/healing.rs"]
mod healing;
#[path = "../bench/junk.rs"]
mod junk;
#[path = "../bench/kube.rs"]
mod kube;
#[path = "../bench/load.rs"]
mod load;
#[path = "../bench/probing.rs"]
mod probing;
#[path = "../bench/renewals.rs"]
mod renewals;
#[path = "../bench/scale.rs"]
mod scale;
#[path = "../bench/table.rs"]
mod table;
#[path = "../bench/wireguard.rs"]
mod wireguard;

use std::io::{ErrorKind, Write, stderr, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use table::Table;

const HELP: &str = "\
Measures the project's goals, and prints each result next to its goal.

Usage: bench [ARGUMENT ...]        or: make bench ARGS='ARGUMENT ...'

  --quick             measure only small sizes, in one round
  --markdown          also write the tables to docs/performance.md
  --peers=N           use N leases; skip healing and packets
  --cni               measure only the CNI plugin
  --nodes=N           measure only N Kubernetes Nodes
  --probing           measure only the cost and the detection time of probes
  --wireguard         measure only WireGuard's cost for peers and junk packets
  --renewals          measure only WireGuard's renewals during a flood
  --no-datapath       skip the datapath
  --datapath          measure only the datapath
  --rounds=N          measure each backend N times
  --cable=wire|veth   use only one kind of cable
  --only=NAME         measure NAME, or backends that begin with NAME; repeatable
  --streams           of the datapath, measure only streams
  --latency           measure datapath streams, and round trips during them
  --before=PATH       also measure another build of flanneld, in the same rounds
  --no-ladder         skip the rates of small packets
  --metrics           also print the daemons' counters

If GO_FLANNELD=/path/to/flanneld is set, bench also measures Go flannel. If
GO_FLANNEL_CNI=/path/to/flannel is set, bench also measures Go flannel's CNI
plugin. bench needs root.
";

/// Pods that each CNI plugin adds; `CNI_QUICK` is for `--quick`.
const CNI_ROUNDS: usize = 40;
const CNI_QUICK: usize = 10;

/// What the command line selects.
struct Order {
    markdown: bool,
    sizes: Vec<u32>,
    heal: bool,
    /// Pods that each CNI plugin adds.
    cni: usize,
    /// Of Kubernetes.
    nodes: u32,
    probing: bool,
    wireguard: bool,
    /// Only the renewals of WireGuard sessions.
    renewals: bool,
    packets: bool,
    plan: datapath::Plan,
}

/// `None` for `--help`.
fn parse_arguments(arguments: impl Iterator<Item = String>) -> Result<Option<Order>> {
    let (mut markdown, mut sizes, mut heal) = (false, scale::SIZES.to_vec(), true);
    let (mut packets, mut plan) = (true, datapath::Plan::default());
    let (mut cni, mut nodes, mut probing, mut wireguard) = (CNI_ROUNDS, kube::NODES, true, true);
    let mut renewals = false;
    for arg in arguments {
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--markdown" => markdown = true,
            "--quick" => {
                sizes.truncate(2);
                (nodes, probing, wireguard) = (0, false, false);
                cni = cni.min(CNI_QUICK);
                plan.rounds = 1;
            }
            "--no-datapath" => packets = false,
            "--datapath" => {
                (sizes, heal, cni, nodes, probing, wireguard) =
                    (Vec::new(), false, 0, 0, false, false);
            }
            "--cni" => {
                (sizes, heal, packets, nodes, probing, wireguard) =
                    (Vec::new(), false, false, 0, false, false);
            }
            "--probing" => {
                (sizes, heal, packets, cni, nodes, wireguard) =
                    (Vec::new(), false, false, 0, 0, false);
            }
            "--wireguard" => {
                (sizes, heal, packets, cni, nodes, probing) =
                    (Vec::new(), false, false, 0, 0, false);
            }
            "--renewals" => {
                (sizes, heal, packets, cni, nodes, probing) =
                    (Vec::new(), false, false, 0, 0, false);
                renewals = true;
            }
            arg if plan.apply_flag(arg) => {}
            arg => match arg.split_once('=') {
                Some(("--peers", peers)) => {
                    (sizes, heal, packets, cni, nodes) =
                        (vec![parse_positive_number("--peers", peers)?], false, false, 0, 0);
                    (probing, wireguard) = (false, false);
                }
                Some(("--nodes", count)) => {
                    (sizes, heal, packets, cni, nodes) =
                        (Vec::new(), false, false, 0, parse_positive_number("--nodes", count)?);
                    (probing, wireguard) = (false, false);
                }
                Some(("--rounds", rounds)) => {
                    plan.rounds = usize::try_from(parse_positive_number("--rounds", rounds)?)?;
                }
                Some(("--cable", "wire")) => plan.cables = vec![lab::Cable::Wire],
                Some(("--cable", "veth")) => plan.cables = vec![lab::Cable::Veth],
                Some(("--cable", other)) => bail!("--cable={other}: there are wire and veth"),
                Some(("--before", path)) => plan.before = Some(path.into()),
                Some(("--only", name)) => plan.only.push(name.to_owned()),
                _ => bail!("unknown argument {arg}; --help lists what there is"),
            },
        }
    }
    if packets {
        plan.check_backends_and_files_exist()?;
    }
    ensure!(
        !(markdown && renewals),
        "--renewals is a part of a section: --markdown would write it in place of all of --wireguard"
    );
    Ok(Some(Order {
        markdown,
        sizes,
        heal,
        cni,
        nodes,
        probing,
        wireguard,
        renewals,
        packets,
        plan,
    }))
}

fn parse_positive_number(name: &str, text: &str) -> Result<u32> {
    let number = text.parse().with_context(|| format!("{name}={text}"))?;
    ensure!(number > 0, "{name}={text}: at least 1 is meant");
    Ok(number)
}

fn main() -> ExitCode {
    let order = match parse_arguments(std::env::args().skip(1)) {
        Ok(Some(order)) => order,
        Ok(None) => return report_outcome(print_to_stdout(HELP)),
        Err(error) => {
            print_error_line(&error);
            return ExitCode::from(2);
        }
    };
    report_outcome(run_benchmarks(&order))
}

fn report_outcome(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error_line(&error);
            ExitCode::FAILURE
        }
    }
}

/// Prints one line without a backtrace.
fn print_error_line(error: &anyhow::Error) {
    let _ = writeln!(stderr(), "bench: {error:#}");
}

/// Ignores the error when a reader closes the pipe early (`| head`).
fn print_to_stdout(text: &str) -> Result<()> {
    match writeln!(stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("writing the results")
        }
        _ => Ok(()),
    }
}

/// Writes the tables into docs/performance.md with `--markdown`.
fn run_benchmarks(order: &Order) -> Result<()> {
    let scale = measure_scale_and_healing(order)?;
    let kube = measure_to_markdown(order.nodes > 0, |table| {
        eprintln!("kube: {} Nodes of Kubernetes", order.nodes);
        kube::measure_daemon_start_in_cluster(order.nodes, table)
    })?;
    let probing = measure_to_markdown(order.probing, |table| {
        eprintln!("probing: {} peers", probing::PEERS);
        probing::measure_probe_cost_and_detection(table)
    })?;
    let wireguard = measure_wireguard(order)?;
    let cni = measure_to_markdown(order.cni > 0, |table| {
        eprintln!("cni: {} pods in each way", order.cni);
        cni::measure_pod_add_time(order.cni, table)
    })?;
    let packets =
        if order.packets { Some(datapath::measure_datapaths(&order.plan)?) } else { None };
    let tables = [
        ("scale", scale),
        ("wireguard", wireguard),
        ("probing", probing),
        ("kube", kube),
        ("cni", cni),
    ];
    for text in tables.iter().filter_map(|(_, text)| text.as_ref()) {
        print_to_stdout(text)?;
    }
    if let Some((text, _)) = &packets {
        print_to_stdout(text)?;
    }
    if order.markdown {
        for (name, text) in tables {
            if let Some(text) = text {
                table::replace_performance_section(name, &text)?;
            }
        }
        if let Some((text, picture)) = packets {
            let text = format!(
                "{}![One TCP stream, by backend](datapath.svg)\n\n{text}",
                table::measurement_source_line()
            );
            table::replace_performance_section("datapath", &text)?;
            table::write_datapath_picture(&picture)?;
        }
    }
    Ok(())
}

/// The Markdown of a table; `None` without measurements.
fn measure_to_markdown(
    is_ordered: bool,
    measure: impl FnOnce(&mut Table) -> Result<()>,
) -> Result<Option<String>> {
    let mut table = Table::default();
    if is_ordered {
        measure(&mut table)?;
    }
    Ok((!table.is_empty()).then(|| table.markdown()))
}

fn measure_scale_and_healing(order: &Order) -> Result<Option<String>> {
    measure_to_markdown(true, |table| {
        for size in &order.sizes {
            eprintln!("scale: {size} peers");
            scale::measure_starts_and_new_leases(*size, table)?;
        }
        if order.heal {
            eprintln!("healing: {} peers", healing::PEERS);
            healing::measure_repair_times(table)?;
        }
        Ok(())
    })
}

fn measure_wireguard(order: &Order) -> Result<Option<String>> {
    measure_to_markdown(order.wireguard, |table| {
        if !order.renewals {
            eprintln!("wireguard: {} peers", wireguard::PEERS);
            wireguard::measure_start_with_sessions(table)?;
            eprintln!("wireguard: junk handshakes");
            junk::measure_loss_during_junk(table)?;
        }
        eprintln!("wireguard: renewals during a flood of handshakes");
        renewals::measure_session_renewals(table)
    })
}
