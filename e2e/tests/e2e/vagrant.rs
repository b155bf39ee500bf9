//! Tests of Vagrant hosts: every host has 10.0.2.15 on the NAT interface with the default route, and only `enp0s8` connects the hosts.

use anyhow::{Context, Result, ensure};
use lab::{
    Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, PingMatrix, Store, Uplink, Vagrant,
    until_ok,
};

use crate::healing::scenarios;

/// Two Vagrant hosts and an etcd on the host-only network.
struct Bed {
    etcd: Etcd,
    vagrant: Vagrant,
}

/// Host of etcd. Operators commonly run etcd on a separate host or on the first host.
#[derive(Clone, Copy, Debug, PartialEq)]
enum EtcdOn {
    /// A separate host, 192.168.56.199.
    OwnHost,
    /// The first host, 192.168.56.101.
    First,
}

impl Bed {
    fn build(lab: &Lab, etcd_on: EtcdOn) -> Result<Bed> {
        let vagrant = lab.vagrant(2)?;
        let machine = match etcd_on {
            EtcdOn::OwnHost => lab.host("store", &[Uplink::enp0s8(&vagrant.lan, 99)?])?,
            EtcdOn::First => vagrant.hosts[0].clone(),
        };
        let etcd = Etcd::start(&[&machine], &EtcdOptions::default().interface("enp0s8"))?;
        etcd.store()?
            .configure(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","Backend":{"Type":"vxlan"}}"#)?;
        Ok(Bed { etcd, vagrant })
    }

    fn store(&self) -> Result<Store> {
        self.etcd.store()
    }

    fn hosts(&self) -> &[Host] {
        &self.vagrant.hosts
    }

    /// Checks that both hosts publish their addresses in the host-only network, and that the hosts' pods reach each other.
    fn require_joined(&self, daemons: &[Flanneld]) -> Result<()> {
        let subnets = self.store()?.subnets()?;
        ensure!(subnets.len() == 2, "{subnets:?}");
        for host in self.hosts() {
            let public = format!(r#""PublicIP":"{}""#, host.v4_of("enp0s8")?);
            ensure!(
                subnets.iter().any(|(_, value)| value.contains(&public)),
                "no node announces {public}: {subnets:?}"
            );
        }
        let pods = lab::Bed::pods(self.hosts(), daemons)?;
        until_ok("the pods reach each other", || {
            PingMatrix::of(&pods)?.require_complete()
        })?;
        let errors: Vec<String> = daemons.iter().flat_map(Flanneld::errors).collect();
        ensure!(errors.is_empty(), "{errors:#?}");
        Ok(())
    }
}

scenarios! { trap;
    nat_trap_with_separate_etcd_warns_first_and_refuses_second => EtcdOn::OwnHost,
    nat_trap_with_etcd_on_a_node_warns_first_and_refuses_second => EtcdOn::First,
}

fn trap(etcd_on: EtcdOn) -> Result<()> {
    Lab::run(&format!("trap, etcd on {etcd_on:?}"), |lab| {
        let bed = Bed::build(lab, etcd_on)?;
        let store = if etcd_on == EtcdOn::First {
            "192.168.56.101"
        } else {
            "192.168.56.199"
        };
        let [first, second] = bed.hosts() else {
            anyhow::bail!("two hosts")
        };
        let options = FlanneldOptions::new(&bed.store()?);

        let mut trapped = first.flanneld(&options)?;
        require_warning(&bed, &trapped.log(), store)?;

        let mut refused = second.start_flanneld(&options)?;
        let status = refused.wait()?;
        ensure!(status.code() == Some(1), "{status}\n{}", refused.log());
        require_refusal(&bed, &refused.log(), second)?;
        ensure!(
            trapped.is_running() && trapped.errors().is_empty(),
            "the first node goes on: {:?}",
            trapped.errors()
        );

        // With the option on both nodes, nothing has to be cleaned up.
        let subnet = trapped.subnet_env()?;
        trapped.terminate()?;
        let named = options.iface("enp0s8");
        let trapped = first.flanneld(&named)?;
        ensure!(
            trapped.subnet_env()? == subnet,
            "the first node keeps its subnet: {:?} instead of {subnet:?}",
            trapped.subnet_env()?
        );
        // Both daemons of the second host share one log, so the error of the refused one is removed.
        std::fs::remove_file(refused.log_path())?;
        let joined = second.flanneld(&named)?;
        bed.require_joined(&[trapped, joined])
    })
}

/// Checks that the first node logs one warning, which names the interfaces, the store and the option, and publishes the NAT interface's address.
fn require_warning(bed: &Bed, log: &str, store: &str) -> Result<()> {
    // The doctor logs its own findings after its first round.
    let warnings: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(" WARN ") && !line.contains(" check=nat-interface "))
        .collect();
    ensure!(warnings.len() == 1, "one warning was expected:\n{log}");
    for word in [
        "enp0s3 (10.0.2.15",
        "enp0s8 (192.168.56.101",
        store,
        "--iface=enp0s8",
    ] {
        ensure!(
            warnings[0].contains(word),
            "the warning does not name {word}: {}",
            warnings[0]
        );
    }
    ensure!(
        bed.store()?.subnets()?[0]
            .1
            .contains(r#""PublicIP":"10.0.2.15""#),
        "{:?}",
        bed.store()?.subnets()?
    );
    Ok(())
}

/// Checks that the error of the second node names the conflict and the option, and that the node leaves no objects.
fn require_refusal(bed: &Bed, log: &str, second: &Host) -> Result<()> {
    let (_, error) = log
        .split_once(" ERROR ")
        .with_context(|| format!("no error:\n{log}"))?;
    for word in [
        "10.0.2.15",
        "node h1",
        "enp0s3",
        "enp0s8",
        "192.168.56.102",
        "--iface=enp0s8",
        "h2",
    ] {
        ensure!(
            error.contains(word),
            "the error does not name {word}: {error}"
        );
    }
    ensure!(
        !second.subnet_file()?.exists() && second.netns().link("flannel.1")?.is_none(),
        "a refused node leaves something behind"
    );
    ensure!(
        bed.store()?.subnets()?.len() == 1,
        "{:?}",
        bed.store()?.subnets()?
    );
    Ok(())
}

#[test]
fn nat_trap_of_a_go_node_refuses_ours_until_iface_is_set() -> Result<()> {
    Lab::run("trap of a Go node", |lab| {
        let bed = Bed::build(lab, EtcdOn::OwnHost)?;
        let second = &bed.hosts()[1];
        // A lease of Go flannel on the first host, without `--iface`. It has no NodeID, so the second host could take it for its own.
        let (client, key) = (bed.etcd.client()?, bed.store()?.key("subnets/10.5.33.0-24"));
        let value = r#"{"PublicIP":"10.0.2.15","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:33"}}"#;
        client.put_leased(&key, value, client.grant(86_400)?)?;
        let before = client.get(&key)?;

        let mut refused = second.start_flanneld(&FlanneldOptions::new(&bed.store()?))?;
        let status = refused.wait()?;
        ensure!(status.code() == Some(1), "{status}\n{}", refused.log());
        for word in [
            " ERROR ",
            "10.0.2.15",
            "Go flannel",
            "10.5.33.0",
            "--iface=enp0s8",
        ] {
            ensure!(
                refused.log().contains(word),
                "the error does not name {word}: {}",
                refused.log()
            );
        }
        ensure!(
            client.get(&key)? == before,
            "the Go node's lease was touched: {:?}",
            client.get(&key)?
        );

        std::fs::remove_file(refused.log_path())?;
        let joined = second.flanneld(&FlanneldOptions::new(&bed.store()?).iface("enp0s8"))?;
        let subnet = joined
            .subnet_env()?
            .subnet
            .context("a v4 subnet")?
            .trunc()
            .to_string();
        ensure!(
            subnet != "10.5.33.0/24" && client.get(&key)? == before,
            "{subnet}, {:?}",
            client.get(&key)?
        );
        ensure!(joined.errors().is_empty(), "{:#?}", joined.errors());
        Ok(())
    })
}

scenarios! { joins;
    iface_by_name_joins_the_nodes => |_| Ok("--iface=enp0s8".to_owned()),
    iface_by_address_joins_the_nodes => |host| Ok(format!("--iface={}", host.v4_of("enp0s8")?)),
    iface_regex_joins_the_nodes => |_| Ok(r"--iface-regex=^192\.168\.56\.".to_owned()),
    iface_can_reach_joins_the_nodes => |_| Ok("--iface-can-reach=192.168.56.199".to_owned()),
    iface_cidr_joins_the_nodes => |_| Ok("--iface-cidr=192.168.56.0/24".to_owned()),
    iface_auto_joins_the_nodes => |_| Ok("--iface=auto".to_owned()),
}

/// Starts flanneld on both hosts with an argument that names the interface, on new hosts and on hosts where flanneld
/// ran without `--iface`. The daemons publish the interface's addresses and log no warning.
fn joins(argument: fn(&Host) -> Result<String>) -> Result<()> {
    for (etcd_on, after_the_trap) in [
        (EtcdOn::OwnHost, false),
        (EtcdOn::OwnHost, true),
        (EtcdOn::First, true),
    ] {
        let title = format!("joins, etcd on {etcd_on:?}, after the trap: {after_the_trap}");
        Lab::run(&title, |lab| {
            let bed = Bed::build(lab, etcd_on)?;
            if after_the_trap {
                fall_into_the_trap(&bed)?;
            }
            let start = |host: &Host| {
                host.flanneld(&FlanneldOptions::new(&bed.store()?).arg(&argument(host)?))
            };
            let daemons = bed.hosts().iter().map(start).collect::<Result<Vec<_>>>()?;
            for daemon in &daemons {
                ensure!(!daemon.log().contains(" WARN "), "{}", daemon.log());
            }
            bed.require_joined(&daemons)
        })?;
    }
    Ok(())
}

/// Starts flanneld on both hosts without `--iface`. The function removes only the logs, not the other objects that flanneld leaves.
fn fall_into_the_trap(bed: &Bed) -> Result<()> {
    let [first, second] = bed.hosts() else {
        anyhow::bail!("two hosts")
    };
    let options = FlanneldOptions::new(&bed.store()?);
    let mut trapped = first.flanneld(&options)?;
    let mut refused = second.start_flanneld(&options)?;
    ensure!(refused.wait()?.code() == Some(1), "{}", refused.log());
    trapped.terminate()?;
    for daemon in [trapped, refused] {
        std::fs::remove_file(daemon.log_path())?;
    }
    Ok(())
}
