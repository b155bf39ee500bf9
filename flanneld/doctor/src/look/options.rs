//! Reads flanneld's options from its options file and its systemd unit, without a running daemon.

use super::places::Places;
use crate::facts::argument::{Argument, on_command_line};
use std::collections::BTreeMap;
use std::net::IpAddr;
use types::file::{self, Links};

/// Of an options file or a unit file, in bytes.
const MAX_FILE: u64 = 256 * 1024;

/// From flanneld's files, by flag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    values: BTreeMap<String, String>,
    /// Those that remedies need, from flanneld's command line in the systemd unit.
    pub arguments: Vec<Argument>,
}

impl Options {
    /// Discards secrets.
    pub fn read(places: &Places) -> Self {
        let text = |path: &std::path::Path| {
            let bytes = file::read(path, MAX_FILE, Links::Followed).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let mut unit = places.units.iter().find_map(|unit| text(unit)).unwrap_or_default();
        let mut added: Vec<_> = std::fs::read_dir(&places.drop_ins)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        added.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
        added.sort();
        // The previous file may not end with a newline, so each drop-in begins with one.
        unit.extend(added.iter().filter_map(|path| text(path)).map(|text| format!("\n{text}")));
        Self::parse(&unit, &text(&places.options).unwrap_or_default())
    }

    fn parse(unit: &str, file: &str) -> Self {
        let mut values = BTreeMap::new();
        for line in file.lines().filter_map(|line| line.trim().strip_prefix("FLANNELD_")) {
            if let Some((name, value)) = line.split_once('=') {
                values.insert(
                    name.to_lowercase().replace('_', "-"),
                    value.trim().trim_matches(['"', '\'']).to_owned(),
                );
            }
        }
        // A flag takes precedence over a variable.
        let command = unit.replace("\\\n", " ");
        let mut lines: Vec<&str> =
            command.lines().filter_map(|line| line.trim().strip_prefix("ExecStart=")).collect();
        // In systemd, an empty ExecStart= discards earlier ones.
        lines.drain(..lines.iter().rposition(|line| line.is_empty()).unwrap_or_default());
        let start = || lines.iter().copied().flat_map(str::split_whitespace);
        let arguments = on_command_line(start().map(str::to_owned));
        let mut words = start().peekable();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (
                    flag,
                    words.next_if(|next| !next.starts_with('-')).unwrap_or_default().to_owned(),
                ),
            };
            values.insert(name.to_owned(), value);
        }
        values.retain(|name, _| {
            !["password", "username", "keyfile", "psk", "token"]
                .iter()
                .any(|secret| name.contains(secret))
        });
        Self { values, arguments }
    }

    /// `None` for a missing or empty value.
    pub fn get(&self, flag: &str) -> Option<&str> {
        self.values.get(flag).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A description of the store, and those of its IP addresses that appear in the options.
    pub fn store(&self) -> (String, Vec<IpAddr>) {
        if let Some(folder) = self.get("subnet-dir") {
            return (format!("the directory {folder}"), Vec::new());
        }
        if self.get("kube-subnet-mgr").is_some_and(|value| value != "false") {
            return ("the Node API".to_owned(), Vec::new());
        }
        let endpoints =
            self.get("etcd-endpoints").unwrap_or("http://127.0.0.1:4001,http://127.0.0.1:2379");
        let host = |endpoint: &str| {
            let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
            let host = rest.split('/').next().unwrap_or_default();
            host.parse::<std::net::SocketAddr>()
                .map(|socket| socket.ip())
                .ok()
                .or_else(|| host.trim_matches(['[', ']']).parse().ok())
        };
        // The description must not contain the credentials of a URL.
        let shown = |endpoint: &str| {
            endpoint.rsplit_once('@').map_or(endpoint.to_owned(), |(_, host)| host.to_owned())
        };
        let place = endpoints
            .split(',')
            .map(|endpoint| shown(endpoint.trim()))
            .collect::<Vec<_>>()
            .join(", ");
        (
            format!("etcd at {place}"),
            endpoints
                .split(',')
                .filter_map(|endpoint| host(endpoint.trim()))
                .filter(|ip| !ip.is_loopback())
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_and_secrets_are_not_kept() {
        let file = "# c\nFLANNELD_ETCD_ENDPOINTS=\"http://192.0.2.250:2379,https://[2001:db8::1]:2379,http://etcd:2379\"\nFLANNELD_IFACE=eth1\nFLANNELD_ETCD_PASSWORD=canary\nFLANNELD_IFACE=eth2\n";
        let unit = "[Service]\nExecStart=/usr/local/bin/flanneld --ip-masq \\\n  --iface eth3 --etcd-username=canary\n";
        let options = Options::parse(unit, file);
        assert_eq!((options.get("iface"), options.get("ip-masq")), (Some("eth3"), None));
        let edited: Vec<(&str, &str)> = options
            .arguments
            .iter()
            .map(|argument| (argument.flag.as_str(), argument.value.as_str()))
            .collect();
        assert_eq!(edited, [("iface", "eth3")]);
        assert_eq!(
            Options::parse("", file).get("iface"),
            Some("eth2"),
            "the last assignment applies"
        );
        let added = format!(
            "{unit}\n[Service]\nExecStart=\nExecStart=/usr/local/bin/flanneld --iface=eth4\n"
        );
        let other = Options::parse(&added, "");
        assert_eq!(
            (other.get("iface"), other.arguments.len()),
            (Some("eth4"), 1),
            "a drop-in takes precedence over the unit"
        );
        let (place, addresses) = options.store();
        assert_eq!(
            (place.as_str(), addresses.len()),
            ("etcd at http://192.0.2.250:2379, https://[2001:db8::1]:2379, http://etcd:2379", 2)
        );
        assert!(!format!("{options:?}").contains("canary"));
        assert_eq!(
            Options::parse("", "FLANNELD_SUBNET_DIR=/srv/leases\n").store(),
            ("the directory /srv/leases".to_owned(), vec![])
        );
        let folder = tempfile::tempdir().unwrap();
        let nothing = Places {
            options: "/nosuch".into(),
            units: vec![],
            drop_ins: folder.path().into(),
            ..Places::default()
        };
        assert_eq!(Options::read(&nothing), Options::default());
        std::fs::write(
            folder.path().join("90-flannel.conf"),
            "[Service]\nExecStart=\nExecStart=/bin/flanneld --iface=eth5\n",
        )
        .unwrap();
        std::fs::write(
            folder.path().join("95-other.conf.bak"),
            "[Service]\nExecStart=/bin/flanneld --iface=eth6\n",
        )
        .unwrap();
        assert_eq!(Options::read(&nothing).get("iface"), Some("eth5"));
    }
}
