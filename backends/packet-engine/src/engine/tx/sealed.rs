//! Sending side with WireGuard: seals packets one after another into the buffer for generated headers, and
//! gathers them like other packets.

use super::{Datagram, Tx, TxState, Unpacked};
use crate::drop_error::DropError;
use crate::engine::io::{Device, Port};
use crate::packet::ecn;
use crate::split::{HEADERS, Split};
use crate::wireguard::{Sealer, SendState};

impl<D: Device, P: Port> Tx<D, P> {
    /// Chooses the peer of a packet, once for all its segments, and seals them for it.
    pub(super) fn encrypt_and_gather_or_drop(
        &self,
        unpacked: &Unpacked,
        buffer: &mut [u8],
        sealer: &mut Sealer<'_>,
        state: &mut TxState,
    ) {
        let Unpacked { start, length, header, .. } = *unpacked;
        let (segment, count) = unpacked.full_segment_length_and_count();
        let sent = &self.counters.sent;
        if buffer.get(start..start + length).is_some_and(|packet| sealer.is_nested(&header, packet))
        {
            return self.drop_packet_and_send_icmp_error(
                None,
                DropError::Loop,
                unpacked,
                buffer,
                state,
            );
        }
        let slot = match sealer.route(&header, segment.unwrap_or(length)) {
            Ok(slot) => slot,
            Err((reply, reason)) => {
                return self
                    .drop_packet_and_send_icmp_error(reply, reason, unpacked, buffer, state);
            }
        };
        let way = match sealer.hold(slot) {
            Ok(way) => way,
            Err(reason) => return sent.count_dropped_packets(reason, count),
        };
        let datagram = match way {
            SendState::AwaitingSession => None,
            SendState::Ready(to) => {
                let Some(socket) =
                    self.sockets.iter().position(|socket| socket.is_ipv6() == to.to.is_ipv6())
                else {
                    return sent.count_dropped_packets(DropError::NoEndpoint, count);
                };
                Some(Datagram {
                    to,
                    ecn: ecn::outer_header_ecn(header.tos, true),
                    socket,
                    bytes: 0,
                })
            }
        };
        match unpacked.split {
            Split::Whole => {
                let Some(plain) = buffer.get_mut(start..start + sealer.padded(length)) else {
                    return sent.count_internal_error("a packet's slot has room for padding", 1);
                };
                plain.iter_mut().skip(length).for_each(|byte| *byte = 0);
                self.encrypt_and_gather_or_queue(plain, datagram, sealer, state);
            }
            Split::Segments(segments) => {
                let Some(packet) = buffer.get(start..start + length) else {
                    return sent.count_dropped_packets(DropError::Short, count);
                };
                let mut plain = std::mem::take(&mut state.plain);
                for index in 0..count {
                    plain.resize(HEADERS, 0);
                    let Some((own, payload)) = segments.write_headers(index, packet, &mut plain)
                    else {
                        sent.count_dropped_packet(DropError::BadOffload);
                        continue;
                    };
                    let Some(payload) = packet.get(payload) else {
                        sent.count_internal_error("a segment is inside its packet", 1);
                        continue;
                    };
                    plain.truncate(own);
                    plain.extend_from_slice(payload);
                    plain.resize(sealer.padded(plain.len()), 0);
                    self.encrypt_and_gather_or_queue(&plain, datagram, sealer, state);
                }
                state.plain = plain;
            }
        }
    }

    /// Seals a padded packet, or queues it until a session exists.
    #[inline]
    fn encrypt_and_gather_or_queue(
        &self,
        plain: &[u8],
        datagram: Option<Datagram>,
        sealer: &mut Sealer<'_>,
        state: &mut TxState,
    ) {
        let sent = &self.counters.sent;
        let Some(datagram) = datagram else {
            return sent.count_dropped_packets(DropError::NoSession, sealer.park(plain));
        };
        let gso = state.segmenting.is_on(datagram.to.ip());
        let gathered = &mut state.gathered;
        let room = gathered.used + Sealer::room(plain.len());
        if gathered.made.len() < room {
            gathered.made.resize(room * 2, 0);
        }
        let Some(bytes) =
            gathered.made.get_mut(gathered.used..).and_then(|out| sealer.seal(plain, out))
        else {
            return sent.count_dropped_packet(DropError::NoSession);
        };
        let from = gathered.pieces.len();
        gathered.add_generated_piece(bytes);
        gathered.append_or_start_message(Datagram { bytes, ..datagram }, from, gso);
    }
}
