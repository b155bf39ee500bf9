//! Tests that the userspace datapath's device survives a daemon restart with a file descriptor store, and disappears without the store.
//! The tests also switch between kernel vxlan and the userspace datapath, and damage the userspace datapath.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{FileStore, Node, Scene, Transfer, TransferOptions, until, until_ok};

use crate::datapath::engines::{Engine, UDP, VXLAN, WIREGUARD};
use crate::datapath::flannel_device_kinds;
use crate::healing::scenarios;

const KERNEL: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

scenarios! { restart_with_store_loses_no_packets;
    udp_restart_with_a_store_loses_no_waiting_packet => &UDP,
    vxlan_restart_with_a_store_loses_no_waiting_packet => &VXLAN,
    wireguard_restart_with_a_store_begins_sessions => &WIREGUARD,
}

scenarios! { changed_backend_or_mode_replaces_devices;
    changed_backend_or_mode_replaces_devices_without_a_store => false,
    changed_backend_or_mode_replaces_devices_with_a_store => true,
}

scenarios! { require_userspace_device_repair;
    udp_heals => &UDP,
    vxlan_in_userspace_heals => &VXLAN,
    wireguard_in_userspace_heals => &WIREGUARD,
}

/// The daemon gets a store of its own.
fn start_fd_store_for_node(s: &mut Scene<'_>, number: usize) -> Result<FileStore> {
    let store = FileStore::start(&s.lab.ensure_folder("")?.join(format!("notify{number}")))?;
    s[number].options = s[number].options.clone().fd_store(&store);
    Ok(store)
}

fn kill_or_stop_node(node: &mut Node, is_killed: bool) -> Result<()> {
    if is_killed { node.kill_daemon() } else { node.stop_daemon() }
}

/// The device and its routes survive restarts, and packets that wait in the device and the sockets meanwhile arrive.
fn restart_with_store_loses_no_packets(engine: &Engine) -> Result<()> {
    let scene =
        Scene::with_title(&format!("handover {}", engine.name)).net(&engine.dual_stack_net_conf());
    scene.daemon_arg("--probe-port=0").run(|s| {
        let _store = start_fd_store_for_node(s, 0)?;
        s[0].restart_daemon()?;
        s.wait_first_pods_connected()?;
        let pods = s.first_pods()?;
        let bind = |number: usize| -> Result<UdpSocket> {
            let socket = pods[number]
                .netns()
                .run(|| UdpSocket::bind((pods[number].v4()?, 0)).map_err(anyhow::Error::from))??;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            Ok(socket)
        };
        let sockets = [bind(0)?, bind(1)?];
        let addresses = [sockets[0].local_addr()?, sockets[1].local_addr()?];
        let state = |s: &Scene<'_>| {
            s[0].sh("ip -o link | grep -o '^.*flannel[^:]*:'; ip route; ip -6 route")
        };
        let before = state(s)?;
        for (round, is_killed) in (0..).zip([false, true, false]) {
            kill_or_stop_node(&mut s[0], is_killed)?;
            for number in 0..20 {
                sockets[0].send_to(&[round, number], addresses[1])?;
                sockets[1].send_to(&[round, number], addresses[0])?;
            }
            s[0].start_daemon()?;
            // WireGuard's sessions end with the process, so packets of the former sessions cannot be decrypted.
            let is_wireguard = engine.name == WIREGUARD.name;
            for socket in &sockets[usize::from(is_wireguard)..] {
                wait_all_datagrams_of_round(socket, round)?;
            }
            let begun = s[0].metric_or_zero(
                r#"flannel_datapath_handshakes_total{device="flannel-wg",event="initiated"}"#,
            );
            ensure!(begun > 0.0 || !is_wireguard, "the restarted node begins no session");
            s.wait_first_pods_connected()?;
            ensure!(state(s)? == before, "{before} became {}", state(s)?);
        }
        s.require_no_errors()
    })
}

fn wait_all_datagrams_of_round(socket: &UdpSocket, round: u8) -> Result<()> {
    let (mut missing, mut buffer): (BTreeSet<u8>, _) = ((0..20).collect(), [0; 8]);
    until("the packets that waited arrive", || {
        while socket.recv(&mut buffer).is_ok() {
            if buffer[0] == round {
                missing.remove(&buffer[1]);
            }
        }
        missing.is_empty()
    })
    .map(drop)
    .with_context(|| format!("{missing:?} of round {round}"))
}

