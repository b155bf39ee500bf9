//! `flannelctl support-bundle`: collects diagnostics into one archive without secrets.
//!
//! Reads only the items of a [list](wanted), which contains no options file, environment, key or token.

mod archive;
mod gather;
mod remote;
mod scrub;
mod wanted;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::form::Form;
use crate::kubernetes::ClusterFlags;
use crate::place::Place;
use archive::Archive;
use terminal::out;
use terminal::rights;
use terminal::screen::Screen;
use wanted::WANTED;

/// The schema of the JSON list.
const SCHEMA: &str = "flannel.support-bundle/1";

/// Options of `flannelctl support-bundle`: the destination and the contents of the bundle.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only lists the contents of a bundle.
    #[arg(long)]
    list: bool,
    /// File to write, which must not exist; `-` writes to standard output. Default: flannel-HOST-TIME.tar.gz in the current directory.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Collects the bundle in flannel's pod on this Kubernetes node, with the pod's logs; needs a kubeconfig.
    #[arg(long, value_name = "NODE", conflicts_with = "list")]
    node: Option<String>,
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Output format of the list.
    #[arg(long, short, value_enum, default_value_t, requires = "list")]
    output: Form,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.list {
        return list(args);
    }
    let host = match &args.node {
        Some(node) => node.clone(),
        None => nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .unwrap_or_default(),
    };
    let name =
        format!("flannel-{}-{}", plain(&host), jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ"));
    let file = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let is_stdout = file.as_os_str() == "-";
    if is_stdout && std::io::stdout().is_terminal() {
        bail!(
            "standard output is a terminal; redirect the archive to a file with `> bundle.tar.gz`"
        );
    }
    let open = || {
        if is_stdout { Ok(Archive::on_stdout(&name)) } else { Archive::create(&file, &name) }
    };
    let (archive, total, missing) = match &args.node {
        Some(node) => {
            let files = remote::gather(node, &args.cluster)?;
            let mut archive = open()?;
            let missing = files.iter().filter(|(name, _)| name.ends_with(MISSING));
            let missing = missing.count();
            for (name, text) in &files {
                archive.add(name, text)?;
            }
            (archive, files.len(), missing)
        }
        None if args.cluster.is_named() => {
            bail!("the options name a cluster but no node; add --node")
        }
        None => {
            rights::root("read the contents of a support bundle")?;
            let mut archive = open()?;
            let missing = gather_here(&mut archive, &args.place.subnet_file)?;
            (archive, WANTED.len(), missing)
        }
    };
    let bytes = archive.finish()?;
    let place = if is_stdout { format!("{name}.tar.gz") } else { file.display().to_string() };
    let told = format!(
        "{place}: {} of {total} items, {} kB; check the archive before you send it",
        total - missing,
        bytes.div_ceil(1000)
    );
    if is_stdout {
        out::note(told);
    } else {
        out::print(told);
    }
    Ok(())
}

/// Such a file contains the reason why an item is missing.
const MISSING: &str = ".missing";

/// For a file name: `_` replaces each character except ASCII letters, digits and `-`.
fn plain(host: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }
    };
    host.chars().map(plain).collect()
}

/// Returns the number of missing items.
fn gather_here(archive: &mut Archive, subnet_file: &Path) -> Result<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let mut missing = 0;
    for item in WANTED {
        match runtime.block_on(gather::item(item, subnet_file)) {
            Ok(text) => archive.add(item.name, &scrub::scrub(&text))?,
            Err(why) => {
                missing += 1;
                archive.add(&format!("{}{MISSING}", item.name), &format!("{why}\n"))?;
            }
        }
    }
    Ok(missing)
}

fn list(args: &Args) -> Result<()> {
    let shown = |item: &wanted::Item| item.source.shown(&args.place.subnet_file);
    let width = WANTED.iter().map(|item| item.name.len()).max().unwrap_or(0);
    let lines = || {
        let lines = WANTED.iter().map(|item| format!("{:width$}  {}", item.name, shown(item)));
        lines.collect::<Vec<_>>().join("\n")
    };
    args.output.print(&document(&args.place.subnet_file), Screen::open(), |_, _| lines())
}

fn document(subnet_file: &Path) -> Value {
    let items: Vec<Value> = WANTED
        .iter()
        .map(|item| json!({ "name": item.name, "from": item.source.shown(subnet_file) }))
        .collect();
    json!({ "schema": SCHEMA, "items": items })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_describes_the_list() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schema/support-bundle.json");
        let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let document = document(Path::new("/run/flannel/subnet.env"));
        assert_eq!((&schema["title"], &document["schema"]), (&json!(SCHEMA), &json!(SCHEMA)));
        let names = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&document), names(&schema["properties"]));
        assert!(
            document["items"]
                .as_array()
                .unwrap()
                .iter()
                .all(|item| names(item) == names(&schema["$defs"]["item"]["properties"]))
        );
    }
}
