//! Tests that flanneld converts command lines and environment variables to the right settings.

use super::*;
use packet_engine::features::Features;
use proptest::prelude::*;
use std::path::PathBuf;
use std::time::Duration;
use subnet_lease::kube::annotations::Prefix;
use subnet_lease::kube::{Identity, KubeOptions};

fn value_of(environment: &[(&str, &str)], name: &str) -> Option<OsString> {
    let found = environment.iter().find(|(have, _)| *have == name);
    found.map(|(_, value)| value.into())
}

fn with_in(args: &[&str], environment: &[(&str, &str)]) -> Invocation {
    read(
        args.iter().map(OsString::from),
        &|name| value_of(environment, name),
        &["alloc", "ipip", "vxlan", "wireguard"],
    )
}

/// The line begins with its variables as in a shell.
fn with(line: &str) -> Invocation {
    let (variables, args): (Vec<&str>, Vec<&str>) =
        line.split_whitespace().partition(|word| word.starts_with(char::is_uppercase));
    let variables = variables.iter().filter_map(|word| word.split_once('='));
    with_in(&args, &variables.collect::<Vec<_>>())
}

fn accepted(invocation: Invocation) -> Settings {
    match invocation {
        Invocation::Run(settings) => *settings,
        other => panic!("{other:?}"),
    }
}

