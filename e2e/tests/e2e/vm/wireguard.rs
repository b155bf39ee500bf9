//! The `wireguard` backend on a kernel that supports WireGuard.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    Capture, Flanneld, FlanneldOptions, Host, Lab, Mesh, PingMatrix, PingOptions, Probe,
    ProbeOptions, Store, holds, throughout, until_ok,
};

use crate::golden;
use crate::wireguard_keys::key_file;

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn kernel_state_equals_go_flannels() -> Result<()> {
    [
        "wireguard",
        "wireguard-dual",
        "wireguard-auto",
        "wireguard-ipv6",
    ]
    .into_iter()
    .try_for_each(golden::compare)
}

/// Hosts of a lab, each with a daemon and a pod.
pub(super) struct Bed {
    pub(super) bed: lab::Bed,
    /// Maximum length of a pod's packet, in bytes, on an underlay with an MTU of 1500 bytes.
    pub(super) mtu: u32,
}

impl Deref for Bed {
    type Target = lab::Bed;

    fn deref(&self) -> &lab::Bed {
        &self.bed
    }
}

impl DerefMut for Bed {
    fn deref_mut(&mut self) -> &mut lab::Bed {
        &mut self.bed
    }
}

impl Bed {
    fn start(lab: &Lab, count: u8, backend: &str, dual: bool) -> Result<Bed> {
        let families = if dual {
            r#""EnableIPv6":true,"IPv6Network":"fd00:5::/48","#
        } else {
            ""
        };
        let net_conf = format!(
            r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0",{families}"Backend":{backend}}}"#
        );
        let bed = Bed {
            bed: lab::Bed::start(lab, count, &net_conf, |_, options| options)?,
            mtu: if backend.contains("vxlan") {
                1450
            } else {
                1420
            },
        };
        bed.all_reach_all("at the start")?;
        Ok(bed)
    }

    fn targets(&self) -> Result<Vec<Vec<IpAddr>>> {
        let v4 = self
            .pods
            .iter()
            .map(|pod| Ok(pod.v4()?.into()))
            .collect::<Result<Vec<IpAddr>>>()?;
        let v6: Vec<IpAddr> = self
            .pods
            .iter()
            .filter_map(|pod| pod.v6().ok().map(IpAddr::V6))
            .collect();
        Ok(if v6.is_empty() {
            vec![v4]
        } else {
            vec![v4, v6]
        })
    }

    /// Checks that packets of the maximum length pass on every path in each address family, and that longer packets do not pass.
    pub(super) fn all_reach_all(&self, when: &str) -> Result<()> {
        for targets in self.targets()? {
            let options = PingOptions::default().packet(self.mtu);
            until_ok(when, || {
                PingMatrix::to(&self.pods, &targets, &options)?.require_complete()
            })?;
            let too_long = PingOptions::default()
                .packet(self.mtu + 1)
                .timeout(Duration::from_millis(300));
            ensure!(
                lab::ping(self.pods[0].netns(), targets[1], &too_long)?.is_none(),
                "{} bytes pass",
                self.mtu + 1
            );
        }
        Ok(())
    }

    pub(super) fn passes(&self, from: usize, to: usize) -> Result<bool> {
        Ok(lab::ping(
            self.pods[from].netns(),
            self.pods[to].v4()?.into(),
            &PingOptions::default(),
        )?
        .is_some())
    }

