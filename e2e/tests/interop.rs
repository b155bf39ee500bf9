//! Nodes of flannel-rs and of Go flannel in one cluster. On one node, flannel-rs replaces Go flannel and back, without a lost packet, except with the
//! backend `wireguard`.
//!
//! Run with `make test-interop GO_FLANNELD=/path/to/flanneld`. Each test fails if `GO_FLANNELD` names no file.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows it in tests, but does not know their helpers"
)]

#[path = "e2e/mesh/ping_only.rs"]
mod ping_only;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use lab::{
    Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Mesh, Pod, ProbeOptions, Transfer,
    TransferOptions, Uplink, until, until_ok, wait_pods_connected,
};
use serde_json::Value;

const GO_FLANNELD: &str = "GO_FLANNELD";
const SUBNETS: &str = "/coreos.com/network/subnets/";
const MEGABYTES: u64 = 1_000_000;

#[test]
fn mixed_cluster_vxlan() -> Result<()> {
    require_mixed_cluster_connects(go_flanneld()?, &VXLAN)
}

#[test]
fn mixed_cluster_host_gw() -> Result<()> {
    require_mixed_cluster_connects(go_flanneld()?, &HOST_GW)
}

#[test]
fn swap_to_ours_and_back_vxlan() -> Result<()> {
    swap_daemon_under_traffic(go_flanneld()?, &VXLAN)
}

#[test]
fn swap_to_ours_and_back_host_gw() -> Result<()> {
    swap_daemon_under_traffic(go_flanneld()?, &HOST_GW)
}

#[test]
fn swap_to_ours_and_back_vxlan_direct() -> Result<()> {
    swap_daemon_under_traffic(go_flanneld()?, &VXLAN_DIRECT)
}

#[test]
#[ignore = "needs a kernel with WireGuard and IPIP: make test-interop runs it in a virtual machine"]
fn vm_mixed_cluster_wireguard() -> Result<()> {
    require_mixed_cluster_connects(go_flanneld()?, &WIREGUARD)
}

#[test]
#[ignore = "needs a kernel with WireGuard and IPIP: make test-interop runs it in a virtual machine"]
fn vm_mixed_cluster_ipip() -> Result<()> {
    require_mixed_cluster_connects(go_flanneld()?, &IPIP)
}

/// Go flannel deletes its device when it exits and creates another device when it starts, so the node loses packets meanwhile.
/// The lease keeps its subnet, address, key and port.
#[test]
#[ignore = "needs a kernel with WireGuard and IPIP: make test-interop runs it in a virtual machine"]
fn vm_swap_to_ours_and_back_wireguard() -> Result<()> {
    let go = go_flanneld()?;
    Lab::run("swap wireguard", |lab| {
        let bed = MixedHosts::build(lab, go, &WIREGUARD)?;
        let mut daemons =
            bed.hosts.iter().map(|host| bed.start_go_daemon(host)).collect::<Result<Vec<_>>>()?;
        let pods = start_connected_pods(&bed, &daemons.iter().collect::<Vec<_>>())?;
        let host = &bed.hosts[0];
        let key = || host.netns().exec("wg", &["show", "flannel-wg", "public-key"]);
        let (env, lease, before) = (daemons[0].subnet_env()?, bed.lease(host)?, key()?);
        ensure!(
            lease.1["BackendData"]["PublicKey"] == before.trim(),
            "{lease:?}, and the device has {before}"
        );
        for round in ["ours", "Go again", "ours again"] {
            daemons[0].terminate()?;
            daemons[0] = if round == "Go again" {
                bed.start_go_daemon(host)?
            } else {
                bed.start_our_daemon(host)?
            };
            ensure!(
                daemons[0].subnet_env()? == env,
                "{round}: {:?} instead of {env:?}",
                daemons[0].subnet_env()?
            );
            ensure!(
                bed.lease(host)? == lease,
                "{round}: {:?} instead of {lease:?}",
                bed.lease(host)?
            );
            wait_pods_connected(&pods).with_context(|| round.to_owned())?;
            ensure!(key()? == before, "{round}: another key");
            if round != "Go again" {
                ensure!(daemons[0].errors().is_empty(), "{:#?}", daemons[0].errors());
            }
        }
        Ok(())
    })
}

