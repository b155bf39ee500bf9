//! Listening sockets: TCP and Unix sockets.

use super::stream::Stream;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpMaxSeg;
use run_dir::process::port_holder;
use socket2::{Domain, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::either::Either;
use tracing::debug;
use types::problem::PortPurpose;
use types::{Detail, Problem};

/// In bytes. It affects only loopback, because segments on other networks are smaller.
const SEGMENT: u32 = 8 * 1024;

/// Each has its own TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpServer {
    Health,
    Api,
}

impl HttpServer {
    /// For messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            HttpServer::Health => "the health server",
            HttpServer::Api => "the status API",
        }
    }

    const fn purpose(self) -> PortPurpose {
        match self {
            HttpServer::Health => PortPurpose::Health,
            HttpServer::Api => PortPurpose::Api,
        }
    }

    fn remedy_of_taken(self, port: u16) -> String {
        let flag = match self {
            HttpServer::Health => "--healthz-port (0: no server)",
            HttpServer::Api => "--status-port (0: none)",
        };
        let find = || format!("find the process with `ss -ltnp sport = :{port}`");
        let holder = port_holder(port, false).map_or_else(find, |holder| format!("stop {holder}"));
        format!("{holder}, or choose another port with {flag}")
    }

    fn remedy(self, error: &io::Error) -> &'static str {
        match (error.kind(), self) {
            (io::ErrorKind::AddrNotAvailable, HttpServer::Health) => {
                "set --healthz-ip to an address of this host (0.0.0.0: all of them)"
            }
            (io::ErrorKind::AddrNotAvailable, HttpServer::Api) => {
                "set --status-ip to an address of this host"
            }
            (io::ErrorKind::PermissionDenied, HttpServer::Health) => {
                "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher port with --healthz-port"
            }
            (_, HttpServer::Health) => "check --healthz-ip and --healthz-port",
            (_, HttpServer::Api) => "check --status-ip and --status-port (0: none)",
        }
    }
}

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

/// The error names the program that holds the port, where this process can see it.
pub(super) async fn serving(
    server: HttpServer,
    address: SocketAddr,
) -> Result<TcpListener, Problem> {
    tcp(address).await.map_err(|error| {
        let (name, number) = (server.name(), address.port());
        let text = |remedy: &str| format!("{name} cannot listen on {address}: {error}; {remedy}");
        if error.kind() == io::ErrorKind::AddrInUse {
            let detail = Detail::PortTaken { number, udp: false, purpose: server.purpose() };
            Problem::new("port-taken", text(&server.remedy_of_taken(number))).with(detail)
        } else {
            Problem::new("cannot-listen", text(server.remedy(&error)))
        }
    })
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
