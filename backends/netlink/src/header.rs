//! The fixed headers of requests, as laid out in the kernel's header files.

/// struct ifinfomsg
#[must_use]
pub fn link_header(index: u32) -> [u8; 16] {
    flag_header(index, 0, false)
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
pub fn address_header(family: u8, len: u8, flags: u8, index: u32) -> [u8; 8] {
    let [a, b, c, d] = index.to_ne_bytes();
    [family, len, flags, 0, a, b, c, d]
}

/// struct ndmsg
#[must_use]
pub fn neighbor_header(family: u8, index: u32, state: u16, flags: u8) -> [u8; 12] {
    let [a, b, c, d] = index.to_ne_bytes();
    let [s, t] = state.to_ne_bytes();
    [family, 0, 0, 0, a, b, c, d, s, t, flags, 0]
}

/// struct rtmsg of a route of the main table. `flags` are of RTNH_F_*.
#[must_use]
pub fn route_header(
    family: u8,
    len: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
) -> [u8; 12] {
    let [a, b, c, d] = flags.to_ne_bytes();
    [family, len, 0, 0, libc::RT_TABLE_MAIN, protocol, scope, kind, a, b, c, d]
}

/// struct rtmsg of a dump or a route lookup, and struct fib_rule_hdr of a dump. The lengths are those
/// of the prefixes, and `flags` are of RTM_F_*.
#[must_use]
pub fn lookup_header(family: u8, to_len: u8, from_len: u8, flags: u32) -> [u8; 12] {
    let [a, b, c, d] = flags.to_ne_bytes();
    [family, to_len, from_len, 0, 0, 0, 0, 0, a, b, c, d]
}
