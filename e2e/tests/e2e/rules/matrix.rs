//! Tests of masquerading with packets from each type of source to each type of destination, with iptables and nftables, in both address families.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use lab::{
    Echo, Flanneld, FlanneldOptions, Host, Lab, MulticastRoutes, Netns, Pod, Programs, Store,
    Xtables, seen_as,
};

/// Number of connections for each cell of the table.
const CONNECTIONS: u16 = 6;

/// Programs that apply the rules.
const APPLIERS: [(&str, bool, Xtables); 3] = [
    ("iptables on nf_tables", false, Xtables::Nft),
    ("iptables-legacy", false, Xtables::Legacy),
    ("nftables", true, Xtables::Nft),
];

/// Addresses that the receiver sees: the sender's `own` address, or the address of the `node`, its `overlay`
/// device or its bridge (`gateway`). `*` means that the source port differs from the sender's port.
///
/// Packets of `remote-pod` arrive through the tunnel. `host` is a process bound to the node's address; for `host-any`, the kernel chooses the
/// source address. `outside` is a machine whose routes lead through the tested node. `mark-…` is a pod whose packets carry the named mark. As a destination,
/// `outside` is another machine on the underlay. `multicast` is a group: a pod receives the packets of `outside`,
/// and a receiver on the underlay receives all other packets.
const PLAIN: &str = "
from           local-pod  remote-pod  host  outside  multicast
local-pod      own        own         own   node*    own
remote-pod     own        overlay*    own   node*    own
host           own        overlay*    own   own      own
host-any       gateway    overlay     node  node     node
outside        own        overlay*    own   own      own
mark-0x4000    own        own         own   own      own
mark-0x4001    own        own         own   own      own
mark-0x14000   own        own         own   own      own
mark-0x8000    own        own         own   node*    own
";

const PORTS_KEPT: &str = "
from           local-pod  remote-pod  host  outside  multicast
local-pod      own        own         own   node     own
remote-pod     own        overlay     own   node     own
host           own        overlay     own   own      own
host-any       gateway    overlay     node  node     node
outside        own        overlay     own   own      own
mark-0x4000    own        own         own   own      own
mark-0x4001    own        own         own   own      own
mark-0x14000   own        own         own   own      own
mark-0x8000    own        own         own   node     own
";

const NOT_INBOUND: &str = "
from           local-pod  remote-pod  host  outside  multicast
local-pod      own        own         own   node*    own
remote-pod     own        overlay*    own   node*    own
host           own        own         own   own      own
host-any       gateway    overlay     node  node     node
outside        own        own         own   own      own
mark-0x4000    own        own         own   own      own
mark-0x4001    own        own         own   own      own
mark-0x14000   own        own         own   own      own
mark-0x8000    own        own         own   node*    own
";

const EXCEPTED: &str = "
from           local-pod  remote-pod  host  outside  multicast
local-pod      own        own         own   own      own
remote-pod     own        overlay*    own   own      own
host           own        overlay*    own   own      own
host-any       gateway    overlay     node  node     node
outside        own        overlay*    own   own      own
mark-0x4000    own        own         own   own      own
mark-0x4001    own        own         own   own      own
mark-0x14000   own        own         own   own      own
mark-0x8000    own        own         own   own      own
";

const CASES: [(&[&str], &str); 4] = [
    (&["--ip-masq"], PLAIN),
    (&["--ip-masq", "--ip-masq-fully-random-disable"], PORTS_KEPT),
    (&["--ip-masq", "--masquerade-inbound=false"], NOT_INBOUND),
    (
        &[
            "--ip-masq",
            "--non-masquerade-cidr=192.168.56.111/32",
            "--non-masquerade-cidr=fd00:56::111/128",
        ],
        EXCEPTED,
    ),
];

/// Marks of another program, with the first source port of each mark. Each mark has a thousand source ports.
const MARKS: [(&str, u16); 4] = [
    ("0x4000", 21000),
    ("0x4001", 22000),
    ("0x14000", 23000),
    ("0x8000", 24000),
];
/// First source port of the sources without a mark. Each source has a thousand ports. Masquerading may give
/// several sources the same address, so no two sources may have the same port.
const UNMARKED: u16 = 10000;

const GROUPS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(239, 5, 5, 5)),
    IpAddr::V6(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 5, 5)),
];

fn net_conf(nftables: bool) -> String {
    format!(
        r#"{{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","EnableNFTables":{nftables},"Backend":{{"Type":"vxlan"}}}}"#
    )
}

fn address_of(host: &Host, v6: bool) -> Result<IpAddr> {
    if v6 {
        host.v6().map(IpAddr::V6)
    } else {
        host.v4().map(IpAddr::V4)
    }
}

