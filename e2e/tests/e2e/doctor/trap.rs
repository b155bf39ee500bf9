//! Tests of the doctor on hosts whose default route leads through a NAT interface, as on Vagrant machines.

use anyhow::{Context, Result, ensure};
use lab::{Etcd, EtcdOptions, FlanneldOptions, Lab, PingMatrix, Store, Uplink, Vagrant, until_ok};

use super::NETWORK;
use super::node::Node;
use crate::operator::remedies_of_the_trap;

/// Hosts behind separate NAT boxes, each with a second interface on a network that all hosts share.
struct Trap {
    title: &'static str,
    hosts: fn(&Lab) -> Result<Vagrant>,
    /// Whether the store is etcd. `false` selects a directory as the store.
    in_etcd: bool,
    /// Checks with findings on the first node.
    first: &'static [&'static str],
    /// Checks with findings on the other nodes.
    others: &'static [&'static str],
}

fn is_found_and_fixed(trap: &Trap) -> Result<()> {
    let (in_etcd, first, others) = (trap.in_etcd, trap.first, trap.others);
    Lab::run(trap.title, |lab| {
        let vagrant = (trap.hosts)(lab)?;
        let machine = lab.host("store", &[Uplink::enp0s8(&vagrant.lan, 99)?])?;
        let etcd = if in_etcd {
            Some(Etcd::start(
                &[&machine],
                &EtcdOptions::default().interface("enp0s8"),
            )?)
        } else {
            None
        };
        let store = match &etcd {
            Some(etcd) => etcd.store()?,
            None => Store::dir(&lab.folder("leases")?),
        };
        store.configure(NETWORK)?;
        let options = FlanneldOptions::bare();
        let mut nodes = vagrant
            .hosts
            .iter()
            .map(|host| Node::new(lab, host, &options, &store))
            .collect::<Result<Vec<_>>>()?;
        for (number, node) in nodes.iter_mut().enumerate() {
            node.start()?;
            if number == 0 || others == first {
                node.ready()?;
            }
        }
        for (number, node) in nodes.iter_mut().enumerate() {
            node.expect(if number == 0 { first } else { others })?;
            let (code, report) = node.doctor()?;
            let broken = report["findings"][0]["severity"] == "broken";
            ensure!(code == if broken { 3 } else { 0 }, "{code} {report:#}");
        }
        // On every node, the doctor prints the commands of docs/troubleshooting.md, and that they apply to every node.
        let [remedy, ..] = remedies_of_the_trap()?;
        let (look, commands) = remedy.split_first().context("a remedy")?;
        for node in &mut nodes {
            until_ok("the doctor says so", || {
                let (_, text) = node.sh(look)?;
                ensure!(
                    commands
                        .iter()
                        .all(|command| text.contains(command.as_str())),
                    "{text}"
                );
                let first = node.first()?;
                ensure!(
                    first["remedy"]["on"] == "every node"
                        && first["remedy"]["commands"] == serde_json::json!(commands),
                    "{first:#}"
                );
                Ok(())
            })?;
        }
        for node in &mut nodes {
            node.type_in(commands)?;
        }
        for node in &mut nodes {
            node.ready()?;
        }
        let pods = nodes.iter_mut().map(|node| {
            let env = node.daemon()?.subnet_env()?;
            node.host.pod("p1", &env)
        });
        let pods = pods.collect::<Result<Vec<_>>>()?;
        until_ok("the pods reach each other", || {
            PingMatrix::of(&pods)?.require_complete()
        })?;
        nodes.iter_mut().try_for_each(|node| node.expect(&[]))
    })
}

#[test]
fn nat_trap_with_one_address_is_found_and_fixed() -> Result<()> {
    is_found_and_fixed(&Trap {
        title: "doctor: one address",
        hosts: |lab| lab.vagrant(2),
        in_etcd: true,
        first: &["nat-interface"],
        others: &["wrong-interface"],
    })
}

const AN_ADDRESS_EACH: Trap = Trap {
    title: "doctor: an address each",
    hosts: |lab| lab.vagrant_apart(3),
    in_etcd: true,
    first: &["wrong-interface"],
    others: &["wrong-interface"],
};

#[test]
fn nat_trap_with_an_address_each_is_found_and_fixed() -> Result<()> {
    is_found_and_fixed(&AN_ADDRESS_EACH)
}

#[test]
fn nat_trap_with_directory_store_is_found_and_fixed() -> Result<()> {
    is_found_and_fixed(&Trap {
        title: "doctor: a directory",
        in_etcd: false,
        ..AN_ADDRESS_EACH
    })
}
