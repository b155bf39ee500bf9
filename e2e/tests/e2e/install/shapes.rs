//! Go flannel's objects in clusters: from the released manifest, from the raw manifest in Go flannel's repository, or from the chart.

use std::process::Command;

use anyhow::Result;
use lab::{binaries, require_success};

use super::{read_repository_file, repository_path};

/// The raw manifest in Go flannel's repository. The DaemonSet selects pods only by the label `app`.
pub(crate) fn raw_go_manifest() -> Result<String> {
    read_repository_file("e2e/tests/manifests/go/raw.yml")
}

/// The released manifest, which Go flannel makes from the raw one. The DaemonSet selects pods by the labels `app` and `k8s-app`.
pub(crate) fn released_go_manifest() -> Result<String> {
    let folder = repository_path("e2e/tests/manifests/go");
    successful_stdout(
        Command::new(binaries::kubernetes_program("kubectl")?).arg("kustomize").arg(folder),
    )
}

/// The manifest of Go flannel up to v0.18, in the namespace `kube-system`.
pub(crate) fn go_manifest_in_kube_system() -> Result<String> {
    let text = raw_go_manifest()?;
    let objects = text.split("---\n").filter(|object| !object.starts_with("kind: Namespace"));
    Ok(objects
        .map(|object| object.replace("namespace: kube-flannel", "namespace: kube-system"))
        .collect::<Vec<_>>()
        .join("---\n"))
}

/// What Go flannel's chart installs. The DaemonSet selects pods only by `app`.
pub(crate) fn rendered_go_chart() -> Result<String> {
    let folder = repository_path("e2e/tests/manifests/go-chart");
    successful_stdout(
        Command::new(binaries::helm_program()?)
            .args(["template", "flannel", "--namespace", "kube-flannel"])
            .arg(folder),
    )
}

fn successful_stdout(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    require_success(&format!("{command:?}"), &output)
}
