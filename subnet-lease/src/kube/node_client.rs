//! Reads and changes the Nodes of a cluster for an operator's tools.

use super::annotations;
use super::api::{Api, Call};
use super::follow::pages;
use super::node::Node;
use super::options::KubeOptions;
use super::requests;
use crate::config::NetworkConfig;
use crate::entry::{Entry, Listing};
use crate::lease::{LeaseAttrs, NodeId};
use crate::manager::{Error, LeaseStore, Liveness, Nature};
use crate::wire;
use async_trait::async_trait;
use http::StatusCode;
use serde_json::Value;
use std::sync::Arc;
use types::{Problem, Subnets};

/// A Node in the form that tools display.
#[derive(Clone, Debug)]
pub struct Listed {
    pub node: Node,
    /// Flannel runs on the Node.
    pub managed: bool,
    /// The error names the unreadable annotation.
    pub attrs: Result<LeaseAttrs, Problem>,
}

pub struct NodeClient {
    api: Arc<Api>,
}

impl NodeClient {
    /// It connects on the first request.
    #[must_use]
    pub fn new(options: KubeOptions) -> Self {
        Self { api: Arc::new(Api::new(options)) }
    }

    /// For a daemon, over its connection.
    pub(super) fn over(api: &Arc<Api>) -> Self {
        Self { api: api.clone() }
    }

    pub async fn list(&self) -> Result<Vec<Listed>, Problem> {
        let nodes = pages(&self.api, None).await?.0;
        let listed = |node: Node| Listed {
            managed: annotations::managed(&node.annotations),
            attrs: annotations::read(&node.annotations),
            node,
        };
        Ok(nodes.into_iter().map(listed).collect())
    }

    /// Reads the file that a daemon's pod mounts. If it does not exist, the ConfigMap `kube-flannel-cfg` is read, in any namespace.
    pub async fn config(&self) -> Result<NetworkConfig, Problem> {
        let file = &self.api.options().net_conf;
        let (place, text) = match crate::file::read(file).await {
            Ok(text) => (file.display().to_string(), String::from_utf8_lossy(&text).into_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.config_map().await?,
            Err(error) => {
                let text = format!("cannot read {}: {error}", file.display());
                return Err(Problem::new("file-unreadable", text));
            }
        };
        NetworkConfig::parse_assigned(&text)
            .map_err(|why| Problem { text: format!("{place}: {why}"), ..why })
    }

    /// Its name and its text.
    async fn config_map(&self) -> Result<(String, String), Problem> {
        let all = "/api/v1/configmaps?fieldSelector=metadata.name%3Dkube-flannel-cfg";
        let found = self
            .api
            .read(&Call::get("list-configmaps", "find the ConfigMap kube-flannel-cfg", all))
            .await;
        let maps: Vec<Value> = match found {
            Ok(text) => parsed(&text)?
                .pointer("/items")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
            // Without permission for all namespaces, this ConfigMap may still be readable.
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
                vec![parsed(&text?)?]
            }
            Err(failure) => return Err(failure.into()),
        };
        let named = |map: &Value| {
            let namespace = map
                .pointer("/metadata/namespace")
                .and_then(Value::as_str)
                .unwrap_or("kube-flannel");
            let text = map.pointer("/data/net-conf.json").and_then(Value::as_str)?;
            Some((format!("the ConfigMap {namespace}/kube-flannel-cfg"), text.to_owned()))
        };
        let mut maps: Vec<(String, String)> = maps.iter().filter_map(named).collect();
        maps.dedup_by(|one, other| one.1 == other.1);
        match maps.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(Problem::new(
                "no-configmap",
                "no ConfigMap kube-flannel-cfg contains a net-conf.json; name a copy of the file with --net-config-path",
            )),
            several => {
                let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
                let text = format!(
                    "{} differ; delete the ConfigMaps that no daemon uses, or name a copy of the file with --net-config-path",
                    names.join(" and ")
                );
                Err(Problem::new("configmaps-differ", text))
            }
        }
    }

    /// Removes the annotation `kube-subnet-manager`. One minute later, the peers treat the Node's lease as ended.
    pub async fn withdraw(&self, name: &str, uid: &str) -> Result<(), Problem> {
        let key = self.api.options().prefix.key(annotations::MANAGED);
        let change = [(key, None)].into_iter().collect();
        requests::annotate(&self.api, name, uid, &change).await?;
        Ok(())
    }
}

#[async_trait]
impl LeaseStore for NodeClient {
    fn place(&self) -> String {
        "the Nodes of Kubernetes".to_owned()
    }

    fn nature(&self) -> Nature {
        Nature { of_nodes: true, asks_a_server: false }
    }

    async fn config(&self) -> Result<NetworkConfig, Error> {
        NodeClient::config(self).await.map_err(Error::Unavailable)
    }

    async fn list(&self) -> Result<Listing, Problem> {
        Ok(Listing {
            revision: 0,
            entries: NodeClient::list(self).await?.iter().map(entry).collect(),
        })
    }

    /// Gives no heartbeat time, because only the kubelet reports whether a Node is alive.
    async fn liveness(&self, _: &Entry) -> Result<Liveness, Problem> {
        Ok(Liveness::default())
    }

    async fn release(&self, entry: &Entry) -> Result<bool, Problem> {
        let attrs = wire::parse_value(&entry.value).ok().filter(|_| entry.subnets().is_some());
        let Some(node) = attrs.and_then(|attrs| attrs.node) else {
            let text = format!("{} names no Node", entry.key);
            return Err(Problem::new("lease-without-node", text));
        };
        self.withdraw(&node.name, &node.instance).await.map(|()| true)
    }

    async fn reserve(&self, _: &Subnets, _: String, _: Option<&Entry>) -> Result<bool, Problem> {
        let text = "on Kubernetes, a node's subnet is its Node's podCIDR: flannelctl cannot reserve a subnet";
        Err(Problem::new("kubernetes-nothing-reserved", text))
    }
}

/// Converts a Node to an entry with a key as in key-value stores, for tools that show leases. Without a usable podCIDR, the key contains no subnet.
fn entry(listed: &Listed) -> Entry {
    let node = &listed.node;
    // The uid distinguishes a Node from one that was created again with the same name.
    let id = NodeId {
        id: node.name.as_str().into(),
        name: node.name.as_str().into(),
        instance: node.uid.clone(),
        ..NodeId::default()
    };
    let attrs = listed.attrs.clone().ok().filter(|_| listed.managed).unwrap_or_default();
    let value = wire::render_value(&LeaseAttrs { node: Some(id), ..attrs });
    let key = match &node.subnets {
        Ok(Some(subnets)) => match &listed.attrs {
            Err(why) if listed.managed => format!("{}: {subnets}: {why}", node.name),
            _ => wire::render_key(subnets),
        },
        Ok(None) => format!("{}: no podCIDR is assigned", node.name),
        Err(why) => format!("{}: {why}", node.name),
    };
    Entry { key, value: value.into_bytes().into(), created: node.created, modified: 0, lease: 0 }
}

fn parsed(text: &str) -> Result<Value, Problem> {
    serde_json::from_str(text).map_err(|error| Problem::new("kubernetes-answer", error.to_string()))
}
