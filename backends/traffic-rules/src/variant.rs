//! Variants of iptables, by the kernel interface that they use.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// iptables-nft, which writes its rules to nf_tables.
    Nft,
    /// iptables-legacy, which writes its rules to the kernel's x_tables.
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
