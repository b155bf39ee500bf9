//! Tests that API servers and container engines accept the manifests, the chart and the images that an operator installs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use lab::{ApiServer, Families, Lab, Uplink};
use serde_json::Value;

mod chart;
mod host_pages;
mod images;
mod manifests;
pub(crate) mod monitoring;
pub(crate) mod operator;
mod pages;
mod policy;
pub(crate) mod shapes;
mod vagrantfile;

/// `path` is relative to the repository.
fn repository_path(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read_repository_file(path: &str) -> Result<String> {
    let path = repository_path(path);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// The tests run each command of the documents or exclude it with a reason, and list no other command.
fn require_pages_have_exactly_these_commands(
    on_pages: &BTreeSet<String>,
    run: &[&str],
    not_here: &[(&str, &str)],
) -> Result<()> {
    let known: BTreeSet<String> = run
        .iter()
        .chain(not_here.iter().map(|(command, _)| command))
        .map(ToString::to_string)
        .collect();
    ensure!(
        *on_pages == known,
        "neither run nor listed: {:#?}; not on a page: {:#?}",
        on_pages.difference(&known).collect::<Vec<_>>(),
        known.difference(on_pages).collect::<Vec<_>>()
    );
    Ok(())
}

fn start_real_api_server_on_new_host(lab: &Lab, namespaces: &[&str]) -> Result<ApiServer> {
    let lan = lab.create_switch("lan")?;
    let host = lab.create_host("api", &[Uplink::enp0s8(&lan, 99)?.gateway("192.168.56.254")?])?;
    let api = ApiServer::start(&host, Families::V4)?;
    for name in namespaces {
        api.admin()
            .create("/api/v1/namespaces", &serde_json::json!({ "metadata": { "name": name } }))?;
    }
    Ok(api)
}

/// The result is what the server would store. It stores nothing, because the request is a dry run.
fn dry_run(lab: &Lab, api: &ApiServer, manifests: &str) -> Result<Vec<Value>> {
    let file = lab.ensure_folder("manifests")?.join("dry-run.yml");
    std::fs::write(&file, manifests)?;
    let path = file.display().to_string();
    let answer = api.kubectl(&[
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "--output=json",
        "--filename",
        &path,
    ])?;
    let mut answer: Value = serde_json::from_str(&answer)?;
    Ok(match answer["items"].take() {
        Value::Array(items) => items,
        _ => vec![answer],
    })
}

/// `None` means any namespace.
fn find_object<'a>(
    objects: &'a [Value],
    only_in_namespace: Option<&str>,
    kind: &str,
    name: &str,
) -> Result<&'a Value> {
    let is = |object: &&Value| {
        let place = object["metadata"]["namespace"].as_str();
        object["kind"] == kind
            && object["metadata"]["name"] == name
            && (only_in_namespace.is_none() || place == only_in_namespace)
    };
    objects.iter().find(is).with_context(|| format!("no {kind} {name} in {only_in_namespace:?}"))
}

/// The network configuration in flannel's ConfigMap.
fn net_conf(objects: &[Value], namespace: Option<&str>) -> Result<Value> {
    let map = find_object(objects, namespace, "ConfigMap", "kube-flannel-cfg")?;
    Ok(serde_json::from_str(map["data"]["net-conf.json"].as_str().context("net-conf.json")?)?)
}
