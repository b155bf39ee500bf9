//! Nodes behind NAT: each machine has its own NAT, and flannel has chosen the NAT interface.

use super::cases::{
    all, behind_nat, exit_report, in_cluster, inside, named_by, paths, port, problem,
};
use super::healthy::{healthy, interface};
use super::{causes, commands_of, only, report};
use crate::fact::Fact;
use crate::facts::Facts;
use crate::facts::argument::{Argument, is_edited};
use crate::facts::daemon::{ExitReport, Launch};
use crate::facts::leases::RefusedLease;
use crate::facts::mesh::State;
use crate::finding::Severity;
use types::Detail;
use types::problem::{PortPurpose, StoreCause};

/// Another node already uses this daemon's address.
fn refused() -> Fact<ExitReport> {
    let (address, holder) = (
        Some("10.0.2.15".parse().unwrap()),
        "node h1 (id 4d), which holds 10.244.9.0/24".to_owned(),
    );
    exit_report(Detail::AddressInUse { address, holder }, "the address is taken. Nodes that share")
}

/// A node behind NAT, with all paths to peers in the state.
fn trap(state: &State, underlay: bool) -> Facts {
    let mut facts = healthy();
    behind_nat(&mut facts);
    facts.kubernetes = Fact::Absent;
    all(&mut facts, state, underlay);
    facts
}

fn arguments(words: &[&str]) -> Vec<Argument> {
    Argument::find(words.iter().map(|word| (*word).to_owned()), is_edited)
}

fn finds(facts: &Facts, check: &str) -> bool {
    report(facts).findings.iter().any(|finding| finding.check == check)
}

#[test]
fn nat_marks_suffice_without_a_remote_store() {
    // The leases are in a directory.
    let mut facts = trap(&State::CutOff, false);
    facts.host.lookups = Fact::Known(Vec::new());
    assert_eq!(causes(&facts), ["wrong-interface"]);
    assert_eq!(commands_of(&facts, "wrong-interface").len(), 2);
    // With two candidates the doctor cannot decide.
    inside(&mut facts.host.interfaces).push(interface(9, "eth2", &["203.0.113.1/24"]));
    let finding = only(&facts, "wrong-interface");
    assert_eq!(finding.remedy.commands, [""; 0]);
    assert!(finding.evidence.iter().any(|seen| seen.text.contains("eth2")), "{finding:?}");
}

#[test]
fn nat_interface_is_no_trap_once_a_peer_answers() {
    for state in [State::Well, State::OverlayCut, State::SmallMtu] {
        let facts = trap(&state, true);
        assert!(!finds(&facts, "wrong-interface") && !finds(&facts, "nat-interface"), "{state:?}");
    }
    // Until a peer has been probed, the interface is only a risk.
    assert_eq!(causes(&trap(&State::Unknown, false)), ["nat-interface"]);
}

#[test]
fn nat_trap_is_reported_although_a_peer_moved() {
    let mut facts = trap(&State::CutOff, false);
    paths(&mut facts)[0].verdict.state = State::Unknown;
    assert_eq!(causes(&facts), ["wrong-interface"]);
    // Right after the start the other peers have not been probed yet.
    facts.daemon.young = true;
    assert!(!finds(&facts, "wrong-interface"));
    facts.daemon.young = false;
    paths(&mut facts)[0].verdict.state = State::OneWay;
    assert!(!finds(&facts, "wrong-interface"));
}

/// The operator has named the interface on all other nodes, which are on the link of this host's other interface.
#[test]
fn last_node_in_the_nat_trap_is_told_first() {
    for (state, peers) in [(State::CutOff, 1), (State::CutOff, 2), (State::OverlayCut, 1)] {
        let mut facts = trap(&state, state == State::OverlayCut);
        paths(&mut facts).truncate(peers);
        for (path, number) in paths(&mut facts).iter_mut().zip(2..) {
            path.address = [198, 51, 100, number].into();
        }
        assert_eq!(causes(&facts), ["wrong-interface"], "{state:?}");
        assert_eq!(commands_of(&facts, "wrong-interface").len(), 2);
        paths(&mut facts)[0].verdict.state = State::Well;
        assert!(!finds(&facts, "wrong-interface"));
    }
}

