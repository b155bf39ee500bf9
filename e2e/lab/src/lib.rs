//! A simulated data centre on one machine: hosts, pods, switches, routers and NAT boxes in network namespaces.
//!
//! A [`Lab`] owns all objects that tests build in it and removes them on drop. Hosts run the real daemon ([`Flanneld`]) and the real
//! store ([`Etcd`]). [`Probe`], [`Transfer`] and [`PingMatrix`] check whether traffic arrives.
//!
//! A module depends only on modules that come earlier in a fixed order. The order of the modules is `output`, `net`
//! (namespaces, switches), `site` (names, removal), `host` (hosts, pods, routers, processes), `lab`, `store`,
//! `daemon`, `measure`, `kube` ([`ApiServer`], [`Cluster`]), [`Testbed`].
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use lab::{FlanneldOptions, Lab, Store};
//! let lab = Lab::create("demo")?;
//! let lan = lab.create_switch("lan")?;
//! let hosts = lab.create_hosts(&lan, 2)?;
//! let store = Store::dir(&lab.ensure_folder("leases")?);
//! store.configure(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#)?;
//! let mut pods = Vec::new();
//! let mut daemons = Vec::new();
//! for host in &hosts {
//!     let daemon = host.start_flanneld_and_wait_ready(&FlanneldOptions::new(&store).iface("enp0s8"))?;
//!     pods.push(host.create_pod("p1", &daemon.subnet_env()?)?);
//!     daemons.push(daemon);
//! }
//! lab::PingMatrix::of_main_addresses(&pods)?.require_complete()?;
//! # Ok(())
//! # }
//! ```

pub mod binaries;

mod daemon;
mod testbed;

mod host;
mod kube;
mod lab;
mod measure;
mod net;
mod output;
mod scene;
mod site;
mod store;
mod vagrant;

pub use binaries::{CniVersion, EtcdVersion};
pub use daemon::file_store::FileStore;
pub use daemon::flanneld::{Flanneld, FlanneldOptions};
pub use daemon::programs::{Programs, Xtables, write_script};
pub use host::Host;
pub use host::cable::Cable;
pub use host::cni::{Cni, CniAnswer};
pub use host::hang::Hang;
pub use host::monitor::Monitor;
pub use host::nat::NatBox;
pub use host::pod::Pod;
pub use host::process::{Launch, Process};
pub use host::subnet_env::SubnetEnv;
pub use host::uplink::Uplink;
pub use kube::api_server::{ApiServer, Families};
pub use kube::client::ApiClient;
pub use kube::cluster::member::Member;
pub use kube::cluster::{Cluster, ClusterOptions, ProxyMode};
pub use kube::door::Door;
pub use kube::fake::FakeApi;
pub use kube::node::{ANNOTATIONS, NodeObject};
pub use kube::proxy::{Answer, Call, Proxy};
pub use kube::users::User;
pub use lab::Lab;
pub use measure::capture::{Capture, Frame, frame_contains_bytes};
pub use measure::craft;
pub use measure::echo::{Echo, ask_seen_source_per_port};
pub use measure::mesh::Mesh;
pub use measure::ping::{
    PingMatrix, PingOptions, ping_address, wait_ping_answered, wait_pods_connected,
};
pub use measure::probe::{Probe, ProbeOptions};
pub use measure::report::{Passage, ProbeReport};
pub use measure::transfer::{Transfer, TransferOptions};
pub use net::http::send_get_request as http_get;
pub use net::multicast::MulticastRoutes;
pub use net::netns::Netns;
pub use net::observe;
pub use net::switch::Switch;
pub use output::{
    describe_outcome, require_success, stderr_text, stdout_and_stderr, stdout_json, stdout_text,
};
pub use scene::{Node, Scene, SceneOptions};
pub use site::limits::raise_kernel_limit;
pub use site::sweep::{
    remove_labs_of_ended_processes, remove_own_unkept_labs, remove_stale_unkept_labs,
};
pub use store::Store;
pub use store::ca::Certificates;
pub use store::etcd::{Etcd, EtcdOptions};
pub use store::etcd_client::{EtcdClient, KeyValue};
pub use testbed::Testbed;
pub use vagrant::Vagrant;
pub use wait::{until, until_ok};

/// The default if the variable is unset or not a number.
pub fn env_number<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
