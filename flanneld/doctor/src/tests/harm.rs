//! The doctor's commands do no harm, and notes name the changes that a reboot undoes.

use super::cases::{
    all, behind_nat, everywhere, in_cluster, inside, named, named_by, of_store, paths, reason,
    spoiled,
};
use super::healthy::{address, healthy, interface, path, peer};
use super::{causes, commands_of, only, report};
use crate::fact::Fact;
use crate::facts::Facts;
use crate::facts::argument::{Argument, is_edited};
use crate::facts::daemon::{Choice, Launch};
use crate::facts::host::{Foreign, ForeignObject, Route, joins_hosts};
use crate::facts::leases::RefusedLease;
use crate::facts::mesh::State;
use crate::finding::{Finding, HERE, ON_THE_NODE, Severity};
use types::access::Etcd;
use types::problem::StoreCause;
use types::{Access, Detail};

/// About all prepared faults, under systemd and in a pod.
fn everything() -> impl Iterator<Item = Finding> {
    everywhere().flat_map(|(_, facts)| report(&facts).findings)
}

/// Panics if the script names a program that would change this machine, because a test may run an unexpected command.
fn run_in_shell(script: &str) -> std::process::Output {
    assert!(
        !["ip ", "sysctl", "iptables", "nft ", "ethtool", "modprobe", "kubectl"]
            .iter()
            .any(|program| script.contains(program)),
        "{script}"
    );
    std::process::Command::new("sh").arg("-ec").arg(script).output().unwrap()
}

/// True if a reboot undoes the command's change.
fn is_fleeting(command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    let changes = |pair: &[&str]| {
        let verbs = ["add", "del", "delete", "set", "replace", "change", "append"];
        ["link", "route", "addr", "address", "neigh", "rule"].contains(&pair[0])
            && verbs.contains(&pair[1])
    };
    let ip = words.contains(&"ip") && words.windows(2).any(changes);
    let firewall = words.first().is_some_and(|word| word.ends_with("tables"))
        && words.iter().any(|word| ["-I", "-A", "-D"].contains(word));
    let nft = words.first() == Some(&"nft")
        && words.get(1).is_some_and(|verb| ["insert", "add", "delete"].contains(verb));
    ip || firewall
        || nft
        || command.starts_with("sysctl -w")
        || command.starts_with("modprobe ")
        || command.starts_with("ethtool -K")
}

/// True if the line makes a change survive a reboot, or notes that a reboot undoes it.
fn is_lasting(line: &str) -> bool {
    line.starts_with("# ")
        || ["> /etc/", "/etc/default/", "/etc/nftables.conf", "--permanent"]
            .iter()
            .any(|part| line.contains(part))
}

#[test]
fn volatile_command_is_followed_by_a_lasting_one() {
    for finding in everything() {
        let commands = &finding.remedy.commands;
        for (number, command) in
            commands.iter().enumerate().filter(|(_, command)| is_fleeting(command))
        {
            assert!(
                commands[number + 1..].iter().any(|line| is_lasting(line)),
                "{}: nothing outlives a reboot after {command}",
                finding.check
            );
        }
    }
}

#[test]
fn no_command_is_known_to_harm() {
    for finding in everything() {
        for command in &finding.remedy.commands {
            let has = |part: &str| command.contains(part);
            let deletes = has("machine-id")
                || has("delete node ")
                || has("--force")
                || has("release --yes")
                || has(" -F ")
                || has("flush");
            let accepts = has("-j ACCEPT") || has(" accept") || has("ufw allow");
            let narrowed = has("from ")
                || has("-s ")
                || has("-d 10.244.0.0/16")
                || has("addr ")
                || has("source address=")
                || has("--add-source=");
            let opens = accepts && !narrowed && !has("tcpdump ") || has("--add-port");
            let frees = has(" rm ") && finding.check != "ipam-full";
            let shrinks = has("ip link set eth0 mtu");
            assert!(!(deletes || opens || frees || shrinks), "{}: {command}", finding.check);
            // Only signs of NAT prove that an interface is the wrong one.
            let marked = finding.evidence.iter().any(|seen| seen.from == "ip address, ip route");
            assert!(
                marked || !(has("FLANNELD_IFACE") || has("--iface=")),
                "{}: {command}",
                finding.check
            );
        }
    }
}

