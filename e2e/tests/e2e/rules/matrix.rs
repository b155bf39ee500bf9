//! Tests of masquerading with packets from each type of source to each type of destination, with iptables and nftables, in both address families.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use lab::{
    Echo, Host, MulticastRoutes, Netns, Pod, Programs, Scene, Uplink, ask_seen_source_per_port,
};

use crate::healing::scenarios;

use super::node::{Applier, IptablesLegacy, IptablesNft, Nftables};

/// For each cell of the table. The majority decides whether ports change, because a connection may get its own port at random.
const CONNECTIONS: u16 = 3;

/// What the receiver sees: the sender's `own` address, or that of the `node`, its `overlay` device or its bridge (`gateway`). `*` means that the
/// source port differs from the sender's.
///
/// Packets of `remote-pod` arrive through the tunnel. `host` is a process bound to the node's address; for `host-any`, the kernel chooses the source
/// address. `outside` is a machine whose routes lead through the tested node. `mark-…` is a pod whose packets carry the named mark. As a destination,
/// `outside` is another machine on the underlay. `multicast` is a group: a pod receives the packets of `outside`, and a receiver on the underlay all
/// others.
const TABLE: &str = "
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

/// Arguments of the daemon, and what its rules then look like.
type Case = (&'static [&'static str], fn(&str) -> String);

/// Each with how the table differs.
const CASES: [Case; 4] = [
    (&[], str::to_owned),
    (&["--ip-masq-fully-random-disable"], |row| row.replace('*', "")),
    (&["--masquerade-inbound=false"], |row| {
        let is_inbound = row.starts_with("host ") || row.starts_with("outside ");
        if is_inbound { row.replace("overlay*", "own") } else { row.to_owned() }
    }),
    (
        &["--non-masquerade-cidr=192.168.56.111/32", "--non-masquerade-cidr=fd00:56::111/128"],
        |row| row.replace("node*", "own"),
    ),
];

/// Of another program, with the first source port of each. Each mark has a thousand source ports.
const MARKS: [(&str, u16); 4] =
    [("0x4000", 21000), ("0x4001", 22000), ("0x14000", 23000), ("0x8000", 24000)];
/// The first source port of the sources without a mark, a thousand for each. Masquerading may give several sources the same address, so no two may
/// have the same port.
const UNMARKED: u16 = 10000;

/// The flag of `ip`, the tunnel's device, the pod network and a multicast group.
struct Family(&'static str, &'static str, &'static str, IpAddr);

const FAMILIES: [Family; 2] = [
    Family("-4", "flannel.1", "10.244.0.0/16", IpAddr::V4(Ipv4Addr::new(239, 5, 5, 5))),
    Family(
        "-6",
        "flannel-v6.1",
        "fd10:244::/48",
        IpAddr::V6(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 5, 5)),
    ),
];

impl Family {
    fn host(&self, host: &Host) -> Result<IpAddr> {
        if self.3.is_ipv6() { host.v6().map(IpAddr::V6) } else { host.v4().map(IpAddr::V4) }
    }

    fn pod(&self, pod: &Pod) -> Result<IpAddr> {
        if self.3.is_ipv6() { pod.v6().map(IpAddr::V6) } else { pod.v4().map(IpAddr::V4) }
    }

    /// The first node's address.
    fn first_node_device_address(&self, s: &Scene<'_>, device: &str) -> Result<IpAddr> {
        let addresses = s[0].netns().addresses()?;
        let on_device = addresses
            .iter()
            .filter(|address| address.ifname == device && address.scope == "global");
        let mut found =
            on_device.filter_map(|address| address.net.parse::<ipnet::IpNet>().ok()?.addr().into());
        found
            .find(|address| address.is_ipv6() == self.3.is_ipv6())
            .with_context(|| format!("no address on {device}: {addresses:?}"))
    }
}

