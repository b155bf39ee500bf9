//! With WireGuard: datagrams are opened where they were received, and their packets merged like others.

use super::{Inward, State};
use crate::ecn;
use crate::engine::io::{Device, Port};
use crate::packet::{Header, set_ecn};
use crate::reason::Reason;
use crate::socket::Receipt;
use crate::wireguard::Opener;

impl<D: Device, P: Port> Inward<D, P> {
    /// Opens all datagrams of a receipt.
    pub(super) fn open(&self, receipt: &Receipt, buffer: &mut [u8], opener: &mut Opener<'_>, state: &mut State) {
        let step = receipt.segment.max(1);
        if receipt.truncated {
            let datagrams = receipt.at.len().div_ceil(step).max(1);
            return self.dropped(Reason::Truncated, receipt.from.ip(), datagrams, &mut state.log, &[]);
        }
        let mut start = receipt.at.start;
        loop {
            let end = receipt.at.end.min(start + step);
            let datagram = buffer.get_mut(start..end).unwrap_or_default();
            match opener.open(datagram, receipt.from, &mut state.sealed).and_then(|header| self.mark(header, receipt, datagram)) {
                Ok(Some(header)) => state.merger.offer(buffer, start..start + header.total_len, &header),
                Ok(None) => {}
                Err(reason) => {
                    // Whatever else was not opened shows nothing.
                    let shown = if reason == Reason::Spoofed { &*datagram } else { &[] };
                    self.dropped(reason, receipt.from.ip(), 1, &mut state.log, shown);
                }
            }
            start = end;
            if start >= receipt.at.end {
                return;
            }
        }
    }

    /// Carries a congestion mark of the datagram over to its packet.
    #[inline]
    fn mark(&self, header: Option<Header>, receipt: &Receipt, datagram: &mut [u8]) -> Result<Option<Header>, Reason> {
        let Some(header) = header else { return Ok(None) };
        let mark = ecn::decapsulate(header.tos, receipt.ecn)?;
        if mark != header.tos & 3 {
            set_ecn(datagram, mark);
        }
        Ok(Some(header))
    }
}
