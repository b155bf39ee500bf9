//! Tests of `flannelctl routes`, which compares each desired object with the kernel's objects and lists conflicting objects of other programs.

use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{
    Bed, FlanneldOptions, Host, Lab, Store, binaries, json, outcome, stderr, stdout, texts,
    until_ok,
};
use serde_json::Value;

/// Ten times the time that a command may take if the daemon does not respond.
const AT_ONCE: Duration = Duration::from_secs(30);
const DUAL: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","EnableIPv6":true,"IPv6Network":"fd10:5::/48","Backend":{"Type":"TYPE"}}"#;

/// Runs flannelctl on a host, which may have no running daemon.
fn flannelctl(host: &Host, args: &[&str]) -> Result<Output> {
    let file = format!("--subnet-file={}", host.subnet_file()?.display());
    host.flannelctl(&[args, &[file.as_str()]].concat())
}

/// Returns the JSON document of `flannelctl routes`. Checks the document's schema and the exit code.
fn document(host: &Host, code: i32) -> Result<Value> {
    let output = flannelctl(host, &["routes", "-o", "json"])?;
    ensure!(
        output.status.code() == Some(code),
        "not exit code {code}, but {}",
        outcome(&output)
    );
    let document = json(&output)?;
    let schema = std::fs::read_to_string(format!(
        "{}/../docs/schema/routes.json",
        env!("CARGO_MANIFEST_DIR")
    ))?;
    let schema: Value = serde_json::from_str(&schema)?;
    valid(&schema, &schema, &document).with_context(|| format!("{document:#}"))?;
    Ok(document)
}

/// Checks a value against a JSON schema. Supports only the keywords that flannel-rs' schemas contain. Returns an error if the value does not match.
fn valid(schema: &Value, part: &Value, value: &Value) -> Result<()> {
    if let Some(name) = part["$ref"].as_str() {
        return valid(
            schema,
            &schema["$defs"][name.rsplit('/').next().unwrap_or_default()],
            value,
        );
    }
    if let Some(choices) = part["anyOf"].as_array() {
        return choices
            .iter()
            .map(|choice| valid(schema, choice, value))
            .find(Result::is_ok)
            .context("none of anyOf")?;
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_kind = part["type"] == kind
        || part["type"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|name| name == kind));
    ensure!(is_kind, "{value} is {kind}, not {}", part["type"]);
    ensure!(
        part["enum"]
            .as_array()
            .is_none_or(|choices| choices.contains(value)),
        "{value} is none of {}",
        part["enum"]
    );
    ensure!(
        part.get("const").is_none_or(|only| only == value),
        "{value} is not {}",
        part["const"]
    );
    match value {
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| valid(schema, &part["items"], item)),
        Value::Object(fields) => {
            for name in part["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
                ensure!(fields.contains_key(name), "{name} is missing in {value}");
            }
            fields.iter().try_for_each(|(name, field)| {
                let described = part["properties"]
                    .get(name)
                    .with_context(|| format!("{name} is not described"))?;
                valid(schema, described, field)
            })
        }
        _ => Ok(()),
    }
}

/// Waits until all objects are in sync, and returns the output of `flannelctl routes`.
fn all_in_sync(host: &Host) -> Result<String> {
    let mut text = String::new();
    until_ok("all is in sync", || {
        let output = flannelctl(host, &["routes"])?;
        text = stdout(&output);
        ensure!(
            output.status.code() == Some(0) && text.ends_with(" objects, all in sync\n"),
            "{text}{}",
            stderr(&output)
        );
        Ok(())
    })?;
    Ok(text)
}

/// Returns the kind and the text of each object in the state `state`.
fn of_state<'a>(document: &'a Value, state: &str) -> Vec<(&'a str, &'a str)> {
    let objects = document["objects"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|object| object["state"] == state);
    objects
        .map(|object| {
            (
                object["kind"].as_str().unwrap_or_default(),
                object["text"].as_str().unwrap_or_default(),
            )
        })
        .collect()
}

