//! Reasons why a network configuration is unusable.

use crate::json::{JsonError, MemberError};
use ipnet::IpNet;
use std::net::IpAddr;
use thiserror::Error;
use types::{Coded, Detail};

/// `member` is the name of the member; a network or a bound comes with the name of its member.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[detail(Detail::ConfigInvalid { place: None })]
pub enum ConfigError {
    /// `beginning` is the beginning of the configuration.
    #[error("the network configuration is not valid JSON: {fault}; it begins with {beginning}")]
    #[code("config-not-json")]
    Json { fault: JsonError, beginning: String },
    #[error("the network configuration has a bad value: {0}")]
    #[code("config-bad-value")]
    Value(ConfigValueError),
    #[error("please define a correct {0} parameter in the flannel config")]
    #[code("config-no-network")]
    Missing(&'static str),
    #[error("EnableIPv4 and EnableIPv6 are both false; enable at least one address family")]
    #[code("config-no-family")]
    NoFamily,
    #[error("no network is defined")]
    #[code("config-no-network")]
    NoNetwork,
    /// The subnets have too few addresses.
    #[error("{member} must be less than /{limit}, not {given}")]
    #[code("config-subnet-too-small")]
    LenTooLong { member: &'static str, limit: u8, given: u64 },
    #[error(
        "{} {}: network must be able to accommodate at least four subnets, so {member} must be at least {least}, not {given}",
        network.0, network.1
    )]
    #[code("config-too-few-subnets")]
    LenTooShort { network: (&'static str, IpNet), member: &'static str, least: u8, given: u64 },
    #[error(
        "{} {}: network is too small. Minimum useful network prefix is /{longest}",
        network.0, network.1
    )]
    #[code("config-network-too-small")]
    NetworkTooSmall { network: (&'static str, IpNet), longest: u8 },
    #[error("{member} is not in the range of the Network {network}: {address}")]
    #[code("config-bound-outside-network")]
    OutOfRange { member: &'static str, network: IpNet, address: IpAddr },
    #[error("{member} is not on a SubnetLen boundary: {address} is not the beginning of a /{len}")]
    #[code("config-bound-inside-subnet")]
    OffBoundary { member: &'static str, address: IpAddr, len: u8 },
    #[error(
        "{} {} is after {} {}: the range contains no subnet",
        min.0, min.1, max.0, max.1
    )]
    #[code("config-no-subnet")]
    Empty { min: (&'static str, IpAddr), max: (&'static str, IpAddr) },
}

impl From<ConfigValueError> for ConfigError {
    fn from(error: ConfigValueError) -> Self {
        Self::Value(error)
    }
}

impl From<MemberError> for ConfigError {
    fn from(error: MemberError) -> Self {
        Self::Value(error.into())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigValueError {
    #[error(transparent)]
    Type(#[from] MemberError),
    #[error("{member}: invalid CIDR address: {value}: {why}")]
    Network { member: &'static str, value: String, why: &'static str },
    /// An item of a list.
    #[error("{member}: {value} is not a network such as 10.0.0.0/8")]
    NoNetwork { member: String, value: String },
    #[error("{member}: {value} is {why}")]
    Address { member: String, value: String, why: &'static str },
    #[error(
        "error decoding Backend property of config: {0}; it should be an object such as {{\"Type\":\"vxlan\"}}"
    )]
    Backend(JsonError),
    #[error("error decoding Backend property of config: Type is not a text such as \"vxlan\"")]
    BackendType,
}
