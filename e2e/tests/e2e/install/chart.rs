//! For every value of the Helm chart, an API server accepts the rendered objects, and the value has its effect.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lab::{ApiServer, Lab, binaries, require_success, until_ok};
use serde_json::{Value, json};

use super::{
    dry_run, find_object, net_conf, read_repository_file, repository_path,
    start_real_api_server_on_new_host,
};
use cases::Case;

mod cases;

/// If the annotation prefix is empty, the admission policy uses the default prefix, as the daemon does. An empty prefix must not allow every annotation.
#[test]
fn policy_prefix_is_normalised_like_the_flag() -> Result<()> {
    for (value, want) in [
        ("\"\"", "flannel.alpha.coreos.com/"),
        ("null", "flannel.alpha.coreos.com/"),
        ("\"flannel.alpha.coreos.com\"", "flannel.alpha.coreos.com/"),
        ("\"example.org/\"", "example.org/"),
        ("\"example.org/net\"", "example.org/net-"),
        ("\"example.org/net-\"", "example.org/net-"),
    ] {
        let text = render_chart(
            "kube-flannel",
            &[("policy.enabled", "true"), ("policy.annotationPrefix", value)],
        )?;
        let found: Vec<&str> = text
            .match_indices("key.startsWith('")
            .filter_map(|(at, sign)| text[at + sign.len()..].split('\'').next())
            .collect();
        ensure!(found == [want, want], "{value}: {found:?}");
    }
    Ok(())
}

/// A value that Go's templates or ours would silently turn into a default is an error. Values files of Go flannel's chart have numbers and words as texts too.
#[test]
fn chart_refuses_values_of_the_wrong_type_and_unknown_names() -> Result<()> {
    for (path, value) in [
        ("flannel.vni", "\"4k\""),
        ("flannel.vni", "16777216"),
        ("flannel.backendPort", "\"abc\""),
        ("flannel.backendPort", "65536"),
        ("flannel.directRouting", "\"yes\""),
        ("flannel.enableNFTables", "1"),
        ("flannel.args", "\"--ip-masq\""),
        ("flannel.vnii", "7"),
        ("flannel.healthz.prot", "1"),
        ("flannel.podLabels", "{\"a\":1}"),
        ("netpol.enable", "true"),
        ("podCIDR", "\"10.244.0.0/16\""),
    ] {
        let refused = render_chart("x", &[(path, value)]);
        ensure!(
            refused.is_err_and(|why| why.to_string().contains("the schema")),
            "{path}={value} is accepted"
        );
    }
    let texts = [
        ("flannel.vni", "\"7\""),
        ("flannel.GBP", "\"true\""),
        ("flannel.psk", "0"),
        ("flannel.image.tag", "1.5"),
        ("global.own", "{\"of\":\"a parent chart\"}"),
    ];
    ensure!(render_chart("x", &texts)?.contains("\"VNI\": 7"), "VNI 7");
    Ok(())
}

fn run_helm(args: &[&str]) -> Result<String> {
    let output = Command::new(binaries::helm_program()?).args(args).output()?;
    require_success(&format!("helm {}", args.join(" ")), &output)
}

pub(super) fn render_chart(namespace: &str, values: &[(&str, &str)]) -> Result<String> {
    let chart = repository_path("conf/chart").display().to_string();
    let set: Vec<String> =
        values.iter().map(|(path, value)| format!("--set-json={path}={value}")).collect();
    let mut args = vec![
        "template",
        "flannel",
        chart.as_str(),
        "--namespace",
        namespace,
        "--kube-version",
        "1.37.0",
    ];
    args.extend(set.iter().map(String::as_str));
    run_helm(&args)
}

/// The paths of all values that are not maps, or are empty maps.
fn collect_leaf_paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value.as_object().filter(|map| !map.is_empty()) {
        Some(map) => {
            map.iter().for_each(|(key, value)| {
                collect_leaf_paths(value, &format!("{path}.{key}"), found);
            });
        }
        None => {
            found.insert(path.trim_start_matches('.').to_owned());
        }
    }
}

