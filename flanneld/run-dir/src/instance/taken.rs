//! Host resources that only one daemon can hold: device names, VNIs, UDP ports, and the rules for a network.

use super::InstanceError;
use super::lent;
use super::sockets::{GUARDS, TAKEN, named, owner};
use std::collections::BTreeSet;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use subnet_lease::Subnets;

/// Resources that a network needs exclusively.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// The names of its devices.
    pub devices: Vec<String>,
    /// Descriptions of tunnel endpoints that the kernel allows only once.
    pub tunnels: Vec<String>,
    /// Its UDP ports.
    pub ports: Vec<u16>,
    /// Whether other networks that also share these ports may use them at the same time.
    pub shares_ports: bool,
}

/// The host resources that this daemon holds until this is dropped or the process ends.
#[derive(Debug)]
pub struct Taken {
    _sockets: Vec<UnixListener>,
}

/// The slot for this daemon's guard of its encapsulation port. Held until it is dropped or the process ends.
#[derive(Debug)]
pub struct GuardSlot {
    /// The number of the slot.
    pub number: u16,
    _socket: UnixListener,
}

/// Claims the resources that the network needs exclusively: its rules, device names, VNIs and UDP port.
///
/// # Errors
/// Names the process that holds one of them, and its network.
pub fn take(networks: &Subnets, wants: &Wants) -> Result<Taken, InstanceError> {
    const CHANGE: &str = "set another VNI in the Backend of one network configuration";
    const PORT: &str = "set another Port (ListenPort with wireguard) in the Backend of one network configuration";
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
        bind(format!("the rules for {network}"), format!("network/{network}"), "give one of them another Network")?;
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
        // Claim first, then check: of two daemons that start at once, at most one proceeds.
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
        lent::ask_back(*port);
    }
    Ok(Taken { _sockets: sockets })
}

/// Claims the first free guard slot.
///
/// # Errors
/// The socket cannot be created.
pub fn take_guard_slot() -> Result<GuardSlot, InstanceError> {
    let host = |why| InstanceError::Host { what: "binding the abstract socket of the port's guard".to_owned(), why };
    for number in 0..u16::MAX {
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("{GUARDS}{number}")).map_err(host)?) {
            Ok(_socket) => return Ok(GuardSlot { number, _socket }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(host(error)),
        }
    }
    Err(host(io::Error::from(io::ErrorKind::AddrInUse)))
}

/// The guard slots of all our daemons in this network namespace.
pub fn guard_slots() -> BTreeSet<u16> {
    named(GUARDS).iter().filter_map(|name| name.strip_prefix(GUARDS)?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::lent::{borrow, tunnel_on};
    use super::*;
    use subnet_lease::Dual;

    #[test]
    fn a_tunnel_asks_for_its_port() {
        const PORT: u16 = 61_473;
        let listener = borrow(PORT).unwrap();
        assert!(listener.accept().is_err() && tunnel_on(PORT).is_none());
        for shares_ports in [true, false] {
            let wants = Wants { ports: vec![PORT], shares_ports, ..Wants::default() };
            let taken = take(&Dual::V4("10.97.0.0/16".parse().unwrap()), &wants).unwrap();
            listener.accept().unwrap();
            assert!(tunnel_on(PORT).unwrap().contains(&format!("pid {}", std::process::id())));
            assert!(tunnel_on(PORT - 1).is_none());
            drop(taken);
            assert!(tunnel_on(PORT).is_none());
        }
        // Another port is none of its business.
        let wants = Wants { ports: vec![PORT + 1], ..Wants::default() };
        let _taken = take(&Dual::V4("10.97.0.0/16".parse().unwrap()), &wants).unwrap();
        assert!(listener.accept().is_err());
    }
}
