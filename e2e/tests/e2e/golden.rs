//! Checks that flanneld writes the same lease, `subnet.env` and kernel objects as Go flannel 0.28.9. Captures of Go flannel's objects are in `golden/`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use lab::{
    Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, KeyValue, Lab, Netns, Switch, Uplink,
    until_ok,
};
use serde_json::Value;

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
/// Properties of a TUN device that depend on the program that opened the device.
const TUN_IGNORED: [&str; 4] = ["vnet_hdr", "multi_queue", "numqueues", "numdisabled"];

scenarios! { compare;
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

/// Lines to compare, by the file name of the capture. Placeholders replace subnets and MACs.
type Facts = BTreeMap<&'static str, Vec<String>>;

/// Creates hosts like those of the captures, runs flanneld on each host, and waits until all of flanneld's objects equal the captured objects.
pub(crate) fn compare(case: &str) -> Result<()> {
    let capture = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(case);
    let read = |file: &str| {
        std::fs::read_to_string(capture.join(file)).with_context(|| format!("{case}/{file}"))
    };
    let expected = captured(&capture)?;
    Lab::run(case, |lab| {
        let lan = lab.switch("lan")?;
        let store = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&store], &EtcdOptions::default())?;
        etcd.store()?.configure(read("net-conf.json")?.trim())?;
        let mut daemons = Vec::new();
        for number in 1..=2 {
            let host = host(lab, &lan, number)?;
            daemons.push((
                host.flanneld(&FlanneldOptions::new(&etcd.store()?).iface("enp0s8"))?,
                host,
            ));
        }
        let (daemon, host) = &daemons[0];
        until_ok("all is as captured", || {
            let found = found(&etcd, daemon, host, &read("sysctl.txt")?)?;
            let differences = differences(&expected, &found);
            ensure!(
                differences.is_empty(),
                "in the case {case} (- Go flannel, + ours):\n{differences}"
            );
            Ok(())
        })?;
        for (daemon, host) in &daemons {
            ensure!(
                daemon.errors().is_empty(),
                "{}: {:#?}",
                host.name(),
                daemon.errors()
            );
        }
        Ok(())
    })
}

/// Creates a host with the interfaces and addresses of a captured host. The host's default route does not lead to the other host.
fn host(lab: &Lab, lan: &Switch, number: u8) -> Result<Host> {
    let nat = lab.switch(&format!("nat{number}"))?;
    let uplinks = [
        Uplink::new(&nat, "enp0s3")
            .address("10.0.2.15/24")?
            .gateway("10.0.2.2")?,
        Uplink::enp0s8(lan, number)?.gateway("fd00:56::1")?,
    ];
    let host = lab.host(&format!("n{number}"), &uplinks)?;
    // These are the values of a machine outside of a lab: whatever differs on the devices, flannel has set.
    host.netns()
        .sysctl("net/ipv6/conf/default/accept_dad", "1")?;
    host.netns()
        .sysctl("net/ipv6/conf/default/accept_ra", "1")?;
    Ok(host)
}

fn captured(capture: &Path) -> Result<Facts> {
    let read = |file: &str| {
        let path: PathBuf = capture.join(file);
        // A capture has no files for empty outputs.
        if path.exists() {
            std::fs::read_to_string(&path).with_context(|| path.display().to_string())
        } else {
            Ok(String::new())
        }
    };
    let etcd = read("etcd.txt")?;
    let lines: Vec<&str> = etcd.lines().collect();
    let pairs: Vec<(String, String)> = lines
        .chunks(2)
        .filter(|pair| pair[0].starts_with(SUBNETS))
        .map(|pair| (pair[0].to_owned(), pair[1].to_owned()))
        .collect();
    let names = Names::of(&pairs)?;
    let mut facts = Facts::new();
    // With one device, the IPv6 port is that device's port, which is open. Go flannel writes the port of a second device, which it does not have.
    let one_device = read("net-conf.json")?.contains("\"Mode\":");
    let open = |value: &str| {
        if one_device {
            value.replace("51821", "51820")
        } else {
            value.to_owned()
        }
    };
    facts.insert(
        "etcd.txt",
        names.in_lines(
            pairs
                .iter()
                .map(|(key, value)| format!("{key} {}", open(value))),
        ),
    );
    facts.insert(
        "etcd-leases.txt",
        names.in_lines(read("etcd-leases.txt")?.lines()),
    );
    facts.insert("subnet.env", names.in_text(&read("subnet.env")?));
    facts.insert("links.json", names.in_text(&links(&read("links.json")?)?));
    facts.insert(
        "addresses.json",
        names.in_text(&addresses(&read("addresses.json")?)?),
    );
    facts.insert("routes.txt", routes(&names, &read("routes.txt")?, true));
    facts.insert(
        "neighbours.txt",
        names.in_lines(trimmed(&read("neighbours.txt")?)),
    );
    facts.insert("fdb.txt", names.in_lines(trimmed(&read("fdb.txt")?)));
    facts.insert("sysctl.txt", names.in_lines(trimmed(&read("sysctl.txt")?)));
    facts.insert("wg.txt", wireguard(&names, &open(&read("wg.txt")?)));
    Ok(facts)
}

