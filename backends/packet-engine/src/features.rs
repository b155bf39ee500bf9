//! How the engine moves packets: by offloads, in batches, or one by one; chosen by probing, or by `--datapath`.

/// The ways in which packets are moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// The name of the choice.
    pub name: &'static str,
    /// The TUN device is made by the `tun-tap` crate.
    pub tun_tap: bool,
    /// Super-packets of TCP to and from the TUN device.
    pub vnet: bool,
    /// Super-packets of UDP too.
    pub uso: bool,
    /// Many datagrams of one size in one send (`UDP_SEGMENT`).
    pub gso: bool,
    /// Many datagrams of one flow in one receipt (`UDP_GRO`).
    pub gro: bool,
    /// Packets that are read before they are sent, and messages a system call.
    pub batch: usize,
    /// Queues of the TUN device, each with two threads.
    pub queues: usize,
}

impl Features {
    /// All that the kernel has.
    pub fn offload() -> Self {
        Self { name: "offload", tun_tap: false, vnet: true, uso: true, gso: true, gro: true, batch: 64, queues: queues(cpus()) }
    }

    /// Batches of single packets.
    pub fn mmsg() -> Self {
        Self { name: "mmsg", tun_tap: false, vnet: false, uso: false, gso: false, gro: false, batch: 64, queues: 1 }
    }

    /// One packet a system call.
    pub fn plain() -> Self {
        Self { name: "plain", tun_tap: true, vnet: false, uso: false, gso: false, gro: false, batch: 1, queues: 1 }
    }

    /// The names of the choices.
    pub const NAMES: &'static [&'static str] = &["auto", "offload", "mmsg", "plain"];

    /// The choice of that name.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "" | "auto" | "offload" => Ok(Self::offload()),
            "mmsg" => Ok(Self::mmsg()),
            "plain" => Ok(Self::plain()),
            _ => Err(format!("{name:?} has to be offload, mmsg or plain; leave it out for the fastest that works")),
        }
    }
}

impl Default for Features {
    fn default() -> Self {
        Self::offload()
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Two threads a queue: one queue serves two processors.
fn queues(cpus: usize) -> usize {
    (cpus / 2).clamp(1, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_by_name() {
        assert_eq!(Features::named("").unwrap().name, "offload");
        assert_eq!((Features::named("mmsg").unwrap().batch, Features::named("plain").unwrap().batch), (64, 1));
        assert!(Features::named("fast").unwrap_err().contains("offload, mmsg or plain"));
        assert_eq!([1, 2, 3, 4, 8, 64].map(queues), [1, 1, 1, 2, 4, 4]);
    }
}