fn pod_address(pod: &Pod, v6: bool) -> Result<IpAddr> {
    if v6 {
        pod.v6().map(IpAddr::V6)
    } else {
        pod.v4().map(IpAddr::V4)
    }
}

/// Three nodes, the first of which is under test, and two machines outside the cluster.
struct Cluster {
    hosts: Vec<Host>,
    outside: [Host; 2],
    /// Two pods on the tested node, and one pod on each of the other nodes.
    pods: [Pod; 4],
    options: FlanneldOptions,
}

impl Cluster {
    fn start(lab: &Lab, nftables: bool, iptables: Xtables) -> Result<Cluster> {
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(&net_conf(nftables))?;
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 3)?;
        let outside = [
            lab.host("out1", &[lab::Uplink::enp0s8(&lan, 11)?])?,
            lab.host("out2", &[lab::Uplink::enp0s8(&lan, 12)?])?,
        ];
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .env("PATH", &Programs::all(lab, "node", iptables)?.path());
        let mut daemons: Vec<Flanneld> = hosts
            .iter()
            .map(|host| host.start_flanneld(&options))
            .collect::<Result<_>>()?;
        let mut pods = Vec::new();
        for (host, daemon) in hosts.iter().zip(&mut daemons) {
            daemon.wait_ready()?;
            pods.push(host.pod("p1", &daemon.subnet_env()?)?);
        }
        pods.insert(1, hosts[0].pod("p2", &daemons[0].subnet_env()?)?);
        // The devices and routes of the daemons stay. The first daemon starts again for each case. The others would remove what is added here.
        daemons
            .iter_mut()
            .try_for_each(|daemon| daemon.terminate().map(drop))?;
        let pods = <[Pod; 4]>::try_from(pods).ok().context("four pods")?;
        let cluster = Cluster {
            hosts,
            outside,
            pods,
            options,
        };
        cluster.wire()?;
        Ok(cluster)
    }

    /// Creates routes through the tested node for all cells of the table.
    fn wire(&self) -> Result<()> {
        let [node, other] = [self.hosts[0].netns(), self.hosts[1].netns()];
        let [outside, target] = &self.outside;
        for key in ["all", "default", "enp0s8"] {
            node.sysctl(&format!("net/ipv4/conf/{key}/send_redirects"), "0")?;
            outside
                .netns()
                .sysctl(&format!("net/ipv6/conf/{key}/accept_redirects"), "0")?;
        }
        for v6 in [false, true] {
            let (family, device, network) = if v6 {
                ("-6", "flannel-v6.1", "fd10:244::/48")
            } else {
                ("-4", "flannel.1", "10.244.0.0/16")
            };
            let node_address = address_of(&self.hosts[0], v6)?;
            let overlay = self.overlay(v6)?;
            let [_, _, remote, third] = &self.pods;
            let from = pod_address(remote, v6)?;
            // Routes a pod of another node to all targets through the tunnel and the tested node.
            other.sh(&format!(
                "ip {family} route add default via {overlay} dev {device} onlink table 100"
            ))?;
            for to in [
                pod_address(third, v6)?,
                address_of(outside, v6)?,
                node_address,
            ] {
                other.sh(&format!(
                    "ip {family} rule add from {from} to {to} lookup 100 pref 100"
                ))?;
            }
            outside.netns().sh(&format!(
                "ip {family} route add {network} via {node_address}; ip {family} route add {} via {node_address}",
                address_of(target, v6)?
            ))?;
            for netns in [node, outside.netns()] {
                let kind = if v6 {
                    "multicast ff0e::/16"
                } else {
                    "239.0.0.0/8"
                };
                netns.sh(&format!(
                    "ip {family} route add {kind} dev enp0s8 table local"
                ))?;
            }
            // The tunnel floods no packets by itself. This entry brings those of the group to the node.
            other.sh(&format!(
                "bridge fdb append 00:00:00:00:00:00 dev {device} dst {node_address}"
            ))?;
        }
        let marks: String = MARKS
            .iter()
            .map(|(mark, port)| format!("udp sport {port}-{} meta mark set {mark}\n", port + 999))
            .collect();
        let table = format!(
            "table inet foreign {{ chain marks {{ type filter hook prerouting priority mangle; policy accept;\n{marks}}}\n}}\n"
        );
        node.feed("nft", &["-f", "-"], &table).map(drop)
    }

    /// Returns the node's address in the overlay.
    fn overlay(&self, v6: bool) -> Result<IpAddr> {
        let device = if v6 { "flannel-v6.1" } else { "flannel.1" };
        let addresses = self.hosts[0].netns().addresses()?;
        let found = addresses
            .iter()
            .find(|address| address.ifname == device && address.scope == "global");
        let net: ipnet::IpNet = found
            .with_context(|| format!("no address on {device}: {addresses:?}"))?
            .net
            .parse()?;
        Ok(net.addr())
    }

    /// Routes multicast packets until the caller drops the returned routes.
    fn multicast(&self, v6: bool) -> Result<[MulticastRoutes; 2]> {
        let device = if v6 { "flannel-v6.1" } else { "flannel.1" };
        let group = GROUPS[usize::from(v6)];
        let here =
            MulticastRoutes::between(self.hosts[0].netns(), v6, &["cni0", device, "enp0s8"])?;
        let there = MulticastRoutes::between(self.hosts[1].netns(), v6, &["cni0", device])?;
        let (local, remote) = (
            pod_address(&self.pods[0], v6)?,
            pod_address(&self.pods[2], v6)?,
        );
        here.add(local, group, "cni0", "enp0s8")?;
        there.add(remote, group, "cni0", device)?;
        here.add(remote, group, device, "enp0s8")?;
        here.add(address_of(&self.outside[0], v6)?, group, "enp0s8", "cni0")?;
        Ok([here, there])
    }

    /// Returns the table of one address family, measured with the current rules.
    fn table(&self, v6: bool, case: u16) -> Result<String> {
        let _routes = self.multicast(v6)?;
        let echoes = self.echoes(v6)?;
        let [node, ..] = &self.hosts[..] else {
            anyhow::bail!("no hosts")
        };
        let named = [
            ("node", address_of(node, v6)?),
            ("overlay", self.overlay(v6)?),
            ("gateway", neighbour_gateway(self, v6)?),
        ];
        let mut table = String::from("from local-pod remote-pod host outside multicast\n");
        for (name, netns, from, base) in self.sources(v6)? {
            write!(table, "{name}")?;
            for (column, echo) in (0u16..).zip(echoes.targets_of(&name)) {
                // Each cell has its own ports, so that conntrack knows none of its connections.
                let first = base + case * 100 + column * CONNECTIONS;
                write!(table, " {}", cell(netns, from, first, echo, &named)?)?;
            }
            table.push('\n');
        }
        Ok(table)
    }

    /// Starts the echo services of one address family.
    fn echoes(&self, v6: bool) -> Result<Echoes> {
        let [_, neighbour, remote, third] = &self.pods;
        let ([node, ..], [outside, target]) = (&self.hosts[..], &self.outside) else {
            anyhow::bail!("no hosts")
        };
        let group = GROUPS[usize::from(v6)];
        let pod = |pod: &Pod| Echo::start(pod.netns(), pod_address(pod, v6)?);
        Ok(Echoes {
            local: pod(neighbour)?,
            remote: pod(remote)?,
            third: pod(third)?,
            node: Echo::start(node.netns(), address_of(node, v6)?)?,
            outside: Echo::start(outside.netns(), address_of(outside, v6)?)?,
            target: Echo::start(target.netns(), address_of(target, v6)?)?,
            underlay_group: Echo::group(outside.netns(), group, "enp0s8")?,
            pod_group: Echo::group(neighbour.netns(), group, "eth0")?,
        })
    }

    /// Returns the name, the network namespace, the address and the first port of each source.
    fn sources(&self, v6: bool) -> Result<Vec<(String, &Netns, IpAddr, u16)>> {
        let [local, _, remote, _] = &self.pods;
        let ([node, ..], [outside, _]) = (&self.hosts[..], &self.outside) else {
            anyhow::bail!("no hosts")
        };
        let any: IpAddr = if v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let (local_address, local) = (pod_address(local, v6)?, local.netns());
        let node_address = address_of(node, v6)?;
        let mut sources = vec![
            ("local-pod".to_owned(), local, local_address, UNMARKED),
            (
                "remote-pod".to_owned(),
                remote.netns(),
                pod_address(remote, v6)?,
                UNMARKED + 1000,
            ),
            (
                "host".to_owned(),
                node.netns(),
                node_address,
                UNMARKED + 2000,
            ),
            ("host-any".to_owned(), node.netns(), any, UNMARKED + 3000),
            (
                "outside".to_owned(),
                outside.netns(),
                address_of(outside, v6)?,
                UNMARKED + 4000,
            ),
        ];
        sources.extend(
            MARKS
                .iter()
                .map(|(mark, port)| (format!("mark-{mark}"), local, local_address, *port)),
        );
        Ok(sources)
    }
}

