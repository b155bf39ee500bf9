//! Faults of the store, of the network configuration in the store, and of leases and identities.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use lab::{Certificates, EtcdOptions, EtcdVersion, FlanneldOptions, Scene, binaries, until_ok};

use super::node::{Node, create_stopped_nodes, run_with_healthy_nodes, wait_all_nodes_healthy};

const WRONG: &str = r#"{"Network":"10.5.0.0/16","SubnetLen":99,"Backend":{"Type":"vxlan"}}"#;

fn bare_options_on_enp0s8() -> FlanneldOptions {
    FlanneldOptions::bare().iface("enp0s8")
}

/// The only finding is an unreachable store, and it names the cause.
fn wait_store_finding_with_cause(node: &mut Node, cause: &str) -> Result<()> {
    node.wait_exact_causes(&["store-unreachable"])?;
    node.require_first_finding_contains(cause)
}

/// Outages of etcd: a killed process, then a hanging process, then a missing route to etcd.
#[test]
fn unreachable_etcd_is_reported_with_its_cause() -> Result<()> {
    let scene = Scene::with_title("doctor: store").etcd().nodes(1);
    run_with_healthy_nodes(scene, |s, nodes| {
        let etcd = s.etcd.as_mut().context("an etcd")?;
        let node = &mut nodes[0];
        etcd.kill(0)?;
        wait_store_finding_with_cause(node, "refuses the connection")?;
        node.require_readyz(200)?;
        ensure!(node.first_finding()?["remedy"]["on"] == "the store's machine");
        etcd.start_stopped_member(0)?;
        node.wait_exact_causes(&[]).context("after it was killed")?;

        etcd.process(0)?.send_sigstop()?;
        wait_store_finding_with_cause(node, "192.168.56.199")?;
        etcd.process(0)?.send_sigcont()?;
        node.wait_exact_causes(&[]).context("after it hung")?;

        node.run("ip route add unreachable 192.168.56.199/32")?;
        wait_store_finding_with_cause(node, "no route")?;
        node.run("ip route delete unreachable 192.168.56.199/32")?;
        wait_all_nodes_healthy(nodes)
    })
}

/// etcd's certificate is expired or not valid yet, or this node trusts another authority.
#[test]
fn mismatched_certificates_are_reported_with_their_cause() -> Result<()> {
    let scene = Scene::with_title("doctor: certificates").etcd_with(EtcdOptions::default().tls());
    scene.without_daemons().run(|s| {
        let client = s.etcd.as_ref().context("an etcd")?.client_on_first_member()?;
        let files = client.certificates().context("no certificates")?;
        let mut nodes = create_stopped_nodes(s, &bare_options_on_enp0s8())?;
        let node = &mut nodes[0];
        for (years, cause) in [((2001, 2002), "expired"), ((2100, 2101), "not valid yet")] {
            files.renew_server(Some(years))?;
            node.start_without_waiting()?;
            wait_store_finding_with_cause(node, cause)?;
            node.require_readyz(503)?;
        }
        files.renew_server(None)?;

        let etcd = IpAddr::from([192, 168, 56, 199]);
        let other = Certificates::create(&s.lab.ensure_folder("other")?, &[etcd])?;
        let node = &mut nodes[1];
        let trusted = node.files.join("default/ca.pem");
        std::fs::copy(other.ca(), &trusted)?;
        node.run(&format!(
            "sed -i 's|^FLANNELD_ETCD_CAFILE=.*|FLANNELD_ETCD_CAFILE={}|' /etc/default/flanneld",
            trusted.display()
        ))?;
        node.start_without_waiting()?;
        wait_store_finding_with_cause(node, "authority")?;
        node.require_readyz(503)?;
        std::fs::copy(files.ca(), &trusted)?;
        node.restart_without_waiting()?;
        nodes.iter_mut().try_for_each(Node::wait_ready)?;
        wait_all_nodes_healthy(&mut nodes)
    })
}

/// A network configuration that is missing or wrong, or that is of a backend that does not exist.
#[test]
fn unusable_configuration_is_reported_and_created() -> Result<()> {
    Scene::with_title("doctor: configuration").without_daemons().run(|s| {
        let mut nodes = create_stopped_nodes(s, &bare_options_on_enp0s8())?;
        let node = &mut nodes[0];
        node.run("rm $LEASES/config")?;
        node.start_without_waiting()?;
        node.wait_exact_causes(&["config"])?;
        node.require_readyz(503)?;
        node.run_first_finding_commands()?;
        node.wait_ready()?;
        node.wait_exact_causes(&[])?;

        s.store.configure(WRONG)?;
        let node = &mut nodes[1];
        node.start_without_waiting()?;
        node.wait_exact_causes(&["config"])?;
        node.require_first_finding_contains("SubnetLen")?;
        s.store.configure(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"ipsec"}}"#)?;
        node.daemon()?.wait()?;
        node.wait_exact_causes(&["config"])?;
        node.require_first_finding_contains("ipsec")?;
        node.require_finding_explained_by("not-running", "config")?;
        s.store.configure(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#)?;
        node.run_first_finding_commands()?;
        node.wait_ready()
    })
}