/// The log joins the lines of a remedy with semicolons.
#[test]
fn note_is_a_comment_after_its_commands() {
    let mut notes = 0;
    for finding in everything() {
        let mut lines = finding.remedy.commands.iter();
        if let Some(first) = lines.position(|line| line.starts_with('#')) {
            notes += 1;
            let is_note = |line: &String| line.starts_with("# ") && !line.contains('\n');
            let all = &finding.remedy.commands[first..];
            assert!(first > 0 && all.iter().all(is_note), "{finding:?}");
        }
    }
    assert!(notes > 4, "{notes}");
}

/// The peers do not respond on the chosen interface, and the store is behind another one.
fn silent_with_store_elsewhere() -> Facts {
    let mut facts = healthy();
    facts.kubernetes = Fact::Absent;
    inside(&mut facts.host.lookups)[0].by =
        Ok(Route { index: 5, source: Some("198.51.100.1".parse().unwrap()), ..Route::default() });
    all(&mut facts, &State::CutOff, false);
    facts
}

#[test]
fn silence_without_other_signs_does_not_change_the_interface() {
    let mut facts = silent_with_store_elsewhere();
    for named in [false, true] {
        facts.daemon.choice = Fact::Known(Choice { flag: None, named, ..named_by("--iface=eth0") });
        let finding = only(&facts, "wrong-interface");
        assert_eq!(
            (finding.severity, finding.remedy.commands.as_slice()),
            (Severity::Risk, &[][..]),
            "{finding:?}"
        );
        // A risk explains no other finding, because the peers may be off.
        assert_eq!(causes(&facts), ["isolated", "wrong-interface"]);
    }
    // If the store is reached through the chosen interface, nothing suggests another interface.
    let mut near = facts.clone();
    near.host.lookups = healthy().host.lookups;
    assert_eq!(causes(&near), ["isolated"]);
    // An interface with signs of NAT is replaced, even if an option names it.
    facts.kubernetes = healthy().kubernetes;
    behind_nat(&mut facts);
    let finding = only(&facts, "wrong-interface");
    assert_eq!((finding.severity, finding.remedy.commands.len()), (Severity::Broken, 2));
}

#[test]
fn published_address_changes_the_interface_only_behind_nat() {
    let mut facts = silent_with_store_elsewhere();
    facts.leases.refused = Fact::Known(vec![RefusedLease {
        lease: "10.244.9.0/24".to_owned(),
        reason: "our-address".to_owned(),
        text: "10.244.9.0/24 publishes 192.0.2.1".to_owned(),
        address: Some("192.0.2.1".parse().unwrap()),
    }]);
    for check in ["wrong-interface", "duplicate-address"] {
        assert_eq!(commands_of(&facts, check), [""; 0]);
    }
}

#[test]
fn address_of_another_node_on_this_host_is_removed_here_and_only_where_it_was_put() {
    for (name, net, is_put) in [
        ("eth0", "192.0.2.2/24", true),
        ("eth1", "192.0.2.2/32", true),
        ("lo", "192.0.2.2/32", true),
        // Perhaps the NAT of a virtual machine: the other node has to choose another interface.
        ("eth1", "192.0.2.2/24", false),
    ] {
        let mut facts = healthy();
        named(&mut facts, name).addresses.push(address(net));
        facts.leases.refused = Fact::Known(vec![RefusedLease {
            lease: "10.244.9.0/24".to_owned(),
            reason: "our-address".to_owned(),
            text: "n9 publishes 192.0.2.2".to_owned(),
            address: Some("192.0.2.2".parse().unwrap()),
        }]);
        let command = format!("ip address del {net} dev {name}");
        let remedy = commands_of(&facts, "duplicate-address");
        assert_eq!(remedy.contains(&command), is_put, "{remedy:?}");
        // kube-proxy would put the address back.
        named(&mut facts, name).name = "kube-ipvs0".to_owned();
        let remedy = commands_of(&facts, "duplicate-address");
        assert!(remedy.iter().all(|line| line.starts_with('#')), "{remedy:?}");
        // A value that no node can have is nobody's address.
        inside(&mut facts.leases.refused)[0].reason = "no-host-address".to_owned();
        assert_eq!(causes(&facts), ["lease-refused"]);
    }
}

