//! Kubernetes: this node's Node, and what the API server allows.

use super::way_out::restart;
use crate::check::Check;
use crate::facts::Facts;
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

fn api_by_service(facts: &Facts) -> Vec<Finding> {
    let Some(kubernetes) = facts.kubernetes.known().filter(|kubernetes| kubernetes.by_service_unanswered) else { return Vec::new() };
    let server = kubernetes.server.map(|server| server.to_string()).unwrap_or_default();
    vec![
        Finding::new(
            "api-by-service",
            Severity::Broken,
            "",
            format!("the API server does not answer at its Service's address {server}"),
            "kube-proxy on this node does not serve Services yet; flanneld can ask the API server at its own address",
        )
        .seen("no answer", format!("curl -k https://{server}/livez"))
        .run("kubectl -n kube-system get pods -l k8s-app=kube-proxy -o wide")
        .on("a node with kubectl"),
    ]
}

fn rbac(facts: &Facts) -> Vec<Finding> {
    let Some(refusal) = facts.kubernetes.known().and_then(|kubernetes| kubernetes.refusal.as_ref()) else { return Vec::new() };
    let unknown = refusal.contains("401") || refusal.to_lowercase().contains("unauthorized");
    let (what, command) = match unknown {
        true => ("the API server does not know the credentials of flanneld", restart(facts)),
        false => ("flanneld's ServiceAccount may not do what it has to", "kubectl describe clusterrole flannel".to_owned()),
    };
    vec![
        Finding::new("rbac", Severity::Broken, "", what, "without the Nodes flanneld knows neither this node's subnet nor its peers")
            .seen(refusal, "the API server")
            .run(command)
            .on("a node with kubectl"),
    ]
}

fn pod_cidr(facts: &Facts) -> Vec<Finding> {
    let Some(kubernetes) = facts.kubernetes.known() else { return Vec::new() };
    if kubernetes.pod_cidrs.as_ref().is_none_or(|cidrs| !cidrs.is_empty()) {
        return Vec::new();
    }
    let node = &kubernetes.node;
    vec![
        Finding::new(
            "pod-cidr",
            Severity::Broken,
            "",
            format!("the Node {node} has no podCIDR"),
            "the controller manager gives Nodes their subnets if it runs with --allocate-node-cidrs and --cluster-cidr (kubeadm: --pod-network-cidr), and while that range has any left",
        )
        .seen("spec.podCIDRs is empty", format!("kubectl get node {} -o jsonpath={{.spec.podCIDRs}}", word(node)))
        .run("kubectl -n kube-system get pods -l component=kube-controller-manager -o yaml | grep cidr")
        .on("a node with kubectl"),
    ]
}
