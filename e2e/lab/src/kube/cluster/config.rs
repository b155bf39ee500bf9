//! The files that a node's programs read.

use crate::kube::cluster::options::ClusterOptions;

/// containerd's: no AppArmor, whose profiles would be this machine's. Copies in place of layers work on every file system.
pub(super) fn containerd(options: &ClusterOptions) -> String {
    CONTAINERD.replace("native", options.snapshotter())
}

/// kubelet's configuration as YAML.
pub(super) fn kubelet(options: &ClusterOptions) -> String {
    format!(
        "{KUBELET}{}",
        if options.name_service {
            NAME_SERVICE
        } else {
            ""
        }
    )
}

const CONTAINERD: &str = r#"
version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"#;

/// It does not touch this machine's cgroups, disks and rules.
const KUBELET: &str = r"
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
resolvConf: /dev/null
evictionHard: {memory.available: 1Mi}
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 10s
";

const NAME_SERVICE: &str = r"clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
";

/// Makes a machine of a mount namespace: `$0` is its folder, `/run` is its own already.
///
/// `/sys` of the lab's hosts hides the cgroups, so it goes. Mounts are shared below, as on every machine that systemd started:
/// a pod may ask for propagation. Without a name server a look-up of the host's name fails at once. Each has a boot id of its own, which kubelet reports.
pub(super) const MACHINE: &str = r#"
umount /sys
mount --make-rshared /
for folder in opt var-lib var-log; do mkdir -p "$0/disk/$folder"; done
if [ ! -d "$0/disk/etc" ]; then
    cp -a /etc "$0/disk/etc.new"
    rm -rf "$0/disk/etc.new/resolv.conf" "$0/disk/etc.new/cni"
    : > "$0/disk/etc.new/resolv.conf"
    mkdir -p "$0/disk/etc.new/cni/net.d"
    mv "$0/disk/etc.new" "$0/disk/etc"
fi
mkdir -p /run/netns
cat /proc/sys/kernel/random/uuid > /run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
mount --bind "$0/disk/etc" /etc
mount --bind "$0/disk/opt" /opt
mount --bind "$0/disk/var-lib" /var/lib
mount --bind "$0/disk/var-log" /var/log
mkdir -p /var/lib/kubelet
: > /run/machine-is-up
exec sleep infinity
"#;