/// Routes through the first node for all cells of the table. The machines outside are 192.168.56.111 and .112.
fn add_routes_through_first_node(s: &Scene<'_>, [outside, target]: &[Host; 2]) -> Result<()> {
    let [node, other] = [s[0].netns(), s[1].netns()];
    for key in ["all", "default", "enp0s8"] {
        node.sysctl(&format!("net/ipv4/conf/{key}/send_redirects"), "0")?;
        outside.netns().sysctl(&format!("net/ipv6/conf/{key}/accept_redirects"), "0")?;
    }
    for family in &FAMILIES {
        let Family(flag, device, network, group) = family;
        let (overlay, node_address) =
            (family.first_node_device_address(s, device)?, family.host(&s[0])?);
        let from = family.pod(&s[1].pods[0])?;
        // Routes a pod of another node to all targets through the tunnel and the tested node.
        other.sh(&format!(
            "ip {flag} route add default via {overlay} dev {device} onlink table 100"
        ))?;
        for to in [family.pod(&s[2].pods[0])?, family.host(outside)?, node_address] {
            other.sh(&format!("ip {flag} rule add from {from} to {to} lookup 100 pref 100"))?;
        }
        let target = family.host(target)?;
        outside.netns().sh(&format!("ip {flag} route add {network} via {node_address}; ip {flag} route add {target} via {node_address}"))?;
        let groups = if group.is_ipv6() { "multicast ff0e::/16" } else { "239.0.0.0/8" };
        for netns in [node, outside.netns()] {
            netns.sh(&format!("ip {flag} route add {groups} dev enp0s8 table local"))?;
        }
        // The tunnel floods no packets by itself. This entry brings those of the group to the node.
        other
            .sh(&format!("bridge fdb append 00:00:00:00:00:00 dev {device} dst {node_address}"))?;
    }
    let marks: String = MARKS
        .iter()
        .map(|(mark, port)| format!("udp sport {port}-{} meta mark set {mark}\n", port + 999))
        .collect();
    let table = format!(
        "table inet foreign {{ chain marks {{ type filter hook prerouting priority mangle; policy accept;\n{marks}}}\n}}\n"
    );
    node.exec_with_input("nft", &["-f", "-"], &table).map(drop)
}

/// Measured with the current rules.
fn measure_traffic_table(
    s: &Scene<'_>,
    [outside, target]: &[Host; 2],
    family: &Family,
    case: u16,
) -> Result<String> {
    let (device, group) = (family.1, family.3);
    let [local, neighbour, remote, third] = s.pods()[..] else { anyhow::bail!("not four pods") };
    let (here, there) = (s[0].netns(), s[1].netns());
    // Routes multicast packets.
    let here_routes =
        MulticastRoutes::enable_on_interfaces(here, group.is_ipv6(), &["cni0", device, "enp0s8"])?;
    let there_routes =
        MulticastRoutes::enable_on_interfaces(there, group.is_ipv6(), &["cni0", device])?;
    let (local_ip, remote_ip) = (family.pod(local)?, family.pod(remote)?);
    let (node_ip, outside_ip) = (family.host(&s[0])?, family.host(outside)?);
    here_routes.add(local_ip, group, "cni0", "enp0s8")?;
    there_routes.add(remote_ip, group, "cni0", device)?;
    here_routes.add(remote_ip, group, device, "enp0s8")?;
    here_routes.add(outside_ip, group, "enp0s8", "cni0")?;

    let pod = |pod: &Pod| Echo::start_source_reporter(pod.netns(), family.pod(pod)?);
    let [to_local, to_remote, to_third] = [pod(neighbour)?, pod(remote)?, pod(third)?];
    let to_node = Echo::start_source_reporter(here, node_ip)?;
    let to_outside = Echo::start_source_reporter(outside.netns(), outside_ip)?;
    let to_target = Echo::start_source_reporter(target.netns(), family.host(target)?)?;
    let to_underlay = Echo::start_group_source_reporter(outside.netns(), group, "enp0s8")?;
    let to_pods = Echo::start_group_source_reporter(neighbour.netns(), group, "eth0")?;

    let any: IpAddr =
        if group.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let unmarked = [
        ("local-pod", local.netns(), local_ip),
        ("remote-pod", remote.netns(), remote_ip),
        ("host", here, node_ip),
        ("host-any", here, any),
        ("outside", outside.netns(), outside_ip),
    ];
    let unmarked = (UNMARKED..)
        .step_by(1000)
        .zip(unmarked)
        .map(|(port, (name, netns, from))| (name.to_owned(), netns, from, port));
    let marked =
        MARKS.iter().map(|(mark, port)| (format!("mark-{mark}"), local.netns(), local_ip, *port));
    let named = [
        ("node", node_ip),
        ("overlay", family.first_node_device_address(s, device)?),
        ("gateway", family.first_node_device_address(s, "cni0")?),
    ];
    let mut table = String::from("from local-pod remote-pod host outside multicast\n");
    for (name, netns, from, base) in unmarked.chain(marked) {
        // No source is its own target.
        let remote = if name == "remote-pod" { &to_third } else { &to_remote };
        let (far, group) =
            if name == "outside" { (&to_target, &to_pods) } else { (&to_outside, &to_underlay) };
        write!(table, "{name}")?;
        for (column, echo) in (0..).zip([&to_local, remote, &to_node, far, group]) {
            // Each cell has its own ports, so that conntrack knows none of its connections.
            write!(
                table,
                " {}",
                connect_and_name_seen_source(
                    netns,
                    from,
                    base + case * 100 + column * CONNECTIONS,
                    echo,
                    &named
                )?
            )?;
        }
        table.push('\n');
    }
    Ok(table)
}

