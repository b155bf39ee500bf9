//! Checks of the files and addresses that pods need: subnet.env, the CNI configuration, and free addresses.

use crate::check::Check;
use crate::facts::Facts;
use crate::facts::host::ForeignObject;
use crate::facts::pods::{Cni, CniFile};
use crate::finding::{Finding, Severity};
use crate::need::Need;
use crate::shell::word;

/// As the chart installs it.
const CONFLIST: &str = r#"{"name":"cbr0","cniVersion":"1.0.0","plugins":[{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},{"type":"portmap","capabilities":{"portMappings":true}}]}"#;

pub const CHECKS: &[Check] = &[
    Check::new(
        "foreign-cni",
        Severity::Risk,
        "Another pod network is, or was, installed on this node",
        &[Need::Foreign],
        &[],
        foreign_cni,
    ),
    Check::new(
        "subnet-env",
        Severity::Broken,
        "subnet.env is missing or wrong",
        &[Need::Env, Need::Reasons],
        &[],
        subnet_env,
    )
    .waiting(),
    Check::new(
        "cni-config",
        Severity::Broken,
        "Pods do not get their network from flannel",
        &[Need::Cni],
        &[],
        cni_config,
    )
    .waiting(),
    Check::new(
        "ipam-full",
        Severity::Broken,
        "Addresses are reserved for pods that are gone",
        &[Need::Network, Need::Ipam],
        &[],
        ipam_full,
    ),
];

fn subnet_env(facts: &Facts) -> Vec<Finding> {
    let file = facts.daemon.subnet_file.display().to_string();
    let reason = facts.reason("subnet.env");
    let started =
        facts.daemon.reasons.known().is_some_and(|reasons| !reasons.contains_key("start"));
    let env = facts.pods.env.known();
    let finding = |what: String, text: &str| {
        Finding::new(
            "subnet-env",
            Severity::Broken,
            "",
            what,
            "no pod starts on this node, or pods get addresses of another node",
        )
        .seen(text, format!("cat {}", word(&file)))
    };
    if let Some(obstacle) = env.and_then(|env| env.obstacle.as_ref()) {
        let aside = format!("{file}.aside");
        return vec![
            finding(format!("{file} cannot be written: {obstacle}"), obstacle).run(format!(
                "mv {} {}",
                word(&file),
                word(&aside)
            )),
        ];
    }
    if let Some(reason) = reason {
        let folder = facts
            .daemon
            .subnet_file
            .parent()
            .map(|folder| folder.display().to_string())
            .unwrap_or_default();
        return vec![
            finding(format!("{file} cannot be written"), &reason.to_string())
                .run(format!("df -h {0} && ls -la {0}", word(&folder))),
        ];
    }
    // A running daemon corrects the file at once.
    let (Some(network), true) = (facts.network.known(), started) else {
        return Vec::new();
    };
    let restart = || super::interface_remedy::restart(facts);
    match env {
        None => {
            vec![finding(format!("{file} is missing"), "the file does not exist").run(restart())]
        }
        Some(env) if env.subnets.is_some_and(|subnets| subnets != network.own) => {
            let named = env.subnets.map(|subnets| subnets.to_string()).unwrap_or_default();
            vec![
                finding(
                    format!("{file} names another subnet than this node's lease"),
                    &format!("{named} in the file, {} in the lease", network.own),
                )
                .run(restart()),
            ]
        }
        Some(_) => Vec::new(),
    }
}