/// Title, and `Backend` value in the network configuration.
type Backend = (&'static str, &'static str);
const VXLAN: Backend = ("vxlan", r#"{"Type":"vxlan"}"#);
const VXLAN_DIRECT: Backend = ("vxlan direct", r#"{"Type":"vxlan","DirectRouting":true}"#);
const WIREGUARD: Backend =
    ("wireguard", r#"{"Type":"wireguard","PersistentKeepaliveInterval":25}"#);
const IPIP: Backend = ("ipip", r#"{"Type":"ipip"}"#);
const HOST_GW: Backend = ("host-gw", r#"{"Type":"host-gw"}"#);

/// Fails if `GO_FLANNELD` names no file.
fn go_flanneld() -> Result<PathBuf> {
    let path = std::env::var_os(GO_FLANNELD).filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = path.with_context(|| format!("{GO_FLANNELD} does not name a Go flanneld (make test-interop {GO_FLANNELD}=/path/to/flanneld)"))?;
    ensure!(path.is_file(), "{GO_FLANNELD}={} is no file", path.display());
    Ok(path)
}

/// Three hosts, an etcd server, and the files that both daemons need to start.
struct MixedHosts {
    etcd: Etcd,
    hosts: Vec<Host>,
    go: PathBuf,
    /// A WireGuard key file for each host.
    keys: PathBuf,
    ipv6: bool,
}

impl MixedHosts {
    fn build(lab: &Lab, go: PathBuf, backend: &Backend) -> Result<MixedHosts> {
        let lan = lab.create_switch("lan")?;
        let store = lab.create_host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&store], &EtcdOptions::default())?;
        // Go flannel's ipip supports IPv4 only.
        let ipv6 = backend.0 != IPIP.0;
        let conf = format!(
            r#"{{"EnableIPv6":{ipv6},"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48","Backend":{}}}"#,
            backend.1
        );
        etcd.store()?.configure(&conf)?;
        Ok(MixedHosts {
            etcd,
            hosts: lab.create_hosts(&lan, 3)?,
            go,
            keys: lab.ensure_folder("keys")?,
            ipv6,
        })
    }

    fn options(&self, host: &Host) -> Result<FlanneldOptions> {
        let key = self.keys.join(host.name()).display().to_string();
        Ok(FlanneldOptions::new(&self.etcd.store()?)
            .iface("enp0s8")
            .env("WIREGUARD_KEY_FILE", &key))
    }

    fn start_our_daemon(&self, host: &Host) -> Result<Flanneld> {
        host.start_flanneld_and_wait_ready(&self.options(host)?)
    }

    fn start_go_daemon(&self, host: &Host) -> Result<Flanneld> {
        // Without traffic rules the test needs no iptables.
        let options = self.options(host)?.arg("--iptables-forward-rules=false");
        host.start_flanneld_and_wait_ready(&options.binary(&self.go).healthz_port(None))
            .with_context(|| format!("Go flannel on {}", host.name()))
    }

    /// Key and value in the store, without `NodeID`.
    fn lease(&self, host: &Host) -> Result<(String, Value)> {
        let public = host.v4()?.to_string();
        for entry in self.etcd.client_on_first_member()?.get_prefix(SUBNETS)? {
            let mut value: Value =
                serde_json::from_str(&entry.value).with_context(|| entry.value.clone())?;
            if value["PublicIP"] == public.as_str() {
                value.as_object_mut().context("an object")?.remove("NodeID");
                return Ok((entry.key, value));
            }
        }
        anyhow::bail!("{} has no key", host.name())
    }
}

/// Links with their indexes and MACs, addresses and routes, and flannel's neighbours and FDB entries. flannel-rs' routes have Go flannel's route
/// protocol in the list, so that the test can compare the lists of both programs.
fn kernel_objects(host: &Host) -> Result<Vec<String>> {
    let netns = host.netns();
    let routes =
        netns.exec("ip", &["-4", "-d", "route"])? + &netns.exec("ip", &["-6", "-d", "route"])?;
    let mut objects: Vec<String> =
        routes.lines().map(|line| line.trim().replace("proto 241", "proto boot")).collect();
    let mut add = |text: String, of: &str| {
        objects.extend(
            text.lines().map(str::trim).filter(|line| line.contains(of)).map(str::to_owned),
        );
    };
    add(netns.exec("ip", &["-o", "link"])?, "");
    add(netns.exec("ip", &["-o", "address"])?, "");
    add(netns.exec("ip", &["neighbour"])?, "dev flannel");
    add(netns.exec("bridge", &["fdb"])?, "dev flannel");
    objects.sort();
    Ok(objects)
}

/// Builds one on each host and waits until they reach each other.
fn start_connected_pods(bed: &MixedHosts, daemons: &[&Flanneld]) -> Result<Vec<Pod>> {
    let pods = bed
        .hosts
        .iter()
        .zip(daemons)
        .map(|(host, daemon)| host.create_pod("p1", &daemon.subnet_env()?))
        .collect::<Result<Vec<_>>>()?;
    wait_pods_connected(&pods)?;
    Ok(pods)
}

/// All pods of two Go nodes and one flannel-rs node reach each other. Then one Go node leaves, and the flannel-rs node removes its kernel objects.
fn require_mixed_cluster_connects(go: PathBuf, backend: &Backend) -> Result<()> {
    Lab::run(&format!("mixed {}", backend.0), |lab| {
        let bed = MixedHosts::build(lab, go, backend)?;
        let tunnel = [WIREGUARD.0, IPIP.0].contains(&backend.0);
        let [first, second, third] = &bed.hosts[..] else { anyhow::bail!("three hosts") };
        // Our daemon starts second: one Go node is there before it, and one joins later.
        let (mut leaving, ours, staying) = (
            bed.start_go_daemon(first)?,
            bed.start_our_daemon(second)?,
            bed.start_go_daemon(third)?,
        );
        let pods = start_connected_pods(&bed, &[&leaving, &ours, &staying])?;
        let v4 = TransferOptions::default();
        let families = [Some(v4.clone()), bed.ipv6.then(|| v4.v6())];
        for options in families.iter().flatten() {
            for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
                Transfer::run(&pods[from], &pods[to], 4 * MEGABYTES, options)?;
            }
        }
        if !tunnel {
            ping_only::wait_peers_well_by_ping_alone(&ours, &[first, third])?;
        }
        let subnet = leaving.subnet_env()?.subnet.context("a v4 subnet")?.trunc().to_string();
        let (key, _) = bed.lease(first)?;
        leaving.terminate()?;
        bed.etcd.client_on_first_member()?.del(&key)?;
        // A wireguard peer has no route of its own, so its allowed IPs are checked as well.
        let gone = || {
            second
                .netns()
                .sh("ip route; wg show all allowed-ips 2>/dev/null || true")
                .is_ok_and(|found| !found.contains(&subnet))
        };
        until("our node forgets the Go node that left", gone)?;
        wait_pods_connected(&pods[1..])?;
        ensure!(ours.errors().is_empty(), "{:#?}", ours.errors());
        Ok(())
    })
}

/// Replaces the daemon of one of three Go nodes with flannel-rs and back, while all pods exchange packets.
fn swap_daemon_under_traffic(go: PathBuf, backend: &Backend) -> Result<()> {
    Lab::run(&format!("swap {}", backend.0), |lab| {
        let bed = MixedHosts::build(lab, go, backend)?;
        let mut daemons =
            bed.hosts.iter().map(|host| bed.start_go_daemon(host)).collect::<Result<Vec<_>>>()?;
        let pods = start_connected_pods(&bed, &daemons.iter().collect::<Vec<_>>())?;
        let host = &bed.hosts[0];
        let (env, lease, before) =
            (daemons[0].subnet_env()?, bed.lease(host)?, kernel_objects(host)?);
        let meshes = [
            Mesh::start(&pods, &ProbeOptions::default())?,
            Mesh::start(&pods, &ProbeOptions::default().v6())?,
        ];
        meshes.iter().try_for_each(|mesh| mesh.wait_flowing().map(drop))?;
        for round in ["ours", "Go again", "ours again"] {
            daemons[0].terminate()?;
            daemons[0] = if round == "Go again" {
                bed.start_go_daemon(host)?
            } else {
                bed.start_our_daemon(host)?
            };
            ensure!(
                daemons[0].subnet_env()? == env,
                "{round}: {:?} instead of {env:?}",
                daemons[0].subnet_env()?
            );
            // Key, address and MACs are unchanged, so other nodes need not change anything.
            ensure!(
                bed.lease(host)? == lease,
                "{round}: {:?} instead of {lease:?}",
                bed.lease(host)?
            );
            until_ok("the kernel holds what it held", || {
                let found = kernel_objects(host)?;
                ensure!(found == before, "{round}: {found:#?}\ninstead of {before:#?}");
                Ok(())
            })?;
            meshes.iter().try_for_each(|mesh| mesh.wait_flowing().map(drop))?;
            if round != "Go again" {
                let ours = || {
                    let routes = host
                        .netns()
                        .v4_routes()
                        .unwrap_or_default()
                        .into_iter()
                        .chain(host.netns().v6_routes().unwrap_or_default());
                    routes.filter(|route| route.protocol == "241").count() == 4
                };
                until("the four routes to peers are ours", ours)?;
                ensure!(daemons[0].errors().is_empty(), "{:#?}", daemons[0].errors());
            }
        }
        meshes.into_iter().try_for_each(Mesh::finish_and_require_clean)
    })
}
