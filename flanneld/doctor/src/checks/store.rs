//! The store, and the network's configuration in it.

use super::way_out::restart;
use crate::check::Check;
use crate::facts::Facts;
use crate::facts::store::{Access, TroubleKind};
use crate::finding::{Finding, HERE, Severity};
use crate::need::Need;
use crate::shell::word;

/// The checks of this group.
pub const CHECKS: &[Check] = &[
    Check {
        id: "store-unreachable",
        severity: Severity::Degraded,
        title: "The store does not answer",
        needs: &[Need::Store],
        explains: &["lease", "config"],
        waits: false,
        judge: store_unreachable,
    },
    Check {
        id: "config",
        severity: Severity::Broken,
        title: "The network configuration is missing or wrong",
        needs: &[Need::Config],
        explains: &["not-running", "lease"],
        waits: false,
        judge: config,
    },
];

fn store_unreachable(facts: &Facts) -> Vec<Finding> {
    let Some(trouble) = facts.store.trouble.known() else { return Vec::new() };
    let place = &facts.store.place;
    let host = facts.store.addresses.first();
    let serves = facts.leases.own.known().is_some();
    let (severity, why) = match serves {
        true => {
            (Severity::Degraded, "this node keeps its ways to the others, learns of no change, and its lease runs out unless the store answers again")
        }
        false => (Severity::Broken, "this node has no lease yet, and gets none until the store answers"),
    };
    let route = host.map(|host| format!("ip route get {host}"));
    let (etcdctl, config) = etcdctl(facts);
    let (what, commands) = match trouble.kind {
        TroubleKind::Refused => {
            let start = place.starts_with("etcd ").then(|| "systemctl start etcd".to_owned());
            ("nobody listens at its address: it is down, or the port is wrong".to_owned(), start.into_iter().collect())
        }
        TroubleKind::NoRoute => ("there is no route to it".to_owned(), route.into_iter().collect()),
        TroubleKind::Silent => ("it does not answer: it hangs, or a firewall drops the packets".to_owned(), route.into_iter().collect()),
        TroubleKind::Name => ("its name cannot be resolved".to_owned(), vec!["cat /etc/resolv.conf /etc/hosts".to_owned()]),
        TroubleKind::Tls => {
            let (words, dated) = certificates(&trouble.text);
            (format!("the certificates do not fit{words}"), if dated { vec!["timedatectl".to_owned()] } else { Vec::new() })
        }
        TroubleKind::User => ("it refuses this node's user or password".to_owned(), Vec::new()),
        TroubleKind::Role => ("this node's user may not do what flanneld does".to_owned(), Vec::new()),
        // The history is what fills it: without compaction there is nothing to free.
        TroubleKind::NoSpace => (
            "etcd's disk quota is used up".to_owned(),
            password(facts)
                .into_iter()
                .chain([
                    format!(r#"{etcdctl} compact "$({etcdctl} get {config} -w fields | sed -n 's/^"Revision" : //p')""#),
                    format!("{etcdctl} defrag"),
                    format!("{etcdctl} alarm disarm"),
                    "# defrag: one endpoint after the other, and each answers nobody meanwhile; with users, all three are for root".to_owned(),
                ])
                .collect(),
        ),
        TroubleKind::NoQuorum => ("most of its members are down: it has no quorum".to_owned(), vec![format!("{etcdctl} endpoint status -w table")]),
        TroubleKind::Other => ("it does not serve".to_owned(), Vec::new()),
    };
    let mut finding =
        Finding::new("store-unreachable", severity, "", format!("the store cannot be used ({place}): {what}"), why).seen(&trouble.text, "flanneld");
    let ways = facts.host.ways.known().into_iter().flatten().filter(|way| facts.store.addresses.contains(&way.to));
    for way in ways {
        finding = match &way.by {
            Ok(answer) => match facts.host.interface(answer.index) {
                Some(interface) => finding.seen(format!("{} would be reached by {}", way.to, interface.name), format!("ip route get {}", way.to)),
                None => finding,
            },
            Err(why) => finding.seen(format!("{}: {why}", way.to), format!("ip route get {}", way.to)),
        };
    }
    let place = match trouble.kind {
        TroubleKind::NoRoute | TroubleKind::Silent | TroubleKind::Name | TroubleKind::Tls => HERE,
        TroubleKind::NoSpace | TroubleKind::NoQuorum => "a machine with etcdctl and these files, such as this node",
        _ => "the store's machine",
    };
    vec![finding.run_all(commands).on(place)]
}

/// The command that asks for the password of etcd's user: etcdctl would ask within the pipelines, unseen.
pub(super) fn password(facts: &Facts) -> Option<String> {
    let Access::Etcd(etcd) = &facts.store.access else { return None };
    etcd.user.as_ref().map(|_| "read -rs ETCDCTL_PASSWORD; export ETCDCTL_PASSWORD".to_owned())
}

/// The program etcdctl with the options by which flanneld reaches etcd, and the key of the configuration. For the password see [`password`].
pub(super) fn etcdctl(facts: &Facts) -> (String, String) {
    let Access::Etcd(etcd) = &facts.store.access else { return ("etcdctl".to_owned(), "/coreos.com/network/config".to_owned()) };
    let file = |flag: &str, path: &std::path::Path| format!("--{flag}={}", path.display());
    let client = etcd.client.iter().flat_map(|(certificate, key)| [file("cert", certificate), file("key", key)]);
    let options = [format!("--endpoints={}", etcd.endpoints.join(","))].into_iter().chain(etcd.ca.as_ref().map(|ca| file("cacert", ca)));
    let options = options.chain(client).chain(etcd.user.as_ref().map(|user| format!("--user={user}")));
    (options.fold("etcdctl".to_owned(), |line, option| format!("{line} {}", word(&option))), word(&format!("{}/config", etcd.prefix)))
}

/// What does not fit of the certificates, and whether a wrong clock of this node may be why.
fn certificates(text: &str) -> (&'static str, bool) {
    let known = [
        ("not valid yet", ": one is not valid yet, or this node's clock is behind", true),
        ("expired", ": one has expired, or this node's clock is ahead", true),
        ("authority", ": one is signed by an authority that the other side does not trust", false),
        ("issued for", ": etcd's is issued for another name or address", false),
    ];
    known.into_iter().find(|(part, ..)| text.contains(part)).map_or(("", false), |(_, words, dated)| (words, dated))
}

fn config(facts: &Facts) -> Vec<Finding> {
    let Some(text) = facts.store.config.known() else { return Vec::new() };
    let finding = Finding::new(
        "config",
        Severity::Broken,
        "",
        "the network configuration cannot be used",
        "flanneld waits for one that it can use, and goes on as soon as it is there",
    );
    let start = (facts.daemon.running.known() == Some(&false)).then(|| restart(facts));
    let finding = finding.seen(text, &facts.store.place).run_all(put(facts, text));
    // A daemon that ended over it does not come back by itself.
    vec![match start {
        Some(start) => finding.run(start).on("this node, once the configuration is correct"),
        None => finding.on("whoever configures the network"),
    }]
}

/// The command that puts a configuration where there is none: as the text of the store says. Other texts quote what stands in the store, which
/// must not become a command: only those that are ours from their beginning count.
fn put(facts: &Facts, text: &str) -> Option<String> {
    let rest = text.strip_prefix("the network configuration ").filter(|rest| rest.starts_with('/'))?;
    if let Some((key, rest)) = rest.split_once(" is not in etcd (v3): put it there with `") {
        let (command, _) = rest.split_once('`')?;
        let ours = word(key) == key && command.starts_with(&format!("etcdctl put {key} '"));
        let (etcdctl, _) = etcdctl(facts);
        return command.strip_prefix("etcdctl ").filter(|_| ours).map(|rest| format!("{etcdctl} {rest}"));
    }
    let (file, example) = rest.split_once(" does not exist: create it, e.g. ")?;
    Some(format!("printf '%s\\n' {} > {}", word(example), word(file)))
}
