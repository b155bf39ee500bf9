//! Tests of WireGuard's key files: states of the private key file, the daemon's write order of key and lease, and
//! different preshared keys.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    Bed, Capture, Flanneld, FlanneldOptions, Lab, Mesh, PingOptions, ProbeOptions, Store, binaries,
    throughout, until, until_ok, write_script,
};
use serde_json::Value;

use crate::healing::scenarios;
use crate::wireguard_keys::{Keys, key_file, published, replace};

const CONF: &str =
    r#"{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;
const RIGHT: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const WRONG: &str = "BBECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn mode(path: &Path) -> Result<u32> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o777)
}

fn is_logged(daemon: &Flanneld, text: &str) -> Result<()> {
    until(text, || daemon.log().contains(text))
        .map(drop)
        .with_context(|| daemon.log_tail(20))
}

/// Waits until a garbled or removed key file contains the current key again and only the owner can read the file.
fn is_written_again(daemon: &Flanneld, file: &Path, key: &[u8]) -> Result<()> {
    until_ok("the present key is in the file again", || {
        ensure!(
            fs::read(file)? == key && mode(file)? == 0o600,
            "{}",
            daemon.log_tail(5)
        );
        Ok(())
    })
}

fn publishes(bed: &Bed, number: usize, keys: &Keys) -> Result<()> {
    until_ok("the lease has the other key", || {
        ensure!(
            published(&bed.store, &bed.hosts[number])? == keys.public_text(),
            "{}",
            bed.daemons[number].log_tail(5)
        );
        Ok(())
    })
}

/// Checks that the daemon ends if it cannot read its private key file. The daemon must not treat an unreadable key file as missing.
fn unreadable_file_ends_the_daemon(mut bed: Bed, file: &Path) -> Result<()> {
    bed.daemons[0].terminate()?;
    fs::remove_file(file)?;
    fs::create_dir(file)?;
    bed.daemons[0] = bed.hosts[0].start_flanneld(&bed.options[0])?;
    let status = bed.daemons[0].wait()?;
    let log = bed.daemons[0].log();
    ensure!(
        status.code() == Some(1) && log.contains("cannot read or write the WireGuard private key"),
        "{status}: {log}"
    );
    Ok(())
}

/// Starts three nodes: without a key file, with an empty key file, and with a key file that all users can read. Then
/// garbles the first key file, removes the second and replaces the third.
#[test]
fn key_file_in_each_state_is_survived_and_logged() -> Result<()> {
    Lab::run("wireguard key file", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 3)?;
        let files = hosts.iter().map(key_file).collect::<Result<Vec<_>>>()?;
        let (open, other) = (Keys::new(), Keys::new());
        // The first node has no file, the second an empty one. The third file is readable by others, and has a line end as `wg genkey` writes it.
        fs::write(&files[1], "")?;
        fs::write(&files[2], format!("{}\n", open.private_text()))?;
        fs::set_permissions(&files[2], PermissionsExt::from_mode(0o644))?;
        let bed = Bed::on(lab, &lan, hosts, CONF, |_, options| options)?;
        let logs = |number: usize, text: &str| is_logged(&bed.daemons[number], text);
        for number in [0, 1] {
            ensure!(
                (mode(&files[number])?, fs::read(&files[number])?.len()) == (0o600, 44),
                "host {number}"
            );
            logs(
                number,
                &format!("new WireGuard key path={}", files[number].display()),
            )?;
        }
        let aside = |number: usize| files[number].with_file_name("wgkey.bad");
        ensure!(fs::read(aside(1))?.is_empty() && !aside(0).exists());
        logs(
            1,
            "moved the file, because it held no WireGuard private key",
        )?;
        ensure!(
            published(&bed.store, &bed.hosts[2])? == open.public_text(),
            "another key than the file's"
        );
        logs(
            2,
            "users other than the owner can read the WireGuard private key",
        )?;

        // While the nodes run, the first file is garbled, the second removed, and the third replaced. The first two changes lose no packet.
        let keys = files.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
        let before = (
            published(&bed.store, &bed.hosts[0])?,
            published(&bed.store, &bed.hosts[1])?,
        );
        let mesh = Mesh::start(&bed.pods[..2], &ProbeOptions::default())?;
        mesh.wait_flowing()?;
        fs::write(&files[0], "garbled\n")?;
        fs::remove_file(&files[1])?;
        replace(&files[2], &other.private_text())?;
        for number in [0, 1] {
            is_written_again(&bed.daemons[number], &files[number], &keys[number])?;
            logs(number, "wrote the key in use to the file again")?;
        }
        ensure!(fs::read(aside(0))? == b"garbled\n");
        logs(0, "moved the file, because it held no WireGuard key")?;
        publishes(&bed, 2, &other)?;
        mesh.require_clean()?;
        bed.reach()?;
        ensure!(
            before
                == (
                    published(&bed.store, &bed.hosts[0])?,
                    published(&bed.store, &bed.hosts[1])?
                ),
            "another key was published"
        );
        for (daemon, key) in bed.daemons.iter().zip(&keys) {
            ensure!(
                !daemon.log().contains(&String::from_utf8_lossy(key)[..43]),
                "a private key is in the log"
            );
        }
        bed.require_no_errors()?;
        unreadable_file_ends_the_daemon(bed, &files[0])
    })
}