    /// Returns the output of `wg show flannel-wg WHAT`, by the peer's public key.
    pub(super) fn wg(&self, host: usize, what: &str) -> Result<BTreeMap<String, String>> {
        let text = self.hosts[host]
            .netns()
            .exec("wg", &["show", "flannel-wg", what])?;
        Ok(text
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(key, rest)| (key.to_owned(), rest.to_owned()))
            .collect())
    }

    /// Returns flanneld's WireGuard device, addresses, routes and peers on a host, without counters that traffic changes.
    fn picture(&self, host: usize) -> Result<String> {
        let text = self.hosts[host].netns().sh(
            "ip -d link show flannel-wg | grep -v 'flannel-wg:.*state' ; ip -o address show dev flannel-wg | cut -d: -f2-; ip route show proto 241; ip -6 route show proto 241
             wg show flannel-wg private-key; wg show flannel-wg listen-port; wg show flannel-wg allowed-ips | sort; wg show flannel-wg endpoints | sort
             wg show flannel-wg preshared-keys | sort; wg show flannel-wg persistent-keepalive | sort",
        )?;
        Ok(text)
    }

    /// Checks that `flannelctl probe` to a pod reports the public key and the endpoint of the WireGuard peer.
    fn probe_names_the_peer(&self) -> Result<()> {
        let program = lab::binaries::own("flannelctl")?
            .to_string_lossy()
            .into_owned();
        let (pod, file) = (
            self.pods[1].v4()?.to_string(),
            self.daemons[0].subnet_file().to_string_lossy().into_owned(),
        );
        let output = self.hosts[0].netns().output(
            &program,
            &["probe", &pod, "-o", "json", "--subnet-file", &file],
        )?;
        let document: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let steps = document["steps"].as_array().context("no steps")?;
        let step = steps
            .iter()
            .find(|step| step["name"] == "peer")
            .with_context(|| format!("no step peer: {document:#}"))?;
        let (key, endpoint) = self
            .wg(0, "endpoints")?
            .into_iter()
            .next()
            .context("no peer")?;
        let text = step.to_string();
        ensure!(
            step["outcome"] == "ok" && text.contains(&key) && text.contains(&endpoint),
            "{key} {endpoint}: {document:#}"
        );
        Ok(())
    }
}

