//! The backend udp in a cluster: by the chart, in a privileged pod, and with a gap at each update.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use lab::{Cluster, ClusterOptions, Lab, binaries};

use crate::kube::bed::turn;
use crate::kube::installed::{
    apply_pods, first_pod, impatient, install, repository, require_no_failed_sandbox, require_traffic, seen_outside, with_images,
};
use crate::kube::streams::Streams;

/// An update of one node takes a packet's way away for 3 seconds, or 10 on an overloaded machine.
const GAP: Duration = Duration::from_secs(60);

/// What `helm install` applies, with its namespace.
fn chart(args: &[&str]) -> Result<String> {
    let mut command = Command::new(binaries::helm()?);
    command.arg("template").arg("flannel").arg(repository("conf/chart")).args(["--namespace", "kube-flannel", "--kube-version", "1.36.0"]);
    let output = command.args(["--set", "flannel.backend=udp"]).args(args).output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: kube-flannel, labels: {pod-security.kubernetes.io/enforce: privileged}}}\n";
    Ok(namespace.to_owned() + &impatient(&String::from_utf8(output.stdout)?))
}

#[test]
fn udp_by_the_chart_and_the_gap_of_a_rolling_update() -> Result<()> {
    let _turn = turn();
    Lab::run("cluster: udp", |lab| {
        let cluster = Cluster::start(lab, &with_images(ClusterOptions::new(2))?)?;
        apply_pods(&cluster)?;
        install(&cluster, &chart(&[])?)?;
        ensure!(cluster.nodes[0].host().netns().link("flannel0")?.is_some(), "no tunnel device");
        require_traffic(&cluster)?;
        require_no_failed_sandbox(&cluster)?;
        let node = IpAddr::V4(cluster.nodes[0].host().v4_of("enp0s8")?);
        let seen = seen_outside(&cluster)?;
        ensure!(seen == node, "with --ip-masq the pod is seen as {seen} instead of {node}");

        // The update takes --ip-masq away.
        let streams = Streams::start(&cluster)?;
        install(&cluster, &chart(&["--set", "flannel.args={--kube-subnet-mgr}"])?)?;
        streams.wait_flowing()?;
        for report in streams.finish()? {
            println!("udp, rolling update of two nodes: {report}");
            ensure!(report.wrong == 0 && report.longest_outage < GAP, "{report}");
        }
        require_traffic(&cluster)?;
        let (seen, pod) = (seen_outside(&cluster)?, first_pod(&cluster)?);
        ensure!(seen == pod, "without --ip-masq the pod is seen as {seen} instead of {pod}");
        Ok(())
    })
}