/// The name of the address that the target sees, with `*` if the ports differ from the sender's.
fn connect_and_name_seen_source(
    netns: &Netns,
    from: IpAddr,
    first: u16,
    echo: &Echo,
    named: &[(&str, IpAddr)],
) -> Result<String> {
    let seen = ask_seen_source_per_port(netns, from, first..first + CONNECTIONS, echo.address())?;
    let name = |seen: SocketAddr| match named.iter().find(|(_, address)| *address == seen.ip()) {
        _ if seen.ip() == from => "own".to_owned(),
        Some((name, _)) => (*name).to_owned(),
        None => seen.ip().to_string(),
    };
    let mut names: Vec<String> =
        seen.iter().map(|(_, seen)| seen.map_or("nobody".to_owned(), name)).collect();
    names.dedup();
    let changed =
        seen.iter().filter(|(port, seen)| seen.is_some_and(|seen| seen.port() != *port)).count();
    Ok(names.join("+") + if changed * 2 > usize::from(CONNECTIONS) { "*" } else { "" })
}

scenarios! { traffic_rules_match_the_table;
    iptables_nft_matches_the_table_for_every_source_and_destination => IptablesNft,
    iptables_legacy_matches_the_table_for_every_source_and_destination => IptablesLegacy,
    nftables_matches_the_table_for_every_source_and_destination => Nftables,
}

/// Three nodes, the first of which is under test with two pods, and two machines outside the cluster.
fn traffic_rules_match_the_table(applier: Applier) -> Result<()> {
    Scene::with_title("matrix").nodes(3).net(&applier.net_conf()).without_daemons().run(|s| {
        let path = Programs::with_both_iptables_variants(s.lab, "all", applier.xtables())?.path();
        let outside = |number: u8| {
            s.lab.create_host(&format!("out{number}"), &[Uplink::enp0s8(&s.lan, 10 + number)?])
        };
        let outside = [outside(1)?, outside(2)?];
        for node in &mut s.nodes {
            node.change_options(|options| options.env("PATH", &path));
        }
        s.start_daemons()?;
        s[0].create_pod("p1")?;
        for (number, node) in s.nodes.iter_mut().enumerate() {
            node.create_pod(if number == 0 { "p2" } else { "p1" })?;
            // The devices and routes of the daemons stay. The first daemon starts again for each case. The others would remove what is added here.
            node.stop_daemon()?;
        }
        add_routes_through_first_node(s, &outside)?;
        let plain = s[0].options.clone().arg("--ip-masq");
        for (case, (flags, change)) in (0..).zip(CASES) {
            s[0].options = flags.iter().fold(plain.clone(), |options, flag| options.arg(flag));
            s[0].start_daemon()?;
            let words = |row: &str| row.split_whitespace().collect::<Vec<_>>().join(" ");
            let expected: Vec<String> =
                TABLE.trim().lines().map(|row| words(&change(row))).collect();
            for family in &FAMILIES {
                let found = measure_traffic_table(s, &outside, family, case)?;
                ensure!(
                    found.lines().eq(&expected),
                    "{flags:?} {}: found\n{found}instead of\n{}",
                    family.0,
                    expected.join("\n")
                );
            }
            s.require_no_errors()?;
            s[0].stop_daemon()?;
        }
        Ok(())
    })
}
