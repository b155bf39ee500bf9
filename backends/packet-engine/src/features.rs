//! Packet modes of the engine: with offloads, with batches of packets, or with single packets. `--datapath`
//! selects the mode. The default mode uses the offloads that the kernel grants.

use crate::error::ModeError;

/// The method by which the engine reads and sends packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// The name of the mode.
    pub name: &'static str,
    /// Whether the engine uses the `tun-tap` crate to create the TUN device.
    pub tun_tap: bool,
    /// Whether the engine uses TCP GSO packets on the TUN device.
    pub vnet: bool,
    /// Whether the engine also uses UDP GSO packets on the TUN device (Linux 6.2 and later).
    pub uso: bool,
    /// Whether the engine sends several datagrams of one size as one message (`UDP_SEGMENT`).
    pub gso: bool,
    /// Whether the engine receives several datagrams of one flow as one message (`UDP_GRO`).
    pub gro: bool,
    /// Maximum number of packets that the engine reads before it sends, and maximum number of messages that it receives in one system call.
    pub batch: usize,
    /// The number of queues of the TUN device. Each queue has one sending thread, and one receiving thread per listen address.
    pub queues: usize,
    /// Whether the packet threads have priority over ordinary programs, for a limited part of the time.
    pub real_time: bool,
}

impl Features {
    /// Returns the mode with all offloads that the kernel supports.
    pub fn offload() -> Self {
        Self {
            name: "offload",
            tun_tap: false,
            vnet: true,
            uso: true,
            gso: true,
            gro: true,
            batch: 64,
            queues: queues(cpus()),
            real_time: true,
        }
    }

    /// Returns the mode with batches of single packets (`recvmmsg`, `sendmmsg`), without offloads.
    pub fn mmsg() -> Self {
        Self {
            name: "mmsg",
            tun_tap: false,
            vnet: false,
            uso: false,
            gso: false,
            gro: false,
            batch: 64,
            queues: 1,
            real_time: true,
        }
    }

    /// Returns the mode with one packet per system call.
    pub fn plain() -> Self {
        Self {
            name: "plain",
            tun_tap: true,
            vnet: false,
            uso: false,
            gso: false,
            gro: false,
            batch: 1,
            queues: 1,
            real_time: true,
        }
    }

    /// The names of the modes.
    pub const NAMES: &'static [&'static str] = &["auto", "offload", "mmsg", "plain"];

    /// Returns the mode with this name. An empty name and `auto` select `offload`.
    ///
    /// # Errors
    /// Returns an error if no mode has this name.
    pub fn named(name: &str) -> Result<Self, ModeError> {
        match name {
            "" | "auto" | "offload" => Ok(Self::offload()),
            "mmsg" => Ok(Self::mmsg()),
            "plain" => Ok(Self::plain()),
            _ => Err(ModeError(name.to_owned())),
        }
    }
}

impl Default for Features {
    fn default() -> Self {
        Self::offload()
    }
}

/// Returns the number of processors that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Returns the number of queues, at most 4. Each queue has two threads, so one queue uses two CPUs.
fn queues(cpus: usize) -> usize {
    (cpus / 2).clamp(1, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_by_name() {
        assert_eq!(Features::named("").unwrap().name, "offload");
        assert_eq!(
            (Features::named("mmsg").unwrap().batch, Features::named("plain").unwrap().batch),
            (64, 1)
        );
        assert_eq!(Features::named("fast"), Err(ModeError("fast".to_owned())));
        assert_eq!([1, 2, 3, 4, 8, 64].map(queues), [1, 1, 1, 2, 4, 4]);
    }
}
