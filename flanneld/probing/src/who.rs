//! The number that identifies a node in probe messages. All nodes compute the same number from the node's lease.

use ipnet::IpNet;
use sha2::{Digest, Sha256};

/// The number of a node in one network and address family: the first four bytes of the SHA-256 of the node id, and
/// the subnet's number ([`short`]).
pub fn who(id: &str, subnet: &IpNet) -> u64 {
    u64::from(u32::from_be_bytes(first(&Sha256::digest(id.as_bytes())))) << 32
        | u64::from(short(subnet))
}

/// True if two numbers identify the same node, even with different networks or subnets.
pub(crate) fn is_same_node(a: u64, b: u64) -> bool {
    a >> 32 == b >> 32
}

/// The number of a subnet in a report: the first four bytes of the SHA-256 of the subnet's text.
pub fn short(subnet: &IpNet) -> u32 {
    u32::from_be_bytes(first(&Sha256::digest(subnet.to_string().as_bytes())))
}

fn first<const N: usize>(digest: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(digest).for_each(|(to, from)| *to = *from);
    out
}

/// Not cryptographic; use it only to vary orders and delays between nodes and cycles.
pub fn mix(numbers: [u64; 3]) -> u64 {
    numbers.into_iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, number| {
        // The finalizer of splitmix64.
        let mut z = (state ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_number_depends_on_id_and_subnet() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let (a, b) = (net("10.244.1.0/24"), net("10.244.2.0/24"));
        assert_eq!(who("n1", &a), who("n1", &a));
        assert_ne!(who("n1", &a), who("n2", &a));
        assert_ne!(who("n1", &a), who("n1", &b));
        assert_ne!(short(&a), short(&b));
        assert!(
            is_same_node(who("n1", &a), who("n1", &b))
                && !is_same_node(who("n1", &a), who("n2", &a))
        );
        // These numbers are part of the wire format: other versions have to compute the same.
        assert_eq!((who("n1", &a), short(&a)), (WHO, SHORT));
    }

    const WHO: u64 = 0x676b_8bb8_4fad_f023;
    const SHORT: u32 = 0x4fad_f023;
}