fn found(etcd: &Etcd, daemon: &Flanneld, host: &Host, sysctls: &str) -> Result<Facts> {
    let netns = host.netns();
    let entries = etcd.client()?.get_prefix(SUBNETS)?;
    let pairs = entries
        .iter()
        .map(|entry| Ok((entry.key.clone(), without_node_id(entry)?)))
        .collect::<Result<Vec<_>>>()?;
    ensure!(
        pairs.len() == 2,
        "two nodes, and {} keys: {pairs:?}",
        pairs.len()
    );
    let names = Names::of(&pairs)?;
    let ip = |args: &[&str]| netns.exec("ip", args);
    let on_flannel = |text: &str| {
        trimmed(text)
            .filter(|line| line.contains("dev flannel"))
            .collect::<Vec<_>>()
    };
    let mut facts = Facts::new();
    facts.insert(
        "etcd.txt",
        names.in_lines(pairs.iter().map(|(key, value)| format!("{key} {value}"))),
    );
    let held = |entry: &KeyValue| {
        format!(
            "{} {}",
            entry.key,
            if entry.lease == 0 { "none" } else { "lease" }
        )
    };
    facts.insert("etcd-leases.txt", names.in_lines(entries.iter().map(held)));
    facts.insert(
        "subnet.env",
        names.in_text(&std::fs::read_to_string(daemon.subnet_file())?),
    );
    facts.insert(
        "links.json",
        names.in_text(&links(&ip(&["-d", "-j", "link", "show"])?)?),
    );
    facts.insert(
        "addresses.json",
        names.in_text(&addresses(&ip(&["-j", "address", "show"])?)?),
    );
    facts.insert(
        "routes.txt",
        routes(
            &names,
            &(ip(&["-4", "-d", "route", "show"])? + &ip(&["-6", "-d", "route", "show"])?),
            false,
        ),
    );
    facts.insert(
        "neighbours.txt",
        names.in_lines(on_flannel(&ip(&["neighbour", "show"])?)),
    );
    facts.insert(
        "fdb.txt",
        names.in_lines(on_flannel(&netns.exec("bridge", &["fdb", "show"])?)),
    );
    facts.insert(
        "sysctl.txt",
        names.in_lines(trimmed(sysctls).map(|line| sysctl(netns, &line))),
    );
    let tunnels = if facts["links.json"]
        .iter()
        .any(|line| line.contains("wireguard"))
    {
        netns.exec("wg", &["show"])?
    } else {
        String::new()
    };
    facts.insert("wg.txt", wireguard(&names, &tunnels));
    Ok(facts)
}

/// Removes the field `NodeID` from a lease value, so that the value has Go flannel's format. In flannel-rs' leases, `NodeID` is the last field.
fn without_node_id(entry: &KeyValue) -> Result<String> {
    let value: Value = serde_json::from_str(&entry.value).with_context(|| entry.value.clone())?;
    ensure!(
        value["NodeID"]["id"].is_string(),
        "no NodeID: {}",
        entry.value
    );
    let (before, last) = entry
        .value
        .split_once(",\"NodeID\":")
        .context("NodeID is the last field")?;
    ensure!(
        serde_json::from_str::<Value>(last.strip_suffix('}').unwrap_or_default()).is_ok(),
        "NodeID is not the last field: {}",
        entry.value
    );
    Ok(format!("{before}}}"))
}

