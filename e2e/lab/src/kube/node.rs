//! Node objects that tests create and change.

use std::net::IpAddr;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::kube::client::ApiClient;

/// Prefix of flannel's annotations.
pub const ANNOTATIONS: &str = "flannel.alpha.coreos.com/";

#[derive(Debug, Clone)]
pub struct NodeObject {
    name: String,
    pod_cidrs: Vec<String>,
    internal: Vec<IpAddr>,
    annotations: Map<String, Value>,
    conditions: Vec<Value>,
    boot: Option<String>,
}

impl NodeObject {
    /// The Node has no podCIDR, address or annotation.
    pub fn new(name: &str) -> NodeObject {
        NodeObject {
            name: name.to_owned(),
            pod_cidrs: Vec::new(),
            internal: Vec::new(),
            annotations: Map::new(),
            conditions: Vec::new(),
            boot: None,
        }
    }

    /// The first one is also `spec.podCIDR`.
    #[must_use]
    pub fn pod_cidr(mut self, cidr: &str) -> NodeObject {
        self.pod_cidrs.push(cidr.to_owned());
        self
    }

    /// Adds an address of type InternalIP to the status.
    #[must_use]
    pub fn add_internal_address(mut self, address: impl Into<IpAddr>) -> NodeObject {
        self.internal.push(address.into());
        self
    }

    /// `name` is the full name.
    #[must_use]
    pub fn annotation(mut self, name: &str, value: &str) -> NodeObject {
        self.annotations.insert(name.to_owned(), value.into());
        self
    }

    /// flannel's annotation, by its name without the prefix.
    #[must_use]
    pub fn add_flannel_annotation(self, name: &str, value: &str) -> NodeObject {
        self.annotation(&format!("{ANNOTATIONS}{name}"), value)
    }

    /// What a daemon with vxlan publishes for its host.
    #[must_use]
    pub fn add_vxlan_annotations(self, public: &str, mac: &str) -> NodeObject {
        let data = json!({ "VNI": 1, "VtepMAC": mac }).to_string();
        self.add_flannel_annotation("kube-subnet-manager", "true")
            .add_flannel_annotation("backend-type", "vxlan")
            .add_flannel_annotation("backend-data", &data)
            .add_flannel_annotation("public-ip", public)
    }

    /// The condition NetworkUnavailable.
    #[must_use]
    pub fn network_unavailable(mut self, status: &str) -> NodeObject {
        self.conditions.push(json!({ "type": "NetworkUnavailable", "status": status, "reason": "NoRouteCreated", "message": "by a test" }));
        self
    }

    /// The condition Ready; Unknown means that kubelet no longer reports.
    #[must_use]
    pub fn ready(mut self, status: &str) -> NodeObject {
        self.conditions.push(
            json!({ "type": "Ready", "status": status, "reason": "Test", "message": "by a test" }),
        );
        self
    }

    /// The machine's boot ID, which kubelet usually reports.
    #[must_use]
    pub fn boot_id(mut self, id: &str) -> NodeObject {
        self.boot = Some(id.to_owned());
        self
    }

    pub fn json(&self) -> Value {
        let addresses: Vec<Value> = self
            .internal
            .iter()
            .map(|address| json!({ "type": "InternalIP", "address": address }))
            .collect();
        let mut node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": self.name },
            "spec": {},
            "status": { "addresses": addresses, "conditions": self.conditions },
        });
        if let Some(first) = self.pod_cidrs.first() {
            node["spec"] = json!({ "podCIDR": first, "podCIDRs": self.pod_cidrs });
        }
        if let Some(boot) = &self.boot {
            node["status"]["nodeInfo"] = json!({
                "bootID": boot, "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
            });
        }
        // Absent rather than empty, as in every Node that was created manually.
        if !self.annotations.is_empty() {
            node["metadata"]["annotations"] = Value::Object(self.annotations.clone());
        }
        node
    }
}

impl ApiClient {
    /// Creates the status too. The result is the stored Node.
    pub fn create_node(&self, node: &NodeObject) -> Result<Value> {
        self.create("/api/v1/nodes", &node.json())
    }

    pub fn node(&self, name: &str) -> Result<Value> {
        self.get(&node_path(name))
    }

    pub fn delete_node(&self, name: &str) -> Result<()> {
        self.delete(&node_path(name))
    }

    /// `patch` is a JSON merge patch. The result is the stored Node.
    pub fn patch_node(&self, name: &str, patch: &Value) -> Result<Value> {
        self.merge(&node_path(name), patch)
    }

    /// `name` is the full name. `None` removes the annotation.
    pub fn annotate(&self, node: &str, name: &str, value: Option<&str>) -> Result<()> {
        let mut annotations = Map::new();
        annotations.insert(name.to_owned(), value.map_or(Value::Null, Into::into));
        self.patch_node(node, &json!({ "metadata": { "annotations": annotations } })).map(drop)
    }

    /// `name` lacks the prefix; `None` if the Node does not have the annotation.
    pub fn flannel_annotation(&self, node: &str, name: &str) -> Result<Option<String>> {
        let node = self.node(node)?;
        Ok(node["metadata"]["annotations"][format!("{ANNOTATIONS}{name}")]
            .as_str()
            .map(str::to_owned))
    }

    /// Fails if the Node does not have the condition.
    pub fn condition(&self, node: &str, kind: &str) -> Result<Value> {
        let found = self.node(node)?;
        let mut conditions = found["status"]["conditions"].as_array().into_iter().flatten();
        conditions
            .find(|condition| condition["type"] == kind)
            .cloned()
            .with_context(|| format!("node {node} has no condition {kind}"))
    }

    /// The condition NetworkUnavailable is False.
    pub fn is_network_marked_available(&self, node: &str) -> bool {
        self.condition(node, "NetworkUnavailable")
            .is_ok_and(|condition| condition["status"] == "False")
    }
}

fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}
