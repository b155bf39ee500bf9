//! Measures what the goals of the project are about, and shows it beside them: `make bench`.
//!
//! Arguments: `--markdown` writes the table into docs/performance.md too; `--quick` measures the small sizes only;
//! `--peers=N` one size only, and no healing; `--datapath` how packets move and nothing else, `--streams` of that the streams only,
//! `--no-ladder` all but the rates of small packets.

#[path = "../bench/datapath.rs"]
mod datapath;
#[path = "../bench/gateway.rs"]
mod gateway;
#[path = "../bench/healing.rs"]
mod healing;
#[path = "../bench/load.rs"]
mod load;
#[path = "../bench/scale.rs"]
mod scale;
#[path = "../bench/table.rs"]
mod table;

use anyhow::{Context, Result, bail};
use table::Table;

fn main() -> Result<()> {
    let (mut markdown, mut sizes, mut heal) = (false, scale::SIZES.to_vec(), true);
    let (mut packets, mut plan) = (true, datapath::Plan::default());
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--markdown" => markdown = true,
            "--quick" => {
                sizes.truncate(2);
                plan.rounds = 1;
            }
            "--no-datapath" => packets = false,
            "--datapath" => (sizes, heal) = (Vec::new(), false),
            "--metrics" => plan.metrics = true,
            "--streams" => plan.streams_only = true,
            "--no-ladder" => plan.ladder = false,
            arg => match arg.strip_prefix("--peers=").map(str::parse) {
                Some(Ok(peers)) => (sizes, heal, packets) = (vec![peers], false, false),
                _ => match arg.split_once('=') {
                    Some(("--rounds", rounds)) => plan.rounds = rounds.parse().context("--rounds")?,
                    Some(("--cable", "wire")) => plan.cables = vec![e2e::Cable::Wire],
                    Some(("--cable", "veth")) => plan.cables = vec![e2e::Cable::Veth],
                    Some(("--only", name)) => plan.only.push(name.to_owned()),
                    _ => bail!(
                        "unknown argument {arg}: there are --markdown, --quick, --peers=N, --no-datapath, --datapath, --streams, --no-ladder, --metrics, --rounds=N, --cable=wire|veth and --only=NAME"
                    ),
                },
            },
        }
    }
    let mut table = Table::default();
    for size in sizes {
        eprintln!("scale: {size} peers");
        scale::measure(size, &mut table)?;
    }
    if heal {
        eprintln!("healing: {} peers", healing::PEERS);
        healing::measure(&mut table)?;
    }
    let scale = (!table.is_empty()).then(|| table.markdown());
    let packets = if packets { Some(datapath::measure(&plan)?) } else { None };
    if let Some(text) = &scale {
        println!("{text}");
    }
    if let Some((text, _)) = &packets {
        println!("{text}");
    }
    if markdown {
        if let Some(text) = scale {
            table::write("scale", &text)?;
        }
        if let Some((text, picture)) = packets {
            let text = format!("{}![One TCP stream, by backend](datapath.svg)\n\n{text}", table::measured());
            table::write("datapath", &text)?;
            table::picture(&picture)?;
        }
    }
    Ok(())
}
