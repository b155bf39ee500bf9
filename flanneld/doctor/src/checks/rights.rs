//! What the API server allows flanneld, what it said it does not, and the command that grants it.

use crate::shell::word;
use serde_json::{Value, json};

/// What the API server refused, in its own words: `User "u" cannot list resource "nodes" in API group "" at the cluster scope`.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// Who asked.
    pub user: &'a str,
    /// The missing verb.
    pub verb: &'a str,
    /// The resource, with its subresource.
    pub resource: &'a str,
}

impl<'a> Refusal<'a> {
    /// Finds it in a text.
    pub fn read(text: &'a str) -> Option<Self> {
        let (_, rest) = text.split_once("User \"")?;
        let (user, rest) = rest.split_once("\" cannot ")?;
        let (verb, rest) = rest.split_once(" resource \"")?;
        let (resource, _) = rest.split_once('"')?;
        let plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "/-.".contains(c));
        (plain(verb) && plain(resource)).then_some(Self { user, verb, resource })
    }
}

/// What `conf/kube-flannel.yml` grants for all namespaces, and pods, which a daemon reads that is not told its Node's name. Nothing in the
/// namespace `default`, which can be done without.
fn rules() -> Value {
    let rule = |resource: &str, verbs: &[&str]| json!({ "apiGroups": [""], "resources": [resource], "verbs": verbs });
    json!([rule("pods", &["get"]), rule("nodes", &["get", "list", "watch"]), rule("nodes/status", &["patch"])])
}

/// What stands for whoever has no credentials.
pub const ANONYMOUS: &str = "system:anonymous";

/// The command that grants a user what flanneld needs. It adds to the ClusterRole and to its binding, and takes nothing away. None for users
/// that are everybody: who is not known, and the account of all pods that name none.
pub fn grant(user: &str) -> Option<String> {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let account = user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
    if user == ANONYMOUS || account.is_some_and(|(_, name)| name == "default") {
        return None;
    }
    let subject = match account {
        Some((namespace, name)) => json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace }),
        None => json!({ "kind": "User", "name": user, "apiGroup": GROUP }),
    };
    let object = |kind: &str, rest: (&str, Value), more: Option<(&str, Value)>| {
        let own = [("apiVersion", json!(format!("{GROUP}/v1"))), ("kind", json!(kind)), ("metadata", json!({ "name": "flannel" })), rest];
        own.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value)).collect::<serde_json::Map<_, _>>()
    };
    let role = json!({ "apiGroup": GROUP, "kind": "ClusterRole", "name": "flannel" });
    let both =
        [object("ClusterRole", ("rules", rules()), None), object("ClusterRoleBinding", ("roleRef", role), Some(("subjects", json!([subject]))))];
    Some(format!("echo {} | kubectl auth reconcile -f -", word(&json!({ "apiVersion": "v1", "kind": "List", "items": both }).to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_words_are_understood() {
        let text = "the Kubernetes API at https://a refused a request to list Nodes (403): nodes is forbidden: User \"system:serviceaccount:kube-flannel:flannel\" cannot list resource \"nodes\" in API group \"\" at the cluster scope; apply";
        let refusal = Refusal::read(text).unwrap();
        assert_eq!(refusal, Refusal { user: "system:serviceaccount:kube-flannel:flannel", verb: "list", resource: "nodes" });
        assert!(grant(refusal.user).unwrap().contains(r#""subjects":[{"kind":"ServiceAccount","name":"flannel","namespace":"kube-flannel"}]"#));
        assert!(grant("jane").unwrap().contains(r#""kind":"User""#));
        assert!(["system:anonymous", "system:serviceaccount:kube-flannel:default"].iter().all(|user| grant(user).is_none()));
        for other in ["", "(403): a policy refuses", "User \"x\" cannot ; reboot resource \"nodes\" in"] {
            assert_eq!(Refusal::read(other), None, "{other}");
        }
    }

    /// What the command grants is what the manifest grants.
    #[test]
    fn the_rules_are_the_manifests() {
        let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../conf/kube-flannel.yml")).unwrap();
        let role = manifest.split("---").find(|part| part.contains("\nkind: ClusterRole\n")).unwrap();
        let list = |value: &Value| value.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect::<Vec<_>>().join(", ");
        let rules = rules();
        let written: String = rules
            .as_array()
            .unwrap()
            .iter()
            .filter(|rule| rule["resources"] != json!(["pods"]))
            .map(|rule| format!("- apiGroups: [\"\"]\n  resources: [{}]\n  verbs: [{}]\n", list(&rule["resources"]), list(&rule["verbs"])))
            .collect();
        assert!(role.ends_with(&format!("rules:\n{written}")), "{role}\nand not\n{written}");
    }
}
