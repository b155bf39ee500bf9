//! Errors of opening or changing an engine.

use crate::packet::framing::Rival;
use std::net::{IpAddr, SocketAddr};
use thiserror::Error;
use types::problem::PortPurpose;
use types::{Coded, Detail, Errno};

/// Error of opening an engine or of adopting the files of a previous process.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum EngineError {
    /// `rival` is the kind of interface that may use the port.
    #[error(
        "cannot bind UDP {address}: another program (`ss -lunp sport = :{}`), another flanneld, or {} uses the port. Stop the program or delete the interface, or set another {} in the Backend of the network configuration",
        .address.port(), .rival.interface, .rival.key
    )]
    #[code("tunnel-port-taken")]
    #[detail(Detail::PortTaken { number: address.port(), udp: true, purpose: PortPurpose::Tunnel })]
    PortTaken { address: SocketAddr, rival: Rival },
    #[error("cannot bind UDP {address}: {errno}")]
    #[code("tunnel-port-unusable")]
    Bind { address: SocketAddr, errno: Errno },
    /// The socket only sends.
    #[error("cannot bind a UDP socket to {address}: {errno}")]
    #[code("socket-unusable")]
    BindSender { address: IpAddr, errno: Errno },
    /// The kernel lacks TUN devices, or the container lacks access to them.
    #[error(
        "{errno} (/dev/net/tun); load the kernel module tun (modprobe tun), or give the container the device /dev/net/tun"
    )]
    TunMissing { errno: Errno },
    #[error("{errno}; give flanneld CAP_NET_ADMIN and access to /dev/net/tun")]
    TunForbidden { errno: Errno },
    #[error(
        "{errno}: another process uses {device}, maybe another flanneld; find the process with `ip -d tuntap show` and stop it"
    )]
    TunBusy { device: String, errno: Errno },
    #[error(
        "{errno}: an interface {device} of another kind exists; check `ip -d link show {device}`, and rename or delete the interface"
    )]
    #[code("interface-name-taken")]
    TunNameTaken { device: String, errno: Errno },
    #[error("{errno}")]
    #[code("tun-unusable")]
    Tun { errno: Errno },
    #[error("the inherited file for {device} is not a TUN device: {errno}")]
    #[code("inherited-tun-unusable")]
    NotTun { device: String, errno: Errno },
    #[error("the inherited file for {device} belongs to {found}")]
    #[code("inherited-tun-unusable")]
    OtherTun { device: String, found: String },
    #[error("the inherited file is not a UDP socket: {errno}")]
    #[code("inherited-socket-unusable")]
    NotSocket { errno: Errno },
    /// `found` is `None` if the socket is bound to no IP address.
    #[error("the inherited socket is bound to {found:?}, not to {wanted}")]
    #[code("inherited-socket-unusable")]
    OtherSocket { wanted: SocketAddr, found: Option<SocketAddr> },
    #[error("the engine has no socket")]
    #[code("engine-without-socket")]
    NoSocket,
    #[error("cannot create an eventfd: {errno}")]
    #[code("no-eventfd")]
    Eventfd { errno: Errno },
    #[error("cannot start a thread: {errno}")]
    #[code("no-thread")]
    Thread { errno: Errno },
}
