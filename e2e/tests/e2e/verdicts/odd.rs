//! Tests that the doctor has no finding on unusual but healthy hosts.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{FlanneldOptions, Lab, Store, until_ok};
use serde_json::Value;

use super::fault::pod_paths;
use crate::doctor::node::Node;

/// Duration for which the doctor must have no finding: two runs of the doctor's checks. A test waits for the full
/// duration, because no event shows that a run of the doctor found nothing.
const QUIET: Duration = Duration::from_secs(20);
/// Duration for which the doctor must have no finding in `make soak`.
const LONG: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(4);
/// Number of threads that run labs in parallel.
const LABS: usize = 4;

/// A lab in which all hosts have the same unusual configuration.
#[derive(Clone, Copy)]
pub(crate) struct Odd {
    pub(crate) name: &'static str,
    /// Whether `make test` runs this lab.
    quick: bool,
    /// Script that changes the switch before the hosts start.
    switch: &'static str,
    /// Script that sets the unusual configuration of a host before the host's daemon starts.
    before: &'static str,
    /// Script that sets the unusual configuration of a host after the pods reach each other.
    after: &'static str,
    /// Value of the daemon's `--iface`.
    iface: &'static str,
    backend: &'static str,
    hosts: u8,
    /// Name of the only check that may have a finding, of severity `risk`.
    risk: &'static str,
}

const fn odd(name: &'static str, before: &'static str, after: &'static str) -> Odd {
    Odd {
        name,
        quick: true,
        switch: "",
        before,
        after,
        iface: "enp0s8",
        backend: r#"{"Type":"vxlan"}"#,
        hosts: 2,
        risk: "",
    }
}

/// Returns a lab that only `make soak` runs.
const fn rare(name: &'static str, before: &'static str, after: &'static str) -> Odd {
    Odd {
        quick: false,
        ..odd(name, before, after)
    }
}

/// Expands to a script that creates a firewall like ufw's, with the user's rules `rule`.
macro_rules! ufw {
    ($($rule:literal)*) => {
        concat!(
            "iptables -N ufw-before-input; iptables -N ufw-user-input; iptables -A INPUT -j ufw-before-input; iptables -A INPUT -j ufw-user-input
            iptables -A ufw-before-input -i lo -j ACCEPT; iptables -A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
            iptables -A ufw-before-input -p icmp -j ACCEPT; iptables -P INPUT DROP; iptables -P FORWARD DROP;",
            $("iptables -A ufw-user-input ", $rule, " -j ACCEPT;",)*
        )
    };
}

