//! Tests that the userspace datapath of udp, vxlan and WireGuard carries packets unchanged in every packet mode.

pub(crate) mod cables;
pub(crate) mod engines;
pub(crate) mod hostile;
pub(crate) mod nested;
pub(crate) mod restart;
pub(crate) mod wireguard;

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use engines::{Engine, UDP, VXLAN, WIREGUARD, WIREGUARD_AUTO, WIREGUARD_IPV6};
use lab::{
    Capture, FlanneldOptions, Node, PingMatrix, PingOptions, Scene, Transfer, TransferOptions,
    until_ok,
};

use crate::healing::scenarios;

/// Each host's packet mode and number of queues.
const HOSTS: [(&str, &str); 3] = [("offload", "4"), ("mmsg", "1"), ("plain", "2")];
const BULK: u64 = 2_000_000;

scenarios! { packet_modes_interoperate;
    udp_passes_between_all_packet_modes => &UDP,
    vxlan_passes_between_all_packet_modes => &VXLAN,
    wireguard_passes_between_all_packet_modes => &WIREGUARD,
    wireguard_auto_passes_between_all_packet_modes => &WIREGUARD_AUTO,
    wireguard_ipv6_passes_between_all_packet_modes => &WIREGUARD_IPV6,
}

fn packet_modes_interoperate(engine: &Engine) -> Result<()> {
    let options = |host: usize, options: FlanneldOptions| {
        options
            .arg("--probe-port=0")
            .env("FLANNELD_DATAPATH", HOSTS[host].0)
            .env("FLANNELD_DATAPATH_QUEUES", HOSTS[host].1)
    };
    let scene = Scene::with_title(&format!("{} modes", engine.name)).nodes(3);
    scene.net(&engine.dual_stack_net_conf()).options(options).run(|s| {
        for (node, (_, queues)) in s.nodes.iter().zip(HOSTS) {
            let metrics = node.get_health_endpoint("/metrics")?.1;
            ensure!(
                metrics.contains(&format!("; {queues} queues")),
                "not {queues} queues:\n{metrics}"
            );
        }
        wait_pings_of_all_sizes_pass(s, engine)?;
        require_outer_packets_without_df(s, engine)?;
        for from in 0..3 {
            for to in (0..3).filter(|to| *to != from) {
                transfer_bulk_v4_and_v6(s, from, to)?;
            }
        }
        // Many flows at once spread over the queues.
        std::thread::scope(|scope| {
            let flow =
                || Transfer::run(&s[0].pods[0], &s[2].pods[0], BULK / 4, &Default::default());
            let flows: Vec<_> = (0..8).map(|_| scope.spawn(flow)).collect();
            flows.into_iter().try_for_each(|flow| flow.join().unwrap().map(drop))
        })?;
        // Only the mode `offload` moves several packets at once.
        let device = engine.devices[0];
        for direction in ["sent", "received"] {
            wait_for_datapath_counters(&s[0], device, direction, |packets, units| packets > units)?;
            wait_for_datapath_counters(&s[2], device, direction, |packets, units| {
                packets == units
            })?;
        }
        require_valid_checksums_without_offloads(s)?;
        s.require_no_errors()
    })
}

/// Packets of an even, an odd and the maximum length pass between all pods.
fn wait_pings_of_all_sizes_pass(s: &Scene<'_>, engine: &Engine) -> Result<()> {
    let pods = s.first_pods()?;
    for (family, overhead) in engine.overheads.into_iter().enumerate() {
        let targets: Vec<IpAddr> = pods.iter().map(|pod| pod.addresses()[family]).collect();
        for length in [84, 999, 1500 - overhead] {
            until_ok(&format!("packets of {length} bytes pass"), || {
                PingMatrix::between_addresses(
                    &pods,
                    &targets,
                    &PingOptions::default().packet_length(length),
                )?
                .require_complete()
            })?;
        }
    }
    Ok(())
}

