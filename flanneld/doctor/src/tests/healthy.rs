//! A healthy node with the backend vxlan, both address families and two peers.

use crate::fact::Fact;
use crate::facts::daemon::{Choice, Daemon, Launch};
use crate::facts::host::{
    Address, Checksums, Fill, Host, Interface, LookupPurpose, PodPeer, PodRoute, PolicyRule, Route,
    RouteLookup, Sysctls,
};
use crate::facts::kubernetes::Kubernetes;
use crate::facts::leases::{Leases, Own, Peer};
use crate::facts::mesh::{Mesh, Path, State, Verdict};
use crate::facts::pods::{Cni, CniFile, Env, Ipam, Kept, PodPath, Pods};
use crate::facts::store::Store;
use crate::facts::{Facts, Network};
use crate::firewalls::Firewalls;
use netlink::uapi::IFA_F_PERMANENT;
use netstate::names::Mac;
use types::Subnets;
use types::access::Etcd;
use types::{Access, DaemonPod, Dual, Encapsulation, Family};

pub(super) fn subnets(v4: &str, v6: &str) -> Subnets {
    Subnets::Both(v4.parse().unwrap(), v6.parse().unwrap())
}

pub(super) fn own() -> Subnets {
    subnets("10.244.1.0/24", "fd10:244:0:1::/64")
}

pub(super) fn address(net: &str) -> Address {
    Address { net: net.parse().unwrap(), flags: IFA_F_PERMANENT, ..Address::default() }
}

pub(super) fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
    Interface {
        index,
        name: name.to_owned(),
        up: true,
        carrier: true,
        mtu: 1500,
        mac: Some(Mac([2, 0, 0, 0, 0, u8::try_from(index).unwrap()])),
        addresses: addresses.iter().map(|net| address(net)).collect(),
        ..Interface::default()
    }
}

pub(super) fn path(node: &str, subnet: &str, address: &str) -> Path {
    Path {
        node: node.into(),
        ours: true,
        subnet: subnet.parse().unwrap(),
        address: address.parse().unwrap(),
        verdict: Verdict::of(State::Well),
        inferred: false,
        answered_by: None,
        refuses: false,
        ever: false,
        underlay: true,
        carries: Some(1450),
        rtt: Some(400),
        losses: (0, 16),
        clock_ahead: Some(12),
        others: None,
        since: Some(100),
    }
}

pub(super) fn peer(name: &str, number: u8) -> Peer {
    Peer {
        name: name.into(),
        subnets: subnets(&format!("10.244.{number}.0/24"), &format!("fd10:244:0:{number}::/64")),
        public: Some(Dual::Both(
            [192, 0, 2, number].into(),
            format!("2001:db8::{number}").parse().unwrap(),
        )),
        vni: Some(1),
        silent: None,
        node: None,
    }
}

pub(super) fn healthy() -> Facts {
    Facts {
        backends: backends::profiles(),
        network: Fact::Known(network()),
        host: host(),
        daemon: daemon(),
        store: store(),
        leases: leases(),
        mesh: Fact::Known(mesh()),
        wireguard: Fact::Absent,
        pods: pods(),
        kubernetes: Fact::Known(kubernetes()),
    }
}

fn interfaces() -> Vec<Interface> {
    let lo = Interface { loopback: true, ..interface(1, "lo", &["127.0.0.1/8", "::1/128"]) };
    let eth0 = interface(2, "eth0", &["192.0.2.1/24", "2001:db8::1/64"]);
    let eth1 = interface(5, "eth1", &["198.51.100.1/24"]);
    let flannel = Interface {
        kind: "vxlan".to_owned(),
        vxlan: Some((1, 8472)),
        mtu: 1450,
        ..interface(3, "flannel.1", &["10.244.1.0/32"])
    };
    let cni0 = Interface {
        kind: "bridge".to_owned(),
        mtu: 1450,
        ..interface(4, "cni0", &["10.244.1.1/24", "fe80::1/64", "fd10:244:0:1::1/64"])
    };
    let veth = Interface {
        kind: "veth".to_owned(),
        mtu: 1450,
        master: Some(4),
        ..interface(6, "veth1", &[])
    };
    let docker =
        Interface { kind: "bridge".to_owned(), ..interface(7, "docker0", &["172.17.0.1/16"]) };
    vec![lo, eth0, flannel, cni0, eth1, veth, docker]
}

