//! Start of a daemon with thousands of leases: time to the last route, memory and processor time. Also measures the time from one additional lease to
//! its route.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{
    Etcd, EtcdClient, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Store, Switch, Uplink,
};

use crate::gateway;
use crate::table::Table;

/// Numbers of peers.
pub(crate) const SIZES: [u32; 4] = [10, 1000, 5000, 10_000];
const ROUNDS: u32 = 5;
const NEW_LEASES: u32 = 20;
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);
pub(crate) const NET_CONF: &str = r#"{"Network":"10.64.0.0/10","SubnetLen":24,"SubnetMin":"10.127.0.0","Backend":{"Type":"vxlan"}}"#;

/// A node, and an etcd with the leases of its peers.
pub(crate) struct Fleet {
    pub node: Host,
    pub options: FlanneldOptions,
    pub lab: Lab,
    pub lan: Switch,
    _etcd: Etcd,
    client: EtcdClient,
    store: Store,
    store_host: Host,
    lease: i64,
    /// The lease value of a node, by its number.
    value: fn(u32) -> String,
}

impl Fleet {
    /// The etcd has the vxlan leases of `peers` peers.
    pub(crate) fn build_with_vxlan_leases(peers: u32) -> Result<Fleet> {
        Fleet::build_with_leases(peers, NET_CONF, vxlan_lease_value)
    }

    /// The etcd has `net_conf` and the leases of `peers` peers.
    pub(crate) fn build_with_leases(
        peers: u32,
        net_conf: &str,
        value: fn(u32) -> String,
    ) -> Result<Fleet> {
        let lab = Lab::create("bench")?;
        let lan = lab.create_switch("lan")?;
        let node = lab.create_host("h1", &[Uplink::enp0s8(&lan, 1)?])?;
        let store_host = lab.create_host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&store_host], &EtcdOptions::default())?;
        let (client, store) = (etcd.client_on_first_member()?, etcd.store()?);
        store.configure(net_conf)?;
        let lease = client.grant(86_400)?;
        let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--audit-interval=0");
        let fleet =
            Fleet { node, options, lab, lan, _etcd: etcd, client, store, store_host, lease, value };
        fleet.put_peer_leases(0..peers)?;
        Ok(fleet)
    }

    fn put_peer_leases(&self, numbers: std::ops::Range<u32>) -> Result<()> {
        let entries: Vec<(String, String)> = numbers
            .map(|number| {
                (
                    self.store.key(&format!("subnets/{}-24", peer_subnet(number))),
                    (self.value)(number),
                )
            })
            .collect();
        gateway::put_entries_with_lease(self.store_host.netns(), &entries, self.lease)
    }

    /// The vxlan device with its routes, neighbours and FDB entries, as a reboot does.
    fn delete_vxlan_device(&self) -> Result<()> {
        self.node.netns().run_ip_batch("link del flannel.1").map(drop)
    }

    /// Waits for the route to a peer's pods. The result is the time since `start`.
    fn wait_route(&self, number: u32, start: Instant) -> Result<Duration> {
        let target = Ipv4Addr::from(u32::from(peer_subnet(number)) + 2);
        self.node.netns().run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            // There is no default route: without the peer's route, the kernel refuses.
            while socket.connect((target, 9)).is_err() {
                ensure!(start.elapsed() < DEADLINE, "no route to {target} within {DEADLINE:?}");
                std::thread::sleep(Duration::from_micros(300));
            }
            Ok(start.elapsed())
        })?
    }

    /// The number of routes through the tunnel.
    fn count_tunnel_routes(&self) -> Result<usize> {
        let text =
            self.node.netns().run(|| std::fs::read_to_string("/proc/thread-self/net/route"))??;
        Ok(text.lines().filter(|line| line.starts_with("flannel.1\t")).count())
    }
}

/// Outside the range from which the node gets its own subnet.
fn peer_subnet(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 64, 0, 0)) + (number << 8))
}

/// The vxlan lease of peer `number`.
pub(crate) fn vxlan_lease_value(number: u32) -> String {
    vxlan_lease_value_with_address(number, number)
}

/// The underlay address of peer `number`.
pub(crate) fn peer_underlay_address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number)
}

/// Node `number` with the underlay address of node `address`.
fn vxlan_lease_value_with_address(number: u32, address: u32) -> String {
    let [_, b, c, d] = number.to_be_bytes();
    lease_value(
        number,
        peer_underlay_address(address),
        "vxlan",
        &format!("{{\"VNI\":1,\"VtepMAC\":\"02:11:22:{b:02x}:{c:02x}:{d:02x}\"}}"),
    )
}

/// The value is as flannel-rs writes it.
pub(crate) fn lease_value(number: u32, public: Ipv4Addr, backend: &str, data: &str) -> String {
    format!(
        "{{\"PublicIP\":\"{public}\",\"PublicIPv6\":null,\"BackendType\":\"{backend}\",\"BackendData\":{data},\
         \"NodeID\":{{\"id\":\"{number:032x}\",\"name\":\"node-{number}\",\"instance\":\"{number:016x}\",\"rank\":{number}}}}}"
    )
}

