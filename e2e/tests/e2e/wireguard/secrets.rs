//! WireGuard's key files: states of the private key file, the daemon's write order of key and lease, and different preshared keys.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use lab::{
    Mesh, Node, PingOptions, ProbeOptions, Scene, binaries, ping_address, until, until_ok,
    write_script,
};
use nix::sys::signal::Signal;

use crate::datapath::engines::WIREGUARD;
use crate::healing::scenarios;
use crate::wireguard::keys::{
    Keys, daemon_key_path_with_folder, published_public_key, replace_file_atomically,
};

const RIGHT: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const WRONG: &str = "BBECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Three nodes: without a key file, with an empty one, and with one that all users can read. Then garbles the first, removes the second, replaces the
/// third, and makes the daemons read them again.
#[test]
fn key_file_in_each_state_is_survived() -> Result<()> {
    let scene = Scene::with_title("wireguard key file").nodes(3).net(&WIREGUARD.v4_net_conf());
    scene.without_daemons().run(|s| {
        let files = s
            .nodes
            .iter()
            .map(|node| daemon_key_path_with_folder(node))
            .collect::<Result<Vec<_>>>()?;
        let (open, other) = (Keys::new(), Keys::new());
        fs::write(&files[1], "")?;
        // A line end as `wg genkey` writes it.
        fs::write(&files[2], format!("{}\n", open.private_text()))?;
        fs::set_permissions(&files[2], PermissionsExt::from_mode(0o644))?;
        s.start_daemons_and_connected_pods()?;
        let aside = |number: usize| files[number].with_file_name("wgkey.bad");
        ensure!(fs::read(aside(1))?.is_empty() && !aside(0).exists());
        ensure!(
            published_public_key(&s.store, &s[2])? == open.public_text(),
            "another key than the file's"
        );

        // SIGHUP reads the files again: a garbled and a missing one change nothing.
        let keys = files.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
        let publish = |s: &Scene<'_>, number: usize| published_public_key(&s.store, &s[number]);
        let before = [publish(s, 0)?, publish(s, 1)?];
        let mesh = Mesh::start(&s.first_pods()?[..2], &ProbeOptions::default())?;
        mesh.wait_flowing()?;
        fs::write(&files[0], "garbled\n")?;
        fs::remove_file(&files[1])?;
        replace_file_atomically(&files[2], &other.private_text())?;
        s.check_each_node(|node| node.daemon()?.signal(Signal::SIGHUP))?;
        for node in &s.nodes[..2] {
            node.wait_log_contains("keeping the WireGuard keys in use")?;
        }
        until("the lease has the other key", || {
            publish(s, 2).is_ok_and(|key| key == other.public_text())
        })?;
        ensure!(fs::read(&files[0])? == b"garbled\n" && !files[1].exists());
        mesh.finish_and_require_clean()?;
        s.wait_first_pods_connected()?;
        ensure!(before == [publish(s, 0)?, publish(s, 1)?], "another key was published");
        for (node, key) in s.nodes.iter().zip(&keys) {
            let key = String::from_utf8_lossy(key);
            ensure!(!node.daemon()?.log().contains(&key[..43]), "a private key is in the log");
        }
        // An unreadable key file is no missing one.
        s[0].stop_daemon()?;
        fs::remove_file(&files[0])?;
        fs::create_dir(&files[0])?;
        let (status, errors) = s[0].wait_refused_start()?;
        ensure!(status.code() == Some(1) && errors.contains("private key"), "{status}: {errors}");
        Ok(())
    })
}

/// If the daemon published the lease first, a crash could lose the published key.
#[test]
fn key_is_on_the_disk_before_its_lease() -> Result<()> {
    let scene = Scene::with_title("wireguard order").nodes(1).net(&WIREGUARD.v4_net_conf());
    scene.without_daemons().run(|s| {
        let (folder, file) = (s.lab.ensure_folder("trace")?, daemon_key_path_with_folder(&s[0])?);
        let (program, trace) = (folder.join("flanneld"), folder.join("calls"));
        // -D makes the daemon our child and strace our grandchild. -y prints file names.
        let traced =
            "openat,rename,renameat,renameat2,fsync,write,pwrite64,sendto,sendmsg,writev,sendmmsg";
        write_script(
            &program,
            &format!(
                "#!/bin/sh\nexec strace -D -f -y -qq -s 4096 -e trace={traced} -o {} {} \"$@\"\n",
                trace.display(),
                binaries::flannel_binary("flanneld")?.display()
            ),
        )?;
        s[0].options = s[0].options.clone().binary(&program);
        s[0].start_daemon()?;
        s[0].stop_daemon()?;
        let (private, public) =
            (fs::read_to_string(&file)?, published_public_key(&s.store, &s[0])?);
        // strace writes a call only after it has ended.
        let calls = until_ok("the trace shows the lease", || {
            let calls = fs::read_to_string(&trace)?;
            ensure!(calls.contains(&public), "{} bytes", calls.len());
            Ok(calls)
        })?;
        ensure!(calls.matches(&private).count() == 1, "the private key is in several calls");
        let secret = calls.lines().find(|call| call.contains(&private)).context("the key")?;
        // The call has the form `7 write(12</folder/.wgkey.0123>, …`.
        let temporary = secret.split(['<', '>']).nth(1).context("a file")?;
        let folder = format!("<{}>", file.parent().context("a folder")?.display());
        let renamed = format!("{}\"", file.display());
        let mut rest = calls.lines();
        for wanted in [
            ["O_EXCL", temporary, "0600"],
            ["write(", temporary, &private],
            ["fsync(", temporary, ""],
            ["rename", temporary, &renamed],
            ["fsync(", &folder, ""],
            ["", "", &public],
        ] {
            let next = rest.find(|call| {
                call.contains(&public) || wanted.iter().all(|part| call.contains(part))
            });
            let call = next.with_context(|| format!("{wanted:?} is not in the trace"))?;
            ensure!(
                wanted.iter().all(|part| call.contains(part)),
                "{wanted:?} is not before {call}"
            );
        }
        Ok(())
    })
}

