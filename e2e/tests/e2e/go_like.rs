//! Checks that a flannel-rs node exchanges packets with Go flannel's nodes, and replaces a Go flannel node
//! in place. The tests imitate Go flannel's nodes: the imitations write the same leases and create the same
//! kernel objects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, ensure};
use lab::{
    Etcd, EtcdClient, EtcdOptions, Flanneld, FlanneldOptions, Host, KeyValue, Lab, Mesh,
    PingMatrix, PingOptions, Pod, ProbeOptions, SubnetEnv, Switch, Transfer, TransferOptions,
    Uplink, until, until_ok,
};
use serde::Deserialize;
use serde_json::json;

use crate::healing::scenarios;
use crate::ping_only::answer_by_ping_alone;

const SUBNETS: &str = "/coreos.com/network/subnets/";
const MEGABYTES: u64 = 1_000_000;

/// Fields that Go flannel reads from a lease's value (`lease.LeaseAttrs`). Go flannel ignores all other fields.
#[derive(Deserialize)]
struct Attrs {
    #[serde(rename = "PublicIP")]
    public_ip: Ipv4Addr,
    #[serde(rename = "PublicIPv6")]
    public_ipv6: Option<Ipv6Addr>,
    #[serde(rename = "BackendType")]
    backend: String,
    #[serde(rename = "BackendData")]
    data: Option<Data>,
    #[serde(rename = "BackendV6Data")]
    v6_data: Option<Data>,
}

/// Fields that Go flannel's vxlan backend reads from `BackendData`.
#[derive(Deserialize)]
struct Data {
    #[serde(rename = "VNI")]
    vni: u32,
    #[serde(rename = "VtepMAC")]
    mac: String,
}

/// A dual-stack node that `ip`, `bridge` and `etcdctl` set up as Go flannel does. The node acts only when the test calls its functions.
struct GoNode {
    host: Host,
    client: EtcdClient,
    backend: &'static str,
    number: u8,
    lease: i64,
}

impl GoNode {
    /// Acts as Go flannel does at its first start: creates devices with random MACs, the lease, and `subnet.env`.
    fn start(
        host: &Host,
        client: &EtcdClient,
        backend: &'static str,
        number: u8,
    ) -> Result<GoNode> {
        let node = GoNode {
            host: host.clone(),
            client: client.clone(),
            backend,
            number,
            lease: client.grant(86_400)?,
        };
        if backend == "vxlan" {
            for (device, local, address) in node.devices()? {
                host.netns().ip(&format!(
                    "link add {device} address {} mtu 1450 type vxlan id 1 local {local} dev enp0s8 dstport 8472 nolearning\n\
                     address add {address} dev {device}\nlink set {device} up",
                    random_mac()
                ))?;
                host.netns()
                    .sysctl(&format!("net/ipv6/conf/{device}/accept_ra"), "0")?;
            }
            // The kernel's default is 1450, but Go flannel's device has 1430.
            host.netns().ip("link set flannel-v6.1 mtu 1430")?;
        }
        node.publish()?;
        let file = host.subnet_file()?;
        std::fs::create_dir_all(file.parent().context("the folder of subnet.env")?)?;
        std::fs::write(file, node.subnet_env())?;
        Ok(node)
    }

