//! Receives the kernel's notifications about changes of nf_tables, by this daemon and by other programs.

use netlink::uapi::NETLINK_NETFILTER;
use netlink::wire::{inside, text};
use netlink::{Notified, Received, Subscription};
use types::Family;

/// The notification group NFNLGRP_NFTABLES (include/uapi/linux/netfilter/nfnetlink.h).
const GROUP: u32 = 1 << (7 - 1);

/// NFNL_SUBSYS_NFTABLES (include/uapi/linux/netfilter/nfnetlink.h).
const SUBSYSTEM: u16 = 10;
/// NFT_MSG_NEWGEN: the message that ends a transaction and contains no change of rules.
const GENERATION: u16 = 15;

/// A change of an nf_tables object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    pub table: &'a str,
    /// The changed chain, or the chain with the changed rule; otherwise empty.
    pub chain: &'a str,
}

/// kube-proxy's rules for Services change constantly in a cluster with many of them.
#[must_use]
pub fn is_of_services(change: &Change<'_>) -> bool {
    change.table == "kube-proxy" || change.chain.starts_with("KUBE-")
}

/// True for the nftables tables of flannel's daemons.
#[must_use]
pub fn is_of_nftables(change: &Change<'_>) -> bool {
    let slot = |family| crate::nftables_text::slot_of_table(family, change.table);
    Family::ALL.into_iter().any(|family| slot(family).is_some())
}

/// The object that a message announces or lists.
pub(crate) fn decode_change<'a>(message: &Received<'a>) -> Option<Change<'a>> {
    let (subsystem, kind) = (message.kind >> 8, message.kind & 0xff);
    if subsystem != SUBSYSTEM || kind == GENERATION {
        return None;
    }
    // The attributes follow a header of 4 bytes (struct nfgenmsg).
    let attributes = message.body.get(4..)?;
    let name = |attribute| inside(attributes, attribute).map_or("", text);
    let chain = match kind {
        3 | 5 => 3,
        6 | 8 => 2,
        _ => 0,
    };
    Some(Change { table: name(1), chain: name(chain) })
}

/// A subscription to changes of nf_tables that opens itself again after an error.
pub struct Notices {
    subscription: Subscription,
    /// True if a change is relevant to the subscriber.
    matters: fn(&Change<'_>) -> bool,
}

impl Notices {
    /// If the kernel refuses the subscription, it is opened later.
    #[must_use]
    pub fn open(matters: fn(&Change<'_>) -> bool) -> Self {
        Self { subscription: Subscription::open(NETLINK_NETFILTER, GROUP), matters }
    }

    /// False while only periodic checks find changes.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.subscription.is_open()
    }

    /// Waits until the kernel announces a relevant change, or may have missed one.
    pub async fn next(&mut self) {
        let matters = self.matters;
        self.subscription
            .wait(|message| decode_change(message).is_some_and(|change| matters(&change)))
            .await;
    }

    /// Consumes all queued notifications. A burst of changes that overflows the socket's queue
    /// rarely concerns flannel's rules.
    pub fn drain(&mut self) -> Notified {
        let matters = self.matters;
        self.subscription
            .take_queued(|message| decode_change(message).is_some_and(|change| matters(&change)))
    }
}

/// Never ends if `notices` is `None`.
pub async fn wait_for_notice(notices: &mut Option<Notices>) {
    match notices {
        Some(notices) => notices.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            let mut notices = Notices::open(is_of_nftables);
            notices.subscription.shrink_receive_buffer().unwrap();
            nft("add table ip nat\nadd chain ip nat KUBE-SVC-A\n");
            let _ = notices.drain();
            nft(&"add rule ip nat KUBE-SVC-A accept\n".repeat(2000));
            assert_eq!(notices.drain(), Notified::Lost);
            assert_eq!(notices.drain(), Notified::Nothing);
        });
    }

    #[test]
    fn service_changes_are_distinguished_from_other_changes() {
        in_namespace(async || {
            let mut all =
                [Notices::open(is_of_nftables), Notices::open(|change| !is_of_services(change))];
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
                let found = all.each_mut().map(|notices| notices.drain() == Notified::Change);
                assert_eq!(found, changed, "{script}");
            }
        });
    }
}
