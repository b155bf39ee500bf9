//! The Nodes of one case, in an API server that other cases share. The case has its own names and its own network.

use crate::api_server::Api;
use lab::Proxy;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use subnet_lease::kube::annotations::Prefix;
use subnet_lease::kube::{Identity, KubeManager, KubeOptions, server_url};
use subnet_lease::wire;
use types::Dual;

pub(crate) const PREFIX: &str = "flannel.alpha.coreos.com";

pub(crate) struct Cluster {
    api: Arc<Api>,
    /// The way of the case's managers to the server.
    proxy: Proxy,
    case: String,
    /// Second octet of the case's network: 10.number.0.0/16 instead of 10.5.0.0/16.
    number: u8,
    folder: tempfile::TempDir,
    names: Mutex<Vec<String>>,
}

impl Cluster {
    pub(crate) fn new(api: Arc<Api>, case: &str) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(100);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let case = case.replace('_', "-");
        Self {
            proxy: api.proxy(),
            api,
            case,
            number,
            folder: tempfile::tempdir().unwrap(),
            names: Mutex::default(),
        }
    }

    /// The network of this case replaces 10.5.0.0/16 in the text.
    pub(crate) fn here(&self, text: &str) -> String {
        text.replace("10.5.", &format!("10.{}.", self.number))
    }

    pub(crate) fn full(&self, name: &str) -> String {
        format!("{name}.{}", self.case)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("/api/v1/nodes/{}", self.full(name))
    }

    pub(crate) fn configure(&self, text: &str) {
        std::fs::write(self.folder.path().join("net-conf.json"), self.here(text)).unwrap();
    }

    /// Opens or closes the connection between the managers and the API server.
    pub(crate) fn reachable(&self, open: bool) {
        if open {
            self.proxy.forward_all_requests();
        } else {
            self.proxy.close_present_and_new_connections();
        }
    }

    /// The Node may not exist.
    pub(crate) async fn manager(&self, name: &str) -> KubeManager {
        let options = KubeOptions {
            urls: vec![server_url(&self.proxy.url()).unwrap()],
            kubeconfig: None,
            prefix: Prefix::parse(PREFIX).unwrap(),
            net_conf: self.folder.path().join("net-conf.json"),
            clear_condition: true,
            identity: Identity::Node(self.full(name)),
            user_agent: "contract/1".to_owned(),
            up: std::time::Duration::from_secs(3600),
        };
        KubeManager::open(options).await.unwrap()
    }

    /// Creates a Node with the next podCIDR, unless it exists.
    pub(crate) fn register(&self, name: &str) {
        let at = {
            let mut names = self.names.lock().unwrap();
            if names.iter().any(|known| known == name) {
                return;
            }
            names.push(name.to_owned());
            names.len()
        };
        self.create(name, &json!([format!("10.5.{at}.0/24")]), &[]);
    }

    /// With the annotations that a daemon publishes.
    pub(crate) fn create(&self, name: &str, cidrs: &Value, annotations: &[(&str, &str)]) {
        let first = self.here(cidrs.get(0).and_then(Value::as_str).unwrap_or_default());
        let cidrs: Value = serde_json::from_str(&self.here(&cidrs.to_string())).unwrap();
        let annotations: Value = annotations
            .iter()
            .map(|(name, value)| (format!("{PREFIX}/{name}"), json!(value)))
            .collect();
        let mut spec = json!({ "podCIDRs": cidrs, "podCIDR": first });
        if first.is_empty() {
            spec = json!({});
        }
        let node = json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "name": self.full(name), "annotations": annotations }, "spec": spec });
        self.ask("POST", "/api/v1/nodes", Some(("application/json", &node)));
    }

    pub(crate) fn delete_node(&self, name: &str) {
        self.ask("DELETE", &self.path(name), None);
    }

    /// As a client other than the manager.
    pub(crate) fn patch(&self, name: &str, patch: &Value) -> Value {
        let body = ("application/merge-patch+json", patch);
        self.ask("PATCH", &self.path(name), Some(body))
    }

    pub(crate) fn annotate(&self, name: &str, annotation: &str, value: Option<&str>) {
        self.patch(name, &json!({ "metadata": { "annotations": { annotation: value } } }));
    }

    pub(crate) fn node(&self, name: &str) -> Value {
        self.ask("GET", &self.path(name), None)
    }

    fn ask(&self, method: &str, path: &str, body: Option<(&str, &Value)>) -> Value {
        let (status, answer) = self.answer(method, path, body);
        assert!(status < 300, "{method} {path}: {status} {answer}");
        answer
    }

    /// Sends a request past the manager. Gives the status code and the body.
    pub(crate) fn answer(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> (u16, Value) {
        tokio::task::block_in_place(|| self.api.admin().request(method, path, body)).unwrap()
    }

    /// The Nodes of this case on which flannel runs: the keys of their podCIDRs, and their annotations.
    fn served(&self) -> Vec<(String, Value)> {
        let list = self.ask("GET", "/api/v1/nodes", None);
        let of_case = |node: &&Value| {
            node["metadata"]["name"]
                .as_str()
                .is_some_and(|name| name.ends_with(&format!(".{}", self.case)))
        };
        let served = |node: &&Value| {
            node["metadata"]["annotations"][format!("{PREFIX}/kube-subnet-manager")] == "true"
        };
        let key = |node: &Value| {
            wire::render_key(&Dual::V4(node["spec"]["podCIDR"].as_str().unwrap().parse().unwrap()))
        };
        let nodes = list["items"].as_array().unwrap().iter().filter(of_case).filter(served);
        nodes.map(|node| (key(node), node["metadata"]["annotations"].clone())).collect()
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.served().into_iter().map(|(key, _)| key).collect()
    }

    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.served()
            .into_iter()
            .find(|(known, _)| known == key)
            .map(|(_, annotations)| annotations.to_string())
    }

    /// Deletes the Node with this podCIDR.
    pub(crate) fn delete(&self, key: &str) {
        let name = self.ask("GET", "/api/v1/nodes", None)["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|node| {
                node["spec"]["podCIDR"]
                    .as_str()
                    .is_some_and(|cidr| wire::render_key(&Dual::V4(cidr.parse().unwrap())) == key)
            })
            .and_then(|node| node["metadata"]["name"].as_str().map(str::to_owned))
            .expect("a Node with that podCIDR");
        self.ask("DELETE", &format!("/api/v1/nodes/{name}"), None);
    }
}
