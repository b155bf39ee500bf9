//! Shell commands that make a change of the host survive a reboot. Each is one line, for use after the command that changes the running host.

use crate::shell::word;

/// Where remedies append sysctls. It sorts after `99-sysctl.conf`, a link to /etc/sysctl.conf, because the last file that sets a sysctl takes
/// precedence.
const SYSCTLS: &str = "/etc/sysctl.d/99-zz-flannel.conf";
/// Where administrators install systemd units.
const UNITS: &str = "/etc/systemd/system";

/// Sets a sysctl now and at each boot. A name that contains a device must have slashes as separators, because a device name such as `flannel.1` may
/// contain a dot.
pub fn sysctl(name: &str, value: impl std::fmt::Display) -> [String; 2] {
    [
        format!("sysctl -w {name}={value}"),
        format!("echo {} >> {SYSCTLS}", word(&format!("{name} = {value}"))),
    ]
}

/// Loads a kernel module at each boot, before systemd sets the module's sysctls.
pub fn module(name: &str) -> String {
    format!("echo {name} > /etc/modules-load.d/flannel-{name}.conf")
}

/// Inserts iptables rules now and at each boot.
///
/// Each rule is a program and its arguments, such as `-I FORWARD 3 -s …`. Only the rules in `now` may contain a rule number, because at boot the
/// rules go to the top of the chain. `later` must be empty for a chain with network policies: at boot, a policy agent may append its jump after the
/// rules.
///
/// A systemd unit inserts the rules in `later`. `netfilter-persistent save` is unsuitable: it would also restore the rules of policy agents before
/// these start.
pub fn iptables(unit: &str, now: &[(String, String)], later: &[(String, String)]) -> Vec<String> {
    let mut commands: Vec<String> =
        now.iter().map(|(program, rule)| format!("{program} {rule}")).collect();
    if later.is_empty() {
        return commands;
    }
    // systemd quotes differently from a shell, and replaces `%` and `$`.
    let is_plain = |rule: &str| !rule.contains(['\'', '"', '\\', '%', '$']);
    if !later.iter().all(|(_, rule)| is_plain(rule)) {
        commands.push("# these rules do not survive a reboot".to_owned());
        return commands;
    }
    let runs =
        later.iter().map(|(program, rule)| format!("ExecStart=/usr/bin/env {program} -w {rule}"));
    let lines: Vec<String> = [
        "[Unit]",
        "After=netfilter-persistent.service iptables.service ip6tables.service ufw.service",
        "Before=docker.service kubelet.service flanneld.service",
        "[Service]",
        "Type=oneshot",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain(runs)
    .chain(["[Install]", "WantedBy=multi-user.target"].map(str::to_owned))
    .collect();
    commands.push(format!(
        "{} > {UNITS}/{unit}.service && systemctl enable {unit}.service",
        print(&lines)
    ));
    commands
}

/// Adds rules to the file from which nftables.service loads a table at boot.
///
/// If no file of nftables.service defines the table, the command only prints a message. A rule for another program's table would prevent
/// nftables.service from loading the file.
///
/// `rules` are nft commands without single quotes: `add rule inet filter forward ip saddr … accept`.
pub fn nftables(family: &str, table: &str, rules: &[String]) -> String {
    format!(
        "kept=; for file in /etc/nftables.conf /etc/sysconfig/nftables.conf; do if grep -qs {} $file; then {} >> $file; kept=$file; fi; done; \
         [ -n \"$kept\" ] || echo 'this rule does not survive a reboot: no file of nftables.service defines this table; add the rules where it is defined'",
        word(&format!("^table {family} {table}\\b")),
        print(rules)
    )
}

/// Prints lines, whatever characters they contain.
fn print(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| word(line)).collect();
    format!("printf '%s\\n' {}", lines.join(" "))
}

/// Makes systemd disable checksum offload whenever a program creates the device. The systemd.link(5) file also sets `MACAddressPolicy=none`, which
/// keeps flannel's hardware address, because systemd applies only the first file that matches a device.
pub(crate) fn checksums_off(device: &str) -> String {
    format!(
        "printf '[Match]\\nOriginalName=%s\\n[Link]\\nMACAddressPolicy=none\\nTransmitChecksumOffload=no\\n' {} > \
         /etc/systemd/network/10-flannel-checksum.link",
        word(device)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iptables_rules_return_by_a_unit_that_systemd_reads() {
        let rule = (
            "iptables".to_owned(),
            "-I INPUT -s 192.0.2.0/24 -p udp --dport 8472 -j ACCEPT".to_owned(),
        );
        let commands =
            iptables("flannel-input", std::slice::from_ref(&rule), std::slice::from_ref(&rule));
        assert_eq!(commands[0], "iptables -I INPUT -s 192.0.2.0/24 -p udp --dport 8472 -j ACCEPT");
        let folder = tempfile::tempdir().unwrap();
        let script = commands[1]
            .replace(UNITS, &folder.path().display().to_string())
            .replace("systemctl", "true");
        assert!(
            std::process::Command::new("sh").args(["-ec", &script]).status().unwrap().success(),
            "{script}"
        );
        let unit = std::fs::read_to_string(folder.path().join("flannel-input.service")).unwrap();
        assert!(unit.contains("\nExecStart=/usr/bin/env iptables -w -I INPUT -s 192.0.2.0/24 -p udp --dport 8472 -j ACCEPT\n"), "{unit}");
        assert!(
            unit.starts_with("[Unit]\n")
                && unit.contains("\n[Service]\nType=oneshot\n")
                && unit.ends_with("WantedBy=multi-user.target\n")
        );
    }

    #[test]
    fn nftables_rule_goes_only_to_the_file_that_makes_its_table() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nftables.conf");
        let command = nftables(
            "inet",
            "wall",
            &["add rule inet wall gate ip saddr 10.244.0.0/16 accept".to_owned()],
        );
        let command = command
            .replace("/etc/nftables.conf", &file.display().to_string())
            .replace("/etc/sysconfig/", "/none/");
        let run = || {
            assert!(
                std::process::Command::new("sh")
                    .args(["-ec", &command])
                    .status()
                    .unwrap()
                    .success(),
                "{command}"
            );
        };
        for (text, grows) in [
            ("table inet wallpaper {\n}\n", false),
            ("flush ruleset\ntable inet wall {\n}\n", true),
        ] {
            std::fs::write(&file, text).unwrap();
            run();
            let wanted = if grows {
                format!("{text}add rule inet wall gate ip saddr 10.244.0.0/16 accept\n")
            } else {
                text.to_owned()
            };
            assert_eq!(std::fs::read_to_string(&file).unwrap(), wanted);
        }
    }
}
