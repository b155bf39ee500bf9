//! Multicast: socket options of senders and receivers, and the kernel's multicast routes. The kernel removes a route when the program closes the
//! socket that added it.

#![allow(unsafe_code, reason = "these socket options have no safe wrapper in nix or std")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};
use nix::libc;
use nix::net::if_::if_nametoindex;

use crate::net::netns::Netns;

/// `MRT_INIT`, `MRT_ADD_VIF`, `MRT_ADD_MFC` (include/uapi/linux/mroute.h). The IPv6 options have the same numbers (mroute6.h).
const INIT: i32 = 200;
const ADD_INTERFACE: i32 = 202;
const ADD_ROUTE: i32 = 204;
/// `VIFF_USE_IFINDEX`: the request contains the index of the interface.
const BY_INDEX: u8 = 8;
/// The kernel forwards only multicast packets with a larger TTL or hop limit.
const THRESHOLD: u8 = 1;
/// The kernel's maximum (`MAXVIFS`, `MAXMIFS`).
const INTERFACES: usize = 32;

/// Of one address family in a namespace. A drop removes the routes.
#[derive(Debug)]
pub struct MulticastRoutes {
    socket: OwnedFd,
    level: i32,
    interfaces: Vec<String>,
}

impl MulticastRoutes {
    /// The namespace routes multicast between these interfaces.
    pub fn enable_on_interfaces(
        netns: &Netns,
        v6: bool,
        interfaces: &[&str],
    ) -> Result<MulticastRoutes> {
        let make = || -> Result<MulticastRoutes> {
            let (domain, protocol, level) = match v6 {
                false => (libc::AF_INET, libc::IPPROTO_IGMP, libc::IPPROTO_IP),
                true => (libc::AF_INET6, libc::IPPROTO_ICMPV6, libc::IPPROTO_IPV6),
            };
            // SAFETY: socket() takes three integers.
            let descriptor =
                unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
            if descriptor < 0 {
                return Err(io::Error::last_os_error()).context("a raw socket");
            }
            // SAFETY: the descriptor is new and has no other owner.
            let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
            let names = interfaces.iter().map(|name| (*name).to_owned()).collect();
            let routes = MulticastRoutes { socket, level, interfaces: names };
            routes.set(INIT, &1i32.to_ne_bytes()).context("this kernel routes no multicast")?;
            for (number, interface) in (0u16..).zip(interfaces) {
                routes
                    .set(
                        ADD_INTERFACE,
                        &routes.interface_request_bytes(number, if_nametoindex(*interface)?)?,
                    )
                    .with_context(|| (*interface).to_owned())?;
            }
            Ok(routes)
        };
        netns.run(make)?.with_context(|| format!("multicast routes in {}", netns.name()))
    }

    /// The kernel forwards the source's packets to the group from the interface `from` to `to`. Both must be among those of
    /// [`MulticastRoutes::enable_on_interfaces`].
    pub fn add(&self, source: IpAddr, group: IpAddr, from: &str, to: &str) -> Result<()> {
        let number = |name: &str| {
            self.interfaces
                .iter()
                .position(|known| known == name)
                .with_context(|| format!("{name} is not one of {self:?}"))
        };
        let (from, to) = (number(from)?, number(to)?);
        let parent = u16::try_from(from)?.to_ne_bytes();
        let route = match (source, group) {
            (IpAddr::V4(source), IpAddr::V4(group)) => {
                // struct mfcctl: origin, group, parent, a threshold for each interface, four counters.
                let mut thresholds = [0u8; INTERFACES];
                *thresholds.get_mut(to).context("too many interfaces")? = THRESHOLD;
                [&source.octets()[..], &group.octets(), &parent, &thresholds, &[0; 2], &[0; 16]]
                    .concat()
            }
            (IpAddr::V6(source), IpAddr::V6(group)) => {
                // struct mf6cctl: origin, group, parent, a bit for each of 256 interfaces.
                let mut bits = [0u8; 32];
                bits.get_mut(..4).context("bits")?.copy_from_slice(&(1u32 << to).to_ne_bytes());
                [
                    &sockaddr_in6_bytes(source)[..],
                    &sockaddr_in6_bytes(group),
                    &parent,
                    &[0; 2],
                    &bits,
                ]
                .concat()
            }
            _ => bail!("{source} and {group} are of different families"),
        };
        self.set(ADD_ROUTE, &route)
            .with_context(|| format!("cannot add a multicast route of {source} to {group}"))
    }

    /// `struct vifctl`, or `struct mif6ctl` for IPv6.
    fn interface_request_bytes(&self, number: u16, index: u32) -> Result<Vec<u8>> {
        let head = [
            &number.to_ne_bytes()[..],
            &[if self.level == libc::IPPROTO_IP { BY_INDEX } else { 0 }, THRESHOLD],
        ]
        .concat();
        Ok(if self.level == libc::IPPROTO_IP {
            [&head[..], &[0; 4], &index.to_ne_bytes(), &[0; 4]].concat()
        } else {
            [&head[..], &u16::try_from(index)?.to_ne_bytes(), &[0; 2], &[0; 4]].concat()
        })
    }

    fn set(&self, option: i32, value: &[u8]) -> io::Result<()> {
        set_socket_option(&self.socket, self.level, option, value)
    }
}

/// `struct sockaddr_in6` without port, flow and scope.
fn sockaddr_in6_bytes(address: Ipv6Addr) -> Vec<u8> {
    let family = libc::AF_INET6 as u16;
    [&family.to_ne_bytes()[..], &[0; 6], &address.octets(), &[0; 4]].concat()
}

/// `index` selects the interface, because std identifies IPv4 interfaces only by their addresses.
pub(crate) fn join_v4(socket: &UdpSocket, group: Ipv4Addr, index: u32) -> io::Result<()> {
    // struct ip_mreqn: group, address, index.
    set_socket_option(
        socket,
        libc::IPPROTO_IP,
        libc::IP_ADD_MEMBERSHIP,
        &[&group.octets()[..], &[0; 4], &index.to_ne_bytes()].concat(),
    )
}

/// Applies to packets to groups of this family.
pub(crate) fn set_multicast_hops(socket: &UdpSocket, group: IpAddr, hops: u8) -> io::Result<()> {
    match group {
        IpAddr::V4(_) => socket.set_multicast_ttl_v4(u32::from(hops)),
        IpAddr::V6(_) => set_socket_option(
            socket,
            libc::IPPROTO_IPV6,
            libc::IPV6_MULTICAST_HOPS,
            &i32::from(hops).to_ne_bytes(),
        ),
    }
}

fn set_socket_option(socket: &impl AsFd, level: i32, option: i32, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: the pointer and the length come from a slice that outlives the call.
    let result = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, value.as_ptr().cast(), length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
