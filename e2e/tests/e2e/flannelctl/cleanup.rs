//! Tests that `flannelctl cleanup` restores a host to its state before flannel-rs or Go flannel ran, and keeps the objects of other programs.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use lab::{Host, Launch, Scene, binaries, until};

use crate::healing::scenarios;

/// Objects of other programs: iptables and nftables rules, routes, addresses, neighbours, a vxlan device, a bridge for pods.
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

/// Subnets that nodes may lease, outside the destinations of all non-default routes in [`OTHERS`].
const RANGE: &str = r#""SubnetMin":"10.244.1.0","SubnetMax":"10.244.60.0","IPv6SubnetMin":"fd10:244:0:1::","IPv6SubnetMax":"fd10:244:0:3c::""#;

/// All kernel objects of a host that a program can create, without FDB entries of IPv6 multicast groups: the kernel joins such groups at any time.
pub(crate) fn dump_kernel_objects(host: &Host) -> Result<String> {
    // A device gets its link-local address some time after it is up. Its routes follow when duplicate address detection is done.
    let unsettled = "
        ip -6 address show tentative
        for device in cni0 vx0; do
            [ ! -e /sys/class/net/$device ] || ip -6 address show dev $device scope link | grep -q inet6 || echo $device
        done";
    until("no address is tentative", || {
        host.netns().sh(unsettled).is_ok_and(|text| text.is_empty())
    })?;
    host.netns().sh("
        nft -s list ruleset
        for program in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do
            echo \"# $program\"; $program-save | grep -v '^#' | sed 's/ \\[.*//'
        done
        ip -d address show | sed 's/[a-z_]*_timer *[0-9.]*//g; s/ tentative//'; ip -4 route show table all; ip -6 route show table all
        ip neighbour show nud permanent; bridge fdb show | sed /^33:33:/d; ip rule show; ip -6 rule show")
}

/// The error has the lines that only one of both contains.
fn require_kernel_objects_equal(host: &Host, wanted: &str, output: &str) -> Result<()> {
    let now = dump_kernel_objects(host)?;
    let differing: Vec<&str> = now
        .lines()
        .filter(|line| !wanted.contains(line))
        .chain(wanted.lines().filter(|line| !now.contains(line)))
        .collect();
    ensure!(now == wanted, "{differing:#?}\n{output}");
    Ok(())
}

/// Runs with the host's own `/run`. The result is whether the command succeeded, and its output.
fn run_flannelctl_cleanup(host: &Host, args: &[&str]) -> Result<(bool, String)> {
    static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let log = format!("cleanup-{}", CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let mut process = host.spawn(
        &log,
        &Launch::new(binaries::flannel_binary("flannelctl")?).arg("cleanup").args(args),
    )?;
    Ok((process.wait()?.success(), process.log()))
}

/// The command succeeds; the result is its output.
fn require_cleanup_succeeds(host: &Host, args: &[&str]) -> Result<String> {
    let (is_done, output) = run_flannelctl_cleanup(host, args)?;
    ensure!(is_done, "{output}");
    Ok(output)
}

/// Counts the files in the host's `/run/flannel`.
fn count_run_files(host: &Host) -> Result<usize> {
    let folder = host.subnet_file()?.with_file_name("");
    Ok(std::fs::read_dir(folder).into_iter().flatten().count())
}

/// `flannelctl cleanup` restores the dump `before`; `--dry-run` lists the same objects and removes nothing. A second `flannelctl cleanup` finds
/// nothing to remove.
pub(crate) fn clean_up_and_require_restored(
    host: &Host,
    before: &str,
    args: &[&str],
) -> Result<String> {
    let (there, files) = (dump_kernel_objects(host)?, count_run_files(host)?);
    ensure!(there != before, "there is nothing to remove");
    let dry = require_cleanup_succeeds(host, &[args, &["--dry-run"]].concat())?;
    require_kernel_objects_equal(host, &there, &dry)?;
    ensure!(count_run_files(host)? == files, "{dry}");
    let output = require_cleanup_succeeds(host, args)?;
    let lines = |text: &str, verb: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix(verb)).map(str::to_owned).collect()
    };
    ensure!(lines(&dry, "would remove ") == lines(&output, "removed "), "{dry}\n{output}");
    require_kernel_objects_equal(host, before, &output)?;
    ensure!(count_run_files(host)? == 0, "{output}");
    let again = require_cleanup_succeeds(host, args)?;
    ensure!(again.contains("nothing of flannel is left") && !again.contains("removed "), "{again}");
    Ok(output)
}

