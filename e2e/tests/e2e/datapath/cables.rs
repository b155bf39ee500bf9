//! Tests that kernel vxlan and userspace vxlan exchange TCP and UDP packets over each virtual cable, even if no network card completes checksums.
//! A virtual cable delivers single packets and GSO packets as the sender's kernel passes them to a network card.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Cable, Capture, FlanneldOptions, Pod, Scene, Transfer, TransferOptions, until};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::datapath::engines::VXLAN;
use crate::datapath::flannel_device_kinds;
use crate::healing::scenarios;

const BULK: u64 = 2_000_000;
/// Each host's packet mode: the first two hosts run kernel vxlan, and the others userspace vxlan.
const MODES: [&str; 5] = ["", "", "offload", "mmsg", "plain"];
const KERNELS: usize = 2;
const KERNEL: &str = r#"{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#;
/// Of one datagram of a GSO packet, in bytes. The last one is shorter.
const SEGMENT: u16 = 1000;
const MARK: &[u8] = b"a flow of its own";

scenarios! { tunnels_carry_packets_over;
    kernel_and_userspace_vxlan_interoperate_over_an_untouched_veth => Cable::Veth,
    kernel_and_userspace_vxlan_interoperate_over_a_wire => Cable::Wire,
}

fn tunnels_carry_packets_over(cable: Cable) -> Result<()> {
    let options =
        |host: usize, options: FlanneldOptions| options.env("FLANNELD_DATAPATH", MODES[host]);
    let scene = Scene::with_title(cable.name()).nodes(5).net(&VXLAN.dual_stack_net_conf());
    scene.options(options).without_daemons().run(|s| {
        s.check_each_node(|node| cable.apply_to_uplink(node))?;
        // Each daemon reads the configuration when it starts. Both modes publish the same lease.
        s.nodes[KERNELS..].iter_mut().try_for_each(|node| node.start_daemon())?;
        s.store.configure(KERNEL)?;
        s.start_daemons_and_connected_pods()?;
        for (number, node) in s.nodes.iter().enumerate() {
            let kind = if number < KERNELS { "vxlan" } else { "tun" };
            let kinds = flannel_device_kinds(node)?;
            ensure!(kinds.len() == 2 && kinds.iter().all(|(_, is)| is == kind), "{kinds:?}");
            let features = node.sh("ethtool -k enp0s8")?;
            ensure!(features.contains("tx-checksum-ip-generic: on"), "{features}");
        }
        let pods = s.first_pods()?;
        for (a, from) in pods.iter().enumerate() {
            for (b, to) in pods.iter().enumerate().filter(|(b, _)| *b != a) {
                for (family, options) in
                    [TransferOptions::default(), TransferOptions::default().v6()].iter().enumerate()
                {
                    let what = || format!("{:?} to {:?}, family {family}", MODES[a], MODES[b]);
                    Transfer::run(from, to, BULK, options).with_context(what)?;
                    send_datagrams_until_all_arrive(from, to, family).with_context(what)?;
                }
            }
        }
        flows_keep_their_source_ports(s)?;
        s.require_no_errors()
    })
}

/// Depends only on the datagram's number and size.
fn numbered_datagram(number: usize, size: usize) -> Vec<u8> {
    let rest = (4..size).map(|at| (at * 7 + number * 13) as u8);
    (number as u32).to_be_bytes().into_iter().chain(rest).collect()
}

/// Datagrams of several sizes, and datagrams as one GSO packet. Lost ones are repeated until all have arrived unchanged.
fn send_datagrams_until_all_arrive(from: &Pod, to: &Pod, family: usize) -> Result<()> {
    let bind =
        |pod: &Pod| anyhow::Ok(pod.netns().run(|| UdpSocket::bind((pod.addresses()[family], 0)))??);
    let (out, into) = (bind(from)?, bind(to)?);
    out.connect(into.local_addr()?)?;
    into.set_read_timeout(Some(Duration::from_millis(500)))?;
    let single: Vec<_> = [4, 5, 99, 1000, 1300, 1401, 3000]
        .into_iter()
        .enumerate()
        .map(|(n, size)| numbered_datagram(n, size))
        .collect();
    let gathered: Vec<_> = (100..120)
        .map(|n| numbered_datagram(n, usize::from(SEGMENT) - usize::from(n == 119)))
        .collect();
    let mut buffer = vec![0; 65_536];
    for (wanted, is_gathered) in [(single, false), (gathered, true)] {
        let mut missing: BTreeSet<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
        let mut strange = None;
        until("all datagrams arrive", || {
            if is_gathered {
                let all = wanted.concat();
                let parts = [std::io::IoSlice::new(&all)];
                let _ = sendmsg::<()>(
                    out.as_raw_fd(),
                    &parts,
                    &[ControlMessage::UdpGsoSegments(&SEGMENT)],
                    MsgFlags::empty(),
                    None,
                );
            } else {
                // The path's MTU is smaller than the pod's device. The pod learns this from the first packet that is too long.
                missing.iter().for_each(|datagram| drop(out.send(datagram)));
            }
            while !missing.is_empty()
                && let Ok(length) = into.recv(&mut buffer)
            {
                let datagram = &buffer[..length];
                if !missing.remove(datagram) && !wanted.iter().any(|one| one == datagram) {
                    strange = Some(length);
                }
            }
            missing.is_empty() || strange.is_some()
        })?;
        ensure!(strange.is_none(), "changed on the path: {strange:?} bytes");
    }
    Ok(())
}

/// Each flow of a userspace node keeps its outer source port. Flows use several ports, so that the underlay can balance them.
fn flows_keep_their_source_ports(s: &Scene<'_>) -> Result<()> {
    let (from, to) = (&s[2].pods[0], &s[0].pods[0]);
    let sender = s[2].v4()?.octets();
    let target = to.v4()?;
    let capture = Capture::start(s.lan.netns())?;
    let flows = from.netns().run(|| {
        (0..24)
            .map(|_| UdpSocket::bind((from.v4()?, 0)).map_err(Into::into))
            .collect::<Result<Vec<_>>>()
    })??;
    for _ in 0..3 {
        for (number, flow) in flows.iter().enumerate() {
            flow.send_to(&[MARK, &[number as u8]].concat(), (target, 9))?;
        }
    }
    let mut ports: BTreeMap<u8, BTreeSet<[u8; 2]>> = BTreeMap::new();
    for frame in capture.finish()? {
        // The kernel's ICMP errors quote the mark, so the sender is compared as well.
        if frame.get(26..30) != Some(&sender) || frame.get(36..38) != Some(&[0x21, 0x18]) {
            continue;
        }
        // One frame holds the datagrams of several flows if the sender gathered those with one source port.
        let marks = frame.windows(MARK.len() + 1).filter_map(|window| window.strip_prefix(MARK));
        for flow in marks {
            ports.entry(flow[0]).or_default().insert([frame[34], frame[35]]);
        }
    }
    let distinct: BTreeSet<_> = ports.values().flatten().collect();
    ensure!(
        ports.len() == 24 && ports.values().all(|ports| ports.len() == 1) && distinct.len() >= 4,
        "{ports:?}"
    );
    Ok(())
}