/// Returns whether `ip` or `bridge` prints an object of the kind `kind` in one line with the same words as `text`.
fn is_printed(host: &Host, kind: &str, text: &str) -> Result<bool> {
    let ns = host.netns();
    let all = match kind {
        "link" => {
            return Ok(ns.sh("ip -d link show").is_ok_and(|all| {
                all.contains(&format!("{}:", text.split(' ').next().unwrap_or_default()))
            }));
        }
        "address" => ns.sh("ip -o address show")?,
        "fdb" => ns.sh("bridge fdb show")?,
        "neighbour" => ns.sh("ip neigh show; ip -6 neigh show")?,
        _ => ns.sh("ip route show; ip -6 route show")?,
    };
    let wanted: Vec<&str> = if kind == "address" {
        text.split(' ').take(1).collect()
    } else {
        text.split(' ').collect()
    };
    Ok(all.lines().any(|line| {
        wanted
            .iter()
            .all(|word| line.split_whitespace().any(|printed| printed == *word))
    }))
}

fn a_healthy_node_is_as_wanted(backend: &str, kinds: &[&str]) {
    Lab::run(&format!("routes-{backend}"), |lab| {
        let bed = Bed::start(lab, 3, &DUAL.replace("TYPE", backend), |_, options| {
            options.arg("--ip-blackhole-route")
        })?;
        for host in &bed.hosts {
            let text = all_in_sync(host)?;
            ensure!(
                text.contains("rules: ") && text.contains("; in place"),
                "{text}"
            );
            let document = document(host, 0)?;
            ensure!(
                document["schema"] == "flannel.routes/1" && document["node"] == host.name(),
                "{document:#}"
            );
            let objects = of_state(&document, "as-wanted");
            for kind in kinds {
                ensure!(
                    objects.iter().any(|(is, _)| is == kind),
                    "no {kind}: {document:#}"
                );
            }
            ensure!(
                objects.iter().all(|(kind, _)| kinds.contains(kind)),
                "{document:#}"
            );
            for (kind, text) in &objects {
                ensure!(
                    is_printed(host, kind, text)?,
                    "the kernel has no {kind} {text}"
                );
            }
            // The pods' bridge conflicts with nothing.
            let foreign = document["foreign"].as_array().context("no list")?;
            ensure!(foreign.iter().any(|other| {
                other["own_subnet"] == true
                    && other["by"]
                        .as_str()
                        .is_some_and(|by| by.starts_with("the kernel"))
            }));
            ensure!(
                foreign
                    .iter()
                    .all(|other| other["in_the_way_of"].as_array().is_some_and(Vec::is_empty)),
                "{document:#}"
            );
        }
        // Objects show to which peer they belong.
        let text = all_in_sync(&bed.hosts[0])?;
        if backend != "udp" {
            for peer in &bed.hosts[1..] {
                let subnet = bed.daemons[usize::from(peer.name() == "h3") + 1]
                    .subnet_env()?
                    .subnet
                    .context("no subnet")?
                    .trunc()
                    .to_string();
                ensure!(
                    text.lines().any(|line| line.contains(&subnet)
                        && line.contains(&format!("  {}  ", peer.name()))),
                    "{text}"
                );
            }
        }
        bed.require_no_errors()
    })
    .unwrap();
}

#[test]
fn vxlan_node_in_sync_lists_every_object() {
    a_healthy_node_is_as_wanted(
        "vxlan",
        &["link", "address", "fdb", "neighbour", "route", "blackhole"],
    );
}

#[test]
fn host_gw_node_in_sync_lists_every_object() {
    a_healthy_node_is_as_wanted("host-gw", &["route", "blackhole"]);
}

#[test]
fn udp_node_in_sync_lists_every_object() {
    a_healthy_node_is_as_wanted("udp", &["link", "address", "route", "blackhole"]);
}

