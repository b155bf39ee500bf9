//! Interfaces, routes and ways, as the kernel tells them.

use crate::fact::Fact;
use crate::facts::host::{Interface, Route, Way, WayKind};
use futures_util::{StreamExt, TryStreamExt};
use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType, RouteVia};
use rtnetlink::{Handle, RouteMessageBuilder};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address whose way is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address.
    pub to: IpAddr,
    /// Whose it is.
    pub whose: String,
    /// What it is.
    pub kind: WayKind,
}

/// Reads all of it. What the kernel does not tell is unavailable, each for itself.
pub(super) async fn read(targets: &[Target]) -> (Fact<Vec<Interface>>, Fact<Vec<Route>>, Fact<Vec<Way>>) {
    let (connection, handle, _) = match rtnetlink::new_connection() {
        Ok(opened) => opened,
        Err(error) => {
            let why = format!("no netlink socket: {error}");
            return (Fact::unavailable(&why), Fact::unavailable(&why), Fact::unavailable(&why));
        }
    };
    let task = tokio::spawn(connection);
    let interfaces = Fact::from_result(interfaces(&handle).await.map_err(|error| format!("the interfaces cannot be read (netlink): {error}")));
    let routes = Fact::from_result(routes(&handle).await.map_err(|error| format!("the routes cannot be read (netlink): {error}")));
    let mut ways = Vec::new();
    for target in targets {
        let by = look_up(&handle, target.to).await;
        ways.push(Way { to: target.to, whose: target.whose.clone(), kind: target.kind, by });
    }
    task.abort();
    (interfaces, routes, Fact::Known(ways))
}

async fn interfaces(handle: &Handle) -> Result<Vec<Interface>, rtnetlink::Error> {
    let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
    let addresses: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
    let mut interfaces: Vec<Interface> = links.iter().map(interface).collect();
    interfaces.sort_by_key(|interface| interface.index);
    for message in &addresses {
        if let Some(interface) = interfaces.iter_mut().find(|interface| interface.index == message.header.index) {
            interface.addresses.extend(address(message));
        }
    }
    Ok(interfaces)
}

fn interface(link: &LinkMessage) -> Interface {
    let flags = link.header.flags;
    let mut out = Interface {
        index: link.header.index,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        loopback: flags.contains(LinkFlags::Loopback),
        ..Interface::default()
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => out.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => out.mtu = *mtu,
            LinkAttribute::Controller(index) => out.master = Some(*index),
            LinkAttribute::Address(bytes) => out.mac = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"),
            LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|info| kind(info, &mut out)),
            _ => {}
        }
    }
    out
}

fn kind(info: &LinkInfo, out: &mut Interface) {
    match info {
        LinkInfo::Kind(kind) => out.kind = kind.to_string(),
        LinkInfo::Data(InfoData::Vxlan(values)) => {
            let vni = values.iter().find_map(|value| if let InfoVxlan::Id(vni) = value { Some(*vni) } else { None });
            let port = values.iter().find_map(|value| if let InfoVxlan::Port(port) = value { Some(*port) } else { None });
            out.vxlan = vni.zip(port);
        }
        _ => {}
    }
}

fn address(message: &AddressMessage) -> Option<IpNet> {
    let (mut local, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link the first is ours and the second the peer's; otherwise IPv6 has only the second.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => peer = Some(*ip),
            _ => {}
        }
    }
    IpNet::new(local.or(peer)?, message.header.prefix_len).ok()
}

async fn routes(handle: &Handle) -> Result<Vec<Route>, rtnetlink::Error> {
    let mut found = Vec::new();
    for (ipv6, query) in [(false, RouteMessageBuilder::<Ipv4Addr>::new().build()), (true, RouteMessageBuilder::<Ipv6Addr>::new().build())] {
        let mut routes = Box::pin(handle.route().get(query).execute());
        while let Some(route) = routes.next().await {
            match route {
                Ok(message) => found.extend(route_of(ipv6, &message)),
                // A kernel without IPv6 refuses its dump.
                Err(_) if ipv6 => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
}

fn plain(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

fn route_of(ipv6: bool, message: &RouteMessage) -> Option<Route> {
    let mut table = u32::from(message.header.table);
    let any = if ipv6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    let (mut to, mut via, mut index, mut metric) = (any, None, None, 0);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(address) => to = plain(address)?,
            RouteAttribute::Gateway(address) => via = plain(address),
            RouteAttribute::Via(RouteVia::Inet6(address)) => via = Some(IpAddr::V6(*address)),
            RouteAttribute::Oif(number) => index = Some(*number),
            RouteAttribute::Priority(number) => metric = *number,
            _ => {}
        }
    }
    if table != u32::from(RouteHeader::RT_TABLE_MAIN) || message.header.kind != RouteType::Unicast {
        return None;
    }
    let to = IpNet::new(to, message.header.destination_prefix_length).ok()?;
    Some(Route { to, via, index, protocol: message.header.protocol.into(), metric })
}

/// Where the kernel would send a packet to an address.
async fn look_up(handle: &Handle, target: IpAddr) -> Result<(u32, Option<IpAddr>), String> {
    let query = match target {
        IpAddr::V4(ip) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(ip, 32).build(),
        IpAddr::V6(ip) => RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(ip, 128).build(),
    };
    let route = match Box::pin(handle.route().get(query).execute()).next().await {
        Some(Ok(route)) => route,
        Some(Err(error)) => return Err(error.to_string()),
        None => return Err("the kernel gave no answer".to_owned()),
    };
    let index = route.attributes.iter().find_map(|attribute| if let RouteAttribute::Oif(index) = attribute { Some(*index) } else { None });
    let source =
        route.attributes.iter().find_map(|attribute| if let RouteAttribute::PrefSource(address) = attribute { plain(address) } else { None });
    index.map(|index| (index, source)).ok_or_else(|| "the route has no outgoing interface".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn this_host_has_a_loopback_interface_and_a_way_to_itself() {
        let target = Target { to: IpAddr::V4(Ipv4Addr::LOCALHOST), whose: "this host".to_owned(), kind: WayKind::Peer };
        let (interfaces, routes, ways) = read(std::slice::from_ref(&target)).await;
        let lo = interfaces.known().unwrap().iter().find(|interface| interface.loopback).unwrap().clone();
        assert!(lo.owns(target.to) && lo.up && lo.mac == "00:00:00:00:00:00", "{lo:?}");
        assert_eq!(ways.known().unwrap()[0].by.as_ref().unwrap().0, lo.index);
        assert!(routes.known().is_some());
    }
}
