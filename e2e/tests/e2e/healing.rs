//! flanneld repairs each damage to a node's data plane after a kernel event, and does not change the objects of other programs.

mod backends;
pub(crate) mod former_backend;
mod state;

use anyhow::{Context, Result, ensure};
pub(crate) use backends::IPIP;
use backends::{Backend, Foreign, HOST_GW, VXLAN_DUAL, WIREGUARD};
use lab::{Launch, Mesh, Monitor, Scene, binaries, until, until_ok};
use state::{flannel_object_lines, foreign_object_lines, sort_lines};

/// A test from each row of a table: `runner; name => row, …`. An attribute before a test's name, such as `#[ignore]`, applies to that test.
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

/// Another program's link and routes over it. One route's destination is inside the pod network.
const FOREIGN: &str = "link add other0 type veth peer name other1\naddress add 172.31.0.1/24 dev other0\nlink set other1 up\nlink set other0 up\n\
    route add 10.99.0.0/16 dev other0 proto static\nroute add 10.5.200.0/24 dev other0 proto static";
/// What another program adds to flannel's device, with addresses outside the pod network. The last object requires a device with a MAC.
const FOREIGN_ON_DEVICE: [&str; 3] = [
    "route replace 10.97.0.0/16 dev DEV proto static",
    "address replace 10.98.0.1/24 dev DEV",
    "neighbour replace 10.98.0.9 lladdr 02:00:00:00:09:09 dev DEV nud permanent",
];

scenarios! { require_repair_of_each_damage;
    dual_stack_vxlan_heals => &VXLAN_DUAL,
    host_gw_heals => &HOST_GW,
    userspace_wireguard_heals => &WIREGUARD,
}

scenarios! { restart_after_kill_writes_nothing;
    killed_vxlan_daemon_comes_back_without_writes => &VXLAN_DUAL,
    killed_host_gw_daemon_comes_back_without_writes => &HOST_GW,
}

/// The daemon repairs each damage to the backend's devices, to its routes and to the underlay.
pub(crate) fn require_repair_of_each_damage(backend: &'static Backend) -> Result<()> {
    run_on_probed_data_plane("heal", backend, |plane| {
        for damage in backend.damages {
            let command = damage.command_for(backend.devices);
            plane.damage_and_wait_repaired(damage.what, &command, damage.foreign)?;
        }
        if backend.devices.contains(&"flannel.ipip") {
            // The module creates this interface by itself. The daemon must never use it.
            let tunl0 = plane.s[0].sh("ip -br link show dev tunl0")?;
            ensure!(tunl0.contains("DOWN"), "tunl0 is not as the module made it: {tunl0}");
        }
        plane.damage_and_wait_repaired(
            "our routes are flushed",
            "ip route flush proto 241; ip -6 route flush proto 241",
            Foreign::Stays,
        )?;
        plane.change_underlay_and_wait_adapted()?;
        let env =
            || std::fs::read_to_string(plane.s[0].daemon()?.subnet_file()).context("no subnet.env");
        let before = env()?;
        std::fs::remove_file(plane.s[0].daemon()?.subnet_file())?;
        until_ok("subnet.env is written again", || {
            ensure!(env()? == before);
            Ok(())
        })
    })
}

/// After a kill and a restart, a daemon writes nothing to the kernel, and no path loses a probe.
pub(crate) fn restart_after_kill_writes_nothing(backend: &'static Backend) -> Result<()> {
    run_on_probed_data_plane("kill", backend, |plane| {
        let mut monitor =
            Monitor::watch_routes_and_objects(&plane.s[0], &["link", "address", "neigh"])?;
        for number in 0..plane.s.nodes.len() {
            let env = plane.s[number].daemon()?.subnet_env()?;
            plane.s[number].kill_daemon()?;
            plane.wait_meshes_flowing()?;
            plane.s[number].start_daemon()?;
            plane.wait_meshes_flowing()?;
            ensure!(
                plane.s[number].daemon()?.subnet_env()? == env,
                "another subnet.env than before {env:?}"
            );
            plane.s[number].wait_metric_value("flannel_kernel_writes_total", 0.0)?;
        }
        plane.meshes.drain(..).try_for_each(Mesh::finish_and_require_clean)?;
        plane.require_unchanged()?;
        let mut changes = || -> Result<Vec<String>> {
            let reports = monitor.read_new_reports()?;
            let ours = reports
                .lines()
                .filter(|line| line.contains("flannel") || line.contains("proto 241"));
            Ok(ours.map(str::to_owned).collect())
        };
        let found = changes()?;
        ensure!(found.is_empty(), "the kernel reports changes: {found:#?}");
        // As a control, the monitor does report a change when our routes go.
        plane.s[0].sh("ip route flush proto 241")?;
        ensure!(!changes()?.is_empty(), "ip monitor is deaf");
        Ok(())
    })
}

