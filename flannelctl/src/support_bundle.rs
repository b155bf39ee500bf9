//! `flannelctl support-bundle`: collects diagnostics into one archive without secrets.
//!
//! Only the items of a [list](wanted) are read: no options file, no environment, no key, no token.

mod archive;
mod gather;
mod scrub;
mod wanted;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::form::{self, Form};
use crate::place::Place;
use archive::Archive;
use terminal::out;
use terminal::rights;
use wanted::WANTED;

/// The schema of the list for programs.
const SCHEMA: &str = "flannel.support-bundle/1";

/// Where the bundle goes, and what is in it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only show what goes in.
    #[arg(long)]
    list: bool,
    /// The file to write; it must not exist. Default: flannel-HOST-TIME.tar.gz in this directory.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The form of the list.
    #[arg(long, short, value_enum, default_value_t, requires = "list")]
    output: Form,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.list {
        return list(args);
    }
    rights::root("read what belongs into a support bundle")?;
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default();
    // A host's name may be anything.
    let host: String = host
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .collect();
    let name = format!(
        "flannel-{host}-{}",
        jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ")
    );
    let file = args
        .file
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let mut archive = Archive::create(&file, &name)?;
    let mut missing = 0;
    for item in WANTED {
        match runtime.block_on(gather::item(item, &args.place.subnet_file)) {
            Ok(text) => archive.add(item.name, &scrub::scrub(&text))?,
            Err(why) => {
                missing += 1;
                archive.add(&format!("{}.missing", item.name), &format!("{why}\n"))?;
            }
        }
    }
    let bytes = archive.finish()?;
    out::print(format!(
        "{}: {} of {} items, {} kB; look through it before you send it",
        file.display(),
        WANTED.len() - missing,
        WANTED.len(),
        bytes.div_ceil(1000)
    ));
    Ok(())
}

fn list(args: &Args) -> Result<()> {
    if args.output == Form::Json {
        return form::print(&document(&args.place.subnet_file));
    }
    let shown = |item: &wanted::Item| item.source.shown(&args.place.subnet_file);
    let width = WANTED.iter().map(|item| item.name.len()).max().unwrap_or(0);
    for item in WANTED {
        out::print(format!("{:width$}  {}", item.name, shown(item)));
    }
    Ok(())
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
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../docs/schema/support-bundle.json"
        );
        let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let document = document(Path::new("/run/flannel/subnet.env"));
        assert_eq!(
            (&schema["title"], &document["schema"]),
            (&json!(SCHEMA), &json!(SCHEMA))
        );
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
