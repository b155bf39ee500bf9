//! Whatever somebody does to a node's data plane comes back by its event, and what belongs to others stays as it was.

mod wireguard;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{
    Flanneld, FlanneldOptions, Host, Lab, Launch, Mesh, Monitor, Pod, ProbeOptions, Store,
    binaries, eventually, eventually_ok,
};

/// Ten times the goals: 1 s for what hangs on a device, 2 s for a device.
const DEADLINE: Duration = Duration::from_secs(10);
const DEVICE_DEADLINE: Duration = Duration::from_secs(20);

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.20.0","Backend":{"Type":"vxlan"}}"#;
const DUAL: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.20.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48",
    "IPv6SubnetLen":64,"Backend":{"Type":"vxlan"}}"#;
const HOST_GW: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.20.0","Backend":{"Type":"host-gw"}}"#;

/// A link of somebody else, and routes of his over it, one of them inside our network.
const FOREIGN: &str = "link add other0 type veth peer name other1\naddress add 172.31.0.1/24 dev other0\nlink set other1 up\nlink set other0 up\n\
    route add 10.99.0.0/16 dev other0 proto static\nroute add 10.5.200.0/24 dev other0 proto static";
/// What somebody else puts on our device, outside our network; the last one where the device has MACs.
const FOREIGN_ON_DEVICE: [&str; 3] = [
    "route replace 10.97.0.0/16 dev DEV proto static",
    "address replace 10.98.0.1/24 dev DEV",
    "neighbour replace 10.98.0.9 lladdr 02:00:00:00:09:09 dev DEV nud permanent",
];

/// Three hosts with a pod each, probed on every way, without audits.
struct Cluster {
    meshes: Vec<Mesh>,
    pods: Vec<Pod>,
    daemons: Vec<Flanneld>,
    options: FlanneldOptions,
    store: Store,
    leases: PathBuf,
    hosts: Vec<Host>,
    before: Vec<String>,
    devices: Vec<&'static str>,
}

/// What a damage takes from others by itself, so that nobody could keep it.
#[derive(Clone, Copy, PartialEq)]
enum Foreign {
    Stays,
    /// The kernel drops what hangs on the device.
    GoesWithDevice,
}

