//! Paths of files and folders on a host.

use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Places {
    /// flanneld's options under systemd.
    pub options: PathBuf,
    /// The first unit file that exists applies.
    pub units: Vec<PathBuf>,
    /// Drop-ins of flanneld's systemd unit.
    pub drop_ins: PathBuf,
    /// CNI configurations.
    pub cni: PathBuf,
    /// CNI configurations of Kubernetes distributions.
    pub other_cni: Vec<PathBuf>,
    /// Configurations of container runtimes, which may name another folder of CNI configurations.
    pub runtimes: Vec<PathBuf>,
    /// Where host-local stores reserved addresses.
    pub ipam: PathBuf,
    /// Folders in which container runtimes have an entry for each running container.
    pub containers: Vec<PathBuf>,
    /// Sockets of container runtimes that use none of the folders in `containers`.
    pub other_runtimes: Vec<PathBuf>,
    /// The options file that mk-docker-opts.sh writes for Docker.
    pub docker: PathBuf,
    /// It exists on Kubernetes nodes.
    pub kubelet: PathBuf,
    /// Lists the name servers.
    pub resolv: PathBuf,
    /// Where Kubernetes mounts the service account of a pod.
    pub service_account: PathBuf,
    /// The log files of this node's pods.
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
            other_cni: vec![
                "/var/lib/rancher/k3s/agent/etc/cni/net.d".into(),
                "/var/snap/microk8s/current/args/cni-network".into(),
            ],
            runtimes: vec!["/etc/containerd/config.toml".into(), "/etc/crio/crio.conf".into()],
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
