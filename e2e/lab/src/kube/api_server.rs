//! An API server on a host of the lab: a real kube-apiserver with its own etcd, or the fake.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use rustls::ClientConfig;
use serde_json::{Value, json};

use crate::binaries::{self, EtcdVersion};
use crate::host::Host;
use crate::host::process::{Launch, Process};
use crate::kube::client::{ApiClient, Endpoint, tls_client_config};
use crate::kube::door::Door;
use crate::kube::fake::FakeApi;
use crate::kube::proxy::Proxy;
use crate::kube::users::{self, User};
use crate::store::ca::Certificates;
use crate::store::etcd::{Etcd, EtcdOptions};
use wait::until_ok;

const PORT: u16 = 6443;

/// Of Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Families {
    /// From 10.96.0.0/16.
    #[default]
    V4,
    /// From fd00:96::/112.
    V6,
    /// IPv4 first.
    Dual,
}

impl Families {
    /// The Service ranges as command line arguments.
    pub(crate) fn service_ranges(self) -> &'static str {
        match self {
            Families::V4 => "10.96.0.0/16",
            Families::V6 => "fd00:96::/112",
            Families::Dual => "10.96.0.0/16,fd00:96::/112",
        }
    }
}

/// A drop ends it.
#[derive(Debug)]
pub struct ApiServer {
    server: Server,
    host: Host,
    families: Families,
    advertised: IpAddr,
    certificates: Certificates,
    names: Vec<IpAddr>,
    folder: PathBuf,
    tls: Arc<ClientConfig>,
}

#[derive(Debug)]
enum Server {
    Real(Box<Programs>),
    /// With what serves its port.
    Fake(FakeApi, Proxy),
}

/// Of a real server.
#[derive(Debug)]
struct Programs {
    process: Option<Process>,
    etcd: Etcd,
    /// An earlier Kubernetes version that the server emulates.
    emulated: Option<&'static str>,
}

impl ApiServer {
    /// Needs a host with a default route. Waits until the server responds, and grants the users their rights.
    pub fn start(host: &Host, families: Families) -> Result<ApiServer> {
        ApiServer::start_real(host, families, None)
    }

    /// Has the APIs and features of an earlier version, such as `1.34`, but no streamed lists.
    pub fn start_emulating_version(
        host: &Host,
        families: Families,
        version: &'static str,
    ) -> Result<ApiServer> {
        ApiServer::start_real(host, families, Some(version))
    }

    /// Needs no programs and speaks HTTP without TLS. [`ApiServer::kubectl`], [`ApiServer::process`] and tokens of service accounts need a real
    /// server.
    pub fn start_fake(host: &Host, families: Families) -> Result<ApiServer> {
        ApiServer::build(host, families, |advertised| {
            let api = FakeApi::with_endpoint_address(advertised);
            let door = api.serve(listen_on_host(host, SocketAddr::new(advertised, PORT))?)?;
            Ok(Server::Fake(api, door))
        })
    }

    fn start_real(
        host: &Host,
        families: Families,
        emulated: Option<&'static str>,
    ) -> Result<ApiServer> {
        let mut server = ApiServer::build(host, families, |_| {
            Ok(Server::Real(Box::new(Programs {
                process: None,
                etcd: Etcd::start(&[host], &EtcdOptions::default().version(EtcdVersion::Newest))?,
                emulated,
            })))
        })?;
        server.launch_and_wait_ready()?;
        until_ok("roles can be bound", || users::grant_user_rights(&server.admin()))?;
        Ok(server)
    }

