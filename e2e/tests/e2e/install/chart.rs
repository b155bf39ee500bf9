//! The Helm chart: under every value, what it renders is what a server takes and what was meant.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use lab::{Lab, binaries};
use serde_json::{Value, json};

use super::{api_server, dry_run, net_conf, object, read, repository};

/// Values that are set, the backend that has to come of it (null: not looked at), and values at places of the DaemonSet's pod.
type Case = (
    &'static [(&'static str, &'static str)],
    Value,
    Vec<(&'static str, Value)>,
);

fn cases() -> Vec<Case> {
    let none = Value::Null;
    let container = |rest: &str| -> &'static str { String::leak(format!("/containers/0{rest}")) };
    let rights = |add: &[&str]| {
        let capabilities = json!({ "drop": ["ALL"], "add": add });
        json!({ "privileged": false, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": capabilities })
    };
    vec![
        (
            &[("podCidrv6", "\"fd00:244::/48\"")],
            json!({ "Type": "vxlan" }),
            vec![],
        ),
        (
            &[
                ("podCidr", "\"\""),
                ("podCidrv6", "\"fd00:244::/48\""),
                ("flannel.backend", "\"host-gw\""),
            ],
            json!({ "Type": "host-gw" }),
            vec![],
        ),
        (
            &[
                ("flannel.backend", "\"udp\""),
                ("flannel.backendPort", "8286"),
                ("flannel.mtu", "1400"),
            ],
            json!({ "Type": "udp", "Port": 8286, "MTU": 1400 }),
            vec![
                (container("/securityContext/privileged"), json!(true)),
                // A privileged container has the host's devices.
                (container("/volumeMounts/5"), none.clone()),
            ],
        ),
        (
            &[
                ("flannel.backendPort", "8473"),
                ("flannel.vni", "7"),
                ("flannel.GBP", "true"),
                ("flannel.directRouting", "true"),
                ("flannel.macPrefix", "\"0E-2B\""),
                ("flannel.backendExtra", "{\"ChecksumOffload\":\"off\"}"),
            ],
            json!({ "Type": "vxlan", "Port": 8473, "VNI": 7, "GBP": true, "DirectRouting": true, "MacPrefix": "0E-2B", "ChecksumOffload": "off" }),
            vec![],
        ),
        (
            &[
                ("flannel.backend", "\"wireguard\""),
                ("flannel.backendPort", "51820"),
                ("flannel.backendPortv6", "51822"),
                ("flannel.psk", "\"0123\""),
                ("flannel.tunnelMode", "\"separate\""),
                ("flannel.keepaliveInterval", "25"),
            ],
            json!({
                "Type": "wireguard", "ListenPort": 51820, "ListenPortV6": 51822, "PSK": "0123", "Mode": "separate", "PersistentKeepaliveInterval": 25,
            }),
            vec![],
        ),
        // As Go flannel's chart needs it. It is no mode of carrying packets.
        (
            &[
                ("flannel.backend", "\"wireguard\""),
                ("flannel.tunnelMode", "\"\\\"auto\\\"\""),
            ],
            json!({ "Type": "wireguard", "Mode": "auto" }),
            vec![(
                container("/securityContext"),
                rights(&["NET_ADMIN", "NET_RAW", "DAC_OVERRIDE"]),
            )],
        ),
        (
            &[
                (
                    "flannel.image.repository",
                    "\"registry.example.org/flannel\"",
                ),
                ("flannel.image.tag", "\"t1\""),
                ("flannel.image.pullPolicy", "\"Always\""),
                (
                    "flannel.flannel_cni.image.repository",
                    "\"registry.example.org/plugin\"",
                ),
                ("flannel.flannel_cni.image.tag", "\"t2\""),
                ("flannel.flannel_cni.image.pullPolicy", "\"Never\""),
                ("global.imagePullSecrets", "[{\"name\":\"secret\"}]"),
            ],
            none.clone(),
            vec![
                (
                    container("/image"),
                    json!("registry.example.org/flannel:t1"),
                ),
                (container("/imagePullPolicy"), json!("Always")),
                (
                    "/initContainers/0/image",
                    json!("registry.example.org/plugin:t2"),
                ),
                ("/initContainers/0/imagePullPolicy", json!("Never")),
                ("/imagePullSecrets/0/name", json!("secret")),
            ],
        ),
        (
            &[
                ("flannel.cniBinDir", "\"/var/lib/rancher/k3s/data/cni\""),
                (
                    "flannel.cniConfDir",
                    "\"/var/lib/rancher/k3s/agent/etc/cni/net.d\"",
                ),
                ("flannel.cniVersion", "\"1.1.0\""),
                ("flannel.enableNFTables", "true"),
            ],
            none.clone(),
            vec![
                (
                    "/volumes/1/hostPath/path",
                    json!("/var/lib/rancher/k3s/data/cni"),
                ),
                (
                    "/volumes/2/hostPath/path",
                    json!("/var/lib/rancher/k3s/agent/etc/cni/net.d"),
                ),
                (
                    "/initContainers/0/volumeMounts/0/mountPath",
                    json!("/opt/cni/bin"),
                ),
                (
                    container("/volumeMounts/4"),
                    json!({ "name": "cni-data", "mountPath": "/var/lib/cni", "readOnly": true }),
                ),
            ],
        ),
        (
            &[
                ("flannel.skipCNIConfigInstallation", "true"),
                ("flannel.cniDataDir", "\"\""),
                ("flannel.args", "[\"--kube-subnet-mgr\"]"),
                ("flannel.extraArgs", "[\"--iface=eth1\"]"),
                (
                    "flannel.extraEnv",
                    "[{\"name\":\"FLANNELD_V\",\"value\":\"1\"}]",
                ),
                ("flannel.apiUrl", "\"https://10.0.0.1:6443\""),
                ("flannel.healthz.port", "0"),
            ],
            none.clone(),
            vec![
                (
                    container("/args"),
                    json!([
                        "--kube-subnet-mgr",
                        "--iface=eth1",
                        "--kube-api-url=https://10.0.0.1:6443"
                    ]),
                ),
                (
                    container("/env/3"),
                    json!({ "name": "FLANNELD_V", "value": "1" }),
                ),
                (container("/livenessProbe"), none.clone()),
                (container("/ports"), none.clone()),
                (container("/volumeMounts/3"), none.clone()),
                ("/volumes/4", none.clone()),
            ],
        ),
        (
            &[
                ("flannel.cniConf", "\"{\\\"name\\\":\\\"own\\\"}\""),
                ("flannel.resources.requests.cpu", "\"50m\""),
                ("flannel.resources.requests.memory", "\"20Mi\""),
                ("flannel.healthz.port", "9000"),
                ("flannel.healthz.livenessProbe.initialDelaySeconds", "1"),
                ("flannel.healthz.livenessProbe.periodSeconds", "2"),
                ("flannel.healthz.readinessProbe.initialDelaySeconds", "3"),
                ("flannel.healthz.readinessProbe.periodSeconds", "4"),
                ("flannel.tolerations", "[{\"operator\":\"Exists\"}]"),
                ("flannel.nodeSelector", "{\"role\":\"worker\"}"),
            ],
            none.clone(),
            vec![
                (
                    container("/resources"),
                    json!({ "requests": { "cpu": "50m", "memory": "20Mi" } }),
                ),
                (container("/ports/0/containerPort"), json!(9000)),
                (container("/livenessProbe/initialDelaySeconds"), json!(1)),
                (container("/livenessProbe/periodSeconds"), json!(2)),
                (container("/readinessProbe/initialDelaySeconds"), json!(3)),
                (container("/readinessProbe/periodSeconds"), json!(4)),
                ("/tolerations", json!([{ "operator": "Exists" }])),
                ("/nodeSelector", json!({ "role": "worker" })),
            ],
        ),
        (
            &[
                (
                    "flannel.securityContext",
                    "{\"seLinuxOptions\":{\"type\":\"spc_t\"},\"readOnlyRootFilesystem\":false}",
                ),
                (
                    "flannel.flannel_cni.securityContext",
                    "{\"privileged\":true}",
                ),
                (
                    "flannel.podSecurityContext.seccompProfile.type",
                    "\"Unconfined\"",
                ),
                ("flannel.podAnnotations", "{\"example.org/a\":\"b\"}"),
                (
                    "flannel.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
                    "[{\"matchExpressions\":[{\"key\":\"role\",\"operator\":\"Exists\"}]}]",
                ),
                (
                    "flannel.extraVolumes",
                    "[{\"name\":\"psk\",\"secret\":{\"secretName\":\"psk\",\"defaultMode\":256}}]",
                ),
                (
                    "flannel.extraVolumeMounts",
                    "[{\"name\":\"psk\",\"mountPath\":\"/etc/psk\"}]",
                ),
                ("flannel.updateStrategy.type", "\"OnDelete\""),
                (
                    "flannel.updateStrategy.rollingUpdate.maxUnavailable",
                    "null",
                ),
            ],
            none.clone(),
            vec![
                (
                    container("/securityContext/seLinuxOptions/type"),
                    json!("spc_t"),
                ),
                (
                    container("/securityContext/readOnlyRootFilesystem"),
                    json!(false),
                ),
                (
                    container("/securityContext/capabilities"),
                    rights(&["NET_ADMIN", "NET_RAW", "DAC_OVERRIDE"])["capabilities"].clone(),
                ),
                (
                    "/initContainers/0/securityContext",
                    json!({ "privileged": true, "readOnlyRootFilesystem": true }),
                ),
                ("/securityContext/seccompProfile/type", json!("Unconfined")),
                (
                    "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/0/key",
                    json!("role"),
                ),
                ("/volumes/6/secret/secretName", json!("psk")),
                (container("/volumeMounts/5/mountPath"), json!("/etc/psk")),
            ],
        ),
        (
            &[("flannel.securityContext", "{\"privileged\":true}")],
            none.clone(),
            vec![(
                container("/securityContext"),
                json!({ "privileged": true, "readOnlyRootFilesystem": true }),
            )],
        ),
        // A right that is refused stays refused.
        (
            &[
                ("flannel.backend", "\"udp\""),
                ("flannel.securityContext", "{\"privileged\":false}"),
            ],
            none.clone(),
            vec![(
                container("/securityContext"),
                rights(&["NET_ADMIN", "NET_RAW", "DAC_OVERRIDE"]),
            )],
        ),
        (
            &[
                ("policy.enabled", "true"),
                ("policy.annotationPrefix", "\"example.org/net-\""),
                ("netpol.enabled", "true"),
                ("netpol.args", "[\"--v=3\"]"),
                ("netpol.image.repository", "\"registry.example.org/netpol\""),
                ("netpol.image.tag", "\"t3\""),
                ("netpol.resources.requests.cpu", "\"1m\""),
                ("netpol.resources.requests.memory", "\"1Mi\""),
            ],
            none.clone(),
            vec![
                (
                    container("/args/2"),
                    json!("--kube-annotation-prefix=example.org/net-"),
                ),
                (
                    "/containers/1/image",
                    json!("registry.example.org/netpol:t3"),
                ),
                ("/containers/1/args", json!(["--v=3"])),
                (
                    "/containers/1/resources/requests",
                    json!({ "cpu": "1m", "memory": "1Mi" }),
                ),
                ("/containers/1/securityContext/privileged", json!(true)),
            ],
        ),
    ]
}

/// What a flannel pod may change is what its daemon writes: an empty prefix is the default one, not every annotation.
#[test]
fn policy_has_the_prefix_that_the_flag_makes_of_the_value() -> Result<()> {
    for (value, want) in [
        ("\"\"", "flannel.alpha.coreos.com/"),
        ("null", "flannel.alpha.coreos.com/"),
        ("\"flannel.alpha.coreos.com\"", "flannel.alpha.coreos.com/"),
        ("\"example.org/\"", "example.org/"),
        ("\"example.org/net\"", "example.org/net-"),
        ("\"example.org/net-\"", "example.org/net-"),
    ] {
        let text = rendered(
            "kube-flannel",
            &[
                ("policy.enabled", "true"),
                ("policy.annotationPrefix", value),
            ],
        )?;
        let found: Vec<&str> = text
            .match_indices("key.startsWith('")
            .filter_map(|(at, sign)| text[at + sign.len()..].split('\'').next())
            .collect();
        ensure!(found == [want, want], "{value}: {found:?}");
    }
    Ok(())
}

fn helm(args: &[&str]) -> Result<String> {
    let output = Command::new(binaries::helm()?).args(args).output()?;
    if !output.status.success() {
        bail!(
            "helm {}: {}{}",
            args.join(" "),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

pub(super) fn rendered(namespace: &str, values: &[(&str, &str)]) -> Result<String> {
    let chart = repository("conf/chart").display().to_string();
    let set: Vec<String> = values
        .iter()
        .map(|(path, value)| format!("--set-json={path}={value}"))
        .collect();
    let mut args = vec![
        "template",
        "flannel",
        chart.as_str(),
        "--namespace",
        namespace,
        "--kube-version",
        "1.36.0",
    ];
    args.extend(set.iter().map(String::as_str));
    helm(&args)
}

/// The paths of all values of the chart that are no maps with keys of their own.
fn leaves(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value.as_object().filter(|map| !map.is_empty()) {
        Some(map) => map
            .iter()
            .for_each(|(key, value)| leaves(value, &format!("{path}.{key}"), found)),
        None => {
            found.insert(path.trim_start_matches('.').to_owned());
        }
    }
}

#[test]
fn the_chart_renders_what_a_server_takes_under_every_value() -> Result<()> {
    helm(&[
        "lint",
        "--strict",
        "--quiet",
        &repository("conf/chart").display().to_string(),
    ])?;
    ensure!(
        rendered("x", &[("podCidr", "\"\"")])
            .is_err_and(|why| why.to_string().contains("pods need at least one network")),
        "no network at all"
    );
    Lab::run("chart", |lab| {
        let cases = cases();
        let mut names: Vec<String> = (0..cases.len())
            .map(|number| format!("case-{number}"))
            .collect();
        names.push("kube-flannel".to_owned());
        let api = api_server(lab, &names)?;

        // One call for all of them: each case is in a namespace of its own.
        let mut all = rendered("kube-flannel", &[])?;
        for ((values, _, _), name) in cases.iter().zip(&names) {
            all += &rendered(name, values)?;
        }
        let objects = dry_run(lab, &api, &all)?;
        for ((values, backend, places), name) in cases.iter().zip(&names) {
            let conf = net_conf(&objects, Some(name)).with_context(|| format!("{values:?}"))?;
            ensure!(
                backend.is_null() || conf["Backend"] == *backend,
                "{values:?}: {conf}"
            );
            let pod = &object(&objects, Some(name), "DaemonSet", "kube-flannel-ds")?["spec"]["template"]
                ["spec"];
            for (place, wanted) in places {
                let have = pod.pointer(place).cloned().unwrap_or_default();
                ensure!(
                    have == *wanted,
                    "{values:?}: {place} is {have}, not {wanted}"
                );
            }
        }
        let conf = |number: usize| net_conf(&objects, names.get(number).map(String::as_str));
        ensure!(
            conf(0)?["Network"] == "10.244.0.0/16"
                && conf(0)?["IPv6Network"] == "fd00:244::/48"
                && conf(0)?["EnableIPv6"] == true,
            "dual-stack"
        );
        ensure!(
            conf(1)?["EnableIPv4"] == false && conf(1)?.get("Network").is_none(),
            "IPv6 only"
        );
        ensure!(conf(7)?["EnableNFTables"] == true, "nftables");
        let cni = |number: usize| -> Result<Value> {
            let map = object(
                &objects,
                names.get(number).map(String::as_str),
                "ConfigMap",
                "kube-flannel-cfg",
            )?;
            Ok(serde_json::from_str(
                map["data"]["cni-conf.json"]
                    .as_str()
                    .context("cni-conf.json")?,
            )?)
        };
        ensure!(
            cni(7)?["cniVersion"] == "1.1.0" && cni(9)? == json!({ "name": "own" }),
            "the CNI configuration"
        );
        let policy = object(
            &objects,
            None,
            "ValidatingAdmissionPolicy",
            "flannel-own-node",
        )?
        .to_string();
        ensure!(
            policy.contains("startsWith('example.org/net-')")
                && policy.contains("system:serviceaccount:case-13:flannel"),
            "{policy}"
        );

        // Every value of the chart was set by one of the cases.
        let file = lab.folder("manifests")?.join("values.yml");
        std::fs::write(
            &file,
            format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\n{}",
                read("conf/chart/values.yaml")?
            ),
        )?;
        let path = file.display().to_string();
        let values: Value = serde_json::from_str(&api.kubectl(&[
            "create",
            "--dry-run=client",
            "--validate=false",
            "--output=json",
            "--filename",
            &path,
        ])?)?;
        let mut there = BTreeSet::new();
        leaves(&values, "", &mut there);
        there.retain(|leaf| {
            !["apiVersion", "kind"].contains(&leaf.as_str()) && !leaf.starts_with("metadata.")
        });
        let set: BTreeSet<String> = cases
            .iter()
            .flat_map(|(values, _, _)| values.iter())
            .map(|(path, _)| (*path).to_owned())
            .collect();
        ensure!(
            there == set,
            "no case sets {:?}; the chart has no {:?}",
            there.difference(&set),
            set.difference(&there)
        );
        Ok(())
    })
}

#[test]
fn the_chart_without_values_is_the_manifest() -> Result<()> {
    Lab::run("chart as manifest", |lab| {
        let api = api_server(lab, &["kube-flannel".to_owned()])?;
        let charted = dry_run(
            lab,
            &api,
            &rendered("kube-flannel", &[("policy.enabled", "true")])?,
        )?;
        let written = dry_run(
            lab,
            &api,
            &format!(
                "{}\n---\n{}",
                read("conf/kube-flannel.yml")?,
                read("conf/kube-flannel-policy.yml")?
            ),
        )?;
        // The chart leaves the namespace to whoever installs it.
        ensure!(
            written.len() == charted.len() + 1,
            "{} and {} objects",
            written.len(),
            charted.len()
        );
        for object_of_chart in &charted {
            let (kind, name) = (
                &object_of_chart["kind"],
                &object_of_chart["metadata"]["name"],
            );
            let place = object_of_chart["metadata"]["namespace"].as_str();
            let other = object(
                &written,
                place,
                kind.as_str().unwrap_or_default(),
                name.as_str().unwrap_or_default(),
            )?;
            let (mut left, mut right) = (object_of_chart.clone(), other.clone());
            for side in [&mut left, &mut right] {
                *side = json!({ "spec": side["spec"].take(), "rules": side["rules"].take(), "subjects": side["subjects"].take(), "data": side["data"].take() });
                // Arguments may come in any order, and a text of JSON is compared as JSON.
                if let Some(args) = side
                    .pointer_mut("/spec/template/spec/containers/0/args")
                    .and_then(Value::as_array_mut)
                {
                    args.sort_by_key(Value::to_string);
                }
                if let Some(template) = side
                    .pointer_mut("/spec/template/metadata")
                    .and_then(Value::as_object_mut)
                {
                    template.remove("annotations");
                }
                // Go flannel's chart and its manifest differ in this label, and so do ours.
                for place in [
                    "/spec/template/metadata/labels",
                    "/spec/selector/matchLabels",
                ] {
                    if let Some(labels) = side.pointer_mut(place).and_then(Value::as_object_mut) {
                        labels.remove("k8s-app");
                    }
                }
                for value in side["data"]
                    .as_object_mut()
                    .into_iter()
                    .flat_map(|map| map.values_mut())
                {
                    *value = serde_json::from_str(value.as_str().unwrap_or_default())?;
                }
            }
            ensure!(
                left == right,
                "{kind} {name}:\nthe chart has {left}\nthe manifest {right}"
            );
        }
        Ok(())
    })
}

/// Values as `--set-string` and old files give them; and images that cannot run what the chart starts.
#[test]
fn texts_that_look_like_switches_and_images_of_go_flannel() -> Result<()> {
    let texts = [
        ("flannel.GBP", "\"false\""),
        ("flannel.directRouting", "\"true\""),
        ("flannel.enableNFTables", "\"true\""),
    ];
    let manifest = rendered("kube-flannel", &texts)?;
    for part in ["\"DirectRouting\": true", "\"EnableNFTables\": true"] {
        ensure!(manifest.contains(part), "no {part} in {manifest}");
    }
    ensure!(!manifest.contains("GBP"), "{manifest}");
    let refused = rendered(
        "kube-flannel",
        &[("flannel.image.repository", "\"ghcr.io/flannel-io/flannel\"")],
    );
    let said = format!(
        "{:#}",
        refused.err().context("Go flannel's image was taken")?
    );
    ensure!(
        said.contains("ghcr.io/flannel-io/flannel is Go flannel's"),
        "{said}"
    );
    Ok(())
}

/// Who carries packets in user space needs /dev/net/tun, which only privileged containers have; nobody else is privileged.
#[test]
fn a_container_is_privileged_when_its_backend_may_carry_packets() -> Result<()> {
    for (backend, extra, privileged) in [
        ("vxlan", "{}", false),
        ("vxlan", r#"{"Mode":"kernel"}"#, false),
        ("vxlan", r#"{"Mode":"userspace"}"#, true),
        ("vxlan", r#"{"mode":"Userspace"}"#, true),
        ("vxlan", r#"{"Mode":"auto"}"#, true),
        ("vxlan", r#"{"Implementation":"userspace"}"#, false),
        ("host-gw", "{}", false),
        ("ipip", "{}", false),
        ("alloc", "{}", false),
        ("udp", "{}", true),
        ("wireguard", "{}", false),
        ("wireguard", r#"{"Mode":"auto"}"#, false),
        ("wireguard", r#"{"Implementation":"kernel"}"#, false),
        ("wireguard", r#"{"Implementation":"auto"}"#, true),
        ("wireguard", r#"{"implementation":"UserSpace"}"#, true),
    ] {
        let text = rendered(
            "kube-flannel",
            &[
                ("flannel.backend", &format!("{backend:?}")),
                ("flannel.backendExtra", extra),
            ],
        )?;
        let (_, main) = text
            .split_once("- name: kube-flannel\n")
            .context("the daemon's container")?;
        ensure!(
            main.contains("privileged: true") == privileged
                && main.contains("allowPrivilegeEscalation: false") != privileged,
            "{backend} {extra}: {main}"
        );
    }
    Ok(())
}

/// Images that no registry has are not pulled; those of a registry are.
#[test]
fn images_are_pulled_from_registries_that_have_them() -> Result<()> {
    let policies = |values: &[(&str, &str)]| -> Result<Vec<String>> {
        let text = rendered("kube-flannel", values)?;
        Ok(text
            .lines()
            .filter_map(|line| {
                line.trim()
                    .strip_prefix("imagePullPolicy: ")
                    .map(str::to_owned)
            })
            .collect())
    };
    ensure!(policies(&[])? == ["Never", "Never"], "{:?}", policies(&[])?);
    let own = [(
        "flannel.image.repository",
        "\"registry.example.org/flannel\"",
    )];
    ensure!(
        policies(&own)? == ["Never", "IfNotPresent"],
        "{:?}",
        policies(&own)?
    );
    let own = [own[0], ("flannel.image.pullPolicy", "\"Always\"")];
    ensure!(
        policies(&own)? == ["Never", "Always"],
        "{:?}",
        policies(&own)?
    );
    Ok(())
}
