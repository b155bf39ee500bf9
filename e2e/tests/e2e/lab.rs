//! Checks that the lab's hosts, pods, stores and measurements work, and that a dropped lab leaves no objects.

use std::net::IpAddr;
use std::time::Duration;

use lab::{
    Etcd, EtcdOptions, FlanneldOptions, Host, Lab, Launch, Mesh, Netns, PingMatrix, PingOptions,
    Pod, Probe, ProbeOptions, Store, SubnetEnv, Transfer, TransferOptions, Uplink, ping, until,
    write_script,
};

const SECONDS: Duration = Duration::from_secs(5);

fn reaches(from: &Host, to: &str) -> bool {
    ping(from.netns(), to.parse().unwrap(), &PingOptions::default())
        .unwrap()
        .is_some()
}

/// Starts three hosts with a pod each, and sets the routes that host-gw would set.
fn routed_by_hand(lab: &Lab) -> Vec<Pod> {
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 3).unwrap();
    for host in &hosts {
        for peer in (1..=3).filter(|peer| host.name() != format!("h{peer}")) {
            let (v4, v6) = (
                format!("10.5.{peer}.0/24 via 192.168.56.10{peer}"),
                format!("fd00:5:{peer}::/64 via fd00:56::10{peer}"),
            );
            host.netns()
                .ip(&format!("route add {v4}\nroute add {v6}"))
                .unwrap();
        }
    }
    let pod = |(number, host): (usize, &Host)| {
        let text = format!(
            "FLANNEL_SUBNET=10.5.{number}.1/24\nFLANNEL_IPV6_SUBNET=fd00:5:{number}::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
        );
        host.pod("p1", &SubnetEnv::parse(&text).unwrap()).unwrap()
    };
    (1..).zip(&hosts).map(pod).collect()
}

#[test]
fn hosts_reach_each_other_over_the_switch() {
    let lab = Lab::new("hosts").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 2).unwrap();
    for (host, to) in [(&hosts[0], "192.168.56.102"), (&hosts[1], "fd00:56::101")] {
        until(&format!("{} reaches {to}", host.name()), || {
            reaches(host, to)
        })
        .unwrap();
    }
    let link = hosts[0].netns().link("enp0s8").unwrap().unwrap();
    assert_eq!((link.mtu, link.operstate.as_str()), (1500, "UP"));
    assert!(
        hosts[0]
            .netns()
            .addresses()
            .unwrap()
            .iter()
            .any(|address| address.net == "192.168.56.101/24")
    );
}

#[test]
fn carrier_is_kept_when_cut_and_lost_when_unplugged() {
    let lab = Lab::new("cut").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 2).unwrap();
    let state = || hosts[0].netns().link("enp0s8").unwrap().unwrap().operstate;
    hosts[0].cut("enp0s8").unwrap();
    assert_eq!(state(), "UP");
    assert!(!reaches(&hosts[0], "192.168.56.102"));
    hosts[0].reconnect("enp0s8").unwrap();
    until("the cable works again", || {
        reaches(&hosts[0], "192.168.56.102")
    })
    .unwrap();
    hosts[0].unplug("enp0s8").unwrap();
    until("the carrier goes", || state() != "UP").unwrap();
    hosts[0].replug("enp0s8").unwrap();
    until("the host is back", || reaches(&hosts[0], "192.168.56.102")).unwrap();
}

#[test]
fn host_returns_without_its_state_after_power_off() {
    let lab = Lab::new("reboot").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 2).unwrap();
    hosts[0]
        .netns()
        .ip("route add 10.9.0.0/16 via 192.168.56.102")
        .unwrap();
    let mut sleeper = hosts[0]
        .spawn("sleep", &Launch::new("sleep").arg("600"))
        .unwrap();
    hosts[0].power_off().unwrap();
    sleeper.wait().unwrap();
    hosts[0].power_on().unwrap();
    assert!(
        hosts[0]
            .netns()
            .routes()
            .unwrap()
            .iter()
            .all(|route| route.dst != "10.9.0.0/16")
    );
    until("the host is back", || reaches(&hosts[0], "192.168.56.102")).unwrap();
}

