//! Tests that `flannelctl cleanup` restores a host to its state before flannel-rs or Go flannel ran, and keeps the objects of other programs.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use lab::{FlanneldOptions, Host, Lab, Launch, Store, binaries, until, until_ok};

/// Script that creates objects of other programs: iptables and nftables rules, routes, addresses, neighbours, a vxlan device, a bridge for pods.
const OTHERS: &str = "
    for program in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
        $program -t nat -N MINE; $program -t nat -A MINE -j RETURN; $program -t nat -A POSTROUTING -o vx0 -j MINE
        $program -t nat -A PREROUTING -i vx0 -j ACCEPT; $program -t nat -A OUTPUT -o vx0 -j ACCEPT; $program -t nat -A INPUT -i vx0 -j ACCEPT
        $program -t raw -A PREROUTING -i vx0 -j ACCEPT; $program -t raw -A OUTPUT -o vx0 -j ACCEPT
        $program -A FORWARD -i vx0 -j ACCEPT; $program -A INPUT -i vx0 -j ACCEPT; $program -A OUTPUT -o vx0 -j ACCEPT
    done
    nft add table inet mine
    nft add chain inet mine c '{ type filter hook forward priority 10; }'
    nft add rule inet mine c ip saddr 10.244.0.0/16 udp dport 8472 counter accept
    ip link add vx0 type vxlan id 42 dstport 4789 local 192.168.56.101 dev enp0s8
    ip address add 172.30.0.1/24 dev vx0; ip link set vx0 up
    bridge fdb append 00:00:00:00:00:00 dev vx0 dst 192.168.56.150
    ip link add flannels type bridge; ip link add cni0 type bridge; ip link set cni0 up
    ip route add default via 192.168.56.254; ip -6 route add default via fd00:56::254
    ip route add 10.9.0.0/16 via 192.168.56.254; ip route add 10.244.200.0/24 via 192.168.56.254 proto static
    ip route add blackhole 10.8.0.0/16; ip route add 10.244.77.7/32 dev cni0
    ip -6 route add fd99::/64 via fd00:56::254; ip -6 route add fd10:244:0:99::/64 via fd00:56::254 proto static
    ip neighbour add 192.168.56.200 lladdr 02:00:00:00:00:08 nud permanent dev enp0s8
    ip rule add from 172.30.0.0/24 lookup 77 priority 7000; ip route add default via 192.168.56.253 table 77
";

/// Range of subnets that nodes may lease, outside the destinations of all non-default routes in [`OTHERS`].
const RANGE: &str = r#""SubnetMin":"10.244.1.0","SubnetMax":"10.244.60.0","IPv6SubnetMin":"fd10:244:0:1::","IPv6SubnetMax":"fd10:244:0:3c::""#;

/// Returns all kernel objects of a host that a program can create, as text.
/// The dump omits FDB entries of IPv6 multicast groups, because the kernel joins multicast groups at any time.
pub(crate) fn dump(host: &Host) -> String {
    // A device gets its link-local address some time after it is up. Its routes follow when duplicate address detection is done.
    let unsettled = "
        ip -6 address show tentative
        for device in cni0 vx0; do
            [ ! -e /sys/class/net/$device ] || ip -6 address show dev $device scope link | grep -q inet6 || echo $device
        done";
    until("no address is tentative", || {
        host.netns().sh(unsettled).unwrap().is_empty()
    })
    .unwrap();
    let script = "
        nft -s list ruleset
        for program in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
            echo \"# $program\"; $program-save | grep -v '^#' | sed 's/ \\[.*//'
        done
        ip -d address show | sed 's/[a-z_]*_timer *[0-9.]*//g; s/ tentative//'; ip -4 route show table all; ip -6 route show table all
        ip neighbour show nud permanent; bridge fdb show | sed /^33:33:/d; ip rule show; ip -6 rule show";
    host.netns().sh(script).unwrap()
}

/// Returns the lines that only one of two dumps contains.
fn differences(before: &str, after: &str) -> String {
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) =
        (before.lines().collect(), after.lines().collect());
    let lost = old.difference(&new).map(|line| format!("- {line}"));
    lost.chain(new.difference(&old).map(|line| format!("+ {line}")))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Runs `flannelctl cleanup` with the host's own `/run`. Returns whether the command succeeded, and its output.
