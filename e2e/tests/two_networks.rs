//! Proves that two daemons for two networks live on one host: each keeps its own rules in the chains they share, and neither is refused
//! anything but what cannot be shared.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy.toml allows it in tests, but does not know their helpers")]

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Flanneld, FlanneldOptions, Host, Lab, Pod, Probe, ProbeOptions, Store, eventually};

const DEADLINE: Duration = Duration::from_secs(60);

/// One of the two networks, on two hosts.
struct Network {
    options: FlanneldOptions,
    daemons: Vec<Flanneld>,
    pods: Vec<Pod>,
}

/// The options of a network's daemons: `10.<number>.0.0/16` with the VNI `number`, and a port for their health.
fn options(lab: &Lab, number: u8, config: &str, flags: &[&str]) -> FlanneldOptions {
    let store = Store::dir(&lab.folder(&format!("leases-{number}")).unwrap());
    store.configure(&format!(r#"{{"Network":"10.{number}.0.0/16",{config}}}"#)).unwrap();
    let options = FlanneldOptions::new(&store).iface("enp0s8").beside(&format!("net{number}")).deadline(DEADLINE);
    let options = flags.iter().fold(options, |options, flag| options.arg(flag));
    options.healthz_port(Some(8000 + u16::from(number)))
}

impl Network {
    fn start(lab: &Lab, hosts: &[Host], number: u8, nftables: bool, flags: &[&str]) -> Result<Network> {
        let config = format!(r#""EnableNFTables":{nftables},"Backend":{{"Type":"vxlan","VNI":{number}}}"#);
        let options = options(lab, number, &config, flags);
        let daemons = hosts.iter().map(|host| host.flanneld(&options)).collect::<Result<Vec<_>>>()?;
        let mut pods = Vec::new();
        for (host, daemon) in hosts.iter().zip(&daemons) {
            let env = daemon.subnet_env()?;
            pods.push(host.pod(&format!("p{number}"), &env)?);
            // The lab has one bridge a host: it is the gateway of both networks.
            host.netns().sh(&format!("ip address replace {} dev cni0", env.subnet.unwrap()))?;
        }
        Ok(Network { options, daemons, pods })
    }

    /// Packets from a pod here to a pod there, and to a machine outside by the masquerade, each of them as a connection of its own.
    fn probes(&self, hosts: &[Host], outside: &Host) -> Result<Vec<Probe>> {
        let options = ProbeOptions::default().interval(Duration::from_millis(10)).flow_each();
        let masqueraded = options.clone().seen_as(IpAddr::V4(hosts[0].v4()?));
        let (here, there) = (&self.pods[0], &self.pods[1]);
        Ok(vec![
            Probe::between((here.netns(), here.address()?), (there.netns(), there.address()?), &options)?,
            Probe::between((here.netns(), here.address()?), (outside.netns(), IpAddr::V4(outside.v4()?)), &masqueraded)?,
        ])
    }
}

/// The rules of the chains that both have, whoever applies them.
fn rules(host: &Host) -> String {
    host.netns().sh("nft -s list ruleset ip; iptables-legacy-save | grep -v '^#' | sed 's/ \\[.*//'").unwrap()
}

/// Each daemon of the first host is restarted, by the signal and by kill, and then both at once: nothing is lost in either network, and
/// nobody writes anything.
fn restarts(nftables: bool, flags: &[&str]) {
    Lab::run("two-nets", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 3)?;
        let (outside, hosts) = (&hosts[2], &hosts[..2]);
        for host in hosts {
            host.netns().exec("iptables", &["-P", "FORWARD", "DROP"])?;
            if nftables {
                // What flannel accepts in nftables overrules no iptables: this is the operator's part.
                host.netns().sh("iptables -A FORWARD -s 10.50.0.0/15 -j ACCEPT; iptables -A FORWARD -d 10.50.0.0/15 -j ACCEPT")?;
            }
        }
        let flags = [flags, &["--ip-masq", "--iptables-resync=1"]].concat();
        let mut networks = [Network::start(lab, hosts, 50, nftables, &flags)?, Network::start(lab, hosts, 51, nftables, &flags)?];
        let probes =
            networks.iter().map(|network| network.probes(hosts, outside)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect::<Vec<_>>();
        for probe in &probes {
            probe.wait_flowing(DEADLINE)?;
        }
        let before = rules(&hosts[0]);
        for round in ["signal", "kill", "both"] {
            if round == "both" {
                networks.iter_mut().try_for_each(|network| network.daemons[0].terminate(DEADLINE).map(drop))?;
            }
            for network in &mut networks {
                match round {
                    "signal" => ensure!(network.daemons[0].terminate(DEADLINE)?.success(), "{}", network.daemons[0].log_tail(10)),
                    "kill" => network.daemons[0].kill()?,
                    _ => {}
                }
                network.daemons[0] = hosts[0].flanneld(&network.options)?;
                for probe in &probes {
                    probe.wait_flowing(DEADLINE)?;
                }
                ensure!(network.daemons[0].metric("flannel_rule_writes_total")? == 0.0, "{round}: {}", network.daemons[0].log_tail(20));
            }
        }
        // Three looks later, and at least 200 packets each.
        eventually(DEADLINE, "time passes", || networks[1].daemons[0].metric("flannel_uptime_seconds").unwrap() >= 4.0)?;
        ensure!(rules(&hosts[0]) == before, "{before}\n{}", rules(&hosts[0]));
        for daemon in networks.iter().flat_map(|network| &network.daemons) {
            ensure!(daemon.metric("flannel_rules_at_war")? == 0.0 && daemon.errors().is_empty(), "{}", daemon.log_tail(30));
        }
        for (number, probe) in probes.into_iter().enumerate() {
            let report = probe.finish()?;
            println!("nftables {nftables}, probe {number}: {report}");
            report.require_clean()?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn two_networks_lose_nothing_with_iptables() {
    restarts(false, &[]);
}

#[test]
fn two_networks_lose_nothing_with_nftables() {
    restarts(true, &[]);
}
