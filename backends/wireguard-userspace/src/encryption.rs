//! The device as the encryption of a packet engine.

use crate::device::Device;
use crate::handshakes::Worker;
use crate::noise::OVERHEAD;
use crate::open::Opener;
use crate::seal::Sealer;
use packet_engine::encryption::{Encryption, Open, Seal, Transmit};
use packet_engine::packet::framing::{Framing, Rival};
use packet_engine::socket::endpoint::Endpoint;
use std::time::Instant;

/// For the configuration of an engine that a [`Device`] encrypts.
pub const FRAMING: Framing = Framing::Sealed {
    overhead: OVERHEAD,
    rival: Rival {
        interface: "a WireGuard interface of the kernel (`ip link show type wireguard`)",
        key: "ListenPort (ListenPortV6 for flannel-wg-v6)",
    },
};

impl Encryption for Device {
    fn seal_batch(&self, gather: &mut dyn FnMut(&mut dyn Seal)) {
        gather(&mut Sealer::new(self, &self.snapshot(), Instant::now()));
    }

    fn open_batch(&self, merge: &mut dyn FnMut(&mut dyn Open)) {
        merge(&mut Opener::new(self, &self.snapshot(), Instant::now()));
    }

    #[cold]
    fn forget_sources(&self, refused: &[Endpoint]) {
        for peer in self.snapshot().peers.iter() {
            if peer.endpoint().is_some_and(|endpoint| refused.contains(&endpoint)) {
                peer.forget_source();
            }
        }
    }

    fn thread_name(&self) -> &'static str {
        "flannel-wg"
    }

    fn run(&self, is_ended: &dyn Fn() -> bool, send: Transmit<'_>) {
        let mut worker = Worker::default();
        while !is_ended() {
            let next = self.work(Instant::now(), &mut worker, send);
            self.pending.wait(next);
        }
    }

    fn ring(&self) {
        self.pending.ring();
    }
}