/// Placeholders for random parts: subnets, keys, MACs and the link-local addresses that follow from MACs.
struct Names(Vec<(String, String)>);

impl Names {
    fn of(pairs: &[(String, String)]) -> Result<Names> {
        let mut names = Vec::new();
        for (key, value) in pairs {
            let value: Value = serde_json::from_str(value).with_context(|| value.clone())?;
            let node = match value["PublicIP"].as_str() {
                Some("192.168.56.101") => "n1",
                Some("192.168.56.102") => "n2",
                other => bail!("{key} is of nobody: {other:?}"),
            };
            for subnet in key.trim_start_matches(SUBNETS).split('&') {
                let (network, _) = subnet.rsplit_once('-').with_context(|| key.clone())?;
                // Ends before the part that differs between addresses of the subnet.
                match network.strip_suffix('0') {
                    Some(bytes) => names.push((bytes.to_owned(), format!("<{node} v4>."))),
                    None => names.push((network.to_owned(), format!("<{node} v6>::"))),
                }
            }
            for field in ["BackendData", "BackendV6Data"] {
                if let Some(key) = value[field]["PublicKey"].as_str() {
                    names.push((key.to_owned(), format!("<{node} key>")));
                }
            }
            for (field, word) in [("BackendData", "mac"), ("BackendV6Data", "mac6")] {
                if let Some(mac) = value[field]["VtepMAC"].as_str() {
                    names.push((mac.to_owned(), format!("<{node} {word}>")));
                    names.push((link_local(mac)?, format!("<{node} {word} link-local>")));
                }
            }
        }
        Ok(Names(names))
    }

    fn in_text(&self, text: &str) -> Vec<String> {
        let text = self.0.iter().fold(text.to_owned(), |text, (random, word)| {
            text.replace(random, word)
        });
        text.lines().map(str::to_owned).collect()
    }

    /// Replaces the random parts of lines with placeholders. Sorts the lines, and removes repeated lines.
    fn in_lines<S: AsRef<str>>(&self, lines: impl IntoIterator<Item = S>) -> Vec<String> {
        let lines: BTreeSet<String> = lines
            .into_iter()
            .flat_map(|line| self.in_text(line.as_ref()))
            .collect();
        lines.into_iter().collect()
    }
}

fn link_local(mac: &str) -> Result<String> {
    let bytes = mac
        .split(':')
        .map(|byte| Ok(u16::from(u8::from_str_radix(byte, 16)?)))
        .collect::<Result<Vec<_>>>()?;
    ensure!(bytes.len() == 6, "MAC {mac}");
    let word = |high: u16, low: u16| high << 8 | low;
    let tail = [
        word(bytes[0] ^ 2, bytes[1]),
        word(bytes[2], 0xff),
        word(0xfe, bytes[3]),
        word(bytes[4], bytes[5]),
    ];
    Ok(Ipv6Addr::new(0xfe80, 0, 0, 0, tail[0], tail[1], tail[2], tail[3]).to_string())
}

fn trimmed(text: &str) -> impl Iterator<Item = String> {
    text.lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
}

/// Returns flannel's interfaces in a list of `ip -j`, sorted by name, because the order of their creation is undefined.
fn flannels(json: &str) -> Result<Vec<Value>> {
    let mut list: Vec<Value> = serde_json::from_str(json).with_context(|| json.to_owned())?;
    list.retain(|link| {
        link["ifname"]
            .as_str()
            .is_some_and(|name| name.starts_with("flannel"))
    });
    list.sort_by_key(|link| link["ifname"].to_string());
    Ok(list)
}