fn host() -> Host {
    let route = |to: &str, via: Option<&str>, index, protocol| Route {
        via: via.map(|via| via.parse().unwrap()),
        index,
        protocol,
        net: to.parse().unwrap(),
        ..Route::default()
    };
    Host {
        name: "node-1".to_owned(),
        interfaces: Fact::Known(interfaces()),
        routes: Fact::Known(vec![
            route("0.0.0.0/0", Some("192.0.2.254"), 2, 16),
            route("10.244.2.0/24", Some("10.244.2.0"), 3, 241),
            route("10.244.3.0/24", Some("10.244.3.0"), 3, 3),
        ]),
        lookups: Fact::Known(vec![RouteLookup {
            to: "192.0.2.250".parse().unwrap(),
            whose: "the store".to_owned(),
            kind: LookupPurpose::Store,
            by: Ok(Route {
                index: 2,
                source: Some("192.0.2.1".parse().unwrap()),
                ..Route::default()
            }),
        }]),
        barring: Fact::Known(Vec::new()),
        pod_routes: Fact::Known(pod_routes()),
        policy_rules: Fact::Known(policy_rules()),
        underlay_neighbours: Fact::Known(Vec::new()),
        rival: Fact::Absent,
        sysctls: Fact::Known(Sysctls {
            underlay: "eth0".to_owned(),
            ip_forward: Some(1),
            v6_forwarding: Some(1),
            announced: vec!["eth0".to_owned()],
            br_netfilter: true,
            call_iptables: Some(1),
            call_ip6tables: Some(1),
            ..Sysctls::default()
        }),
        firewalls: Fact::Known(Firewalls::default()),
        ports: Fact::Known(Vec::new()),
        name_servers: Fact::Known(vec!["192.0.2.53".parse().unwrap()]),
        conntrack: Fact::Known(Fill { used: 100, limit: 65536 }),
        modules: Fact::Known(Vec::new()),
        checksums: Fact::Known(Checksums::default()),
        foreign: Fact::Known(Vec::new()),
        daemons: Fact::Known(1),
        tunnel_receives: false,
    }
}

/// They use the tunnel device and the bridge.
fn pod_routes() -> Vec<PodRoute> {
    let peers = ["10.244.2.0/24", "10.244.3.0/24"].map(|subnet| PodPeer {
        name: format!("node-{}", &subnet[7..8]),
        subnet: subnet.parse().unwrap(),
    });
    let packets = crate::pod_path::packets(&interfaces(), &network(), Some("eth0"), &peers);
    assert_eq!(packets.len(), 4);
    packets
        .into_iter()
        .map(|packet| PodRoute {
            by: Ok(Route { index: if packet.out { 3 } else { 4 }, ..Route::default() }),
            packet,
        })
        .collect()
}

fn policy_rules() -> Vec<PolicyRule> {
    let rule = |priority, table| PolicyRule {
        family: Family::V4,
        priority,
        from: None,
        to: None,
        incoming: None,
        conditional: false,
        inverted: false,
        table: Some(table),
        destinations: Vec::new(),
    };
    vec![rule(0, 255), rule(32766, 254), rule(32767, 253)]
}

fn network() -> Network {
    Network {
        networks: subnets("10.244.0.0/16", "fd10:244::/48"),
        own: own(),
        backend: backends::profile("vxlan"),
        encapsulation: Some(Encapsulation::udp(8472)),
        vni: Some(1),
        mtu: Some(1450),
        nftables: false,
        forward: true,
    }
}

