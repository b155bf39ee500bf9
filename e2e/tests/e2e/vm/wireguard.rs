//! The `wireguard` backend on a kernel that supports WireGuard.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    Mesh, Node, PingMatrix, PingOptions, Pod, ProbeOptions, Scene, SceneOptions, ping_address,
    until, until_ok,
};
use nix::sys::signal::Signal;

use crate::lease::golden;
use crate::wireguard::keys::{daemon_key_path_with_folder, replace_file_atomically};

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn kernel_state_equals_go_flannels() -> Result<()> {
    ["wireguard", "wireguard-dual", "wireguard-auto", "wireguard-ipv6"]
        .into_iter()
        .try_for_each(golden::wait_first_node_equals_capture)
}

/// Dual-stack.
pub(super) fn net_conf(backend: &str) -> String {
    format!(
        r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{{"Type":"wireguard"{backend}}}}}"#
    )
}

fn wireguard_scene<'a>(title: &str, backend: &str) -> SceneOptions<'a> {
    Scene::with_title(&format!("vm: wireguard {title}")).net(&net_conf(backend))
}

/// Packets of the MTU pass on every path in each family, and longer ones do not.
pub(super) fn require_full_mtu_between_pods(s: &Scene) -> Result<()> {
    let pods = s.first_pods()?;
    for family in 0..2 {
        let targets: Vec<_> = pods.iter().map(|pod: &Pod| pod.addresses()[family]).collect();
        until_ok("packets of full size pass", || {
            PingMatrix::between_addresses(
                &pods,
                &targets,
                &PingOptions::default().packet_length(1420),
            )?
            .require_complete()
        })?;
        let too_long =
            PingOptions::default().packet_length(1421).timeout(Duration::from_millis(300));
        ensure!(ping_address(pods[0].netns(), targets[1], &too_long)?.is_none(), "1421 bytes pass");
    }
    Ok(())
}

/// The output of `wg show flannel-wg WHAT`, by the peer's public key.
fn wg_values_by_peer(node: &Node, what: &str) -> Result<BTreeMap<String, String>> {
    let text = node.sh(&format!("wg show flannel-wg {what}"))?;
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    Ok(lines.map(|(key, rest)| (key.to_owned(), rest.to_owned())).collect())
}

fn peer_endpoint(node: &Node) -> Result<String> {
    wg_values_by_peer(node, "endpoints")?.into_values().next().context("no peer")
}

