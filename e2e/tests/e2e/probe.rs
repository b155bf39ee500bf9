//! Checks that `flannelctl probe` reports the step at which a path ends, with each backend that carries packets.

use anyhow::{Context, Result, bail, ensure};
use lab::{Bed, Host, Lab, json, texts, until_ok};
use serde_json::Value;
use std::net::IpAddr;
use std::process::Output;
use std::time::{Duration, Instant};

/// Ten times the expected time of a report.
const REPORTED: Duration = Duration::from_secs(100);

const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":BACKEND}"#;
const VXLAN: &str = r#"{"Type":"vxlan"}"#;

/// Runs `flannelctl probe` on a host.
fn run(bed: &Bed, node: usize, args: &[&str]) -> Result<Output> {
    bed.daemons[node].flannelctl(&[&["probe"], args].concat())
}

/// Returns the exit code and all output of a command.
fn result(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), texts(output))
}

/// Runs `flannelctl probe`, and returns the exit code and the report as JSON.
fn probe(bed: &Bed, node: usize, target: &str) -> Result<(i32, Value)> {
    let output = run(bed, node, &[target, "-o", "json"])?;
    let document = json(&output).with_context(|| target.to_owned())?;
    Ok((output.status.code().unwrap_or(-1), document))
}

fn outcome<'a>(document: &'a Value, name: &str) -> &'a str {
    let steps = document["steps"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    steps
        .iter()
        .find(|step| step["name"] == name)
        .and_then(|step| step["outcome"].as_str())
        .unwrap_or("no step")
}

/// Waits until `flannelctl probe` reports that the path ends at the step `at`, or at no step, and the steps have the expected outcomes.
fn ends(
    bed: &Bed,
    target: &str,
    at: Option<&str>,
    outcomes: &[(&str, &str)],
    sentence: &str,
) -> Result<Value> {
    ends_and(bed, target, at, outcomes, sentence, |_| true)
}

/// Waits as [`ends`] does, and until `holds` is true for the document. On a busy machine, this may take longer.
fn ends_and(
    bed: &Bed,
    target: &str,
    at: Option<&str>,
    outcomes: &[(&str, &str)],
    sentence: &str,
    holds: impl Fn(&Value) -> bool,
) -> Result<Value> {
    until_ok(&format!("the path to {target} ends at {at:?}"), || {
        let (code, document) = probe(bed, 0, target)?;
        ensure!(document["ends_at"].as_str() == at, "{document:#}");
        ensure!(
            code == if at.is_some() { 3 } else { 0 },
            "exit code {code}: {document:#}"
        );
        for (name, expected) in outcomes {
            ensure!(
                outcome(&document, name) == *expected,
                "{name} is not {expected}: {document:#}"
            );
        }
        ensure!(
            document["sentence"]
                .as_str()
                .is_some_and(|text| text.contains(sentence)),
            "{document:#}"
        );
        ensure!(
            document["next"]
                .as_array()
                .is_some_and(|next| next.is_empty() == at.is_none()),
            "{document:#}"
        );
        ensure!(holds(&document), "{document:#}");
        Ok(document)
    })
}

/// Returns each name that `flannelctl probe` accepts for a peer, and the addresses of the peer's pod.
fn names(bed: &Bed, node: usize) -> Result<(Vec<String>, Vec<IpAddr>)> {
    let env = bed.daemons[node].subnet_env()?;
    let subnets = [
        env.subnet.map(|net| net.trunc().to_string()),
        env.v6_subnet.map(|net| net.trunc().to_string()),
    ];
    let mut peers: Vec<String> = subnets.into_iter().flatten().collect();
    peers.extend([
        bed.hosts[node].name().to_owned(),
        bed.hosts[node].v4()?.to_string(),
    ]);
    Ok((peers, bed.pods[node].addresses()))
}

/// Steps before the tunnel, which are the same for all backends, and their expected outcomes.
const COMMON_STEPS: [(&str, &str); 4] = [
    ("route", "ok"),
    ("underlay", "ok"),
    ("rules", "ok"),
    ("overlay", "ok"),
];