fn daemon() -> Daemon {
    Daemon {
        running: Fact::Known(true),
        young: false,
        exit_report: Fact::Absent,
        silent: Fact::Known(Vec::new()),
        reasons: Fact::Known(std::collections::BTreeMap::new()),
        choice: Fact::Known(Choice {
            interface: "eth0".to_owned(),
            addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            why: "the default route's".to_owned(),
            flag: None,
            named: false,
        }),
        launch: Launch::Systemd,
        arguments: Vec::new(),
        id_given: false,
        subnet_file: "/run/flannel/subnet.env".into(),
        drift: Fact::Known(Vec::new()),
        pods: Fact::Known(vec![DaemonPod {
            name: "kube-flannel-ds-1".to_owned(),
            owner: Some("DaemonSet/kube-flannel-ds".to_owned()),
            labels: [("app", "flannel"), ("k8s-app", "flannel")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            charted: false,
        }]),
    }
}

fn store() -> Store {
    Store {
        place: "etcd at http://192.0.2.250:2379".to_owned(),
        addresses: vec!["192.0.2.250".parse().unwrap()],
        access: Access::Etcd(Etcd {
            endpoints: vec!["http://192.0.2.250:2379".to_owned()],
            prefix: "/coreos.com/network".to_owned(),
            ..Etcd::default()
        }),
        trouble: Fact::Absent,
        config: Fact::Absent,
        next_config: Fact::Absent,
    }
}

fn leases() -> Leases {
    Leases {
        own: Fact::Known(Own {
            ends_in: Some(80_000),
            published: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            ..Own::default()
        }),
        peers: Fact::Known(vec![peer("node-2", 2), peer("node-3", 3)]),
        refused: Fact::Known(Vec::new()),
    }
}

fn mesh() -> Mesh {
    Mesh {
        paths: vec![
            path("node-2", "10.244.2.0/24", "192.0.2.2"),
            path("node-3", "10.244.3.0/24", "192.0.2.3"),
        ],
        port: 8473,
        faults: Vec::new(),
        lost_everywhere: None,
        strangers: Vec::new(),
        hears: true,
    }
}

fn pods() -> Pods {
    let file = |name: &str, flannel| CniFile { name: name.to_owned(), flannel: Some(flannel) };
    let kept = Kept {
        address: "10.244.1.5".parse().unwrap(),
        file: "/var/lib/cni/networks/cbr0/10.244.1.5".into(),
        container: "c1".to_owned(),
        gone: Some(false),
    };
    Pods {
        env: Fact::Known(Env {
            networks: Some(subnets("10.244.0.0/16", "fd10:244::/48")),
            subnets: Some(own()),
            mtu: Some(1450),
            ..Env::default()
        }),
        cni: Fact::Known(Cni {
            folder: "/etc/cni/net.d".into(),
            files: vec![file("10-flannel.conflist", true), file("87-podman.conflist", false)],
            expected: true,
        }),
        ipam: Fact::Known(vec![Ipam {
            folder: "/var/lib/cni/networks/cbr0".into(),
            kept: vec![kept],
            running: vec!["/run/containers".into()],
            ports: Some(1),
        }]),
        docker: Fact::Absent,
        paths: Fact::Known(vec![PodPath {
            family: Family::V4,
            address: "10.244.1.254".parse().unwrap(),
            lost: Vec::new(),
            others_pass: true,
            taken_by: None,
        }]),
    }
}

fn kubernetes() -> Kubernetes {
    Kubernetes {
        node: "node-1".into(),
        pod_cidrs: Some(vec!["10.244.1.0/24".to_owned()]),
        cluster_cidr: None,
        internal: vec!["192.0.2.1".parse().unwrap()],
        refusal: None,
        server: Some("192.0.2.250".parse().unwrap()),
        service: Some("10.96.0.1".parse().unwrap()),
        by_service_unanswered: false,
    }
}

/// No probe then refutes a finding about firewall rules.
pub(super) fn forget_probes(facts: &mut Facts) {
    if let Fact::Known(mesh) = &mut facts.mesh {
        mesh.paths.iter_mut().for_each(|path| path.verdict.state = State::Unknown);
    }
}
