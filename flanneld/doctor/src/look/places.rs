//! Paths of files and folders on a host.

use std::path::PathBuf;

/// Paths of files and folders on a host.
#[derive(Clone, Debug)]
pub struct Places {
    /// The daemon's options file under systemd.
    pub options: PathBuf,
    /// The possible unit files of the daemon. The first existing file applies.
    pub units: Vec<PathBuf>,
    /// The folder of drop-ins for the unit.
    pub drop_ins: PathBuf,
    /// The folder of the CNI configurations.
    pub cni: PathBuf,
    /// The folder of the addresses that host-local has reserved.
    pub ipam: PathBuf,
    /// The folders of container runtimes with an entry for each running container.
    pub containers: Vec<PathBuf>,
    /// The sockets of container runtimes that use none of the folders in `containers`.
    pub other_runtimes: Vec<PathBuf>,
    /// The options file that mk-docker-opts.sh writes for Docker.
    pub docker: PathBuf,
    /// The folder of kubelet, which exists on nodes of Kubernetes.
    pub kubelet: PathBuf,
    /// The file with the name servers, resolv.conf.
    pub resolv: PathBuf,
    /// The folder of the mounted service account, in a pod.
    pub service_account: PathBuf,
    /// The folder with the logs of this node's pods.
    pub pod_logs: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            options: "/etc/default/flanneld".into(),
            units: vec![
                "/etc/systemd/system/flanneld.service".into(),
                "/usr/lib/systemd/system/flanneld.service".into(),
                "/lib/systemd/system/flanneld.service".into(),
            ],
            drop_ins: "/etc/systemd/system/flanneld.service.d".into(),
            cni: "/etc/cni/net.d".into(),
            ipam: "/var/lib/cni/networks".into(),
            containers: vec![
                "/run/containerd/io.containerd.runtime.v2.task/k8s.io".into(),
                "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io".into(),
            ],
            other_runtimes: vec![
                "/run/crio/crio.sock".into(),
                "/run/cri-dockerd.sock".into(),
                "/run/dockershim.sock".into(),
            ],
            docker: "/run/docker_opts.env".into(),
            kubelet: "/var/lib/kubelet".into(),
            resolv: "/etc/resolv.conf".into(),
            service_account: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
            pod_logs: "/var/log/pods".into(),
        }
    }
}