fn refused(invocation: Invocation) -> Vec<String> {
    match invocation {
        Invocation::Mistakes(list) => list.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

fn settings(line: &str) -> Settings {
    accepted(with(line))
}

fn mistakes(line: &str) -> Vec<String> {
    refused(with(line))
}

fn etcd(settings: &Settings) -> &Etcd {
    match &settings.store {
        Store::Etcd(etcd) => etcd,
        other => panic!("{other}"),
    }
}

fn endpoints(settings: &Settings) -> Vec<String> {
    etcd(settings).endpoints.iter().map(ToString::to_string).collect()
}

#[test]
fn defaults_are_those_of_go_flannel() {
    let settings = settings("");
    assert_eq!(endpoints(&settings), ["http://127.0.0.1:4001", "http://127.0.0.1:2379"]);
    assert_eq!(etcd(&settings).prefix, "/coreos.com/network");
    assert_eq!(settings.node.subnet_file.to_str(), Some("/run/flannel/subnet.env"));
    assert_eq!(settings.renew_margin, Duration::from_secs(3600));
    assert_eq!(
        (settings.listen.health, settings.rules.options.masquerade, settings.interface.wait),
        (None, false, None)
    );
    assert_eq!(
        (settings.node.audit, settings.node.route_protocol),
        (Some(Duration::from_secs(10)), 241)
    );
    assert!(settings.interface.selectors.is_empty() && settings.warnings.is_empty());
}

#[test]
fn command_line_beats_environment_beats_default() {
    let environment = [
        ("FLANNELD_ETCD_PREFIX", "/env"),
        ("FLANNELD_SUBNET_FILE", ""),
        ("FLANNELD_IFACE", "a,b"),
        ("FLANNELD_VERSION", "true"),
    ];
    assert_eq!(etcd(&accepted(with_in(&["--etcd-prefix=/line"], &environment))).prefix, "/line");
    let from_environment = accepted(with_in(&[], &environment));
    assert_eq!(etcd(&from_environment).prefix, "/env");
    assert_eq!(from_environment.node.subnet_file.to_str(), Some("/run/flannel/subnet.env"));
    assert_eq!(from_environment.interface.selectors, [Selector::Name("a,b".to_owned())]);
    assert_eq!(
        accepted(with_in(&["--iface=eth7"], &environment)).interface.selectors,
        [Selector::Name("eth7".to_owned())]
    );
    assert_eq!(etcd(&settings("-etcd-prefix=/a -etcd-prefix=/b")).prefix, "/b");
}

#[test]
fn required_backends_must_be_known_names() {
    assert_eq!(
        accepted(with_in(&["--require-backend=WireGuard, ipip,"], &[])).node.require_backend,
        ["wireguard", "ipip"]
    );
    assert_eq!(settings("FLANNELD_REQUIRE_BACKEND=vxlan").node.require_backend, ["vxlan"]);
    for any in [settings(""), settings("FLANNELD_REQUIRE_BACKEND=vxlan --require-backend=")] {
        assert!(any.node.require_backend.is_empty());
    }
    let wrong =
        refused(with_in(&["--require-backend=vxlan,wiregard"], &[("FLANNELD_NODE_ID", "a b")]));
    assert!(
        wrong.iter().any(|text| text.contains("--require-backend")
            && text.contains("\"wiregard\" is not a backend; the backends are alloc, ")),
        "{wrong:?}"
    );
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(mistakes("--require-backend=,")[0].contains("names no backend"));
}

#[test]
fn cni_configuration_is_two_paths() {
    let conf = settings(
        "--install-cni-conf=/etc/kube-flannel/cni-conf.json:/etc/cni/net.d/10-flannel.conflist",
    )
    .node
    .cni_conf
    .unwrap();
    assert_eq!(conf.source.to_str(), Some("/etc/kube-flannel/cni-conf.json"));
    assert_eq!(conf.destination.to_str(), Some("/etc/cni/net.d/10-flannel.conflist"));
    assert_eq!(settings("FLANNELD_INSTALL_CNI_CONF=").node.cni_conf, None);
    for text in ["/etc/a", "/etc/a:", ":/etc/a", ":", "/etc/a:/"] {
        let list = mistakes(&format!("--install-cni-conf={text}"));
        assert!(
            list.len() == 1 && list[0].contains("does not contain the paths of two files"),
            "{text}: {list:?}"
        );
    }
}

#[test]
fn mistakes_are_all_reported_at_once() {
    let list = mistakes(
        "FLANNELD_IPTABLES_RESYNC=abc FLANNELD_ROUTE_PROTOCOL=4 FLANNELD_VMODULE=x --healthz-port=abc --nosuch --ip-masq=maybe --subnet-lease-renew-margin=1440 --public-ip=fd00::1 --log-format=xml --encap-peers=maybe",
    );
    for part in [
        "--healthz-port: \"abc\" is not an integer",
        "flag provided but not defined: --nosuch",
        "--ip-masq: \"maybe\" is neither true nor false",
        "--subnet-lease-renew-margin: 1440 is out of range",
        "invalid public IP address: fd00::1",
        "FLANNELD_IPTABLES_RESYNC: \"abc\" is not an integer",
        "FLANNELD_ROUTE_PROTOCOL: 4 is out of range",
        "FLANNELD_VMODULE",
        "xml",
        "--encap-peers: \"maybe\" is not a mode: use off, count or drop",
    ] {
        assert_eq!(
            list.iter().filter(|mistake| mistake.contains(part)).count(),
            1,
            "{part} in {list:#?}"
        );
    }
    assert_eq!(list.len(), 10, "{list:#?}");
}

const NODE: [(&str, &str); 1] = [("NODE_NAME", "n1")];

fn kube_options(args: &[&str], environment: &[(&str, &str)]) -> KubeOptions {
    match accepted(with_in(&[&["--kube-subnet-mgr"], args].concat(), environment)).store {
        Store::Kube(kube) => *kube,
        store => panic!("{store}"),
    }
}

#[test]
fn kubernetes_store_is_read_from_flags_and_environment() {
    let plain = kube_options(&[], &NODE);
    assert_eq!((plain.urls.len(), plain.kubeconfig, plain.clear_condition), (0, None, true));
    assert_eq!(plain.identity, Identity::Node("n1".to_owned()));
    assert_eq!(plain.net_conf, PathBuf::from("/etc/kube-flannel/net-conf.json"));
    assert_eq!(plain.prefix, Prefix::parse("flannel.alpha.coreos.com").unwrap());
    let given = kube_options(
        &[
            "-kube-api-url=https://a:6443, http://b/",
            "--kubeconfig-file=/k",
            "--kube-annotation-prefix=a.b/c",
            "--set-node-network-unavailable=false",
        ],
        &[("POD_NAME", "p"), ("POD_NAMESPACE", "ns")],
    );
    assert_eq!(given.urls, ["https://a:6443/", "http://b/"]);
    assert_eq!((given.kubeconfig, given.clear_condition), (Some(PathBuf::from("/k")), false));
    assert_eq!(given.identity, Identity::Pod { namespace: "ns".to_owned(), name: "p".to_owned() });
    assert_eq!(given.prefix.key("public-ip"), "a.b/c-public-ip");
    assert!(matches!(settings("FLANNELD_KUBE_SUBNET_MGR=T NODE_NAME=n1").store, Store::Kube(_)));
}

#[test]
fn iface_auto_is_ignored_with_kubernetes() {
    let auto = settings("NODE_NAME=n1 --kube-subnet-mgr --iface=auto");
    assert!(
        auto.interface.selectors.is_empty()
            && auto.warnings.iter().any(|warning| warning.to_string().contains("--iface=auto")),
        "{:?}",
        auto.warnings
    );
}

#[test]
fn kubernetes_mistakes_are_reported() {
    for (line, part) in [
        ("--kube-subnet-mgr", "env variables POD_NAME and POD_NAMESPACE must be set"),
        ("POD_NAME=p --kube-subnet-mgr", "POD_NAMESPACE"),
        ("NODE_NAME=../n1?x --kube-subnet-mgr", "is not a Kubernetes name"),
        ("NODE_NAME=n1\u{1b} --kube-subnet-mgr", "is not a Kubernetes name"),
        (
            "NODE_NAME=n1 --kube-subnet-mgr --kube-annotation-prefix=org",
            "prefix must be in a format",
        ),
        ("NODE_NAME=n1 --kube-subnet-mgr --kube-api-url=10.0.0.1:6443", "\"10.0.0.1:6443\" is not"),
        ("NODE_NAME=n1 --kube-subnet-mgr --subnet-dir=/l", "exclude each other"),
    ] {
        let list = mistakes(line);
        assert!(list.len() == 1 && list[0].contains(part), "{list:?}");
    }
}

#[test]
fn invalid_api_server_address_is_named() {
    let read = |urls: &str| {
        with_in(&["--kube-subnet-mgr", &format!("--kube-api-url={urls}")], &[("NODE_NAME", "n1")])
    };
    for good in [
        "https://10.0.0.1:6443",
        "https://[fd00::1]:6443",
        "HTTPS://api",
        "https://api.example.org:443/prefix/",
        "http://127.0.0.1:8001",
    ] {
        assert!(
            matches!(read(&format!("https://10.0.0.1:6443,{good}")), Invocation::Run(_)),
            "{good}"
        );
    }
    for (bad, why) in [
        ("https://fd00::1:6443", "brackets"),
        ("https://[fd00::zz]:6443", "brackets"),
        ("https://[fd00::1:6443", "brackets"),
        ("https://10.0.0.1:66443", "port"),
        ("https://10.0.0.1:port", "port"),
        ("https://:6443", "host"),
        ("https:///", "host"),
        ("https://a b", "host"),
        ("ftp://10.0.0.1", "https://"),
        ("10.0.0.1:6443", "https://"),
        ("https://a:6443#x", "query"),
    ] {
        let Invocation::Mistakes(list) = read(&format!("https://10.0.0.1:6443,{bad}")) else {
            panic!("{bad} is accepted")
        };
        let list: Vec<String> = list.iter().map(ToString::to_string).collect();
        let named = format!("--kube-api-url: {bad:?} is not the address of an API server: ");
        assert!(
            list.len() == 1 && list[0].starts_with(&named) && list[0].contains(why),
            "{bad}: {list:?}"
        );
    }
    // An error never quotes a password.
    for secret in [
        "https://user:s3cret@a",
        "https://user:s3cret,x@a",
        "https://10.0.0.1:6443?token=s3cret",
        "user:s3cret@10.0.0.1",
    ] {
        let Invocation::Mistakes(list) = read(secret) else { panic!("{secret} is accepted") };
        let list: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert!(
            list[0].starts_with("--kube-api-url: ") && !list.concat().contains("s3cret"),
            "{list:?}"
        );
    }
}

#[test]
fn invalid_event_queue_depth_ends_the_start_as_in_go() {
    let node = ("NODE_NAME", "n1");
    for depth in ["5000", "0", "-1", "+7", ""] {
        assert!(
            matches!(
                with(&format!("NODE_NAME=n1 EVENT_QUEUE_DEPTH={depth} --kube-subnet-mgr")),
                Invocation::Run(_)
            ),
            "{depth}"
        );
    }
    for depth in ["many", "0x10", "5000 ", "1e3"] {
        let list = refused(with_in(&["--kube-subnet-mgr"], &[node, ("EVENT_QUEUE_DEPTH", depth)]));
        assert!(
            list.len() == 1
                && list[0].starts_with(&format!("env EVENT_QUEUE_DEPTH={depth} format error: ")),
            "{list:?}"
        );
    }
    assert!(matches!(with("EVENT_QUEUE_DEPTH=many"), Invocation::Run(_)), "of no use with etcd");
}

#[test]
fn switches_take_all_truth_values_of_go() {
    let on = settings("-ip-blackhole-route=1").rules.blackhole;
    let off = settings(
        "--ip-masq=false --kube-subnet-mgr=0 --ip-blackhole-route=f --iptables-forward-rules=false --kube-api-url=https://x --kube-annotation-prefix=y --kubeconfig-file=/k --net-config-path=/n --set-node-network-unavailable=false --iptables-resync=0x5 --masquerade-inbound=false --non-masquerade-cidr=10.0.0.0/8 --ip-masq-fully-random-disable --vmodule=a=1,b/*=2 --log_backtrace_at=main.go:12 -v=10",
    );
    assert!(on && !off.rules.blackhole);
}

#[test]
fn tls_options_apply_to_https_endpoints() {
    let tls = ["--etcd-certfile=/c", "--etcd-keyfile=/k"];
    let both = accepted(with_in(
        &[&["--etcd-endpoints= a:1 ,, https://b:2 , unix:/s ,"][..], &tls].concat(),
        &[],
    ));
    assert_eq!(endpoints(&both), ["https://a:1", "https://b:2", "unix:/s"]);
    assert!(etcd(&both).tls.as_ref().is_some_and(|tls| tls.client.is_some() && tls.ca.is_none()));
    let ca = settings("--etcd-endpoints=https://b:2 --etcd-cafile=/ca");
    assert!(etcd(&ca).tls.as_ref().is_some_and(|tls| tls.ca.is_some()) && ca.warnings.is_empty());
    let plain = settings("--etcd-endpoints=http://b:2 --etcd-cafile=/ca");
    assert!(
        etcd(&plain).tls.is_none() && plain.warnings[0].to_string().contains("http://b:2"),
        "{:?}",
        plain.warnings
    );
    assert!(mistakes("--etcd-certfile=/c")[0].contains("--etcd-keyfile"));
    assert!(mistakes("--etcd-keyfile=/c")[0].contains("--etcd-certfile"));
    assert!(mistakes("--etcd-endpoints=,")[0].contains("no endpoint"));
    assert_eq!(mistakes("--etcd-endpoints=ftp://a,fd00::1:1").len(), 2);
}

#[test]
fn etcd_password_is_never_printed() {
    let settings = settings("FLANNELD_ETCD_PASSWORD=hunter2= --etcd-username=u");
    assert_eq!(etcd(&settings).user.as_ref().map(|(_, secret)| secret.reveal()), Some("hunter2="));
    assert!(!format!("{settings:?}").contains("hunter2"));
    for list in [mistakes("--etcd-password=hunter2"), mistakes("--etcd-username=u")] {
        assert!(list.len() == 1 && !list[0].contains("hunter2"), "{list:?}");
    }
}

#[test]
fn secret_of_a_mistyped_flag_is_never_repeated() {
    let texts = [
        "http://user:s3cret@a:1",
        "https://user:s3cret@a:1,http://b:2",
        "user:s3cret@a:1",
        "http://:s3cret@a:1",
        "http://s3cret@a:1",
        "http://user:s3c,ret@a:1",
        "http://user:s3c/ret@a:1",
        "http://user:s3c@ret@a:1",
        "http://user:s3cret%40a:1",
        "http://user%3As3cret%40a:1",
        "ftp://user:s3cret@a:1",
        "http://user:s3cret@",
    ];
    for text in texts {
        let environment = [("FLANNELD_ETCD_ENDPOINTS", text)];
        for (list, from) in [
            (mistakes(&format!("--etcd-endpoints={text}")), "--etcd-endpoints"),
            (refused(with_in(&[], &environment)), "FLANNELD_ETCD_ENDPOINTS"),
            (
                accepted(with_in(&["--etcd-endpoints=http://a:1", text], &[]))
                    .warnings
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
                "ignores the command line",
            ),
        ] {
            let printed = list.join(" ");
            assert!(printed.contains(from), "{printed}");
            assert!(
                !["s3c", "ret@", "ret%40"].iter().any(|piece| printed.contains(piece)),
                "{text}: {printed}"
            );
        }
    }
    for args in [
        &["---etcd-password=s3cret"][..],
        &["--etcd-passwords3cret"],
        &["--etcd-password3=s3cret"],
        &["--=s3cret"],
        &["---etcd-passwords3cret"],
    ] {
        let printed = refused(with_in(args, &[])).join(" ");
        assert!(!printed.contains("s3cret"), "{printed}");
    }
    let stray = mistakes("--etcd-username=u --etcd-password= s3cret").join(" ");
    assert!(
        stray.contains("flags end at the first argument") && !stray.contains("s3cret"),
        "{stray}"
    );
    // The `@` in a socket's path does not separate a user.
    assert_eq!(
        endpoints(&settings("--etcd-endpoints=unix:/run/etcd@1.sock,http://a:1")),
        ["unix:/run/etcd@1.sock", "http://a:1"]
    );
}

#[test]
fn store_flags_without_others_are_read_as_in_the_settings() {
    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        store: StoreFlags,
    }
    let alone = |args: &[&str], environment: &[(&str, &str)]| {
        let command = adapt_flags(Alone::command());
        let command = apply_variables(command, &|name| value_of(environment, name));
        let matches = command.get_matches_from(["program"].iter().chain(args));
        Alone::from_arg_matches(&matches).unwrap().store.read()
    };
    let environment = [
        ("FLANNELD_ETCD_PREFIX", "/env"),
        ("FLANNELD_SUBNET_DIR", ""),
        ("FLANNELD_HEALTHZ_PORT", "no number"),
    ];
    let (Store::Etcd(etcd), _) =
        alone(&["--subnet-dir=", "--etcd-endpoints=a:1"], &environment).unwrap()
    else {
        panic!("an empty directory is none")
    };
    assert_eq!((etcd.prefix.as_str(), etcd.endpoints.len()), ("/env", 1));
    assert!(matches!(alone(&["--subnet-dir=/x"], &[]), Ok((Store::Dir(_), _))));
    for args in [
        &["--etcd-prefix="][..],
        &["--subnet-dir=/x", "--etcd-prefix=/y"],
        &["--etcd-endpoints=http://u:p@a"],
        &["--etcd-username=u"],
    ] {
        let alone: Vec<String> =
            alone(args, &[]).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(alone, refused(with_in(args, &[])), "{args:?}");
    }
}

#[test]
fn directory_excludes_etcd() {
    let dir = settings("--subnet-dir=/shared");
    assert!(matches!(dir.store, Store::Dir(_)) && dir.store.host().is_none());
    let list = mistakes("FLANNELD_ETCD_USERNAME=u --subnet-dir=/shared --etcd-prefix=/x");
    assert_eq!(list.len(), 2, "{list:?}");
    assert!(list[1].contains("FLANNELD_ETCD_USERNAME"));
}

#[test]
fn selectors_keep_the_order_of_trying() {
    let args = [
        "--iface-can-reach=10.0.0.9",
        "--iface-regex=^10\\.",
        "--iface-cidr=10.1.2.3/16",
        "--iface=eth1",
        "--iface=10.0.0.1",
        "--iface=fd00::1",
        "--iface=auto",
        "--iface=",
        "--iface-regex=",
    ];
    let texts: Vec<String> =
        accepted(with_in(&args, &[])).interface.selectors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "--iface=eth1",
            "--iface=10.0.0.1",
            "--iface=fd00::1",
            "--iface=auto",
            "--iface= (empty: the interface of the default route)",
            "--iface-cidr=10.1.0.0/16",
            "--iface-regex=^10\\.",
            "--iface-regex= (empty: the interface of the default route)",
            "--iface-can-reach=10.0.0.9",
        ]
    );
    assert!(mistakes("--iface-regex=(")[0].contains("could not compile the IP address regex '('"));
    assert!(mistakes("--iface-cidr=10.0.0.1")[0].contains("is not a network"));
    assert!(mistakes("--iface-can-reach=host")[0].contains("not an IP address"));
}

