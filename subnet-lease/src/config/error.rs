//! Reasons why a network configuration is unusable.

use crate::json::{JsonFault, MemberError};
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use types::{Coded, Detail};

/// Reason why a network configuration is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// Configuration that is not valid JSON.
    Json {
        /// Fault that the parser found.
        fault: JsonFault,
        /// Beginning of the configuration's text.
        beginning: String,
    },
    /// Member with an unusable value.
    Value(ValueFault),
    /// Name of the missing member.
    Missing(&'static str),
    /// No family is enabled.
    NoFamily,
    /// No network is defined.
    NoNetwork,
    /// Subnet length that leaves too few addresses in a subnet.
    LenTooLong {
        /// Name of the member.
        member: &'static str,
        /// Exclusive upper limit of the prefix length.
        limit: u8,
        /// The configured value.
        given: u64,
    },
    /// Subnet length that leaves too few subnets in the network.
    LenTooShort {
        /// Name of the member that contains the network, and the network.
        network: (&'static str, IpNet),
        /// Name of the member.
        member: &'static str,
        /// Shortest allowed prefix length.
        least: u8,
        /// The configured value.
        given: u64,
    },
    /// Network with too few addresses.
    NetworkTooSmall {
        /// Name of the member that contains the network, and the network.
        network: (&'static str, IpNet),
        /// Longest allowed prefix length.
        longest: u8,
    },
    /// Lower or upper bound of the subnets, outside the network.
    OutOfRange {
        /// Name of the member.
        member: &'static str,
        /// The network.
        network: IpNet,
        /// The configured bound.
        address: IpAddr,
    },
    /// Lower or upper bound that is not the first address of a subnet.
    OffBoundary {
        /// Name of the member.
        member: &'static str,
        /// The configured bound.
        address: IpAddr,
        /// Prefix length of the subnets.
        len: u8,
    },
    /// Lower bound that is above the upper bound.
    Empty {
        /// Name of the member with the lower bound, and the bound.
        min: (&'static str, IpAddr),
        /// Name of the member with the upper bound, and the bound.
        max: (&'static str, IpAddr),
    },
}

/// Reason why the value of a member is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueFault {
    /// Value of the wrong JSON type.
    Type(MemberError),
    /// Value that is not a network of the member's family.
    Network {
        /// Name of the member.
        member: &'static str,
        /// The configured value.
        value: String,
        /// Reason why the value is invalid.
        why: NetworkFault,
    },
    /// List item that is not a network.
    NoNetwork {
        /// Name of the member.
        member: String,
        /// The item.
        value: String,
    },
    /// Value that is not an address of the member's family.
    Address {
        /// Name of the member.
        member: String,
        /// The configured value.
        value: String,
        /// Reason why the value is invalid.
        why: AddressFault,
    },
    /// `Backend` member that is not a JSON object.
    Backend(JsonFault),
    /// `Backend` member whose `Type` is not a string.
    BackendType,
}

/// Reason why a network is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    /// Value that is not a network.
    Form,
    /// Network that is not an IPv4 network.
    NotIpv4,
    /// Network that is not an IPv6 network.
    NotIpv6,
}

/// Reason why an address is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFault {
    /// Value that is not an IP address.
    NoAddress,
    /// Address that is not an IPv4 address.
    NotIpv4,
    /// Address that is not an IPv6 address.
    NotIpv6,
}

impl From<ValueFault> for ConfigError {
    fn from(fault: ValueFault) -> Self {
        Self::Value(fault)
    }
}

impl From<MemberError> for ConfigError {
    fn from(error: MemberError) -> Self {
        Self::Value(ValueFault::Type(error))
    }
}

impl Coded for ConfigError {
    fn code(&self) -> &'static str {
        match self {
            Self::Json { .. } => "config-not-json",
            Self::Value(_) => "config-bad-value",
            Self::Missing(_) => "config-no-network",
            Self::NoFamily => "config-no-family",
            Self::NoNetwork => "config-no-network",
            Self::LenTooLong { .. } => "config-subnet-too-small",
            Self::LenTooShort { .. } => "config-too-few-subnets",
            Self::NetworkTooSmall { .. } => "config-network-too-small",
            Self::OutOfRange { .. } => "config-bound-outside-network",
            Self::OffBoundary { .. } => "config-bound-inside-subnet",
            Self::Empty { .. } => "config-no-subnet",
        }
    }

    fn detail(&self) -> Detail {
        Detail::ConfigInvalid { place: None }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json { fault, beginning } => write!(
                f,
                "the network configuration is not valid JSON: {fault}; it begins with {beginning}"
            ),
            Self::Value(fault) => write!(f, "the network configuration has a bad value: {fault}"),
            Self::Missing(member) => {
                write!(f, "please define a correct {member} parameter in the flannel config")
            }
            Self::NoFamily => f.write_str(
                "EnableIPv4 and EnableIPv6 are both false; enable at least one address family",
            ),
            Self::NoNetwork => f.write_str("no network is defined"),
            Self::LenTooLong { member, limit, given } => {
                write!(f, "{member} must be less than /{limit}, not {given}")
            }
            Self::LenTooShort { network: (name, network), member, least, given } => write!(
                f,
                "{name} {network}: network must be able to accommodate at least four subnets, so {member} must be at least {least}, not {given}"
            ),
            Self::NetworkTooSmall { network: (name, network), longest } => {
                write!(
                    f,
                    "{name} {network}: network is too small. Minimum useful network prefix is /{longest}"
                )
            }
            Self::OutOfRange { member, network, address } => {
                write!(f, "{member} is not in the range of the Network {network}: {address}")
            }
            Self::OffBoundary { member, address, len } => {
                write!(
                    f,
                    "{member} is not on a SubnetLen boundary: {address} is not the beginning of a /{len}"
                )
            }
            Self::Empty { min: (min, first), max: (max, last) } => {
                write!(f, "{min} {first} is after {max} {last}: the range contains no subnet")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ValueFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(error) => error.fmt(f),
            Self::Network { member, value, why } => {
                let why = match why {
                    NetworkFault::Form => "use a network such as 10.244.0.0/16 or fd10:244::/48",
                    NetworkFault::NotIpv4 => {
                        "invalid IPv4 CIDR format; use an IPv4 network such as 10.244.0.0/16"
                    }
                    NetworkFault::NotIpv6 => {
                        "invalid IPv6 CIDR format; use an IPv6 network such as fd10:244::/48"
                    }
                };
                write!(f, "{member}: invalid CIDR address: {value}: {why}")
            }
            Self::NoNetwork { member, value } => {
                write!(f, "{member}: {value} is not a network such as 10.0.0.0/8")
            }
            Self::Address { member, value, why } => {
                let why = match why {
                    AddressFault::NoAddress => "not an IP address",
                    AddressFault::NotIpv4 => "not an IPv4 address",
                    AddressFault::NotIpv6 => "not an IPv6 address",
                };
                write!(f, "{member}: {value} is {why}")
            }
            Self::Backend(fault) => {
                write!(
                    f,
                    "error decoding Backend property of config: {fault}; it should be an object such as {{\"Type\":\"vxlan\"}}"
                )
            }
            Self::BackendType => f.write_str(
                "error decoding Backend property of config: Type is not a text such as \"vxlan\"",
            ),
        }
    }
}
