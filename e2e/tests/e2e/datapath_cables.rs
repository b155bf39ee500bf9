//! Proves that the kernel's vxlan and ours carry TCP and UDP to each other over any cable, whose checksums nobody completes: a virtual cable hands over
//! what its sender's kernel left to a network card, single packets and super-packets.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Bed, Cable, Lab, Pod, Transfer, TransferOptions};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::json;

const STOP: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_secs(15);
const BULK: u64 = 2_000_000;
/// How each host moves packets: the first two by the kernel's vxlan, the others by ours.
const WAYS: [&str; 5] = ["", "", "offload", "mmsg", "plain"];
const KERNELS: usize = 2;
/// Payload of one datagram of a super-packet, and how many make one.
const SEGMENT: u16 = 1000;
const SEGMENTS: usize = 20;

fn conf(mode: &str) -> String {
    json!({ "EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd00:5::/48", "Backend": { "Type": "vxlan", "Mode": mode } }).to_string()
}

fn bed(lab: &Lab, cable: Cable) -> Result<Bed> {
    let lan = lab.switch("lan")?;
    let hosts = lab.hosts(&lan, WAYS.len().try_into()?)?;
    hosts.iter().try_for_each(|host| cable.lay(host))?;
    // Both modes publish the same, so the two may read different configurations of one network.
    let mut bed = Bed::on(lab, &lan, hosts, &conf("userspace"), |number, options| {
        options.env("FLANNELD_DATAPATH", WAYS[number])
    })?;
    bed.store.configure(&conf("kernel"))?;
    for number in 0..KERNELS {
        bed.daemons[number].terminate(STOP)?;
        bed.daemons[number] = bed.hosts[number].flanneld(&bed.options[number])?;
    }
    for (number, host) in bed.hosts.iter().enumerate() {
        let link = host
            .netns()
            .link("flannel.1")?
            .with_context(|| format!("no flannel.1 on {}", host.name()))?;
        let kind = if number < KERNELS { "vxlan" } else { "tun" };
        ensure!(
            link.linkinfo["info_kind"] == kind,
            "{}: {}",
            host.name(),
            link.linkinfo
        );
        let features = host.netns().exec("ethtool", &["-k", "enp0s8"])?;
        ensure!(
            features.contains("tx-checksum-ip-generic: on"),
            "the cable of {} completes checksums:\n{features}",
            host.name()
        );
    }
    bed.reach()?;
    Ok(bed)
}

/// The bytes of a datagram, which all follow from its number.
fn content(number: usize, size: usize) -> Vec<u8> {
    (number as u32)
        .to_be_bytes()
        .into_iter()
        .chain((0..size.saturating_sub(4)).map(|at| (at * 7 + number * 13) as u8))
        .collect()
}

/// Datagrams of several sizes, fragmented ones and super-packets among them; who is lost is sent again.
fn datagrams(from: &Pod, to: &Pod, ipv6: bool) -> Result<()> {
    let address = |pod: &Pod| pod.addresses()[usize::from(ipv6)];
    let into = to.netns().run(|| UdpSocket::bind((address(to), 0)))??;
    let out = from.netns().run(|| UdpSocket::bind((address(from), 0)))??;
    out.connect(into.local_addr()?)?;
    into.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut buffer = vec![0; 65_536];
    let what = || {
        format!(
            "datagrams from {} to {}, IPv{}",
            from.name(),
            to.name(),
            if ipv6 { 6 } else { 4 }
        )
    };
    let single: Vec<Vec<u8>> = [4, 5, 99, 1000, 1300, 1401, 3000]
        .iter()
        .enumerate()
        .map(|(number, size)| content(number, *size))
        .collect();
    let many: Vec<Vec<u8>> = (0..SEGMENTS)
        .map(|number| {
            content(
                100 + number,
                usize::from(SEGMENT) - usize::from(number + 1 == SEGMENTS),
            )
        })
        .collect();
    for gather in [false, true] {
        let wanted = if gather { &many } else { &single };
        let mut missing: BTreeSet<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
        let end = Instant::now() + SOON;
        while !missing.is_empty() {
            ensure!(
                Instant::now() < end,
                "{}: {} of {} never arrived (gathered: {gather})",
                what(),
                missing.len(),
                wanted.len()
            );
            if gather {
                let all = many.concat();
                let iov = [std::io::IoSlice::new(&all)];
                sendmsg::<()>(
                    out.as_raw_fd(),
                    &iov,
                    &[ControlMessage::UdpGsoSegments(&SEGMENT)],
                    MsgFlags::empty(),
                    None,
                )
                .with_context(what)?;
            } else {
                for datagram in &missing {
                    match out.send(datagram) {
                        // The way is narrower than the pod's device, as it learns from the first packet that is too long.
                        Err(error) if error.raw_os_error() == Some(nix::libc::EMSGSIZE) => {}
                        sent => drop(sent.with_context(what)?),
                    }
                }
            }
            while !missing.is_empty() {
                let Ok(length) = into.recv(&mut buffer) else {
                    break;
                };
                ensure!(
                    wanted.iter().any(|one| *one == buffer[..length]),
                    "{}: changed under way, {length} bytes",
                    what()
                );
                missing.remove(&buffer[..length]);
            }
        }
    }
    Ok(())
}

fn all_carry(cable: Cable) -> Result<()> {
    Lab::run(cable.name(), |lab| {
        let bed = bed(lab, cable)?;
        let mut failed = Vec::new();
        for from in 0..WAYS.len() {
            for to in (0..WAYS.len()).filter(|to| *to != from) {
                let (out, into) = (&bed.pods[from], &bed.pods[to]);
                let options = TransferOptions::default().deadline(SOON);
                for ipv6 in [false, true] {
                    let options = if ipv6 {
                        options.clone().v6()
                    } else {
                        options.clone()
                    };
                    let way = |number: usize| {
                        if number < KERNELS {
                            "kernel"
                        } else {
                            WAYS[number]
                        }
                    };
                    let mut note = |what: &str, result: Result<()>| {
                        if let Err(error) = result {
                            failed.push(format!(
                                "{what} {} to {}, IPv{}: {error:#}",
                                way(from),
                                way(to),
                                if ipv6 { 6 } else { 4 }
                            ));
                        }
                    };
                    note("TCP", Transfer::run(out, into, BULK, &options).map(drop));
                    note("UDP", datagrams(out, into, ipv6));
                }
            }
        }
        ensure!(
            failed.is_empty(),
            "{} over {}:\n{}",
            failed.len(),
            cable.name(),
            failed.join("\n")
        );
        bed.require_no_errors()
    })
}

#[test]
fn kernel_and_userspace_vxlan_over_an_untouched_veth() -> Result<()> {
    all_carry(Cable::Veth)
}

#[test]
fn kernel_and_userspace_vxlan_over_a_wire() -> Result<()> {
    all_carry(Cable::Wire)
}