#[test]
fn listen_addresses_are_read_from_ip_and_port() {
    let status = Some("127.0.0.1:8474");
    for (line, health, status) in [
        ("", None, status),
        ("--healthz-port=8471", Some("0.0.0.0:8471"), status),
        ("--healthz-port=8471 --healthz-ip=::1", Some("[::1]:8471"), status),
        ("--healthz-port=8471 --healthz-ip=[::1]", Some("[::1]:8471"), status),
        ("--healthz-port=-1 --healthz-ip=nonsense", None, status),
        ("--status-port=0 --status-ip=nonsense", None, None),
        ("--status-ip=192.0.2.1 --status-port=80", None, Some("192.0.2.1:80")),
    ] {
        let have = settings(line).listen;
        let want = [health, status].map(|address| address.map(|text| text.parse().unwrap()));
        assert_eq!([have.health, have.status], want, "{line}");
    }
    for (line, part) in [
        ("--healthz-port=65536", "65535"),
        ("--healthz-port=1 --healthz-ip=nonsense", "nonsense"),
        ("--status-port=65536", "65535"),
        ("--status-ip=nonsense", "nonsense"),
    ] {
        assert!(mistakes(line)[0].contains(part), "{line}");
    }
}

#[test]
fn numbers_out_of_bounds_are_refused() {
    let both = settings(
        "--audit-interval=0 --iface-wait=30 --route-protocol=186 --subnet-lease-renew-margin=1_439",
    );
    assert_eq!((both.node.audit, both.interface.wait), (None, Some(Duration::from_secs(30))));
    assert_eq!(both.warnings.len(), 1, "{:?}", both.warnings);
    for bad in [
        "--audit-interval=-1",
        "--iface-wait=-1",
        "--route-protocol=256",
        "--route-protocol=2",
        "--subnet-lease-renew-margin=0",
    ] {
        assert!(mistakes(bad)[0].contains("out of range"), "{bad}");
    }
    assert_eq!(settings("--node-id=node-7").node.id.as_deref(), Some("node-7"));
    assert_eq!(refused(with_in(&["--node-id=a b"], &[])).len(), 1);
}