#[test]
fn chart_renders_valid_objects_for_every_value() -> Result<()> {
    run_helm(&[
        "lint",
        "--strict",
        "--quiet",
        &repository_path("conf/chart").display().to_string(),
    ])?;
    ensure!(
        render_chart("x", &[("podCidr", "\"\"")])
            .is_err_and(|why| why.to_string().contains("pods need at least one network")),
        "no network at all"
    );
    Lab::run("chart", |lab| {
        let cases = cases::all_cases();
        let mut namespaces: Vec<&str> = cases.iter().map(|case| case.name).collect();
        namespaces.push("kube-flannel");
        let api = start_real_api_server_on_new_host(lab, &namespaces)?;
        create_prometheus_operator_crds(&api)?;

        // One call for all cases, because each is in a namespace of its own.
        let mut all = render_chart("kube-flannel", &[])?;
        for case in &cases {
            all += &render_chart(case.name, case.values)?;
        }
        let objects = dry_run(lab, &api, &all)?;
        cases.iter().try_for_each(|case| require_case(&objects, case))?;
        require_network_configurations(&objects)?;
        require_cni_configurations(&objects)?;
        require_labels(&objects)?;
        require_policy(&objects)?;
        require_monitoring(&objects)?;
        require_every_value_set(&chart_value_paths(lab, &api)?, &cases)
    })
}

/// net-conf.json and the DaemonSet's pod have the values that the case expects.
fn require_case(objects: &[Value], case: &Case) -> Result<()> {
    let (name, values) = (case.name, case.values);
    let conf = net_conf(objects, Some(name)).with_context(|| format!("{name}: {values:?}"))?;
    ensure!(
        case.backend.as_ref().is_none_or(|backend| conf["Backend"] == *backend),
        "{name}: {conf}: {values:?}"
    );
    let set = find_object(objects, Some(name), "DaemonSet", "kube-flannel-ds")?;
    let pod = &set["spec"]["template"]["spec"];
    for (place, wanted) in &case.places {
        let have = pod.pointer(place).cloned().unwrap_or_default();
        ensure!(have == *wanted, "{name}: {place} is {have}, not {wanted}: {values:?}");
    }
    Ok(())
}

/// The custom resource definitions that the chart uses; they accept any content.
fn create_prometheus_operator_crds(api: &ApiServer) -> Result<()> {
    for (kind, plural) in [("PodMonitor", "podmonitors"), ("PrometheusRule", "prometheusrules")] {
        api.admin().create(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": { "name": format!("{plural}.monitoring.coreos.com") },
                "spec": {
                    "group": "monitoring.coreos.com",
                    "scope": "Namespaced",
                    "names": { "kind": kind, "plural": plural },
                    "versions": [{
                        "name": "v1",
                        "served": true,
                        "storage": true,
                        "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                    }],
                },
            }),
        )?;
    }
    until_ok("the kinds are served", || {
        let kinds = api.kubectl(&["api-resources", "--api-group=monitoring.coreos.com"])?;
        ensure!(kinds.contains("PodMonitor") && kinds.contains("PrometheusRule"), "{kinds}");
        Ok(())
    })
}

fn require_monitoring(objects: &[Value]) -> Result<()> {
    let monitor = find_object(objects, Some("monitoring"), "PodMonitor", "kube-flannel")?;
    ensure!(
        monitor["metadata"]["labels"]["release"] == "a"
            && monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "15s",
        "{monitor}"
    );
    let rules = find_object(objects, Some("monitoring"), "PrometheusRule", "kube-flannel")?;
    let groups = rules["spec"]["groups"].as_array().map_or(0, Vec::len);
    ensure!(rules["metadata"]["labels"]["release"] == "b" && groups > 3, "{rules}");
    Ok(())
}

fn require_network_configurations(objects: &[Value]) -> Result<()> {
    let conf = |name: &str| net_conf(objects, Some(name));
    ensure!(
        conf("dual-stack")?["Network"] == "10.244.0.0/16"
            && conf("dual-stack")?["IPv6Network"] == "fd00:244::/48"
            && conf("dual-stack")?["EnableIPv6"] == true,
        "dual-stack"
    );
    ensure!(
        conf("ipv6-only")?["EnableIPv4"] == false && conf("ipv6-only")?.get("Network").is_none(),
        "IPv6 only"
    );
    ensure!(conf("cni-of-k3s")?["EnableNFTables"] == true, "nftables");
    Ok(())
}