/// Checks that `flannelctl probe` reports a complete path for each name of a peer in both address families, and reports a cut underlay.
fn path_is_reported(title: &str, backend: &str, tunnel: &[(&str, &str)]) -> Result<()> {
    Lab::run(title, |lab| {
        let bed = Bed::start(lab, 2, &DUAL.replace("BACKEND", backend), |_, options| {
            options
        })?;
        let (peers, pods) = names(&bed, 1)?;
        let steps = [&COMMON_STEPS, tunnel].concat();
        for peer in &peers {
            let document = ends(
                &bed,
                peer,
                None,
                &steps,
                "The path works: packets of pods reach h2",
            )?;
            ensure!(
                document["schema"] == "flannel.probe/1" && document["target"]["node"] == "h2",
                "{document:#}"
            );
        }
        ensure!(pods.len() == 2, "{pods:?}");
        for pod in pods {
            remote_pod_is_reported(&bed, pod, &steps)?;
        }
        for pod in bed.pods[0].addresses() {
            local_pod_is_reported(&bed, pod)?;
        }
        cut_is_reported(&bed, &peers[0])?;
        bed.require_no_errors()
    })
}

/// Checks the report for a remote pod that replies, and for an address without a pod, where a missing reply proves nothing.
fn remote_pod_is_reported(bed: &Bed, pod: IpAddr, steps: &[(&str, &str)]) -> Result<()> {
    let with_pod = [steps, &[("pod", "ok")]].concat();
    ends(
        bed,
        &pod.to_string(),
        None,
        &with_pod,
        &format!("packets reach the pod {pod} on h2"),
    )?;
    let nobody = neighbour_of(pod);
    let silent = [steps, &[("pod", "not-asked")]].concat();
    ends(
        bed,
        &nobody.to_string(),
        None,
        &silent,
        &format!("it is unknown whether {nobody} exists"),
    )
    .map(drop)
}

/// Checks that the node searches for pods of its own subnet behind its bridge.
fn local_pod_is_reported(bed: &Bed, pod: IpAddr) -> Result<()> {
    let document = ends(
        bed,
        &pod.to_string(),
        None,
        &[("bridge", "ok"), ("neighbour", "ok"), ("pod", "ok")],
        "on this node",
    )?;
    ensure!(document["target"]["here"] == true, "{document:#}");
    let nobody = neighbour_of(pod).to_string();
    ends(
        bed,
        &nobody,
        Some("neighbour"),
        &[("bridge", "ok"), ("pod", "not-asked")],
        &format!("the pod {nobody} does not exist"),
    )
    .map(drop)
}

fn cut_is_reported(bed: &Bed, peer: &str) -> Result<()> {
    bed.hosts[1].cut("enp0s8")?;
    let cut = [
        ("route", "ok"),
        ("underlay", "failed"),
        ("overlay", "failed"),
    ];
    let look = format!("tcpdump -c 5 -ni enp0s8 host {}", bed.hosts[1].v4()?);
    let is_next = |document: &Value| {
        commands(document)
            .iter()
            .any(|(_, command)| *command == look)
    };
    ends_and(
        bed,
        peer,
        Some("underlay"),
        &cut,
        "nothing replies, not even to ping",
        is_next,
    )
    .map(drop)
}

/// Returns an unused address in the pod's subnet.
fn neighbour_of(pod: IpAddr) -> IpAddr {
    match pod {
        IpAddr::V4(v4) => (v4.to_bits() + 100).to_be_bytes().into(),
        IpAddr::V6(v6) => (v6.to_bits() + 100).to_be_bytes().into(),
    }
}

/// Creates a test for each backend, from the test's name, the backend, and the outcomes of the tunnel's steps.
macro_rules! backends {
    ($($name:ident: $backend:expr, $tunnel:expr;)+) => {
        $(#[test]
        fn $name() {
            path_is_reported(stringify!($name), $backend, &$tunnel).unwrap();
        })+
    };
}

const NO_TUNNEL_STEPS: [(&str, &str); 2] = [("neighbour", "no step"), ("fdb", "no step")];

backends! {
    path_over_vxlan_has_neighbour_and_fdb_steps: VXLAN, [("neighbour", "ok"), ("fdb", "ok")];
    path_over_udp_has_no_neighbour_step: r#"{"Type":"udp"}"#, NO_TUNNEL_STEPS;
    path_over_host_gw_has_no_neighbour_step: r#"{"Type":"host-gw"}"#, NO_TUNNEL_STEPS;
    path_over_userspace_vxlan_has_no_neighbour_step: r#"{"Type":"vxlan","Mode":"userspace"}"#, NO_TUNNEL_STEPS;
}

