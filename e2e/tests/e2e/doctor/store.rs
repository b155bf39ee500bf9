//! Faults of the store, of the network configuration in the store, and of leases and identities.

use std::net::IpAddr;

use anyhow::{Context, Result, anyhow, bail, ensure};
use lab::{
    Certificates, Etcd, EtcdOptions, FlanneldOptions, Host, Lab, Store, Uplink, binaries,
    code_or_text, until_ok,
};

use super::NETWORK;
use super::fault::in_parallel;
use super::node::{Node, all_well, ready_nodes, well_nodes};

/// Checks that the only finding is an unreachable store, and that the finding contains all of `words`.
fn expect_store_finding(node: &mut Node, words: &[&str]) -> Result<()> {
    node.expect(&["store-unreachable"])?;
    let text = node.first()?.to_string();
    ensure!(
        words
            .iter()
            .all(|word| text.contains(code_or_text("store-unreachable", word))),
        "{words:?}: {text}"
    );
    Ok(())
}

/// Outages of etcd: a killed process, then a hanging process, then a missing route to etcd.
fn etcd_unreachable() -> Result<()> {
    Lab::run("doctor: store", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 1)?;
        let machine = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let mut etcd = Etcd::start(&[&machine], &EtcdOptions::default().interface("enp0s8"))?;
        let store = etcd.store()?;
        store.configure(NETWORK)?;
        let mut nodes = ready_nodes(
            lab,
            &hosts,
            &store,
            &FlanneldOptions::bare().iface("enp0s8"),
        )?;
        let node = &mut nodes[0];
        node.grown()?;
        node.expect(&[])?;
        let here = "etcd at http://192.168.56.199:2379";

        etcd.kill(0)?;
        expect_store_finding(node, &[here, "refuses the connection"])?;
        ensure!(node.readyz()?.0 == 200, "{:?}", node.readyz()?);
        let commands = node.commands()?;
        ensure!(
            commands == ["systemctl start etcd"]
                && node.first()?["remedy"]["on"] == "the store's machine",
            "{commands:?}"
        );
        // The command would do this on etcd's host.
        etcd.restart(0)?;
        node.expect(&[]).context("after it was killed")?;
        node.ready()?;

        etcd.process(0)?.stop()?;
        expect_store_finding(node, &[here])?;
        etcd.process(0)?.cont()?;
        node.expect(&[]).context("after it hung")?;
        node.ready()?;

        node.run("ip route add unreachable 192.168.56.199/32")?;
        expect_store_finding(node, &[here, "this host has no route to the store"])?;
        node.run("ip route delete unreachable 192.168.56.199/32")?;
        node.expect(&[]).context("after it had no route")?;
        node.ready()
    })
}

/// Mismatched certificates: etcd's certificate is expired or not valid yet, or this node trusts another authority.
fn certificates() -> Result<()> {
    Lab::run("doctor: certificates", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let machine = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(
            &[&machine],
            &EtcdOptions::default().interface("enp0s8").tls(),
        )?;
        let store = etcd.store()?;
        store.configure(NETWORK)?;
        let client = etcd.client()?;
        let files = client.certificates().context("no certificates")?;
        let options = FlanneldOptions::bare().iface("enp0s8");
        let unready = |node: &mut Node| -> Result<()> {
            let answer = node.readyz()?;
            ensure!(
                answer.0 == 503,
                "a node without a lease is not ready: {answer:?}"
            );
            Ok(())
        };

        let mut node = Node::new(lab, &hosts[0], &options, &store)?;
        for (years, words) in [((2001, 2002), "expired"), ((2100, 2101), "not valid yet")] {
            files.renew_server(Some(years))?;
            node.start()?;
            expect_store_finding(&mut node, &["the certificates do not match", words])?;
            unready(&mut node)?;
        }
        files.renew_server(None)?;
        until_ok("it is ready", || node.ready())?;
        node.expect(&[])?;

        let other = Certificates::create(&lab.folder("other")?, &[IpAddr::from(machine.v4()?)])?;
        let mut node = Node::new(lab, &hosts[1], &options, &store)?;
        let trusted = node.files.join("default/ca.pem");
        std::fs::copy(other.ca(), &trusted)?;
        node.run(&format!(
            "sed -i 's|^FLANNELD_ETCD_CAFILE=.*|FLANNELD_ETCD_CAFILE={}|' /etc/default/flanneld",
            trusted.display()
        ))?;
        node.start()?;
        expect_store_finding(&mut node, &["the certificates do not match", "authority"])?;
        unready(&mut node)?;
        std::fs::copy(files.ca(), &trusted)?;
        node.restart()?;
        until_ok("it is ready", || node.ready())?;
        node.expect(&[])
    })
}

