//! Tests that the tunnel drops a pod's datagrams to another node's tunnel port. Datagrams from a pod to the same port number of another pod arrive.

use std::net::{IpAddr, UdpSocket};

use anyhow::{Result, ensure};
use lab::{Capture, Scene, frame_contains_bytes, until};

use crate::datapath::engines::{Engine, UDP, VXLAN, WIREGUARD};
use crate::healing::scenarios;

/// Every packet of this test contains it, and no other one.
const MARK: &[u8; 16] = b"\xfe\xed nested  \x00\x01\x02\x03\x04";
const COPIES: u32 = 5;

scenarios! { nested_tunnel_datagrams_are_dropped;
    datagrams_to_a_node_are_dropped_by_udp => &UDP,
    datagrams_to_a_node_are_dropped_by_vxlan => &VXLAN,
    datagrams_to_a_node_are_dropped_by_wireguard => &WIREGUARD,
}

fn nested_tunnel_datagrams_are_dropped(engine: &Engine) -> Result<()> {
    let scene = Scene::with_title(&format!("nested {}", engine.name));
    scene.net(&engine.dual_stack_net_conf()).daemon_arg("--probe-port=0").run(|s| {
        for family in [0, 1] {
            // udp carries both address families over IPv4.
            if family == 0 || engine.name != UDP.name {
                require_nested_packets_dropped(s, engine, family)?;
            }
        }
        s.require_no_errors()
    })
}

fn require_nested_packets_dropped(s: &Scene<'_>, engine: &Engine, family: usize) -> Result<()> {
    let (device, port) = (engine.devices[family], engine.ports[family]);
    let node: IpAddr = if family == 0 { s[1].v4()?.into() } else { s[1].v6()?.into() };
    let [from, to] = [0, 1].map(|number| s[number].pods[0].addresses()[family]);
    let [socket, peer] = [(0, from, 0), (1, to, port)].map(|(number, address, port)| {
        let bind = || UdpSocket::bind((address, port));
        s[number].pods[0].netns().run(bind)
    });
    let (socket, peer) = (socket??, peer??);
    let dropped = || {
        s[0].metric_or_zero(&format!(r#"flannel_datapath_dropped_packets_total{{device="{device}",direction="sent",reason="loop"}}"#))
    };
    // Routes the pod's packets to the other node into the tunnel, as where the pod network contains the nodes.
    let ip = ["ip -4", "ip -6"][family];
    s[0].sh(&format!("{ip} route add {node} dev {device} table 77 && {ip} rule add from {from} to {node} lookup 77"))?;
    let (capture, before) = (Capture::start(s.lan.netns())?, dropped());
    for _ in 0..COPIES {
        socket.send_to(MARK, (node, port))?;
    }
    until("all are counted", || dropped() - before >= f64::from(COPIES))?;
    ensure!(
        !capture.finish()?.iter().any(|frame| frame_contains_bytes(frame, MARK)),
        "{device}: a packet left"
    );
    // The same port of a pod is reachable.
    socket.send_to(MARK, (to, port))?;
    let mut buffer = [0; 64];
    let length = peer.recv(&mut buffer)?;
    ensure!(&buffer[..length] == MARK && dropped() - before == f64::from(COPIES), "{device}");
    Ok(())
}