impl Cluster {
    fn start(lab: &Lab, net_conf: &str) -> Result<Cluster> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 3)?;
        let leases = lab.folder("leases")?;
        let store = Store::dir(&leases);
        store.configure(net_conf)?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg("--audit-interval=0");
        let mut daemons: Vec<Flanneld> = hosts
            .iter()
            .map(|host| host.start_flanneld(&options))
            .collect::<Result<_>>()?;
        let mut pods = Vec::new();
        for (host, daemon) in hosts.iter().zip(&mut daemons) {
            daemon.wait_ready(Duration::from_secs(30))?;
            pods.push(host.pod("p1", &daemon.subnet_env()?)?);
        }
        hosts[0].netns().ip(FOREIGN)?;
        let dual = net_conf.contains("IPv6Network");
        let meshes = meshes(&pods)?;
        let devices = match (net_conf.contains("vxlan"), dual) {
            _ if net_conf.contains("ipip") => vec!["flannel.ipip"],
            _ if net_conf.contains("wireguard") => vec!["flannel-wg", "flannel-wg-v6"],
            (false, _) => vec![],
            (true, false) => vec!["flannel.1"],
            (true, true) => vec!["flannel.1", "flannel-v6.1"],
        };
        let mut cluster = Cluster {
            meshes,
            pods,
            daemons,
            options,
            store,
            leases,
            hosts,
            before: Vec::new(),
            devices,
        };
        // What was lost before the last node had joined does not count.
        cluster.flows(DEVICE_DEADLINE)?;
        cluster.meshes = self::meshes(&cluster.pods)?;
        cluster.flows(DEADLINE)?;
        cluster.before = cluster.picture()?;
        let objects = cluster.before[0].lines().count();
        ensure!(
            objects >= 2,
            "h1 has hardly anything of ours:\n{}",
            cluster.before[0]
        );
        Ok(cluster)
    }

    fn picture(&self) -> Result<Vec<String>> {
        self.hosts.iter().map(ours).collect()
    }

    fn flows(&self, deadline: Duration) -> Result<()> {
        self.meshes
            .iter()
            .try_for_each(|mesh| mesh.wait_flowing(deadline).map(drop))
    }

    /// Does something to the first host and waits until everything is as it was.
    fn heals(&self, what: &str, damage: &str, foreign: Foreign) -> Result<()> {
        self.becomes(what, damage, foreign, |_, before| before.to_owned())
    }

    /// The same for damage that only a write to the kernel repairs: the daemon counts it.
    fn repairs(&self, what: &str, damage: &str, foreign: Foreign) -> Result<()> {
        let writes = || self.daemons[0].metric("flannel_kernel_writes_total");
        let before = writes()?;
        self.heals(what, damage, foreign)?;
        ensure!(
            writes()? > before,
            "{what}: nothing was damaged, or it is not counted"
        );
        Ok(())
    }

    /// Does something to the first host and waits for what follows from it, a host at a time.
    fn becomes(
        &self,
        what: &str,
        damage: &str,
        foreign: Foreign,
        expected: impl Fn(usize, &str) -> String,
    ) -> Result<()> {
        let netns = self.hosts[0].netns();
        if let Some(device) = self.devices.first() {
            let kinds = if matches!(*device, "flannel.ipip" | "flannel-wg") {
                &FOREIGN_ON_DEVICE[..2]
            } else {
                &FOREIGN_ON_DEVICE
            };
            netns.ip(&kinds.join("\n").replace("DEV", device))?;
        }
        let on_device = foreign == Foreign::Stays;
        let others = others(&self.hosts[0], on_device)?;
        let wanted: Vec<String> = self
            .before
            .iter()
            .enumerate()
            .map(|(number, before)| sorted(&expected(number, before)))
            .collect();
        let start = Instant::now();
        netns.sh(damage).with_context(|| what.to_owned())?;
        eventually_ok(DEVICE_DEADLINE, what, || {
            for (host, (wanted, found)) in self.hosts.iter().zip(wanted.iter().zip(self.picture()?))
            {
                ensure!(
                    *wanted == found,
                    "{} has\n{found}\ninstead of\n{wanted}",
                    host.name()
                );
            }
            Ok(())
        })?;
        let healed = start.elapsed();
        self.flows(DEADLINE)
            .with_context(|| format!("traffic after: {what}"))?;
        let left = self::others(&self.hosts[0], on_device)?;
        ensure!(
            left == others,
            "{what}: what belongs to others was\n{others}\nand is\n{left}"
        );
        println!(
            "{what}: kernel {healed:.2?}, traffic {:.2?}",
            start.elapsed()
        );
        Ok(())
    }

    /// Each device of ours in a shell command.
    fn each_device(&self, command: &str) -> String {
        self.devices
            .iter()
            .map(|device| format!("{}\n", command.replace("DEV", device)))
            .collect()
    }

    /// Ends everything; nothing may have arrived at a wrong place, and nobody may have logged an error.
    fn finish(mut self) -> Result<()> {
        for mesh in self.meshes.drain(..) {
            for (way, report) in mesh.finish()? {
                ensure!(report.wrong == 0, "{way}: {report}");
            }
        }
        for daemon in &mut self.daemons {
            ensure!(
                daemon.is_running(),
                "a daemon ended:\n{}",
                daemon.log_tail(20)
            );
            ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
        }
        Ok(())
    }
}

/// Probes on every way, in each family.
fn meshes(pods: &[Pod]) -> Result<Vec<Mesh>> {
    let options = ProbeOptions::default().interval(Duration::from_millis(10));
    let mut meshes = vec![Mesh::start(pods, &options)?];
    if pods[0].v6().is_ok() {
        meshes.push(Mesh::start(pods, &options.v6())?);
    }
    Ok(meshes)
}