/// A pod network of both families, its subnets and the backend.
fn dual_stack_net_conf(fields: &str) -> String {
    format!(
        r#"{{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd10:244::/48",{RANGE},{fields}}}"#
    )
}

scenarios! { cleanup_restores_the_host_after_flanneld;
    cleanup_restores_the_host_after_flanneld_with_iptables => (r#""Backend":{"Type":"vxlan"}"#, &["--ip-blackhole-route", "--iptables-forward-insert", "--encap-notrack", "--encap-peers=drop", "--encap-bar-pods"]),
    cleanup_restores_the_host_after_flanneld_with_nftables => (r#""EnableNFTables":true,"Backend":{"Type":"vxlan","DirectRouting":true}"#, &["--ip-blackhole-route", "--encap-notrack", "--encap-peers=drop", "--encap-bar-pods"]),
    // This backend's blackhole for the whole network stays when daemon and device are gone.
    cleanup_restores_the_host_after_wireguard => (r#""Backend":{"Type":"wireguard","Implementation":"userspace"}"#, &[]),
}

fn cleanup_restores_the_host_after_flanneld((config, flags): (&str, &[&str])) -> Result<()> {
    Scene::with_title("cleanup")
        .net(&dual_stack_net_conf(config))
        .daemon_arg("--ip-masq")
        .without_daemons()
        .run(|s| {
            let key = s.lab.ensure_folder("keys")?;
            for node in &mut s.nodes {
                let key = key.join(node.name()).display().to_string();
                node.change_options(|options| options.env("WIREGUARD_KEY_FILE", &key));
            }
            s[0].change_options(|options| {
                flags.iter().fold(options, |options, flag| options.arg(flag))
            });
            s[0].sh(OTHERS)?;
            let before = dump_kernel_objects(&s[0])?;
            s.start_daemons()?;
            s.wait_leases_applied()?;
            let (is_done, refused) = run_flannelctl_cleanup(&s[0], &[])?;
            ensure!(
                !is_done
                    && refused.contains(&format!("pid {}, flanneld", s[0].daemon()?.pid()))
                    && refused.contains("--force"),
                "{refused}"
            );
            s[0].require_ready()?;
            s[0].wait_metric_value("flannel_kernel_repairs_total", 0.0)?;
            let dry = require_cleanup_succeeds(&s[0], &["--dry-run"])?;
            ensure!(dry.contains("cleanup refuses"), "{dry}");
            s[0].stop_daemon()?;
            let output = clean_up_and_require_restored(&s[0], &before, &[])?;
            ensure!(
                output.contains("kept device cni0 (bridge)")
                    && output.contains("removed file /run/flannel/subnet.env"),
                "{output}"
            );
            // flanneld can start again afterwards.
            s[0].start_daemon()
        })
}

/// `listing` is a captured one, such as that of `iptables -t nat -S`.
fn script_of_captured_rules(listing: &str) -> String {
    let mut command = "";
    let mut script = String::new();
    for line in listing.lines().filter(|line| !line.starts_with("-P")) {
        match line.strip_prefix("# ") {
            Some(listing) => command = listing.trim_end_matches("-S"),
            None => script.push_str(&format!("{command}{line}\n")),
        }
    }
    script
}

#[test]
fn cleanup_restores_the_host_after_go_flannel() -> Result<()> {
    let vxlan = "ip link add flannel.1 mtu 1450 type vxlan id 1 local 192.168.56.101 dev enp0s8 dstport 8472 nolearning
        ip link add flannel-v6.1 mtu 1430 type vxlan id 1 local fd00:56::101 dev enp0s8 dstport 8472 nolearning
        ip address add 10.244.90.0/32 dev flannel.1; ip address add fd10:244:0:22::/128 dev flannel-v6.1; ip link set flannel.1 up; ip link set flannel-v6.1 up
        ip route add 10.244.70.0/24 via 10.244.70.0 dev flannel.1 onlink; ip -6 route add fd10:244:0:56::/64 via fd10:244:0:56:: dev flannel-v6.1 onlink
        ip neighbour add 10.244.70.0 lladdr da:2e:67:37:f5:5b nud permanent dev flannel.1
        bridge fdb add da:2e:67:37:f5:5b dev flannel.1 dst 192.168.56.102 self permanent
        ip route add blackhole 10.244.90.0/24; ip -6 route add blackhole fd10:244:0:22::/64";
    let host_gw = "ip route add 10.244.70.0/24 via 192.168.56.102 dev enp0s8; ip -6 route add fd10:244:0:56::/64 via fd00:56::102 dev enp0s8";
    for (case, state) in [("masq-dual", vxlan), ("nft-dual", host_gw)] {
        Scene::with_title("cleanup").nodes(1).without_daemons().run(|s| {
            let host = &s[0];
            host.sh(OTHERS)?;
            let before = dump_kernel_objects(host)?;
            let folder =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../flanneld/tests/golden").join(case);
            let read =
                |file: &str| std::fs::read_to_string(folder.join(file)).context(file.to_owned());
            if case == "nft-dual" {
                host.netns().exec_with_input("nft", &["-f", "-"], &read("nft.txt")?)?;
            } else {
                host.sh(&script_of_captured_rules(&read("iptables.txt")?))?;
            }
            host.sh(state)?;
            write_subnet_env(host, &read("subnet.env")?)?;
            clean_up_and_require_restored(host, &before, &[])?;

            // Without subnet.env, cleanup removes unmarked routes only if the operator names the network.
            host.sh(host_gw)?;
            let there = dump_kernel_objects(host)?;
            let output = require_cleanup_succeeds(host, &[])?;
            ensure!(output.contains("--network"), "{output}");
            require_kernel_objects_equal(host, &there, &output)?;
            let output = require_cleanup_succeeds(
                host,
                &["--network=10.244.0.0/16", "--network=fd10:244::/48"],
            )?;
            require_kernel_objects_equal(host, &before, &output)
        })?;
    }
    Ok(())
}

fn write_subnet_env(host: &Host, text: &str) -> Result<()> {
    let file = host.subnet_file()?;
    std::fs::create_dir_all(file.with_file_name(""))?;
    Ok(std::fs::write(&file, text)?)
}

#[test]
fn cleanup_reports_unclear_objects_and_removes_cni_on_request() -> Result<()> {
    Scene::with_title("doubt").nodes(1).without_daemons().run(|s| {
        let host = &s[0];
        let notes = host.folder()?.join("notes");
        std::fs::create_dir_all(&notes)?;
        let note = notes.join("0123abcd");
        std::fs::write(&note, r#"{"type":"bridge","ipam":{}}"#)?;
        host.sh("ip link add flannel.1 type bridge; ip link add cni0 type bridge; ip link set cni0 up; ip address add 10.244.1.1/24 dev cni0
             ip tuntap add dev flannel0 mode tun; ip link set flannel0 up; ip route add 10.244.0.0/16 dev flannel0
             ip route add 10.244.128.0/17 via 192.168.56.254; ip route add blackhole 10.244.9.7/32")?;
        write_subnet_env(host, "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n")?;
        let folder = format!("--cni-dir={}", notes.display());
        let output = require_cleanup_succeeds(host, &[&folder])?;
        let has = |name: &str| host.netns().link(name).map(|link| link.is_some());
        ensure!(note.exists() && has("flannel.1")? && has("cni0")? && !has("flannel0")?, "{output}");
        // The printed commands work as pasted.
        let commands = output.lines().filter_map(|line| Some(line.split_once("manually: ")?.1));
        let commands: Vec<&str> = commands.filter(|command| !command.contains("cni0")).collect();
        ensure!(commands.len() == 3, "{output}");
        host.sh(&format!("set -e\n{}", commands.join("\n")))?;
        let output = require_cleanup_succeeds(host, &["--cni", &folder])?;
        ensure!(output.contains("0123abcd") && !note.exists() && !has("cni0")? && !has("flannel.1")?, "{output}");
        let output = require_cleanup_succeeds(host, &["--cni", &folder])?;
        ensure!(output.contains("nothing of flannel is left") && !output.contains("kept "), "{output}");
        Ok(())
    })
}

#[test]
fn cleanup_reports_what_it_cannot_remove() -> Result<()> {
    Scene::with_title("stuck").nodes(1).without_daemons().run(|s| {
        // A folder is in the file's place: unlink refuses it, even for root.
        std::fs::create_dir_all(s[0].subnet_file()?)?;
        s[0].sh("ip route add blackhole 10.244.9.0/24 proto 241")?;
        let (is_done, output) = run_flannelctl_cleanup(&s[0], &[])?;
        let reason = "not a regular file";
        ensure!(
            !is_done
                && output.contains(reason)
                && output.contains("removed route blackhole 10.244.9.0/24"),
            "{output}"
        );
        Ok(())
    })
}
