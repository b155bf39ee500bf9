//! Packet modes of the engine: with offloads, with batches of packets, or with single packets. `--datapath`
//! selects one. By default, the engine uses the offloads that the kernel grants.

/// How the engine reads and sends packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    pub name: &'static str,
    /// Whether the `tun-tap` crate creates the TUN device.
    pub tun_tap: bool,
    /// GSO packets of TCP on the TUN device, and of UDP since Linux 6.2.
    pub vnet: bool,
    /// Sends several datagrams of one size as one message (`UDP_SEGMENT`), and receives several of one flow as
    /// one (`UDP_GRO`).
    pub gso: bool,
    /// Maximum number of packets that are read before sending, and of messages that are received in one
    /// system call.
    pub batch: usize,
    /// Queues of the TUN device. Each has one sending thread, and one receiving thread per listen address.
    pub queues: usize,
    /// Whether the packet threads have priority over ordinary programs, for a limited part of the time.
    pub real_time: bool,
}

impl Features {
    /// All offloads that the kernel supports.
    #[must_use]
    pub fn offload() -> Self {
        Self {
            name: "offload",
            vnet: true,
            gso: true,
            queues: tun_queue_count(available_cpus()),
            ..Self::mmsg()
        }
    }

    /// Batches of single packets (`recvmmsg`, `sendmmsg`), without offloads.
    #[must_use]
    pub fn mmsg() -> Self {
        Self {
            name: "mmsg",
            tun_tap: false,
            vnet: false,
            gso: false,
            batch: 64,
            queues: 1,
            real_time: true,
        }
    }

    /// One packet per system call.
    #[must_use]
    pub fn plain() -> Self {
        Self { name: "plain", tun_tap: true, batch: 1, ..Self::mmsg() }
    }

    pub const NAMES: &'static [&'static str] = &["auto", "offload", "mmsg", "plain"];

    /// An empty name and `auto` select `offload`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "" | "auto" | "offload" => Some(Self::offload()),
            "mmsg" => Some(Self::mmsg()),
            "plain" => Some(Self::plain()),
            _ => None,
        }
    }
}

impl Default for Features {
    fn default() -> Self {
        Self::offload()
    }
}

/// The processors that this process may use.
pub(crate) fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// At most 4. Each queue has two threads, so one uses two CPUs.
fn tun_queue_count(cpus: usize) -> usize {
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
        assert_eq!(Features::named("fast"), None);
        assert_eq!([1, 2, 3, 4, 8, 64].map(tun_queue_count), [1, 1, 1, 2, 4, 4]);
    }
}
