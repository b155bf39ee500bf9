//! Lenient reader of subnet.env in dotenv syntax. It skips unusable lines with a warning.
//!
//! The CNI plugin has its own small reader (`cni/src/subnet_env.rs`), which is as strict as Go flannel's. The
//! plugin's tests compare its reader with this one.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use types::Subnets;

/// What is readable of a subnet.env that an earlier run wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Previous {
    /// FLANNEL_NETWORK: the cluster's IPv4 network.
    pub network: Option<Ipv4Net>,
    /// FLANNEL_SUBNET, truncated to its network (10.5.72.0/24).
    pub subnet: Option<Ipv4Net>,
    /// FLANNEL_IPV6_NETWORK: the cluster's IPv6 network.
    pub v6_network: Option<Ipv6Net>,
    /// FLANNEL_IPV6_SUBNET, truncated to its network.
    pub v6_subnet: Option<Ipv6Net>,
    /// FLANNEL_MTU, in bytes.
    pub mtu: Option<u32>,
    /// FLANNEL_IPMASQ: whether flanneld masquerades.
    pub ip_masq: Option<bool>,
    /// Skipped lines, each with the reason.
    pub warnings: Vec<String>,
}

/// Parses subnet.env; accepts arbitrary bytes.
pub fn parse(bytes: &[u8]) -> Previous {
    let text = String::from_utf8_lossy(bytes);
    let mut out = Previous::default();
    for (number, line) in text.split('\n').enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match assignment(line) {
            Some((key, value)) => out.take(key, &value),
            None => out.warnings.push(format!("line {} is not KEY=VALUE, skipped", number + 1)),
        }
    }
    out
}

impl Previous {
    /// `None` if the file names no network.
    pub fn networks(&self) -> Option<Subnets> {
        Subnets::from_options(self.network, self.v6_network)
    }

    /// `None` if the file names no subnet.
    pub fn subnets(&self) -> Option<Subnets> {
        Subnets::from_options(self.subnet, self.v6_subnet)
    }

    fn take(&mut self, key: &str, value: &str) {
        match key {
            "FLANNEL_NETWORK" => self.network = self.v4(key, value),
            "FLANNEL_SUBNET" => self.subnet = self.v4(key, value),
            "FLANNEL_IPV6_NETWORK" => self.v6_network = self.v6(key, value),
            "FLANNEL_IPV6_SUBNET" => self.v6_subnet = self.v6(key, value),
            "FLANNEL_MTU" => self.mtu = value.parse().ok(),
            "FLANNEL_IPMASQ" => self.ip_masq = value.parse().ok(),
            _ => {}
        }
    }

    fn v4(&mut self, key: &str, value: &str) -> Option<Ipv4Net> {
        match self.one(key, value)? {
            IpNet::V4(net) => Some(net.trunc()),
            IpNet::V6(net) => self.warn(format!("{key}: {net} is an IPv6 network, skipped")),
        }
    }

    fn v6(&mut self, key: &str, value: &str) -> Option<Ipv6Net> {
        match self.one(key, value)? {
            IpNet::V6(net) => Some(net.trunc()),
            IpNet::V4(net) => self.warn(format!("{key}: {net} is an IPv4 network, skipped")),
        }
    }

    /// The only valid network of a comma-separated list. `None` if it has several, because no network takes
    /// precedence.
    fn one(&mut self, key: &str, value: &str) -> Option<IpNet> {
        let mut valid = Vec::new();
        for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.parse::<IpNet>() {
                Ok(net) => valid.push(net),
                Err(_) => self
                    .warnings
                    .push(format!("{key}: {:?} is not a network, skipped", shortened(part))),
            }
        }
        match valid.as_slice() {
            [net] => Some(*net),
            [] => None,
            _ => self.warn(format!(
                "{key}: {} networks instead of one network, all skipped",
                valid.len()
            )),
        }
    }

    fn warn<T>(&mut self, text: String) -> Option<T> {
        self.warnings.push(text);
        None
    }
}

/// Parses a line into its key and value: `KEY=VALUE`, `export KEY=VALUE` or `KEY: VALUE`. A line may quote the value, and may end with a comment.
fn assignment(line: &str) -> Option<(&str, String)> {
    let line = line
        .strip_prefix("export")
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .map_or(line, str::trim_start);
    let (key, value) = line.split_once(['=', ':'])?;
    let key = key.trim();
    if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.') {
        return None;
    }
    Some((key, unquoted(value.trim())?))
}

fn unquoted(value: &str) -> Option<String> {
    if let Some(rest) = value.strip_prefix('\'') {
        return rest.split_once('\'').map(|(inner, _)| inner.to_owned());
    }
    let Some(rest) = value.strip_prefix('"') else {
        // A comment starts after a blank; otherwise `#` belongs to the value.
        let bare = value
            .find(" #")
            .or_else(|| value.find("\t#"))
            .and_then(|at| value.get(..at))
            .unwrap_or(value);
        return Some(bare.trim_end().to_owned());
    };
    let mut out = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return Some(out),
            '\\' => match chars.next()? {
                'n' => out.push('\n'),
                'r' => out.push('\r'),
                other => out.push(other),
            },
            other => out.push(other),
        }
    }
}

/// For a log line.
fn shortened(text: &str) -> String {
    if text.chars().count() > 60 {
        format!("{}…", text.chars().take(60).collect::<String>())
    } else {
        text.to_owned()
    }
}
