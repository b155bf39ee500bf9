//! The userspace datapath under load does not leak memory or open files, and loses almost no packets.
//!
//! By default, the test is short. `FLANNEL_TEST_SOAK` sets the duration in seconds, and `FLANNEL_TEST_RATE` the packets per second (`make soak`).

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows it in tests, but does not know their helpers"
)]

use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Flanneld, FlanneldOptions, Lab, Pod, Store, env_number};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

#[path = "soak/starvation.rs"]
mod starvation;

/// Of the daemon's resident memory after the first second under load, in KiB.
const GROWTH: u64 = 2048;
/// Files that the daemon may open briefly: the lease file during a renewal, and those of programs that list traffic rules.
const TRANSIENT: usize = 16;

/// Resident memory in KiB, and open files.
fn resident_memory_and_open_files(daemon: &Flanneld) -> Result<(u64, usize)> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid()))?;
    let resident =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let resident = resident.trim().trim_end_matches(" kB").parse()?;
    Ok((resident, std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()))?.count()))
}

/// Processor time that the hypervisor gave to other machines (steal), in ticks of 10 ms.
fn stolen_processor_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

#[derive(Default)]
struct Passed {
    sent: u64,
    came: u64,
    /// Packets lost in the seconds without steal time. `disturbed` counts those with steal time.
    lost_undisturbed: i64,
    disturbed: u64,
}

/// Datagrams of changing size at `rate` packets a second for `time`. Calls `each_second` once a second.
fn stream_datagrams(
    from: &Pod,
    to: &Pod,
    rate: u64,
    time: Duration,
    mut each_second: impl FnMut(u64) -> Result<()>,
) -> Result<Passed> {
    let (here, there) = (from.address()?, to.address()?);
    let receiver = to.netns().run(|| UdpSocket::bind((there, 0)))??;
    setsockopt(&receiver, sockopt::RcvBufForce, &(8 << 20))?;
    receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
    let sender = from.netns().run(|| UdpSocket::bind((here, 0)))??;
    sender.connect(receiver.local_addr()?)?;
    let came = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let mut buffer = [0; 2048];
            while receiver.recv(&mut buffer).is_ok() {
                came.fetch_add(1, Relaxed);
            }
        });
        let (begun, mut sent, mut skipped, mut second) = (Instant::now(), 0, 0, 0);
        let mut seconds = Vec::new();
        let (mut before, mut steal) = (0, stolen_processor_ticks());
        while begun.elapsed() < time {
            std::thread::sleep(Duration::from_micros(500));
            let due = (begun.elapsed().as_secs_f64() * rate as f64) as u64 - skipped;
            // Skips packets that a busy machine did not send in time, instead of sending them in a burst.
            for _ in 0..due.saturating_sub(sent).min(rate / 200 + 1) {
                let _ = sender.send(&[7; 1400][..64 + (sent % 1300) as usize]);
                sent += 1;
            }
            skipped += due.saturating_sub(sent + rate / 20);
            if begun.elapsed().as_secs() > second {
                second += 1;
                let missing = sent as i64 - came.load(Relaxed) as i64;
                let now = stolen_processor_ticks();
                seconds.push((missing - before, now > steal));
                (before, steal) = (missing, now);
                each_second(second)?;
            }
        }
        let _ = counting.join();
        // A loss during steal time may be counted in the next second.
        let quiet = |at: usize| {
            !seconds.iter().skip(at.saturating_sub(1)).take(3).any(|(_, disturbed)| *disturbed)
        };
        let (undisturbed, disturbed): (Vec<_>, Vec<_>) =
            (0..seconds.len()).partition(|at| quiet(*at));
        let lost_undisturbed = undisturbed.into_iter().map(|at| seconds[at].0).sum();
        Ok(Passed {
            sent,
            came: came.load(Relaxed),
            lost_undisturbed,
            disturbed: disturbed.len() as u64,
        })
    })
}

fn require_no_leak_under_load(backend: &Value) -> Result<()> {
    Lab::run("soak", |lab| {
        let lan = lab.create_switch("lan")?;
        let hosts = lab.create_hosts(&lan, 2)?;
        let store = Store::dir(&lab.ensure_folder("leases")?);
        store.configure(&json!({ "Network": "10.5.0.0/16", "Backend": backend }).to_string())?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let mut daemons =
            hosts.iter().map(|host| host.start_flanneld(&options)).collect::<Result<Vec<_>>>()?;
        daemons.iter_mut().try_for_each(|daemon| daemon.wait_ready().map(drop))?;
        let pods = hosts
            .iter()
            .zip(&daemons)
            .map(|(host, daemon)| host.create_pod("p1", &daemon.subnet_env()?))
            .collect::<Result<Vec<_>>>()?;
        let (time, rate) =
            (env_number("FLANNEL_TEST_SOAK", 6), env_number("FLANNEL_TEST_RATE", 5000));
        let mut first = Vec::new();
        let passed =
            stream_datagrams(&pods[0], &pods[1], rate, Duration::from_secs(time), |second| {
                let now = daemons
                    .iter()
                    .map(resident_memory_and_open_files)
                    .collect::<Result<Vec<_>>>()?;
                match second {
                    1 => first = now,
                    _ => {
                        for ((resident, files), (then, files_then)) in now.iter().zip(&first) {
                            ensure!(
                                *resident <= then + GROWTH,
                                "after {second} s {resident} KiB instead of {then}"
                            );
                            ensure!(
                                *files <= files_then + TRANSIENT,
                                "after {second} s {files} files instead of {files_then}"
                            );
                        }
                    }
                }
                Ok(())
            })?;
        let Passed { sent, came, lost_undisturbed, disturbed } = passed;
        println!(
            "{backend}: {came} of {sent} packets in {time} s; {lost_undisturbed} lost outside of {disturbed} s in which the host took processor time away; {first:?} after a second, {:?} at the end",
            daemons.iter().map(resident_memory_and_open_files).collect::<Result<Vec<_>>>()?
        );
        // A short run on a busy machine may lose a burst; a long run shows the datapath's own loss.
        let (lost, most) = if time >= 60 {
            (lost_undisturbed, sent / 100_000)
        } else {
            ((sent - came) as i64, sent / 100)
        };
        ensure!(lost <= most as i64, "{lost} of {sent} packets were lost, {most} at most");
        ensure!(
            time < 60 || disturbed * 2 < time,
            "the machine was disturbed in {disturbed} of {time} s: this shows nothing"
        );
        Ok(())
    })
}

#[test]
fn udp_memory_and_files_stay_constant() -> Result<()> {
    require_no_leak_under_load(&json!({ "Type": "udp" }))
}

#[test]
fn userspace_vxlan_memory_and_files_stay_constant() -> Result<()> {
    require_no_leak_under_load(&json!({ "Type": "vxlan", "Mode": "userspace" }))
}
