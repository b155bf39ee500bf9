//! Tests the exact bytes of subnet.env, and the parser with arbitrary contents.

use super::*;
use proptest::prelude::*;
use types::Dual;

fn plain() -> SubnetEnv {
    SubnetEnv {
        networks: Dual::V4("10.5.0.0/16".parse().unwrap()),
        subnets: Dual::V4("10.5.72.0/24".parse().unwrap()),
        mtu: 1450,
        ip_masq: false,
        range_ends: Vec::new(),
    }
}

fn dual() -> SubnetEnv {
    SubnetEnv {
        networks: Dual::Both("10.42.0.0/16".parse().unwrap(), "2001:cafe:42::/56".parse().unwrap()),
        subnets: Dual::Both("10.42.0.0/24".parse().unwrap(), "2001:cafe:42::/64".parse().unwrap()),
        mtu: 1450,
        ip_masq: true,
        range_ends: Vec::new(),
    }
}

#[test]
fn subnet_env_has_the_documented_bytes_and_is_read_back() {
    let v6 = SubnetEnv {
        networks: Dual::V6("fc00::/48".parse().unwrap()),
        subnets: Dual::V6("fc00:0:0:7::/64".parse().unwrap()),
        ..plain()
    };
    for (env, text) in [
        (
            plain(),
            "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n",
        ),
        (
            dual(),
            "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.0.1/24\nFLANNEL_IPV6_NETWORK=2001:cafe:42::/56\nFLANNEL_IPV6_SUBNET=2001:cafe:42::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
        ),
        (
            v6,
            "FLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_IPV6_SUBNET=fc00:0:0:7::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n",
        ),
    ] {
        assert_eq!(env.render(), text);
        let read = parse(text.as_bytes());
        assert_eq!(
            (read.subnet, read.v6_subnet, read.mtu, read.ip_masq),
            (env.subnets.v4().copied(), env.subnets.v6().copied(), Some(1450), Some(env.ip_masq))
        );
        assert!(read.warnings.is_empty());
    }
}

#[test]
fn last_addresses_of_pods_follow_where_there_are_any() {
    let env = SubnetEnv {
        range_ends: vec!["10.42.0.253".parse().unwrap(), "2001:cafe:42::fffe".parse().unwrap()],
        ..dual()
    };
    let text = env.render();
    assert_eq!(
        text.strip_prefix(&dual().render()),
        Some("FLANNEL_RANGE_END=10.42.0.253\nFLANNEL_IPV6_RANGE_END=2001:cafe:42::fffe\n")
    );
    // Readers that do not know these lines ignore them.
    assert_eq!(parse(text.as_bytes()), parse(dual().render().as_bytes()));
}

#[test]
fn file_set_aside_is_read_until_another_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("subnet.env");
    assert_eq!(last_served(&path), Previous::default());
    set_aside(&path).unwrap();
    write(&path, &dual()).unwrap();
    let before = read(&path);
    assert_eq!(last_served(&path), before);
    for _ in 0..2 {
        // The second time there is nothing to set aside, as after a restart.
        set_aside(&path).unwrap();
        assert_eq!((read(&path), last_served(&path)), (Previous::default(), before.clone()));
    }
    write(&path, &plain()).unwrap();
    assert_eq!(last_served(&path), read(&path));
    assert!(!former_path(&path).exists());
}

#[test]
fn dotenv_is_read_in_all_its_forms() {
    let want = Some("10.5.72.0/24".parse().unwrap());
    for line in [
        "FLANNEL_SUBNET=10.5.72.1/24",
        "  FLANNEL_SUBNET = 10.5.72.1/24  ",
        "export FLANNEL_SUBNET=10.5.72.1/24",
        "export\tFLANNEL_SUBNET='10.5.72.1/24' # ours",
        "FLANNEL_SUBNET=\"10.5.72.1/24\"",
        "FLANNEL_SUBNET: 10.5.72.1/24",
        "FLANNEL_SUBNET=10.5.72.1/24 # comment",
        "# comment\nFLANNEL_SUBNET=10.5.72.1/24\r\n",
        "garbage line\nFLANNEL_SUBNET=10.5.72.1/24",
        "FLANNEL_SUBNET=nonsense,10.5.72.1/24",
        "FLANNEL_SUBNET=10.9.9.1/24\nFLANNEL_SUBNET=10.5.72.1/24",
    ] {
        assert_eq!(parse(line.as_bytes()).subnet, want, "{line}");
    }
    for line in [
        "FLANNEL_SUBNET=",
        "FLANNEL_SUBNET",
        "FLANNEL_SUBNET=10.5.72.1",
        "FLANNEL_SUBNET=10.1.0.1/24,10.2.0.1/24",
        "FLANNEL_SUBNET='10.5.72.1/24",
    ] {
        assert_eq!(parse(line.as_bytes()).subnet, None, "{line}");
    }
}

