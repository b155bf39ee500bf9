//! A real kube-apiserver on loopback with its own etcd, and a proxy that can cut one case off from the server.

use crate::etcd_server::{EtcdServer, Version, free_port};
use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const TOKEN: &str = "token-of-admin";

/// A server and its etcd; both programs end when the test drops `ApiServer`.
pub(crate) struct ApiServer {
    folder: tempfile::TempDir,
    port: u16,
    child: Child,
    _etcd: EtcdServer,
}

/// Returns the path of kube-apiserver: the installed program, or the program that `make setup` installs.
fn program() -> PathBuf {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into()));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map_or_else(|| home.join(".cache"), PathBuf::from)
        .join("flannel-rs/kubernetes-1.36");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::var_os("KUBEBUILDER_ASSETS")
        .map(PathBuf::from)
        .into_iter()
        .chain(std::env::split_paths(&path))
        .chain([cache]);
    let found = folders
        .map(|folder| folder.join("kube-apiserver"))
        .find(|program| program.is_file());
    found.expect("there is no kube-apiserver: run `make setup`")
}

/// Writes the certificate of a test CA, and a server certificate with the private key.
fn certificates(folder: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    std::fs::write(
        folder.join("ca.pem"),
        params.self_signed(&key).unwrap().pem(),
    )
    .unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(
        folder.join("server.pem"),
        params.signed_by(&key, &issuer).unwrap().pem(),
    )
    .unwrap();
    std::fs::write(folder.join("server-key.pem"), key.serialize_pem()).unwrap();
}

impl ApiServer {
    pub(crate) fn start() -> Self {
        let mut etcd = EtcdServer::new(Version::V3_6);
        etcd.start();
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        certificates(folder.path());
        std::fs::write(
            folder.path().join("tokens.csv"),
            format!("{TOKEN},admin,1,\"system:masters\"\n"),
        )
        .unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let file =
            |flag: &str, name: &str| format!("--{flag}={}", folder.path().join(name).display());
        let child = Command::new(program())
            .arg(format!("--etcd-servers={}", etcd.endpoint()))
            .args([
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.96.0.0/16",
            ])
            .args([
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
            ])
            .arg(format!("--secure-port={port}"))
            .args([
                file("service-account-key-file", "server.pem"),
                file("service-account-signing-key-file", "server-key.pem"),
            ])
            .args([
                file("tls-cert-file", "server.pem"),
                file("tls-private-key-file", "server-key.pem"),
            ])
            .args([
                file("token-auth-file", "tokens.csv"),
                format!("--cert-dir={}", folder.path().display()),
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self {
            folder,
            port,
            child,
            _etcd: etcd,
        };
        server.wait();
        server
    }

    fn wait(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let begun = Instant::now();
        loop {
            let ready = runtime.block_on(async {
                let request = Request::get("/readyz").body(Vec::new()).unwrap();
                Hand::new(&self.kubeconfig("admin", self.port))
                    .await
                    .client
                    .request_text(request)
                    .await
            });
            let Err(why) = ready else { return };
            let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "the API server ended: {}",
                log()
            );
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "the API server is not ready: {why}\n{}",
                log()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Writes a kubeconfig with the given name, for access to the API server through the given port.
    pub(crate) fn kubeconfig(&self, name: &str, port: u16) -> PathBuf {
        let path = self.folder.path().join(format!("{name}.kubeconfig"));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "t",
            "clusters": [{ "name": "t", "cluster": {
                "server": format!("https://127.0.0.1:{port}"), "certificate-authority": self.folder.path().join("ca.pem") } }],
            "users": [{ "name": "t", "user": { "token": TOKEN } }],
            "contexts": [{ "name": "t", "context": { "cluster": "t", "user": "t" } }],
        });
        // Every JSON document is also YAML.
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Client with the permissions of an administrator.
#[derive(Clone)]
pub(crate) struct Hand {
    client: Client,
}

impl Hand {
    pub(crate) async fn new(kubeconfig: &Path) -> Self {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .unwrap();
        Self {
            client: Client::try_from(config).unwrap(),
        }
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<Value, kube::Error> {
        let body = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(body)
            .unwrap();
        self.client.request(request).await
    }
}

/// Proxy that forwards connections to a server while the proxy is open.
pub(crate) struct Gate {
    pub port: u16,
    open: Arc<watch::Sender<bool>>,
    task: tokio::task::JoinHandle<()>,
}

impl Gate {
    pub(crate) async fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::new(watch::Sender::new(true));
        let opened = open.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut opened = opened.subscribe();
                tokio::spawn(async move {
                    if !*opened.borrow_and_update() {
                        return;
                    }
                    let Ok(mut far) = TcpStream::connect(("127.0.0.1", server)).await else {
                        return;
                    };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = opened.changed() => {}
                    }
                });
            }
        });
        Self { port, open, task }
    }

    /// Opens or closes the proxy. A closed proxy ends every connection, including new connections.
    pub(crate) fn set(&self, open: bool) {
        self.open.send_replace(open);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
        self.open.send_replace(false);
    }
}
