//! flanneld writes the same lease, `subnet.env` and kernel objects as Go flannel 0.28.9, whose captures are in `golden/`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lab::{Scene, Uplink, until_ok};
use serde_json::{Value, json};

use crate::healing::scenarios;

const SUBNETS: &str = "/coreos.com/network/subnets/";
/// Fields of `ip -d -j link` that depend on the kernel: indexes, queues and offload limits.
const IGNORED: [&str; 9] = [
    "ifindex",
    "qdisc",
    "num_tx_queues",
    "num_rx_queues",
    "gso_max_size",
    "gso_max_segs",
    "tso_max_size",
    "tso_max_segs",
    "gro_max_size",
];
/// They depend on the program that opened the TUN device.
const TUN_IGNORED: [&str; 4] = ["vnet_hdr", "multi_queue", "numqueues", "numdisabled"];

scenarios! { wait_first_node_equals_capture;
    vxlan => "vxlan",
    vxlan_dual => "vxlan-dual",
    vxlan_direct => "vxlan-direct",
    host_gw => "host-gw",
    host_gw_dual => "host-gw-dual",
    udp => "udp",
    // Without `Backend` the default is udp, as with Go flannel.
    default_backend => "default-backend",
    alloc => "alloc",
}

/// By the file names of their captures.
type Outputs = BTreeMap<&'static str, String>;

const FILES: [&str; 10] = [
    "addresses.json",
    "etcd-leases.txt",
    "etcd.txt",
    "fdb.txt",
    "links.json",
    "neighbours.txt",
    "routes.txt",
    "subnet.env",
    "sysctl.txt",
    "wg.txt",
];

/// Runs flanneld on hosts like those of the captures, until all its objects equal the captured ones.
pub(crate) fn wait_first_node_equals_capture(case: &str) -> Result<()> {
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case);
    // A capture has no files for empty outputs.
    let read = |file: &str| std::fs::read_to_string(capture.join(file)).unwrap_or_default();
    let conf = read("net-conf.json");
    let mut captured: Outputs = FILES.map(|file| (file, read(file))).into();
    if conf.contains("\"Mode\":") {
        // With one device, the IPv6 port is that device's port, which is open. Go flannel writes the port of a second device, which it does not have.
        captured.values_mut().for_each(|text| *text = text.replace("51821", "51820"));
    }
    let expected = comparable_lines(&captured)?;
    let scene = Scene::with_title(case).etcd().net(conf.trim()).without_daemons();
    scene.run(|s| {
        for node in &s.nodes {
            // The host's default route does not lead to the other host.
            let nat = s.lab.create_switch(&format!("nat-{}", node.name()))?;
            let uplink = Uplink::new(&nat, "enp0s3").address("10.0.2.15/24")?;
            node.attach(&uplink.gateway("10.0.2.2")?)?;
            // The values are those of a machine outside of a lab: whatever differs on the devices, flannel has set.
            node.sh("ip -6 route add default via fd00:56::1 dev enp0s8\nsysctl -qw net.ipv6.conf.default.accept_dad=1 net.ipv6.conf.default.accept_ra=1")?;
        }
        s.start_daemons()?;
        until_ok("all is as captured", || {
            let found = comparable_lines(&collect_first_node_outputs(s, &captured["sysctl.txt"])?)?;
            for (file, expected) in &expected {
                ensure!(
                    found[file] == *expected,
                    "{case}, {file}: {:#?} instead of {expected:#?}",
                    found[file]
                );
            }
            Ok(())
        })?;
        s.require_no_errors()
    })
}

fn collect_first_node_outputs(s: &Scene<'_>, sysctls: &str) -> Result<Outputs> {
    let etcd = s.etcd.as_ref().context("etcd")?.client_on_first_member()?;
    let (mut values, mut leases) = (String::new(), String::new());
    for entry in etcd.get_prefix(SUBNETS)? {
        // flannel-rs adds the last field. The text before it is Go flannel's.
        let (before, node_id) = entry.value.split_once(",\"NodeID\":").context("no NodeID")?;
        let node_id: Value = serde_json::from_str(node_id.strip_suffix('}').unwrap_or_default())?;
        ensure!(node_id["id"].is_string(), "{}", entry.value);
        values += &format!("{}\n{before}}}\n", entry.key);
        let held = if entry.lease == 0 { "none" } else { "lease" };
        leases += &format!("{} {held}\n", entry.key);
    }
    let names = sysctls.lines().filter_map(|line| line.split(" = ").next());
    let names = names.collect::<Vec<_>>().join(" ");
    let sh = |script: &str| s[0].sh(script);
    let env = std::fs::read_to_string(s[0].daemon()?.subnet_file())?;
    Ok([
        ("addresses.json", sh("ip -j address")?),
        ("etcd-leases.txt", leases),
        ("etcd.txt", values),
        ("fdb.txt", sh("bridge fdb show")?),
        ("links.json", sh("ip -d -j link")?),
        ("neighbours.txt", sh("ip neighbour")?),
        ("routes.txt", sh("ip -4 -d route; ip -6 -d route")?),
        ("subnet.env", env),
        ("sysctl.txt", sh(&format!("sysctl {names}"))?),
        ("wg.txt", sh("wg show || true")?),
    ]
    .into())
}

