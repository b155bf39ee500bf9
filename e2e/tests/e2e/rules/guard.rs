//! Checks that flanneld's guard rules count or drop tunnel packets of unknown senders to the encapsulation port, and that pods cannot send tunnel packets.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::Result;
use lab::{
    Flanneld, FlanneldOptions, Host, Lab, Netns, Pod, Programs, Store, Switch, Xtables, until,
};

use crate::healing::scenarios;

use super::node::{
    GUARDED_IPTABLES, GUARDED_NFTABLES, GUARDS, NFTABLES, Node, lines_with, reaches,
};

#[test]
fn backend_without_a_port_gets_no_guard() {
    let lab = Lab::new("no port").unwrap();
    let node = Node::alone(&lab, NFTABLES).unwrap();
    let daemon = node
        .host
        .flanneld(
            &node
                .options
                .clone()
                .arg("--encap-peers=drop")
                .arg(GUARDS[0])
                .arg(GUARDS[1]),
        )
        .unwrap();
    assert_eq!(
        lines_with(&daemon.log(), "the backend has no tunnels to guard"),
        1,
        "{}",
        daemon.log()
    );
    assert!(
        !node
            .run("nft", &["list", "ruleset"])
            .unwrap()
            .contains("encap")
    );
}

/// Returns a value of `PATH` with only the programs of iptables-legacy.
fn legacy_programs(lab: &Lab) -> String {
    Programs::none(lab, "legacy")
        .unwrap()
        .with_variant(Xtables::Legacy)
        .unwrap()
        .path()
}

/// Binds a UDP socket in a network namespace. Port 0 selects a free port.
fn socket(netns: &Netns, address: &str) -> UdpSocket {
    let socket = netns.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(700)))
        .unwrap();
    socket
}

/// Returns whether any of three packets arrives. If `expected` is true, the function sends three packets
/// again until the deadline, because a busy machine needs time.
fn arrives(from: &UdpSocket, to: &str, receiver: &UdpSocket, expected: bool) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    let arrives = || {
        (0..3).for_each(|_| drop(from.send_to(b"x", to)));
        receiver.recv(&mut [0; 16]).is_ok()
    };
    if expected {
        until("a packet arrives", arrives).is_ok()
    } else {
        arrives()
    }
}

