//! Host resources that only one daemon can hold: device names, VNIs, UDP ports, and the traffic rules for a network.

use super::error::{Resource, report_host, report_taken};
use super::lent;
use super::names::{HoldError, Name, hold, named};
use super::running::foreign_flanneld;
use super::sockets::{SLOTS, TAKEN, slot_names, slot_of};
use crate::replace::write_public;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use types::file::{self, Links};
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

/// The number in the names of this daemon's traffic rules. The daemon holds it until it drops this value or ends.
#[derive(Debug)]
pub struct RuleSlot {
    pub number: u16,
    _socket: UnixListener,
    record: PathBuf,
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

/// The path of the file with the slot of the last daemon with this subnet.env. The file exists only if the slot is not 0.
pub fn slot_path(subnet_file: &Path) -> PathBuf {
    let mut path = subnet_file.as_os_str().to_owned();
    path.push(".slot");
    path.into()
}

/// Claims the slot of the last daemon with this subnet.env, or else the first free one. Slot 0 has Go flannel's names,
/// so it is free only while no Go flannel runs on this host.
pub fn take_slot(subnet_file: &Path) -> Result<RuleSlot, Problem> {
    let host = |why: io::Error| {
        report_host("binding the abstract socket that reserves a slot for traffic rules", &why)
    };
    let record = slot_path(subnet_file);
    let last = file::read(&record, 16, Links::Refused).ok();
    let last = last.and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok());
    let is_first_free = !foreign_flanneld();
    for number in last.into_iter().chain(0..u16::MAX).filter(|slot| *slot > 0 || is_first_free) {
        if let Some(socket) = hold_slot(number).map_err(host)? {
            let slot = RuleSlot { number, _socket: socket, record };
            slot.write_record();
            return Ok(slot);
        }
    }
    Err(host(io::Error::from(io::ErrorKind::AddrInUse)))
}

/// `None` if another daemon holds the slot.
fn hold_slot(number: u16) -> io::Result<Option<UnixListener>> {
    match hold(&format!("{SLOTS}{number}"), "would have occupied a slot for traffic rules") {
        Ok(socket) => Ok(Some(socket)),
        Err(HoldError::Held(_)) => Ok(None),
        Err(HoldError::Host(why)) => Err(why),
    }
}

impl RuleSlot {
    /// Exchanges the slot for slot 0. False if another daemon, or Go flannel, uses slot 0.
    pub fn move_to_first(&mut self) -> bool {
        if foreign_flanneld() {
            return false;
        }
        let held = hold_slot(0).inspect_err(|error| {
            tracing::debug!(error = %error, "cannot reserve slot 0 for traffic rules");
        });
        let Ok(Some(socket)) = held else {
            return false;
        };
        (self.number, self._socket) = (0, socket);
        self.write_record();
        true
    }

    /// The daemon works without the record: its next start may rename its rules.
    fn write_record(&self) {
        let written = match self.number {
            0 => match std::fs::remove_file(&self.record) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
            number => write_public(&self.record, number.to_string().as_bytes()),
        };
        if let Err(error) = written {
            tracing::debug!(path = %self.record.display(), error = %error, "cannot record the slot");
        }
    }
}

/// The slots of all flannel-rs daemons in this network namespace.
pub fn slots() -> BTreeSet<u16> {
    slot_names().iter().filter_map(slot_of).collect()
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
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("subnet.env");
        let free = take_slot(&file).unwrap().number;
        let guard = format!("{SLOTS}{free}");
        let _squat = super::super::tests::held_by_nobody(
            &names.into_iter().chain([guard.as_str()]).collect::<Vec<_>>(),
        );
        assert_eq!(tunnel_on(PORT), None);
        assert!(!slots().contains(&free));
        let slot = take_slot(&file).unwrap();
        assert!(slot.number <= free && slots().contains(&slot.number));
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

    /// In a network namespace of its own, so that no other test holds a slot.
    #[test]
    fn slot_stays_over_restarts_and_slot_0_is_left_to_go_flannel() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let test = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let [one, two] = ["one.env", "two.env"].map(|name| folder.path().join(name));
            let first = take_slot(&one).unwrap();
            let mut second = take_slot(&two).unwrap();
            assert_eq!((first.number, second.number), (0, 1));
            assert_eq!((slot_path(&one).exists(), slot_path(&two).exists()), (false, true));
            assert!(!second.move_to_first(), "slot 0 is held");
            drop((first, second));
            // The second daemon starts before the first one.
            second = take_slot(&two).unwrap();
            let first = take_slot(&one).unwrap();
            assert_eq!((first.number, second.number), (0, 1));
            assert_eq!(slots(), [0, 1].into());
            drop(first);

            let go = folder.path().join("flanneld");
            std::fs::copy("/bin/sleep", &go).unwrap();
            let mut go = std::process::Command::new(go).arg("60").spawn().unwrap();
            // The process has this name once it executes the program.
            while !foreign_flanneld() {
                std::thread::yield_now();
            }
            assert_eq!(take_slot(&one).unwrap().number, 2);
            assert!(!second.move_to_first());
            go.kill().unwrap();
            go.wait().unwrap();
            assert!(second.move_to_first() && second.number == 0);
            assert!(!slot_path(&two).exists());
            // A file that does not have a slot.
            std::fs::write(slot_path(&two), "x").unwrap();
            drop(second);
            assert_eq!(take_slot(&two).unwrap().number, 0);
        };
        std::thread::spawn(test).join().unwrap();
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
