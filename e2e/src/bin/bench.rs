//! Measures what the goals of the project are about, and shows it beside them: `make bench`.
//!
//! Arguments: `--markdown` writes the table into docs/performance.md too; `--quick` measures the small sizes only;
//! `--peers=N` one size only, and no healing.

#[path = "../bench/gateway.rs"]
mod gateway;
#[path = "../bench/healing.rs"]
mod healing;
#[path = "../bench/scale.rs"]
mod scale;
#[path = "../bench/table.rs"]
mod table;

use anyhow::{Result, bail};
use table::Table;

fn main() -> Result<()> {
    let (mut markdown, mut sizes, mut heal) = (false, scale::SIZES.to_vec(), true);
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--markdown" => markdown = true,
            "--quick" => sizes.truncate(2),
            arg => match arg.strip_prefix("--peers=").map(str::parse) {
                Some(Ok(peers)) => (sizes, heal) = (vec![peers], false),
                _ => bail!("unknown argument {arg}: there are --markdown, --quick and --peers=N"),
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
    let text = table.markdown();
    println!("{text}");
    if markdown {
        table::write(&text)?;
    }
    Ok(())
}
