//! flanneld with `--refuse-insecure` reports an error and a remedy if other users can read a secret, and creates no device.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Result, ensure};
use lab::{FlanneldOptions, Lab, Store};

/// 32 bytes in base64.
const SECRET: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

#[test]
fn secrets_that_others_can_read_are_refused() -> Result<()> {
    Lab::run("refuse insecure", |lab| {
        let lan = lab.create_switch("lan")?;
        let host = &lab.create_hosts(&lan, 1)?[0];
        let folder = lab.ensure_folder("leases")?;
        let store = Store::dir(&folder);
        let keys = lab.ensure_folder("keys")?;
        let (own, preshared) = (keys.join("own"), keys.join("psk"));
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .env("WIREGUARD_KEY_FILE", &own.display().to_string());
        let strict = options.clone().arg("--refuse-insecure");
        let configure = |more: &str| {
            store.configure(&format!(r#"{{"Network":"10.5.0.0/16","Backend":{{"Type":"wireguard","Implementation":"userspace"{more}}}}}"#))
        };
        let write = |path, mode| -> Result<()> {
            fs::write(path, SECRET)?;
            Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
        };
        let refused = |parts: &[&str]| -> Result<()> {
            let mut daemon = host.start_flanneld(&strict)?;
            let status = daemon.wait()?;
            let errors = daemon.errors().concat();
            ensure!(status.code() == Some(1), "{status}: {}", daemon.log());
            for part in parts.iter().chain(&["--refuse-insecure is set"]) {
                ensure!(errors.contains(part), "not {part:?}: {errors}");
            }
            ensure!(!daemon.log().contains(SECRET), "{}", daemon.log());
            ensure!(host.netns().link("flannel-wg")?.is_none(), "a device was made");
            Ok(())
        };
        configure(&format!(r#","PSK":"{SECRET}""#))?;
        refused(&["PSK is readable in the network configuration", "PSKFile in the Backend"])?;
        configure(&format!(r#","PSKFile":"{}""#, preshared.display()))?;
        write(&own, 0o600)?;
        write(&preshared, 0o640)?;
        refused(&["the preshared key", &format!("chmod 600 {}", preshared.display())])?;
        write(&preshared, 0o600)?;
        write(&own, 0o604)?;
        refused(&["the WireGuard private key", &format!("chmod 600 {}", own.display())])?;
        // Without the flag there is a warning. With the right modes there is none.
        let mut lax = host.start_flanneld_and_wait_ready(&options)?;
        ensure!(lax.log().contains(&format!("chmod 600 {}", own.display())), "{}", lax.log());
        lax.terminate()?;
        let warned = lax.log().matches("chmod").count();
        write(&own, 0o600)?;
        let daemon = host.start_flanneld_and_wait_ready(&strict)?;
        // All daemons of a host share one log, so this compares with the warnings from before.
        ensure!(daemon.log().matches("chmod").count() == warned, "{}", daemon.log());
        Ok(())
    })
}