/// A network configuration that is missing or wrong, or that belongs to another program.
fn configuration() -> Result<()> {
    Lab::run("doctor: configuration", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let expect_config_finding = |node: &mut Node, words: &str| -> Result<()> {
            node.expect(&["config"])?;
            let text = node.first()?.to_string();
            ensure!(text.contains(code_or_text("config", words)), "{text}");
            Ok(())
        };
        let start = |host: &Host, name: &str| -> Result<(Store, Node)> {
            let folder = lab.folder(name)?;
            std::fs::create_dir_all(folder.join("subnets"))?;
            let store = Store::dir(&folder);
            let mut node = Node::new(lab, host, &FlanneldOptions::bare().iface("enp0s8"), &store)?;
            if name == "wrong" {
                store.configure(
                    r#"{"Network":"10.5.0.0/16","SubnetLen":99,"Backend":{"Type":"vxlan"}}"#,
                )?;
            }
            node.start()?;
            Ok((store, node))
        };
        let (_, mut node) = start(&hosts[0], "missing")?;
        expect_config_finding(&mut node, "does not exist")?;
        ensure!(node.readyz()?.0 == 503, "{:?}", node.readyz()?);
        node.mend()?;
        node.ready()?;
        node.expect(&[])?;

        let (store, mut node) = start(&hosts[1], "wrong")?;
        expect_config_finding(&mut node, "SubnetLen must be less than")?;
        store.configure(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"ipsec"}}"#)?;
        node.daemon()?.wait()?;
        expect_config_finding(&mut node, "backend type ipsec is not supported yet")?;
        ensure!(
            node.folded("not-running")?.as_deref() == Some("config"),
            "{:#}",
            node.doctor()?.1
        );
        store.configure(NETWORK)?;
        node.mend()?;
        node.ready()?;
        node.expect(&[])
    })
}

/// Loss of all data in etcd while daemons run, and later a different network configuration.
fn wiped() -> Result<()> {
    Lab::run("doctor: wiped", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let machine = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let etcd = Etcd::start(&[&machine], &EtcdOptions::default().interface("enp0s8"))?;
        let (store, client) = (etcd.store()?, etcd.client()?);
        store.configure(NETWORK)?;
        let options = FlanneldOptions::bare().iface("enp0s8");
        let mut nodes = ready_nodes(lab, &hosts, &store, &options)?;
        all_well(&mut nodes)?;
        let leases = store.subnets()?;
        std::os::unix::fs::symlink(
            binaries::etcd("etcdctl")?,
            nodes[0].files.join("bin/etcdctl"),
        )?;

        client.etcdctl(&["del", "--prefix", ""])?;
        for node in &mut nodes {
            node.expect(&["next-config"])?;
            ensure!(node.readyz()?.0 == 200, "{:?}", node.readyz()?);
        }
        until_ok("the leases are back", || {
            let now = store.subnets()?;
            ensure!(now == leases, "{now:?}, before {leases:?}");
            Ok(())
        })?;
        nodes[0].mend()?;
        all_well(&mut nodes)?;

        store.configure(&NETWORK.replace("vxlan\"", "vxlan\",\"VNI\":9"))?;
        for node in &mut nodes {
            node.expect(&["next-config"])?;
        }
        for node in &mut nodes {
            let [command] = node
                .commands()?
                .try_into()
                .map_err(|all| anyhow!("{all:?}"))?;
            node.type_in(&[command])?;
        }
        all_well(&mut nodes)
    })
}

