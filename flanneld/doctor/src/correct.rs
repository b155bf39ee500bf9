//! The sysctls that `--set-sysctls` sets: from facts to corrections, pure.

use crate::facts::Network;
use crate::facts::host::Sysctls;
use std::path::PathBuf;

/// A sysctl that has to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Its name, as in sysctl(8).
    pub name: String,
    /// Its file below /proc/sys.
    pub path: PathBuf,
    /// The value that it has.
    pub old: i64,
    /// The value that it needs.
    pub new: i64,
    /// Why it needs that value, for the log.
    pub why: String,
}

impl Correction {
    fn new(name: &str, old: i64, new: i64, why: &str) -> Self {
        // A device name such as flannel.1 contains a dot: such a name is written with slashes.
        let path = if name.contains('/') {
            name.to_owned()
        } else {
            name.replace('.', "/")
        };
        Self {
            name: name.to_owned(),
            path: PathBuf::from("/proc/sys").join(path),
            old,
            new,
            why: why.to_owned(),
        }
    }
}

/// The sysctls to set, in order.
pub fn corrections(network: &Network, sysctls: &Sysctls) -> Vec<Correction> {
    let mut list = Vec::new();
    let forwards = "this node has to forward pods' packets";
    if let Some(old @ 0) = sysctls.ip_forward.filter(|_| network.v4()) {
        list.push(Correction::new("net.ipv4.ip_forward", old, 1, forwards));
    }
    if let Some(old @ 0) = sysctls.v6_forwarding.filter(|_| network.v6()) {
        // These first, or a default route learned from a router would be lost.
        let why = "a node that forwards accepts router advertisements only with 2";
        list.extend(sysctls.announced.iter().map(|device| {
            Correction::new(&format!("net/ipv6/conf/{device}/accept_ra"), 1, 2, why)
        }));
        list.push(Correction::new(
            "net.ipv6.conf.all.forwarding",
            old,
            1,
            forwards,
        ));
    }
    let bridged = "service rules have to apply to packets on the pods' bridge";
    if let Some(old @ 0) = sysctls.call_iptables.filter(|_| network.v4()) {
        list.push(Correction::new(
            "net.bridge.bridge-nf-call-iptables",
            old,
            1,
            bridged,
        ));
    }
    if let Some(old @ 0) = sysctls.call_ip6tables.filter(|_| network.v6()) {
        list.push(Correction::new(
            "net.bridge.bridge-nf-call-ip6tables",
            old,
            1,
            bridged,
        ));
    }
    list
}
