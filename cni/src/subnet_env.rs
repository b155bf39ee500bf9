//! Reads subnet.env as Go flannel's plugin does, without support for quotes, blanks and comments. The reader refuses a file that contains any error.
//!
//! flanneld's own reader (`parse` in the crate `run-dir`) accepts more forms and skips malformed lines, because it
//! recovers the settings of an earlier run. A test compares the plugin's reader with flanneld's reader.

use crate::error::{CniError, INTERNAL, TRY_AGAIN_LATER};
use crate::status;
use ipnet::IpNet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum length of subnet.env, in bytes.
const LIMIT: u64 = 64 * 1024;
/// The pause between two attempts to read a missing file.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The settings that flanneld writes to subnet.env.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// The networks of `FLANNEL_NETWORK`, then the networks of `FLANNEL_IPV6_NETWORK`.
    pub networks: Vec<IpNet>,
    /// The subnets of `FLANNEL_SUBNET` and `FLANNEL_IPV6_SUBNET`, IPv4 first.
    pub subnets: Vec<IpNet>,
    /// The value of `FLANNEL_MTU`, in bytes.
    pub mtu: u32,
    /// Whether `FLANNEL_IPMASQ` is `true`.
    pub ip_masq: bool,
    /// The values of `FLANNEL_RANGE_END` and `FLANNEL_IPV6_RANGE_END`: the last addresses for pods. Go flannel does
    /// not write these two keys.
    pub range_ends: Vec<IpAddr>,
}

impl SubnetEnv {
    /// Returns a placeholder with a subnet for documentation (RFC 5737), which no node uses.
    pub fn any() -> Self {
        let v4 = IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(192, 0, 2, 0), 24));
        Self {
            networks: vec![v4],
            subnets: vec![v4],
            mtu: 1280,
            ip_masq: false,
            range_ends: Vec::new(),
        }
    }
}

/// The error for a subnet.env that the plugin cannot use.
#[derive(Debug)]
pub struct EnvError {
    /// The path of the subnet.env.
    pub path: PathBuf,
    /// The reason.
    pub fault: Fault,
}

/// The reason why the plugin cannot use a subnet.env.
#[derive(Debug)]
pub enum Fault {
    /// The file subnet.env does not exist.
    Absent,
    /// The plugin cannot read the file.
    Unreadable(io::Error),
    /// The path is a directory, a pipe or a device.
    Irregular,
    /// The file is longer than 64 KiB.
    TooLong,
    /// A line contains this key but no `=`.
    NoValue(String),
    /// The value of `FLANNEL_MTU` is not a 32-bit number.
    Mtu(String),
    /// A network is not in CIDR notation, or the end of a range is not an IP address.
    Network(String),
    /// The file lacks these keys.
    Missing(Vec<&'static str>),
}

impl EnvError {
    /// Returns the error code, which is stable between releases.
    pub fn code(&self) -> &'static str {
        match self.fault {
            Fault::Absent => "subnet-env-absent",
            Fault::Unreadable(_) => "subnet-env-unreadable",
            Fault::Irregular => "subnet-env-not-regular",
            Fault::TooLong => "subnet-env-too-long",
            Fault::NoValue(_) => "subnet-env-no-value",
            Fault::Mtu(_) => "subnet-env-mtu",
            Fault::Network(_) => "subnet-env-network",
            Fault::Missing(_) => "subnet-env-missing-keys",
        }
    }
}

impl fmt::Display for EnvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.fault {
            Fault::Absent => write!(f, "open {path}: no such file or directory"),
            Fault::Unreadable(error) => write!(f, "open {path}: {error}"),
            Fault::Irregular => write!(f, "open {path}: not a regular file"),
            Fault::TooLong => write!(f, "open {path}: the file is larger than 64 KiB"),
            Fault::NoValue(key) => write!(f, "{path}: {key} has no value"),
            Fault::Mtu(text) => write!(f, "{path}: FLANNEL_MTU={text:?} is not a number"),
            Fault::Network(text) => write!(f, "invalid CIDR address: {text}"),
            Fault::Missing(keys) => write!(f, "{path} is missing {}", keys.join(", ")),
        }
    }
}

impl std::error::Error for EnvError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Unreadable(error) => Some(error),
            _ => None,
        }
    }
}

