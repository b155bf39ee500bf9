//! A flannel-rs node exchanges packets with Go flannel's nodes, and replaces one in place. Imitations of Go flannel's nodes write the same leases and
//! create the same kernel objects.

use anyhow::{Context, Result, ensure};
use lab::{
    EtcdClient, Host, KeyValue, Pod, Scene, SceneOptions, SubnetEnv, Transfer, TransferOptions,
    until, until_ok,
};
use lab::{Mesh, ProbeOptions};
use serde_json::Value;

use crate::healing::scenarios;
use crate::mesh::ping_only::wait_peers_well_by_ping_alone;
use crate::traffic::wait_pods_connected_at_full_mtu;

const SUBNETS: &str = "/coreos.com/network/subnets/";
/// Of vxlan, with the fields of a lease's value that describe them.
const DEVICES: [(&str, &str); 2] =
    [("flannel.1", "BackendData"), ("flannel-v6.1", "BackendV6Data")];

/// Three hosts and an etcd.
fn three_stopped_nodes_with_etcd<'a>(title: &str, backend: &str) -> SceneOptions<'a> {
    let conf = r#"{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48","Backend":{"Type":"TYPE"}}"#;
    Scene::with_title(title).nodes(3).etcd().net(&conf.replace("TYPE", backend)).without_daemons()
}

/// A dual-stack node that `ip`, `bridge` and `etcdctl` set up as Go flannel does. It acts only when the test calls its functions.
struct GoNode {
    host: Host,
    client: EtcdClient,
    backend: &'static str,
    number: u8,
    lease: i64,
}

impl GoNode {
    /// Acts as Go flannel at its first start: creates devices, the lease, and `subnet.env`. The first host has the subnet 10.5.11.0/24.
    fn create_devices_lease_and_subnet_env(
        s: &Scene<'_>,
        index: u8,
        backend: &'static str,
    ) -> Result<GoNode> {
        let client = s.etcd.as_ref().context("no etcd")?.client_on_first_member()?;
        let (lease, host) = (client.grant(86_400)?, Host::clone(&s[usize::from(index)]));
        let (number, v4, v6) = (11 + index, host.v4()?, host.v6()?);
        if backend == "vxlan" {
            // The kernel's default is 1450, but Go flannel's device of IPv6 has 1430.
            for ((device, _), local, address, mtu, kind) in [
                (DEVICES[0], v4.to_string(), format!("10.5.{number}.0/32"), 1450, 4),
                (DEVICES[1], v6.to_string(), format!("fd00:5:0:{number}::/128"), 1430, 6),
            ] {
                host.netns().run_ip_batch(&format!(
                    "link add {device} address 02:00:00:00:0{kind}:{number} mtu {mtu} type vxlan id 1 local {local} dev enp0s8 dstport 8472 nolearning\n\
                     address add {address} dev {device}\nlink set {device} up"
                ))?;
                host.netns().sysctl(&format!("net/ipv6/conf/{device}/accept_ra"), "0")?;
            }
        }
        let node = GoNode { host, client, backend, number, lease };
        node.publish()?;
        let file = node.host.subnet_file()?;
        std::fs::create_dir_all(file.with_file_name(""))?;
        std::fs::write(file, node.subnet_env())?;
        Ok(node)
    }

    fn lease_key(&self) -> String {
        format!("{SUBNETS}10.5.{0}.0-24&fd00:5:0:{0}::-64", self.number)
    }

    fn subnet_env(&self) -> String {
        let mtu = if self.backend == "vxlan" { 1450 } else { 1500 };
        let number = self.number;
        format!(
            "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.{number}.1/24\nFLANNEL_IPV6_NETWORK=fd00:5::/48\n\
             FLANNEL_IPV6_SUBNET=fd00:5:0:{number}::1/64\nFLANNEL_MTU={mtu}\nFLANNEL_IPMASQ=false\n"
        )
    }

    fn lease_value(&self) -> Result<String> {
        let mut value = format!(
            r#"{{"PublicIP":"{}","PublicIPv6":"{}","BackendType":"{}""#,
            self.host.v4()?,
            self.host.v6()?,
            self.backend
        );
        if self.backend == "vxlan" {
            for (device, field) in DEVICES {
                value += &format!(
                    r#","{field}":{{"VNI":1,"VtepMAC":"{}"}}"#,
                    mac_of(&self.host, device)?
                );
            }
        }
        Ok(value + "}")
    }

