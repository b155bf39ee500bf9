//! Tests that the userspace datapath of udp, vxlan and WireGuard carries packets unchanged in every
//! packet mode. Userspace vxlan also exchanges packets with kernel vxlan.

pub(crate) mod engines;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use engines::{Engine, UDP, VXLAN, WIREGUARD, WIREGUARD_AUTO, WIREGUARD_IPV6};
use lab::craft::{changed, send_raw, tcp_packet, udp_packet};
use lab::{
    Bed, Capture, Host, Lab, PingMatrix, PingOptions, Pod, Transfer, TransferOptions, holds, until,
    until_ok,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::healing::scenarios;

/// Packet modes: how the datapath reads and writes packets.
const MODES: [&str; 3] = ["offload", "mmsg", "plain"];
const BULK: u64 = 8_000_000;

/// Starts one dual-stack host for each element of `values`, and passes the element to the host's daemon in the environment variable `variable`.
pub(crate) fn bed(lab: &Lab, engine: &Engine, variable: &str, values: &[&str]) -> Result<Bed> {
    Bed::start(
        lab,
        values.len().try_into()?,
        &engine.dual(),
        |number, options| options.env(variable, values[number]),
    )
}

/// Starts one host for each packet mode in `modes`, and runs the host's daemon in the host's packet mode.
pub(crate) fn bed_of_modes(lab: &Lab, engine: &Engine, modes: &[&str]) -> Result<Bed> {
    bed(lab, engine, "FLANNELD_DATAPATH", modes)
}

scenarios! { packet_modes_interoperate;
    udp_passes_between_all_packet_modes => &UDP,
    vxlan_passes_between_all_packet_modes => &VXLAN,
    wireguard_passes_between_all_packet_modes => &WIREGUARD,
    wireguard_auto_passes_between_all_packet_modes => &WIREGUARD_AUTO,
}

scenarios! { queues_interoperate;
    udp_passes_between_several_queues_and_one => &UDP,
    vxlan_passes_between_several_queues_and_one => &VXLAN,
    wireguard_passes_between_several_queues_and_one => &WIREGUARD_IPV6,
}

scenarios! { every_size_passes;
    udp_keeps_the_bytes_of_every_size => &UDP,
    vxlan_keeps_the_bytes_of_every_size => &VXLAN,
}

scenarios! { checksums_are_right;
    udp_checksums_are_right_without_offloads => &UDP,
    vxlan_checksums_are_right_without_offloads => &VXLAN,
}

scenarios! { offloads_change_no_byte;
    udp_delivers_the_same_bytes_with_and_without_offloads => &UDP,
    vxlan_delivers_the_same_bytes_with_and_without_offloads => &VXLAN,
}

/// Checks that all pairs of pods exchange small packets, packets of the maximum length and bulk data, in both address families.
fn all_carry(bed: &Bed, overheads: (u32, u32)) -> Result<()> {
    let pods = &bed.pods;
    let v4: Vec<IpAddr> = pods
        .iter()
        .map(|pod| Ok(pod.v4()?.into()))
        .collect::<Result<_>>()?;
    let v6: Vec<IpAddr> = pods
        .iter()
        .map(|pod| Ok(pod.v6()?.into()))
        .collect::<Result<_>>()?;
    for (targets, overhead) in [(v4, overheads.0), (v6, overheads.1)] {
        for length in [84, 1000, 1500 - overhead] {
            let matrix = || {
                PingMatrix::to(pods, &targets, &PingOptions::default().packet(length))?
                    .require_complete()
            };
            until_ok(&format!("packets of {length} bytes pass"), matrix)?;
        }
    }
    for from in 0..pods.len() {
        for to in (0..pods.len()).filter(|to| *to != from) {
            Transfer::run(&pods[from], &pods[to], BULK, &TransferOptions::default())?;
            Transfer::run(
                &pods[from],
                &pods[to],
                BULK,
                &TransferOptions::default().v6(),
            )?;
        }
    }
    bed.require_no_errors()
}

fn packet_modes_interoperate(engine: &Engine) -> Result<()> {
    Lab::run(&format!("{} modes", engine.name), |lab| {
        all_carry(&bed_of_modes(lab, engine, &MODES)?, engine.overheads)
    })
}

/// Checks that hosts whose datapath has several queues reach a host whose datapath has one queue.
fn queues_interoperate(engine: &Engine) -> Result<()> {
    Lab::run(&format!("{} queues", engine.name), |lab| {
        let queues = ["4", "1", "2"];
        let bed = bed(lab, engine, "FLANNELD_DATAPATH_QUEUES", &queues)?;
        for (daemon, queues) in bed.daemons.iter().zip(queues) {
            let (_, text) = daemon.get("/metrics")?;
            ensure!(
                text.contains(&format!("; {queues} queues")),
                "not {queues} queues:\n{text}"
            );
        }
        all_carry(&bed, engine.overheads)?;
        // Many flows at once spread over the queues.
        for (from, to) in [(0, 2), (2, 0)] {
            std::thread::scope(|scope| {
                let flow = || {
                    Transfer::run(
                        &bed.pods[from],
                        &bed.pods[to],
                        BULK / 4,
                        &TransferOptions::default(),
                    )
                };
                let flows: Vec<_> = (0..12).map(|_| scope.spawn(flow)).collect();
                flows
                    .into_iter()
                    .try_for_each(|flow| flow.join().unwrap().map(drop))
            })?;
        }
        bed.require_no_errors()
    })
}

fn kernel_vxlan(backend: &serde_json::Value) -> String {
    json!({ "EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd00:5::/48", "Backend": backend }).to_string()
}

/// One host runs kernel vxlan, and the other host runs userspace vxlan.
#[test]
fn userspace_vxlan_interoperates_with_kernel_vxlan() -> Result<()> {
    Lab::run("mixed", |lab| {
        let mut bed = bed_of_modes(lab, &VXLAN, &["offload", "offload"])?;
        bed.daemons[1].terminate()?;
        bed.store
            .configure(&kernel_vxlan(&json!({ "Type": "vxlan" })))?;
        bed.daemons[1] = bed.hosts[1].flanneld(&bed.options[1])?;
        for (host, kind) in bed.hosts.iter().zip(["tun", "vxlan"]) {
            for device in ["flannel.1", "flannel-v6.1"] {
                let link = host
                    .netns()
                    .link(device)?
                    .with_context(|| format!("no {device} on {}", host.name()))?;
                ensure!(
                    link.linkinfo["info_kind"] == kind,
                    "{} on {}: {}",
                    device,
                    host.name(),
                    link.linkinfo
                );
            }
        }
        bed.reach()?;
        all_carry(&bed, VXLAN.overheads)?;
        for ipv6 in [false, true] {
            source_ports(&bed, ipv6)?;
        }
        Ok(())
    })
}

/// Checks that each flow keeps its outer source port, and that flows use several ports, so that the underlay can balance the flows.
fn source_ports(bed: &Bed, ipv6: bool) -> Result<()> {
    let address = |number: usize| bed.pods[number].addresses()[usize::from(ipv6)];
    let (from, to) = (address(0), address(1));
    let capture = Capture::start(bed.hosts[1].netns())?;
    for _ in 0..3 {
        for flow in 0..24_u16 {
            let mark = [b"a flow of its own", flow.to_be_bytes().as_slice()].concat();
            let packet = udp_packet(
                SocketAddr::new(from, 20_000 + flow),
                SocketAddr::new(to, 9),
                64,
                &mark,
            );
            send_raw(bed.pods[0].netns(), &[packet])?;
        }
    }
    let mut ports: BTreeMap<u16, BTreeSet<u16>> = BTreeMap::new();
    let outer = 14 + if ipv6 { 40 } else { 20 };
    let sender = if ipv6 {
        bed.hosts[0].v6()?.octets().to_vec()
    } else {
        bed.hosts[0].v4()?.octets().to_vec()
    };
    for frame in capture.finish()? {
        let word = |at: usize| {
            frame
                .get(at..at + 2)
                .map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
        };
        // The kernel's ICMP errors quote the mark, so the sender is compared as well.
        let source = if ipv6 {
            frame.get(22..38)
        } else {
            frame.get(26..30)
        };
        if source == Some(&sender) && word(outer + 2) == 8472 && holds(&frame, b"a flow of its own")
        {
            ports
                .entry(word(frame.len() - 2))
                .or_default()
                .insert(word(outer));
        }
    }
    ensure!(ports.len() == 24, "{} of 24 flows arrived", ports.len());
    ensure!(
        ports.values().all(|ports| ports.len() == 1),
        "a flow changes its port: {ports:?}"
    );
    let distinct: BTreeSet<_> = ports.values().flatten().collect();
    ensure!(
        distinct.len() >= 4 && !distinct.contains(&8472),
        "24 flows leave by {distinct:?}"
    );
    Ok(())
}

#[test]
fn vxlan_mode_auto_uses_kernel_vxlan() -> Result<()> {
    Lab::run("auto", |lab| {
        let bed = Bed::start(
            lab,
            2,
            &kernel_vxlan(&json!({ "Type": "vxlan", "Mode": "auto" })),
            |_, options| options,
        )?;
        for device in ["flannel.1", "flannel-v6.1"] {
            let link = bed.hosts[0].netns().link(device)?.context("no device")?;
            ensure!(link.linkinfo["info_kind"] == "vxlan", "{}", link.linkinfo);
        }
        bed.require_no_errors()
    })
}

/// Returns sizes of UDP payloads: at regular steps, and around the maximum sizes of packets and fragments.
fn sizes(mtu: usize) -> Vec<usize> {
    let headers = [28, 48];
    let borders = headers.into_iter().flat_map(|headers| {
        (1..=4).flat_map(move |count| {
            (-2_isize..=2).map(move |off| (count * (mtu - headers)).saturating_add_signed(off))
        })
    });
    // The payload of a fragment is a multiple of eight bytes.
    let fragments = (1..=6).map(|count| count * ((mtu - 20) & !7));
    (0..=9000)
        .step_by(37)
        .chain(borders)
        .chain(fragments)
        .chain([1, 2, 3, 7, 8, 9])
        .filter(|size| *size <= 9000)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// Returns a datagram whose bytes depend only on its length.
fn content(size: usize) -> Vec<u8> {
    let mut state = size as u32 ^ 0x9e37_79b9;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}

/// Sends one datagram of each size, a few at a time, and repeats lost datagrams.
fn every_size(from: &Pod, to: &Pod, ipv6: bool) -> Result<()> {
    let address = |pod: &Pod| pod.addresses()[usize::from(ipv6)];
    let (source, target) = (address(from), address(to));
    let into = to.netns().run(|| UdpSocket::bind((target, 0)))??;
    let out = from.netns().run(|| UdpSocket::bind((source, 0)))??;
    out.connect(into.local_addr()?)?;
    into.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut buffer = vec![0; 65_536];
    let what = |size: usize| {
        format!(
            "{size} bytes from {} to {}, IPv{}",
            from.name(),
            to.name(),
            if ipv6 { 6 } else { 4 }
        )
    };
    for some in sizes(from.mtu() as usize).chunks(16) {
        let mut missing: BTreeSet<usize> = some.iter().copied().collect();
        for _ in 0..5 {
            for size in &missing {
                match out.send(&content(*size)) {
                    // The path's MTU is smaller than the pod's device. The pod learns this from the first packet that is too long.
                    Err(error) if error.raw_os_error() == Some(nix::libc::EMSGSIZE) => {}
                    sent => drop(sent.with_context(|| what(*size))?),
                }
            }
            while !missing.is_empty() {
                let Ok(length) = into.recv(&mut buffer) else {
                    break;
                };
                ensure!(
                    buffer[..length] == content(length),
                    "changed on the path: {}",
                    what(length)
                );
                missing.remove(&length);
            }
        }
        ensure!(
            missing.is_empty(),
            "never arrived: {missing:?}; {}",
            what(0)
        );
    }
    Ok(())
}

fn every_size_passes(engine: &Engine) -> Result<()> {
    Lab::run(&format!("{} sizes", engine.name), |lab| {
        let bed = bed_of_modes(lab, engine, &["offload", "offload", "plain"])?;
        for (from, to) in [(0, 1), (0, 2), (2, 0)] {
            for ipv6 in [false, true] {
                every_size(&bed.pods[from], &bed.pods[to], ipv6)?;
            }
        }
        bed.require_no_errors()
    })
}

/// Disables the offloads of the network cards on the path between a host and its pod.
fn switch_off_offloads(host: &Host, pod: &Pod) -> Result<()> {
    let off = [
        "tx", "off", "rx", "off", "gso", "off", "gro", "off", "tso", "off",
    ];
    for (netns, device) in [
        (host.netns(), "veth1"),
        (host.netns(), "cni0"),
        (host.netns(), "enp0s8"),
        (pod.netns(), "eth0"),
    ] {
        netns.exec("ethtool", &[&["-K", device], off.as_slice()].concat())?;
    }
    Ok(())
}

/// Returns the metrics `packets` and `units` of a device in one direction. A unit is one packet, or several packets that the datapath moves at once.
fn gathered(bed: &Bed, number: usize, device: &str, direction: &str) -> Result<(f64, f64)> {
    let of = |what: &str| {
        bed.daemons[number].metric(&format!(
            "flannel_datapath_{what}_total{{device=\"{device}\",direction=\"{direction}\"}}"
        ))
    };
    // Packets of the kernel's own, such as neighbour solicitations, may pass between the two reads.
    let mut packets = of("packets")?;
    for _ in 0..100 {
        let (pieces, still) = (of("units")?, of("packets")?);
        if still == packets {
            return Ok((packets, pieces));
        }
        packets = still;
    }
    anyhow::bail!("the counters of {device} never stand still")
}

/// Transfers bulk data while tcpdump verifies the checksum of every packet that arrives in the pod.
fn checked_by_tcpdump(lab: &Lab, from: &Pod, to: &Pod, options: &TransferOptions) -> Result<()> {
    let file = lab.folder("pcap")?.join("bulk.pcap");
    let _ = std::fs::remove_file(&file);
    let path = file.to_string_lossy().into_owned();
    let mut tcpdump = to.netns().run(|| {
        let args = ["-i", "eth0", "-n", "-U", "-B", "65536", "-w", &path, "tcp"];
        Command::new("tcpdump")
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
    })??;
    let mut lines = BufReader::new(tcpdump.stderr.take().unwrap()).lines();
    ensure!(
        lines.any(|line| line.is_ok_and(|line| line.contains("listening on"))),
        "tcpdump does not listen"
    );
    let transfer = Transfer::run(from, to, 2_000_000, options);
    // On a busy machine tcpdump lags behind, so this waits until its file has stopped growing.
    let (mut length, mut since) = (0, Instant::now());
    until("tcpdump has written everything", || {
        let now = std::fs::metadata(&file).map_or(0, |file| file.len());
        if now != length {
            (length, since) = (now, Instant::now());
        }
        length > 0 && since.elapsed() >= Duration::from_millis(300)
    })?;
    kill(Pid::from_raw(i32::try_from(tcpdump.id())?), Signal::SIGINT)?;
    tcpdump.wait()?;
    transfer?;
    let text = String::from_utf8_lossy(
        &Command::new("tcpdump")
            .args(["-nn", "-vv", "-r", &path])
            .output()?
            .stdout,
    )
    .into_owned();
    let correct = text
        .lines()
        .filter(|line| line.contains("(correct)"))
        .count();
    let wrong: Vec<_> = text
        .lines()
        .filter(|line| line.contains("incorrect") || line.contains("bad cksum"))
        .take(3)
        .collect();
    ensure!(
        wrong.is_empty(),
        "wrong checksums arrive at {}:\n{}",
        to.name(),
        wrong.join("\n")
    );
    ensure!(correct > 1000, "tcpdump has checked {correct} packets only");
    Ok(())
}

/// Checks with tcpdump that all checksums are correct if the interfaces have no offloads.
fn checksums_are_right(engine: &Engine) -> Result<()> {
    Lab::run(&format!("{} checksums", engine.name), |lab| {
        let bed = bed_of_modes(lab, engine, &["offload", "offload"])?;
        let (from, to) = (&bed.pods[0], &bed.pods[1]);
        // First the sender uses GSO packets, which arrive one by one. Then all packets move one by one.
        for number in [1, 0] {
            switch_off_offloads(&bed.hosts[number], &bed.pods[number])?;
            checked_by_tcpdump(lab, from, to, &TransferOptions::default())?;
            checked_by_tcpdump(lab, from, to, &TransferOptions::default().v6())?;
            if number == 1 {
                let (packets, pieces) = gathered(&bed, 0, engine.device, "sent")?;
                ensure!(
                    packets > pieces * 2.0,
                    "{packets} packets in {pieces} pieces: hardly any super-packet left"
                );
            }
        }
        bed.require_no_errors()
    })
}

/// Returns TCP and UDP packets that merging or splitting could damage.
fn kinds(from: IpAddr, to: IpAddr) -> Vec<Vec<u8>> {
    let at = |ip, port| SocketAddr::new(ip, port);
    let v4 = from.is_ipv4();
    let tos = |packet: &[u8], tos: u8| {
        changed(packet, |packet| {
            if v4 {
                packet[1] = tos;
            } else {
                packet[0] = 0x60 | tos >> 4;
                packet[1] = tos << 4;
            }
        })
    };
    let last = |packet: &[u8]| {
        let mut packet = packet.to_vec();
        *packet.last_mut().unwrap() ^= 0xff;
        packet
    };
    let mut packets = Vec::new();
    // One TCP stream: segments that follow each other or not, flags, a gap, a wrong checksum, TOS values, a short last segment.
    let mut sequence = 1000_u32;
    let mut segment = |size: usize, flags: u8, step: u32| {
        let packet = tcp_packet(at(from, 40_001), at(to, 9), sequence, flags, &content(size));
        sequence = sequence.wrapping_add(size as u32 + step);
        packet
    };
    packets.extend((0..8).map(|_| segment(1000, 0x10, 0)));
    packets.push(segment(1000, 0x18, 0));
    packets.extend([
        segment(1000, 0x10, 0),
        segment(300, 0x10, 0),
        segment(1000, 0x10, 0),
    ]);
    packets.extend([segment(1000, 0x10, 500), segment(1000, 0x10, 0)]);
    packets.push(last(&segment(1000, 0x10, 0)));
    packets.push(tos(&segment(1000, 0x10, 0), 3));
    packets.push(tos(&segment(1000, 0x10, 0), 0xb8));
    packets.extend([
        segment(1000, 0x30, 0),
        segment(1000, 0x11, 0),
        segment(0, 0x10, 0),
        segment(0, 0x10, 0),
        segment(1000, 0x04, 0),
    ]);
    sequence = 0xffff_fc00;
    packets.extend((0..4).map(|number| {
        tcp_packet(
            at(from, 40_002),
            at(to, 9),
            sequence.wrapping_add(number * 1000),
            0x10,
            &content(1000),
        )
    }));
    // UDP datagrams: equal sizes, a shorter last one, a longer one, without a checksum, with a wrong one, two alternating flows.
    let datagram = |port, size: usize| udp_packet(at(from, port), at(to, 9), 64, &content(size));
    packets.extend((0..6).map(|_| datagram(50_001, 700)));
    packets.extend([
        datagram(50_001, 200),
        datagram(50_001, 701),
        datagram(50_001, 0),
        datagram(50_001, 1),
    ]);
    packets.extend((0..8).map(|number| datagram(50_002 + number % 2, 900)));
    packets.push(last(&datagram(50_004, 700)));
    packets.push(last(&datagram(50_004, 701)));
    if v4 {
        let mut unsummed = datagram(50_005, 700);
        unsummed[26..28].fill(0);
        packets.extend([unsummed.clone(), unsummed]);
        // A first fragment without the rest, another TTL, and the flag DF.
        packets.push(changed(&datagram(50_006, 704), |packet| packet[6] = 0x20));
        packets.push(changed(&datagram(50_006, 700), |packet| packet[8] = 33));
        packets.push(changed(&datagram(50_006, 700), |packet| packet[6] = 0x40));
    }
    packets
}

/// Returns the packets from one address that a pod received. Zeroes the IPv4 identification and header checksum, which may differ between packet modes.
fn seen(frames: &[Vec<u8>], from: IpAddr) -> Vec<Vec<u8>> {
    let normal = |frame: &Vec<u8>| {
        let mut packet = frame.get(14..)?.to_vec();
        match (from, packet.first()? >> 4) {
            (IpAddr::V4(from), 4) if packet.get(12..16)? == from.octets() => {
                packet[4..6].fill(0);
                packet[10..12].fill(0);
            }
            (IpAddr::V6(from), 6) if packet.get(8..24)? == from.octets() => {}
            _ => return None,
        }
        let at = if from.is_ipv4() { 20 } else { 40 };
        let ours = matches!(packet.get(at..at + 2)?, [high, low] if matches!(u16::from_be_bytes([*high, *low]), 40_000..=40_010 | 50_000..=50_010));
        ours.then_some(packet)
    };
    frames.iter().filter_map(normal).collect()
}

/// Checks that the datapath delivers the same bytes whether it merges and splits packets or moves each packet separately.
fn offloads_change_no_byte(engine: &Engine) -> Result<()> {
    Lab::run(&format!("{} differential", engine.name), |lab| {
        let mut bed = bed_of_modes(lab, engine, &["offload", "offload"])?;
        switch_off_offloads(&bed.hosts[1], &bed.pods[1])?;
        let merged = delivered(&bed, engine, "offload")?;
        for number in 0..2 {
            bed.daemons[number].terminate()?;
            let options = bed.options[number]
                .clone()
                .env("FLANNELD_DATAPATH", "plain");
            bed.daemons[number] = bed.hosts[number].flanneld(&options)?;
        }
        bed.reach()?;
        let plain = delivered(&bed, engine, "plain")?;
        for (number, (merged, plain)) in merged.iter().zip(&plain).enumerate() {
            ensure!(
                merged == plain,
                "packet {number}:\n{merged:02x?}\nand one by one\n{plain:02x?}"
            );
        }
        bed.require_no_errors()
    })
}

/// Sends the packets of [`kinds`] in both address families, and returns the packets that the second pod receives.
/// Checks that the datapath merges packets in the mode `offload`, and in no other mode.
fn delivered(bed: &Bed, engine: &Engine, mode: &str) -> Result<Vec<Vec<u8>>> {
    let before = gathered(bed, 1, engine.device, "received")?;
    let mut all = Vec::new();
    for (from, to) in bed.pods[0]
        .addresses()
        .into_iter()
        .zip(bed.pods[1].addresses())
    {
        let packets = kinds(from, to);
        let capture = Capture::start(bed.pods[1].netns())?;
        pass_in_one_batch(bed, engine.device_of(from.is_ipv6()), &packets)?;
        let mut seen = seen(&capture.finish()?, from);
        ensure!(
            seen.len() == packets.len(),
            "{mode}: {} of {} packets arrived",
            seen.len(),
            packets.len()
        );
        // The order between flows is undefined.
        let at = if from.is_ipv4() { 20 } else { 40 };
        seen.sort_by_key(|packet| packet[at..at + 2].to_vec());
        all.extend(seen);
    }
    let after = gathered(bed, 1, engine.device, "received")?;
    let (packets, pieces) = (after.0 - before.0, after.1 - before.1);
    ensure!(
        (pieces < packets) == (mode == "offload"),
        "{mode}: {packets} packets in {pieces} pieces"
    );
    Ok(all)
}

/// Sends packets from the first pod while both daemons are suspended. Each resumed daemon reads all packets
/// in one batch and merges as many packets as possible.
fn pass_in_one_batch(bed: &Bed, device: &str, packets: &[Vec<u8>]) -> Result<()> {
    let count = packets.len() as f64;
    let before = gathered(bed, 1, device, "received")?;
    let sent = || gathered(bed, 0, device, "sent").map_or(0.0, |(packets, _)| packets);
    let sent_before = sent();
    bed.daemons[..2]
        .iter()
        .try_for_each(|daemon| daemon.stop())?;
    send_raw(bed.pods[0].netns(), packets)?;
    bed.daemons[0].cont()?;
    until("the first engine has sent all packets", || {
        sent() >= sent_before + count
    })?;
    bed.daemons[1].cont()?;
    until_ok("all packets pass", || {
        let passed = gathered(bed, 1, device, "received")?.0 - before.0;
        ensure!(passed >= count, "{passed} of {}", packets.len());
        Ok(())
    })
}
