//! Tests of docs/doctor-commands.md: an unprivileged user cannot run the commands that change a host, and all tests that the document names exist.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use super::node::{Node, well_nodes};
use super::{NETWORK, devices, host};

const PAGE: &str = "docs/doctor-commands.md";

/// Prefixes of the commands that change a host.
const CHANGING: &[&str] = &[
    "sysctl -w",
    "echo ",
    "printf ",
    "iptables ",
    "nft add",
    "ip address add",
    "ip address del",
    "ip link set",
    "ip route add",
    "ip route replace",
    "modprobe",
    "ethtool -K",
    "systemctl",
    "ufw",
    "firewall-cmd",
    "sed -i",
    "timedatectl set-ntp",
];

/// Script that prints the host state that commands may change: devices, addresses, routes, rules, sysctls, files.
const STATE: &str = "ip -d link; ip address; ip route show table all; ip -6 route show table all; ip rule; nft -s list ruleset
sysctl -a 2>/dev/null | grep -e forward -e rp_filter -e gc_thresh -e accept_ra -e nf_conntrack_max -e bridge-nf
find /etc/default /etc/cni /etc/sysctl.d /etc/modules-load.d /etc/systemd /etc/machine-id /etc/nftables.conf /etc/NetworkManager -type f -exec md5sum {} + 2>/dev/null || true";

fn read(path: &str) -> Result<String> {
    let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).with_context(|| path)
}

/// Returns the commands of the document that change a host, one per line.
fn changing(page: &str) -> Vec<&str> {
    let mut is_inside = false;
    let mut all = Vec::new();
    for line in page.lines() {
        if line.starts_with("```") {
            is_inside = line == "```sh";
        } else if is_inside
            && CHANGING.iter().any(|start| line.starts_with(start))
            && !line.contains("kubectl")
        {
            all.push(line);
        }
    }
    all
}

fn state(node: &mut Node) -> Result<String> {
    Ok(node.sh(STATE)?.1)
}

#[test]
fn unprivileged_user_cannot_run_documented_commands() -> Result<()> {
    let page = read(PAGE)?;
    let commands = changing(&page);
    ensure!(commands.len() > 40, "{commands:?}");
    well_nodes(NETWORK, "doctor: refused", 1, |_, _, nodes| {
        let node = &mut nodes[0];
        node.run("ip link add cni0 type bridge; ip link add flannel0 type bridge")?;
        let before = state(node)?;
        let mut script = String::from("exec 2>&1\n");
        for (number, command) in commands.iter().enumerate() {
            std::fs::write(
                node.files.join(format!("default/command-{number}")),
                command,
            )?;
            script += &format!(
                "if setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all sh -es < /etc/default/command-{number}; then echo allowed: {number}; fi\n"
            );
        }
        script += "rm /etc/default/command-*\n";
        let (code, text) = node.sh(&script)?;
        ensure!(code == 0, "{text}");
        let allowed: Vec<&&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("allowed: ")?.parse::<usize>().ok())
            .filter_map(|number| commands.get(number))
            // sysctl succeeds for some values that the kernel refuses. The comparison of states covers it.
            .filter(|command| !command.starts_with("sysctl -w"))
            .collect();
        ensure!(allowed.is_empty(), "not refused: {allowed:#?}\n{text}");
        ensure!(
            text.contains("Operation not permitted") && text.contains("Permission denied"),
            "{text}"
        );
        let after = state(node)?;
        ensure!(before == after, "before: {before}\nafter: {after}");
        Ok(())
    })
}

/// Checks that each test that docs/doctor-commands.md names exists. A table of faults or the test's source file must contain the name of the check.
#[test]
fn tests_named_in_the_document_exist() -> Result<()> {
    let page = read(PAGE)?;
    let verdicts: BTreeSet<&str> = crate::verdicts::mended();
    let tables: BTreeSet<&str> = host::mended().chain(devices::mended()).collect();
    for line in page.lines().filter(|line| line.starts_with("| [`")) {
        let [_, check, _, claim, ..] = line.split('|').collect::<Vec<_>>()[..] else {
            anyhow::bail!("{line}");
        };
        let check = check.split('`').nth(1).context("no check")?;
        let is_mended = claim.trim_start().starts_with("mended");
        for test in claim.split('`').skip(1).step_by(2) {
            let holds = match test {
                "ufw" | "firewall-cmd" => true,
                "verdicts" if is_mended => verdicts.contains(check),
                "doctor::host" | "doctor::devices" if is_mended && tables.contains(check) => true,
                _ => {
                    let file = match test {
                        "verdicts" => "verdicts/rows".to_owned(),
                        other => other.replace("::", "/"),
                    };
                    let text = read(&format!("e2e/tests/e2e/{file}.rs"))?;
                    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-')
                        .any(|word| word == check)
                }
            };
            ensure!(holds, "{line}: {test} has no {check}");
        }
    }
    Ok(())
}
