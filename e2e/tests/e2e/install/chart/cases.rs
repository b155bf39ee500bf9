//! Test cases for values of the Helm chart, with expected effects on net-conf.json and the DaemonSet.

use serde_json::{Value, json};

/// Chart values, and their expected effect.
pub(super) struct Case {
    /// Also the namespace for which the test renders the chart.
    pub name: &'static str,
    /// Paths, and the JSON of each value.
    pub values: &'static [(&'static str, &'static str)],
    /// In net-conf.json. `None` skips the comparison.
    pub backend: Option<Value>,
    /// JSON pointers into the DaemonSet's pod, and the expected JSON there. `null` means that nothing exists at the pointer.
    pub places: Vec<(&'static str, Value)>,
}

impl Case {
    fn new(name: &'static str, values: &'static [(&'static str, &'static str)]) -> Case {
        Case { name, values, backend: None, places: Vec::new() }
    }

    fn expecting_backend(self, backend: Value) -> Case {
        Case { backend: Some(backend), ..self }
    }

    fn expecting_value_at(mut self, place: &'static str, value: Value) -> Case {
        self.places.push((place, value));
        self
    }

    fn expecting_nothing_at(self, place: &'static str) -> Case {
        self.expecting_value_at(place, Value::Null)
    }
}

/// The security context of a container that is not privileged.
fn unprivileged_security_context() -> Value {
    json!({
        "privileged": false, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW", "DAC_OVERRIDE"] },
    })
}

pub(super) fn all_cases() -> Vec<Case> {
    [
        network_cases(),
        backend_cases(),
        image_cases(),
        cni_cases(),
        label_cases(),
        pod_cases(),
        security_cases(),
        policy_cases(),
        monitoring_cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn monitoring_cases() -> Vec<Case> {
    vec![Case::new(
        "monitoring",
        &[
            ("monitoring.podMonitor.enabled", "true"),
            ("monitoring.podMonitor.interval", "\"15s\""),
            ("monitoring.podMonitor.labels", "{\"release\":\"a\"}"),
            ("monitoring.rules.enabled", "true"),
            ("monitoring.rules.labels", "{\"release\":\"b\"}"),
        ],
    )]
}

fn label_cases() -> Vec<Case> {
    vec![Case::new(
        "labels",
        &[
            ("global.commonLabels", "{\"all\":\"l\"}"),
            ("global.commonAnnotations", "{\"all\":\"a\"}"),
            ("flannel.daemonSet.labels", "{\"set\":\"l\"}"),
            ("flannel.daemonSet.annotations", "{\"set\":\"a\"}"),
            ("flannel.podLabels", "{\"app\":\"other\",\"pod\":\"l\"}"),
            ("flannel.podAnnotations", "{\"example.org/a\":\"b\"}"),
        ],
    )]
}

fn network_cases() -> Vec<Case> {
    vec![
        Case::new("dual-stack", &[("podCidrv6", "\"fd00:244::/48\"")])
            .expecting_backend(json!({ "Type": "vxlan" })),
        Case::new(
            "ipv6-only",
            &[
                ("podCidr", "\"\""),
                ("podCidrv6", "\"fd00:244::/48\""),
                ("flannel.backend", "\"host-gw\""),
            ],
        )
        .expecting_backend(json!({ "Type": "host-gw" })),
    ]
}

fn backend_cases() -> Vec<Case> {
    vec![
        Case::new(
            "udp",
            &[
                ("flannel.backend", "\"udp\""),
                ("flannel.backendPort", "8286"),
                ("flannel.mtu", "1400"),
            ],
        )
        .expecting_backend(json!({ "Type": "udp", "Port": 8286, "MTU": 1400 }))
        .expecting_value_at("/containers/0/securityContext/privileged", json!(true))
        // A privileged container has the host's devices without a mount.
        .expecting_nothing_at("/containers/0/volumeMounts/5"),
        Case::new(
            "vxlan",
            &[
                ("flannel.backendPort", "8473"),
                ("flannel.vni", "7"),
                ("flannel.GBP", "true"),
                ("flannel.directRouting", "true"),
                ("flannel.macPrefix", "\"0E-2B\""),
                ("flannel.backendExtra", "{\"ChecksumOffload\":\"off\"}"),
            ],
        )
        .expecting_backend(json!({
            "Type": "vxlan", "Port": 8473, "VNI": 7, "GBP": true, "DirectRouting": true, "MacPrefix": "0E-2B", "ChecksumOffload": "off",
        })),
        Case::new(
            "wireguard",
            &[
                ("flannel.backend", "\"wireguard\""),
                ("flannel.backendPort", "51820"),
                ("flannel.backendPortv6", "51822"),
                ("flannel.psk", "\"0123\""),
                ("flannel.tunnelMode", "\"separate\""),
                ("flannel.keepaliveInterval", "25"),
            ],
        )
        .expecting_backend(json!({
            "Type": "wireguard", "ListenPort": 51820, "ListenPortV6": 51822, "PSK": "0123", "Mode": "separate", "PersistentKeepaliveInterval": 25,
        })),
        // Go flannel's chart needs the inner quotes. For wireguard, `auto` does not select the userspace datapath.
        Case::new(
            "wireguard-auto",
            &[
                ("flannel.backend", "\"wireguard\""),
                ("flannel.tunnelMode", "\"\\\"auto\\\"\""),
            ],
        )
        .expecting_backend(json!({ "Type": "wireguard", "Mode": "auto" }))
        .expecting_value_at("/containers/0/securityContext", unprivileged_security_context()),
    ]
}

fn image_cases() -> Vec<Case> {
    vec![
        Case::new(
            "images",
            &[
                ("flannel.image.repository", "\"registry.example.org/flannel\""),
                ("flannel.image.tag", "\"t1\""),
                ("flannel.image.pullPolicy", "\"Always\""),
                ("flannel.flannel_cni.image.repository", "\"registry.example.org/plugin\""),
                ("flannel.flannel_cni.image.tag", "\"t2\""),
                ("flannel.flannel_cni.image.pullPolicy", "\"Never\""),
                ("global.imagePullSecrets", "[{\"name\":\"secret\"}]"),
            ],
        )
        .expecting_value_at("/containers/0/image", json!("registry.example.org/flannel:t1"))
        .expecting_value_at("/containers/0/imagePullPolicy", json!("Always"))
        .expecting_value_at("/initContainers/0/image", json!("registry.example.org/plugin:t2"))
        .expecting_value_at("/initContainers/0/imagePullPolicy", json!("Never"))
        .expecting_value_at("/imagePullSecrets/0/name", json!("secret")),
    ]
}

fn cni_cases() -> Vec<Case> {
    let k3s = Case::new(
        "cni-of-k3s",
        &[
            ("flannel.cniBinDir", "\"/var/lib/rancher/k3s/data/cni\""),
            ("flannel.cniConfDir", "\"/var/lib/rancher/k3s/agent/etc/cni/net.d\""),
            ("flannel.cniVersion", "\"1.1.0\""),
            ("flannel.enableNFTables", "true"),
        ],
    )
    .expecting_value_at("/volumes/1/hostPath/path", json!("/var/lib/rancher/k3s/data/cni"))
    .expecting_value_at(
        "/volumes/2/hostPath/path",
        json!("/var/lib/rancher/k3s/agent/etc/cni/net.d"),
    )
    .expecting_value_at("/initContainers/0/volumeMounts/0/mountPath", json!("/opt/cni/bin"))
    .expecting_value_at(
        "/containers/0/volumeMounts/4",
        json!({ "name": "cni-data", "mountPath": "/var/lib/cni", "readOnly": true }),
    );
    let no_cni = Case::new(
        "no-cni",
        &[
            ("flannel.skipCNIConfigInstallation", "true"),
            ("flannel.cniDataDir", "\"\""),
            ("flannel.args", "[\"--kube-subnet-mgr\"]"),
            ("flannel.extraArgs", "[\"--iface=eth1\"]"),
            ("flannel.extraEnv", "[{\"name\":\"FLANNELD_V\",\"value\":\"1\"}]"),
            ("flannel.apiUrl", "\"https://10.0.0.1:6443\""),
            ("flannel.healthz.port", "0"),
        ],
    )
    .expecting_value_at(
        "/containers/0/args",
        json!(["--kube-subnet-mgr", "--iface=eth1", "--kube-api-url=https://10.0.0.1:6443"]),
    )
    .expecting_value_at("/containers/0/env/3", json!({ "name": "FLANNELD_V", "value": "1" }))
    .expecting_nothing_at("/containers/0/livenessProbe")
    .expecting_nothing_at("/containers/0/ports")
    .expecting_nothing_at("/containers/0/volumeMounts/3")
    .expecting_nothing_at("/volumes/4");
    vec![k3s, no_cni]
}

fn pod_cases() -> Vec<Case> {
    vec![
        Case::new(
            "pod",
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
        )
        .expecting_value_at(
            "/containers/0/resources",
            json!({ "requests": { "cpu": "50m", "memory": "20Mi" } }),
        )
        .expecting_value_at("/containers/0/ports/0/containerPort", json!(9000))
        .expecting_value_at("/containers/0/livenessProbe/initialDelaySeconds", json!(1))
        .expecting_value_at("/containers/0/livenessProbe/periodSeconds", json!(2))
        .expecting_value_at("/containers/0/readinessProbe/initialDelaySeconds", json!(3))
        .expecting_value_at("/containers/0/readinessProbe/periodSeconds", json!(4))
        .expecting_value_at("/tolerations", json!([{ "operator": "Exists" }]))
        .expecting_value_at("/nodeSelector", json!({ "role": "worker" })),
    ]
}

fn security_cases() -> Vec<Case> {
    vec![
        contexts_and_volumes(),
        Case::new("privileged", &[("flannel.securityContext", "{\"privileged\":true}")])
            .expecting_value_at(
                "/containers/0/securityContext",
                json!({ "privileged": true, "readOnlyRootFilesystem": true }),
            ),
        // The chart does not grant a right that the user has refused.
        Case::new(
            "unprivileged-udp",
            &[
                ("flannel.backend", "\"udp\""),
                ("flannel.securityContext", "{\"privileged\":false}"),
            ],
        )
        .expecting_value_at("/containers/0/securityContext", unprivileged_security_context()),
    ]
}

fn contexts_and_volumes() -> Case {
    Case::new(
        "contexts",
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
    )
    .expecting_value_at(
        "/containers/0/securityContext/seLinuxOptions/type",
        json!("spc_t"),
    )
    .expecting_value_at(
        "/containers/0/securityContext/readOnlyRootFilesystem",
        json!(false),
    )
    .expecting_value_at(
        "/containers/0/securityContext/capabilities",
        unprivileged_security_context()["capabilities"].clone(),
    )
    .expecting_value_at(
        "/initContainers/0/securityContext",
        json!({ "privileged": true, "readOnlyRootFilesystem": true }),
    )
    .expecting_value_at("/securityContext/seccompProfile/type", json!("Unconfined"))
    .expecting_value_at(
        "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/0/key",
        json!("role"),
    )
    .expecting_value_at("/volumes/6/secret/secretName", json!("psk"))
    .expecting_value_at("/containers/0/volumeMounts/5/mountPath", json!("/etc/psk"))
}

fn policy_cases() -> Vec<Case> {
    vec![
        Case::new(
            "policy",
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
        )
        .expecting_value_at(
            "/containers/0/args/2",
            json!("--kube-annotation-prefix=example.org/net-"),
        )
        .expecting_value_at("/containers/1/image", json!("registry.example.org/netpol:t3"))
        .expecting_value_at("/containers/1/args", json!(["--v=3"]))
        .expecting_value_at(
            "/containers/1/resources/requests",
            json!({ "cpu": "1m", "memory": "1Mi" }),
        )
        .expecting_value_at("/containers/1/securityContext/privileged", json!(true)),
    ]
}
