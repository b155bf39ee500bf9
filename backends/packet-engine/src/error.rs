//! Errors of opening or changing an engine.

use crate::framing::Rival;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use types::problem::PortPurpose;
use types::{Coded, Detail, Errno};

/// Error of opening an engine or of adopting the files of a previous process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    /// Another process or interface that uses the tunnel's port.
    PortTaken {
        /// The address and the UDP port that the engine tried to bind.
        address: SocketAddr,
        /// The kind of interface that may use the port, and the configuration key that sets another port.
        rival: Rival,
    },
    /// Refusal by the kernel to bind the tunnel's port.
    Bind {
        /// The address and the UDP port that the engine tried to bind.
        address: SocketAddr,
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// Refusal by the kernel to bind a socket that only sends.
    BindSender {
        /// The local address to bind.
        address: IpAddr,
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// Lack of TUN devices in the kernel, or of access to TUN devices in the container.
    TunMissing {
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// Missing permission of this process to create TUN devices.
    TunForbidden {
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// Device that another process has open.
    TunBusy {
        /// Name of the TUN device.
        device: String,
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// Interface of another kind that has the device's name.
    TunNameTaken {
        /// Name of the TUN device.
        device: String,
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// Failure to set up the device, for another reason.
    Tun {
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// File inherited from a previous process that is not a TUN device.
    NotTun {
        /// Name of the desired TUN device.
        device: String,
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// File inherited from a previous process that is another TUN device.
    OtherTun {
        /// Name of the desired TUN device.
        device: String,
        /// Name of the inherited device.
        found: String,
    },
    /// Inherited file that is not a socket. A previous process passed the file to this process.
    NotSocket {
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// Socket inherited from a previous process that is bound to another address.
    OtherSocket {
        /// The desired local address.
        wanted: SocketAddr,
        /// The address to which the socket is bound, if it is an IP address.
        found: Option<SocketAddr>,
    },
    /// Start of the engine before the bind of its sockets.
    NoSocket,
    /// Failure of the kernel to create an eventfd.
    Eventfd {
        /// The errno of the failed system call.
        errno: Errno,
    },
    /// Failure of the kernel to start a thread.
    Thread {
        /// The errno of the failed system call.
        errno: Errno,
    },
}

impl Coded for EngineError {
    fn code(&self) -> &'static str {
        match self {
            EngineError::PortTaken { .. } => "tunnel-port-taken",
            EngineError::Bind { .. } => "tunnel-port-unusable",
            EngineError::BindSender { .. } => "socket-unusable",
            EngineError::TunMissing { .. } => "tun-missing",
            EngineError::TunForbidden { .. } => "tun-forbidden",
            EngineError::TunBusy { .. } => "tun-busy",
            EngineError::TunNameTaken { .. } => "interface-name-taken",
            EngineError::Tun { .. } => "tun-unusable",
            EngineError::NotTun { .. } | EngineError::OtherTun { .. } => "inherited-tun-unusable",
            EngineError::NotSocket { .. } | EngineError::OtherSocket { .. } => {
                "inherited-socket-unusable"
            }
            EngineError::NoSocket => "engine-without-socket",
            EngineError::Eventfd { .. } => "no-eventfd",
            EngineError::Thread { .. } => "no-thread",
        }
    }

    fn detail(&self) -> Detail {
        match self {
            EngineError::PortTaken { address, .. } => Detail::PortTaken {
                number: address.port(),
                udp: true,
                purpose: PortPurpose::Tunnel,
            },
            _ => Detail::None,
        }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::PortTaken { address, rival } => write!(
                f,
                "cannot bind UDP {address}: another program (`ss -lunp sport = :{}`), another flanneld, or {} uses the port. Stop the program or delete the interface, or set another {} in the Backend of the network configuration",
                address.port(),
                rival.interface,
                rival.key
            ),
            EngineError::Bind { address, errno } => write!(f, "cannot bind UDP {address}: {errno}"),
            EngineError::BindSender { address, errno } => {
                write!(f, "cannot bind a UDP socket to {address}: {errno}")
            }
            EngineError::TunMissing { errno } => {
                write!(
                    f,
                    "{errno} (/dev/net/tun); load the kernel module tun (modprobe tun), or give the container the device /dev/net/tun"
                )
            }
            EngineError::TunForbidden { errno } => {
                write!(f, "{errno}; give flanneld CAP_NET_ADMIN and access to /dev/net/tun")
            }
            EngineError::TunBusy { device, errno } => {
                write!(
                    f,
                    "{errno}: another process uses {device}, maybe another flanneld; find the process with `ip -d tuntap show` and stop it"
                )
            }
            EngineError::TunNameTaken { device, errno } => {
                write!(
                    f,
                    "{errno}: an interface {device} of another kind exists; check `ip -d link show {device}`, and rename or delete the interface"
                )
            }
            EngineError::Tun { errno } => write!(f, "{errno}"),
            EngineError::NotTun { device, errno } => {
                write!(f, "the inherited file for {device} is not a TUN device: {errno}")
            }
            EngineError::OtherTun { device, found } => {
                write!(f, "the inherited file for {device} belongs to {found}")
            }
            EngineError::NotSocket { errno } => {
                write!(f, "the inherited file is not a UDP socket: {errno}")
            }
            EngineError::OtherSocket { wanted, found } => {
                write!(f, "the inherited socket is bound to {found:?}, not to {wanted}")
            }
            EngineError::NoSocket => f.write_str("the engine has no socket"),
            EngineError::Eventfd { errno } => write!(f, "cannot create an eventfd: {errno}"),
            EngineError::Thread { errno } => write!(f, "cannot start a thread: {errno}"),
        }
    }
}

impl std::error::Error for EngineError {}

/// Error of configuring a WireGuard peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// Peer whose public key is of small order.
    WeakKey,
    /// Peer whose public key is the device's own key.
    OwnKey,
    /// Allowed IP of a peer that does not exist.
    NoPeer,
}

impl Coded for PeerError {
    fn code(&self) -> &'static str {
        match self {
            PeerError::WeakKey => "peer-key-weak",
            PeerError::OwnKey => "peer-key-own",
            PeerError::NoPeer => "peer-unknown",
        }
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PeerError::WeakKey => {
                "the peer's public key is of small order: anyone could pretend to be the peer"
            }
            PeerError::OwnKey => "the peer's public key is this device's own key",
            PeerError::NoPeer => "no peer has the public key of this allowed IP",
        })
    }
}

impl std::error::Error for PeerError {}

/// Error for a name that is not a packet mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMode(pub String);

impl Coded for UnknownMode {
    fn code(&self) -> &'static str {
        "datapath-unknown"
    }
}

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a mode: use offload, mmsg or plain, or omit the mode for the fastest available mode",
            self.0
        )
    }
}

impl std::error::Error for UnknownMode {}
