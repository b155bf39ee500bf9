//! Proves that `flannelctl doctor` names the cause first, and that its own commands, typed as they stand, mend it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::{
    Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Launch, PingMatrix, Store, Uplink, Vagrant, binaries, eventually_ok, write_script,
};
use serde_json::Value;

/// Ten times the round of the doctor.
const DEADLINE: Duration = Duration::from_secs(100);
const SOON: Duration = Duration::from_secs(20);
const NETWORK: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// The way out of the trap, as docs/troubleshooting.md has it, too.
const ECHO_AND_RESTART: [&str; 2] = ["echo FLANNELD_IFACE=enp0s8 >> /etc/default/flanneld", "systemctl restart flanneld"];

/// A host with files of its own where the doctor looks, and a stand-in for what restarts daemons.
struct Node {
    host: Host,
    /// Its /etc/default, /etc/cni/net.d and programs.
    files: PathBuf,
    options: FlanneldOptions,
    daemon: Option<Flanneld>,
    scripts: u32,
}

impl Node {
    fn new(lab: &Lab, host: &Host, options: &FlanneldOptions, store: &Store) -> Result<Node> {
        let files = lab.folder(&format!("{}-files", host.name()))?;
        for folder in ["default", "cni", "bin"] {
            std::fs::create_dir_all(files.join(folder))?;
        }
        // As an operator writes it: what the lab gives as flags.
        let lines = store.args().into_iter().filter_map(|arg| {
            let (name, value) = arg.strip_prefix("--")?.split_once('=')?;
            Some(format!("FLANNELD_{}={value}\n", name.to_uppercase().replace('-', "_")))
        });
        std::fs::write(files.join("default/flanneld"), lines.collect::<String>())?;
        // The only help: these do what systemd and ufw do.
        let marker = files.join("restart");
        write_script(&files.join("bin/systemctl"), &format!("#!/bin/sh\necho \"$@\" >> '{}'", marker.display()))?;
        write_script(&files.join("bin/ufw"), "#!/bin/sh\niptables -A ufw-user-input -p udp --dport \"${2%/udp}\" -j ACCEPT")?;
        // The daemon sees the same files.
        let flanneld = binaries::own("flanneld")?;
        let wrapper = files.join("bin/flanneld");
        write_script(&wrapper, &format!("#!/bin/sh -e\n{}exec '{}' \"$@\"", mounts(&files), flanneld.display()))?;
        Ok(Node { host: host.clone(), files, options: options.clone().binary(&wrapper), daemon: None, scripts: 0 })
    }

    /// Starts the daemon, as its unit would: with the options of the file.
    fn start(&mut self) -> Result<()> {
        self.daemon = None;
        let file = std::fs::read_to_string(self.files.join("default/flanneld"))?;
        let options =
            file.lines().filter_map(|line| line.split_once('=')).fold(self.options.clone(), |options, (name, value)| options.env(name, value));
        self.daemon = Some(self.host.start_flanneld(&options)?);
        Ok(())
    }

    fn daemon(&mut self) -> Result<&mut Flanneld> {
        self.daemon.as_mut().context("no daemon was started")
    }

    /// Waits until the daemon says that it is ready.
    fn ready(&mut self) -> Result<()> {
        let daemon = self.daemon()?;
        eventually_ok(SOON, "the daemon is ready", || match daemon.get("/readyz")? {
            (200, _) => Ok(()),
            (code, text) => bail!("{code} {text}\n{}", daemon.log_tail(10)),
        })
    }

    /// Runs a script on the host, and returns its exit code and what it printed.
    fn sh(&mut self, script: &str) -> Result<(i32, String)> {
        self.scripts += 1;
        let name = format!("script-{}", self.scripts);
        let whole = format!("{}PATH='{}':$PATH\n{script}", mounts(&self.files), self.files.join("bin").display());
        let mut process = self.host.spawn(&name, &Launch::new("sh").args(["-ec", &whole]))?;
        let status = process.wait(SOON)?;
        Ok((status.code().unwrap_or(-1), process.log()))
    }

