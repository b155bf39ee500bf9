//! Sending side with encryption: seals packets one after another in the buffer for generated headers, and
//! gathers them like other packets.

use super::{Datagram, Tx, TxState, Unpacked};
use crate::drop_error::DropError;
use crate::encryption::{Seal, SendState};
use crate::packet::ecn;
use crate::socket::Port;
use crate::split::{HEADERS, Split};
use crate::tun::Device;

impl<D: Device, P: Port> Tx<D, P> {
    /// Chooses the peer of a packet, once for all its segments, and seals them for it.
    pub(super) fn encrypt_and_gather_or_drop(
        &self,
        unpacked: &Unpacked,
        buffer: &[u8],
        seal: &mut dyn Seal,
        state: &mut TxState,
    ) {
        let header = unpacked.header;
        let (segment, count) = unpacked.full_segment_length_and_count();
        let longest = segment.unwrap_or(header.total_len);
        let sent = &self.counters.sent;
        let Some(packet) = buffer.get(unpacked.range()) else {
            return sent.count_dropped_packets(DropError::Short, count);
        };
        let datagram = match seal.select_peer(&header, packet, longest) {
            Ok(SendState::AwaitingSession) => None,
            Ok(SendState::Ready(to)) => {
                let Some(socket) =
                    self.sockets.iter().position(|socket| socket.is_ipv6() == to.to.is_ipv6())
                else {
                    return sent.count_dropped_packets(DropError::NoEndpoint, count);
                };
                let ecn = ecn::outer_header_ecn(header.tos, true);
                Some(Datagram { to, ecn, socket })
            }
            Err(rejection) => {
                return self.drop_packet_and_send_icmp_error(rejection, unpacked, buffer, state);
            }
        };
        let longest = longest.max(HEADERS);
        match unpacked.split {
            Split::Whole => {
                self.encrypt_and_gather_or_queue(longest, datagram, seal, state, |room| {
                    room.get_mut(..packet.len())?.copy_from_slice(packet);
                    Some(packet.len())
                });
            }
            Split::Segments(segments) => {
                for index in 0..count {
                    self.encrypt_and_gather_or_queue(longest, datagram, seal, state, |room| {
                        let (own, payload) = segments.write_headers(index, packet, room)?;
                        let payload = packet.get(payload)?;
                        room.get_mut(own..own + payload.len())?.copy_from_slice(payload);
                        Some(own + payload.len())
                    });
                }
            }
        }
    }

    /// Seals a packet, or queues it until a session exists. `write` writes it, at most `longest` bytes, and
    /// returns its length.
    #[inline]
    fn encrypt_and_gather_or_queue(
        &self,
        longest: usize,
        datagram: Option<Datagram>,
        seal: &mut dyn Seal,
        state: &mut TxState,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) {
        let sent = &self.counters.sent;
        let overhead = self.config.framing.overhead();
        let gathered = &mut state.gathered;
        let most = seal.place(longest);
        let room = gathered.used + most.len() + overhead;
        if gathered.made.len() < room {
            gathered.made.resize(room * 2, 0);
        }
        let out = gathered.made.get_mut(gathered.used..).unwrap_or_default();
        let Some(length) = out.get_mut(most).and_then(write) else {
            return sent.count_dropped_packet(DropError::BadOffload);
        };
        let place = seal.place(length);
        let bytes = place.len() + overhead;
        let Some(plain) = out.get_mut(place) else {
            return sent.count_internal_error("a padded packet is inside its room", 1);
        };
        plain.iter_mut().skip(length).for_each(|byte| *byte = 0);
        let Some(datagram) = datagram else {
            return sent.count_dropped_packets(DropError::NoSession, seal.park(plain));
        };
        if !out.get_mut(..bytes).is_some_and(|datagram| seal.seal(datagram)) {
            return sent.count_dropped_packet(DropError::NoSession);
        }
        let gso = state.segmenting.is_on(datagram.to.ip());
        gathered.add_datagram(datagram, bytes, 0..0, gso);
    }
}
