//! Test environment: a network namespace with an underlay interface and one node of the network.

use backends::status::NetworkHandle;
use backends::{Announced, Inputs, Options, Setup, Status, Underlay, join_network};
use netstate::report::inspect::{Inspection, inspect_kernel};
use netstate::report::protocols::Protocols;
use nix::sched::{CloneFlags, setns};
use reconcile::questions::KernelAudit;
use serde_json::Value;
use std::collections::BTreeSet;
use std::future::Future;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use subnet_lease::{Lease, LeaseAttrs, LeaseTable, NetworkConfig, RawJson, Term};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use types::{Addresses, Subnets};

pub(crate) const DUAL: &str = r#"{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd10:244::/48","Backend":BACKEND}"#;
pub(crate) const V4: &str = r#"{"Network":"10.244.0.0/16","Backend":BACKEND}"#;
pub(crate) const V6: &str =
    r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":BACKEND}"#;

/// Deletes the network namespace when dropped.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

/// The namespace has an underlay `eth0` (192.168.56.101, fd00:56::101, MTU 1500).
pub(crate) fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    wait::start_test_time_limit();
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    assert!(nix::unistd::geteuid().is_root(), "this test needs root: it makes network namespaces");
    let namespace =
        Namespace(format!("fl-be-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed)));
    sh(&format!("ip netns add {}", namespace.0));
    let path = format!("/run/netns/{}", namespace.0);
    let thread = std::thread::spawn(move || {
        let file = std::fs::File::open(&path).unwrap();
        setns(file, CloneFlags::CLONE_NEWNET).unwrap();
        sh(
            "ip link set lo up; sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0",
        );
        create_underlay();
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(test());
    });
    if let Err(panic) = thread.join() {
        drop(namespace);
        std::panic::resume_unwind(panic);
    }
}

/// `eth0`, also in place of a deleted one.
pub(crate) fn create_underlay() {
    sh(
        "ip link add eth0 type veth peer name wire0; ip link set wire0 addrgenmode none up; ip link set eth0 up",
    );
    sh("ip addr add 192.168.56.101/24 dev eth0; ip addr add fd00:56::101/64 dev eth0 nodad");
    // The kernel assigns it when it has seen the carrier.
    let link_local = || sh("ip -6 route show fe80::/64 dev eth0").contains("fe80");
    wait::until("eth0 has its link-local address", link_local).unwrap();
}

/// The command must succeed.
pub(crate) fn sh(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn json(command: &str) -> Vec<Value> {
    let text = sh(command);
    if text.trim().is_empty() { Vec::new() } else { serde_json::from_str(&text).unwrap() }
}

/// A wait that hangs shows the kernel's objects.
pub(crate) async fn until(what: &str, condition: impl FnMut() -> bool) {
    if let Err(hangs) = wait::until_async(what, condition).await {
        panic!("{hangs}\n{}", state().into_iter().collect::<Vec<_>>().join("\n"));
    }
}

/// The kernel objects of the namespace, one line per object.
pub(crate) fn state() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for link in json("ip -d -j link show type vxlan") {
        let data = &link["linkinfo"]["info_data"];
        let local = data.get("local").or(data.get("local6")).unwrap_or(&Value::Null);
        let flags = link["flags"].to_string().contains("\"UP\"");
        lines.insert(format!(
            "link {} mtu {} mac {} up {flags} vni {} local {} lower {} port {} learning {} txqlen {}",
            link["ifname"],
            link["mtu"],
            link["address"],
            data["id"],
            local,
            data["link"],
            data["port"],
            data["learning"],
            link.get("txqlen").unwrap_or(&Value::from(0))
        ));
    }
    for link in json("ip -j addr show") {
        for address in link["addr_info"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|address| address["scope"] == "global")
        {
            lines.insert(format!(
                "address {} {}/{}",
                link["ifname"], address["local"], address["prefixlen"]
            ));
        }
    }
    for family in ["-4", "-6"] {
        for route in json(&format!("ip {family} -d -j route show table main")) {
            lines.insert(format!(
                "route {} {} via {} dev {} proto {} scope {} metric {} {}",
                route["type"],
                route["dst"],
                route["gateway"],
                route["dev"],
                route["protocol"],
                route["scope"],
                route["metric"],
                route["flags"]
            ));
        }
    }
    for neighbor in json("ip -j neigh show nud permanent") {
        lines.insert(format!(
            "neighbour {} {} {}",
            neighbor["dev"], neighbor["dst"], neighbor["lladdr"]
        ));
    }
    for entry in json("bridge -j fdb show").iter().filter(|entry| entry.get("dst").is_some()) {
        lines.insert(format!(
            "fdb {} {} {} {} {}",
            entry["ifname"], entry["mac"], entry["dst"], entry["flags"], entry["state"]
        ));
    }
    lines.into_iter().map(|line| line.replace('"', "")).collect()
}

/// A line of [`state`] contains this text.
pub(crate) fn shows(text: &str) -> bool {
    count(text) > 0
}

/// The lines of [`state`] that contain this text.
pub(crate) fn count(text: &str) -> usize {
    state().iter().filter(|line| line.contains(text)).count()
}

/// The interface index of vxlan's IPv4 device.
pub(crate) fn index() -> Value {
    json("ip -j link show flannel.1")[0]["ifindex"].clone()
}

/// The underlay as the daemon passes it to backends.
pub(crate) fn underlay(dual: bool) -> Underlay {
    let link = &json("ip -j link show eth0")[0];
    let (v4, v6) = ("192.168.56.101".parse().unwrap(), "fd00:56::101".parse().unwrap());
    let addresses = if dual { Addresses::Both(v4, v6) } else { Addresses::V4(v4) };
    Underlay {
        index: u32::try_from(link["ifindex"].as_u64().unwrap()).unwrap(),
        name: "eth0".to_owned(),
        mtu: u32::try_from(link["mtu"].as_u64().unwrap()).unwrap(),
        addresses,
        public: addresses,
        local: vec!["192.168.56.101/24".parse().unwrap(), "fd00:56::101/64".parse().unwrap()],
        links: Vec::new(),
    }
}

/// The network configuration is `template` with the `Backend` object `backend`.
pub(crate) fn setup(template: &str, backend: &str) -> Setup {
    let config = NetworkConfig::parse(&template.replace("BACKEND", backend)).unwrap();
    Setup { node_id: "node-1".to_owned(), ..Setup::of(config) }
}

/// Subnets, addresses and MACs follow from `n`.
pub(crate) fn lease(setup: &Setup, n: u16) -> Lease {
    let [high, low] = n.to_be_bytes();
    let v4 = setup
        .config
        .networks
        .v4()
        .map(|_| format!("10.{}.{low}.0/24", 244 + high).parse().unwrap());
    let v6 = setup.config.networks.v6().map(|_| format!("fd10:244:0:{n:x}::/64").parse().unwrap());
    let data = |family: u8| {
        RawJson::of(
            &serde_json::json!({"VNI": 1, "VtepMAC": format!("02:00:0{family}:00:{high:02x}:{low:02x}")}),
        )
    };
    let vxlan = setup.config.backend == "vxlan";
    let attrs = LeaseAttrs {
        public_ip: v4.map(|_| format!("192.168.{}.{low}", 56 + high).parse().unwrap()),
        public_ipv6: v6.map(|_| format!("fd00:56::{:x}", 0x1000 + n).parse().unwrap()),
        backend: if setup.config.backend == "alloc" {
            String::new()
        } else {
            setup.config.backend.clone()
        },
        data: v4.filter(|_| vxlan).map(|_| data(4)),
        v6_data: v6.filter(|_| vxlan).map(|_| data(6)),
        ..LeaseAttrs::default()
    };
    Lease {
        subnets: Subnets::from_options(v4, v6).unwrap(),
        attrs,
        term: Term::Leased,
        since: i64::from(n),
    }
}

/// Node 1 of the network.
pub(crate) struct Node {
    pub setup: Setup,
    pub announced: Announced,
    pub leases: watch::Sender<Arc<LeaseTable>>,
    pub underlay: watch::Sender<Underlay>,
    pub out: watch::Receiver<Announced>,
    observer: Arc<dyn NetworkHandle>,
    kernel_audit: KernelAudit,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

pub(crate) fn table(setup: &Setup, peers: impl IntoIterator<Item = u16>) -> LeaseTable {
    LeaseTable::of(peers.into_iter().map(|n| lease(setup, n)), BTreeSet::new())
}

impl Node {
    /// `peers` are the nodes in its lease table.
    pub(crate) async fn start(setup: Setup, peers: impl IntoIterator<Item = u16>) -> Self {
        let table = table(&setup, peers);
        Self::start_with(setup, table).await
    }

    pub(crate) async fn start_with(setup: Setup, table: LeaseTable) -> Self {
        Self::start_under(Options::default(), setup, table).await
    }

    /// Its own subnets have blackhole routes.
    pub(crate) async fn start_with_blackholes(
        setup: Setup,
        peers: impl IntoIterator<Item = u16>,
    ) -> Self {
        let table = table(&setup, peers);
        Self::start_under(Options { audit: None, blackhole: true }, setup, table).await
    }

    async fn start_under(options: Options, setup: Setup, table: LeaseTable) -> Self {
        let under = underlay(setup.config.networks.v6().is_some());
        let mut backend = backends::create_backend(&setup).unwrap();
        let own = lease(&setup, 1);
        let announced = backend.announce(&under, None).unwrap();
        let (reconciler, observer) =
            join_network(backend, own.subnets, &under, &table, options).await.unwrap();
        let kernel_audit = reconciler.kernel_audit();
        let (leases, leases_seen) = watch::channel(Arc::new(table));
        let (underlay, underlay_seen) = watch::channel(under);
        let (out_tell, out) = watch::channel(announced.clone());
        let stop = CancellationToken::new();
        let inputs = Inputs { leases: leases_seen, underlay: underlay_seen, stop: stop.clone() };
        let task = tokio::spawn(reconciler.run(inputs, out_tell));
        Self { setup, announced, leases, underlay, out, observer, kernel_audit, stop, task }
    }

    /// Replaces the lease table with the leases of the given nodes.
    pub(crate) fn peers(&self, peers: impl IntoIterator<Item = u16>) {
        self.leases.send_replace(Arc::new(table(&self.setup, peers)));
    }

    pub(crate) fn status(&self) -> Status {
        self.observer.status()
    }

    pub(crate) async fn inspect(&self) -> Inspection {
        inspect_kernel(&self.kernel_audit.look().await.unwrap(), Protocols::default())
    }

    pub(crate) fn writes(&self) -> u64 {
        self.status().kernel.writes
    }

    /// The subnets of the peers whose objects the kernel refuses.
    pub(crate) fn failed_peers(&self) -> Vec<String> {
        let failed = self.status().kernel.failed_peers;
        failed.iter().map(|failed| failed.peer.subnet.to_string()).collect()
    }

    /// Waits until the node is idle, and stops it.
    pub(crate) async fn finish(self) {
        self.idle().await;
        self.stop().await;
    }

    /// No pass for a quarter of a second.
    pub(crate) async fn idle(&self) {
        let mut last = (self.status().kernel.passes, Instant::now());
        until("the loop is idle", || {
            let passes = self.status().kernel.passes;
            if passes != last.0 {
                last = (passes, Instant::now());
            }
            last.1.elapsed() >= Duration::from_millis(250)
        })
        .await;
        assert!(self.status().kernel.in_sync, "{}", self.status().kernel.trouble_text());
    }

    /// The node's objects remain in the kernel.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

pub(crate) fn mac_of(data: &RawJson) -> String {
    let value: Value = serde_json::from_str(data.as_str()).unwrap();
    value["VtepMAC"].as_str().unwrap().to_owned()
}