    /// What the doctor says, as JSON, and its exit code.
    fn doctor(&mut self) -> Result<(i32, Value)> {
        let program = binaries::own("flannelctl")?;
        let (code, text) = self.sh(&format!("'{}' doctor -o json", program.display()))?;
        let report = serde_json::from_str(&text).with_context(|| format!("exit code {code}: {text}"))?;
        Ok((code, report))
    }

    /// The findings that nothing explains: their checks, in order.
    fn causes(&mut self) -> Result<Vec<String>> {
        let (_, report) = self.doctor()?;
        let findings = report["findings"].as_array().context("no findings")?;
        Ok(findings
            .iter()
            .filter(|finding| finding["explained_by"].is_null())
            .filter_map(|finding| finding["check"].as_str().map(str::to_owned))
            .collect())
    }

    /// Waits until exactly these causes are found.
    fn expect(&mut self, wanted: &[&str]) -> Result<()> {
        eventually_ok(DEADLINE, &format!("the doctor finds {wanted:?}"), || {
            let found = self.causes()?;
            if found != wanted {
                bail!("{found:?} instead of {wanted:?}: {:#}", self.doctor()?.1["findings"]);
            }
            Ok(())
        })
    }

    /// Types the commands of the first finding as they stand.
    fn mend(&mut self) -> Result<()> {
        let (_, report) = self.doctor()?;
        let commands = report["findings"][0]["remedy"]["commands"].as_array().context("no commands")?.clone();
        ensure!(!commands.is_empty(), "{report:#}");
        let file = self.files.join("restart");
        for command in commands.iter().filter_map(Value::as_str) {
            let (code, said) = self.sh(command)?;
            ensure!(code == 0, "{command}: {code}: {said}");
            if std::fs::remove_file(&file).is_ok() {
                if let Some(daemon) = &mut self.daemon {
                    daemon.terminate(SOON)?;
                }
                self.start()?;
            }
        }
        Ok(())
    }
}

/// Puts the host's own files where programs look for them; the mounts are the process's own.
fn mounts(files: &std::path::Path) -> String {
    let of = |name: &str, place: &str| format!("mkdir -p {place}; mount --bind '{}' {place}\n", files.join(name).display());
    format!("{}{}", of("default", "/etc/default"), of("cni", "/etc/cni/net.d"))
}

/// The trap: hosts behind a NAT box each, and a second interface that joins them.
fn trap(title: &str, vagrant: impl Fn(&Lab) -> Result<Vagrant>, in_etcd: bool, first: &[&str], others: &[&str]) -> Result<()> {
    Lab::run(title, |lab| {
        let vagrant = vagrant(lab)?;
        let machine = lab.host("store", &[Uplink::enp0s8(&vagrant.lan, 99)?])?;
        let etcd = if in_etcd { Some(Etcd::start(&[&machine], &EtcdOptions::default().interface("enp0s8"))?) } else { None };
        let store = match &etcd {
            Some(etcd) => etcd.store()?,
            None => Store::dir(&lab.folder("leases")?),
        };
        store.configure(NETWORK)?;
        let options = FlanneldOptions::new(&store);
        let mut nodes = vagrant.hosts.iter().map(|host| Node::new(lab, host, &options, &store)).collect::<Result<Vec<_>>>()?;
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
        // On every node, what the first was told: all are told the same.
        for node in &mut nodes {
            let commands = node.doctor()?.1["findings"][0]["remedy"]["commands"].clone();
            ensure!(commands == serde_json::json!(ECHO_AND_RESTART), "{commands}");
            node.mend()?;
        }
        for node in &mut nodes {
            node.ready()?;
        }
        let pods = nodes.iter_mut().map(|node| {
            let env = node.daemon()?.subnet_env()?;
            node.host.pod("p1", &env)
        });
        let pods = pods.collect::<Result<Vec<_>>>()?;
        eventually_ok(SOON, "the pods reach each other", || PingMatrix::of(&pods)?.require_complete())?;
        nodes.iter_mut().try_for_each(|node| node.expect(&[]))
    })
}

#[test]
fn the_trap_with_one_address_everywhere() -> Result<()> {
    trap("doctor: one address", |lab| lab.vagrant(2), true, &["nat-interface"], &["wrong-interface"])
}

#[test]
fn the_trap_with_an_address_each() -> Result<()> {
    trap("doctor: an address each", |lab| lab.vagrant_apart(3), true, &["wrong-interface"], &["wrong-interface"])
}

