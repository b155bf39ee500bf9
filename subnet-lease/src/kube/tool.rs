//! A look at the Nodes for tools, without serving one.

use super::annotations;
use super::api::{Api, Call};
use super::follow::pages;
use super::node::Node;
use super::options::KubeOptions;
use super::requests;
use crate::config::NetworkConfig;
use crate::lease::LeaseAttrs;
use crate::reason::Reason;

/// A Node, as a tool shows it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The Node.
    pub node: Node,
    /// Whether flannel serves it.
    pub managed: bool,
    /// What it publishes.
    ///
    /// # Errors
    /// Names the annotation that cannot be read.
    pub attrs: Result<LeaseAttrs, String>,
}

/// Reads and changes Nodes for an operator.
pub struct Tool {
    api: Api,
}

impl Tool {
    /// Connects to nothing yet.
    pub fn new(options: KubeOptions) -> Self {
        Self { api: Api::new(options) }
    }

    /// All Nodes.
    ///
    /// # Errors
    /// The API does not answer, or refuses.
    pub async fn list(&self) -> Result<Vec<Listed>, Reason> {
        let nodes = pages(&self.api, None).await.map_err(|failure| failure.reason)?.0;
        let listed = |node: Node| Listed { managed: annotations::managed(&node.annotations), attrs: annotations::read(&node.annotations), node };
        Ok(nodes.into_iter().map(listed).collect())
    }

    /// The network's configuration, as the ConfigMap has it.
    ///
    /// # Errors
    /// It is not there, or cannot be used.
    pub async fn config(&self) -> Result<NetworkConfig, Reason> {
        let path = "/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg";
        let text = self.api.read(&Call::get("get-configmap", "read the ConfigMap kube-flannel/kube-flannel-cfg", path)).await;
        let text = text.map_err(|failure| failure.reason)?;
        let map: serde_json::Value = serde_json::from_str(&text).map_err(|error| Reason::from(error.to_string()))?;
        let conf = map.pointer("/data/net-conf.json").and_then(serde_json::Value::as_str);
        let conf = conf.ok_or_else(|| Reason::from("the ConfigMap kube-flannel/kube-flannel-cfg has no net-conf.json"))?;
        NetworkConfig::parse_assigned(conf).map_err(|error| Reason::from(format!("the ConfigMap kube-flannel/kube-flannel-cfg: {error}")))
    }

    /// Removes flannel's mark from a Node, which its peers take for the end of its lease a minute later.
    ///
    /// # Errors
    /// The API does not answer, or refuses.
    pub async fn withdraw(&self, name: &str, uid: &str) -> Result<(), Reason> {
        let key = self.api.options().prefix.key(annotations::MANAGED);
        let change = [(key, None)].into_iter().collect();
        requests::annotate(&self.api, name, uid, &change).await.map(|_| ()).map_err(|failure| failure.reason)
    }
}
