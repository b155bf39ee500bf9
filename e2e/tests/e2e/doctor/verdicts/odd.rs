//! The doctor has no finding on unusual but healthy hosts.

use anyhow::{Context, Result, ensure};
use lab::{FlanneldOptions, PingMatrix, Scene, until_ok};

use super::fault::{are_well, get_pod_path_probes};
use crate::doctor::node::{Node, create_pod_on_each_node, create_stopped_nodes};
use crate::healing::scenarios;

/// All hosts of a lab have the same unusual configuration.
#[derive(Clone, Copy)]
pub(crate) struct HealthyHost {
    /// Changes the switch before the daemons start.
    switch: &'static str,
    /// Configures a host before its daemon starts.
    before: &'static str,
    /// Configures a host after the pods reach each other.
    after: &'static str,
    /// Value of the daemon's `--iface`.
    iface: &'static str,
    /// The network configuration, without its network.
    config: &'static str,
    hosts: u8,
    /// The only check that may have a finding, of severity `risk`.
    risk: &'static str,
}

const fn odd_host(before: &'static str, after: &'static str) -> HealthyHost {
    HealthyHost {
        switch: "true",
        before,
        after,
        iface: "enp0s8",
        config: r#""Backend":{"Type":"vxlan"}"#,
        hosts: 2,
        risk: "",
    }
}

/// A script that creates a firewall like ufw's, with the user's rules `rule`.
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

/// A script that creates an nftables table like firewalld's, with the rules `rule` in the zone of `enp0s8`.
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

/// These need a kernel with bonds, VLANs and other rare features.
pub(crate) const IN_THE_VIRTUAL_MACHINE: &[HealthyHost] = &[
    HealthyHost {
        iface: "bond0",
        ..odd_host("modprobe bonding max_bonds=0; ip link add bond0 type bond mode active-backup miimon 100; address=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet \\([^ ]*\\) .*/\\1/')
            ip address flush dev enp0s8; ip link set enp0s8 down; ip link set enp0s8 master bond0; ip link set bond0 up; ip link set enp0s8 up; ip address add $address dev bond0",
            "",
        )
    },
    HealthyHost {
        iface: "enp0s8.7",
        ..odd_host("modprobe 8021q; address=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet \\([^ ]*\\) .*/\\1/'); ip address flush dev enp0s8
            ip link add link enp0s8 name enp0s8.7 type vlan id 7; ip link set enp0s8.7 up; ip address add $address dev enp0s8.7",
            "",
        )
    },
    odd_host("tc qdisc add dev enp0s8 root netem delay 4ms",
        "",
    ),
    odd_host("modprobe dummy numdummies=0; modprobe ip_vs; ip link add kube-ipvs0 type dummy; for i in $(seq 20); do ip address add 10.96.0.$i/32 dev kube-ipvs0; done
        iptables -N KUBE-FORWARD; iptables -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT; iptables -A FORWARD -j KUBE-FORWARD",
        "",
    ),
    HealthyHost {
        iface: "site0",
        ..odd_host("modprobe dummy numdummies=0; n=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet 192.168.56.\\([0-9]*\\).*/\\1/'); ip link add site0 type dummy; ip link set site0 up; ip address add 10.99.0.$n/32 dev site0
            ip link add eth9 link enp0s8 type macvlan mode bridge; ip link set eth9 up; ip address add 192.168.57.$n/24 dev eth9
            for m in 101 102; do [ $m = $n ] || ip route add 10.99.0.$m src 10.99.0.$n nexthop via 192.168.56.$m dev enp0s8 nexthop via 192.168.57.$m dev eth9; done",
            "",
        )
    },
];

