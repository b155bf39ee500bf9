//! The outputs in `docs/packet-path.md` equal the commands' outputs in a lab. `FLANNEL_WRITE_DOCS=1` updates the document.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use lab::{Scene, stdout_and_stderr};
use regex::Regex;

fn packet_path_document() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/packet-path.md")
}

/// The line begins with a prompt, such as `node-1#` or `pod-2$`.
fn run_prompt_line_under_ping(s: &Scene<'_>, line: &str) -> Result<String> {
    let (place, command) =
        line.split_once(['#', '$']).with_context(|| format!("no place: {line}"))?;
    let (kind, number) = place.split_once('-').with_context(|| format!("no place: {line}"))?;
    let node = &s[number.parse::<usize>()? - 1];
    let netns = if kind == "node" { node.netns() } else { node.pods[0].netns() };
    let (ping, target) = (s[0].pods[0].netns(), s[1].pods[0].v4()?.to_string());
    // A capture needs packets until it ends, however late it begins.
    let ended = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                let _ = ping.output("ping", &["-q", "-c", "5", "-i", "0.1", &target]);
            }
        });
        let output = netns.output("sh", &["-c", &format!("timeout 20 {}", command.trim())]);
        ended.store(true, Relaxed);
        output
    })?;
    // What tcpdump writes around the packets.
    let around = [
        "listening",
        "tcpdump:",
        "dropped privs",
        "captured",
        "received by filter",
        "dropped by kernel",
    ];
    let text = stdout_and_stderr(&output);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty() && !around.iter().any(|word| line.contains(word)))
        .collect();
    ensure!(!lines.is_empty(), "{line} printed nothing: {text}");
    Ok(lines.join("\n"))
}

/// Drops the values that differ between two labs: MACs, ports, device indexes, and numbers in packets.
fn mask_lab_specific_values(text: &str) -> String {
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

/// Code blocks for a backend: their start, their end and their commands.
fn backend_command_blocks(page: &str, backend: &str) -> Vec<(usize, usize, Vec<String>)> {
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

/// Runs the commands while one pod pings the other. The result is the document with the outputs.
fn fill_outputs_from_lab(page: &str, backend: &str) -> Result<String> {
    let conf = format!(r#"{{"Network":"10.244.0.0/16","Backend":{{"Type":"{backend}"}}}}"#);
    let mut text = page.to_owned();
    Scene::with_title("packet path")
        .net(&conf)
        .daemon_arg("--ip-masq")
        .daemon_arg("--probe-port=0")
        .without_daemons()
        .run(|s| {
            for (number, node) in (1..).zip(&s.nodes) {
                let (subnet, address) =
                    (format!("10.244.{number}.0/24"), format!("--address={}", node.v4()?));
                let reserved =
                    node.flannelctl(&["reserve", &s.store.daemon_args()[0], &subnet, &address])?;
                ensure!(reserved.status.success(), "{}", stdout_and_stderr(&reserved));
            }
            s.start_daemons_and_connected_pods()?;
            for (start, end, commands) in backend_command_blocks(page, backend).into_iter().rev() {
                let outputs = commands.iter().map(|command| {
                    Ok(format!("{command}\n{}\n", run_prompt_line_under_ping(s, command)?))
                });
                text.replace_range(start..end, &outputs.collect::<Result<String>>()?);
            }
            Ok(())
        })?;
    Ok(text)
}

#[test]
fn outputs_on_the_page_are_those_of_a_lab() -> Result<()> {
    let old = std::fs::read_to_string(packet_path_document())?;
    let mut new = old.clone();
    for backend in ["vxlan", "udp", "host-gw", "wireguard"] {
        ensure!(!backend_command_blocks(&new, backend).is_empty(), "no block of {backend}");
        new = fill_outputs_from_lab(&new, backend).with_context(|| backend.to_owned())?;
    }
    if std::env::var_os("FLANNEL_WRITE_DOCS").is_some() {
        std::fs::write(packet_path_document(), &new)?;
        return Ok(());
    }
    for (old, new) in
        mask_lab_specific_values(&old).lines().zip(mask_lab_specific_values(&new).lines())
    {
        ensure!(old == new, "the page has\n{old}\nand the lab prints\n{new}");
    }
    ensure!(
        old.lines().count() == new.lines().count(),
        "other lines than on the page: FLANNEL_WRITE_DOCS=1 writes\n{new}"
    );
    Ok(())
}
