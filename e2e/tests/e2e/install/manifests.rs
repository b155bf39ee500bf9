//! The manifests: valid to a real server, and each of ours and Go flannel's applies over the other.

use anyhow::{Result, ensure};
use lab::{ApiServer, Lab};
use serde_json::{Value, json};

use super::{api_server, dry_run, net_conf, object, read, repository};

/// The DaemonSet that the server has.
fn daemon_set(api: &ApiServer) -> Result<Value> {
    api.admin().get("/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds")
}

#[test]
fn a_server_takes_every_manifest() -> Result<()> {
    Lab::run("manifests", |lab| {
        let api = api_server(lab, &["kube-flannel".to_owned()])?;
        for (file, count) in [("conf/kube-flannel.yml", 8), ("conf/kube-flannel-policy.yml", 2), ("conf/kube-flannel-cleanup.yml", 1)] {
            let objects = dry_run(lab, &api, &read(file)?)?;
            ensure!(objects.len() == count, "{file}: {} objects", objects.len());
        }
        let objects = dry_run(lab, &api, &read("conf/kube-flannel.yml")?)?;
        ensure!(
            net_conf(&objects, None)? == json!({ "Network": "10.244.0.0/16", "EnableNFTables": false, "Backend": { "Type": "vxlan" } }),
            "net-conf"
        );
        let spec = &object(&objects, None, "DaemonSet", "kube-flannel-ds")?["spec"];
        ensure!(spec["selector"] == json!({ "matchLabels": { "app": "flannel" } }), "another selector cannot be applied over Go flannel's");
        let pod = &spec["template"]["spec"];
        let container = &pod["containers"][0];
        let rights = json!({
            "privileged": false, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"] },
        });
        ensure!(container["securityContext"] == rights, "{}", container["securityContext"]);
        ensure!(spec["updateStrategy"]["rollingUpdate"] == json!({ "maxUnavailable": 1, "maxSurge": 0 }), "{}", spec["updateStrategy"]);
        for effect in ["NoSchedule", "NoExecute"] {
            let tolerated = json!({ "operator": "Exists", "effect": effect });
            ensure!(pod["tolerations"].as_array().is_some_and(|all| all.contains(&tolerated)), "{effect} is not tolerated");
        }
        Ok(())
    })
}

#[test]
fn ours_and_go_flannel_s_apply_over_each_other() -> Result<()> {
    Lab::run("manifests over each other", |lab| {
        let api = api_server(lab, &[])?;
        let apply = |file: &str| api.kubectl(&["apply", "--filename", &repository(file).display().to_string()]);
        let containers = |set: &Value| -> Vec<String> {
            let spec = &set["spec"]["template"]["spec"];
            let all = [&spec["initContainers"], &spec["containers"]].into_iter().flat_map(|list| list.as_array().cloned().unwrap_or_default());
            all.map(|container| container["name"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let (theirs, ours) = ("e2e/tests/manifests/go-shaped.yml", "conf/kube-flannel.yml");
        apply(theirs)?;
        let first = daemon_set(&api)?;
        apply(ours)?;
        let second = daemon_set(&api)?;
        ensure!(containers(&second) == ["install-cni-plugin", "kube-flannel"], "{:?}", containers(&second));
        apply(theirs)?;
        let third = daemon_set(&api)?;
        ensure!(third["spec"] == first["spec"], "what was ours is left:\n{}\nand at first\n{}", third["spec"], first["spec"]);
        apply(ours)?;
        ensure!(daemon_set(&api)?["spec"] == second["spec"], "what was theirs is left");
        ensure!(first["metadata"]["uid"] == third["metadata"]["uid"], "the DaemonSet was replaced, not changed");
        Ok(())
    })
}
