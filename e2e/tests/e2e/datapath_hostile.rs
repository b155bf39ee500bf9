//! Tests that the userspace datapath accepts only packets from a peer to a pod, and reports why it drops all other packets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::craft::{changed, send_from, udp_packet, vxlan};
use lab::{
    Bed, Capture, Flanneld, Host, Lab, PingOptions, Probe, ProbeOptions, Uplink, holds, ping,
    throughout, until, until_ok,
};
use serde_json::json;

use crate::healing::scenarios;

const SOON: Duration = Duration::from_secs(10);
/// Bytes that every crafted packet contains and no other packet contains.
const MARK: &[u8; 16] = b"\xfe\xed hostile \x00\x01\x02\x03\x04";
/// Number of times that the test sends each datagram.
const COPIES: usize = 3;

/// A test environment of nodes, and an attacker that is not a node.
struct Siege {
    bed: Bed,
    attacker: Host,
    framing: Framing,
}

#[derive(Clone, Copy, PartialEq)]
enum Framing {
    Udp,
    Vxlan,
}

/// Addresses and VTEP MAC for datagrams that the test sends to the first host's tunnel, in one address family.
struct Injection {
    device: &'static str,
    port: u16,
    mac: [u8; 6],
    framing: Framing,
    /// Destination of the datagrams. `peer` and `stranger` are the source addresses of a peer and of an unknown sender.
    to: IpAddr,
    peer: IpAddr,
    stranger: IpAddr,
    /// The victim's pod. `peers_pod` is a pod of the sending peer, and `others_pod` is a pod of a third node.
    pod: IpAddr,
    peers_pod: IpAddr,
    others_pod: IpAddr,
}

impl Injection {
    fn frame(&self, packet: &[u8]) -> Vec<u8> {
        match self.framing {
            Framing::Udp => packet.to_vec(),
            Framing::Vxlan => vxlan(1, self.mac, self.kind(), packet),
        }
    }

    fn kind(&self) -> u16 {
        if self.pod.is_ipv4() { 0x0800 } else { 0x86dd }
    }

    fn packet(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        udp_packet(
            SocketAddr::new(source, 7777),
            SocketAddr::new(destination, 7777),
            64,
            MARK,
        )
    }

    /// Returns a valid packet from the peer's pod to the first host's pod.
    fn good(&self) -> Vec<u8> {
        self.packet(self.peers_pod, self.pod)
    }
}

fn dual(backend: &serde_json::Value) -> String {
    json!({ "EnableIPv6": true, "Network": "10.5.0.0/16", "SubnetMin": "10.5.100.0", "SubnetMax": "10.5.199.0", "IPv6Network": "fd00:5::/48", "Backend": backend }).to_string()
}

impl Siege {
    fn lay(lab: &Lab, framing: Framing, checks: &str, hosts: u8) -> Result<Siege> {
        let backend = match framing {
            Framing::Udp => json!({ "Type": "udp", "Checks": checks }),
            Framing::Vxlan => json!({ "Type": "vxlan", "Mode": "userspace", "Checks": checks }),
        };
        // Without probes, only the packets of this test are counted.
        let bed = Bed::start(lab, hosts, &dual(&backend), |_, options| {
            options.arg("--probe-port=0")
        })?;
        let attacker = lab.host("attacker", &[Uplink::enp0s8(&bed.lan, 50)?])?;
        Ok(Siege {
            bed,
            attacker,
            framing,
        })
    }

    fn path(&self, ipv6: bool) -> Result<Injection> {
        let Siege {
            bed,
            attacker,
            framing,
        } = self;
        let vxlan = *framing == Framing::Vxlan;
        // udp carries both families over IPv4.
        let outer = |host: &Host| {
            Ok::<_, anyhow::Error>(if ipv6 && vxlan {
                IpAddr::V6(host.v6()?)
            } else {
                IpAddr::V4(host.v4()?)
            })
        };
        let pod = |number: usize| {
            Ok::<_, anyhow::Error>(if ipv6 {
                IpAddr::V6(bed.pods[number].v6()?)
            } else {
                IpAddr::V4(bed.pods[number].v4()?)
            })
        };
        let (device, port) = match (framing, ipv6) {
            (Framing::Udp, _) => ("flannel0", 8285),
            (Framing::Vxlan, false) => ("flannel.1", 8472),
            (Framing::Vxlan, true) => ("flannel-v6.1", 8472),
        };
        let last = bed.hosts.len() - 1;
        Ok(Injection {
            device,
            port,
            mac: if vxlan { self.mac(ipv6)? } else { [0; 6] },
            framing: *framing,
            to: outer(&bed.hosts[0])?,
            peer: outer(&bed.hosts[1])?,
            stranger: outer(attacker)?,
            pod: pod(0)?,
            peers_pod: pod(1)?,
            others_pod: pod(last)?,
        })
    }

