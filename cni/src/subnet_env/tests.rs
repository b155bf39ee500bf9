//! The grammar of subnet.env, and the errors for files that the plugin refuses.

use super::*;
use proptest::prelude::*;

const GOOD: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

fn parsed(text: &str) -> Result<SubnetEnv, CniError> {
    parse(Path::new("FILE"), text.as_bytes())
}

#[test]
fn grammar_is_that_of_go_flannels_plugin() {
    let env = parsed(GOOD).unwrap();
    assert_eq!(
        (env.networks[0].to_string(), env.subnets[0].to_string(), env.mtu, env.ip_masq),
        ("10.244.0.0/16".into(), "10.244.7.0/24".into(), 1450, true)
    );
    assert_eq!(parsed(&GOOD.replace('\n', "\r\n")).unwrap(), env);
    let env =
        parsed(&format!("{GOOD}FLANNEL_NETWORK=10.1.0.0/16,10.2.0.0/16,10.1.9.9/16\nFLANNEL_IPMASQ=yes\nFLANNEL_IPV6_NETWORK=fd00::/48\n")).unwrap();
    assert_eq!(
        env.networks.iter().map(IpNet::to_string).collect::<Vec<_>>(),
        ["10.1.0.0/16", "10.2.0.0/16", "fd00::/48"]
    );
    assert!(!env.ip_masq);
    for line in [
        "FLANNEL_MTU",
        "FLANNEL_NETWORK",
        "FLANNEL_MTU=4294967296",
        "FLANNEL_MTU=-1",
        "FLANNEL_RANGE_END",
        "FLANNEL_RANGE_END=10.244.7",
        "FLANNEL_NETWORK=10.1.0.0/16,",
        "FLANNEL_SUBNET=10.244.7.1",
    ] {
        let error = parsed(&format!("{GOOD}{line}\n")).unwrap_err().msg;
        let named = line.rsplit(['=', ',']).next().unwrap();
        assert!(error.contains(named), "{line}: {error}");
    }
    let error = parsed("").unwrap_err().msg;
    for key in ["NETWORK", "IPV6_NETWORK", "SUBNET", "IPV6_SUBNET", "MTU", "IPMASQ"] {
        assert!(error.contains(&format!("FLANNEL_{key}")), "{error}");
    }
}

#[test]
fn unusable_file_is_an_error_without_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    std::fs::write(path("long"), "#".repeat(65 * 1024)).unwrap();
    std::fs::write(path("binary"), [0xff, 0xfe, 0, b'\n']).unwrap();
    for (name, words) in [
        ("pipe", "regular file"),
        (".", "regular file"),
        ("long", "64 KiB"),
        ("binary", "is missing"),
    ] {
        let error = load(&path(name), Duration::from_secs(600)).unwrap_err();
        assert!(error.code == INTERNAL && error.msg.contains(words), "{name}: {error:?}");
    }
    assert_eq!(load(&path("none"), Duration::ZERO).unwrap_err().code, TRY_AGAIN_LATER);
    std::fs::write(path("file"), GOOD).unwrap();
    std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
    assert!(load(&path("link"), Duration::ZERO).is_ok(), "an operator's link is followed");
}

proptest! {
    #[test]
    fn parser_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), lines in prop::collection::vec("(FLANNEL_(IPV6_)?(NETWORK|SUBNET|MTU|IPMASQ))?=?[0-9a-f.:/,]{0,12}", 0..8)) {
        let _ = parse(Path::new("FILE"), &bytes);
        let _ = parsed(&lines.join("\n"));
    }
}

