//! Users of the API server and their rights.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::kube::client::ApiClient;

/// Identified by a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    Admin,
    /// What flannel's manifest grants.
    Flannel,
    /// What the manifest of flannel 0.11 grants, without `get` of Nodes and without rights for Events.
    OldFlannel,
    /// As `Flannel`, with the rights for Events and EndpointSlices that flannel-rs' manifest grants.
    FlannelWithEvents,
    Nobody,
}

const ALL: [User; 5] =
    [User::Admin, User::Flannel, User::OldFlannel, User::FlannelWithEvents, User::Nobody];

impl User {
    /// The name in the server's list of tokens.
    pub fn name(self) -> &'static str {
        match self {
            User::Admin => "admin",
            User::Flannel => "flannel",
            User::OldFlannel => "old-flannel",
            User::FlannelWithEvents => "flannel-with-events",
            User::Nobody => "nobody",
        }
    }

    /// A static bearer token.
    pub fn token(self) -> String {
        format!("token-of-{}", self.name())
    }

    pub(crate) fn of_token(token: &str) -> Option<User> {
        ALL.into_iter().find(|user| user.token() == token)
    }

    pub(crate) fn rules(self) -> Option<Value> {
        let rule = |groups: &[&str], resources: &[&str], verbs: &[&str]| json!({ "apiGroups": groups, "resources": resources, "verbs": verbs });
        let pods = rule(&[""], &["pods"], &["get"]);
        let status = rule(&[""], &["nodes/status"], &["patch"]);
        match self {
            User::Admin | User::Nobody => None,
            User::Flannel => {
                Some(json!([pods, rule(&[""], &["nodes"], &["get", "list", "watch"]), status]))
            }
            User::OldFlannel => {
                Some(json!([pods, rule(&[""], &["nodes"], &["list", "watch"]), status]))
            }
            User::FlannelWithEvents => Some(json!([
                pods,
                rule(&[""], &["nodes"], &["get", "list", "watch"]),
                status,
                rule(&[""], &["events"], &["create"]),
                rule(&["discovery.k8s.io"], &["endpointslices"], &["list"]),
            ])),
        }
    }
}

/// The API server reads tokens from this file.
pub(crate) fn write_tokens(file: &Path) -> Result<()> {
    let line = |(number, user): (usize, &User)| {
        let group = if *user == User::Admin { ",\"system:masters\"" } else { "" };
        format!("{},{},{number}{group}\n", user.token(), user.name())
    };
    std::fs::write(file, ALL.iter().enumerate().map(line).collect::<String>())?;
    Ok(())
}

pub(crate) fn grant_user_rights(admin: &ApiClient) -> Result<()> {
    const GROUP: &str = "/apis/rbac.authorization.k8s.io/v1";
    for user in ALL {
        let Some(rules) = user.rules() else { continue };
        let meta = json!({ "name": user.name() });
        admin.create(
            &format!("{GROUP}/clusterroles"),
            &json!({ "metadata": meta, "rules": rules }),
        )?;
        let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user.name() });
        let subject =
            json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user.name() });
        admin.create(
            &format!("{GROUP}/clusterrolebindings"),
            &json!({ "metadata": meta, "roleRef": role, "subjects": [subject] }),
        )?;
    }
    Ok(())
}

/// `token_file` takes the place of the token if it is given.
pub(crate) fn write_kubeconfig(
    file: &Path,
    server: &str,
    ca: &Path,
    token: &str,
    token_file: Option<&Path>,
) -> Result<()> {
    let user =
        token_file.map_or_else(|| json!({ "token": token }), |path| json!({ "tokenFile": path }));
    let mut cluster = json!({ "server": server });
    if server.starts_with("https:") {
        cluster["certificate-authority"] = json!(ca);
    }
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{ "name": "lab", "cluster": cluster }],
        "users": [{ "name": "lab", "user": user }],
        "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": "lab" } }],
    });
    // A kubeconfig is YAML, and JSON is valid YAML.
    std::fs::write(file, serde_json::to_string_pretty(&config)?)?;
    Ok(())
}
