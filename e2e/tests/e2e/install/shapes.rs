//! Go flannel's objects in the three shapes in which clusters have them: its released manifest, the raw one of its repository, its chart.

use std::process::Command;

use anyhow::Result;
use lab::{binaries, succeeded};

use super::{read, repository};

/// The raw manifest, as it is in Go flannel's repository: it selects by `app` only.
pub(crate) fn raw() -> Result<String> {
    read("e2e/tests/manifests/go/raw.yml")
}

/// The released manifest, made of the raw one as Go flannel makes it: it selects by `app` and `k8s-app`.
pub(crate) fn released() -> Result<String> {
    let folder = repository("e2e/tests/manifests/go");
    output(
        Command::new(binaries::kubernetes("kubectl")?)
            .arg("kustomize")
            .arg(folder),
    )
}

/// The manifest of the time up to v0.18, whose namespace is `kube-system`.
pub(crate) fn in_kube_system() -> Result<String> {
    let text = raw()?;
    let objects = text
        .split("---\n")
        .filter(|object| !object.starts_with("kind: Namespace"));
    Ok(objects
        .map(|object| object.replace("namespace: kube-flannel", "namespace: kube-system"))
        .collect::<Vec<_>>()
        .join("---\n"))
}

/// What Go flannel's chart installs: it selects by `app` only.
pub(crate) fn charted() -> Result<String> {
    let folder = repository("e2e/tests/manifests/go-chart");
    output(
        Command::new(binaries::helm()?)
            .args(["template", "flannel", "--namespace", "kube-flannel"])
            .arg(folder),
    )
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    succeeded(&format!("{command:?}"), &output)
}
