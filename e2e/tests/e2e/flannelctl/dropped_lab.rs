//! A probe counts what gets lost, and a dropped lab leaves no objects.

use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Lab, Launch, Probe, ProbeOptions, Scene};

const HOST_GW: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#;

#[test]
fn probe_counts_lost_packets_and_outage_time() -> Result<()> {
    Scene::with_title("probe").net(HOST_GW).run(|s| {
        let probe = s.start_probe(0, 1)?;
        probe.wait_flowing()?;
        let cut = probe.elapsed();
        s[1].block_packets("enp0s8")?;
        // This outage is measured.
        std::thread::sleep(Duration::from_millis(300));
        s[1].unblock_packets("enp0s8")?;
        let reconnected = probe.elapsed();
        probe.wait_flowing()?;
        let report = probe.finish()?;
        ensure!(report.lost > 0 && report.wrong == 0, "{report}");
        ensure!(report.longest_outage >= Duration::from_millis(200), "{report}");
        let before = cut.saturating_sub(Duration::from_millis(20));
        ensure!(report.lost_between(Duration::ZERO, before) == 0, "{report}");
        ensure!(report.first_successful_send_after(reconnected).is_some(), "{report}");
        Ok(())
    })
}

#[test]
fn foreign_packet_is_a_wrong_delivery() -> Result<()> {
    Scene::with_title("wrong").nodes(3).net(HOST_GW).run(|s| {
        let [from, to, other] = s.pods()[..] else { anyhow::bail!("three pods") };
        let probe = Probe::start(from, to, &ProbeOptions::default().receiver_port(7100))?;
        probe.wait_flowing()?;
        let foreign = other.netns().run(|| UdpSocket::bind("0.0.0.0:0"))??;
        foreign.send_to(b"not yours", (to.address()?, 7100))?;
        probe.wait_flowing()?;
        ensure!(probe.finish()?.wrong == 1);
        Ok(())
    })
}

#[test]
fn dropped_lab_leaves_nothing() -> Result<()> {
    let lab = Lab::create("clean")?;
    let host = lab.create_host("h1", &[])?;
    let process = host.spawn("sleep", &Launch::new("sleep").arg("600"))?;
    let (prefix, folder, pid) = (lab.prefix(), lab.ensure_folder("")?, process.pid());
    // Without its handle, nothing but the lab kills the process.
    std::mem::forget(process);
    drop(lab);
    let names = std::fs::read_dir("/run/netns")?.flatten().map(|entry| entry.file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(&prefix)).collect();
    ensure!(left.is_empty() && !folder.exists(), "{left:?}");
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ensure!(state.is_empty() || state.contains(") Z "), "{state}");
    Ok(())
}