#[test]
fn wrong_family_is_a_warning() {
    let previous = parse(b"FLANNEL_SUBNET=fd00::1/64\nFLANNEL_IPV6_SUBNET=10.5.72.1/24\n");
    assert_eq!((previous.subnet, previous.v6_subnet), (None, None));
    assert_eq!(previous.warnings.len(), 2);
}

proptest! {
    #[test]
    fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), value in "[ -~\\\\\"'#=:éä,/.0-9a-f\n]{0,60}") {
        parse(&bytes);
        for key in ["FLANNEL_SUBNET=", "export FLANNEL_IPV6_SUBNET=\"", "FLANNEL_NETWORK: '"] {
            parse(format!("{key}{value}").as_bytes());
        }
    }

    #[test]
    fn every_subnet_survives(bits: u32, len in 2u8..=30) {
        let net = ipnet::Ipv4Net::new(Ipv4Addr::from_bits(bits), len).unwrap().trunc();
        let env = SubnetEnv { subnets: Dual::V4(net), ..plain() };
        prop_assert_eq!(parse(env.render().as_bytes()).subnet, Some(net));
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn subnet_env_is_replaced_atomically_with_its_mode() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/subnet.env");
    write(&path, &plain()).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), plain().render());
    assert_eq!(mode(&path), 0o644);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    write(&path, &dual()).unwrap();
    assert_eq!((mode(&path), std::fs::read_to_string(&path).unwrap()), (0o600, dual().render()));
    // A link is replaced, and its target stays unchanged.
    let target = folder.path().join("target");
    std::fs::write(&target, "mine").unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    write(&path, &plain()).unwrap();
    assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine");
    // No temporary file is left next to it.
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn temporary_file_of_a_killed_writer_is_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("subnet.env");
    let others = [
        ".subnet.env",
        ".subnet.env.lock",
        ".subnet.env0123456789abcde",
        ".subnet.env0123456789ABCDEF",
        ".other.env0123456789abcdef",
    ];
    for name in others.iter().chain(&[".subnet.env0123456789abcdef"]) {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    std::fs::create_dir(folder.path().join(".subnet.env0123456789abcdee")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join(".subnet.env0123456789abcded"))
        .unwrap();
    clear(&path);
    assert!(!folder.path().join(".subnet.env0123456789abcdef").exists());
    for name in others.iter().chain(&[".subnet.env0123456789abcdee", ".subnet.env0123456789abcded"])
    {
        assert!(folder.path().join(name).symlink_metadata().is_ok(), "{name}");
    }
}

#[test]
fn links_and_pipes_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let (path, secret) = (folder.path().join("subnet.env"), folder.path().join("secret"));
    std::fs::write(&secret, "secret words\n").unwrap();
    std::os::unix::fs::symlink(&secret, &path).unwrap();
    let previous = read(&path);
    assert!(
        matches!(&previous.warnings[..], [warning] if warning.contains("symbolic link")),
        "{:?}",
        previous.warnings
    );
    std::fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    assert!(matches!(&read(&path).warnings[..], [warning] if warning.contains("regular file")));
    // A line that cannot be read is not repeated in the log.
    std::fs::rename(&secret, &path).unwrap();
    assert!(
        matches!(&read(&path).warnings[..], [warning] if !warning.contains("secret words")),
        "{:?}",
        read(&path).warnings
    );
}

#[test]
fn write_failure_names_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = write(&file.join("subnet.env"), &plain()).unwrap_err().to_string();
    assert!(error.contains("creating its directory") && error.contains("--subnet-file"), "{error}");
    // A folder occupies the path of the file.
    let path = folder.path().join("subnet.env");
    std::fs::create_dir(&path).unwrap();
    let error = write(&path, &plain()).unwrap_err().to_string();
    assert!(error.contains("renaming"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "the temporary file is gone");
}