    fn build(
        host: &Host,
        families: Families,
        server: impl FnOnce(IpAddr) -> Result<Server>,
    ) -> Result<ApiServer> {
        let folder = host.folder()?.join("kubernetes");
        std::fs::create_dir_all(&folder)?;
        let advertised = match families {
            Families::V6 => IpAddr::V6(host.v6()?),
            _ => IpAddr::V4(host.v4()?),
        };
        // Include the addresses of the Service `kubernetes`: pods verify the certificate against them.
        let mut names: Vec<IpAddr> =
            [host.v4().map(IpAddr::V4), host.v6().map(IpAddr::V6)].into_iter().flatten().collect();
        names.extend([
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)),
        ]);
        names.push("fd00:96::1".parse()?);
        let certificates = Certificates::create(&folder, &names)?;
        users::write_tokens(&folder.join("tokens.csv"))?;
        let tls = tls_client_config(&certificates.ca())?;
        Ok(ApiServer {
            server: server(advertised)?,
            host: host.clone(),
            families,
            advertised,
            certificates,
            names,
            folder,
            tls,
        })
    }

    /// `https://<address>:6443`.
    pub fn url(&self) -> String {
        match &self.server {
            Server::Real(_) => format!("https://{}", self.address(PORT)),
            Server::Fake(_, door) => door.url(),
        }
    }

    fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.advertised, port)
    }

    fn endpoint(&self) -> Endpoint {
        match &self.server {
            Server::Real(_) => Endpoint::Server {
                netns: self.host.netns().clone(),
                address: self.address(PORT),
                tls: Arc::clone(&self.tls),
            },
            Server::Fake(api, _) => Endpoint::Fake(Arc::new(api.clone())),
        }
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// Runs on the API server's host, with the rights of the administrator.
    pub fn admin(&self) -> ApiClient {
        self.client(User::Admin)
    }

    /// Runs on the API server's host.
    pub fn client(&self, user: User) -> ApiClient {
        ApiClient { endpoint: self.endpoint(), token: user.token() }
    }

    /// The service account token is bound to a pod. Creates the pod's object, but no node runs it.
    pub fn create_pod_and_client(
        &self,
        namespace: &str,
        service_account: &str,
        pod: &str,
        node: &str,
    ) -> Result<ApiClient> {
        let of = format!("/api/v1/namespaces/{namespace}");
        let spec = json!({ "nodeName": node, "serviceAccountName": service_account, "containers": [{ "name": "c", "image": "localhost/none" }] });
        let made = self
            .admin()
            .create(&format!("{of}/pods"), &json!({ "metadata": { "name": pod }, "spec": spec }))?;
        let bound = json!({ "kind": "Pod", "apiVersion": "v1", "name": pod, "uid": made["metadata"]["uid"] });
        self.request_service_account_client(
            namespace,
            service_account,
            &json!({ "boundObjectRef": bound }),
        )
    }

    /// Takes a token of a service account. `token` is the specification of the TokenRequest.
    pub fn request_service_account_client(
        &self,
        namespace: &str,
        service_account: &str,
        token: &Value,
    ) -> Result<ApiClient> {
        let path =
            format!("/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token");
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": token });
        let answer = self.admin().create(&path, &request)?;
        let token = answer["status"]["token"].as_str().context("a token")?.to_owned();
        Ok(ApiClient { token, ..self.admin() })
    }

    /// A kubeconfig with the user's token and this server's URL, or that of a proxy in front of it.
    pub fn write_kubeconfig(&self, user: User, server: Option<&str>) -> Result<PathBuf> {
        let url = self.url();
        let file = self.folder.join(format!(
            "{}{}.kubeconfig",
            user.name(),
            if server.is_some() { "-proxied" } else { "" }
        ));
        users::write_kubeconfig(
            &file,
            server.unwrap_or(&url),
            &self.certificates.ca(),
            &user.token(),
            None,
        )?;
        Ok(file)
    }

    /// A kubeconfig with a token file.
    pub fn write_kubeconfig_with_token_file(
        &self,
        server: &str,
        token_file: &Path,
    ) -> Result<PathBuf> {
        let file = self.folder.join("token-file.kubeconfig");
        users::write_kubeconfig(&file, server, &self.certificates.ca(), "", Some(token_file))?;
        Ok(file)
    }

    /// A kubeconfig with the user's token and the certificate authority in the file `authority`.
    pub fn write_kubeconfig_with_authority(&self, user: User, authority: &Path) -> Result<PathBuf> {
        let file = self.folder.join("authority.kubeconfig");
        users::write_kubeconfig(&file, &self.url(), authority, &user.token(), None)?;
        Ok(file)
    }

    /// The server uses the new certificates after its next restart.
    pub fn replace_certificates_for_restart(&mut self) -> Result<()> {
        self.certificates = Certificates::create(&self.folder, &self.names)?;
        self.tls = tls_client_config(&self.certificates.ca())?;
        Ok(())
    }

    /// The proxy is on the server's host.
    pub fn start_proxy(&self, port: u16) -> Result<Proxy> {
        Proxy::start(listen_on_host(&self.host, self.address(port))?, self.endpoint())
    }

    /// The proxy has a free port of the loopback address in the namespace of this process.
    pub fn start_loopback_proxy(&self) -> Result<Proxy> {
        Proxy::start(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, self.endpoint())
    }

    /// Another port, which redirects the nodes' connections to the server.
    pub fn open_redirecting_port(&self, port: u16) -> Result<Door> {
        Door::open_port_redirect(self.host.netns(), self.advertised, port, PORT)
    }

    /// Runs as the administrator. The result is the standard output.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let config = self.write_kubeconfig(User::Admin, None)?;
        let program = binaries::kubernetes_program("kubectl")?;
        let output = self
            .host
            .netns()
            .run(|| Command::new(program).arg("--kubeconfig").arg(config).args(args).output())??;
        if !output.status.success() {
            bail!("kubectl {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Sends SIGTERM, or SIGKILL if the server does not end in time. Its etcd keeps running.
    pub fn stop(&mut self) -> Result<()> {
        let process = match &mut self.server {
            Server::Real(programs) => programs.process.take(),
            Server::Fake(api, _) => {
                api.end_watches_and_refuse_requests();
                return Ok(());
            }
        };
        let mut process = process.context("the API server does not run")?;
        if process.terminate().is_err() {
            process.kill()?;
        }
        Ok(())
    }

    /// A test can freeze or kill it.
    pub fn process(&mut self) -> Result<&mut Process> {
        match &mut self.server {
            Server::Real(programs) => programs.process.as_mut(),
            Server::Fake(..) => None,
        }
        .context("the API server has no process")
    }

    /// Starts the server after [`ApiServer::stop`] and waits until it responds.
    pub fn start_after_stop(&mut self) -> Result<()> {
        ensure!(self.process().is_err(), "the API server runs already");
        self.launch_and_wait_ready()
    }

    /// All Kubernetes objects, in a file.
    pub fn snapshot(&self, file: &Path) -> Result<()> {
        match &self.server {
            Server::Real(programs) => programs.etcd.client_on_first_member()?.snapshot(file),
            Server::Fake(api, _) => api.snapshot(file),
        }
    }

    /// Stops the server, restores all objects, and starts it again, as operators do after a disaster.
    pub fn restore_and_restart(&mut self, snapshot: &Path) -> Result<()> {
        if self.process().is_ok() {
            self.stop()?;
        }
        match &mut self.server {
            Server::Real(programs) => programs.etcd.restore_and_restart_members(snapshot)?,
            Server::Fake(api, _) => api.restore(snapshot)?,
        }
        self.launch_and_wait_ready()
    }

    fn launch_and_wait_ready(&mut self) -> Result<()> {
        let emulated = match &self.server {
            Server::Real(programs) => programs.emulated,
            Server::Fake(api, _) => {
                api.accept_requests_again();
                return Ok(());
            }
        };
        let (folder, files) = (&self.folder, &self.certificates);
        let launch = Launch::new(binaries::kubernetes_program("kube-apiserver")?)
            .args([
                "--etcd-servers=http://127.0.0.1:2379",
                "--authorization-mode=Node,RBAC",
                "--allow-privileged=true",
            ])
            .args([
                "--service-account-issuer=https://kubernetes.default.svc",
                "--kubelet-preferred-address-types=InternalIP",
            ])
            .arg(format!("--service-account-key-file={}", files.server().display()))
            .arg(format!("--service-account-signing-key-file={}", files.server_key().display()))
            .arg(format!("--token-auth-file={}", folder.join("tokens.csv").display()))
            .arg(format!("--tls-cert-file={}", files.server().display()))
            .arg(format!("--tls-private-key-file={}", files.server_key().display()))
            .arg(format!("--client-ca-file={}", files.ca().display()))
            .arg(format!("--cert-dir={}", folder.display()))
            .arg(format!("--service-cluster-ip-range={}", self.families.service_ranges()))
            .arg(format!("--advertise-address={}", self.advertised))
            .arg(format!("--secure-port={PORT}"))
            .args(emulated.map(|version| format!("--emulated-version={version}")))
            .args(emulated.map(|_| "--feature-gates=WatchList=false"))
            // On shutdown, open watches end within seconds instead of a minute.
            .arg("--shutdown-watch-termination-grace-period=0s");
        let mut process = self.host.spawn("kube-apiserver", &launch)?;
        let admin = self.admin();
        until_ok("the API server is ready", || {
            if !process.is_running() {
                return Ok(Err(process.log_tail(10)));
            }
            let (code, body) = admin.request("GET", "/readyz", None)?;
            ensure!(code == 200, "{body}");
            Ok(Ok(()))
        })?
        .map_or_else(|log| bail!("the API server ended:\n{log}"), Ok)?;
        if let Server::Real(programs) = &mut self.server {
            programs.process = Some(process);
        }
        Ok(())
    }
}

fn listen_on_host(host: &Host, address: SocketAddr) -> Result<TcpListener> {
    host.netns()
        .run(|| TcpListener::bind(address))?
        .with_context(|| format!("listening on {address}"))
}
