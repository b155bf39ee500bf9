//! Checks that flanneld repairs each damage to a node's data plane after a kernel event. flanneld's repairs
//! do not change the objects of other programs.

mod backends;
mod state;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
pub(crate) use backends::IPIP;
use backends::{Backend, Foreign, HOST_GW, VXLAN, VXLAN_DUAL, WIREGUARD};
use lab::{
    Flanneld, FlanneldOptions, Host, Lab, Launch, Mesh, Monitor, Pod, ProbeOptions, Store,
    binaries, until, until_ok,
};
use state::{others, ours, sorted};

/// Creates a test from each row of a table: `runner; name => row, …`. An attribute before a test's name, such as `#[ignore]`, applies to that test.
macro_rules! scenarios {
    ($runner:ident; $($(#[$attribute:meta])* $name:ident => $row:expr),+ $(,)?) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() -> ::anyhow::Result<()> {
                $runner($row)
            }
        )+
    };
}
pub(crate) use scenarios;

/// Commands that create another program's link and routes over the link. One route's destination is inside the pod network.
const FOREIGN: &str = "link add other0 type veth peer name other1\naddress add 172.31.0.1/24 dev other0\nlink set other1 up\nlink set other0 up\n\
    route add 10.99.0.0/16 dev other0 proto static\nroute add 10.5.200.0/24 dev other0 proto static";
/// Objects that another program adds to flannel's device, with addresses outside the pod network. The last object requires a device with a MAC.
const FOREIGN_ON_DEVICE: [&str; 3] = [
    "route replace 10.97.0.0/16 dev DEV proto static",
    "address replace 10.98.0.1/24 dev DEV",
    "neighbour replace 10.98.0.9 lladdr 02:00:00:00:09:09 dev DEV nud permanent",
];

/// Command that restores the underlay's IPv6 address, which the kernel removes when the interface goes down.
const UNDERLAY_BACK: &str = "ip address replace fd00:56::101/64 dev enp0s8 nodad";

scenarios! { heals;
    vxlan_heals => &VXLAN,
    dual_stack_vxlan_heals => &VXLAN_DUAL,
    host_gw_heals => &HOST_GW,
}

// These are two tests so that they run in parallel.
scenarios! { devices_heal; userspace_wireguard_heals => &WIREGUARD }
scenarios! { underlay_is_followed; userspace_wireguard_follows_its_underlay => &WIREGUARD }

scenarios! { killed_daemon_writes_nothing;
    killed_vxlan_daemon_comes_back_without_writes => &VXLAN_DUAL,
    killed_host_gw_daemon_comes_back_without_writes => &HOST_GW,
}

scenarios! { kills_lose_no_probe;
    vxlan_probes_are_not_lost_when_daemons_are_killed => &VXLAN_DUAL,
    host_gw_probes_are_not_lost_when_daemons_are_killed => &HOST_GW,
}

/// Checks that the daemon repairs each damage to the backend's devices, to its routes and to the underlay.
pub(crate) fn heals(backend: &'static Backend) -> Result<()> {
    Lab::run(&format!("heal-{}", backend.name), |lab| {
        let cluster = Cluster::start(lab, backend)?;
        cluster.damage_devices()?;
        cluster.damage_routes_and_underlay()?;
        cluster.finish()
    })
}

fn devices_heal(backend: &'static Backend) -> Result<()> {
    Lab::run(&format!("heal-{}", backend.name), |lab| {
        let cluster = Cluster::start(lab, backend)?;
        cluster.damage_devices()?;
        cluster.finish()
    })
}

fn underlay_is_followed(backend: &'static Backend) -> Result<()> {
    Lab::run(&format!("heal-{}-underlay", backend.name), |lab| {
        let cluster = Cluster::start(lab, backend)?;
        cluster.damage_routes_and_underlay()?;
        cluster.finish()
    })
}

