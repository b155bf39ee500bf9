//! Checks that a probe counts what gets lost, that Vagrant hosts are like real ones, and that a dropped lab leaves no objects.

use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Lab, Launch, PingOptions, Probe, ProbeOptions, Scene, ping};

const HOST_GW: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#;

#[test]
fn vagrant_hosts_share_an_address_and_hide_behind_their_nat_boxes() -> Result<()> {
    Lab::run("vagrant", |lab| {
        let vagrant = lab.vagrant(2)?;
        for host in &vagrant.hosts {
            ensure!(host.v4_of("enp0s3")?.to_string() == "10.0.2.15");
            let world = ping(
                host.netns(),
                "198.51.100.1".parse()?,
                &PingOptions::default(),
            )?;
            ensure!(
                world.is_some(),
                "{} reaches nobody by its default route",
                host.name()
            );
        }
        let netns = vagrant.internet.netns();
        let server = netns.run(|| UdpSocket::bind("198.51.100.1:7000"))??;
        let client = vagrant.hosts[1]
            .netns()
            .run(|| UdpSocket::bind("0.0.0.0:0"))??;
        client.send_to(b"who am I", "198.51.100.1:7000")?;
        let (_, seen) = server.recv_from(&mut [0; 64])?;
        ensure!(
            seen.ip().to_string() == "198.51.100.102",
            "{seen} is not the NAT box"
        );
        Ok(())
    })
}

#[test]
fn probe_counts_lost_packets_and_outage_time() -> Result<()> {
    Scene::of("probe").net(HOST_GW).run(|s| {
        let probe = s.probe(0, 1)?;
        probe.wait_flowing()?;
        let cut = probe.elapsed();
        s[1].cut("enp0s8")?;
        // This outage is measured.
        std::thread::sleep(Duration::from_millis(300));
        s[1].reconnect("enp0s8")?;
        let reconnected = probe.elapsed();
        probe.wait_flowing()?;
        let report = probe.finish()?;
        ensure!(report.lost > 0 && report.wrong == 0, "{report}");
        ensure!(
            report.longest_outage >= Duration::from_millis(200),
            "{report}"
        );
        let before = cut.saturating_sub(Duration::from_millis(20));
        ensure!(report.lost_between(Duration::ZERO, before) == 0, "{report}");
        ensure!(report.recovered_after(reconnected).is_some(), "{report}");
        Ok(())
    })
}

#[test]
fn foreign_packet_is_a_wrong_delivery() -> Result<()> {
    Scene::of("wrong").nodes(3).net(HOST_GW).run(|s| {
        let [from, to, other] = s.pods()[..] else {
            anyhow::bail!("three pods")
        };
        let probe = Probe::start(from, to, &ProbeOptions::default().port(7100))?;
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
    let lab = Lab::new("clean")?;
    let host = lab.host("h1", &[])?;
    let process = host.spawn("sleep", &Launch::new("sleep").arg("600"))?;
    let (prefix, folder, pid) = (lab.prefix(), lab.folder("")?, process.pid());
    // Without its handle, nothing but the lab kills the process.
    std::mem::forget(process);
    drop(lab);
    let names = std::fs::read_dir("/run/netns")?
        .flatten()
        .map(|entry| entry.file_name());
    let left: Vec<_> = names
        .filter(|name| name.to_string_lossy().starts_with(&prefix))
        .collect();
    ensure!(left.is_empty() && !folder.exists(), "{left:?}");
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ensure!(state.is_empty() || state.contains(") Z "), "{state}");
    Ok(())
}