#[test]
fn key_files_are_read_from_the_environment() {
    let names = [("WIREGUARD_KEY_FILE", ""), ("WIREGUARD_PSK_FILE", "/psk")];
    for (environment, want) in [(&names[..], [Some(""), Some("/psk")]), (&[], [None, None])] {
        let node = accepted(with_in(&[], environment)).node;
        assert_eq!([node.key_file, node.preshared_file], want.map(|path| path.map(PathBuf::from)));
    }
}

#[test]
fn etcd_prefix_is_cleaned() {
    assert_eq!(etcd(&settings("--etcd-prefix=//a//b/")).prefix, "/a/b");
    assert_eq!(etcd(&settings("--etcd-prefix=/")).prefix, "");
    assert!(mistakes("--etcd-prefix=")[0].contains("not a root for keys"));
}

#[test]
fn help_and_version_take_precedence() {
    assert!(matches!(with("--help --nosuch"), Invocation::Help(_)));
    assert!(matches!(with("-h"), Invocation::Help(_)));
    assert!(matches!(with("FLANNELD_V=abc --version"), Invocation::Version(_)));
    assert!(matches!(with("--version=false"), Invocation::Run(_)));
    assert!(matches!(with("--version --nosuch"), Invocation::Mistakes(_)));
    assert!(matches!(with("FLANNELD_VERSION=true"), Invocation::Run(_)));
}

