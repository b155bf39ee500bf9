//! Checks that pods reach each other, at full MTU and with intact content, with each kernel backend,
//! address family and etcd version. Nodes join and leave, and nodes keep their reserved subnets.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, PingMatrix, PingOptions, Pod, Switch,
    Transfer, TransferOptions, Uplink, until, until_ok,
};
use serde_json::{Value, json};

use crate::healing::scenarios;

const MEGABYTES: u64 = 1_000_000;
const SUBNETS: &str = "/coreos.com/network/subnets/";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Families {
    V4,
    V6,
    Dual,
}

impl Families {
    fn v4(self) -> bool {
        self != Families::V6
    }

    fn v6(self) -> bool {
        self != Families::V4
    }

    fn net_conf(self, backend: &str) -> String {
        let backend = json!({ "Type": backend });
        let conf = match self {
            Families::V4 => json!({ "Network": "10.5.0.0/16", "Backend": backend }),
            Families::V6 => {
                json!({ "EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:5::/48", "Backend": backend })
            }
            Families::Dual => {
                json!({ "EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd00:5::/48", "Backend": backend })
            }
        };
        conf.to_string()
    }
}

scenarios! { carries;
    vxlan_v4 => ("vxlan", Families::V4),
    vxlan_v6 => ("vxlan", Families::V6),
    vxlan_dual => ("vxlan", Families::Dual),
    host_gw_v4 => ("host-gw", Families::V4),
    host_gw_v6 => ("host-gw", Families::V6),
    host_gw_dual => ("host-gw", Families::Dual),
}

/// Runs three nodes and a fourth node that joins and leaves, and checks traffic, leases and subnet.env.
pub(crate) fn carries((backend, families): (&str, Families)) -> Result<()> {
    Lab::run(&format!("{backend} {families:?}"), |lab| {
        let lan = lab.switch("lan")?;
        let etcd = etcd(lab, &lan, &families.net_conf(backend))?;
        let hosts = lab.hosts(&lan, 4)?;
        let options = FlanneldOptions::new(&etcd.store()?).iface("enp0s8");
        // The daemons start at once, as after a power cut.
        let mut daemons = hosts[..3]
            .iter()
            .map(|host| host.start_flanneld(&options))
            .collect::<Result<Vec<_>>>()?;
        daemons
            .iter_mut()
            .try_for_each(|daemon| daemon.wait_ready().map(drop))?;
        let mut pods = hosts
            .iter()
            .zip(&daemons)
            .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
            .collect::<Result<Vec<_>>>()?;

        everybody_reaches_everybody(backend, families, &pods)?;
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            if families.v4() {
                Transfer::run(
                    &pods[from],
                    &pods[to],
                    4 * MEGABYTES,
                    &TransferOptions::default(),
                )?;
            }
            if families.v6() {
                Transfer::run(
                    &pods[from],
                    &pods[to],
                    4 * MEGABYTES,
                    &TransferOptions::default().v6(),
                )?;
            }
        }
        for (host, daemon) in hosts.iter().zip(&daemons) {
            the_operator_sees(&etcd, host, daemon, backend, families)?;
        }

        let mut fourth = hosts[3].flanneld(&options)?;
        let subnets = subnets(&fourth)?;
        pods.push(hosts[3].pod("p1", &fourth.subnet_env()?)?);
        everybody_reaches_everybody(backend, families, &pods)?;

        ensure!(
            fourth.terminate()?.success(),
            "a daemon that is asked to stop exits with 0"
        );
        everybody_reaches_everybody(backend, families, &pods)
            .context("a stopped daemon leaves the data plane in place")?;
        let entries = etcd.client()?.get_prefix(SUBNETS)?;
        let key = entries.iter().find(|entry| {
            subnets
                .iter()
                .any(|subnet| entry.key.contains(&subnet.replace('/', "-")))
        });
        etcd.client()?
            .del(&key.context("the fourth node's key")?.key)?;
        for host in &hosts[..3] {
            let gone = || {
                subnets
                    .iter()
                    .all(|subnet| !traces(host, subnet).is_ok_and(|traces| !traces.is_empty()))
            };
            until(
                &format!(
                    "{} forgets {subnets:?}: {:?}",
                    host.name(),
                    traces(host, &subnets[0])
                ),
                gone,
            )?;
        }
        everybody_reaches_everybody(backend, families, &pods[..3])?;

        daemons.push(fourth);
        quiet(&daemons)
    })
}