/// Three nodes whose pods exchange probes.
struct Plane<'a, 'lab> {
    s: &'a mut Scene<'lab>,
    backend: &'static Backend,
    meshes: Vec<Mesh>,
    before: Vec<String>,
}

/// The daemons do not audit their kernel objects. At the end, no packet has arrived at a wrong host, and no daemon has ended or logged an error.
fn run_on_probed_data_plane(
    what: &str,
    backend: &'static Backend,
    work: impl FnOnce(&mut Plane<'_, '_>) -> Result<()>,
) -> Result<()> {
    let scene =
        Scene::with_title(&format!("{what}-{}", backend.name)).nodes(3).net(&backend.net_conf());
    scene.daemon_arg("--audit-interval=0").run(|s| {
        s[0].netns().run_ip_batch(FOREIGN)?;
        let meshes = s.start_mesh_per_family()?;
        let mut plane = Plane { s, backend, meshes, before: Vec::new() };
        plane.wait_meshes_flowing()?;
        plane.before = plane.flannel_objects_per_node()?;
        ensure!(
            plane.before[0].lines().count() >= 2,
            "h1 has hardly anything of ours: {:?}",
            plane.before
        );
        work(&mut plane)?;
        for mesh in plane.meshes {
            for (path, report) in mesh.finish()? {
                ensure!(report.wrong == 0, "{path}: {report}");
            }
        }
        plane.s.require_no_errors()
    })
}

impl Plane<'_, '_> {
    fn flannel_objects_per_node(&self) -> Result<Vec<String>> {
        self.s.nodes.iter().map(|node| flannel_object_lines(node)).collect()
    }

    fn wait_meshes_flowing(&self) -> Result<()> {
        self.meshes.iter().try_for_each(|mesh| mesh.wait_flowing().map(drop))
    }

    fn require_unchanged(&self) -> Result<()> {
        let now = self.flannel_objects_per_node()?;
        ensure!(now == self.before, "{now:#?} instead of {:#?}", self.before);
        Ok(())
    }

    /// Damages the first host, until all hosts have their earlier kernel objects again. The daemon counts a write to the kernel.
    fn damage_and_wait_repaired(&self, what: &str, damage: &str, foreign: Foreign) -> Result<()> {
        let writes = || self.s[0].daemon()?.metric("flannel_kernel_writes_total");
        let before = writes()?;
        self.damage_and_wait_expected_objects(what, damage, foreign, |_, before| {
            before.to_owned()
        })?;
        ensure!(writes()? > before, "{what}: nothing was damaged, or it is not counted");
        Ok(())
    }

    /// Damages the first host, until each host has the kernel objects that `expected` returns for its number and earlier objects.
    fn damage_and_wait_expected_objects(
        &self,
        what: &str,
        damage: &str,
        foreign: Foreign,
        expected: impl Fn(usize, &str) -> String,
    ) -> Result<()> {
        let first = &self.s[0];
        if let Some(device) = self.backend.devices.first() {
            let kinds = if self.backend.has_macs { 3 } else { 2 };
            first
                .netns()
                .run_ip_batch(&FOREIGN_ON_DEVICE[..kinds].join("\n").replace("DEV", device))?;
        }
        let theirs = || foreign_object_lines(first, foreign == Foreign::Stays);
        let before = theirs()?;
        let wanted = self.before.iter().enumerate();
        let wanted: Vec<String> =
            wanted.map(|(number, before)| sort_lines(&expected(number, before))).collect();
        first.sh(damage).with_context(|| what.to_owned())?;
        until_ok(what, || {
            let found = self.flannel_objects_per_node()?;
            ensure!(wanted == found, "{found:#?}\ninstead of\n{wanted:#?}");
            Ok(())
        })?;
        self.wait_meshes_flowing().with_context(|| format!("traffic after: {what}"))?;
        let after = theirs()?;
        ensure!(after == before, "{what}: what belongs to others was\n{before}\nand is\n{after}");
        Ok(())
    }

