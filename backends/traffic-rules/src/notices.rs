//! Receives the kernel's notifications about changes of nf_tables, by this daemon and by other
//! programs, and lists its chains. The kernel's list shows whether a program's listing is complete.

use crate::nftables_text::slot_of_table;
use netlink::uapi::NETLINK_NETFILTER;
use netlink::wire::{read_nested, read_text};
use netlink::{Client, KernelError, Message, Query, Received, Subscription, family_number};
use types::Family;

/// The notification group NFNLGRP_NFTABLES (include/uapi/linux/netfilter/nfnetlink.h).
const GROUP: i32 = 1 << (7 - 1);

/// NFNL_SUBSYS_NFTABLES (include/uapi/linux/netfilter/nfnetlink.h).
const SUBSYSTEM: u16 = 10;
/// NFT_MSG_GETCHAIN.
const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
/// NFT_MSG_NEWGEN: the message that ends a transaction and contains no change of rules.
const GENERATION: u16 = 15;

/// A subscription to changes of nf_tables. If the kernel refuses it, it is opened later.
#[must_use]
pub fn subscribe_to_rules() -> Subscription {
    Subscription::open(NETLINK_NETFILTER, GROUP)
}

/// A change of rules, except those for Services: kube-proxy changes them constantly in a cluster with
/// many of them.
#[must_use]
pub fn is_apart_from_services(message: &Received<'_>) -> bool {
    changed_chain(message)
        .is_some_and(|(table, chain)| table != "kube-proxy" && !chain.starts_with("KUBE-"))
}

/// A change of the nftables tables of flannel's daemons.
#[must_use]
pub fn is_of_nftables(message: &Received<'_>) -> bool {
    changed_chain(message).is_some_and(|(table, _)| {
        Family::ALL.into_iter().any(|family| slot_of_table(family, table).is_some())
    })
}

/// The table of the object that a message announces or lists, and its chain: the object itself, or
/// the chain of a rule; otherwise empty.
fn changed_chain<'a>(message: &Received<'a>) -> Option<(&'a str, &'a str)> {
    let (subsystem, kind) = (message.kind >> 8, message.kind & 0xff);
    if subsystem != SUBSYSTEM || kind == GENERATION {
        return None;
    }
    // The attributes follow a header of 4 bytes (struct nfgenmsg).
    let attributes = message.body.get(4..)?;
    let name = |attribute| read_nested(attributes, attribute).map_or("", read_text);
    let chain = match kind {
        3 | 5 => 3,
        6 | 8 => 2,
        _ => 0,
    };
    Some((name(1), name(chain)))
}

/// The kernel's chains, each with its table. A kernel without nf_tables has none.
pub(crate) fn list_chains(family: Family) -> Result<Vec<(String, String)>, KernelError> {
    // struct nfgenmsg
    let message = Message::new(GET_CHAIN, 0, &[family_number(family), 0, 0, 0]);
    let mut query = Query::new("nf_tables chains", message);
    query.absent = &[libc::EINVAL, libc::EOPNOTSUPP];
    Client::open_protocol(NETLINK_NETFILTER)?.dump(&query, |message| {
        changed_chain(message).map(|(table, chain)| (table.to_owned(), chain.to_owned()))
    })
}

/// Waits until flannel's tables change, or a change may have been missed. Never ends if the
/// subscription is `None`.
pub async fn wait_for_nftables(subscription: &mut Option<Subscription>) {
    match subscription {
        Some(subscription) => subscription.wait(is_of_nftables).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink::Notified;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn in_namespace(test: impl AsyncFnOnce() + Send + 'static) {
        let run = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(test());
        };
        std::thread::spawn(run).join().unwrap();
    }

    fn nft(script: &str) {
        let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        nft.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "{script}");
    }

    #[test]
    fn lost_notifications_are_no_change_of_ours() {
        in_namespace(async || {
            let mut notices = subscribe_to_rules();
            notices.shrink_receive_buffer().unwrap();
            nft("add table ip nat\nadd chain ip nat KUBE-SVC-A\n");
            let _ = notices.take_queued(is_of_nftables);
            nft(&"add rule ip nat KUBE-SVC-A accept\n".repeat(2000));
            assert_eq!(notices.take_queued(is_of_nftables), Notified::Lost);
            assert_eq!(notices.take_queued(is_of_nftables), Notified::Nothing);
        });
    }

    #[test]
    fn service_changes_are_distinguished_from_other_changes() {
        in_namespace(async || {
            let (mut ours, mut others) = (subscribe_to_rules(), subscribe_to_rules());
            for (script, changed) in [
                ("add table ip kube-proxy; add chain ip kube-proxy services", [false, false]),
                (
                    "add table ip nat; add chain ip nat POSTROUTING; add chain ip nat KUBE-SVC-A",
                    [false, true],
                ),
                ("add rule ip nat KUBE-SVC-A accept", [false, false]),
                ("add rule ip nat POSTROUTING accept", [false, true]),
                ("add table ip flannel-ipv4", [true, true]),
                ("add table ip6 flannel-ipv6-1", [true, true]),
                ("flush chain ip nat KUBE-SVC-A", [false, false]),
                (
                    "add chain ip nat CNI-HOSTPORT-DNAT; add rule ip nat CNI-HOSTPORT-DNAT accept",
                    [false, true],
                ),
                ("add chain ip nat FLANNEL-POSTRTG", [false, true]),
                ("delete table ip nat", [false, true]),
            ] {
                nft(script);
                let found =
                    [ours.take_queued(is_of_nftables), others.take_queued(is_apart_from_services)];
                assert_eq!(found.map(|found| found == Notified::Change), changed, "{script}");
            }
        });
    }
}
