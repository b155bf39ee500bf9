//! Where a way in listens: an address, or a unix socket.

use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;
use tracing::debug;

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// On an address.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

impl Listener {
    /// The next connection.
    ///
    /// # Errors
    /// The system's error.
    pub async fn accept(&self) -> io::Result<Either<TcpStream, UnixStream>> {
        match self {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| Either::Left(stream)),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| Either::Right(stream)),
        }
    }
}

/// Listens on an address. 0.0.0.0 stands for all of this host, IPv6 too, as it does for Go: kubelet asks an IPv6 node by IPv6.
pub async fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED) {
        match on_all(address.port()) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse || error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            // A kernel without IPv6.
            Err(error) => debug!("cannot listen on IPv6: {error}"),
        }
    }
    TcpListener::bind(address).await
}

fn on_all(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    socket.set_only_v6(false)?;
    // As tokio's own.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}