fn require_cni_configurations(objects: &[Value]) -> Result<()> {
    let cni = |name: &str| -> Result<Value> {
        let map = find_object(objects, Some(name), "ConfigMap", "kube-flannel-cfg")?;
        Ok(serde_json::from_str(map["data"]["cni-conf.json"].as_str().context("cni-conf.json")?)?)
    };
    ensure!(
        cni("kube-flannel")?["cniVersion"] == "1.0.0"
            && cni("cni-of-k3s")?["cniVersion"] == "1.1.0"
            && cni("pod")? == json!({ "name": "own" }),
        "the CNI configuration"
    );
    Ok(())
}

/// All objects have the common labels and annotations, and no value changes the labels by which the DaemonSet selects its pods.
fn require_labels(objects: &[Value]) -> Result<()> {
    let of_case = objects.iter().filter(|object| object["metadata"]["namespace"] == "labels");
    for object in of_case {
        let metadata = &object["metadata"];
        ensure!(
            metadata["labels"]["all"] == "l" && metadata["annotations"]["all"] == "a",
            "{object}"
        );
    }
    let set = find_object(objects, Some("labels"), "DaemonSet", "kube-flannel-ds")?;
    let (own, pod) = (&set["metadata"], &set["spec"]["template"]["metadata"]);
    ensure!(own["labels"]["set"] == "l" && own["annotations"]["set"] == "a", "{own}");
    ensure!(
        pod["labels"]["app"] == "flannel"
            && pod["labels"]["pod"] == "l"
            && pod["annotations"]["example.org/a"] == "b",
        "{pod}"
    );
    Ok(())
}

fn require_policy(objects: &[Value]) -> Result<()> {
    let policy =
        find_object(objects, None, "ValidatingAdmissionPolicy", "flannel-own-node")?.to_string();
    ensure!(
        policy.contains("startsWith('example.org/net-')")
            && policy.contains("system:serviceaccount:policy:flannel"),
        "{policy}"
    );
    Ok(())
}

/// Their paths in the chart's values.yaml. kubectl reads the YAML.
fn chart_value_paths(lab: &Lab, api: &ApiServer) -> Result<BTreeSet<String>> {
    let file = lab.ensure_folder("manifests")?.join("values.yml");
    std::fs::write(
        &file,
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\n{}",
            read_repository_file("conf/chart/values.yaml")?
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
    collect_leaf_paths(&values, "", &mut there);
    there.retain(|leaf| {
        !["apiVersion", "kind"].contains(&leaf.as_str()) && !leaf.starts_with("metadata.")
    });
    Ok(there)
}

fn require_every_value_set(there: &BTreeSet<String>, cases: &[Case]) -> Result<()> {
    let set: BTreeSet<String> = cases
        .iter()
        .flat_map(|case| case.values.iter())
        .map(|(path, _)| (*path).to_owned())
        .collect();
    ensure!(
        *there == set,
        "no case sets {:?}; the chart has no {:?}",
        there.difference(&set),
        set.difference(there)
    );
    Ok(())
}

#[test]
fn chart_without_values_renders_the_manifest() -> Result<()> {
    Lab::run("chart as manifest", |lab| {
        let api = start_real_api_server_on_new_host(lab, &["kube-flannel"])?;
        let charted =
            dry_run(lab, &api, &render_chart("kube-flannel", &[("policy.enabled", "true")])?)?;
        let written = dry_run(
            lab,
            &api,
            &format!(
                "{}\n---\n{}",
                read_repository_file("conf/kube-flannel.yml")?,
                read_repository_file("conf/kube-flannel-policy.yml")?
            ),
        )?;
        // The manifest has one object more, the namespace. helm or its user creates that, so the chart has none.
        ensure!(
            written.len() == charted.len() + 1,
            "{} and {} objects",
            written.len(),
            charted.len()
        );
        for object_of_chart in &charted {
            let (kind, name) = (&object_of_chart["kind"], &object_of_chart["metadata"]["name"]);
            let place = object_of_chart["metadata"]["namespace"].as_str();
            let other = find_object(
                &written,
                place,
                kind.as_str().unwrap_or_default(),
                name.as_str().unwrap_or_default(),
            )?;
            let (chart, manifest) =
                (comparable_fields(object_of_chart)?, comparable_fields(other)?);
            ensure!(
                chart == manifest,
                "{kind} {name}:\nthe chart has {chart}\nthe manifest {manifest}"
            );
        }
        Ok(())
    })
}

/// The fields in which an object of the chart must equal the manifest's, with sorted arguments.
fn comparable_fields(object: &Value) -> Result<Value> {
    let mut object = object.clone();
    let mut parts = json!({ "spec": object["spec"].take(), "rules": object["rules"].take(), "subjects": object["subjects"].take(), "data": object["data"].take() });
    // The order of arguments has no meaning.
    if let Some(args) =
        parts.pointer_mut("/spec/template/spec/containers/0/args").and_then(Value::as_array_mut)
    {
        args.sort_by_key(Value::to_string);
    }
    if let Some(template) =
        parts.pointer_mut("/spec/template/metadata").and_then(Value::as_object_mut)
    {
        template.remove("annotations");
    }
    // Go flannel's chart and its manifest differ in this label, and so do ours.
    for place in ["/spec/template/metadata/labels", "/spec/selector/matchLabels"] {
        if let Some(labels) = parts.pointer_mut(place).and_then(Value::as_object_mut) {
            labels.remove("k8s-app");
        }
    }
    // Indentation and order of JSON in a ConfigMap have no meaning.
    for value in parts["data"].as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
        *value = serde_json::from_str(value.as_str().unwrap_or_default())?;
    }
    Ok(parts)
}

