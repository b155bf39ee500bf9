//! The time that the CNI plugin takes when a pod starts: ADD, alternately with flannel's plugin and with only the reference plugins.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use lab::{Cni, CniVersion, Host, Lab, binaries, write_script};
use serde_json::{Value, json};

use crate::table::Table;

/// The path of Go flannel's plugin.
const GO: &str = "GO_FLANNEL_CNI";
/// A delegate that does nothing. The time of an ADD with the plugin, minus that of an ADD with only the stub, is the plugin's own time.
const STUB: &str = "#!/bin/sh\necho '{}'\n";

struct Carrier {
    name: String,
    cni: Cni,
    conf: Value,
}

/// ADD, with the real delegate and with a stub that does nothing.
pub(crate) fn measure_pod_add_time(rounds: usize, table: &mut Table) -> Result<()> {
    let lab = Lab::create("bench-cni")?;
    let host = lab.create_host("h1", &[])?;
    let folder = host.folder()?;
    std::fs::write(
        folder.join("subnet.env"),
        "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
    )?;
    let stubs = lab.ensure_folder("stubs")?;
    write_script(&stubs.join("bridge"), STUB)?;
    let real = binaries::cni_plugins_folder(CniVersion::V111)?;
    let (whole, delegate_only) = (
        measure_plugins_in_turns(&host, &real, rounds)?,
        measure_plugins_in_turns(&host, &stubs, rounds)?,
    );
    for (what, times) in &whole {
        table.add_times_row(
            &format!("time of a pod's ADD with Debian's bridge and host-local, {what}"),
            times,
            "-",
            "-",
        );
    }
    let base = |times: &[(String, Vec<Duration>)]| {
        times.first().map(|(_, times)| median_duration(times)).context("nothing was measured")
    };
    let (delegates, stub) = (base(&whole)?, base(&delegate_only)?);
    for ((what, times), (_, own)) in whole.iter().zip(&delegate_only).skip(1) {
        let ratio = median_duration(times).as_secs_f64() / delegates.as_secs_f64();
        table.add_figures_row(
            &format!("ratio of the ADD time to the time without a flannel plugin, {what}"),
            vec![ratio],
            "",
            "-",
            "-",
        );
        let share: Vec<Duration> = own.iter().map(|time| time.saturating_sub(stub)).collect();
        table.add_times_row(
            &format!("time of an ADD without the time of the delegates, {what}"),
            &share,
            "1 ms",
            "-",
        );
    }
    Ok(())
}

/// The first entry is the delegate without a flannel plugin.
fn measure_plugins_in_turns(
    host: &Host,
    path: &Path,
    rounds: usize,
) -> Result<Vec<(String, Vec<Duration>)>> {
    let carriers = plugins_to_measure(host, path)?;
    let mut times: Vec<_> =
        carriers.iter().map(|carrier| (carrier.name.clone(), Vec::new())).collect();
    // The first round does not count, because it creates the bridge.
    for round in 0..=rounds {
        for (carrier, (_, times)) in carriers.iter().zip(&mut times) {
            let pod = host.create_empty_pod_netns("pod")?;
            let added = carrier.cni.call("ADD", Some(&pod), "eth0", &carrier.conf)?;
            let deleted = carrier.cni.call("DEL", Some(&pod), "eth0", &carrier.conf)?;
            delete_netns(pod.name())?;
            if round > 0 {
                times.push(added.time);
            }
            added.ok().with_context(|| carrier.name.clone())?;
            deleted.ok().with_context(|| carrier.name.clone())?;
        }
    }
    Ok(times)
}

fn plugins_to_measure(host: &Host, path: &Path) -> Result<Vec<Carrier>> {
    let folder = host.folder()?;
    let delegate = json!({
        "name": "cbr0", "cniVersion": "0.3.1", "type": "bridge", "ipMasq": false, "isGateway": true, "isDefaultGateway": true,
        "hairpinMode": true, "mtu": 1450,
        "ipam": {"type": "host-local", "dataDir": folder.join("ipam"), "ranges": [[{"subnet": "10.5.7.0/24"}]], "routes": [{"dst": "10.5.0.0/16"}]},
    });
    let flannel = json!({
        "name": "cbr0", "cniVersion": "0.3.1", "type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true},
        "subnetFile": folder.join("subnet.env"), "dataDir": folder.join("cni"), "ipam": {"dataDir": folder.join("ipam")},
    });
    let carrier = |name: &str, plugin: &Path, conf: &Value| Carrier {
        name: name.to_owned(),
        cni: host.cni(plugin, path),
        conf: conf.clone(),
    };
    let mut carriers = vec![
        carrier("without a flannel plugin", &path.join("bridge"), &delegate),
        carrier("with the plugin of flannel-rs", &flannel_plugin_path()?, &flannel),
    ];
    if let Some(go) = std::env::var_os(GO).filter(|go| !go.is_empty()) {
        carriers.push(carrier("with the plugin of Go flannel", Path::new(&go), &flannel));
    }
    Ok(carriers)
}

/// The static plugin if `make bench` built it.
fn flannel_plugin_path() -> Result<PathBuf> {
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let shipped =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cni").join(arch).join("flannel");
    if shipped.is_file() { Ok(shipped) } else { binaries::flannel_binary("flannel") }
}

fn delete_netns(netns: &str) -> Result<()> {
    let status = std::process::Command::new("ip")
        .args(["netns", "del", netns])
        .status()
        .context("starting ip")?;
    anyhow::ensure!(status.success(), "deleting the namespace {netns}: {status}");
    Ok(())
}

fn median_duration(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