/// A system call in a trace, and the lines on which the call begins and ends.
struct Call {
    text: String,
    begun: usize,
    ended: usize,
}

/// Returns the system calls in the output of `strace -f`. A system call that other calls interrupt spans two lines of the output.
fn calls(trace: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for (line, text) in trace.lines().enumerate() {
        let Some((process, text)) = text.split_once(' ') else {
            continue;
        };
        // strace pads process IDs.
        let text = text.trim_start();
        if text.starts_with("<... ") {
            if let Some(call) = open.remove(process) {
                calls[call].ended = line;
            }
            continue;
        }
        if text.ends_with("<unfinished ...>") {
            open.insert(process, calls.len());
        }
        calls.push(Call {
            text: text.to_owned(),
            begun: line,
            ended: line,
        });
    }
    calls
}

/// Checks that the daemon writes, syncs and renames the key file and syncs the folder before the daemon writes the lease with the key.
fn key_is_kept_before_it_is_published(
    calls: &[Call],
    file: &Path,
    private: &str,
    public: &str,
) -> Result<()> {
    let folder = file.parent().context("a folder")?.display().to_string();
    // Finds the first matching call that begins after a line.
    let find = |what: &str, after: usize, fits: &dyn Fn(&str) -> bool| {
        let call = calls
            .iter()
            .find(|call| call.begun > after && fits(&call.text));
        call.with_context(|| format!("nothing {what} after line {after}"))
    };
    let secret: Vec<&Call> = calls
        .iter()
        .filter(|call| call.text.contains(private))
        .collect();
    ensure!(
        secret.len() == 1,
        "the private key is in {} calls",
        secret.len()
    );
    ensure!(secret[0].text.starts_with("write("), "{}", secret[0].text);
    // The call has the form `write(12</folder/.wgkey.0123>, …`.
    let temporary = secret[0].text.split(['<', '>']).nth(1).context("a file")?;
    ensure!(temporary.starts_with(&format!("{folder}/.")), "{temporary}");
    let made = calls.iter().find(|call| {
        call.text.starts_with("openat(") && call.text.contains(&format!("{temporary}\""))
    });
    let made = &made.context("who made the file")?.text;
    ensure!(made.contains("O_EXCL") && made.contains("0600"), "{made}");
    let synced = find("syncs the key", secret[0].ended, &|text| {
        text.starts_with("fsync(") && text.contains(temporary)
    })?;
    let renamed = find("renames the key", synced.ended, &|text| {
        text.starts_with("rename")
            && text.contains(&format!("{temporary}\""))
            && text.contains(&format!("{}\"", file.display()))
    })?;
    let kept = find("syncs the folder", renamed.ended, &|text| {
        text.starts_with("fsync(") && text.contains(&format!("<{folder}>"))
    })?;
    let published = calls
        .iter()
        .find(|call| call.text.contains(public))
        .context("the public key")?;
    ensure!(
        published.begun > kept.ended,
        "line {}, before {}: {}",
        published.begun,
        kept.ended,
        published.text
    );
    ensure!(
        calls
            .iter()
            .any(|call| call.text.contains(public) && call.text.contains("subnets/")),
        "no lease in the trace"
    );
    Ok(())
}

