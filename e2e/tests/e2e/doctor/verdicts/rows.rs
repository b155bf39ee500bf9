//! Faults of the second of three nodes. They have the addresses 192.168.56.101 to 192.168.56.103, and the subnets of their pods are in 10.5.0.0/16.

use super::fault::{Fault, node_fault};

pub(super) const NETWORK: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// Packets of pods are dropped in places that no probe passes.
pub(super) const POD_PACKETS: &[Fault] = &[
    node_fault(
        "mangle FORWARD drops pods",
        "iptables -t mangle -A FORWARD -s 10.5.0.0/16 -j DROP",
        "pods-dropped",
        "iptables -t mangle -F FORWARD",
    )
    .cuts_off_pods()
    .with_finding_texts("iptables|mangle|FORWARD|10.5.0.0/16"),
    node_fault(
        "a bridge table drops pods",
        "nft 'table bridge fault { chain c { type filter hook prerouting priority 0; ip saddr 10.5.0.0/16 drop; }; }'",
        "pods-dropped",
        "nft delete table bridge fault",
    )
    .cuts_off_pods(),
    node_fault(
        "nft forward drops what comes by the tunnel",
        "nft 'table inet fault { chain c { type filter hook forward priority 0; iifname \"flannel.1\" drop; }; }'",
        "forward-reject",
        "nft delete table inet fault",
    )
    .cuts_off_pods(),
    node_fault(
        "DOCKER-USER drops all",
        "iptables -N DOCKER-USER; iptables -A DOCKER-USER -j DROP; iptables -I FORWARD -j DOCKER-USER",
        "forward-reject",
        "iptables -F FORWARD; iptables -F DOCKER-USER; iptables -X DOCKER-USER",
    )
    .cuts_off_pods(),
    node_fault(
        "FORWARD drops replies",
        "iptables -I FORWARD -s 10.5.0.0/16 -m conntrack --ctstate ESTABLISHED -j DROP",
        "forward-reject",
        "iptables -F FORWARD",
    )
    .loses_probes(),
    node_fault(
        "FORWARD drops TCP of pods",
        "iptables -I FORWARD -p tcp -s 10.5.0.0/16 -j DROP",
        "forward-reject",
        "iptables -F FORWARD",
    )
    .passes_probes(),
];

/// The bridge of pods, sysctls, routes.
pub(super) const BRIDGE: &[Fault] = &[
    node_fault("the bridge is down", "ip link set cni0 down", "pod-bridge", "true").cuts_off_pods(),
    node_fault("the bridge has no address", "ip address flush dev cni0", "pod-bridge", "true")
        .cuts_off_pods(),
    node_fault("the bridge is deleted", "ip link delete cni0", "pod-bridge", "true")
        .cuts_off_pods(),
    node_fault(
        "the bridge has no route",
        "ip route delete $OWN.0/24 dev cni0",
        "pod-route",
        "true",
    )
    .cuts_off_pods(),
    node_fault(
        "the tunnel's device does not forward",
        "sysctl -w net/ipv4/conf/flannel.1/forwarding=0",
        "ip-forward",
        "true",
    )
    .cuts_off_pods(),
    node_fault("ip_forward is 0", "sysctl -w net.ipv4.ip_forward=0", "ip-forward", "true")
        .cuts_off_pods(),
    node_fault(
        "ip rule for the bridge into a blackhole",
        "ip rule add iif cni0 lookup 99; ip route add blackhole default table 99",
        "pod-route",
        "ip rule delete iif cni0; ip route flush table 99; ip rule delete to 10.5.0.0/16 || true",
    )
    .cuts_off_pods(),
    node_fault(
        "ip rule for the network into a blackhole",
        "ip rule add to 10.5.0.0/16 lookup 99; ip route add blackhole default table 99",
        "pod-route",
        "while ip rule delete to 10.5.0.0/16; do :; done; ip route flush table 99",
    )
    .cuts_off_pods()
    .with_finding_on_others("overlay-cut one-way peer-cut"),
    node_fault(
        "a route to a pod of another node leads into the bridge",
        "ip route add $POD3/32 dev cni0",
        "network-overlap pod-route",
        "ip route delete $POD3/32 dev cni0 || true",
    )
    .passes_probes()
    .cuts_off_pods(),
];

