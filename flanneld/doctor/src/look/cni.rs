//! Reads the files of container runtimes and CNI plugins, and finds the objects of other pod networks.

use super::places::Places;
use crate::fact::Fact;
use crate::facts::Network;
use crate::facts::host::{Foreign, ForeignObject, Host, Interface};
use crate::facts::pods::{Cni, CniFile, Ipam, Kept};
use ipnet::IpNet;
use serde_json::Value;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use types::Problem;
use types::file::{self, Links};

/// In bytes.
const MAX_FILE: u64 = 256 * 1024;
/// The most names that the doctor reads from a folder. The subnet of a node has fewer addresses.
const MAX_ADDRESSES: usize = 5000;
/// The most configurations, and networks of host-local, that the doctor reads.
const MAX_CONFIGURATIONS: usize = 64;
/// Flannel's plugin, and plugins that call the plugins of other configurations.
const CALLERS: &[&str] = &["flannel", "multus", "multus-shim", "genie", "danm"];
/// Plugins that give pods a network without flannel's plugin.
const OTHERS: &[&str] = &[
    "bridge",
    "ptp",
    "macvlan",
    "ipvlan",
    "calico",
    "cilium-cni",
    "weave-net",
    "antrea",
    "kube-ovn",
];

/// Sorted as container runtimes sort them; `None` if the folder does not exist.
fn names(folder: &Path) -> Result<Option<Vec<String>>, Problem> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(report_unreadable(folder, error)),
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .take(MAX_ADDRESSES)
        .collect();
    names.sort();
    Ok(Some(names))
}

fn report_unreadable(folder: &Path, why: impl fmt::Display) -> Problem {
    Problem::new("folder-unreadable", format!("{} cannot be read: {why}", folder.display()))
}

/// The types of the plugins; `None` if the configuration is unreadable.
fn plugins(path: &Path) -> Option<Vec<String>> {
    let bytes = file::read(path, MAX_FILE, Links::Followed).ok()?;
    let document: Value = serde_json::from_slice(&bytes).ok()?;
    let kind = |value: &Value| value.get("type").and_then(Value::as_str).map(str::to_owned);
    let list = document
        .get("plugins")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(kind).collect::<Vec<_>>());
    Some(list.unwrap_or_else(|| kind(&document).into_iter().collect()))
}

/// Canal combines flannel with Calico's network policies, but its configuration names only Calico's plugin.
fn is_canals(name: &str) -> bool {
    name.contains("canal")
}

fn is_configuration(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| {
        ["conf", "conflist", "json"].iter().any(|known| extension == *known)
    })
}

/// `None` if the folder does not exist.
fn configurations_in(folder: &Path) -> Result<Option<Vec<CniFile>>, Problem> {
    let Some(mut names) = names(folder)? else {
        return Ok(None);
    };
    names.retain(|name| is_configuration(name));
    let many = names.len();
    if many > MAX_CONFIGURATIONS {
        let why = format!("it has {many} configurations");
        return Err(report_unreadable(folder, why));
    }
    // A file that is not JSON has no plugins.
    let read = |name: String| {
        let kinds = plugins(&folder.join(&name)).unwrap_or_default();
        let is = |known: &[&str]| kinds.iter().any(|kind| known.contains(&kind.as_str()));
        let is_flannels = is_canals(&name) || is(CALLERS);
        let flannel = (is_flannels || is(OTHERS)).then_some(is_flannels);
        CniFile { name, flannel }
    };
    Ok(Some(names.into_iter().map(read).collect()))
}

/// Where the container runtime reads: the folder with flannel's configuration, otherwise the one that a runtime's own configuration names.
fn folder(places: &Places) -> PathBuf {
    let named = |path: &PathBuf| {
        let bytes = file::read(path, MAX_FILE, Links::Followed).ok()?;
        String::from_utf8_lossy(&bytes).lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            let path = PathBuf::from(value.trim().trim_matches('"'));
            let is_folder = matches!(key.trim(), "conf_dir" | "network_dir");
            (is_folder && path.is_absolute()).then_some(path)
        })
    };
    let named: Vec<PathBuf> = places.runtimes.iter().filter_map(named).collect();
    let has_flannel = |folder: &&PathBuf| {
        let files = configurations_in(folder).ok().flatten();
        files.into_iter().flatten().any(|file| file.flannel == Some(true))
    };
    let known = named.iter().chain(&places.other_cni);
    let found = [&places.cni].into_iter().chain(known).find(has_flannel);
    found.or(named.first()).unwrap_or(&places.cni).clone()
}

