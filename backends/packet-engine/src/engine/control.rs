//! Sends what the encryption sends beside packets.

use super::log_limit::LogLimit;
use super::send_error::log_kind_and_remedy;
use super::wake::Wake;
use crate::drop_error::DropError;
use crate::encryption::Encryption;
use crate::socket::endpoint::Endpoint;
use crate::socket::{Message, Piece, Pieces, Port, Sender, Socket};
use std::sync::Arc;

pub(super) struct ControlSender<P = Socket> {
    /// The device's, for the log.
    device: String,
    sockets: Vec<Arc<P>>,
    sender: Sender,
    log: LogLimit,
}

impl<P: Port> ControlSender<P> {
    pub(super) fn new(device: String, sockets: Vec<Arc<P>>) -> Self {
        Self { device, sockets, sender: Sender::default(), log: LogLimit::default() }
    }

    /// Runs until the wake signal.
    pub(super) fn run_until_wake_signal(mut self, encryption: &dyn Encryption, wake: &Wake) {
        encryption.run(&|| wake.is_end_signaled(), &mut |to, datagram, tos| {
            let sent = self.send(to, datagram, tos);
            let refused = self.sender.take_refused_endpoints();
            if !refused.is_empty() {
                encryption.forget_sources(&refused);
            }
            sent
        });
    }

    /// Does not wait for room in the socket, because the protocol repeats lost messages.
    pub(super) fn send(&mut self, to: Endpoint, datagram: &[u8], tos: u8) -> Result<(), DropError> {
        let Some(socket) = self.sockets.iter().find(|socket| socket.is_ipv6() == to.to.is_ipv6())
        else {
            return Err(DropError::NoEndpoint);
        };
        let len = datagram.len();
        let message =
            Message { to, pieces: 0..1, segment: len, count: 1, bytes: len, tos, socket: 0 };
        let piece = Piece { made: true, at: 0, len: u32::try_from(len).unwrap_or(0) };
        let pieces = Pieces { all: &[piece], made: datagram, read: &[] };
        for last in [false, true] {
            let (_, error) = socket.send(&mut self.sender, std::slice::from_ref(&message), pieces);
            let Some(error) = error else { return Ok(()) };
            let (kind, remedy) = log_kind_and_remedy(&error);
            // The first error may be that of an earlier datagram.
            if last && let Some(times) = self.log.count_and_take_if_due(kind, 1) {
                tracing::warn!(
                    device = %self.device,
                    address = %to.to,
                    error = %error,
                    remedy,
                    count = times,
                    "cannot send a handshake"
                );
            }
        }
        Err(DropError::SendFailed)
    }
}
