//! Asks on links who has an address, with ARP and neighbour discovery. VirtualBox and QEMU give each machine a NAT
//! network, on which no other host replies.

use super::facts::HostFacts;
use super::whose::nat_network;
use futures_util::future::join_all;
use ipnet::IpNet;
use netstate::host::Interface;
use netstate::names::Mac;
use std::net::IpAddr;
use std::time::Duration;
use tracing::debug;

/// Maximum number of addresses for which this node asks on one link.
const ASKED: usize = 16;
/// Time for which this node waits for replies.
const ANSWER: Duration = Duration::from_millis(2200);

/// The hosts that reply on interfaces that may be behind a machine's own NAT, each with the index of the interface.
pub(super) async fn answering(facts: &HostFacts, hosts: &[IpAddr]) -> Vec<(u32, IpAddr)> {
    let asked = facts.interfaces.iter().map(|interface| async move {
        let net = nat_network(interface, facts)?;
        // One reply proves that the link connects hosts.
        let found = ask(facts, interface, askable(facts, interface, &net, hosts), 1).await;
        Some((interface.index, *found?.first()?))
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// The hosts of a network of an interface that are neither this host nor a router. A machine's own NAT has only a
/// router.
fn askable(facts: &HostFacts, interface: &Interface, net: &IpNet, hosts: &[IpAddr]) -> Vec<IpAddr> {
    let is_router = |ip: &IpAddr| {
        let mut routes = facts.defaults.iter();
        routes.any(|route| route.index == interface.index && route.via == Some(*ip))
    };
    let others = hosts
        .iter()
        .filter(|ip| net.contains(*ip) && facts.owner(**ip).is_none() && !is_router(ip));
    others.take(ASKED).copied().collect()
}

/// Those of this host's addresses that certainly no other host has: a host in `hosts` answers on the link of the
/// address, and nobody answers at the address. Where nobody can answer, as on a machine's own NAT, nothing is
/// certain.
pub(super) async fn unshared(facts: &HostFacts, own: &[IpAddr], hosts: &[IpAddr]) -> Vec<IpAddr> {
    let asked = own.iter().map(|ip| async move {
        let interface = facts.owner(*ip).filter(|interface| !interface.noarp)?;
        let net = interface.nets().find(|net| net.addr() == *ip)?;
        let mut asked = askable(facts, interface, &net, hosts);
        if asked.is_empty() {
            return None;
        }
        asked.push(*ip);
        let all = asked.len();
        let found = ask(facts, interface, asked, all).await?;
        (!found.is_empty() && !found.contains(ip)).then_some(*ip)
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// The addresses at which other hosts reply, after at most `enough` replies; `None` if this node cannot ask.
async fn ask(
    facts: &HostFacts,
    interface: &Interface,
    asked: Vec<IpAddr>,
    enough: usize,
) -> Option<Vec<IpAddr>> {
    let enough = enough.min(asked.len());
    let own: Vec<Mac> = facts.interfaces.iter().filter_map(|own| own.mac).collect();
    let (link, from) = (interface.index, interface.mac?);
    let ask = move || netstate::host::arp::find_holders(link, from, &own, &asked, enough, ANSWER);
    match tokio::task::spawn_blocking(ask).await {
        Ok(Ok(found)) => Some(found.into_iter().map(|(ip, _)| ip).collect()),
        Ok(Err(error)) => {
            debug!(interface = interface.name, error = %error, "cannot ask on the link who has an address");
            None
        }
        Err(_) => None,
    }
}
