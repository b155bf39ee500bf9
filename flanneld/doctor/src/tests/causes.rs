//! The problem in the exit report explains why flanneld exited, and the doctor scans routes only once.

use super::cases::{
    Spoil, all, exit_report, inside, named, of_store, paths, port, problem, reason, spoiled,
};
use super::healthy::{healthy, peer};
use super::{causes, commands_of, only, report};
use crate::fact::Fact;
use crate::facts::Facts;
use crate::facts::argument::on_command_line;
use crate::facts::daemon::{Drift, Drifting};
use crate::facts::host::Route;
use crate::facts::mesh::State;
use crate::facts::store::NextConfig;
use types::Subnets;
use types::problem::{ConfigPlace, PortPurpose, StoreCause};
use types::{Detail, Problem};

fn ended() -> Facts {
    let mut facts = healthy();
    facts.daemon.running = Fact::Known(false);
    facts.daemon.exit_report = exit_report(Detail::None, "…");
    facts
}

#[test]
fn cause_of_an_exit_ends_with_the_restart_command() {
    let spoils: [(&str, Spoil); 4] = [
        ("config", |facts| facts.store = spoiled("config").store),
        ("module", |facts| {
            facts.host.modules = spoiled("module").host.modules;
        }),
        ("foreign-device", |facts| {
            inside(&mut facts.host.routes).clear();
            named(facts, "flannel.1").kind = "bridge".to_owned();
        }),
        ("port-taken", |facts| {
            facts.host.ports = Fact::Known(vec![port(8471, false, PortPurpose::Health)]);
        }),
    ];
    for (check, spoil) in spoils {
        let mut facts = ended();
        spoil(&mut facts);
        assert_eq!(causes(&facts), [check]);
        assert_eq!(only(&facts, "not-running").explained_by.as_deref(), Some(check));
        let commands = commands_of(&facts, check);
        let last = commands.iter().rfind(|command| !command.starts_with('#'));
        assert_eq!(last.map(String::as_str), Some("systemctl restart flanneld"), "{check}");
        facts.daemon.running = Fact::Known(true);
        let commands = commands_of(&facts, check);
        assert!(
            check == "port-taken" || !commands.iter().any(|command| command.contains("restart")),
            "{check}: {commands:?}"
        );
    }
}

