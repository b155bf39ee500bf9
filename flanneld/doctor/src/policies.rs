//! Names of chains that enforce network policies.

/// Name prefixes of chains that enforce network policies. An accept rule before such a chain would bypass the policies.
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

/// Returns whether a chain enforces network policies, judged by its name.
pub(crate) fn holds_policies(chain: &str) -> bool {
    POLICIES.iter().any(|start| chain.starts_with(start))
}