#[test]
fn the_trap_with_leases_in_a_directory() -> Result<()> {
    trap("doctor: a directory", |lab| lab.vagrant_apart(3), false, &["wrong-interface"], &["wrong-interface"])
}

/// A fault: its check, what makes it, and what takes away what the remedy leaves.
struct Fault {
    check: &'static str,
    make: &'static str,
    clear: &'static str,
    /// Whether no command can mend it, so that clearing it does.
    by_hand: bool,
}

const fn fault(check: &'static str, make: &'static str, clear: &'static str) -> Fault {
    Fault { check, make, clear, by_hand: false }
}

/// In them, PEER stands for the other node's subnet.
const FAULTS: &[Fault] = &[
    fault("ip-forward", "sysctl -q -w net.ipv4.ip_forward=0", "true"),
    fault("rp-filter", "sysctl -q -w net/ipv4/conf/flannel.1/rp_filter=1", "true"),
    fault("bridge-nf-call", "sysctl -q -w net.bridge.bridge-nf-call-iptables=0", "true"),
    fault(
        "forward-policy",
        "nft 'table inet wall { chain gate { type filter hook forward priority 7; policy drop; }; }'",
        "nft delete table inet wall",
    ),
    fault("forward-reject", "iptables -I FORWARD -j REJECT", "iptables -D FORWARD -j REJECT"),
    fault(
        "ufw",
        "iptables -N ufw-before-input; iptables -N ufw-user-input; iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -j ufw-before-input; iptables -A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables -A ufw-before-input -p icmp -j ACCEPT; iptables -A ufw-before-input -p udp --dport 8473 -j ACCEPT; iptables -A ufw-before-input -j ufw-user-input; iptables -P INPUT DROP",
        "iptables -P INPUT ACCEPT; iptables -F INPUT; iptables -F ufw-before-input; iptables -F ufw-user-input; iptables -X ufw-before-input; iptables -X ufw-user-input",
    ),
    fault("stale-bridge", "ip link add cni0 type bridge; ip address add 10.5.254.1/24 dev cni0", "ip link delete cni0"),
    Fault {
        by_hand: true,
        ..fault("network-overlap", "ip link add other type bridge; ip address add 10.5.253.1/24 dev other", "ip link delete other")
    },
    // It may be another network's, whose daemon is stopped: who knows it deletes it.
    Fault { by_hand: true, ..fault("leftovers", "ip tuntap add flannel0 mode tun", "ip link delete flannel0") },
    fault("foreign-route", "ip route replace PEER via 192.168.56.250 dev enp0s8", "ip route delete PEER metric 4096"),
    fault("foreign-cni", "echo '{\"plugins\":[{\"type\":\"calico\"}]}' > /etc/cni/net.d/05-calico.conflist", "rm /etc/cni/net.d/*.aside"),
    fault("cni-config", "echo '{\"type\":\"bridge\"}' > /etc/cni/net.d/05-other.conf", "rm /etc/cni/net.d/*.aside"),
    fault("subnet-env", "rm /run/flannel/subnet.env; mkdir /run/flannel/subnet.env", "rmdir /run/flannel/subnet.env.aside"),
    fault(
        "not-running",
        "kill -9 $(pidof flanneld | tr ' ' '\\n' | while read pid; do [ \"$(readlink /proc/$pid/ns/net)\" = \"$(readlink /proc/self/ns/net)\" ] && echo $pid; done)",
        "true",
    ),
];