/// If it contains a secret, the doctor prints no command.
#[test]
fn configuration_in_use_is_put_back() {
    let commands = |in_use: Option<&str>| {
        let mut facts = healthy();
        let missing = Detail::ConfigMissing {
            place: ConfigPlace::Key("/n/config".to_owned()),
            example: "{}".to_owned(),
        };
        facts.store.next_config = Fact::Known(NextConfig::Unusable {
            problem: problem(missing, "there is none"),
            in_use: in_use.map(str::to_owned),
        });
        assert_eq!(causes(&facts), ["next-config"]);
        let commands = commands_of(&facts, "next-config");
        facts.store.trouble = Fact::Known(of_store(StoreCause::Refused, "Connection refused"));
        assert_eq!(causes(&facts), ["store-unreachable"]);
        commands
    };
    assert_eq!(
        commands(Some(r#"{"Network":"10.5.0.0/16"}"#)),
        [
            "etcdctl --endpoints=http://192.0.2.250:2379 put /n/config '{\"Network\":\"10.5.0.0/16\"}'"
        ]
    );
    assert_eq!(commands(None), [""; 0]);
}

#[test]
fn missing_configuration_has_a_command_that_creates_it() {
    let command = |detail| {
        let mut facts = healthy();
        facts.store.config = Fact::Known(problem(detail, "put it there with `reboot`"));
        commands_of(&facts, "config")
    };
    let missing = |place| Detail::ConfigMissing {
        place,
        example: r#"{"Network":"10.244.0.0/16"}"#.to_owned(),
    };
    for (place, wanted) in [
        (
            ConfigPlace::Key("/n/a;b".to_owned()),
            r#"etcdctl --endpoints=http://192.0.2.250:2379 put '/n/a;b' '{"Network":"10.244.0.0/16"}'"#,
        ),
        (
            ConfigPlace::File("/srv/my leases/config".into()),
            r#"printf '%s\n' '{"Network":"10.244.0.0/16"}' > '/srv/my leases/config'"#,
        ),
    ] {
        assert_eq!(command(missing(place)), [wanted]);
    }
    // An invalid configuration gets no command, so none overwrites it.
    assert_eq!(
        command(Detail::ConfigInvalid { place: Some(ConfigPlace::Key("/n/config".to_owned())) }),
        [""; 0]
    );
    assert_eq!(command(Detail::None), [""; 0]);
}

#[test]
fn commands_take_the_options_of_the_unit() {
    let mut facts = healthy();
    reason(&mut facts, "lease", Detail::OutOfSubnets, "out of subnets");
    facts.leases.own = Fact::Absent;
    // Go flannel's unit selects the store on its command line. The command does not show a password from there.
    let words = [
        "-etcd-endpoints=https://192.0.2.1:2379",
        "--etcd-prefix",
        "/n",
        "--etcd-password=secret",
        "--etcd-keyfile=/etc/a b",
    ];
    facts.daemon.arguments = on_command_line(words.map(str::to_owned));
    let command = commands_of(&facts, "lease").concat();
    assert!(
        command.ends_with("flannelctl leases --long --etcd-endpoints=https://192.0.2.1:2379 --etcd-prefix=/n '--etcd-keyfile=/etc/a b'"),
        "{command}"
    );
    assert!(
        on_command_line(["--etcd-endpoints=https://root:secret@192.0.2.1:2379".to_owned()])
            .is_empty()
    );
}

#[test]
fn missing_interface_explains_silent_peers_and_store() {
    let mut facts = healthy();
    facts.store.trouble = Fact::Known(of_store(StoreCause::NoRoute, "no route to host"));
    all(&mut facts, &State::CutOff, false);
    paths(&mut facts).iter_mut().for_each(|path| path.ever = true);
    assert_eq!(causes(&facts), ["isolated", "store-unreachable"]);
    reason(&mut facts, "underlay", Detail::None, "eth0 is down");
    assert_eq!(causes(&facts), ["no-interface"]);
}

#[test]
fn interface_that_went_down_after_it_was_read_has_its_command() {
    let mut facts = healthy();
    for code in ["underlay-no-carrier", "underlay-down"] {
        let down = Problem { code: code.into(), ..problem(Detail::None, "eth0 is down") };
        inside(&mut facts.daemon.reasons).insert("underlay".to_owned(), down);
        let found = commands_of(&facts, "no-interface");
        let raised = found.iter().any(|line| line == "ip link set eth0 up");
        assert_eq!(raised, code == "underlay-down", "{found:?}");
    }
}

/// A scan for each route would take minutes.
#[test]
fn ten_thousand_routes_are_scanned_once() {
    let net = |number: u32| {
        format!("10.{}.{}.0/24", 64 + number / 256, number % 256).parse::<ipnet::Ipv4Net>().unwrap()
    };
    let mut facts = healthy();
    let peers = (0..10_000).map(|number| crate::facts::leases::Peer {
        subnets: Subnets::V4(net(number)),
        ..peer("node", 9)
    });
    facts.leases.peers = Fact::Known(peers.collect());
    let route = |number: u32, protocol, metric| Route {
        via: Some("198.51.100.7".parse().unwrap()),
        index: 5,
        protocol,
        metric,
        net: net(number).into(),
        ..Route::default()
    };
    // Each subnet has a route of flannel and another program's with a higher metric. Only for the last subnet the metrics are equal.
    let routes = (0..10_000).flat_map(|number| {
        [route(number, 241, 10), route(number, 4, if number == 9_999 { 10 } else { 20 })]
    });
    facts.host.routes = Fact::Known(routes.collect());
    let found = report(&facts);
    let found: Vec<&str> = found
        .findings
        .iter()
        .filter(|finding| finding.check == "foreign-route")
        .map(|finding| finding.about.as_str())
        .collect();
    assert_eq!(found, [net(9_999).to_string()]);
}

#[test]
fn taken_port_explains_the_failure_of_its_user() {
    let taken = |number, purpose| {
        let mut facts = healthy();
        facts.host.ports = Fact::Known(vec![port(number, true, purpose)]);
        all(&mut facts, &State::OverlayCut, true);
        causes(&facts)
    };
    assert_eq!(taken(8472, PortPurpose::Tunnel), ["port-taken"]);
    assert_eq!(taken(8473, PortPurpose::Probes), ["encap-blocked", "port-taken"]);
}

#[test]
fn taken_tunnel_port_names_the_key_of_its_backend() {
    let mut facts = healthy();
    facts.host.ports = Fact::Known(vec![port(51820, true, PortPurpose::Tunnel)]);
    for (backend, key) in [("vxlan", " Port "), ("wireguard", " ListenPort ")] {
        inside(&mut facts.network).backend = backends::profile(backend);
        let why = only(&facts, "port-taken").why;
        assert!(why.contains(key), "{why}");
    }
}

#[test]
fn drift_remedy_restricts_only_the_program_that_interferes() {
    let commands = |program: &str, kind| {
        let mut facts = healthy();
        let object = "x".to_owned();
        facts.daemon.drift =
            Fact::Known(vec![Drift { object, kind, times: 4, by: vec![program.to_owned()] }]);
        commands_of(&facts, "drift-war").join("\n")
    };
    for kind in [Drifting::Link, Drifting::Route, Drifting::Other] {
        assert!(
            commands("NetworkManager", kind).contains("unmanaged-devices+="),
            "a list that others began stays"
        );
        let (text, is_route) = (commands("systemd-networkd", kind), kind == Drifting::Route);
        assert_eq!(
            (text.contains("ManageForeignRoutes=no"), text.contains("Unmanaged=yes")),
            (is_route, !is_route),
            "{text}"
        );
        assert_eq!(text.contains("MACAddressPolicy=none"), kind == Drifting::Link, "{text}");
        assert_eq!(commands("another", kind), "");
    }
}

#[test]
fn store_failure_names_its_cause_and_remedy() {
    let of = |causes: &[StoreCause]| {
        let mut facts = healthy();
        let parts = causes.iter().map(|cause| of_store(*cause, "one endpoint")).collect();
        facts.store.trouble =
            Fact::Known(Problem { parts, ..problem(Detail::None, "all endpoints") });
        only(&facts, "store-unreachable")
    };
    let full = of(&[StoreCause::Silent, StoreCause::NoSpace]).remedy.commands;
    assert!(full.len() == 4 && full[0].contains(" compact "), "what fills it goes first: {full:?}");
    for (cause, words) in [
        (StoreCause::CertificateNotYetValid, "behind"),
        (StoreCause::CertificateExpired, "ahead"),
        (StoreCause::CertificateAuthority, "trust"),
        (StoreCause::CertificateName, "another name"),
        (StoreCause::Tls, "match"),
    ] {
        let found = of(&[StoreCause::Refused, cause]);
        let of_clock = ["behind", "ahead"].contains(&words);
        assert!(found.what.contains(words), "{found:?}");
        assert_eq!(found.remedy.commands.is_empty(), !of_clock, "{found:?}");
    }
}
