//! Listening sockets: TCP and Unix sockets.

use super::stream::Stream;
use crate::error::{DaemonError, HttpServer};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpMaxSeg;
use run_dir::process::port_holder;
use socket2::{Domain, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::either::Either;
use tracing::debug;

/// In bytes. It affects only loopback, because segments on other networks are smaller.
const SEGMENT: u32 = 8 * 1024;

#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Fails if the process or the system has no file descriptor left, or if the client has closed the connection
    /// already.
    pub async fn accept(&self) -> io::Result<Stream> {
        Ok(Stream::new(match self {
            Listener::Tcp(listener) => Either::Left(listener.accept().await?.0),
            Listener::Unix(listener) => Either::Right(listener.accept().await?.0),
        }))
    }
}

/// The error names the program that holds the port.
pub(super) async fn serving(
    server: HttpServer,
    address: SocketAddr,
) -> Result<TcpListener, DaemonError> {
    match tcp(address).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(DaemonError::PortTaken {
            server,
            address,
            holder: port_holder(address.port(), false),
            error,
        }),
        Err(error) => Err(DaemonError::CannotListen { server, address, error }),
    }
}

/// As in Go, 0.0.0.0 means all IPv4 and IPv6 addresses of this host, because kubelet probes an IPv6 node over IPv6.
pub(super) async fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = listening(address).await?;
    // One segment of loopback (64 KiB) would fill the small send buffer, and its acknowledgement would be delayed.
    let _ = setsockopt(&listener, TcpMaxSeg, &SEGMENT);
    if address.ip().is_loopback() {
        // With route_localnet (kube-proxy sets it), pod packets reach loopback addresses.
        let _ = SockRef::from(&listener).bind_device(Some(b"lo"));
    }
    Ok(listener)
}

async fn listening(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED) {
        match on_all(address.port()) {
            Ok(listener) => return Ok(listener),
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    || error.kind() == io::ErrorKind::PermissionDenied =>
            {
                return Err(error);
            }
            // The kernel has no IPv6.
            Err(error) => debug!(error = %error, "cannot listen on IPv6"),
        }
    }
    TcpListener::bind(address).await
}

fn on_all(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    socket.set_only_v6(false)?;
    // tokio also sets this by default.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}
