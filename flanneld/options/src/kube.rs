//! Leases in the Nodes of Kubernetes: how to reach the API, and which Node this is.

use crate::flags::KubernetesFlags;
use crate::reader::{Reader, file, given};
use subnet_lease::kube::annotations::Prefix;
use subnet_lease::kube::{Identity, KubeOptions, server_url};
use subnet_lease::manager::boot_time;

/// The Nodes of Kubernetes, where they are asked for; a value that cannot be read is a mistake all the same.
pub(crate) fn kube(flags: &KubernetesFlags, reader: &mut Reader) -> Option<KubeOptions> {
    let KubernetesFlags { kube_subnet_mgr, kube_api_url, kube_annotation_prefix, kubeconfig_file, net_config_path, set_node_network_unavailable } =
        flags;
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
                // A password may contain the comma that separates addresses.
                Err(why) => {
                    let named = if value.text.contains(['@', '?']) { "a value".to_owned() } else { format!("{text:?}") };
                    let why = format!("{named} is not the address of an API server: {why}; write it like https://10.0.0.1:6443");
                    reader.wrong(value.mistake(why.to_string()));
                }
            }
        }
    }
    let prefix = kube_annotation_prefix.last().and_then(|value| {
        Prefix::parse(&value.text).map_err(|why| reader.wrong(format!("error creating network manager: {}", value.mistake(why.to_string())))).ok()
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

/// Checks the variables of Go flannel that have no meaning here: there is no queue that could overflow.
///
/// # Errors
/// Go flannel ends at this value, too.
pub(crate) fn check_variables() -> Result<(), String> {
    match std::env::var("EVENT_QUEUE_DEPTH") {
        Ok(depth) if !depth.is_empty() && depth.parse::<i64>().is_err() => {
            Err(format!("env EVENT_QUEUE_DEPTH={depth} format error: it is not an integer"))
        }
        _ => Ok(()),
    }
}

/// Which Node the daemon serves, by its environment.
///
/// # Errors
/// The environment does not say, or says what cannot be a name.
pub(crate) fn node_identity() -> Result<Identity, String> {
    if let Some(name) = name_in("NODE_NAME")? {
        return Ok(Identity::Node(name));
    }
    match (name_in("POD_NAMESPACE")?, name_in("POD_NAME")?) {
        (Some(namespace), Some(name)) => Ok(Identity::Pod { namespace, name }),
        _ => Err("env variables POD_NAME and POD_NAMESPACE must be set, or NODE_NAME: --kube-subnet-mgr has to know which Node this is (in a \
                  pod's manifest: valueFrom.fieldRef.fieldPath spec.nodeName; elsewhere the name that `kubectl get nodes` shows)"
            .to_owned()),
    }
}

/// The name in a variable, which becomes part of a path. Another case than the Node's is told once the Nodes are known.
fn name_in(variable: &str) -> Result<Option<String>, String> {
    let Some(name) = std::env::var(variable).ok().filter(|name| !name.is_empty()) else { return Ok(None) };
    let fits = name.len() <= 253 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.') && !name.starts_with('.');
    if fits { Ok(Some(name)) } else { Err(format!("{variable}: {name:?} is not a name of Kubernetes: letters, digits, hyphens and dots")) }
}
