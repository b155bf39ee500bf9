//! Reads facts from /proc and /etc.

use crate::fact::Fact;
use crate::facts::host::{Checksums, Fill, Sysctls};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use types::Problem;
use types::file::{self, Links};

/// In bytes.
const MAX_RESOLV_CONF: u64 = 64 * 1024;

/// The kernel drops a packet if its route back to the sender uses another interface.
const RP_FILTER_STRICT: i64 = 1;

/// `None` if the file is unreadable or contains no integer.
fn sysctl(path: &str) -> Option<i64> {
    std::fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?.trim().parse().ok()
}

fn number(path: &str) -> Option<u64> {
    sysctl(path).and_then(|value| u64::try_from(value).ok())
}

/// The kernel applies the maximum of the device's rp_filter and that of `all`; 2 is the loose mode.
pub fn is_strict(device: &str) -> bool {
    let all = sysctl("net/ipv4/conf/all/rp_filter").unwrap_or(0);
    sysctl(&format!("net/ipv4/conf/{device}/rp_filter")).unwrap_or(0).max(all) == RP_FILTER_STRICT
}

/// True if IPv4 forwarding is enabled on the host but disabled on the device.
pub(super) fn is_closed(device: &str) -> bool {
    sysctl("net/ipv4/ip_forward") == Some(1)
        && sysctl(&format!("net/ipv4/conf/{device}/forwarding")) == Some(0)
}

pub fn has_br_netfilter() -> bool {
    Path::new("/proc/sys/net/bridge").is_dir()
}

/// Leaves out `module`, `closed` and `astray`, which the caller adds.
pub fn sysctls(underlay: &str) -> Sysctls {
    Sysctls {
        underlay: underlay.to_owned(),
        ip_forward: sysctl("net/ipv4/ip_forward"),
        v6_forwarding: sysctl("net/ipv6/conf/all/forwarding"),
        announced: announced(underlay),
        br_netfilter: has_br_netfilter(),
        module: None,
        call_iptables: sysctl("net/bridge/bridge-nf-call-iptables"),
        call_ip6tables: sysctl("net/bridge/bridge-nf-call-ip6tables"),
        closed: Vec::new(),
        astray: Vec::new(),
    }
}

/// The devices whose accept_ra has to change before this node begins to forward IPv6. The kernel then removes the routes from router advertisements
/// on devices with accept_ra = 1.
///
/// Of the devices with accept_ra = 1, these are the ones with such routes and the underlay interface. There, a router may send an advertisement at
/// any time.
fn announced(underlay: &str) -> Vec<String> {
    let routes = std::fs::read_to_string("/proc/self/net/ipv6_route").unwrap_or_default();
    let mut devices = learned(&routes);
    devices.insert(underlay.to_owned());
    let accepts = |device: &String| {
        !device.is_empty() && sysctl(&format!("net/ipv6/conf/{device}/accept_ra")) == Some(1)
    };
    devices.into_iter().filter(accepts).collect()
}

/// The devices with routes from router advertisements. The last two columns of /proc/net/ipv6_route are the flags and the device.
fn learned(routes: &str) -> BTreeSet<String> {
    // From linux/ipv6_route.h and linux/route.h.
    const RTF_GATEWAY: u32 = 0x0002;
    const RTF_ADDRCONF: u32 = 0x0004_0000;
    let device = |line: &str| {
        let (device, rest) = line
            .trim_end()
            .rsplit_once(char::is_whitespace)
            .map(|(rest, device)| (device, rest))?;
        let flags = u32::from_str_radix(rest.split_whitespace().next_back()?, 16).ok()?;
        (flags & RTF_GATEWAY != 0 && flags & RTF_ADDRCONF != 0).then(|| device.to_owned())
    };
    routes.lines().filter_map(device).collect()
}

/// The network managers that run on this host, the most likely cause of changes to flannel's kernel objects. A runtime folder proves nothing: Debian
/// creates that of systemd-networkd on every host.
pub fn network_managers() -> Vec<String> {
    let programs: BTreeSet<PathBuf> = run_dir::process::pids()
        .filter_map(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok())
        .collect();
    managers(&programs)
}

