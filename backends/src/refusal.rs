//! Reasons why a backend cannot use a peer's lease.

use netstate::names::Mac;
use netstate::wireguard::PublicKey;
use std::fmt;
use subnet_lease::json::JsonFault;
use types::problem::text;
use types::{Coded, Family};

/// Reason why the backend cannot use a peer's lease, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The lease has no public address of the family that the backend needs.
    NoAddress {
        /// The address family that the lease lacks.
        family: Family,
        /// Name of the backend.
        backend: &'static str,
    },
    /// The lease has no public address of the family that carries WireGuard's packets.
    NoCarrier {
        /// The address family that the lease lacks.
        family: Family,
    },
    /// The lease has none of the network's families.
    OtherFamilies,
    /// The lease has no backend data for its family.
    NoData,
    /// The lease's backend data is not a JSON object.
    NotAnObject(JsonFault),
    /// The lease's backend data lacks a key.
    Absent {
        /// The key in the lease's backend data.
        key: &'static str,
    },
    /// A key of the lease's backend data is not a string.
    NotAString {
        /// The key in the lease's backend data.
        key: &'static str,
    },
    /// The MAC in the lease is malformed.
    NotAMac,
    /// The MAC in the lease is not valid for a device.
    NotAStation(Mac),
    /// The public key in the lease is malformed.
    NotAKey,
    /// The public key in the lease is of small order.
    WeakKey(PublicKey),
    /// The port in the lease is not a number.
    NotANumber,
    /// The port in the lease is out of range.
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
        text(f, self, |f| match self {
            Refusal::NoAddress { family, backend } => write!(
                f,
                "it has no public {family} address, which {backend} needs"
            ),
            Refusal::NoCarrier { family } => write!(
                f,
                "it has no public {family} address, over which this network's Mode sends all packets"
            ),
            Refusal::OtherFamilies => f.write_str("its families are not those of the network"),
            Refusal::NoData => f.write_str("it has no backend data of its family"),
            Refusal::NotAnObject(fault) => {
                write!(f, "its backend data is not a JSON object: {fault}")
            }
            Refusal::Absent { key } => write!(f, "its backend data has no {key}"),
            Refusal::NotAString { key } => write!(f, "its {key} is not a string"),
            Refusal::NotAMac => f.write_str("its VtepMAC is not a MAC address"),
            Refusal::NotAStation(mac) => {
                write!(f, "its VtepMAC {mac} is not a valid device address")
            }
            Refusal::NotAKey => f.write_str("its PublicKey is not 32 bytes in base64"),
            Refusal::WeakKey(key) => write!(
                f,
                "its PublicKey {key} is of small order and cannot be used"
            ),
            Refusal::NotANumber => f.write_str("its Port is not a number"),
            Refusal::NotAPort(port) => write!(f, "its Port is {port}"),
        })
    }
}

impl std::error::Error for Refusal {}