/// Resident memory and its peak, in MiB.
pub(crate) fn resident_memory_and_peak(daemon: &Flanneld) -> Result<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid()))?;
    let field = |name: &str| -> Result<f64> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .with_context(|| format!("no {name} in /proc/PID/status"))?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

/// Adds the metrics whose lines begin with `name`, for example over all labels of one metric.
pub(crate) fn sum_metrics(daemon: &Flanneld, name: &str) -> Result<f64> {
    let (_, text) = daemon.get_health_endpoint("/metrics")?;
    let values = text
        .lines()
        .filter(|line| line.starts_with(name))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(values.sum())
}

pub(crate) fn stop_daemon_without_errors(mut daemon: Flanneld) -> Result<()> {
    let errors = daemon.errors();
    let status = daemon.terminate()?;
    if !errors.is_empty() || !status.success() {
        bail!("the daemon ended with {status} after {errors:?}");
    }
    Ok(())
}

/// Daemon starts and the time from a new lease to its route.
pub(crate) fn measure_starts_and_new_leases(peers: u32, table: &mut Table) -> Result<()> {
    let fleet = Fleet::build_with_vxlan_leases(peers)?;
    let mut starts = Starts::default();
    for round in 0..ROUNDS {
        if round > 0 {
            fleet.delete_vxlan_device()?;
        }
        starts.measure_cold(&fleet, peers)?;
        starts.measure_warm(&fleet)?;
    }
    starts.report(peers, table);
    measure_new_leases_and_churn(&fleet, peers, table)
}

/// One figure per daemon start.
#[derive(Default)]
struct Starts {
    /// From the daemon's start to the last route in the kernel.
    cold: Vec<Duration>,
    /// From the daemon's start to readiness, if all objects are already in the kernel.
    warm: Vec<Duration>,
    /// In milliseconds.
    processor: Vec<f64>,
    /// In MiB like `peak`.
    resident: Vec<f64>,
    peak: Vec<f64>,
    calls: Vec<f64>,
    writes: Vec<f64>,
    /// Writes to the kernel during a restart.
    rewrites: Vec<f64>,
}

impl Starts {
    fn measure_cold(&mut self, fleet: &Fleet, peers: u32) -> Result<()> {
        let start = Instant::now();
        let mut daemon = fleet.node.start_flanneld(&fleet.options)?;
        // The daemon writes the last route after all other objects.
        self.cold.push(fleet.wait_route(peers - 1, start)?);
        let counted = fleet.count_tunnel_routes()?;
        ensure!(counted == peers as usize, "{counted} routes instead of {peers}");
        daemon.wait_ready()?;
        let netns = fleet.node.netns();
        let neighbours = netns.sh("ip neighbour show dev flannel.1 nud permanent | wc -l")?;
        let fdb = netns.sh("bridge fdb show dev flannel.1 | grep -c dst")?;
        ensure!(
            neighbours.trim() == fdb.trim() && fdb.trim() == peers.to_string(),
            "{neighbours} neighbours, {fdb} FDB entries instead of {peers}"
        );
        // The daemon updates its metrics every second.
        std::thread::sleep(Duration::from_millis(1500));
        let (now, highest) = resident_memory_and_peak(&daemon)?;
        self.resident.push(now);
        self.peak.push(highest);
        self.processor.push(daemon.cpu_seconds()? * 1e3);
        self.calls.push(sum_metrics(&daemon, "flannel_store_requests_total")?);
        self.writes.push(sum_metrics(&daemon, "flannel_kernel_writes_total")?);
        stop_daemon_without_errors(daemon)
    }

    fn measure_warm(&mut self, fleet: &Fleet) -> Result<()> {
        let start = Instant::now();
        let mut daemon = fleet.node.start_flanneld(&fleet.options)?;
        daemon.wait_ready()?;
        self.warm.push(start.elapsed());
        self.rewrites.push(sum_metrics(&daemon, "flannel_kernel_writes_total")?);
        stop_daemon_without_errors(daemon)
    }

    fn report(self, peers: u32, table: &mut Table) {
        let goals = Goals::of(peers);
        table.add_times_row(
            &format!("{peers} leases in etcd: time from start until the kernel has all entries"),
            &self.cold,
            goals.cold.0,
            goals.cold.1,
        );
        table.add_times_row(
            &format!("{peers} peers: time from start to readiness, with all entries already in the kernel"),
            &self.warm,
            goals.warm,
            "-",
        );
        let all_writes = (3 * peers + 2).to_string();
        for (what, values, unit, goal, go) in [
            ("resident memory", self.resident, "MiB", goals.resident.0, goals.resident.1),
            ("peak of the resident memory", self.peak, "MiB", "-", goals.go_peak),
            ("processor time of the start", self.processor, "ms", "-", goals.go_processor),
            ("requests to etcd", self.calls, "", "20", "one a lease"),
            ("writes to the kernel", self.writes, "", all_writes.as_str(), "3 a lease"),
            ("writes to the kernel during a restart", self.rewrites, "", "0", "all"),
        ] {
            table.add_figures_row(&format!("{peers} peers: {what}"), values, unit, goal, go);
        }
    }
}

