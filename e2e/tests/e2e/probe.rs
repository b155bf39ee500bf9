//! `flannelctl probe` tells where a way ends, with every backend that carries packets.

use anyhow::{Context, Result, bail, ensure};
use lab::{Bed, Host, Lab, binaries, eventually_ok};
use serde_json::Value;
use std::net::IpAddr;
use std::process::Output;
use std::time::{Duration, Instant};

/// Ten times what it should take.
const TOLD: Duration = Duration::from_secs(100);

const DUAL: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":BACKEND}"#;
const VXLAN: &str = r#"{"Type":"vxlan"}"#;

/// Runs the command on a host.
fn run(bed: &Bed, node: usize, args: &[&str]) -> Result<Output> {
    let program = binaries::own("flannelctl")?;
    let file = bed.daemons[node]
        .subnet_file()
        .to_string_lossy()
        .into_owned();
    let all = [&["probe"], args, &["--subnet-file", &file]].concat();
    bed.hosts[node]
        .netns()
        .output(&program.to_string_lossy(), &all)
}

fn texts(output: &Output) -> (Option<i32>, String) {
    (
        output.status.code(),
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
    )
}

/// What a probe says, as JSON, and its exit code.
fn probe(bed: &Bed, node: usize, whom: &str) -> Result<(i32, Value)> {
    let output = run(bed, node, &[whom, "-o", "json"])?;
    let document = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{whom}: {:?}", texts(&output)))?;
    Ok((output.status.code().unwrap_or(-1), document))
}

/// What came of a step.
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

/// Waits until the way ends at a step, or does not end, and the steps have these outcomes.
fn ends(
    bed: &Bed,
    whom: &str,
    at: Option<&str>,
    outcomes: &[(&str, &str)],
    sentence: &str,
) -> Result<Value> {
    ends_and(bed, whom, at, outcomes, sentence, |_| true)
}