#[test]
fn arguments_after_the_flags_are_ignored_with_a_warning() {
    let settings = settings("--ip-masq=false rest --nosuch");
    assert!(settings.warnings[0].to_string().contains("\"rest\""), "{:?}", settings.warnings);
}

#[test]
fn flags_have_variables_and_value_names() {
    for command in [command(), manual(), completion()] {
        command.debug_assert();
    }
    for arg in Flags::command().get_arguments() {
        let name = arg.get_long().unwrap();
        let variable = !["version", "help", "help-all"].contains(&name);
        let variable =
            variable.then(|| format!("FLANNELD_{}", name.to_uppercase().replace('-', "_")));
        assert_eq!(
            arg.get_env().map(|name| name.to_string_lossy().into_owned()),
            variable,
            "{name}"
        );
        assert!(
            argv::is_switch(arg) || name.starts_with("help") || !argv::value_name(arg).is_empty(),
            "{name}"
        );
    }
}

#[test]
fn datapath_flags_choose_the_features() {
    for (line, want) in [
        ("", Features::offload()),
        ("--datapath= --datapath-queues=0", Features::offload()),
        ("FLANNELD_DATAPATH=plain --datapath=auto", Features::offload()),
        ("FLANNELD_DATAPATH=plain FLANNELD_DATAPATH_QUEUES=", Features::plain()),
        (
            "FLANNELD_DATAPATH_QUEUES=16 --datapath=mmsg",
            Features { queues: 16, ..Features::mmsg() },
        ),
        ("--datapath-real-time=false", Features { real_time: false, ..Features::offload() }),
    ] {
        assert_eq!(settings(line).features, want, "{line}");
    }
    assert!(mistakes("--datapath=fast")[0].contains("offload, mmsg or plain"));
    for bad in ["17", "-1", "x"] {
        assert!(
            mistakes(&format!("FLANNELD_DATAPATH_QUEUES={bad}"))[0]
                .starts_with("FLANNELD_DATAPATH_QUEUES: "),
            "{bad}"
        );
    }
}

