//! Faults of a host: its sysctls, firewalls, routes, devices, files and ports. The doctor reports only the cause. Its commands fix the fault, and
//! then it reports no finding.

use std::net::{TcpListener, UdpSocket};

use anyhow::{Context, Result, ensure};
use lab::{FlanneldOptions, Scene, until_ok};

use super::node::{Node, run_with_healthy_nodes, wait_all_nodes_healthy};

/// Of a healthy node.
struct Fault {
    /// Finds the fault.
    check: &'static str,
    /// A script.
    make: &'static str,
    /// Removes what remains after the doctor's commands.
    clear: &'static str,
    /// The doctor has no command for the fault, and `clear` fixes it.
    by_hand: bool,
    /// The daemon is not ready until the end of the fault.
    unready: bool,
}

const fn host_fault(check: &'static str, make: &'static str, clear: &'static str) -> Fault {
    Fault { check, make, clear, by_hand: false, unready: false }
}

impl Fault {
    const fn by_hand(self) -> Fault {
        Fault { by_hand: true, ..self }
    }

    const fn unready(self) -> Fault {
        Fault { unready: true, ..self }
    }
}

/// Reserves every address of the node's subnet, one of them for a running container.
const FULL: &str = "folder=/var/lib/cni/networks/cbr0; mkdir -p $folder /run/containerd/io.containerd.runtime.v2.task/k8s.io/alive
for number in $(seq 2 254); do printf 'gone%s\\r\\neth0' $number > $folder/$OWN.$number; done
printf 'alive\\r\\neth0' > $folder/$OWN.7; echo $OWN.254 > $folder/last_reserved_ip.0; touch $folder/lock; touch -d '1 hour ago' $folder/*
printf 'young\\r\\neth0' > $folder/$OWN.8; touch $folder/$OWN.8";

/// From the daemon. Without iptables alone, nft writes the rules.
const NO_PROGRAMS: &str = "for name in iptables nft; do nsenter -m -t $(cat /run/flanneld.pid) mount --bind /dev/null $(readlink -f $(command -v $name)); done";
const PROGRAMS: &str = "for name in iptables nft; do nsenter -m -t $(cat /run/flanneld.pid) umount $(readlink -f $(command -v $name)); done";

const FAULTS: &[Fault] = &[
    // Afterwards simulates a boot: the remedy's files fix the fault again.
    host_fault("ip-forward", "sysctl -q -w net.ipv4.ip_forward=0", "sysctl -q -w net.ipv4.ip_forward=0; sysctl -q -p /etc/sysctl.d/99-zz-flannel.conf"),
    host_fault(
        "bridge-nf-call",
        "sysctl -q -w net.bridge.bridge-nf-call-iptables=0",
        "sysctl -q -w net.bridge.bridge-nf-call-iptables=0; sysctl -q -p /etc/sysctl.d/99-zz-flannel.conf",
    ),
    host_fault(
        "forward-policy",
        "nft 'table inet wall { chain gate { type filter hook forward priority 7; policy drop; }; }'",
        "nft delete table inet wall",
    ),
    host_fault(
        "forward-reject",
        "iptables -I FORWARD -j REJECT",
        // Simulates a boot: the rejecting rule is back, and the remedy's units run.
        "iptables -D FORWARD -s 10.5.0.0/16 -j ACCEPT; iptables -D FORWARD -d 10.5.0.0/16 -j ACCEPT
        sed -n 's/^ExecStart=//p' /etc/systemd/system/flannel-forward-*.service | sh -e",
    ),
    host_fault("stale-bridge", "ip link add cni0 type bridge; ip address add 10.5.254.1/24 dev cni0", "ip link delete cni0"),
    host_fault(
        "bridge-mtu",
        "ip link add cni0 type bridge; ip link set cni0 up; ip address add $OWN.1/24 dev cni0; ip link add veth7 mtu 1500 type veth peer name eth7; ip link set veth7 master cni0",
        "ip link delete veth7; ip link delete cni0",
    ),
    host_fault("foreign-route", "ip route replace $PEER via 192.168.56.250 dev enp0s8", "ip route delete $PEER metric 4096"),
    host_fault("foreign-cni", "echo '{\"plugins\":[{\"type\":\"calico\"}]}' > /etc/cni/net.d/20-calico.conflist", "rm /etc/cni/net.d/*.aside"),
    host_fault("cni-config", "echo '{\"type\":\"bridge\"}' > /etc/cni/net.d/05-other.conf", "rm /etc/cni/net.d/*.aside"),
    host_fault("ipam-full", FULL, "test -e /var/lib/cni/networks/cbr0/$OWN.7 -a -e /var/lib/cni/networks/cbr0/$OWN.8 -a -e /var/lib/cni/networks/cbr0/lock"),
    host_fault("subnet-env", "rm /run/flannel/subnet.env; mkdir /run/flannel/subnet.env", "rmdir /run/flannel/subnet.env.aside").unready(),
    host_fault("lease-refused", "echo '{' > $LEASES/subnets/10.5.77.0-24", "rm $LEASES/subnets/10.5.77.0-24").by_hand(),
    host_fault("duplicate-address", "echo '{\"PublicIP\":\"192.168.56.101\",\"BackendType\":\"vxlan\",\"BackendData\":{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:00:77\"}}' > $LEASES/subnets/10.5.77.0-24", "rm $LEASES/subnets/10.5.77.0-24").by_hand(),
    host_fault("rules", NO_PROGRAMS, PROGRAMS).by_hand().unready(),
    host_fault("no-interface", "ip link set enp0s8 down", "true").unready(),
];

const DEVICES: &[Fault] = &[
    host_fault("ipv6-forwarding", "sysctl -q -w net.ipv6.conf.all.forwarding=0", "true"),
    // The daemon restores its own device at once, so it is stopped while another device takes the name.
    host_fault(
        "foreign-device",
        "kill -STOP $(cat /run/flanneld.pid); ip link delete flannel.1; ip link add flannel.1 type bridge; kill -CONT $(cat /run/flanneld.pid)",
        "ip link delete was-flannel.1",
    )
    .unready(),
    host_fault(
        "foreign-device",
        "kill -STOP $(cat /run/flanneld.pid); ip link delete flannel.1; ip link add vx1 type vxlan id 1 dstport 8472 nolearning
        kill -CONT $(cat /run/flanneld.pid)",
        "ip link delete vx1",
    )
    .by_hand()
    .unready(),
];

/// Causes, detects and fixes one fault at a time.
fn cause_and_mend_each_fault(node: &mut Node, faults: &[Fault]) -> Result<()> {
    faults
        .iter()
        .try_for_each(|fault| cause_and_mend_fault(node, fault).with_context(|| fault.check))
}

fn cause_and_mend_fault(node: &mut Node, fault: &Fault) -> Result<()> {
    node.require_readyz(200)?;
    node.run(fault.make).context("making it")?;
    node.wait_exact_causes(&[fault.check])?;
    if fault.unready {
        until_ok("the daemon is not ready", || node.require_readyz(503))?;
    } else {
        node.require_readyz(200)?;
    }
    if !fault.by_hand {
        node.run_first_finding_commands().context("mending it")?;
        node.wait_exact_causes(&[]).context("after its commands")?;
    }
    node.run(fault.clear).context("clearing it")?;
    node.wait_exact_causes(&[]).context("afterwards")?;
    node.wait_ready()
}

#[test]
fn host_faults_are_found_and_fixed_by_their_commands() -> Result<()> {
    // Keeps the nodes' own subnets apart from those that the faults use.
    let network = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.200.0","Backend":{"Type":"vxlan"}}"#;
    run_with_healthy_nodes(Scene::with_title("doctor: faults").net(network), |_, nodes| {
        let node = &mut nodes[0];
        cause_and_mend_each_fault(node, FAULTS)?;
        // The daemon remembers this fault for ten minutes, so it comes last.
        for _ in 0..5 {
            node.run("ip route delete $PEER; until ip route show $PEER | grep -q flannel; do sleep 0.1; done; sleep 0.5")?;
        }
        node.wait_exact_causes(&["drift-war"])?;
        node.require_readyz(200)
    })
}

#[test]
fn conflicting_devices_are_found_and_renamed() -> Result<()> {
    let network = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:5::/48","Backend":{"Type":"vxlan"}}"#;
    run_with_healthy_nodes(Scene::with_title("doctor: devices").net(network), |_, nodes| {
        cause_and_mend_each_fault(&mut nodes[0], DEVICES)?;
        // A foreign device that is there when the daemon starts makes it exit.
        let node = &mut nodes[0];
        node.daemon()?.kill()?;
        node.run("ip link delete flannel.1; ip link add flannel.1 type bridge")?;
        node.start_without_waiting()?;
        node.wait_exact_causes(&["foreign-device"])?;
        node.require_finding_explained_by("not-running", "foreign-device")?;
        node.run_first_finding_commands()?;
        wait_all_nodes_healthy(nodes)
    })
}

/// Another program uses a port that flanneld needs: that of the status API, of the tunnel, or of the health endpoint.
#[test]
fn port_conflict_is_reported_with_its_owner_and_resolved() -> Result<()> {
    let options = FlanneldOptions::bare().iface("enp0s8");
    Scene::with_title("doctor: ports").without_daemons().run(|s| {
        let node = &mut Node::new(s.lab, &s[0], &options, &s.store)?;
        let host = node.host.clone();
        let owner = host.netns().run(|| TcpListener::bind("127.0.0.1:8474"))??;
        node.start_without_waiting()?;
        wait_finding_names_test_process(node)?;
        node.run_first_finding_commands()?;
        wait_all_nodes_healthy(std::slice::from_mut(node))?;
        drop(owner);

        // No flag changes the tunnel's port, because all nodes use the same port. The daemon waits until the port is free.
        node.stop()?;
        node.run("ip link delete flannel.1")?;
        let owner = host.netns().run(|| UdpSocket::bind("0.0.0.0:8472"))??;
        node.start_without_waiting()?;
        wait_finding_names_test_process(node)?;
        drop(owner);
        wait_all_nodes_healthy(std::slice::from_mut(node))?;

        let options = options.clone().healthz_port(None);
        let options = options.env("FLANNELD_HEALTHZ_PORT", "8471");
        let node = &mut Node::new(s.lab, &s[1], &options, &s.store)?;
        let host = node.host.clone();
        let _owner = host.netns().run(|| TcpListener::bind("0.0.0.0:8471"))??;
        node.start_without_waiting()?;
        // The daemon serves no metrics.
        until_ok("the doctor finds the port", || {
            node.run_doctor()?;
            let found = node.first_finding()?["check"].clone();
            ensure!(found == "port-taken", "{found}");
            Ok(())
        })?;
        let moved = node.first_finding_commands()?.remove(0);
        ensure!(moved.contains("FLANNELD_HEALTHZ_PORT=8571"), "{moved}");
        Ok(())
    })
}

/// The doctor names the test process as the owner of a port.
fn wait_finding_names_test_process(node: &mut Node) -> Result<()> {
    node.wait_exact_causes(&["port-taken"])?;
    let us = format!("(pid {})", std::process::id());
    node.require_first_finding_contains(&us)
}
