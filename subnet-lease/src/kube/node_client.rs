//! A look at the Nodes for tools, without serving one.

use super::annotations;
use super::api::{Api, Call};
use super::fault::NodeFault;
use super::follow::pages;
use super::node::Node;
use super::options::KubeOptions;
use super::requests;
use super::trouble::KubeTrouble;
use crate::config::NetworkConfig;
use crate::entry::{Entry, Listing};
use crate::lease::{LeaseAttrs, NodeId};
use crate::manager::{Error, LeaseStore, Liveness, Nature};
use crate::reason::Reason;
use crate::wire;
use async_trait::async_trait;
use http::StatusCode;
use serde_json::Value;
use std::sync::Arc;
use types::Subnets;

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
    pub attrs: Result<LeaseAttrs, NodeFault>,
}

/// Reads and changes Nodes for an operator.
pub struct NodeClient {
    api: Arc<Api>,
}

impl NodeClient {
    /// Creates the client. It connects on the first request.
    pub fn new(options: KubeOptions) -> Self {
        Self {
            api: Arc::new(Api::new(options)),
        }
    }

    /// The same for a daemon, over its connection.
    pub(super) fn over(api: &Arc<Api>) -> Self {
        Self { api: api.clone() }
    }

    /// All Nodes.
    ///
    /// # Errors
    /// The API does not answer, or refuses.
    pub async fn list(&self) -> Result<Vec<Listed>, KubeTrouble> {
        let nodes = pages(&self.api, None)
            .await
            .map_err(|failure| failure.trouble)?
            .0;
        let listed = |node: Node| Listed {
            managed: annotations::managed(&node.annotations),
            attrs: annotations::read(&node.annotations),
            node,
        };
        Ok(nodes.into_iter().map(listed).collect())
    }

    /// The network's configuration: of the file that a daemon's pod mounts, where it is; else of the ConfigMap, in whichever namespace.
    ///
    /// # Errors
    /// It is not there, or cannot be used.
    pub async fn config(&self) -> Result<NetworkConfig, KubeTrouble> {
        let file = &self.api.options().net_conf;
        let (place, text) = match tokio::fs::read_to_string(file).await {
            Ok(text) => (file.display().to_string(), text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.config_map().await?,
            Err(error) => return Err(KubeTrouble::File(file.clone(), error.to_string())),
        };
        NetworkConfig::parse_assigned(&text).map_err(|error| KubeTrouble::ConfigAt(place, error))
    }

    /// The text of the ConfigMap, with its name.
    async fn config_map(&self) -> Result<(String, String), KubeTrouble> {
        let all = "/api/v1/configmaps?fieldSelector=metadata.name%3Dkube-flannel-cfg";
        let found = self
            .api
            .read(&Call::get(
                "list-configmaps",
                "find the ConfigMap kube-flannel-cfg",
                all,
            ))
            .await;
        let maps: Vec<Value> = match found {
            Ok(text) => parsed(&text)?
                .pointer("/items")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
            // Who may not read those of all namespaces may be able to read this one.
            Err(failure) if failure.status == Some(StatusCode::FORBIDDEN) => {
                let path = "/api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg";
                let text = self
                    .api
                    .read(&Call::get(
                        "get-configmap",
                        "read the ConfigMap kube-flannel/kube-flannel-cfg",
                        path,
                    ))
                    .await;
                vec![parsed(&text.map_err(|failure| failure.trouble)?)?]
            }
            Err(failure) => return Err(failure.trouble),
        };
        let named = |map: &Value| {
            let namespace = map
                .pointer("/metadata/namespace")
                .and_then(Value::as_str)
                .unwrap_or("kube-flannel");
            let text = map.pointer("/data/net-conf.json").and_then(Value::as_str)?;
            Some((
                format!("the ConfigMap {namespace}/kube-flannel-cfg"),
                text.to_owned(),
            ))
        };
        let mut maps: Vec<(String, String)> = maps.iter().filter_map(named).collect();
        maps.dedup_by(|one, other| one.1 == other.1);
        match maps.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(KubeTrouble::NoConfigMap),
            several => Err(KubeTrouble::ConfigMapsDiffer(
                several.iter().map(|(name, _)| name.clone()).collect(),
            )),
        }
    }

    /// Removes flannel's mark from a Node, which its peers take for the end of its lease a minute later.
    ///
    /// # Errors
    /// The API does not answer, or refuses.
    pub async fn withdraw(&self, name: &str, uid: &str) -> Result<(), KubeTrouble> {
        let key = self.api.options().prefix.key(annotations::MANAGED);
        let change = [(key, None)].into_iter().collect();
        requests::annotate(&self.api, name, uid, &change)
            .await
            .map(|_| ())
            .map_err(|failure| failure.trouble)
    }
}

#[async_trait]
impl LeaseStore for NodeClient {
    fn place(&self) -> String {
        "the Nodes of Kubernetes".to_owned()
    }

    fn nature(&self) -> Nature {
        Nature {
            of_nodes: true,
            asks_a_server: false,
        }
    }

    async fn config(&self) -> Result<NetworkConfig, Error> {
        NodeClient::config(self).await.map_err(Error::unavailable)
    }

    async fn list(&self) -> Result<Listing, Reason> {
        Ok(Listing {
            revision: 0,
            entries: NodeClient::list(self).await?.iter().map(entry).collect(),
        })
    }

    /// Whether a Node is alive is its kubelet's to tell.
    async fn liveness(&self, _: &Entry) -> Result<Liveness, Reason> {
        Ok(Liveness::default())
    }

    async fn release(&self, entry: &Entry) -> Result<bool, Reason> {
        let attrs = wire::parse_value(&entry.value)
            .ok()
            .filter(|_| entry.subnets().is_some());
        let node = attrs
            .and_then(|attrs| attrs.node)
            .ok_or_else(|| KubeTrouble::NoNodeNamed(entry.key.clone()))?;
        Ok(self
            .withdraw(&node.name, &node.instance)
            .await
            .map(|()| true)?)
    }

    async fn reserve(&self, _: &Subnets, _: String, _: Option<&Entry>) -> Result<bool, Reason> {
        Err(KubeTrouble::NothingReserved.into())
    }
}

/// A Node as a key of the other stores, so that it is shown like one. A Node without a usable podCIDR names no subnet.
fn entry(listed: &Listed) -> Entry {
    let node = &listed.node;
    // The uid keeps a Node apart from one that is created again under its name.
    let id = NodeId {
        id: node.name.as_str().into(),
        name: node.name.as_str().into(),
        instance: node.uid.clone(),
        ..NodeId::default()
    };
    let attrs = listed
        .attrs
        .clone()
        .ok()
        .filter(|_| listed.managed)
        .unwrap_or_default();
    let value = wire::render_value(&LeaseAttrs {
        node: Some(id),
        ..attrs
    });
    let key = match &node.subnets {
        Ok(Some(subnets)) => match &listed.attrs {
            Err(why) if listed.managed => format!("{}: {subnets}: {why}", node.name),
            _ => wire::render_key(subnets),
        },
        Ok(None) => format!("{}: no podCIDR is assigned", node.name),
        Err(why) => format!("{}: {why}", node.name),
    };
    Entry {
        key,
        value: value.into_bytes().into(),
        created: node.created,
        modified: 0,
        lease: 0,
    }
}

fn parsed(text: &str) -> Result<Value, KubeTrouble> {
    serde_json::from_str(text).map_err(|error| KubeTrouble::Answer(error.to_string()))
}
