//! The pods of a cluster, and commands inside them.

use std::net::IpAddr;
use std::process::Output;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::kube::cluster::Cluster;
use crate::kube::cluster::member::Member;
use crate::net::netns::Netns;
use wait::until_ok;

impl Cluster {
    /// Waits until the pod is Ready. The error shows its status.
    pub fn wait_pod(&self, namespace: &str, name: &str) -> Result<Value> {
        let admin = self.api.admin();
        until_ok("a pod is ready", || {
            let pod = admin.get(&format!("/api/v1/namespaces/{namespace}/pods/{name}"))?;
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let is_ready = conditions
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            ensure!(is_ready, "{name}: {}", pod["status"]);
            Ok(pod)
        })
    }

    /// Runs in the first container of the pod. The result is the standard output.
    pub fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> Result<String> {
        let (node, id) = self.find_node_and_container(namespace, pod)?;
        node.exec_in_container(&id, command)
    }

    /// Runs in the first container of the pod. The exit code does not matter.
    pub fn exec_output(&self, namespace: &str, pod: &str, command: &[&str]) -> Result<Output> {
        let (node, id) = self.find_node_and_container(namespace, pod)?;
        let words = exec_words(&id, command);
        node.output(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Measurements can run inside it.
    pub fn netns(&self, namespace: &str, pod: &str) -> Result<Netns> {
        let (node, id) = self.find_node_and_container(namespace, pod)?;
        node.netns_of_container(&id)
    }

    /// The pod's node and the ID of its first container.
    fn find_node_and_container(&self, namespace: &str, pod: &str) -> Result<(&Member, String)> {
        let found = self.api.admin().get(&format!("/api/v1/namespaces/{namespace}/pods/{pod}"))?;
        let id = found["status"]["containerStatuses"][0]["containerID"]
            .as_str()
            .and_then(|id| id.strip_prefix("containerd://"));
        let (id, on) = (
            id.context("the pod has no container yet")?,
            found["spec"]["nodeName"].as_str().unwrap_or_default(),
        );
        let node = self
            .nodes
            .iter()
            .find(|node| node.name() == on)
            .with_context(|| format!("no node {on}"))?;
        Ok((node, id.to_owned()))
    }

    pub fn pod_addresses(&self, namespace: &str) -> Result<Vec<(String, Vec<IpAddr>)>> {
        let pods = self.api.admin().get(&format!("/api/v1/namespaces/{namespace}/pods"))?;
        let addresses = |pod: &Value| {
            pod["status"]["podIPs"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|ip| ip["ip"].as_str()?.parse().ok())
                .collect()
        };
        Ok(pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pod| {
                (pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), addresses(pod))
            })
            .collect())
    }
}

fn exec_words(id: &str, command: &[&str]) -> Vec<String> {
    let exec = format!("lab-{:08x}", rand::random::<u32>());
    let words = ["ctr", "--namespace", "k8s.io", "tasks", "exec", "--exec-id", &exec, id];
    words.into_iter().chain(command.iter().copied()).map(str::to_owned).collect()
}

impl Member {
    fn exec_in_container(&self, id: &str, command: &[&str]) -> Result<String> {
        let words = exec_words(id, command);
        self.command(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Named after the lab, so that the removal of the lab also removes it.
    fn netns_of_container(&self, id: &str) -> Result<Netns> {
        let tasks = self.command(&["ctr", "--namespace", "k8s.io", "tasks", "list"])?;
        let of_task = |line: &str| line.strip_prefix(id)?.split_whitespace().next()?.parse().ok();
        let pid: u32 = tasks
            .lines()
            .find_map(of_task)
            .with_context(|| format!("container {id} does not run:\n{tasks}"))?;
        self.host()
            .site()
            .name_netns_of_process(&format!("{}-{}", self.name(), id.get(..12).unwrap_or(id)), pid)
    }
}