/// Returns one cell: the name of the address that the target sees, with `*` if the ports differ from the sender's ports.
fn cell(
    netns: &Netns,
    from: IpAddr,
    first: u16,
    echo: &Echo,
    named: &[(&str, IpAddr)],
) -> Result<String> {
    let is_changed =
        |(port, seen): &&(u16, Option<SocketAddr>)| seen.is_some_and(|seen| seen.port() != *port);
    let mut seen = seen_as(netns, from, first..first + CONNECTIONS, echo.address())?;
    if seen.iter().filter(is_changed).count() == 1 {
        // Another connection may have got this one's own port at random. This hardly happens twice.
        let others = first + 50..first + 50 + CONNECTIONS;
        seen = seen_as(netns, from, others, echo.address())?;
    }
    let name_of = |seen: IpAddr| match named.iter().find(|(_, address)| *address == seen) {
        _ if seen == from => "own".to_owned(),
        Some((name, _)) => (*name).to_owned(),
        None => seen.to_string(),
    };
    let mut addresses: Vec<String> = seen
        .iter()
        .map(|(_, seen)| seen.map_or("nobody".to_owned(), |seen| name_of(seen.ip())))
        .collect();
    addresses.dedup();
    let changed = seen.iter().filter(is_changed).count();
    // With random ports, one connection may get its own port by chance.
    let ports = match changed {
        0 => "",
        changed if changed + 1 >= usize::from(CONNECTIONS) => "*",
        _ => "?",
    };
    Ok(format!("{}{ports}", addresses.join("+")))
}