fn cni_config(facts: &Facts) -> Vec<Finding> {
    let reason = facts.reason("cni-conf");
    // If flanneld tries to write a configuration, one is expected even without other signs.
    let is_wanted = |cni: &&Cni| cni.expected || reason.is_some();
    let Some(cni) = facts.pods.cni.known().filter(is_wanted) else {
        return Vec::new();
    };
    let folder = cni.folder.display().to_string();
    if let Some(reason) = reason {
        let finding = cni_finding(
            format!("flanneld cannot write the CNI configuration to {folder}"),
            "the container runtime has no network for pods: the file system is read-only or full, or SELinux denies the write",
        );
        return vec![
            finding.seen(reason.to_string(), "readyz").run(format!("ls -ldZ {}", word(&folder))),
        ];
    }
    let first = cni.files.first();
    if first.is_some_and(|file| file.flannel == Some(true)) {
        return Vec::new();
    }
    let list: Vec<&str> = cni.files.iter().map(|file| file.name.as_str()).collect();
    let seen = if list.is_empty() { "no configuration".to_owned() } else { list.join(", ") };
    let seen_by = format!("ls {}", word(&folder));
    // A plugin that the doctor does not know may call flannel's.
    let is_unknown = |file: &&CniFile| file.flannel.is_none();
    if let Some(file) = first.filter(is_unknown) {
        let what = format!(
            "the container runtime uses {}, whose plugin the doctor does not know",
            file.name
        );
        let why = "if this plugin does not call flannel's, pods of this node get another network";
        let finding = Finding { severity: Severity::Risk, ..cni_finding(what, why) };
        return vec![finding.seen(seen, seen_by)];
    }
    if !cni.has_flannel() {
        let finding = cni_finding(
            format!("{folder} contains no CNI configuration of flannel"),
            "the container runtime does not use flannel",
        );
        let file = word(&format!("{folder}/10-flannel.conflist"));
        let install = format!("printf '%s\\n' {} > {file}", word(CONFLIST));
        // Another pod network may be in use.
        let is_alone = facts.host.foreign.known().is_some_and(Vec::is_empty);
        let finding = finding.seen(seen, seen_by);
        return vec![finding.run_all(is_alone.then_some(install))];
    }
    let before: Vec<&str> = cni
        .files
        .iter()
        .take_while(|file| file.flannel == Some(false))
        .map(|file| file.name.as_str())
        .collect();
    let finding = cni_finding(
        format!("{} sorts before flannel's configuration in {folder}", before.join(", ")),
        "the container runtime uses the first configuration, so new pods get another network; the commands rename the files that sort first",
    );
    let aside = before.iter().map(|name| {
        let path = format!("{folder}/{name}");
        format!("mv {} {}", word(&path), word(&format!("{path}.aside")))
    });
    vec![finding.seen(seen, seen_by).run_all(aside)]
}

fn cni_finding(what: String, why: &str) -> Finding {
    Finding::new("cni-config", Severity::Broken, "", what, why)
}

fn foreign_cni(facts: &Facts) -> Vec<Finding> {
    let Some(objects) = facts.host.foreign.known().filter(|objects| !objects.is_empty()) else {
        return Vec::new();
    };
    let mut programs: Vec<&str> = objects.iter().map(|object| object.program.as_str()).collect();
    programs.dedup();
    programs
        .iter()
        .map(|program| {
            let mut finding = Finding::new(
                "foreign-cni",
                Severity::Risk,
                *program,
                format!("{program} is, or was, installed on this node in addition to flannel"),
                "two pod networks on one node drop each other's packets. If the other network is no longer in use, complete its removal as its documentation describes, and restart the node",
            );
            let own: Vec<_> = objects.iter().filter(|object| object.program == **program).collect();
            for object in own.iter().take(6) {
                finding = finding.seen(object.object.to_string(), "ip link, ls /etc/cni/net.d");
            }
            // A network with devices on this node may be in use, or a cluster may be migrating to it. In that case no command moves the network's
            // configuration.
            let files = own.iter().map(|object| match &object.object {
                ForeignObject::Configuration(path) => Some(path.display().to_string()),
                ForeignObject::Device(_) => None,
            });
            let files: Option<Vec<String>> = files.collect();
            finding.run_all(files.into_iter().flatten().map(|path| format!("mv {} {}", word(&path), word(&format!("{path}.aside")))))
        })
        .collect()
}

