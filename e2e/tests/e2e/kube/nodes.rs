//! Tests of Nodes that operators or other programs re-create, duplicate, damage, overwrite, or restore from a snapshot.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    ANNOTATIONS, Answer, Call, CniVersion, Lab, NodeObject, PingMatrix, PingOptions, Proxy,
    binaries, throughout, until, until_ok,
};
use serde_json::json;

use crate::kube::bed::{Bed, DUAL, Scenario, Server, VXLAN};

const NODES: &[(&str, Scenario)] = &[
    ("annotations changed by others come back", tampered),
    (
        "a condition that others set to True or remove comes back",
        condition,
    ),
    ("others' annotations stay", two_patchers),
    ("two Nodes with one podCIDR", doubled),
    ("a peer that is no longer managed", unmanaged),
    (
        "public-ip-overwrite, set and removed while it runs",
        overwrite,
    ),
    (
        "a peer re-created with another podCIDR, its old one another's",
        recreated_peer,
    ),
    ("the own Node gone and back", own_node_gone),
];

/// Scenarios after which daemons delay removals by a minute.
const MASSES: &[(&str, Scenario)] = &[
    ("sixty hostile Nodes", hostile),
    ("etcd restored from a snapshot", restored),
];

#[test]
fn hostile_nodes_and_a_restored_store_remove_no_peer() -> Result<()> {
    masses(Server::Real)
}

pub(crate) fn masses(server: Server) -> Result<()> {
    nodes(server, "masses", MASSES)
}

#[test]
fn node_changes_apply_soon_and_touch_no_other_peer() -> Result<()> {
    one_by_one(Server::Real)
}

pub(crate) fn one_by_one(server: Server) -> Result<()> {
    nodes(server, "one by one", NODES)
}

fn nodes(server: Server, title: &str, scenarios: &[(&str, Scenario)]) -> Result<()> {
    Lab::run(&format!("Node API: nodes, {title}"), |lab| {
        let mut bed = server.populated(lab, 2, VXLAN)?;
        let probe = lab::Probe::start(&bed.pods[0], &bed.pods[1], &lab::ProbeOptions::default())?;
        bed.each(scenarios)?;
        probe.finish()?.require_clean()
    })
}

#[test]
fn daemon_returns_unchanged_after_kill_or_stop() -> Result<()> {
    Lab::run("Node API: kill -9", |lab| {
        let mut bed = Bed::start(lab, 2, VXLAN)?;
        let probe = lab::Probe::start(&bed.pods[0], &bed.pods[1], &lab::ProbeOptions::default())?;
        let (data, peers) = (
            bed.admin().flannel_annotation("h1", "backend-data")?,
            bed.peers_of(1)?,
        );
        for kill in [true, false] {
            if kill {
                bed.daemons[0].kill()?;
            } else {
                ensure!(
                    bed.daemons[0].terminate()?.success(),
                    "{}",
                    bed.daemons[0].log()
                );
            }
            ensure!(
                bed.admin().has_network("h1"),
                "the condition went with the daemon"
            );
            bed.restart(0)?;
            ensure!(
                bed.admin().flannel_annotation("h1", "backend-data")? == data,
                "another MAC"
            );
            ensure!(
                bed.peers_of(1)? == peers,
                "the other host was touched:\n{}",
                bed.peers_of(1)?
            );
        }
        bed.reach()?;
        probe.finish()?.require_clean()
    })
}

#[test]
fn changed_own_pod_cidr_restarts_the_network_in_process() -> Result<()> {
    changed_own_pod_cidr(Server::Real)
}

