//! Tests that the userspace datapath accepts only packets from a peer to a pod, and counts why it drops all other packets.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::craft::{send_from, udp_packet, vxlan_datagram};
use lab::{Host, Pod, Scene, Uplink, until, until_ok};

use crate::datapath::engines::{Engine, UDP, VXLAN, WIREGUARD};
use crate::healing::scenarios;

/// The payload of every crafted packet.
const MARK: &[u8] = b"\xfe\xed hostile \x00\x01\x02\x03\x04";
const COPIES: usize = 3;

scenarios! { hostile_packets_are_dropped;
    udp_accepts_only_packets_from_a_peer_to_a_pod => (&UDP, "cluster"),
    vxlan_accepts_only_packets_from_a_peer_to_a_pod => (&VXLAN, "cluster"),
    vxlan_with_strict_checks_refuses_sources_outside_the_network => (&VXLAN, "strict"),
    udp_without_checks_refuses_malformed_packets => (&UDP, "off"),
    wireguard_accepts_only_packets_of_a_session => (&WIREGUARD, "cluster"),
}

/// Who sends a datagram: the second node, or a host that is no node.
#[derive(Clone, Copy, PartialEq)]
enum Sender {
    Peer,
    Stranger,
}
use Sender::{Peer, Stranger};

/// Datagrams with the reasons for which they are dropped. Without a reason, they reach the pod.
type Attack = (Sender, &'static str, Vec<Vec<u8>>);

/// Addresses for datagrams to the first host's tunnel, in one address family.
struct Path {
    family: usize,
    port: u16,
    device: &'static str,
    /// Of the first host's VTEP. udp has no frames.
    mac: Option<[u8; 6]>,
    /// Of the first host, of its peer and of the stranger.
    nodes: [IpAddr; 3],
    /// Of the three hosts.
    pods: Vec<IpAddr>,
}

impl Path {
    fn to_first_node(
        s: &Scene<'_>,
        stranger: &Host,
        engine: &Engine,
        family: usize,
    ) -> Result<Path> {
        // udp carries both families over IPv4.
        let outer = |host: &Host| -> Result<IpAddr> {
            Ok(if family == 1 && engine.name != UDP.name {
                host.v6()?.into()
            } else {
                host.v4()?.into()
            })
        };
        let mac =
            if engine.name == VXLAN.name { Some(first_node_vtep_mac(s, family)?) } else { None };
        Ok(Path {
            family,
            port: engine.ports[family],
            device: engine.devices[family],
            mac,
            nodes: [outer(&s[0])?, outer(&s[1])?, outer(stranger)?],
            pods: s.pods().into_iter().map(|pod| pod.addresses()[family]).collect(),
        })
    }

    fn encapsulate_packet(&self, packet: &[u8]) -> Vec<u8> {
        let kind = [0x0800, 0x86dd][self.family];
        self.mac.map_or_else(|| packet.to_vec(), |mac| vxlan_datagram(1, mac, kind, packet))
    }

    fn encapsulated_marked_packet(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        self.encapsulated_udp_packet(source, SocketAddr::new(destination, 7777), MARK)
    }

    fn encapsulated_udp_packet(&self, source: IpAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        self.encapsulate_packet(&udp_packet(SocketAddr::new(source, 7777), to, 64, payload))
    }

    /// No packets for the first host. `packet-engine` tests each way to be malformed.
    fn malformed_attacks(&self) -> Vec<Attack> {
        let mut attacks = vec![(Peer, "short malformed", vec![MARK.to_vec(), vec![0; 3]])];
        if let Some(mac) = self.mac {
            let [.., last] = mac;
            let other = [2, 0, 0, 0, 0, !last];
            attacks.extend([
                (Peer, "bad_vni", vec![vxlan_datagram(2, mac, 0x0800, MARK)]),
                (Peer, "wrong_mac", vec![vxlan_datagram(1, other, 0x0800, MARK)]),
            ]);
            attacks[0].1 = "short bad_header";
        }
        attacks
    }

    /// Addresses are forged; a datapath without checks delivers these packets.
    fn forged_and_valid_attacks(&self, s: &Scene<'_>, checks: &str) -> Result<Vec<Attack>> {
        let [pod, peers, others] = self.pods[..] else { anyhow::bail!("three pods") };
        let (nowhere, outside, node): (_, _, IpAddr) = if self.family == 0 {
            (["127.0.0.1", "224.0.0.1"], "172.31.9.9", s[0].v4()?.into())
        } else {
            (["::1", "ff02::1"], "fd31::9", s[0].v6()?.into())
        };
        let mut attacks = Vec::new();
        let good = self.encapsulated_marked_packet(peers, pod);
        if checks == "off" {
            attacks.push((Stranger, "", vec![good.clone()]));
            if self.nodes[0].is_ipv4() == pod.is_ipv4() {
                // If the node forwarded these, they would be its own tunnel datagrams.
                let nested = [0, 1].map(|node| {
                    self.encapsulated_udp_packet(
                        peers,
                        SocketAddr::new(self.nodes[node], self.port),
                        MARK,
                    )
                });
                attacks.push((Peer, "loop", nested.to_vec()));
            }
        } else {
            attacks.push((Stranger, "unknown_peer", vec![good.clone()]));
            attacks.push((
                Peer,
                "spoofed",
                vec![
                    self.encapsulated_marked_packet(others, pod),
                    self.encapsulated_marked_packet(pod, pod),
                ],
            ));
            attacks.push((
                Peer,
                "not_ours",
                vec![
                    self.encapsulated_marked_packet(peers, others),
                    self.encapsulated_marked_packet(peers, node),
                ],
            ));
            for address in nowhere {
                let address = address.parse()?;
                attacks.push((
                    Peer,
                    "martian",
                    vec![
                        self.encapsulated_marked_packet(address, pod),
                        self.encapsulated_marked_packet(peers, address),
                    ],
                ));
            }
        }
        let outside = self.encapsulated_marked_packet(outside.parse()?, pod);
        attacks.push((Peer, if checks == "strict" { "spoofed" } else { "" }, vec![outside]));
        // As a control, right packets arrive: the packets above were dropped for no other reason. The host fragments those of IPv4 that are too long.
        attacks.push((Peer, "", vec![good]));
        if self.mac.is_none() && self.family == 0 {
            let long = [MARK, &[0x55; 9000]].concat();
            let long = self.encapsulated_udp_packet(peers, SocketAddr::new(pod, 7777), &long);
            attacks.push((Peer, "", vec![long]));
        }
        Ok(attacks)
    }
}

/// The VTEP MAC that the first host publishes.
fn first_node_vtep_mac(s: &Scene<'_>, family: usize) -> Result<[u8; 6]> {
    let own = s[0].v4()?.to_string();
    for (_, value) in s.store.lease_names_and_values()? {
        let lease: serde_json::Value = serde_json::from_str(&value)?;
        if lease["PublicIP"] == own {
            let mac = lease[["BackendData", "BackendV6Data"][family]]["VtepMAC"]
                .as_str()
                .context("a MAC")?;
            let bytes = mac
                .split(':')
                .map(|byte| u8::from_str_radix(byte, 16))
                .collect::<Result<Vec<_>, _>>()?;
            return bytes.try_into().ok().context("six bytes");
        }
    }
    anyhow::bail!("the first host has no lease")
}

/// Datagrams that belong to no session.
fn attacks_without_wireguard_session() -> Vec<Attack> {
    let of = |kind: u8, length: usize| [&[kind, 0, 0, 0][..], &vec![0xff; length - 4]].concat();
    vec![
        (Stranger, "short", vec![vec![4, 0, 0], of(1, 147), of(2, 91)]),
        (Stranger, "bad_header", vec![of(9, 64)]),
        (Stranger, "bad_handshake", vec![of(1, 148)]),
        (Stranger, "no_session", vec![of(4, 64)]),
    ]
}

fn hostile_packets_are_dropped((engine, checks): (&Engine, &str)) -> Result<()> {
    let conf = engine.dual_stack_net_conf_with(&if engine.name == WIREGUARD.name {
        String::new()
    } else {
        format!(r#","Checks":"{checks}""#)
    });
    // Without probes, only the packets of this test are counted.
    Scene::with_title("hostile").nodes(3).net(&conf).daemon_arg("--probe-port=0").run(|s| {
        let stranger = s.lab.create_host("stranger", &[Uplink::enp0s8(&s.lan, 50)?])?;
        for family in [0, 1] {
            let path = Path::to_first_node(s, &stranger, engine, family)?;
            let attacks = if engine.name == WIREGUARD.name {
                attacks_without_wireguard_session()
            } else {
                let mut attacks = path.malformed_attacks();
                attacks.extend(path.forged_and_valid_attacks(s, checks)?);
                attacks
            };
            for attack in attacks {
                send_attack_and_check_counters(s, &stranger, &path, &attack)
                    .with_context(|| format!("{} {:02x?}", attack.1, attack.2))?;
            }
        }
        s[0].require_ready()?;
        s.wait_first_pods_connected()?;
        s.require_no_errors()
    })
}

/// The first node counts each datagram under one of its reasons and lets nothing through, or the pod receives it.
fn send_attack_and_check_counters(
    s: &Scene<'_>,
    stranger: &Host,
    path: &Path,
    (from, reasons, datagrams): &Attack,
) -> Result<()> {
    let (host, source) = match from {
        Peer => (&*s[1], SocketAddr::new(path.nodes[1], 0)),
        Stranger => (stranger, SocketAddr::new(path.nodes[2], path.port)),
    };
    let to = SocketAddr::new(path.nodes[0], path.port);
    let of = |rest: &str| s[0].metric_or_zero(&format!("flannel_datapath_{rest}"));
    let device = path.device;
    let received = || of(&format!(r#"packets_total{{device="{device}",direction="received"}}"#));
    let dropped = || -> f64 {
        let reasons = reasons.split(' ');
        reasons.map(|reason| of(&format!(r#"dropped_packets_total{{device="{device}",direction="received",reason="{reason}"}}"#))).sum()
    };
    if reasons.is_empty() {
        let socket = bind_pod_udp_socket(&s[0].pods[0], path.pods[0])?;
        for datagram in datagrams {
            let passed = received();
            send_from(host.netns(), source, to, std::slice::from_ref(datagram))?;
            let mut buffer = vec![0; 65_536];
            let length = until_ok("the packet arrives", || Ok(socket.recv(&mut buffer)?))?;
            ensure!(
                length >= MARK.len() && datagram.ends_with(&buffer[..length]),
                "another packet"
            );
            until("it is counted", || received() > passed)?;
        }
        return Ok(());
    }
    let (passed, before) = (received(), dropped());
    let copies = vec![datagrams.clone(); COPIES].concat();
    send_from(host.netns(), source, to, &copies)?;
    until("all are counted", || dropped() - before >= copies.len() as f64)
        .with_context(|| format!("{} of {}", dropped() - before, copies.len()))?;
    ensure!(
        dropped() - before == copies.len() as f64,
        "{} of {}",
        dropped() - before,
        copies.len()
    );
    ensure!(received() == passed, "{} came through", received() - passed);
    Ok(())
}

fn bind_pod_udp_socket(pod: &Pod, address: IpAddr) -> Result<UdpSocket> {
    let socket = pod.netns().run(|| UdpSocket::bind((address, 7777)))??;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok(socket)
}

/// The udp backend decrements the TTL by one, as Go flannel's udp backend does. vxlan does not decrement the TTL, because vxlan is a link.
#[test]
fn ttl_is_decremented_and_expired_packets_get_icmp_errors() -> Result<()> {
    // The end of the tunnel that reports has the subnet's own address: the near end with udp, the far end with vxlan.
    for (engine, reporter, enough) in [(&UDP, 0, "4"), (&VXLAN, 1, "3")] {
        Scene::with_title("hops").net(&engine.dual_stack_net_conf()).run(|s| {
            let subnets = s[reporter].daemon()?.subnet_env()?;
            let ends: [IpAddr; 2] = [
                subnets.subnet.context("IPv4")?.network().into(),
                subnets.v6_subnet.context("IPv6")?.network().into(),
            ];
            for (target, end) in s[1].pods[0].addresses().into_iter().zip(ends) {
                // The host takes one hop. The tunnel, or the host at its far end, takes the second.
                for (hops, wanted) in
                    [("2", format!("From {end}")), (enough, "1 received".to_owned())]
                {
                    until_ok(&format!("{hops} hops to {target}: {wanted}"), || {
                        let answer = s[0].pods[0]
                            .netns()
                            .sh(&format!("ping -n -c1 -W2 -t{hops} {target} || true"))?;
                        ensure!(answer.contains(&wanted), "{answer}");
                        Ok(())
                    })?;
                }
            }
            s.require_no_errors()
        })?;
    }
    Ok(())
}
