//! The `wireguard` backend on a kernel that has it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Flanneld, FlanneldOptions, Host, Lab, PingMatrix, PingOptions, Pod, Store, eventually_ok};

use crate::golden;

/// Ten times the goal, and as much again for the emulation.
const SOON: Duration = Duration::from_secs(60);
/// The keys are read every 5 s, an endpoint that does not answer is given up after 20 s, a session after 180 s.
const LATER: Duration = Duration::from_secs(240);
/// The longest packet with an underlay of 1500 bytes.
const MTU: u32 = 1420;

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn leaves_what_go_flannel_leaves() -> Result<()> {
    ["wireguard", "wireguard-dual", "wireguard-auto", "wireguard-ipv6"].into_iter().try_for_each(golden::compare)
}

/// Hosts with a pod each.
struct Bed {
    pods: Vec<Pod>,
    daemons: Vec<Flanneld>,
    options: FlanneldOptions,
    store: Store,
    hosts: Vec<Host>,
}

impl Bed {
    fn start(lab: &Lab, count: u8, backend: &str, dual: bool) -> Result<Bed> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, count)?;
        let store = Store::dir(&lab.folder("leases")?);
        let families = if dual { r#""EnableIPv6":true,"IPv6Network":"fd00:5::/48","# } else { "" };
        store.configure(&format!(r#"{{"Network":"10.5.0.0/16",{families}"Backend":{backend}}}"#))?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let mut daemons = hosts.iter().map(|host| host.start_flanneld(&options)).collect::<Result<Vec<_>>>()?;
        daemons.iter_mut().try_for_each(|daemon| daemon.wait_ready(SOON).map(drop))?;
        let pods = hosts.iter().zip(&daemons).map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?)).collect::<Result<Vec<_>>>()?;
        let bed = Bed { pods, daemons, options, store, hosts };
        bed.all_reach_all("at the start")?;
        Ok(bed)
    }

    fn targets(&self) -> Result<Vec<Vec<IpAddr>>> {
        let v4 = self.pods.iter().map(|pod| Ok(pod.v4()?.into())).collect::<Result<Vec<IpAddr>>>()?;
        let v6: Vec<IpAddr> = self.pods.iter().filter_map(|pod| pod.v6().ok().map(IpAddr::V6)).collect();
        Ok(if v6.is_empty() { vec![v4] } else { vec![v4, v6] })
    }

    /// Packets of full size pass on every way, in each family, and longer ones do not.
    fn all_reach_all(&self, when: &str) -> Result<()> {
        for targets in self.targets()? {
            let options = PingOptions::default().packet(MTU);
            eventually_ok(SOON, when, || PingMatrix::to(&self.pods, &targets, &options)?.require_complete())?;
            let too_long = PingOptions::default().packet(MTU + 1).timeout(Duration::from_millis(300));
            ensure!(lab::ping(self.pods[0].netns(), targets[1], &too_long)?.is_none(), "{} bytes pass", MTU + 1);
        }
        Ok(())
    }

    fn passes(&self, from: usize, to: usize) -> Result<bool> {
        Ok(lab::ping(self.pods[from].netns(), self.pods[to].v4()?.into(), &PingOptions::default())?.is_some())
    }

    /// What `wg show flannel-wg WHAT` prints, by peer.
    fn wg(&self, host: usize, what: &str) -> Result<BTreeMap<String, String>> {
        let text = self.hosts[host].netns().exec("wg", &["show", "flannel-wg", what])?;
        Ok(text.lines().filter_map(|line| line.split_once('\t')).map(|(key, rest)| (key.to_owned(), rest.to_owned())).collect())
    }

    /// Everything that is ours on a host, without what traffic changes.
    fn picture(&self, host: usize) -> Result<String> {
        let text = self.hosts[host].netns().sh(
            "ip -d link show flannel-wg | grep -v 'flannel-wg:.*state' ; ip -o address show dev flannel-wg; ip route show proto 241; ip -6 route show proto 241
             wg show flannel-wg private-key; wg show flannel-wg listen-port; wg show flannel-wg allowed-ips | sort; wg show flannel-wg endpoints | sort
             wg show flannel-wg preshared-keys | sort; wg show flannel-wg persistent-keepalive | sort",
        )?;
        Ok(text)
    }

    fn require_no_errors(&self) -> Result<()> {
        let errors: Vec<String> = self.daemons.iter().flat_map(Flanneld::errors).collect();
        ensure!(errors.is_empty(), "{errors:#?}");
        Ok(())
    }
}