/// The daemon stores its key on the disk before it publishes the lease. If the daemon published the lease first, a crash could lose the published key.
#[test]
fn key_is_on_the_disk_before_its_lease() -> Result<()> {
    Lab::run("wireguard order", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 1)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(CONF)?;
        let file = key_file(&hosts[0])?;
        let (program, trace) = (
            lab.folder("traced")?.join("flanneld"),
            lab.folder("trace")?.join("calls"),
        );
        let flanneld = binaries::own("flanneld")?;
        // -D makes the daemon our child and strace our grandchild. -y prints file names.
        let traced = "openat,rename,renameat,renameat2,link,linkat,fsync,fdatasync,write,writev,pwrite64,sendto,sendmsg,sendmmsg";
        write_script(
            &program,
            &format!(
                "#!/bin/sh\nexec strace -D -f -y -qq -s 4096 -e trace={traced} -o {} {} \"$@\"\n",
                trace.display(),
                flanneld.display()
            ),
        )?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .binary(&program);
        let mut daemon = hosts[0].start_flanneld(&options)?;
        daemon.wait_ready()?;
        daemon.terminate()?;
        let (private, public) = (fs::read_to_string(&file)?, published(&store, &hosts[0])?);
        // strace writes a call only after it has ended.
        let calls = until_ok("the trace shows the lease", || {
            let calls = calls(&fs::read_to_string(&trace)?);
            ensure!(
                calls.iter().any(|call| call.text.contains(&public)),
                "{} calls",
                calls.len()
            );
            Ok(calls)
        })?;
        key_is_kept_before_it_is_published(&calls, &file, &private, &public)
            .with_context(|| trace.display().to_string())
    })
}

/// Returns the findings of a daemon's doctor.
fn findings(daemon: &Flanneld) -> Result<Vec<Value>> {
    let status: Value = serde_json::from_str(&daemon.get("/status")?.1)?;
    Ok(status["findings"].as_array().cloned().unwrap_or_default())
}

