//! The interface that connects the nodes, and the commands that make flanneld use it.

use super::daemon_set;
use crate::command::Command;
use crate::facts::Facts;
use crate::facts::argument::{Argument, names_store};
use crate::facts::daemon::Launch;
use crate::facts::host::{Interface, LookupPurpose, address as address_of, joins_hosts};
use crate::finding::{EVERYWHERE, Finding};
use crate::shell::word;
use netstate::host::machine_nat;
use std::net::IpAddr;
use types::Family;

/// The signs that an interface is behind the NAT of a single virtual machine.
pub(super) fn nat_marks(facts: &Facts, interface: &Interface) -> Option<String> {
    let routes = facts.host.routes.known()?;
    let is_behind = |gateway: &IpAddr| {
        routes.iter().any(|route| route.via == Some(*gateway) && route.index == interface.index)
    };
    let (address, gateway) =
        interface.nets().find_map(|net| Some((net, machine_nat(&net).filter(is_behind)?)))?;
    Some(format!("{address} with the gateway {gateway}: VirtualBox's, QEMU's or lima's own NAT"))
}

/// An interface that may connect the nodes.
pub(super) struct Candidate<'a> {
    pub interface: &'a Interface,
    pub address: String,
    /// The route to the store or the API server through the interface, or a peer on its link, and the command that shows it.
    pub leads: Option<(String, String)>,
}

/// The chosen interface is left out. Interfaces with a route to the store or the API server, or with peers on their link, come first.
pub(super) fn candidates<'a>(facts: &'a Facts, chosen: &Interface) -> Vec<Candidate<'a>> {
    let family = if facts.network.known().is_some_and(|network| !network.v4()) {
        Family::V6
    } else {
        Family::V4
    };
    let is_other = |interface: &&Interface| {
        interface.index != chosen.index
            && joins_hosts(interface)
            && nat_marks(facts, interface).is_none()
    };
    let candidate = |interface: &'a Interface| {
        let (source, leads) = what_leads(facts, interface).unzip();
        let own = || address_of(interface, family).map(|net| net.addr());
        Some(Candidate { interface, address: source.flatten().or_else(own)?.to_string(), leads })
    };
    let others = facts.interfaces().iter().filter(is_other);
    let mut found: Vec<Candidate<'a>> = others.filter_map(candidate).collect();
    found.sort_by_key(|candidate| candidate.leads.is_none());
    found
}

/// A sign that the interface connects the nodes, with the command that shows it, and this host's address in the kernel's reply.
fn what_leads(facts: &Facts, interface: &Interface) -> Option<(Option<IpAddr>, (String, String))> {
    let name = &interface.name;
    let mut lookups = facts.lookups();
    let by_route = lookups.find_map(|lookup| {
        let is_store = matches!(lookup.kind, LookupPurpose::Store | LookupPurpose::ApiServer);
        let answer = lookup.by.as_ref().ok().filter(|_| is_store)?;
        let text = format!("the route to {} at {} uses {name}", lookup.whose, lookup.to);
        let command = format!("ip route get {}", lookup.to);
        (answer.index == interface.index).then_some((answer.source, (text, command)))
    });
    let on_link = || {
        facts.peers().find_map(|peer| {
            let is_near = |ip: &IpAddr| interface.nets().any(|net| net.contains(ip));
            let ip = peer.addresses().find(is_near)?;
            let text = format!("{} at {ip} is on the link of {name}", peer.name);
            Some((None, (text, "flannelctl leases".to_owned())))
        })
    };
    by_route.or_else(on_link)
}

/// A candidate with a route to the store or the API server or with peers on its link, otherwise the only candidate.
pub(super) fn best<'a, 'b>(candidates: &'b [Candidate<'a>]) -> Option<&'b Candidate<'a>> {
    match candidates {
        [first, ..] if first.leads.is_some() => Some(first),
        [only] => Some(only),
        _ => None,
    }
}

