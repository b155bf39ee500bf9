//! Lists the chains of nf_tables. The kernel answers directly, which shows whether a program's
//! listing is complete.

use crate::notices::{changes, messages};
use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};
use std::io;
use types::Family;

/// NFT_MSG_GETCHAIN of the subsystem nf_tables.
const GET_CHAIN: u16 = 10 << 8 | 4;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;

/// Each with its table. A kernel without nf_tables has no chains.
pub(crate) fn chains(family: Family) -> io::Result<Vec<(String, String)>> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    let family = family.pick(libc::AF_INET, libc::AF_INET6).to_le_bytes();
    // struct nlmsghdr, then struct nfgenmsg.
    let head = [GET_CHAIN, DUMP].map(u16::to_ne_bytes).concat();
    let request = [&20_u32.to_ne_bytes()[..], &head, &[0; 8], &family].concat();
    socket.send(&request, 0)?;
    let mut found = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let listed = changes(&bytes).into_iter();
        found.extend(listed.map(|chain| (chain.table.to_owned(), chain.chain.to_owned())));
        let (kind, body) = messages(&bytes).last().ok_or(io::ErrorKind::InvalidData)?;
        let errno = body.first_chunk().map_or(0, |errno| -i32::from_ne_bytes(*errno));
        match (i32::from(kind), errno) {
            (libc::NLMSG_DONE, _) => return Ok(found),
            // The kernel has no nf_tables.
            (libc::NLMSG_ERROR, libc::EINVAL | libc::EOPNOTSUPP) => return Ok(Vec::new()),
            (libc::NLMSG_ERROR, errno) => return Err(io::Error::from_raw_os_error(errno)),
            _ => {}
        }
    }
}