/// The same, with something else in the document that a busy machine may keep out of it for a while.
fn ends_and(
    bed: &Bed,
    whom: &str,
    at: Option<&str>,
    outcomes: &[(&str, &str)],
    sentence: &str,
    holds: impl Fn(&Value) -> bool,
) -> Result<Value> {
    eventually_ok(TOLD, &format!("the way to {whom} ends at {at:?}"), || {
        let (code, document) = probe(bed, 0, whom)?;
        ensure!(document["ends_at"].as_str() == at, "{document:#}");
        ensure!(
            code == if at.is_some() { 3 } else { 0 },
            "exit code {code}: {document:#}"
        );
        for (name, wanted) in outcomes {
            ensure!(
                outcome(&document, name) == *wanted,
                "{name} is not {wanted}: {document:#}"
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

/// Everything by which a peer and its pod can be named.
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

/// All is well, by every name and in both families; a silent pod address proves nothing, and pods of this node are looked for here.
fn all_is_well(title: &str, backend: &str, tunnel: &[(&str, &str)]) -> Result<()> {
    Lab::run(title, |lab| {
        let bed = Bed::start(lab, 2, &DUAL.replace("BACKEND", backend), |_, options| {
            options
        })?;
        let (peers, pods) = names(&bed, 1)?;
        let well = [
            ("route", "ok"),
            ("underlay", "ok"),
            ("rules", "ok"),
            ("overlay", "ok"),
        ];
        let well = [&well, tunnel].concat();
        for peer in &peers {
            let document = ends(
                &bed,
                peer,
                None,
                &well,
                "All is well: packets of pods reach h2",
            )?;
            ensure!(
                document["schema"] == "flannel.probe/1" && document["target"]["node"] == "h2",
                "{document:#}"
            );
        }
        ensure!(pods.len() == 2, "{pods:?}");
        for pod in pods {
            let with_pod = [well.as_slice(), &[("pod", "ok")]].concat();
            ends(
                &bed,
                &pod.to_string(),
                None,
                &with_pod,
                &format!("packets reach the pod {pod} on h2"),
            )?;
            let nobody = neighbour_of(pod);
            let silent = [well.as_slice(), &[("pod", "not-asked")]].concat();
            ends(
                &bed,
                &nobody.to_string(),
                None,
                &silent,
                &format!("whether {nobody} is there is not known"),
            )?;
        }
        for pod in bed.pods[0].addresses() {
            let document = ends(
                &bed,
                &pod.to_string(),
                None,
                &[("bridge", "ok"), ("neighbour", "ok"), ("pod", "ok")],
                "on this node",
            )?;
            ensure!(document["target"]["here"] == true, "{document:#}");
            let nobody = neighbour_of(pod).to_string();
            ends(
                &bed,
                &nobody,
                Some("neighbour"),
                &[("bridge", "ok"), ("pod", "not-asked")],
                &format!("there is no pod {nobody}"),
            )?;
        }
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
            &bed,
            &peers[0],
            Some("underlay"),
            &cut,
            "nothing answers, ping neither",
            is_next,
        )?;
        bed.require_no_errors()
    })
}

/// An address in the same subnet that nobody has.
fn neighbour_of(pod: IpAddr) -> IpAddr {
    match pod {
        IpAddr::V4(v4) => (v4.to_bits() + 100).to_be_bytes().into(),
        IpAddr::V6(v6) => (v6.to_bits() + 100).to_be_bytes().into(),
    }
}

#[test]
fn a_way_over_vxlan_is_told_step_by_step() {
    all_is_well("probe-vxlan", VXLAN, &[("neighbour", "ok"), ("fdb", "ok")]).unwrap();
}

#[test]
fn a_way_over_udp_has_no_neighbour() {
    all_is_well(
        "probe-udp",
        r#"{"Type":"udp"}"#,
        &[("neighbour", "no step"), ("fdb", "no step")],
    )
    .unwrap();
}

#[test]
fn a_way_over_host_gw_has_no_device() {
    all_is_well(
        "probe-host-gw",
        r#"{"Type":"host-gw"}"#,
        &[("neighbour", "no step"), ("fdb", "no step")],
    )
    .unwrap();
}

#[test]
fn a_way_over_vxlan_in_userspace_has_no_neighbour() {
    all_is_well(
        "probe-userspace",
        r#"{"Type":"vxlan","Mode":"userspace"}"#,
        &[("neighbour", "no step"), ("fdb", "no step")],
    )
    .unwrap();
}

/// A firewall on a host, in place of the one before.
fn firewall(host: &Host, rules: &str) -> Result<()> {
    let text = format!(
        "table inet faults {{}}\ndelete table inet faults\ntable inet faults {{\n{rules}\n}}\n"
    );
    host.netns().feed("nft", &["-f", "-"], &text).map(drop)
}

fn input(rules: &str) -> String {
    format!("chain c {{ type filter hook input priority -5; policy accept; {rules}; }}")
}

fn says(document: &Value, text: &str) -> bool {
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
fn each_fault_ends_the_way_where_it_is() {
    Lab::run("probe-faults", |lab| {
        let bed = Bed::start(lab, 2, &DUAL.replace("BACKEND", VXLAN), |_, options| {
            options
        })?;
        let [here, there] = [&bed.hosts[0], &bed.hosts[1]];
        let env = bed.daemons[1].subnet_env()?;
        let v4 = env.subnet.context("an IPv4 subnet")?.trunc();
        let v6 = env.v6_subnet.context("an IPv6 subnet")?.trunc();
        let subnets = [v4.to_string(), v6.to_string()];
        let pods: Vec<String> = bed.pods[1]
            .addresses()
            .iter()
            .map(ToString::to_string)
            .collect();
        let sources = [IpAddr::from(here.v4()?), IpAddr::from(here.v6()?)];
        let all = || {
            subnets.iter().try_for_each(|subnet| {
                ends(&bed, subnet, None, &[("overlay", "ok")], "All is well").map(drop)
            })
        };
        all()?;

        // The peer takes nothing on the tunnel's port.
        firewall(there, &input("udp dport 8472 drop"))?;
        for ((subnet, pod), source) in subnets.iter().zip(&pods).zip(sources) {
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
                &bed,
                subnet,
                Some("overlay"),
                &cut,
                "on the way to h2's UDP port 8472",
                are_next,
            )?;
            ends(
                &bed,
                pod,
                Some("overlay"),
                &[("pod", "not-asked")],
                "does not arrive",
            )?;
        }
        eventually_ok(TOLD, "what h2 heard is told", || {
            let (code, text) = texts(&run(&bed, 0, &[&pods[0]])?);
            ensure!(
                code == Some(3)
                    && text.contains("failed    overlay")
                    && text.contains("h2 says: heard through the overlay"),
                "{code:?}: {text}"
            );
            Ok(())
        })?;

        // What the peer sends is not taken here.
        firewall(there, "")?;
        firewall(here, &input("udp dport 8472 drop"))?;
        for subnet in &subnets {
            ends(
                &bed,
                subnet,
                Some("overlay"),
                &[("underlay", "ok"), ("overlay", "failed")],
                "on the way back from its UDP port 8472: h2 hears this node",
            )?;
        }

        // The peer's firewall drops the probes, on every device; ping is answered.
        firewall(here, "")?;
        firewall(there, &input("udp dport 8473 drop"))?;
        for subnet in &subnets {
            ends_and(
                &bed,
                subnet,
                None,
                &[("underlay", "ok"), ("overlay", "ok")],
                "All is well",
                |document| says(document, "5 of 5 pings answered"),
            )?;
        }
        // It says so, and drops pings.
        firewall(
            there,
            &input(
                "udp dport 8473 reject; icmp type echo-request drop; icmpv6 type echo-request drop",
            ),
        )?;
        for subnet in &subnets {
            ends_and(
                &bed,
                subnet,
                None,
                &[("underlay", "ok"), ("overlay", "ok")],
                "All is well",
                |document| says(document, "refuses UDP 8473"),
            )?;
        }
        firewall(there, "")?;
        all()?;

        // This node forwards nothing: probes, which are its own packets, pass.
        firewall(
            here,
            "chain f { type filter hook forward priority 0; policy drop; }",
        )?;
        for subnet in &subnets {
            ends(
                &bed,
                subnet,
                Some("rules"),
                &[("overlay", "ok"), ("rules", "failed")],
                "this node's own rules",
            )?;
        }
        firewall(here, "")?;

        // Routes in the way: a more specific one, one that drops, and a rule to another table.
        for (pod, subnet) in pods.iter().zip(&subnets) {
            let ip = if pod.contains(':') { "-6 " } else { "" };
            let bits = if pod.contains(':') { 128 } else { 32 };
            let sh = |line: &str| here.netns().sh(&format!("ip {ip}{line}")).map(drop);
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
                let sentence = format!("packets to {pod} do not take flannel's way");
                ends_and(
                    &bed,
                    pod,
                    Some("route"),
                    &[("route", "failed"), ("overlay", "ok")],
                    &sentence,
                    |document| {
                        document["steps"][0]["text"].as_str().is_some_and(|said| {
                            said.contains(text) && said.contains("the lease wants via")
                        })
                    },
                )?;
                sh(&del)?;
            }
            sh("route add default dev enp0s8 table 100")?;
            sh(&format!("rule add to {pod}/{bits} lookup 100"))?;
            ends_and(
                &bed,
                pod,
                Some("route"),
                &[("route", "failed")],
                "do not take flannel's way",
                |document| {
                    document["steps"][0]["text"]
                        .as_str()
                        .is_some_and(|said| said.contains("a rule leads to table 100"))
                },
            )?;
            sh(&format!("rule del to {pod}/{bits} lookup 100"))?;
            ends(
                &bed,
                pod,
                None,
                &[("route", "ok"), ("pod", "ok")],
                "All is well",
            )?;
            ends(&bed, subnet, None, &[("route", "ok")], "All is well")?;
        }
        bed.require_no_errors()
    })
    .unwrap();
}

/// Who may ask, how many at a time, and what is said where nothing can be asked.
#[test]
fn a_probe_is_roots_and_one_at_a_time() {
    Lab::run("probe-ways", |lab| {
        let mut bed = Bed::start(lab, 3, &DUAL.replace("BACKEND", VXLAN), |_, options| {
            options
        })?;
        ends(&bed, "h2", None, &[("overlay", "ok")], "All is well")?;
        // It sends packets: not for whoever reaches a port.
        let (code, text) = bed.daemons[0].api("/api/v1/probe?peer=h2")?;
        ensure!(code == 404, "{code}: {text}");
        let (code, text) = bed.daemons[0].get("/api/v1/probe?peer=h2")?;
        ensure!(code == 404, "{code}: {text}");

        // Peers stand in the order of their subnets.
        for (whom, parts) in [
            (
                "h9",
                [
                    "h9 is neither a peer nor in a peer's subnet: there are h",
                    "h2 (",
                ],
            ),
            ("10.9.9.9", ["there are h", "h2 ("]),
            ("h1", ["h1 is this node", ""]),
            ("x y&peer=h2", ["x y&peer=h2 is neither a peer", ""]),
        ] {
            eventually_ok(TOLD, &format!("{whom} is nobody"), || {
                let (code, text) = texts(&run(&bed, 0, &[whom])?);
                let is_said = parts.iter().all(|part| text.contains(part))
                    && text.trim_end().lines().count() == 1;
                ensure!(code == Some(1) && is_said, "{whom}: {code:?}: {text}");
                Ok(())
            })?;
        }
        ensure!(texts(&run(&bed, 0, &[])?).0 == Some(2), "whom?");

        // At the same time: each waits for its turn, or is told to. On a busy machine questions are lost, and time is up.
        let begun = Instant::now();
        let outputs: Vec<Output> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..8)
                .map(|number| {
                    scope.spawn({
                        let bed = &bed;
                        move || run(bed, 0, &[["h2", "h3"][number % 2], "-o", "json"])
                    })
                })
                .collect();
            started
                .into_iter()
                .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a panic"))?)
                .collect::<Result<_>>()
        })?;
        ensure!(begun.elapsed() < TOLD, "{:?}", begun.elapsed());
        let excuses = [
            "other probes are under way on this node",
            "this node is overloaded",
            "does not answer",
            "busy",
        ];
        let mut answered = 0;
        for output in &outputs {
            match texts(output) {
                (Some(0 | 3), text) if text.contains("flannel.probe/1") => answered += 1,
                (Some(1), text) if excuses.iter().any(|excuse| text.contains(excuse)) => {}
                (code, text) => bail!("{code:?}: {text}"),
            }
        }
        ensure!(
            answered >= 1,
            "{:?}",
            outputs.iter().map(texts).collect::<Vec<_>>()
        );

        // A daemon that hangs, and none.
        let missing = |bed: &Bed, says: &str| -> Result<()> {
            let begun = Instant::now();
            let (code, text) = texts(&run(bed, 0, &["h2"])?);
            ensure!(
                code == Some(1) && text.contains(says) && text.trim_end().lines().count() == 1,
                "{code:?}: {text}"
            );
            // Not as long as a probe may take: it is noticed before one is asked for.
            ensure!(
                begun.elapsed() < Duration::from_secs(10),
                "{:?}",
                begun.elapsed()
            );
            Ok(())
        };
        bed.daemons[0].stop()?;
        missing(&bed, "does not answer")?;
        bed.daemons[0].cont()?;
        ends(&bed, "h2", None, &[("overlay", "ok")], "All is well")?;
        bed.daemons[0].terminate(Duration::from_secs(20))?;
        missing(&bed, "flanneld does not run here")
    })
    .unwrap();
}

/// Without questions there are pings.
#[test]
fn a_node_that_does_not_probe_pings() {
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
            "All is well",
            |document| says(document, "5 of 5 pings answered"),
        )?;
        for pod in pods {
            ends(
                &bed,
                &pod.to_string(),
                None,
                &[("pod", "ok")],
                "All is well",
            )?;
        }
        bed.require_no_errors()
    })
    .unwrap();
}
