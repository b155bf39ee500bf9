//! Sockets that the prober cannot use, and the reasons.

use crate::target::Path;
use crate::view;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use types::problem::PortPurpose;
use types::{Coded, Detail, Family};

/// Identity of a socket: its path, its address family, and whether the socket is for ping.
pub(super) type Place = (Path, Family, bool);

/// A socket that the prober cannot use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unusable {
    pub place: Place,
    pub address: SocketAddr,
    pub why: Why,
}

/// Reason why a socket is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Port that another flanneld on this host uses for its tunnel. The variant contains the device or the network of the other flanneld's tunnel.
    Lent(String),
    /// Socket that the kernel refuses. The variant contains the error kind and the error text.
    Refused(io::ErrorKind, String),
}

impl Unusable {
    /// Creates the description of a socket that the kernel refuses to open.
    pub(super) fn refused(place: Place, address: SocketAddr, error: &io::Error) -> Self {
        Self { place, address, why: Why::Refused(error.kind(), error.to_string()) }
    }

    /// Returns whether another program uses the socket's port.
    fn is_taken(&self) -> bool {
        matches!(self.why, Why::Lent(_) | Why::Refused(io::ErrorKind::AddrInUse, _))
    }

    /// Converts the problem to the type that the status API shows.
    pub(super) fn shown(&self) -> view::Problem {
        let (_, _, is_ping) = self.place;
        view::Problem {
            address: (!is_ping).then_some(self.address),
            taken: self.is_taken(),
            what: self.to_string(),
        }
    }
}

impl Coded for Unusable {
    fn code(&self) -> &'static str {
        match self.why {
            _ if self.is_taken() => "probe-port-taken",
            Why::Refused(io::ErrorKind::PermissionDenied, _) => "probe-not-permitted",
            _ => "probe-socket",
        }
    }

    fn detail(&self) -> Detail {
        match self.is_taken() {
            true => Detail::PortTaken {
                number: self.address.port(),
                udp: true,
                purpose: PortPurpose::Probes,
            },
            false => Detail::None,
        }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "probes cannot use {}: ", name(&self.place, self.address))?;
        match &self.why {
            Why::Lent(owner) => {
                write!(
                    f,
                    "another flanneld on this host uses the port for its tunnel ({owner}); {}",
                    other_port("one of the two networks")
                )
            }
            Why::Refused(io::ErrorKind::AddrInUse, error) => write!(
                f,
                "{error}; another program uses the port: find the program with `ss -lunp sport = :{}` and `ip -d link show type vxlan`, or {}",
                self.address.port(),
                other_port("the network")
            ),
            Why::Refused(io::ErrorKind::PermissionDenied, error) => {
                write!(f, "{error}; give flanneld CAP_NET_RAW")
            }
            Why::Refused(_, error) => write!(f, "{error}; flanneld retries"),
        }
    }
}

impl std::error::Error for Unusable {}

fn other_port(whose: &str) -> String {
    format!("set another port with --probe-port on every node of {whose}")
}

/// Returns the name of a socket for a log line.
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
            Unusable::refused((Path::Underlay, Family::V4, false), address, &kind.into())
        };
        let taken = unusable(io::ErrorKind::AddrInUse);
        assert_eq!(
            taken.detail(),
            Detail::PortTaken { number: 8473, udp: true, purpose: PortPurpose::Probes }
        );
        assert_eq!((taken.shown().address, taken.shown().taken), (Some(address), true));
        assert!(taken.shown().what.contains("`ss -lunp sport = :8473`"), "{taken}");
        let lent = Unusable { why: Why::Lent("flannel.1".to_owned()), ..taken };
        assert_eq!((lent.code(), lent.shown().taken), ("probe-port-taken", true));
        let ping = Unusable {
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