struct Echoes {
    local: Echo,
    remote: Echo,
    third: Echo,
    node: Echo,
    outside: Echo,
    target: Echo,
    underlay_group: Echo,
    pod_group: Echo,
}

impl Echoes {
    /// Returns the targets of a source, in the order of the table's columns. No source is its own target.
    fn targets_of(&self, source: &str) -> [&Echo; 5] {
        let is_outside = source == "outside";
        [
            &self.local,
            if source == "remote-pod" {
                &self.third
            } else {
                &self.remote
            },
            &self.node,
            if is_outside {
                &self.target
            } else {
                &self.outside
            },
            if is_outside {
                &self.pod_group
            } else {
                &self.underlay_group
            },
        ]
    }
}

/// Returns the address of the node's bridge.
fn neighbour_gateway(cluster: &Cluster, v6: bool) -> Result<IpAddr> {
    let addresses = cluster.hosts[0].netns().addresses()?;
    let nets = addresses
        .iter()
        .filter(|address| address.ifname == "cni0" && address.scope == "global");
    let mut gateways = nets
        .filter_map(|address| address.net.parse::<ipnet::IpNet>().ok())
        .map(|net| net.addr());
    gateways
        .find(|address| address.is_ipv6() == v6)
        .context("cni0 has no address")
}

/// Reduces blanks between words to one blank, and removes empty lines.
fn squeezed(text: &str) -> String {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            format!(
                "{}\n",
                line.split_whitespace().collect::<Vec<_>>().join(" ")
            )
        })
        .collect()
}

/// Returns the IPv4 table and the IPv6 table of each test case, with iptables or with nftables.
fn tables(nftables: bool, iptables: Xtables) -> Result<Vec<[String; 2]>> {
    Lab::run("matrix", |lab| {
        let cluster = Cluster::start(lab, nftables, iptables)?;
        let mut tables = Vec::new();
        for (case, (flags, _)) in (0u16..).zip(CASES) {
            let options = flags
                .iter()
                .fold(cluster.options.clone(), |options, flag| options.arg(flag));
            let mut daemon = cluster.hosts[0].flanneld(&options)?;
            tables.push([cluster.table(false, case)?, cluster.table(true, case)?]);
            ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
            daemon.terminate()?;
        }
        Ok(tables)
    })
}

#[test]
fn traffic_rules_match_the_table_for_every_source_and_destination() {
    let seen: Vec<Vec<[String; 2]>> = std::thread::scope(|scope| {
        let running: Vec<_> = APPLIERS
            .iter()
            .map(|(_, nftables, iptables)| scope.spawn(|| tables(*nftables, *iptables)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect()
    });
    let mut wrong = String::new();
    for ((name, ..), tables) in APPLIERS.iter().zip(&seen) {
        for ((flags, expected), both) in CASES.iter().zip(tables) {
            for (family, table) in ["IPv4", "IPv6"].iter().zip(both) {
                let (expected, table) = (squeezed(expected), squeezed(table));
                for (should, does) in expected
                    .lines()
                    .zip(table.lines())
                    .filter(|(should, does)| should != does)
                {
                    writeln!(
                        wrong,
                        "{name} {family} {}:\n  {does}\n  should be {should}",
                        flags.join(" ")
                    )
                    .unwrap();
                }
                assert_eq!(expected.lines().count(), table.lines().count());
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    for tables in &seen[1..] {
        assert_eq!(&seen[0], tables, "the appliers differ");
    }
}
