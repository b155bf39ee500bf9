//! Streams of packets between pods of real clusters.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result};
use lab::{Cluster, Netns, Probe, ProbeOptions};

/// One pod per node, which a drain does not remove.
const PODS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: probe}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: probe, namespace: probe}
spec:
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec:
      terminationGracePeriodSeconds: 0
      tolerations: [{operator: Exists}]
      containers:
      - {name: probe, image: localhost/busybox:1, imagePullPolicy: Never, command: [sleep, infinity]}
";

/// Each from a node's pod to the next node's.
pub(super) struct Streams(Vec<Probe>);

impl Streams {
    /// Starts streams between all running nodes in a ring, and waits until packets of each arrive.
    pub(super) fn deploy_pods_and_start(cluster: &Cluster) -> Result<Streams> {
        cluster.apply(PODS)?;
        cluster.wait_daemon_set("probe", "probe")?;
        let ends = pod_namespaces_and_addresses(cluster)?;
        let end = |number: usize| {
            ends.get(number % ends.len())
                .map(|(netns, address)| (netns, *address))
                .context("a pod on each node")
        };
        let ring = (0..ends.len()).map(|number| {
            Probe::start_between_addresses(end(number)?, end(number + 1)?, &ProbeOptions::default())
        });
        let streams = Streams(ring.collect::<Result<_>>()?);
        streams.wait_flowing()?;
        Ok(streams)
    }

    /// Waits until newly sent packets of each stream arrive.
    pub(super) fn wait_flowing(&self) -> Result<()> {
        self.0.iter().try_for_each(|probe| probe.wait_flowing().map(drop))
    }

    /// One report for each stream.
    pub(super) fn finish(self) -> Result<Vec<lab::ProbeReport>> {
        self.0.into_iter().map(Probe::finish).collect()
    }

    /// Fails if a stream lost a packet.
    pub(super) fn require_clean(self) -> Result<()> {
        self.finish()?.into_iter().try_for_each(|report| {
            println!("between pods: {report}");
            report.require_clean()
        })
    }
}

/// The pods are in the order of their nodes.
fn pod_namespaces_and_addresses(cluster: &Cluster) -> Result<Vec<(Netns, IpAddr)>> {
    let found = cluster.api.admin().get("/api/v1/namespaces/probe/pods")?;
    let of_node: BTreeMap<&str, &serde_json::Value> = found["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| Some((pod["spec"]["nodeName"].as_str()?, pod)))
        .collect();
    let end = |node: &lab::Member| -> Result<(Netns, IpAddr)> {
        let pod = of_node.get(node.name()).with_context(|| format!("no pod on {}", node.name()))?;
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        let address = pod["status"]["podIP"]
            .as_str()
            .with_context(|| format!("{name} has no address"))?
            .parse()?;
        Ok((cluster.netns("probe", name)?, address))
    };
    cluster.started().map(end).collect()
}
