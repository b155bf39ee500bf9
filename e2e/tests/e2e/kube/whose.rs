//! Checks when a node starts, continues or stops using an interface, depending on its own Node and on other Nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Families, Lab, NodeObject, Probe, ProbeOptions, Uplink, throughout, until, until_ok};

use crate::kube::bed::{Bed, VXLAN};

/// Time longer than the minute after which a node may stop using an interface.
const LONGER_THAN_SILENCE: Duration = Duration::from_secs(80);

impl Bed {
    /// Waits until a host publishes an address and is ready.
    fn wait_public(&mut self, host: usize, address: &str) -> Result<()> {
        let name = self.hosts[host].name().to_owned();
        let outcome = until_ok(&format!("{name} publishes {address}"), || {
            self.require_public(host, address)
        });
        outcome.with_context(|| self.daemons[host].log())?;
        let daemon = &mut self.daemons[host];
        until("it is ready", || daemon.is_ready())
            .with_context(|| daemon.log())
            .map(drop)
    }

    fn require_public(&self, host: usize, address: &str) -> Result<()> {
        let public = self
            .admin()
            .flannel_annotation(self.hosts[host].name(), "public-ip")?;
        ensure!(
            public.as_deref() == Some(address),
            "public-ip is {public:?} instead of {address}"
        );
        Ok(())
    }

    /// Starts the daemon of a host without subnet.env, as at the daemon's first start.
    fn start_first(&mut self, host: usize) -> Result<()> {
        let file = self.hosts[host].subnet_file()?;
        if file.exists() {
            std::fs::remove_file(file)?;
        }
        let daemon = self.hosts[host].start_flanneld(&self.options[host])?;
        self.daemons.push(daemon);
        Ok(())
    }

    /// Drops probes and pings between nodes on every host. Packets of pods still pass.
    fn pass_pods_only(&self) -> Result<()> {
        for host in &self.hosts {
            host.netns().exec(
                "iptables",
                &["-A", "INPUT", "-p", "udp", "--dport", "8473", "-j", "DROP"],
            )?;
            host.netns()
                .exec("iptables", &["-A", "INPUT", "-p", "icmp", "-j", "DROP"])?;
        }
        Ok(())
    }
}

/// Returns a Node that flannel serves and whose kubelet reports that it is ready.
fn served(name: &str, subnet: &str, public: &str) -> Result<NodeObject> {
    let node = NodeObject::new(name)
        .pod_cidr(subnet)
        .vxlan_peer(public, "02:00:00:00:0e:01");
    Ok(node
        .internal(public.parse::<std::net::IpAddr>()?)
        .ready("True"))
}

#[test]
fn nat_interface_is_left_when_no_peer_replies() -> Result<()> {
    Lab::run("Node API: NAT addresses that Go flannel published", |lab| {
        let vagrant = lab.vagrant_apart(2)?;
        let machine = lab.host(
            "api",
            &[Uplink::enp0s8(&vagrant.lan, 99)?.gateway("192.168.56.254")?],
        )?;
        let mut bed = Bed::of(lab, &machine, Families::V4, vagrant.hosts, VXLAN)?;
        for number in 1..=2u8 {
            let (nat, mac) = (
                format!("10.0.2.{}", 14 + number),
                format!("02:00:00:00:00:0{number}"),
            );
            let node = NodeObject::new(&format!("h{number}"))
                .pod_cidr(&format!("10.244.{number}.0/24"))
                .vxlan_peer(&nat, &mac);
            bed.admin().create_node(
                &node
                    .internal(nat.parse::<std::net::IpAddr>()?)
                    .ready("True")
                    .boot(&format!("boot-{number}")),
            )?;
        }
        bed.start_daemons()?;
        // The daemon would keep an interface with which Go flannel worked. This one did not work.
        bed.require_public(0, "10.0.2.15")?;
        bed.wait_public(0, "192.168.56.101")?;
        bed.wait_public(1, "192.168.56.102")?;
        bed.start_pods()?;
        bed.reach()?;

        // Probes and pings are dropped, and two Nodes claim the nodes' addresses. Packets of pods still arrive.
        bed.pass_pods_only()?;
        bed.admin()
            .create_node(&served("evil", "10.244.66.0/24", "192.168.56.101")?)?;
        bed.admin().create_node(
            &NodeObject::new("mute")
                .internal("192.168.56.102".parse::<std::net::IpAddr>()?)
                .ready("True"),
        )?;
        let probe = Probe::start(&bed.pods[0], &bed.pods[1], &ProbeOptions::default())?;
        throughout(LONGER_THAN_SILENCE, "nobody moves", || {
            bed.require_public(0, "192.168.56.101")?;
            bed.require_public(1, "192.168.56.102")
        })?;
        // The node also keeps its interface when it starts without subnet.env.
        bed.daemons[0].kill()?;
        std::fs::remove_file(bed.hosts[0].subnet_file()?)?;
        bed.restart(0)?;
        bed.wait_public(0, "192.168.56.101")?;
        probe.finish()?.require_clean()
    })
}

#[test]
fn nodes_that_swap_their_addresses_both_start() -> Result<()> {
    Lab::run("Node API: swapped addresses", |lab| {
        let mut bed = Bed::empty(lab, 2, VXLAN)?;
        for kubelets_know in [true, false] {
            for number in 1..=2u8 {
                let (now, before) = (
                    format!("192.168.56.10{number}"),
                    format!("192.168.56.10{}", 3 - number),
                );
                let node = NodeObject::new(&format!("h{number}"))
                    .pod_cidr(&format!("10.244.{number}.0/24"));
                let reported = if kubelets_know { &now } else { &before };
                let node = node
                    .vxlan_peer(&before, &format!("02:00:00:00:00:0{number}"))
                    .internal(reported.parse::<std::net::IpAddr>()?);
                bed.admin()
                    .create_node(&node.ready("True").boot(&format!("boot-{number}")))?;
            }
            (0..2).try_for_each(|host| bed.start_first(host))?;
            (0..2).try_for_each(|host| {
                bed.wait_public(host, &format!("192.168.56.10{}", host + 1))
            })?;
            bed.daemons.clear();
            (1..=2).try_for_each(|number| bed.admin().delete_node(&format!("h{number}")))?;
        }
        Ok(())
    })
}
