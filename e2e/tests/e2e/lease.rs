//! Checks that peers follow changes of a node's lease and address within seconds, and that the log reports each change.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{
    Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, KeyValue, Lab, PingOptions, Pod, Store,
    Uplink, ping, throughout, until, until_ok,
};

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.90.0","Backend":{"Type":"vxlan"}}"#;
const DUAL: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.90.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48",
    "Backend":{"Type":"vxlan"}}"#;
const UPLINK: &str = "enp0s8";

/// Two nodes with a pod each, and etcd on a host of its own.
struct Cluster {
    daemons: Vec<Flanneld>,
    pods: Vec<Pod>,
    options: FlanneldOptions,
    store: Store,
    etcd: Etcd,
    store_host: Host,
    hosts: Vec<Host>,
}

impl Cluster {
    fn start(lab: &Lab) -> Result<Cluster> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store_host = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&store_host], &EtcdOptions::default())?;
        let store = etcd.store()?;
        store.configure(VXLAN)?;
        let options = FlanneldOptions::new(&store)
            .iface(UPLINK)
            .arg("--audit-interval=0");
        let mut cluster = Cluster {
            daemons: Vec::new(),
            pods: Vec::new(),
            options,
            store,
            etcd,
            store_host,
            hosts,
        };
        for host in &cluster.hosts {
            let daemon = host.flanneld(&cluster.options)?;
            cluster.pods.push(host.pod("p1", &daemon.subnet_env()?)?);
            cluster.daemons.push(daemon);
        }
        cluster.reaches()?;
        Ok(cluster)
    }

    /// Waits until the pod of the second node reaches the pod of the first node. Returns the duration of the wait.
    fn reaches(&self) -> Result<Duration> {
        let target = self.pods[0].address()?;
        let options = PingOptions::default().timeout(Duration::from_millis(200));
        until("the pods reach each other", || {
            ping(self.pods[1].netns(), target, &options).is_ok_and(|time| time.is_some())
        })
    }

    /// Returns the key of the first node's lease.
    fn key(&self) -> Result<String> {
        let subnet = self.daemons[0]
            .subnet_env()?
            .subnet
            .context("no subnet in subnet.env")?
            .trunc();
        Ok(self.store.key(&format!(
            "subnets/{}-{}",
            subnet.network(),
            subnet.prefix_len()
        )))
    }

    fn entry(&self) -> Result<KeyValue> {
        self.etcd
            .client()?
            .get(&self.key()?)?
            .context("the first node has no lease")
    }

    /// Returns whether the second node sends packets for the first node to `address`.
    fn sends_to(&self, address: &str) -> bool {
        self.hosts[1].netns().fdb("flannel.1").is_ok_and(|fdb| {
            fdb.iter()
                .any(|entry| entry.dst.as_deref() == Some(address))
        })
    }

    fn logged(&self, words: &str) -> bool {
        self.daemons[0].log().contains(words)
    }
}

fn address(number: u8) -> String {
    format!("192.168.56.{number}")
}

/// Gives the first host a new address, as an operator or DHCP does.
fn readdress(host: &Host, old: &str, new: &str, new_first: bool) -> Result<()> {
    let (add, del) = (
        format!("address add {new}/24 dev {UPLINK}"),
        format!("address del {old}/24 dev {UPLINK}"),
    );
    host.netns()
        .ip(&if new_first {
            format!("{add}\n{del}")
        } else {
            format!("{del}\n{add}")
        })
        .map(drop)
}

