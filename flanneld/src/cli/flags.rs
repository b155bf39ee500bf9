//! The table of flags: every name, what kind of value it takes, its default and its line of help.

/// What a flag's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any text; the last one given counts.
    Text,
    /// Any text; each one given counts, in order.
    List,
    /// An integer as Go writes them.
    Int,
    /// A decimal integer (klog's `-v`).
    Level,
    /// True or false; true where no value is given.
    Switch,
}

/// Whether the part of the daemon that the flag belongs to exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It does.
    Built,
    /// Not yet: asking for it is refused, leaving it off is not.
    NotYet,
    /// It belongs to a part that is not in use; taken and ignored.
    Inert,
}

/// One flag.
#[derive(Debug)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) default: &'static str,
    /// What the help calls the value.
    pub(super) value: &'static str,
    pub(super) part: Part,
    pub(super) help: &'static str,
}

/// Flags that belong together in the help.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) flags: &'static [Flag],
}

const fn flag(name: &'static str, kind: Kind, default: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { name, kind, default, value, part: Part::Built, help }
}

const fn not_yet(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Flag {
    Flag { name, kind, default, value: "", part: Part::NotYet, help }
}

const fn inert(name: &'static str, kind: Kind, default: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { name, kind, default, value, part: Part::Inert, help }
}

use Kind::{Int, Level, List, Switch, Text};

/// Every flag, in the order of the help.
pub(super) const GROUPS: &[Group] = &[
    Group {
        title: "Where leases are kept: etcd",
        flags: &[
            flag(
                "etcd-endpoints",
                Text,
                "http://127.0.0.1:4001,http://127.0.0.1:2379",
                "URL,…",
                "etcd's client addresses: http://, https:// or unix:; without a scheme http, or https where a client certificate is given",
            ),
            flag("etcd-prefix", Text, "/coreos.com/network", "KEY", "root of flannel's keys"),
            flag("etcd-cafile", Text, "", "FILE", "certificate authority of an https etcd; enough alone"),
            flag("etcd-certfile", Text, "", "FILE", "client certificate, with --etcd-keyfile"),
            flag("etcd-keyfile", Text, "", "FILE", "client key, with --etcd-certfile"),
            flag("etcd-username", Text, "", "NAME", "etcd user, with --etcd-password"),
            flag("etcd-password", Text, "", "TEXT", "its password; safer in FLANNELD_ETCD_PASSWORD, which `ps` does not show"),
            flag("subnet-lease-renew-margin", Int, "60", "MINUTES", "not ready once the lease has less than this left (1 to 1439)"),
        ],
    },
    Group {
        title: "Where leases are kept: a directory (no server needed)",
        flags: &[flag("subnet-dir", Text, "", "DIR", "keep leases as files here instead of in etcd; the nodes share it, or one node is alone")],
    },
    Group {
        title: "The interface that reaches the other nodes (default: the default route's)",
        flags: &[
            flag("iface", List, "", "NAME|IP|auto", "interface by name or address; `auto`: the one that reaches etcd. Repeatable, first match wins"),
            flag("iface-cidr", List, "", "CIDR", "interface with an address inside this network; tried after --iface. Repeatable"),
            flag("iface-regex", List, "", "REGEX", "interface whose address, else name, matches; tried after --iface-cidr. Repeatable"),
            flag("iface-can-reach", Text, "", "IP", "interface the kernel would use to reach this address; tried last"),
            flag("iface-wait", Int, "0", "SECONDS", "how long to wait for an interface that is not there yet; 0: for ever"),
            flag("public-ip", Text, "", "IP", "IPv4 address told to the other nodes, where it is not the interface's (NAT)"),
            flag("public-ipv6", Text, "", "IP", "IPv6 address told to the other nodes"),
        ],
    },
    Group {
        title: "This node",
        flags: &[
            flag("subnet-file", Text, "/run/flannel/subnet.env", "FILE", "what the CNI plugin and Docker read: network, subnet, MTU"),
            flag("node-id", Text, "", "TEXT", "this node's lasting identity; default: derived from machine-id, hardware and hostname"),
            flag("audit-interval", Int, "10", "SECONDS", "compare the whole kernel state this often, beside events; 0: on events only"),
            flag("route-protocol", Int, "241", "NUMBER", "number that marks our routes (`ip route show proto 241`), 5 to 255"),
        ],
    },
    Group {
        title: "Health and logs",
        flags: &[
            flag("healthz-ip", Text, "0.0.0.0", "IP", "address of the server for /healthz, /readyz, /metrics and /status"),
            flag("healthz-port", Int, "0", "PORT", "its port; 0: no server"),
            flag("log-format", Text, "text", "text|json", "how log lines on stderr look"),
            flag("v", Level, "0", "LEVEL", "verbosity: 1 debug, 4 and above trace; RUST_LOG overrides it"),
            inert("vmodule", Text, "", "PATTERN=N,…", "accepted for compatibility; use RUST_LOG"),
            inert("log_backtrace_at", Text, "", "FILE:N", "accepted for compatibility"),
        ],
    },
    Group {
        title: "Traffic rules",
        flags: &[
            flag("ip-masq", Switch, "false", "", "masquerade traffic of pods that leaves the network"),
            flag("ip-masq-fully-random-disable", Switch, "false", "", "leave the choice of ports to the kernel: no --random-fully"),
            flag(
                "non-masquerade-cidr",
                List,
                "",
                "CIDR",
                "pods keep their address towards this network, beside NonMasqueradeCIDRs of the configuration. Repeatable",
            ),
            flag(
                "masquerade-inbound",
                Switch,
                "true",
                "",
                "masquerade traffic from outside to pods of other nodes, so that answers come back this way",
            ),
            flag("iptables-forward-rules", Switch, "true", "", "accept forwarded traffic of the network"),
            flag("iptables-forward-insert", Switch, "false", "", "put the jump to these first, before what may reject (firewalld, cloud images)"),
            flag("iptables-resync", Int, "5", "SECONDS", "how often iptables rules are compared; nftables rules by event"),
            flag("encap-notrack", Switch, "false", "", "encapsulated packets are not tracked by the kernel's connection tracking"),
            flag("encap-peers", Text, "off", "off|count|drop", "packets to the encapsulation port that no other node sent: count or drop them"),
            flag("encap-bar-pods", Switch, "false", "", "drop what pods send to the encapsulation port of nodes"),
            not_yet("ip-blackhole-route", Switch, "false", "blackhole route for the node's own subnet"),
        ],
    },
    Group {
        title: "Kubernetes",
        flags: &[
            not_yet("kube-subnet-mgr", Switch, "false", "take leases from the Kubernetes API instead of etcd"),
            inert("kube-api-url", Text, "", "URL", "address of the API server"),
            inert("kube-annotation-prefix", Text, "flannel.alpha.coreos.com", "PREFIX", "prefix of the node annotations"),
            inert("kubeconfig-file", Text, "", "FILE", "kubeconfig"),
            inert("net-config-path", Text, "/etc/kube-flannel/net-conf.json", "FILE", "network configuration"),
            inert("set-node-network-unavailable", Switch, "true", "", "clear the NetworkUnavailable condition"),
        ],
    },
    Group { title: "Other", flags: &[flag("version", Switch, "false", "", "print the version and exit")] },
];

/// All flags in a row.
pub(super) fn all() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|group| group.flags)
}

/// The flag of a name.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    all().find(|flag| flag.name == name)
}

/// The environment variable that sets a flag; none for `version`, whose variable Go flannel ignores too.
pub(super) fn variable(flag: &Flag) -> Option<String> {
    (flag.name != "version").then(|| format!("FLANNELD_{}", flag.name.to_uppercase().replace('-', "_")))
}

/// The known flag that looks most like an unknown name.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    all().map(|flag| (distance(name, flag.name), flag.name)).filter(|(far, _)| *far <= 2).min().map(|(_, name)| name)
}

/// How many letters to add, drop or change to get from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (y, above) in b.chars().zip(row.iter().skip(1)) {
            left = (corner + usize::from(x != y)).min(above + 1).min(left + 1);
            corner = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(usize::MAX)
}
