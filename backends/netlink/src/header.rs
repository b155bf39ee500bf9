//! The fixed headers of requests, as laid out in the kernel's header files.

/// struct ifinfomsg
#[must_use]
pub fn link_header(index: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.iter_mut().skip(4).zip(index.to_ne_bytes()).for_each(|(to, from)| *to = from);
    bytes
}

/// struct ifinfomsg that sets or clears a flag of a link (ifi_flags, ifi_change).
#[must_use]
pub fn flag_header(index: u32, flag: u32, on: bool) -> [u8; 16] {
    let [a, b, c, d] = index.to_ne_bytes();
    let [e, f, g, h] = if on { flag } else { 0 }.to_ne_bytes();
    let [i, j, k, l] = flag.to_ne_bytes();
    [0, 0, 0, 0, a, b, c, d, e, f, g, h, i, j, k, l]
}

/// struct ifaddrmsg
#[must_use]
pub fn address_header(family: u8, len: u8, index: u32) -> [u8; 8] {
    let [a, b, c, d] = index.to_ne_bytes();
    [family, len, 0, 0, a, b, c, d]
}

/// struct ndmsg
#[must_use]
pub fn neighbor_header(family: u8, index: u32, state: u16, flags: u8) -> [u8; 12] {
    let [a, b, c, d] = index.to_ne_bytes();
    let [s, t] = state.to_ne_bytes();
    [family, 0, 0, 0, a, b, c, d, s, t, flags, 0]
}

/// struct rtmsg
#[must_use]
pub fn route_header(family: u8, len: u8, protocol: u8, scope: u8, kind: u8, table: u8) -> [u8; 12] {
    [family, len, 0, 0, table, protocol, scope, kind, 0, 0, 0, 0]
}

/// struct rtmsg of a route lookup with the given flags (`RTM_F_*`).
#[must_use]
pub fn lookup_header(family: u8, len: u8, flags: u32) -> [u8; 12] {
    let [a, b, c, d] = flags.to_ne_bytes();
    [family, len, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

/// struct rtmsg of a route lookup for a forwarded packet, with full prefix lengths for source and
/// destination.
#[must_use]
pub fn forwarded_header(family: u8, len: u8) -> [u8; 12] {
    [family, len, len, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// struct fib_rule_hdr
#[must_use]
pub fn rule_header(family: u8) -> [u8; 12] {
    [family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}