pub(crate) fn changed_own_pod_cidr(server: Server) -> Result<()> {
    Lab::run("Node API: another podCIDR", |lab| {
        let mut bed = server.populated(lab, 3, DUAL)?;
        let pid = bed.daemons[2].pid();
        let probe = lab::Probe::start(&bed.pods[0], &bed.pods[1], &lab::ProbeOptions::default())?;
        // A foreign address on the bridge of the pods.
        bed.hosts[2]
            .netns()
            .ip("address add fd77::1/64 dev cni0 nodad")?;
        bed.admin().delete_node("h3")?;
        // Another Node gets its old subnet at once.
        let other = NodeObject::new("other")
            .pod_cidr("10.244.3.0/24")
            .vxlan_peer("192.168.56.9", "02:00:00:00:00:09");
        bed.admin().create_node(&other)?;
        bed.admin().create_node(&another_h3(&bed, 33)?)?;
        for host in 0..2 {
            bed.wait_tunnel(host, "10.244.3.0/24", Some("192.168.56.9"))?;
            bed.wait_tunnel(host, "10.244.33.0/24", Some("192.168.56.103"))?;
        }
        serves_another_subnet(&bed, "10.244.3", "10.244.33")?;
        require_change_reported(&mut bed, pid)?;
        new_pod_is_reached(&bed, "new")?;

        // The same happens while no daemon runs.
        ensure!(
            bed.daemons[2].terminate()?.success(),
            "{}",
            bed.daemons[2].log()
        );
        bed.admin().delete_node("h3")?;
        bed.admin().create_node(&another_h3(&bed, 34)?)?;
        bed.restart(2)?;
        serves_another_subnet(&bed, "10.244.33", "10.244.34")?;
        new_pod_is_reached(&bed, "newer")?;

        change_while_it_waits(&mut bed)?;
        serves_another_subnet(&bed, "10.244.34", "10.244.35")?;
        probe.finish()?.require_clean()
    })
}