/// A network with more nodes than subnets.
fn pool() -> Result<()> {
    Lab::run("doctor: pool", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.7.0","SubnetMax":"10.5.7.0","Backend":{"Type":"vxlan"}}"#)?;
        let options = FlanneldOptions::bare().iface("enp0s8");
        let mut nodes = hosts
            .iter()
            .map(|host| Node::new(lab, host, &options, &store))
            .collect::<Result<Vec<_>>>()?;
        let [first, second] = nodes.as_mut_slice() else {
            bail!("two nodes")
        };
        first.start()?;
        first.ready()?;
        second.start()?;
        second.expect(&["lease"])?;
        ensure!(second.readyz()?.0 == 503, "{:?}", second.readyz()?);
        ensure!(
            second
                .first()?
                .to_string()
                .contains(code_or_text("lease", "out of subnets")),
            "{:#}",
            second.first()?
        );
        // The command lists the leases. The operator decides which one may go.
        second.mend()?;
        first.daemon()?.terminate()?;
        second.run(
            "(set -a; . /etc/default/flanneld; flannelctl release --force --yes 10.5.7.0/24)",
        )?;
        second.ready()?;
        second.expect(&[])
    })
}

/// A machine that is a clone of another machine.
fn clone() -> Result<()> {
    Lab::run("doctor: clone", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(NETWORK)?;
        let options = FlanneldOptions::bare().iface("enp0s8");
        let mut nodes = hosts
            .iter()
            .map(|host| Node::new(lab, host, &options, &store))
            .collect::<Result<Vec<_>>>()?;
        for node in &mut nodes {
            node.run("echo FLANNELD_NODE_ID=image >> /etc/default/flanneld")?;
        }
        nodes[0].start()?;
        nodes[0].ready()?;
        nodes[1].start()?;
        nodes[1].daemon()?.wait()?;
        nodes[1].expect(&["clone"])?;
        ensure!(
            nodes[1].folded("not-running")?.as_deref() == Some("clone"),
            "{:#}",
            nodes[1].doctor()?.1
        );
        nodes[1].mend()?;
        nodes[1].ready()?;
        all_well(&mut nodes)
    })
}

/// The lease of a node that never returns.
fn gone() -> Result<()> {
    well_nodes(NETWORK, "doctor: gone", 2, |lab, _, nodes| {
        nodes[1].host.power_off()?;
        nodes[0].expect(&["peer-cut"])?;
        nodes[0]
            .variables
            .push(("LEASES", lab.folder("leases")?.display().to_string()));
        nodes[0].run("touch -d '20 minutes ago' $LEASES/subnets/$(echo $PEER | tr / -)")?;
        nodes[0].expect(&["silent-node"])?;
        ensure!(
            nodes[0].first()?["what"]
                .to_string()
                .contains(code_or_text("silent-node", "has not reported for 20 min")),
            "{:#}",
            nodes[0].first()?
        );
        ensure!(nodes[0].readyz()?.0 == 200, "{:?}", nodes[0].readyz()?);
        // The command asks first, so without a terminal it releases nothing.
        let commands = nodes[0].commands()?;
        let [command] = commands.as_slice() else {
            bail!("{commands:?}")
        };
        let (code, text) = nodes[0].sh(command)?;
        ensure!(
            code != 0 && text.contains("cannot ask for confirmation without a terminal"),
            "{code} {text}"
        );
        nodes[0].run(&format!("{command} --yes"))?;
        nodes[0].expect(&[])
    })
}

#[test]
fn store_and_lease_faults_are_reported_with_their_cause() -> Result<()> {
    in_parallel(&[
        etcd_unreachable,
        certificates,
        configuration,
        wiped,
        pool,
        clone,
        gone,
    ])
}
