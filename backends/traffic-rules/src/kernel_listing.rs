//! Lists the chains of nf_tables. The kernel answers directly, which shows whether a program's
//! listing is complete.

use crate::notices::decode_change;
use netlink::uapi::NETLINK_NETFILTER;
use netlink::{Client, KernelError, Message, Query, family_number};
use types::Family;

/// NFT_MSG_GETCHAIN of the subsystem nf_tables.
const GET_CHAIN: u16 = 10 << 8 | 4;

/// Each with its table. A kernel without nf_tables has no chains.
pub(crate) fn chains(family: Family) -> Result<Vec<(String, String)>, KernelError> {
    // struct nfgenmsg
    let message = Message::new(GET_CHAIN, 0, &[family_number(family), 0, 0, 0]);
    let query =
        Query::new("nf_tables chains", message).absent_at(&[libc::EINVAL, libc::EOPNOTSUPP]);
    Client::open_protocol(NETLINK_NETFILTER)?.dump(&query, |message| {
        decode_change(message).map(|chain| (chain.table.to_owned(), chain.chain.to_owned()))
    })
}
