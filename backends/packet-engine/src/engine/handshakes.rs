//! Thread for the handshakes and timers of all WireGuard peers. It sleeps while no timer is due and no
//! handshake message waits.

use super::io::Port;
use super::log_limit::LogLimit;
use super::send_error::{log_limit_key, send_error_remedy};
use super::wake::Wake;
use crate::drop_error::DropError;
use crate::socket::endpoint::Endpoint;
use crate::socket::{Message, Piece, Sender, Socket};
use crate::wireguard::{Device, Worker, tos};
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Handshakes<P = Socket> {
    pub device: Arc<Device>,
    /// The device's, for the log.
    pub name: String,
    pub sockets: Vec<Arc<P>>,
    pub wake: Arc<Wake>,
}

/// What the thread keeps between two rounds.
#[derive(Default)]
pub(super) struct HandshakeState {
    worker: Worker,
    sender: Sender,
    log: LogLimit,
}

impl<P: Port> Handshakes<P> {
    /// Runs until the wake signal. [`Device::ring`] must follow the signal, because the thread may sleep in
    /// [`Device::wait`].
    pub(super) fn run(self) {
        let mut state = HandshakeState::default();
        while !self.wake.is_end_signaled() {
            let next = self.run_one_round(&mut state);
            self.device.wait(next);
        }
    }

    /// One round of work. Gives the time of the next round, if no new work arrives earlier.
    pub(super) fn run_one_round(&self, state: &mut HandshakeState) -> Option<Instant> {
        let HandshakeState { worker, sender, log } = state;
        let next =
            self.device.work(worker, &mut |to, datagram| self.send(to, datagram, sender, log));
        let refused = sender.take_refused_endpoints();
        if !refused.is_empty() {
            self.device.forget_sources(&refused);
        }
        next
    }

    /// Does not wait for room in the socket, because the protocol repeats lost messages.
    fn send(
        &self,
        to: Endpoint,
        datagram: &[u8],
        sender: &mut Sender,
        log: &mut LogLimit,
    ) -> Result<(), DropError> {
        let Some(socket) = self.sockets.iter().find(|socket| socket.is_ipv6() == to.to.is_ipv6())
        else {
            return Err(DropError::NoEndpoint);
        };
        let len = datagram.len();
        let message = Message {
            to,
            pieces: 0..1,
            segment: len,
            count: 1,
            bytes: len,
            tos: tos(datagram),
            socket: 0,
        };
        let piece = Piece { made: true, at: 0, len: u32::try_from(len).unwrap_or(0) };
        for last in [false, true] {
            let (_, error) =
                socket.send(sender, std::slice::from_ref(&message), &[piece], datagram, &[]);
            let Some(error) = error else { return Ok(()) };
            // The first error may be that of an earlier datagram.
            if last && let Some(times) = log.count_and_take_if_due(log_limit_key(&error), 1) {
                tracing::warn!(
                    device = %self.name,
                    address = %to.to,
                    error = %error,
                    remedy = send_error_remedy(&error),
                    count = times,
                    "cannot send a handshake"
                );
            }
        }
        Err(DropError::SendFailed)
    }
}
