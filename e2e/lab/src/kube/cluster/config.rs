//! Configuration files of a node's programs.

use crate::kube::cluster::options::ClusterOptions;

/// Disables AppArmor, whose profiles would apply to the whole machine. The snapshotter `native` copies images instead of using layers, and therefore
/// works on every file system.
pub(super) fn containerd_config(options: &ClusterOptions) -> String {
    CONTAINERD.replace("native", options.snapshotter())
}

pub(super) fn kubelet_config(options: &ClusterOptions) -> String {
    format!("{KUBELET}{}", if options.name_service { NAME_SERVICE } else { "" })
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

/// Keeps kubelet from changing this machine's cgroups, disks and rules.
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

/// Script that makes a mount namespace look like a separate machine. `$0` is the machine's folder. The mount namespace already has its own `/run`.
///
/// - The `/sys` of the lab's hosts hides the cgroups, so the script unmounts `/sys`.
/// - The script makes all mounts shared, as on every machine with systemd, because a pod may request mount propagation.
/// - `resolv.conf` is empty: without a name server, a lookup of the host's name fails at once.
/// - Each machine has its own boot ID, which kubelet reports.
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
