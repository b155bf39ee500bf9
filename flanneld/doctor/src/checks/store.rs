//! Checks of the store and of the network configuration in it.

use super::interface_remedy::restart;
use crate::check::Check;
use crate::facts::Facts;
use crate::facts::store::NextConfig;
use crate::finding::{Finding, HERE, Severity};
use crate::need::Need;
use crate::shell::word;
use types::problem::{ConfigPlace, StoreCause};
use types::{Access, Detail, Problem};

pub const CHECKS: &[Check] = &[
    Check::new(
        "store-unreachable",
        Severity::Degraded,
        "The store does not respond",
        &[Need::Store],
        &["lease", "config"],
        store_unreachable,
    ),
    Check::new(
        "config",
        Severity::Broken,
        "The network configuration is missing or wrong",
        &[Need::Config],
        &["not-running", "lease"],
        config,
    ),
    Check::new(
        "next-config",
        Severity::Risk,
        "The next start of flanneld finds another network configuration or no configuration",
        &[Need::NextConfig],
        &[],
        next_config,
    ),
];

fn store_unreachable(facts: &Facts) -> Vec<Finding> {
    let Some(trouble) = facts.store.trouble.known() else {
        return Vec::new();
    };
    let place = &facts.store.place;
    let serves = facts.leases.own.known().is_some();
    let (severity, why) = match serves {
        true => (
            Severity::Degraded,
            "this node keeps its routes, but receives no changes, and its lease expires unless the store responds again",
        ),
        false => (
            Severity::Broken,
            "this node has no lease yet, and gets no lease until the store responds",
        ),
    };
    let cause = cause(trouble);
    let (what, commands) = meaning(facts, cause);
    let mut finding = Finding::new(
        "store-unreachable",
        severity,
        "",
        format!("flanneld cannot use the store ({place}): {what}"),
        why,
    )
    .seen(trouble.to_string(), "flanneld");
    let lookups = facts.lookups().filter(|lookup| facts.store.addresses.contains(&lookup.to));
    for lookup in lookups {
        finding = match &lookup.by {
            Ok(answer) => match facts.host.interface(answer.index) {
                Some(interface) => finding.seen(
                    format!("the route to {} uses {}", lookup.to, interface.name),
                    format!("ip route get {}", lookup.to),
                ),
                None => finding,
            },
            Err(why) => {
                finding.seen(format!("{}: {why}", lookup.to), format!("ip route get {}", lookup.to))
            }
        };
    }
    vec![finding.run_all(commands).on(where_to_mend(cause))]
}

/// A sentence about the cause, and the commands that fix it or show more.
fn meaning(facts: &Facts, cause: StoreCause) -> (&'static str, Vec<String>) {
    let host = facts.store.addresses.first();
    let route =
        || -> Vec<String> { host.map(|host| format!("ip route get {host}")).into_iter().collect() };
    let (etcdctl, config) = etcdctl(facts);
    match cause {
        StoreCause::Refused => {
            let start = matches!(facts.store.access, Access::Etcd(_)).then(|| "systemctl start etcd".to_owned());
            ("the store's host refuses the connection: the store is down, or the port is wrong", start.into_iter().collect())
        }
        StoreCause::NoRoute => ("this host has no route to the store", route()),
        StoreCause::Silent => ("the store does not respond: it hangs, or a firewall drops the packets", route()),
        StoreCause::Name => ("this host cannot resolve the store's name", vec!["cat /etc/resolv.conf /etc/hosts".to_owned()]),
        StoreCause::CertificateNotYetValid => {
            ("the certificates do not match: one certificate is not valid yet, or this node's clock is behind", vec!["timedatectl".to_owned()])
        }
        StoreCause::CertificateExpired => {
            ("the certificates do not match: one certificate has expired, or this node's clock is ahead", vec!["timedatectl".to_owned()])
        }
        StoreCause::CertificateAuthority => {
            ("the certificates do not match: one certificate is signed by an authority that the other side does not trust", Vec::new())
        }
        StoreCause::CertificateName => ("the certificates do not match: etcd's certificate is issued for another name or address", Vec::new()),
        StoreCause::Tls => ("the certificates do not match", Vec::new()),
        StoreCause::User => ("the store refuses this node's user or password", Vec::new()),
        StoreCause::Role => ("this node's user lacks permissions that flanneld needs", Vec::new()),
        // The history of keys uses up the quota. Without compaction, defragmentation frees nothing.
        StoreCause::NoSpace => (
            "etcd's disk quota is used up",
            password(facts)
                .into_iter()
                .chain([
                    format!(r#"{etcdctl} compact "$({etcdctl} get {config} -w fields | sed -n 's/^"Revision" : //p')""#),
                    format!("{etcdctl} defrag"),
                    format!("{etcdctl} alarm disarm"),
                    "# defragment one endpoint after the other, because an endpoint does not respond while it defragments; if etcd has users, all three commands need the user root".to_owned(),
                ])
                .collect(),
        ),
        StoreCause::NoQuorum => ("etcd has no quorum: most of its members are down", vec![format!("{etcdctl} endpoint status -w table")]),
        StoreCause::Other => ("the store does not serve requests", Vec::new()),
    }
}

/// The machine on which an operator can fix the cause.
fn where_to_mend(cause: StoreCause) -> &'static str {
    match cause {
        StoreCause::NoRoute
        | StoreCause::Silent
        | StoreCause::Name
        | StoreCause::Tls
        | StoreCause::CertificateExpired
        | StoreCause::CertificateNotYetValid
        | StoreCause::CertificateAuthority
        | StoreCause::CertificateName => HERE,
        StoreCause::NoSpace | StoreCause::NoQuorum => {
            "a machine with etcdctl and the files that the commands name, such as this node"
        }
        _ => "the store's machine",
    }
}

