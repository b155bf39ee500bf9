//! What a daemon takes of the host so that no other has it beside it: device names, VNIs, UDP ports, the rules about its networks.

use super::InstanceError;
use super::sockets::{GUARDS, TAKEN, named, owner};
use std::collections::BTreeSet;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use subnet_lease::Subnets;

/// What a network needs for itself alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// The names of its devices.
    pub devices: Vec<String>,
    /// Tunnel ends that the kernel has once only, in words.
    pub tunnels: Vec<String>,
    /// Its UDP ports.
    pub ports: Vec<u16>,
    /// Whether others that share these ports, too, can use them beside it.
    pub shares_ports: bool,
}

/// What this daemon has taken of the host, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Taken {
    _sockets: Vec<UnixListener>,
}

/// The place for this daemon's guard of its encapsulation port, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct GuardPlace {
    /// Its number.
    pub number: u16,
    _socket: UnixListener,
}

/// Takes what the network needs for itself alone: the rules about it, device names, VNIs, the UDP port.
///
/// # Errors
/// Names the process that has one of them, and its network.
pub fn take(networks: &Subnets, wants: &Wants) -> Result<Taken, InstanceError> {
    const CHANGE: &str = "set another VNI in the Backend of one network configuration";
    const PORT: &str = "set another Port in the Backend of one network configuration";
    let mut sockets = Vec::new();
    let mut bind = |what: String, name: String, remedy| {
        let host = |why| InstanceError::Host { what: format!("binding the abstract socket of {what}"), why };
        let name = format!("{TAKEN}{name}");
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).map_err(host)?) {
            Ok(socket) => sockets.push(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(InstanceError::Taken { what, holder: owner(name.as_bytes()), remedy });
            }
            Err(error) => return Err(host(error)),
        }
        Ok(())
    };
    for network in networks.nets() {
        bind(format!("the rules about {network}"), format!("network/{network}"), "give one of them another Network")?;
    }
    for tunnel in &wants.tunnels {
        bind(tunnel.clone(), format!("tunnel/{tunnel}"), CHANGE)?;
    }
    for device in &wants.devices {
        let remedy = if device.contains('.') { CHANGE } else { "choose another Backend for one of them" };
        bind(format!("the device {device}"), format!("device/{device}"), remedy)?;
    }
    for port in &wants.ports {
        let what = format!("UDP port {port}");
        let alone = format!("port/{port}/alone");
        let other = |names: &[String]| names.iter().find(|name| name.starts_with(&format!("{TAKEN}port/{port}/"))).cloned();
        let taken = |name: String| InstanceError::Taken { what: what.clone(), holder: owner(name.as_bytes()), remedy: PORT };
        // First taken, then looked: of two that come at once, at most one goes on.
        if wants.shares_ports {
            bind(what.clone(), format!("port/{port}/{networks}"), PORT)?;
            let alone = format!("{TAKEN}{alone}");
            if named(TAKEN).contains(&alone) {
                return Err(taken(alone));
            }
        } else {
            bind(what.clone(), alone.clone(), PORT)?;
            let mut names = named(TAKEN);
            names.retain(|name| *name != format!("{TAKEN}{alone}"));
            if let Some(name) = other(&names) {
                return Err(taken(name));
            }
        }
    }
    Ok(Taken { _sockets: sockets })
}

/// Takes the first place for a guard that no other daemon has.
///
/// # Errors
/// The socket cannot be made.
pub fn take_guard_place() -> Result<GuardPlace, InstanceError> {
    let host = |why| InstanceError::Host { what: "binding the abstract socket of the port's guard".to_owned(), why };
    for number in 0..u16::MAX {
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("{GUARDS}{number}")).map_err(host)?) {
            Ok(_socket) => return Ok(GuardPlace { number, _socket }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(host(error)),
        }
    }
    Err(host(io::Error::from(io::ErrorKind::AddrInUse)))
}

/// The places of the guards of all our daemons in this network namespace.
pub fn guard_places() -> BTreeSet<u16> {
    named(GUARDS).iter().filter_map(|name| name.strip_prefix(GUARDS)?.parse().ok()).collect()
}
