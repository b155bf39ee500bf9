//! Checks that a node with `--require-backend` refuses a network configuration with another backend.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Etcd, EtcdOptions, FlanneldOptions, Host, Lab, Store, json, throughout, until_ok};

fn net_conf(backend: &str) -> String {
    format!(r#"{{"Network":"10.5.0.0/16","Backend":{{"Type":"{backend}"}}}}"#)
}

fn devices(host: &Host) -> Result<Vec<String>> {
    Ok(host
        .netns()
        .links()?
        .into_iter()
        .map(|link| link.ifname)
        .filter(|name| name.starts_with("flannel"))
        .collect())
}

/// Checks that a daemon refuses the configuration at its start, and changes nothing before the refusal.
fn is_refused(host: &Host, options: &FlanneldOptions, place: &str) -> Result<()> {
    let mut daemon = host.start_flanneld(options)?;
    let status = daemon.wait()?;
    ensure!(status.code() == Some(1), "{status}: {}", daemon.log());
    let errors = daemon.errors().concat();
    for part in [
        "this node does not accept backend type vxlan (--require-backend=host-gw,ipip)",
        "to host-gw or ipip",
        place,
    ] {
        ensure!(
            errors.contains(lab::code_or_text("backend-not-taken", part)),
            "not {part:?}: {errors}"
        );
    }
    ensure!(devices(host)?.is_empty(), "{:?}", devices(host)?);
    Ok(())
}

/// Checks that the daemon refuses a wrong backend, that the doctor reports the wrong backend, and that the daemon accepts a corrected backend.
/// A change while the daemon runs has no effect, and the daemon refuses the change at its next start.
fn takes_what_it_requires(host: &Host, store: &Store, place: &str) -> Result<()> {
    let options = FlanneldOptions::new(store)
        .iface("enp0s8")
        .env("FLANNELD_REQUIRE_BACKEND", "host-gw,ipip");
    store.configure(&net_conf("vxlan"))?;
    is_refused(host, &options, place)?;
    let file = format!("--subnet-file={}", host.subnet_file()?.display());
    let report = json(&host.flannelctl(&["doctor", "-o", "json", &file])?)?;
    ensure!(
        report["findings"][0]["check"] == "config",
        "{:#}",
        report["findings"]
    );
    ensure!(
        report["findings"][0]
            .to_string()
            .contains(lab::code_or_text(
                "\"what\":\"config\"",
                "--require-backend=host-gw,ipip"
            )),
        "{:#}",
        report["findings"][0]
    );

    store.configure(&net_conf("host-gw"))?;
    let mut daemon = host.flanneld(&options)?;
    let before = daemon.subnet_env()?.subnet;
    store.configure(&net_conf("vxlan"))?;
    throughout(Duration::from_secs(3), "nothing is switched", || {
        ensure!(
            daemon.is_ready() && devices(host)?.is_empty(),
            "{:?}\n{}",
            devices(host)?,
            daemon.log_tail(10)
        );
        Ok(())
    })?;
    daemon.terminate()?;
    is_refused(host, &options, place)?;

    // Without the requirement the node accepts the backend, with the same subnet.
    let daemon = host.flanneld(&options.env("FLANNELD_REQUIRE_BACKEND", ""))?;
    until_ok("the other backend's device", || {
        ensure!(devices(host)? == ["flannel.1"], "{:?}", devices(host)?);
        Ok(())
    })?;
    ensure!(
        daemon.subnet_env()?.subnet == before,
        "{:?}",
        daemon.subnet_env()?
    );
    Ok(())
}

#[test]
fn a_directory_cannot_choose_another_backend() -> Result<()> {
    Lab::run("required: dir", |lab| {
        let lan = lab.switch("lan")?;
        let host = &lab.hosts(&lan, 1)?[0];
        let folder = lab.folder("leases")?;
        takes_what_it_requires(
            host,
            &Store::dir(&folder),
            &format!("in the file {}/config", folder.display()),
        )
    })
}

#[test]
fn etcd_cannot_choose_another_backend() -> Result<()> {
    Lab::run("required: etcd", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let etcd = Etcd::start(&[&hosts[1]], &EtcdOptions::default())?;
        let store = etcd.store()?;
        takes_what_it_requires(
            &hosts[0],
            &store,
            &format!("in the key {} of etcd at http://", store.key("config")),
        )
    })
}
