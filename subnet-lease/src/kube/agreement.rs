//! Tests that all nodes agree on the holder of each subnet, in whatever order they receive the Nodes.

use super::annotations::Prefix;
use super::assigned::Assigned;
use super::node::Node;
use super::nodes::{Leases, Nodes};
use crate::admission::{Terms, admitted};
use crate::config::NetworkConfig;
use crate::lease::{Lease, LeaseAttrs, Term};
use crate::table::{self, LeaseTable};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use types::Subnets;

const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":{"Type":"vxlan"}}"#;
const V4: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// They overlap each other in all combinations, and flannel refuses some of them for every Node.
const CIDRS: [&str; 17] = [
    r#"["10.244.0.0/24"]"#,
    r#"["10.244.1.0/24"]"#,
    r#"["10.244.2.0/24"]"#,
    r#"["10.244.0.0/23"]"#,
    r#"["10.244.2.0/23"]"#,
    r#"["10.244.0.0/22"]"#,
    r#"["10.244.1.128/25"]"#,
    r#"["10.244.0.0/16"]"#,
    r#"["10.244.1.0/24","fd10:244:0:1::/64"]"#,
    r#"["fd10:244:0:1::/64","10.244.2.0/24"]"#,
    r#"["fd10:244:0:1::/64"]"#,
    r#"["10.244.3.0/24","fd10:244::/63"]"#,
    r#"["10.0.0.0/8"]"#,
    r#"["10.42.1.0/24"]"#,
    r#"["10.244.3.0/24","fd99::/64"]"#,
    r#"["10.244.1.0/24","10.244.2.0/24"]"#,
    r#"[]"#,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Annotations {
    Nothing,
    Nonsense,
    Lease,
}

/// In the form that the watch delivers.
fn node(number: usize, created: i64, cidrs: &str, kind: Annotations) -> Node {
    // A podCIDR never changes. Another one belongs to another Node with the same name.
    let uid = format!("{number}-{created}-{}", cidrs.replace('"', ""));
    let text = format!(
        r#"{{"metadata":{{"name":"n{number}","uid":"{uid}"}},"spec":{{"podCIDRs":{cidrs}}}}}"#
    );
    let mut node = Node::read(&text, &Prefix::parse("a.b").unwrap()).unwrap();
    node.created = created;
    let (v4, v6) = (format!("192.168.56.{number}"), format!("fd00:56::{number}"));
    let annotations = match kind {
        Annotations::Nothing => Vec::new(),
        Annotations::Nonsense => vec![("kube-subnet-manager", "true"), ("public-ip", "hostname")],
        Annotations::Lease => vec![
            ("kube-subnet-manager", "true"),
            ("backend-type", "vxlan"),
            ("public-ip", v4.as_str()),
            ("public-ipv6", v6.as_str()),
        ],
    };
    node.annotations =
        annotations.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    node
}

/// From the oldest to the newest, each Node that overlaps no older holder.
fn holders<'a>(nodes: &'a [Node], config: &NetworkConfig) -> BTreeSet<&'a str> {
    let mut by_age: Vec<(&Node, Subnets)> = nodes
        .iter()
        .filter_map(|node| {
            Some((
                node,
                super::nodes::trimmed(&node.subnets.clone().ok().flatten()?, &config.networks)?,
            ))
        })
        .filter(|(_, subnets)| table::inside(subnets, &config.networks))
        .collect();
    by_age.sort_by(|(a, _), (b, _)| (a.created, &a.name).cmp(&(b.created, &b.name)));
    let mut held: Vec<(&Node, Subnets)> = Vec::new();
    for (node, subnets) in by_age {
        if !held.iter().any(|(_, theirs)| theirs.overlaps(&subnets)) {
            held.push((node, subnets));
        }
    }
    held.into_iter().map(|(node, _)| node.name.as_str()).collect()
}

#[derive(Clone, Debug)]
enum Event {
    Put(Box<Node>),
    Gone(String),
    List,
}

/// The Nodes of a cluster, and a sequence of watch events that ends with them.
fn cluster() -> impl Strategy<Value = (Vec<Node>, Vec<Event>)> {
    let kind = || prop_oneof![1 => Just(Annotations::Nothing), 1 => Just(Annotations::Nonsense), 4 => Just(Annotations::Lease)];
    let what = move || (0..3i64, 0..CIDRS.len(), kind());
    let nodes = proptest::collection::vec(what(), 2..9);
    let before = proptest::collection::vec((0..9usize, proptest::option::of(what())), 0..9);
    (nodes, before).prop_flat_map(|(nodes, before)| {
        let made = |number: usize, (created, cidrs, kind): (i64, usize, Annotations)| {
            node(number, created, CIDRS[cidrs], kind)
        };
        let nodes: Vec<Node> =
            nodes.into_iter().enumerate().map(|(number, what)| made(number, what)).collect();
        let mut early: Vec<Event> = Vec::new();
        for (number, what) in before {
            early.push(what.map_or(Event::Gone(format!("n{number}")), |what| {
                Event::Put(Box::new(made(number, what)))
            }));
        }
        // A Node that exists only for a while must be gone before the end.
        let gone = (nodes.len()..9).map(|number| Event::Gone(format!("n{number}")));
        let late: Vec<Event> = nodes
            .iter()
            .map(|node| Event::Put(Box::new(node.clone())))
            .chain(gone)
            .chain([Event::List])
            .collect();
        (Just(nodes), Just(early), Just(late).prop_shuffle()).prop_map(|(nodes, early, late)| {
            (nodes, early.into_iter().chain(late).collect::<Vec<_>>())
        })
    })
}

