//! What an operator does with `flannelctl leases` and `flannelctl release`, on both kinds of store.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy.toml allows it in tests, but does not know their helpers")]

use std::process::Output;
use std::time::Duration;

use e2e::{Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Store, Uplink, binaries, eventually};

const NETWORK: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#;
/// Peers keep what vanished for 5 s, in case it comes back.
const DAMPED: Duration = Duration::from_secs(50);

fn flannelctl(host: &Host, place: &str, args: &[&str]) -> Output {
    let program = binaries::own("flannelctl").unwrap();
    let mut all = args.to_vec();
    all.push(place);
    host.netns().output(&program.to_string_lossy(), &all).unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn routes_to(host: &Host, subnet: &str) -> usize {
    host.netns().routes().unwrap().iter().filter(|route| route.dst == subnet).count()
}

/// Three nodes; the third one dies, and its lease is released.
fn a_dead_nodes_lease_is_released(hosts: &[Host], store: &Store, place: &str) {
    store.configure(NETWORK).unwrap();
    let options = FlanneldOptions::new(store).iface("enp0s8");
    let mut daemons: Vec<Flanneld> = hosts.iter().map(|host| host.flanneld(&options).unwrap()).collect();
    let subnet = daemons[2].subnet_env().unwrap().subnet.unwrap().trunc().to_string();
    let key = subnet.replace('/', "-");
    eventually(Duration::from_secs(10), "the first host has a route to the third", || routes_to(&hosts[0], &subnet) == 1).unwrap();

    let listed = out(&flannelctl(&hosts[0], place, &["leases", "--long"]));
    for number in 1..=3 {
        let line = listed.lines().find(|line| line.contains(&format!("192.168.56.10{number}"))).unwrap();
        assert!(line.contains("host-gw") && line.contains(&format!("h{number}")) && line.contains("heard "), "{listed}");
    }
    let document: serde_json::Value = serde_json::from_str(&out(&flannelctl(&hosts[0], place, &["leases", "--json"]))).unwrap();
    assert_eq!(document.as_array().unwrap().len(), 3);
    assert!(document.as_array().unwrap().iter().any(|lease| lease["key"] == key && lease["node"]["name"] == "h3"), "{document}");

    daemons[2].kill().unwrap();
    let refused = flannelctl(&hosts[0], place, &["release", &subnet, "--yes"]);
    assert!(!refused.status.success() && err(&refused).contains("heard of within the last 3 minutes"), "{}", err(&refused));
    let unasked = flannelctl(&hosts[0], place, &["release", &key, "--force"]);
    assert!(!unasked.status.success() && err(&unasked).contains("--yes"), "{}", err(&unasked));
    assert_eq!(store.subnets().unwrap().len(), 3);

    let released = flannelctl(&hosts[0], place, &["release", &key, "--force", "--yes"]);
    assert!(released.status.success(), "{}", err(&released));
    assert!(out(&released).contains("held by node h3"), "{}", out(&released));
    assert!(store.subnets().unwrap().iter().all(|(name, _)| *name != key));
    for host in &hosts[..2] {
        eventually(DAMPED, "the route to the third host goes", || routes_to(host, &subnet) == 0).unwrap();
    }

    let again = flannelctl(&hosts[0], place, &["release", &key, "--force", "--yes"]);
    assert!(!again.status.success() && err(&again).contains("there is no lease"), "{}", err(&again));
}

#[test]
fn a_directory_is_listed_and_released() {
    let lab = Lab::new("ctl-dir").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 3).unwrap();
    let folder = lab.folder("leases").unwrap();
    a_dead_nodes_lease_is_released(&hosts, &Store::dir(&folder), &format!("--subnet-dir={}", folder.display()));
}

#[test]
fn etcd_is_listed_and_released() {
    let lab = Lab::new("ctl-etcd").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 3).unwrap();
    let server = lab.host("store", &[Uplink::enp0s8(&lan, 99).unwrap()]).unwrap();
    let etcd = Etcd::start(&[&server], &EtcdOptions::default()).unwrap();
    let place = format!("--etcd-endpoints={}", etcd.client().unwrap().endpoints().join(","));
    a_dead_nodes_lease_is_released(&hosts, &etcd.store().unwrap(), &place);
}

#[test]
fn what_cannot_be_read_is_listed_with_the_reason() {
    let lab = Lab::new("ctl-odd").unwrap();
    let host = lab.host("h1", &[]).unwrap();
    let folder = lab.folder("leases").unwrap();
    let place = format!("--subnet-dir={}", folder.display());
    Store::dir(&folder).configure(NETWORK).unwrap();
    std::fs::write(folder.join("subnets/10.5.7.0-24"), "{").unwrap();
    std::fs::write(folder.join("subnets/notes"), "mine").unwrap();
    let listed = out(&flannelctl(&host, &place, &["leases"]));
    assert!(listed.contains("unreadable: the value is not a JSON object") && listed.contains("the key names no subnet"), "{listed}");

    let nowhere = flannelctl(&host, "--etcd-endpoints=http://127.0.0.1:1", &["leases"]);
    assert!(!nowhere.status.success() && err(&nowhere).contains("cannot reach etcd at http://127.0.0.1:1"), "{}", err(&nowhere));
}