/// Checks that the third host's daemon still runs, has logged the new podCIDR, and has removed all objects of the old podCIDR.
fn require_change_reported(bed: &mut Bed, pid: u32) -> Result<()> {
    let daemon = &mut bed.daemons[2];
    ensure!(
        daemon.is_running() && daemon.pid() == pid,
        "another process"
    );
    let logged = daemon.log().lines().any(|line| {
        [
            "10.244.3.0/24",
            "10.244.33.0/24",
            "kubectl delete pods",
            "cni0",
        ]
        .iter()
        .all(|word| line.contains(word))
    });
    ensure!(logged, "the log does not say what to do:\n{}", daemon.log());
    ensure!(
        daemon.metric("flannel_bridge_addresses_removed_total")? == 2.0,
        "{}",
        daemon.get("/metrics")?.1
    );
    until_ok("an Event says so", || {
        let events = bed.admin().get("/api/v1/namespaces/default/events")?;
        let mut all = events["items"].as_array().into_iter().flatten();
        let is_expected = |event: &serde_json::Value| {
            event["reason"] == "FlannelPodCIDRChanged"
                && event["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("from cni0"))
        };
        ensure!(all.any(is_expected), "{events}");
        Ok(())
    })?;
    bed.wait_tunnel(2, "10.244.3.0/24", Some("192.168.56.9"))?;
    until("the condition is there", || bed.admin().has_network("h3"))?;
    let addresses = bed.hosts[2]
        .netns()
        .exec("ip", &["-4", "address", "show", "dev", "flannel.1"])?;
    ensure!(
        addresses.contains("10.244.33.0") && !addresses.contains("10.244.3.0"),
        "{addresses}"
    );
    Ok(())
}

/// Replaces the third host's Node while its daemon waits for a lease, after the daemon has read the files on the host.
fn change_while_it_waits(bed: &mut Bed) -> Result<()> {
    ensure!(
        bed.daemons[2].terminate()?.success(),
        "{}",
        bed.daemons[2].log()
    );
    let refused = |call: &Call| {
        if call.method == "PATCH" {
            Answer::status(403, "Forbidden")
        } else {
            Answer::Pass
        }
    };
    bed.proxies.iter().for_each(|proxy| proxy.on(refused));
    bed.admin()
        .annotate("h3", &format!("{ANNOTATIONS}backend-data"), None)?;
    bed.daemons[2] = bed.hosts[2].start_flanneld(&bed.options[2])?;
    until("it waits", || {
        bed.daemons[2].log().contains("waiting for a lease")
    })
    .with_context(|| bed.daemons[2].log())?;
    bed.admin().delete_node("h3")?;
    bed.admin().create_node(&another_h3(bed, 35)?)?;
    bed.proxies.iter().for_each(Proxy::pass);
    Ok(())
}

/// Returns the third host's Node with other podCIDRs.
fn another_h3(bed: &Bed, third: u8) -> Result<NodeObject> {
    let node = NodeObject::new("h3")
        .pod_cidr(&format!("10.244.{third}.0/24"))
        .pod_cidr(&format!("fd10:244:0:{third}::/64"));
    Ok(node
        .internal(bed.hosts[2].v4()?)
        .internal(bed.hosts[2].v6()?))
}

/// Waits until the third host uses the subnet `now`. Checks that the host's bridge has lost only the gateway addresses of the previous subnet.
fn serves_another_subnet(bed: &Bed, before: &str, now: &str) -> Result<()> {
    let (daemon, netns) = (&bed.daemons[2], bed.hosts[2].netns());
    until("subnet.env has the new subnet", || {
        daemon.subnet_env().is_ok_and(|env| {
            env.subnet
                .is_some_and(|subnet| subnet.to_string() == format!("{now}.1/24"))
        })
    })?;
    until("it is ready again", || daemon.is_ready()).with_context(|| daemon.log())?;
    let v6 = before.replace("10.244.", "fd10:244:0:");
    let left =
        netns.sh("ip address show dev cni0; ip route show dev cni0; ip -6 route show dev cni0")?;
    ensure!(
        !left.contains(&format!("{before}.")) && !left.contains(&format!("{v6}::")),
        "{left}"
    );
    ensure!(
        left.contains("fd77::1/64"),
        "an address that others made is gone:\n{left}"
    );
    ensure!(
        netns
            .exec("ip", &["link", "show", "master", "cni0"])?
            .contains("veth1"),
        "the pod of the old subnet lost its port"
    );
    Ok(())
}

/// Adds a pod on the third host with the CNI plugin, to the existing bridge. Checks that the first host's pod reaches the new pod in both address families.
fn new_pod_is_reached(bed: &Bed, name: &str) -> Result<()> {
    let host = &bed.hosts[2];
    let folder = host.folder()?;
    let conf = json!({
        "name": "cbr0", "cniVersion": "0.3.1", "type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true},
        "subnetFile": host.subnet_file()?, "dataDir": folder.join("cni"), "ipam": {"dataDir": folder.join("ipam")},
    });
    let pod = host.empty_pod(name)?;
    let cni = host.cni(
        &binaries::own("flannel")?,
        &binaries::cni(CniVersion::V191)?,
    );
    let result = cni.call("ADD", Some(&pod), "eth0", &conf)?.ok()?;
    let addresses = result["ips"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|ip| ip["address"].as_str()?.split_once('/')?.0.parse().ok());
    let addresses: Vec<std::net::IpAddr> = addresses.collect();
    ensure!(addresses.len() == 2, "{result}");
    for address in addresses {
        let from = &bed.pods[..1];
        until_ok("the new pod is reached", || {
            PingMatrix::to(from, &[address], &PingOptions::default())?.require_complete()
        })?;
    }
    Ok(())
}

fn tampered(bed: &mut Bed) -> Result<()> {
    let good = bed
        .admin()
        .flannel_annotation("h1", "backend-data")?
        .context("backend-data")?;
    for (name, value) in [
        ("backend-data", Some("nonsense")),
        ("public-ip", None),
        ("backend-type", Some("host-gw")),
        ("backend-data", None),
        ("kube-subnet-manager", None),
    ] {
        let before = bed.admin().flannel_annotation("h1", name)?;
        bed.admin()
            .annotate("h1", &format!("{ANNOTATIONS}{name}"), value)?;
        // The daemon restores an annotation at once, then at most once in ten seconds.
        until_ok("an annotation comes back", || {
            let now = bed.admin().flannel_annotation("h1", name)?;
            ensure!(now == before, "{name} is {now:?} instead of {before:?}");
            Ok(())
        })?;
    }
    ensure!(
        bed.admin().flannel_annotation("h1", "backend-data")? == Some(good),
        "another MAC"
    );
    Ok(())
}

fn condition(bed: &mut Bed) -> Result<()> {
    let wrong = json!({ "status": { "conditions": [{ "type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated", "message": "by a cloud" }] } });
    bed.admin().patch_node_status("h2", &wrong)?;
    // The daemon restores the condition at most once a minute.
    until("the condition comes back", || bed.admin().has_network("h2")).map(drop)
}

fn two_patchers(bed: &mut Bed) -> Result<()> {
    for number in 0..100 {
        bed.admin()
            .annotate("h1", "example.org/counter", Some(&number.to_string()))?;
        if number % 25 == 0 {
            bed.admin()
                .annotate("h1", &format!("{ANNOTATIONS}public-ip"), Some("192.0.2.1"))?;
        }
        let node = bed.admin().node("h1")?;
        ensure!(
            node["metadata"]["annotations"]["example.org/counter"] == *number.to_string(),
            "{number} is lost: {node}"
        );
    }
    until_ok("ours is back", || {
        let now = bed.admin().flannel_annotation("h1", "public-ip")?;
        ensure!(now.as_deref() == Some("192.168.56.101"), "{now:?}");
        Ok(())
    })?;
    ensure!(
        bed.admin().node("h1")?["metadata"]["annotations"]["example.org/counter"] == "99",
        "a foreign annotation is lost"
    );
    Ok(())
}

fn doubled(bed: &mut Bed) -> Result<()> {
    let peer = |name: &str, last: u8| {
        NodeObject::new(name).pod_cidr("10.244.77.0/24").vxlan_peer(
            &format!("192.168.56.{last}"),
            &format!("02:00:00:00:77:{last}"),
        )
    };
    // Creation times have a resolution of one second. Within one second the lower name takes precedence, whichever comes first.
    bed.admin().create_node(&peer("twin-b", 72))?;
    (0..2).try_for_each(|host| bed.wait_tunnel(host, "10.244.77.0/24", Some("192.168.56.72")))?;
    // Longer than this resolution.
    std::thread::sleep(Duration::from_millis(1100));
    bed.admin().create_node(&peer("twin-a", 71))?;
    throughout(Duration::from_secs(2), "the older one holds", || {
        for host in 0..2 {
            ensure!(
                bed.tunnel(host, "10.244.77.0/24")?.as_deref() == Some("192.168.56.72"),
                "h{}: {:?}",
                host + 1,
                bed.tunnel(host, "10.244.77.0/24")?
            );
        }
        Ok(())
    })?;
    bed.admin().delete_node("twin-b")?;
    (0..2).try_for_each(|host| bed.wait_tunnel(host, "10.244.77.0/24", Some("192.168.56.71")))?;
    bed.admin().delete_node("twin-a")?;
    (0..2).try_for_each(|host| bed.wait_tunnel(host, "10.244.77.0/24", None))
}

fn unmanaged(bed: &mut Bed) -> Result<()> {
    let peer = NodeObject::new("leaver")
        .pod_cidr("10.244.78.0/24")
        .vxlan_peer("192.168.56.78", "02:00:00:00:00:78");
    bed.admin().create_node(&peer)?;
    bed.wait_tunnel(0, "10.244.78.0/24", Some("192.168.56.78"))?;
    let name = format!("{ANNOTATIONS}kube-subnet-manager");
    bed.admin().annotate("leaver", &name, None)?;
    throughout(Duration::from_secs(3), "it may return", || {
        ensure!(
            bed.tunnel(0, "10.244.78.0/24")?.is_some(),
            "it is gone at once"
        );
        Ok(())
    })?;
    bed.admin().annotate("leaver", &name, Some("true"))?;
    bed.admin().delete_node("leaver")?;
    bed.wait_tunnel(0, "10.244.78.0/24", None)
}

const HOSTILE_DATA: &[&str] = &[
    "",
    "null",
    "[]",
    "{",
    "7",
    "\"\"",
    "{}",
    r#"{"VNI":1}"#,
    r#"{"VNI":1,"VtepMAC":""}"#,
    r#"{"VNI":1,"VtepMAC":"02:00:00:00:66"}"#,
    r#"{"VNI":1,"VtepMAC":"02:00:00:00:66:66:66:66"}"#,
    r#"{"VNI":1,"VtepMAC":"zz:00:00:00:66:66"}"#,
    r#"{"VNI":1,"VtepMAC":"00:00:00:00:00:00"}"#,
    r#"{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}"#,
    r#"{"VNI":1,"VtepMAC":"01:00:5e:00:00:01"}"#,
    r#"{"VNI":1,"VtepMAC":null}"#,
    r#"{"VNI":1,"VtepMAC":7}"#,
    r#"{"VNI":99999999999999999999,"VtepMAC":"02:00:00:00:66:66"}x"#,
    "\u{0}",
    "🦀",
];
const HOSTILE_ADDRESSES: &[&str] = &[
    "",
    "localhost",
    "256.1.1.1",
    "1.2.3",
    "::1",
    "0.0.0.0",
    "127.0.0.1",
    "255.255.255.255",
    "224.0.0.1",
    "192.168.56.101",
    "192.168.56.102",
    "192.168.56.66/24",
    " 192.168.56.66",
    "fe80::1%eth0",
    "::ffff:192.168.56.66",
];
const HOSTILE_SUBNETS: &[&str] = &[
    "10.244.1.0/24",
    "10.244.2.0/24",
    "10.244.0.0/16",
    "10.244.1.128/25",
    "10.244.0.0/23",
    "10.245.1.0/24",
    "0.0.0.0/0",
    "192.168.56.0/24",
    "127.0.0.0/8",
    "224.0.0.0/8",
    "10.244.66.66/32",
];
const HOSTILE_BACKENDS: &[&str] = &["", "host-gw", "VXLAN", "wireguard", "no-such", "🦀"];

/// Returns Nodes with the backend `backend`. Each Node has a different fault, which prevents all peers from using the Node.
pub(super) fn hostile_nodes(backend: &str) -> Vec<NodeObject> {
    let huge = "x".repeat(200 << 10);
    let mac = r#"{"VNI":1,"VtepMAC":"02:00:00:00:66:66"}"#;
    let and_huge = |list: &'static [&'static str]| list.iter().copied().chain([huge.as_str()]);
    let mut nodes = Vec::new();
    let mut add = |data: &str, ip: &str, cidr: &str, kind: &str| {
        let node = NodeObject::new(&format!("hostile-{}", nodes.len()))
            .pod_cidr(cidr)
            .flannel("kube-subnet-manager", "true");
        nodes.push(
            node.flannel("backend-type", kind)
                .flannel("backend-data", data)
                .flannel("public-ip", ip),
        );
    };
    and_huge(HOSTILE_DATA).for_each(|data| add(data, "192.168.56.66", "10.244.66.0/24", backend));
    and_huge(HOSTILE_ADDRESSES).for_each(|ip| add(mac, ip, "10.244.66.0/24", backend));
    HOSTILE_SUBNETS
        .iter()
        .for_each(|cidr| add(mac, "192.168.56.66", cidr, backend));
    and_huge(HOSTILE_BACKENDS).for_each(|kind| add(mac, "192.168.56.66", "10.244.66.0/24", kind));
    let bare = |name: &str| NodeObject::new(name);
    nodes.push(bare("hostile-no-annotations").pod_cidr("10.244.66.0/24"));
    nodes.push(bare("hostile-no-cidr").vxlan_peer("192.168.56.66", "02:00:00:00:66:66"));
    nodes.push(
        bare("hostile-v6-alone")
            .pod_cidr("fd10:244:0:66::/64")
            .vxlan_peer("192.168.56.66", "02:00:00:00:66:66"),
    );
    nodes.push(bare("hostile-nothing"));
    nodes.push(
        bare("hostile-not-true")
            .pod_cidr("10.244.66.0/24")
            .vxlan_peer("192.168.56.66", "02:00:00:00:66:66")
            .flannel("kube-subnet-manager", "yes"),
    );
    nodes
}

