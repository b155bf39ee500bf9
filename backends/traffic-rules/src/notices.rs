//! Change notifications of nf_tables, for our own changes and those of others.

use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols::NETLINK_NETFILTER};

/// NFNLGRP_NFTABLES (include/uapi/linux/netfilter/nfnetlink.h).
const GROUP: u32 = 7;

/// A subscription to the notifications.
pub struct Notices {
    socket: TokioSocket,
}

impl Notices {
    /// Subscribes. None if the kernel does not allow it; the periodic check still runs.
    pub fn open() -> Option<Self> {
        let mut socket = TokioSocket::new(NETLINK_NETFILTER).ok()?;
        socket.socket_mut().bind(&SocketAddr::new(0, 0)).ok()?;
        socket.socket_mut().add_membership(GROUP).ok()?;
        Some(Self { socket })
    }

    /// Returns after a notification, or after some were lost.
    pub async fn next(&mut self) {
        let mut buffer = Vec::with_capacity(16 * 1024);
        let _ = self.socket.recv_from(&mut buffer).await;
    }

    /// Discards the notifications that are already queued.
    pub fn drain(&mut self) {
        let mut buffer = Vec::with_capacity(64 * 1024);
        while self.socket.socket_mut().recv_from(&mut buffer, libc::MSG_DONTWAIT).is_ok() {
            buffer.clear();
        }
    }
}

/// Returns after a notification. Without a subscription it never returns.
pub async fn wait_for_notice(notices: &mut Option<Notices>) {
    match notices {
        Some(notices) => notices.next().await,
        None => std::future::pending().await,
    }
}
