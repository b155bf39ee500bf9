//! Go flannel's objects in clusters: from the released manifest, from the raw manifest in Go flannel's repository, or from the chart.

use std::process::Command;

use anyhow::Result;
use lab::{binaries, succeeded};

use super::{read, repository};

/// The raw manifest in Go flannel's repository. The DaemonSet selects pods only by the label `app`.
pub(crate) fn raw() -> Result<String> {
    read("e2e/tests/manifests/go/raw.yml")
}

/// The released manifest, which Go flannel makes from the raw one. The DaemonSet selects pods by the labels `app` and `k8s-app`.
pub(crate) fn released() -> Result<String> {
    let folder = repository("e2e/tests/manifests/go");
    output(Command::new(binaries::kubernetes("kubectl")?).arg("kustomize").arg(folder))
}

/// The manifest of Go flannel up to v0.18, in the namespace `kube-system`.
pub(crate) fn in_kube_system() -> Result<String> {
    let text = raw()?;
    let objects = text.split("---\n").filter(|object| !object.starts_with("kind: Namespace"));
    Ok(objects
        .map(|object| object.replace("namespace: kube-flannel", "namespace: kube-system"))
        .collect::<Vec<_>>()
        .join("---\n"))
}

/// What Go flannel's chart installs. The DaemonSet selects pods only by `app`.
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