/// What a node knows after the given events.
fn seen(
    own: &str,
    cluster: &[Node],
    events: &[Event],
    config: &NetworkConfig,
) -> (Nodes, Leases, LeaseTable) {
    let mut nodes = Nodes::new(own);
    nodes.serve(config.networks);
    let mut before = Leases::default();
    let mut raw = LeaseTable::default();
    for event in before.reset(&before) {
        raw.apply(event);
    }
    for (at, event) in events.iter().enumerate() {
        let now = Duration::from_secs(at as u64);
        let _ = match event {
            Event::Put(node) => nodes.put(Node::clone(node), now),
            Event::Gone(name) => nodes.remove(name),
            // Not every node reads a list at that moment.
            Event::List if own.ends_with(['1', '3', '5']) => nodes.replace(cluster.to_vec(), now),
            Event::List => false,
        };
        let (leases, _) = nodes.leases(now);
        for event in leases.since(&before) {
            raw.apply(event);
        }
        before = leases;
    }
    // Removed marks do not stay in effect forever.
    let (leases, _) = nodes.leases(Duration::from_secs(1000));
    for event in leases.since(&before) {
        raw.apply(event);
    }
    (nodes, leases, raw)
}

fn terms(config: &NetworkConfig, own: Option<Lease>) -> Terms {
    let config = own.as_ref().map_or_else(|| config.clone(), |own| config.only(&own.subnets));
    Terms {
        config,
        own,
        local: Vec::new(),
        underlay: Vec::new(),
        links: None,
        rules: Arc::new(()),
        history: Arc::default(),
    }
}

proptest! {

    #[test]
    fn all_nodes_agree_on_who_has_which_subnet((cluster, events) in cluster(), dual: bool) {
        let config = NetworkConfig::parse_assigned(if dual { DUAL } else { V4 }).unwrap();
        let holders = holders(&cluster, &config);
        let annotations = |name: &str| cluster.iter().find(|node| node.name == name).map_or(0, |node| node.annotations.len());
        for own in &cluster {
            let (nodes, leases, raw) = seen(&own.name, &cluster, &events, &config);
            // What the node decides about itself.
            let assigned = Assigned::of(own, &config, &nodes, Path::new("net-conf.json"));
            prop_assert_eq!(assigned.is_ok(), holders.contains(own.name.as_str()), "{}: {:?}", &own.name, assigned);
            // What the node decides about the others.
            let name = |lease: &Lease| lease.attrs.node.as_ref().map(|node| node.id.to_string()).unwrap_or_default();
            let readable: BTreeSet<String> = leases.readable.values().map(|lease| name(lease)).collect();
            let wanted: BTreeSet<String> =
                holders.iter().filter(|holder| **holder != own.name && annotations(holder) == 4).map(|holder| (*holder).to_owned()).collect();
            prop_assert_eq!(&readable, &wanted, "{} sees {:?}", &own.name, leases.left_out);
            // The leases in force match: those with a family of ours, and no others.
            let lease = assigned.ok().map(|assigned| Lease { subnets: assigned.subnets, attrs: LeaseAttrs::default(), term: Term::Reserved, since: own.created });
            let terms = terms(&config, lease);
            let in_force: BTreeSet<String> = admitted(&raw, &LeaseTable::default(), &terms).0.iter().map(name).collect();
            prop_assert!(in_force.iter().all(|name| holders.contains(name.as_str())), "{}: {in_force:?} of {holders:?}", &own.name);
            let of_ours = |lease: &&Arc<Lease>| lease.subnets.v4().is_some() && terms.config.networks.v4().is_some() || lease.subnets.v6().is_some() && terms.config.networks.v6().is_some();
            for lease in leases.readable.values().filter(of_ours) {
                prop_assert!(in_force.contains(&name(lease)), "{} does not use {}", &own.name, name(lease));
            }
            // While the node's own Node is gone, another Node may have a part of its subnets. The other nodes must regard that Node as the holder.
            let without: Vec<Node> = cluster.iter().filter(|node| node.name != own.name).cloned().collect();
            let heirs = self::holders(&without, &config);
            if let Ok(Some(subnets)) = own.subnets.clone() {
                let holder = super::nodes::trimmed(&subnets, &config.networks).and_then(|subnets| nodes.holder(&subnets));
                prop_assert!(holder.is_none_or(|holder| heirs.contains(holder)), "{holder:?} of {heirs:?}");
            }
        }
    }
}
