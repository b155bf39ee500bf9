//! Cables between hosts, which decide the form in which packets arrive.

use anyhow::Result;

use crate::host::Host;

/// The kinds of cables. On both the kernel that sends leaves checksums to the card, which a virtual cable does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cable {
    /// Frames of 1500 bytes, each by itself, as a NIC has them.
    Wire,
    /// Untouched: super-packets cross as they are, as between hosts of one machine, containers and kind's nodes.
    Veth,
}

impl Cable {
    /// Its name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Cable::Wire => "wire",
            Cable::Veth => "veth",
        }
    }

    /// Makes a host's uplink such a cable. It never touches the offload of checksums.
    ///
    /// # Errors
    /// When ethtool fails.
    pub fn lay(self, host: &Host) -> Result<()> {
        if self == Cable::Wire {
            for feature in [
                "tso",
                "gso",
                "tx-udp-segmentation",
                "tx-udp_tnl-segmentation",
                "tx-udp_tnl-csum-segmentation",
            ] {
                // A kernel that does not have one of them sends no such super-packets.
                let _ = host
                    .netns()
                    .exec("ethtool", &["-K", "enp0s8", feature, "off"]);
            }
            host.netns()
                .exec("ethtool", &["-K", "enp0s8", "gro", "on"])?;
        }
        Ok(())
    }
}