/// Creates the error that the plugin reports to the runtime.
impl From<EnvError> for CniError {
    fn from(error: EnvError) -> Self {
        let msg = format!(
            "failed to load flannel 'subnet.env' file: {error}. Check the flannel pod log for this node."
        );
        match error.fault {
            Fault::Absent => {
                CniError::new(TRY_AGAIN_LATER, msg).details(status::why_no_file(&error.path))
            }
            _ => CniError::new(INTERNAL, msg),
        }
    }
}

/// Reads and parses subnet.env. Waits up to `patience` if the file does not exist yet.
///
/// # Errors
/// Returns an error with code 11 and the daemon's reason if the file is still missing after the wait. Returns an
/// error with code 999 immediately if the file is malformed or unreadable.
pub fn load(path: &Path, patience: Duration) -> Result<SubnetEnv, CniError> {
    let deadline = Instant::now() + patience;
    loop {
        match read(path).and_then(|text| parse(&text)) {
            Ok(env) => return Ok(env),
            Err(Fault::Absent) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            Err(fault) => {
                return Err(EnvError { path: path.to_owned(), fault }.into());
            }
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Reads subnet.env. Follows a symbolic link, because an operator may have created the link. Does not block if the path is a pipe.
fn read(path: &Path) -> Result<Vec<u8>, Fault> {
    let failed = |error: io::Error| {
        if is_absent(&error) { Fault::Absent } else { Fault::Unreadable(error) }
    };
    let file: File =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(Fault::Irregular);
    }
    let mut text = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > LIMIT { Err(Fault::TooLong) } else { Ok(text) }
}

fn parse(bytes: &[u8]) -> Result<SubnetEnv, Fault> {
    let mut env = SubnetEnv::default();
    let (mut v4, mut v6, mut mtu, mut ip_masq) = (None, None, None, None);
    let mut v6_networks = Vec::new();
    for line in String::from_utf8_lossy(bytes).lines() {
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let known = matches!(
            key,
            "FLANNEL_NETWORK"
                | "FLANNEL_IPV6_NETWORK"
                | "FLANNEL_SUBNET"
                | "FLANNEL_IPV6_SUBNET"
                | "FLANNEL_MTU"
                | "FLANNEL_IPMASQ"
                | "FLANNEL_RANGE_END"
                | "FLANNEL_IPV6_RANGE_END"
        );
        if known && !line.contains('=') {
            return Err(Fault::NoValue(key.to_owned()));
        }
        match key {
            "FLANNEL_NETWORK" => env.networks = nets(value)?,
            "FLANNEL_IPV6_NETWORK" => v6_networks = nets(value)?,
            "FLANNEL_SUBNET" => v4 = Some(net(value)?),
            "FLANNEL_IPV6_SUBNET" => v6 = Some(net(value)?),
            "FLANNEL_MTU" => mtu = Some(value.parse().map_err(|_| Fault::Mtu(value.to_owned()))?),
            "FLANNEL_RANGE_END" | "FLANNEL_IPV6_RANGE_END" => {
                let end = value.parse();
                env.range_ends.push(end.map_err(|_| Fault::Network(value.to_owned()))?);
            }
            "FLANNEL_IPMASQ" => ip_masq = Some(value == "true"),
            _ => {}
        }
    }
    env.networks.extend(v6_networks);
    env.subnets = v4.into_iter().chain(v6).collect();
    let mut missing = Vec::new();
    if env.networks.is_empty() {
        missing.extend(["FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"]);
    }
    if env.subnets.is_empty() {
        missing.extend(["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"]);
    }
    if mtu.is_none() {
        missing.push("FLANNEL_MTU");
    }
    if ip_masq.is_none() {
        missing.push("FLANNEL_IPMASQ");
    }
    if !missing.is_empty() {
        return Err(Fault::Missing(missing));
    }
    env.mtu = mtu.unwrap_or_default();
    env.ip_masq = ip_masq.unwrap_or_default();
    Ok(env)
}

fn net(text: &str) -> Result<IpNet, Fault> {
    text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| Fault::Network(text.to_owned()))
}

/// Parses a comma-separated list of networks. Drops duplicates.
fn nets(text: &str) -> Result<Vec<IpNet>, Fault> {
    let mut found: Vec<IpNet> = Vec::new();
    for one in text.split(',') {
        let one = net(one)?;
        if !found.contains(&one) {
            found.push(one);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