#[test]
fn router_joins_two_switches() {
    let lab = Lab::new("router").unwrap();
    let (left, right) = (lab.switch("left").unwrap(), lab.switch("right").unwrap());
    lab.router("r", &[(&left, "10.1.0.1/24"), (&right, "10.2.0.1/24")])
        .unwrap();
    let uplink = |switch, address: &str, gateway: &str| {
        Uplink::new(switch, "eth0")
            .address(address)
            .unwrap()
            .gateway(gateway)
            .unwrap()
    };
    let host = lab
        .host("a", &[uplink(&left, "10.1.0.2/24", "10.1.0.1")])
        .unwrap();
    lab.host("b", &[uplink(&right, "10.2.0.2/24", "10.2.0.1")])
        .unwrap();
    assert!(reaches(&host, "10.2.0.2"));
}

#[test]
fn vagrant_hosts_share_an_address_and_hide_behind_their_nat_boxes() {
    let lab = Lab::new("vagrant").unwrap();
    let vagrant = lab.vagrant(2).unwrap();
    for host in &vagrant.hosts {
        assert_eq!(host.v4_of("enp0s3").unwrap().to_string(), "10.0.2.15");
        assert!(reaches(host, "10.0.2.2"));
        assert!(
            reaches(host, "198.51.100.1"),
            "{} reaches the world by its default route",
            host.name()
        );
    }
    assert!(reaches(&vagrant.hosts[0], "192.168.56.102"));

    let server = vagrant
        .internet
        .netns()
        .run(|| std::net::UdpSocket::bind("198.51.100.1:7000"))
        .unwrap()
        .unwrap();
    server.set_read_timeout(Some(SECONDS)).unwrap();
    let client = vagrant.hosts[1]
        .netns()
        .run(|| std::net::UdpSocket::bind("0.0.0.0:0"))
        .unwrap()
        .unwrap();
    client.send_to(b"who am I", "198.51.100.1:7000").unwrap();
    let (_, seen) = server.recv_from(&mut [0; 64]).unwrap();
    assert_eq!(
        seen.ip().to_string(),
        "198.51.100.102",
        "the NAT box masquerades"
    );
}

#[test]
fn measurements_are_clean_when_pods_reach_each_other() {
    let lab = Lab::new("pods").unwrap();
    let pods = routed_by_hand(&lab);
    PingMatrix::of(&pods).unwrap().require_complete().unwrap();
    PingMatrix::of_v6(&pods)
        .unwrap()
        .require_complete()
        .unwrap();
    let full = |packet| {
        ping(
            pods[0].netns(),
            pods[1].address().unwrap(),
            &PingOptions::default().packet(packet),
        )
        .unwrap()
    };
    assert!(full(1450).is_some());
    assert!(full(1451).is_none());
    for options in [TransferOptions::default(), TransferOptions::default().v6()] {
        let transfer = Transfer::run(&pods[0], &pods[1], 20_000_000, &options).unwrap();
        assert!(
            transfer.segment >= 1450 - 72 && transfer.megabits() > 0.0,
            "{transfer:?}"
        );
    }
}

#[test]
fn probe_counts_lost_packets_and_outage_time() {
    let lab = Lab::new("probe").unwrap();
    let pods = routed_by_hand(&lab);
    let probe = Probe::start(&pods[0], &pods[1], &ProbeOptions::default()).unwrap();
    probe.wait_flowing().unwrap();
    let cut = probe.elapsed();
    pods[1].host().cut("enp0s8").unwrap();
    // This outage is measured.
    std::thread::sleep(Duration::from_millis(300));
    pods[1].host().reconnect("enp0s8").unwrap();
    let reconnected = probe.elapsed();
    probe.wait_flowing().unwrap();
    let report = probe.finish().unwrap();
    assert!(report.lost >= 30 && report.wrong == 0, "{report}");
    assert!(
        report.longest_outage >= Duration::from_millis(200),
        "{report}"
    );
    assert_eq!(
        report.lost_between(
            Duration::ZERO,
            cut.saturating_sub(Duration::from_millis(20))
        ),
        0,
        "{report}"
    );
    assert!(report.recovered_after(reconnected).is_some());

    let v6 = Probe::start(
        &pods[2],
        &pods[0],
        &ProbeOptions::default().v6().payload(1200),
    )
    .unwrap();
    v6.wait_flowing().unwrap();
    v6.finish().unwrap().require_clean().unwrap();
}