fn links(json: &str) -> Result<String> {
    let mut links = flannels(json)?;
    for link in links.iter_mut().filter_map(Value::as_object_mut) {
        for field in IGNORED {
            link.remove(field);
        }
        if link["linkinfo"]["info_kind"] == "tun" {
            // Our transmit queue is longer.
            link.remove("txqlen");
        }
        if let Some(tun) = link
            .get_mut("linkinfo")
            .and_then(|info| info["info_data"].as_object_mut())
        {
            TUN_IGNORED
                .iter()
                .for_each(|field| drop(tun.remove(*field)));
        }
    }
    Ok(serde_json::to_string_pretty(&links)?)
}

fn addresses(json: &str) -> Result<String> {
    let mut interfaces = Vec::new();
    for interface in flannels(json)? {
        let mut addresses = interface["addr_info"].clone();
        for address in addresses
            .as_array_mut()
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            address.remove("nodad");
            if interface["ifname"] == "flannel0"
                && address.get("scope").is_some_and(|scope| scope == "link")
            {
                // The kernel makes up the address of a device without a MAC.
                address.insert("local".to_owned(), "<random link-local>".into());
            }
        }
        interfaces
            .push(serde_json::json!({ "ifname": interface["ifname"], "addr_info": addresses }));
    }
    Ok(serde_json::to_string_pretty(&interfaces)?)
}

/// Returns the routes in the output of `ip route`, except link-local routes. flannel-rs' routes to other nodes have
/// protocol 241, and Go flannel's routes have protocol `boot`.
fn routes(names: &Names, text: &str, of_go: bool) -> Vec<String> {
    let lines = names.in_lines(trimmed(text).filter(|line| !line.contains("fe80::")));
    // With wireguard, our blackholes keep packets from leaving unencrypted. Go flannel has none.
    let lines = lines
        .into_iter()
        .map(|line| line.replace("table main ", ""))
        .filter(|line| of_go || !line.contains("metric 4294967295"));
    let marked = |line: String| {
        let to_a_peer = line.starts_with("unicast <n2 ")
            || line.contains("dev flannel0")
            || line.contains("dev flannel-wg");
        if of_go && to_a_peer {
            line.replace("proto boot", "proto 241")
        } else {
            line
        }
    };
    lines
        .map(marked)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// Returns the output of `wg show` without the lines that depend on traffic.
fn wireguard(names: &Names, text: &str) -> Vec<String> {
    let passing = ["latest handshake:", "transfer:"];
    names.in_text(
        &trimmed(text)
            .filter(|line| !passing.iter().any(|word| line.starts_with(word)))
            .collect::<Vec<_>>()
            .join("\n"),
    )
}

/// Returns a line such as `net.ipv4.conf.flannel/1.rp_filter = 0` with the value that the sysctl has in the network namespace `netns`.
fn sysctl(netns: &Netns, line: &str) -> String {
    let name = line.split(" = ").next().unwrap_or_default();
    // In a sysctl name, a slash stands for the dot in an interface's name.
    let swapped = |letter| match letter {
        '.' => '/',
        '/' => '.',
        _ => letter,
    };
    let path: String = name.chars().map(swapped).collect();
    let value = netns.run(|| std::fs::read_to_string(Path::new("/proc/sys").join(&path)));
    let value = value.map_or_else(
        |error| error.to_string(),
        |value| value.unwrap_or_else(|error| error.to_string()),
    );
    format!("{name} = {}", value.trim())
}

fn differences(expected: &Facts, found: &Facts) -> String {
    let mut text = String::new();
    for (file, expected) in expected {
        let found = &found[file];
        if expected == found {
            continue;
        }
        text.push_str(&format!("{file}:\n"));
        let missing: Vec<&String> = expected
            .iter()
            .filter(|line| !found.contains(line))
            .collect();
        let extra: Vec<&String> = found
            .iter()
            .filter(|line| !expected.contains(line))
            .collect();
        if missing.is_empty() && extra.is_empty() {
            text.push_str(&format!(
                "  the same lines in another order or number:\n{}\n",
                found.join("\n")
            ));
        }
        missing
            .iter()
            .for_each(|line| text.push_str(&format!("  - {line}\n")));
        extra
            .iter()
            .for_each(|line| text.push_str(&format!("  + {line}\n")));
    }
    text
}