    /// A plain put overwrites any earlier value.
    fn publish(&self) -> Result<()> {
        self.client.put_leased(&self.lease_key(), &self.lease_value()?, self.lease)
    }

    /// Acts as Go flannel on an event: replaces the kernel entries for each lease of another node with the same backend.
    fn apply_other_leases(&self) -> Result<()> {
        let entries = self.client.get_prefix(SUBNETS)?;
        entries.iter().filter(|entry| entry.key != self.lease_key()).try_for_each(|entry| {
            self.apply_lease(entry)
                .with_context(|| format!("a Go node cannot use {} {}", entry.key, entry.value))
        })
    }

    /// Uses the fields that Go flannel reads from a lease's value (`lease.LeaseAttrs`).
    fn apply_lease(&self, entry: &KeyValue) -> Result<()> {
        let value: Value = serde_json::from_str(&entry.value)?;
        let text = |pointer: &str| {
            value.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer}"))
        };
        ensure!(text("/BackendType")? == self.backend);
        let (v4, v6) = entry
            .key
            .trim_start_matches(SUBNETS)
            .split_once('&')
            .context("a key of both families")?;
        for (subnet, public, (device, field)) in
            [(v4, text("/PublicIP")?, DEVICES[0]), (v6, text("/PublicIPv6")?, DEVICES[1])]
        {
            let (network, length) = subnet.rsplit_once('-').context("a subnet's length")?;
            if self.backend == "host-gw" {
                self.host.netns().run_ip_batch(&format!(
                    "route replace {network}/{length} via {public} dev enp0s8"
                ))?;
                continue;
            }
            ensure!(value[field]["VNI"] == 1, "VNI {}", value[field]["VNI"]);
            let mac = text(&format!("/{field}/VtepMAC"))?;
            self.host.netns().sh(&format!(
                "set -e; ip neighbour replace {network} lladdr {mac} nud permanent dev {device}
                 bridge fdb replace {mac} dev {device} dst {public} self permanent
                 ip route replace {network}/{length} via {network} dev {device} onlink"
            ))?;
        }
        Ok(())
    }

    fn create_pod(&self) -> Result<Pod> {
        self.host.create_pod("p1", &SubnetEnv::parse(&self.subnet_env())?)
    }
}

/// The first hosts become Go nodes, which know each other.
fn create_interconnected_go_nodes<const COUNT: usize>(
    s: &Scene<'_>,
    backend: &'static str,
) -> Result<Vec<GoNode>> {
    let nodes = (0..COUNT as u8)
        .map(|index| GoNode::create_devices_lease_and_subnet_env(s, index, backend))
        .collect::<Result<Vec<_>>>()?;
    nodes.iter().try_for_each(GoNode::apply_other_leases)?;
    Ok(nodes)
}

scenarios! { our_node_joins_go_nodes;
    our_node_joins_go_nodes_vxlan => "vxlan",
    our_node_joins_go_nodes_host_gw => "host-gw",
}