/// The keys are in the files `h1` and `h2` of the lab's folder `secrets`.
fn run_with_different_preshared_keys(
    title: &str,
    implementation: &str,
    work: impl FnOnce(&mut Scene<'_>) -> Result<()>,
) -> Result<()> {
    let conf = format!(
        r#"{{"Network":"10.5.0.0/16","Backend":{{"Type":"wireguard","Implementation":"{implementation}"}}}}"#
    );
    Scene::with_title(title).net(&conf).without_daemons().run(|s| {
        let folder = s.lab.ensure_folder("secrets")?;
        for (node, key) in s.nodes.iter_mut().zip([RIGHT, WRONG]) {
            let file = folder.join(node.name());
            fs::write(&file, key)?;
            node.options =
                node.options.clone().env("WIREGUARD_PSK_FILE", &file.display().to_string());
        }
        s.start_daemons()?;
        for node in &mut s.nodes {
            node.create_pod("p1")?;
        }
        work(s)
    })
}

/// Both pods ping, so that each node receives the other's handshake attempts. The result is the number of directions in which the ping passes.
fn ping_both_ways_and_count(s: &Scene<'_>) -> Result<usize> {
    let passes = |from: usize, to: usize| {
        ping_address(s[from].pods[0].netns(), s[to].pods[0].v4()?.into(), &PingOptions::default())
    };
    Ok([passes(0, 1)?, passes(1, 0)?].iter().flatten().count())
}

/// Gives both nodes the same preshared key, and waits until packets pass.
fn match_preshared_keys_and_wait(s: &Scene<'_>) -> Result<()> {
    fs::write(s.lab.ensure_folder("secrets")?.join("h2"), RIGHT)?;
    s[1].daemon()?.signal(Signal::SIGHUP)?;
    until("packets pass with one key", || {
        ping_both_ways_and_count(s).is_ok_and(|passed| passed == 2)
    })
    .map(drop)
}

/// No packet passes, and the doctor reports the fault and its likely cause until the keys match.
pub(crate) fn different_preshared_keys_are_reported(
    (title, implementation): (&str, &str),
) -> Result<()> {
    run_with_different_preshared_keys(title, implementation, |s| {
        let silent = |node: &Node| -> Result<Vec<serde_json::Value>> {
            let findings = node.status("/findings")?;
            let all = findings.as_array().cloned().unwrap_or_default();
            Ok(all.into_iter().filter(|finding| finding["check"] == "wireguard-silent").collect())
        };
        let mut passed = 0;
        until_ok("it is reported", || {
            passed += ping_both_ways_and_count(s)?;
            let mut is_sure = false;
            for node in &s.nodes {
                let found = silent(node)?;
                let [finding] = &found[..] else { anyhow::bail!("{found:#?}") };
                let why = finding["why"].as_str().unwrap_or_default();
                ensure!(
                    finding["explained_by"].is_null() && why.contains("preshared"),
                    "{finding:#}"
                );
                is_sure |= why.starts_with("the preshared keys");
            }
            // A node that responds to handshakes initiates fewer itself, so the other end may see none of its own.
            ensure!(is_sure, "no node names the cause");
            Ok(())
        })?;
        ensure!(passed == 0, "packets pass with two preshared keys");
        s.check_each_node(|node| {
            node.require_ready()?;
            node.wait_metric_value("flannel_wireguard_peers{state=\"silent\"}", 1.0)?;
            let shown = node.daemon()?.log() + &node.get_health_endpoint("/status")?.1;
            ensure!(!shown.contains(RIGHT) && !shown.contains(WRONG), "a preshared key is shown");
            Ok(())
        })?;
        match_preshared_keys_and_wait(s)?;
        s.check_each_node(|node| {
            until("it is resolved", || silent(node).is_ok_and(|found| found.is_empty())).map(drop)
        })
    })
}

scenarios! { different_preshared_keys_are_reported;
    #[ignore = "takes a minute: make soak"]
    different_preshared_keys_are_reported_until_they_match => ("wireguard silent", "userspace"),
}

/// Takes less than a minute.
#[test]
fn packets_do_not_pass_with_different_preshared_keys() -> Result<()> {
    run_with_different_preshared_keys("wireguard preshared", "userspace", |s| {
        // A node begins again only if it refused the answer.
        let answered = r#"flannel_datapath_handshakes_total{device="flannel-wg",event="answered"}"#;
        let mut passed = 0;
        until("a node answers again", || {
            passed += ping_both_ways_and_count(s).unwrap_or_default();
            passed > 0 || s.nodes.iter().any(|node| node.metric_or_zero(answered) >= 2.0)
        })?;
        ensure!(passed == 0, "packets pass with two preshared keys");
        match_preshared_keys_and_wait(s)
    })
}
