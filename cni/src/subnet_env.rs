//! subnet.env as this plugin reads it: no quotes, no blanks, no comments. The daemon's own reader is more lenient.

use crate::error::{CniError, INTERNAL, TRY_AGAIN_LATER};
use crate::status;
use ipnet::IpNet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// A longer file is not flannel's.
const LIMIT: u64 = 64 * 1024;
/// How often a missing file is looked for.
const LOOK: Duration = Duration::from_millis(25);

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
        let v4 = IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(192, 0, 2, 0), 24));
        Self { networks: vec![v4], subnets: vec![v4], mtu: 1280, ip_masq: false }
    }
}

/// Reads the file, and waits for it if there is none yet.
///
/// # Errors
/// Code 11 if it does not appear in time, with what the daemon says about it. 999 if it is malformed: waiting would not help.
pub fn load(path: &Path, patience: Duration) -> Result<SubnetEnv, CniError> {
    let failed = |why: &str| format!("failed to load flannel 'subnet.env' file: {why}. Check the flannel pod log for this node.");
    let deadline = Instant::now() + patience;
    loop {
        match read(path) {
            Ok(text) => return parse(path, &text).map_err(|why| CniError::new(INTERNAL, failed(&why))),
            Err(error) if is_absent(&error) => {
                if Instant::now() >= deadline {
                    let why = failed(&format!("open {}: no such file or directory", path.display()));
                    return Err(CniError::new(TRY_AGAIN_LATER, why).details(status::why_no_file(path)));
                }
            }
            Err(error) => return Err(CniError::new(INTERNAL, failed(&format!("open {}: {error}", path.display())))),
        }
        std::thread::sleep(LOOK);
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// An operator may have put a link there, which is followed; a pipe must not block.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut text = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than 64 KiB"));
    }
    Ok(text)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<SubnetEnv, String> {
    let mut env = SubnetEnv::default();
    let (mut v4, mut v6, mut mtu, mut ip_masq) = (None, None, None, None);
    let mut v6_networks = Vec::new();
    for line in String::from_utf8_lossy(bytes).lines() {
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let known =
            matches!(key, "FLANNEL_NETWORK" | "FLANNEL_IPV6_NETWORK" | "FLANNEL_SUBNET" | "FLANNEL_IPV6_SUBNET" | "FLANNEL_MTU" | "FLANNEL_IPMASQ");
        if known && !line.contains('=') {
            return Err(format!("{}: {key} has no value", path.display()));
        }
        match key {
            "FLANNEL_NETWORK" => env.networks = nets(value)?,
            "FLANNEL_IPV6_NETWORK" => v6_networks = nets(value)?,
            "FLANNEL_SUBNET" => v4 = Some(net(value)?),
            "FLANNEL_IPV6_SUBNET" => v6 = Some(net(value)?),
            "FLANNEL_MTU" => mtu = Some(value.parse().map_err(|_| format!("{}: FLANNEL_MTU={value:?} is no number", path.display()))?),
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
        return Err(format!("{} is missing {}", path.display(), missing.join(", ")));
    }
    env.mtu = mtu.unwrap_or_default();
    env.ip_masq = ip_masq.unwrap_or_default();
    Ok(env)
}

fn net(text: &str) -> Result<IpNet, String> {
    text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| format!("invalid CIDR address: {text}"))
}

/// A list; each network once.
fn nets(text: &str) -> Result<Vec<IpNet>, String> {
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

    fn parsed(text: &str) -> Result<SubnetEnv, String> {
        parse(Path::new("FILE"), text.as_bytes())
    }

    #[test]
    fn the_grammar_is_that_of_go_flannels_plugin() {
        let env = parsed(GOOD).unwrap();
        assert_eq!(
            (env.networks[0].to_string(), env.subnets[0].to_string(), env.mtu, env.ip_masq),
            ("10.244.0.0/16".into(), "10.244.7.0/24".into(), 1450, true)
        );
        assert_eq!(parsed(&GOOD.replace('\n', "\r\n")).unwrap(), env);
        let env = parsed(&format!("{GOOD}FLANNEL_NETWORK=10.1.0.0/16,10.2.0.0/16,10.1.9.9/16\nFLANNEL_IPMASQ=yes\nFLANNEL_IPV6_NETWORK=fd00::/48\n"))
            .unwrap();
        assert_eq!(env.networks.iter().map(IpNet::to_string).collect::<Vec<_>>(), ["10.1.0.0/16", "10.2.0.0/16", "fd00::/48"]);
        assert!(!env.ip_masq);
        for (line, words) in [
            ("FLANNEL_MTU", "FLANNEL_MTU has no value"),
            ("FLANNEL_NETWORK", "FLANNEL_NETWORK has no value"),
            ("FLANNEL_MTU=4294967296", "is no number"),
            ("FLANNEL_MTU=-1", "is no number"),
            ("FLANNEL_NETWORK=10.1.0.0/16,", "invalid CIDR address: "),
            ("FLANNEL_SUBNET=10.244.7.1", "invalid CIDR address: 10.244.7.1"),
        ] {
            let error = parsed(&format!("{GOOD}{line}\n")).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
        assert_eq!(
            parsed("").unwrap_err(),
            "FILE is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ"
        );
    }

    #[test]
    fn a_file_that_is_none_is_an_error_and_no_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        std::fs::write(path("long"), "#".repeat(65 * 1024)).unwrap();
        std::fs::write(path("binary"), [0xff, 0xfe, 0, b'\n']).unwrap();
        for (name, words) in [("pipe", "regular file"), (".", "regular file"), ("long", "64 KiB"), ("binary", "is missing")] {
            let error = load(&path(name), Duration::from_secs(600)).unwrap_err();
            assert!(error.code == INTERNAL && error.msg.contains(words), "{name}: {error:?}");
        }
        assert_eq!(load(&path("none"), Duration::ZERO).unwrap_err().code, TRY_AGAIN_LATER);
        std::fs::write(path("file"), GOOD).unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        assert!(load(&path("link"), Duration::ZERO).is_ok(), "an operator's link is followed");
    }

    #[test]
    fn a_file_that_appears_ends_the_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/subnet.env");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| load(&path, Duration::from_secs(600)));
            std::thread::sleep(3 * LOOK);
            std::fs::create_dir(folder.path().join("deep")).unwrap();
            std::fs::write(folder.path().join("half"), GOOD).unwrap();
            std::fs::rename(folder.path().join("half"), &path).unwrap();
            assert_eq!(waiting.join().unwrap().unwrap().mtu, 1450);
        });
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), lines in prop::collection::vec("(FLANNEL_(IPV6_)?(NETWORK|SUBNET|MTU|IPMASQ))?=?[0-9a-f.:/,]{0,12}", 0..8)) {
            let _ = parse(Path::new("FILE"), &bytes);
            let _ = parse(Path::new("FILE"), lines.join("\n").as_bytes());
        }
    }
}