/// Returns whether a line is about a peer that [`Bed::require_alive`] created.
fn is_canary(line: &str) -> bool {
    let third = line
        .strip_prefix("10.244.")
        .and_then(|rest| rest.split('.').next()?.parse::<u8>().ok());
    line.contains("02:00:00:00:02:") || third.is_some_and(|third| (100..200).contains(&third))
}

fn hostile(bed: &mut Bed) -> Result<()> {
    let before = [bed.peers_of(0)?, bed.peers_of(1)?];
    let nodes = hostile_nodes("vxlan");
    ensure!(nodes.len() >= 60, "{} Nodes", nodes.len());
    let mut taken = Vec::new();
    for node in &nodes {
        let json = node.json();
        let (code, answer) =
            bed.admin()
                .request("POST", "/api/v1/nodes", Some(("application/json", &json)))?;
        // The API server itself refuses some of them.
        if code < 300 {
            taken.push(
                json["metadata"]["name"]
                    .as_str()
                    .context("a name")?
                    .to_owned(),
            );
        } else {
            ensure!(matches!(code, 400 | 422), "{code} {answer}");
        }
    }
    ensure!(
        taken.len() >= 50,
        "the API server took {} only: {taken:?}",
        taken.len()
    );
    bed.require_alive()?;
    for daemon in &bed.daemons {
        ensure!(daemon.is_ready(), "{:?}", daemon.get("/readyz")?);
    }
    for (host, before) in before.iter().enumerate() {
        let now = bed.peers_of(host)?;
        ensure!(
            before.lines().all(|line| now.contains(line)),
            "h{} lost something:\n{before}\nnow:\n{now}",
            host + 1
        );
        let strange: Vec<&str> = now
            .lines()
            .filter(|line| !before.contains(line))
            .filter(|line| !line.contains("66") && !is_canary(line))
            .collect();
        ensure!(
            strange.is_empty(),
            "h{} believed a hostile Node: {strange:#?}",
            host + 1
        );
    }
    taken
        .iter()
        .try_for_each(|name| bed.admin().delete_node(name))?;
    for (host, before) in before.iter().enumerate() {
        until_ok("nothing of them is left", || {
            let now = bed.peers_of(host)?;
            ensure!(now == *before, "before:\n{before}\nnow:\n{now}");
            Ok(())
        })?;
    }
    Ok(())
}

