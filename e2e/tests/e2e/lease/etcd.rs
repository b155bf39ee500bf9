//! SIGHUP makes the daemon read etcd's certificates again.

use std::path::Path;

use anyhow::{Result, ensure};
use lab::{Certificates, EtcdOptions, Scene};
use nix::sys::signal::Signal;

/// Keeps the file's modification time, so that a daemon reads it only on SIGHUP.
fn replace_file_keeping_mtime(path: &Path, with: &Path) -> Result<()> {
    let age = std::fs::metadata(path)?.modified()?;
    let new = path.with_extension("new");
    std::fs::copy(with, &new)?;
    std::fs::File::options().write(true).open(&new)?.set_modified(age)?;
    Ok(std::fs::rename(&new, path)?)
}

#[test]
fn sighup_reloads_tls_files() -> Result<()> {
    Scene::with_title("hangup").etcd_with(EtcdOptions::default().tls()).run(|s| {
        let mesh = s.start_mesh()?;
        mesh.wait_flowing()?;
        let client = s.etcd.as_ref().unwrap().client_on_first_member()?;
        let files = client.certificates().unwrap();
        // A client certificate of another authority, which etcd refuses.
        let foreign = Certificates::create(&s.lab.ensure_folder("foreign")?, &[])?;
        let good = s.lab.ensure_folder("good")?;
        let pairs =
            [(files.client(), foreign.client()), (files.client_key(), foreign.client_key())];
        for (present, bad) in &pairs {
            std::fs::copy(present, good.join(present.file_name().unwrap()))?;
            replace_file_keeping_mtime(present, bad)?;
        }
        s.check_each_node(|node| {
            node.daemon()?.signal(Signal::SIGHUP)?;
            node.wait_log_contains("refuses this node's certificate")?;
            node.require_ready()
        })?;
        for (present, _) in &pairs {
            replace_file_keeping_mtime(present, &good.join(present.file_name().unwrap()))?;
        }
        s.check_each_node(|node| node.daemon()?.signal(Signal::SIGHUP))?;
        s.wait_leases_applied()?;
        s.check_each_node(|node| {
            let log = node.daemon()?.log();
            ensure!(log.matches("refuses this node's certificate").count() <= 3, "{log}");
            node.require_ready()
        })?;
        s.require_no_errors()?;
        mesh.finish_and_require_clean()
    })
}

#[test]
fn sighup_changes_nothing_when_leases_are_files() -> Result<()> {
    Scene::with_title("hangup: files").nodes(1).without_pods().run(|s| {
        s[0].daemon()?.signal(Signal::SIGHUP)?;
        s[0].wait_log_contains("SIGHUP")?;
        s.wait_leases_applied()?;
        s[0].require_ready()
    })
}