/// Returns a host's routes to a subnet, and the neighbour entries of the routes' gateways.
fn traces(host: &Host, subnet: &str) -> Result<Vec<String>> {
    let netns = host.netns();
    let network = subnet.split('/').next().unwrap_or_default();
    let routes = netns
        .routes()?
        .into_iter()
        .chain(netns.v6_routes()?)
        .filter(|route| route.dst == subnet)
        .map(|route| format!("{route:?}"));
    let mut found: Vec<String> = routes.collect();
    for device in ["flannel.1", "flannel-v6.1"] {
        found.extend(
            netns
                .neighbours(device)?
                .into_iter()
                .filter(|neighbour| neighbour.dst == network)
                .map(|neighbour| format!("{neighbour:?}")),
        );
    }
    // Each peer has one FDB entry and one neighbour.
    for device in ["flannel.1", "flannel-v6.1"] {
        let remote = netns
            .fdb(device)?
            .into_iter()
            .filter(|entry| entry.dst.is_some())
            .count();
        let peers = netns
            .neighbours(device)?
            .into_iter()
            .filter(|neighbour| neighbour.state.iter().any(|state| state == "PERMANENT"))
            .count();
        if remote != peers {
            found.push(format!(
                "{remote} FDB entries and {peers} neighbours on {device}"
            ));
        }
    }
    Ok(found)
}

/// Pings all pairs of pods in each family with the longest packets that the device allows. Checks that a packet one byte longer than the device allows does not pass.
fn everybody_reaches_everybody(backend: &str, families: Families, pods: &[Pod]) -> Result<()> {
    let mtu = |overhead: u32| match backend {
        "vxlan" => 1500 - overhead,
        "ipip" => 1480,
        _ => 1500,
    };
    let mut targets_by_mtu: Vec<(u32, Vec<IpAddr>)> = Vec::new();
    if families.v4() {
        targets_by_mtu.push((
            mtu(50),
            pods.iter()
                .map(|pod| Ok(pod.v4()?.into()))
                .collect::<Result<_>>()?,
        ));
    }
    if families.v6() {
        targets_by_mtu.push((
            mtu(70),
            pods.iter()
                .map(|pod| Ok(pod.v6()?.into()))
                .collect::<Result<_>>()?,
        ));
    }
    for (mtu, targets) in targets_by_mtu {
        let matrix = || {
            PingMatrix::to(pods, &targets, &PingOptions::default().packet(mtu))?.require_complete()
        };
        until_ok(&format!("packets of {mtu} bytes pass"), matrix)?;
        let too_long = PingOptions::default()
            .packet(mtu + 1)
            .timeout(Duration::from_millis(200));
        ensure!(
            lab::ping(pods[0].netns(), targets[1], &too_long)?.is_none(),
            "{} bytes pass, so {mtu} are not the full MTU",
            mtu + 1
        );
    }
    Ok(())
}