#[test]
fn mesh_watches_each_path() {
    let lab = Lab::new("mesh").unwrap();
    let pods = routed_by_hand(&lab);
    let clean = Mesh::start(&pods, &ProbeOptions::default()).unwrap();
    clean.wait_flowing().unwrap();
    clean.require_clean().unwrap();
    let broken = Mesh::start(&pods, &ProbeOptions::default()).unwrap();
    pods[1].host().cut("enp0s8").unwrap();
    // The path is cut meanwhile.
    std::thread::sleep(Duration::from_millis(100));
    for (path, report) in broken.finish().unwrap() {
        assert_eq!(report.lost > 0, path.contains("h2"), "{path}: {report}");
    }
}

#[test]
fn foreign_packet_is_a_wrong_delivery() {
    let lab = Lab::new("wrong").unwrap();
    let pods = routed_by_hand(&lab);
    let probe = Probe::start(&pods[0], &pods[1], &ProbeOptions::default().port(7100)).unwrap();
    probe.wait_flowing().unwrap();
    let foreign = pods[2]
        .netns()
        .run(|| std::net::UdpSocket::bind("0.0.0.0:0"))
        .unwrap()
        .unwrap();
    foreign
        .send_to(b"not yours", (pods[1].address().unwrap(), 7100))
        .unwrap();
    probe.wait_flowing().unwrap();
    assert_eq!(probe.finish().unwrap().wrong, 1);
}

#[test]
fn process_has_name_and_network_of_its_host() {
    let lab = Lab::new("process").unwrap();
    let lan = lab.switch("lan").unwrap();
    let host = lab.hosts(&lan, 1).unwrap().remove(0);
    let script =
        "hostname; ip -o link; ls /sys/class/net; touch /run/mark; echo end; exec sleep 600";
    let mut process = host
        .spawn("script", &Launch::new("sh").args(["-c", script]))
        .unwrap();
    until("the script has spoken", || process.log().ends_with("end\n")).unwrap();
    assert_eq!(process.log().lines().next(), Some("h1"));
    assert_eq!(
        process.log().matches("enp0s8").count(),
        2,
        "{}",
        process.log()
    );
    assert!(
        host.folder().unwrap().join("run/mark").exists()
            && !std::path::Path::new("/run/mark").exists()
    );
    process.stop().unwrap();
    process.cont().unwrap();
    process.terminate().unwrap();
    assert!(!process.is_running());
}

#[test]
fn kernel_state_is_read_completely() {
    let lab = Lab::new("observe").unwrap();
    let lan = lab.switch("lan").unwrap();
    let host = lab.hosts(&lan, 1).unwrap().remove(0);
    let netns = host.netns();
    add_vxlan_peer(netns);
    require_link_and_route(netns);
    require_neighbour_and_fdb(netns);
    assert!(
        netns
            .v6_routes()
            .unwrap()
            .iter()
            .any(|route| route.dst == "fd00:56::/64")
    );
    assert!(
        netns.link("flannel.2").unwrap().is_none() && netns.fdb("flannel.2").unwrap().is_empty()
    );
}

/// Adds a vxlan device, and the route, neighbour and FDB entry of one peer.
fn add_vxlan_peer(netns: &Netns) {
    netns
        .ip("link add flannel.1 type vxlan id 1 local 192.168.56.101 dev enp0s8 dstport 8472 nolearning\naddress add 10.5.1.0/32 dev flannel.1")
        .unwrap();
    netns.ip("link set flannel.1 up\nroute add 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink proto 241").unwrap();
    netns
        .ip("neighbour add 10.5.2.0 lladdr 02:00:00:00:00:02 dev flannel.1 nud permanent")
        .unwrap();
    netns
        .exec(
            "bridge",
            &[
                "fdb",
                "append",
                "02:00:00:00:00:02",
                "dev",
                "flannel.1",
                "dst",
                "192.168.56.102",
            ],
        )
        .unwrap();
}

