//! The Nodes of one case, in an API server that other cases share. The case has its own names and its own network.

use crate::api_server::{ApiServer, Gate, Hand};
use http::Method;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use subnet_lease::kube::annotations::Prefix;
use subnet_lease::kube::{Identity, KubeManager, KubeOptions};
use subnet_lease::wire;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use types::Dual;

pub(crate) const PREFIX: &str = "flannel.alpha.coreos.com";

pub(crate) struct Cluster {
    server: Arc<ApiServer>,
    case: String,
    /// Second octet of the case's network: 10.number.0.0/16 instead of 10.5.0.0/16.
    number: u8,
    folder: tempfile::TempDir,
    names: Mutex<Vec<String>>,
    access: OnceCell<(Hand, Gate)>,
}

/// Blocks the thread of a case until a future completes.
fn wait<T>(what: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| Handle::current().block_on(what))
}

impl Cluster {
    pub(crate) fn new(server: Arc<ApiServer>, case: &str) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(100);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let case = case.replace('_', "-");
        Self {
            server,
            case,
            number,
            folder: tempfile::tempdir().unwrap(),
            names: Mutex::default(),
            access: OnceCell::new(),
        }
    }

    async fn access(&self) -> &(Hand, Gate) {
        let open = async || {
            let hand = Hand::new(
                &self
                    .server
                    .kubeconfig(&format!("{}-hand", self.case), self.server.port()),
            )
            .await;
            (hand, Gate::before(self.server.port()).await)
        };
        self.access.get_or_init(open).await
    }

    /// Returns a text with the network of this case instead of 10.5.0.0/16.
    pub(crate) fn here(&self, text: &str) -> String {
        text.replace("10.5.", &format!("10.{}.", self.number))
    }

    fn full(&self, name: &str) -> String {
        format!("{name}.{}", self.case)
    }

    pub(crate) fn configure(&self, text: &str) {
        std::fs::write(self.folder.path().join("net-conf.json"), self.here(text)).unwrap();
    }

    /// Opens or closes the connection between the managers and the API server.
    pub(crate) fn reachable(&self, open: bool) {
        wait(async { self.access().await.1.set(open) });
    }

    /// Creates the manager of a Node that may not exist.
    pub(crate) async fn manager(&self, name: &str) -> KubeManager {
        let port = self.access().await.1.port;
        let options = KubeOptions {
            urls: Vec::new(),
            kubeconfig: Some(
                self.server
                    .kubeconfig(&format!("{}-{name}", self.case), port),
            ),
            prefix: Prefix::parse(PREFIX).unwrap(),
            net_conf: self.folder.path().join("net-conf.json"),
            clear_condition: true,
            identity: Identity::Node(self.full(name)),
            user_agent: "contract/1".to_owned(),
            up: std::time::Duration::from_secs(3600),
        };
        KubeManager::open(options).await.unwrap()
    }

    /// Creates a Node with the next podCIDR, unless the Node exists.
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

    /// Creates a Node with the given podCIDRs, and with the annotations that a daemon publishes.
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
        self.ask(
            &Method::POST,
            "/api/v1/nodes",
            "application/json",
            Some(&node),
        );
    }

    pub(crate) fn delete_node(&self, name: &str) {
        self.ask(
            &Method::DELETE,
            &format!("/api/v1/nodes/{}", self.full(name)),
            "application/json",
            None,
        );
    }

    /// Patches a Node as a client other than the manager.
    pub(crate) fn patch(&self, name: &str, patch: &Value) -> Value {
        self.ask(
            &Method::PATCH,
            &format!("/api/v1/nodes/{}", self.full(name)),
            "application/merge-patch+json",
            Some(patch),
        )
    }

    pub(crate) fn annotate(&self, name: &str, annotation: &str, value: Option<&str>) {
        self.patch(
            name,
            &json!({ "metadata": { "annotations": { annotation: value } } }),
        );
    }

    pub(crate) fn node(&self, name: &str) -> Value {
        self.ask(
            &Method::GET,
            &format!("/api/v1/nodes/{}", self.full(name)),
            "application/json",
            None,
        )
    }

    fn ask(&self, method: &Method, path: &str, content: &str, body: Option<&Value>) -> Value {
        wait(async {
            self.access()
                .await
                .0
                .ask(method.clone(), path, content, body)
                .await
        })
        .unwrap_or_else(|why| panic!("{method} {path}: {why}"))
    }

    /// Returns the Nodes of this case on which flannel runs: the keys of the Nodes' podCIDRs, and the Nodes' annotations.
    fn served(&self) -> Vec<(String, Value)> {
        let list = self.ask(&Method::GET, "/api/v1/nodes", "application/json", None);
        let of_case = |node: &&Value| {
            node["metadata"]["name"]
                .as_str()
                .is_some_and(|name| name.ends_with(&format!(".{}", self.case)))
        };
        let served = |node: &&Value| {
            node["metadata"]["annotations"][format!("{PREFIX}/kube-subnet-manager")] == "true"
        };
        let key = |node: &Value| {
            wire::render_key(&Dual::V4(
                node["spec"]["podCIDR"].as_str().unwrap().parse().unwrap(),
            ))
        };
        let nodes = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(of_case)
            .filter(served);
        nodes
            .map(|node| (key(node), node["metadata"]["annotations"].clone()))
            .collect()
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

    /// Deletes the Node with the given podCIDR.
    pub(crate) fn delete(&self, key: &str) {
        let name = self.ask(&Method::GET, "/api/v1/nodes", "application/json", None)["items"]
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
        self.ask(
            &Method::DELETE,
            &format!("/api/v1/nodes/{name}"),
            "application/json",
            None,
        );
    }
}
