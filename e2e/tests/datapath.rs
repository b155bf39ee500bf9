//! Proves that our own packet engine carries packets between nodes: `udp`, and vxlan in userspace, with every way of moving packets,
//! beside kernel vxlan, and against what must not get through.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy.toml allows it in tests, but does not know their helpers")]

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Flanneld, FlanneldOptions, Host, Lab, PingMatrix, PingOptions, Pod, Store, Transfer, TransferOptions, eventually_ok};
use serde_json::json;

const STOP: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_secs(10);
const WAYS: [&str; 3] = ["offload", "mmsg", "plain"];

/// Hosts with a pod each, on one switch; each host's daemon moves packets in the way of its place in `ways`.
struct Bed {
    hosts: Vec<Host>,
    daemons: Vec<Flanneld>,
    pods: Vec<Pod>,
}

fn bed(lab: &Lab, net_conf: &serde_json::Value, ways: &[&str]) -> Result<Bed> {
    let lan = lab.switch("lan")?;
    let hosts = lab.hosts(&lan, ways.len().try_into()?)?;
    let folder = lab.folder("leases")?;
    let store = Store::dir(&folder);
    store.configure(&net_conf.to_string())?;
    let start = |(host, way): (&Host, &&str)| host.start_flanneld(&FlanneldOptions::new(&store).iface("enp0s8").env("FLANNELD_DATAPATH", way));
    let mut daemons = hosts.iter().zip(ways).map(start).collect::<Result<Vec<_>>>()?;
    daemons.iter_mut().try_for_each(|daemon| daemon.wait_ready(STOP).map(drop))?;
    let pods = hosts.iter().zip(&daemons).map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?)).collect::<Result<Vec<_>>>()?;
    Ok(Bed { hosts, daemons, pods })
}

fn dual(backend: serde_json::Value) -> serde_json::Value {
    json!({ "EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd00:5::/48", "Backend": backend })
}

/// All pairs, both families, small packets and the longest that fit; then bulk data both ways.
fn all_carry(bed: &Bed, overheads: (u32, u32)) -> Result<()> {
    let pods = &bed.pods;
    let v4: Vec<IpAddr> = pods.iter().map(|pod| Ok(pod.v4()?.into())).collect::<Result<_>>()?;
    let v6: Vec<IpAddr> = pods.iter().map(|pod| Ok(pod.v6()?.into())).collect::<Result<_>>()?;
    for (targets, overhead) in [(v4, overheads.0), (v6, overheads.1)] {
        for length in [84, 1000, 1500 - overhead] {
            let matrix = || PingMatrix::to(pods, &targets, &PingOptions::default().packet(length))?.require_complete();
            eventually_ok(SOON, &format!("packets of {length} bytes pass"), matrix)?;
        }
    }
    for from in 0..pods.len() {
        for to in (0..pods.len()).filter(|to| *to != from) {
            Transfer::run(&pods[from], &pods[to], 8_000_000, &TransferOptions::default())?;
            Transfer::run(&pods[from], &pods[to], 8_000_000, &TransferOptions::default().v6())?;
        }
    }
    for (host, daemon) in bed.hosts.iter().zip(&bed.daemons) {
        let errors = daemon.errors();
        ensure!(errors.is_empty(), "{}: {errors:#?}", host.name());
    }
    Ok(())
}

#[test]
fn udp_between_all_ways_of_moving_packets() -> Result<()> {
    Lab::run("udp ways", |lab| all_carry(&bed(lab, &dual(json!({ "Type": "udp" })), &WAYS)?, (28, 28)))
}

#[test]
fn vxlan_between_all_ways_of_moving_packets() -> Result<()> {
    Lab::run("vxlan ways", |lab| all_carry(&bed(lab, &dual(json!({ "Type": "vxlan", "Mode": "userspace" })), &WAYS)?, (50, 70)))
}