/// Joins a network of two Go nodes. With vxlan, the first Go node then changes its MAC. At the end, it leaves.
fn our_node_joins_go_nodes(backend: &'static str) -> Result<()> {
    three_stopped_nodes_with_etcd("joins", backend).run(|s| {
        let go = create_interconnected_go_nodes::<2>(s, backend)?;
        let client = go[0].client.clone();
        let before = client.get_prefix(SUBNETS)?;
        s[2].start_daemon()?;
        go.iter().try_for_each(GoNode::apply_other_leases)?;
        let pods = [go[0].create_pod()?, go[1].create_pod()?, s[2].create_pod("p1")?.clone()];
        wait_pods_connected_at_full_mtu(backend, &pods)?;
        for (from, to) in [(0, 2), (2, 1)] {
            for options in [TransferOptions::default(), TransferOptions::default().v6()] {
                Transfer::run(&pods[from], &pods[to], 4_000_000, &options)?;
            }
        }
        let after = client.get_prefix(SUBNETS)?;
        ensure!(
            before.iter().all(|entry| after.contains(entry)),
            "the Go nodes' keys were touched: {after:?} instead of {before:?}"
        );
        wait_peers_well_by_ping_alone(s[2].daemon()?, &[&go[0].host, &go[1].host])?;

        if backend == "vxlan" {
            // In etcd mode a Go node has another MAC after a reboot, under the same key.
            let old = mac_of(&s[0], "flannel.1")?;
            s[0].sh("ip link set flannel.1 address 02:00:00:00:00:99")?;
            go[0].publish()?;
            // The kernel flushed the device's neighbours when its MAC changed.
            go.iter().try_for_each(GoNode::apply_other_leases)?;
            wait_pods_connected_at_full_mtu(backend, &pods)?;
            until("the old MAC is forgotten", || {
                s[2].sh("bridge fdb show dev flannel.1").is_ok_and(|now| !now.contains(&old))
            })?;
        }

        client.revoke(go[0].lease)?;
        let has = |s: &Scene<'_>, subnet: &str| {
            overlay_routes(&s[2])
                .is_ok_and(|routes| routes.iter().any(|route| route.contains(subnet)))
        };
        ensure!(
            has(s, "10.5.12.0/24") && has(s, "fd00:5:0:12::/64"),
            "{:?}",
            overlay_routes(&s[2])?
        );
        until("our node forgets the Go node that left", || {
            !has(s, "10.5.11.0/24") && !has(s, "fd00:5:0:11::/64")
        })?;
        wait_pods_connected_at_full_mtu(backend, &pods[1..])?;
        s.require_no_errors()
    })
}

scenarios! { go_node_is_replaced_in_place_and_back;
    go_node_is_replaced_in_place_and_back_vxlan => "vxlan",
    go_node_is_replaced_in_place_and_back_host_gw => "host-gw",
}

/// Replaces Go flannel with flannel-rs and back, while all pods exchange packets. No packet is lost and no object re-created.
fn go_node_is_replaced_in_place_and_back(backend: &'static str) -> Result<()> {
    three_stopped_nodes_with_etcd("replaced", backend).run(|s| {
        let go = create_interconnected_go_nodes::<3>(s, backend)?;
        let pods = go.iter().map(GoNode::create_pod).collect::<Result<Vec<_>>>()?;
        wait_pods_connected_at_full_mtu(backend, &pods)?;
        let (before, key, value, env) = (
            network_object_lines(&s[0])?,
            go[0].lease_key(),
            go[0].lease_value()?,
            go[0].subnet_env(),
        );
        ensure!(
            before.iter().filter(|line| line.contains("proto boot")).count() == 4,
            "{before:#?}"
        );
        let ours: Vec<String> =
            before.iter().map(|line| line.replace("proto boot", "proto 241")).collect();

        let meshes = [
            Mesh::start(&pods, &ProbeOptions::default())?,
            Mesh::start(&pods, &ProbeOptions::default().v6())?,
        ];
        let flow = || meshes.iter().try_for_each(|mesh| mesh.wait_flowing().map(drop));
        flow()?;
        for _ in 0..2 {
            s[0].start_daemon()?;
            until_ok("only the routes' mark has changed", || {
                let found = network_object_lines(&s[0])?;
                ensure!(found == ours, "{found:#?}\ninstead of {ours:#?}");
                Ok(())
            })?;
            // flanneld only adds `NodeID` to the value, and attaches the key to another etcd lease.
            let entry = go[0].client.get(&key)?.context("the key stays")?;
            let begin = value.strip_suffix('}').context("an object")?.to_owned() + r#","NodeID":{"#;
            ensure!(
                entry.value.starts_with(&begin) && entry.lease != 0 && entry.lease != go[0].lease,
                "{entry:?} instead of {value}"
            );
            ensure!(go[0].client.get_prefix(SUBNETS)?.len() == 3);
            let now = std::fs::read_to_string(s[0].daemon()?.subnet_file())?;
            ensure!(now == env, "{now}");
            // The others get an event with the new value, which changes nothing for them.
            go[1..].iter().try_for_each(GoNode::apply_other_leases)?;
            flow()?;

            s.require_no_errors()?;
            s[0].stop_daemon()?;
            go[0].publish()?;
            go[0].apply_other_leases()?;
            let found = network_object_lines(&s[0])?;
            ensure!(found == before, "Go again: {found:#?}\ninstead of {before:#?}");
            flow()?;
        }
        meshes.into_iter().try_for_each(Mesh::finish_and_require_clean)
    })
}