fn managers(programs: &BTreeSet<PathBuf>) -> Vec<String> {
    let runs = |name: &&str| {
        // After an upgrade, the kernel adds ` (deleted)`.
        let is_it = |program: &PathBuf| {
            let file = program.file_name().and_then(|file| file.to_str());
            program.starts_with("/usr")
                && file.is_some_and(|file| file.trim_end_matches(" (deleted)") == *name)
        };
        programs.iter().any(is_it)
    };
    let known = ["NetworkManager", "systemd-networkd"];
    known.into_iter().filter(runs).map(str::to_owned).collect()
}

pub(super) fn hostname() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

pub(super) fn name_servers(file: &Path) -> Fact<Vec<IpAddr>> {
    match file::read(file, MAX_RESOLV_CONF, Links::Followed) {
        Ok(text) => Fact::Known(
            String::from_utf8_lossy(&text)
                .lines()
                .filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok())
                .collect(),
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Fact::Absent,
        Err(error) => Fact::unavailable(format!("{}: {error}", file.display())),
    }
}

pub(super) fn conntrack() -> Fact<Fill> {
    let pair =
        number("net/netfilter/nf_conntrack_count").zip(number("net/netfilter/nf_conntrack_max"));
    Fact::of(pair.map(|(used, limit)| Fill { used, limit }))
}

pub(super) fn checksums() -> Result<Checksums, Problem> {
    let text = std::fs::read_to_string("/proc/self/net/snmp")
        .map_err(|error| Problem::new("file-unreadable", format!("/proc/net/snmp: {error}")))?;
    Ok(Checksums {
        udp: counter(&text, "Udp:", "InCsumErrors"),
        tcp: counter(&text, "Tcp:", "InCsumErrors"),
    })
}

/// Reads the text of /proc/net/snmp, with a line of names and a line of values for each protocol; 0 if the counter is missing.
fn counter(text: &str, protocol: &str, name: &str) -> u64 {
    let mut lines =
        text.lines().filter(|line| line.starts_with(protocol)).map(str::split_whitespace);
    let (Some(names), Some(mut values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let place = names.into_iter().position(|known| known == name);
    place.and_then(|place| values.nth(place)).and_then(|value| value.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_running_program_is_a_network_manager() {
        let found = |paths: &[&str]| managers(&paths.iter().map(PathBuf::from).collect());
        assert!(
            found(&[
                "/usr/bin/bash",
                "/tmp/NetworkManager",
                "/usr/bin/systemd-networkd-wait-online"
            ])
            .is_empty()
        );
        assert_eq!(found(&["/usr/lib/systemd/systemd-networkd (deleted)"]), ["systemd-networkd"]);
        assert_eq!(found(&["/usr/sbin/NetworkManager"]), ["NetworkManager"]);
    }

    #[test]
    fn counters_are_found_by_name() {
        let text = "Ip: a b\nIp: 1 2\nUdp: InDatagrams NoPorts InCsumErrors\nUdp: 7 8 9\n";
        assert_eq!(
            (counter(text, "Udp:", "InCsumErrors"), counter(text, "Tcp:", "InCsumErrors")),
            (9, 0)
        );
        assert!(checksums().is_ok());
    }

    #[test]
    fn routes_of_routers_are_recognised_by_their_flags() {
        let none = "00000000000000000000000000000000";
        let line = |flags: &str, device: &str| {
            format!(
                "{none} 00 {none} 00 fe80000000000000fc00fffe00000001 00000400 00000001 00000000 {flags} {device:>8}\n"
            )
        };
        let routes = [
            line("00450003", "eth0"),
            line("00000003", "eth1"),
            line("00040001", "eth2"),
            line("00450003", "enp0s8"),
            "junk\n".to_owned(),
        ];
        assert_eq!(
            learned(&routes.concat()),
            BTreeSet::from(["eth0".to_owned(), "enp0s8".to_owned()])
        );
    }

    #[test]
    fn name_servers_are_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "search x\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nnameserver 2001:db8::53\n",
        )
        .unwrap();
        let found = name_servers(file.path());
        assert_eq!(found.known().unwrap().len(), 2, "{found:?}");
        assert_eq!(name_servers(Path::new("/nosuch")), Fact::Absent);
    }
}
