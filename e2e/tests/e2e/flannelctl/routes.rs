//! `flannelctl routes` compares each desired object with the kernel's objects and lists conflicting objects of other programs.

use anyhow::{Context, Result, ensure};
use lab::{
    Host, Node, Scene, describe_outcome, stdout_and_stderr, stdout_json, stdout_text, until_ok,
};
use serde_json::Value;

use crate::daemon::listeners::run_flannelctl;
use crate::healing::scenarios;

const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:5::/48","Backend":{"Type":"vxlan"}}"#;

/// The command exits with this code.
fn flannelctl_routes_document(node: &Node, code: i32) -> Result<Value> {
    let output = run_flannelctl(node, &["routes", "-o", "json"])?;
    ensure!(
        output.status.code() == Some(code),
        "not exit code {code}, but {}",
        describe_outcome(&output)
    );
    stdout_json(&output)
}

/// Waits until they are.
fn wait_all_objects_in_sync(node: &Node) -> Result<Value> {
    until_ok("all is in sync", || flannelctl_routes_document(node, 0))
}

/// The kind and the text of each object in this state.
fn objects_in_state<'a>(document: &'a Value, state: &str) -> Vec<(&'a str, &'a str)> {
    let objects = document["objects"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|object| object["state"] == state);
    let word = |value: &'a Value| value.as_str().unwrap_or_default();
    objects.map(|object| (word(&object["kind"]), word(&object["text"]))).collect()
}

/// `ip` or `bridge` prints an object of this kind in one line with the same words as `text`.
fn kernel_lists_object(host: &Host, kind: &str, text: &str) -> Result<bool> {
    let (all, count) = match kind {
        "link" => ("ip -br link show", 1),
        "address" => ("ip -o address show", 1),
        "fdb" => ("bridge fdb show", usize::MAX),
        "neighbour" => ("ip neigh show; ip -6 neigh show", usize::MAX),
        _ => ("ip route show; ip -6 route show", usize::MAX),
    };
    let all = host.netns().sh(all)?;
    let has = |line: &str, word| line.split_whitespace().any(|printed| printed == word);
    Ok(all.lines().any(|line| text.split(' ').take(count).all(|word| has(line, word))))
}

scenarios! { node_in_sync_lists_every_object;
    vxlan_node_in_sync_lists_every_object => ("vxlan", &["link", "address", "fdb", "neighbour", "route", "blackhole"]),
    host_gw_node_in_sync_lists_every_object => ("host-gw", &["route", "blackhole"]),
    udp_node_in_sync_lists_every_object => ("udp", &["link", "address", "route", "blackhole"]),
}

fn node_in_sync_lists_every_object((backend, kinds): (&str, &[&str])) -> Result<()> {
    Scene::with_title("routes")
        .net(&DUAL.replace("vxlan", backend))
        .daemon_arg("--ip-blackhole-route")
        .run(|s| {
            s.check_each_node(|node| {
                let document = wait_all_objects_in_sync(node)?;
                let objects = objects_in_state(&document, "as-wanted");
                let mut found: Vec<_> = objects.iter().map(|(kind, _)| *kind).collect();
                found.dedup();
                ensure!(
                    kinds.iter().all(|kind| found.contains(kind))
                        && found.iter().all(|kind| kinds.contains(kind)),
                    "{document:#}"
                );
                for (kind, text) in objects {
                    ensure!(
                        kernel_lists_object(node, kind, text)?,
                        "the kernel has no {kind} {text}"
                    );
                }
                // The pods' bridge conflicts with nothing.
                let foreign = document["foreign"].as_array().context("no list")?;
                ensure!(foreign.iter().any(|other| other["own_subnet"] == true), "{document:#}");
                ensure!(
                    foreign.iter().all(|other| other["in_the_way_of"] == serde_json::json!([])),
                    "{document:#}"
                );
                Ok(())
            })?;
            // Objects show to which peer they belong.
            let document = wait_all_objects_in_sync(&s[0])?;
            let is_of_peer = |object: &Value| object["for"]["node"] == "h2";
            ensure!(
                backend == "udp"
                    || document["objects"].as_array().context("no list")?.iter().any(is_of_peer),
                "{document:#}"
            );
            s.require_no_errors()
        })
}