/// Reads the password of etcd's user; `None` without a user. The operator would not see etcdctl's own prompt in a pipeline.
pub(super) fn password(facts: &Facts) -> Option<String> {
    let Access::Etcd(etcd) = &facts.store.access else {
        return None;
    };
    etcd.user.as_ref().map(|_| "read -rs ETCDCTL_PASSWORD; export ETCDCTL_PASSWORD".to_owned())
}

/// An etcdctl command with flanneld's etcd options, and the key of the network configuration. It needs the variable that the command of [`password`]
/// sets.
pub(super) fn etcdctl(facts: &Facts) -> (String, String) {
    let Access::Etcd(etcd) = &facts.store.access else {
        return ("etcdctl".to_owned(), "/coreos.com/network/config".to_owned());
    };
    let file = |flag: &str, path: &std::path::Path| format!("--{flag}={}", path.display());
    let client = etcd
        .client
        .iter()
        .flat_map(|(certificate, key)| [file("cert", certificate), file("key", key)]);
    let options = [format!("--endpoints={}", etcd.endpoints.join(","))]
        .into_iter()
        .chain(etcd.ca.as_ref().map(|ca| file("cacert", ca)));
    let options =
        options.chain(client).chain(etcd.user.as_ref().map(|user| format!("--user={user}")));
    (
        options.fold("etcdctl".to_owned(), |line, option| format!("{line} {}", word(&option))),
        word(&format!("{}/config", etcd.prefix)),
    )
}

/// If the endpoints fail for different reasons, the one most useful to an operator.
fn cause(trouble: &Problem) -> StoreCause {
    let of = |detail: &Detail| match detail {
        Detail::Store { cause, .. } => Some(*cause),
        Detail::Forbidden { .. } => Some(StoreCause::Role),
        _ => None,
    };
    trouble.details().filter_map(of).min().unwrap_or(StoreCause::Other)
}

fn config(facts: &Facts) -> Vec<Finding> {
    let Some(problem) = facts.store.config.known() else {
        return Vec::new();
    };
    let finding = Finding::new(
        "config",
        Severity::Broken,
        "",
        "flanneld cannot use the network configuration",
        "flanneld waits for a usable configuration and then continues",
    );
    let start = (facts.is_stopped()).then(|| restart(facts));
    let finding =
        finding.seen(problem.to_string(), &facts.store.place).run_all(put(facts, problem, None));
    // A daemon that this problem has ended does not restart on its own.
    vec![match start {
        Some(start) => finding.run(start).on("this node, once the configuration is correct"),
        None => finding.on("the administrator of the network configuration"),
    }]
}

fn next_config(facts: &Facts) -> Vec<Finding> {
    let Some(next) = facts.store.next_config.known() else {
        return Vec::new();
    };
    // A separate finding reports a directory without a configuration as an unavailable store.
    if facts.store.trouble.known().is_some() {
        return Vec::new();
    }
    let finding =
        |what: &str, why: &str| Finding::new("next-config", Severity::Risk, "", what, why);
    vec![match next {
        NextConfig::Other(members) => finding(
            "the network configuration in the store differs from the configuration that flanneld uses",
            "flanneld reads the configuration only at its start. Until flanneld restarts on every node, nodes with the old configuration and nodes with the new configuration possibly cannot reach each other",
        )
        .seen(format!("the configurations differ in {}", members.join(", ")), &facts.store.place)
        .run(restart(facts)),
        NextConfig::Unusable { problem, in_use } => finding(
            "the store no longer has a usable network configuration",
            "flanneld continues with the configuration that it read; after a restart it waits for a usable configuration, and new nodes get no subnet",
        )
        .seen(problem.to_string(), &facts.store.place)
        .run_all(
            in_use
                .as_ref()
                .and_then(|in_use| put(facts, problem, Some(in_use))),
        )
        .on("a machine that writes the network configuration"),
    }]
}

/// Writes a missing network configuration: `in_use` or, without it, an example.
fn put(facts: &Facts, problem: &Problem, in_use: Option<&str>) -> Option<String> {
    problem.details().find_map(|detail| {
        let Detail::ConfigMissing { place, example } = detail else {
            return None;
        };
        let example = in_use.unwrap_or(example);
        match place {
            ConfigPlace::Key(key) => {
                Some(format!("{} put {} {}", etcdctl(facts).0, word(key), word(example)))
            }
            // A mounted file can be changed only through its ConfigMap.
            ConfigPlace::Mounted(_) => None,
            ConfigPlace::File(file) => Some(format!(
                "printf '%s\\n' {} > {}",
                word(example),
                word(&file.display().to_string())
            )),
        }
    })
}
