//! Kubernetes: this node's Node, and what the API server allows.

use super::daemon_set;
use super::rights::{self, Refusal};
use super::way_out::restart;
use crate::check::Check;
use crate::facts::Facts;
use crate::facts::daemon::Launch;
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::shell::word;

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    Check {
        id: "api-by-service",
        severity: Severity::Broken,
        title: "The API server is asked by a Service that nobody serves yet",
        needs: &[Need::Kubernetes],
        explains: &["store-unreachable", "pod-cidr", "lease"],
        waits: true,
        judge: api_by_service,
    },
    Check {
        id: "rbac",
        severity: Severity::Broken,
        title: "The API server refuses flanneld",
        needs: &[Need::Kubernetes],
        explains: &["store-unreachable", "pod-cidr", "lease"],
        waits: false,
        judge: rbac,
    },
    Check {
        id: "pod-cidr",
        severity: Severity::Broken,
        title: "The Node has no podCIDR",
        needs: &[Need::Kubernetes],
        explains: &["lease", "config"],
        waits: false,
        judge: pod_cidr,
    },
];

/// The API server's own address: kubectl's, but for one that leads nowhere on other nodes (k3s, kind), and then the one behind the Service.
const OWN_ADDRESS: &str = r#""$(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}' | grep -Ev '//(127\.|0\.0\.0\.0|localhost|\[::)' || kubectl -n default get endpoints kubernetes -o jsonpath='https://{.subsets[0].addresses[0].ip}:{.subsets[0].ports[0].port}' | sed -E 's|//([^/]*:[^/]*):|//[\1]:|')""#;

fn api_by_service(facts: &Facts) -> Vec<Finding> {
    let Some(kubernetes) = facts.kubernetes.known().filter(|kubernetes| kubernetes.by_service_unanswered) else { return Vec::new() };
    let server = kubernetes.server.map(|server| server.to_string()).unwrap_or_default();
    let finding = Finding::new(
        "api-by-service",
        Severity::Broken,
        "",
        format!("the API server does not answer at its Service's address {server}"),
        "kube-proxy on this node does not serve Services yet; flanneld can ask the API server at its own address",
    )
    .seen("no answer", format!("curl -k https://{server}/livez"));
    vec![match &facts.daemon.launch {
        Launch::Kubernetes { namespace, .. } => finding.run(daemon_set::set_env(namespace, "FLANNELD_KUBE_API_URL", OWN_ADDRESS)),
        Launch::Systemd => finding.run("kubectl -n kube-system get pods -l k8s-app=kube-proxy -o wide"),
    }]
}

fn rbac(facts: &Facts) -> Vec<Finding> {
    let Some(text) = facts.kubernetes.known().and_then(|kubernetes| kubernetes.refusal.as_ref()) else { return Vec::new() };
    let refusal = Refusal::read(text);
    let anonymous = refusal.as_ref().is_some_and(|refusal| refusal.user == rights::ANONYMOUS);
    let unknown = anonymous || text.contains("(401)") || text.to_lowercase().contains("unauthorized");
    let what = match &refusal {
        _ if unknown => "the API server does not know the credentials of flanneld".to_owned(),
        Some(Refusal { verb, resource, .. }) => format!("flanneld may not {verb} {resource}: its account lacks the right"),
        None => "flanneld's account may not do what it has to".to_owned(),
    };
    let grant = match (&refusal, &facts.daemon.launch) {
        (Some(refusal), _) => rights::grant(refusal.user),
        (None, Launch::Kubernetes { namespace, .. }) => rights::grant(&format!("system:serviceaccount:{namespace}:flannel")),
        (None, Launch::Systemd) => None,
    };
    // A new pod gets a new token.
    let command = if unknown { restart(facts) } else { grant.unwrap_or_else(|| "kubectl describe clusterrole flannel".to_owned()) };
    vec![
        Finding::new("rbac", Severity::Broken, "", what, "without the Nodes flanneld knows neither this node's subnet nor its peers")
            .seen(text, "the API server")
            .run(command),
    ]
}

/// Where kubeadm puts what the controller manager is started with; kubelet notices the change.
const CONTROLLER_MANAGER: &str = "/etc/kubernetes/manifests/kube-controller-manager.yaml";

fn pod_cidr(facts: &Facts) -> Vec<Finding> {
    let Some(kubernetes) = facts.kubernetes.known() else { return Vec::new() };
    if kubernetes.pod_cidrs.as_ref().is_none_or(|cidrs| !cidrs.is_empty()) {
        return Vec::new();
    }
    let node = &kubernetes.node;
    let finding = Finding::new(
        "pod-cidr",
        Severity::Broken,
        "",
        format!("the Node {node} has no podCIDR"),
        "the controller manager gives Nodes their subnets if it runs with --allocate-node-cidrs and --cluster-cidr (kubeadm: --pod-network-cidr), and while that range has any left",
    )
    .seen("spec.podCIDRs is empty", format!("kubectl get node {} -o jsonpath={{.spec.podCIDRs}}", word(node)));
    let networks = kubernetes.cluster_cidr.as_deref().filter(|text| text.chars().all(|c| c.is_ascii_hexdigit() || ".:/,".contains(c)));
    vec![match networks {
        // Where the flags are there already, nothing is written: then the range is used up.
        Some(networks) => {
            let script = format!(r"s|^( *)- kube-controller-manager$|&\n\1- --allocate-node-cidrs=true\n\1- --cluster-cidr={networks}|");
            finding
                .run(format!("grep -e --cluster-cidr {CONTROLLER_MANAGER} || sed -E -i {} {CONTROLLER_MANAGER}", word(&script)))
                .on("each node of the control plane")
        }
        None => finding.run("kubectl -n kube-system get pods -l component=kube-controller-manager -o yaml | grep cidr"),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_address_is_one_for_all_nodes() {
        for (server, endpoint, want) in [
            ("https://192.0.2.250:6443", "", "https://192.0.2.250:6443"),
            ("https://api.example:6443", "", "https://api.example:6443"),
            ("https://[2001:db8::1]:6443", "", "https://[2001:db8::1]:6443"),
            ("https://127.0.0.1:6443", "https://192.0.2.250:6443", "https://192.0.2.250:6443"),
            ("https://0.0.0.0:40123", "https://192.0.2.250:6443", "https://192.0.2.250:6443"),
            ("https://localhost:6443", "https://2001:db8::1:6443", "https://[2001:db8::1]:6443"),
            ("https://[::1]:6443", "https://2001:db8::1:6443", "https://[2001:db8::1]:6443"),
        ] {
            let kubectl = format!("kubectl() {{ case \"$1\" in config) printf %s '{server}' ;; *) printf %s '{endpoint}' ;; esac; }}");
            let output = std::process::Command::new("sh").arg("-c").arg(format!("{kubectl}; printf %s {OWN_ADDRESS}")).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), want, "{server}: {output:?}");
        }
    }
}
