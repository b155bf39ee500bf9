//! Checks when a node starts, continues or stops using an interface, depending on its own Node and on other Nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Families, Lab, NodeObject, Probe, ProbeOptions, Uplink, throughout, until, until_ok};
use serde_json::json;

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

    /// Returns the texts of the Events about interfaces.
    fn events(&self) -> Result<Vec<String>> {
        let events = self.admin().get("/api/v1/namespaces/default/events")?;
        let of_interface = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|event| event["reason"] == "FlannelInterface");
        Ok(of_interface
            .filter_map(|event| event["message"].as_str())
            .map(str::to_owned)
            .collect())
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

/// Function that edits a Node, which already has a name, a podCIDR and an InternalIP.
type EditNode = fn(NodeObject) -> NodeObject;

/// Test cases in which two Nodes have the same address: case name, edit of the host's Node, edit of the other Node, published address.
const CLAIMS: &[(&str, EditNode, EditNode, &str)] = &[
    (
        "a dead Node",
        |node| node,
        |other| other.vxlan_peer(H1, MAC).ready("Unknown"),
        H1,
    ),
    (
        "a Node made manually",
        |node| node,
        |other| other.vxlan_peer(H1, MAC),
        H1,
    ),
    (
        "this machine under its former name",
        |node| node.boot("one"),
        |other| other.vxlan_peer(H1, MAC).ready("True").boot("one"),
        H1,
    ),
    (
        "a kubelet without flannel",
        |node| node,
        |other| other.ready("True"),
        H1,
    ),
    (
        "another site with the same private range",
        |node| node.flannel("public-ip-overwrite", "203.0.113.7"),
        |other| other.vxlan_peer(H1, MAC).ready("True"),
        "203.0.113.7",
    ),
];
const H1: &str = "192.168.56.101";
const MAC: &str = "02:00:00:00:0e:02";

#[test]
fn address_claims_of_ignored_nodes_do_not_block_the_start() -> Result<()> {
    Lab::run("Node API: claims", |lab| {
        let mut bed = Bed::empty(lab, 1, VXLAN)?;
        let own = |bed: &Bed| bed.node(1).ready("True");
        for (name, ours, theirs, public) in CLAIMS {
            println!("{name}");
            bed.admin().create_node(&theirs(
                NodeObject::new("other")
                    .pod_cidr("10.244.66.0/24")
                    .internal(H1.parse::<std::net::IpAddr>()?),
            ))?;
            bed.admin().create_node(&ours(own(&bed)))?;
            bed.start_first(0)?;
            bed.wait_public(0, public)
                .with_context(|| (*name).to_owned())?;
            bed.daemons.clear();
            bed.admin().delete_node("other")?;
            bed.admin().delete_node("h1")?;
        }

        // This claim applies: the daemon waits and logs it once, although pods come and go.
        bed.admin()
            .create_node(&served("other", "10.244.66.0/24", H1)?)?;
        bed.admin().create_node(&own(&bed))?;
        bed.start_first(0)?;
        let named = format!("{H1} (Node other)");
        until("it says who has its address", || {
            bed.daemons[0].log().contains(&named)
        })
        .with_context(|| bed.daemons[0].log())?;
        for number in 0..5 {
            bed.hosts[0]
                .netns()
                .ip(&format!("link add veth{number} type veth peer name peer{number}\nlink set veth{number} up\nlink set peer{number} up"))?;
        }
        throughout(Duration::from_secs(15), "it waits", || {
            ensure!(!bed.daemons[0].is_ready(), "{}", bed.daemons[0].log());
            Ok(())
        })?;
        let events = bed.events()?;
        ensure!(
            events.iter().filter(|text| text.contains(&named)).count() == 1,
            "{events:#?}"
        );
        let log = bed.daemons[0].log();
        ensure!(
            log.lines()
                .filter(|line| line.contains("no usable interface yet"))
                .count()
                == 1
                && !log.contains("veth"),
            "{log}"
        );
        // That Node's machine dies.
        let dead = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "reason": "Test", "message": "by a test" }] } });
        bed.admin().patch_node_status("other", &dead)?;
        bed.wait_public(0, H1)
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

