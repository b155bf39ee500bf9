//! Options of the Kubernetes store: access to the API, and the name of this node's Node.

use crate::environment::{Environment, var};
use crate::flags::KubernetesFlags;
use crate::reader::{Reader, file, given};
use subnet_lease::kube::annotations::Prefix;
use subnet_lease::kube::{Identity, KubeOptions, server_url};
use subnet_lease::manager::boot_time;
use types::Problem;

impl KubernetesFlags {
    /// `None` unless `--kube-subnet-mgr` is on. Checks the values of the Kubernetes switches even if it is off.
    pub(crate) fn read(&self, reader: &mut Reader) -> Option<KubeOptions> {
        let Self {
            kube_subnet_mgr,
            kube_api_url,
            kube_annotation_prefix,
            kubeconfig_file,
            net_config_path,
            set_node_network_unavailable,
        } = self;
        let wanted = reader.on(kube_subnet_mgr);
        let clear_condition = reader.on(set_node_network_unavailable);
        if !wanted {
            return None;
        }
        let mut urls = Vec::new();
        if let Some(value) = given(kube_api_url) {
            for text in value.text.split(',').map(str::trim).filter(|text| !text.is_empty()) {
                match server_url(text) {
                    Ok(url) => urls.push(url),
                    // A password may contain the comma that separates addresses, so no part is shown if the value may contain one.
                    Err(why) => {
                        let secret = value.text.contains(['@', '?']);
                        let named = if secret { "a value".to_owned() } else { format!("{text:?}") };
                        let text = format!(
                            "{named} is not the address of an API server: {why}; write it like https://10.0.0.1:6443"
                        );
                        let problem = Problem::new("not-an-api-server", text);
                        reader.wrong(value.error(Problem { parts: vec![why], ..problem }));
                    }
                }
            }
        }
        let prefix = kube_annotation_prefix.last().and_then(|value| {
            Prefix::parse(&value.text)
                .map_err(|why| {
                    let text = format!("error creating network manager: {}: {why}", value.from);
                    let problem = Problem::new("flag-annotation-prefix", text);
                    reader.wrong(Problem { parts: vec![why], ..problem });
                })
                .ok()
        })?;
        Some(KubeOptions {
            urls,
            kubeconfig: file(kubeconfig_file),
            prefix,
            net_conf: file(net_config_path).unwrap_or_default(),
            clear_condition,
            identity: Identity::Nobody,
            user_agent: format!("flanneld/{}", env!("CARGO_PKG_VERSION")),
            up: boot_time(),
        })
    }
}

/// The Node that the daemon serves, from NODE_NAME or from POD_NAME and POD_NAMESPACE.
pub(crate) fn node_identity(environment: &Environment) -> Result<Identity, Problem> {
    if let Some(name) = name_in(environment, "NODE_NAME")? {
        return Ok(Identity::Node(name));
    }
    let namespace = name_in(environment, "POD_NAMESPACE")?;
    match (namespace, name_in(environment, "POD_NAME")?) {
        (Some(namespace), Some(name)) => Ok(Identity::Pod { namespace, name }),
        _ => Err(Problem::new(
            "node-unknown",
            "env variables POD_NAME and POD_NAMESPACE must be set, or NODE_NAME: --kube-subnet-mgr has to know which Node this is (in a pod's \
             manifest: valueFrom.fieldRef.fieldPath spec.nodeName; elsewhere the name that `kubectl get nodes` shows)",
        )),
    }
}

/// Checks the name, because it becomes part of a URL's path. The store later reports a name that differs from the
/// Node's name only in upper and lower case.
fn name_in(environment: &Environment, variable: &str) -> Result<Option<String>, Problem> {
    let Some(name) = var(environment, variable).and_then(|name| name.into_string().ok()) else {
        return Ok(None);
    };
    let fits = name.len() <= 253
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.')
        && !name.starts_with('.');
    if fits {
        Ok(Some(name))
    } else {
        Err(Problem::new(
            "node-name",
            format!(
                "{variable}: {name:?} is not a Kubernetes name: use letters, digits, hyphens and dots"
            ),
        ))
    }
}
