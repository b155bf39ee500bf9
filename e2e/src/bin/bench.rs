//! Measures what the goals of the project are about, and shows it beside them: `make bench`.
//!
//! `--help` tells its arguments.

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
Measures what the goals of the project are about, and shows it beside them.

Usage: bench [ARGUMENT ...]        or: make bench ARGS='ARGUMENT ...'

  --quick             the small sizes only, one round
  --markdown          write the tables into docs/performance.md, too
  --peers=N           this many leases only, no healing, no packets
  --cni               what the CNI plugin costs, and nothing else
  --nodes=N           this many Nodes of Kubernetes, and nothing else
  --probing           what probes cost and how soon they tell, and nothing else
  --wireguard         what WireGuard's peers and junk cost, and nothing else
  --renewals          WireGuard's renewals beside a flood, and nothing else
  --no-datapath       all but how packets move
  --datapath          how packets move, and nothing else
  --rounds=N          of each carrier
  --cable=wire|veth   one kind of cable only
  --only=NAME         carriers with this name, or that begin with it; repeatable
  --streams           of packets the streams only
  --no-ladder         of packets all but the rates of small ones
  --metrics           show what the daemons counted, too

With GO_FLANNELD=/path/to/flanneld in the environment Go flannel is measured
beside ours, with GO_FLANNEL_CNI=/path/to/flannel its CNI plugin. It needs root.
";

/// Pods added in each way; with `--quick`.
const CNI_ROUNDS: usize = 40;
const CNI_QUICK: usize = 10;

/// What is to be measured.
struct Order {
    markdown: bool,
    sizes: Vec<u32>,
    heal: bool,
    /// How many pods are added in each way.
    cni: usize,
    /// How many Nodes of Kubernetes there are.
    nodes: u32,
    probing: bool,
    wireguard: bool,
    /// Of WireGuard the renewals only.
    renewals: bool,
    packets: bool,
    plan: datapath::Plan,
}

/// Reads the command line; none when the help was asked for.
fn order(arguments: impl Iterator<Item = String>) -> Result<Option<Order>> {
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
            "--metrics" => plan.metrics = true,
            "--streams" => plan.streams_only = true,
            "--no-ladder" => plan.ladder = false,
            arg => match arg.split_once('=') {
                Some(("--peers", peers)) => {
                    (sizes, heal, packets, cni, nodes) =
                        (vec![number("--peers", peers)?], false, false, 0, 0);
                    (probing, wireguard) = (false, false);
                }
                Some(("--nodes", count)) => {
                    (sizes, heal, packets, cni, nodes) =
                        (Vec::new(), false, false, 0, number("--nodes", count)?);
                    (probing, wireguard) = (false, false);
                }
                Some(("--rounds", rounds)) => {
                    plan.rounds = usize::try_from(number("--rounds", rounds)?)?;
                }
                Some(("--cable", "wire")) => plan.cables = vec![lab::Cable::Wire],
                Some(("--cable", "veth")) => plan.cables = vec![lab::Cable::Veth],
                Some(("--cable", other)) => bail!("--cable={other}: there are wire and veth"),
                Some(("--only", name)) => plan.only.push(name.to_owned()),
                _ => bail!("unknown argument {arg}; --help lists what there is"),
            },
        }
    }
    if packets {
        plan.check()?;
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

fn number(name: &str, text: &str) -> Result<u32> {
    let number = text.parse().with_context(|| format!("{name}={text}"))?;
    ensure!(number > 0, "{name}={text}: at least 1 is meant");
    Ok(number)
}

fn main() -> ExitCode {
    let order = match order(std::env::args().skip(1)) {
        Ok(Some(order)) => order,
        Ok(None) => return ended(show(HELP)),
        Err(error) => {
            complain(&error);
            return ExitCode::from(2);
        }
    };
    ended(measure(order))
}

fn ended(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// In one line and without a backtrace, which would say nothing to whoever measures.
fn complain(error: &anyhow::Error) {
    let _ = writeln!(stderr(), "bench: {error:#}");
}

/// On standard output; that nobody reads it (`| head`) is no error.
fn show(text: &str) -> Result<()> {
    match writeln!(stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("writing the results")
        }
        _ => Ok(()),
    }
}

fn measure(
    Order {
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
    }: Order,
) -> Result<()> {
    let (mut table, mut cluster) = (Table::default(), Table::default());
    for size in sizes {
        eprintln!("scale: {size} peers");
        scale::measure(size, &mut table)?;
    }
    if nodes > 0 {
        eprintln!("kube: {nodes} Nodes of Kubernetes");
        kube::measure(nodes, &mut cluster)?;
    }
    if heal {
        eprintln!("healing: {} peers", healing::PEERS);
        healing::measure(&mut table)?;
    }
    let mut mesh = Table::default();
    if probing {
        eprintln!("probing: {} peers", probing::PEERS);
        probing::measure(&mut mesh)?;
    }
    let mut secret = Table::default();
    if wireguard && !renewals {
        eprintln!("wireguard: {} peers", wireguard::PEERS);
        wireguard::measure(&mut secret)?;
        eprintln!("wireguard: junk handshakes");
        junk::measure(&mut secret)?;
    }
    if wireguard {
        eprintln!("wireguard: renewals beside a flood of handshakes");
        renewals::measure(&mut secret)?;
    }
    let secret = (!secret.is_empty()).then(|| secret.markdown());
    let mesh = (!mesh.is_empty()).then(|| mesh.markdown());
    let cluster = (!cluster.is_empty()).then(|| cluster.markdown());
    let scale = (!table.is_empty()).then(|| table.markdown());
    let mut plugin = Table::default();
    if cni > 0 {
        eprintln!("cni: {cni} pods in each way");
        cni::measure(cni, &mut plugin)?;
    }
    let plugin = (!plugin.is_empty()).then(|| plugin.markdown());
    let packets = if packets {
        Some(datapath::measure(&plan)?)
    } else {
        None
    };
    for text in scale
        .iter()
        .chain(&secret)
        .chain(&mesh)
        .chain(&cluster)
        .chain(&plugin)
    {
        show(text)?;
    }
    if let Some((text, _)) = &packets {
        show(text)?;
    }
    if markdown {
        if let Some(text) = scale {
            table::write("scale", &text)?;
        }
        if let Some(text) = secret {
            table::write("wireguard", &text)?;
        }
        if let Some(text) = mesh {
            table::write("probing", &text)?;
        }
        if let Some(text) = cluster {
            table::write("kube", &text)?;
        }
        if let Some(text) = plugin {
            table::write("cni", &text)?;
        }
        if let Some((text, picture)) = packets {
            let text = format!(
                "{}![One TCP stream, by backend](datapath.svg)\n\n{text}",
                table::measured()
            );
            table::write("datapath", &text)?;
            table::picture(&picture)?;
        }
    }
    Ok(())
}