#[test]
fn lan_with_a_nat_like_router_is_used_despite_a_storage_network() -> Result<()> {
    Lab::run("Node API: a LAN with the router 10.0.2.2", |lab| {
        let (lan, storage) = (lab.switch("lan")?, lab.switch("storage")?);
        lab.host(
            "router",
            &[Uplink::new(&lan, "eth0").address("10.0.2.2/24")?],
        )?;
        let machine = lab.host(
            "api",
            &[Uplink::new(&lan, "eth0")
                .address("10.0.2.99/24")?
                .gateway("10.0.2.2")?],
        )?;
        let host = |number: u8| {
            let uplink = Uplink::new(&lan, "eth0")
                .address(&format!("10.0.2.{}/24", 20 + number))?
                .gateway("10.0.2.2")?;
            lab.host(
                &format!("h{number}"),
                &[
                    uplink,
                    Uplink::new(&storage, "storage0").address(&format!("10.9.0.{number}/24"))?,
                ],
            )
        };
        // With host-gw, packets of pods pass no device that would count them.
        let host_gw = VXLAN.replace("vxlan", "host-gw");
        let mut bed = Bed::of(
            lab,
            &machine,
            Families::V4,
            vec![host(1)?, host(2)?],
            &host_gw,
        )?;
        for number in 1..=2u8 {
            let node =
                NodeObject::new(&format!("h{number}")).pod_cidr(&format!("10.244.{number}.0/24"));
            bed.admin().create_node(
                &node
                    .internal(std::net::IpAddr::from([10, 0, 2, 20 + number]))
                    .ready("True")
                    .boot(&format!("boot-{number}")),
            )?;
        }
        bed.start_daemons()?;
        (0..2).try_for_each(|host| bed.wait_public(host, &format!("10.0.2.2{}", host + 1)))?;
        bed.start_pods()?;
        bed.reach()?;
        // The node keeps the interface even if only packets of pods pass and a Node claims its address.
        bed.pass_pods_only()?;
        bed.admin()
            .create_node(&served("evil", "10.244.66.0/24", "10.0.2.21")?)?;
        let probe = Probe::start(&bed.pods[0], &bed.pods[1], &ProbeOptions::default())?;
        throughout(LONGER_THAN_SILENCE, "nobody moves", || {
            (0..2).try_for_each(|host| bed.require_public(host, &format!("10.0.2.2{}", host + 1)))
        })?;
        probe.finish()?.require_clean()
    })
}

#[test]
fn mistyped_annotation_is_reported_and_one_of_the_interface_blocks_the_start() -> Result<()> {
    Lab::run("Node API: typos", |lab| {
        let mut bed = Bed::empty(lab, 1, VXLAN)?;
        let key = |name: &str| format!("{}{name}", lab::ANNOTATIONS);
        bed.admin().create_node(
            &bed.node(1)
                .ready("True")
                .flannel("node-public-ip", "10.7.7.7/24"),
        )?;
        bed.start_first(0)?;
        let words = [
            key("node-public-ip"),
            "10.7.7.7/24".to_owned(),
            "kubectl annotate node h1".to_owned(),
        ];
        until("it says what is wrong", || {
            words
                .iter()
                .all(|word| bed.daemons[0].log().contains(word.as_str()))
        })
        .with_context(|| bed.daemons[0].log())?;
        throughout(Duration::from_secs(3), "it waits", || {
            ensure!(!bed.daemons[0].is_ready(), "{}", bed.daemons[0].log());
            Ok(())
        })?;
        ensure!(
            bed.admin().flannel_annotation("h1", "public-ip")?.is_none(),
            "it published something"
        );
        bed.admin().annotate("h1", &key("node-public-ip"), None)?;
        bed.wait_public(0, H1)?;
        // The address for peers is mistyped: the node continues.
        bed.admin()
            .annotate("h1", &key("public-ip-overwrite"), Some("203.0.113.5:8472"))?;
        let warnings = || {
            bed.daemons[0]
                .log()
                .lines()
                .filter(|line| line.contains("203.0.113.5:8472"))
                .count()
        };
        until("it says what it ignores", || warnings() == 1)
            .with_context(|| bed.daemons[0].log())?;
        // There is at most one Event a minute with this reason.
        let seen = |value: &str| {
            bed.events()
                .is_ok_and(|events| events.iter().any(|text| text.contains(value)))
        };
        until("there are Events", || {
            seen("10.7.7.7/24") && seen("203.0.113.5:8472")
        })
        .with_context(|| format!("{:?}", bed.events()))?;
        ensure!(
            warnings() == 1 && bed.daemons[0].is_ready(),
            "{}",
            bed.daemons[0].log()
        );
        bed.require_public(0, H1)
    })
}