fn require_link_and_route(netns: &Netns) {
    let link = netns.link("flannel.1").unwrap().unwrap();
    assert_eq!(
        (link.mtu, link.linkinfo["info_kind"].as_str()),
        (1450, Some("vxlan"))
    );
    assert_eq!(
        (
            link.linkinfo["info_data"]["id"].as_u64(),
            link.linkinfo["info_data"]["learning"].as_bool()
        ),
        (Some(1), Some(false))
    );
    let route = netns
        .routes()
        .unwrap()
        .into_iter()
        .find(|route| route.dst == "10.5.2.0/24")
        .unwrap();
    assert_eq!(
        (
            route.gateway.as_deref(),
            route.dev.as_deref(),
            route.protocol.as_str()
        ),
        (Some("10.5.2.0"), Some("flannel.1"), "241")
    );
    assert_eq!(route.flags, ["onlink"]);
}

fn require_neighbour_and_fdb(netns: &Netns) {
    let neighbours = netns.neighbours("flannel.1").unwrap();
    let neighbour = neighbours
        .iter()
        .find(|neighbour| neighbour.dst == "10.5.2.0")
        .unwrap();
    assert_eq!(
        (
            neighbour.lladdr.as_deref(),
            neighbour.state.first().map(String::as_str)
        ),
        (Some("02:00:00:00:00:02"), Some("PERMANENT"))
    );
    let fdb = netns.fdb("flannel.1").unwrap();
    let entry = fdb
        .iter()
        .find(|entry| entry.mac == "02:00:00:00:00:02")
        .unwrap();
    assert_eq!(
        (entry.dst.as_deref(), entry.state.as_str()),
        (Some("192.168.56.102"), "permanent")
    );
}

#[test]
fn foreign_daemon_is_ready_when_it_rewrites_subnet_env() {
    let lab = Lab::new("foreign").unwrap();
    let host = lab.host("h1", &[]).unwrap();
    let script = lab.folder("").unwrap().join("daemon");
    let text = "#!/bin/sh\nfor arg; do case $arg in --subnet-file=*) file=${arg#*=};; esac; done\nmkdir -p ${file%/*}\n\
        printf 'FLANNEL_SUBNET=10.5.1.1/24\\nFLANNEL_MTU=1450\\n' > $file.new; mv $file.new $file; exec sleep 600\n";
    write_script(&script, text).unwrap();
    let options = FlanneldOptions::new(&Store::dir(&lab.folder("leases").unwrap())).binary(&script);
    let mut daemon = host.flanneld(&options).unwrap();
    assert_eq!(daemon.subnet_env().unwrap().mtu, 1450);
    daemon.kill().unwrap();
    // File times have a resolution of a clock tick, up to 10 ms.
    std::thread::sleep(Duration::from_millis(50));
    write_script(&script, "#!/bin/sh\nexit 3\n").unwrap();
    let error = host.flanneld(&options).unwrap_err().to_string();
    assert!(error.contains("exit status: 3"), "{error}");
}

#[test]
fn dropped_lab_leaves_nothing() {
    let lab = Lab::new("clean").unwrap();
    let lan = lab.switch("lan").unwrap();
    let host = lab.hosts(&lan, 1).unwrap().remove(0);
    let process = host
        .spawn("sleep", &Launch::new("sleep").arg("600"))
        .unwrap();
    let (prefix, folder, pid) = (lab.prefix(), lab.folder("").unwrap(), process.pid());
    // Without its handle, nothing but the lab kills the process.
    std::mem::forget(process);
    drop(lab);
    let left: Vec<_> = std::fs::read_dir("/run/netns")
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!folder.exists());
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
}

