//! Tests of two daemons for two networks on one host. Each daemon keeps its own rules in the shared chains. A daemon
//! refuses to start only if both daemons need an object that the daemons cannot share.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{
    Flanneld, FlanneldOptions, Host, Lab, Launch, PingMatrix, PingOptions, Pod, Probe,
    ProbeOptions, Programs, Store, Xtables,
};
use lab::{binaries, ping, until, until_ok};
use serde_json::{Value, json};

/// One of the two networks, on two hosts.
struct Network {
    options: FlanneldOptions,
    daemons: Vec<Flanneld>,
    pods: Vec<Pod>,
}

/// Returns the options of the daemons of network `10.<number>.0.0/16`, with a separate port for the health endpoints.
fn options(lab: &Lab, number: u8, config: &str, flags: &[&str]) -> FlanneldOptions {
    let store = Store::dir(&lab.folder(&format!("leases-{number}")).unwrap());
    store
        .configure(&format!(r#"{{"Network":"10.{number}.0.0/16",{config}}}"#))
        .unwrap();
    let options = FlanneldOptions::new(&store)
        .iface("enp0s8")
        .second(&format!("net{number}"));
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
            // The lab has one bridge per host, which is the gateway of both networks.
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

    /// Starts probes from a pod on the first host to a pod on the second host, and through masquerade rules
    /// to a machine outside. Each packet uses a separate connection.
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

/// Returns the rules of the chains that both networks use, in nftables and in both variants of iptables.
fn rules(host: &Host) -> String {
    host.netns()
        .sh("nft -s list ruleset ip; iptables-legacy-save | grep -v '^#' | sed 's/ \\[.*//'")
        .unwrap()
}

/// Restarts each daemon of the first host, by SIGTERM and by SIGKILL, and then both daemons at once. Neither network loses packets, and no
/// daemon writes rules.
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
                // A packet that nftables accepts still passes iptables, where the rules are the operator's task.
                host.netns().sh("iptables -A FORWARD -s 10.50.0.0/15 -j ACCEPT; iptables -A FORWARD -d 10.50.0.0/15 -j ACCEPT")?;
            }
        }
        let start = |number| Network::start(lab, hosts, number, nftables, &programs);
        let mut networks = [start(50)?, start(51)?];
        let probes =
            networks.iter().map(|network| network.probes(hosts, outside)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect::<Vec<_>>();
        for probe in &probes {
            probe.wait_flowing()?;
        }
        let before = rules(&hosts[0]);
        for round in ["signal", "kill", "both"] {
            if round == "both" {
                networks.iter_mut().try_for_each(|network| network.daemons[0].terminate().map(drop))?;
            }
            for network in &mut networks {
                match round {
                    "signal" => ensure!(network.daemons[0].terminate()?.success(), "{}", network.daemons[0].log_tail(10)),
                    "kill" => network.daemons[0].kill()?,
                    _ => {}
                }
                network.daemons[0] = hosts[0].flanneld(&network.options)?;
                for probe in &probes {
                    probe.wait_flowing()?;
                }
                ensure!(network.daemons[0].metric("flannel_rule_writes_total")? == 0.0, "{round}: {}", network.daemons[0].log_tail(20));
            }
        }
        // Time for at least three resyncs and 200 packets of each probe.
        until("time passes", || networks[1].daemons[0].metric("flannel_uptime_seconds").unwrap() >= 4.0)?;
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

/// Returns the configurations of two networks, and the object that the two networks cannot share.
fn conflicts() -> Vec<(String, String, &'static str)> {
    let vxlan = |vni: u32, more: &str| format!(r#""Backend":{{"Type":"vxlan","VNI":{vni}{more}}}"#);
    vec![
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
    ]
}

/// The second daemon refuses to use an object that two daemons cannot share, and reports the owner's pid and
/// network. The first daemon continues without an error.
#[test]
fn daemon_is_refused_when_another_owns_its_resource() {
    let lab = Lab::new("two-nets").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let host = &hosts[0];
    for (first, second, what) in conflicts() {
        let one = host.flanneld(&options(&lab, 50, &first, &[])).unwrap();
        let mut two = host
            .start_flanneld(&options(&lab, 51, &second, &[]))
            .unwrap();
        let status = two.wait().unwrap();
        let log = two.log();
        assert_eq!(status.code(), Some(1), "{first} {second}: {log}");
        let refusal = format!(
            "another flanneld on this host already uses {what} (pid {}, flanneld, network 10.50.0.0/16)",
            one.pid()
        );
        assert!(log.contains(&refusal), "{refusal}\n{log}");
        assert!(
            one.is_ready() && one.errors().is_empty(),
            "{:?}",
            one.errors()
        );
    }
    // One network cannot be served twice, not even by another backend.
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
                .second("same")
                .healthz_port(None),
        )
        .unwrap();
    assert_eq!(two.wait().unwrap().code(), Some(1));
    assert!(
        two.log()
            .contains("already uses the rules for 10.50.0.0/16")
            && two.log().contains(&format!("pid {}", one.pid())),
        "{}",
        two.log()
    );
    // Another network with another VNI is not refused.
    host.flanneld(&options(&lab, 51, r#""Backend":{"Type":"vxlan"}"#, &[]))
        .unwrap();
}

/// The tunnel of a second network needs the port of the first network's probes. The tunnel takes precedence, and the doctor names the port's owner.
#[test]
fn probe_port_is_released_when_a_tunnel_needs_it() {
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
        let all_well = || {
            ones.iter().all(|one| {
                one.metric("flannel_probe_peers{state=\"well\"}")
                    .is_ok_and(|well| well == 1.0)
            })
        };
        until("the first network probes", all_well)?;
        let twos = hosts
            .iter()
            .map(|host| host.flanneld(&second))
            .collect::<Result<Vec<_>>>()?;
        let mut pods = Vec::new();
        for (host, two) in hosts.iter().zip(&twos) {
            let env = two.subnet_env()?;
            pods.push(host.pod("p51", &env)?);
        }
        until_ok("the second network's packets pass", || {
            PingMatrix::of(&pods)?.require_complete()
        })?;
        for (one, two) in ones.iter().zip(&twos) {
            until_ok("the doctor names the owner of the port", || {
                doctor_names_owner_of_port(one, two)
            })?;
            // Peers are still probed by ping.
            ensure!(one.is_ready() && two.is_ready());
        }
        until("ping goes on", all_well)?;
        // Without the tunnel and its device the port is free again.
        drop(twos);
        for host in &hosts {
            host.netns().ip("link delete flannel.51")?;
        }
        until_ok("the first network probes again", || {
            ones.iter().try_for_each(probes_by_udp)
        })
    })
    .unwrap();
}

fn node_document(daemon: &Flanneld) -> Result<Value> {
    Ok(serde_json::from_str(&daemon.api("/api/v1/node")?.1)?)
}

fn doctor_names_owner_of_port(one: &Flanneld, two: &Flanneld) -> Result<()> {
    let document = node_document(one)?;
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
    let named = |text: &&Value| {
        text.as_str()
            .is_some_and(|text| text.contains(&owner[1..owner.len() - 1]))
    };
    ensure!(seen.len() == 1 && seen.iter().all(named), "{seen:?}");
    Ok(())
}

fn probes_by_udp(daemon: &Flanneld) -> Result<()> {
    let document = node_document(daemon)?;
    ensure!(
        document["mesh"]["problems"] == json!([]),
        "{}",
        document["mesh"]["problems"]
    );
    let peer = &document["mesh"]["peers"][0];
    ensure!(
        peer["state"] == "well" && peer["ping_only"] == false,
        "{peer}"
    );
    Ok(())
}

/// Returns the configuration of a vxlan network with the VNI `vni`.
fn vxlan_config(nftables: bool, vni: u8) -> String {
    format!(r#""EnableNFTables":{nftables},"Backend":{{"Type":"vxlan","VNI":{vni}}}"#)
}

#[test]
fn iptables_guard_admits_peers_of_all_networks_on_its_port() {
    guard_admits_peers_of_all_networks(false).unwrap();
}

#[test]
fn nftables_guard_admits_peers_of_all_networks_on_its_port() {
    guard_admits_peers_of_all_networks(true).unwrap();
}

/// Two networks: the first network has nodes 1 and 2, and the second network has nodes 1 and 3. Both networks
/// share a port on node 1. Node 4 is in neither network.
struct GuardBed {
    hosts: Vec<Host>,
    /// First network's daemon on node 1. `second` is the second network's daemon.
    first: Flanneld,
    second: Flanneld,
    /// A pod on another node and a pod on node 1, for each network.
    pairs: [(Pod, Pod); 2],
    _others: [Flanneld; 2],
}

const GUARD: [&str; 2] = ["--encap-peers=drop", "--iptables-resync=1"];

impl GuardBed {
    fn start(lab: &Lab, nftables: bool) -> Result<GuardBed> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 4)?;
        let (a, b) = (
            options(lab, 50, &vxlan_config(nftables, 50), &GUARD),
            options(lab, 51, &vxlan_config(nftables, 51), &GUARD),
        );
        let (a1, a2) = (hosts[0].flanneld(&a)?, hosts[1].flanneld(&a)?);
        let b1 = hosts[0].flanneld(&b)?;
        let a1_pod = hosts[0].pod("a1", &a1.subnet_env()?)?;
        let a2_pod = hosts[1].pod("a2", &a2.subnet_env()?)?;
        let b1_env = b1.subnet_env()?;
        let b1_pod = hosts[0].pod("b1", &b1_env)?;
        hosts[0].netns().sh(&format!(
            "ip address replace {} dev cni0",
            b1_env.subnet.unwrap()
        ))?;
        // Node 3 joins after the guards were created.
        let b3 = hosts[2].flanneld(&b)?;
        let b3_pod = hosts[2].pod("b3", &b3.subnet_env()?)?;
        Ok(GuardBed {
            hosts,
            first: a1,
            second: b1,
            pairs: [(a2_pod, a1_pod), (b3_pod, b1_pod)],
            _others: [a2, b3],
        })
    }

    /// Returns whether packets of both networks reach node 1.
    fn admits_both(&self) -> bool {
        self.pairs.iter().all(|(from, to)| {
            ping(
                from.netns(),
                to.address().unwrap(),
                &PingOptions::default().timeout(Duration::from_millis(700)),
            )
            .unwrap()
            .is_some()
        })
    }

    /// Returns the number of packets of unknown senders that each network's guard rules have counted.
    fn counted(&self) -> (f64, f64) {
        let count = |daemon: &Flanneld| daemon.metric("flannel_encap_stranger_packets").unwrap();
        (count(&self.first), count(&self.second))
    }

    /// Waits until the guard rules admit each packet of both networks, and returns the rules' counters.
    ///
    /// Until the daemon writes the rules again, a counter includes packets that node 3 sent before node 1 read node 3's lease.
    fn wait_settled(&self, nftables: bool) -> Result<(f64, f64)> {
        let mut before = self.counted();
        until("the rules stay as they are", || {
            for _ in 0..20 {
                assert!(
                    self.admits_both(),
                    "nftables {nftables}: {}",
                    rules(&self.hosts[0])
                );
            }
            // A guard that counted packets of a peer would do so in each round.
            let was = std::mem::replace(&mut before, self.counted());
            before == was
        })?;
        Ok(before)
    }

    /// Returns the chains of the guard rules on node 1.
    fn chains(&self) -> BTreeSet<String> {
        rules(&self.hosts[0])
            .split_whitespace()
            .filter(|word| word.starts_with("encap-in") || word.starts_with("FLANNEL-ENCAP"))
            .map(str::to_owned)
            .collect()
    }
}

/// Checks that the guard rules of two networks on one port admit only the nodes of both networks, including nodes that join later.
fn guard_admits_peers_of_all_networks(nftables: bool) -> Result<()> {
    let lab = Lab::new("two-nets")?;
    let mut bed = GuardBed::start(&lab, nftables)?;
    until("nodes of both networks are admitted", || bed.admits_both())?;
    let before = bed.wait_settled(nftables)?;
    let knock = || -> std::io::Result<usize> {
        let socket = std::net::UdpSocket::bind("192.168.56.104:0")?;
        socket.send_to(b"who is there?", "192.168.56.101:8472")
    };
    until("a packet of another machine is counted", || {
        bed.hosts[3].netns().run(knock).unwrap().unwrap();
        let now = bed.counted();
        now.0 + now.1 > before.0 + before.1
    })?;
    // The second network continues without a guard. The first one's guard still admits both.
    bed.second.kill()?;
    let open = options(&lab, 51, &vxlan_config(nftables, 51), &GUARD[1..]);
    bed.second = bed.hosts[0].flanneld(&open)?;
    let left = if nftables {
        "encap-in"
    } else {
        "FLANNEL-ENCAP"
    };
    until("one guard is left", || bed.chains().iter().eq([left]))?;
    until("nodes of both networks are admitted", || bed.admits_both())?;
    ensure!(
        bed.second.errors().is_empty() && bed.first.errors().is_empty(),
        "{:?} {:?}",
        bed.first.errors(),
        bed.second.errors()
    );
    Ok(())
}

#[test]
fn cleanup_leaves_the_other_network_alone_with_iptables() {
    cleanup_leaves_the_other_network_alone(false).unwrap();
}

#[test]
fn cleanup_leaves_the_other_network_alone_with_nftables() {
    cleanup_leaves_the_other_network_alone(true).unwrap();
}

/// Networks 50 and 51 on two hosts. The test removes network 51 on the first host.
struct CleanupBed {
    host: Host,
    one: Flanneld,
    two: Flanneld,
    _far: (Flanneld, Flanneld),
}

impl CleanupBed {
    fn start(lab: &Lab, nftables: bool) -> Result<CleanupBed> {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let flags = [
            "--ip-masq",
            "--iptables-resync=1",
            "--encap-peers=count",
            "--ip-blackhole-route",
        ];
        let (a, b) = (
            options(lab, 50, &vxlan_config(nftables, 50), &flags),
            options(lab, 51, &vxlan_config(nftables, 51), &flags),
        );
        let far = (hosts[1].flanneld(&a)?, hosts[1].flanneld(&b)?);
        let host = hosts[0].clone();
        let one = host.flanneld(&a)?;
        until("the routes of network 50", || {
            host.netns()
                .sh("ip route show proto 241 | grep -q via")
                .is_ok()
        })?;
        let two = host.flanneld(&b)?;
        Ok(CleanupBed {
            host,
            one,
            two,
            _far: far,
        })
    }

    fn state(&self) -> Result<String> {
        let routes = self
            .host
            .netns()
            .sh("ip route show; ip -d link show type vxlan; ip route show type blackhole")?;
        Ok(rules(&self.host) + &routes)
    }

    fn has(&self, number: u8) -> Result<bool> {
        Ok(self.state()?.contains(&format!("10.{number}.")))
    }

    /// Runs `flannelctl cleanup` for network 51. Returns whether the cleanup succeeded, and the output of all cleanups.
    fn cleanup(&self) -> Result<(bool, String)> {
        let file = self.host.subnet_file()?.with_file_name("net51.env");
        let launch = Launch::new(binaries::own("flannelctl")?)
            .arg("cleanup")
            .arg(format!("--subnet-file={}", file.display()));
        let mut process = self.host.spawn("cleanup", &launch)?;
        Ok((process.wait()?.success(), process.log()))
    }
}

/// Checks that flannelctl refuses a cleanup while the network's daemon runs. After the daemon's end, cleanup removes
/// all objects of the network, and the other network loses nothing.
fn cleanup_leaves_the_other_network_alone(nftables: bool) -> Result<()> {
    let lab = Lab::new("two-nets")?;
    let mut bed = CleanupBed::start(&lab, nftables)?;
    let (succeeded, output) = bed.cleanup()?;
    ensure!(
        !succeeded && output.contains(&format!("flanneld runs here (pid {}", bed.two.pid())),
        "{output}"
    );
    ensure!(bed.two.terminate()?.success());
    ensure!(bed.has(50)? && bed.has(51)?, "{}", bed.state()?);
    let (succeeded, output) = bed.cleanup()?;
    let serves = format!(
        "flanneld serves 10.50.0.0/16 on this host (pid {}",
        bed.one.pid()
    );
    ensure!(succeeded && output.contains(&serves), "{output}");
    ensure!(
        output.contains("removed device flannel.51") && !output.contains("flannel.50"),
        "{output}"
    );
    ensure!(bed.has(50)? && !bed.has(51)?, "{}\n{output}", bed.state()?);
    until("time for repairs", || {
        bed.one.metric("flannel_uptime_seconds").unwrap() >= 3.0
    })?;
    ensure!(
        bed.one.metric("flannel_kernel_repairs_total")? == 0.0,
        "{output}"
    );
    // On a busy machine, the daemon and the cleanup may both see rules that no daemon serves, and write one after the other.
    ensure!(
        bed.one.metric("flannel_rule_repairs_total")? <= 1.0,
        "{output}"
    );
    Ok(())
}