/// Each mode, between nodes with both families.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn carries_packets_of_full_size_in_each_mode() -> Result<()> {
    for (mode, devices) in [("separate", 2), ("auto", 1), ("ipv4", 1), ("ipv6", 1)] {
        Lab::run(&format!("vm: wireguard {mode}"), |lab| {
            let bed = Bed::start(lab, 2, &format!(r#"{{"Type":"wireguard","Mode":"{mode}","PersistentKeepaliveInterval":25}}"#), true)?;
            let found = bed.hosts[0].netns().exec("wg", &["show", "interfaces"])?;
            ensure!(found.split_whitespace().count() == devices, "{mode}: {found}");
            let endpoint = bed.wg(0, "endpoints")?.into_values().next().context("no peer")?;
            ensure!(endpoint.starts_with('[') == (mode == "ipv6"), "{mode}: {endpoint}");
            bed.require_no_errors()
        })?;
    }
    Ok(())
}

/// What others break is mended, and what they have beside it stays.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn heals() -> Result<()> {
    Lab::run("vm: wireguard heals", |lab| {
        let backend = r#"{"Type":"wireguard","PSK":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","PersistentKeepaliveInterval":25}"#;
        let bed = Bed::start(lab, 3, backend, false)?;
        let netns = bed.hosts[0].netns();
        let before = bed.picture(0)?;
        let peers: Vec<String> = bed.wg(0, "allowed-ips")?.into_keys().collect();
        ensure!(peers.len() == 2 && before.contains("blackhole 10.5.0.0/16"), "{before}");
        let (first, second) = (&peers[0], &peers[1]);
        let other = "wg set flannel-wg peer $(wg genkey | wg pubkey) allowed-ips 172.30.0.0/24 endpoint 192.0.2.9:1";
        for (what, damage) in [
            ("a peer is removed", format!("wg set flannel-wg peer {first} remove")),
            ("all peers are removed", format!("wg set flannel-wg peer {first} remove peer {second} remove")),
            ("allowed IPs are taken away", format!("wg set flannel-wg peer {first} allowed-ips ''")),
            (
                "allowed IPs go to another peer",
                format!("wg set flannel-wg peer {first} allowed-ips +$(wg show flannel-wg allowed-ips | grep -F {second} | cut -f2)"),
            ),
            ("more allowed IPs", format!("wg set flannel-wg peer {first} allowed-ips +10.5.250.0/24")),
            ("a peer inside our network", "wg set flannel-wg peer $(wg genkey | wg pubkey) allowed-ips 10.5.251.0/24".to_owned()),
            ("another preshared key", format!("wg genpsk > psk; wg set flannel-wg peer {second} preshared-key psk; rm psk")),
            ("another keepalive", format!("wg set flannel-wg peer {second} persistent-keepalive 7")),
            ("another private key", "wg genkey > key; wg set flannel-wg private-key key; rm key".to_owned()),
            ("another port", "wg set flannel-wg listen-port 7777".to_owned()),
            ("the route is deleted", "ip route delete 10.5.0.0/16 dev flannel-wg".to_owned()),
            ("the blackhole is deleted", "ip route delete blackhole 10.5.0.0/16".to_owned()),
            ("the device is down", "ip link set flannel-wg down".to_owned()),
            ("the device is renamed", "ip link set flannel-wg down; ip link set flannel-wg name wg9; ip link set wg9 up".to_owned()),
            ("another MTU", "ip link set flannel-wg mtu 1300".to_owned()),
            ("the address is deleted", "ip address flush dev flannel-wg".to_owned()),
            ("the device is deleted", "ip link delete flannel-wg".to_owned()),
        ] {
            let gone = what.contains("device is deleted");
            if !gone {
                netns.sh(other)?;
            }
            netns.sh(&format!("cd {}; {damage}", lab.folder("scratch")?.display())).with_context(|| what.to_owned())?;
            eventually_ok(SOON, what, || {
                let now = bed.picture(0)?;
                let ours: String = now.lines().filter(|line| !others(&bed, line)).map(|line| format!("{line}\n")).collect();
                ensure!(ours == before, "{what}: it is\n{ours}\nand was\n{before}");
                Ok(())
            })?;
            eventually_ok(SOON, what, || {
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

/// Whether a line is about the operator's peer.
fn others(bed: &Bed, line: &str) -> bool {
    let Ok(all) = bed.wg(0, "allowed-ips") else { return false };
    all.iter().any(|(key, allowed)| allowed.contains("172.30.0.0/24") && line.starts_with(key.as_str()))
}