#[test]
fn wide_network_of_a_company_holds_the_network_of_pods() {
    let mut facts = healthy();
    named(&mut facts, "eth1").addresses = vec![address("10.9.9.9/8")];
    assert_eq!(causes(&facts), [""; 0]);
}

fn with_mtu(carries: &[Option<u32>]) -> Facts {
    let mut facts = healthy();
    let paths = carries.iter().zip(2_u8..).map(|(carries, number)| {
        let mut path = path(
            &format!("node-{number}"),
            &format!("10.244.{number}.0/24"),
            &format!("192.0.2.{number}"),
        );
        if carries.is_some() {
            (path.verdict.state, path.carries) = (State::SmallMtu, *carries);
        }
        path
    });
    inside(&mut facts.mesh).paths = paths.collect();
    facts
}

#[test]
fn small_mtu_of_all_peers_is_configured() {
    let mut facts = with_mtu(&[Some(1350), Some(1360)]);
    let is_set = |facts: &Facts| commands_of(facts, "mtu").concat().contains(".Backend.MTU = 1400");
    assert!(is_set(&facts));
    // A peer that does not respond proves nothing about MTUs.
    paths(&mut facts)[1].verdict.state = State::CutOff;
    assert!(is_set(&facts));
    facts.store.access = Access::Directory("/srv/leases".into());
    inside(&mut facts.network).backend = backends::profile("host-gw");
    assert_eq!(commands_of(&facts, "mtu"), [""; 0], "a backend without the key");
}

/// It writes nothing if the network configuration is unreadable.
#[test]
fn mtu_command_changes_only_the_mtu() {
    let folder = tempfile::tempdir().unwrap();
    let mut facts = with_mtu(&[Some(1350)]);
    facts.store.access = Access::Directory(folder.path().to_owned());
    let note = commands_of(&facts, "mtu")[1].clone();
    let command = note.split_once("on one node: ").unwrap().1.to_owned();
    assert!(command.contains(&folder.path().display().to_string()), "{command}");
    let run = || run_in_shell(&command);
    assert!(
        !run().status.success() && !folder.path().join("config").exists(),
        "there is no configuration"
    );
    let config = folder.path().join("config");
    for nothing in ["", "{"] {
        std::fs::write(&config, nothing).unwrap();
        run();
        assert_eq!(std::fs::read_to_string(&config).unwrap(), nothing);
    }
    std::fs::write(
        &config,
        r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 7}}"#,
    )
    .unwrap();
    assert!(run().status.success());
    let text = std::fs::read_to_string(&config).unwrap();
    let now: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        now,
        serde_json::json!({ "Network": "10.244.0.0/16", "Backend": { "Type": "vxlan", "VNI": 7, "MTU": 1400 } })
    );
}

#[test]
fn addresses_stay_while_bridge_pods_may_use_them() {
    let mut facts = spoiled("ipam-full");
    // 253 addresses are kept, all of them "gone". The three pods on the bridge must have three of them, which is a contradiction.
    for (running, commands) in [(0, 0), (3, 1)] {
        for (number, kept) in inside(&mut facts.pods.ipam)[0].kept.iter_mut().enumerate() {
            kept.gone = Some(number >= running);
        }
        assert_eq!(commands_of(&facts, "ipam-full").len(), commands);
    }
}

