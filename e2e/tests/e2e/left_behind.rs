//! Checks that flanneld removes the objects of an earlier backend of flannel-rs or Go flannel once the new
//! backend works. Objects that other programs use stay.

use anyhow::{Result, ensure};
use lab::{Flanneld, FlanneldOptions, Host, Lab, PingMatrix, Store, until_ok};

fn net_conf(backend: &str) -> String {
    format!(
        r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{backend}}}"#
    )
}

/// A device of another network. The daemon of that network does not run. Only the device's address identifies the network.
const ANOTHER_NETWORKS: &str = "ip link add flannel.77 type vxlan id 77 local 192.168.56.101 dev enp0s8 dstport 8499
    ip address add 10.99.3.0/32 dev flannel.77; ip link set flannel.77 up; ip route add 10.99.4.0/24 via 10.99.4.0 dev flannel.77 onlink";

/// Returns commands that create the objects that Go flannel's vxlan and udp leave, with a route to a subnet that no node has.
fn of_go(own: &str, peer: &str) -> String {
    format!(
        "ip link add flannel.1 type vxlan id 1 local 192.168.56.101 dev enp0s8 dstport 8472 nolearning
         ip address add {own}/32 dev flannel.1; ip link set flannel.1 up
         ip route add {peer}/24 via {peer} dev flannel.1 onlink; ip route add 10.5.250.0/24 via 10.5.250.0 dev flannel.1 onlink
         ip tuntap add flannel0 mode tun; ip address add {own}/32 dev flannel0; ip link set flannel0 up"
    )
}

fn devices(host: &Host) -> Result<Vec<String>> {
    let mut names: Vec<String> = host
        .netns()
        .links()?
        .into_iter()
        .map(|link| link.ifname)
        .filter(|name| name.starts_with("flannel"))
        .collect();
    names.sort();
    Ok(names)
}

/// Each backend, and the flannel devices that the first node has with this backend.
const BACKENDS: [(&str, &[&str]); 6] = [
    (
        r#"{"Type":"vxlan"}"#,
        &["flannel-v6.1", "flannel.1", "flannel.77"],
    ),
    (
        r#"{"Type":"vxlan","VNI":3,"Port":4789}"#,
        &["flannel-v6.3", "flannel.3", "flannel.77"],
    ),
    (r#"{"Type":"udp"}"#, &["flannel.77", "flannel0"]),
    (
        r#"{"Type":"vxlan","Mode":"userspace"}"#,
        &["flannel-v6.1", "flannel.1", "flannel.77"],
    ),
    (r#"{"Type":"host-gw"}"#, &["flannel.77"]),
    ("Go flannel's", &["flannel.77"]),
];

/// Replaces flannel-rs' routes by Go flannel's objects.
fn replace_by_go_flannels(host: &Host, daemons: &[Flanneld]) -> Result<()> {
    let subnet = |daemon: &Flanneld| {
        let subnet = daemon.subnet_env()?.subnet;
        anyhow::Ok(
            subnet
                .map(|net| net.network().to_string())
                .unwrap_or_default(),
        )
    };
    host.netns().sh("ip route flush proto 241")?;
    host.netns()
        .sh(&of_go(&subnet(&daemons[0])?, &subnet(&daemons[1])?))?;
    ensure!(devices(host)?.len() == 3, "{:?}", devices(host)?);
    Ok(())
}

/// Runs all backends in turn. Then creates Go flannel's objects, and runs the last backend again. After each change, only the devices of the current backend remain.
#[test]
fn devices_of_an_earlier_backend_are_removed() -> Result<()> {
    Lab::run("left behind", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        hosts[0].netns().sh(ANOTHER_NETWORKS)?;
        let mut daemons: Vec<Flanneld> = Vec::new();
        let mut pods = Vec::new();
        for (backend, wanted) in BACKENDS {
            for daemon in &mut daemons {
                daemon.terminate()?;
            }
            if backend == "Go flannel's" {
                replace_by_go_flannels(&hosts[0], &daemons)?;
            } else {
                store.configure(&net_conf(backend))?;
            }
            daemons = hosts
                .iter()
                .map(|host| host.start_flanneld(&options))
                .collect::<Result<_>>()?;
            daemons
                .iter_mut()
                .try_for_each(|daemon| daemon.wait_ready().map(drop))?;
            if pods.is_empty() {
                pods = hosts
                    .iter()
                    .zip(&daemons)
                    .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
                    .collect::<Result<_>>()?;
            }
            until_ok(&format!("{backend}: its devices, and no others"), || {
                let found = devices(&hosts[0])?;
                ensure!(
                    found == wanted,
                    "{found:?} instead of {wanted:?}\n{}",
                    daemons[0].log_tail(10)
                );
                Ok(())
            })?;
            until_ok(&format!("{backend}: pods reach each other"), || {
                PingMatrix::of(&pods)?.require_complete()
            })?;
            let routes = hosts[0].netns().sh("ip route")?;
            ensure!(
                !routes.contains("10.5.250.0") && routes.contains("10.99.4.0/24"),
                "{backend}: {routes}"
            );
            ensure!(
                daemons[0].errors().is_empty(),
                "{backend}: {:?}",
                daemons[0].errors()
            );
        }
        let log = daemons[0].log();
        ensure!(
            log.lines().any(|line| {
                line.contains("found a device of an earlier backend")
                    && line.contains("device=flannel.1")
            }),
            "{}",
            daemons[0].log_tail(20)
        );
        Ok(())
    })
}