/// Checks each `Mode` of the backend between dual-stack nodes.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn carries_packets_of_full_size_in_each_mode() -> Result<()> {
    for (mode, devices) in [("separate", 2), ("auto", 1), ("ipv4", 1), ("ipv6", 1)] {
        Lab::run(&format!("vm: wireguard {mode}"), |lab| {
            let bed = Bed::start(
                lab,
                2,
                &format!(
                    r#"{{"Type":"wireguard","Mode":"{mode}","PersistentKeepaliveInterval":25}}"#
                ),
                true,
            )?;
            let found = bed.hosts[0].netns().exec("wg", &["show", "interfaces"])?;
            ensure!(
                found.split_whitespace().count() == devices,
                "{mode}: {found}"
            );
            let endpoint = bed
                .wg(0, "endpoints")?
                .into_values()
                .next()
                .context("no peer")?;
            ensure!(
                endpoint.starts_with('[') == (mode == "ipv6"),
                "{mode}: {endpoint}"
            );
            until_ok("flannelctl probe knows the peer", || {
                bed.probe_names_the_peer()
            })?;
            bed.require_no_errors()?;
            if devices == 2 {
                // Neither device can get its own port before the other one gives it up.
                let ports = || bed.hosts[0].netns().sh("wg show all listen-port");
                let before = ports()?;
                let swap = "wg set flannel-wg listen-port 0; wg set flannel-wg-v6 listen-port 51820; wg set flannel-wg listen-port 51821";
                bed.hosts[0].netns().sh(swap)?;
                until_ok("exchanged ports are put back", || {
                    let now = ports()?;
                    ensure!(now == before, "{now} instead of {before}");
                    Ok(())
                })?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn hostile_leases_capture_no_traffic() -> Result<()> {
    crate::wireguard_hostile::from("kernel")
}

/// The daemon repairs damage to its own objects and leaves the objects of other programs unchanged.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn damaged_kernel_state_is_repaired() -> Result<()> {
    Lab::run("vm: wireguard heals", |lab| {
        let backend = r#"{"Type":"wireguard","PSK":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","PersistentKeepaliveInterval":25}"#;
        let bed = Bed::start(lab, 3, backend, false)?;
        let netns = bed.hosts[0].netns();
        let before = bed.picture(0)?;
        let peers: Vec<String> = bed.wg(0, "allowed-ips")?.into_keys().collect();
        ensure!(
            peers.len() == 2 && before.contains("blackhole 10.5.0.0/16"),
            "{before}"
        );
        let (first, second) = (&peers[0], &peers[1]);
        let allowed = bed.wg(0, "allowed-ips")?;
        let (its, both) = (
            &allowed[first],
            format!("{},{}", allowed[first], allowed[second]),
        );
        let other = "wg set flannel-wg peer $(wg genkey | wg pubkey) allowed-ips 172.30.0.0/24 endpoint 192.0.2.9:1";
        for (what, damage) in [
            ("a peer is removed", format!("wg set flannel-wg peer {first} remove")),
            ("all peers are removed", format!("wg set flannel-wg peer {first} remove peer {second} remove")),
            ("allowed IPs are taken away", format!("wg set flannel-wg peer {first} allowed-ips ''")),
            ("allowed IPs go to another peer", format!("wg set flannel-wg peer {first} allowed-ips {both}")),
            ("more allowed IPs", format!("wg set flannel-wg peer {first} allowed-ips {its},10.5.250.0/24")),
            ("a peer inside our network", "wg set flannel-wg peer $(wg genkey | wg pubkey) allowed-ips 10.5.251.0/24".to_owned()),
            ("another preshared key", format!("wg genpsk > psk; wg set flannel-wg peer {second} preshared-key psk; rm psk")),
            ("another keepalive", format!("wg set flannel-wg peer {second} persistent-keepalive 7")),
            ("another private key", "wg genkey > key; wg set flannel-wg private-key key; rm key".to_owned()),
            ("another port", "wg set flannel-wg listen-port 7777".to_owned()),
            ("the route is deleted", "ip route delete 10.5.0.0/16 dev flannel-wg".to_owned()),
            ("the blackhole is deleted", "ip route delete blackhole 10.5.0.0/16".to_owned()),
            ("the device is down", "ip link set flannel-wg down".to_owned()),
            (
                "the device is renamed",
                "until ip link set flannel-wg name wg9 2>/dev/null; do ip link set flannel-wg down; done; ip link set wg9 up || true".to_owned(),
            ),
            ("another MTU", "ip link set flannel-wg mtu 1300".to_owned()),
            ("the address is deleted", "ip address flush dev flannel-wg".to_owned()),
            ("the device is deleted", "ip link delete flannel-wg".to_owned()),
        ] {
            let gone = what.contains("device is deleted");
            if !gone {
                netns.sh(other)?;
            }
            netns.sh(&format!("cd {}; {damage}", lab.folder("scratch")?.display())).with_context(|| what.to_owned())?;
            until_ok(what, || {
                let now = bed.picture(0)?;
                let ours: String = now.lines().filter(|line| !others(&bed, line)).map(|line| format!("{line}\n")).collect();
                ensure!(ours == before, "{what}: it is\n{ours}\nand was\n{before}");
                Ok(())
            })?;
            until_ok(what, || {
                ensure!(bed.passes(0, 1)? && bed.passes(2, 0)?, "{what}: packets are lost");
                Ok(())
            })?;
            let left = netns.sh("wg show flannel-wg allowed-ips")?;
            ensure!(gone || left.contains("172.30.0.0/24"), "{what}: the operator's peer is gone: {left}");
            netns.sh(
                "for peer in $(wg show flannel-wg allowed-ips | grep -F 172.30.0.0/24 | cut -f1); do wg set flannel-wg peer $peer remove; done",
            )?;
        }
        bed.require_no_errors()
    })
}

/// Returns whether a line of the kernel state is about the operator's own WireGuard peer.
fn others(bed: &Bed, line: &str) -> bool {
    let Ok(all) = bed.wg(0, "allowed-ips") else {
        return false;
    };
    all.iter()
        .any(|(key, allowed)| allowed.contains("172.30.0.0/24") && line.starts_with(key.as_str()))
}

/// Restarts a daemon several times: alternately after a kill and after a regular end. The restarts keep the device
/// with its keys, sessions and endpoints, and lose no probe.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn restarts_lose_nothing() -> Result<()> {
    let times = number("FLANNEL_TEST_RESTARTS", 10);
    Lab::run("vm: wireguard restarts", |lab| {
        let mut bed = Bed::start(lab, 2, r#"{"Type":"wireguard"}"#, false)?;
        let index = |bed: &Bed| {
            bed.hosts[0]
                .netns()
                .sh("ip -o link show flannel-wg | cut -d: -f1")
        };
        let before = (bed.picture(0)?, index(&bed)?);
        let mesh = Mesh::start(
            &bed.pods,
            &ProbeOptions::default().interval(Duration::from_millis(20)),
        )?;
        mesh.wait_flowing()?;
        for round in 0..times {
            let handshake = bed.wg(0, "latest-handshakes")?;
            if round % 2 == 0 {
                bed.daemons[0].kill()?;
            } else {
                ensure!(
                    bed.daemons[0].terminate()?.success(),
                    "{}",
                    bed.daemons[0].log_tail(9)
                );
            }
            bed.daemons[0] = bed.hosts[0].flanneld(&bed.options[0])?;
            until_ok("its figures are there", || {
                bed.daemons[0]
                    .metric("flannel_kernel_writes_total")
                    .map(drop)
            })?;
            ensure!(
                bed.daemons[0].metric("flannel_kernel_writes_total")? == 0.0,
                "{}",
                bed.daemons[0].log_tail(20)
            );
            // A sender renews its session every two minutes, but never loses it.
            ensure!(
                bed.wg(0, "latest-handshakes")? >= handshake,
                "the sessions were lost"
            );
        }
        let after = (bed.picture(0)?, index(&bed)?);
        ensure!(after == before, "it is\n{after:?}\nand was\n{before:?}");
        mesh.require_clean()?;
        bed.require_no_errors()
    })
}

/// Returns the number in the environment variable `name`, or `otherwise` if the variable contains no number. `make soak` sets the variables to larger numbers.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// Runs a command outside the hosts of the lab and returns the command's output.
fn sh(text: &str) -> Result<String> {
    let output = std::process::Command::new("sh")
        .args(["-ec", text])
        .output()?;
    ensure!(output.status.success(), "{text}: {output:?}");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The daemon applies new contents of its private key file and of its preshared key file while packets flow.
/// The daemon ignores garbled content of a key file.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn key_file_changes_are_applied() -> Result<()> {
    Lab::run("vm: wireguard keys", |lab| {
        let psk = lab.folder("keys")?.join("psk").display().to_string();
        sh(&format!("wg genpsk > {psk}"))?;
        let bed = Bed::start(
            lab,
            2,
            &format!(r#"{{"Type":"wireguard","PSKFile":"{psk}"}}"#),
            false,
        )?;
        let own = key_file(&bed.hosts[0])?.display().to_string();
        let key = || -> Result<String> {
            Ok(bed.hosts[0]
                .netns()
                .exec("wg", &["show", "flannel-wg", "public-key"])?
                .trim()
                .to_owned())
        };
        let options = ProbeOptions::default().interval(Duration::from_millis(20));
        let probe = Probe::start(&bed.pods[1], &bed.pods[0], &options)?;
        probe.wait_flowing()?;
        let before = key()?;
        sh(&format!("wg genkey > {own}.new; mv {own}.new {own}"))?;
        until_ok("the device has the new key, and the peer knows", || {
            let now = key()?;
            let peers = bed.wg(1, "allowed-ips")?;
            ensure!(
                now != before && peers.len() == 1 && peers.contains_key(&now),
                "{now}: {peers:?}"
            );
            Ok(())
        })?;
        probe.wait_flowing()?;
        let report = probe.finish()?;
        // A handshake takes long on an emulated processor.
        ensure!(report.longest_outage < Duration::from_secs(10), "{report}");

        // All nodes get another preshared key. Sessions continue, and are renewed with it after two minutes.
        let mesh = Mesh::start(&bed.pods, &options)?;
        mesh.wait_flowing()?;
        let old: Vec<String> = bed.wg(0, "preshared-keys")?.into_values().collect();
        sh(&format!("wg genpsk > {psk}.new; mv {psk}.new {psk}"))?;
        for host in [0, 1] {
            until_ok("the new preshared key", || {
                let now = bed.wg(host, "preshared-keys")?;
                ensure!(
                    !now.is_empty() && now.values().all(|key| !old.contains(key)),
                    "still the old one"
                );
                Ok(())
            })?;
        }
        let (handshakes, renewal) = (
            bed.wg(0, "latest-handshakes")?,
            number("FLANNEL_TEST_PSK", 0),
        );
        // The protocol's own timers have to expire, and no event marks this.
        std::thread::sleep(Duration::from_secs(renewal));
        ensure!(
            renewal == 0 || bed.wg(0, "latest-handshakes")? != handshakes,
            "no session with the new key within {renewal} s"
        );
        mesh.require_clean()?;
        // The daemon sets a garbled file aside. The device keeps its key, which the daemon writes to the file again.
        std::fs::write(&own, "garbled")?;
        let device = key()?;
        until_ok("the key is in its file again", || {
            ensure!(
                sh(&format!("wg pubkey < {own}"))? == device && key()? == device,
                "another key"
            );
            ensure!(
                std::fs::read_to_string(format!("{own}.bad"))? == "garbled",
                "nothing was set aside"
            );
            Ok(())
        })
    })
}

/// Puts a node's WireGuard behind a NAT with the external port `port`, and drops packets to earlier ports.
fn nat(host: &Host, port: u16) -> Result<()> {
    let rules = format!(
        "table ip nat9\ndelete table ip nat9\ntable ip nat9 {{\n\
         chain out {{ type filter hook postrouting priority -300; oifname enp0s8 udp sport 51820 notrack udp sport set {port}; }}\n\
         chain in {{ type filter hook prerouting priority -400;\n\
         iifname enp0s8 udp dport != {port} udp dport 40000-51820 drop\n iifname enp0s8 udp dport {port} udp dport set 51820; }}\n}}\n"
    );
    host.netns().feed("nft", &["-f", "-"], &rules).map(drop)
}

/// A NAT changes a node's UDP port several times. The node's peer sends to the new port, even if the lease names another port.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn peer_behind_a_nat_is_followed_to_its_new_port() -> Result<()> {
    Lab::run("vm: wireguard roams", |lab| {
        let bed = Bed::start(
            lab,
            2,
            r#"{"Type":"wireguard","PersistentKeepaliveInterval":2}"#,
            false,
        )?;
        let endpoint = || -> Result<String> {
            bed.wg(0, "endpoints")?
                .into_values()
                .next()
                .context("no peer")
        };
        ensure!(endpoint()?.ends_with(":51820"), "{}", endpoint()?);
        let (ports, unchanged) = (
            number("FLANNEL_TEST_PORTS", 2),
            Duration::from_secs(number("FLANNEL_TEST_PORT_STAYS", 12)),
        );
        let mesh = Mesh::start(
            &bed.pods,
            &ProbeOptions::default().interval(Duration::from_millis(20)),
        )?;
        mesh.wait_flowing()?;
        let is_at = |port: u16| {
            let now = endpoint()?;
            ensure!(now.ends_with(&format!(":{port}")), "{now}");
            Ok(())
        };
        for port in (40_001_u16..).take(usize::try_from(ports)?) {
            nat(&bed.hosts[1], port)?;
            until_ok("the peer follows", || {
                ensure!(bed.passes(0, 1)?, "packets are lost");
                is_at(port)
            })?;
            // A repair compares everything, and keeps an endpoint that replies.
            bed.hosts[0].netns().sh("ip link set flannel-wg mtu 1300")?;
            throughout(unchanged, "the endpoint stays", || is_at(port))?;
        }
        for (path, report) in mesh.finish()? {
            println!("{path}, {ports} ports: {report}");
            ensure!(
                report.received > 0 && report.lost * 50 <= report.sent,
                "{path}: {report}"
            );
        }
        // The last port no longer responds and the peer is silent, so the node tries the lease's endpoint.
        bed.hosts[1].netns().sh("nft delete table ip nat9; wg set flannel-wg peer $(wg show flannel-wg peers) persistent-keepalive 0")?;
        until_ok("packets pass again", || {
            ensure!(bed.passes(0, 1)? && bed.passes(1, 0)?, "{}", endpoint()?);
            Ok(())
        })
    })
}

/// Checks that each host's capture contains pod packets, and that the captured frames of the uplink contain no readable pod packet.
fn require_nothing_clear(bed: &Bed, captures: Vec<Capture>) -> Result<()> {
    let (first, second) = (bed.pods[0].v4()?.octets(), bed.pods[1].v4()?.octets());
    for (host, capture) in bed.hosts.iter().zip(captures) {
        let frames = capture.finish()?;
        let pods = |frame: &Vec<u8>| {
            frame.len() > 12 && holds(&frame[12..], &first) && holds(&frame[12..], &second)
        };
        ensure!(
            frames.iter().any(pods),
            "the capture sees nothing of the pods"
        );
        // The capture has frames of all interfaces. Only the uplink's frames have its MAC.
        let text = host.netns().link("enp0s8")?.context("no uplink")?.address;
        let mac: Vec<u8> = text
            .split(':')
            .filter_map(|byte| u8::from_str_radix(byte, 16).ok())
            .collect();
        let uplink: Vec<&Vec<u8>> = frames
            .iter()
            .filter(|frame| frame.len() > 12 && (frame[..6] == mac || frame[6..12] == mac))
            .collect();
        ensure!(
            uplink.len() > 50,
            "{} frames between the nodes",
            uplink.len()
        );
        let clear = uplink.into_iter().filter(|frame| pods(frame)).count();
        ensure!(
            clear == 0,
            "{clear} frames between the nodes show a pod's packet"
        );
    }
    Ok(())
}

/// No frame on a node's uplink contains an unencrypted pod packet, even if another program removes the WireGuard device or its route.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn pod_packets_never_leave_unencrypted() -> Result<()> {
    Lab::run("vm: wireguard clear", |lab| {
        let mut bed = Bed::start(lab, 2, r#"{"Type":"vxlan"}"#, false)?;
        // The nodes change from vxlan to wireguard, with routes that Go flannel leaves: to exactly a node's subnet.
        let subnet =
            |daemon: &Flanneld| Ok(daemon.subnet_env()?.subnet.context("no subnet")?.trunc());
        let subnets = bed.daemons.iter().map(subnet).collect::<Result<Vec<_>>>()?;
        for daemon in &mut bed.daemons {
            daemon.terminate()?;
        }
        let (own, peer) = (subnets[0], subnets[1]);
        bed.hosts[0].netns().sh(&format!(
            "ip route flush proto 241; ip route add {peer} via {} dev flannel.1 onlink; ip route add 10.5.251.0/24 via 10.5.251.0 dev flannel.1 onlink",
            peer.network()
        ))?;
        let via = bed.hosts[0].v4()?;
        bed.hosts[1].netns().sh(&format!("ip route flush proto 241; ip link delete flannel.1; ip route add {own} via {via} dev enp0s8"))?;
        bed.store
            .configure(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","Backend":{"Type":"wireguard"}}"#)?;
        bed.daemons = bed
            .hosts
            .iter()
            .map(|host| host.flanneld(&bed.options[0]))
            .collect::<Result<_>>()?;
        until_ok("what Go flannel left is gone", || {
            for host in &bed.hosts {
                let routes = host.netns().sh("ip route")?;
                let left = routes.contains("flannel.1") || routes.contains(&format!("{own} via"));
                ensure!(
                    !left && routes.contains("blackhole 10.5.0.0/16"),
                    "{routes}"
                );
            }
            Ok(())
        })?;
        let captures = bed
            .hosts
            .iter()
            .map(|host| Capture::start(host.netns()))
            .collect::<Result<Vec<_>>>()?;
        let options = ProbeOptions::default().interval(Duration::from_millis(20));
        let probes = [
            Probe::start(&bed.pods[0], &bed.pods[1], &options)?,
            Probe::start(&bed.pods[1], &bed.pods[0], &options)?,
        ];
        let flows = |what: &str| {
            probes
                .iter()
                .try_for_each(|probe| probe.wait_flowing().map(drop))
                .context(what.to_owned())
        };
        flows("at the start")?;
        let host = bed.hosts[0].clone();
        let netns = host.netns();
        for damage in [
            "ip link set flannel-wg down",
            "ip link delete flannel-wg",
            "ip route delete 10.5.0.0/16 dev flannel-wg",
        ] {
            netns.sh(damage)?;
            flows(damage)?;
        }
        // Now both the daemon and the device are gone.
        bed.daemons[0].kill()?;
        netns.sh("ip link delete flannel-wg; sleep 1")?;
        let answer = netns.sh("ip route get 10.5.250.1 2>&1 || true")?;
        ensure!(!answer.contains("enp0s"), "{answer}");
        bed.daemons[0] = bed.hosts[0].flanneld(&bed.options[0])?;
        flows("after a start")?;
        drop(probes);
        require_nothing_clear(&bed, captures)
    })
}

/// A node recognises its own lease of Go flannel by the public key in the lease. If two nodes have the same private
/// key, the node that starts later generates another key.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn lease_belongs_to_the_node_that_has_its_key() -> Result<()> {
    Lab::run("vm: wireguard identity", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let leases = lab.folder("leases")?;
        let store = Store::dir(&leases);
        store.configure(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}"#)?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let keys = hosts
            .iter()
            .map(|host| Ok(key_file(host)?.display().to_string()))
            .collect::<Result<Vec<_>>>()?;
        let public = sh(&format!("wg genkey > {0}; wg pubkey < {0}", keys[0]))?;
        let data = format!(r#"{{"PublicKey":"{public}","Port":51820}}"#);
        let value = format!(
            r#"{{"PublicIP":"{}","PublicIPv6":null,"BackendType":"wireguard","BackendData":{data}}}"#,
            hosts[0].v4()?
        );
        std::fs::write(leases.join("subnets/10.5.77.0-24"), value)?;
        let first = hosts[0].flanneld(&options)?;
        ensure!(
            first
                .subnet_env()?
                .subnet
                .is_some_and(|net| net.trunc().to_string() == "10.5.77.0/24"),
            "{:?}",
            first.subnet_env()?
        );
        // The second host has a clone of the first one's disk.
        sh(&format!("cp {} {}", keys[0], keys[1]))?;
        let second = hosts[1].flanneld(&options)?;
        let pods = [
            hosts[0].pod("p1", &first.subnet_env()?)?,
            hosts[1].pod("p1", &second.subnet_env()?)?,
        ];
        until_ok("both reach each other", || {
            PingMatrix::of(&pods)?.require_complete()
        })?;
        ensure!(
            sh(&format!("wg pubkey < {}", keys[0]))? == public,
            "the older one's key has changed"
        );
        ensure!(
            sh(&format!("wg pubkey < {}", keys[1]))? != public
                && second.log().contains("cloned disk"),
            "{}",
            second.log_tail(20)
        );
        Ok(())
    })
}
