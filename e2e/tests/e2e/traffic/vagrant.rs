//! Tests of Vagrant hosts: every host has 10.0.2.15 on the NAT interface with the default route, and only `enp0s8` connects the hosts.

use anyhow::{Context, Result, ensure};
use lab::{
    Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Store, Uplink, wait_pods_connected,
};

use crate::healing::scenarios;

/// With an etcd on the host-only network.
struct VagrantHosts {
    etcd: Etcd,
    hosts: Vec<Host>,
}

impl VagrantHosts {
    /// etcd is on the first host or on a host of its own. Operators do both.
    fn build(lab: &Lab, etcd_on_first: bool) -> Result<VagrantHosts> {
        let vagrant = lab.create_vagrant_with_equal_addresses(2)?;
        let machine = if etcd_on_first {
            vagrant.hosts[0].clone()
        } else {
            lab.create_host("store", &[Uplink::enp0s8(&vagrant.lan, 99)?])?
        };
        let etcd = Etcd::start(&[&machine], &EtcdOptions::default().interface("enp0s8"))?;
        etcd.store()?
            .configure(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","Backend":{"Type":"vxlan"}}"#)?;
        Ok(VagrantHosts { etcd, hosts: vagrant.hosts })
    }

    fn store(&self) -> Result<Store> {
        self.etcd.store()
    }

    /// The second node has to exit with 1. It leaves nothing behind; the result is its error.
    fn start_second_and_require_refusal(&self) -> Result<String> {
        let second = &self.hosts[1];
        let mut refused = second.start_flanneld(&FlanneldOptions::new(&self.store()?))?;
        let status = refused.wait()?;
        ensure!(status.code() == Some(1), "{status}\n{}", refused.log());
        ensure!(
            !second.subnet_file()?.exists() && second.netns().link("flannel.1")?.is_none(),
            "a refused node leaves something behind"
        );
        ensure!(self.store()?.lease_names_and_values()?.len() == 1, "another lease");
        let errors = refused.errors().concat();
        // All daemons of a host share one log.
        std::fs::remove_file(refused.log_path())?;
        Ok(errors)
    }

    /// Both hosts publish their addresses in the host-only network without a warning, and their pods reach each other.
    fn require_joined(&self, daemons: &[Flanneld]) -> Result<()> {
        let subnets = format!("{:?}", self.store()?.lease_names_and_values()?);
        for (host, daemon) in self.hosts.iter().zip(daemons) {
            let public = host.v4_of("enp0s8")?.to_string();
            ensure!(subnets.contains(&public), "no {public} in {subnets}");
            ensure!(daemon.errors().is_empty(), "{:#?}", daemon.errors());
        }
        ensure!(!subnets.contains("10.0.2.15"), "{subnets}");
        wait_pods_connected(&lab::Testbed::create_pod_on_each_host(&self.hosts, daemons)?)
    }
}

fn require_words(text: &str, words: &[&str]) -> Result<()> {
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    ensure!(missing.is_empty(), "no {missing:?} in {text}");
    Ok(())
}

scenarios! { require_nat_trap_refusal;
    nat_trap_with_separate_etcd_warns_first_and_refuses_second => false,
    nat_trap_with_etcd_on_a_node_warns_first_and_refuses_second => true,
}

fn require_nat_trap_refusal(etcd_on_first: bool) -> Result<()> {
    Lab::run(&format!("trap, etcd on the first host: {etcd_on_first}"), |lab| {
        let bed = VagrantHosts::build(lab, etcd_on_first)?;
        let options = FlanneldOptions::new(&bed.store()?);
        let mut trapped = bed.hosts[0].start_flanneld_and_wait_ready(&options)?;
        let log = trapped.log();
        // The doctor logs its own findings after its first round.
        let is_warning =
            |line: &&str| line.contains(" WARN ") && !line.contains(" check=nat-interface ");
        let warnings: Vec<&str> = log.lines().filter(is_warning).collect();
        ensure!(warnings.len() == 1, "one warning was expected:\n{log}");
        require_words(warnings[0], &["enp0s3 (10.0.2.15", "192.168.56.101", "--iface=enp0s8"])?;

        require_words(
            &bed.start_second_and_require_refusal()?,
            &["10.0.2.15", "h1", "192.168.56.102", "--iface=enp0s8"],
        )?;
        ensure!(
            trapped.is_running() && trapped.errors().is_empty(),
            "the first node goes on: {log}"
        );

        // With the option on both nodes, nothing has to be cleaned up.
        let subnet = trapped.subnet_env()?;
        trapped.terminate()?;
        let named = options.iface("enp0s8");
        let daemons = [
            bed.hosts[0].start_flanneld_and_wait_ready(&named)?,
            bed.hosts[1].start_flanneld_and_wait_ready(&named)?,
        ];
        ensure!(daemons[0].subnet_env()? == subnet, "the first node has another subnet");
        bed.require_joined(&daemons)
    })
}

#[test]
fn nat_trap_of_a_go_node_refuses_ours_until_iface_is_set() -> Result<()> {
    Lab::run("trap of a Go node", |lab| {
        let bed = VagrantHosts::build(lab, false)?;
        // A lease of Go flannel on the first host, without `--iface`. It has no NodeID, so the second host could take it for its own.
        let (client, key) =
            (bed.etcd.client_on_first_member()?, bed.store()?.key("subnets/10.5.33.0-24"));
        let value = r#"{"PublicIP":"10.0.2.15","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:33"}}"#;
        client.put_leased(&key, value, client.grant(86_400)?)?;
        let before = client.get(&key)?;
        require_words(
            &bed.start_second_and_require_refusal()?,
            &["10.0.2.15", "Go flannel", "10.5.33.0", "--iface=enp0s8"],
        )?;
        let options = FlanneldOptions::new(&bed.store()?).iface("enp0s8");
        let joined = bed.hosts[1].start_flanneld_and_wait_ready(&options)?;
        let subnet = joined.subnet_env()?.subnet.context("a v4 subnet")?.to_string();
        ensure!(subnet != "10.5.33.1/24" && client.get(&key)? == before, "{subnet}");
        ensure!(joined.errors().is_empty(), "{:#?}", joined.errors());
        Ok(())
    })
}

scenarios! { require_hosts_join_with_argument;
    iface_by_name_joins_the_nodes => |_| Ok("--iface=enp0s8".to_owned()),
    iface_by_address_joins_the_nodes => |host| Ok(format!("--iface={}", host.v4_of("enp0s8")?)),
    iface_regex_joins_the_nodes => |_| Ok(r"--iface-regex=^192\.168\.56\.".to_owned()),
    iface_can_reach_joins_the_nodes => |_| Ok("--iface-can-reach=192.168.56.199".to_owned()),
    iface_cidr_joins_the_nodes => |_| Ok("--iface-cidr=192.168.56.0/24".to_owned()),
    iface_auto_joins_the_nodes => |_| Ok("--iface=auto".to_owned()),
}

/// flanneld runs on both hosts with an argument that names the interface.
fn require_hosts_join_with_argument(argument: fn(&Host) -> Result<String>) -> Result<()> {
    Lab::run("joins", |lab| {
        let bed = VagrantHosts::build(lab, false)?;
        let options = FlanneldOptions::new(&bed.store()?);
        let start = |host: &Host| {
            host.start_flanneld_and_wait_ready(&options.clone().arg(&argument(host)?))
        };
        let daemons = bed.hosts.iter().map(start).collect::<Result<Vec<_>>>()?;
        for daemon in &daemons {
            ensure!(!daemon.log().contains(" WARN "), "{}", daemon.log());
        }
        bed.require_joined(&daemons)
    })
}