fn ipam_full(facts: &Facts) -> Vec<Finding> {
    let Some(network) = facts.network.known() else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for ipam in facts.pods.ipam.known().into_iter().flatten() {
        for own in network.own.nets() {
            let kept: Vec<_> =
                ipam.kept.iter().filter(|kept| own.contains(&kept.address)).collect();
            // Pods cannot have the network address, the broadcast address or the gateway's address.
            let size = 1_u64
                .checked_shl(u32::from(own.max_prefix_len() - own.prefix_len()))
                .unwrap_or(u64::MAX)
                .saturating_sub(3);
            let count = u64::try_from(kept.len()).unwrap_or(u64::MAX);
            let pods = ipam.ports.and_then(|ports| u64::try_from(ports).ok());
            let full = count > 0 && count >= size.saturating_sub(size / 20);
            if !full {
                continue;
            }
            let folder = ipam.folder.display().to_string();
            let gone = kept.iter().filter(|kept| kept.gone == Some(true)).count();
            let is_leak = gone > 0 || pods.is_some_and(|pods| pods * 2 <= count);
            let severity = match is_leak {
                true => Severity::Broken,
                false if count >= size => Severity::Degraded,
                false => Severity::Risk,
            };
            let of_pods = pods.map(|pods| format!(" for {pods} pods")).unwrap_or_default();
            let finding = Finding::new(
                "ipam-full",
                severity,
                own.to_string(),
                format!("{count} of {size} addresses of {own} are reserved{of_pods}"),
                if is_leak {
                    "new pods get no address. If a container ends without the removal of its network (a crash, a power failure), its address stays reserved forever"
                } else {
                    "new pods soon get no address on this node: its subnet has no more room"
                },
            )
            .seen(format!("{count} files in {folder}"), format!("ls {}", word(&folder)));
            let running: Vec<String> =
                ipam.running.iter().map(|folder| word(&folder.display().to_string())).collect();
            // Each pod on the bridge has a running container with a kept address. If the numbers contradict this, the doctor wrongly considers some running
            // containers gone.
            let are_theirs =
                u64::try_from(gone).ok().zip(pods).is_some_and(|(gone, pods)| gone + pods > count);
            let finding = match running.first() {
                _ if !is_leak => finding,
                Some(_) if gone > 0 && are_theirs => finding.seen(
                    format!(
                        "{gone} of the reserved addresses belong to containers that are not in {}. Pods on cni0 have some of these addresses, so the containers belong to another runtime",
                        running.join(", ")
                    ),
                    format!("ls {}", running.join(" ")),
                ),
                Some(_) if gone > 0 => finding
                    .seen(format!("the containers of {gone} of the reserved addresses are gone"), format!("ls {}", running.join(" ")))
                    .run(free(&folder, &running)),
                _ => finding.seen("the doctor cannot find out which containers still run", "the container runtime's folder"),
            };
            findings.push(finding);
        }
    }
    findings
}

/// Frees the addresses of containers that no longer exist.
///
/// It checks the containers again when it runs, because pods start and end continuously. It keeps address files of the last ten minutes, because a
/// starting pod has no container yet. If the folder of a container runtime is missing, it changes nothing: it cannot know the running containers.
fn free(folder: &str, running: &[String]) -> String {
    let each = |test: &str, name: &str| {
        running.iter().map(|folder| format!("[ {test} {folder}{name} ]")).collect::<Vec<_>>()
    };
    format!(
        "{} && cd {} && find . -maxdepth 1 -type f -name '[0-9a-f]*[.:]*' -mmin +10 | while read -r ip; do id=$(head -n 1 \"$ip\" | tr -d '\\r'); {} || rm \"$ip\"; done",
        each("-d", "").join(" && "),
        word(folder),
        each("-e", "/\"$id\"").join(" || "),
    )
}