#[test]
fn route_conflict_is_listed_with_its_owner_until_removed() -> Result<()> {
    Scene::with_title("conflict").net(DUAL).run(|s| {
        let v4 = s[1].subnet()?;
        let v6 = s[1].daemon()?.subnet_env()?.v6_subnet.context("no IPv6 subnet")?.trunc().to_string();
        let inside = v4.replace("0/24", "128/25");
        wait_all_objects_in_sync(&s[0])?;
        // Each route takes packets for the peer. The daemon's own route is there all the time, except in the first case.
        for (flag, route, state, by, net) in [
            ("-4", format!("{v4} via 192.168.56.250 dev enp0s8 proto static"), "refused", "an operator, NetworkManager or systemd-networkd", &v4),
            ("-4", format!("{inside} via 192.168.56.250 dev enp0s8 proto bird"), "as-wanted", "bird", &v4),
            ("-6", format!("{v6} dev enp0s8 metric 100 proto dhcp"), "as-wanted", "a DHCP client", &v6),
        ] {
            s[0].sh(&format!("ip {flag} route replace {route}"))?;
            until_ok(&route, || {
                let document = flannelctl_routes_document(&s[0], 3)?;
                let foreign = document["foreign"].as_array().context("no list")?;
                let net = format!("{net} (h2)");
                ensure!(foreign.iter().any(|other| other["by"] == by && other["in_the_way_of"][0] == net.as_str()), "{document:#}");
                ensure!(objects_in_state(&document, state).iter().any(|(kind, text)| *kind == "route" && text.contains("onlink")), "{document:#}");
                ensure!(objects_in_state(&document, "refused").is_empty() == (state != "refused"), "{document:#}");
                Ok(())
            })?;
            s[0].sh(&format!("ip {flag} route delete {route}"))?;
            wait_all_objects_in_sync(&s[0])?;
        }
        // Harmless objects of others are listed, and do not change the exit code.
        s[0].sh("bridge fdb add 02:00:00:00:00:77 dev flannel.1 dst 192.168.56.78 self dynamic; ip route add 10.5.0.0/24 via 192.168.56.250 dev enp0s8 proto static")?;
        let foreign = wait_all_objects_in_sync(&s[0])?["foreign"].to_string();
        ensure!(foreign.contains("02:00:00:00:00:77") && foreign.contains("10.5.0.0/24"), "{foreign}");
        Ok(())
    })
}

#[test]
fn routes_without_a_daemon_fails_with_one_line() -> Result<()> {
    Scene::with_title("silent routes").nodes(1).without_daemons().run(|s| {
        std::fs::remove_file(s.lab.ensure_folder("leases")?.join("config"))?;
        let refuses = |s: &Scene<'_>, reason: &str| {
            let output = run_flannelctl(&s[0], &["routes"])?;
            let text = stdout_and_stderr(&output);
            ensure!(
                output.status.code() == Some(1)
                    && text.lines().count() == 1
                    && text.contains(reason),
                "{reason}: {output:?}"
            );
            Ok(())
        };
        refuses(s, "does not run")?;
        // The daemon waits for its configuration.
        s[0].launch_daemon()?;
        until_ok("the daemon has its socket", || refuses(s, "no network"))?;
        s.store.configure(&DUAL.replace("vxlan", "host-gw"))?;
        s[0].daemon_mut()?.wait_ready()?;
        until_ok("nothing but this node is wanted", || {
            let output = run_flannelctl(&s[0], &["routes"])?;
            ensure!(
                output.status.success() && stdout_text(&output).contains("no objects"),
                "{output:?}"
            );
            Ok(())
        })?;
        s[0].daemon()?.send_sigstop()?;
        refuses(s, "does not respond")?;
        s[0].daemon()?.send_sigcont()?;
        s[0].stop_daemon()?;
        refuses(s, "does not run")
    })
}
