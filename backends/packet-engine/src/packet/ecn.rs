//! Congestion notification across the tunnel (RFC 6040).

use crate::drop_error::DropError;
use crate::packet::set_ecn;

/// The sender does not react to congestion marks.
pub(crate) const NOT_ECT: u8 = 0;
/// The sender reacts to congestion marks, or uses L4S.
pub(crate) const ECT_1: u8 = 1;
/// The sender reacts to congestion marks.
#[cfg(test)]
pub(crate) const ECT_0: u8 = 2;
/// Congestion experienced.
pub(crate) const CE: u8 = 3;

/// The ECN field of the outer header: in normal mode that of the inner header, in compatibility mode zero,
/// for peers that ignore it.
#[inline]
pub(crate) fn outer_header_ecn(inner_ecn: u8, normal: bool) -> u8 {
    if normal { inner_ecn & 3 } else { NOT_ECT }
}

/// The ECN field of the inner header, in either mode. [`DropError::Ecn`] if the packet experienced congestion
/// and the inner sender does not support ECN: it notices congestion only by loss.
///
/// ```
/// use packet_engine::packet::ecn::decapsulated_ecn;
/// use packet_engine::drop_error::DropError;
///
/// let (not_ect, ect_0, ce) = (0, 2, 3);
/// assert_eq!(decapsulated_ecn(ect_0, ce), Ok(ce));
/// assert_eq!(decapsulated_ecn(not_ect, ce), Err(DropError::Ecn));
/// ```
#[inline]
pub fn decapsulated_ecn(inner: u8, outer: u8) -> Result<u8, DropError> {
    match (inner & 3, outer & 3) {
        (NOT_ECT, CE) => Err(DropError::Ecn),
        (NOT_ECT, _) => Ok(NOT_ECT),
        (CE, _) | (_, CE) => Ok(CE),
        (_, ECT_1) => Ok(ECT_1),
        (inner, _) => Ok(inner),
    }
}

/// Copies a congestion mark from the outer header to a packet with the TOS octet `tos`.
#[inline]
pub(crate) fn copy_congestion_mark(packet: &mut [u8], tos: u8, outer: u8) -> Result<(), DropError> {
    let mark = decapsulated_ecn(tos, outer)?;
    if mark != tos & 3 {
        set_ecn(packet, mark);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_rfc_6040() {
        // Figure 4 of the RFC: rows are the inner field, columns the outer one, both in the order of the figure.
        let order = [NOT_ECT, ECT_0, ECT_1, CE];
        let figure = [
            [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None],
            [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)],
            [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)],
            [Some(CE), Some(CE), Some(CE), Some(CE)],
        ];
        for (inner, row) in order.iter().zip(figure) {
            for (outer, want) in order.iter().zip(row) {
                assert_eq!(
                    decapsulated_ecn(*inner, *outer),
                    want.ok_or(DropError::Ecn),
                    "inner {inner} outer {outer}"
                );
                // The rest of the traffic class is ignored.
                assert_eq!(
                    decapsulated_ecn(inner | 0xb8, outer | 0x48),
                    want.ok_or(DropError::Ecn)
                );
            }
        }
    }

    #[test]
    fn ecn_is_unchanged_without_congestion() {
        for inner in 0..4 {
            assert_eq!(
                (outer_header_ecn(inner, true), outer_header_ecn(inner, false)),
                (inner, NOT_ECT)
            );
            assert_eq!(outer_header_ecn(inner | 0xfc, true), inner);
            for normal in [true, false] {
                assert_eq!(decapsulated_ecn(inner, outer_header_ecn(inner, normal)), Ok(inner));
            }
        }
    }
}