/// Outer packets do not have the flag DF, so that a narrow router fragments them.
fn require_outer_packets_without_df(s: &Scene<'_>, engine: &Engine) -> Result<()> {
    let capture = Capture::start(s.lan.netns())?;
    s.wait_first_pods_connected()?;
    let frames = capture.finish()?;
    let port = engine.ports[0].to_be_bytes();
    let mut outer = frames
        .iter()
        .filter(|frame| frame.get(12..14) == Some(&[8, 0]) && frame.get(36..38) == Some(&port))
        .peekable();
    ensure!(
        outer.peek().is_some() || engine.name == WIREGUARD_IPV6.name,
        "the capture sees nothing"
    );
    let kept = outer.find(|frame| frame[20] & 0x40 != 0);
    ensure!(kept.is_none(), "not to be fragmented: {kept:02x?}");
    Ok(())
}

fn transfer_bulk_v4_and_v6(s: &Scene<'_>, from: usize, to: usize) -> Result<()> {
    for options in [TransferOptions::default(), TransferOptions::default().v6()] {
        Transfer::run(&s[from].pods[0], &s[to].pods[0], BULK, &options)?;
    }
    Ok(())
}

/// Waits until the counters of a device have a relation. A unit is one packet, or several that the datapath moves at once.
fn wait_for_datapath_counters(
    node: &Node,
    device: &str,
    direction: &str,
    holds: impl Fn(f64, f64) -> bool,
) -> Result<()> {
    until_ok(&format!("{device} {direction}"), || {
        let metrics = node.get_health_endpoint("/metrics")?.1;
        let of = |what: &str| -> Result<f64> {
            let name = format!(
                "flannel_datapath_{what}_total{{device=\"{device}\",direction=\"{direction}\"}} "
            );
            let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
            Ok(value.context(name)?.parse()?)
        };
        let (packets, units) = (of("packets")?, of("units")?);
        ensure!(holds(packets, units), "{packets} packets in {units} units");
        Ok(())
    })
}

/// The pods' kernels find no wrong checksum if no network card completes or trusts checksums.
fn require_valid_checksums_without_offloads(s: &Scene<'_>) -> Result<()> {
    // First the sender uses GSO packets, which arrive one by one. Then all packets move one by one.
    for number in [2, 0] {
        let off = "tx off rx off gso off gro off tso off";
        s[number].sh(&format!("for d in veth1 cni0 enp0s8; do ethtool -K $d {off}; done"))?;
        let pod = &s[number].pods[0];
        pod.netns().sh(&format!("ethtool -K eth0 {off}"))?;
        transfer_bulk_v4_and_v6(s, 0, 2)?;
        transfer_bulk_v4_and_v6(s, 2, 0)?;
    }
    for pod in s.pods() {
        let wrong = pod.netns().sh("nstat -asz TcpInCsumErrors | tail -1")?;
        let count = wrong.split_whitespace().nth(1);
        ensure!(count == Some("0"), "{}: {wrong}", pod.name());
    }
    Ok(())
}

/// flannel's devices on a host, each with its kind.
pub(crate) fn flannel_device_kinds(node: &Node) -> Result<Vec<(String, String)>> {
    let links = node.netns().links()?.into_iter();
    let ours = links.filter(|link| link.ifname.starts_with("flannel"));
    Ok(ours
        .map(|link| {
            let kind = link.linkinfo["info_kind"].as_str().unwrap_or_default();
            (link.ifname, kind.to_owned())
        })
        .collect())
}

#[test]
fn vxlan_mode_auto_uses_kernel_vxlan() -> Result<()> {
    let conf = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","Mode":"auto"}}"#;
    Scene::with_title("auto").nodes(1).net(conf).run(|s| {
        let kinds = flannel_device_kinds(&s[0])?;
        ensure!(kinds == [("flannel.1".to_owned(), "vxlan".to_owned())], "{kinds:?}");
        Ok(())
    })
}