#[test]
fn nat_network_with_another_gateway_is_no_trap() {
    let mut facts = trap(&State::Unknown, false);
    inside(&mut facts.host.routes)[0].via = Some("10.0.2.1".parse().unwrap());
    assert_eq!(causes(&facts), [""; 0]);
}

#[test]
fn nat_trap_is_reported_without_a_running_daemon() {
    let mut facts = trap(&State::Unknown, false);
    let no = "flanneld does not run";
    (facts.mesh, facts.leases.peers, facts.leases.own) =
        (Fact::unavailable(no), Fact::unavailable(no), Fact::unavailable(no));
    facts.daemon.running = Fact::Known(false);
    facts.daemon.exit_report = refused();
    assert_eq!(causes(&facts), ["wrong-interface"]);
    assert_eq!(only(&facts, "not-running").explained_by.as_deref(), Some("wrong-interface"));
    // Without signs of NAT, only the duplicate address is certain.
    facts.host.interfaces = healthy().host.interfaces;
    facts.host.lookups = Fact::Known(Vec::new());
    assert_eq!(causes(&facts), ["duplicate-address"]);
}

#[test]
fn nat_interface_is_a_risk_before_the_first_peer() {
    let mut facts = trap(&State::CutOff, false);
    paths(&mut facts).clear();
    inside(&mut facts.leases.peers).clear();
    let finding = only(&facts, "nat-interface");
    assert_eq!((finding.severity, finding.remedy.commands.len()), (Severity::Risk, 2));
    // A node with Go flannel and the same address has joined.
    facts.leases.refused = Fact::Known(vec![RefusedLease {
        lease: "10.244.9.0/24".to_owned(),
        reason: "our-address".to_owned(),
        text: "10.244.9.0/24 publishes 10.0.2.15".to_owned(),
        address: Some("10.0.2.15".parse().unwrap()),
    }]);
    assert_eq!(causes(&facts), ["wrong-interface"]);
}

#[test]
fn interface_that_received_from_a_peer_stays() {
    let mut facts = trap(&State::CutOff, false);
    assert!(finds(&facts, "wrong-interface"));
    paths(&mut facts)[0].ever = true;
    assert!(!finds(&facts, "wrong-interface"));
}

