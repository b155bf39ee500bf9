//! Checks with ARP requests whether other hosts are on a link. VirtualBox and QEMU give each machine a NAT network, on
//! which no other host replies.

use super::facts::HostFacts;
use super::whose::nat_network;
use futures_util::future::join_all;
use ipnet::IpNet;
use netstate::host::{Interface, Route};
use netstate::names::Mac;
use netstate::netlink::host::HostReader;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;
use tokio::time::Instant;
use tracing::debug;

/// Maximum number of addresses for which this node sends ARP requests on one link.
const ASKED: usize = 16;
/// Time for which this node waits for ARP replies. The kernel repeats an ARP request after one second.
const ANSWER: Duration = Duration::from_millis(2200);
/// Interval at which this node reads the neighbour table while waiting for ARP replies.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// UDP port of the service `discard`.
const DISCARD: u16 = 9;

/// Returns the hosts that reply to ARP, each with the index of the interface. Sends ARP requests only on interfaces
/// that may be behind a machine's own NAT.
pub(super) async fn answering(
    reader: &mut HostReader,
    facts: &HostFacts,
    hosts: &[IpAddr],
) -> Vec<(u32, IpAddr)> {
    let mut found = Vec::new();
    for interface in &facts.interfaces {
        let Some(net) = nat_network(interface, facts) else {
            continue;
        };
        let asked = askable(facts, interface, &net, hosts);
        if !asked.is_empty() {
            found.extend(
                ask(reader, interface, net.addr(), &asked)
                    .await
                    .map(|ip| (interface.index, ip)),
            );
        }
    }
    found
}

/// Returns the hosts of a network of an interface that are neither this host nor a router. A machine's own NAT has only a router.
fn askable(facts: &HostFacts, interface: &Interface, net: &IpNet, hosts: &[IpAddr]) -> Vec<IpAddr> {
    let is_router = |ip: &IpAddr| {
        let at = |route: &Route| route.index == Some(interface.index) && route.via == Some(*ip);
        facts.defaults.iter().any(at)
    };
    let others = hosts
        .iter()
        .filter(|ip| net.contains(*ip) && facts.owner(**ip).is_none() && !is_router(ip));
    others.take(ASKED).copied().collect()
}

/// Returns those of this host's addresses that certainly no other host has: a host in `hosts` answers on the link of the
/// address, and nobody answers at the address. Where nobody can answer, as on a machine's own NAT, nothing is certain.
pub(super) async fn unshared(facts: &HostFacts, own: &[IpAddr], hosts: &[IpAddr]) -> Vec<IpAddr> {
    let macs: &Vec<Mac> = &facts.interfaces.iter().filter_map(|own| own.mac).collect();
    let asked = own.iter().map(|ip| async move {
        let interface = facts.owner(*ip).filter(|interface| !interface.noarp)?;
        let net = interface.nets().find(|net| net.addr() == *ip)?;
        let mut asked = askable(facts, interface, &net, hosts);
        if asked.is_empty() {
            return None;
        }
        asked.push(*ip);
        let (link, from, macs) = (interface.index, interface.mac?, macs.to_vec());
        let ask = move || netstate::arp::holders(link, from, &macs, &asked, ANSWER);
        match tokio::task::spawn_blocking(ask).await {
            Ok(Ok(found)) => {
                let is_shared = found.iter().any(|(at, _)| at == ip);
                (!is_shared && !found.is_empty()).then_some(*ip)
            }
            Ok(Err(error)) => {
                debug!(address = %ip, interface = interface.name, error = %error, "cannot ask on the link who has an address");
                None
            }
            Err(_) => None,
        }
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// Returns the first address in `asked` that replies to ARP. One reply proves that the link connects hosts.
async fn ask(
    reader: &mut HostReader,
    interface: &Interface,
    source: IpAddr,
    asked: &[IpAddr],
) -> Option<IpAddr> {
    // An empty datagram makes the kernel send an ARP request.
    match UdpSocket::bind((source, 0)) {
        Ok(socket) => {
            for ip in asked {
                if let Err(error) = socket.send_to(&[], (*ip, DISCARD)) {
                    debug!(
                        address = %ip,
                        interface = interface.name,
                        error = %error,
                        "cannot send a packet that triggers an ARP request"
                    );
                }
            }
        }
        Err(error) => {
            debug!(interface = interface.name, error = %error, "cannot open a socket to trigger ARP requests");
        }
    }
    let until = Instant::now() + ANSWER;
    loop {
        let known = reader.answered(interface.index).await.unwrap_or_default();
        if let Some(ip) = known.into_iter().find(|ip| asked.contains(ip)) {
            return Some(ip);
        }
        if Instant::now() >= until {
            return None;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
