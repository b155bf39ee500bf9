//! Host resources that only one daemon can hold: device names, VNIs, UDP ports, and the traffic rules for a network.

use super::error::{Resource, report_host, report_taken};
use super::lent;
use super::names::{HoldError, Name, hold, named};
use super::sockets::{GUARDS, TAKEN};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::UnixListener;
use types::{Problem, Subnets};

/// What another user's claim would have done to this daemon.
const STOPPED: &str = "would have kept this daemon from starting";

/// Resources that a network needs exclusively.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    pub devices: Vec<String>,
    /// The kernel allows each tunnel endpoint only once.
    pub tunnels: Vec<String>,
    /// Of the network's tunnels.
    pub ports: Vec<u16>,
    /// Whether other networks may use the same ports; they must also set this field.
    pub shares_ports: bool,
}

/// Host resources that this daemon holds until it drops this value or ends.
#[derive(Debug)]
pub struct Taken {
    _sockets: Vec<UnixListener>,
}

/// Unique number of the rules by which this daemon protects its encapsulation port. The daemon holds it until it
/// drops this value or ends.
#[derive(Debug)]
pub struct GuardSlot {
    pub number: u16,
    _socket: UnixListener,
}

/// Claims the traffic rules, device names, VNIs and UDP port. Fails if another process holds a resource, or if this
/// process cannot create a socket. The error names the other process and its network.
pub fn take(networks: &Subnets, wants: &Wants) -> Result<Taken, Problem> {
    let mut sockets = Vec::new();
    let mut bind = |resource: &Resource, name: String| {
        match hold(&format!("{TAKEN}{name}"), STOPPED) {
            Ok(socket) => sockets.push(socket),
            Err(HoldError::Held(holder)) => return Err(report_taken(resource, &holder)),
            Err(HoldError::Host(why)) => {
                let claim = format!("binding the abstract socket of {resource}");
                return Err(report_host(claim, &why));
            }
        }
        Ok(())
    };
    for network in networks.nets() {
        bind(&Resource::Rules(network), format!("network/{network}"))?;
    }
    for tunnel in &wants.tunnels {
        bind(&Resource::Tunnel(tunnel.clone()), format!("tunnel/{tunnel}"))?;
    }
    for device in &wants.devices {
        bind(&Resource::Device(device.clone()), format!("device/{device}"))?;
    }
    for port in &wants.ports {
        let alone = format!("port/{port}/alone");
        let is_alone = |held: &Name| held.base().strip_prefix(TAKEN) == Some(&alone);
        // Claim first, then check: of two daemons that start at once, at most one proceeds.
        let name =
            if wants.shares_ports { format!("port/{port}/{networks}") } else { alone.clone() };
        let resource = Resource::Port(*port);
        bind(&resource, name)?;
        if let Some(holder) = named(&format!("{TAKEN}port/{port}/"), STOPPED)
            .into_iter()
            .find(|held| is_alone(held) == wants.shares_ports)
        {
            return Err(report_taken(&resource, &holder));
        }
        lent::ask_back(*port);
    }
    Ok(Taken { _sockets: sockets })
}

/// Claims the first free number.
pub fn take_guard_slot() -> Result<GuardSlot, Problem> {
    const CLAIM: &str = "binding the abstract socket that reserves a number for the rules of the encapsulation port";
    let host = |why: io::Error| report_host(CLAIM, &why);
    for number in 0..u16::MAX {
        match hold(
            &format!("{GUARDS}{number}"),
            "would have occupied a number for rules of an encapsulation port",
        ) {
            Ok(_socket) => return Ok(GuardSlot { number, _socket }),
            Err(HoldError::Held(_)) => {}
            Err(HoldError::Host(why)) => return Err(host(why)),
        }
    }
    Err(host(io::Error::from(io::ErrorKind::AddrInUse)))
}