/// Replaces the test's firewall rules on a host.
fn firewall(host: &Host, rules: &str) -> Result<()> {
    let text = format!(
        "table inet faults {{}}\ndelete table inet faults\ntable inet faults {{\n{rules}\n}}\n"
    );
    host.netns().feed("nft", &["-f", "-"], &text).map(drop)
}

fn input(rules: &str) -> String {
    format!("chain c {{ type filter hook input priority -5; policy accept; {rules}; }}")
}

fn contains(document: &Value, text: &str) -> bool {
    document.to_string().contains(text)
}

fn commands(document: &Value) -> Vec<(Option<&str>, &str)> {
    let next = document["next"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    next.iter()
        .filter_map(|next| Some((next["on"].as_str(), next["command"].as_str()?)))
        .collect()
}

#[test]
fn path_ends_at_the_step_of_each_fault() {
    Lab::run("probe-faults", |lab| {
        let bed = FaultBed::start(lab)?;
        bed.require_healthy_paths()?;
        bed.peer_drops_the_tunnel()?;
        bed.host_drops_the_tunnel()?;
        bed.peer_drops_probes()?;
        bed.require_healthy_paths()?;
        bed.host_drops_forwarded_packets()?;
        for (pod, subnet) in bed.pods.iter().zip(&bed.subnets) {
            bed.routes_conflict(pod, subnet)?;
        }
        bed.bed.require_no_errors()
    })
    .unwrap();
}

/// Two hosts. The tests cause faults that end the path from the first host to the pods of the second host.
struct FaultBed {
    bed: Bed,
    /// Subnets of the second host, IPv4 and IPv6.
    subnets: [String; 2],
    /// Addresses of the second host's pod, IPv4 and IPv6.
    pods: Vec<String>,
}

impl FaultBed {
    fn start(lab: &Lab) -> Result<FaultBed> {
        let bed = Bed::start(lab, 2, &DUAL.replace("BACKEND", VXLAN), |_, options| {
            options
        })?;
        let env = bed.daemons[1].subnet_env()?;
        let v4 = env.subnet.context("an IPv4 subnet")?.trunc();
        let v6 = env.v6_subnet.context("an IPv6 subnet")?.trunc();
        let pods = bed.pods[1]
            .addresses()
            .iter()
            .map(ToString::to_string)
            .collect();
        Ok(FaultBed {
            bed,
            subnets: [v4.to_string(), v6.to_string()],
            pods,
        })
    }

    fn host(&self) -> &Host {
        &self.bed.hosts[0]
    }

    fn peer(&self) -> &Host {
        &self.bed.hosts[1]
    }

    fn require_healthy_paths(&self) -> Result<()> {
        self.subnets.iter().try_for_each(|subnet| {
            ends(
                &self.bed,
                subnet,
                None,
                &[("overlay", "ok")],
                "The path works",
            )
            .map(drop)
        })
    }

    /// Makes the peer drop packets to its tunnel's port.
    fn peer_drops_the_tunnel(&self) -> Result<()> {
        firewall(self.peer(), &input("udp dport 8472 drop"))?;
        let sources = [
            IpAddr::from(self.host().v4()?),
            IpAddr::from(self.host().v6()?),
        ];
        for ((subnet, pod), source) in self.subnets.iter().zip(&self.pods).zip(sources) {
            let cut = [
                ("route", "ok"),
                ("neighbour", "ok"),
                ("fdb", "ok"),
                ("underlay", "ok"),
                ("rules", "ok"),
                ("overlay", "failed"),
            ];
            let look = format!("tcpdump -c 5 -ni any udp port 8472 and host {source}");
            let are_next = |document: &Value| {
                commands(document) == [(Some("h2"), "flannelctl doctor"), (Some("h2"), &look)]
            };
            ends_and(
                &self.bed,
                subnet,
                Some("overlay"),
                &cut,
                "The path to h2's UDP port 8472 breaks",
                are_next,
            )?;
            ends(
                &self.bed,
                pod,
                Some("overlay"),
                &[("pod", "not-asked")],
                "do not arrive",
            )?;
        }
        until_ok("the report contains what h2 received", || {
            let (code, text) = result(&run(&self.bed, 0, &[&self.pods[0]])?);
            ensure!(
                code == Some(3)
                    && text.contains("failed    overlay")
                    && text.contains("h2 reports: received over the overlay"),
                "{code:?}: {text}"
            );
            Ok(())
        })?;
        firewall(self.peer(), "")
    }

    /// Makes the first host drop the peer's packets to the first host's tunnel port.
    fn host_drops_the_tunnel(&self) -> Result<()> {
        firewall(self.host(), &input("udp dport 8472 drop"))?;
        for subnet in &self.subnets {
            ends(
                &self.bed,
                subnet,
                Some("overlay"),
                &[("underlay", "ok"), ("overlay", "failed")],
                "The reverse path from its UDP port 8472 breaks: h2 receives this node's probes",
            )?;
        }
        firewall(self.host(), "")
    }

    /// Makes the peer drop probes on each device and reply to ping. Then the peer rejects probes and drops pings.
    fn peer_drops_probes(&self) -> Result<()> {
        for (rules, text) in [
            ("udp dport 8473 drop", "5 of 5 pings answered"),
            (
                "udp dport 8473 reject; icmp type echo-request drop; icmpv6 type echo-request drop",
                "refuses UDP 8473",
            ),
        ] {
            firewall(self.peer(), &input(rules))?;
            for subnet in &self.subnets {
                ends_and(
                    &self.bed,
                    subnet,
                    None,
                    &[("underlay", "ok"), ("overlay", "ok")],
                    "The path works",
                    |document| contains(document, text),
                )?;
            }
        }
        firewall(self.peer(), "")
    }

    /// Makes the first host drop forwarded packets. Probes pass, because the host itself sends the probes.
    fn host_drops_forwarded_packets(&self) -> Result<()> {
        firewall(
            self.host(),
            "chain f { type filter hook forward priority 0; policy drop; }",
        )?;
        for subnet in &self.subnets {
            ends(
                &self.bed,
                subnet,
                Some("rules"),
                &[("overlay", "ok"), ("rules", "failed")],
                "this node's own rules",
            )?;
        }
        firewall(self.host(), "")
    }

    /// Checks the reports for more specific routes, for routes that drop packets, and for a rule that selects another routing table.
    fn routes_conflict(&self, pod: &str, subnet: &str) -> Result<()> {
        let (ip, bits) = if pod.contains(':') {
            ("ip -6", 128)
        } else {
            ("ip", 32)
        };
        let sh = |line: &str| self.host().netns().sh(&format!("{ip} {line}")).map(drop);
        for (add, del, text) in [
            (
                format!("route add blackhole {pod}/{bits} proto static"),
                format!("route del blackhole {pod}/{bits}"),
                "are dropped by the route blackhole",
            ),
            (
                format!("route add unreachable {pod}/{bits} proto static"),
                format!("route del unreachable {pod}/{bits}"),
                "are dropped by the route unreachable",
            ),
            (
                format!("route add {pod}/{bits} dev enp0s8 proto static"),
                format!("route del {pod}/{bits} dev enp0s8"),
                "dev enp0s8 proto static",
            ),
        ] {
            sh(&add)?;
            ends_and(
                &self.bed,
                pod,
                Some("route"),
                &[("route", "failed"), ("overlay", "ok")],
                &format!("packets to {pod} do not use flannel's route"),
                |document| {
                    first_text(document).contains(text)
                        && first_text(document).contains("the lease needs via")
                },
            )?;
            sh(&del)?;
        }
        sh("route add default dev enp0s8 table 100")?;
        sh(&format!("rule add to {pod}/{bits} lookup 100"))?;
        ends_and(
            &self.bed,
            pod,
            Some("route"),
            &[("route", "failed")],
            "do not use flannel's route",
            |document| first_text(document).contains("a rule leads to table 100"),
        )?;
        sh(&format!("rule del to {pod}/{bits} lookup 100"))?;
        let well = [("route", "ok"), ("pod", "ok")];
        ends(&self.bed, pod, None, &well, "The path works")?;
        ends(
            &self.bed,
            subnet,
            None,
            &[("route", "ok")],
            "The path works",
        )
        .map(drop)
    }
}

/// Returns the text of the first step.
fn first_text(document: &Value) -> &str {
    document["steps"][0]["text"].as_str().unwrap_or_default()
}

/// Only root may probe, a node runs one probe at a time, and the command fails without a daemon that responds.
#[test]
fn probe_is_limited_to_root_and_one_at_a_time() {
    Lab::run("probe-limits", |lab| {
        let mut bed = Bed::start(lab, 3, &DUAL.replace("BACKEND", VXLAN), |_, options| {
            options
        })?;
        ends(&bed, "h2", None, &[("overlay", "ok")], "The path works")?;
        // A probe sends packets, so no TCP port serves it.
        let (code, text) = bed.daemons[0].api("/api/v1/probe?peer=h2")?;
        ensure!(code == 404, "{code}: {text}");
        let (code, text) = bed.daemons[0].get("/api/v1/probe?peer=h2")?;
        ensure!(code == 404, "{code}: {text}");
        unknown_targets_are_refused(&bed)?;
        concurrent_probes_take_turns(&bed)?;

        bed.daemons[0].stop()?;
        fails_at_once(&bed, "does not respond")?;
        bed.daemons[0].cont()?;
        ends(&bed, "h2", None, &[("overlay", "ok")], "The path works")?;
        bed.daemons[0].terminate()?;
        fails_at_once(&bed, "flanneld does not run on this node")
    })
    .unwrap();
}

fn unknown_targets_are_refused(bed: &Bed) -> Result<()> {
    // The peers are listed in the order of their subnets, so either one may come first.
    for (target, parts) in [
        (
            "h9",
            [
                "h9 is neither a peer nor in a peer's subnet: the peers are h",
                "h2 (",
            ],
        ),
        ("10.9.9.9", ["the peers are h", "h2 ("]),
        ("h1", ["h1 is this node", ""]),
        ("x y&peer=h2", ["x y&peer=h2 is neither a peer", ""]),
    ] {
        until_ok(&format!("{target} is unknown"), || {
            let (code, text) = result(&run(bed, 0, &[target])?);
            let is_refused = parts.iter().all(|part| text.contains(part))
                && text.trim_end().lines().count() == 1;
            ensure!(code == Some(1) && is_refused, "{target}: {code:?}: {text}");
            Ok(())
        })?;
    }
    let without_target = result(&run(bed, 0, &[])?);
    ensure!(without_target.0 == Some(2), "{without_target:?}");
    Ok(())
}

/// Checks that a node delays or refuses concurrent probes. On a busy machine, some probes may also fail for lack of time.
fn concurrent_probes_take_turns(bed: &Bed) -> Result<()> {
    let begun = Instant::now();
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..8)
            .map(|number| {
                scope.spawn(move || run(bed, 0, &[["h2", "h3"][number % 2], "-o", "json"]))
            })
            .collect();
        started
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a panic"))?)
            .collect::<Result<_>>()
    })?;
    ensure!(begun.elapsed() < REPORTED, "{:?}", begun.elapsed());
    let excuses = [
        "another probe is running on this node",
        "this node is overloaded",
        "does not respond",
        "busy",
    ];
    let mut answered = 0;
    for output in &outputs {
        match result(output) {
            (Some(0 | 3), text) if text.contains("flannel.probe/1") => answered += 1,
            (Some(1), text) if excuses.iter().any(|excuse| text.contains(excuse)) => {}
            (code, text) => bail!("{code:?}: {text}"),
        }
    }
    ensure!(
        answered >= 1,
        "{:?}",
        outputs.iter().map(result).collect::<Vec<_>>()
    );
    Ok(())
}

/// Checks that the command reports a hanging or absent daemon within ten seconds, before the command requests a probe.
fn fails_at_once(bed: &Bed, cause: &str) -> Result<()> {
    let begun = Instant::now();
    let (code, text) = result(&run(bed, 0, &["h2"])?);
    ensure!(
        code == Some(1) && text.contains(cause) && text.trim_end().lines().count() == 1,
        "{code:?}: {text}"
    );
    ensure!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    Ok(())
}

#[test]
fn node_with_probing_disabled_uses_ping() {
    Lab::run("probe-off", |lab| {
        let bed = Bed::start(lab, 2, &DUAL.replace("BACKEND", VXLAN), |_, options| {
            options.arg("--probe-port=0")
        })?;
        let (peers, pods) = names(&bed, 1)?;
        ends_and(
            &bed,
            &peers[0],
            None,
            &[("underlay", "ok"), ("overlay", "ok")],
            "The path works",
            |document| contains(document, "5 of 5 pings answered"),
        )?;
        for pod in pods {
            ends(
                &bed,
                &pod.to_string(),
                None,
                &[("pod", "ok")],
                "The path works",
            )?;
        }
        bed.require_no_errors()
    })
    .unwrap();
}
