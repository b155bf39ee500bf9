//! `flannelctl probe` reports the step at which a path ends, with each backend that carries packets.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use lab::{Node, Scene, SceneOptions, stdout_and_stderr, stdout_json, until_ok};

use crate::healing::scenarios;

scenarios! { complete_and_cut_paths_are_reported;
    path_over_vxlan_has_neighbour_and_fdb_steps => (r#"{"Type":"vxlan"}"#, " neighbour=ok fdb=ok"),
    path_over_udp_has_no_neighbour_step => (r#"{"Type":"udp"}"#, " neighbour= fdb="),
    path_over_host_gw_has_no_neighbour_step => (r#"{"Type":"host-gw"}"#, " neighbour= fdb="),
    path_over_userspace_vxlan_has_no_neighbour_step => (r#"{"Type":"vxlan","Mode":"userspace"}"#, " neighbour= fdb="),
}

/// Two address families.
fn dual_stack_scene<'a>(title: &str, backend: &str) -> SceneOptions<'a> {
    Scene::with_title(title).net(&format!(r#"{{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","Backend":{backend}}}"#))
}

/// Waits until `flannelctl probe` reports that the path ends at the step `at`, or at none if it is empty. The steps must have the outcomes
/// `outcomes`, such as `route=ok`; a step without an outcome must not be there. The report must contain `text`.
fn wait_until_probe_ends_at(
    node: &Node,
    target: &str,
    at: &str,
    outcomes: &str,
    text: &str,
) -> Result<()> {
    until_ok(&format!("the path to {target} ends at {at:?}"), || {
        let output = node.daemon()?.flannelctl(&["probe", target, "-o", "json"])?;
        let document = stdout_json(&output).context(target.to_owned())?;
        ensure!(document["ends_at"].as_str().unwrap_or_default() == at, "{document:#}");
        let code = if at.is_empty() { 0 } else { 3 };
        ensure!(output.status.code() == Some(code), "{}: {document:#}", output.status);
        let steps = document["steps"].as_array().context("steps")?;
        for wanted in outcomes.split_whitespace() {
            let (name, outcome) = wanted.split_once('=').context(wanted.to_owned())?;
            let step = steps.iter().find(|step| step["name"] == name);
            let now = step.and_then(|step| step["outcome"].as_str()).unwrap_or_default();
            ensure!(now == outcome, "{name} is not {outcome}: {document:#}");
        }
        let next = document["next"].as_array().context("next")?;
        ensure!(next.is_empty() == at.is_empty(), "{document:#}");
        ensure!(document.to_string().contains(text), "no {text:?}: {document:#}");
        Ok(())
    })
}

/// The subnets in both families.
fn v4_and_v6_subnets(node: &Node) -> Result<Vec<String>> {
    let env = node.daemon()?.subnet_env()?;
    let v6 = env.v6_subnet.context("a v6 subnet")?.trunc();
    Ok(vec![node.subnet()?, v6.to_string()])
}

/// An unused address in the pod's subnet.
fn unused_address_near_pod(pod: IpAddr) -> String {
    let address: IpAddr = match pod {
        IpAddr::V4(v4) => (v4.to_bits() + 100).to_be_bytes().into(),
        IpAddr::V6(v6) => (v6.to_bits() + 100).to_be_bytes().into(),
    };
    address.to_string()
}

/// `flannelctl probe` reports a complete path for each name of a peer in both families, and reports a cut underlay.
fn complete_and_cut_paths_are_reported((backend, tunnel): (&str, &str)) -> Result<()> {
    dual_stack_scene("probe", backend).run(|s| {
        let (node, peer) = (&s[0], &s[1]);
        let steps = format!("route=ok underlay=ok rules=ok overlay=ok{tunnel}");
        let mut names = v4_and_v6_subnets(peer)?;
        names.extend([peer.name().to_owned(), peer.v4()?.to_string()]);
        for name in &names {
            wait_until_probe_ends_at(node, name, "", &steps, "\"node\":\"h2\"")?;
        }
        // An address without a pod: a missing reply proves nothing.
        for pod in peer.pods[0].addresses() {
            wait_until_probe_ends_at(node, &pod.to_string(), "", &format!("{steps} pod=ok"), "h2")?;
            wait_until_probe_ends_at(
                node,
                &unused_address_near_pod(pod),
                "",
                &format!("{steps} pod=not-asked"),
                "unknown",
            )?;
        }
        // The node searches for pods of its own subnet behind its bridge.
        for pod in node.pods[0].addresses() {
            wait_until_probe_ends_at(
                node,
                &pod.to_string(),
                "",
                "bridge=ok neighbour=ok pod=ok",
                "\"here\":true",
            )?;
            wait_until_probe_ends_at(
                node,
                &unused_address_near_pod(pod),
                "neighbour",
                "bridge=ok pod=not-asked",
                "",
            )?;
        }
        peer.block_packets("enp0s8")?;
        let look = format!("tcpdump -c 5 -ni enp0s8 host {}", peer.v4()?);
        wait_until_probe_ends_at(
            node,
            &names[0],
            "underlay",
            "route=ok underlay=failed overlay=failed",
            &look,
        )?;
        s.require_no_errors()
    })
}

/// Replaces the test's rules on the host.
fn replace_test_firewall_rules(node: &Node, hook: &str, rules: &str) -> Result<()> {
    let text = format!(
        "table inet faults {{}}\ndelete table inet faults\ntable inet faults {{ chain c {{ type filter hook {hook} priority -5; policy accept; {rules}; }}; }}\n"
    );
    node.netns().exec_with_input("nft", &["-f", "-"], &text).map(drop)
}

#[test]
fn path_ends_at_the_step_of_each_fault() -> Result<()> {
    dual_stack_scene("probe-faults", r#"{"Type":"vxlan"}"#).run(|s| {
        let (node, peer) = (&s[0], &s[1]);
        let addresses = peer.pods[0].addresses();
        let sources = [IpAddr::from(node.v4()?), IpAddr::from(node.v6()?)];
        for ((subnet, pod), source) in v4_and_v6_subnets(peer)?.iter().zip(addresses).zip(sources) {
            let pod = &pod.to_string();
            let all = |at: &str, outcomes: &str, text: &str| {
                wait_until_probe_ends_at(node, subnet, at, outcomes, text)
            };
            all("", "overlay=ok", "")?;

            replace_test_firewall_rules(peer, "input", "udp dport 8472 drop")?;
            let look = format!("tcpdump -c 5 -ni any udp port 8472 and host {source}");
            let before = "route=ok neighbour=ok fdb=ok underlay=ok rules=ok overlay=failed";
            all("overlay", before, &look)?;
            wait_until_probe_ends_at(node, pod, "overlay", "pod=not-asked", "")?;
            replace_test_firewall_rules(peer, "input", "")?;

            replace_test_firewall_rules(node, "input", "udp dport 8472 drop")?;
            all("overlay", "underlay=ok overlay=failed", "reverse path")?;
            replace_test_firewall_rules(node, "input", "")?;

            // The peer drops probes and replies to ping, then it rejects probes and drops pings.
            replace_test_firewall_rules(peer, "input", "udp dport 8473 drop")?;
            all("", "underlay=ok overlay=ok", "pings answered")?;
            replace_test_firewall_rules(
                peer,
                "input",
                "udp dport 8473 reject; icmp type echo-request drop; icmpv6 type echo-request drop",
            )?;
            all("", "underlay=ok overlay=ok", "refuses UDP 8473")?;
            replace_test_firewall_rules(peer, "input", "")?;
            all("", "overlay=ok", "")?;

            // Probes pass, because the host itself sends the probes.
            replace_test_firewall_rules(node, "forward", "drop")?;
            all("rules", "overlay=ok rules=failed", "")?;
            replace_test_firewall_rules(node, "forward", "")?;

            let (ip, bits) = if pod.contains(':') { ("ip -6", 128) } else { ("ip", 32) };
            node.sh(&format!("{ip} route add default dev enp0s8 table 100"))?;
            for (verb, place) in [
                ("route", format!("blackhole {pod}/{bits} proto static")),
                ("route", format!("unreachable {pod}/{bits} proto static")),
                ("route", format!("{pod}/{bits} dev enp0s8 proto static")),
                ("rule", format!("to {pod}/{bits} lookup 100")),
            ] {
                node.sh(&format!("{ip} {verb} add {place}"))?;
                let word = place.split([' ', '/']).next().unwrap_or_default();
                let word = if verb == "rule" { "table 100" } else { word };
                wait_until_probe_ends_at(node, pod, "route", "route=failed overlay=ok", word)?;
                node.sh(&format!("{ip} {verb} del {place}"))?;
            }
            wait_until_probe_ends_at(node, pod, "", "route=ok pod=ok", "")?;
        }
        s.require_no_errors()
    })
}

/// The command also fails without a daemon that responds.
#[test]
fn probe_is_limited_to_root_and_one_at_a_time() -> Result<()> {
    dual_stack_scene("probe-limits", r#"{"Type":"vxlan"}"#).nodes(3).run(|s| {
        wait_until_probe_ends_at(&s[0], "h2", "", "overlay=ok", "")?;
        // A probe sends packets, so no TCP port serves it.
        for (code, text) in [
            s[0].daemon()?.get_status_api("/api/v1/probe?peer=h2")?,
            s[0].get_health_endpoint("/api/v1/probe?peer=h2")?,
        ] {
            ensure!(code == 404, "{code}: {text}");
        }
        let fails = |s: &Scene<'_>, targets: &[&str], code: i32, text: &str| {
            until_ok(&format!("{targets:?} is refused"), || {
                let output = s[0].daemon()?.flannelctl(&[&["probe"], targets].concat())?;
                let found = stdout_and_stderr(&output);
                ensure!(
                    output.status.code() == Some(code) && found.contains(text),
                    "{}: {found}",
                    output.status
                );
                Ok(())
            })
        };
        for (targets, code, text) in [
            (&["h9"][..], 1, "h2 ("),
            (&["10.9.9.9"], 1, "h2 ("),
            (&["h1"], 1, "this node"),
            (&["x y&peer=h2"], 1, "x y&peer=h2"),
            (&[], 2, ""),
        ] {
            fails(s, targets, code, text)?;
        }
        // Concurrent probes are delayed or refused.
        let daemon = s[0].daemon()?;
        std::thread::scope(|scope| {
            let start = |_| scope.spawn(|| daemon.flannelctl(&["probe", "h2", "-o", "json"]));
            let mut answered = 0;
            for probe in (0..8).map(start).collect::<Vec<_>>() {
                let output = probe.join().unwrap()?;
                let is_answered = stdout_and_stderr(&output).contains("flannel.probe/1");
                ensure!(is_answered || output.status.code() == Some(1), "{output:?}");
                answered += usize::from(is_answered);
            }
            ensure!(answered > 0, "no probe was answered");
            Ok(())
        })?;
        s[0].daemon_mut()?.send_sigstop()?;
        fails(s, &["h2"], 1, "does not respond")?;
        s[0].daemon_mut()?.send_sigcont()?;
        wait_until_probe_ends_at(&s[0], "h2", "", "overlay=ok", "")?;
        s[0].daemon_mut()?.terminate()?;
        fails(s, &["h2"], 1, "does not run")
    })
}

#[test]
fn node_with_probing_disabled_uses_ping() -> Result<()> {
    let scene = dual_stack_scene("probe-off", r#"{"Type":"vxlan"}"#).daemon_arg("--probe-port=0");
    scene.run(|s| {
        wait_until_probe_ends_at(&s[0], "h2", "", "underlay=ok overlay=ok", "pings answered")?;
        for pod in s[1].pods[0].addresses() {
            wait_until_probe_ends_at(&s[0], &pod.to_string(), "", "pod=ok", "")?;
        }
        s.require_no_errors()
    })
}