/// Discards the packets that have already arrived.
fn drain(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    while socket.recv(&mut [0; 16]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
}

/// A host that is not a node and sends forged tunnel packets to a node's pod.
struct Forger {
    v4: UdpSocket,
    v6: UdpSocket,
}

impl Forger {
    fn new(host: &Host, node: &Host, pod: &Pod) -> Forger {
        let mac = |device: &str| {
            let text = node
                .netns()
                .exec("ip", &["-o", "link", "show", "dev", device])
                .unwrap();
            text.split("link/ether ")
                .nth(1)
                .unwrap()
                .split(' ')
                .next()
                .unwrap()
                .to_owned()
        };
        let (v4, v6) = (mac("flannel.1"), mac("flannel-v6.1"));
        host.netns()
            .ip(&format!(
                "link add forge4 type vxlan id 1 dstport 8472 local {} nolearning\n\
                 link set forge4 up\naddress add 10.244.250.1/32 dev forge4\n\
                 route add {} dev forge4 src 10.244.250.1\nneighbour add {} dev forge4 lladdr {v4}\n\
                 link add forge6 type vxlan id 1 dstport 8472 local {} nolearning udp6zerocsumrx\n\
                 link set forge6 up\naddress add fd00:244:0:fafa::1/128 dev forge6 nodad\n\
                 route add {} dev forge6 src fd00:244:0:fafa::1\nneighbour add {} dev forge6 lladdr {v6}",
                host.v4().unwrap(),
                pod.v4().unwrap(),
                pod.v4().unwrap(),
                host.v6().unwrap(),
                pod.v6().unwrap(),
                pod.v6().unwrap(),
            ))
            .unwrap();
        host.netns()
            .sh(&format!(
                "bridge fdb append {v4} dev forge4 dst {}; bridge fdb append {v6} dev forge6 dst {}",
                node.v4().unwrap(),
                node.v6().unwrap()
            ))
            .unwrap();
        Forger {
            v4: socket(host.netns(), "10.244.250.1:0"),
            v6: socket(host.netns(), "[fd00:244:0:fafa::1]:0"),
        }
    }
}

scenarios! { encapsulation_port_is_guarded;
    encapsulation_port_is_guarded_by_iptables => (GUARDED_IPTABLES, false),
    encapsulation_port_is_guarded_by_iptables_legacy => (GUARDED_IPTABLES, true),
    encapsulation_port_is_guarded_by_nftables => (GUARDED_NFTABLES, false),
}

/// A node with guard rules for its tunnel port, the node's peer, a host that forges packets, and a host that becomes a node later.
/// Rust drops the fields in the order of their declaration.
struct Scene {
    config: &'static str,
    plain: FlanneldOptions,
    pod_two: Pod,
    /// Peer of the node that has guard rules.
    _two: Flanneld,
    hosts: Vec<Host>,
    _lan: Switch,
    lab: Lab,
}

impl Scene {
    fn build(config: &'static str, legacy: bool) -> Self {
        let lab = Lab::new("guard").unwrap();
        let store = Store::dir(&lab.folder("leases").unwrap());
        store.configure(config).unwrap();
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 4).unwrap();
        let plain = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg("--ip-masq")
            .arg("--iptables-resync=1");
        let plain = if legacy {
            plain.env("PATH", &legacy_programs(&lab))
        } else {
            plain
        };
        let two = hosts[1].flanneld(&plain).unwrap();
        let pod_two = hosts[1].pod("p2", &two.subnet_env().unwrap()).unwrap();
        Self {
            config,
            plain,
            hosts,
            _two: two,
            pod_two,
            _lan: lan,
            lab,
        }
    }

    fn start(&self, mode: &str) -> Flanneld {
        let mut options = self.plain.clone().arg(&format!("--encap-peers={mode}"));
        if mode != "off" {
            options = options.arg(GUARDS[0]).arg(GUARDS[1]);
        }
        self.hosts[0].flanneld(&options).unwrap()
    }

    fn pods_reach_pods(&self, mode: &str, pod_one: &Pod) {
        until(&format!("{} {mode}: pods reach pods", self.config), || {
            reaches_both(self.pod_two.netns(), pod_one)
        })
        .unwrap();
    }

    /// Checks that forged packets arrive at a pod, unless the mode is `drop`.
    fn forged_packets_are_filtered(&self, mode: &str, forger: &Forger, pod_one: &Pod) {
        let (v4, v6) = (
            socket(pod_one.netns(), "0.0.0.0:5000"),
            socket(pod_one.netns(), "[::]:5001"),
        );
        let passes = mode != "drop";
        let expected = (passes, passes);
        let [to_v4, to_v6] = forged_targets(pod_one);
        let came = || {
            (
                arrives(&forger.v4, &to_v4, &v4, passes),
                arrives(&forger.v6, &to_v6, &v6, passes),
            )
        };
        // First packets may be lost while addresses are resolved. The check below requires that the result persists.
        until(&format!("{} {mode}: forged packets", self.config), || {
            came() == expected
        })
        .unwrap();
        for socket in [&v4, &v6] {
            drain(socket);
        }
        assert_eq!(
            came(),
            expected,
            "{} {mode}: forged packets, once more",
            self.config
        );
    }

    /// Checks that the guard rules drop a pod's packets to the tunnel's port on a host outside the network, except in mode `off`. Packets to another port pass.
    fn pods_make_no_tunnel_packets(&self, mode: &str, pod_one: &Pod) {
        for (port, passes) in [(4000, true), (8472, mode == "off")] {
            let (v4, v6) = (
                format!("192.168.56.104:{port}"),
                format!("[fd00:56::104]:{port}"),
            );
            let outside = self.hosts[3].netns();
            let receivers = (socket(outside, &v4), socket(outside, &v6));
            let senders = (
                socket(pod_one.netns(), "0.0.0.0:0"),
                socket(pod_one.netns(), "[::]:0"),
            );
            assert_eq!(
                (
                    arrives(&senders.0, &v4, &receivers.0, passes),
                    arrives(&senders.1, &v6, &receivers.1, passes)
                ),
                (passes, passes),
                "{} {mode}: pod to {port}",
                self.config
            );
        }
    }

    /// Checks that the kernel's connection tracking records peers' tunnel packets only in mode `off`.
    fn peers_are_tracked_only_without_a_guard(&self, mode: &str) {
        let tracked = || {
            let output = self.hosts[0]
                .netns()
                .output("cat", &["/proc/net/nf_conntrack"])
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let from_peer = |line: &&str| {
                line.contains("src=192.168.56.102 dst=192.168.56.101")
                    && line.contains("dport=8472")
            };
            output
                .status
                .success()
                .then(|| text.lines().any(|line| from_peer(&line)))
        };
        // The kernel tracks packets from before the rules for half a minute. The peer's probes keep present entries alive.
        until(
            &format!(
                "{} {mode}: packets of a peer are tracked only without a guard",
                self.config
            ),
            || tracked().is_none_or(|tracked| tracked == (mode == "off")),
        )
        .unwrap();
    }

    /// Checks that the guard rules admit packets of a host that becomes a node, and drop packets of a former node.
    fn membership_is_followed(&self, pod_one: &Pod) {
        let one = self.start("drop");
        let four = self.hosts[3].flanneld(&self.plain).unwrap();
        let pod_four = self.hosts[3]
            .pod("p4", &four.subnet_env().unwrap())
            .unwrap();
        until("a new node is let in", || {
            reaches_both(pod_four.netns(), pod_one)
        })
        .unwrap();
        let guarded = || {
            self.hosts[0]
                .netns()
                .sh("iptables-nft-save; iptables-legacy-save; nft list tables | grep -q flannel && nft list table ip flannel-ipv4 || true")
                .unwrap()
                .contains("192.168.56.104")
        };
        assert!(guarded());
        drop(four);
        let leases = std::fs::read_dir(self.lab.folder("leases").unwrap().join("subnets"))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let file = leases.filter(|path| path.is_file()).find(|path| {
            std::fs::read_to_string(path)
                .unwrap()
                .contains("192.168.56.104")
        });
        std::fs::remove_file(file.unwrap()).unwrap();
        until("a node that left is not let in", || !guarded()).unwrap();
        assert_eq!(
            one.metric("flannel_rule_repairs_total").unwrap(),
            0.0,
            "that is no repair"
        );
    }
}