/// Packets of the tunnel.
pub(super) const TUNNEL: &[Fault] = &[
    node_fault(
        "raw PREROUTING drops the tunnel",
        "iptables -t raw -A PREROUTING -p udp --dport 8472 -j DROP",
        "encap-blocked",
        "iptables -t raw -F PREROUTING",
    )
    .cuts_off_pods()
    .with_finding_on_others("overlay-cut one-way")
    .with_finding_texts("raw|PREROUTING"),
    node_fault(
        "netdev ingress drops the tunnel",
        "nft 'table netdev fault { chain c { type filter hook ingress device \"enp0s8\" priority 0; udp dport 8472 drop; }; }'",
        "encap-blocked",
        "nft delete table netdev fault",
    )
    .cuts_off_pods()
    .with_finding_on_others("overlay-cut one-way"),
    node_fault(
        "INPUT policy DROP",
        "iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; iptables -A INPUT -p udp --dport 8473 -j ACCEPT; iptables -P INPUT DROP",
        "encap-blocked",
        "iptables -P INPUT ACCEPT; iptables -F INPUT",
    )
    .cuts_off_pods()
    .with_finding_on_others("overlay-cut one-way"),
    node_fault(
        "OUTPUT drops the tunnel",
        "iptables -A OUTPUT -p udp --dport 8472 -j DROP",
        "encap-blocked",
        "iptables -F OUTPUT",
    )
    .cuts_off_pods()
    .with_finding_on_others("overlay-cut one-way"),
    node_fault(
        "INPUT drops the tunnel of one peer",
        "iptables -A INPUT -p udp --dport 8472 -s 192.168.56.101 -j DROP",
        "one-way overlay-cut",
        "iptables -F INPUT",
    )
    .by_hand()
    .cuts_off_pods()
    .affecting_first_two_nodes()
    .with_finding_on_others("overlay-cut one-way"),
];

/// The underlay's interface, addresses and routes.
pub(super) const UNDERLAY: &[Fault] = &[
    node_fault(
        "the interface is down at the switch",
        "true",
        "isolated",
        "true",
    )
    .with_switch_rules("ip saddr 192.168.56.102 drop\nip daddr 192.168.56.102 drop\narp saddr ip 192.168.56.102 drop\narp daddr ip 192.168.56.102 drop")
    .by_hand()
    .cuts_off_pods()
    .with_finding_on_others("peer-cut"),
    node_fault(
        "a list of blocked hosts has the peers",
        "ip route add blackhole 192.168.56.101; ip route add blackhole 192.168.56.103",
        "peer-unrouted",
        "ip route delete blackhole 192.168.56.101 || true; ip route delete blackhole 192.168.56.103 || true",
    )
    .cuts_off_pods()
    .with_finding_on_others("peer-cut"),
    node_fault(
        "ip rule sends the peers into a VPN",
        "ip rule add to 192.168.56.0/24 lookup 98; ip route add blackhole default table 98",
        "peer-unrouted",
        "while ip rule delete to 192.168.56.0/24; do :; done; ip route flush table 98",
    )
    .cuts_off_pods()
    .with_finding_on_others("peer-cut"),
    node_fault(
        "its hardware address is another host's",
        "ip link set enp0s8 address $(ip neighbour show 192.168.56.101 | sed -n 's/.*lladdr \\([^ ]*\\).*/\\1/p')",
        "duplicate-mac",
        "ip link set enp0s8 address 02:00:00:00:56:02",
    )
    .cuts_off_pods()
    .by_hand()
    // The switch learns the MAC's port from the host that sent last.
    .with_third_node_unchecked()
    .with_finding_on_others("peer-cut overlay-cut duplicate-mac"),
    node_fault(
        "a stranger has its address",
        "true",
        "address-conflict",
        "true",
    )
    .with_stranger_address("192.168.56.102/24")
    .by_hand()
    .with_finding_on_others("peer-cut overlay-cut one-way wrong-node lossy"),
    node_fault(
        "a VPN has a part of a peer's subnet",
        "ip link add vpn0 type veth peer name vpn1; ip link set vpn0 up; ip route add ${PEER%.0/24}.0/25 dev vpn0",
        "network-overlap",
        "ip link delete vpn0",
    )
    .passes_probes()
    .by_hand()
    .cuts_off_pods(),
];

