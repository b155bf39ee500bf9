//! subnet.env as this plugin reads it, which is as Go flannel's does: no quotes, no blanks, no comments, and an error is the end.
//!
//! The daemon's own reader (`parse` in the crate `run-dir`) takes more forms and skips what it cannot read: it looks for what an earlier
//! run left. A test compares the two.

use crate::error::{CniError, INTERNAL, TRY_AGAIN_LATER};
use crate::status;
use ipnet::IpNet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A longer file is not flannel's.
const LIMIT: u64 = 64 * 1024;
/// How often a missing file is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// What the daemon says about this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// `FLANNEL_NETWORK` and `FLANNEL_IPV6_NETWORK`.
    pub networks: Vec<IpNet>,
    /// `FLANNEL_SUBNET` and `FLANNEL_IPV6_SUBNET`, IPv4 first.
    pub subnets: Vec<IpNet>,
    /// `FLANNEL_MTU`.
    pub mtu: u32,
    /// `FLANNEL_IPMASQ`.
    pub ip_masq: bool,
}

impl SubnetEnv {
    /// A subnet that is nobody's (RFC 5737).
    pub fn any() -> Self {
        let v4 = IpNet::V4(ipnet::Ipv4Net::new_assert(
            std::net::Ipv4Addr::new(192, 0, 2, 0),
            24,
        ));
        Self {
            networks: vec![v4],
            subnets: vec![v4],
            mtu: 1280,
            ip_masq: false,
        }
    }
}

/// Why subnet.env cannot be used.
#[derive(Debug)]
pub struct EnvError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a subnet.env.
#[derive(Debug)]
pub enum Fault {
    /// There is none.
    Absent,
    /// It cannot be read.
    Unreadable(io::Error),
    /// It is not a regular file.
    Irregular,
    /// It is longer than [`LIMIT`].
    TooLong,
    /// A key has no value.
    NoValue(String),
    /// The MTU is no number.
    Mtu(String),
    /// This is no network.
    Network(String),
    /// Keys are missing.
    Missing(Vec<&'static str>),
}

impl EnvError {
    /// The code: it stays the same between releases.
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
        // The plugin must stay small, so this is not `types::problem::text`.
        if cfg!(mute) {
            return f.write_str(self.code());
        }
        let path = self.path.display();
        match &self.fault {
            Fault::Absent => write!(f, "open {path}: no such file or directory"),
            Fault::Unreadable(error) => write!(f, "open {path}: {error}"),
            Fault::Irregular => write!(f, "open {path}: it is not a regular file"),
            Fault::TooLong => write!(f, "open {path}: it is longer than 64 KiB"),
            Fault::NoValue(key) => write!(f, "{path}: {key} has no value"),
            Fault::Mtu(text) => write!(f, "{path}: FLANNEL_MTU={text:?} is no number"),
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

/// As the runtime gets it.
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

/// Reads the file, and waits for it if there is none yet.
///
/// # Errors
/// Code 11 if it does not appear in time, with what the daemon says about it. 999 if it is malformed: waiting would not help.
pub fn load(path: &Path, patience: Duration) -> Result<SubnetEnv, CniError> {
    let deadline = Instant::now() + patience;
    loop {
        match read(path).and_then(|text| parse(&text)) {
            Ok(env) => return Ok(env),
            Err(Fault::Absent) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            Err(fault) => {
                return Err(EnvError {
                    path: path.to_owned(),
                    fault,
                }
                .into());
            }
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// An operator may have put a link there, which is followed; a pipe must not block.
fn read(path: &Path) -> Result<Vec<u8>, Fault> {
    let failed = |error: io::Error| {
        if is_absent(&error) {
            Fault::Absent
        } else {
            Fault::Unreadable(error)
        }
    };
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(Fault::Irregular);
    }
    let mut text = Vec::new();
    file.take(LIMIT + 1)
        .read_to_end(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > LIMIT {
        Err(Fault::TooLong)
    } else {
        Ok(text)
    }
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
    text.parse::<IpNet>()
        .map(|net| net.trunc())
        .map_err(|_| Fault::Network(text.to_owned()))
}

/// A list; each network once.
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
