//! What the tests of Kubernetes share: deadlines and pods that answer.

use std::time::Duration;

/// Ten times what it may take.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// A pod on a node that answers each TCP connection to port 8080 with its own name; hostPort 8081 leads to it too.
pub(super) fn echo_pod(name: &str, node: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: echo}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  tolerations: [{{operator: Exists}}]
  containers:
  - name: echo
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: [nc, -ll, -p, "8080", -e, echo, {name}]
    ports: [{{containerPort: 8080, hostPort: 8081}}]
"#
    )
}

/// The Service 10.96.0.80 in front of these pods.
pub(super) fn echo_service() -> String {
    r"
apiVersion: v1
kind: Service
metadata: {name: echo}
spec:
  clusterIP: 10.96.0.80
  selector: {app: echo}
  ports: [{port: 80, targetPort: 8080}]
"
    .to_owned()
}