/// flanneld's WireGuard device, addresses, routes and peers, without the operator's peer and without counters that traffic changes.
fn device_routes_and_peers(node: &Node) -> Result<String> {
    node.sh("ip -d link show flannel-wg | grep -v 'flannel-wg:.*state' ; ip -o address show dev flannel-wg | cut -d: -f2-; ip route show proto 241; ip -6 route show proto 241
        wg show flannel-wg private-key; wg show flannel-wg listen-port
        other=$(wg show flannel-wg allowed-ips | grep -F 172.30.0.0/24 | cut -f1)
        for what in allowed-ips endpoints preshared-keys persistent-keepalive; do wg show flannel-wg $what | grep -vF ${other:-none} | sort; done")
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn carries_packets_of_full_size_in_each_mode() -> Result<()> {
    for (mode, devices) in [("separate", 2), ("auto", 1), ("ipv4", 1), ("ipv6", 1)] {
        wireguard_scene(mode, &format!(r#","Mode":"{mode}","PersistentKeepaliveInterval":25"#)).run(|s| {
            require_full_mtu_between_pods(s)?;
            let node = &s[0];
            let found = node.sh("wg show interfaces")?;
            ensure!(found.split_whitespace().count() == devices, "{found}");
            let endpoint = peer_endpoint(node)?;
            ensure!(endpoint.starts_with('[') == (mode == "ipv6"), "{endpoint}");
            if devices == 2 {
                // Neither device can get its own port before the other one gives it up.
                let ports = "wg show all listen-port";
                let before = node.sh(ports)?;
                node.sh("wg set flannel-wg listen-port 0; wg set flannel-wg-v6 listen-port 51820; wg set flannel-wg listen-port 51821")?;
                node.wait_output_contains(ports, &before)?;
            }
            s.require_no_errors()
        })?;
    }
    Ok(())
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn hostile_leases_capture_no_traffic() -> Result<()> {
    crate::wireguard::hostile::require_hostile_leases_harmless("kernel")
}

/// The objects of other programs stay unchanged.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn damaged_kernel_state_is_repaired() -> Result<()> {
    let backend =
        r#","PSK":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","PersistentKeepaliveInterval":25"#;
    wireguard_scene("heals", backend).nodes(3).run(|s| {
        let (node, folder) = (&s[0], s.lab.ensure_folder("scratch")?);
        let before = device_routes_and_peers(node)?;
        ensure!(before.contains("blackhole 10.5.0.0/16"), "{before}");
        let allowed = wg_values_by_peer(node, "allowed-ips")?;
        let [first, second] = <[_; 2]>::try_from(allowed.keys().collect::<Vec<_>>()).ok().context("two peers")?;
        let its = &allowed[first];
        let other = "wg set flannel-wg peer $(wg genkey | wg pubkey) allowed-ips 172.30.0.0/24 endpoint 192.0.2.9:1";
        for damage in [
            format!("wg set flannel-wg peer {first} remove peer {second} remove"),
            format!("wg set flannel-wg peer {first} allowed-ips ''"),
            format!("wg set flannel-wg peer {second} allowed-ips {its},10.5.250.0/24"),
            "wg set flannel-wg peer $(wg genkey | wg pubkey) allowed-ips 10.5.251.0/24".to_owned(),
            format!("wg genpsk > psk; wg set flannel-wg peer {second} preshared-key psk persistent-keepalive 7"),
            "wg genkey > key; wg set flannel-wg private-key key listen-port 7777".to_owned(),
            "ip route delete 10.5.0.0/16 dev flannel-wg; ip route delete blackhole 10.5.0.0/16".to_owned(),
            "ip link set flannel-wg down".to_owned(),
            "until ip link set flannel-wg name wg9 2>/dev/null; do ip link set flannel-wg down; done; ip link set wg9 up || true".to_owned(),
            "ip link set flannel-wg mtu 1300; ip address flush dev flannel-wg".to_owned(),
            "ip link delete flannel-wg".to_owned(),
        ] {
            let gone = damage.contains("link delete");
            if !gone {
                node.sh(other)?;
            }
            node.sh(&format!("cd {}; {damage}", folder.display()))?;
            until_ok(&damage, || {
                let now = device_routes_and_peers(node)?;
                ensure!(now == before, "it is\n{now}\nand was\n{before}");
                Ok(())
            })?;
            s.wait_first_pods_connected()?;
            let left = node.sh("wg show flannel-wg allowed-ips")?;
            ensure!(gone || left.contains("172.30.0.0/24"), "{damage}: the operator's peer is gone: {left}");
            node.sh("for peer in $(wg show flannel-wg allowed-ips | grep -F 172.30.0.0/24 | cut -f1); do wg set flannel-wg peer $peer remove; done")?;
        }
        s.require_no_errors()
    })
}

/// The restarts follow a kill and a regular end in turn. The device keeps its keys, sessions and endpoints, and no probe is lost.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn restarts_lose_nothing() -> Result<()> {
    wireguard_scene("restarts", "").run(|s| {
        let state = |node: &Node| -> Result<_> {
            Ok((
                device_routes_and_peers(node)?,
                node.sh("ip -o link show flannel-wg | cut -d: -f1")?,
            ))
        };
        let before = state(&s[0])?;
        let mesh = start_mesh(s)?;
        for round in 0..lab::env_number("FLANNEL_TEST_RESTARTS", 2) {
            let handshake = wg_values_by_peer(&s[0], "latest-handshakes")?;
            if round % 2 == 0 {
                s[0].kill_daemon()?;
            } else {
                s[0].stop_daemon()?;
            }
            s[0].start_daemon()?;
            s[0].wait_metric_value("flannel_kernel_writes_total", 0.0)?;
            // A sender renews its session every two minutes, but never loses it.
            ensure!(
                wg_values_by_peer(&s[0], "latest-handshakes")? >= handshake,
                "the sessions were lost"
            );
        }
        let after = state(&s[0])?;
        ensure!(after == before, "it is\n{after:?}\nand was\n{before:?}");
        mesh.finish_and_require_clean()?;
        s.require_no_errors()
    })
}

fn start_mesh(s: &Scene) -> Result<Mesh> {
    let options = ProbeOptions::default().interval(Duration::from_millis(20));
    let mesh = Mesh::start(&s.first_pods()?, &options)?;
    mesh.wait_flowing()?;
    Ok(mesh)
}

/// The public key of the private key in the file.
fn derive_public_key(file: &Path) -> Result<String> {
    let keys =
        std::process::Command::new("sh").args(["-c", "wg pubkey < $0"]).arg(file).output()?;
    Ok(String::from_utf8(keys.stdout)?.trim().to_owned())
}

/// The device takes a new private key and a new preshared key while packets flow.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn key_file_changes_are_applied() -> Result<()> {
    wireguard_scene("keys", "").without_daemons().run(|s| {
        let psk = s.lab.ensure_folder("keys")?.join("psk");
        std::fs::write(&psk, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")?;
        s.store.configure(&net_conf(&format!(r#","PSKFile":"{}""#, psk.display())))?;
        s.start_daemons_and_connected_pods()?;
        let own = daemon_key_path_with_folder(&s[0])?;
        replace_file_atomically(&own, s[0].sh("wg genkey")?.trim())?;
        s[0].daemon()?.signal(Signal::SIGHUP)?;
        let key = derive_public_key(&own)?;
        s[0].wait_output_contains("wg show flannel-wg public-key", &key)?;
        until("the peer knows the new key alone", || {
            wg_values_by_peer(&s[1], "allowed-ips").is_ok_and(|peers| peers.keys().eq([&key]))
        })?;
        s.wait_first_pods_connected()?;

        // All nodes get another preshared key. Sessions continue, and are renewed with it after two minutes.
        let mesh = start_mesh(s)?;
        let new = s[0].sh("wg genpsk")?;
        replace_file_atomically(&psk, new.trim())?;
        s.check_each_node(|node| node.daemon()?.signal(Signal::SIGHUP))?;
        s.check_each_node(|node| {
            node.wait_output_contains("wg show flannel-wg preshared-keys", new.trim())
        })?;
        let renewal = lab::env_number("FLANNEL_TEST_PSK", 0);
        let handshakes = wg_values_by_peer(&s[0], "latest-handshakes")?;
        // The protocol's own timers have to expire, and no event marks this.
        std::thread::sleep(Duration::from_secs(renewal));
        ensure!(
            renewal == 0 || wg_values_by_peer(&s[0], "latest-handshakes")? != handshakes,
            "no session with the new key"
        );
        mesh.finish_and_require_clean()
    })
}

/// A NAT changes a node's UDP port. Its peer sends to the new port, even if the lease names another one.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn peer_behind_a_nat_is_followed_to_its_new_port() -> Result<()> {
    wireguard_scene("roams", r#","PersistentKeepaliveInterval":2"#).run(|s| {
        for port in (40_001_u16..).take(lab::env_number("FLANNEL_TEST_PORTS", 2)) {
            // Packets to earlier ports are dropped.
            let rules = format!(
                "table ip nat9\ndelete table ip nat9\ntable ip nat9 {{\n\
                 chain out {{ type filter hook postrouting priority -300; oifname enp0s8 udp sport 51820 notrack udp sport set {port}; }}\n\
                 chain in {{ type filter hook prerouting priority -400;\n\
                 iifname enp0s8 udp dport != {port} udp dport 40000-51820 drop\n iifname enp0s8 udp dport {port} udp dport set 51820; }}\n}}\n"
            );
            s[1].netns().exec_with_input("nft", &["-f", "-"], &rules)?;
            until("the peer follows", || peer_endpoint(&s[0]).is_ok_and(|now| now.ends_with(&format!(":{port}"))))?;
            // A repair compares everything, and keeps an endpoint that replies.
            s[0].sh("ip link set flannel-wg mtu 1300")?;
            s[0].wait_output_contains("ip link show flannel-wg", "mtu 1420")?;
            ensure!(peer_endpoint(&s[0])?.ends_with(&format!(":{port}")), "{}", peer_endpoint(&s[0])?);
            s.wait_first_pods_connected()?;
        }
        // The last port no longer responds and the peer is silent, so the node tries the lease's endpoint.
        s[1].sh("nft delete table ip nat9; wg set flannel-wg peer $(wg show flannel-wg peers) persistent-keepalive 0")?;
        s.wait_first_pods_connected()
    })
}

/// A route that an earlier backend left, and a device that is gone, send no pod packet past the tunnel.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn pod_packets_never_leave_unencrypted() -> Result<()> {
    wireguard_scene("clear", "").without_daemons().run(|s| {
        s[0].sh("ip link add flannel.1 type vxlan id 1 dev enp0s8 dstport 8472; ip address add 10.5.250.0/32 dev flannel.1; ip link set flannel.1 up
            ip route add 10.5.251.0/24 via 10.5.251.0 dev flannel.1 onlink; ip route add 10.5.252.0/24 via 192.168.56.102 dev enp0s8")?;
        s.start_daemons_and_connected_pods()?;
        s[0].kill_daemon()?;
        s[0].sh("ip link delete flannel-wg")?;
        for address in ["10.5.250.1", "10.5.251.1", "10.5.252.1"] {
            let way = s[0].sh(&format!("ip route get {address} 2>&1 || true"))?;
            ensure!(!way.contains("enp0s") && !way.contains("flannel.1"), "{way}");
        }
        s.start_daemons()?;
        s.wait_first_pods_connected()
    })
}

/// If two nodes have the same private key, the one that starts later generates another.
#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn lease_belongs_to_the_node_that_has_its_key() -> Result<()> {
    wireguard_scene("identity", "").without_daemons().run(|s| {
        s[0].start_daemon()?;
        let (first, second) =
            (daemon_key_path_with_folder(&s[0])?, daemon_key_path_with_folder(&s[1])?);
        let key = derive_public_key(&first)?;
        // The second host has a clone of the first one's disk.
        std::fs::copy(&first, &second)?;
        s.start_daemons_and_connected_pods()?;
        ensure!(derive_public_key(&first)? == key && derive_public_key(&second)? != key, "{key}");
        Ok(())
    })
}
