//! A WireGuard peer that completes no handshake is told, with its likely cause, until it is mended.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Flanneld, FlanneldOptions, Lab, PingOptions, Store, eventually_ok};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// It is told within 40 s; ten times that, since the machine is emulated.
const TOLD: Duration = Duration::from_secs(400);
const RIGHT: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const WRONG: &str = "BBECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The findings of a daemon's doctor.
fn findings(daemon: &Flanneld) -> Result<Vec<Value>> {
    let status: Value = serde_json::from_str(&daemon.get("/status")?.1)?;
    Ok(status["findings"].as_array().cloned().unwrap_or_default())
}

#[test]
#[ignore = "needs a kernel with WireGuard, IPIP and netem: make test-vm"]
fn another_preshared_key_is_told_and_forgotten() -> Result<()> {
    Lab::run("vm: wireguard silent", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}"#)?;
        let folder = lab.folder("secrets")?;
        let mut daemons = Vec::new();
        for (host, (name, key)) in hosts.iter().zip([("right", RIGHT), ("wrong", WRONG)]) {
            let file = folder.join(name);
            std::fs::write(&file, key)?;
            let options = FlanneldOptions::new(&store).iface("enp0s8").env("WIREGUARD_PSK_FILE", &file.display().to_string());
            daemons.push(host.start_flanneld(&options)?);
        }
        daemons.iter_mut().try_for_each(|daemon| daemon.wait_ready(SOON).map(drop))?;
        let pods = hosts.iter().zip(&daemons).map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?)).collect::<Result<Vec<_>>>()?;
        // Both ends send, so that each receives the other's attempts.
        let both_ways = || -> Result<usize> {
            let passes = |from: usize, to: usize| lab::ping(pods[from].netns(), pods[to].v4()?.into(), &PingOptions::default());
            Ok([passes(0, 1)?, passes(1, 0)?].iter().flatten().count())
        };
        eventually_ok(TOLD, "it is told", || {
            ensure!(both_ways()? == 0, "packets pass with two preshared keys");
            let mut sure = 0;
            for daemon in &daemons {
                let found = findings(daemon)?;
                let silent: Vec<&Value> = found.iter().filter(|finding| finding["check"] == "wireguard-silent").collect();
                ensure!(silent.len() == 1 && silent[0]["explained_by"].is_null(), "{found:#?}");
                let why = silent[0]["why"].as_str().unwrap_or_default();
                ensure!(why.contains("preshared keys differ"), "{found:#?}");
                sure += usize::from(why.starts_with("their preshared keys"));
                ensure!(daemon.get("/readyz")?.0 == 200, "readiness stays");
                let metrics = daemon.get("/metrics")?.1;
                ensure!(metrics.contains("flannel_wireguard_peers{state=\"silent\"} 1"), "{metrics}");
            }
            // Who answers attempts at a handshake makes fewer itself: the other end may see none.
            ensure!(sure > 0, "nobody names the cause");
            Ok(())
        })?;
        for key in [RIGHT, WRONG] {
            for daemon in &daemons {
                ensure!(!daemon.log().contains(key) && !daemon.get("/status")?.1.contains(key), "a preshared key is shown");
            }
        }
        let said = daemons[0].log().matches("completes no handshake of WireGuard").count();
        ensure!(said == 1, "it is logged {said} times: {}", daemons[0].log());
        std::fs::write(folder.join("wrong"), RIGHT)?;
        eventually_ok(TOLD, "it is mended", || {
            ensure!(both_ways()? == 2, "packets are lost");
            for daemon in &daemons {
                let found = findings(daemon)?;
                ensure!(found.iter().all(|finding| finding["check"] != "wireguard-silent"), "{found:#?}");
                ensure!(daemon.log().contains("resolved: wireguard-silent"), "{}", daemon.log());
            }
            Ok(())
        })
    })
}
