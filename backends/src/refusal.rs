//! Reasons why a backend cannot use a peer's lease.

use netstate::names::Mac;
use netstate::wireguard::PublicKey;
use std::fmt;
use subnet_lease::json::JsonError;
use types::{Coded, Family};

/// Reason why the backend cannot use the lease of a peer, as text for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Lease without a public address of the family that the backend needs.
    NoAddress {
        /// The address family that the lease lacks.
        family: Family,
        /// Name of the backend.
        backend: &'static str,
    },
    /// Lease without a public address of the family that carries WireGuard's packets.
    NoCarrier {
        /// The address family that the lease lacks.
        family: Family,
    },
    /// Lease without any of the network's families.
    OtherFamilies,
    /// Lease without backend data for its family.
    NoData,
    /// Backend data that is not a JSON object.
    NotAnObject(JsonError),
    /// Key that the lease's backend data lacks.
    Absent {
        /// The key in the lease's backend data.
        key: &'static str,
    },
    /// Key whose value in the lease's backend data is not a string.
    NotAString {
        /// The key in the lease's backend data.
        key: &'static str,
    },
    /// Malformed MAC in the lease.
    NotAMac,
    /// MAC in the lease that is not valid for a device.
    NotAStation(Mac),
    /// Malformed public key in the lease.
    NotAKey,
    /// Public key in the lease that is of small order.
    WeakKey(PublicKey),
    /// Port in the lease that is not a number.
    NotANumber,
    /// Port in the lease that is out of range.
    NotAPort(i64),
}

impl Coded for Refusal {
    fn code(&self) -> &'static str {
        match self {
            Refusal::NoAddress { .. } | Refusal::NoCarrier { .. } => "lease-without-address",
            Refusal::OtherFamilies => "lease-of-other-families",
            Refusal::NoData | Refusal::Absent { .. } => "lease-data-missing",
            _ => "lease-data-unusable",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoAddress { family, backend } => {
                write!(f, "the lease has no public {family} address, which {backend} needs")
            }
            Refusal::NoCarrier { family } => write!(
                f,
                "the lease has no public {family} address, over which this network's Mode sends all packets"
            ),
            Refusal::OtherFamilies => {
                f.write_str("the families of the lease are not those of the network")
            }
            Refusal::NoData => f.write_str("the lease has no backend data of its family"),
            Refusal::NotAnObject(fault) => {
                write!(f, "the lease's backend data is not a JSON object: {fault}")
            }
            Refusal::Absent { key } => write!(f, "the lease's backend data has no {key}"),
            Refusal::NotAString { key } => write!(f, "the lease's {key} is not a string"),
            Refusal::NotAMac => f.write_str("the lease's VtepMAC is not a MAC address"),
            Refusal::NotAStation(mac) => {
                write!(f, "the lease's VtepMAC {mac} is not a valid device address")
            }
            Refusal::NotAKey => f.write_str("the lease's PublicKey is not 32 bytes in base64"),
            Refusal::WeakKey(key) => write!(
                f,
                "the lease's PublicKey {key} is of small order, so WireGuard cannot use it"
            ),
            Refusal::NotANumber => f.write_str("the lease's Port is not a number"),
            Refusal::NotAPort(port) => write!(f, "its Port is {port}"),
        }
    }
}

impl std::error::Error for Refusal {}
