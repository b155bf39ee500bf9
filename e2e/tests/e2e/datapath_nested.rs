//! Tests that the tunnel drops a pod's datagrams to another node's tunnel port. Datagrams from a pod to the same port number of another pod arrive.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Bed, Capture, Lab, holds, until};

use crate::datapath::engines::{Engine, UDP, VXLAN, WIREGUARD};
use crate::healing::scenarios;

const SOON: Duration = Duration::from_secs(30);
/// Bytes that every packet of this test contains and no other packet contains.
const MARK: &[u8; 16] = b"\xfe\xed nested  \x00\x01\x02\x03\x04";
const COPIES: u64 = 5;

scenarios! { tunnel_datagrams_stay_out;
    datagrams_to_a_node_are_dropped_by_udp => &UDP,
    datagrams_to_a_node_are_dropped_by_vxlan => &VXLAN,
    datagrams_to_a_node_are_dropped_by_wireguard => &WIREGUARD,
}

/// A tunnel device, its UDP port, and the address family of the underlay.
struct Tunnel {
    device: &'static str,
    port: u16,
    ipv6: bool,
}

impl Tunnel {
    /// Returns one tunnel for each device: udp carries both address families over IPv4.
    fn all_of(engine: &Engine) -> Vec<Tunnel> {
        let v4 = Tunnel {
            device: engine.device,
            port: engine.port,
            ipv6: false,
        };
        let v6 = Tunnel {
            device: engine.v6_device,
            port: engine.v6_port,
            ipv6: true,
        };
        if v4.device == v6.device {
            vec![v4]
        } else {
            vec![v4, v6]
        }
    }

    fn of(&self, both: [IpAddr; 2]) -> IpAddr {
        both[usize::from(self.ipv6)]
    }

    fn dropped(&self, bed: &Bed) -> u64 {
        let labels = format!(
            "{{device=\"{}\",direction=\"sent\",reason=\"loop\"}}",
            self.device
        );
        // A counter that is zero has no line.
        bed.daemons[0]
            .metric(&format!("flannel_datapath_dropped_packets_total{labels}"))
            .unwrap_or(0.0) as u64
    }
}

fn check(bed: &Bed, tunnel: &Tunnel) -> Result<()> {
    let what = format!("{} port {}", tunnel.device, tunnel.port);
    let nodes: Vec<IpAddr> = bed
        .hosts
        .iter()
        .map(|host| Ok(tunnel.of([host.v4()?.into(), host.v6()?.into()])))
        .collect::<Result<_>>()?;
    let pods: Vec<IpAddr> = bed
        .pods
        .iter()
        .map(|pod| Ok(tunnel.of([pod.v4()?.into(), pod.v6()?.into()])))
        .collect::<Result<_>>()?;
    // Routes the pod's packets to the other node into the tunnel, as where the pod network contains the nodes.
    let family = if tunnel.ipv6 { "-6" } else { "-4" };
    let (node, device) = (nodes[1], tunnel.device);
    let rule = format!(
        "ip {family} route add {node} dev {device} table 77 && ip {family} rule add from {} to {node} lookup 77",
        pods[0]
    );
    bed.hosts[0].netns().sh(&rule)?;
    let pod = bed.pods[0]
        .netns()
        .run(|| UdpSocket::bind((pods[0], 0)))??;
    let capture = Capture::start(bed.lan.netns())?;
    let before = tunnel.dropped(bed);
    for _ in 0..COPIES {
        pod.send_to(MARK, (node, tunnel.port))?;
    }
    until(&what, || tunnel.dropped(bed) - before == COPIES)
        .with_context(|| format!("{} of {COPIES} were counted", tunnel.dropped(bed) - before))?;
    ensure!(
        !capture.finish()?.iter().any(|frame| holds(frame, MARK)),
        "{what}: a packet left"
    );
    // The same port of a pod is reachable.
    let peer = bed.pods[1]
        .netns()
        .run(|| UdpSocket::bind((pods[1], tunnel.port)))??;
    peer.set_read_timeout(Some(SOON))?;
    pod.send_to(MARK, SocketAddr::new(pods[1], tunnel.port))?;
    let mut buffer = [0; 64];
    let length = peer
        .recv(&mut buffer)
        .with_context(|| format!("{what}: pods do not reach each other"))?;
    ensure!(
        &buffer[..length] == MARK && tunnel.dropped(bed) - before == COPIES,
        "{what}: another packet"
    );
    bed.hosts[0].netns().sh(&format!(
        "ip {family} rule del from {} to {node} lookup 77; ip {family} route flush table 77",
        pods[0]
    ))?;
    Ok(())
}

fn tunnel_datagrams_stay_out(engine: &Engine) -> Result<()> {
    Lab::run(&format!("nested {}", engine.name), |lab| {
        let bed = Bed::start(lab, 2, &engine.dual(), |_, options| {
            options.arg("--probe-port=0")
        })?;
        Tunnel::all_of(engine)
            .iter()
            .try_for_each(|tunnel| check(&bed, tunnel))?;
        let log = bed.daemons[0].log();
        ensure!(
            log.contains("flanneld would send it into the tunnel again"),
            "not logged:\n{log}"
        );
        bed.reach()?;
        bed.require_no_errors()
    })
}
