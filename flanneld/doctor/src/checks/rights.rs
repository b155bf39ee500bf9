//! The permissions that flanneld needs at the API server, and the command that grants them.

use crate::command::Command;
use crate::shell::word;
use serde_json::{Value, json};

/// The ClusterRole in `conf/kube-flannel.yml`, without its rules for the namespace `default`. A daemon without NODE_NAME also reads pods.
fn rules() -> Value {
    let rule = |resource: &str, verbs: &[&str]| json!({ "apiGroups": [""], "resources": [resource], "verbs": verbs });
    json!([
        rule("pods", &["get"]),
        rule("nodes", &["get", "list", "watch"]),
        rule("nodes/status", &["patch"])
    ])
}

/// The user of requests without credentials.
pub(super) const ANONYMOUS: &str = "system:anonymous";

/// Adds permissions to the ClusterRole and the user to the ClusterRoleBinding, but removes no entries.
///
/// `None` for users that several programs share: requests without credentials, and the default account of pods, `default`.
pub(super) fn grant(user: &str) -> Option<Command> {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let account =
        user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
    if user == ANONYMOUS || account.is_some_and(|(_, name)| name == "default") {
        return None;
    }
    let subject = match account {
        Some((namespace, name)) => {
            json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace })
        }
        None => json!({ "kind": "User", "name": user, "apiGroup": GROUP }),
    };
    let object = |kind: &str, rest: (&str, Value), more: Option<(&str, Value)>| {
        let own = [
            ("apiVersion", json!(format!("{GROUP}/v1"))),
            ("kind", json!(kind)),
            ("metadata", json!({ "name": "flannel" })),
            rest,
        ];
        own.into_iter()
            .chain(more)
            .map(|(name, value)| (name.to_owned(), value))
            .collect::<serde_json::Map<_, _>>()
    };
    let role = json!({ "apiGroup": GROUP, "kind": "ClusterRole", "name": "flannel" });
    let both = [
        object("ClusterRole", ("rules", rules()), None),
        object("ClusterRoleBinding", ("roleRef", role), Some(("subjects", json!([subject])))),
    ];
    let list = word(&json!({ "apiVersion": "v1", "kind": "List", "items": both }).to_string());
    Some(Command::on_cluster(format!("echo {list} | kubectl auth reconcile -f -")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_of_one_daemon_gets_the_rights() {
        assert!(grant("system:serviceaccount:kube-flannel:flannel").unwrap().text.contains(
            r#""subjects":[{"kind":"ServiceAccount","name":"flannel","namespace":"kube-flannel"}]"#
        ));
        assert!(grant("jane").unwrap().text.contains(r#""kind":"User""#));
        assert!(
            ["system:anonymous", "system:serviceaccount:kube-flannel:default"]
                .iter()
                .all(|user| grant(user).is_none())
        );
    }

    #[test]
    fn rules_equal_those_of_the_manifest() {
        let manifest = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../conf/kube-flannel.yml"
        ))
        .unwrap();
        let role =
            manifest.split("---").find(|part| part.contains("\nkind: ClusterRole\n")).unwrap();
        let list = |value: &Value| {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item.as_str().unwrap())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let rules = rules();
        let written: String = rules
            .as_array()
            .unwrap()
            .iter()
            .filter(|rule| rule["resources"] != json!(["pods"]))
            .map(|rule| {
                format!(
                    "- apiGroups: [\"\"]\n  resources: [{}]\n  verbs: [{}]\n",
                    list(&rule["resources"]),
                    list(&rule["verbs"])
                )
            })
            .collect();
        assert!(role.ends_with(&format!("rules:\n{written}")), "{role}\nand not\n{written}");
    }
}