pub(super) fn configurations(places: &Places) -> Fact<Cni> {
    let folder = folder(places);
    let runs = kubelet_runs(places);
    let files = match configurations_in(&folder) {
        Ok(Some(files)) => files,
        Ok(None) if runs => Vec::new(),
        Ok(None) => return Fact::Absent,
        Err(why) => return Fact::unavailable(why.to_string()),
    };
    let expected = runs || files.iter().any(|file| file.flannel == Some(true));
    Fact::Known(Cni { folder, files, expected })
}

/// True if a kubelet listens on its sockets. Its folder proves nothing: a removed kubelet may have left it.
fn kubelet_runs(places: &Places) -> bool {
    ["pod-resources/kubelet.sock", "device-plugins/kubelet.sock"]
        .iter()
        .any(|socket| run_dir::api_socket::connect_to(&places.kubelet.join(socket)).is_ok())
}

/// True if a CNI configuration of this host uses flannel.
pub(super) fn names_flannel(places: &Places) -> bool {
    configurations(places).known().is_some_and(Cni::has_flannel)
}

/// The addresses that the plugin host-local has reserved, by network.
pub(super) fn kept(
    places: &Places,
    in_pod: bool,
    network: Option<&Network>,
    host: &Host,
) -> Fact<Vec<Ipam>> {
    let folder = &places.ipam;
    let networks = match names(folder) {
        Ok(Some(names)) => names,
        // In a pod, a missing parent folder means that the node's folder is not mounted. If the node's folder is mounted, host-local has kept no address yet.
        Ok(None) if in_pod && !folder.parent().is_some_and(Path::is_dir) => {
            return Fact::unavailable(format!(
                "flanneld's pod cannot read {}: its DaemonSet does not mount this path",
                folder.display()
            ));
        }
        Ok(None) => return Fact::Absent,
        Err(why) => return Fact::unavailable(why),
    };
    // If another runtime is installed, the folders may be leftovers, and missing entries prove nothing.
    let is_certain = !places.other_runtimes.iter().any(|socket| socket.exists());
    let running: Vec<_> =
        places.containers.iter().filter(|folder| is_certain && folder.is_dir()).cloned().collect();
    let mut found = Vec::new();
    if networks.len() > MAX_CONFIGURATIONS {
        return Fact::unavailable(format!("{} has {} networks", folder.display(), networks.len()));
    }
    for name in networks {
        let folder = folder.join(name);
        let Ok(Some(names)) = names(&folder) else {
            continue;
        };
        let mut kept = Vec::new();
        for address in names.iter().filter_map(|name| name.parse::<std::net::IpAddr>().ok()) {
            if !network.is_some_and(|network| network.own.nets().any(|net| net.contains(&address)))
            {
                continue;
            }
            let file = folder.join(address.to_string());
            let text = file::read(&file, 4096, Links::Refused)
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .unwrap_or_default();
            let container = text.lines().next().unwrap_or_default().trim().to_owned();
            let safe = !container.is_empty()
                && container.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
            let gone = (safe && !running.is_empty())
                .then(|| !running.iter().any(|running| running.join(&container).exists()));
            kept.push(Kept { address, file, container, gone });
        }
        found.push(Ipam { folder, kept, running: running.clone(), ports: ports(host) });
    }
    Fact::Known(found)
}

/// The address that mk-docker-opts.sh set for Docker's bridge.
pub(super) fn docker(places: &Places) -> Fact<IpNet> {
    let Ok(bytes) = file::read(&places.docker, MAX_FILE, Links::Followed) else {
        return Fact::Absent;
    };
    let text = String::from_utf8_lossy(&bytes);
    Fact::of(
        text.split(['"', ' ', '\n']).find_map(|word| word.strip_prefix("--bip=")?.parse().ok()),
    )
}

/// The number of pod interfaces on the bridge `cni0`.
fn ports(host: &Host) -> Option<usize> {
    let interfaces = host.interfaces.known()?;
    let bridge = host.named("cni0").map(|bridge| bridge.index);
    let is_port =
        |interface: &&Interface| bridge.is_some_and(|bridge| interface.is_pods_end_in(bridge));
    Some(interfaces.iter().filter(is_port).count())
}