#[test]
fn each_fault_is_found_alone_and_mended_by_its_own_commands() -> Result<()> {
    Lab::run("doctor: faults", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(NETWORK)?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let mut nodes = hosts.iter().map(|host| Node::new(lab, host, &options, &store)).collect::<Result<Vec<_>>>()?;
        for node in &mut nodes {
            std::fs::write(node.files.join("cni/10-flannel.conflist"), r#"{"plugins":[{"type":"flannel"}]}"#)?;
            node.start()?;
            node.ready()?;
        }
        let peer = nodes[1].daemon()?.subnet_env()?.subnet.context("a v4 subnet")?.trunc().to_string();
        for node in &mut nodes {
            // What needs waiting counts, too.
            eventually_ok(SOON, "the first ten seconds", || {
                let text = node.daemon()?.get("/status")?.1;
                let status: Value = serde_json::from_str(&text)?;
                ensure!(status["uptime_seconds"].as_u64() > Some(10), "{text}");
                Ok(())
            })?;
            node.expect(&[])?;
        }
        let node = &mut nodes[0];
        for Fault { check, make, clear, by_hand } in FAULTS {
            let run = |node: &mut Node, script: &str| -> Result<()> {
                let (code, said) = node.sh(&script.replace("PEER", &peer))?;
                ensure!(code == 0, "{check}: {script}: {said}");
                Ok(())
            };
            run(node, make).with_context(|| format!("making {check}"))?;
            node.expect(&[check])?;
            if *check != "not-running" {
                let metric = node.daemon()?.metric(&format!("flannel_findings{{check=\"{check}\"}}"))?;
                ensure!(metric >= 1.0, "{check}: {metric}");
            }
            if !by_hand {
                node.mend().with_context(|| format!("mending {check}"))?;
                node.expect(&[]).with_context(|| format!("after the commands of {check}"))?;
            }
            run(node, clear).with_context(|| format!("clearing {check}"))?;
            node.expect(&[]).with_context(|| format!("after {check}"))?;
        }
        nodes[1].expect(&[])?;

        // It is remembered for ten minutes, so it comes last.
        let again = format!("ip route delete {peer}; until ip route show {peer} | grep -q flannel; do sleep 0.1; done; sleep 0.5");
        for _ in 0..5 {
            let (code, said) = nodes[0].sh(&again)?;
            ensure!(code == 0, "{said}");
        }
        nodes[0].expect(&["drift-war"])?;
        let finding = nodes[0].doctor()?.1["findings"][0].clone();
        ensure!(finding["about"] == format!("route to {peer}"), "{finding}");
        Ok(())
    })
}

/// What only the probes of the peers can tell.
#[test]
fn faults_between_nodes_are_found_and_mended() -> Result<()> {
    Lab::run("doctor: the mesh", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 3)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(NETWORK)?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let mut nodes = hosts.iter().map(|host| Node::new(lab, host, &options, &store)).collect::<Result<Vec<_>>>()?;
        for node in &mut nodes {
            node.start()?;
            node.ready()?;
        }
        let well = |nodes: &mut [Node]| nodes.iter_mut().try_for_each(|node| node.expect(&[]));
        well(&mut nodes).context("at the start")?;

        // A firewall of this host drops what comes in.
        let run = |node: &mut Node, script: &str| -> Result<()> {
            let (code, said) = node.sh(script)?;
            ensure!(code == 0, "{script}: {said}");
            Ok(())
        };
        run(&mut nodes[0], "iptables -A INPUT -p udp --dport 8472 -j DROP")?;
        nodes[0].expect(&["encap-blocked"])?;
        nodes[0].mend()?;
        well(&mut nodes).context("after encap-blocked")?;

        // The second host sends the first one nothing.
        run(&mut nodes[1], "iptables -A OUTPUT -p udp --dport 8472 -d 192.168.56.101 -j DROP")?;
        nodes[0].expect(&["one-way"])?;
        nodes[1].expect(&["overlay-cut"])?;
        nodes[2].expect(&[])?;
        run(&mut nodes[1], "iptables -F OUTPUT")?;
        well(&mut nodes).context("after one-way")?;

        // The third host is off.
        hosts[2].cut("enp0s8")?;
        nodes[0].expect(&["peer-cut"])?;
        nodes[2].expect(&["peer-cut", "peer-cut"])?;
        hosts[2].reconnect("enp0s8")?;
        well(&mut nodes).context("after peer-cut")?;

        // Probes are refused, traffic is not.
        run(&mut nodes[1], "iptables -A INPUT -p udp --dport 8473 -j DROP")?;
        nodes[0].expect(&["probe-filtered"])?;
        let commands = nodes[0].doctor()?.1["findings"][0]["remedy"].clone();
        ensure!(commands["on"] == "every node", "{commands}");
        run(&mut nodes[1], commands["commands"][0].as_str().context("a command")?)?;
        well(&mut nodes).context("after probe-filtered")
    })
}