fn overwrite(bed: &mut Bed) -> Result<()> {
    let name = format!("{ANNOTATIONS}public-ip-overwrite");
    // The host has it as a second address, so that packets still arrive.
    bed.hosts[1]
        .netns()
        .ip("address add 192.168.56.222/24 dev enp0s8")?;
    for (value, public) in [
        (Some("192.168.56.222"), "192.168.56.222"),
        (None, "192.168.56.102"),
    ] {
        bed.admin().annotate("h2", &name, value)?;
        bed.wait_tunnel(0, "10.244.2.0/24", Some(public))?;
        ensure!(
            bed.admin()
                .flannel_annotation("h2", "public-ip")?
                .as_deref()
                == Some(public),
            "{public}"
        );
    }
    bed.hosts[1]
        .netns()
        .ip("address del 192.168.56.222/24 dev enp0s8")
        .map(drop)
}

fn recreated_peer(bed: &mut Bed) -> Result<()> {
    let peer = |name: &str, third: u8, last: u8| {
        NodeObject::new(name)
            .pod_cidr(&format!("10.244.{third}.0/24"))
            .vxlan_peer(
                &format!("192.168.56.{last}"),
                &format!("02:00:00:00:44:{last}"),
            )
    };
    bed.admin().create_node(&peer("moved", 41, 41))?;
    bed.wait_tunnel(0, "10.244.41.0/24", Some("192.168.56.41"))?;
    bed.admin().delete_node("moved")?;
    bed.admin().create_node(&peer("heir", 41, 42))?;
    bed.admin().create_node(&peer("moved", 43, 41))?;
    for host in 0..2 {
        bed.wait_tunnel(host, "10.244.41.0/24", Some("192.168.56.42"))?;
        bed.wait_tunnel(host, "10.244.43.0/24", Some("192.168.56.41"))?;
    }
    // Deletes one after the other. With the previous scenario, there would be four removals within ten seconds, which are delayed by a minute.
    bed.admin().delete_node("moved")?;
    (0..2).try_for_each(|host| bed.wait_tunnel(host, "10.244.43.0/24", None))?;
    bed.admin().delete_node("heir")
}