    /// The underlay's state, name, address and MTU change, and change back.
    fn change_underlay_and_wait_adapted(&self) -> Result<()> {
        // The kernel removes the IPv6 address when the interface goes down.
        let bounce = |from: &str, to: &str| {
            format!(
                "ip link set {from} down; ip link set {from} name {to}; ip link set {to} up; ip address replace fd00:56::101/64 dev {to} nodad"
            )
        };
        let readdress = |from: &str, to: &str| {
            format!("ip address del {from}/24 dev enp0s8; ip address add {to}/24 dev enp0s8")
        };
        let [here, there] = ["192.168.56.101", "192.168.56.111"];
        let same = |_: usize, before: &str| before.to_owned();
        let on_first = |change: fn(&str) -> String| {
            move |host, before: &str| {
                if host == 0 { change(before) } else { before.to_owned() }
            }
        };
        let stays = Foreign::Stays;
        self.damage_and_wait_expected_objects("the underlay bounces", "ip link set enp0s8 down; ip link set enp0s8 up; ip address replace fd00:56::101/64 dev enp0s8 nodad", stays, same)?;
        let renamed = on_first(|before| before.replace("enp0s8", "wan0"));
        self.damage_and_wait_expected_objects(
            "the underlay is renamed",
            &bounce("enp0s8", "wan0"),
            stays,
            renamed,
        )?;
        self.damage_and_wait_expected_objects(
            "the underlay is renamed back",
            &bounce("wan0", "enp0s8"),
            stays,
            same,
        )?;

        let moved = |_: usize, before: &str| before.replace(here, there);
        self.damage_and_wait_expected_objects(
            "the underlay's address changes",
            &readdress(here, there),
            stays,
            moved,
        )?;
        let is_published =
            || Some(format!("{:?}", self.s.store.lease_names_and_values().ok()?).contains(there));
        until("the lease has the new address", || is_published() == Some(true))?;
        self.damage_and_wait_expected_objects(
            "the underlay's address changes back",
            &readdress(there, here),
            stays,
            same,
        )?;

        let smaller = on_first(|before| {
            let sizes = [1450, 1430, 1480, 1420];
            sizes.iter().fold(before.to_owned(), |text, mtu| {
                text.replace(&format!("mtu {mtu}"), &format!("mtu {}", mtu - 100))
            })
        });
        let mtu_in_file = |underlay: u32| {
            until_ok("subnet.env follows the MTU", || {
                let mtu = self.s[0].daemon()?.subnet_env()?.mtu;
                ensure!(mtu == underlay - self.backend.overhead, "{mtu}");
                Ok(())
            })
        };
        self.damage_and_wait_expected_objects(
            "the underlay's MTU shrinks",
            "ip link set enp0s8 mtu 1400",
            stays,
            smaller,
        )?;
        mtu_in_file(1400)?;
        self.damage_and_wait_expected_objects(
            "the underlay's MTU grows back",
            "ip link set enp0s8 mtu 1500",
            stays,
            same,
        )?;
        mtu_in_file(1500)
    }
}

#[test]
fn sigterm_ends_daemons_and_leaves_the_data_plane() -> Result<()> {
    run_on_probed_data_plane("sigterm", &VXLAN_DUAL, |plane| {
        let file = plane.s[0].daemon()?.subnet_file().to_owned();
        for node in &mut plane.s.nodes {
            node.stop_daemon()?;
        }
        plane.require_unchanged()?;
        ensure!(file.exists(), "subnet.env went with its daemon");
        plane.meshes.drain(..).try_for_each(Mesh::finish_and_require_clean)
    })
}

#[test]
fn second_daemon_on_the_same_state_is_refused() -> Result<()> {
    run_on_probed_data_plane("second", &VXLAN_DUAL, |plane| {
        let first = plane.s[0].daemon()?;
        let other = plane.s.lab.ensure_folder("other")?.join("subnet.env");
        for (name, file) in [("same-file", first.subnet_file()), ("other-file", &other)] {
            let launch = Launch::new(binaries::flannel_binary("flanneld")?)
                .arg("--iface=enp0s8")
                .args(plane.s.store.daemon_args());
            let mut second =
                plane.s[0].spawn(name, &launch.arg(format!("--subnet-file={}", file.display())))?;
            let (status, log) = (second.wait()?, second.log());
            ensure!(status.code() == Some(1), "{status}\n{log}");
            ensure!(
                log.contains("another flanneld") && log.contains(&first.pid().to_string()),
                "no cause or pid: {log}"
            );
        }
        plane.require_unchanged()
    })
}