/// Networks of which nothing is to be said: each backend with both kinds of rules, and with one family or two.
fn healthy() -> Vec<String> {
    let mut all = Vec::new();
    for backend in ["vxlan", "udp", "host-gw"] {
        for nftables in [false, true] {
            for v6 in ["", r#""EnableIPv6":true,"IPv6Network":"fd10:5::/48","#] {
                all.push(format!(r#"{{"Network":"10.5.0.0/16",{v6}"EnableNFTables":{nftables},"Backend":{{"Type":"{backend}"}}}}"#));
            }
        }
    }
    all
}

#[test]
fn a_healthy_network_raises_no_finding() -> Result<()> {
    let configs = healthy();
    let labs = configs.iter().map(|_| Lab::new("doctor: healthy")).collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for (lab, config) in labs.iter().zip(&configs) {
        let lan = lab.switch("lan")?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(config)?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        for host in &lab.hosts(&lan, 2)? {
            let mut node = Node::new(lab, host, &options, &store)?;
            node.start()?;
            all.push((config, node));
        }
    }
    for (_, node) in &mut all {
        node.ready()?;
    }
    for (config, node) in &mut all {
        let env = node.daemon()?.subnet_env()?;
        let _pod = node.host.pod("p1", &env)?;
        node.expect(&[]).with_context(|| config.to_string())?;
    }
    std::thread::sleep(Duration::from_secs(12));
    for (config, node) in &mut all {
        node.expect(&[]).with_context(|| format!("{config}, later"))?;
        let log = node.daemon()?.log();
        ensure!(!log.contains("WARN this node"), "{config}: {log}");
    }
    Ok(())
}

#[test]
fn a_port_that_is_taken_is_named_with_who_has_it_and_moved() -> Result<()> {
    Lab::run("doctor: ports", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 1)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(NETWORK)?;
        let mut node = Node::new(lab, &hosts[0], &FlanneldOptions::new(&store).iface("enp0s8"), &store)?;
        let _page = hosts[0].netns().run(|| std::net::TcpListener::bind("127.0.0.1:8474"))??;
        node.start()?;
        node.ready()?;
        node.expect(&["port-taken"])?;
        let seen = node.doctor()?.1["findings"][0]["evidence"][0]["text"].clone();
        ensure!(seen.as_str().is_some_and(|text| text.contains(&format!("(pid {})", std::process::id()))), "{seen}");
        node.mend()?;
        node.ready()?;
        node.expect(&[])?;
        ensure!(node.daemon()?.log().contains("127.0.0.1:8574"), "the page moved");
        Ok(())
    })
}

#[test]
fn a_store_that_is_gone_is_named_with_the_cause() -> Result<()> {
    Lab::run("doctor: store", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 1)?;
        let machine = lab.host("store", &[Uplink::enp0s8(&lan, 99)?])?;
        let mut etcd = Etcd::start(&[&machine], &EtcdOptions::default().interface("enp0s8"))?;
        let store = etcd.store()?;
        store.configure(NETWORK)?;
        let mut node = Node::new(lab, &hosts[0], &FlanneldOptions::new(&store).iface("enp0s8"), &store)?;
        node.start()?;
        node.ready()?;
        node.expect(&[])?;
        etcd.kill(0)?;
        node.expect(&["store-unreachable"])?;
        let place = node.doctor()?.1["findings"][0]["what"].clone();
        ensure!(place.as_str().is_some_and(|place| place.contains("etcd at http://192.168.56.199:2379")), "{place}");
        etcd.restart(0)?;
        node.expect(&[])
    })
}

/// What the page tells is what the doctor prints.
#[test]
fn the_page_has_the_commands_of_the_trap() -> Result<()> {
    let page = include_str!("../../../docs/troubleshooting.md");
    let section = page.split("\n## ").find(|section| section.starts_with("All nodes have the same address")).context("no such section")?;
    let commands: Vec<&str> = section.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).context("no commands")?.lines().collect();
    let [first, rest @ ..] = commands.as_slice() else { bail!("no commands: {section}") };
    ensure!(*first == "flannelctl doctor" && rest == ECHO_AND_RESTART, "{commands:?}");
    Ok(())
}