#[test]
fn repeated_flag_is_checked_and_the_last_value_applies() {
    assert_eq!(
        settings("--healthz-port=1 --healthz-port=2").listen.health.map(|address| address.port()),
        Some(2)
    );
    assert!(settings("--ip-masq=false --ip-masq").rules.options.masquerade);
    assert_eq!(mistakes("--healthz-port=abc --healthz-port=2 --healthz-port=x").len(), 2);
    // A variable that the command line overrides is not checked.
    assert!(matches!(with("FLANNELD_HEALTHZ_PORT=abc --healthz-port=1"), Invocation::Run(_)));
}

fn variables() -> Vec<String> {
    let names = Flags::command();
    let names = names.get_arguments().filter_map(Arg::get_env);
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

/// A known or damaged flag, with or without a value, or other text.
fn word() -> impl Strategy<Value = String> {
    let names: Vec<String> =
        Flags::command().get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect();
    let name = prop_oneof![proptest::sample::select(names), "[a-z=-]{0,8}"];
    let flag = (
        prop_oneof![Just("-"), Just("--"), Just("---")],
        name,
        prop_oneof![Just(""), Just("=")],
        value(),
    );
    prop_oneof![8 => flag.prop_map(|(dashes, name, equals, value)| if equals.is_empty() { format!("{dashes}{name}") } else { format!("{dashes}{name}={value}") }), 1 => value(), 1 => any::<String>()]
}

fn value() -> impl Strategy<Value = String> {
    let known = [
        "",
        "true",
        "0",
        "-3",
        "0x10",
        "1_000",
        "10.0.0.1",
        "fd00::/48",
        "auto",
        "json",
        "drop",
        "mmsg",
        "/a",
        "http://a:1,b",
        "http://u:p@a",
        "a=b",
        "--",
        "-v",
    ];
    prop_oneof![
        proptest::sample::select(known.to_vec()).prop_map(str::to_owned),
        any::<String>().prop_map(|text| text.replace('\0', ""))
    ]
}

proptest! {

    /// No command line causes a panic, and clap accepts every command line that flanneld's own parser accepts.
    #[test]
    fn any_command_line_is_read_without_panic(args in proptest::collection::vec(word(), 0..8), variables in proptest::collection::btree_map(proptest::sample::select(variables()), value(), 0..4)) {
        let environment: Vec<(&str, &str)> = variables.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        if let Invocation::Mistakes(list) = with_in(&args, &environment) {
            prop_assert!(!list.is_empty());
            prop_assert!(!list.iter().any(|mistake| mistake.code == "command-line"), "{list:?}");
        }
    }

    /// A flag has the same effect with one dash or two, and with its value after `=` or as the next argument.
    #[test]
    fn flag_has_four_spellings(at in 0..60_usize, value in value()) {
        let flags: Vec<Arg> = Flags::command().get_arguments().cloned().collect();
        let flag = &flags[at % flags.len()];
        let name = flag.get_long().unwrap();
        let outcome = |args: &[&str]| format!("{:?}", with_in(args, &[]));
        let want = outcome(&[&format!("--{name}={value}")]);
        prop_assert_eq!(&outcome(&[&format!("-{name}={value}")]), &want);
        if !argv::is_switch(flag) {
            prop_assert_eq!(&outcome(&[&format!("--{name}"), &value]), &want);
            prop_assert_eq!(&outcome(&[&format!("-{name}"), &value]), &want);
        }
    }
}