/// All that is ours on a host, in order.
fn ours(host: &Host) -> Result<String> {
    let netns = host.netns();
    let mut lines = Vec::new();
    for link in netns
        .links()?
        .iter()
        .filter(|link| link.ifname.starts_with("flannel"))
    {
        let up = link.flags.iter().any(|flag| flag == "UP");
        lines.push(format!(
            "link {} mac {} mtu {} up {up} {}",
            link.ifname, link.address, link.mtu, link.linkinfo
        ));
        let neighbours = netns.neighbours(&link.ifname)?;
        let permanent = neighbours
            .iter()
            .filter(|entry| entry.state == ["PERMANENT"] && !entry.dst.starts_with("10.98."));
        lines.extend(permanent.map(|entry| {
            format!(
                "neighbour {} {:?} on {}",
                entry.dst, entry.lladdr, entry.dev
            )
        }));
        lines.extend(netns.fdb(&link.ifname)?.iter().filter_map(|entry| {
            Some(format!(
                "fdb {} {} on {}",
                entry.mac,
                entry.dst.as_ref()?,
                entry.ifname
            ))
        }));
    }
    let addresses = netns.addresses()?;
    let addresses = addresses.iter().filter(|entry| {
        entry.ifname.starts_with("flannel")
            && entry.scope == "global"
            && !entry.net.starts_with("10.98.")
    });
    lines.extend(addresses.map(|entry| format!("address {} on {}", entry.net, entry.ifname)));
    let routes = [netns.routes()?, netns.v6_routes()?].concat();
    let routes = routes.iter().filter(|route| route.protocol == "241");
    lines.extend(routes.map(|route| {
        format!(
            "route {} via {:?} dev {:?} {:?}",
            route.dst, route.gateway, route.dev, route.flags
        )
    }));
    Ok(sorted(&lines.join("\n")))
}

