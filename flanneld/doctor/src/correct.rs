//! Finds the sysctls that `--set-sysctls` has to change. Has no side effects.

use crate::facts::Network;
use crate::facts::host::Sysctls;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// As in sysctl(8).
    pub name: String,
    /// Absolute, below /proc/sys.
    pub path: PathBuf,
    pub old: i64,
    pub new: i64,
    /// For the log.
    pub why: String,
}

impl Correction {
    fn new(name: &str, old: i64, new: i64, why: &str) -> Self {
        // A name that contains a device is written with slashes, because a device name such as flannel.1 may contain a dot.
        let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
        Self {
            name: name.to_owned(),
            path: PathBuf::from("/proc/sys").join(path),
            old,
            new,
            why: why.to_owned(),
        }
    }
}

/// The result is in the order in which flanneld has to set them.
pub fn corrections(network: &Network, sysctls: &Sysctls) -> Vec<Correction> {
    let mut list = Vec::new();
    let forwards = "this node must forward pods' packets";
    if let Some(old @ 0) = sysctls.ip_forward.filter(|_| network.v4()) {
        list.push(Correction::new("net.ipv4.ip_forward", old, 1, forwards));
    }
    if let Some(old @ 0) = sysctls.v6_forwarding.filter(|_| network.v6()) {
        // accept_ra has to be set before forwarding. Otherwise the kernel removes a default route that it learned from a router.
        let why =
            "a node that forwards packets accepts router advertisements only if accept_ra is 2";
        list.extend(sysctls.announced.iter().map(|device| {
            Correction::new(&format!("net/ipv6/conf/{device}/accept_ra"), 1, 2, why)
        }));
        list.push(Correction::new("net.ipv6.conf.all.forwarding", old, 1, forwards));
    }
    let bridged = "Service rules must apply to packets on the pods' bridge";
    if let Some(old @ 0) = sysctls.call_iptables.filter(|_| network.v4()) {
        list.push(Correction::new("net.bridge.bridge-nf-call-iptables", old, 1, bridged));
    }
    if let Some(old @ 0) = sysctls.call_ip6tables.filter(|_| network.v6()) {
        list.push(Correction::new("net.bridge.bridge-nf-call-ip6tables", old, 1, bridged));
    }
    list
}
