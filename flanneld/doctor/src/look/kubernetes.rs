//! Finds the namespace of flannel's DaemonSet in the pod's own files and environment, or in the names of pods' log folders.

use super::places::Places;
use crate::facts::daemon::{Launch, NAMESPACE};
use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use types::file::{self, Links};

/// Of the names of flannel's pods.
const PODS: &str = "kube-flannel-ds-";
/// The container with flanneld in flannel's pods.
const CONTAINER: &str = "kube-flannel";

/// The namespace of this process; `None` outside of pods.
pub fn namespace_of_pod(places: &Places) -> Option<String> {
    let file = file::read(&places.service_account.join("namespace"), 256, Links::Followed).ok();
    let mounted = file
        .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
        .filter(|name| is_name(name));
    // A pod without a mounted service account still has the DaemonSet's variables POD_NAMESPACE and POD_NAME.
    mounted.or_else(|| {
        std::env::var("POD_NAMESPACE")
            .ok()
            .filter(|name| is_name(name) && std::env::var_os("POD_NAME").is_some())
    })
}

/// The namespace is assumed if no log folder on this node shows it.
pub(super) fn daemon_set(places: &Places) -> Launch {
    // Anybody may give a pod the name of flannel's, but not in these namespaces.
    let likely = |name: &String| (name == NAMESPACE, name == "kube-system", Reverse(name.clone()));
    let found = pods(places).map(|(namespace, _)| namespace).max_by_key(likely);
    Launch::Kubernetes {
        assumed: found.is_none(),
        namespace: found.unwrap_or_else(|| NAMESPACE.to_owned()),
    }
}

/// The namespaces and log folders of pods that are named like flannel's.
fn pods(places: &Places) -> impl Iterator<Item = (String, PathBuf)> {
    let folders = std::fs::read_dir(&places.pod_logs).into_iter().flatten();
    // The names have the form NAMESPACE_POD_UID, and no part contains an underscore.
    folders.flatten().filter_map(|folder| {
        let name = folder.file_name().into_string().ok()?;
        let (namespace, pod) = name.split_once('_')?;
        (pod.starts_with(PODS) && is_name(namespace)).then(|| (namespace.to_owned(), folder.path()))
    })
}

/// The log files that kubelet keeps for flannel's pods, the newest first. Older ones belong to containers that have ended.
pub fn daemon_logs(places: &Places) -> Vec<PathBuf> {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let Launch::Kubernetes { namespace, .. } = daemon_set(places) else {
        return Vec::new();
    };
    let logs = pods(places)
        .filter(|pod| pod.0 == namespace)
        .flat_map(|(_, folder)| entries(&folder.join(CONTAINER)));
    let logs =
        logs.filter(|log| log.path().extension().is_some_and(|extension| extension == "log"));
    let mut logs: Vec<_> = logs
        .map(|log| {
            let modified = log.metadata().and_then(|metadata| metadata.modified());
            (modified.ok(), log.path())
        })
        .collect();
    logs.sort();
    logs.into_iter().rev().map(|(_, path)| path).collect()
}

/// True for a valid name of a Kubernetes namespace.
fn is_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_is_found_or_assumed() {
        let root = tempfile::tempdir().unwrap();
        let of = |name: &str| root.path().join(name);
        let places =
            Places { service_account: of("account"), pod_logs: of("pods"), ..Places::default() };
        assert_eq!(namespace_of_pod(&places), None);
        std::fs::create_dir_all(of("account")).unwrap();
        for (text, want) in [("net\n", Some("net")), ("../x", None), ("", None)] {
            std::fs::write(of("account/namespace"), text).unwrap();
            assert_eq!(namespace_of_pod(&places).as_deref(), want);
        }
        let launch = |namespace: &str, assumed| Launch::Kubernetes {
            namespace: namespace.to_owned(),
            assumed,
        };
        assert_eq!(daemon_set(&places), launch("kube-flannel", true));
        for name in ["default_p1_1", "Bad_kube-flannel-ds-x_1", "net_kube-flannel-ds-abcde_0f"] {
            std::fs::create_dir_all(of("pods").join(name)).unwrap();
        }
        assert_eq!(daemon_set(&places), launch("net", false));
        assert!(daemon_logs(&places).is_empty());
        let put = |name: &str, age: u64| {
            let path = of("pods").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let file = std::fs::File::create(&path).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age))
                .unwrap();
            path
        };
        for (name, age) in [
            ("default_p1_1/kube-flannel/0.log", 1),
            ("net_kube-flannel-ds-abcde_0f/install-cni/0.log", 2),
        ] {
            put(name, age);
        }
        let newest = put("net_kube-flannel-ds-abcde_0f/kube-flannel/1.log", 10);
        put("net_kube-flannel-ds-abcde_0f/kube-flannel/0.log", 20);
        put("net_kube-flannel-ds-abcde_0f/kube-flannel/0.log.gz", 5);
        assert_eq!(daemon_logs(&places).first(), Some(&newest));
        // Anybody can name a pod like this.
        put("apps_kube-flannel-ds-x_1/kube-flannel/0.log", 1);
        let own = put("kube-flannel_kube-flannel-ds-a_1/kube-flannel/0.log", 30);
        assert_eq!(daemon_logs(&places), [own]);
        assert_eq!(daemon_set(&places), launch("kube-flannel", false));
    }
}
