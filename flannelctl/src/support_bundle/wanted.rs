//! The items of a support bundle.

use std::path::{Path, PathBuf};

/// One file of the bundle.
#[derive(Debug)]
pub(super) struct Item {
    /// In the archive.
    pub name: &'static str,
    pub source: Source,
}

#[derive(Debug)]
pub(super) enum Source {
    /// The daemon's response to a request on its socket.
    Daemon(&'static str),
    /// The file at the path of subnet.env with this suffix, which is empty for subnet.env itself.
    Suffixed(&'static str),
    /// A file that contains no secret.
    File(&'static str),
    /// The end of a daemon's log in a pod of this node. 0 is the newest log, and higher numbers are earlier
    /// logs.
    PodLog(usize),
    /// The output of a program that prints no secret keys.
    Program(&'static [&'static str]),
}

impl Source {
    /// For the list of the bundle's contents.
    pub(super) fn shown(&self, subnet_file: &Path) -> String {
        match self {
            Source::Daemon(target) => format!("flanneld: GET {target}"),
            Source::Suffixed(end) => suffixed(subnet_file, end).display().to_string(),
            Source::File(path) => (*path).to_owned(),
            Source::PodLog(before) => {
                let which = if *before == 0 { "the newest" } else { "the previous one" };
                format!("/var/log/pods/*_kube-flannel-ds-*/kube-flannel/*.log, {which}")
            }
            Source::Program(words) => words.join(" "),
        }
    }
}

/// The path of subnet.env with a suffix.
pub(super) fn suffixed(subnet_file: &Path, end: &str) -> PathBuf {
    let mut path = subnet_file.as_os_str().to_owned();
    path.push(end);
    path.into()
}

const fn daemon(name: &'static str, target: &'static str) -> Item {
    Item { name, source: Source::Daemon(target) }
}

const fn file(name: &'static str, path: &'static str) -> Item {
    Item { name, source: Source::File(path) }
}

const fn program(name: &'static str, words: &'static [&'static str]) -> Item {
    Item { name, source: Source::Program(words) }
}

pub(super) const WANTED: &[Item] = &[
    daemon("flanneld/node.json", node_api::NODE_AND_ROWS),
    daemon("flanneld/findings.json", node_api::FINDINGS),
    daemon("flanneld/status.json", "/status"),
    daemon("flanneld/metrics.txt", "/metrics"),
    daemon("flanneld/readyz.txt", "/readyz"),
    daemon("flanneld/routes.json", node_api::ROUTES),
    Item { name: "flanneld/subnet.env", source: Source::Suffixed("") },
    Item { name: "flanneld/subnet.env.status", source: Source::Suffixed(".status") },
    Item { name: "flanneld/subnet.env.ended", source: Source::Suffixed(".ended") },
    program(
        "flanneld/journal.txt",
        &["journalctl", "--unit=flanneld", "--no-pager", "--lines=5000", "--output=short-iso"],
    ),
    Item { name: "flanneld/pod.log", source: Source::PodLog(0) },
    // Shows why the last container ended.
    Item { name: "flanneld/pod-previous.log", source: Source::PodLog(1) },
    program("flanneld/version.txt", &["flanneld", "--version"]),
    program("net/links.txt", &["ip", "-details", "-statistics", "link", "show"]),
    program("net/addresses.txt", &["ip", "address", "show"]),
    program("net/routes.txt", &["ip", "-details", "route", "show", "table", "all"]),
    program("net/routes-v6.txt", &["ip", "-6", "-details", "route", "show", "table", "all"]),
    program("net/rules.txt", &["ip", "rule", "show"]),
    program("net/rules-v6.txt", &["ip", "-6", "rule", "show"]),
    program("net/neighbours.txt", &["ip", "-statistics", "neighbour", "show"]),
    program("net/fdb.txt", &["bridge", "fdb", "show"]),
    program(
        "net/sockets.txt",
        &["ss", "--udp", "--tcp", "--listening", "--numeric", "--processes"],
    ),
    program("net/nftables.txt", &["nft", "list", "ruleset"]),
    program("net/iptables.txt", &["iptables-save", "-c"]),
    program("net/ip6tables.txt", &["ip6tables-save", "-c"]),
    program(
        "net/sysctls.txt",
        &[
            "sysctl",
            "-a",
            "--pattern",
            r"^net\.(ipv4\.(ip_forward|conf\..*\.(rp_filter|forwarding)|neigh\..*gc_thresh)|ipv6\.conf\..*\.forwarding|bridge\.|netfilter\.nf_conntrack_(max|count))",
        ],
    ),
    program("net/conntrack.txt", &["conntrack", "-S"]),
    file("net/counters", "/proc/net/snmp"),
    file("net/counters-v6", "/proc/net/snmp6"),
    file("net/more-counters", "/proc/net/netstat"),
    file("net/backlogs", "/proc/net/softnet_stat"),
    program("host/kernel.txt", &["dmesg"]),
    file("host/os-release", "/etc/os-release"),
    file("host/modules", "/proc/modules"),
    file("host/meminfo", "/proc/meminfo"),
    file("host/loadavg", "/proc/loadavg"),
    program("host/uname.txt", &["uname", "-a"]),
    program("host/time.txt", &["date", "--utc", "--iso-8601=ns"]),
    program("cni/configurations.txt", &["ls", "-la", "/etc/cni/net.d"]),
    program("cni/plugins.txt", &["ls", "-la", "/opt/cni/bin"]),
    program(
        "host/kubelet.txt",
        &["journalctl", "--unit=kubelet", "--no-pager", "--lines=2000", "--output=short-iso"],
    ),
    // This item comes last, because other nodes have reported by now.
    daemon("flanneld/rows.json", node_api::NODE_AND_ROWS),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn items_have_unique_names() {
        let names: BTreeSet<&str> = WANTED.iter().map(|item| item.name).collect();
        assert_eq!(names.len(), WANTED.len());
        assert!(names.iter().all(|name| {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/.-".contains(&byte))
                && !name.starts_with('/')
        }));
    }

    /// Options, environments, credentials and configurations of other programs may contain secrets.
    #[test]
    fn items_contain_no_secrets() {
        for item in WANTED {
            let shown = item.source.shown(Path::new("/run/flannel/subnet.env"));
            for secret in [
                "/etc/default",
                "environ",
                "cmdline",
                ".pem",
                ".key",
                "kubeconfig",
                "serviceaccount",
                "systemctl",
                "docker",
                "wg ",
                "/etc/cni/net.d/",
            ] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
    }
}
