//! Reads subnet.env as Go flannel's plugin does, without support for quotes, blanks and comments. A file with
//! any error is refused.
//!
//! flanneld's own reader (`parse` in the crate `run-dir`) accepts more forms and skips malformed lines,
//! because it recovers the settings of an earlier run. A test compares both readers.

use crate::error::{CniError, INTERNAL, TRY_AGAIN_LATER};
use crate::status;
use ipnet::IpNet;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest subnet.env, in bytes.
const LIMIT: u64 = 64 * 1024;
/// Between two attempts to read a missing file.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The settings that flanneld writes to subnet.env.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// `FLANNEL_NETWORK`, then `FLANNEL_IPV6_NETWORK`.
    pub networks: Vec<IpNet>,
    /// `FLANNEL_SUBNET` and `FLANNEL_IPV6_SUBNET`, IPv4 first.
    pub subnets: Vec<IpNet>,
    /// `FLANNEL_MTU`, in bytes.
    pub mtu: u32,
    /// Whether `FLANNEL_IPMASQ` is `true`.
    pub ip_masq: bool,
    /// `FLANNEL_RANGE_END` and `FLANNEL_IPV6_RANGE_END`: the last addresses for pods. Go flannel does not
    /// write these two keys.
    pub range_ends: Vec<IpAddr>,
}

impl SubnetEnv {
    /// A placeholder with a subnet for documentation (RFC 5737), which no node uses.
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

fn not_loaded(code: u64, why: impl Display) -> CniError {
    let msg = format!(
        "failed to load flannel 'subnet.env' file: {why}. Check the flannel pod log for this node."
    );
    CniError::new(code, msg)
}

/// Waits up to `patience` for a missing file. If it is still missing, the error has code 11 and the daemon's
/// reason. For a malformed or unreadable file, it has code 999 and comes at once.
pub fn load(path: &Path, patience: Duration) -> Result<SubnetEnv, CniError> {
    let deadline = Instant::now() + patience;
    loop {
        match read(path).and_then(|text| parse(path, &text)) {
            Err(error) if error.code == TRY_AGAIN_LATER => {
                if Instant::now() >= deadline {
                    return Err(error.details(status::why_no_file(path)));
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            result => return result,
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Follows a symbolic link, because an operator may have created it. Does not block on a pipe.
fn read(path: &Path) -> Result<Vec<u8>, CniError> {
    let place = path.display();
    let failed = |error: io::Error| match is_absent(&error) {
        true => not_loaded(TRY_AGAIN_LATER, format!("open {place}: no such file or directory")),
        false => not_loaded(INTERNAL, format!("open {place}: {error}")),
    };
    let unusable = |why: &str| Err(not_loaded(INTERNAL, format!("open {place}: {why}")));
    let file: File =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return unusable("not a regular file");
    }
    let mut text = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > LIMIT {
        return unusable("the file is larger than 64 KiB");
    }
    Ok(text)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<SubnetEnv, CniError> {
    let path = path.display();
    let unusable = |why: String| not_loaded(INTERNAL, why);
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
            return Err(unusable(format!("{path}: {key} has no value")));
        }
        match key {
            "FLANNEL_NETWORK" => env.networks = nets(value)?,
            "FLANNEL_IPV6_NETWORK" => v6_networks = nets(value)?,
            "FLANNEL_SUBNET" => v4 = Some(net(value)?),
            "FLANNEL_IPV6_SUBNET" => v6 = Some(net(value)?),
            "FLANNEL_MTU" => {
                let number = value.parse().map_err(|_| {
                    unusable(format!("{path}: FLANNEL_MTU={value:?} is not a number"))
                });
                mtu = Some(number?);
            }
            "FLANNEL_RANGE_END" | "FLANNEL_IPV6_RANGE_END" => {
                env.range_ends.push(value.parse().map_err(|_| invalid_cidr(value))?);
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
        return Err(unusable(format!("{path} is missing {}", missing.join(", "))));
    }
    env.mtu = mtu.unwrap_or_default();
    env.ip_masq = ip_masq.unwrap_or_default();
    Ok(env)
}

fn invalid_cidr(text: &str) -> CniError {
    not_loaded(INTERNAL, format!("invalid CIDR address: {text}"))
}

fn net(text: &str) -> Result<IpNet, CniError> {
    text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| invalid_cidr(text))
}

/// Comma-separated; duplicates are dropped.
fn nets(text: &str) -> Result<Vec<IpNet>, CniError> {
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
