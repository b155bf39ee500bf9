//! Tests of the doctor on hosts whose default route leads through a NAT interface, as on Vagrant machines.

use anyhow::{Context, Result, ensure};
use lab::{Etcd, EtcdOptions, FlanneldOptions, Lab, PingMatrix, Store, Uplink, Vagrant, until_ok};

use super::node::{Node, create_pod_on_each_node, wait_all_nodes_healthy};
use crate::healing::scenarios;
use crate::install::operator::documented_remedies_if_all_addresses_are_equal;

/// Hosts behind separate NAT boxes, whether their store is etcd, and the findings of the first node and of the others. Without a finding, the operator
/// has named the interface of the first node.
type Trap = (fn(&Lab) -> Result<Vagrant>, bool, &'static str, &'static str);

scenarios! { nat_trap_is_found_and_fixed;
    nat_trap_with_one_address_is_found_and_fixed => (|lab| lab.create_vagrant_with_equal_addresses(2), true, "nat-interface", "wrong-interface"),
    last_node_in_the_nat_trap_is_found_and_fixed => (|lab| lab.create_vagrant_with_different_addresses(2), false, "", "wrong-interface"),
    nat_trap_with_directory_store_is_found_and_fixed => (|lab| lab.create_vagrant_with_different_addresses(3), false, "wrong-interface", "wrong-interface"),
}

fn nat_trap_is_found_and_fixed((hosts, in_etcd, first, others): Trap) -> Result<()> {
    Lab::run("doctor: NAT", |lab| {
        let vagrant = hosts(lab)?;
        let machine = lab.create_host("store", &[Uplink::enp0s8(&vagrant.lan, 99)?])?;
        let etcd =
            in_etcd.then(|| Etcd::start(&[&machine], &EtcdOptions::default())).transpose()?;
        let store = match &etcd {
            Some(etcd) => etcd.store()?,
            None => Store::dir(&lab.ensure_folder("leases")?),
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
            node.start_without_waiting()?;
            if number == 0 || others == first {
                node.wait_ready()?;
            }
        }
        // On every node, the doctor prints the commands of docs/troubleshooting.md, and that they apply to every node.
        let [remedy, ..] = documented_remedies_if_all_addresses_are_equal()?;
        let (_, commands) = remedy.split_first().context("a remedy")?;
        let is_named = usize::from(first.is_empty());
        for (number, node) in nodes.iter_mut().enumerate().skip(is_named) {
            until_ok("the doctor prints the remedy", || {
                node.run_doctor_and_require_causes(&[if number == 0 { first } else { others }])?;
                let printed = &node.first_finding()?["remedy"];
                ensure!(
                    printed["on"] == "every node"
                        && printed["commands"] == serde_json::json!(commands),
                    "{printed:#}"
                );
                Ok(())
            })?;
        }
        let mut unnamed = nodes.iter_mut().skip(is_named);
        unnamed.try_for_each(|node| node.run_commands(commands))?;
        nodes.iter_mut().try_for_each(Node::wait_ready)?;
        let pods = create_pod_on_each_node(&mut nodes)?;
        until_ok("the pods reach each other", || {
            PingMatrix::of_main_addresses(&pods)?.require_complete()
        })?;
        wait_all_nodes_healthy(&mut nodes)
    })
}
