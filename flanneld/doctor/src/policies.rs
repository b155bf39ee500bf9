//! The chains of network policies.

/// The chains in which network policies hold packets: an accept rule before them would let packets pass by.
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

/// Whether a chain, by its name, is one of network policies.
pub(crate) fn holds_policies(chain: &str) -> bool {
    POLICIES.iter().any(|start| chain.starts_with(start))
}