/// For a number of peers, with Go flannel's results for comparison.
struct Goals {
    cold: (&'static str, &'static str),
    warm: &'static str,
    resident: (&'static str, &'static str),
    go_peak: &'static str,
    go_processor: &'static str,
}

impl Goals {
    fn of(peers: u32) -> Goals {
        Goals {
            cold: match peers {
                1000 => ("100 (gate 300) ms", "590 to 710 ms"),
                5000 => ("300 (gate 800) ms", "2790 to 3210 ms"),
                10_000 => ("600 (gate 2000) ms", "-"),
                _ => ("-", "-"),
            },
            warm: if peers == 10_000 { "1500 ms" } else { "-" },
            resident: match peers {
                10 => ("6 (gate 10) MiB", "32 MiB"),
                1000 => ("14 MiB", "37 MiB"),
                5000 => ("-", "41 MiB"),
                _ => ("20 (gate 40) MiB", "-"),
            },
            go_peak: if peers == 5000 { "45 MiB" } else { "-" },
            go_processor: match peers {
                1000 => "310 ms",
                5000 => "1440 to 1550 ms",
                _ => "-",
            },
        }
    }
}

/// Repeatedly adds one lease, and measures how soon the kernel has its route.
fn measure_new_leases_and_churn(fleet: &Fleet, peers: u32, table: &mut Table) -> Result<()> {
    let mut daemon = fleet.node.start_flanneld(&fleet.options)?;
    daemon.wait_ready()?;
    let mut times = Vec::new();
    for number in peers..peers + NEW_LEASES {
        // Sleep past the daemon's pause after the previous lease.
        std::thread::sleep(Duration::from_millis(250));
        let start = Instant::now();
        fleet.put_peer_leases(number..number + 1)?;
        times.push(fleet.wait_route(number, start)?);
    }
    table.add_times_row(
        &format!("{peers} peers and one new lease: time from the write of the lease to its route in the kernel"),
        &times,
        "5 (gate 20) ms",
        "16 to 32 ms",
    );
    measure_lease_churn(fleet, peers, &daemon, table)?;
    for number in peers..peers + NEW_LEASES {
        fleet.client.del(&fleet.store.key(&format!("subnets/{}-24", peer_subnet(number))))?;
    }
    stop_daemon_without_errors(daemon)
}

/// The daemon's processor share at a hundred lease changes per second, and the delay until the last one is in the kernel.
fn measure_lease_churn(
    fleet: &Fleet,
    peers: u32,
    daemon: &Flanneld,
    table: &mut Table,
) -> Result<()> {
    const ROUNDS: u32 = 5;
    const CHANGES: u32 = 300;
    const PAUSE: Duration = Duration::from_millis(10);
    let (mut shares, mut behind) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (start, before) = (Instant::now(), daemon.cpu_seconds()?);
        for change in 0..CHANGES {
            let number = peers + change % NEW_LEASES;
            // Each change has another address, so a route or an FDB entry changes.
            let value = vxlan_lease_value_with_address(number, 10_000 + round * CHANGES + change);
            gateway::put_entries_with_lease(
                fleet.store_host.netns(),
                &[(fleet.store.key(&format!("subnets/{}-24", peer_subnet(number))), value)],
                fleet.lease,
            )?;
            std::thread::sleep(
                (start + PAUSE * (change + 1)).saturating_duration_since(Instant::now()),
            );
        }
        shares.push((daemon.cpu_seconds()? - before) / start.elapsed().as_secs_f64() * 100.0);
        let done = Instant::now();
        let last = peer_underlay_address(10_000 + round * CHANGES + CHANGES - 1).to_string();
        while !fleet
            .node
            .netns()
            .sh("bridge fdb show dev flannel.1")?
            .contains(&format!("dst {last} "))
        {
            ensure!(
                done.elapsed() < DEADLINE,
                "the last of {CHANGES} changes is not in the kernel within {DEADLINE:?}"
            );
        }
        behind.push(done.elapsed());
    }
    table.add_figures_row(
        &format!("{peers} peers and 100 lease changes per second: share of a processor"),
        shares,
        "%",
        "5 %",
        "-",
    );
    table.add_times_row(
        &format!("{peers} peers and 100 lease changes per second: time from the last change to its FDB entry in the kernel, including the benchmark's check"),
        &behind,
        "-",
        "-",
    );
    Ok(())
}