#[test]
fn route_conflict_is_listed_with_its_owner_until_removed() {
    Lab::run("routes-way", |lab| {
        let bed = Bed::start(lab, 2, &DUAL.replace("TYPE", "vxlan"), |_, options| options)?;
        let host = &bed.hosts[0];
        let env = bed.daemons[1].subnet_env()?;
        let (v4, v6) = (env.subnet.context("no subnet")?.trunc().to_string(), env.v6_subnet.context("no IPv6 subnet")?.trunc().to_string());
        let inside = v4.replace("0/24", "128/25");
        all_in_sync(host)?;
        // Each route takes packets for the peer. The daemon's own route is there all the time, except in the first case.
        for (add, remove, state, by, net) in [
            (
                format!("ip route replace {v4} via 192.168.56.250 dev enp0s8 proto static"),
                format!("ip route delete {v4} via 192.168.56.250"),
                "refused",
                "an operator, NetworkManager or systemd-networkd",
                &v4,
            ),
            (
                format!("ip route add {inside} via 192.168.56.250 dev enp0s8 proto bird"),
                format!("ip route delete {inside}"),
                "as-wanted",
                "bird",
                &v4,
            ),
            (
                format!("ip -6 route add {v6} dev enp0s8 metric 100 proto dhcp"),
                format!("ip -6 route delete {v6} dev enp0s8"),
                "as-wanted",
                "a DHCP client",
                &v6,
            ),
        ] {
            host.netns().sh(&add)?;
            until_ok(&add, || {
                let document = document(host, 3)?;
                let foreign = document["foreign"].as_array().context("no list")?;
                let net = format!("{net} (h2)");
                ensure!(foreign.iter().any(|other| other["by"] == by && other["in_the_way_of"][0] == net.as_str()), "{document:#}");
                ensure!(of_state(&document, state).iter().any(|(kind, text)| *kind == "route" && text.contains("onlink")), "{document:#}");
                ensure!(state != "as-wanted" || of_state(&document, "refused").is_empty(), "{document:#}");
                Ok(())
            })?;
            let text = stdout(&flannelctl(host, &["routes"])?);
            ensure!(text.contains(&format!("conflicts with {net} (h2)")) && text.contains("one foreign object conflicts\n"), "{text}");
            if state == "refused" {
                let first = text.lines().nth(1).unwrap_or_default();
                ensure!(first.contains(&v4) && first.contains("  refused  ") && first.contains("there is "), "{text}");
                ensure!(text.contains("refused: File exists") && text.contains("1 refused"), "{text}");
            }
            host.netns().sh(&remove)?;
            all_in_sync(host)?;
        }
        // Harmless objects of others are listed, and do not change the exit code.
        host.netns().sh("bridge fdb add 02:00:00:00:00:77 dev flannel.1 dst 192.168.56.78 self dynamic")?;
        let own = bed.daemons[0].subnet_env()?.subnet.context("no subnet")?.trunc().to_string();
        let nobodys = ["10.5.250.0/24", "10.5.251.0/24", "10.5.252.0/24"].into_iter().find(|net| ![&own, &v4].contains(&&net.to_string()));
        let route = format!("{} via 192.168.56.250", nobodys.context("each is somebody's")?);
        host.netns().sh(&format!("ip route add {route} dev enp0s8 proto static"))?;
        let text = all_in_sync(host)?;
        ensure!(text.contains("02:00:00:00:00:77 dev flannel.1 dst 192.168.56.78 self") && text.contains(&route), "{text}");
        Ok(())
    })
    .unwrap();
}

/// Checks that `flannelctl routes` fails at once without a responding daemon: the command prints one line and exits with code 1.
fn refuses_at_once(host: &Host, part: &str) -> Result<()> {
    let begun = Instant::now();
    let output = flannelctl(host, &["routes"])?;
    let took = begun.elapsed();
    ensure!(
        output.status.code() == Some(1) && stdout(&output).is_empty(),
        "{output:?}"
    );
    ensure!(
        stderr(&output).lines().count() == 1 && stderr(&output).contains(part),
        "{part:?} is not in {}",
        stderr(&output)
    );
    ensure!(took < AT_ONCE, "it took {took:?}");
    Ok(())
}

