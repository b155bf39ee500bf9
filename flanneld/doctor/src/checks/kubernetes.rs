//! Checks of Kubernetes: this node's Node object, flannel's pods, and the permissions at the API server.

use super::daemon_set;
use super::interface_remedy::restart;
use super::rights;
use crate::check::Check;
use crate::command::Command;
use crate::facts::Facts;
use crate::facts::daemon::{Launch, NAMESPACE};
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::shell::word;
use std::collections::BTreeSet;
use types::problem::StoreCause;
use types::{DaemonPod, Detail};

pub const CHECKS: &[Check] = &[
    Check::new(
        "api-by-service",
        Severity::Broken,
        "flanneld uses the API server's Service, which kube-proxy does not serve yet",
        &[Need::Kubernetes],
        &["store-unreachable", "pod-cidr", "lease"],
        api_by_service,
    )
    .waiting(),
    Check::new(
        "rbac",
        Severity::Broken,
        "The API server refuses flanneld's requests",
        &[Need::Kubernetes],
        &["store-unreachable", "pod-cidr", "lease"],
        rbac,
    ),
    Check::new(
        "pod-cidr",
        Severity::Broken,
        "The Node has no podCIDR",
        &[Need::Kubernetes],
        &["lease", "config"],
        pod_cidr,
    ),
    Check::new(
        "daemon-set",
        Severity::Broken,
        "A pod of flannel does not fit the DaemonSet",
        &[Need::DaemonPods],
        &[],
        daemon_pods,
    )
    .waiting(),
];

/// Expands to the address at which other nodes reach the API server. It comes from kubectl's configuration or, for a local address (k3s, kind), from
/// the endpoint behind the Service.
const OWN_ADDRESS: &str = r#""$(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}' | grep -Ev '//(127\.|0\.0\.0\.0|localhost|\[::)' || kubectl -n default get endpoints kubernetes -o jsonpath='https://{.subsets[0].addresses[0].ip}:{.subsets[0].ports[0].port}' | sed -E 's|//([^/]*:[^/]*):|//[\1]:|')""#;

fn api_by_service(facts: &Facts) -> Vec<Finding> {
    let Some(kubernetes) =
        facts.kubernetes.known().filter(|kubernetes| kubernetes.by_service_unanswered)
    else {
        return Vec::new();
    };
    let server = kubernetes.server.map(|server| server.to_string()).unwrap_or_default();
    let finding = Finding::new(
        "api-by-service",
        Severity::Broken,
        "",
        format!("the API server does not respond at its Service's address {server}"),
        "kube-proxy on this node does not serve Services yet; flanneld can connect to the API server's own address",
    )
    .seen("no reply", format!("curl -k https://{server}/livez"));
    vec![match &facts.daemon.launch {
        Launch::Kubernetes { namespace, .. } => {
            finding.run(daemon_set::set_env(namespace, "FLANNELD_KUBE_API_URL", OWN_ADDRESS))
        }
        Launch::Systemd => {
            finding.run(Command::kubectl("-n kube-system get pods -l k8s-app=kube-proxy -o wide"))
        }
    }]
}

fn rbac(facts: &Facts) -> Vec<Finding> {
    let Some(problem) = facts.kubernetes.known().and_then(|kubernetes| kubernetes.refusal.as_ref())
    else {
        return Vec::new();
    };
    let refusal = problem.details().find_map(|detail| match detail {
        Detail::Forbidden { user, verb, resource } => Some((user, verb, resource)),
        _ => None,
    });
    let anonymous = refusal.is_some_and(|(user, ..)| user == rights::ANONYMOUS);
    let unknown = anonymous
        || problem
            .details()
            .any(|detail| matches!(detail, Detail::Store { cause: StoreCause::User, .. }));
    let what = match refusal {
        _ if unknown => "the API server does not know the credentials of flanneld".to_owned(),
        Some((_, verb, resource)) => {
            format!(
                "flanneld is not allowed to {verb} {resource}: flanneld's account lacks the permission"
            )
        }
        None => "flanneld's account lacks a permission".to_owned(),
    };
    let grant = match (refusal, &facts.daemon.launch) {
        (Some((user, ..)), _) => rights::grant(user),
        (None, Launch::Kubernetes { namespace, .. }) => {
            rights::grant(&format!("system:serviceaccount:{namespace}:flannel"))
        }
        (None, Launch::Systemd) => None,
    };
    // A new pod gets a new token.
    let command = if unknown {
        restart(facts)
    } else {
        grant.unwrap_or_else(|| Command::kubectl("describe clusterrole flannel"))
    };
    vec![
        Finding::new(
            "rbac",
            Severity::Broken,
            "",
            what,
            "flanneld cannot read the Nodes, so it knows neither this node's subnet nor its peers",
        )
        .seen(problem.to_string(), "the API server")
        .run(command),
    ]
}

