//! Receives the kernel's notifications about changes of nf_tables, by this daemon and by other programs.

use netlink_sys::{
    AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols::NETLINK_NETFILTER,
};
use types::Family;

/// NFNLGRP_NFTABLES (include/uapi/linux/netfilter/nfnetlink.h).
const GROUP: u32 = 7;

/// NFNL_SUBSYS_NFTABLES (include/uapi/linux/netfilter/nfnetlink.h).
const SUBSYSTEM: u16 = 10;
/// NFT_MSG_NEWGEN: the message that ends a transaction and contains no change of rules.
const GENERATION: u16 = 15;
/// In bytes; larger than any netlink message from the kernel.
const BUFFER: usize = 64 * 1024;
/// In bytes. The receive queue has room for all changes that kube-proxy makes between two reads.
const QUEUE: usize = 8 << 20;

/// A change of an nf_tables object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    pub table: &'a str,
    /// The changed chain, or the chain with the changed rule; otherwise empty.
    pub chain: &'a str,
}

/// The most important queued notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    #[default]
    None,
    /// The kernel dropped some notifications. A burst of changes that overflows the socket's queue
    /// rarely concerns flannel's rules.
    Lost,
    Changed,
}

/// kube-proxy's rules for Services change constantly in a cluster with many of them.
#[must_use]
pub fn is_of_services(change: &Change<'_>) -> bool {
    change.table == "kube-proxy" || change.chain.starts_with("KUBE-")
}

/// True for a change of a table, of a built-in chain, which contains the jumps to flannel's chains,
/// or of flannel's own chains.
#[must_use]
pub fn is_of_iptables(change: &Change<'_>) -> bool {
    let calls_ours =
        matches!(change.chain, "" | "PREROUTING" | "INPUT" | "FORWARD" | "OUTPUT" | "POSTROUTING");
    matches!(change.table, "nat" | "filter" | "raw" | "mangle")
        && (calls_ours || change.chain.starts_with("FLANNEL-"))
}

/// True for flannel's nftables tables.
#[must_use]
pub fn is_of_nftables(change: &Change<'_>) -> bool {
    Family::ALL.into_iter().any(|family| crate::nftables_text::table(family).1 == change.table)
}

/// The messages of a netlink datagram, each with its type.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (head, _) = bytes.split_at_checked(16)?;
        let length = u32_at(head, 0) as usize;
        let message = bytes.get(16..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16_at(head, 4), message))
    })
}

/// The objects that one netlink datagram announces or lists.
pub(crate) fn changes(bytes: &[u8]) -> Vec<Change<'_>> {
    let mut found = Vec::new();
    for (kind, message) in messages(bytes) {
        let (subsystem, kind) = (kind >> 8, kind & 0xff);
        // The attributes follow a header of 4 bytes (struct nfgenmsg).
        if let Some(attributes) =
            message.get(4..).filter(|_| subsystem == SUBSYSTEM && kind != GENERATION)
        {
            let chain = match kind {
                3 | 5 => 3,
                6 | 8 => 2,
                _ => 0,
            };
            found.push(Change { table: name(attributes, 1), chain: name(attributes, chain) });
        }
    }
    found
}

/// The text of a netlink attribute; empty if it is missing.
fn name(mut attributes: &[u8], wanted: u16) -> &str {
    while let Some((head, _)) = attributes.split_at_checked(4) {
        let length = usize::from(u16_at(head, 0));
        let Some(value) = attributes.get(4..length) else {
            break;
        };
        if u16_at(head, 2) & 0x3fff == wanted {
            return std::ffi::CStr::from_bytes_until_nul(value)
                .ok()
                .and_then(|text| text.to_str().ok())
                .unwrap_or_default();
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    ""
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |two| u16::from_ne_bytes(*two))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |four| u32::from_ne_bytes(*four))
}

pub struct Notices {
    socket: TokioSocket,
    /// True if a change is relevant to the subscriber.
    matters: fn(&Change<'_>) -> bool,
}

impl Notices {
    /// `None` if the kernel refuses the subscription. The daemon still checks the rules
    /// periodically.
    pub fn open(matters: fn(&Change<'_>) -> bool) -> Option<Self> {
        let mut socket = TokioSocket::new(NETLINK_NETFILTER).ok()?;
        // Without CAP_NET_ADMIN the limit net.core.rmem_max applies.
        let _ = nix::sys::socket::setsockopt(
            socket.socket_mut(),
            nix::sys::socket::sockopt::RcvBufForce,
            &QUEUE,
        );
        socket.socket_mut().bind(&SocketAddr::new(0, 0)).ok()?;
        socket.socket_mut().add_membership(GROUP).ok()?;
        Some(Self { socket, matters })
    }

    /// Waits until the kernel announces a relevant change or drops notifications.
    pub async fn next(&mut self) {
        let mut buffer = Vec::with_capacity(BUFFER);
        while self.socket.recv_from(&mut buffer).await.is_ok()
            && !changes(&buffer).iter().any(self.matters)
        {
            buffer.clear();
        }
    }

    /// Consumes all queued notifications.
    pub fn drain(&mut self) -> News {
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut found = News::None;
        loop {
            match self.socket.socket_mut().recv_from(&mut buffer, libc::MSG_DONTWAIT) {
                Ok(_) if changes(&buffer).iter().any(self.matters) => found = News::Changed,
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return found,
                // Reading continues after the lost notifications.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    found = found.max(News::Lost);
                }
                Err(_) => return News::Changed,
            }
            buffer.clear();
        }
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
    use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
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
            let mut notices = Notices::open(is_of_iptables).unwrap();
            let socket = notices.socket.socket_mut();
            setsockopt(socket, RcvBuf, &4096).unwrap();
            nft("add table ip nat\nadd chain ip nat KUBE-SVC-A\n");
            let _ = notices.drain();
            nft(&"add rule ip nat KUBE-SVC-A accept\n".repeat(2000));
            assert_eq!(notices.drain(), News::Lost);
            assert_eq!(notices.drain(), News::None);
        });
    }

    #[test]
    fn service_changes_are_distinguished_from_other_changes() {
        in_namespace(async || {
            let open = |is_ours: fn(&Change) -> bool| Notices::open(is_ours).unwrap();
            let mut all = [
                open(is_of_iptables),
                open(is_of_nftables),
                open(|change| !is_of_services(change)),
            ];
            for (script, changed) in [
                (
                    "add table ip kube-proxy; add chain ip kube-proxy services",
                    [false, false, false],
                ),
                (
                    "add table ip nat; add chain ip nat POSTROUTING; add chain ip nat KUBE-SVC-A",
                    [true, false, true],
                ),
                ("add rule ip nat KUBE-SVC-A accept", [false, false, false]),
                ("add rule ip nat POSTROUTING accept", [true, false, true]),
                ("add table ip flannel-ipv4", [false, true, true]),
                ("flush chain ip nat KUBE-SVC-A", [false, false, false]),
                (
                    "add chain ip nat CNI-HOSTPORT-DNAT; add rule ip nat CNI-HOSTPORT-DNAT accept",
                    [false, false, true],
                ),
                ("add chain ip nat FLANNEL-POSTRTG", [true, false, true]),
                ("delete table ip nat", [true, false, true]),
            ] {
                nft(script);
                let found = all.each_mut().map(|notices| notices.drain() == News::Changed);
                assert_eq!(found, changed, "{script}");
            }
        });
    }
}
