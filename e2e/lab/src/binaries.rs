//! Paths of the programs that a lab runs.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// The folder of flannel-rs' binaries. The default is that of the running program, or its parent.
pub const BIN_DIR: &str = "FLANNEL_BIN_DIR";
/// The folder of etcd's programs. The default is the distribution's etcd, for an API server the newest.
pub const ETCD_DIR: &str = "FLANNEL_ETCD_DIR";

/// The folder of the reference CNI plugins 1.9.1. The default is the one that `make setup` fills.
pub const CNI_DIR: &str = "FLANNEL_CNI_DIR";

/// Of the reference CNI plugins: the newest or the oldest that users run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CniVersion {
    /// 1.9.1, which `make setup` builds.
    V191,
    /// 1.1.1, the distribution's.
    V111,
}

/// A binary of flannel-rs: in `$FLANNEL_BIN_DIR`, otherwise in this program's folder or its parent.
pub fn flannel_binary(name: &str) -> Result<PathBuf> {
    let mut folders = Vec::new();
    if let Some(folder) = std::env::var_os(BIN_DIR) {
        folders.push(PathBuf::from(folder));
    } else {
        let program = std::env::current_exe().context("finding this program")?;
        // A test program is in target/debug/deps, one folder below the binaries.
        folders.extend(program.ancestors().skip(1).take(2).map(PathBuf::from));
    }
    match folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!(
            "cannot find {name} in {folders:?}; build it (`cargo build --workspace`) or name its folder in {BIN_DIR}"
        ),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EtcdVersion {
    /// 3.4, Debian's.
    #[default]
    Distributed,
    /// 3.7, for an API server, which reads nothing from 3.4.
    Newest,
}

/// `etcd`, `etcdctl` or `etcdutl`.
pub fn etcd_program(name: &str, version: EtcdVersion) -> Result<PathBuf> {
    let folders = match std::env::var_os(ETCD_DIR) {
        Some(folder) => vec![PathBuf::from(folder)],
        None if version == EtcdVersion::Newest => vec![cache_path("etcd-3.7")],
        None => vec![PathBuf::from("/usr/bin"), cache_path("etcd-3.4/usr/bin")],
    };
    match folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!("cannot find {name} in {folders:?}; run `make setup`"),
    }
}

/// A command of Kubernetes: in `$KUBEBUILDER_ASSETS`, in `PATH`, or in the folder that `make setup` fills. The first of these with all commands
/// counts.
pub fn kubernetes_program(name: &str) -> Result<PathBuf> {
    const COMMANDS: [&str; 6] = [
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "kubelet",
        "kubectl",
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::var_os("KUBEBUILDER_ASSETS")
        .map(PathBuf::from)
        .into_iter()
        .chain(std::env::split_paths(&path));
    let mut folders = folders.chain([cache_path("kubernetes-1.37")]);
    let found =
        folders.find(|folder| COMMANDS.iter().all(|command| folder.join(command).is_file()));
    Ok(found.context("cannot find the commands of Kubernetes; run `make setup`")?.join(name))
}

/// `PATH` comes before the folder that `make setup` fills.
pub fn helm_program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path)
        .map(|folder| folder.join("helm"))
        .chain([cache_path("helm-3.22/helm")]);
    places.find(|place| place.is_file()).context("cannot find helm; run `make setup`")
}

/// `libfaketime`, which changes the time of day for a program, from the library folders of distributions.
pub fn faketime_library() -> Result<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .chain(["/usr/lib", "/usr/lib64"].map(PathBuf::from));
    let found =
        folders.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|path| path.is_file());
    found.context("cannot find libfaketime.so.1; run `make setup`")
}

/// A file that `make setup` keeps in the cache, such as `containerd/usr/bin/containerd`.
pub fn cached_file(name: &str) -> Result<PathBuf> {
    let path = cache_path(name);
    if !path.exists() {
        bail!("cannot find {}; run `make setup`", path.display());
    }
    Ok(path)
}

/// The folder of the reference plugins.
pub fn cni_plugins_folder(version: CniVersion) -> Result<PathBuf> {
    let folder = match version {
        CniVersion::V191 => {
            std::env::var_os(CNI_DIR).map_or_else(|| cache_path("cni-1.9.1"), PathBuf::from)
        }
        CniVersion::V111 => cache_path("cni-1.1.1"),
    };
    if !folder.join("bridge").is_file() {
        bail!("cannot find {} ({version:?}); run `make setup`", folder.join("bridge").display());
    }
    Ok(folder)
}

/// The folder with the npm packages that drive a browser.
pub fn browser_packages_folder() -> Result<PathBuf> {
    require_folder_containing(cache_path("browser"), "node_modules")
}

/// `prometheus` or `promtool`.
pub fn prometheus_program(name: &str) -> Result<PathBuf> {
    let folder = require_folder_containing(cache_path("prometheus/usr/bin"), name)?;
    Ok(folder.join(name))
}

/// The folder with nft and iptables of Debian 13.
pub fn nft_and_iptables_folder() -> Result<PathBuf> {
    require_folder_containing(cache_path("userspace-trixie/bin"), "nft")
}

fn require_folder_containing(folder: PathBuf, part: &str) -> Result<PathBuf> {
    if !folder.join(part).exists() {
        bail!("cannot find {}; run `make setup`", folder.join(part).display());
    }
    Ok(folder)
}

fn cache_path(name: &str) -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache")
    });
    base.join("flannel-rs").join(name)
}
