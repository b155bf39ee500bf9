//! Go flannel's manifest and ours, each applied over the other.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lab::{Cluster, ClusterOptions, Lab};

use crate::kube::bed::turn;
use crate::kube::installed::{apply_pods, impatient, install, manifest, repository, require_no_failed_sandbox, require_traffic, with_images};
use crate::kube::streams::Streams;

const OURS: [&str; 2] = ["docker.io/flannel-rs/flannel:v0.1.0", "docker.io/flannel-rs/flannel-cni-plugin:v0.1.0"];
/// An archive of Go flannel's images, the daemon's and the plugin's, as `docker save` and `ctr images export` write it.
const GO_FLANNEL_IMAGE: &str = "GO_FLANNEL_IMAGE";

/// A manifest of the shape of Go flannel's.
fn go_shaped() -> Result<String> {
    Ok(impatient(&std::fs::read_to_string(repository("e2e/tests/manifests/go-shaped.yml"))?))
}

/// From one to the other and back, while packets flow: none is lost.
fn back_and_forth(cluster: &Cluster, theirs: &str) -> Result<()> {
    // The configuration comes before the daemon here: pods that wait for their network find it before there is a subnet.env.
    apply_pods(cluster)?;
    install(cluster, theirs)?;
    require_traffic(cluster)?;
    let streams = Streams::start(cluster)?;
    let ours = manifest(|text| impatient(&text))?;
    for (name, text) in [("ours over it", ours.as_str()), ("and back", theirs)] {
        let start = Instant::now();
        install(cluster, text)?;
        println!("{name}: {:.1?}", start.elapsed());
        require_traffic(cluster).with_context(|| name.to_owned())?;
    }
    streams.require_clean()
}

#[test]
fn ours_over_a_manifest_of_go_flannels_shape_and_back() -> Result<()> {
    let _turn = turn();
    Lab::run("cluster: Go flannel's manifest", |lab| {
        let cluster = Cluster::start(lab, &with_images(ClusterOptions::new(2))?)?;
        back_and_forth(&cluster, &go_shaped()?)?;
        require_no_failed_sandbox(&cluster)
    })
}

#[test]
#[ignore = "run by make test-interop GO_FLANNEL_IMAGE=/path/to/archive.tar"]
fn ours_over_the_real_go_flannel_and_back() -> Result<()> {
    let archive = std::env::var_os(GO_FLANNEL_IMAGE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let archive = archive.with_context(|| format!("{GO_FLANNEL_IMAGE} does not name an archive of Go flannel's images"))?;
    ensure!(archive.is_file(), "{GO_FLANNEL_IMAGE}={} is no file", archive.display());
    let _turn = turn();
    Lab::run("cluster: Go flannel", |lab| {
        let cluster = Cluster::start(lab, &with_images(ClusterOptions::new(2))?.image(&archive))?;
        let images = cluster.nodes[0].command(&["ctr", "--namespace", "k8s.io", "images", "list", "--quiet"])?;
        let theirs = |of_plugin: bool| {
            let mut found = images.lines().filter(|name| name.contains("flannel") && !name.contains("@") && !OURS.contains(name));
            found.find(|name| name.contains("plugin") == of_plugin).with_context(|| format!("{} has: {images}", archive.display()))
        };
        // Not every version of it has these: cp and /healthz are in all.
        let text = go_shaped()?
            .replace("[/opt/bin/install-conf]", "[cp]")
            .replace("[/etc/kube-flannel/cni-conf.json,", "[-f, /etc/kube-flannel/cni-conf.json,");
        let text = text.replace("path: /readyz", "path: /healthz").replace(OURS[0], theirs(false)?).replace(OURS[1], theirs(true)?);
        back_and_forth(&cluster, &text)
    })
}