/// Starts two nodes with different preshared keys, in the files `right` and `wrong` of the lab's folder `secrets`.
fn two_secrets(
    lab: &Lab,
    implementation: &str,
) -> Result<(Vec<Flanneld>, Vec<lab::Pod>, Vec<lab::Host>)> {
    let lan = lab.switch("lan")?;
    let hosts = lab.hosts(&lan, 2)?;
    let store = Store::dir(&lab.folder("leases")?);
    store.configure(&format!(r#"{{"Network":"10.5.0.0/16","Backend":{{"Type":"wireguard","Implementation":"{implementation}"}}}}"#))?;
    let folder = lab.folder("secrets")?;
    let mut daemons = Vec::new();
    for (host, (name, key)) in hosts.iter().zip([("right", RIGHT), ("wrong", WRONG)]) {
        let file = folder.join(name);
        fs::write(&file, key)?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .env("WIREGUARD_PSK_FILE", &file.display().to_string());
        daemons.push(host.start_flanneld(&options)?);
    }
    daemons
        .iter_mut()
        .try_for_each(|daemon| daemon.wait_ready().map(drop))?;
    let pods = hosts
        .iter()
        .zip(&daemons)
        .map(|(host, daemon)| host.pod("p1", &daemon.subnet_env()?))
        .collect::<Result<Vec<_>>>()?;
    Ok((daemons, pods, hosts))
}

/// Sends a ping in both directions, and returns the number of directions in which the ping passes. Both pods send pings, so that each
/// node receives the other node's handshake attempts.
fn directions_passed(pods: &[lab::Pod]) -> Result<usize> {
    let passes = |from: usize, to: usize| {
        lab::ping(
            pods[from].netns(),
            pods[to].v4()?.into(),
            &PingOptions::default(),
        )
    };
    Ok([passes(0, 1)?, passes(1, 0)?].iter().flatten().count())
}

/// Checks that no packet passes while the preshared keys differ, and that the doctor reports the fault and its likely cause until the keys match.
pub(crate) fn different_preshared_keys_are_reported(
    (title, implementation): (&str, &str),
) -> Result<()> {
    Lab::run(title, |lab| {
        let (daemons, pods, _hosts) = two_secrets(lab, implementation)?;
        let folder = lab.folder("secrets")?;
        let begun = std::time::Instant::now();
        until_ok("it is reported", || {
            ensure!(
                directions_passed(&pods)? == 0,
                "packets pass with two preshared keys"
            );
            let mut sure = 0;
            for daemon in &daemons {
                let found = findings(daemon)?;
                let silent: Vec<&Value> = found
                    .iter()
                    .filter(|finding| finding["check"] == "wireguard-silent")
                    .collect();
                ensure!(
                    silent.len() == 1 && silent[0]["explained_by"].is_null(),
                    "{found:#?}"
                );
                let why = silent[0]["why"].as_str().unwrap_or_default();
                ensure!(why.contains("preshared keys differ"), "{found:#?}");
                sure += usize::from(why.starts_with("the preshared keys"));
                ensure!(daemon.get("/readyz")?.0 == 200, "readiness stays");
                let metrics = daemon.get("/metrics")?.1;
                ensure!(
                    metrics.contains("flannel_wireguard_peers{state=\"silent\"} 1"),
                    "{metrics}"
                );
            }
            // A node that responds to handshakes initiates fewer itself, so the other end may see none of its own.
            ensure!(sure > 0, "no node names the cause");
            Ok(())
        })?;
        eprintln!("{title}: reported by both after {:.1?}", begun.elapsed());
        for key in [RIGHT, WRONG] {
            for daemon in &daemons {
                ensure!(
                    !daemon.log().contains(key) && !daemon.get("/status")?.1.contains(key),
                    "a preshared key is shown"
                );
            }
        }
        let reports = daemons[0]
            .log()
            .matches("completes no WireGuard handshake")
            .count();
        ensure!(
            reports == 1,
            "it is logged {reports} times: {}",
            daemons[0].log()
        );
        let begun = std::time::Instant::now();
        fs::write(folder.join("wrong"), RIGHT)?;
        until_ok("packets pass with one key", || {
            ensure!(directions_passed(&pods)? == 2, "packets are lost");
            for daemon in &daemons {
                let found = findings(daemon)?;
                ensure!(
                    found
                        .iter()
                        .all(|finding| finding["check"] != "wireguard-silent"),
                    "{found:#?}"
                );
                ensure!(
                    daemon.log().contains("resolved check=wireguard-silent"),
                    "{}",
                    daemon.log()
                );
            }
            Ok(())
        })?;
        eprintln!("{title}: resolved by both after {:.1?}", begun.elapsed());
        Ok(())
    })
}

scenarios! { different_preshared_keys_are_reported;
    // Ten times the 40 s within which it is reported.
    #[ignore = "takes a minute: make soak"]
    different_preshared_keys_are_reported_until_they_match => ("wireguard silent", "userspace"),
}

/// Checks in less than a minute that no packet passes while the preshared keys differ.
#[test]
fn packets_do_not_pass_with_different_preshared_keys() -> Result<()> {
    Lab::run("wireguard preshared", |lab| {
        let (daemons, pods, hosts) = two_secrets(lab, "userspace")?;
        let capture = Capture::start(hosts[0].netns())?;
        // Initiations are five seconds apart.
        throughout(Duration::from_secs(7), "nothing passes", || {
            ensure!(
                directions_passed(&pods)? == 0,
                "packets pass with two preshared keys"
            );
            Ok(())
        })?;
        // The length of these outer packets is known: IPv4, UDP, and an initiation or its response.
        let frames = capture.finish()?;
        for (what, length) in [("initiations", 148), ("answers", 92)] {
            let seen = frames
                .iter()
                .filter(|frame| frame.len() == 14 + 20 + 8 + length)
                .count();
            ensure!(
                seen > 0,
                "no {what}: it is not for the keys that nothing passes"
            );
        }
        fs::write(lab.folder("secrets")?.join("wrong"), RIGHT)?;
        until_ok("packets pass with one preshared key", || {
            ensure!(directions_passed(&pods)? == 2, "{}", daemons[1].log_tail(5));
            Ok(())
        })
    })
}

/// A session lasts up to three minutes, so within 200 seconds each path uses sessions with both preshared keys.
#[test]
#[ignore = "takes four minutes: make soak"]
fn preshared_key_changes_on_all_nodes_without_loss() -> Result<()> {
    Lab::run("wireguard rotation", |lab| {
        let file = lab.folder("secrets")?.join("psk");
        fs::write(&file, RIGHT)?;
        let bed = Bed::start(lab, 3, CONF, |_, options| {
            options.env("WIREGUARD_PSK_FILE", &file.display().to_string())
        })?;
        let mesh = Mesh::start(
            &bed.pods,
            &ProbeOptions::default().interval(Duration::from_millis(10)),
        )?;
        mesh.wait_flowing()?;
        replace(&file, WRONG)?;
        for daemon in &bed.daemons {
            until("it has the new key", || {
                daemon
                    .log()
                    .contains("the preshared key of WireGuard has changed")
            })?;
        }
        std::thread::sleep(Duration::from_secs(200));
        for (path, report) in mesh.finish()? {
            eprintln!("{path}: {report}");
            ensure!(report.sent > 15_000, "{path}: {report}");
            report.require_clean().context(path)?;
        }
        bed.require_no_errors()
    })
}
