//! The variants of iptables.

/// The two variants of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// Based on nf_tables.
    Nft,
    /// iptables on the legacy tables.
    Legacy,
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Variant::Nft => "nf_tables",
            Variant::Legacy => "legacy",
        })
    }
}