#[test]
fn routes_without_a_daemon_fails_with_one_line() {
    Lab::run("routes-silent", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let host = &hosts[0];
        let store = Store::dir(&lab.folder("leases")?);
        refuses_at_once(host, "does not run on this node")?;
        let usage = flannelctl(host, &["routes", "--no-such-flag"])?;
        ensure!(usage.status.code() == Some(2), "{usage:?}");

        // The daemon waits for its configuration.
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let mut daemon = host.start_flanneld(&options)?;
        until_ok("the daemon has its socket", || refuses_at_once(host, "this node has no network yet"))?;
        store.configure(&DUAL.replace("TYPE", "host-gw"))?;
        daemon.wait_ready()?;
        until_ok("nothing but this node is wanted", || {
            let output = flannelctl(host, &["routes"])?;
            ensure!(output.status.success() && stdout(&output).contains("no objects are needed in the kernel"), "{output:?}");
            Ok(())
        })?;

        let program = binaries::own("flannelctl")?;
        let folder = lab.folder("anybody")?;
        let copy = folder.join("flannelctl");
        // A copy by this program could stay open for writing in a child of a concurrent test, and the kernel does not execute such a file.
        host.netns().sh(&format!("cp '{}' '{}'", program.display(), copy.display()))?;
        let begun = Instant::now();
        let script = format!(
            "chmod 755 '{0}'; setpriv --reuid=65534 --regid=65534 --clear-groups '{1}' routes --subnet-file='{2}'",
            folder.display(),
            copy.display(),
            host.subnet_file()?.display()
        );
        let output = host.netns().output("sh", &["-c", &script])?;
        ensure!(output.status.code() == Some(1) && stderr(&output).lines().count() == 1 && begun.elapsed() < AT_ONCE, "{output:?}");

        daemon.stop()?;
        let hangs = refuses_at_once(host, "does not respond");
        daemon.cont()?;
        hangs?;
        daemon.terminate()?;
        refuses_at_once(host, "does not run on this node")
    })
    .unwrap();
}

#[test]
fn hostile_names_are_shown_escaped() {
    const HOSTILE: &str = "n\u{1b}[2J\u{1b}]0;t\u{7}\r\nfake line\u{9b}31m\u{202e}cod";
    Lab::run("routes-names", |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 1)?;
        let folder = lab.folder("leases")?;
        let store = Store::dir(&folder);
        store.configure(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.100.0","SubnetMax":"10.5.199.0","Backend":{"Type":"host-gw"}}"#)?;
        let node = serde_json::json!({ "id": HOSTILE, "name": HOSTILE, "instance": HOSTILE, "rank": 1 });
        let lease = serde_json::json!({ "PublicIP": "192.168.56.107", "PublicIPv6": null, "BackendType": "host-gw", "NodeID": node });
        std::fs::write(folder.join("subnets/10.5.7.0-24"), lease.to_string())?;
        let _daemon = hosts[0].flanneld(&FlanneldOptions::new(&store).iface("enp0s8"))?;
        hosts[0].netns().sh("ip route add 10.5.7.0/25 via 192.168.56.250 dev enp0s8 proto static")?;
        until_ok("the route is wanted", || {
            let output = flannelctl(&hosts[0], &["routes"])?;
            ensure!(output.status.code() == Some(3) && stdout(&output).contains("10.5.7.0/24 via 192.168.56.107"), "{output:?}");
            Ok(())
        })?;
        for args in [&["routes"][..], &["routes", "--all"], &["routes", "-o", "json"]] {
            let output = flannelctl(&hosts[0], args)?;
            let text = texts(&output);
            if text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')) || text.lines().any(|line| line.starts_with("fake")) {
                bail!("{text:?}");
            }
            ensure!(text.contains(r"\u{1b}[2J") || text.contains(r"\u001b[2J"), "{text}");
        }
        document(&hosts[0], 3).map(drop)
    })
    .unwrap();
}
