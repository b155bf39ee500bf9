//! Proves that two daemons for two networks live on one host: each keeps its own rules in the chains they share, and neither is refused
//! anything but what cannot be shared.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{
    Flanneld, FlanneldOptions, Host, Lab, Launch, PingOptions, Pod, Probe, ProbeOptions, Programs,
    Store, Xtables,
};
use lab::{binaries, eventually, ping};

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
    store
        .configure(&format!(r#"{{"Network":"10.{number}.0.0/16",{config}}}"#))
        .unwrap();
    let options = FlanneldOptions::new(&store)
        .iface("enp0s8")
        .beside(&format!("net{number}"))
        .deadline(DEADLINE);
    let options = flags
        .iter()
        .fold(options, |options, flag| options.arg(flag));
    options.healthz_port(Some(8000 + u16::from(number)))
}

impl Network {
    fn start(
        lab: &Lab,
        hosts: &[Host],
        number: u8,
        nftables: bool,
        programs: &Programs,
    ) -> Result<Network> {
        let config =
            format!(r#""EnableNFTables":{nftables},"Backend":{{"Type":"vxlan","VNI":{number}}}"#);
        let options = options(lab, number, &config, &["--ip-masq", "--iptables-resync=1"])
            .env("PATH", &programs.path());
        let daemons = hosts
            .iter()
            .map(|host| host.flanneld(&options))
            .collect::<Result<Vec<_>>>()?;
        let mut pods = Vec::new();
        for (host, daemon) in hosts.iter().zip(&daemons) {
            let env = daemon.subnet_env()?;
            pods.push(host.pod(&format!("p{number}"), &env)?);
            // The lab has one bridge a host: it is the gateway of both networks.
            host.netns().sh(&format!(
                "ip address replace {} dev cni0",
                env.subnet.unwrap()
            ))?;
        }
        Ok(Network {
            options,
            daemons,
            pods,
        })
    }

    /// Packets from a pod here to a pod there, and to a machine outside by the masquerade, each of them as a connection of its own.
    fn probes(&self, hosts: &[Host], outside: &Host) -> Result<Vec<Probe>> {
        let options = ProbeOptions::default()
            .interval(Duration::from_millis(10))
            .flow_each();
        let masqueraded = options.clone().seen_as(IpAddr::V4(hosts[0].v4()?));
        let (here, there) = (&self.pods[0], &self.pods[1]);
        Ok(vec![
            Probe::between(
                (here.netns(), here.address()?),
                (there.netns(), there.address()?),
                &options,
            )?,
            Probe::between(
                (here.netns(), here.address()?),
                (outside.netns(), IpAddr::V4(outside.v4()?)),
                &masqueraded,
            )?,
        ])
    }
}

/// The rules of the chains that both have, whoever applies them.
fn rules(host: &Host) -> String {
    host.netns()
        .sh("nft -s list ruleset ip; iptables-legacy-save | grep -v '^#' | sed 's/ \\[.*//'")
        .unwrap()
}

/// Each daemon of the first host is restarted, by the signal and by kill, and then both at once: nothing is lost in either network, and
/// nobody writes anything.
fn restarts(nftables: bool, xtables: Xtables) {
    Lab::run("two-nets", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 3)?;
        let (outside, hosts) = (&hosts[2], &hosts[..2]);
        let programs = Programs::all(lab, "programs", xtables)?;
        let iptables = if xtables == Xtables::Legacy { "iptables-legacy" } else { "iptables" };
        for host in hosts {
            host.netns().exec(iptables, &["-P", "FORWARD", "DROP"])?;
            if nftables {
                // What flannel accepts in nftables overrules no iptables: this is the operator's part.
                host.netns().sh("iptables -A FORWARD -s 10.50.0.0/15 -j ACCEPT; iptables -A FORWARD -d 10.50.0.0/15 -j ACCEPT")?;
            }
        }
        let start = |number| Network::start(lab, hosts, number, nftables, &programs);
        let mut networks = [start(50)?, start(51)?];
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
    restarts(false, Xtables::Nft);
}

#[test]
fn two_networks_lose_nothing_with_iptables_legacy() {
    restarts(false, Xtables::Legacy);
}

#[test]
fn two_networks_lose_nothing_with_nftables() {
    restarts(true, Xtables::Nft);
}

/// A second daemon is refused what cannot be shared, with the owner's pid and network, and nothing of the first is touched.
#[test]
fn what_cannot_be_shared_is_refused_with_the_owners_name() {
    let lab = Lab::new("two-nets").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let host = &hosts[0];
    let vxlan = |vni: u32, more: &str| format!(r#""Backend":{{"Type":"vxlan","VNI":{vni}{more}}}"#);
    for (first, second, what) in [
        (
            vxlan(1, ""),
            vxlan(1, ""),
            "VNI 1 on UDP port 8472 over IPv4",
        ),
        (
            vxlan(1, ""),
            vxlan(1, r#","Port":4789"#),
            "the device flannel.1",
        ),
        (
            vxlan(1, ""),
            vxlan(2, r#","Mode":"userspace""#),
            "UDP port 8472",
        ),
        (
            vxlan(1, r#","Mode":"userspace""#),
            vxlan(2, ""),
            "UDP port 8472",
        ),
        (
            vxlan(1, r#","Mode":"userspace","Port":8285"#),
            r#""Backend":{"Type":"udp"}"#.to_owned(),
            "UDP port 8285",
        ),
        (
            r#""Backend":{"Type":"udp"}"#.to_owned(),
            r#""Backend":{"Type":"udp","Port":8286}"#.to_owned(),
            "the device flannel0",
        ),
    ] {
        let one = host.flanneld(&options(&lab, 50, &first, &[])).unwrap();
        let mut two = host
            .start_flanneld(&options(&lab, 51, &second, &[]))
            .unwrap();
        let status = two.wait(DEADLINE).unwrap();
        let log = two.log();
        assert_eq!(status.code(), Some(1), "{first} {second}: {log}");
        let told = format!(
            "another flanneld on this host already uses {what} (pid {}, flanneld, network 10.50.0.0/16)",
            one.pid()
        );
        assert!(log.contains(&told), "{told}\n{log}");
        assert!(
            one.is_ready() && one.errors().is_empty(),
            "{:?}",
            one.errors()
        );
    }
    // The same network twice, whatever carries it.
    let one = host
        .flanneld(&options(&lab, 50, r#""Backend":{"Type":"host-gw"}"#, &[]))
        .unwrap();
    let store = Store::dir(&lab.folder("leases-same").unwrap());
    store
        .configure(r#"{"Network":"10.50.0.0/16","Backend":{"Type":"vxlan"}}"#)
        .unwrap();
    let mut two = host
        .start_flanneld(
            &FlanneldOptions::new(&store)
                .iface("enp0s8")
                .beside("same")
                .healthz_port(None),
        )
        .unwrap();
    assert_eq!(two.wait(DEADLINE).unwrap().code(), Some(1));
    assert!(
        two.log()
            .contains("already uses the rules for 10.50.0.0/16")
            && two.log().contains(&format!("pid {}", one.pid())),
        "{}",
        two.log()
    );
    // What can be shared is.
    host.flanneld(&options(&lab, 51, r#""Backend":{"Type":"vxlan"}"#, &[]))
        .unwrap();
}

/// The tunnel of a second network wants the port of the first one's probes: packets of pods go before probes, and the doctor names whose.
#[test]
fn probes_leave_their_port_to_a_tunnel() {
    Lab::run("two-nets-probes", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let first = options(lab, 50, r#""Backend":{"Type":"vxlan","VNI":50}"#, &[]);
        let second = options(
            lab,
            51,
            r#""Backend":{"Type":"vxlan","VNI":51,"Port":8473}"#,
            &["--probe-port=8573", "--status-port=8574"],
        );
        let ones = hosts
            .iter()
            .map(|host| host.flanneld(&first))
            .collect::<Result<Vec<_>>>()?;
        let peers = |daemon: &Flanneld, state: &str| {
            daemon.metric(&format!("flannel_probe_peers{{state=\"{state}\"}}"))
        };
        let all_well = || {
            ones.iter()
                .all(|one| peers(one, "well").is_ok_and(|well| well == 1.0))
        };
        eventually(DEADLINE, "the first network probes", all_well)?;
        let twos = hosts
            .iter()
            .map(|host| host.flanneld(&second))
            .collect::<Result<Vec<_>>>()?;
        let mut pods = Vec::new();
        for (host, two) in hosts.iter().zip(&twos) {
            let env = two.subnet_env()?;
            pods.push(host.pod("p51", &env)?);
        }
        lab::eventually_ok(DEADLINE, "the second network's packets pass", || {
            lab::PingMatrix::of(&pods)?.require_complete()
        })?;
        for (one, two) in ones.iter().zip(&twos) {
            lab::eventually_ok(DEADLINE, "the doctor says whose the port is", || {
                let (_, text) = one.api("/api/v1/node")?;
                let document: serde_json::Value = serde_json::from_str(&text)?;
                let findings = document["findings"].as_array().into_iter().flatten();
                let seen: Vec<_> = findings
                    .filter(|finding| finding["check"] == "port-taken")
                    .map(|finding| &finding["evidence"][0]["text"])
                    .collect();
                let owner = format!("(pid {}, flanneld, network 10.51.0.0/16)", two.pid());
                let problems = document["mesh"]["problems"].to_string();
                ensure!(
                    problems.contains(&owner) && problems.contains("--probe-port"),
                    "{problems}"
                );
                let named = |text: &&serde_json::Value| {
                    text.as_str()
                        .is_some_and(|text| text.contains(&owner[1..owner.len() - 1]))
                };
                ensure!(seen.len() == 1 && seen.iter().all(named), "{seen:?}");
                Ok(())
            })?;
            // By ping they are asked all the same.
            ensure!(one.is_ready() && two.is_ready());
        }
        eventually(DEADLINE, "ping goes on", all_well)?;
        // The tunnel goes, with its device: the port is the probes' again.
        drop(twos);
        for host in &hosts {
            host.netns().ip("link delete flannel.51")?;
        }
        lab::eventually_ok(DEADLINE, "the first network probes again", || {
            for one in &ones {
                let (_, text) = one.api("/api/v1/node")?;
                let document: serde_json::Value = serde_json::from_str(&text)?;
                ensure!(
                    document["mesh"]["problems"] == serde_json::json!([]),
                    "{}",
                    document["mesh"]["problems"]
                );
                let peer = &document["mesh"]["peers"][0];
                ensure!(
                    peer["state"] == "well" && peer["ping_only"] == false,
                    "{peer}"
                );
            }
            Ok(())
        })
    })
    .unwrap();
}

/// Two networks share a port: the guard of either lets the nodes of both in, those that come later too, and nobody else.
#[test]
fn a_guard_knows_the_peers_of_all_networks_on_its_port() {
    for nftables in [false, true] {
        let lab = Lab::new("two-nets").unwrap();
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 4).unwrap();
        let guard = ["--encap-peers=drop", "--iptables-resync=1"];
        let config = |vni: u8| {
            format!(r#""EnableNFTables":{nftables},"Backend":{{"Type":"vxlan","VNI":{vni}}}"#)
        };
        // The first network has nodes 1 and 2, the second 1 and 3; both guard node 1, then the first alone does.
        let (a, b) = (
            options(&lab, 50, &config(50), &guard),
            options(&lab, 51, &config(51), &guard),
        );
        let (a1, a2) = (
            hosts[0].flanneld(&a).unwrap(),
            hosts[1].flanneld(&a).unwrap(),
        );
        let b1 = hosts[0].flanneld(&b).unwrap();
        let pods = [
            hosts[0].pod("a1", &a1.subnet_env().unwrap()).unwrap(),
            hosts[1].pod("a2", &a2.subnet_env().unwrap()).unwrap(),
        ];
        let b1_env = b1.subnet_env().unwrap();
        let b1_pod = hosts[0].pod("b1", &b1_env).unwrap();
        hosts[0]
            .netns()
            .sh(&format!(
                "ip address replace {} dev cni0",
                b1_env.subnet.unwrap()
            ))
            .unwrap();
        // Node 3 comes now.
        let b3 = hosts[2].flanneld(&b).unwrap();
        let b3_pod = hosts[2].pod("b3", &b3.subnet_env().unwrap()).unwrap();
        let reaches = |from: &Pod, to: &Pod| {
            ping(
                from.netns(),
                to.address().unwrap(),
                &PingOptions::default().timeout(Duration::from_millis(700)),
            )
            .unwrap()
            .is_some()
        };
        let both = || reaches(&pods[1], &pods[0]) && reaches(&b3_pod, &b1_pod);
        eventually(DEADLINE, "nodes of both networks are let in", both).unwrap();
        let strangers =
            |daemon: &Flanneld| daemon.metric("flannel_encap_stranger_packets").unwrap();
        let counted = || (strangers(&a1), strangers(&b1));
        let mut before = counted();
        // What came from node 3 before its lease was known counts no more once the rules were written anew: then it begins again.
        eventually(DEADLINE, "the rules stay as they are", || {
            for _ in 0..20 {
                assert!(both(), "nftables {nftables}: {}", rules(&hosts[0]));
            }
            let (was, now) = (before, counted());
            before = now;
            assert!(
                now.0 <= was.0 && now.1 <= was.1,
                "a node of the networks counts as a stranger: {now:?}, and {was:?} before"
            );
            now == was
        })
        .unwrap();
        // A machine that is no node of either is not, by neither guard.
        let knock = || -> std::io::Result<usize> {
            let socket = std::net::UdpSocket::bind("192.168.56.104:0")?;
            socket.send_to(b"who is there?", "192.168.56.101:8472")
        };
        eventually(DEADLINE, "a stranger is counted", || {
            hosts[3].netns().run(knock).unwrap().unwrap();
            strangers(&a1) + strangers(&b1) > before.0 + before.1
        })
        .unwrap();
        // One goes on without a guard: the other's stays, and lets both in.
        drop(b1);
        let open = options(&lab, 51, &config(51), &guard[1..]);
        let b1 = hosts[0].flanneld(&open).unwrap();
        let chains = || {
            let listing = rules(&hosts[0]);
            let names = listing
                .split_whitespace()
                .filter(|word| word.starts_with("encap-in") || word.starts_with("FLANNEL-ENCAP"));
            names
                .map(str::to_owned)
                .collect::<std::collections::BTreeSet<_>>()
        };
        let left = if nftables {
            "encap-in"
        } else {
            "FLANNEL-ENCAP"
        };
        eventually(DEADLINE, "one guard is left", || chains().iter().eq([left])).unwrap();
        eventually(DEADLINE, "nodes of both networks are let in", both).unwrap();
        assert!(b1.errors().is_empty() && a1.errors().is_empty());
    }
}

/// One network is removed from a host on which the other's daemon goes on: it loses nothing, and nothing of the first is left.
#[test]
fn cleanup_leaves_the_other_network_alone() {
    for nftables in [false, true] {
        let lab = Lab::new("two-nets").unwrap();
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 2).unwrap();
        let host = &hosts[0];
        let flags = [
            "--ip-masq",
            "--iptables-resync=1",
            "--encap-peers=count",
            "--ip-blackhole-route",
        ];
        let config = |vni: u8| {
            format!(r#""EnableNFTables":{nftables},"Backend":{{"Type":"vxlan","VNI":{vni}}}"#)
        };
        let (a, b) = (
            options(&lab, 50, &config(50), &flags),
            options(&lab, 51, &config(51), &flags),
        );
        let far = (
            hosts[1].flanneld(&a).unwrap(),
            hosts[1].flanneld(&b).unwrap(),
        );
        let one = host.flanneld(&a).unwrap();
        let state = || {
            rules(host)
                + &host
                    .netns()
                    .sh("ip route show; ip -d link show type vxlan; ip route show type blackhole")
                    .unwrap()
        };
        let has = |number: u8| state().contains(&format!("10.{number}."));
        eventually(DEADLINE, "its routes are there", || {
            host.netns()
                .sh("ip route show proto 241 | grep -q via")
                .is_ok()
        })
        .unwrap();
        let mut two = host.flanneld(&b).unwrap();
        let cleanup = |args: &[&str]| {
            let file = format!(
                "--subnet-file={}",
                host.subnet_file()
                    .unwrap()
                    .with_file_name("net51.env")
                    .display()
            );
            let launch = Launch::new(binaries::own("flannelctl").unwrap())
                .arg("cleanup")
                .arg(file)
                .args(args);
            let mut process = host.spawn("cleanup", &launch).unwrap();
            (process.wait(DEADLINE).unwrap().success(), process.log())
        };
        let (fine, said) = cleanup(&[]);
        assert!(
            !fine && said.contains(&format!("flanneld runs here (pid {}", two.pid())),
            "{said}"
        );
        assert!(two.terminate(DEADLINE).unwrap().success());
        assert!(has(50) && has(51));
        let (fine, said) = cleanup(&[]);
        assert!(
            fine && said.contains(&format!(
                "flanneld serves 10.50.0.0/16 on this host (pid {}",
                one.pid()
            )),
            "{said}"
        );
        assert!(
            said.contains("removed device flannel.51") && !said.contains("flannel.50"),
            "{said}"
        );
        assert!(has(50) && !has(51), "{}\n{said}", state());
        eventually(DEADLINE, "time passes", || {
            one.metric("flannel_uptime_seconds").unwrap() >= 3.0
        })
        .unwrap();
        assert_eq!(
            one.metric("flannel_kernel_repairs_total").unwrap(),
            0.0,
            "{said}"
        );
        // On a busy machine the daemon and the cleanup may both see the other's rules that nobody serves, and write one after the other.
        assert!(
            one.metric("flannel_rule_repairs_total").unwrap() <= 1.0,
            "{said}"
        );
        drop(far);
    }
}