/// Subnets of 14 addresses.
pub(super) const SMALL: &str =
    r#"{"Network":"10.5.0.0/16","SubnetLen":28,"Backend":{"Type":"vxlan"}}"#;

/// Faults of which no third node shows anything.
pub(super) const OF_TWO: &[Fault] = &[
    node_fault(
        "INPUT drops the tunnel",
        "iptables -A INPUT -p udp --dport 8472 -j DROP",
        "encap-blocked",
        "iptables -F INPUT",
    )
    .cuts_off_pods()
    .with_finding_on_others("overlay-cut one-way encap-blocked")
    .with_finding_texts("INPUT"),
    node_fault(
        "INPUT rejects the tunnel",
        "iptables -A INPUT -p udp --dport 8472 -j REJECT",
        "encap-blocked",
        "iptables -F INPUT",
    )
    .cuts_off_pods()
    .with_finding_on_others("overlay-cut one-way encap-blocked")
    .with_finding_texts("INPUT"),
    node_fault(
        "INPUT drops by default",
        "iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -p udp --dport 8473 -j ACCEPT; iptables -A INPUT -p icmp -j ACCEPT; iptables -P INPUT DROP",
        "encap-blocked",
        "iptables -P INPUT ACCEPT; iptables -F INPUT",
    )
    .cuts_off_pods()
    .with_finding_on_others("overlay-cut one-way encap-blocked"),
    node_fault(
        "it publishes an address of nobody",
        "echo FLANNELD_PUBLIC_IP=192.168.56.99 >> /etc/default/flanneld; systemctl restart flanneld",
        "public-ip",
        "sed -i /PUBLIC_IP/d /etc/default/flanneld; systemctl restart flanneld",
    )
    .cuts_off_pods()
    .with_finding_on_others("peer-cut overlay-cut one-way encap-blocked"),
    node_fault(
        "a device for all VNIs has the tunnel's port",
        "kill -STOP $(cat /run/flanneld.pid); ip link delete flannel.1; ip link add antrea0 type vxlan external dstport 8472; ip link set antrea0 up; kill -CONT $(cat /run/flanneld.pid)",
        "port-taken",
        "ip link delete antrea0",
    )
    .cuts_off_pods()
    .by_hand()
    .with_finding_on_others("overlay-cut one-way encap-blocked peer-cut")
    .with_finding_texts("antrea0"),
    node_fault(
        "it is off, and a stranger has its address",
        "ip link set enp0s8 down",
        "no-interface",
        "ip link set enp0s8 up",
    )
    .with_stranger_address("192.168.56.102/24")
    .by_hand()
    .with_finding_on_others("overlay-cut"),
    node_fault(
        "addresses of dead pods fill the subnet",
        "mkdir -p /var/lib/cni/networks/cbr0 /run/containerd/io.containerd.runtime.v2.task/k8s.io
        net=$(ip -o -4 address show dev cni0 | sed 's/.*inet \\([^/]*\\).*/\\1/'); first=${net##*.}
        for i in $(seq 13); do echo c$i > /var/lib/cni/networks/cbr0/${net%.*}.$((first + i)); done
        touch -d '1 hour ago' /var/lib/cni/networks/cbr0/*
        for i in $(seq 6); do mkdir /run/containerd/io.containerd.runtime.v2.task/k8s.io/c$i; ip link add lp$i mtu 1450 master cni0 type veth peer name lq$i; done
        mkdir /run/containerd/io.containerd.runtime.v2.task/k8s.io/c7",
        "ipam-full",
        "for i in $(seq 6); do ip link delete lp$i; done; rm -r /run/containerd /var/lib/cni/networks/cbr0",
    ),
];

/// The daemon and its configuration.
pub(super) const DAEMON: &[Fault] = &[
    node_fault(
        "it publishes an address of nobody",
        "echo FLANNELD_PUBLIC_IP=192.168.56.99 >> /etc/default/flanneld; systemctl restart flanneld",
        "public-ip",
        "sed -i /PUBLIC_IP/d /etc/default/flanneld; systemctl restart flanneld",
    )
    .cuts_off_pods()
    .with_finding_on_others("peer-cut overlay-cut one-way"),
    node_fault(
        "another VNI after a restart",
        "sed 's/\"vxlan\"/\"vxlan\",\"VNI\":7/' $LEASES/config > $LEASES/.new; mv $LEASES/.new $LEASES/config; systemctl restart flanneld",
        "encap-blocked",
        "sed 's/,\"VNI\":7//' $LEASES/config > $LEASES/.new; mv $LEASES/.new $LEASES/config; systemctl restart flanneld",
    )
    .cuts_off_pods()
    .by_hand()
    .with_finding_texts("VNI 7")
    .with_finding_on_others("overlay-cut one-way"),
    node_fault(
        "it has another store",
        "mkdir $LEASES-other; cp $LEASES/config $LEASES-other; sed -i s+$LEASES+$LEASES-other+ /etc/default/flanneld; systemctl restart flanneld",
        "other-store",
        "sed -i s+$LEASES-other+$LEASES+ /etc/default/flanneld; systemctl restart flanneld; rm -r $LEASES-other",
    )
    .by_hand()
    .with_finding_on_others("overlay-cut one-way probe-filtered peer-cut"),
    node_fault(
        "the daemon hangs",
        "kill -STOP $(cat /run/flanneld.pid)",
        "hangs",
        "true",
    )
    .with_finding_on_others("probe-filtered peer-silent"),
    node_fault(
        "the daemon ended",
        "kill -9 $(cat /run/flanneld.pid)",
        "not-running",
        "true",
    )
    .with_finding_on_others("probe-filtered peer-silent"),
    node_fault(
        "each start fails, because a bridge has the tunnel's name",
        "kill -9 $(cat /run/flanneld.pid); ip link delete flannel.1; ip link add flannel.1 type bridge; systemctl restart flanneld",
        "foreign-device",
        "true",
    )
    .cuts_off_pods()
    .with_finding_on_others("probe-filtered peer-silent overlay-cut one-way"),
];

/// Dual-stack.
pub(super) const BOTH: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}"#;

/// They affect only IPv6 in a dual-stack network.
pub(super) const OF_IPV6: &[Fault] = &[
    node_fault(
        "the bridge has no IPv6 address",
        "ip -6 address flush dev cni0 scope global",
        "pod-bridge",
        "true",
    )
    .loses_probes(),
    node_fault(
        "INPUT drops the tunnel of IPv6",
        "ip6tables -A INPUT -p udp --dport 8472 -j DROP",
        "encap-blocked",
        "ip6tables -F INPUT",
    )
    .with_finding_on_others("overlay-cut one-way")
    .with_finding_texts("IPv6"),
    node_fault(
        "FORWARD drops pods of IPv6",
        "ip6tables -I FORWARD -s fd00:10:5::/48 -j DROP",
        "forward-reject",
        "ip6tables -F FORWARD",
    )
    .loses_probes(),
    node_fault(
        "the host does not forward IPv6",
        "sysctl -w net.ipv6.conf.all.forwarding=0",
        "ipv6-forwarding",
        "true",
    )
    .loses_probes(),
];

/// Simultaneous faults, by name.
pub(super) const PAIRS: &[[&str; 2]] = &[
    ["mangle FORWARD drops pods", "raw PREROUTING drops the tunnel"],
    ["ip_forward is 0", "DOCKER-USER drops all"],
    ["the bridge is down", "OUTPUT drops the tunnel"],
    ["a list of blocked hosts has the peers", "ip_forward is 0"],
    ["the daemon ended", "ip_forward is 0"],
];