/// Checks that a killed daemon writes nothing to the kernel after its restart, and that the kernel reports no change.
pub(crate) fn killed_daemon_writes_nothing(backend: &'static Backend) -> Result<()> {
    Lab::run(&format!("kill-{}", backend.name), |lab| {
        let mut cluster = Cluster::start(lab, backend)?;
        let text = std::fs::read_to_string(cluster.daemons[0].subnet_file())?;
        let mut monitor = Monitor::ip(&cluster.hosts[0], &["link", "address", "neigh"])?;
        cluster.daemons[0].kill()?;
        cluster.daemons[0] = cluster.hosts[0].flanneld(&cluster.options)?;
        cluster.flows()?;
        ensure!(
            std::fs::read_to_string(cluster.daemons[0].subnet_file())? == text,
            "another subnet.env than before {text}"
        );
        cluster.require_unchanged("the kernel is not as it was")?;
        ensure!(
            cluster.daemons[0].metric("flannel_kernel_writes_total")? == 0.0,
            "the kernel was written to:\n{}",
            cluster.daemons[0].log_tail(20)
        );
        let changes = changes_of_ours(&mut monitor)?;
        ensure!(
            changes.is_empty(),
            "the kernel reports changes: {changes:#?}"
        );
        // As a control, the monitor does report a change when our routes go.
        cluster.hosts[0].netns().sh("ip route flush proto 241")?;
        ensure!(
            !changes_of_ours(&mut monitor)?.is_empty(),
            "ip monitor is deaf"
        );
        Ok(())
    })
}

/// Kills and restarts each daemon. Checks that no path loses a probe.
pub(crate) fn kills_lose_no_probe(backend: &'static Backend) -> Result<()> {
    Lab::run(&format!("probe-{}", backend.name), |lab| {
        let mut cluster = Cluster::start(lab, backend)?;
        for number in 0..cluster.hosts.len() {
            cluster.daemons[number].kill()?;
            cluster.flows()?;
            cluster.daemons[number] = cluster.hosts[number].flanneld(&cluster.options)?;
            cluster.flows()?;
        }
        cluster.meshes.drain(..).try_for_each(Mesh::require_clean)?;
        cluster.require_unchanged("the kernel is not as it was")?;
        cluster.finish()
    })
}

/// Three hosts with a pod each. Probes run on every path. The daemons do not audit their kernel objects (`--audit-interval=0`).
struct Cluster {
    meshes: Vec<Mesh>,
    pods: Vec<Pod>,
    daemons: Vec<Flanneld>,
    options: FlanneldOptions,
    store: Store,
    leases: PathBuf,
    hosts: Vec<Host>,
    before: Vec<String>,
    backend: &'static Backend,
}

