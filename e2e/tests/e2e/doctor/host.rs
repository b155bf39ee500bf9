//! Faults of a host: its sysctls, firewalls, routes, files and programs.

use anyhow::{Context, Result, bail, ensure};
use lab::{FlanneldOptions, Lab, Store, code_or_text, until_ok};

use super::NETWORK;
use super::fault::{Fault, fault, walk};
use super::node::{Node, all_well, well_nodes};

/// Reserves every address of the node's subnet, including one address for a running container.
const FULL: &str = "folder=/var/lib/cni/networks/cbr0; mkdir -p $folder /run/containerd/io.containerd.runtime.v2.task/k8s.io/alive
for number in $(seq 2 254); do printf 'gone%s\\r\\neth0' $number > $folder/$OWN.$number; done
printf 'alive\\r\\neth0' > $folder/$OWN.7; echo $OWN.254 > $folder/last_reserved_ip.0; touch $folder/lock; touch -d '1 hour ago' $folder/*
printf 'young\\r\\neth0' > $folder/$OWN.8; touch $folder/$OWN.8";

/// Hides the iptables program from the daemon.
const NO_IPTABLES: &str = "nsenter -m -t $(cat /run/flanneld.pid) mount --bind /dev/null $(readlink -f $(command -v iptables))";
const IPTABLES: &str =
    "nsenter -m -t $(cat /run/flanneld.pid) umount $(readlink -f $(command -v iptables))";

const FAULTS: &[Fault] = &[
    // Afterwards simulates a boot: the remedy's files fix the fault again.
    fault("ip-forward", "sysctl -q -w net.ipv4.ip_forward=0", "sysctl -q -w net.ipv4.ip_forward=0; sysctl -q -p /etc/sysctl.d/99-zz-flannel.conf"),
    fault(
        "bridge-nf-call",
        "sysctl -q -w net.bridge.bridge-nf-call-iptables=0",
        "sysctl -q -w net.bridge.bridge-nf-call-iptables=0; sysctl -q -p /etc/sysctl.d/99-zz-flannel.conf",
    ),
    fault(
        "forward-policy",
        "nft 'table inet wall { chain gate { type filter hook forward priority 7; policy drop; }; }'",
        "nft delete table inet wall",
    ),
    fault(
        "forward-reject",
        "iptables -I FORWARD -j REJECT",
        // Simulates a boot: the rejecting rule is back, and the remedy's units run.
        "iptables -D FORWARD -s 10.5.0.0/16 -j ACCEPT; iptables -D FORWARD -d 10.5.0.0/16 -j ACCEPT
        sed -n 's/^ExecStart=//p' /etc/systemd/system/flannel-forward-*.service | sh -e",
    ),
    fault("stale-bridge", "ip link add cni0 type bridge; ip address add 10.5.254.1/24 dev cni0", "ip link delete cni0"),
    fault(
        "bridge-mtu",
        "ip link add cni0 type bridge; ip link set cni0 up; ip address add $OWN.1/24 dev cni0; ip link add veth7 mtu 1500 type veth peer name eth7; ip link set veth7 master cni0",
        "ip link delete veth7; ip link delete cni0",
    ),
    fault("network-overlap", "ip link add other type bridge; ip address add 10.5.253.1/24 dev other", "ip link delete other").by_hand(),
    fault("foreign-route", "ip route replace $PEER via 192.168.56.250 dev enp0s8", "ip route delete $PEER metric 4096"),
    fault("foreign-cni", "echo '{\"plugins\":[{\"type\":\"calico\"}]}' > /etc/cni/net.d/05-calico.conflist", "rm /etc/cni/net.d/*.aside"),
    fault("cni-config", "echo '{\"type\":\"bridge\"}' > /etc/cni/net.d/05-other.conf", "rm /etc/cni/net.d/*.aside"),
    fault("ipam-full", FULL, "test -e /var/lib/cni/networks/cbr0/$OWN.7 -a -e /var/lib/cni/networks/cbr0/$OWN.8 -a -e /var/lib/cni/networks/cbr0/lock"),
    fault("subnet-env", "rm /run/flannel/subnet.env; mkdir /run/flannel/subnet.env", "rmdir /run/flannel/subnet.env.aside").unready(),
    fault("lease-refused", "echo '{\"PublicIP\":\"192.168.56.77\",\"BackendType\":\"vxlan\",\"BackendData\":{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:00:77\"}}' > $LEASES/subnets/10.6.1.0-24", "rm $LEASES/subnets/10.6.1.0-24").by_hand(),
    fault("lease-refused", "echo '{' > $LEASES/subnets/10.5.77.0-24", "rm $LEASES/subnets/10.5.77.0-24").by_hand(),
    fault("duplicate-address", "echo '{\"PublicIP\":\"192.168.56.101\",\"BackendType\":\"vxlan\",\"BackendData\":{\"VNI\":1,\"VtepMAC\":\"02:00:00:00:00:77\"}}' > $LEASES/subnets/10.5.77.0-24", "rm $LEASES/subnets/10.5.77.0-24").by_hand(),
    fault("rules", NO_IPTABLES, IPTABLES).by_hand().unready(),
    fault("no-interface", "ip link set enp0s8 down", "true").unready(),
    fault("hangs", "kill -STOP $(cat /run/flanneld.pid)", "true").silent(),
    fault("not-running", "kill -9 $(cat /run/flanneld.pid)", "true").silent(),
];

/// Returns the names of the doctor's checks for host faults that the doctor's commands fix.
pub(super) fn mended() -> impl Iterator<Item = &'static str> {
    super::fault::mended(FAULTS)
}

#[test]
fn host_faults_are_found_and_fixed_by_their_commands() -> Result<()> {
    // Keeps the nodes' own subnets apart from those that the faults use.
    let network = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.200.0","Backend":{"Type":"vxlan"}}"#;
    well_nodes(network, "doctor: faults", 2, |lab, _, nodes| {
        let node = &mut nodes[0];
        node.variables
            .push(("LEASES", lab.folder("leases")?.display().to_string()));
        walk(node, FAULTS)?;
        all_well(nodes).context("after all of them")?;

        // The daemon remembers this fault for ten minutes, so it comes last.
        let node = &mut nodes[0];
        for _ in 0..5 {
            node.run("ip route delete $PEER; until ip route show $PEER | grep -q flannel; do sleep 0.1; done; sleep 0.5")?;
        }
        node.expect(&["drift-war"])?;
        let (first, peer) = (
            node.first()?,
            node.variables
                .iter()
                .find(|(name, _)| *name == "PEER")
                .map(|(_, peer)| peer.clone()),
        );
        ensure!(
            first["about"] == format!("route to {}", peer.unwrap_or_default()),
            "{first}"
        );
        ensure!(node.readyz()?.0 == 200, "{:?}", node.readyz()?);
        Ok(())
    })
}

/// Checks that the finding names the test process as the owner of the port.
fn names_us(node: &mut Node) -> Result<()> {
    let us = format!("(pid {})", std::process::id());
    let seen = node.first()?["evidence"][0]["text"].clone();
    ensure!(
        seen.as_str()
            .is_some_and(|text| text.contains(code_or_text("port-taken", &us))),
        "{seen}"
    );
    Ok(())
}

/// The doctor reports another program that uses a port that flanneld needs. The test creates its own hosts.
#[test]
fn port_conflict_is_reported_with_its_owner_and_resolved() -> Result<()> {
    Lab::run("doctor: ports", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(NETWORK)?;
        let options = FlanneldOptions::bare().iface("enp0s8");
        let mut node = Node::new(lab, &hosts[0], &options, &store)?;
        status_port_moves(&mut node)?;
        tunnel_port_is_waited_for(&mut node)?;

        let options = options
            .healthz_port(None)
            .env("FLANNELD_HEALTHZ_PORT", "8471");
        health_port_ends_the_start(&mut Node::new(lab, &hosts[1], &options, &store)?)
    })
}

fn status_port_moves(node: &mut Node) -> Result<()> {
    let _owner = node
        .host
        .netns()
        .run(|| std::net::TcpListener::bind("127.0.0.1:8474"))??;
    node.start()?;
    node.ready()?;
    node.expect(&["port-taken"])?;
    names_us(node)?;
    node.mend()?;
    node.ready()?;
    node.expect(&[])?;
    ensure!(
        node.daemon()?.log().contains("127.0.0.1:8574"),
        "the status API moved"
    );
    Ok(())
}

/// Checks that the doctor reports another program that uses the tunnel's port. No flag changes the tunnel's
/// port, because all nodes use the same port. The daemon retries for a while, then exits.
fn tunnel_port_is_waited_for(node: &mut Node) -> Result<()> {
    node.stop()?;
    until_ok("the device's address does not change unseen", || {
        node.run("ip link set flannel.1 address 02:00:00:00:00:99")?;
        let folded = node.folded("vtep-mac")?;
        ensure!(folded.as_deref() == Some("not-running"), "{folded:?}");
        Ok(())
    })?;
    node.run("ip link delete flannel.1")?;
    let owner = node
        .host
        .netns()
        .run(|| std::net::UdpSocket::bind("0.0.0.0:8472"))??;
    node.start()?;
    // A daemon that starts or ends has no socket for a moment. The doctor must not blame another program then.
    for _ in 0..60 {
        node.doctor()?;
    }
    node.expect(&["port-taken"])?;
    names_us(node)?;
    drop(owner);
    node.restart()?;
    node.ready()?;
    node.expect(&[])
}

fn health_port_ends_the_start(node: &mut Node) -> Result<()> {
    let _owner = node
        .host
        .netns()
        .run(|| std::net::TcpListener::bind("0.0.0.0:8471"))??;
    node.start()?;
    node.expect(&["port-taken"])?;
    names_us(node)?;
    ensure!(
        node.folded("not-running")?.as_deref() == Some("port-taken"),
        "{:#}",
        node.doctor()?.1
    );
    let commands = node.commands()?;
    let [moved, _] = commands.as_slice() else {
        bail!("{commands:?}")
    };
    ensure!(moved.contains("FLANNELD_HEALTHZ_PORT=8571"), "{moved}");
    Ok(())
}