fn cleanup(host: &Host, args: &[&str]) -> (bool, String) {
    static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let log = format!(
        "cleanup-{}",
        CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    );
    let launch = Launch::new(binaries::own("flannelctl").unwrap())
        .arg("cleanup")
        .args(args);
    let mut process = host.spawn(&log, &launch).unwrap();
    let status = process.wait().unwrap();
    (status.success(), process.log())
}

/// Lists the files in the host's `/run/flannel`.
fn run_files(host: &Host) -> Vec<String> {
    let folder = host.subnet_file().unwrap().parent().unwrap().to_owned();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Checks that `flannelctl cleanup` restores the dump `before`, and that `--dry-run` lists the same objects and removes nothing.
/// A second `flannelctl cleanup` must find nothing to remove.
pub(crate) fn comes_back_to(host: &Host, before: &str, args: &[&str]) -> String {
    let there = dump(host);
    let files = run_files(host);
    assert!(
        !differences(before, &there).is_empty(),
        "there is something to remove"
    );
    let (fine, dry) = cleanup(host, &[args, &["--dry-run"]].concat());
    assert!(fine, "{dry}");
    assert_eq!(
        (differences(&there, &dump(host)), run_files(host)),
        (String::new(), files),
        "a dry run changes nothing"
    );
    let (fine, output) = cleanup(host, args);
    assert!(fine, "{output}");
    let lines = |text: &str, verb: &str| -> Vec<String> {
        text.lines()
            .filter_map(|line| line.strip_prefix(verb))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        lines(&dry, "would remove "),
        lines(&output, "removed "),
        "{dry}\n{output}"
    );
    let differences = differences(before, &dump(host));
    assert!(differences.is_empty(), "{differences}\nafter\n{output}");
    assert_eq!(dump(host), before, "not even the order");
    assert_eq!(run_files(host), [""; 0]);
    let (fine, again) = cleanup(host, args);
    assert!(
        fine && again.contains("nothing of flannel is left on this node")
            && !again.contains("removed "),
        "{again}"
    );
    output
}

#[test]
fn cleanup_restores_the_host_after_flanneld() {
    for (config, flags) in [
        (
            r#""Backend":{"Type":"vxlan"}"#,
            &[
                "--ip-masq",
                "--ip-blackhole-route",
                "--iptables-forward-insert",
                "--encap-notrack",
                "--encap-peers=drop",
                "--encap-bar-pods",
            ][..],
        ),
        (
            r#""EnableNFTables":true,"Backend":{"Type":"vxlan","DirectRouting":true}"#,
            &[
                "--ip-masq",
                "--ip-blackhole-route",
                "--encap-notrack",
                "--encap-peers=drop",
                "--encap-bar-pods",
            ],
        ),
        (r#""Backend":{"Type":"host-gw"}"#, &["--ip-masq"]),
        // This backend's blackhole for the whole network stays when daemon and device are gone.
        (
            r#""Backend":{"Type":"wireguard","Implementation":"userspace"}"#,
            &["--ip-masq"],
        ),
    ] {
        let lab = Lab::new("cleanup").unwrap();
        let key = |host: &str| lab.folder("keys").unwrap().join(host).display().to_string();
        let store = Store::dir(&lab.folder("leases").unwrap());
        store.configure(&format!(r#"{{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd10:244::/48",{RANGE},{config}}}"#)).unwrap();
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 2).unwrap();
        let host = &hosts[0];
        host.netns().sh(OTHERS).unwrap();
        let before = dump(host);
        let mut options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .env("WIREGUARD_KEY_FILE", &key("own"));
        for flag in flags {
            options = options.arg(flag);
        }
        let other = hosts[1]
            .flanneld(
                &FlanneldOptions::new(&store)
                    .iface("enp0s8")
                    .env("WIREGUARD_KEY_FILE", &key("other")),
            )
            .unwrap();
        let mut daemon = host.flanneld(&options).unwrap();
        until_ok("a route to the other host", || {
            host.netns()
                .sh("ip route show proto 241 | grep -q 'via\\|dev flannel-wg'")
                .with_context(|| format!("{config}\n{}\n{}", daemon.log(), other.log()))
        })
        .unwrap();

        let (fine, refused) = cleanup(host, &[]);
        assert!(
            !fine
                && refused.contains(&format!("pid {}, flanneld", daemon.pid()))
                && refused.contains("--force"),
            "{refused}"
        );
        assert!(
            daemon.is_ready() && daemon.metric("flannel_kernel_repairs_total").unwrap() == 0.0,
            "nothing was touched"
        );
        let (fine, dry) = cleanup(host, &["--dry-run"]);
        assert!(fine && dry.contains("cleanup refuses"), "{dry}");
        assert!(daemon.terminate().unwrap().success());

        let output = comes_back_to(host, &before, &[]);
        assert!(output.contains("kept device cni0 (bridge)"), "{output}");
        assert!(
            output.contains("removed file /run/flannel/subnet.env"),
            "{output}"
        );
        // flanneld can start again afterwards.
        drop(daemon);
        host.flanneld(&options).unwrap();
    }
}

/// Returns the name and the input of each iptables-restore variant. Derives the input from captured `iptables -S` listings of Go flannel's rules.
fn payloads(listing: &str) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    for section in listing.split("# ").skip(1) {
        let (head, rules) = section.split_once('\n').unwrap();
        let (program, table) = head.trim_end_matches(" -S").split_once(" -t ").unwrap();
        let line = |line: &str| match line.strip_prefix("-N ") {
            Some(chain) => format!(":{chain} - [0:0]\n"),
            None => format!("{line}\n"),
        };
        let rules: String = rules
            .lines()
            .filter(|rule| !rule.starts_with("-P"))
            .map(line)
            .collect();
        out.push((
            format!("{program}-restore"),
            format!("*{table}\n{rules}COMMIT\n"),
        ));
    }
    out
}

#[test]
fn cleanup_restores_the_host_after_go_flannel() {
    for (case, v4, v6) in [
        ("masq-dual", "10.244.90.0", "fd10:244:0:22::"),
        ("nft-dual", "10.244.39.0", "fd10:244:0:12::"),
    ] {
        for backend in ["vxlan", "host-gw"] {
            let lab = Lab::new("cleanup").unwrap();
            let lan = lab.switch("lan").unwrap();
            let hosts = lab.hosts(&lan, 1).unwrap();
            let host = &hosts[0];
            host.netns().sh(OTHERS).unwrap();
            let before = dump(host);

            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../flanneld/tests/golden")
                .join(case);
            let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
            if case == "nft-dual" {
                host.netns()
                    .feed("nft", &["-f", "-"], &read("nft.txt"))
                    .unwrap();
            } else {
                for (program, payload) in payloads(&read("iptables.txt")) {
                    host.netns()
                        .feed(&program, &["--noflush"], &payload)
                        .unwrap();
                }
            }
            let state = if backend == "vxlan" {
                format!(
                    "ip link add flannel.1 mtu 1450 type vxlan id 1 local 192.168.56.101 dev enp0s8 dstport 8472 nolearning
                     ip link add flannel-v6.1 mtu 1430 type vxlan id 1 local fd00:56::101 dev enp0s8 dstport 8472 nolearning
                     ip address add {v4}/32 dev flannel.1; ip address add {v6}/128 dev flannel-v6.1; ip link set flannel.1 up; ip link set flannel-v6.1 up
                     ip route add 10.244.70.0/24 via 10.244.70.0 dev flannel.1 onlink; ip -6 route add fd10:244:0:56::/64 via fd10:244:0:56:: dev flannel-v6.1 onlink
                     ip neighbour add 10.244.70.0 lladdr da:2e:67:37:f5:5b nud permanent dev flannel.1
                     bridge fdb add da:2e:67:37:f5:5b dev flannel.1 dst 192.168.56.102 self permanent
                     ip route add blackhole {v4}/24; ip -6 route add blackhole {v6}/64"
                )
            } else {
                "ip route add 10.244.70.0/24 via 192.168.56.102 dev enp0s8; ip -6 route add fd10:244:0:56::/64 via fd00:56::102 dev enp0s8".to_owned()
            };
            host.netns().sh(&state).unwrap();
            let file = host.subnet_file().unwrap();
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, read("subnet.env")).unwrap();
            comes_back_to(host, &before, &[]);

            // Without subnet.env, cleanup removes unmarked routes only if the operator names the network.
            if backend == "host-gw" {
                host.netns().sh(&state).unwrap();
                let (fine, output) = cleanup(host, &[]);
                assert!(
                    fine && output.contains("name the network with --network")
                        && output.contains("nothing of flannel is left on this node"),
                    "{output}"
                );
                let (fine, output) = cleanup(
                    host,
                    &["--network=10.244.0.0/16", "--network=fd10:244::/48"],
                );
                assert!(fine, "{output}");
                assert_eq!(differences(&before, &dump(host)), "", "{output}");
            }
        }
    }
}

#[test]
fn cleanup_reports_unclear_objects_and_removes_cni_on_request() {
    let lab = Lab::new("doubt").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let host = &hosts[0];
    let notes = host.folder().unwrap().join("notes");
    std::fs::create_dir_all(&notes).unwrap();
    std::fs::write(notes.join("0123abcd"), "{}").unwrap();
    host.netns()
        .sh("ip link add flannel.1 type bridge; ip link add cni0 type bridge; ip link set cni0 up; ip address add 10.244.1.1/24 dev cni0
             ip tuntap add dev flannel0 mode tun; ip link set flannel0 up; ip route add 10.244.0.0/16 dev flannel0
             ip route add 10.244.128.0/17 via 192.168.56.254; ip route add blackhole 10.244.9.0/24")
        .unwrap();
    let file = host.subnet_file().unwrap();
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n").unwrap();
    let folder = format!("--cni-dir={}", notes.display());
    let (fine, output) = cleanup(host, &[&folder]);
    assert!(fine, "{output}");
    for line in [
        "removed device flannel0 (tun)",
        "manually: ip link delete flannel.1",
        "manually: ip route delete 10.244.128.0/17 via 192.168.56.254 dev enp0s8 proto boot",
        "manually: ip route delete blackhole 10.244.9.0/24 proto boot",
        "kept device cni0 (bridge)",
    ] {
        assert!(output.contains(line), "{line}\n{output}");
    }
    assert!(notes.join("0123abcd").exists() && host.netns().link("flannel.1").unwrap().is_some());
    // The printed commands work as pasted.
    for command in output
        .lines()
        .filter_map(|line| line.split_once("manually: "))
        .map(|(_, command)| command)
        .filter(|command| !command.contains("cni0"))
    {
        host.netns().sh(command).unwrap();
    }
    let (fine, output) = cleanup(host, &["--cni", &folder]);
    assert!(
        fine && output.contains("removed device cni0 (bridge)") && output.contains("0123abcd"),
        "{output}"
    );
    assert!(!notes.join("0123abcd").exists() && host.netns().link("cni0").unwrap().is_none());
    let (fine, output) = cleanup(host, &["--cni", &folder]);
    assert!(
        fine && output.contains("nothing of flannel is left on this node")
            && !output.contains("kept "),
        "{output}"
    );
}

#[test]
fn cleanup_reports_what_it_cannot_remove() {
    let lab = Lab::new("stuck").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let host = &hosts[0];
    // A folder is in the file's place: unlink refuses it, even for root.
    std::fs::create_dir_all(host.subnet_file().unwrap()).unwrap();
    host.netns()
        .sh("ip route add blackhole 10.244.9.0/24 proto 241")
        .unwrap();
    let (fine, output) = cleanup(host, &[]);
    assert!(
        !fine
            && output.contains("cannot read file ")
            && output.contains(lab::code_or_text(
                "subnet.env: file-not-regular",
                "subnet.env: the path is not a regular file"
            ))
            && output.contains("removed route blackhole 10.244.9.0/24 proto 241"),
        "{output}"
    );
    assert!(
        output.contains("cleanup could not remove all objects"),
        "{output}"
    );
}