/// Loss of all data in etcd while daemons run, and later a different network configuration.
#[test]
fn lost_or_changed_configuration_is_put_back_or_taken() -> Result<()> {
    run_with_healthy_nodes(Scene::with_title("doctor: wiped").etcd(), |s, nodes| {
        let client = s.etcd.as_ref().context("an etcd")?.client_on_first_member()?;
        let leases = s.store.lease_names_and_values()?;
        let etcdctl = nodes[0].files.join("bin/etcdctl");
        std::os::unix::fs::symlink(
            binaries::etcd_program("etcdctl", EtcdVersion::Distributed)?,
            etcdctl,
        )?;

        client.etcdctl(&["del", "--prefix", ""])?;
        for node in nodes.iter_mut() {
            node.wait_exact_causes(&["next-config"])?;
            node.require_readyz(200)?;
        }
        until_ok("the leases are back", || {
            let now = s.store.lease_names_and_values()?;
            ensure!(now == leases, "{now:?}, before {leases:?}");
            Ok(())
        })?;
        nodes[0].run_first_finding_commands()?;
        wait_all_nodes_healthy(nodes)?;

        s.store.configure(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":9}}"#)?;
        for node in nodes.iter_mut() {
            node.wait_exact_causes(&["next-config"])?;
            node.run_first_finding_commands()?;
        }
        wait_all_nodes_healthy(nodes)
    })
}

#[test]
fn node_without_a_free_subnet_is_reported() -> Result<()> {
    let network = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.7.0","SubnetMax":"10.5.7.0","Backend":{"Type":"vxlan"}}"#;
    Scene::with_title("doctor: pool").net(network).without_daemons().run(|s| {
        let mut nodes = create_stopped_nodes(s, &bare_options_on_enp0s8())?;
        nodes[0].start_without_waiting()?;
        nodes[0].wait_ready()?;
        nodes[1].start_without_waiting()?;
        nodes[1].wait_exact_causes(&["lease"])?;
        nodes[1].require_readyz(503)?;
        // The command lists the leases. The operator decides which one may go.
        nodes[1].run_first_finding_commands()?;
        nodes[0].daemon()?.terminate()?;
        nodes[1].run(
            "(set -a; . /etc/default/flanneld; flannelctl release --force --yes 10.5.7.0/24)",
        )?;
        wait_all_nodes_healthy(&mut nodes[1..])
    })
}

#[test]
fn cloned_machine_is_reported_and_gets_its_own_identity() -> Result<()> {
    Scene::with_title("doctor: clone").without_daemons().run(|s| {
        let mut nodes = create_stopped_nodes(s, &bare_options_on_enp0s8())?;
        for node in &mut nodes {
            node.run("echo FLANNELD_NODE_ID=image >> /etc/default/flanneld")?;
        }
        nodes[0].start_without_waiting()?;
        nodes[0].wait_ready()?;
        nodes[1].start_without_waiting()?;
        nodes[1].daemon()?.wait()?;
        nodes[1].wait_exact_causes(&["clone"])?;
        nodes[1].require_finding_explained_by("not-running", "clone")?;
        nodes[1].run_first_finding_commands()?;
        nodes[1].wait_ready()?;
        wait_all_nodes_healthy(&mut nodes)
    })
}

#[test]
fn lease_of_a_node_that_is_gone_is_released_when_confirmed() -> Result<()> {
    run_with_healthy_nodes(Scene::with_title("doctor: gone"), |_, nodes| {
        nodes[1].host.power_off()?;
        let node = &mut nodes[0];
        node.wait_exact_causes(&["peer-cut"])?;
        node.run("touch -d '20 minutes ago' $LEASES/subnets/$(echo $PEER | tr / -)")?;
        node.wait_exact_causes(&["silent-node"])?;
        node.require_readyz(200)?;
        // The command asks first, so without a terminal it releases nothing.
        let command = node.first_finding_commands()?.remove(0);
        ensure!(node.sh(&command)?.0 != 0, "{command}");
        node.run(&format!("{command} --yes"))?;
        node.wait_exact_causes(&[])
    })
}