/// The devices and CNI configurations of other pod networks.
pub(super) fn foreign(places: &Places, host: &Host) -> Fact<Vec<Foreign>> {
    let Some(interfaces) = host.interfaces.known() else {
        return Fact::unavailable("cannot read the interfaces");
    };
    let mut found = Vec::new();
    for interface in interfaces {
        let name = interface.name.as_str();
        let program = match name {
            _ if name.starts_with("cali")
                || name == "vxlan.calico"
                || name == "tunl0" && !interface.addresses.is_empty() =>
            {
                "Calico"
            }
            _ if name.starts_with("cilium_") => "Cilium",
            "weave" | "vethwe-bridge" | "vethwe-datapath" => "Weave Net",
            "kube-bridge" => "kube-router",
            _ => continue,
        };
        found.push(Foreign {
            program: program.to_owned(),
            object: ForeignObject::Device(name.to_owned()),
        });
    }
    let folder = folder(places);
    let files = match configurations_in(&folder) {
        Ok(files) => files.unwrap_or_default(),
        Err(why) => return Fact::unavailable(why),
    };
    let mut is_chained = false;
    for CniFile { name, .. } in &files {
        let path = folder.join(name);
        let kinds = plugins(&path).unwrap_or_default();
        // Plugins that are chained after flannel's belong to flannel's configuration.
        if kinds.iter().any(|kind| kind == "flannel") {
            is_chained |= kinds.iter().any(|kind| kind == "cilium-cni");
            continue;
        }
        let program = kinds.iter().find_map(|kind| match kind.as_str() {
            "calico" => Some("Calico"),
            "cilium-cni" => Some("Cilium"),
            "weave-net" => Some("Weave Net"),
            _ => None,
        });
        found.extend(program.map(|program| Foreign {
            program: program.to_owned(),
            object: ForeignObject::Configuration(path.clone()),
        }));
    }
    // The devices of a chained Cilium are not foreign.
    if is_chained {
        found.retain(|object| object.program != "Cilium");
    }
    // With Canal, Calico's devices and its configuration are not foreign.
    if files.iter().any(|file| is_canals(&file.name)) {
        found.retain(|object| object.program != "Calico");
    }
    found.sort_by(|a, b| a.program.cmp(&b.program));
    Fact::Known(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{healthy_host, network};

    fn places(folder: &Path) -> Places {
        let of = |name: &str| folder.join(name);
        let (containers, other_runtimes) =
            (vec![of("containers"), of("k3s")], vec![of("crio.sock")]);
        let places = Places {
            containers,
            other_runtimes,
            docker: of("docker"),
            runtimes: vec![of("containerd.toml")],
            other_cni: vec![of("k3s-cni")],
            ..Places::default()
        };
        Places { cni: of("cni"), ipam: of("ipam"), kubelet: of("kubelet"), ..places }
    }

    #[test]
    fn first_cni_configuration_is_used() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        assert_eq!(configurations(&places), Fact::Absent);
        std::fs::create_dir(&places.cni).unwrap();
        let put = |name: &str, text: &str| std::fs::write(places.cni.join(name), text).unwrap();
        put("cni.lock", "");
        put("87-podman.conflist", r#"{"plugins":[{"type":"bridge"}]}"#);
        assert!(
            !configurations(&places).known().unwrap().expected,
            "a host may have podman and no kubelet"
        );
        put("10-flannel.conflist", r#"{"plugins":[{"type":"flannel"},{"type":"portmap"}]}"#);
        put("05-broken.conf", "{");
        put("20-calico.conflist", r#"{"plugins":[{"type":"calico"}]}"#);
        let found = configurations(&places).known().unwrap().clone();
        let names: Vec<(&str, Option<bool>)> =
            found.files.iter().map(|file| (file.name.as_str(), file.flannel)).collect();
        assert_eq!(
            names,
            [
                ("05-broken.conf", None),
                ("10-flannel.conflist", Some(true)),
                ("20-calico.conflist", Some(false)),
                ("87-podman.conflist", Some(false))
            ]
        );
        assert!(found.expected);
        let others = foreign(&places, &healthy_host());
        assert_eq!(
            others
                .known()
                .unwrap()
                .iter()
                .map(|object| object.program.as_str())
                .collect::<Vec<_>>(),
            ["Calico"]
        );
        put("30-chained.conflist", r#"{"plugins":[{"type":"flannel"},{"type":"cilium-cni"}]}"#);
        let mut chained = healthy_host();
        if let Fact::Known(interfaces) = &mut chained.interfaces {
            interfaces.push(Interface { name: "cilium_vxlan".to_owned(), ..Interface::default() });
        }
        assert_eq!(foreign(&places, &chained).known().unwrap().len(), 1);
        put("10-canal.conflist", r#"{"plugins":[{"type":"calico"}]}"#);
        assert_eq!(foreign(&places, &healthy_host()), Fact::Known(Vec::new()));
        let found = configurations(&places).known().unwrap().clone();
        assert!(
            found
                .files
                .iter()
                .any(|file| file.name == "10-canal.conflist" && file.flannel == Some(true)),
            "{found:?}"
        );
    }

    fn put(folder: &Path, kind: &str) {
        std::fs::create_dir_all(folder).unwrap();
        let text = format!(r#"{{"type":"{kind}"}}"#);
        std::fs::write(folder.join("00-net.conf"), text).unwrap();
    }

    #[test]
    fn plugin_that_calls_others_uses_flannel() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        for (kind, flannel) in
            [("multus-shim", Some(true)), ("bridge", Some(false)), ("our-own-meta", None)]
        {
            put(&places.cni, kind);
            let found = configurations_in(&places.cni).unwrap().unwrap();
            assert_eq!(found[0].flannel, flannel, "{kind}");
        }
    }

    #[test]
    fn folder_of_the_runtime_is_read() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        put(&places.cni, "bridge");
        assert_eq!(folder(&places), places.cni);
        let own = root.path().join("own");
        let text = format!("  bin_dir = \"/opt\"\n  conf_dir = \"{}\"\n", own.display());
        std::fs::write(&places.runtimes[0], text).unwrap();
        assert_eq!(folder(&places), own);
        put(&places.other_cni[0], "flannel");
        assert_eq!(folder(&places), places.other_cni[0]);
        put(&places.cni, "flannel");
        assert_eq!(folder(&places), places.cni);
    }

    #[test]
    fn many_configurations_are_told_and_not_read() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        put(&places.cni, "flannel");
        for number in 1..1000 {
            let link = places.cni.join(format!("{number}.conf"));
            std::os::unix::fs::symlink("00-net.conf", link).unwrap();
        }
        let found = configurations(&places);
        assert!(found.why().unwrap().contains("1000 configurations"), "{found:?}");
        assert!(foreign(&places, &healthy_host()).why().is_some());
    }

    #[test]
    fn docker_bridge_address_is_read_from_its_options() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        assert_eq!(docker(&places), Fact::Absent);
        for (text, found) in [
            (
                "DOCKER_OPT_BIP=\"--bip=10.1.74.1/24\"\nDOCKER_OPTS=\" --bip=10.1.74.1/24 --ip-masq=true --mtu=1450\"\n",
                Some("10.1.74.1/24"),
            ),
            ("DOCKER_OPTS=\"--mtu=1450 --bip=x\"\n", None),
        ] {
            std::fs::write(&places.docker, text).unwrap();
            assert_eq!(docker(&places), Fact::of(found.map(|net| net.parse().unwrap())));
        }
    }

    #[test]
    fn kept_address_shows_whether_its_container_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        assert_eq!(kept(&places, false, Some(&network()), &healthy_host()), Fact::Absent);
        assert_eq!(
            kept(&places, true, Some(&network()), &healthy_host()),
            Fact::Absent,
            "the folder is mounted"
        );
        let nowhere = Places { ipam: root.path().join("cni/networks"), ..places.clone() };
        assert!(
            kept(&nowhere, true, Some(&network()), &healthy_host())
                .why()
                .unwrap()
                .contains("does not mount this path")
        );
        let folder = places.ipam.join("cbr0");
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in [
            ("10.244.1.2", "alive\neth0"),
            ("10.244.1.3", "dead\neth0"),
            ("10.244.9.4", "other"),
            ("10.244.1.5", "../../etc"),
            ("lock", ""),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let gone = || -> Vec<Option<bool>> {
            kept(&places, false, Some(&network()), &healthy_host()).known().unwrap()[0]
                .kept
                .iter()
                .map(|kept| kept.gone)
                .collect()
        };
        assert_eq!(gone(), [None, None, None], "the doctor knows no running containers");
        std::fs::create_dir_all(root.path().join("containers/alive")).unwrap();
        assert_eq!(gone(), [Some(false), Some(true), None]);
        // Adds the containerd of k3s next to an unused one, and then a runtime that keeps no such folder.
        std::fs::create_dir_all(root.path().join("k3s/dead")).unwrap();
        assert_eq!(gone(), [Some(false), Some(false), None]);
        std::fs::write(root.path().join("crio.sock"), "").unwrap();
        assert_eq!(gone(), [None, None, None]);
        std::fs::remove_file(root.path().join("crio.sock")).unwrap();
        assert_eq!(
            kept(&places, false, Some(&network()), &healthy_host()).known().unwrap()[0].ports,
            Some(1)
        );
    }
}