#[test]
fn changed_address_reaches_the_peers_at_once() {
    Lab::run("a changed address", |lab| {
        let cluster = Cluster::start(lab)?;
        let host = &cluster.hosts[0];
        // Without promote_secondaries the kernel drops an interface's other addresses with the first one.
        host.netns()
            .sysctl("net/ipv4/conf/all/promote_secondaries", "1")?;
        let mut times = Vec::new();
        for change in 0..10 {
            // The first address is the host's own. The next ones are unused.
            let (old, new) = (
                address(if change == 0 { 101 } else { 50 + change }),
                address(51 + change),
            );
            readdress(host, &old, &new, change % 2 == 1)?;
            let start = Instant::now();
            until(&format!("change {change}: the peer sends to {new}"), || {
                cluster.sends_to(&new)
            })?;
            let published = start.elapsed();
            cluster.reaches()?;
            times.push((published, start.elapsed()));
            println!(
                "change {change}: published {published:.2?}, reached {:.2?}",
                start.elapsed()
            );
            until("it is in the log", || {
                cluster.logged(&format!("publishes {new} instead of {old}"))
            })?;
            until("it is ready", || cluster.daemons[0].is_ready())?;
            ensure!(
                cluster.entry()?.lease != 0,
                "the lease became a reservation"
            );
        }
        let longest = times.iter().map(|(_, reached)| *reached).max();
        println!("the longest of ten: {longest:.2?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn unpublishable_address_is_reported() {
    Lab::run("an address that cannot be told", |lab| {
        let cluster = Cluster::start(lab)?;
        cluster.store_host.cut(UPLINK)?;
        readdress(&cluster.hosts[0], &address(101), &address(77), false)?;
        until_ok("it is not ready, and says why", || {
            let (code, body) = cluster.daemons[0].get("/readyz")?;
            ensure!(
                code == 503 && body.contains(&address(77)) && body.contains(&address(101)),
                "{code} {body}"
            );
            Ok(())
        })?;
        until("it is in the log", || {
            cluster.logged("the peers do not know yet")
        })?;
        cluster.store_host.reconnect(UPLINK)?;
        until("the peer sends to the new address", || {
            cluster.sends_to(&address(77))
        })?;
        cluster.reaches()?;
        until("it is ready again", || cluster.daemons[0].is_ready())?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn manual_changes_of_the_own_lease_are_reported() {
    Lab::run("a hand at the own lease", |lab| {
        let cluster = Cluster::start(lab)?;
        let (client, key) = (cluster.etcd.client()?, cluster.key()?);
        let before = cluster.entry()?;
        let stands = |what: &str, reserved: bool| {
            until_ok(what, || {
                let now = cluster.entry()?;
                ensure!(
                    now.value.contains(&address(101)) && (now.lease == 0) == reserved,
                    "{now:?}"
                );
                Ok(())
            })
        };
        // Edits the lease by mistake, to the address of another host.
        client.put(&key, &before.value.replace(&address(101), &address(222)))?;
        stands("the foreign address is put back, lease included", false)?;
        until("it is logged", || {
            cluster.logged(
                "192.168.56.222, which is not this node's address: flanneld restored the lease",
            )
        })?;
        // An unreadable value is neither a deletion nor a reservation.
        client.put(&key, "{garbage")?;
        stands("garbage is put back, lease included", false)?;
        until("it is logged", || {
            cluster.logged("was overwritten with an unreadable value: flanneld restored the lease")
        })?;
        ensure!(
            !cluster.logged("deleted"),
            "nothing was deleted:\n{}",
            cluster.daemons[0].log_tail(20)
        );
        ensure!(client.del(&key)?, "{key} was not there");
        stands("the deleted key is put back", false)?;
        until("it is logged", || {
            cluster.logged("was deleted from the store: flanneld restored it")
        })?;
        // Reserves the subnet as documented.
        for _ in 0..2 {
            client.put(&key, &cluster.entry()?.value)?;
            stands("it is a reservation", true)?;
        }
        until("it is logged", || {
            cluster.logged("From now on, the lease is a reservation of this node")
        })?;
        throughout(Duration::from_millis(500), "it is said once", || {
            ensure!(
                cluster.daemons[0]
                    .log()
                    .matches("is a reservation of this node")
                    .count()
                    == 1
            );
            Ok(())
        })?;
        ensure!(cluster.daemons[0].is_ready());
        Ok(())
    })
    .unwrap();
}

#[test]
fn restarts_leave_no_leases_behind() {
    Lab::run("restarts", |lab| {
        let mut cluster = Cluster::start(lab)?;
        let leases = |cluster: &Cluster| -> Result<usize> {
            Ok(cluster
                .etcd
                .client()?
                .etcdctl(&["lease", "list"])?
                .lines()
                .filter(|line| !line.starts_with("found"))
                .count())
        };
        let before = leases(&cluster)?;
        ensure!(before == 2, "{before} leases of two nodes");
        for round in 0..20 {
            if round % 2 == 0 {
                cluster.daemons[0].kill()?;
            } else {
                cluster.daemons[0].terminate()?;
            }
            cluster.daemons[0] = cluster.hosts[0].flanneld(&cluster.options)?;
        }
        let after = leases(&cluster)?;
        println!("20 restarts: {before} leases before, {after} after");
        ensure!(after == before, "20 restarts made {before} leases {after}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_changed_network_leaves_nothing_of_the_old_one() {
    Lab::run("a changed network", |lab| {
        let mut cluster = Cluster::start(lab)?;
        let netns = cluster.hosts[0].netns().clone();
        let held = |netns: &lab::Netns| netns.sh("ip address show dev flannel.1; ip route show; ip neighbour show dev flannel.1");
        let restart = |cluster: &mut Cluster, net_conf: &str| -> Result<()> {
            cluster.store.configure(net_conf)?;
            for daemon in &mut cluster.daemons {
                daemon.terminate()?;
            }
            for (host, daemon) in cluster.hosts.iter().zip(&mut cluster.daemons) {
                *daemon = host.flanneld(&cluster.options)?;
            }
            Ok(())
        };
        restart(&mut cluster, DUAL)?;
        ensure!(held(&netns)?.contains("10.5.") && netns.link("flannel-v6.1")?.is_some(), "nothing to leave");
        // Objects of an operator: outside both networks, or in a form that the daemon does not use.
        netns.ip("address add 10.98.0.1/24 dev flannel.1\nroute add 10.97.0.0/16 dev flannel.1 proto static\nroute add 10.5.200.0/24 dev enp0s8 proto static")?;
        restart(&mut cluster, &VXLAN.replace("10.5.", "10.6."))?;
        until_ok("nothing of the old network is left", || {
            let held = held(&netns)?;
            let left: Vec<&str> = held.lines().filter(|line| line.contains("10.5.") && line.contains("flannel.1")).collect();
            ensure!(left.is_empty(), "{left:?}");
            ensure!(held.contains("10.6."), "nothing of the new one:\n{held}");
            ensure!(netns.link("flannel-v6.1")?.is_none(), "the device of the dropped family is left");
            Ok(())
        })?;
        let held = held(&netns)?;
        for theirs in ["10.98.0.1/24", "10.97.0.0/16", "10.5.200.0/24"] {
            ensure!(held.contains(theirs), "{theirs} was the operator's:\n{held}");
        }
        Ok(())
    })
    .unwrap();
}

/// Renames flannel's device as an operator does. The daemon may rename the device back between two of the commands.
fn renamed(lab: &str, net_conf: &str, device: &str) {
    Lab::run(lab, |lab| {
        let mut cluster = Cluster::start(lab)?;
        if net_conf != VXLAN {
            cluster.store.configure(net_conf)?;
            for daemon in &mut cluster.daemons {
                daemon.terminate()?;
            }
            for (host, daemon) in cluster.hosts.iter().zip(&mut cluster.daemons) {
                *daemon = host.flanneld(&cluster.options)?;
            }
            cluster.reaches()?;
        }
        let netns = cluster.hosts[0].netns().clone();
        for how in [
            format!("ip link set {device} down\nip link set {device} name other7\nip link set other7 up || true"),
            format!("ip link set {device} name other8"),
        ] {
            netns.sh(&how)?;
            let start = Instant::now();
            until("the device has its name", || netns.link(device).is_ok_and(|link| link.is_some()))?;
            cluster.reaches()?;
            println!("{device} renamed: traffic after {:.2?}", start.elapsed());
            let names: Vec<String> = netns.links()?.into_iter().map(|link| link.ifname).filter(|name| name.starts_with("other")).collect();
            ensure!(names.is_empty(), "{names:?} are left");
            until("it is ready", || cluster.daemons[0].is_ready())?;
        }
        // Renames it while no daemon runs.
        cluster.daemons[0].terminate()?;
        if netns.link(device)?.is_some() {
            netns.ip(&format!("link set {device} name other9"))?;
        }
        cluster.daemons[0] = cluster.hosts[0].flanneld(&cluster.options)?;
        cluster.reaches()?;
        ensure!(netns.link("other9")?.is_none(), "the renamed device is left");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_renamed_vxlan_device_gets_its_name_back() {
    renamed("a renamed vxlan device", VXLAN, "flannel.1");
}

#[test]
fn a_renamed_tun_device_of_vxlan_gets_its_name_back() {
    renamed(
        "a renamed TUN device of vxlan",
        &VXLAN.replace(r#""vxlan""#, r#""vxlan","Mode":"userspace""#),
        "flannel.1",
    );
}

#[test]
fn a_renamed_tun_device_of_udp_gets_its_name_back() {
    renamed(
        "a renamed TUN device of udp",
        &VXLAN.replace("vxlan", "udp"),
        "flannel0",
    );
}

#[test]
fn garbage_in_a_directory_is_reported() {
    Lab::run("garbage in a directory", |lab| {
        let lan = lab.switch("lan")?;
        let host = lab.host("h1", &[Uplink::enp0s8(&lan, 1)?])?;
        let folder = lab.folder("leases")?;
        let store = Store::dir(&folder);
        store.configure(VXLAN)?;
        let daemon = host.flanneld(&FlanneldOptions::new(&store).iface(UPLINK))?;
        let (key, _) = store.subnets()?.into_iter().next().context("no lease")?;
        let path = folder.join("subnets").join(key);
        std::fs::write(&path, "{garbage")?;
        until("it is put back", || {
            std::fs::read_to_string(&path).is_ok_and(|text| text.contains(&address(101)))
        })?;
        until("it is logged", || {
            daemon
                .log()
                .contains("was overwritten with an unreadable value: flanneld restored the lease")
        })?;
        ensure!(
            !daemon.log().contains("deleted"),
            "nothing was deleted:\n{}",
            daemon.log_tail(20)
        );
        Ok(())
    })
    .unwrap();
}
