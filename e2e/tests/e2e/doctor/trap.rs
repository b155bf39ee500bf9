//! The trap: a NAT interface with the default route on each machine.

use anyhow::{Context, Result, ensure};
use lab::{
    Etcd, EtcdOptions, FlanneldOptions, Lab, PingMatrix, Store, Uplink, Vagrant, eventually_ok,
};

use super::node::Node;
use super::{DEADLINE, NETWORK, SOON};
use crate::operator::ways_out_of_the_trap;

/// The trap: hosts behind a NAT box each, and a second interface that joins them.
fn trap(
    title: &str,
    vagrant: impl Fn(&Lab) -> Result<Vagrant>,
    in_etcd: bool,
    first: &[&str],
    others: &[&str],
) -> Result<()> {
    Lab::run(title, |lab| {
        let vagrant = vagrant(lab)?;
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
        // On every node what the page says, from the first look on: the doctor says the same, and that it is for every node.
        let [way, ..] = ways_out_of_the_trap()?;
        let (look, commands) = way.split_first().context("a way")?;
        for node in &mut nodes {
            eventually_ok(DEADLINE, "the doctor says so", || {
                let (_, said) = node.sh(look)?;
                ensure!(
                    commands
                        .iter()
                        .all(|command| said.contains(command.as_str())),
                    "{said}"
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
        eventually_ok(SOON, "the pods reach each other", || {
            PingMatrix::of(&pods)?.require_complete()
        })?;
        nodes.iter_mut().try_for_each(|node| node.expect(&[]))
    })
}

#[test]
fn the_trap_with_one_address_everywhere() -> Result<()> {
    trap(
        "doctor: one address",
        |lab| lab.vagrant(2),
        true,
        &["nat-interface"],
        &["wrong-interface"],
    )
}

#[test]
fn the_trap_with_an_address_each() -> Result<()> {
    trap(
        "doctor: an address each",
        |lab| lab.vagrant_apart(3),
        true,
        &["wrong-interface"],
        &["wrong-interface"],
    )
}

#[test]
fn the_trap_with_leases_in_a_directory() -> Result<()> {
    trap(
        "doctor: a directory",
        |lab| lab.vagrant_apart(3),
        false,
        &["wrong-interface"],
        &["wrong-interface"],
    )
}
