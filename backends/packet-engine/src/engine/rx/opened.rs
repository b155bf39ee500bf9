//! Receiving side with encryption: opens datagrams in place, and merges their packets like others.

use super::{Rx, RxState};
use crate::drop_error::DropError;
use crate::encryption::Open;
use crate::engine::io::{Device, Port};
use crate::packet::ecn;
use crate::packet::{Header, set_ecn};
use crate::socket::RecvMeta;

impl<D: Device, P: Port> Rx<D, P> {
    /// Opens all datagrams of a receive buffer and merges the accepted packets.
    pub(super) fn decrypt_and_merge_datagrams(
        &self,
        meta: &RecvMeta,
        buffer: &mut [u8],
        open: &mut dyn Open,
        state: &mut RxState,
    ) {
        let step = meta.segment.max(1);
        if meta.truncated {
            let datagrams = meta.at.len().div_ceil(step).max(1);
            return self.count_and_log_dropped(
                DropError::Truncated,
                meta.from.ip(),
                datagrams,
                &mut state.log,
                &[],
            );
        }
        let mut start = meta.at.start;
        loop {
            let end = meta.at.end.min(start + step);
            let datagram = buffer.get_mut(start..end).unwrap_or_default();
            match open
                .open(datagram, meta.from)
                .and_then(|header| self.copy_congestion_mark(header, meta, datagram))
            {
                Ok(Some(header)) => {
                    state.merger.merge_or_add_packet(
                        buffer,
                        start..start + header.total_len,
                        &header,
                    );
                }
                Ok(None) => {}
                Err(reason) => {
                    // The log shows addresses only of spoofed packets. Most other dropped datagrams were not opened.
                    let shown = if reason == DropError::Spoofed { &*datagram } else { &[] };
                    self.count_and_log_dropped(reason, meta.from.ip(), 1, &mut state.log, shown);
                }
            }
            start = end;
            if start >= meta.at.end {
                return;
            }
        }
    }

    /// Copies a congestion mark from the datagram to its packet. Fails if the packet's sender does not
    /// support ECN.
    #[inline]
    fn copy_congestion_mark(
        &self,
        header: Option<Header>,
        meta: &RecvMeta,
        datagram: &mut [u8],
    ) -> Result<Option<Header>, DropError> {
        let Some(header) = header else {
            return Ok(None);
        };
        let mark = ecn::decapsulated_ecn(header.tos, meta.ecn)?;
        if mark != header.tos & 3 {
            set_ecn(datagram, mark);
        }
        Ok(Some(header))
    }
}
