//! How the engine reads and sends packets: with offloads, in batches or one by one. Chosen by probing or by `--datapath`.

use crate::error::UnknownMode;

/// How packets are read and sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// The name of the mode.
    pub name: &'static str,
    /// Use the `tun-tap` crate to create the TUN device.
    pub tun_tap: bool,
    /// Use TCP super-packets on the TUN device.
    pub vnet: bool,
    /// Also use UDP super-packets there (Linux 6.2 and later).
    pub uso: bool,
    /// Send many datagrams of one size at once (`UDP_SEGMENT`).
    pub gso: bool,
    /// Receive many datagrams of one flow at once (`UDP_GRO`).
    pub gro: bool,
    /// The packets read before sending, and the messages in one system call.
    pub batch: usize,
    /// The queues of the TUN device, each with two threads.
    pub queues: usize,
    /// Forward packets ahead of ordinary programs, for a part of the time.
    pub real_time: bool,
}

impl Features {
    /// Everything that the kernel supports.
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

    /// Batches of single packets (`recvmmsg`, `sendmmsg`), without offloads.
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

    /// One packet for each system call.
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

    /// The mode with that name.
    ///
    /// # Errors
    /// There is no such mode.
    pub fn named(name: &str) -> Result<Self, UnknownMode> {
        match name {
            "" | "auto" | "offload" => Ok(Self::offload()),
            "mmsg" => Ok(Self::mmsg()),
            "plain" => Ok(Self::plain()),
            _ => Err(UnknownMode(name.to_owned())),
        }
    }
}

impl Default for Features {
    fn default() -> Self {
        Self::offload()
    }
}

/// The processors that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Each queue has two threads, so one queue uses two CPUs.
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
            (
                Features::named("mmsg").unwrap().batch,
                Features::named("plain").unwrap().batch
            ),
            (64, 1)
        );
        assert_eq!(Features::named("fast"), Err(UnknownMode("fast".to_owned())));
        assert_eq!([1, 2, 3, 4, 8, 64].map(queues), [1, 1, 1, 2, 4, 4]);
    }
}
