//! Tests that kernel vxlan and userspace vxlan exchange TCP and UDP packets over each virtual cable, even if no network card completes checksums.
//! A virtual cable delivers single packets and GSO packets as the sender's kernel passes them to a network card.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Bed, Cable, Lab, Pod, Transfer, TransferOptions};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::json;

use crate::healing::scenarios;

const SOON: Duration = Duration::from_secs(15);
const BULK: u64 = 2_000_000;
/// Packet mode of each host: the first two hosts run kernel vxlan, and the other hosts run userspace vxlan.
const MODES: [&str; 5] = ["", "", "offload", "mmsg", "plain"];
const KERNELS: usize = 2;
/// Payload of one datagram of a GSO packet, in bytes. `SEGMENTS` is the number of datagrams in the GSO packet.
const SEGMENT: u16 = 1000;
const SEGMENTS: usize = 20;

scenarios! { tunnels_carry_packets_over;
    kernel_and_userspace_vxlan_interoperate_over_an_untouched_veth => Cable::Veth,
    kernel_and_userspace_vxlan_interoperate_over_a_wire => Cable::Wire,
}

fn conf(mode: &str) -> String {
    json!({ "EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd00:5::/48", "Backend": { "Type": "vxlan", "Mode": mode } }).to_string()
}

fn bed(lab: &Lab, cable: Cable) -> Result<Bed> {
    let lan = lab.switch("lan")?;
    let hosts = lab.hosts(&lan, MODES.len().try_into()?)?;
    hosts.iter().try_for_each(|host| cable.lay(host))?;
    // Both modes publish the same lease, so nodes of one network may read different configurations.
    let mut bed = Bed::on(lab, &lan, hosts, &conf("userspace"), |number, options| {
        options.env("FLANNELD_DATAPATH", MODES[number])
    })?;
    bed.store.configure(&conf("kernel"))?;
    for number in 0..KERNELS {
        bed.daemons[number].terminate()?;
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

/// Returns the content of a datagram, which depends only on the datagram's number and size.
fn content(number: usize, size: usize) -> Vec<u8> {
    (number as u32)
        .to_be_bytes()
        .into_iter()
        .chain((0..size.saturating_sub(4)).map(|at| (at * 7 + number * 13) as u8))
        .collect()
}

/// UDP sockets of a sending pod (`out`) and of a receiving pod (`into`).
struct Datagrams<'a> {
    from: &'a Pod,
    to: &'a Pod,
    ipv6: bool,
    out: UdpSocket,
    into: UdpSocket,
}

impl Datagrams<'_> {
    fn between<'a>(from: &'a Pod, to: &'a Pod, ipv6: bool) -> Result<Datagrams<'a>> {
        let address = |pod: &Pod| pod.addresses()[usize::from(ipv6)];
        let into = to.netns().run(|| UdpSocket::bind((address(to), 0)))??;
        let out = from.netns().run(|| UdpSocket::bind((address(from), 0)))??;
        out.connect(into.local_addr()?)?;
        into.set_read_timeout(Some(Duration::from_millis(500)))?;
        Ok(Datagrams {
            from,
            to,
            ipv6,
            out,
            into,
        })
    }

    fn what(&self) -> String {
        format!(
            "datagrams from {} to {}, IPv{}",
            self.from.name(),
            self.to.name(),
            if self.ipv6 { 6 } else { 4 }
        )
    }

    /// Sends datagrams, and repeats lost datagrams until all have arrived. If `gather` is true, the function sends the datagrams as one GSO packet.
    fn all_arrive(&self, wanted: &[Vec<u8>], gather: bool) -> Result<()> {
        let mut buffer = vec![0; 65_536];
        let mut missing: BTreeSet<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
        let end = Instant::now() + SOON;
        while !missing.is_empty() {
            ensure!(
                Instant::now() < end,
                "{}: {} of {} never arrived (gathered: {gather})",
                self.what(),
                missing.len(),
                wanted.len()
            );
            if gather {
                self.send_gathered(&wanted.concat())?;
            } else {
                self.send_each(&missing)?;
            }
            while !missing.is_empty() {
                let Ok(length) = self.into.recv(&mut buffer) else {
                    break;
                };
                ensure!(
                    wanted.iter().any(|one| *one == buffer[..length]),
                    "{}: changed on the path, {length} bytes",
                    self.what()
                );
                missing.remove(&buffer[..length]);
            }
        }
        Ok(())
    }

    fn send_gathered(&self, all: &[u8]) -> Result<()> {
        sendmsg::<()>(
            self.out.as_raw_fd(),
            &[std::io::IoSlice::new(all)],
            &[ControlMessage::UdpGsoSegments(&SEGMENT)],
            MsgFlags::empty(),
            None,
        )
        .map(drop)
        .with_context(|| self.what())
    }

    fn send_each(&self, datagrams: &BTreeSet<&[u8]>) -> Result<()> {
        for datagram in datagrams {
            match self.out.send(datagram) {
                // The path's MTU is smaller than the pod's device. The pod learns this from the first packet that is too long.
                Err(error) if error.raw_os_error() == Some(nix::libc::EMSGSIZE) => {}
                sent => drop(sent.with_context(|| self.what())?),
            }
        }
        Ok(())
    }
}

fn datagrams(from: &Pod, to: &Pod, ipv6: bool) -> Result<()> {
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
    let datagrams = Datagrams::between(from, to, ipv6)?;
    datagrams.all_arrive(&single, false)?;
    datagrams.all_arrive(&many, true)
}

fn tunnels_carry_packets_over(cable: Cable) -> Result<()> {
    Lab::run(cable.name(), |lab| {
        let bed = bed(lab, cable)?;
        let mut failed = Vec::new();
        for from in 0..MODES.len() {
            for to in (0..MODES.len()).filter(|to| *to != from) {
                let (out, into) = (&bed.pods[from], &bed.pods[to]);
                let options = TransferOptions::default();
                for ipv6 in [false, true] {
                    let options = if ipv6 {
                        options.clone().v6()
                    } else {
                        options.clone()
                    };
                    let mode = |number: usize| {
                        if number < KERNELS {
                            "kernel"
                        } else {
                            MODES[number]
                        }
                    };
                    let mut note = |what: &str, result: Result<()>| {
                        if let Err(error) = result {
                            failed.push(format!(
                                "{what} {} to {}, IPv{}: {error:#}",
                                mode(from),
                                mode(to),
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