/// The keys for which the daemon's reader and the plugin's reader disagree. None if the plugin refuses the
/// file.
fn differences(text: &str) -> Vec<String> {
    let Ok(ours) = parsed(text) else {
        return Vec::new();
    };
    let daemon = run_dir::subnet_env::parse(text.as_bytes());
    let of = |nets: &[IpNet], ipv4: bool| {
        let nets = nets.iter().filter(|net| matches!(net, IpNet::V4(_)) == ipv4);
        nets.map(IpNet::to_string).collect::<Vec<_>>().join(" ")
    };
    let net = |net: Option<IpNet>| net.map(|net| net.to_string());
    let compared = [
        (of(&ours.networks, true), net(daemon.network.map(IpNet::V4))),
        (of(&ours.networks, false), net(daemon.v6_network.map(IpNet::V6))),
        (of(&ours.subnets, true), net(daemon.subnet.map(IpNet::V4))),
        (of(&ours.subnets, false), net(daemon.v6_subnet.map(IpNet::V6))),
        (ours.mtu.to_string(), daemon.mtu.map(|mtu| mtu.to_string())),
        (ours.ip_masq.to_string(), daemon.ip_masq.map(|is| is.to_string())),
    ];
    // The daemon's reader skips a list, a network under the key of the other family, and a flag that is neither true nor false.
    let differs = |(ours, daemon): &(String, Option<String>)| {
        daemon.as_ref().is_some_and(|daemon| ours != daemon)
    };
    let compared = compared.into_iter().filter(differs);
    compared.map(|pair| format!("{pair:?}")).collect()
}

/// The plugin refuses or ignores them, as Go flannel's does.
#[test]
fn daemon_only_forms_are_not_values_here() {
    for (line, refused) in [
        ("FLANNEL_MTU=\"1400\"", true),
        ("FLANNEL_MTU='1400'", true),
        ("FLANNEL_MTU=1400 # ours", true),
        ("FLANNEL_MTU= 1400", true),
        ("export FLANNEL_MTU=1400", false),
        (" FLANNEL_MTU=1400", false),
        ("FLANNEL_MTU : 1400", false),
    ] {
        assert_eq!(run_dir::subnet_env::parse(line.as_bytes()).mtu, Some(1400), "{line}");
        let here = parsed(&format!("{GOOD}{line}\n"));
        assert_eq!(here.is_err(), refused, "{line}: {here:?}");
        assert!(here.map_or(true, |env| env.mtu == 1450), "{line}");
    }
    // For the plugin, only an unquoted `true` is true.
    let quoted = format!("{GOOD}FLANNEL_IPMASQ=\"true\"\n");
    assert_eq!(
        (parsed(&quoted).unwrap().ip_masq, run_dir::subnet_env::parse(quoted.as_bytes()).ip_masq),
        (false, Some(true))
    );
}

proptest! {

    #[test]
    fn daemons_reader_agrees_on_any_plain_file(
        v4 in prop::collection::vec((any::<u32>(), 0u8..=32), 1..5),
        v6 in prop::collection::vec((any::<u128>(), 0u8..=128), 1..4),
        order in prop::collection::vec((0usize..6, any::<prop::sample::Index>(), any::<u32>()), 0..8),
        ends in prop::bool::ANY,
    ) {
        let v4: Vec<String> = v4.iter().map(|(bits, length)| format!("{}/{length}", std::net::Ipv4Addr::from_bits(*bits))).collect();
        let v6: Vec<String> = v6.iter().map(|(bits, length)| format!("{}/{length}", std::net::Ipv6Addr::from_bits(*bits))).collect();
        let list = |nets: &[String], at: &prop::sample::Index, number: u32| match number % 3 {
            0 => nets.join(","),
            _ => at.get(nets).clone(),
        };
        let line = |(key, at, number): &(usize, prop::sample::Index, u32)| match key {
            0 => format!("FLANNEL_NETWORK={}", list(&v4, at, *number)),
            1 => format!("FLANNEL_IPV6_NETWORK={}", list(&v6, at, *number)),
            2 => format!("FLANNEL_SUBNET={}", at.get(&v4)),
            3 => format!("FLANNEL_IPV6_SUBNET={}", at.get(&v6)),
            4 => format!("FLANNEL_MTU={number}"),
            _ => format!("FLANNEL_IPMASQ={}", ["true", "false", "1", ""][*number as usize % 4]),
        };
        let end = if ends { "\r\n" } else { "\n" };
        let text = GOOD.lines().map(str::to_owned).chain(order.iter().map(line)).collect::<Vec<_>>().join(end);
        prop_assert!(parsed(&text).is_ok(), "{text}");
        prop_assert_eq!(differences(&text), Vec::<String>::new(), "{}", text);
    }
}