#[test]
fn nat_trap_in_a_cluster_changes_the_daemon_set() {
    let mut facts = trap(&State::CutOff, false);
    facts.daemon.launch = in_cluster("flannel-system");
    let set = "kubectl -n flannel-system set env daemonset/kube-flannel-ds -c kube-flannel FLANNELD_IFACE=eth1";
    assert_eq!(commands_of(&facts, "wrong-interface"), [set]);
    let notes = only(&facts, "wrong-interface").evidence.len();
    // A variable that names the interface gets another value.
    let chosen = |flag: &str| Fact::Known(named_by(flag));
    facts.daemon.choice = chosen("--iface=eth0");
    assert_eq!(commands_of(&facts, "wrong-interface"), [set]);
    // The argument that names the NAT interface has to change, because it takes precedence over the variable.
    for (why, words, script) in [
        ("--iface=eth0", &["--ip-masq", "--iface=eth0"][..], r#"s|"--iface=eth0"|"--iface=eth1"|"#),
        ("--iface=eth0", &["-iface=eth7", "-iface=eth0"], r#"s|"-iface=eth0"|"--iface=eth1"|"#),
        (
            "--iface-cidr=10.0.2.0/24",
            &["--iface-cidr", "10.0.2.0/24"],
            r#"/"--iface-cidr",$/{N;s|"--iface-cidr",(\n *)"10\.0\.2\.0/24"|"--iface",\1"eth1"|;}"#,
        ),
    ] {
        (facts.daemon.choice, facts.daemon.arguments) = (chosen(why), arguments(words));
        let want = format!(
            "kubectl -n flannel-system get daemonset kube-flannel-ds -o json | sed -E -e '/\"resourceVersion\":/d' -e '{script}' | kubectl -n flannel-system replace -f -"
        );
        assert_eq!(commands_of(&facts, "wrong-interface"), [want]);
    }
    // An assumed namespace has a note.
    facts.daemon.launch =
        Launch::Kubernetes { namespace: "kube-flannel".to_owned(), assumed: true };
    assert_eq!(only(&facts, "wrong-interface").evidence.len(), notes + 1);
}

#[test]
fn argument_of_the_unit_takes_precedence_over_the_options_file() {
    let mut facts = trap(&State::CutOff, false);
    facts.daemon.choice = Fact::Known(named_by("--iface=eth0"));
    // Another test runs the command and checks its effect.
    let is_edit = |commands: &[String], script: &str| {
        assert!(
            commands[0].contains(&format!(" | sed -E '{script}') && [ -n \"$lines\" ] && printf ")),
            "{commands:?}"
        );
        assert_eq!(commands[1..], ["systemctl daemon-reload", "systemctl restart flanneld"]);
    };
    for (words, script) in [
        (&["--iface=eth0"][..], "s|--iface=eth0|--iface=eth1|"),
        (&["-iface", "eth0"], "s|-iface eth0|--iface eth1|"),
        (&["--iface=(eth|ens).*"], r"s|--iface=\(eth.ens\)\.\*|--iface=eth1|"),
    ] {
        facts.daemon.arguments = arguments(words);
        is_edit(&commands_of(&facts, "wrong-interface"), script);
    }
    // The same applies to a port and to an identity.
    let mut facts = healthy();
    facts.kubernetes = Fact::Absent;
    facts.daemon.arguments = arguments(&["--status-port=8474", "--node-id", "image"]);
    facts.host.ports = Fact::Known(vec![port(8474, false, PortPurpose::Api)]);
    is_edit(&commands_of(&facts, "port-taken"), "s|--status-port=8474|--status-port=8574|");
    (facts.daemon.running, facts.daemon.id_given) = (Fact::Known(false), true);
    facts.daemon.exit_report = exit_report(
        Detail::IdentityInUse { holder: "n2".to_owned() },
        "another machine is this one",
    );
    is_edit(
        &commands_of(&facts, "clone"),
        "s|--node-id image|--node-id '\"$(cat /proc/sys/kernel/random/uuid)\"'|",
    );
}

#[test]
fn health_port_of_the_daemon_set_moves_with_its_probes() {
    let mut facts = healthy();
    facts.daemon.launch = in_cluster("kube-flannel");
    facts.host.ports = Fact::Known(vec![
        port(8081, false, PortPurpose::Health),
        port(8474, false, PortPurpose::Api),
    ]);
    let commands: Vec<String> =
        report(&facts).causes().flat_map(|finding| finding.remedy.commands.clone()).collect();
    assert!(
        commands[0].contains(r"s/(healthz-port=|[pP]ort")
            && commands[0].contains(r"8081\b/\18181/"),
        "{commands:?}"
    );
    assert_eq!(
        commands[1],
        "kubectl -n kube-flannel set env daemonset/kube-flannel-ds -c kube-flannel FLANNELD_STATUS_PORT=8574"
    );
}

#[test]
fn refused_right_is_granted_or_named() {
    let mut facts = healthy();
    let refused = |facts: &mut Facts, detail| {
        inside(&mut facts.kubernetes).refusal = Some(problem(detail, "refused"));
        commands_of(facts, "rbac")
    };
    let watch = |user: &str| Detail::Forbidden {
        user: user.to_owned(),
        verb: "watch".to_owned(),
        resource: "nodes".to_owned(),
    };
    let status = |cause, status| Detail::Store { cause, status: Some(status), server: None };
    let commands = refused(&mut facts, watch("system:serviceaccount:net:flannel"));
    assert!(
        commands[0].ends_with("| kubectl auth reconcile -f -")
            && commands[0].contains(r#""namespace":"net""#),
        "{commands:?}"
    );
    facts.daemon.launch = in_cluster("net");
    let commands = refused(&mut facts, status(StoreCause::User, 401));
    assert_eq!(
        commands,
        ["kubectl -n net delete pod -l app=flannel --field-selector spec.nodeName=node-1"]
    );
    // The command must not grant permissions to everybody.
    let commands = refused(&mut facts, watch("system:anonymous"));
    assert!(commands[0].contains(" delete pod "), "{commands:?}");
    let commands = refused(&mut facts, watch("system:serviceaccount:net:default"));
    assert_eq!(commands, ["kubectl describe clusterrole flannel"]);
    let commands = refused(&mut facts, status(StoreCause::Role, 403));
    assert!(commands[0].contains(r#""name":"flannel","namespace":"net""#), "{commands:?}");
}
