//! The identity of this node: an id that survives restarts and address changes, and the MACs of flannel devices from
//! earlier runs.

use netlink::Client;
use netstate::host::read::read_links;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use subnet_lease::NodeId;
use types::Addresses;
use types::file::{self, Links};

/// In bytes.
const MAX_ID: u64 = 4096;

/// The id is `given`: the Node's name on Kubernetes, otherwise the value of `--node-id`. Without it, the id is a hash
/// of properties that distinguish machines. flanneld does not store the id in a file, because hosts that share a file
/// system would share it.
pub fn node(given: Option<&str>) -> NodeId {
    let name = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default();
    let id = match given {
        Some(given) => given.to_owned(),
        None => derived(&name, machine(id_in).as_deref(), namespace()),
    };
    NodeId {
        id: id.into(),
        name: name.into(),
        instance: format!("{:016x}", rand::random::<u64>()),
        ..NodeId::default()
    }
}

pub fn id_in(path: &str) -> Option<String> {
    let bytes = file::read(path.as_ref(), MAX_ID, Links::Followed).ok()?;
    String::from_utf8(bytes).ok()
}

/// The identity of a node whose machine has no id, such as a container or a board without firmware tables: machines
/// with one hostname differ only in their addresses. `None` if the machine has an id in a file that `read` reads.
pub fn at_address(
    node: &NodeId,
    public: &Addresses,
    read: impl Fn(&str) -> Option<String>,
) -> Option<NodeId> {
    match machine(read) {
        Some(_) => None,
        None => Some(NodeId {
            id: derived(&node.name, Some(&public.to_string()), namespace()).into(),
            ..node.clone()
        }),
    }
}

/// The machine-id and the firmware's UUID; `None` if neither can be read.
fn machine(read: impl Fn(&str) -> Option<String>) -> Option<String> {
    /// What systemd writes into an image's machine-id, which the first boot replaces.
    const UNINITIALIZED: &str = "uninitialized";
    let ids = ["/etc/machine-id", "/sys/class/dmi/id/product_uuid"].map(|path| {
        let id = read(path).unwrap_or_default().trim().to_ascii_lowercase();
        if id == UNINITIALIZED { String::new() } else { id }
    });
    ids.iter().any(|id| !id.is_empty()).then(|| ids.join("\0") + "\0")
}

/// Hashes what tells machines apart, and the hostname. `namespace` is the inode number of the network namespace,
/// which the hash includes if set.
fn derived(hostname: &str, machine: Option<&str>, namespace: Option<u64>) -> String {
    let mut hash = Sha256::new();
    hash.update(machine.unwrap_or("\0\0"));
    hash.update(hostname);
    if let Some(inode) = namespace {
        hash.update([0]);
        hash.update(inode.to_be_bytes());
    }
    hash.finalize().iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The inode of this process's network namespace, unless process 1 is in the same one. It distinguishes nodes that
/// share one machine, each in its own namespace.
fn namespace() -> Option<u64> {
    /// Upper limit for the inode of the initial network namespace, which the kernel creates during boot
    /// (include/linux/proc_ns.h: dynamic inodes begin at 0xF0000000).
    const BOOT: u64 = 0xF000_0000 + 200;
    let own = fs::metadata("/proc/self/ns/net").ok()?.ino();
    let elsewhere = match fs::metadata("/proc/1/ns/net") {
        Ok(first) => own != first.ino(),
        // Hardened hosts hide process 1 even from root.
        Err(_) => own >= BOOT,
    };
    elsewhere.then_some(own)
}

/// A lease that contains the MAC of a flannel device on this host is from an earlier run here.
pub fn flannel_macs() -> Vec<String> {
    let links = Client::open().and_then(|mut client| read_links(&mut client)).unwrap_or_default();
    links
        .iter()
        .filter(|link| link.name.starts_with("flannel"))
        .filter_map(|link| Some(link.mac?.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_id_depends_on_machine_and_namespace() {
        let read = |path: &str| (path == "/etc/machine-id").then(|| "ABC\n".to_owned());
        let abc = machine(read);
        assert_eq!(abc, machine(|path| read(path).map(|id| id.to_ascii_lowercase())));
        for nothing in [None, Some("\n"), Some("uninitialized\n")] {
            assert_eq!(machine(|_| nothing.map(str::to_owned)), None);
        }
        let id = derived("host", abc.as_deref(), None);
        assert_eq!(id.len(), 32);
        for other in [
            derived("other", abc.as_deref(), None),
            derived("host", abc.as_deref(), Some(7)),
            derived("host", None, None),
            derived("host", Some("192.0.2.1"), None),
        ] {
            assert_ne!(id, other);
        }
        let me = node(Some("me"));
        let at = |address: &str, id: Option<&str>| {
            let public = Addresses::V4(address.parse().unwrap());
            at_address(&me, &public, |_| id.map(str::to_owned)).map(|node| node.id)
        };
        assert_eq!(at("192.0.2.1", Some("abc")), None);
        assert_eq!(at("192.0.2.1", None), at("192.0.2.1", None));
        assert_ne!(at("192.0.2.1", None), at("192.0.2.2", None));
        assert_eq!(&*me.id, "me");
        assert_ne!(node(None).instance, node(None).instance);
    }
}
