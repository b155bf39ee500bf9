//! The way to the other end of datagrams.

use std::net::{IpAddr, SocketAddr};

/// Where datagrams go, and from which address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address and port of the other end.
    pub to: SocketAddr,
    /// The address of this host that the other end sends to. None: the one that the route names.
    pub source: Option<IpAddr>,
}

impl Endpoint {
    /// The address of the other end.
    pub fn ip(&self) -> IpAddr {
        self.to.ip()
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(to: SocketAddr) -> Self {
        Self { to, source: None }
    }
}
