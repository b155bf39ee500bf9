//! Cables between hosts. Their kind decides whether packets arrive segmented.

use anyhow::Result;

use crate::host::Host;

/// On both kinds, the sending kernel leaves checksums to the network card, but a virtual cable has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cable {
    /// Carries separate frames of at most 1500 bytes, as a physical NIC does.
    Wire,
    /// An unchanged veth pair, which GSO packets cross unsegmented, as between containers, between nodes of a kind cluster, or between virtual hosts of
    /// one machine.
    Veth,
}

impl Cable {
    /// The name for tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Cable::Wire => "wire",
            Cable::Veth => "veth",
        }
    }

    /// Converts the host's uplink to a cable of this kind. Checksum offload stays unchanged.
    pub fn apply_to_uplink(self, host: &Host) -> Result<()> {
        if self == Cable::Wire {
            for feature in [
                "tso",
                "gso",
                "tx-udp-segmentation",
                "tx-udp_tnl-segmentation",
                "tx-udp_tnl-csum-segmentation",
            ] {
                // A kernel without one of these features does not send such GSO packets.
                let _ = host.netns().exec("ethtool", &["-K", "enp0s8", feature, "off"]);
            }
            host.netns().exec("ethtool", &["-K", "enp0s8", "gro", "on"])?;
        }
        Ok(())
    }
}