/// Adds evidence about the candidates. If the current interface has signs of NAT, also adds the commands that switch to the best candidate.
///
/// Missing replies are no reason to switch: the peers may be off, and the store may be on a separate network.
pub(super) fn lead_out(
    mut finding: Finding,
    facts: &Facts,
    chosen: &Interface,
    candidates: &[Candidate<'_>],
) -> Finding {
    for candidate in candidates {
        finding = match &candidate.leads {
            Some((text, from)) => finding.seen(text, from),
            None => finding.seen(
                format!(
                    "the interface {} has the address {} and may join the nodes",
                    candidate.interface.name, candidate.address
                ),
                "ip address",
            ),
        };
    }
    match best(candidates).filter(|_| nat_marks(facts, chosen).is_some()) {
        Some(best) => finding.run_all(choose(facts, &best.interface.name)).on(EVERYWHERE),
        None => finding,
    }
}

/// The commands that make flannel use the interface.
pub(super) fn choose(facts: &Facts, interface: &str) -> Vec<Command> {
    let Some(argument) = facts.daemon.naming() else {
        return set_option(facts, "iface", interface);
    };
    match &facts.daemon.launch {
        Launch::Kubernetes { namespace, .. } => {
            vec![daemon_set::replace_argument(namespace, argument, "iface", interface)]
        }
        // A variable would have no effect, because arguments take precedence.
        Launch::Systemd => edit_unit(argument, "iface", interface)
            .into_iter()
            .map(Command::from)
            .chain([restart(facts)])
            .collect(),
    }
}

/// Holds the drop-in with the new command line. systemd applies the last drop-in, so its name sorts after `override.conf` of `systemctl edit`.
const DROP_INS: &str = "/etc/systemd/system/flanneld.service.d";

/// Replaces one argument in flanneld's systemd unit. A package may own the unit, so a drop-in repeats the effective command line with the changed
/// argument.
pub(super) fn edit_unit(argument: &Argument, flag: &str, value: &str) -> [String; 2] {
    let (old, new) = match argument.joined {
        true => (argument.word(), argument.instead(flag, value)),
        false => (
            format!("{}{} {}", argument.dashes, argument.flag, argument.value),
            format!("--{flag} {value}"),
        ),
    };
    let script = format!("s|{}|{}|", daemon_set::pattern(&old), daemon_set::replacement(&new));
    // Collects the ExecStart lines in force: an empty ExecStart= discards earlier ones, and a backslash at the end continues a line.
    let lines = r#"awk '/^ExecStart=/{on=1} on{all=all $0 "\n"} $0=="ExecStart="{all=""} {on=on && /\\$/} END{printf "%s",all}'"#;
    let files = "$(systemctl show -p FragmentPath -p DropInPaths --value flanneld)";
    [
        format!(
            r#"mkdir -p {DROP_INS} && lines=$({lines} {files} | sed -E {}) && [ -n "$lines" ] && printf '[Service]\nExecStart=\n%s\n' "$lines" > {DROP_INS}/zz-flannel.conf"#,
            word(&script)
        ),
        "systemctl daemon-reload".to_owned(),
    ]
}

pub(super) fn set_option(facts: &Facts, flag: &str, value: &str) -> Vec<Command> {
    let variable = format!("FLANNELD_{}", flag.to_uppercase().replace('-', "_"));
    match (&facts.daemon.launch, facts.daemon.argument(flag)) {
        (Launch::Systemd, Some(argument)) => edit_unit(argument, flag, value)
            .into_iter()
            .map(Command::from)
            .chain([restart(facts)])
            .collect(),
        (Launch::Systemd, None) => {
            vec![add_line(&word(&format!("{variable}={value}"))).into(), restart(facts)]
        }
        (Launch::Kubernetes { namespace, .. }, Some(argument)) => {
            vec![daemon_set::replace_argument(namespace, argument, flag, value)]
        }
        (Launch::Kubernetes { namespace, .. }, None) => {
            vec![daemon_set::set_env(namespace, &variable, &word(value))]
        }
    }
}

/// Appends a line to flanneld's options file. `line` must be a single shell word. A newline precedes it, because the file may not end with one.
pub(super) fn add_line(line: &str) -> String {
    format!(r"printf '\n%s\n' {line} >> /etc/default/flanneld")
}

/// A flannelctl command with the options that it needs to reach the store. Under systemd, they come from flanneld's command line and its options
/// file. systemd-run reads that file, because a shell does not understand its syntax.
pub(super) fn with_store(facts: &Facts, command: &str) -> String {
    match &facts.daemon.launch {
        Launch::Systemd => {
            let arguments =
                facts.daemon.arguments.iter().filter(|argument| names_store(&argument.flag));
            let flags: String = arguments
                .map(|argument| {
                    format!(" {}", word(&format!("--{}={}", argument.flag, argument.value)))
                })
                .collect();
            format!(
                "systemd-run --quiet --pipe --wait --collect -p EnvironmentFile=-/etc/default/flanneld {command}{flags}"
            )
        }
        Launch::Kubernetes { .. } => command.to_owned(),
    }
}

pub(super) fn restart(facts: &Facts) -> Command {
    match &facts.daemon.launch {
        Launch::Systemd => "systemctl restart flanneld".into(),
        Launch::Kubernetes { namespace, .. } => {
            let node = facts
                .kubernetes
                .known()
                .map(|kubernetes| kubernetes.node.as_str())
                .filter(|node| !node.is_empty());
            daemon_set::restart(namespace, node.unwrap_or(&facts.host.name))
        }
    }
}
