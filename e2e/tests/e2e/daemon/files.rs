//! The daemon with unusual files: a log without a reader, links in place of files, and files that a killed daemon left.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::process::Command;

use anyhow::{Result, ensure};
use lab::{Scene, binaries, until, write_script};
use nix::fcntl::OFlag;

#[test]
fn daemon_survives_a_log_without_reader() -> Result<()> {
    // The nodes take their subnets from the rest of the pool.
    let conf = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"vxlan"}}"#;
    Scene::with_title("unread").net(conf).without_daemons().run(|s| {
        let folder = s.lab.ensure_folder("")?;
        let (pipe, wrapper) = (folder.join("stderr"), folder.join("flanneld"));
        ensure!(Command::new("mkfifo").arg(&pipe).status()?.success(), "mkfifo");
        let own = binaries::flannel_binary("flanneld")?;
        write_script(
            &wrapper,
            &format!("#!/bin/sh\nexec 2>{}\nexec {} \"$@\"\n", pipe.display(), own.display()),
        )?;
        s[0].options = s[0].options.clone().binary(&wrapper);
        // Reads the first lines and closes the pipe.
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || File::open(pipe).and_then(|mut pipe| pipe.read(&mut [0; 64]))
        });
        s[0].launch_daemon()?;
        ensure!(reader.join().unwrap()? > 0, "nothing was logged at all");
        s.start_daemons()?;
        until("the daemon is ready", || s[0].require_ready().is_ok())?;
        for node in &mut s.nodes {
            node.create_pod("p1")?;
        }
        s.wait_first_pods_connected()?;
        let lost = |s: &Scene<'_>| s[0].daemon()?.metric("flannel_log_lines_dropped_total");
        let before = lost(s)?;
        s.put("10.5.77.0-24", "{")?;
        until("a line was dropped, and counted", || lost(s).is_ok_and(|lost| lost > before))?;
        // A new reader learns that lines are missing.
        let mut again =
            File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&pipe)?;
        s.put("10.5.78.0-24", "{")?;
        let mut text = Vec::new();
        until("a new reader learns that lines are missing", || {
            // Reads until the pipe is empty.
            let _ = again.read_to_end(&mut text);
            String::from_utf8_lossy(&text).contains("lost log lines")
        })?;
        s.wait_first_pods_connected()
    })
}

#[test]
fn unreadable_lease_is_named_without_its_content() -> Result<()> {
    Scene::with_title("links")
        .net(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","Backend":{"Type":"vxlan"}}"#)
        .nodes(1)
        .without_pods()
        .without_daemons()
        .run(|s| {
            let vxlan = |data: &str| {
                format!(
                    r#"{{"PublicIP":"192.168.56.212","BackendType":"vxlan","BackendData":{data}}}"#
                )
            };
            symlink("/etc/passwd", s.lab.ensure_folder("leases/subnets")?.join("10.5.7.0-24"))?;
            s.put("10.5.8.0-24", "root:x:0:0:secret")?;
            s.put("10.5.9.0-24", r#"{"PublicIP":"root:x:0:0:secret"}"#)?;
            s.put("10.5.10.0-24", &vxlan(r#"{"VtepMAC":"secret"}"#))?;
            s.put("10.5.11.0-24", &vxlan(r#""secret""#))?;
            s.start_daemons()?;
            s.wait_leases_applied()?;
            let (log, status) = (s[0].daemon()?.log(), s[0].get_health_endpoint("/status")?.1);
            for number in 7..=11 {
                let lease = format!("10.5.{number}.0");
                ensure!(
                    status.contains(&lease)
                        && log.lines().any(|line| line.contains("WARN") && line.contains(&lease)),
                    "{lease} is not named:\n{status}\n{log}"
                );
            }
            let texts = status + &log;
            ensure!(!texts.contains("root:") && !texts.contains("secret"), "{texts}");
            Ok(())
        })
}

#[test]
fn symlinked_lock_is_refused_and_leftovers_are_removed() -> Result<()> {
    Scene::with_title("lock").nodes(1).without_pods().without_daemons().run(|s| {
        let file = s[0].subnet_file()?;
        let beside = |suffix: &str| {
            file.with_file_name(format!(".{}{suffix}", file.file_name().unwrap().display()))
        };
        let (lock, secret) = (beside(".lock"), s.lab.ensure_folder("")?.join("secret"));
        fs::create_dir_all(file.parent().unwrap())?;
        fs::write(&secret, "mine")?;
        symlink(&secret, &lock)?;
        let (status, errors) = s[0].wait_refused_start()?;
        ensure!(status.code() == Some(1) && errors.contains("symbolic link"), "{status} {errors}");
        ensure!(fs::read_to_string(&secret)? == "mine", "the daemon has followed the link");
        fs::remove_file(&lock)?;
        let left = beside("0123456789abcdef");
        fs::write(&left, "FLANNEL_")?;
        s.start_daemons()?;
        ensure!(!left.exists(), "{} is still there", left.display());
        Ok(())
    })
}
