//! Route protocols: the numbers with which programs mark their routes, and the names that this host defines for the numbers.

use crate::names::LinkName;
use std::collections::BTreeMap;
use std::path::PathBuf;
use types::file::{self, Links};

/// The default of flannel-rs' routes.
pub const FLANNEL: u8 = 241;
/// RTPROT_KERNEL: routes that the kernel adds for addresses.
pub(crate) const KERNEL: u8 = 2;

/// The same on every host (linux/rtnetlink.h, compiled into iproute2).
const WELL_KNOWN: &[(u8, &str)] = &[
    (0, "unspec"),
    (1, "redirect"),
    (KERNEL, "kernel"),
    (3, "boot"),
    (4, "static"),
    (8, "gated"),
    (9, "ra"),
    (10, "mrt"),
    (11, "zebra"),
    (12, "bird"),
    (13, "dnrouted"),
    (14, "xorp"),
    (15, "ntk"),
    (16, "dhcp"),
    (17, "mrouted"),
    (18, "keepalived"),
    (42, "babel"),
    (84, "ovn"),
    (99, "openr"),
    (186, "bgp"),
    (187, "isis"),
    (188, "ospf"),
    (189, "rip"),
    (192, "eigrp"),
];

/// The administrator's file comes last and takes precedence.
const FILES: [&str; 2] = ["/usr/share/iproute2/rt_protos", "/etc/iproute2/rt_protos"];
/// Packages put their files here.
const FOLDERS: [&str; 2] = ["/usr/share/iproute2/rt_protos.d", "/etc/iproute2/rt_protos.d"];
/// In bytes; the files of iproute2 are smaller.
const LIMIT: u64 = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocols(BTreeMap<u8, String>);

impl Default for Protocols {
    fn default() -> Self {
        Self::of(WELL_KNOWN)
    }
}

impl Protocols {
    #[must_use]
    pub fn of(names: &[(u8, &str)]) -> Self {
        Self(names.iter().map(|(number, name)| (*number, (*name).to_owned())).collect())
    }

    /// What this host's files define, and the names that are the same on every host.
    #[must_use]
    pub fn of_this_host() -> Self {
        let mut files = FILES.map(PathBuf::from).to_vec();
        for folder in FOLDERS {
            let entries =
                std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            let mut added: Vec<_> =
                entries.filter(|path| path.extension().is_some_and(|end| end == "conf")).collect();
            added.sort();
            files.extend(added);
        }
        let mut names = Self::default();
        // Without iproute2 on this host, its compiled-in names suffice.
        files
            .iter()
            .filter_map(|path| file::read(path, LIMIT, Links::Followed).ok())
            .for_each(|text| names.read(&String::from_utf8_lossy(&text)));
        names
    }

    /// Each line has a protocol number and a name.
    pub fn read(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let number = words.next().and_then(|word| match word.strip_prefix("0x") {
                Some(digits) => u8::from_str_radix(digits, 16).ok(),
                None => word.parse().ok(),
            });
            if let Some((number, name)) = number.zip(words.next()) {
                self.0.insert(number, name.to_owned());
            }
        }
    }

    /// As `ip route` prints it.
    #[must_use]
    pub fn name(&self, number: u8) -> String {
        self.0.get(&number).cloned().unwrap_or_else(|| number.to_string())
    }

    /// The program that creates routes with the protocol `number`. `dev` is the device of such a
    /// route.
    #[must_use]
    pub fn maker(&self, number: u8, dev: LinkName) -> String {
        match (number, self.0.get(&number)) {
            (KERNEL, _) if dev == LinkName::default() => "the kernel".to_owned(),
            (KERNEL, _) => format!("the kernel, for an address of {dev}"),
            (0 | 3, _) => "ip route without a protocol, or a program that names none (Go flannel, CNI plugins)".to_owned(),
            (4, _) => "an operator, NetworkManager or systemd-networkd".to_owned(),
            (9, _) => "the kernel, by a router advertisement".to_owned(),
            (16, _) => "a DHCP client".to_owned(),
            (FLANNEL, None) => "another flanneld".to_owned(),
            (_, Some(name)) => name.clone(),
            (_, None) => format!("protocol {number}, which is unnamed on this host"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_names_of_the_host() {
        let mut names = Protocols::default();
        names.read("#\n# Reserved protocols.\n#\n12\tbird\n 0x50  felix # calico\n241 mine\n300 large\n7\nx y\n\n12 bird2\n");
        assert_eq!(
            (names.name(4), names.name(12), names.name(0x50), names.name(7)),
            ("static".into(), "bird2".into(), "felix".into(), "7".into())
        );
        assert_eq!(names.maker(241, LinkName::default()), "mine");
        let known = Protocols::default();
        let dev = LinkName::parse("cni0").unwrap();
        for (number, maker) in [
            (2, "the kernel, for an address of cni0"),
            (4, "an operator, NetworkManager or systemd-networkd"),
            (12, "bird"),
            (16, "a DHCP client"),
            (241, "another flanneld"),
            (77, "protocol 77, which is unnamed on this host"),
        ] {
            assert_eq!(known.maker(number, dev), maker);
        }
        // The files of this host do not remove the well-known names.
        assert_eq!(Protocols::of_this_host().name(4), "static");
    }
}