/// A daemon replaces the device of an earlier one that had another backend or mode. If `is_kept` is true, a file descriptor store keeps the devices'
/// descriptors. Otherwise a TUN device goes with its process.
fn changed_backend_or_mode_replaces_devices(is_kept: bool) -> Result<()> {
    Scene::with_title("modes").net(&UDP.v4_net_conf()).run(|s| {
        let mut stores = Vec::new();
        if is_kept {
            for number in 0..2 {
                stores.push(start_fd_store_for_node(s, number)?);
            }
        }
        for (step, (net_conf, device, kind)) in [
            (UDP.v4_net_conf(), "flannel0", "tun"),
            (KERNEL.to_owned(), "flannel.1", "vxlan"),
            (VXLAN.v4_net_conf(), "flannel.1", "tun"),
            (WIREGUARD.v4_net_conf(), "flannel-wg", "tun"),
            (WIREGUARD.v4_net_conf(), "flannel-wg", "tun"),
            (KERNEL.to_owned(), "flannel.1", "vxlan"),
        ]
        .into_iter()
        .enumerate()
        {
            s.store.configure(&net_conf)?;
            for node in &mut s.nodes {
                let was_tun = flannel_device_kinds(node)?.iter().all(|(_, kind)| kind == "tun");
                kill_or_stop_node(node, step % 2 == 1)?;
                if was_tun && !is_kept {
                    until("the device goes with its process", || {
                        node.devices().is_ok_and(|left| left.is_empty())
                    })?;
                }
                node.start_daemon()?;
            }
            s.check_each_node(|node| {
                until_ok(&format!("step {step}: {device} alone is left"), || {
                    let kinds = flannel_device_kinds(node)?;
                    ensure!(kinds == [(device.to_owned(), kind.to_owned())], "{kinds:?}");
                    Ok(())
                })
            })?;
            // The MTU differs from that of the earlier device.
            s.wait_first_pods_connected()?;
            Transfer::run(&s[0].pods[0], &s[1].pods[0], 500_000, &TransferOptions::default())?;
            until("only what is used is kept", || {
                stores.iter().all(|store| {
                    if kind == "tun" { store.files().len() >= 2 } else { store.files().is_empty() }
                })
            })?;
        }
        s.require_no_errors()
    })
}

/// WireGuard's port in use is a test of the backends in the kernel's lane.
#[test]
fn udp_port_in_use_is_reported() -> Result<()> {
    Scene::with_title("port").net(&UDP.v4_net_conf()).run(|s| {
        s[0].stop_daemon()?;
        let address = s[0].v4()?;
        let taken = s[0].netns().run(|| UdpSocket::bind((address, UDP.ports[0])))??;
        s[0].launch_daemon()?;
        until("the port is named", || {
            s[0].daemon()
                .is_ok_and(|daemon| daemon.log().contains(&format!("{address}:{}", UDP.ports[0])))
        })?;
        drop(taken);
        // The daemon becomes ready when the port is free, whether it has ended, ends now or tries once more.
        until_ok("the node comes with the port", || {
            if !s[0].daemon_mut()?.is_running() {
                s[0].launch_daemon()?;
            }
            s[0].require_ready()
        })?;
        s.wait_first_pods_connected()
    })
}

/// After damage to the first host's device and its underlay, packets pass again, and the device has its MTU again.
fn require_userspace_device_repair(engine: &Engine) -> Result<()> {
    let device = engine.devices[0];
    let scene = Scene::with_title(&format!("heals {}", engine.name)).net(&engine.v4_net_conf());
    scene.daemon_arg("--audit-interval=0").run(|s| {
        for damage in [
            "ip link del DEVICE",
            "ip link set DEVICE down",
            "ip link set DEVICE mtu 1300",
            "ip link del DEVICE; ip link add DEVICE type dummy || true",
            "ip address del 192.168.56.101/24 dev enp0s8; ip address add 192.168.56.111/24 dev enp0s8",
            "ip address add 192.168.56.101/24 dev enp0s8; ip address del 192.168.56.111/24 dev enp0s8; ip address replace 192.168.56.101/24 dev enp0s8",
        ] {
            s[0].sh(&damage.replace("DEVICE", device))?;
            s.wait_first_pods_connected().with_context(|| damage.to_owned())?;
            until("the MTU is back", || {
                let link = s[0].netns().link(device);
                link.is_ok_and(|link| link.is_some_and(|link| link.mtu == s[0].pods[0].mtu()))
            })?;
        }
        s.require_no_errors()
    })
}

/// Writes and changes hundreds of leases while two nodes' pods exchange packets.
#[test]
fn lease_churn_loses_no_packet() -> Result<()> {
    let net_conf = r#"{"Network":"10.0.0.0/8","SubnetLen":24,"SubnetMin":"10.5.0.0","SubnetMax":"10.5.9.0","Backend":{"Type":"udp"}}"#;
    Scene::with_title("churn").net(net_conf).run(|s| {
        let mesh = s.start_mesh()?;
        mesh.wait_flowing()?;
        // Each round moves all peers.
        for round in 20..24 {
            for number in 0..200 {
                let value = format!(r#"{{"PublicIP":"172.{round}.1.{number}","PublicIPv6":null}}"#);
                s.put(&format!("10.100.{number}.0-24"), &value)?;
            }
            s.wait_leases_applied()?;
        }
        s[0].wait_metric_value("flannel_peers", 201.0)?;
        mesh.finish_and_require_clean()?;
        s.require_no_errors()
    })
}