scenarios! { unusual_host_raises_no_finding;
    jumbo_frames_raise_no_finding => HealthyHost {
        switch: "for d in $(ip -o link | sed 's/^[0-9]*: \\([^:@]*\\).*/\\1/'); do ip link set $d mtu 9000 || true; done",
        ..odd_host("ip link set enp0s8 mtu 9000", "")
    },
    direct_routes_with_strict_rp_filter_raise_no_finding => HealthyHost {
        config: r#""Backend":{"Type":"vxlan","DirectRouting":true}"#,
        ..odd_host("sysctl -w net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1",
            "",
        )
    },
    ufw_that_lets_the_port_in_raises_no_finding => odd_host(ufw!("-p udp -m udp --dport 8472" "-p udp -m udp --dport 8473"), ""),
    firewalld_that_lets_the_port_in_raises_no_finding => odd_host(firewalld!("udp dport 8472" "udp dport 8473"), ""),
    firewall_that_drops_by_default_raises_no_finding => odd_host("iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
        iptables -A INPUT -p udp --dport 8472 -j ACCEPT; iptables -A INPUT -p udp --dport 8473 -j ACCEPT; iptables -A INPUT -p icmp -j ACCEPT
        iptables -P INPUT DROP; iptables -P FORWARD DROP",
        "",
    ),
    firewall_that_takes_no_icmp_and_no_probes_raises_no_finding => odd_host("",
        "iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -p udp --dport 8472 -j ACCEPT; iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
        iptables -P INPUT DROP",
    ),
    underlay_on_a_bridge_raises_no_finding => HealthyHost {
        iface: "br0",
        ..odd_host("ip link add br0 type bridge; address=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet \\([^ ]*\\) .*/\\1/')
            ip address flush dev enp0s8; ip link set enp0s8 master br0; ip link set br0 up; ip address add $address dev br0",
            "",
        )
    },
    underlay_on_a_macvlan_raises_no_finding => HealthyHost {
        iface: "mv0",
        ..odd_host("ip link add mv0 link enp0s8 type macvlan mode bridge; address=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet \\([^ ]*\\) .*/\\1/')
            ip address flush dev enp0s8; ip link set mv0 up; ip address add $address dev mv0",
            "",
        )
    },
    rules_and_network_of_docker_raise_no_finding => odd_host("ip link add docker0 type bridge; ip address add 172.17.0.1/16 dev docker0; ip link set docker0 up
        iptables -N DOCKER; iptables -N DOCKER-USER; iptables -N DOCKER-FORWARD; iptables -A DOCKER-USER -j RETURN
        iptables -A FORWARD -j DOCKER-USER; iptables -A FORWARD -j DOCKER-FORWARD; iptables -A DOCKER-FORWARD -i docker0 -j ACCEPT
        iptables -A DOCKER ! -i docker0 -o docker0 -j DROP; iptables -A DOCKER-FORWARD -o docker0 -j DOCKER
        iptables -t raw -A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP
        iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE; iptables -P FORWARD DROP",
        "",
    ),
    rules_that_calico_and_cilium_left_raise_no_finding => odd_host("iptables -N cali-FORWARD; iptables -A cali-FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT; iptables -I FORWARD -j cali-FORWARD
        iptables -t mangle -N cali-PREROUTING; iptables -t mangle -I PREROUTING -j cali-PREROUTING; iptables -t mangle -A cali-PREROUTING -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        iptables -t raw -N cali-PREROUTING; iptables -t raw -I PREROUTING -j cali-PREROUTING; iptables -t raw -A cali-PREROUTING -m mark --mark 0x40000/0x40000 -j DROP
        iptables -N CILIUM_FORWARD; iptables -A CILIUM_FORWARD -o cilium_host -j ACCEPT; iptables -A FORWARD -j CILIUM_FORWARD",
        "",
    ),
    policy_routing_of_others_raises_no_finding => odd_host("ip rule add from 203.0.113.0/24 lookup 77; ip rule add fwmark 0x77 lookup 77; ip route add blackhole default table 77; ip rule add to 198.51.100.0/24 unreachable
        ip rule add iif lo to 203.0.113.0/24 lookup 77",
        "",
    ),
    two_interfaces_in_one_subnet_raise_no_finding => odd_host("address=$(ip -o -4 address show dev enp0s8 | sed 's/.*inet 192.168.56.\\([0-9]*\\).*/\\1/'); ip link add eth9 link enp0s8 type macvlan mode bridge
        ip link set eth9 up; ip address add 192.168.56.$((address + 100))/24 dev eth9",
        "",
    ),
    three_hundred_veths_raise_no_finding => odd_host("for i in $(seq 150); do echo link add x$i type veth peer name y$i; done | ip -batch -",
        "",
    ),
    configuration_of_another_network_raises_no_finding => odd_host("echo '{\"cniVersion\":\"1.0.0\",\"name\":\"podman\",\"plugins\":[{\"type\":\"bridge\"}]}' > /etc/cni/net.d/87-podman.conflist",
        "",
    ),
    ipv6_alone_raises_no_finding => HealthyHost {
        config: r#""EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:5::/48","Backend":{"Type":"vxlan"}"#,
        ..odd_host("", "")
    },
    thick_plugin_of_multus_raises_no_finding => odd_host("echo '{\"cniVersion\":\"0.3.1\",\"name\":\"multus-cni-network\",\"type\":\"multus-shim\"}' > /etc/cni/net.d/00-multus.conf",
        "",
    ),
    kubelet_with_the_folder_of_k3s_raises_no_finding => odd_host("folder=/var/lib/rancher/k3s/agent/etc/cni/net.d; mkdir -p $folder /var/lib/kubelet/pod-resources; mv /etc/cni/net.d/10-flannel.conflist $folder
        setsid python3 -c 'from socket import *
s = socket(AF_UNIX); s.bind(\"/var/lib/kubelet/pod-resources/kubelet.sock\"); s.listen()
while True: s.accept()' > /dev/null 2>&1 &",
        "",
    ),
    firewall_that_drops_icmp_and_probes_raises_a_risk => HealthyHost {
        risk: "isolated",
        ..odd_host("iptables -A INPUT -p icmp -j DROP; iptables -A INPUT -p udp --dport 8473 -j DROP", "")
    },
    dead_leases_raise_no_finding => HealthyHost {
        risk: "silent-node",
        ..odd_host("for i in $(seq 200 239); do f=$LEASES/subnets/10.5.$i.0-24; test -e $f && continue
            echo '{\"PublicIP\":\"192.168.56.'$i'\",\"BackendType\":\"vxlan\",\"BackendData\":{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:01:'$(printf %02x $i)'\"}}' > $f.new
            touch -d '2 hours ago' $f.new; mv $f.new $f; done",
            "",
        )
    },
    first_boot_alone_raises_no_finding => HealthyHost {
        hosts: 1,
        ..odd_host("", "")
    },
    nftables_rules_that_drop_what_is_not_ours_raise_no_finding => HealthyHost {
        config: r#""Backend":{"Type":"host-gw"}"#,
        ..odd_host("nft 'table inet site { set hosts { type ipv4_addr; flags interval; elements = { 192.168.56.0/24, 10.5.0.0/16 }; }
                chain early { type filter hook prerouting priority -300; iifname \"lo\" accept; ip saddr 198.51.100.0/24 drop; }
                chain site_in { type filter hook input priority 0; policy drop; iifname \"lo\" accept; ct state established,related accept; ip saddr @hosts accept; }
                chain site_forward { type filter hook forward priority 0; policy drop; ct state established,related accept; ip saddr @hosts ip daddr @hosts accept; }
            }'",
            "",
        )
    },
    udp_raises_no_finding => HealthyHost { config: r#""Backend":{"Type":"udp"}"#, ..odd_host("", "") },
    both_families_with_nftables_raise_no_finding => HealthyHost { config: r#""EnableNFTables":true,"EnableIPv6":true,"IPv6Network":"fd10:5::/48","Backend":{"Type":"vxlan"}"#, ..odd_host("", "") },
}

/// No node of the lab has an unexpected finding.
pub(crate) fn unusual_host_raises_no_finding(odd: HealthyHost) -> Result<()> {
    let network = format!(r#"{{"Network":"10.5.0.0/16","SubnetMax":"10.5.150.0",{}}}"#, odd.config);
    let scene = Scene::with_title("odd").net(&network).nodes(odd.hosts).without_daemons();
    scene.run(|s| {
        s.lan.netns().sh(odd.switch)?;
        let options = FlanneldOptions::bare().iface(odd.iface).arg("--probe-pods");
        let mut nodes = create_stopped_nodes(s, &options)?;
        for node in &mut nodes {
            node.run(odd.before).context("before the start")?;
            node.start_without_waiting()?;
        }
        nodes.iter_mut().try_for_each(Node::wait_ready)?;
        let pods = create_pod_on_each_node(&mut nodes)?;
        if odd.hosts > 1 {
            until_ok("pods reach each other", || {
                PingMatrix::of_main_addresses(&pods)?.require_complete()
            })?;
        }
        for node in &mut nodes {
            node.run(odd.after).context("after the start")?;
        }
        for node in &mut nodes {
            until_ok("probes on the path of pods pass", || {
                let paths = get_pod_path_probes(node)?;
                // A single node has no peer to probe, nor has a node that drops all probes. A firewall may admit probes only as replies to those of the host.
                let is_idle = |reason| paths.iter().all(|path| path["obstacle"] == reason);
                let passes = are_well(&paths)
                    || is_idle("filtered")
                    || (odd.hosts == 1 || odd.risk == "isolated") && is_idle("nobody-answers");
                ensure!(passes, "{paths:?}");
                Ok(())
            })?;
        }
        nodes.iter_mut().try_for_each(Node::wait_past_grace_periods)?;
        for node in &mut nodes {
            node.wait_full_doctor_round()?;
            node.run_doctor()?;
            let is_expected = |finding: &serde_json::Value| {
                finding["severity"] == "risk" && finding["check"] == odd.risk
            };
            let found = node.findings();
            ensure!(
                found.len() <= 1 && found.iter().all(is_expected),
                "{}: {found:#?}",
                node.host.name()
            );
        }
        Ok(())
    })
}