    /// Returns the VTEP MAC that the first host publishes.
    fn mac(&self, ipv6: bool) -> Result<[u8; 6]> {
        let own = self.bed.hosts[0].v4()?.to_string();
        for (_, value) in self.bed.store.subnets()? {
            let value: serde_json::Value = serde_json::from_str(&value)?;
            if value["PublicIP"] == own {
                let mac = value[if ipv6 { "BackendV6Data" } else { "BackendData" }]["VtepMAC"]
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

    fn dropped(&self, path: &Injection, reason: &str) -> u64 {
        let labels = format!(
            "{{device=\"{}\",direction=\"received\",reason=\"{reason}\"}}",
            path.device
        );
        // A counter that is zero has no line.
        self.bed.daemons[0]
            .metric(&format!("flannel_datapath_dropped_packets_total{labels}"))
            .unwrap_or(0.0) as u64
    }

    fn received(&self, path: &Injection) -> Result<u64> {
        let labels = format!("{{device=\"{}\",direction=\"received\"}}", path.device);
        Ok(self.bed.daemons[0].metric(&format!("flannel_datapath_packets_total{labels}"))? as u64)
    }

    fn send(&self, path: &Injection, stranger: bool, datagrams: &[Vec<u8>]) -> Result<()> {
        let (host, from, port) = if stranger {
            (&self.attacker, path.stranger, path.port)
        } else {
            (&self.bed.hosts[1], path.peer, 0)
        };
        send_from(
            host.netns(),
            SocketAddr::new(from, port),
            SocketAddr::new(path.to, path.port),
            datagrams,
        )
    }

    /// Sends datagrams, each several times. Checks that the datapath counts the datagrams under one of the
    /// drop reasons, and that no datagram reaches the pod.
    fn repelled(
        &self,
        path: &Injection,
        what: &str,
        stranger: bool,
        reasons: &[&str],
        datagrams: &[Vec<u8>],
    ) -> Result<()> {
        let before = (
            self.received(path)?,
            reasons
                .iter()
                .map(|reason| self.dropped(path, reason))
                .sum::<u64>(),
        );
        let copies: Vec<_> = std::iter::repeat_n(datagrams, COPIES)
            .flatten()
            .cloned()
            .collect();
        self.send(path, stranger, &copies)?;
        let counted = || {
            reasons
                .iter()
                .map(|reason| self.dropped(path, reason))
                .sum::<u64>()
                - before.1
        };
        let all = copies.len() as u64;
        until(what, || counted() >= all).with_context(|| {
            format!(
                "{what} on {}: {} of {all} counted as {reasons:?}\n{}",
                path.device,
                counted(),
                self.metrics()
            )
        })?;
        ensure!(
            counted() == all,
            "{what}: {} counted instead of {all}",
            counted()
        );
        let received = self.received(path)? - before.0;
        ensure!(
            received == 0,
            "{what} on {}: {received} packets came through",
            path.device
        );
        Ok(())
    }

    /// Returns the datapath's metrics, for a failure message.
    fn metrics(&self) -> String {
        let (_, text) = self.bed.daemons[0].get("/metrics").unwrap_or_default();
        text.lines()
            .filter(|line| line.starts_with("flannel_datapath_"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Sends a datagram, and checks that it reaches the pod.
    fn delivered(
        &self,
        path: &Injection,
        what: &str,
        stranger: bool,
        datagram: Vec<u8>,
    ) -> Result<()> {
        let capture = Capture::start(self.bed.pods[0].netns())?;
        let before = self.received(path)?;
        self.send(path, stranger, &[datagram])?;
        until(what, || {
            self.received(path).is_ok_and(|received| received > before)
        })
        .with_context(|| self.metrics())?;
        let frames = capture.finish()?;
        ensure!(
            frames.iter().any(|frame| holds(frame, MARK)),
            "{what}: the pod did not get it"
        );
        Ok(())
    }

    /// Checks that the datapath drops malformed datagrams, with any value of the configuration key `Checks`.
    fn malformed(&self, path: &Injection) -> Result<()> {
        let good = path.good();
        let framed = path.frame(&good);
        let cut: Vec<_> = (0..=60.min(framed.len() - 1))
            .map(|length| framed[..length].to_vec())
            .collect();
        self.repelled(
            path,
            "cut off at each length",
            false,
            &["short", "malformed"],
            &cut,
        )?;
        let change = |change: fn(&mut [u8])| path.frame(&changed(&good, change));
        let v4 = good[0] >> 4 == 4;
        let mut wrong = vec![
            change(|packet| packet[0] = packet[0] & 15 | 0x50),
            change(|packet| packet[0] &= 15),
            change(|packet| packet[0] |= 0xf0),
        ];
        if v4 {
            wrong.extend([
                change(|packet| packet[0] = 0x44),
                change(|packet| packet[0] = 0x40),
                change(|packet| packet[0] = 0x4f),
                change(|packet| packet[3] += 1),
                change(|packet| packet[2] = 0xff),
                change(|packet| packet[2..4].fill(0)),
            ]);
        } else {
            wrong.extend([
                change(|packet| packet[5] += 1),
                change(|packet| packet[4..6].fill(0xff)),
            ]);
        }
        if path.framing == Framing::Udp {
            // In an Ethernet frame this would be padding.
            wrong.push(if v4 {
                change(|packet| packet[3] -= 1)
            } else {
                change(|packet| packet[5] -= 1)
            });
        }
        self.repelled(
            path,
            "lying headers",
            false,
            &["malformed", "short"],
            &wrong,
        )?;
        let dead = if v4 {
            change(|packet| packet[8] = 0)
        } else {
            change(|packet| packet[7] = 0)
        };
        self.repelled(path, "no hop left", false, &["ttl_exceeded"], &[dead])?;
        if path.framing == Framing::Vxlan {
            self.wrong_frames(path, &good, &framed)?;
        }
        Ok(())
    }

    /// Checks that the datapath drops vxlan frames with a wrong header.
    fn wrong_frames(&self, path: &Injection, good: &[u8], framed: &[u8]) -> Result<()> {
        let head = |change: fn(&mut Vec<u8>)| {
            let mut datagram = framed.to_vec();
            change(&mut datagram);
            datagram
        };
        self.repelled(
            path,
            "another network",
            false,
            &["bad_vni"],
            &[
                head(|d| d[6] = 2),
                head(|d| d[4] = 1),
                head(|d| d[5] = 0xff),
            ],
        )?;
        self.repelled(
            path,
            "no network",
            false,
            &["bad_header"],
            &[head(|d| d[0] = 0), head(|d| d[0] = 0xf7)],
        )?;
        self.repelled(
            path,
            "another MAC",
            false,
            &["wrong_mac"],
            &[
                head(|d| d[13] ^= 1),
                head(|d| d[8..14].fill(0xff)),
                head(|d| d[8] |= 1),
            ],
        )?;
        self.repelled(
            path,
            "ARP",
            false,
            &["not_ip"],
            &[
                vxlan(1, path.mac, 0x0806, good),
                vxlan(1, path.mac, 0x8100, good),
                vxlan(1, path.mac, 60, good),
            ],
        )?;
        Ok(())
    }

    /// Checks that the datapath drops forged packets with the default value of `Checks`.
    fn forged(&self, path: &Injection) -> Result<()> {
        let from = |source: &str| {
            Ok::<_, anyhow::Error>(path.frame(&path.packet(source.parse()?, path.pod)))
        };
        let to = |destination: &str| {
            Ok::<_, anyhow::Error>(path.frame(&path.packet(path.peers_pod, destination.parse()?)))
        };
        self.repelled(
            path,
            "a stranger's datagram",
            true,
            &["unknown_peer"],
            &[path.frame(&path.good())],
        )?;
        let of_other = path.frame(&path.packet(path.others_pod, path.pod));
        let of_own = path.frame(&path.packet(path.pod, path.pod));
        self.repelled(
            path,
            "another's source",
            false,
            &["spoofed"],
            &[of_other, of_own],
        )?;
        self.repelled(
            path,
            "another's destination",
            false,
            &["not_ours"],
            &[path.frame(&path.packet(path.peers_pod, path.others_pod))],
        )?;
        let (node, mut martians, sources) = if path.pod.is_ipv4() {
            let node = self.bed.hosts[0].v4()?.to_string();
            (
                node,
                vec![
                    "127.0.0.1",
                    "255.255.255.255",
                    "224.0.0.251",
                    "169.254.169.254",
                    "0.0.0.0",
                ],
                ["127.0.0.1", "0.0.0.0", "224.0.0.1"],
            )
        } else {
            (
                self.bed.hosts[0].v6()?.to_string(),
                vec!["::1", "ff02::1", "fe80::1", "::ffff:10.5.1.2", "::"],
                ["::1", "::", "ff02::1"],
            )
        };
        let broadcast = match path.pod {
            IpAddr::V4(pod) => Ipv4Addr::from_bits(pod.to_bits() | 255).to_string(),
            IpAddr::V6(_) => "ff02::2".to_owned(),
        };
        martians.push(&broadcast);
        self.repelled(path, "the node itself", false, &["not_ours"], &[to(&node)?])?;
        self.repelled(
            path,
            "addresses of no pod",
            false,
            &["martian"],
            &martians
                .iter()
                .map(|ip| to(ip))
                .collect::<Result<Vec<_>>>()?,
        )?;
        self.repelled(
            path,
            "sources that cannot be",
            false,
            &["martian"],
            &sources
                .iter()
                .map(|ip| from(ip))
                .collect::<Result<Vec<_>>>()?,
        )?;
        // The log has a line at most once a minute, and udp has one device for both families.
        if path.pod.is_ipv6() {
            return Ok(());
        }
        self.forgeries_are_logged(path)
    }

    fn forgeries_are_logged(&self, path: &Injection) -> Result<()> {
        let log = self.bed.daemons[0].log();
        let dropped = [
            vec![
                format!("device={}", path.device),
                format!("address={}", path.stranger),
                "unknown_peer".to_owned(),
                "no lease names".to_owned(),
            ],
            vec![
                format!("device={}", path.device),
                format!("address={}", path.peer),
                format!("source={}", path.others_pod),
                format!("destination={}", path.pod),
                "spoofed".to_owned(),
            ],
        ];
        for fields in dropped {
            ensure!(
                log.lines().any(|line| {
                    line.contains("dropped a packet")
                        && fields.iter().all(|field| line.contains(field.as_str()))
                }),
                "not logged: {fields:?}"
            );
        }
        Ok(())
    }

    /// Checks that packets pass, that the first node is ready, and that no daemon logged an error.
    fn withstood(&self) -> Result<()> {
        self.bed.reach()?;
        self.bed.require_no_errors()?;
        let (code, text) = self.bed.daemons[0].get("/readyz")?;
        ensure!(code == 200, "{text}");
        Ok(())
    }
}

/// Returns an address outside the pod network, in the path's address family.
fn outside(path: &Injection) -> IpAddr {
    if path.pod.is_ipv4() {
        [172, 31, 9, 9].into()
    } else {
        [0xfd31, 0, 0, 0, 0, 0, 0, 9].into()
    }
}

scenarios! { default_checks;
    udp_accepts_only_packets_from_a_peer_to_a_pod => Framing::Udp,
    vxlan_accepts_only_packets_from_a_peer_to_a_pod => Framing::Vxlan,
}

fn default_checks(framing: Framing) -> Result<()> {
    Lab::run("hostile", |lab| {
        let siege = Siege::lay(lab, framing, "cluster", 3)?;
        let capture = Capture::start(siege.bed.pods[0].netns())?;
        for ipv6 in [false, true] {
            let path = siege.path(ipv6)?;
            siege.malformed(&path)?;
            siege.forged(&path)?;
        }
        let frames = capture.finish()?;
        ensure!(
            !frames.is_empty() || siege.bed.reach().is_ok(),
            "the capture works"
        );
        ensure!(
            !frames.iter().any(|frame| holds(frame, MARK)),
            "the pod got a hostile packet"
        );
        for ipv6 in [false, true] {
            let path = siege.path(ipv6)?;
            // As a control, a right packet arrives: the packets above were dropped for no other reason.
            siege.delivered(&path, "a right packet", false, path.frame(&path.good()))?;
            siege.delivered(
                &path,
                "a source outside the network",
                false,
                path.frame(&path.packet(outside(&path), path.pod)),
            )?;
        }
        siege.withstood()
    })
}

scenarios! { strict_checks_refuse_sources_outside_the_network;
    udp_with_strict_checks_refuses_sources_outside_the_network => Framing::Udp,
    vxlan_with_strict_checks_refuses_sources_outside_the_network => Framing::Vxlan,
}

fn strict_checks_refuse_sources_outside_the_network(framing: Framing) -> Result<()> {
    Lab::run("strict", |lab| {
        let siege = Siege::lay(lab, framing, "strict", 3)?;
        for ipv6 in [false, true] {
            let path = siege.path(ipv6)?;
            siege.forged(&path)?;
            siege.repelled(
                &path,
                "a source outside the network",
                false,
                &["spoofed"],
                &[path.frame(&path.packet(outside(&path), path.pod))],
            )?;
            siege.delivered(&path, "a right packet", false, path.frame(&path.good()))?;
        }
        siege.withstood()
    })
}

scenarios! { malformed_packets_are_refused_without_checks;
    udp_without_checks_refuses_malformed_packets => Framing::Udp,
    vxlan_without_checks_refuses_malformed_packets => Framing::Vxlan,
}

fn malformed_packets_are_refused_without_checks(framing: Framing) -> Result<()> {
    Lab::run("unchecked", |lab| {
        let siege = Siege::lay(lab, framing, "off", 2)?;
        for ipv6 in [false, true] {
            let path = siege.path(ipv6)?;
            siege.malformed(&path)?;
            // If the node forwarded these, they would be its own tunnel datagrams.
            let nested = [path.to, path.peer].map(|node| {
                path.frame(&udp_packet(
                    SocketAddr::new(path.peers_pod, 7777),
                    SocketAddr::new(node, path.port),
                    64,
                    MARK,
                ))
            });
            // The udp tunnel uses IPv4 only: a packet to a node's IPv6 address is not a datagram of the tunnel.
            if path.pod.is_ipv4() || framing == Framing::Vxlan {
                siege.repelled(&path, "datagrams of the tunnel", false, &["loop"], &nested)?;
            }
            siege.delivered(
                &path,
                "a stranger's datagram",
                true,
                path.frame(&path.good()),
            )?;
            siege.delivered(
                &path,
                "a source outside the network",
                false,
                path.frame(&path.packet(outside(&path), path.pod)),
            )?;
        }
        siege.withstood()
    })
}

/// Sends datagrams of up to 65507 bytes. The datapath drops datagrams with bytes after the packet's end, and delivers packets that exceed the pod's MTU.
#[test]
fn huge_datagrams_do_no_harm() -> Result<()> {
    Lab::run("huge", |lab| {
        let siege = Siege::lay(lab, Framing::Udp, "cluster", 2)?;
        let path = siege.path(false)?;
        let lies: Vec<_> = [1473, 1500, 9000, 65_507]
            .into_iter()
            .map(|length| {
                let mut datagram = path.good();
                datagram.resize(length, 0x55);
                datagram
            })
            .collect();
        siege.repelled(
            &path,
            "more than the header says",
            false,
            &["malformed"],
            &lies,
        )?;
        // The host fragments a valid packet that is too long for the pod, as it does with a long packet from anywhere else.
        let into = siege.bed.pods[0]
            .netns()
            .run(|| UdpSocket::bind((path.pod, 7777)))??;
        into.set_read_timeout(Some(SOON))?;
        let mut buffer = vec![0; 65_536];
        for payload in [1480, 9000, 65_507 - 28] {
            let payload = [MARK.to_vec(), vec![0x55; payload - MARK.len()]].concat();
            let (from, to) = (
                SocketAddr::new(path.peers_pod, 7777),
                SocketAddr::new(path.pod, 7777),
            );
            siege.send(&path, false, &[udp_packet(from, to, 64, &payload)])?;
            let length = into
                .recv(&mut buffer)
                .with_context(|| format!("{} bytes never arrived", payload.len()))?;
            ensure!(
                buffer[..length] == payload,
                "{length} of {} bytes arrived, or others",
                payload.len()
            );
        }
        siege.withstood()
    })
}

/// The udp backend decrements the TTL by one, as Go flannel's udp backend does. vxlan does not decrement the TTL, because vxlan is a link.
#[test]
fn ttl_is_decremented_and_expired_packets_get_icmp_errors() -> Result<()> {
    for framing in [Framing::Udp, Framing::Vxlan] {
        Lab::run("hops", |lab| {
            let siege = Siege::lay(lab, framing, "cluster", 2)?;
            let (pod, netns) = (&siege.bed.pods[0], siege.bed.pods[0].netns());
            let subnets = siege
                .bed
                .daemons
                .iter()
                .map(Flanneld::subnet_env)
                .collect::<Result<Vec<_>>>()?;
            // The end of the tunnel that reports has the subnet's own address: the near end with udp, the far end with vxlan.
            let end = &subnets[if framing == Framing::Udp { 0 } else { 1 }];
            let ends: [IpAddr; 2] = [
                end.subnet.unwrap().network().into(),
                end.v6_subnet.unwrap().network().into(),
            ];
            for (target, end) in siege.bed.pods[1].addresses().into_iter().zip(ends) {
                let try_with = |hops: &str| -> Result<String> {
                    let output = netns.output(
                        "ping",
                        &["-n", "-c1", "-W2", "-t", hops, &target.to_string()],
                    )?;
                    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
                };
                // The host takes one hop. The tunnel, or the host at its far end, takes the second.
                let answer = try_with("2")?;
                let wanted = format!("From {end}");
                ensure!(
                    answer.contains(&wanted) && answer.to_lowercase().contains("exceeded"),
                    "{}: {wanted} expected in\n{answer}",
                    pod.name()
                );
                // The path is host, tunnel, host: the udp tunnel is one hop more.
                let enough = if framing == Framing::Udp { "4" } else { "3" };
                until_ok("enough hops", || {
                    let answer = try_with(enough)?;
                    ensure!(
                        answer.contains("1 received"),
                        "with {enough} hops to {target}:\n{answer}"
                    );
                    Ok(())
                })?;
            }
            if framing == Framing::Udp {
                let errors = siege.bed.daemons[0]
                    .metric("flannel_datapath_icmp_errors_total{device=\"flannel0\"}")?;
                ensure!(errors >= 2.0, "{errors} errors");
            }
            siege.withstood()
        })?;
    }
    Ok(())
}

/// flanneld refuses a lease whose underlay address is inside another lease's subnet, because the tunnel would carry its own datagrams.
#[test]
fn a_peer_inside_a_leased_subnet_is_refused() -> Result<()> {
    for framing in [Framing::Udp, Framing::Vxlan] {
        Lab::run("loop", |lab| {
            let siege = Siege::lay(lab, framing, "cluster", 2)?;
            let path = siege.path(false)?;
            let data = if framing == Framing::Vxlan {
                r#","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:11:22:33:44:55"}"#
            } else {
                ""
            };
            // Chooses subnets that no node of this test has leased.
            let own = siege.bed.daemons.iter().map(|daemon| {
                anyhow::Ok(
                    daemon
                        .subnet_env()?
                        .subnet
                        .map(|net| net.network().octets()[2]),
                )
            });
            let own = own.collect::<Result<Vec<_>>>()?;
            let mut free = (200..=255u8).filter(|number| !own.contains(&Some(*number)));
            let (inside, outside) = (free.next().unwrap(), free.next().unwrap());
            let value = format!(r#"{{"PublicIP":"10.5.{outside}.7","PublicIPv6":null{data}}}"#);
            let honest = format!(
                r#"{{"PublicIP":"192.168.56.77","PublicIPv6":null{}}}"#,
                data.replace("55\"", "56\"")
            );
            let folder = siege.bed.leases.join("subnets");
            let name = |subnet: u8| format!("10.5.{subnet}.0-24&fd00:5:0:{subnet:x}::-64");
            let leases = || siege.bed.daemons[0].metric("flannel_leases");
            let before = leases()?;
            // The older lease takes precedence: a subnet, or a node inside it.
            std::fs::write(folder.join(name(outside)), honest)?;
            until("the older lease is read", || {
                leases().is_ok_and(|leases| leases >= before + 1.0)
            })?;
            std::fs::write(folder.join(name(inside)), value)?;
            until("both leases are read", || {
                leases().is_ok_and(|leases| leases >= before + 2.0)
            })?;
            let sent = || {
                siege.bed.daemons[0].metric(&format!(
                    "flannel_datapath_packets_total{{device=\"{}\",direction=\"sent\"}}",
                    path.device
                ))
            };
            let pings = |target: IpAddr| -> Result<f64> {
                let before = sent()?;
                for _ in 0..3 {
                    ensure!(
                        ping(
                            siege.bed.pods[0].netns(),
                            target,
                            &PingOptions::default().timeout(Duration::from_millis(200))
                        )?
                        .is_none()
                    );
                }
                Ok(sent()? - before)
            };
            let to_honest = pings([10, 5, outside, 2].into())?;
            ensure!(
                to_honest == 3.0,
                "{to_honest} packets left for an honest peer"
            );
            let to_loop = pings([10, 5, inside, 2].into())?;
            ensure!(
                to_loop == 0.0,
                "{to_loop} packets left for a peer inside a leased subnet"
            );
            siege.withstood()
        })?;
    }
    Ok(())
}

/// An attacker floods the tunnel with junk while a known peer sends packets at a fixed rate.
#[test]
fn peers_packets_pass_during_a_flood_of_junk() -> Result<()> {
    Lab::run("flood", |lab| {
        let siege = Siege::lay(lab, Framing::Udp, "cluster", 2)?;
        let path = siege.path(false)?;
        let junk = [path.frame(&path.good()), vec![0x55; 600], vec![0x45; 10]];
        let socket = siege
            .attacker
            .netns()
            .run(|| UdpSocket::bind((path.stranger, path.port)))??;
        socket.connect(SocketAddr::new(path.to, path.port))?;
        let end = AtomicBool::new(false);
        let (report, sent, worst) = std::thread::scope(|scope| -> Result<_> {
            let flood = scope.spawn(|| {
                let mut sent = 0_u64;
                while !end.load(Ordering::Relaxed) {
                    for datagram in &junk {
                        sent += u64::from(socket.send(datagram).is_ok());
                    }
                }
                sent
            });
            let probe = Probe::start(
                &siege.bed.pods[1],
                &siege.bed.pods[0],
                &ProbeOptions::default().interval(Duration::from_micros(40)),
            )?;
            let mut worst = Duration::ZERO;
            throughout(
                Duration::from_secs(3),
                "it is ready under the flood",
                || {
                    let asked = Instant::now();
                    let (code, _) = siege.bed.daemons[0].get("/readyz")?;
                    ensure!(code == 200, "{code}");
                    worst = worst.max(asked.elapsed());
                    Ok(())
                },
            )?;
            // A lease that appears during the flood is applied as usual.
            let leases = || siege.bed.daemons[0].metric("flannel_leases");
            let (began, before) = (Instant::now(), leases()?);
            let lease = r#"{"PublicIP":"192.168.56.77","PublicIPv6":null}"#;
            std::fs::write(
                siege
                    .bed
                    .leases
                    .join("subnets")
                    .join("10.5.210.0-24&fd00:5:0:210::-64"),
                lease,
            )?;
            until("a new lease is read", || {
                leases().is_ok_and(|leases| leases > before)
            })?;
            let learned = began.elapsed();
            let report = probe.finish()?;
            end.store(true, Ordering::Relaxed);
            eprintln!("a lease was learned in {learned:?} under the flood");
            Ok((report, flood.join().unwrap(), worst))
        })?;
        let dropped = siege.dropped(&path, "unknown_peer");
        eprintln!(
            "{sent} datagrams of junk, {dropped} of them seen by the engine; {report}; /readyz at most {worst:?}"
        );
        ensure!(sent > 10_000 && dropped > 0, "no flood: {sent}");
        ensure!(report.wrong == 0, "{report}");
        ensure!(report.lost * 5 <= report.sent, "{report}");
        siege.withstood()
    })
}
