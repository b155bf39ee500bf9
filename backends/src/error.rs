//! Errors of backends.

use crate::secret_error::SecretError;
use netstate::kernel::KernelError;
use std::fmt::Display;
use subnet_lease::json::JsonError;
use thiserror::Error;
use types::{Addresses, Coded, Detail, Family, Subnets};

/// In bytes, of an IPv6 link (RFC 8200).
pub(crate) const LEAST_MTU_V6: u32 = 1280;

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum BackendError {
    #[error("{0}")]
    #[code(of = _0)]
    Config(#[from] ConfigError),
    #[error("{0}")]
    #[code(of = _0)]
    Underlay(#[from] UnderlayError),
    #[error("{0}")]
    #[code(of = _0)]
    Kernel(#[from] KernelError),
    #[error("{0}")]
    #[code(of = _0)]
    Secret(#[from] SecretError),
    #[error("the address families of the lease {lease} and the network {networks} differ")]
    #[code("lease-of-other-families")]
    Families { lease: Subnets, networks: Subnets },
    #[error("the network has no address family")]
    #[code("network-without-family")]
    NoFamily,
    #[error("{backend}: call announce before join")]
    #[code("backend-not-announced")]
    NotAnnounced { backend: &'static str },
    #[error("{name} is not an interface name")]
    #[code("interface-name-invalid")]
    DeviceName { name: &'static str },
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error("{text}")]
#[code(*code)]
#[detail(Detail::ConfigInvalid { place: None })]
pub struct ConfigError {
    code: &'static str,
    text: String,
}

impl ConfigError {
    pub(crate) fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new("backend-config-invalid", text)
    }

    /// `backend` is the backend's name in this error of Go flannel.
    pub(crate) fn decoding(backend: &str, why: impl Display) -> Self {
        Self::invalid(format!("error decoding {backend} backend config: {why}"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum UnderlayError {
    #[error(
        "{backend} needs an {family} address on the interface {interface}, which has {addresses}; choose another interface with --iface"
    )]
    #[code("underlay-address-missing")]
    NoAddress { backend: &'static str, family: Family, interface: String, addresses: Addresses },
    #[error(
        "vxlan over {interface} needs an address for each family of the network {networks} on the interface {interface}, which has {addresses}; choose another interface with --iface"
    )]
    #[code("underlay-address-missing")]
    NoAddresses { networks: Subnets, interface: String, addresses: Addresses },
    #[error(
        "wireguard over {interface} needs an address for each family that carries packets between nodes, and {interface} has {addresses}. Choose another interface with --iface, or another Mode in the Backend"
    )]
    #[code("underlay-address-missing")]
    NoCarrier { interface: String, addresses: Addresses },
    /// host-gw cannot route through a NAT.
    #[error(
        "your PublicIP differs from interface IP, meaning that probably you're on a NAT, which is not supported by host-gw backend: PublicIP is {public}, {interface} has {addresses}; leave out --public-ip and --public-ipv6, choose the interface with --iface, or use the vxlan backend"
    )]
    #[code("underlay-address-translated")]
    Translated { public: Addresses, interface: String, addresses: Addresses },
    /// All sizes are in bytes. `least` is the smallest MTU of pods.
    #[error(
        "MTU {mtu} of iface {interface} is too small for ipip mode to work: ipip takes {overhead} bytes of the MTU, and IPv4 needs {least} bytes"
    )]
    #[code("underlay-mtu-too-small")]
    MtuForIpip { interface: String, mtu: u32, overhead: u32, least: u32 },
    /// `left` is the MTU in bytes that remains for pods.
    #[error(
        "MTU {mtu} of {interface} leaves {left} bytes for packets of pods, and IPv6 needs {LEAST_MTU_V6}; set the MTU of {interface} to {} or more, or EnableIPv6 to false in the network configuration",
        .mtu + (LEAST_MTU_V6 - left)
    )]
    #[code("underlay-mtu-too-small")]
    MtuForIpv6 { interface: String, mtu: u32, left: u32 },
    #[error(
        "the underlay has no address of the tunnel's family; add one, or choose another interface with --iface"
    )]
    #[code("underlay-address-missing")]
    NoTunnelSource,
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub(crate) enum LeaseError {
    #[error("the lease has no public {family} address, which {backend} needs")]
    #[code("lease-without-address")]
    NoAddress { family: Family, backend: &'static str },
    #[error(
        "the lease has no public {family} address, over which this network's Mode sends all packets"
    )]
    #[code("lease-without-address")]
    NoCarrier { family: Family },
    #[error("the families of the lease are not those of the network")]
    #[code("lease-of-other-families")]
    OtherFamilies,
    #[error("the lease has no backend data of its family")]
    #[code("lease-data-missing")]
    NoData,
    #[error("the lease's backend data has no {key}")]
    #[code("lease-data-missing")]
    Absent { key: &'static str },
    #[error("{0}")]
    #[code("lease-data-unusable")]
    Unusable(String),
}

impl LeaseError {
    pub(crate) fn not_an_object(error: &serde_json::Error) -> Self {
        let why = JsonError::unquoted(error);
        Self::Unusable(format!("the lease's backend data is not a JSON object: {why}"))
    }

    pub(crate) fn not_a_string(key: &str) -> Self {
        Self::Unusable(format!("the lease's {key} is not a string"))
    }
}
