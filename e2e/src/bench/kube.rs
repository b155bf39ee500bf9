//! Start of a daemon in a cluster of thousands of Nodes: time to the last route, memory, processor time, and API requests.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use lab::{ApiServer, Families, FlanneldOptions, Host, Lab, NodeObject, Uplink, User};

use crate::scale::{resident_memory_and_peak, stop_daemon_without_errors, sum_metrics};
use crate::table::Table;

/// The most that Kubernetes supports.
pub(crate) const NODES: u32 = 5000;
const ROUNDS: u32 = 5;
/// The InternalIP of the measured node.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 168, 56, 101);
const CLIENTS: usize = 8;
const DEADLINE: Duration = Duration::from_secs(120);
const NET_CONF: &str = r#"{"Network":"10.64.0.0/10","Backend":{"Type":"vxlan"}}"#;

/// Has as many image names as a kubelet reports, because they make up most of a Node's size.
fn node_with_images(number: u32) -> serde_json::Value {
    let [_, b, c, d] = number.to_be_bytes();
    let subnet = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 64, 0, 0)) + (number << 8));
    let public = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number);
    let node = NodeObject::new(&format!("node-{number}"))
        .pod_cidr(&format!("{subnet}/24"))
        .add_internal_address(public)
        .add_vxlan_annotations(&public.to_string(), &format!("02:11:22:{b:02x}:{c:02x}:{d:02x}"));
    let mut node = node.json();
    let image = |image: usize| serde_json::json!({ "names": [format!("registry.example.org/{image:0>128}@sha256:{image:0>64}")], "sizeBytes": 1_000_000 });
    if let Some(status) = node.pointer_mut("/status").and_then(serde_json::Value::as_object_mut) {
        status.insert("images".to_owned(), (0..50).map(image).collect());
    }
    node
}

/// Starts one node's daemon in a cluster of `nodes` Nodes.
pub(crate) fn measure_daemon_start_in_cluster(nodes: u32, table: &mut Table) -> Result<()> {
    let lab = Lab::create("bench")?;
    let lan = lab.create_switch("lan")?;
    let host = lab.create_host("h1", &[Uplink::enp0s8(&lan, 1)?])?;
    let machine =
        lab.create_host("api", &[Uplink::enp0s8(&lan, 99)?.gateway("192.168.56.254")?])?;
    let api = ApiServer::start(&machine, Families::V4)?;
    create_nodes(&api, nodes)?;
    let net_conf = lab.ensure_folder("")?.join("net-conf.json");
    std::fs::write(&net_conf, NET_CONF)?;
    let kubeconfig = api.write_kubeconfig(User::Admin, None)?;
    let options = FlanneldOptions::kube("h1", &net_conf)
        .arg(&format!("--kubeconfig-file={}", kubeconfig.display()))
        .arg("--audit-interval=0");

    let mut starts = Starts::default();
    for round in 0..ROUNDS {
        if round > 0 {
            host.netns().run_ip_batch("link del flannel.1")?;
        }
        starts.measure(&host, &options, nodes)?;
    }
    starts.report(nodes, table);
    Ok(())
}

/// Several clients create them at once; the Node of the measured host comes last.
fn create_nodes(api: &ApiServer, nodes: u32) -> Result<()> {
    let next = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let create = || -> Result<()> {
            let admin = api.admin();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= nodes {
                    return Ok(());
                }
                admin.create("/api/v1/nodes", &node_with_images(number))?;
            }
        };
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(create)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?)
    })?;
    api.admin()
        .create_node(&NodeObject::new("h1").pod_cidr("10.127.1.0/24").add_internal_address(ADDRESS))
        .map(drop)
}

/// One figure per daemon start.
#[derive(Default)]
struct Starts {
    times: Vec<Duration>,
    /// Of the resident memory, in MiB like `resident`.
    peak: Vec<f64>,
    resident: Vec<f64>,
    /// In milliseconds.
    processor: Vec<f64>,
    calls: Vec<f64>,
}

impl Starts {
    fn measure(&mut self, host: &Host, options: &FlanneldOptions, nodes: u32) -> Result<()> {
        let start = Instant::now();
        let mut daemon = host.start_flanneld(options)?;
        let last = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 64, 0, 0)) + ((nodes - 1) << 8));
        while !host
            .netns()
            .run(|| std::fs::read_to_string("/proc/thread-self/net/route"))??
            .contains(&format!("{:08X}", u32::from(last).swap_bytes()))
        {
            ensure!(start.elapsed() < DEADLINE, "no route to {last} within {DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.times.push(start.elapsed());
        daemon.wait_ready()?;
        // The daemon updates its metrics every second.
        std::thread::sleep(Duration::from_millis(1500));
        let (now, highest) = resident_memory_and_peak(&daemon)?;
        self.resident.push(now);
        self.peak.push(highest);
        self.processor.push(daemon.cpu_seconds()? * 1e3);
        self.calls.push(sum_metrics(&daemon, "flannel_store_requests_total")?);
        stop_daemon_without_errors(daemon)
    }

    fn report(self, nodes: u32, table: &mut Table) {
        table.add_times_row(
            &format!(
                "{nodes} Nodes of Kubernetes: time from start to the last route in the kernel"
            ),
            &self.times,
            "5000 ms",
            "-",
        );
        for (what, values, unit, goal) in [
            ("resident memory", self.resident, "MiB", "-"),
            ("peak of the resident memory", self.peak, "MiB", "40 MiB"),
            ("processor time of the start", self.processor, "ms", "-"),
            ("requests to the API", self.calls, "", "8"),
        ] {
            table.add_figures_row(&format!("{nodes} Nodes: {what}"), values, unit, goal, "-");
        }
    }
}
