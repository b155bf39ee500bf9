//! The Internet checksum (RFC 1071) and its update after a changed word (RFC 1624).
//!
//! A running sum is in the machine's byte order, which ones' complement addition allows; [`fold_sum`] converts it
//! once, at the end. Sums can be chained if every piece but the last has an even length.

/// Bytes added in one step: sixteen 32-bit lanes, which the compiler vectorizes.
const BLOCK: usize = 64;

/// A trailing odd byte counts as the high byte of a word.
#[inline]
#[must_use]
pub fn ones_complement_sum(data: &[u8], initial: u64) -> u64 {
    let (blocks, rest) = data.as_chunks::<BLOCK>();
    let mut lanes = [0u64; BLOCK / 4];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<4>().0) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut total: u64 = lanes.iter().sum();
    let (words, rest) = rest.as_chunks::<4>();
    total += words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>();
    let (halves, odd) = rest.as_chunks::<2>();
    total += halves.iter().map(|half| u64::from(u16::from_ne_bytes(*half))).sum::<u64>();
    if let [last] = odd {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    let (total, carry) = total.overflowing_add(initial);
    total + u64::from(carry)
}

/// Folds a sum to 16 bits, to be stored with `to_be_bytes`. It is zero only if all data are zero.
#[inline]
#[must_use]
pub fn fold_sum(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::from_be(sum as u16)
}

/// To be stored with `to_be_bytes`. In UDP, 0 has to be sent as 0xffff.
#[inline]
#[must_use]
pub fn checksum_from_sum(sum: u64) -> u16 {
    !fold_sum(sum)
}

/// The sum of a pseudo header. `addresses` are the source and the destination, as in an IP header.
#[inline]
#[must_use]
pub fn pseudo_header_sum(addresses: &[u8], protocol: u8, length: u32) -> u64 {
    // The length has 16 bits in IPv4 and 32 in IPv6; the sums are the same.
    let mut tail = [0; 8];
    tail[..4].copy_from_slice(&length.to_be_bytes());
    tail[7] = protocol;
    ones_complement_sum(&tail, ones_complement_sum(addresses, 0))
}

/// After a change of one aligned word that the checksum covers (RFC 1624, equation 3).
///
/// ```
/// use packet_engine::packet::checksum::{checksum_from_sum, ones_complement_sum, updated_checksum};
///
/// let mut header = [0x45_u8, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
/// let before = checksum_from_sum(ones_complement_sum(&header, 0));
/// // The TTL, which shares a word with the protocol.
/// header[8] = 63;
/// assert_eq!(updated_checksum(before, 0x4011, 0x3f11), checksum_from_sum(ones_complement_sum(&header, 0)));
/// ```
#[inline]
#[must_use]
pub fn updated_checksum(old_checksum: u16, old_word: u16, new_word: u16) -> u16 {
    let sum = u32::from(!old_checksum) + u32::from(!old_word) + u32::from(new_word);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Word by word, as in RFC 1071.
    fn sum_word_by_word(data: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in data.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            if sum > 0xffff {
                sum -= 0xffff;
            }
        }
        sum as u16
    }

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(
            fold_sum(ones_complement_sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0)),
            0xddf2
        );
        assert_eq!((fold_sum(0), checksum_from_sum(0)), (0, 0xffff));
        assert_eq!(fold_sum(ones_complement_sum(&[0; 99], 0)), 0);
        assert_eq!(fold_sum(ones_complement_sum(&[0xff; 65536], 0)), 0xffff);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        assert_eq!(updated_checksum(0xdd2f, 0x5555, 0x3285), 0x0000);
        // A carry that causes another carry.
        assert_eq!(updated_checksum(0x0000, 0x0000, 0x0001), 0xfffe);
    }

    #[test]
    fn a_sum_that_overflows_carries_around() {
        assert_eq!(
            fold_sum(ones_complement_sum(&[0, 1], u64::MAX)),
            fold_sum(ones_complement_sum(&[0, 1], 0))
        );
        assert_eq!(fold_sum(u64::MAX), 0xffff);
    }

    proptest! {

        #[test]
        fn equals_the_simple_sum_in_one_part_or_two(fill: u8, len in 0usize..3000, changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..200), at: prop::sample::Index) {
            let mut data = vec![fill | 0xfc; len];
            changes.iter().filter(|_| len > 0).for_each(|(at, value)| data[at.index(len)] = *value);
            let (first, second) = data.split_at(at.index(len + 1) & !1);
            prop_assert_eq!(fold_sum(ones_complement_sum(&data, 0)), sum_word_by_word(&data));
            prop_assert_eq!(fold_sum(ones_complement_sum(second, ones_complement_sum(first, 0))), sum_word_by_word(&data));
        }

        #[test]
        fn the_pseudo_header_is_that_of_the_family(src: [u8; 16], dst: [u8; 16], protocol: u8, length: u32) {
            let v6 = [&src[..], &dst, &length.to_be_bytes(), &[0, 0, 0, protocol]].concat();
            prop_assert_eq!(fold_sum(pseudo_header_sum(&v6[..32], protocol, length)), sum_word_by_word(&v6));
            let short = length as u16;
            let v4 = [&src[..4], &dst[..4], &[0, protocol], &short.to_be_bytes()].concat();
            prop_assert_eq!(fold_sum(pseudo_header_sum(&v4[..8], protocol, u32::from(short))), sum_word_by_word(&v4));
        }

        #[test]
        fn an_updated_checksum_equals_a_new_one(mut words in vec(any::<u16>(), 2..30), at in any::<prop::sample::Index>(), new: u16) {
            words[0] |= 0x4000; // As every header has it: not all is zero.
            let bytes = |words: &[u16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
            let at = 1 + at.index(words.len() - 1);
            let (old, before) = (words[at], !sum_word_by_word(&bytes(&words)));
            words[at] = new;
            prop_assert_eq!(updated_checksum(before, old, new), !sum_word_by_word(&bytes(&words)));
        }
    }
}
