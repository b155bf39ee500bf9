//! Endpoint of a peer, with the local address for datagrams to it.

use std::net::{IpAddr, SocketAddr};

/// Destination of datagrams, and the address of this host from which they leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub to: SocketAddr,
    /// The address of this host to which the peer sends. `None` lets the route select it.
    pub source: Option<IpAddr>,
}

impl Endpoint {
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.to.ip()
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(to: SocketAddr) -> Self {
        Self { to, source: None }
    }
}
