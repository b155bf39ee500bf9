//! Errors of the prober's sockets.

use crate::target::Path;
use crate::view;
use std::io;
use std::net::SocketAddr;
use thiserror::Error;
use types::problem::PortPurpose;
use types::{Coded, Detail, Family};

/// The path and the address family of a socket, and whether it is for ping.
pub(super) type Place = (Path, Family, bool);

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error("probes cannot use {}: {why}", name(.place, *.address))]
#[code(of = why)]
pub(super) struct SocketError {
    pub place: Place,
    pub address: SocketAddr,
    pub why: OpenError,
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub(super) enum OpenError {
    /// `owner` is the device or the network of the other flanneld's tunnel.
    #[error(
        "another flanneld on this host uses the port for its tunnel ({owner}); set another port with --probe-port on every node of one of the two networks"
    )]
    #[code("probe-port-taken")]
    #[detail(port_taken(*port))]
    Lent { port: u16, owner: String },
    #[error(
        "{error}; another program uses the port: find the program with `ss -lunp sport = :{port}` and `ip -d link show type vxlan`, or set another port with --probe-port on every node of the network"
    )]
    #[code("probe-port-taken")]
    #[detail(port_taken(*port))]
    InUse { port: u16, error: String },
    #[error("{0}; give flanneld CAP_NET_RAW")]
    #[code("probe-not-permitted")]
    NotPermitted(String),
    #[error("{0}; flanneld retries")]
    #[code("probe-socket")]
    Other(String),
}

fn port_taken(number: u16) -> Detail {
    Detail::PortTaken { number, udp: true, purpose: PortPurpose::Probes }
}

impl OpenError {
    pub(super) fn of(error: &io::Error, port: u16) -> Self {
        let words = error.to_string();
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { port, error: words },
            io::ErrorKind::PermissionDenied => Self::NotPermitted(words),
            _ => Self::Other(words),
        }
    }
}

impl SocketError {
    pub(super) fn shown(&self) -> view::UnusableSocket {
        let (_, _, is_ping) = self.place;
        view::UnusableSocket {
            address: (!is_ping).then_some(self.address),
            taken: matches!(self.why, OpenError::Lent { .. } | OpenError::InUse { .. }),
            what: self.to_string(),
        }
    }
}

/// For a log line.
pub(super) fn name((_, family, is_ping): &Place, address: SocketAddr) -> String {
    if *is_ping {
        format!("ping over {family} from {}", address.ip())
    } else {
        format!("UDP {address}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_port_is_reported_by_its_number() {
        let address: SocketAddr = "192.0.2.1:8473".parse().unwrap();
        let unusable = |kind: io::ErrorKind| {
            let why = OpenError::of(&kind.into(), address.port());
            SocketError { place: (Path::Underlay, Family::V4, false), address, why }
        };
        let taken = unusable(io::ErrorKind::AddrInUse);
        assert_eq!(
            taken.detail(),
            Detail::PortTaken { number: 8473, udp: true, purpose: PortPurpose::Probes }
        );
        assert_eq!((taken.shown().address, taken.shown().taken), (Some(address), true));
        assert!(taken.shown().what.contains("`ss -lunp sport = :8473`"), "{taken}");
        let lent = SocketError {
            why: OpenError::Lent { port: 8473, owner: "flannel.1".to_owned() },
            ..taken
        };
        assert_eq!((lent.code(), lent.shown().taken), ("probe-port-taken", true));
        let ping = SocketError {
            place: (Path::Underlay, Family::V4, true),
            ..unusable(io::ErrorKind::PermissionDenied)
        };
        assert_eq!(
            (ping.code(), ping.shown().address, ping.shown().taken),
            ("probe-not-permitted", None, false)
        );
        assert_eq!(unusable(io::ErrorKind::AddrNotAvailable).code(), "probe-socket");
    }
}
