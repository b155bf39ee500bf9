//! Cables between hosts; the kind of cable determines whether packets arrive segmented.

use anyhow::Result;

use crate::host::Host;

/// Kinds of cables. On both kinds of cable, the sending kernel leaves checksums to the network card, but a virtual cable has no network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cable {
    /// A cable that carries separate frames of at most 1500 bytes, as on a physical NIC.
    Wire,
    /// An unchanged veth pair, which GSO packets cross unsegmented, as between containers, between nodes of a kind cluster, or between virtual hosts of one machine.
    Veth,
}

impl Cable {
    /// Returns the cable kind's name for tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Cable::Wire => "wire",
            Cable::Veth => "veth",
        }
    }

    /// Converts the host's uplink to a cable of this kind. Checksum offload stays unchanged.
    ///
    /// # Errors
    /// Returns an error if ethtool fails.
    pub fn lay(self, host: &Host) -> Result<()> {
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
