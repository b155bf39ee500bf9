//! nf_tables' change notices: that somebody, or we, changed a rule.

use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols::NETLINK_NETFILTER};

/// NFNLGRP_NFTABLES (include/uapi/linux/netfilter/nfnetlink.h).
const GROUP: u32 = 7;

/// A subscription.
pub struct Notices {
    socket: TokioSocket,
}

impl Notices {
    /// Subscribes; none where the kernel does not allow it, which leaves the periodic look.
    pub fn open() -> Option<Self> {
        let mut socket = TokioSocket::new(NETLINK_NETFILTER).ok()?;
        socket.socket_mut().bind(&SocketAddr::new(0, 0)).ok()?;
        socket.socket_mut().add_membership(GROUP).ok()?;
        Some(Self { socket })
    }

    /// Returns after a notice, or when some were lost.
    pub async fn next(&mut self) {
        let mut buffer = Vec::with_capacity(16 * 1024);
        let _ = self.socket.recv_from(&mut buffer).await;
    }

    /// Takes what else is there.
    pub fn drain(&mut self) {
        let mut buffer = Vec::with_capacity(64 * 1024);
        while self.socket.socket_mut().recv_from(&mut buffer, libc::MSG_DONTWAIT).is_ok() {
            buffer.clear();
        }
    }
}

/// Returns after a notice; never where there are none.
pub async fn heard(notices: &mut Option<Notices>) {
    match notices {
        Some(notices) => notices.next().await,
        None => std::future::pending().await,
    }
}
