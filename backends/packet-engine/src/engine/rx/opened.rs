//! Receiving side with encryption: opens datagrams in place, and merges their packets like others.

use super::{Rx, RxState};
use crate::drop_error::DropError;
use crate::encryption::Open;
use crate::packet::ecn;
use crate::socket::{Port, RecvMeta};
use crate::tun::Device;

impl<D: Device, P: Port> Rx<D, P> {
    /// Opens all datagrams of a receive buffer and merges the accepted packets.
    pub(super) fn decrypt_and_merge_datagrams(
        &self,
        meta: &RecvMeta,
        buffer: &mut [u8],
        open: &mut dyn Open,
        state: &mut RxState,
    ) {
        for place in meta.datagrams(meta.segment) {
            let datagram = buffer.get_mut(place.clone()).unwrap_or_default();
            let opened = open.open(datagram, meta.from).and_then(|header| {
                if let Some(header) = &header {
                    ecn::copy_congestion_mark(datagram, header.tos, meta.ecn)?;
                }
                Ok(header)
            });
            match opened {
                Ok(Some(header)) => {
                    let packet = place.start..place.start + header.total_len;
                    state.merger.merge_or_add_packet(buffer, packet, &header);
                }
                Ok(None) => {}
                Err(reason) => {
                    // The log shows addresses only of spoofed packets. Most other dropped datagrams were not opened.
                    let shown = if reason == DropError::Spoofed { &*datagram } else { &[] };
                    self.count_and_log_dropped(reason, meta.from.ip(), 1, &mut state.log, shown);
                }
            }
        }
    }
}