/// The lines to compare: with placeholders in place of random parts, and without what depends on the kernel, on traffic or on other programs.
fn comparable_lines(outputs: &Outputs) -> Result<BTreeMap<&'static str, Vec<String>>> {
    let etcd: Vec<&str> = outputs["etcd.txt"].lines().collect();
    let leases = etcd
        .chunks(2)
        .filter(|pair| pair[0].starts_with(SUBNETS))
        .map(|pair| pair.join(" "))
        .collect::<Vec<_>>();
    let names = placeholders_for_random_values(&leases)?;
    let facts = outputs.iter().map(|(file, text)| {
        let text = match *file {
            "etcd.txt" => leases.join("\n"),
            "links.json" => plain_flannel_interfaces(text, drop_uncompared_link_fields)?,
            "addresses.json" => {
                plain_flannel_interfaces(text, reduce_to_name_and_comparable_addresses)?
            }
            _ => text.clone(),
        };
        let text = names.iter().fold(text, |text, (random, word)| text.replace(random, word));
        // flannel-rs' routes to other nodes have protocol 241, and Go flannel's routes have protocol `boot`.
        let plain =
            |line: &str| line.trim().replace("table main ", "").replace("proto 241", "proto boot");
        let mut lines: Vec<_> =
            text.lines().map(plain).filter(|line| is_compared(file, line)).collect();
        if !["addresses.json", "links.json", "subnet.env", "wg.txt"].contains(file) {
            lines.sort();
            lines.dedup();
        }
        Ok((*file, lines))
    });
    facts.collect()
}

fn is_compared(file: &str, line: &str) -> bool {
    match file {
        "fdb.txt" | "neighbours.txt" => line.contains("dev flannel"),
        // With wireguard, our blackholes keep packets from leaving unencrypted. Go flannel has none.
        "routes.txt" => !line.contains("fe80::") && !line.contains("metric 4294967295"),
        "wg.txt" => {
            let depends_on_traffic = ["latest handshake:", "transfer:"];
            !line.is_empty() && !depends_on_traffic.iter().any(|name| line.starts_with(name))
        }
        _ => true,
    }
}

/// Placeholders for the random subnets, keys and MACs of leases.
fn placeholders_for_random_values(leases: &[String]) -> Result<Vec<(String, String)>> {
    let mut names = Vec::new();
    for lease in leases {
        let (key, value) = lease.split_once(' ').context("a value")?;
        let value: Value = serde_json::from_str(value).with_context(|| lease.clone())?;
        let node = value["PublicIP"].as_str().context("PublicIP")?;
        for subnet in key.trim_start_matches(SUBNETS).split('&') {
            let (network, _) = subnet.rsplit_once('-').with_context(|| lease.clone())?;
            // Ends before the part that differs between addresses of the subnet.
            names.push(match network.strip_suffix('0') {
                Some(bytes) => (bytes.to_owned(), format!("<v4 of {node}>.")),
                None => (network.to_owned(), format!("<v6 of {node}>::")),
            });
        }
        for data in ["BackendData", "BackendV6Data"] {
            for field in ["PublicKey", "VtepMAC"] {
                if let Some(random) = value[data][field].as_str() {
                    names.push((random.to_owned(), format!("<{data} {field} of {node}>")));
                }
            }
        }
    }
    Ok(names)
}

/// flannel's interfaces in a list of `ip -j`, sorted by name, because the order of their creation is undefined.
fn plain_flannel_interfaces(json: &str, make_plain: fn(&mut Value)) -> Result<String> {
    let mut list: Vec<Value> = serde_json::from_str(json).with_context(|| json.to_owned())?;
    let name = |link: &Value| link["ifname"].as_str().unwrap_or_default().to_owned();
    list.retain(|link| name(link).starts_with("flannel"));
    list.sort_by_key(name);
    list.iter_mut().for_each(make_plain);
    Ok(serde_json::to_string_pretty(&list)?)
}

fn drop_uncompared_link_fields(link: &mut Value) {
    let is_tun = link["linkinfo"]["info_kind"] == "tun";
    if let Some(fields) = link.as_object_mut() {
        // Our transmit queue of a TUN device is longer.
        fields.retain(|name, _| !(IGNORED.contains(&&**name) || is_tun && name == "txqlen"));
    }
    let data = link.pointer_mut("/linkinfo/info_data");
    if let Some(fields) = data.and_then(Value::as_object_mut) {
        fields.retain(|name, _| !TUN_IGNORED.contains(&&**name));
    }
}

fn reduce_to_name_and_comparable_addresses(link: &mut Value) {
    let mut addresses = link["addr_info"].take();
    for address in addresses.as_array_mut().into_iter().flatten() {
        address["nodad"] = Value::Null;
        if address["scope"] == "link" {
            // The kernel makes it up.
            address["local"] = Value::Null;
        }
    }
    *link = json!({ "ifname": link["ifname"], "addr_info": addresses });
}
