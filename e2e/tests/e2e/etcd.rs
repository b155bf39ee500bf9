//! Checks that the daemon refuses a foreign etcd cluster, uses TLS certificates, and reads the certificates again on SIGHUP.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{
    Bed, Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Mesh, ProbeOptions, Store,
    Uplink, throughout, until,
};
use nix::sys::signal::Signal;

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// Returns the number of lines of a daemon's log that contain a text.
fn count(daemon: &Flanneld, text: &str) -> usize {
    daemon
        .log()
        .lines()
        .filter(|line| line.contains(text))
        .count()
}

/// Starts a daemon on each host.
fn daemons(hosts: &[Host], options: &FlanneldOptions) -> Result<Vec<Flanneld>> {
    hosts.iter().map(|host| host.flanneld(options)).collect()
}

/// Starts probes between the pods of all hosts, once all paths carry packets.
fn probes(hosts: &[Host], daemons: &[Flanneld]) -> Result<Mesh> {
    let pods = Bed::pods(hosts, daemons)?;
    let options = ProbeOptions::default().interval(Duration::from_millis(10));
    Mesh::start(&pods, &options)?.wait_flowing()?;
    let mesh = Mesh::start(&pods, &options)?;
    mesh.wait_flowing()?;
    Ok(mesh)
}

#[test]
fn daemon_refuses_a_foreign_etcd_cluster_after_an_outage() {
    Lab::run("foreign", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let (right_host, foreign_host) = (
            lab.host("right", &[Uplink::enp0s8(&lan, 98)?])?,
            lab.host("foreign", &[Uplink::enp0s8(&lan, 99)?])?,
        );
        let mut right = Etcd::start(&[&right_host], &EtcdOptions::default())?;
        let foreign = Etcd::start(&[&foreign_host], &EtcdOptions::default())?;
        let (store, elsewhere) = (right.store()?, foreign.store()?);
        store.configure(VXLAN)?;
        elsewhere.configure(VXLAN)?;
        let untouched = foreign.client()?.revision()?;
        let endpoints = [right.client()?.endpoints(), foreign.client()?.endpoints()]
            .concat()
            .join(",");
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg(&format!("--etcd-endpoints={endpoints}"));
        let mut daemons = daemons(&hosts, &options)?;
        let mesh = probes(&hosts, &daemons)?;
        right.kill(0)?;
        for daemon in &daemons {
            until("the log says why the foreign one is not used", || {
                count(daemon, "belongs to another etcd cluster") > 0
            })?;
        }
        // More than ten times as long as the failure took (0.3 s), and more attempts than endpoints.
        throughout(
            Duration::from_secs(8),
            "no lease is in the foreign cluster",
            || {
                ensure!(
                    elsewhere.subnets()?.is_empty(),
                    "{:?}",
                    elsewhere.subnets()?
                );
                Ok(())
            },
        )?;
        ensure!(
            foreign.client()?.revision()? == untouched,
            "something was written into the foreign cluster"
        );
        right.restart(0)?;
        for daemon in &mut daemons {
            until("the right one is used again", || {
                count(daemon, "the watch of the leases has resumed") > 0
            })?;
            ensure!(
                daemon.is_running() && daemon.is_ready() && daemon.errors().is_empty(),
                "{:?}\n{}",
                daemon.errors(),
                daemon.log_tail(20)
            );
            // The watch reports it once, and so does the lease if a renewal came meanwhile.
            let reports = count(daemon, "belongs to another etcd cluster");
            ensure!(reports <= 2, "{reports} reports:\n{}", daemon.log_tail(40));
        }
        ensure!(store.subnets()?.len() == 2 && elsewhere.subnets()?.is_empty());
        mesh.require_clean()
    })
    .unwrap();
}

/// Replaces a file and keeps its modification time, so that a daemon reads the file only on SIGHUP.
fn replace(path: &Path, with: &Path) -> Result<()> {
    let age = std::fs::metadata(path)?.modified()?;
    let new = path.with_extension("new");
    std::fs::copy(with, &new)?;
    std::fs::File::options()
        .write(true)
        .open(&new)?
        .set_modified(age)?;
    Ok(std::fs::rename(&new, path)?)
}

#[test]
fn sighup_reloads_tls_files() {
    Lab::run("hangup", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store_host = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&store_host], &EtcdOptions::default().tls())?;
        let store = etcd.store()?;
        store.configure(VXLAN)?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let mut daemons = daemons(&hosts, &options)?;
        let mesh = probes(&hosts, &daemons)?;
        let client = etcd.client()?;
        let files = client.certificates().unwrap();
        for daemon in &daemons {
            daemon.signal(Signal::SIGHUP)?;
            until("it is logged", || count(daemon, "SIGHUP") == 1)?;
        }
        // A client certificate of another authority, which etcd refuses.
        let (folder, good) = (lab.folder("foreign")?, lab.folder("good")?);
        let foreign = lab::Certificates::create(&folder, &[])?;
        let pairs = [
            (files.client(), foreign.client()),
            (files.client_key(), foreign.client_key()),
        ];
        for (present, bad) in &pairs {
            std::fs::copy(present, good.join(present.file_name().unwrap()))?;
            replace(present, bad)?;
        }
        let refused = "etcd refuses this node's certificate";
        for daemon in &daemons {
            daemon.signal(Signal::SIGHUP)?;
            until("the files were read", || count(daemon, refused) > 0)?;
        }
        // The watch retries within seconds; this covers several attempts.
        throughout(
            Duration::from_secs(12),
            "it is not logged again and again",
            || {
                for daemon in &mut daemons {
                    ensure!(
                        daemon.is_running() && daemon.is_ready(),
                        "{}",
                        daemon.log_tail(20)
                    );
                    ensure!(
                        count(daemon, "the watch of the leases is interrupted") == 1,
                        "{}",
                        daemon.log_tail(40)
                    );
                    ensure!(count(daemon, refused) <= 2, "{}", daemon.log_tail(40));
                }
                Ok(())
            },
        )?;
        for (present, _) in &pairs {
            replace(present, &good.join(present.file_name().unwrap()))?;
        }
        for daemon in &mut daemons {
            daemon.signal(Signal::SIGHUP)?;
            until("the watch stands again", || {
                count(daemon, "the watch of the leases has resumed") == 1
            })?;
            ensure!(
                daemon.is_running() && daemon.is_ready() && daemon.errors().is_empty(),
                "{:?}\n{}",
                daemon.errors(),
                daemon.log_tail(20)
            );
        }
        mesh.require_clean()
    })
    .unwrap();
}

#[test]
fn sighup_is_ignored_when_leases_are_files() {
    Lab::run("hangupdir", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 1)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(VXLAN)?;
        let mut daemon = hosts[0].flanneld(&FlanneldOptions::new(&store).iface("enp0s8"))?;
        for turn in 1..=2 {
            daemon.signal(Signal::SIGHUP)?;
            until("it is logged", || count(&daemon, "SIGHUP ignored") == turn)?;
        }
        ensure!(
            daemon.is_running() && daemon.is_ready() && daemon.errors().is_empty(),
            "{}",
            daemon.log_tail(20)
        );
        Ok(())
    })
    .unwrap();
}