/// What belongs to others: a link with its address and routes, and what they put on our device.
fn others(host: &Host, on_device: bool) -> Result<String> {
    let netns = host.netns();
    let counts = |dev: &str| dev == "other0" || on_device && dev.starts_with("flannel");
    let mut lines: Vec<String> = netns
        .routes()?
        .iter()
        .filter(|route| {
            route.protocol == "static" && counts(route.dev.as_deref().unwrap_or_default())
        })
        .map(|route| {
            format!(
                "route {} via {:?} dev {:?}",
                route.dst, route.gateway, route.dev
            )
        })
        .collect();
    let addresses = netns.addresses()?;
    lines.extend(
        addresses
            .iter()
            .filter(|entry| counts(&entry.ifname) && !entry.net.starts_with("10.5."))
            .map(|entry| format!("{entry:?}")),
    );
    if on_device && netns.links()?.iter().any(|link| link.ifname == "flannel.1") {
        let neighbours = netns.neighbours("flannel.1")?;
        lines.extend(
            neighbours
                .iter()
                .filter(|entry| entry.dst.starts_with("10.98."))
                .map(|entry| format!("{} {:?}", entry.dst, entry.lladdr)),
        );
    }
    // The v6 addresses that the kernel makes for itself come and go with the device.
    lines.retain(|line| !line.contains("fe80") && !line.contains("fd00:5"));
    Ok(sorted(&lines.join("\n")))
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// What can happen to the underlay; without IPv6 addresses, which the kernel drops when it goes down.
const UNDERLAY_BACK: &str = "ip address replace fd00:56::101/64 dev enp0s8 nodad";

/// The damages that every backend knows.
fn underlay_and_routes(cluster: &Cluster, overhead: u32) -> Result<()> {
    cluster.repairs(
        "our routes are flushed",
        "ip route flush proto 241; ip -6 route flush proto 241",
        Foreign::Stays,
    )?;
    cluster.heals(
        "the underlay bounces",
        &format!("ip link set enp0s8 down; ip link set enp0s8 up; {UNDERLAY_BACK}"),
        Foreign::Stays,
    )?;

    let rename = "ip link set enp0s8 down; ip link set enp0s8 name wan0; ip link set wan0 up; ip address replace fd00:56::101/64 dev wan0 nodad";
    let renamed = |host: usize, before: &str| {
        if host == 0 {
            before.replace("enp0s8", "wan0")
        } else {
            before.to_owned()
        }
    };
    cluster.becomes("the underlay is renamed", rename, Foreign::Stays, renamed)?;
    let back = format!(
        "ip link set wan0 down; ip link set wan0 name enp0s8; ip link set enp0s8 up; {UNDERLAY_BACK}"
    );
    cluster.heals("the underlay is renamed back", &back, Foreign::Stays)?;

    let moved =
        "ip address del 192.168.56.101/24 dev enp0s8; ip address add 192.168.56.111/24 dev enp0s8";
    cluster.becomes(
        "the underlay's address changes",
        moved,
        Foreign::Stays,
        |_, before| before.replace("192.168.56.101", "192.168.56.111"),
    )?;
    ensure!(
        cluster
            .store
            .subnets()?
            .iter()
            .any(|(_, value)| value.contains("\"PublicIP\":\"192.168.56.111\"")),
        "{:?}",
        cluster.store.subnets()?
    );
    let back =
        "ip address del 192.168.56.111/24 dev enp0s8; ip address add 192.168.56.101/24 dev enp0s8";
    cluster.heals("the underlay's address changes back", back, Foreign::Stays)?;

    let mtu_in_file = |mtu: u32| {
        eventually(DEADLINE, "subnet.env follows the MTU", || {
            cluster.daemons[0]
                .subnet_env()
                .is_ok_and(|env| env.mtu == mtu)
        })
    };
    let smaller = |host: usize, before: &str| {
        if host == 0 {
            before
                .replace("mtu 1450", "mtu 1350")
                .replace("mtu 1430", "mtu 1330")
                .replace("mtu 1480", "mtu 1380")
                .replace("mtu 1420", "mtu 1320")
        } else {
            before.to_owned()
        }
    };
    cluster.becomes(
        "the underlay's MTU shrinks",
        "ip link set enp0s8 mtu 1400",
        Foreign::Stays,
        smaller,
    )?;
    mtu_in_file(1400 - overhead)?;
    cluster.heals(
        "the underlay's MTU grows back",
        "ip link set enp0s8 mtu 1500",
        Foreign::Stays,
    )?;
    mtu_in_file(1500 - overhead)?;

    let file = cluster.daemons[0].subnet_file();
    let text = std::fs::read_to_string(file)?;
    std::fs::remove_file(file)?;
    eventually(DEADLINE, "subnet.env is written again", || {
        std::fs::read_to_string(file).is_ok_and(|now| now == text)
    })
    .map(drop)
}

/// The damages that need a device.
fn device(cluster: &Cluster) -> Result<()> {
    use Foreign::{GoesWithDevice, Stays};
    cluster.repairs(
        "the device is deleted",
        &cluster.each_device("ip link del DEV"),
        GoesWithDevice,
    )?;
    cluster.repairs(
        "the device is set down",
        &cluster.each_device("ip link set DEV down"),
        GoesWithDevice,
    )?;
    cluster.repairs(
        "the device is set down and up",
        &cluster.each_device("ip link set DEV down; ip link set DEV up"),
        GoesWithDevice,
    )?;
    let flush = "for mac in $(bridge fdb show dev DEV | cut -d' ' -f1); do bridge fdb del $mac dev DEV; done";
    cluster.repairs("the FDB is emptied", &cluster.each_device(flush), Stays)?;
    let flush = "for ip in $(ip neigh show dev DEV nud permanent | grep -v 10.98 | cut -d' ' -f1); do ip neigh del $ip dev DEV; done";
    cluster.repairs(
        "the neighbours are deleted",
        &cluster.each_device(flush),
        Stays,
    )?;
    let remove = "for net in $(ip -o address show dev DEV scope global | grep -o '\\(10.5\\|fd00:5:\\)[^ ]*'); do ip address del $net dev DEV; done";
    cluster.repairs(
        "the address is removed",
        &cluster.each_device(remove),
        Stays,
    )?;
    // A new MAC makes the kernel forget all neighbours of the device, foreign ones too.
    cluster.repairs(
        "the MAC changes",
        &cluster.each_device("ip link set DEV address 02:00:00:00:00:99"),
        GoesWithDevice,
    )?;
    // Below 1280 bytes the kernel would take IPv6 from the device.
    cluster.repairs(
        "the MTU changes",
        &cluster.each_device("ip link set DEV mtu 1300"),
        Stays,
    )?;
    cluster.repairs(
        "learning is switched on",
        &cluster.each_device("ip link set DEV type vxlan learning"),
        Stays,
    )
}

/// The damages that an IPIP device knows. The interface that the module makes by itself is nobody's, whatever happens.
fn ipip_device(cluster: &Cluster) -> Result<()> {
    use Foreign::{GoesWithDevice, Stays};
    let repairs =
        |what, damage: &str, foreign| cluster.repairs(what, &cluster.each_device(damage), foreign);
    repairs("the device is deleted", "ip link del DEV", GoesWithDevice)?;
    repairs(
        "the device is set down",
        "ip link set DEV down",
        GoesWithDevice,
    )?;
    repairs(
        "the device is set down and up",
        "ip link set DEV down; ip link set DEV up",
        GoesWithDevice,
    )?;
    repairs(
        "the address is removed",
        "for net in $(ip -o address show dev DEV | grep -o '10.5[^ ]*'); do ip address del $net dev DEV; done",
        Stays,
    )?;
    repairs("the MTU changes", "ip link set DEV mtu 1300", Stays)?;
    repairs(
        "the local address changes",
        "ip link change DEV type ipip local 10.98.0.1 remote any",
        Stays,
    )?;
    repairs(
        "the TTL changes",
        "ip link change DEV type ipip local 192.168.56.101 remote any ttl 9 pmtudisc",
        Stays,
    )?;
    repairs(
        "the device is renamed",
        "until ip link set DEV name other9 2>/dev/null; do ip link set DEV down || true; done; ip link set other9 up || true",
        GoesWithDevice,
    )?;
    // The daemon may put it back between the two commands.
    let one_peer = "until ip link add DEV type ipip local 192.168.56.101 remote 192.168.56.102 2>/dev/null; do ip link del DEV || true; done";
    repairs("the device leads to one peer", one_peer, GoesWithDevice)?;
    let tunl0 = cluster.hosts[0].netns().sh("ip -br link show dev tunl0")?;
    ensure!(
        tunl0.contains("DOWN"),
        "tunl0 is not as the module made it: {tunl0}"
    );
    Ok(())
}

pub(crate) fn ipip_heals() -> Result<()> {
    Lab::run("heal-ipip", |lab| {
        let cluster = Cluster::start(lab, &HOST_GW.replace("host-gw", "ipip"))?;
        ipip_device(&cluster)?;
        underlay_and_routes(&cluster, 20)?;
        cluster.finish()
    })
}

pub(crate) fn ipip_is_killed() {
    let conf = HOST_GW.replace("host-gw", "ipip");
    a_killed_daemon_is_not_missed("kill-ipip", &conf);
    no_probe_is_lost_by_a_kill("probe-ipip", &conf);
}

#[test]
fn vxlan_heals() {
    Lab::run("heal-vxlan", |lab| {
        let cluster = Cluster::start(lab, VXLAN)?;
        device(&cluster)?;
        underlay_and_routes(&cluster, 50)?;
        cluster.finish()
    })
    .unwrap();
}

#[test]
fn dual_stack_vxlan_heals() {
    Lab::run("heal-dual", |lab| {
        let cluster = Cluster::start(lab, DUAL)?;
        device(&cluster)?;
        underlay_and_routes(&cluster, 50)?;
        cluster.finish()
    })
    .unwrap();
}

#[test]
fn host_gw_heals() {
    Lab::run("heal-host-gw", |lab| {
        let cluster = Cluster::start(lab, HOST_GW)?;
        underlay_and_routes(&cluster, 0)?;
        cluster.finish()
    })
    .unwrap();
}

/// The changes that were reported of our devices and routes.
fn changes_of_ours(monitor: &mut Monitor) -> Result<Vec<String>> {
    let reports = monitor.reports()?;
    Ok(reports
        .lines()
        .filter(|line| line.contains("flannel") || line.contains("proto 241"))
        .map(str::to_owned)
        .collect())
}

fn a_killed_daemon_is_not_missed(title: &str, net_conf: &str) {
    Lab::run(title, |lab| {
        let mut cluster = Cluster::start(lab, net_conf)?;
        let text = std::fs::read_to_string(cluster.daemons[0].subnet_file())?;
        let mut monitor = Monitor::ip(&cluster.hosts[0], &["link", "address", "neigh"])?;
        cluster.daemons[0].kill()?;
        cluster.daemons[0] = cluster.hosts[0].flanneld(&cluster.options)?;
        cluster.flows(DEADLINE)?;
        ensure!(
            std::fs::read_to_string(cluster.daemons[0].subnet_file())? == text,
            "another subnet.env than before {text}"
        );
        ensure!(
            cluster.picture()? == cluster.before,
            "the kernel is not as it was"
        );
        ensure!(
            cluster.daemons[0].metric("flannel_kernel_writes_total")? == 0.0,
            "the kernel was written to:\n{}",
            cluster.daemons[0].log_tail(20)
        );
        let changes = changes_of_ours(&mut monitor)?;
        ensure!(
            changes.is_empty(),
            "the kernel tells of changes: {changes:#?}"
        );
        // The monitor would have reported it: it does when something of ours really goes.
        cluster.hosts[0].netns().sh("ip route flush proto 241")?;
        ensure!(
            !changes_of_ours(&mut monitor)?.is_empty(),
            "ip monitor is deaf"
        );
        Ok(())
    })
    .unwrap();
}

/// Probes on every way through kill and restart: nothing is lost.
fn no_probe_is_lost_by_a_kill(title: &str, net_conf: &str) {
    Lab::run(title, |lab| {
        let mut cluster = Cluster::start(lab, net_conf)?;
        for number in 0..cluster.hosts.len() {
            cluster.daemons[number].kill()?;
            cluster.flows(DEADLINE)?;
            cluster.daemons[number] = cluster.hosts[number].flanneld(&cluster.options)?;
            cluster.flows(DEADLINE)?;
        }
        cluster.meshes.drain(..).try_for_each(Mesh::require_clean)?;
        ensure!(
            cluster.picture()? == cluster.before,
            "the kernel is not as it was"
        );
        cluster.finish()
    })
    .unwrap();
}

#[test]
fn a_killed_vxlan_daemon_comes_back_without_writing_anything() {
    a_killed_daemon_is_not_missed("kill-dual", DUAL);
}

#[test]
fn a_killed_host_gw_daemon_comes_back_without_writing_anything() {
    a_killed_daemon_is_not_missed("kill-host-gw", HOST_GW);
}

#[test]
fn no_vxlan_probe_is_lost_when_daemons_are_killed() {
    no_probe_is_lost_by_a_kill("probe-dual", DUAL);
}

#[test]
fn no_host_gw_probe_is_lost_when_daemons_are_killed() {
    no_probe_is_lost_by_a_kill("probe-host-gw", HOST_GW);
}

#[test]
fn a_daemon_stops_quickly_and_leaves_the_data_plane() {
    Lab::run("sigterm", |lab| {
        let mut cluster = Cluster::start(lab, DUAL)?;
        for daemon in &mut cluster.daemons {
            let start = Instant::now();
            let status = daemon.terminate(Duration::from_secs(20))?;
            println!("SIGTERM to exit: {:.0?}", start.elapsed());
            ensure!(
                status.code() == Some(0),
                "{status}\n{}",
                daemon.log_tail(20)
            );
        }
        ensure!(
            cluster.picture()? == cluster.before,
            "the data plane went with the daemons"
        );
        ensure!(
            cluster.daemons[0].subnet_file().exists(),
            "subnet.env went with its daemon"
        );
        cluster.meshes.drain(..).try_for_each(Mesh::require_clean)
    })
    .unwrap();
}

#[test]
fn a_second_daemon_on_the_same_state_is_refused() {
    Lab::run("second", |lab| {
        let cluster = Cluster::start(lab, VXLAN)?;
        let start = |name: &str, file: PathBuf| {
            let launch = Launch::new(binaries::own("flanneld")?).arg("--iface=enp0s8");
            let launch = launch
                .arg(format!("--subnet-dir={}", cluster.leases.display()))
                .arg(format!("--subnet-file={}", file.display()));
            let mut second = cluster.hosts[0].spawn(name, &launch)?;
            let status = second.wait(DEVICE_DEADLINE)?;
            if status.code() != Some(1) {
                bail!("{name}: {status}\n{}", second.log());
            }
            anyhow::Ok(second.log())
        };
        let pid = cluster.daemons[0].pid().to_string();
        for (name, file) in [
            ("same-file", cluster.daemons[0].subnet_file().to_owned()),
            ("other-file", lab.folder("other")?.join("subnet.env")),
        ] {
            let log = start(name, file)?;
            ensure!(
                log.contains("another flanneld") && log.contains(&pid),
                "the error names neither what is wrong nor the other one's pid {pid}:\n{log}"
            );
        }
        ensure!(
            cluster.picture()? == cluster.before,
            "the second daemon changed the data plane"
        );
        cluster.finish()
    })
    .unwrap();
}