impl Cluster {
    fn start(lab: &Lab, backend: &'static Backend) -> Result<Cluster> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 3)?;
        let leases = lab.folder("leases")?;
        let store = Store::dir(&leases);
        store.configure(&backend.net_conf())?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg("--audit-interval=0");
        let mut daemons: Vec<Flanneld> = hosts
            .iter()
            .map(|host| host.start_flanneld(&options))
            .collect::<Result<_>>()?;
        let mut pods = Vec::new();
        for (host, daemon) in hosts.iter().zip(&mut daemons) {
            daemon.wait_ready()?;
            pods.push(host.pod("p1", &daemon.subnet_env()?)?);
        }
        hosts[0].netns().ip(FOREIGN)?;
        let meshes = meshes(&pods)?;
        let mut cluster = Cluster {
            meshes,
            pods,
            daemons,
            options,
            store,
            leases,
            hosts,
            before: Vec::new(),
            backend,
        };
        // Packets lost before the last node joined do not count, so the probes start again.
        cluster.flows()?;
        cluster.meshes = self::meshes(&cluster.pods)?;
        cluster.flows()?;
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

    fn flows(&self) -> Result<()> {
        self.meshes
            .iter()
            .try_for_each(|mesh| mesh.wait_flowing().map(drop))
    }

    /// Damages the first host, and waits until all hosts have their earlier kernel objects again.
    fn heals(&self, what: &str, damage: &str, foreign: Foreign) -> Result<()> {
        self.becomes(what, damage, foreign, |_, before| before.to_owned())
    }

    /// Damages the first host, and waits until all hosts have their earlier kernel objects again. Checks that the daemon counts a write to the kernel.
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

    /// Damages the first host, and waits until each host has the kernel objects that `expected` returns for the host's number and earlier objects.
    fn becomes(
        &self,
        what: &str,
        damage: &str,
        foreign: Foreign,
        expected: impl Fn(usize, &str) -> String,
    ) -> Result<()> {
        let netns = self.hosts[0].netns();
        if let Some(device) = self.backend.devices.first() {
            let kinds = if self.backend.has_macs { 3 } else { 2 };
            let objects = FOREIGN_ON_DEVICE[..kinds].join("\n");
            netns.ip(&objects.replace("DEV", device))?;
        }
        let on_device = foreign == Foreign::Stays;
        let theirs = others(&self.hosts[0], on_device)?;
        let wanted: Vec<String> = self
            .before
            .iter()
            .enumerate()
            .map(|(number, before)| sorted(&expected(number, before)))
            .collect();
        let start = Instant::now();
        netns.sh(damage).with_context(|| what.to_owned())?;
        until_ok(what, || {
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
        self.flows()
            .with_context(|| format!("traffic after: {what}"))?;
        let left = others(&self.hosts[0], on_device)?;
        ensure!(
            left == theirs,
            "{what}: what belongs to others was\n{theirs}\nand is\n{left}"
        );
        println!(
            "{what}: kernel {healed:.2?}, traffic {:.2?}",
            start.elapsed()
        );
        Ok(())
    }

    fn require_unchanged(&self, otherwise: &'static str) -> Result<()> {
        ensure!(self.picture()? == self.before, otherwise);
        Ok(())
    }

    /// Causes each of the backend's `damages`, and waits for the repair.
    fn damage_devices(&self) -> Result<()> {
        for damage in self.backend.damages {
            let command = damage.command_for(self.backend.devices);
            self.repairs(damage.what, &command, damage.foreign)?;
        }
        if self.backend.devices.contains(&"flannel.ipip") {
            // The module creates this interface by itself. The daemon must never use it.
            let tunl0 = self.hosts[0].netns().sh("ip -br link show dev tunl0")?;
            ensure!(
                tunl0.contains("DOWN"),
                "tunl0 is not as the module made it: {tunl0}"
            );
        }
        Ok(())
    }

    /// Causes the damages that apply to every backend.
    fn damage_routes_and_underlay(&self) -> Result<()> {
        self.repairs(
            "our routes are flushed",
            "ip route flush proto 241; ip -6 route flush proto 241",
            Foreign::Stays,
        )?;
        self.heals(
            "the underlay bounces",
            &format!("ip link set enp0s8 down; ip link set enp0s8 up; {UNDERLAY_BACK}"),
            Foreign::Stays,
        )?;
        self.rename_underlay()?;
        self.change_underlay_address()?;
        self.change_underlay_mtu()?;
        self.remove_subnet_file()
    }

    fn rename_underlay(&self) -> Result<()> {
        let rename = "ip link set enp0s8 down; ip link set enp0s8 name wan0; ip link set wan0 up; ip address replace fd00:56::101/64 dev wan0 nodad";
        let renamed = |host: usize, before: &str| {
            if host == 0 {
                before.replace("enp0s8", "wan0")
            } else {
                before.to_owned()
            }
        };
        self.becomes("the underlay is renamed", rename, Foreign::Stays, renamed)?;
        let back = format!(
            "ip link set wan0 down; ip link set wan0 name enp0s8; ip link set enp0s8 up; {UNDERLAY_BACK}"
        );
        self.heals("the underlay is renamed back", &back, Foreign::Stays)
    }

    fn change_underlay_address(&self) -> Result<()> {
        let moved = "ip address del 192.168.56.101/24 dev enp0s8; ip address add 192.168.56.111/24 dev enp0s8";
        self.becomes(
            "the underlay's address changes",
            moved,
            Foreign::Stays,
            |_, before| before.replace("192.168.56.101", "192.168.56.111"),
        )?;
        ensure!(
            self.store
                .subnets()?
                .iter()
                .any(|(_, value)| value.contains("\"PublicIP\":\"192.168.56.111\"")),
            "{:?}",
            self.store.subnets()?
        );
        let back = "ip address del 192.168.56.111/24 dev enp0s8; ip address add 192.168.56.101/24 dev enp0s8";
        self.heals("the underlay's address changes back", back, Foreign::Stays)
    }

    fn change_underlay_mtu(&self) -> Result<()> {
        let mtu_in_file = |mtu: u32| {
            until("subnet.env follows the MTU", || {
                self.daemons[0].subnet_env().is_ok_and(|env| env.mtu == mtu)
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
        self.becomes(
            "the underlay's MTU shrinks",
            "ip link set enp0s8 mtu 1400",
            Foreign::Stays,
            smaller,
        )?;
        mtu_in_file(1400 - self.backend.overhead)?;
        self.heals(
            "the underlay's MTU grows back",
            "ip link set enp0s8 mtu 1500",
            Foreign::Stays,
        )?;
        mtu_in_file(1500 - self.backend.overhead).map(drop)
    }

    fn remove_subnet_file(&self) -> Result<()> {
        let file = self.daemons[0].subnet_file();
        let text = std::fs::read_to_string(file)?;
        std::fs::remove_file(file)?;
        until("subnet.env is written again", || {
            std::fs::read_to_string(file).is_ok_and(|now| now == text)
        })
        .map(drop)
    }

    /// Ends all probes. Checks that no packet arrived at a wrong host, and that no daemon ended or logged an error.
    fn finish(mut self) -> Result<()> {
        for mesh in self.meshes.drain(..) {
            for (path, report) in mesh.finish()? {
                ensure!(report.wrong == 0, "{path}: {report}");
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

/// Starts probes on every path, in each address family.
fn meshes(pods: &[Pod]) -> Result<Vec<Mesh>> {
    let options = ProbeOptions::default().interval(Duration::from_millis(10));
    let mut meshes = vec![Mesh::start(pods, &options)?];
    if pods[0].v6().is_ok() {
        meshes.push(Mesh::start(pods, &options.v6())?);
    }
    Ok(meshes)
}

/// Returns the monitor's reports about flannel's devices and routes.
fn changes_of_ours(monitor: &mut Monitor) -> Result<Vec<String>> {
    let reports = monitor.reports()?;
    Ok(reports
        .lines()
        .filter(|line| line.contains("flannel") || line.contains("proto 241"))
        .map(str::to_owned)
        .collect())
}

#[test]
fn sigterm_ends_daemons_and_leaves_the_data_plane() -> Result<()> {
    Lab::run("sigterm", |lab| {
        let mut cluster = Cluster::start(lab, &VXLAN_DUAL)?;
        for daemon in &mut cluster.daemons {
            let start = Instant::now();
            let status = daemon.terminate()?;
            println!("SIGTERM to exit: {:.0?}", start.elapsed());
            ensure!(
                status.code() == Some(0),
                "{status}\n{}",
                daemon.log_tail(20)
            );
        }
        cluster.require_unchanged("the data plane went with the daemons")?;
        ensure!(
            cluster.daemons[0].subnet_file().exists(),
            "subnet.env went with its daemon"
        );
        cluster.meshes.drain(..).try_for_each(Mesh::require_clean)
    })
}

#[test]
fn second_daemon_on_the_same_state_is_refused() -> Result<()> {
    Lab::run("second", |lab| {
        let cluster = Cluster::start(lab, &VXLAN)?;
        let start = |name: &str, file: PathBuf| {
            let launch = Launch::new(binaries::own("flanneld")?).arg("--iface=enp0s8");
            let launch = launch
                .arg(format!("--subnet-dir={}", cluster.leases.display()))
                .arg(format!("--subnet-file={}", file.display()));
            let mut second = cluster.hosts[0].spawn(name, &launch)?;
            let status = second.wait()?;
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
        cluster.require_unchanged("the second daemon changed the data plane")?;
        cluster.finish()
    })
}
