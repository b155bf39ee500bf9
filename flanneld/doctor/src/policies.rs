//! Names of firewall chains that enforce network policies.

/// Name prefixes. An accept rule before the jump to a policy chain would bypass the network policies.
const POLICIES: [&str; 10] = [
    "cali-",
    "filter-cali-",
    "mangle-cali-",
    "raw-cali-",
    "KUBE-ROUTER-",
    "KUBE-NWPLCY",
    "KUBE-POD-FW",
    "CILIUM_",
    "WEAVE-NPC",
    "ANTREA-",
];

/// True if its name shows that the chain enforces network policies.
pub(crate) fn holds_policies(chain: &str) -> bool {
    POLICIES.iter().any(|start| chain.starts_with(start))
}