fn reaches_both(from: &Netns, pod: &Pod) -> bool {
    reaches(from, pod.v4().unwrap().into()) && reaches(from, pod.v6().unwrap().into())
}

/// Returns the destinations of forged packets: an address and a port in each address family.
fn forged_targets(pod: &Pod) -> [String; 2] {
    [
        format!("{}:5000", pod.v4().unwrap()),
        format!("[{}]:5001", pod.v6().unwrap()),
    ]
}

/// Checks that the guard rules count packets from unknown senders, except in mode `off`.
fn unknown_senders_are_counted(mode: &str, one: &Flanneld, forger: &Forger, pod_one: &Pod) {
    let metric = "flannel_encap_stranger_packets";
    if mode == "off" {
        assert!(one.metric(metric).is_err());
        return;
    }
    let [to_v4, to_v6] = forged_targets(pod_one);
    // If listing takes much time of a busy processor, the daemon lists the rules and their counters only once a minute.
    until("they are counted", || {
        // Sends again, because a counter restarts when the rules are written.
        let _ = forger.v4.send_to(b"x", &to_v4);
        let _ = forger.v6.send_to(b"x", &to_v6);
        one.metric(metric).is_ok_and(|count| count >= 6.0)
    })
    .unwrap();
}

/// Checks that the guard rules accept, count or drop tunnel packets of unknown senders, admit all packets of nodes, and drop tunnel packets of pods.
fn encapsulation_port_is_guarded((config, legacy): (&'static str, bool)) -> Result<()> {
    let scene = Scene::build(config, legacy);
    let mut pod_one = None;
    let mut forger = None;
    // Mode `off` comes last, because the kernel remembers tracked packets for half a minute.
    for mode in ["drop", "count", "off"] {
        let one = scene.start(mode);
        let pod_one = pod_one.get_or_insert_with(|| {
            scene.hosts[0]
                .pod("p1", &one.subnet_env().unwrap())
                .unwrap()
        });
        let forger =
            forger.get_or_insert_with(|| Forger::new(&scene.hosts[2], &scene.hosts[0], pod_one));
        scene.pods_reach_pods(mode, pod_one);
        scene.forged_packets_are_filtered(mode, forger, pod_one);
        unknown_senders_are_counted(mode, &one, forger, pod_one);
        scene.pods_make_no_tunnel_packets(mode, pod_one);
        scene.peers_are_tracked_only_without_a_guard(mode);
    }
    scene.membership_is_followed(&pod_one.unwrap());
    Ok(())
}