#[test]
fn leftovers_of_go_are_removed_and_operators_routes_stay() -> Result<()> {
    three_stopped_nodes_with_etcd("leftovers", "vxlan").run(|s| {
        let _go = create_interconnected_go_nodes::<2>(s, "vxlan")?;
        // Entries of a peer that left while flannel was down: Go flannel keeps them forever.
        s[0].sh("set -e; ip neighbour add 10.5.99.0 lladdr 02:00:00:00:00:99 nud permanent dev flannel.1
            ip route add 10.5.99.0/24 via 10.5.99.0 dev flannel.1 onlink
            bridge fdb append 02:00:00:00:00:99 dev flannel.1 dst 192.168.56.199 self permanent")?;
        // Routes that are not flannel's: to another network on flannel's device, one over the underlay, and one inside the network over the underlay.
        let operators = ["10.77.0.0/16 via 10.5.12.0 dev flannel.1 onlink", "10.78.0.0/16 via 192.168.56.102 dev enp0s8", "10.5.98.0/24 via 192.168.56.102 dev enp0s8"];
        for route in operators {
            s[0].sh(&format!("ip route add {route}"))?;
        }
        s[0].start_daemon()?;
        until("the entries of the peer that left are removed", || {
            let now = s[0].sh("ip route; ip neighbour; bridge fdb");
            now.is_ok_and(|now| !now.contains("10.5.99.0") && !now.contains("00:00:99"))
        })?;
        let routes = s[0].sh("ip route")?;
        ensure!(operators.iter().all(|route| routes.lines().any(|line| line.trim() == *route)), "{routes}");
        s.require_no_errors()
    })
}

#[test]
fn rebooted_node_keeps_the_go_nodes_subnet_and_macs() -> Result<()> {
    three_stopped_nodes_with_etcd("rebooted", "vxlan").run(|s| {
        let go = create_interconnected_go_nodes::<2>(s, "vxlan")?;
        let other = go[1].create_pod()?;
        let macs = |s: &Scene<'_>| {
            DEVICES.iter().map(|(device, _)| mac_of(&s[0], device)).collect::<Result<Vec<_>>>()
        };
        let before = macs(s)?;
        // Kernel state and subnet.env are lost: only the store has the lease.
        s[0].power_off()?;
        s[0].power_on()?;
        s[0].start_daemon()?;
        let env = std::fs::read_to_string(s[0].daemon()?.subnet_file())?;
        ensure!(env == go[0].subnet_env(), "{env}");
        ensure!(macs(s)? == before, "the MACs {:?} instead of the stored {before:?}", macs(s)?);
        // The other node has nothing to learn.
        wait_pods_connected_at_full_mtu("vxlan", &[s[0].create_pod("p1")?.clone(), other])?;
        s.require_no_errors()
    })
}

/// The overlay's, of both address families.
fn overlay_routes(host: &Host) -> Result<Vec<String>> {
    let text = host.netns().sh("ip -4 -d route; ip -6 -d route")?;
    let lines = text
        .lines()
        .filter(|line| line.contains("unicast 10.5.") || line.contains("unicast fd00:5:0:"));
    Ok(lines.map(|line| line.trim().to_owned()).collect())
}

/// The objects of flannel and of other programs: links with indexes and MACs, addresses, routes, neighbours, FDB.
fn network_object_lines(host: &Host) -> Result<Vec<String>> {
    // The underlay's neighbours change by themselves, and the kernel sets states and adds link-local addresses at a time of its own.
    let script = "ip -o link | sed 's/ state [A-Z]*//'; ip -o address | sed '/scope link/d'; (ip neighbour; bridge fdb) | sed -n '/dev flannel/p'";
    let text = host.netns().sh(script)?;
    let mut objects = overlay_routes(host)?;
    objects.extend(text.lines().map(|line| line.trim().to_owned()));
    objects.sort();
    Ok(objects)
}

fn mac_of(host: &Host, device: &str) -> Result<String> {
    let link = host.netns().link(device)?;
    Ok(link.with_context(|| format!("{} has no {device}", host.name()))?.address)
}
