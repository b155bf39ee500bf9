//! A node with `--require-backend` refuses a network configuration with another backend.

use anyhow::{Result, ensure};
use lab::{Node, Scene, SceneOptions, stdout_json};

use crate::healing::scenarios;

scenarios! { another_backend_is_refused;
    a_directory_cannot_choose_another_backend => Scene::with_title("required: dir"),
    etcd_cannot_choose_another_backend => Scene::with_title("required: etcd").etcd(),
}

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
const HOST_GW: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#;

/// The daemon names the backend and the remedy, and changes nothing before it ends.
fn require_start_refused(node: &mut Node) -> Result<()> {
    let (status, errors) = node.wait_refused_start()?;
    ensure!(status.code() == Some(1), "{status}: {errors}");
    ensure!(errors.contains("to host-gw or ipip"), "{errors}");
    ensure!(node.devices()?.is_empty(), "{:?}", node.devices()?);
    Ok(())
}

fn another_backend_is_refused(scene: SceneOptions<'_>) -> Result<()> {
    let required =
        |_, options: lab::FlanneldOptions| options.env("FLANNELD_REQUIRE_BACKEND", "host-gw,ipip");
    scene.nodes(1).options(required).without_daemons().run(|s| {
        s.store.configure(VXLAN)?;
        require_start_refused(&mut s[0])?;
        let file = format!("--subnet-file={}", s[0].subnet_file()?.display());
        let report = stdout_json(&s[0].flannelctl(&["doctor", "-o", "json", &file])?)?;
        ensure!(report["findings"][0]["check"] == "config", "{report:#}");

        s.store.configure(HOST_GW)?;
        s[0].start_daemon()?;
        let subnet = s[0].subnet()?;
        // A change while the daemon runs has no effect, and the next start refuses it.
        s.store.configure(VXLAN)?;
        s.wait_leases_applied()?;
        s[0].require_ready()?;
        ensure!(s[0].devices()?.is_empty(), "{:?}", s[0].devices()?);
        s[0].stop_daemon()?;
        require_start_refused(&mut s[0])?;

        // Without the requirement the node accepts the backend, with the same subnet.
        s[0].options = s[0].options.clone().env("FLANNELD_REQUIRE_BACKEND", "");
        s[0].start_daemon()?;
        ensure!(s[0].devices()? == ["flannel.1"], "{:?}", s[0].devices()?);
        ensure!(s[0].subnet()? == subnet, "{}", s[0].subnet()?);
        Ok(())
    })
}