    fn devices(&self) -> Result<[(&'static str, String, String); 2]> {
        let number = self.number;
        Ok([
            (
                "flannel.1",
                self.host.v4()?.to_string(),
                format!("10.5.{number}.0/32"),
            ),
            (
                "flannel-v6.1",
                self.host.v6()?.to_string(),
                format!("fd00:5:0:{number}::/128"),
            ),
        ])
    }

    fn key(&self) -> String {
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

    fn value(&self) -> Result<String> {
        let mut value = format!(
            r#"{{"PublicIP":"{}","PublicIPv6":"{}","BackendType":"{}""#,
            self.host.v4()?,
            self.host.v6()?,
            self.backend
        );
        if self.backend == "vxlan" {
            let data = |device| {
                Ok::<_, anyhow::Error>(format!(
                    r#"{{"VNI":1,"VtepMAC":"{}"}}"#,
                    mac_of(&self.host, device)?
                ))
            };
            value += &format!(
                r#","BackendData":{},"BackendV6Data":{}"#,
                data("flannel.1")?,
                data("flannel-v6.1")?
            );
        }
        Ok(value + "}")
    }

    /// Writes the lease with a plain put, which overwrites any earlier value.
    fn publish(&self) -> Result<()> {
        self.client
            .put_leased(&self.key(), &self.value()?, self.lease)
    }

    /// Acts as Go flannel does on an event: replaces the kernel entries for each lease of another node with the same backend.
    fn learn(&self) -> Result<()> {
        for entry in self
            .client
            .get_prefix(SUBNETS)?
            .iter()
            .filter(|entry| entry.key != self.key())
        {
            self.learn_one(entry)
                .with_context(|| format!("a Go node cannot use {} {}", entry.key, entry.value))?;
        }
        Ok(())
    }

    fn learn_one(&self, entry: &KeyValue) -> Result<()> {
        let attrs: Attrs = serde_json::from_str(&entry.value)?;
        ensure!(attrs.backend == self.backend, "backend {}", attrs.backend);
        let (v4, v6) = entry
            .key
            .trim_start_matches(SUBNETS)
            .split_once('&')
            .context("a key of both families")?;
        let families: [(&str, IpAddr, &str, Option<Data>); 2] = [
            (v4, attrs.public_ip.into(), "flannel.1", attrs.data),
            (
                v6,
                attrs.public_ipv6.context("no PublicIPv6")?.into(),
                "flannel-v6.1",
                attrs.v6_data,
            ),
        ];
        for (subnet, public, device, data) in families {
            let (network, length) = subnet.rsplit_once('-').context("a subnet's length")?;
            if self.backend == "host-gw" {
                self.host.netns().ip(&format!(
                    "route replace {network}/{length} via {public} dev enp0s8"
                ))?;
                continue;
            }
            let Data { vni, mac } = data.context("no backend data")?;
            ensure!(vni == 1, "VNI {vni}");
            self.host.netns().ip(&format!(
                "neighbour replace {network} lladdr {mac} nud permanent dev {device}"
            ))?;
            self.host.netns().exec(
                "bridge",
                &[
                    "fdb",
                    "replace",
                    &mac,
                    "dev",
                    device,
                    "dst",
                    &public.to_string(),
                    "self",
                    "permanent",
                ],
            )?;
            self.host.netns().ip(&format!(
                "route replace {network}/{length} via {network} dev {device} onlink"
            ))?;
        }
        Ok(())
    }

    fn pod(&self) -> Result<Pod> {
        self.host.pod("p1", &SubnetEnv::parse(&self.subnet_env())?)
    }
}

scenarios! { our_node_joins_go_nodes;
    our_node_joins_go_nodes_vxlan => "vxlan",
    our_node_joins_go_nodes_host_gw => "host-gw",
}

/// Adds a flannel-rs node to a network of two Go nodes. If the backend is vxlan, the first Go node then changes its MAC. At the end, the first Go node leaves.
fn our_node_joins_go_nodes(backend: &'static str) -> Result<()> {
    Lab::run(&format!("joins {backend}"), |lab| {
        let bed = Bed::build(lab, backend)?;
        let go = [bed.go(0)?, bed.go(1)?];
        let before = bed.client.get_prefix(SUBNETS)?;
        let host = &bed.hosts[2];
        let daemon = host.flanneld(&bed.options()?)?;
        go.iter().try_for_each(GoNode::learn)?;
        let pods = [
            go[0].pod()?,
            go[1].pod()?,
            host.pod("p1", &daemon.subnet_env()?)?,
        ];
        bed.everybody_reaches_everybody(&pods)?;
        for (from, to) in [(0, 2), (2, 1)] {
            Transfer::run(
                &pods[from],
                &pods[to],
                4 * MEGABYTES,
                &TransferOptions::default(),
            )?;
            Transfer::run(
                &pods[from],
                &pods[to],
                4 * MEGABYTES,
                &TransferOptions::default().v6(),
            )?;
        }
        let after: Vec<KeyValue> = bed
            .client
            .get_prefix(SUBNETS)?
            .into_iter()
            .filter(|entry| before.contains(entry))
            .collect();
        ensure!(
            after == before,
            "the Go nodes' keys were touched: {after:?} instead of {before:?}"
        );
        answer_by_ping_alone(&daemon, &[&bed.hosts[0], &bed.hosts[1]])?;

        if backend == "vxlan" {
            // In etcd mode a Go node has another MAC after a reboot, under the same key.
            let old = mac_of(&go[0].host, "flannel.1")?;
            go[0]
                .host
                .netns()
                .ip(&format!("link set flannel.1 address {}", random_mac()))?;
            go[0].publish()?;
            // The kernel flushed the device's neighbours when its MAC changed.
            go[0].learn()?;
            go[1].learn()?;
            bed.everybody_reaches_everybody(&pods)?;
            let forgotten = || {
                host.netns()
                    .fdb("flannel.1")
                    .is_ok_and(|entries| entries.iter().all(|entry| entry.mac != old))
            };
            until("the old MAC is forgotten", forgotten)?;
        }

        let gone = |dst: &str| {
            bed.routes(host)
                .is_ok_and(|routes| !routes.iter().any(|route| route.contains(dst)))
        };
        ensure!(
            !gone("10.5.11.0/24") && !gone("fd00:5:0:11::/64"),
            "{:?}",
            bed.routes(host)?
        );
        bed.client.revoke(go[0].lease)?;
        until("our node forgets the Go node that left", || {
            gone("10.5.11.0/24") && gone("fd00:5:0:11::/64")
        })?;
        bed.everybody_reaches_everybody(&pods[1..])?;
        quiet(&daemon)
    })
}

scenarios! { go_node_is_replaced_in_place_and_back;
    go_node_is_replaced_in_place_and_back_vxlan => "vxlan",
    go_node_is_replaced_in_place_and_back_host_gw => "host-gw",
}

/// Checks that the kernel has exactly the Go node's objects, except that the routes have flannel-rs' protocol number.
fn only_the_protocol_changed(bed: &Bed, host: &Host, before: &[String]) -> Result<()> {
    let wanted: Vec<String> = before
        .iter()
        .map(|line| line.replace("proto boot", "proto 241"))
        .collect();
    until_ok("only the routes' mark has changed", || {
        let found = bed.objects(host)?;
        ensure!(found == wanted, "{found:#?}\ninstead of {wanted:#?}");
        Ok(())
    })
}

/// Checks that flanneld only adds `NodeID` to the Go node's lease value, and attaches the key to another etcd lease.
fn only_the_node_id_was_added(bed: &Bed, key: &str, value: &str, lease: i64) -> Result<()> {
    let keys = bed.client.get_prefix(SUBNETS)?;
    ensure!(keys.len() == 3, "{keys:#?}");
    let entry = bed.client.get(key)?.context("the key stays")?;
    let rest = entry
        .value
        .strip_prefix(value.trim_end_matches('}'))
        .map(|rest| rest.trim_start_matches('}'));
    ensure!(
        rest.is_some_and(|rest| rest.starts_with(r#","NodeID":{"#)),
        "what Go reads has changed: {} instead of {value}",
        entry.value
    );
    ensure!(
        entry.lease != 0 && entry.lease != lease,
        "our node has a lease of its own: {entry:?}"
    );
    Ok(())
}

/// Replaces a node's Go flannel with flannel-rs and back, while all pods exchange packets. The
/// replacement loses no packet and re-creates no object.
fn go_node_is_replaced_in_place_and_back(backend: &'static str) -> Result<()> {
    Lab::run(&format!("replaced {backend}"), |lab| {
        let bed = Bed::build(lab, backend)?;
        let go = [bed.go(0)?, bed.go(1)?, bed.go(2)?];
        go.iter().try_for_each(GoNode::learn)?;
        let pods = go.iter().map(GoNode::pod).collect::<Result<Vec<_>>>()?;
        bed.everybody_reaches_everybody(&pods)?;
        let host = &bed.hosts[0];
        let (before, key, value, env) = (
            bed.objects(host)?,
            go[0].key(),
            go[0].value()?,
            go[0].subnet_env(),
        );
        ensure!(
            before
                .iter()
                .filter(|line| line.contains("proto boot"))
                .count()
                == 4,
            "{before:#?}"
        );

        let meshes = [
            Mesh::start(&pods, &ProbeOptions::default())?,
            Mesh::start(&pods, &ProbeOptions::default().v6())?,
        ];
        meshes
            .iter()
            .try_for_each(|mesh| mesh.wait_flowing().map(drop))?;
        for round in 1..=2 {
            let mut daemon = host.flanneld(&bed.options()?)?;
            only_the_protocol_changed(&bed, host, &before)
                .with_context(|| format!("round {round}"))?;
            only_the_node_id_was_added(&bed, &key, &value, go[0].lease)?;
            ensure!(
                std::fs::read_to_string(daemon.subnet_file())? == env,
                "subnet.env: {:?}",
                daemon.subnet_env()?
            );
            // The others get an event with the new value, which changes nothing for them.
            go[1..].iter().try_for_each(GoNode::learn)?;
            meshes
                .iter()
                .try_for_each(|mesh| mesh.wait_flowing().map(drop))?;

            ensure!(
                daemon.terminate()?.success(),
                "a daemon that is asked to stop exits with 0"
            );
            quiet(&daemon)?;
            go[0].publish()?;
            go[0].learn()?;
            let found = bed.objects(host)?;
            ensure!(
                found == before,
                "round {round}, Go again: {found:#?}\ninstead of {before:#?}"
            );
            meshes
                .iter()
                .try_for_each(|mesh| mesh.wait_flowing().map(drop))?;
        }
        meshes.into_iter().try_for_each(Mesh::require_clean)
    })
}

#[test]
fn leftovers_of_go_are_removed_and_operators_routes_stay() -> Result<()> {
    Lab::run("leftovers", |lab| {
        let bed = Bed::build(lab, "vxlan")?;
        let go = [bed.go(0)?, bed.go(1)?];
        go.iter().try_for_each(GoNode::learn)?;
        let host = &bed.hosts[0];
        let netns = host.netns();
        // Entries of a peer that left while flannel was down: Go flannel keeps them forever.
        netns.ip(
            "neighbour add 10.5.99.0 lladdr 02:00:00:00:00:99 nud permanent dev flannel.1\nroute add 10.5.99.0/24 via 10.5.99.0 dev flannel.1 onlink",
        )?;
        netns.exec(
            "bridge",
            &[
                "fdb",
                "append",
                "02:00:00:00:00:99",
                "dev",
                "flannel.1",
                "dst",
                "192.168.56.199",
                "self",
                "permanent",
            ],
        )?;
        // Routes that are not flannel's: to another network on flannel's device, one over the underlay, and one inside the network over the underlay.
        netns.ip(
            "route add 10.77.0.0/16 via 10.5.12.0 dev flannel.1 onlink\nroute add 10.78.0.0/16 via 192.168.56.102\nroute add 10.5.98.0/24 via 192.168.56.102",
        )?;
        let daemon = host.flanneld(&bed.options()?)?;
        let leftovers = || {
            netns
                .sh("ip route; ip neighbour; bridge fdb")
                .is_ok_and(|text| !text.contains("10.5.99.0") && !text.contains("00:00:99"))
        };
        until("the entries of the peer that left are removed", leftovers)?;
        let routes = netns.exec("ip", &["route"])?;
        for operators in [
            "10.77.0.0/16 via 10.5.12.0 dev flannel.1 onlink",
            "10.78.0.0/16 via 192.168.56.102 dev enp0s8",
            "10.5.98.0/24 via 192.168.56.102 dev enp0s8",
        ] {
            ensure!(
                routes.lines().any(|line| line.trim() == operators),
                "{operators} is gone:\n{routes}"
            );
        }
        quiet(&daemon)
    })
}

#[test]
fn rebooted_node_keeps_the_go_nodes_subnet_and_macs() -> Result<()> {
    Lab::run("rebooted", |lab| {
        let bed = Bed::build(lab, "vxlan")?;
        let go = [bed.go(0)?, bed.go(1)?];
        go.iter().try_for_each(GoNode::learn)?;
        let other = go[1].pod()?;
        let macs = [
            mac_of(&bed.hosts[0], "flannel.1")?,
            mac_of(&bed.hosts[0], "flannel-v6.1")?,
        ];
        // Kernel state and subnet.env are lost: only the store has the lease.
        bed.hosts[0].power_off()?;
        bed.hosts[0].power_on()?;
        let daemon = bed.hosts[0].flanneld(&bed.options()?)?;
        ensure!(
            std::fs::read_to_string(daemon.subnet_file())? == go[0].subnet_env(),
            "{:?}",
            daemon.subnet_env()?
        );
        let found = [
            mac_of(&bed.hosts[0], "flannel.1")?,
            mac_of(&bed.hosts[0], "flannel-v6.1")?,
        ];
        ensure!(
            found == macs,
            "the MACs {found:?} instead of the stored {macs:?}"
        );
        // The other node has nothing to learn.
        bed.everybody_reaches_everybody(&[bed.hosts[0].pod("p1", &daemon.subnet_env()?)?, other])?;
        quiet(&daemon)
    })
}

/// Three hosts and an etcd.
struct Bed {
    etcd: Etcd,
    client: EtcdClient,
    hosts: Vec<Host>,
    backend: &'static str,
    _lan: Switch,
}

impl Bed {
    fn build(lab: &Lab, backend: &'static str) -> Result<Bed> {
        let lan = lab.switch("lan")?;
        let store = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&store], &EtcdOptions::default())?;
        let conf = json!({ "EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd00:5::/48", "Backend": { "Type": backend } });
        etcd.store()?.configure(&conf.to_string())?;
        Ok(Bed {
            client: etcd.client()?,
            etcd,
            hosts: lab.hosts(&lan, 3)?,
            backend,
            _lan: lan,
        })
    }

    fn options(&self) -> Result<FlanneldOptions> {
        Ok(FlanneldOptions::new(&self.etcd.store()?).iface("enp0s8"))
    }

    /// Starts a Go node on host number `index`. The first node has the subnet 10.5.11.0/24.
    fn go(&self, index: u8) -> Result<GoNode> {
        GoNode::start(
            &self.hosts[usize::from(index)],
            &self.client,
            self.backend,
            11 + index,
        )
    }

    /// Pings all pairs of pods in both address families, with packets as long as the overlay's MTU.
    fn everybody_reaches_everybody(&self, pods: &[Pod]) -> Result<()> {
        let vxlan = self.backend == "vxlan";
        let v4 = pods
            .iter()
            .map(|pod| Ok(pod.v4()?.into()))
            .collect::<Result<Vec<IpAddr>>>()?;
        let v6 = pods
            .iter()
            .map(|pod| Ok(pod.v6()?.into()))
            .collect::<Result<Vec<IpAddr>>>()?;
        for (mtu, targets) in [
            (if vxlan { 1450 } else { 1500 }, v4),
            (if vxlan { 1430 } else { 1500 }, v6),
        ] {
            let matrix = || {
                PingMatrix::to(pods, &targets, &PingOptions::default().packet(mtu))?
                    .require_complete()
            };
            until_ok(&format!("packets of {mtu} bytes pass"), matrix)?;
        }
        Ok(())
    }

    /// Lists the overlay's routes of both address families.
    fn routes(&self, host: &Host) -> Result<Vec<String>> {
        let text = host.netns().exec("ip", &["-4", "-d", "route"])?
            + &host.netns().exec("ip", &["-6", "-d", "route"])?;
        let of_overlay =
            |line: &&str| line.contains("unicast 10.5.") || line.contains("unicast fd00:5:0:");
        Ok(text
            .lines()
            .filter(of_overlay)
            .map(|line| line.trim().to_owned())
            .collect())
    }

    /// Lists the objects of flannel and of other programs in a host's kernel: links with indexes and MACs, addresses, routes, neighbours, FDB.
    fn objects(&self, host: &Host) -> Result<Vec<String>> {
        let netns = host.netns();
        let mut objects = self.routes(host)?;
        let mut add = |text: String, keep: &dyn Fn(&str) -> bool| {
            objects.extend(
                text.lines()
                    .map(str::trim)
                    .filter(|line| keep(line))
                    .map(str::to_owned),
            );
        };
        add(netns.exec("ip", &["-o", "link"])?, &|_| true);
        add(netns.exec("ip", &["-o", "address"])?, &|_| true);
        // The underlay's neighbours change by themselves.
        add(netns.exec("ip", &["neighbour"])?, &|line| {
            line.contains("dev flannel")
        });
        add(netns.exec("bridge", &["fdb"])?, &|line| {
            line.contains("dev flannel")
        });
        objects.sort();
        Ok(objects)
    }
}

fn mac_of(host: &Host, device: &str) -> Result<String> {
    Ok(host
        .netns()
        .link(device)?
        .with_context(|| format!("{} has no {device}", host.name()))?
        .address)
}

fn random_mac() -> String {
    let bytes: [u8; 6] = rand::random();
    let bytes = [
        bytes[0] & 0xfe | 0x02,
        bytes[1],
        bytes[2],
        bytes[3],
        bytes[4],
        bytes[5],
    ];
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

fn quiet(daemon: &Flanneld) -> Result<()> {
    let errors = daemon.errors();
    ensure!(errors.is_empty(), "{errors:#?}");
    Ok(())
}