/// `--set-string` and old values files pass booleans as text. Go flannel's image cannot run the commands of the chart.
#[test]
fn chart_reads_booleans_from_text_and_refuses_go_flannels_image() -> Result<()> {
    let texts = [
        ("flannel.GBP", "\"false\""),
        ("flannel.directRouting", "\"true\""),
        ("flannel.enableNFTables", "\"true\""),
    ];
    let manifest = render_chart("kube-flannel", &texts)?;
    for part in ["\"DirectRouting\": true", "\"EnableNFTables\": true"] {
        ensure!(manifest.contains(part), "no {part} in {manifest}");
    }
    ensure!(!manifest.contains("GBP"), "{manifest}");
    let refused = render_chart(
        "kube-flannel",
        &[("flannel.image.repository", "\"ghcr.io/flannel-io/flannel\"")],
    );
    let error = format!("{:#}", refused.err().context("Go flannel's image was taken")?);
    ensure!(error.contains("ghcr.io/flannel-io/flannel is Go flannel's"), "{error}");
    Ok(())
}

/// The userspace datapath needs /dev/net/tun, which only privileged containers have. Containers that need no TUN device are not privileged.
#[test]
fn container_is_privileged_when_its_backend_needs_tun() -> Result<()> {
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
        let text = render_chart(
            "kube-flannel",
            &[("flannel.backend", &format!("{backend:?}")), ("flannel.backendExtra", extra)],
        )?;
        let (_, main) =
            text.split_once("- name: kube-flannel\n").context("the daemon's container")?;
        ensure!(
            main.contains("privileged: true") == privileged
                && main.contains("allowPrivilegeEscalation: false") != privileged,
            "{backend} {extra}: {main}"
        );
    }
    Ok(())
}

#[test]
fn images_are_pulled_when_a_registry_has_them() -> Result<()> {
    let repository = ("flannel.image.repository", "\"registry.example.org/flannel\"");
    let always = ("flannel.image.pullPolicy", "\"Always\"");
    for (values, want) in [
        (&[][..], ["Never", "Never"]),
        (&[repository], ["Never", "IfNotPresent"]),
        (&[repository, always], ["Never", "Always"]),
    ] {
        let text = render_chart("kube-flannel", values)?;
        let policies: Vec<&str> =
            text.lines().filter_map(|line| line.trim().strip_prefix("imagePullPolicy: ")).collect();
        ensure!(policies == want, "{values:?}: {policies:?}");
    }
    Ok(())
}
