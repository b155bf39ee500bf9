//! Tests of the doctor on hosts whose default route leads through a NAT interface, as on Vagrant machines.

use anyhow::{Context, Result, ensure};
use lab::{Etcd, EtcdOptions, FlanneldOptions, Lab, PingMatrix, Store, Uplink, Vagrant, until_ok};

use super::node::{Node, all_well, pods_on};
use crate::healing::scenarios;
use crate::install::operator::remedies_of_the_trap;

/// Hosts behind separate NAT boxes, whether their store is etcd, and the findings of the first node and of the others. Without a finding, the operator
/// has named the interface of the first node.
type Trap = (fn(&Lab) -> Result<Vagrant>, bool, &'static str, &'static str);

scenarios! { is_found_and_fixed;
    nat_trap_with_one_address_is_found_and_fixed => (|lab| lab.vagrant(2), true, "nat-interface", "wrong-interface"),
    last_node_in_the_nat_trap_is_found_and_fixed => (|lab| lab.vagrant_apart(2), false, "", "wrong-interface"),
    nat_trap_with_directory_store_is_found_and_fixed => (|lab| lab.vagrant_apart(3), false, "wrong-interface", "wrong-interface"),
}

fn is_found_and_fixed((hosts, in_etcd, first, others): Trap) -> Result<()> {
    Lab::run("doctor: NAT", |lab| {
        let vagrant = hosts(lab)?;
        let machine = lab.host("store", &[Uplink::enp0s8(&vagrant.lan, 99)?])?;
        let etcd =
            in_etcd.then(|| Etcd::start(&[&machine], &EtcdOptions::default())).transpose()?;
        let store = match &etcd {
            Some(etcd) => etcd.store()?,
            None => Store::dir(&lab.folder("leases")?),
        };
        store.configure(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#)?;
        let node = |(number, host)| {
            let options = FlanneldOptions::bare();
            match (number, first) {
                (0, "") => Node::new(lab, host, &options.iface("enp0s8"), &store),
                _ => Node::new(lab, host, &options, &store),
            }
        };
        let hosts = vagrant.hosts.iter().enumerate();
        let mut nodes = hosts.map(node).collect::<Result<Vec<_>>>()?;
        for (number, node) in nodes.iter_mut().enumerate() {
            node.start()?;
            if number == 0 || others == first {
                node.ready()?;
            }
        }
        // On every node, the doctor prints the commands of docs/troubleshooting.md, and that they apply to every node.
        let [remedy, ..] = remedies_of_the_trap()?;
        let (_, commands) = remedy.split_first().context("a remedy")?;
        let is_named = usize::from(first.is_empty());
        for (number, node) in nodes.iter_mut().enumerate().skip(is_named) {
            until_ok("the doctor prints the remedy", || {
                node.finds(&[if number == 0 { first } else { others }])?;
                let printed = &node.first()?["remedy"];
                ensure!(
                    printed["on"] == "every node"
                        && printed["commands"] == serde_json::json!(commands),
                    "{printed:#}"
                );
                Ok(())
            })?;
        }
        let mut unnamed = nodes.iter_mut().skip(is_named);
        unnamed.try_for_each(|node| node.type_in(commands))?;
        nodes.iter_mut().try_for_each(Node::ready)?;
        let pods = pods_on(&mut nodes)?;
        until_ok("the pods reach each other", || {
            PingMatrix::of_main_addresses(&pods)?.require_complete()
        })?;
        all_well(&mut nodes)
    })
}