/// Checks that `etcdctl get` prints a node's lease in Go flannel's format, and that `subnet.env` agrees with the lease.
fn the_operator_sees(
    etcd: &Etcd,
    host: &Host,
    daemon: &Flanneld,
    backend: &str,
    families: Families,
) -> Result<()> {
    let env = daemon.subnet_env()?;
    let v4 = env
        .subnet
        .map(|net| format!("{}-{}", net.network(), net.prefix_len()));
    let v6 = env
        .v6_subnet
        .map(|net| format!("{}-{}", net.network(), net.prefix_len()));
    let key = match (v4, v6) {
        (Some(v4), Some(v6)) => format!("{v4}&{v6}"),
        (Some(v4), None) => v4,
        (None, v6) => format!("0.0.0.0-0&{}", v6.context("a node without subnets")?),
    };
    let entry = etcd
        .client()?
        .get(&format!("{SUBNETS}{key}"))?
        .with_context(|| format!("{} has no key {key}", host.name()))?;
    ensure!(entry.lease != 0, "{key} hangs on no lease");
    let left = etcd.client()?.seconds_left(entry.lease)?;
    ensure!(
        left.is_some_and(|left| (86_000..=86_400).contains(&left)),
        "{key} has {left:?} seconds left"
    );
    let shown = etcd
        .client()?
        .etcdctl(&["get", "--print-value-only", &entry.key])?;
    ensure!(shown.trim_end() == entry.value, "etcdctl shows {shown}");

    let value: Value = serde_json::from_str(&entry.value)?;
    let mac = |device: &str| {
        Ok::<_, anyhow::Error>(
            host.netns()
                .link(device)?
                .with_context(|| format!("no {device}"))?
                .address,
        )
    };
    let data = |device: &str| {
        Ok::<_, anyhow::Error>(format!(r#"{{"VNI":1,"VtepMAC":"{}"}}"#, mac(device)?))
    };
    let mut expected = match families.v4() {
        true => format!(r#"{{"PublicIP":"{}","#, host.v4()?),
        false => r#"{"PublicIP":"0.0.0.0","#.to_owned(),
    };
    expected += &if families.v6() {
        format!(r#""PublicIPv6":"{}""#, host.v6()?)
    } else {
        r#""PublicIPv6":null"#.to_owned()
    };
    expected += &format!(r#","BackendType":"{backend}""#);
    if backend == "vxlan" && families.v4() {
        expected += &format!(r#","BackendData":{}"#, data("flannel.1")?);
    }
    if backend == "vxlan" && families.v6() {
        expected += &format!(r#","BackendV6Data":{}"#, data("flannel-v6.1")?);
    }
    let rest = entry
        .value
        .strip_prefix(&expected)
        .with_context(|| format!("{} does not begin with {expected}", entry.value))?;
    ensure!(
        rest.starts_with(r#","NodeID":{"id":""#) && value["NodeID"]["name"] == host.name(),
        "{}",
        entry.value
    );
    Ok(())
}

scenarios! { reservation_is_kept;
    reservation_is_kept_vxlan => ("vxlan", Families::V4),
    reservation_is_kept_host_gw_dual => ("host-gw", Families::Dual),
}

/// Returns the key and the value of the lease that an operator writes for the first node.
fn reserved(families: Families) -> (&'static str, &'static str) {
    match families {
        Families::Dual => (
            "10.5.77.0-24&fd00:5:0:77::-64",
            r#"{"PublicIP":"192.168.56.101","PublicIPv6":"fd00:56::101"}"#,
        ),
        _ => ("10.5.77.0-24", r#"{"PublicIP":"192.168.56.101"}"#),
    }
}

fn end_daemons(round: &str, hosts: &[Host], daemons: &mut [Flanneld]) -> Result<()> {
    match round {
        "at first" => {}
        "after a stop" => daemons
            .iter_mut()
            .try_for_each(|daemon| daemon.terminate().map(drop))?,
        "after a kill" => daemons.iter_mut().try_for_each(|daemon| daemon.kill())?,
        _ => {
            daemons.iter_mut().try_for_each(|daemon| daemon.kill())?;
            for host in hosts {
                host.power_off()?;
                host.power_on()?;
            }
        }
    }
    Ok(())
}

/// Reserves a subnet for one node before its first start, and a subnet for another node while that node runs. Both nodes keep their subnets.
fn reservation_is_kept((backend, families): (&str, Families)) -> Result<()> {
    Lab::run(&format!("reservation {backend}"), |lab| {
        let lan = lab.switch("lan")?;
        let etcd = etcd(lab, &lan, &families.net_conf(backend))?;
        let client = etcd.client()?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = etcd.store()?;
        // A reboot gives hosts of the lab another identity, because it replaces their namespaces.
        let options = |host: &Host| {
            FlanneldOptions::new(&store)
                .iface("enp0s8")
                .arg(&format!("--node-id={}", host.name()))
        };

        let (before, value) = reserved(families);
        let before = format!("{SUBNETS}{before}");
        client.put(&before, value)?;
        let first = hosts[0].flanneld(&options(&hosts[0]))?;
        ensure!(
            subnets(&first)?[0] == "10.5.77.0/24",
            "{:?}",
            subnets(&first)?
        );

        let second = hosts[1].flanneld(&options(&hosts[1]))?;
        let entries = client.get_prefix(SUBNETS)?;
        let after = entries
            .iter()
            .find(|entry| entry.key != before)
            .context("the second node's key")?
            .key
            .clone();
        let written = client.get(&after)?.context("the second node's key")?;
        // Does what the documentation recommends: puts the output of `get` without a lease.
        client.put(&after, &written.value)?;
        client.revoke(written.lease)?;

        let is_reserved = |key: &str| {
            client
                .get(key)
                .ok()
                .flatten()
                .is_some_and(|entry| entry.lease == 0 && entry.value.contains(r#""NodeID""#))
        };
        let mut daemons = vec![first, second];
        let subnets_before = daemons.iter().map(subnets).collect::<Result<Vec<_>>>()?;
        for round in ["at first", "after a stop", "after a kill", "after a reboot"] {
            end_daemons(round, &hosts, &mut daemons)?;
            if round != "at first" {
                quiet(&daemons)?;
                daemons = hosts
                    .iter()
                    .map(|host| host.flanneld(&options(host)))
                    .collect::<Result<Vec<_>>>()?;
            }
            for key in [&before, &after] {
                until(
                    &format!("{round}: {key} is signed and hangs on no lease"),
                    || is_reserved(key),
                )?;
            }
            let found = daemons.iter().map(subnets).collect::<Result<Vec<_>>>()?;
            ensure!(
                found == subnets_before,
                "{round}: {found:?} instead of {subnets_before:?}"
            );
            ensure!(
                client.get_prefix(SUBNETS)?.len() == 2,
                "{round}: {:?}",
                client.get_prefix(SUBNETS)?
            );
        }
        let pods = hosts
            .iter()
            .zip(&daemons)
            .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
            .collect::<Result<Vec<_>>>()?;
        everybody_reaches_everybody(backend, families, &pods)?;
        quiet(&daemons)
    })
}

#[test]
fn alloc_leases_a_subnet_and_touches_nothing() -> Result<()> {
    Lab::run("alloc", |lab| {
        let lan = lab.switch("lan")?;
        let etcd = etcd(
            lab,
            &lan,
            r#"{"Network":"10.5.0.0/16","Backend":{"Type":"alloc"}}"#,
        )?;
        let hosts = lab.hosts(&lan, 2)?;
        let kernel = |host: &Host| {
            host.netns()
                // Leaves out multicast groups, which the kernel joins for addresses at a time of its own.
                .sh("ip -d link; ip address; ip -4 route; ip -6 route; bridge fdb | sed /^33:33:/d")
        };
        let before = hosts.iter().map(kernel).collect::<Result<Vec<_>>>()?;
        let options = FlanneldOptions::new(&etcd.store()?).iface("enp0s8");
        let daemons = hosts
            .iter()
            .map(|host| host.flanneld(&options))
            .collect::<Result<Vec<_>>>()?;
        let entries = etcd.client()?.get_prefix(SUBNETS)?;
        for (host, daemon) in hosts.iter().zip(&daemons) {
            let subnet = subnets(daemon)?[0].replace('/', "-");
            let entry = entries
                .iter()
                .find(|entry| entry.key == format!("{SUBNETS}{subnet}"))
                .with_context(|| format!("no key {subnet}"))?;
            let begin = format!(
                r#"{{"PublicIP":"{}","PublicIPv6":null,"NodeID":"#,
                host.v4()?
            );
            ensure!(
                entry.lease != 0 && entry.value.starts_with(&begin),
                "{entry:?}"
            );
            ensure!(
                daemon.subnet_env()?.mtu == 1500,
                "{:?}",
                daemon.subnet_env()?
            );
        }
        let after = hosts.iter().map(kernel).collect::<Result<Vec<_>>>()?;
        ensure!(
            before == after,
            "alloc changed the kernel's state from\n{}\nto\n{}",
            before.join("\n"),
            after.join("\n")
        );
        quiet(&daemons)
    })
}

fn etcd(lab: &Lab, lan: &Switch, net_conf: &str) -> Result<Etcd> {
    let store = lab.host("store", &[Uplink::enp0s8(lan, 99)?])?;
    let etcd = Etcd::start(&[&store], &EtcdOptions::default())?;
    etcd.store()?.configure(net_conf)?;
    Ok(etcd)
}

/// Returns a node's subnets as `ip route` prints them, IPv4 first.
fn subnets(daemon: &Flanneld) -> Result<Vec<String>> {
    let env = daemon.subnet_env()?;
    let v4 = env.subnet.map(|net| net.trunc().to_string());
    Ok(v4
        .into_iter()
        .chain(env.v6_subnet.map(|net| net.trunc().to_string()))
        .collect())
}

/// Checks that no daemon logged an error.
fn quiet(daemons: &[Flanneld]) -> Result<()> {
    let errors: Vec<String> = daemons.iter().flat_map(Flanneld::errors).collect();
    ensure!(errors.is_empty(), "{errors:#?}");
    Ok(())
}
