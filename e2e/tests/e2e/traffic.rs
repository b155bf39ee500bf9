//! Pods reach each other, at full MTU and with intact content, with each kernel backend and family, and nodes join and leave.

pub(crate) mod two_networks;
pub(crate) mod underlay;
pub(crate) mod vagrant;

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    Node, PingMatrix, PingOptions, Pod, Scene, Transfer, TransferOptions, ping_address, until_ok,
};
use serde_json::{Value, json};

use crate::healing::scenarios;

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

    fn net_conf(self, backend: &str) -> Value {
        let (v4, v6) = ("10.5.0.0/16", "fd00:5::/48");
        let mut conf = json!({ "EnableIPv4": self.v4(), "EnableIPv6": self.v6(), "Backend": { "Type": backend } });
        if self.v4() {
            conf["Network"] = v4.into();
        }
        if self.v6() {
            conf["IPv6Network"] = v6.into();
        }
        conf
    }
}

scenarios! { require_traffic_and_leases;
    vxlan_v4 => ("vxlan", Families::V4),
    vxlan_v6 => ("vxlan", Families::V6),
    vxlan_dual => ("vxlan", Families::Dual),
    host_gw_v4 => ("host-gw", Families::V4),
    host_gw_v6 => ("host-gw", Families::V6),
    host_gw_dual => ("host-gw", Families::Dual),
}

/// Three nodes and a fourth one that joins and leaves: traffic, leases and subnet.env.
pub(crate) fn require_traffic_and_leases((backend, families): (&str, Families)) -> Result<()> {
    Scene::with_title(&format!("{backend} {families:?}"))
        .nodes(4)
        .etcd()
        .net(&families.net_conf(backend).to_string())
        .without_daemons()
        .run(|s| {
            // The daemons start at once, as after a power cut.
            for node in &mut s.nodes[..3] {
                node.launch_daemon()?;
            }
            for node in &mut s.nodes[..3] {
                node.daemon_mut()?.wait_ready()?;
                node.create_pod("p1")?;
            }
            let pods: Vec<Pod> = s.pods().into_iter().cloned().collect();
            wait_pods_connected_at_full_mtu(backend, &pods)?;
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                let options = [
                    (families.v4(), TransferOptions::default()),
                    (families.v6(), TransferOptions::default().v6()),
                ];
                for (_, options) in options.iter().filter(|(is_used, _)| *is_used) {
                    Transfer::run(&pods[from], &pods[to], 4_000_000, options)?;
                }
            }
            s.nodes[..3].iter().try_for_each(|node| {
                require_go_flannel_lease_fields(s, node, backend, families)
                    .with_context(|| node.name().to_owned())
            })?;

            s[3].start_daemon()?;
            s[3].create_pod("p1")?;
            let env = s[3].daemon()?.subnet_env()?;
            let key = etcd_lease_key(&s[3])?;
            wait_pods_connected_at_full_mtu(backend, &s.first_pods()?)?;
            s[3].stop_daemon()?;
            wait_pods_connected_at_full_mtu(backend, &s.first_pods()?)
                .context("a stopped daemon leaves the data plane in place")?;
            s.etcd.as_ref().context("no etcd")?.client_on_first_member()?.del(&key)?;
            // Routes and neighbours have the network's address, and FDB entries that of the host.
            let networks = [
                env.subnet.map(|net| net.network().to_string()),
                env.v6_subnet.map(|net| net.network().to_string()),
            ];
            let left = [format!("dst {}", s[3].v4()?), format!("dst {}", s[3].v6()?)];
            let traces: Vec<&String> = networks.iter().flatten().chain(&left).collect();
            for node in &s.nodes[..3] {
                until_ok("the node forgets the fourth one", || {
                    let now = node.sh("ip route; ip -6 route; ip neighbour; bridge fdb")?;
                    ensure!(!traces.iter().any(|trace| now.contains(*trace)), "{traces:?}: {now}");
                    Ok(())
                })?;
            }
            wait_pods_connected_at_full_mtu(backend, &pods)?;
            s.require_no_errors()
        })
}

/// Pings with the longest packets that the device allows, in each family. A packet one byte longer does not pass.
pub(crate) fn wait_pods_connected_at_full_mtu(backend: &str, pods: &[Pod]) -> Result<()> {
    let addresses: Vec<Vec<IpAddr>> = pods.iter().map(Pod::addresses).collect();
    for family in 0..addresses[0].len() {
        let targets: Vec<IpAddr> = addresses.iter().map(|list| list[family]).collect();
        let mtu = match backend {
            "vxlan" if targets[0].is_ipv4() => 1450,
            "vxlan" => 1430,
            "ipip" => 1480,
            _ => 1500,
        };
        let options = PingOptions::default().packet_length(mtu);
        until_ok(&format!("packets of {mtu} bytes pass"), || {
            PingMatrix::between_addresses(pods, &targets, &options)?.require_complete()
        })?;
        let too_long =
            PingOptions::default().packet_length(mtu + 1).timeout(Duration::from_millis(200));
        ensure!(
            ping_address(pods[0].netns(), targets[1], &too_long)?.is_none(),
            "{mtu} bytes are not the full MTU"
        );
    }
    Ok(())
}

/// The key of a node's lease in etcd.
fn etcd_lease_key(node: &Node) -> Result<String> {
    let env = node.daemon()?.subnet_env()?;
    let v4 = env.subnet.map(|net| net.trunc().to_string().replace('/', "-"));
    let v6 = env.v6_subnet.map(|net| net.trunc().to_string().replace('/', "-"));
    Ok(match (v4, v6) {
        (Some(v4), Some(v6)) => format!("{SUBNETS}{v4}&{v6}"),
        (Some(v4), None) => format!("{SUBNETS}{v4}"),
        (None, v6) => format!("{SUBNETS}0.0.0.0-0&{}", v6.context("a node without subnets")?),
    })
}

/// The key, the fields and the remaining time. `golden` compares the whole text with that of Go flannel.
fn require_go_flannel_lease_fields(
    s: &Scene<'_>,
    node: &Node,
    backend: &str,
    families: Families,
) -> Result<()> {
    let client = s.etcd.as_ref().context("no etcd")?.client_on_first_member()?;
    let entry = client
        .get(&etcd_lease_key(node)?)?
        .with_context(|| format!("no key {:?}", etcd_lease_key(node)))?;
    let left = client.seconds_left(entry.lease)?;
    ensure!(
        left.is_some_and(|left| (86_000..=86_400).contains(&left)),
        "{left:?} seconds left: {entry:?}"
    );
    let data = |device: &str| -> Result<Value> {
        let link = node.netns().link(device)?;
        Ok(link.map_or(Value::Null, |link| json!({ "VNI": 1, "VtepMAC": link.address })))
    };
    let value: Value = serde_json::from_str(&entry.value)?;
    let v4 = if families.v4() { node.v4()?.to_string() } else { "0.0.0.0".to_owned() };
    let v6 = if families.v6() { json!(node.v6()?.to_string()) } else { Value::Null };
    for (field, wanted) in [
        ("/PublicIP", json!(v4)),
        ("/PublicIPv6", v6),
        ("/BackendType", json!(backend)),
        ("/BackendData", data("flannel.1")?),
        ("/BackendV6Data", data("flannel-v6.1")?),
        ("/NodeID/name", json!(node.name())),
    ] {
        ensure!(
            value.pointer(field).unwrap_or(&Value::Null) == &wanted,
            "{field} is not {wanted}: {value}"
        );
    }
    Ok(())
}