fn restored(bed: &mut Bed) -> Result<()> {
    let peer = |name: &str, third: u8| {
        NodeObject::new(name)
            .pod_cidr(&format!("10.244.{third}.0/24"))
            .vxlan_peer(
                &format!("192.168.56.{third}"),
                &format!("02:00:00:00:55:{third}"),
            )
    };
    let snapshot = bed.net_conf.with_file_name("restored.db");
    bed.admin().create_node(&peer("old", 51))?;
    bed.wait_tunnel(0, "10.244.51.0/24", Some("192.168.56.51"))?;
    bed.api.snapshot(&snapshot)?;
    bed.admin().delete_node("old")?;
    bed.admin().create_node(&peer("new", 52))?;
    bed.wait_tunnel(0, "10.244.52.0/24", Some("192.168.56.52"))?;
    bed.api.restore(&snapshot)?;
    // New revisions are lower than the one that the daemon knows, so a watch from there would stay silent.
    bed.admin().create_node(&peer("newer", 53))?;
    for host in 0..2 {
        bed.wait_tunnel(host, "10.244.51.0/24", Some("192.168.56.51"))?;
        bed.wait_tunnel(host, "10.244.53.0/24", Some("192.168.56.53"))?;
        // The removal is delayed by a minute, because the daemon does not trust the list of a restored store at once.
        until_ok("the Node after the snapshot goes", || {
            ensure!(bed.tunnel(host, "10.244.52.0/24")?.is_none(), "it stays");
            Ok(())
        })?;
    }
    bed.admin().delete_node("old")?;
    bed.admin().delete_node("newer")?;
    (0..2).try_for_each(|host| bed.wait_tunnel(host, "10.244.51.0/24", None))
}

fn own_node_gone(bed: &mut Bed) -> Result<()> {
    let env = bed.daemons[0].subnet_env()?;
    bed.admin().delete_node("h1")?;
    until("it is not ready without its Node", || {
        bed.daemons[0]
            .get("/readyz")
            .is_ok_and(|(code, _)| code == 503)
    })?;
    ensure!(bed.daemons[0].subnet_env()? == env, "subnet.env changed");
    let node = bed.node(1);
    bed.admin().create_node(&node)?;
    until_ok("annotations and condition are back", || {
        ensure!(
            bed.admin()
                .flannel_annotation("h1", "public-ip")?
                .as_deref()
                == Some("192.168.56.101"),
            "no annotations"
        );
        ensure!(bed.admin().has_network("h1"), "no condition");
        Ok(())
    })?;
    until("it is ready", || bed.daemons[0].is_ready())?;
    ensure!(bed.daemons[0].subnet_env()? == env, "subnet.env changed");
    Ok(())
}