/// kubeadm's manifest; kubelet restarts the controller manager when it changes.
const CONTROLLER_MANAGER: &str = "/etc/kubernetes/manifests/kube-controller-manager.yaml";

fn pod_cidr(facts: &Facts) -> Vec<Finding> {
    let Some(kubernetes) = facts.kubernetes.known() else {
        return Vec::new();
    };
    if kubernetes.pod_cidrs.as_ref().is_none_or(|cidrs| !cidrs.is_empty()) {
        return Vec::new();
    }
    let node = &kubernetes.node;
    let finding = Finding::new(
        "pod-cidr",
        Severity::Broken,
        "",
        format!("the Node {node} has no podCIDR"),
        "the controller manager gives Nodes their subnets only if it runs with --allocate-node-cidrs and --cluster-cidr (kubeadm: --pod-network-cidr). The range of --cluster-cidr must also have free subnets",
    )
    .seen("spec.podCIDRs is empty", format!("kubectl get node {} -o jsonpath={{.spec.podCIDRs}}", word(node)));
    let networks = kubernetes
        .cluster_cidr
        .as_deref()
        .filter(|text| text.chars().all(|c| c.is_ascii_hexdigit() || ".:/,".contains(c)));
    vec![match networks {
        // Writes nothing if the flags are already present. In that case the range is used up.
        Some(networks) => {
            let script = format!(
                r"s|^( *)- kube-controller-manager$|&\n\1- --allocate-node-cidrs=true\n\1- --cluster-cidr={networks}|"
            );
            finding
                .run(format!("grep -e --cluster-cidr {CONTROLLER_MANAGER} || sed -E -i {} {CONTROLLER_MANAGER}", word(&script)))
                .on("each node of the control plane")
        }
        None => finding.run(Command::kubectl(
            "-n kube-system get pods -l component=kube-controller-manager -o yaml | grep cidr",
        )),
    }]
}

/// In the selectors of Go flannel's released manifest and flannel-rs' manifest, in addition to `app`.
const LABEL: &str = "k8s-app";
/// The generation number of a DaemonSet's pod template. Unless the commands remove the label, a new DaemonSet with the same number does not update
/// the old pods.
const GENERATION: &str = "pod-template-generation";
/// kubectl arguments: a new DaemonSet whose selector matches the pods adopts them.
const KEEP_PODS: &str = "delete daemonset kube-flannel-ds --cascade=orphan";

fn daemon_pods(facts: &Facts) -> Vec<Finding> {
    let Some(pods) = facts.daemon.pods.known() else {
        return Vec::new();
    };
    let namespace = match &facts.daemon.launch {
        Launch::Kubernetes { namespace, .. } => namespace.as_str(),
        Launch::Systemd => NAMESPACE,
    };
    let pods = PodsOfNamespace { namespace, pods };
    let mut findings: Vec<Finding> = pods.without_owner().collect();
    findings.extend(pods.of_several_owners());
    if findings.is_empty() {
        findings.extend(pods.with_go_flannel_selector());
    }
    findings
}

struct PodsOfNamespace<'a> {
    namespace: &'a str,
    pods: &'a [DaemonPod],
}

