//! Errors during the setup of a backend.

use crate::config_error::ConfigError;
use crate::secret_error::SecretError;
use netstate::kernel::KernelError;
use std::fmt;
use types::{Addresses, Coded, Detail, Family, Problem, Subnets};

/// The smallest MTU of an IPv6 link in bytes (RFC 8200).
pub(crate) const LEAST_MTU_V6: u32 = 1280;

/// An error of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Configuration that is invalid for this backend.
    Config(ConfigError),
    /// Underlay that does not suit the backend.
    Underlay(UnderlayError),
    /// Feature that the kernel lacks, or operation that the kernel refuses.
    Kernel(KernelError),
    /// Unusable secrets of WireGuard.
    Secret(SecretError),
    /// Lease whose families differ from the families of the network.
    Families {
        /// The subnets of this node's lease.
        lease: Subnets,
        /// The networks of the configuration.
        networks: Subnets,
    },
    /// Network without a family.
    NoFamily,
    /// Call of `join` before the backend's announcement.
    NotAnnounced {
        /// Name of the backend.
        backend: &'static str,
    },
    /// Name of a flannel device that is not a valid interface name.
    DeviceName {
        /// The unusable device name.
        name: &'static str,
    },
}

/// Reason why an underlay does not suit a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnderlayError {
    /// Underlay that lacks an address of the required family.
    NoAddress {
        /// Name of the backend.
        backend: &'static str,
        /// The address family that is missing.
        family: Family,
        /// Name of the underlay interface.
        interface: String,
        /// The addresses of the interface.
        addresses: Addresses,
    },
    /// Underlay that lacks an address of one of the network's families.
    NoAddresses {
        /// The networks of the configuration.
        networks: Subnets,
        /// Name of the underlay interface.
        interface: String,
        /// The addresses of the interface.
        addresses: Addresses,
    },
    /// Underlay that lacks an address of a family that carries WireGuard's packets.
    NoCarrier {
        /// Name of the underlay interface.
        interface: String,
        /// The addresses of the interface.
        addresses: Addresses,
    },
    /// Underlay whose addresses another host translates (NAT). host-gw cannot route through a NAT.
    Translated {
        /// The public addresses of this node.
        public: Addresses,
        /// Name of the underlay interface.
        interface: String,
        /// The addresses of the interface.
        addresses: Addresses,
    },
    /// Underlay whose MTU leaves too little room for packets in ipip.
    MtuForIpip {
        /// Name of the underlay interface.
        interface: String,
        /// The MTU of the interface in bytes.
        mtu: u32,
        /// The overhead of the backend in bytes.
        overhead: u32,
        /// The smallest MTU of pods in bytes.
        least: u32,
    },
    /// Underlay whose MTU leaves too little room for IPv6 packets of pods.
    MtuForIpv6 {
        /// Name of the underlay interface.
        interface: String,
        /// The MTU of the interface in bytes.
        mtu: u32,
        /// The MTU in bytes that remains for pods.
        left: u32,
    },
    /// Underlay without an address of the tunnel's family.
    NoTunnelSource,
}

impl From<KernelError> for Error {
    fn from(error: KernelError) -> Self {
        Error::Kernel(error)
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Error::Config(error)
    }
}

impl From<UnderlayError> for Error {
    fn from(error: UnderlayError) -> Self {
        Error::Underlay(error)
    }
}

impl From<SecretError> for Error {
    fn from(error: SecretError) -> Self {
        Error::Secret(error)
    }
}

impl Coded for Error {
    fn code(&self) -> &'static str {
        match self {
            Error::Config(error) => error.code(),
            Error::Underlay(error) => error.code(),
            Error::Kernel(error) => error.code(),
            Error::Secret(error) => error.code(),
            Error::Families { .. } => "lease-of-other-families",
            Error::NoFamily => "network-without-family",
            Error::NotAnnounced { .. } => "backend-not-announced",
            Error::DeviceName { .. } => "interface-name-invalid",
        }
    }

    fn detail(&self) -> Detail {
        match self {
            Error::Config(error) => error.detail(),
            Error::Underlay(error) => error.detail(),
            Error::Kernel(error) => error.detail(),
            Error::Secret(error) => error.detail(),
            _ => Detail::None,
        }
    }

    fn parts(&self) -> Vec<Problem> {
        match self {
            Error::Kernel(error) => error.parts(),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(error) => error.fmt(f),
            Error::Underlay(error) => error.fmt(f),
            Error::Kernel(error) => error.fmt(f),
            Error::Secret(error) => error.fmt(f),
            Error::Families { lease, networks } => write!(
                f,
                "the address families of the lease {lease} and the network {networks} differ"
            ),
            Error::NoFamily => f.write_str("the network has no address family"),
            Error::NotAnnounced { backend } => write!(f, "{backend}: call announce before join"),
            Error::DeviceName { name } => write!(f, "{name} is not an interface name"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Config(error) => Some(error),
            Error::Underlay(error) => Some(error),
            Error::Kernel(error) => Some(error),
            Error::Secret(error) => Some(error),
            _ => None,
        }
    }
}

impl Coded for UnderlayError {
    fn code(&self) -> &'static str {
        match self {
            UnderlayError::NoAddress { .. }
            | UnderlayError::NoAddresses { .. }
            | UnderlayError::NoCarrier { .. }
            | UnderlayError::NoTunnelSource => "underlay-address-missing",
            UnderlayError::Translated { .. } => "underlay-address-translated",
            UnderlayError::MtuForIpip { .. } | UnderlayError::MtuForIpv6 { .. } => {
                "underlay-mtu-too-small"
            }
        }
    }
}

impl fmt::Display for UnderlayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnderlayError::NoAddress { backend, family, interface, addresses } => write!(
                f,
                "{backend} needs an {family} address on the interface {interface}, which has {addresses}; choose another interface with --iface"
            ),
            UnderlayError::NoAddresses { networks, interface, addresses } => write!(
                f,
                "vxlan over {interface} needs an address for each family of the network {networks} on the interface {interface}, which has {addresses}; choose another interface with --iface"
            ),
            UnderlayError::NoCarrier { interface, addresses } => write!(
                f,
                "wireguard over {interface} needs an address for each family that carries packets between nodes, and {interface} has {addresses}. \
                 Choose another interface with --iface, or another Mode in the Backend"
            ),
            UnderlayError::Translated { public, interface, addresses } => write!(
                f,
                "your PublicIP differs from interface IP, meaning that probably you're on a NAT, which is not supported by host-gw backend: PublicIP is {public}, {interface} has {addresses}; leave out --public-ip and --public-ipv6, choose the interface with --iface, or use the vxlan backend"
            ),
            UnderlayError::MtuForIpip { interface, mtu, overhead, least } => write!(
                f,
                "MTU {mtu} of iface {interface} is too small for ipip mode to work: ipip takes {overhead} bytes of the MTU, and IPv4 needs {least} bytes"
            ),
            UnderlayError::MtuForIpv6 { interface, mtu, left } => write!(
                f,
                "MTU {mtu} of {interface} leaves {left} bytes for packets of pods, and IPv6 needs {LEAST_MTU_V6}; set the MTU of {interface} to {} or more, or EnableIPv6 to false in the network configuration",
                mtu + (LEAST_MTU_V6 - left)
            ),
            UnderlayError::NoTunnelSource => {
                f.write_str("the underlay has no address of the tunnel's family; add one, or choose another interface with --iface")
            }
        }
    }
}

impl std::error::Error for UnderlayError {}
