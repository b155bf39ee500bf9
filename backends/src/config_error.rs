//! Faults in the `Backend` object of a network configuration.

use std::fmt;
use subnet_lease::json::{JsonError, MemberError};
use types::wireguard::PRESHARED_VARIABLE;
use types::{Coded, Detail, Family, Subnets};

/// Reason why the `Backend` object is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// Unknown type of backend.
    UnknownType {
        /// The `Type` in the configuration.
        name: String,
        /// Whether Go flannel has this backend type.
        of_go: bool,
        /// The backend types of this version.
        known: Vec<&'static str>,
    },
    /// Key with an unusable value.
    Key {
        /// Name of the backend, as Go flannel spells it in this message.
        backend: &'static str,
        /// The reason why the value of the key is unusable.
        fault: Fault,
    },
    /// `Mode` that wireguard does not support.
    WireguardMode {
        /// The value in the configuration.
        found: String,
    },
    /// Value of `PSK` that is not a valid key. The error omits the value, because the value may be a secret.
    Psk,
    /// Preshared key in the configuration, despite `--refuse-insecure`.
    PskExposed,
    /// Network without IPv4, which ipip needs.
    IpipWithoutV4 {
        /// The networks of the configuration.
        networks: Subnets,
    },
}

/// A fault of a key in the `Backend` object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Text that is not a JSON object.
    NotAnObject(JsonError),
    /// Value of an invalid type.
    Member(MemberError),
    /// Number that is out of range.
    Range {
        /// The key in the `Backend` object.
        key: &'static str,
        /// The value in the configuration.
        value: i64,
        /// The smallest valid number.
        least: u32,
        /// The largest valid number.
        most: u32,
    },
    /// MTU that is too small.
    Mtu {
        /// The configured MTU in bytes.
        mtu: u32,
        /// The smallest valid MTU in bytes.
        least: u32,
    },
    /// Value that is not one of the words that the key allows.
    Word {
        /// The key in the `Backend` object.
        key: &'static str,
        /// The value in the configuration.
        value: String,
        /// The possible words.
        words: &'static [&'static str],
    },
    /// Mode that needs a family that the network does not have.
    ModeNeeds {
        /// The family that the mode needs.
        family: Family,
        /// The networks of the configuration.
        networks: Subnets,
    },
    /// The same port for the IPv4 and the IPv6 device.
    SamePort {
        /// The port of both devices.
        port: u16,
    },
    /// VNI that makes an interface name too long.
    LongName {
        /// The configured VNI.
        vni: u32,
        /// The overlong device name.
        name: String,
    },
    /// Name of a flannel device that is not a valid interface name.
    DeviceName {
        /// The unusable device name.
        name: &'static str,
    },
}

/// The allowed words, which an error message lists after "it must be".
pub(crate) struct Choice(pub &'static [&'static str]);

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, word) in self.0.iter().enumerate() {
            let before = match place {
                0 => "",
                place if place + 1 == self.0.len() => " or ",
                _ => ", ",
            };
            write!(f, "{before}\"{word}\"")?;
        }
        Ok(())
    }
}

impl Coded for ConfigError {
    fn code(&self) -> &'static str {
        match self {
            ConfigError::UnknownType { .. } => "backend-unknown",
            ConfigError::Key { .. } | ConfigError::WireguardMode { .. } | ConfigError::Psk => {
                "backend-config-invalid"
            }
            ConfigError::PskExposed => "psk-exposed",
            ConfigError::IpipWithoutV4 { .. } => "backend-without-family",
        }
    }

    fn detail(&self) -> Detail {
        Detail::ConfigInvalid { place: None }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::UnknownType { name, of_go, known } => {
                match of_go {
                    true => write!(f, "backend type {name} is not supported yet")?,
                    false => write!(f, "unknown backend type: {name}")?,
                }
                write!(
                    f,
                    "; set Backend.Type in the network configuration to one of {}",
                    known.join(", ")
                )
            }
            ConfigError::Key { backend, fault } => {
                write!(f, "error decoding {backend} backend config: {fault}")
            }
            ConfigError::WireguardMode { found } => {
                write!(
                    f,
                    "no valid Mode configured: Mode is {found:?}: it must be {}",
                    Choice(&["separate", "auto", "ipv4", "ipv6"])
                )
            }
            ConfigError::Psk => f.write_str(
                "could not parse psk: PSK must be 32 bytes in base64, as `wg genpsk` prints them",
            ),
            ConfigError::PskExposed => write!(
                f,
                "PSK is readable in the network configuration, and --refuse-insecure is set; name a file on each node instead, by PSKFile in the \
                 Backend or by {PRESHARED_VARIABLE}"
            ),
            ConfigError::IpipWithoutV4 { networks } => {
                write!(
                    f,
                    "ipip carries IPv4 only, and the network is {networks}; use the vxlan, host-gw or udp backend"
                )
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotAnObject(fault) => fault.fmt(f),
            Fault::Member(error) => error.fmt(f),
            Fault::Range { key, value, least, most } => {
                write!(f, "{key} is {value}: it must be between {least} and {most}")
            }
            Fault::Mtu { mtu, least } => {
                write!(
                    f,
                    "MTU is {mtu}: this key is the MTU of the underlay and must be at least {least}; leave the key out to use the interface's MTU"
                )
            }
            Fault::Word { key, value, words } => {
                write!(f, "{key} is {value:?}: it must be {}", Choice(words))
            }
            Fault::ModeNeeds { family, networks } => {
                write!(
                    f,
                    "Mode needs {family}, and the network is {networks}; enable the family, or leave out Mode"
                )
            }
            Fault::SamePort { port } => write!(
                f,
                "ListenPort and ListenPortV6 are both {port}; give each device its own port"
            ),
            Fault::LongName { vni, name } => {
                write!(
                    f,
                    "VNI is {vni}: the interface name {name} exceeds the kernel's limit of 15 characters; use a smaller VNI"
                )
            }
            Fault::DeviceName { name } => write!(f, "{name} is not an interface name"),
        }
    }
}

impl Fault {
    /// Creates the fault of a text that is not a JSON object.
    pub(crate) fn not_an_object(error: &serde_json::Error) -> Self {
        Fault::NotAnObject(JsonError::quoted(error))
    }
}