impl PodsOfNamespace<'_> {
    /// Sets the labels by which a new DaemonSet adopts the pods.
    fn label(&self) -> Command {
        Command::in_namespace(self.namespace, |kubectl| {
            format!("{kubectl} label pods -l app=flannel {LABEL}=flannel {GENERATION}-")
        })
    }

    fn list(&self) -> Command {
        Command::in_namespace(self.namespace, |kubectl| format!("{kubectl} get daemonsets -o wide"))
    }

    /// The pod's owner and labels, and the command that shows them.
    fn evidence(&self, pod: &DaemonPod) -> (String, String) {
        let labels: Vec<String> =
            pod.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        (
            format!(
                "{}: owner {}, labels {}",
                pod.name,
                pod.owner.as_deref().unwrap_or("none"),
                labels.join(",")
            ),
            format!("kubectl -n {} get pods --show-labels", word(self.namespace)),
        )
    }

    fn without_owner(&self) -> impl Iterator<Item = Finding> {
        let orphans = self.pods.iter().filter(|pod| pod.owner.is_none());
        orphans.map(move |pod| {
            let (text, from) = self.evidence(pod);
            let finding = Finding::new(
                "daemon-set",
                Severity::Degraded,
                &pod.name,
                format!("no DaemonSet owns the flannel pod {} of this node", pod.name),
                "no DaemonSet updates this pod. A DaemonSet adopts the pod when the pod's labels match the DaemonSet's selector. Until a DaemonSet adopts the pod, the DaemonSet's own pod waits for the port or runs in addition to this pod",
            )
            .seen(text, from);
            match pod.labels.contains_key(LABEL) {
                false => finding.run(self.label()),
                true => finding.run(self.list()),
            }
        })
    }

    fn of_several_owners(&self) -> Option<Finding> {
        let owners: BTreeSet<&str> =
            self.pods.iter().filter_map(|pod| pod.owner.as_deref()).collect();
        if owners.len() <= 1 {
            return None;
        }
        let names: Vec<&str> = owners.into_iter().collect();
        let finding = Finding::new(
            "daemon-set",
            Severity::Broken,
            "",
            format!("pods of {} run flanneld on this node", names.join(" and ")),
            "two daemons undo each other's work; delete the DaemonSet that you do not need",
        );
        let seen = self.pods.iter().map(|pod| self.evidence(pod));
        Some(seen.fold(finding, |finding, (text, from)| finding.seen(text, from)).run(self.list()))
    }

    /// The selector of Go flannel's DaemonSet differs from that of flannel-rs.
    fn with_go_flannel_selector(&self) -> Option<Finding> {
        let pod = self.pods.iter().find(|pod| !pod.charted && !pod.labels.contains_key(LABEL))?;
        let (text, from) = self.evidence(pod);
        let finding = Finding::new(
            "daemon-set",
            Severity::Risk,
            "",
            "kubectl cannot apply conf/kube-flannel.yml over the DaemonSet of this pod",
            format!(
                "Kubernetes refuses to change a selector. This DaemonSet, like the DaemonSets of Go flannel's raw file and chart, does not select by {LABEL}. These commands replace the DaemonSet and keep its pods running. For a Helm release, run helm upgrade instead"
            ),
        );
        let apply =
            Command::kubectl("apply -f conf/kube-flannel.yml --selector component!=net-conf");
        Some(
            finding
                .seen(text, from)
                .run(self.label())
                .run(Command::in_namespace(self.namespace, |kubectl| {
                    format!("{kubectl} {KEEP_PODS}")
                }))
                .run(apply),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_server_address_works_on_all_nodes() {
        for (server, endpoint, want) in [
            ("https://192.0.2.250:6443", "", "https://192.0.2.250:6443"),
            ("https://api.example:6443", "", "https://api.example:6443"),
            ("https://[2001:db8::1]:6443", "", "https://[2001:db8::1]:6443"),
            ("https://127.0.0.1:6443", "https://192.0.2.250:6443", "https://192.0.2.250:6443"),
            ("https://0.0.0.0:40123", "https://192.0.2.250:6443", "https://192.0.2.250:6443"),
            ("https://localhost:6443", "https://2001:db8::1:6443", "https://[2001:db8::1]:6443"),
            ("https://[::1]:6443", "https://2001:db8::1:6443", "https://[2001:db8::1]:6443"),
        ] {
            let kubectl = format!(
                "kubectl() {{ case \"$1\" in config) printf %s '{server}' ;; *) printf %s '{endpoint}' ;; esac; }}"
            );
            let output = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("{kubectl}; printf %s {OWN_ADDRESS}"))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), want, "{server}: {output:?}");
        }
    }
}
