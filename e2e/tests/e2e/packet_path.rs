//! Checks that the outputs in `docs/packet-path.md` equal the commands' outputs in a lab. `FLANNEL_WRITE_DOCS=1` updates the outputs in the document.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, bail, ensure};
use lab::{FlanneldOptions, Host, Lab, Pod, Store, texts, until_ok};
use regex::Regex;

fn page() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/packet-path.md")
}

/// Two hosts with a daemon and a pod each, whose subnets are the subnets in the document.
struct Pair {
    hosts: Vec<Host>,
    pods: Vec<Pod>,
}

impl Pair {
    /// Runs a command line of the document. The line begins with a prompt, such as `node-1#` or `pod-2$`.
    fn run(&self, line: &str) -> Result<String> {
        let (place, command) = line
            .split_once(['#', '$'])
            .with_context(|| format!("no place: {line}"))?;
        let number: usize = place
            .rsplit('-')
            .next()
            .and_then(|number| number.parse().ok())
            .with_context(|| format!("no number: {line}"))?;
        let netns = match place.split('-').next() {
            Some("node") => self.hosts[number - 1].netns(),
            Some("pod") => self.pods[number - 1].netns(),
            _ => bail!("no place: {line}"),
        };
        let (ping, target) = (self.pods[0].netns(), self.pods[1].v4()?.to_string());
        // A capture needs packets until it ends, however late it begins.
        let ended = AtomicBool::new(false);
        let output = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    let sent = ping.output("ping", &["-q", "-c", "5", "-i", "0.1", &target]);
                    if sent.is_err() {
                        break;
                    }
                }
            });
            let output = netns.output("sh", &["-c", &format!("timeout 20 {}", command.trim())]);
            ended.store(true, Relaxed);
            output
        })?;
        let lines: Vec<String> = texts(&output)
            .lines()
            .filter(|line| {
                // What tcpdump writes around the packets.
                !["listening", "tcpdump:", "dropped privs"]
                    .iter()
                    .any(|word| line.contains(word))
                    && !line.contains("captured")
                    && !line.contains("received by filter")
                    && !line.contains("dropped by kernel")
            })
            .map(|line| line.trim_end().to_owned())
            .filter(|line| !line.is_empty())
            .collect();
        ensure!(
            !lines.is_empty(),
            "{line} printed nothing: {}",
            texts(&output)
        );
        Ok(lines.join("\n"))
    }
}

/// Replaces the values that differ between two labs: MACs, ports, device indexes, and numbers in packets.
fn comparable(text: &str) -> String {
    [
        (r"([0-9a-f]{2}:){5}[0-9a-f]{2}", "MAC"),
        (r"@if\d+", "@if"),
        (r"^\d+: (veth)", "N: $1"),
        (r"(\.\d+)\.\d{5} >", "$1.PORT >"),
        (r"id \d+, seq \d+", "id N, seq N"),
        (r"flags \[.*?\], ", ""),
        (r"fe80::[0-9a-f:]+/64", "fe80::/64"),
        (r"length \d+$", "length"),
        (r"[ \t]+", " "),
    ]
    .into_iter()
    .fold(text.to_owned(), |text, (pattern, with)| {
        Regex::new(&format!("(?m){pattern}"))
            .map(|regex| regex.replace_all(&text, with).into_owned())
            .unwrap_or(text)
    })
}

/// Returns the document's code blocks for a backend: the start and the end of each block, and the block's commands.
fn blocks(page: &str, backend: &str) -> Vec<(usize, usize, Vec<String>)> {
    let fence = format!("```console,{backend}\n");
    page.match_indices(&fence)
        .filter_map(|(at, _)| {
            let start = at + fence.len();
            let end = start + page.get(start..)?.find("```")?;
            let commands = page.get(start..end)?.lines();
            let commands = commands
                .filter(|line| line.starts_with("node-") || line.starts_with("pod-"))
                .map(str::to_owned)
                .collect();
            Some((start, end, commands))
        })
        .collect()
}

/// Builds the hosts for a backend, runs the commands while one pod pings the other pod, and returns the document with the outputs.
fn with_outputs(page: &str, backend: &str, net_conf: &str) -> Result<String> {
    Lab::run(&format!("packet path {backend}"), |lab| {
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 2)?;
        let store = Store::dir(&lab.folder("leases")?);
        store.configure(net_conf)?;
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg("--ip-masq")
            .arg("--probe-port=0");
        let dir = store.args().into_iter().next().context("no store")?;
        let (mut pods, mut daemons) = (Vec::new(), Vec::new());
        for (number, host) in (1..).zip(&hosts) {
            let subnet = format!("10.244.{number}.0/24");
            let address = format!("--address={}", host.v4()?);
            let reserved = host.flannelctl(&["reserve", &dir, &subnet, &address])?;
            ensure!(reserved.status.success(), "{}", texts(&reserved));
            let daemon = host.flanneld(&options)?;
            pods.push(host.pod("p1", &daemon.subnet_env()?)?);
            daemons.push(daemon);
        }
        let pair = Pair { hosts, pods };
        let target = pair.pods[1].v4()?.to_string();
        until_ok("the pods reach each other", || {
            let ping = ["-c", "1", "-W", "1", &target];
            let ping = pair.pods[0].netns().output("ping", &ping)?;
            ensure!(ping.status.success(), "{}", texts(&ping));
            Ok(())
        })?;
        let mut text = page.to_owned();
        for (start, end, commands) in blocks(page, backend).into_iter().rev() {
            let mut block = String::new();
            for command in commands {
                block.push_str(&format!("{command}\n{}\n", pair.run(&command)?));
            }
            text.replace_range(start..end, &block);
        }
        Ok(text)
    })
}

#[test]
fn outputs_on_the_page_are_those_of_a_lab() -> Result<()> {
    let old = std::fs::read_to_string(page())?;
    let network = |backend: &str| {
        format!(r#"{{"Network":"10.244.0.0/16","Backend":{{"Type":"{backend}"}}}}"#)
    };
    let mut new = old.clone();
    for backend in ["vxlan", "udp", "host-gw", "wireguard"] {
        ensure!(!blocks(&new, backend).is_empty(), "no block of {backend}");
        new = with_outputs(&new, backend, &network(backend)).with_context(|| backend.to_owned())?;
    }
    if std::env::var_os("FLANNEL_WRITE_DOCS").is_some() {
        std::fs::write(page(), &new)?;
        return Ok(());
    }
    for (old, new) in comparable(&old).lines().zip(comparable(&new).lines()) {
        ensure!(old == new, "the page has\n{old}\nand the lab prints\n{new}");
    }
    ensure!(
        old.lines().count() == new.lines().count(),
        "other lines than on the page: FLANNEL_WRITE_DOCS=1 writes\n{new}"
    );
    Ok(())
}