/// Expands to a script that creates an nftables table like firewalld's, with the rules `rule` in the zone of `enp0s8`.
macro_rules! firewalld {
    ($($rule:literal)*) => {
        concat!(
            "nft 'table inet firewalld {
                chain filter_INPUT { type filter hook input priority filter + 10; policy accept; ct state { established, related } accept; iifname \"lo\" accept; jump filter_INPUT_ZONES; reject with icmpx admin-prohibited; }
                chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept; ct state { established, related } accept; ip saddr 10.5.0.0/16 ip daddr 10.5.0.0/16 accept; reject with icmpx admin-prohibited; }
                chain filter_INPUT_ZONES { iifname \"enp0s8\" goto filter_IN_site; goto filter_IN_public; }
                chain filter_IN_public { jump filter_IN_public_allow; meta l4proto { icmp, ipv6-icmp } accept; }
                chain filter_IN_public_allow { tcp dport 22 accept; }
                chain filter_IN_site { jump filter_IN_site_allow; meta l4proto { icmp, ipv6-icmp } accept; }
                chain filter_IN_site_allow { ",
            $($rule, " accept; ",)*
            "}; }'"
        )
    };
}

/// Labs that need a kernel with bonds, VLANs and other rare features.
pub(crate) const IN_THE_VIRTUAL_MACHINE: &[Odd] = &[
    Odd {
        iface: "bond0",
        ..odd(
            "the underlay is a bond",
            "modprobe bonding max_bonds=0; ip link add bond0 type bond mode active-backup miimon 100; address=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet \\([^ ]*\\) .*/\\1/')
            ip address flush dev enp0s8; ip link set enp0s8 down; ip link set enp0s8 master bond0; ip link set bond0 up; ip link set enp0s8 up; ip address add $address dev bond0",
            "",
        )
    },
    Odd {
        iface: "enp0s8.7",
        ..odd(
            "the underlay is a VLAN",
            "modprobe 8021q; address=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet \\([^ ]*\\) .*/\\1/'); ip address flush dev enp0s8
            ip link add link enp0s8 name enp0s8.7 type vlan id 7; ip link set enp0s8.7 up; ip address add $address dev enp0s8.7",
            "",
        )
    },
    odd(
        "eight milliseconds between the hosts",
        "tc qdisc add dev enp0s8 root netem delay 4ms",
        "",
    ),
    odd(
        "addresses of Services on kube-ipvs0",
        "modprobe dummy numdummies=0; modprobe ip_vs; ip link add kube-ipvs0 type dummy; for i in $(seq 20); do ip address add 10.96.0.$i/32 dev kube-ipvs0; done
        iptables -N KUBE-FORWARD; iptables -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT; iptables -A FORWARD -j KUBE-FORWARD",
        "",
    ),
    Odd {
        iface: "site0",
        ..odd(
            "two uplinks, and the address on a device without one",
            "modprobe dummy numdummies=0; n=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet 192.168.56.\\([0-9]*\\).*/\\1/'); ip link add site0 type dummy; ip link set site0 up; ip address add 10.99.0.$n/32 dev site0
            ip link add eth9 link enp0s8 type macvlan mode bridge; ip link set eth9 up; ip address add 192.168.57.$n/24 dev eth9
            for m in 101 102; do [ $m = $n ] || ip route add 10.99.0.$m src 10.99.0.$n nexthop via 192.168.56.$m dev enp0s8 nexthop via 192.168.57.$m dev eth9; done",
            "",
        )
    },
];

const ODD: &[Odd] = &[
    Odd {
        switch: "for d in $(ip -o link | sed 's/^[0-9]*: \\([^:@]*\\).*/\\1/'); do ip link set $d mtu 9000 || true; done",
        ..odd("jumbo frames", "ip link set enp0s8 mtu 9000", "")
    },
    Odd {
        backend: r#"{"Type":"vxlan","DirectRouting":true}"#,
        ..odd(
            "direct routes, and rp_filter is strict",
            "sysctl -w net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1",
            "",
        )
    },
    odd("ufw lets the port in", ufw!("-p udp -m udp --dport 8472" "-p udp -m udp --dport 8473"), ""),
    rare("ufw lets the port in from a network", ufw!("-s 192.168.56.0/24 -p udp -m udp --dport 8472" "-s 192.168.56.0/24 -p udp -m udp --dport 8473"), ""),
    rare("ufw lets a network in", ufw!("-s 192.168.56.0/24"), ""),
    rare("ufw lets an interface in", ufw!("-i enp0s8"), ""),
    rare("ufw lets several ports in", ufw!("-p udp -m multiport --dports 22,8472,8473"), ""),
    rare("ufw lets a range of ports in", ufw!("-i enp0s8 -p udp -m udp --dport 8000:9000"), ""),
    rare("ufw lets new connections in", ufw!("-p udp -m conntrack --ctstate NEW"), ""),
    odd("firewalld lets the port in", firewalld!("udp dport 8472" "udp dport 8473"), ""),
    rare("firewalld lets a network in", firewalld!("ip saddr 192.168.56.0/24"), ""),
    rare("firewalld lets ports in from a network", firewalld!("ip saddr 192.168.56.0/24 udp dport 8472-8473"), ""),
    rare("firewalld lets ports of a set in", firewalld!("udp dport { 22, 8472, 8473 } ct state { new, untracked }"), ""),
    rare("firewalld trusts the interface", firewalld!("iifname \"enp0s8\""), ""),
    odd(
        "default-drop firewall",
        "iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
        iptables -A INPUT -p udp --dport 8472 -j ACCEPT; iptables -A INPUT -p udp --dport 8473 -j ACCEPT; iptables -A INPUT -p icmp -j ACCEPT
        iptables -P INPUT DROP; iptables -P FORWARD DROP",
        "",
    ),
    odd(
        "default-drop firewall that takes no ICMP and no probes",
        "",
        "iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -p udp --dport 8472 -j ACCEPT; iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
        iptables -P INPUT DROP",
    ),
    Odd {
        iface: "br0",
        ..odd(
            "the underlay is a bridge",
            "ip link add br0 type bridge; address=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet \\([^ ]*\\) .*/\\1/')
            ip address flush dev enp0s8; ip link set enp0s8 master br0; ip link set br0 up; ip address add $address dev br0",
            "",
        )
    },
    Odd {
        iface: "mv0",
        ..odd(
            "the underlay is a macvlan",
            "ip link add mv0 link enp0s8 type macvlan mode bridge; address=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet \\([^ ]*\\) .*/\\1/')
            ip address flush dev enp0s8; ip link set mv0 up; ip address add $address dev mv0",
            "",
        )
    },
    odd(
        "rp_filter is strict",
        "sysctl -w net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1",
        "",
    ),
    odd(
        "Docker's rules and a network of its own",
        "ip link add docker0 type bridge; ip address add 172.17.0.1/16 dev docker0; ip link set docker0 up
        iptables -N DOCKER; iptables -N DOCKER-USER; iptables -N DOCKER-FORWARD; iptables -A DOCKER-USER -j RETURN
        iptables -A FORWARD -j DOCKER-USER; iptables -A FORWARD -j DOCKER-FORWARD; iptables -A DOCKER-FORWARD -i docker0 -j ACCEPT
        iptables -A DOCKER ! -i docker0 -o docker0 -j DROP; iptables -A DOCKER-FORWARD -o docker0 -j DOCKER
        iptables -t raw -A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP
        iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE; iptables -P FORWARD DROP",
        "",
    ),
    odd(
        "what Calico and Cilium left",
        "iptables -N cali-FORWARD; iptables -A cali-FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT; iptables -I FORWARD -j cali-FORWARD
        iptables -t mangle -N cali-PREROUTING; iptables -t mangle -I PREROUTING -j cali-PREROUTING; iptables -t mangle -A cali-PREROUTING -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        iptables -t raw -N cali-PREROUTING; iptables -t raw -I PREROUTING -j cali-PREROUTING; iptables -t raw -A cali-PREROUTING -m mark --mark 0x40000/0x40000 -j DROP
        iptables -N CILIUM_FORWARD; iptables -A CILIUM_FORWARD -o cilium_host -j ACCEPT; iptables -A FORWARD -j CILIUM_FORWARD",
        "",
    ),
    odd(
        "policy routing of others",
        "ip rule add from 203.0.113.0/24 lookup 77; ip rule add fwmark 0x77 lookup 77; ip route add blackhole default table 77; ip rule add to 198.51.100.0/24 unreachable
        ip rule add iif lo to 203.0.113.0/24 lookup 77",
        "",
    ),
    odd(
        "two interfaces in one subnet",
        "address=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet 192.168.56.\\([0-9]*\\).*/\\1/'); ip link add eth9 link enp0s8 type macvlan mode bridge
        ip link set eth9 up; ip address add 192.168.56.$((address + 100))/24 dev eth9",
        "",
    ),
    odd(
        "three hundred veths",
        "for i in $(seq 150); do echo link add x$i type veth peer name y$i; done | ip -batch -",
        "",
    ),
    odd(
        "CNI packages and the folder of a removed kubelet",
        "echo '{\"cniVersion\":\"1.0.0\",\"name\":\"podman\",\"plugins\":[{\"type\":\"bridge\"}]}' > /etc/cni/net.d/87-podman.conflist",
        "",
    ),
    Odd {
        risk: "silent-node",
        ..odd(
            "dead leases",
            "for i in $(seq 200 239); do f=$LEASES/subnets/10.5.$i.0-24; test -e $f && continue
            echo '{\"PublicIP\":\"192.168.56.'$i'\",\"BackendType\":\"vxlan\",\"BackendData\":{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:01:'$(printf %02x $i)'\"}}' > $f.new
            touch -d '2 hours ago' $f.new; mv $f.new $f; done",
            "",
        )
    },
    Odd {
        hosts: 1,
        ..odd("first boot, alone", "", "")
    },
    Odd {
        backend: r#"{"Type":"host-gw"}"#,
        ..odd(
            "rules of nft that drop what is not ours",
            "nft 'table inet site { set hosts { type ipv4_addr; flags interval; elements = { 192.168.56.0/24, 10.5.0.0/16 }; }
                chain early { type filter hook prerouting priority -300; iifname \"lo\" accept; ip saddr 198.51.100.0/24 drop; }
                chain site_in { type filter hook input priority 0; policy drop; iifname \"lo\" accept; ct state established,related accept; ip saddr @hosts accept; }
                chain site_forward { type filter hook forward priority 0; policy drop; ct state established,related accept; ip saddr @hosts ip daddr @hosts accept; }
            }'",
            "",
        )
    },
];

/// Runs a lab, and checks that no node has an unexpected finding.
pub(crate) fn is_quiet(odd: &Odd, quiet: Duration) -> Result<()> {
    let title = format!("odd: {}", odd.name);
    Lab::run(&title, |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, odd.hosts)?;
        if !odd.switch.is_empty() {
            lan.netns().exec("sh", &["-ec", odd.switch])?;
        }
        let folder = lab.folder("leases")?;
        let store = Store::dir(&folder);
        store.configure(&format!(
            r#"{{"Network":"10.5.0.0/16","SubnetMax":"10.5.150.0","Backend":{}}}"#,
            odd.backend
        ))?;
        let options = FlanneldOptions::bare().iface(odd.iface).arg("--probe-pods");
        let mut nodes = Vec::new();
        for host in &hosts {
            let mut node = Node::new(lab, host, &options, &store)?;
            node.variables
                .push(("LEASES", folder.display().to_string()));
            std::fs::write(
                node.files.join("cni/10-flannel.conflist"),
                r#"{"plugins":[{"type":"flannel"}]}"#,
            )?;
            if !odd.before.is_empty() {
                node.run(odd.before).context("before the start")?;
            }
            node.start()?;
            nodes.push(node);
        }
        nodes.iter_mut().try_for_each(Node::ready)?;
        let mut pods = Vec::new();
        for node in &mut nodes {
            let env = node.daemon()?.subnet_env()?;
            pods.push(node.host.pod("p1", &env)?);
        }
        nodes.iter_mut().try_for_each(Node::grown)?;
        until_ok("pods reach each other", || {
            lab::PingMatrix::of(&pods)?.require_complete()
        })?;
        if !odd.after.is_empty() {
            for node in &mut nodes {
                node.run(odd.after).context("after the start")?;
            }
        }
        for node in &mut nodes {
            until_ok("probes on the path of pods pass", || {
                let path = pod_paths(node)?.swap_remove(0);
                // A single node has no peer to probe. A firewall may admit probes only as replies to those of the host.
                let is_idle = match path["obstacle"].as_str() {
                    Some("nobody-answers") => odd.hosts == 1,
                    Some("filtered") => true,
                    _ => false,
                };
                ensure!(path["state"] == "well" || is_idle, "{path}");
                Ok(())
            })?;
        }
        let begun = Instant::now();
        while begun.elapsed() < quiet {
            for node in &mut nodes {
                one_look(node, odd).with_context(|| format!("after {:?}", begun.elapsed()))?;
            }
            std::thread::sleep(INTERVAL);
        }
        Ok(())
    })
    .with_context(|| odd.name)
}

/// Runs the doctor once. Checks that the doctor has no finding except at most one expected risk.
fn one_look(node: &mut Node, odd: &Odd) -> Result<()> {
    let (_, report) = node.doctor()?;
    let (risks, loud): (Vec<&Value>, Vec<&Value>) = report["findings"]
        .as_array()
        .context("no findings")?
        .iter()
        .partition(|finding| finding["severity"] == "risk" && finding["check"] == odd.risk);
    ensure!(
        loud.is_empty() && risks.len() <= 1,
        "{}: {loud:#?} {risks:#?}",
        node.host.name()
    );
    Ok(())
}

#[test]
fn odd_but_healthy_hosts_have_no_findings() -> Result<()> {
    side_by_side(|odd| odd.quick, QUIET)
}

/// Runs each lab while threads keep all processors busy, and checks for a minute that no node has a finding.
#[test]
#[ignore = "minutes: a part of `make soak`"]
fn odd_but_healthy_hosts_have_no_findings_under_load() -> Result<()> {
    let done = std::sync::atomic::AtomicBool::new(false);
    let processors = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let outcome = side_by_side(|_| true, LONG);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome
    })
}

fn side_by_side(is_chosen: impl Fn(&Odd) -> bool, quiet: Duration) -> Result<()> {
    let wanted = std::env::var("FLANNEL_TEST_FAULT").unwrap_or_default();
    let chosen: Vec<&Odd> = ODD
        .iter()
        .filter(|odd| is_chosen(odd) && odd.name.contains(&wanted))
        .collect();
    let next = std::sync::Mutex::new(chosen.iter());
    let failed = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..LABS {
            scope.spawn(|| {
                loop {
                    let taken = next
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .next();
                    let Some(odd) = taken else { return };
                    if let Err(error) = is_quiet(odd, quiet) {
                        failed
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner)
                            .push(format!("{error:#}"));
                    }
                }
            });
        }
    });
    let failed = failed
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    ensure!(
        failed.is_empty(),
        "{} of {} are not quiet:\n{}",
        failed.len(),
        chosen.len(),
        failed.join("\n\n")
    );
    Ok(())
}
