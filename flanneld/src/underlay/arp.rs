//! Checks with ARP requests whether other hosts are on a link. VirtualBox and QEMU give each machine a NAT network, on
//! which no other host replies.

use super::facts::HostFacts;
use super::whose::nat_network;
use netstate::host::Interface;
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
        let others = hosts
            .iter()
            .filter(|ip| net.contains(*ip) && facts.owner(**ip).is_none());
        let router = facts
            .defaults
            .iter()
            .filter(|route| route.index == Some(interface.index))
            .filter_map(|route| route.via);
        let routers: Vec<IpAddr> = router.collect();
        let asked: Vec<IpAddr> = others
            .filter(|ip| !routers.contains(ip))
            .take(ASKED)
            .copied()
            .collect();
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