/// The sockets that reserve numbers of encapsulation port rules, for all flannel-rs daemons in this network
/// namespace.
pub(super) fn guards() -> Vec<Name> {
    named(
        GUARDS,
        "would have prevented the removal of an ended daemon's rules for its encapsulation port",
    )
}

/// From the name of a socket.
pub(super) fn number(name: &Name) -> Option<u16> {
    name.base().strip_prefix(GUARDS)?.parse().ok()
}

/// The numbers that all flannel-rs daemons in this network namespace reserved for their encapsulation port rules.
pub fn guard_slots() -> BTreeSet<u16> {
    guards().iter().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::super::lent::{borrow, tunnel_on};
    use super::*;
    use types::Dual;

    #[test]
    fn names_of_another_user_take_no_resource() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        const PORT: u16 = 61_475;
        let wants = |shares_ports| Wants {
            devices: vec!["fl-test.7".to_owned()],
            tunnels: vec!["VNI 61475".to_owned()],
            ports: vec![PORT],
            shares_ports,
        };
        let network = Dual::V4("10.94.0.0/16".parse().unwrap());
        let taken = |name: &str| format!("{TAKEN}{name}");
        let lent = format!("{}{PORT}/{}", super::super::sockets::LENT, std::process::id());
        let names = [
            taken("network/10.94.0.0/16"),
            taken("tunnel/VNI 61475"),
            taken("device/fl-test.7"),
            taken("port/61475/alone"),
            taken("port/61475/x"),
        ];
        let names: Vec<&str> = names.iter().map(String::as_str).chain([lent.as_str()]).collect();
        let free = take_guard_slot().unwrap().number;
        let guard = format!("{GUARDS}{free}");
        let _squat = super::super::tests::held_by_nobody(
            &names.into_iter().chain([guard.as_str()]).collect::<Vec<_>>(),
        );
        assert_eq!(tunnel_on(PORT), None);
        assert!(!guard_slots().contains(&free));
        let slot = take_guard_slot().unwrap();
        assert!(slot.number <= free && guard_slots().contains(&slot.number));
        let listener = borrow(PORT).unwrap();
        for shares_ports in [true, false] {
            let taken = take(&network, &wants(shares_ports)).unwrap();
            listener.accept().unwrap();
            assert!(tunnel_on(PORT).unwrap().contains(&format!("pid {}", std::process::id())));
            let error = take(&network, &wants(shares_ports)).unwrap_err();
            assert_eq!(error.code, "rules-taken", "{error}");
            assert!(error.text.contains("the rules for 10.94.0.0/16 (pid "), "{error}");
            drop(taken);
        }
    }

    #[test]
    fn tunnel_asks_for_its_port() {
        const PORT: u16 = 61_473;
        let listener = borrow(PORT).unwrap();
        assert!(listener.accept().is_err() && tunnel_on(PORT).is_none());
        for shares_ports in [true, false] {
            let wants = Wants { ports: vec![PORT], shares_ports, ..Wants::default() };
            let taken = take(&Dual::V4("10.97.0.0/16".parse().unwrap()), &wants).unwrap();
            listener.accept().unwrap();
            assert!(tunnel_on(PORT).unwrap().contains(&format!("pid {}", std::process::id())));
            assert!(tunnel_on(PORT - 1).is_none());
            let other = take(
                &Dual::V4("10.93.0.0/16".parse().unwrap()),
                &Wants { ports: vec![PORT], ..Wants::default() },
            )
            .unwrap_err();
            let port = types::Detail::PortTaken {
                number: PORT,
                udp: true,
                purpose: types::problem::PortPurpose::Tunnel,
            };
            assert_eq!((&*other.code, &other.detail), ("port-taken", &port), "{other}");
            drop(taken);
            assert!(tunnel_on(PORT).is_none());
        }
        // A tunnel on another port does not request this port back.
        let wants = Wants { ports: vec![PORT + 1], ..Wants::default() };
        let _taken = take(&Dual::V4("10.97.0.0/16".parse().unwrap()), &wants).unwrap();
        assert!(listener.accept().is_err());
    }
}