#[test]
fn sweep_removes_labs_of_dead_processes() {
    // This pid is above the kernel's maximum, so no process has it.
    let name = "fl-4194999-0-h1";
    // Other tests' labs also sweep, possibly at the same time.
    let _ = std::process::Command::new("ip")
        .args(["netns", "add", name])
        .output()
        .unwrap();
    let lab = Lab::new("sweep").unwrap();
    until("the remains are gone", || {
        !std::path::Path::new("/run/netns").join(name).exists()
    })
    .unwrap();
    drop(lab);
}

#[test]
fn etcd_keeps_keys_through_stop_kill_and_restore() {
    let lab = Lab::new("etcd").unwrap();
    let lan = lab.switch("lan").unwrap();
    let host = lab
        .host("store", &[Uplink::enp0s8(&lan, 99).unwrap()])
        .unwrap();
    let mut etcd = Etcd::start(&[&host], &EtcdOptions::default()).unwrap();
    let (client, store) = (etcd.client().unwrap(), etcd.store().unwrap());
    assert_eq!(client.endpoints(), ["http://192.168.56.199:2379"]);
    store.configure(r#"{"Network":"10.5.0.0/16"}"#).unwrap();
    let lease = client.grant(600).unwrap();
    client
        .put_leased(&store.key("subnets/10.5.7.0-24"), "{\"é\":1}", lease)
        .unwrap();
    assert_eq!(
        store.subnets().unwrap(),
        [("10.5.7.0-24".to_owned(), "{\"é\":1}".to_owned())]
    );
    assert!(client.seconds_left(lease).unwrap().unwrap() > 500);

    let snapshot = lab.folder("").unwrap().join("snapshot");
    client.snapshot(&snapshot).unwrap();
    client.revoke(lease).unwrap();
    assert_eq!(client.get(&store.key("subnets/10.5.7.0-24")).unwrap(), None);
    assert_eq!(client.seconds_left(lease).unwrap(), None);
    client.compact().unwrap();

    etcd.stop(0).unwrap();
    etcd.restart(0).unwrap();
    etcd.kill(0).unwrap();
    etcd.restart(0).unwrap();
    assert!(client.get(&store.key("config")).unwrap().is_some());
    assert!(store.subnets().unwrap().is_empty());
    etcd.restore(&snapshot).unwrap();
    assert_eq!(store.subnets().unwrap().len(), 1);
    assert!(client.del(&store.key("subnets/10.5.7.0-24")).unwrap());
}

#[test]
fn etcd_cluster_serves_users_over_tls() {
    let lab = Lab::new("etcd3").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 3).unwrap();
    let hosts: Vec<&Host> = hosts.iter().collect();
    let mut etcd = Etcd::start(
        &hosts,
        &EtcdOptions::default().tls().auth("flannel", "secret"),
    )
    .unwrap();
    let store = etcd.store().unwrap();
    store.configure("{}").unwrap();
    let client = etcd.client().unwrap();
    assert!(
        client.put("/elsewhere", "x").is_err(),
        "the user may use the prefix only"
    );
    client.certificates().unwrap().renew_client().unwrap();
    etcd.kill(2).unwrap();
    until("two members go on", || store.configure("{ }").is_ok()).unwrap();
}

#[test]
fn directory_is_a_store() {
    let lab = Lab::new("dir").unwrap();
    let folder = lab.folder("leases").unwrap();
    let store = Store::dir(&folder);
    store.configure("{}").unwrap();
    std::fs::write(folder.join("subnets/10.5.7.0-24"), "{}").unwrap();
    assert_eq!(
        store.subnets().unwrap(),
        [("10.5.7.0-24".to_owned(), "{}".to_owned())]
    );
}

#[test]
fn pod_is_refused_when_the_subnet_is_full() {
    let lab = Lab::new("full").unwrap();
    let host = lab.host("h1", &[]).unwrap();
    let env = SubnetEnv::parse("FLANNEL_SUBNET=10.5.1.1/30\nFLANNEL_MTU=1450\n").unwrap();
    let pod = host.pod("p1", &env).unwrap();
    assert_eq!(pod.addresses(), ["10.5.1.2".parse::<IpAddr>().unwrap()]);
    assert!(host.pod("p2", &env).is_err());
    pod.remove().unwrap();
}