/// It searches the folders of all container runtimes, and frees no address if one of them is missing.
#[test]
fn address_is_freed_if_no_runtime_has_its_container() {
    let root = tempfile::tempdir().unwrap();
    let [kept, first, second] = ["kept", "first", "second"].map(|name| root.path().join(name));
    for folder in [&kept, &first.join("a"), &second.join("b")] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let put = || {
        for (address, container) in
            [("10.244.1.2", "a"), ("10.244.1.3", "b"), ("10.244.1.4", "c"), ("10.244.1.5", "")]
        {
            std::fs::write(kept.join(address), format!("{container}\r\neth0")).unwrap();
        }
        assert!(
            run_in_shell(&format!("touch -d '1 hour ago' {}/*", kept.display())).status.success()
        );
    };
    let mut facts = spoiled("ipam-full");
    let ipam = &mut inside(&mut facts.pods.ipam)[0];
    (ipam.folder, ipam.running) = (kept.clone(), vec![first.clone(), second.clone()]);
    let command = commands_of(&facts, "ipam-full")[0].clone();
    let run = || {
        run_in_shell(&command);
        let mut names: Vec<String> = std::fs::read_dir(&kept)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    put();
    assert_eq!(run(), ["10.244.1.2", "10.244.1.3", "10.244.1.5"]);
    put();
    std::fs::remove_dir_all(&second).unwrap();
    assert_eq!(run().len(), 4);
}

#[test]
fn docker_is_restarted_only_for_an_address_of_flannel() {
    let mut facts = healthy();
    named(&mut facts, "docker0").addresses = vec![address("10.244.9.1/24")];
    // An operator chose this address.
    assert_eq!(causes(&facts), ["network-overlap"]);
    assert!(commands_of(&facts, "network-overlap").is_empty());
    facts.pods.docker = Fact::Known("10.244.9.1/24".parse().unwrap());
    assert_eq!(causes(&facts), ["stale-bridge"]);
    assert_eq!(commands_of(&facts, "stale-bridge"), ["systemctl restart docker"]);
}

#[test]
fn multipath_route_is_shown_and_not_rewritten() {
    let mut facts = healthy();
    inside(&mut facts.host.routes)[1] = Route {
        protocol: 186,
        metric: 20,
        net: "10.244.2.0/24".parse().unwrap(),
        ..Route::default()
    };
    assert_eq!(commands_of(&facts, "foreign-route"), ["ip route show 10.244.2.0/24"]);
    inside(&mut facts.host.routes)[1] = Route {
        via: Some("fe80::1".parse().unwrap()),
        index: 2,
        protocol: 186,
        metric: 20,
        net: "10.244.2.0/24".parse().unwrap(),
        ..Route::default()
    };
    let commands = commands_of(&facts, "foreign-route");
    assert!(
        commands[0].contains(" via inet6 fe80::1 dev eth0 onlink metric 4096 && "),
        "{commands:?}"
    );
}

#[test]
fn etcdctl_gets_the_options_of_the_daemon_without_password() {
    let mut facts = healthy();
    facts.store.access = Access::Etcd(Etcd {
        endpoints: vec![
            "https://192.0.2.250:2379".to_owned(),
            "https://192.0.2.251:2379".to_owned(),
        ],
        prefix: "/n".to_owned(),
        ca: Some("/etc/etcd/my ca.pem".into()),
        client: Some(("/etc/c.pem".into(), "/etc/k.pem".into())),
        user: Some("flannel".to_owned()),
    });
    let prefix = "etcdctl --endpoints=https://192.0.2.250:2379,https://192.0.2.251:2379 '--cacert=/etc/etcd/my ca.pem' --cert=/etc/c.pem --key=/etc/k.pem --user=flannel ";
    for cause in [StoreCause::NoSpace, StoreCause::NoQuorum] {
        facts.store.trouble = Fact::Known(of_store(cause, "x"));
        let commands = commands_of(&facts, "store-unreachable");
        let times = |text: &str| commands.concat().matches(text).count();
        assert_eq!(times("etcdctl "), times(prefix), "{commands:?}");
        // In a pipeline the operator would not see etcdctl's own prompt for the password.
        let is_asked = commands[0] == "read -rs ETCDCTL_PASSWORD; export ETCDCTL_PASSWORD";
        assert_eq!(is_asked, cause == StoreCause::NoSpace, "{commands:?}");
    }
}

/// The package's unit does not change. The new drop-in takes precedence over it and over earlier drop-ins.
#[test]
fn argument_of_the_unit_is_replaced_in_a_drop_in() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let unit = "[Unit]\nDescription=x\n[Service]\nExecStart=/bin/flanneld --ip-masq \\\n  --iface=eth0 \\\n  --v=1\nRestart=always\n[Install]\nWantedBy=x\n";
    std::fs::create_dir_all(path("d")).unwrap();
    std::fs::write(path("unit"), unit).unwrap();
    std::fs::write(
        path("d/override.conf"),
        "[Service]\nExecStart=\nExecStart=/bin/flanneld --iface=eth0 --v=2\nNice=1\n",
    )
    .unwrap();
    let mut facts = healthy();
    behind_nat(&mut facts);
    all(&mut facts, &State::CutOff, false);
    facts.daemon.choice = Fact::Known(named_by("--iface=eth0"));
    facts.daemon.arguments = Argument::find(["--iface=eth0".to_owned()], is_edited);
    let commands = commands_of(&facts, "wrong-interface");
    assert_eq!(commands[1..], ["systemctl daemon-reload", "systemctl restart flanneld"]);
    let place = "/etc/systemd/system/flanneld.service.d";
    assert!(commands[0].contains(place) && !commands[0].contains("sed -E -i"), "{}", commands[0]);
    let systemctl = format!(
        "systemctl() {{ for file in unit d/*; do printf '%s\\n' \"{}/$file\"; done; }}; cd {}",
        root.path().display(),
        root.path().display()
    );
    // The second run reads the drop-in that the first one wrote.
    for _ in 0..2 {
        let script = format!(
            "{systemctl}\n{}",
            commands[0].replace(place, &path("d").display().to_string())
        );
        let output = run_in_shell(&script);
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(std::fs::read_to_string(path("unit")).unwrap(), unit);
    let text = std::fs::read_to_string(path("d/zz-flannel.conf")).unwrap();
    assert!(
        text.starts_with("[Service]\nExecStart=\n")
            && !text.contains("Restart")
            && !text.contains("Nice"),
        "{text}"
    );
    assert!(
        text.ends_with("ExecStart=/bin/flanneld --iface=eth1 --v=2\n") && !text.contains("eth0"),
        "{text}"
    );
}

#[test]
fn commands_and_options_of_the_host_are_not_for_flannels_pod() {
    let mut facts = spoiled("ip-forward");
    for (launch, on) in [(Launch::Systemd, HERE), (in_cluster("kube-flannel"), ON_THE_NODE)] {
        facts.daemon.launch = launch;
        let finding = only(&facts, "ip-forward");
        let advised = finding.why.contains("--set-sysctls");
        assert_eq!((finding.remedy.on.as_str(), advised), (on, on == HERE));
    }
}

#[test]
fn many_foreign_routes_are_one_finding() {
    let mut facts = healthy();
    facts.leases.peers = Fact::Known((100..110).map(|number| peer("node", number)).collect());
    let route = |number| Route {
        via: Some("192.0.2.77".parse().unwrap()),
        index: 2,
        protocol: 186,
        metric: 20,
        net: format!("10.244.{number}.0/24").parse().unwrap(),
        ..Route::default()
    };
    facts.host.routes = Fact::Known((100..110).map(route).collect());
    assert_eq!(only(&facts, "foreign-route").evidence.len(), 3);
}

#[test]
fn bridge_of_an_operator_is_a_candidate_and_dockers_is_not() {
    for (name, joins) in
        [("br-ex", true), ("br-lan", true), ("br-0123456789ab", false), ("docker0", false)]
    {
        let interface = interface(7, name, &["198.51.100.7/24"]);
        assert_eq!(joins_hosts(&interface), joins, "{name}");
    }
}

#[test]
fn configuration_that_cannot_be_written_is_told_before_there_is_one() {
    let mut facts = healthy();
    reason(&mut facts, "cni-conf", Detail::None, "read-only file system");
    let cni = inside(&mut facts.pods.cni);
    cni.files.clear();
    cni.expected = false;
    assert_eq!(causes(&facts), ["cni-config"]);
}

#[test]
fn kubelet_gets_one_address() {
    let command = commands_of(&spoiled("node-internal-ip"), "node-internal-ip").remove(0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flags.env");
    let script = command.replace("/var/lib/kubelet/kubeadm-flags.env", &file.display().to_string());
    for before in ["--a=b", "--node-ip=10.0.2.15 --a=b", "--a=b --node-ip=10.0.2.15"] {
        std::fs::write(&file, format!("KUBELET_KUBEADM_ARGS=\"{before}\"\n")).unwrap();
        assert!(run_in_shell(&script).status.success());
        assert_eq!(
            std::fs::read_to_string(&file).unwrap().trim_end(),
            r#"KUBELET_KUBEADM_ARGS="--a=b --node-ip=198.51.100.1""#
        );
    }
}

#[test]
fn configuration_of_a_network_with_devices_stays() {
    let mut facts = spoiled("foreign-cni");
    assert_eq!(commands_of(&facts, "foreign-cni").len(), 1);
    inside(&mut facts.host.foreign).push(Foreign {
        program: "Calico".to_owned(),
        object: ForeignObject::Device("cali1".to_owned()),
    });
    assert_eq!(commands_of(&facts, "foreign-cni"), [""; 0]);
}
