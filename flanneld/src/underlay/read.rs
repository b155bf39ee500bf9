//! Reads the facts from the kernel, waits for a missing interface, and follows the chosen one.

use super::arp;
use super::choice::{Chosen, SelectError};
use super::facts::{Address, DefaultRoute, HostFacts, Interface, Kind, RouteAnswer};
use super::follow::followed;
use super::found::Found;
use super::request::{Families, KnownAddresses, Request, StoreAt};
use super::select::select;
use super::trouble::{Alarm, elsewhere, trouble};
use backends::Underlay;
use futures_util::{Stream, StreamExt, TryStreamExt};
use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};
use options::Selector;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use subnet_lease::manager::NodeInfo;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// How long events are gathered before the kernel is read: a link that comes up sends several.
const SETTLE: Duration = Duration::from_millis(20);
/// How often the kernel is read without an event, in case one was lost.
const AUDIT: Duration = Duration::from_secs(30);
/// How often a wait checks without an event (a name server that answers again sends none).
const RETRY: Duration = Duration::from_secs(5);

/// Reading from the kernel failed.
#[derive(Debug, thiserror::Error)]
#[error("reading {what} from the kernel (netlink): {why}; is this process allowed to open netlink sockets?")]
pub struct ReadError {
    what: &'static str,
    why: String,
}

impl ReadError {
    fn of(what: &'static str) -> impl Fn(rtnetlink::Error) -> Self {
        move |error| Self { what, why: error.to_string() }
    }
}

/// A netlink socket. Dropping it ends its connection.
struct Socket<M> {
    handle: Handle,
    messages: M,
    task: tokio::task::JoinHandle<()>,
}

impl<M> Drop for Socket<M> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens a netlink socket that also receives the events of the groups.
fn open(groups: &[MulticastGroup]) -> Result<Socket<impl Stream<Item = RouteNetlinkMessage> + Unpin + Send + use<>>, ReadError> {
    let (connection, handle, messages) =
        rtnetlink::new_multicast_connection(groups).map_err(|error| ReadError { what: "events", why: error.to_string() })?;
    let task = tokio::spawn(connection);
    // Anything but a message (an overrun) means that events were lost: report it as an unspecific event.
    let messages = messages.map(|(message, _)| match message.payload {
        NetlinkPayload::InnerMessage(inner) => inner,
        _ => RouteNetlinkMessage::NewRoute(RouteMessage::default()),
    });
    Ok(Socket { handle, messages, task })
}

/// Reads everything that the choice of an interface depends on.
///
/// # Errors
/// When the kernel does not answer.
pub async fn facts(request: &Request) -> Result<HostFacts, ReadError> {
    let socket = open(&[])?;
    read(&socket.handle, request).await
}

/// How many packets have come in through each of these devices; a device that is not there counts as 0.
///
/// # Errors
/// When the kernel does not answer.
pub async fn received(devices: &[String]) -> Result<u64, ReadError> {
    let socket = open(&[])?;
    let links: Vec<LinkMessage> = socket.handle.link().get().execute().try_collect().await.map_err(ReadError::of("interfaces"))?;
    let named =
        |link: &&LinkMessage| link.attributes.iter().any(|attribute| matches!(attribute, LinkAttribute::IfName(name) if devices.contains(name)));
    let packets = |link: &LinkMessage| {
        link.attributes.iter().find_map(|attribute| if let LinkAttribute::Stats64(stats) = attribute { Some(stats.rx_packets) } else { None })
    };
    Ok(links.iter().filter(named).filter_map(packets).sum())
}

/// The hosts that have answered on the link of an interface.
///
/// # Errors
/// When the kernel does not answer.
pub async fn neighbours(index: u32) -> Result<Vec<IpAddr>, ReadError> {
    let socket = open(&[])?;
    let table: Vec<NeighbourMessage> = socket.handle.neighbours().get().execute().try_collect().await.map_err(ReadError::of("neighbours"))?;
    Ok(table.iter().filter(|entry| entry.header.ifindex == index).filter_map(arp::resolved).collect())
}

async fn read(handle: &Handle, request: &Request) -> Result<HostFacts, ReadError> {
    let mut facts = HostFacts { interfaces: interfaces(handle).await?, ..HostFacts::default() };
    routes(handle, &mut facts).await?;
    for target in request.targets() {
        let answer = look_up(handle, target).await;
        facts.routes.push((target, answer));
    }
    if let Some(known) = &request.known {
        let hosts: Vec<IpAddr> = known.servers.iter().chain(known.taken.keys()).copied().collect();
        facts.answering = arp::answering(handle, &facts, &hosts).await;
    }
    Ok(facts)
}

/// Adds the default routes, and the networks that need no gateway.
async fn routes(handle: &Handle, facts: &mut HostFacts) -> Result<(), ReadError> {
    for (ipv6, query) in [(false, RouteMessageBuilder::<Ipv4Addr>::new().build()), (true, RouteMessageBuilder::<Ipv6Addr>::new().build())] {
        let mut routes = Box::pin(handle.route().get(query).execute());
        while let Some(route) = routes.next().await {
            match route {
                Ok(route) => {
                    facts.defaults.extend(defaults(ipv6, &route));
                    facts.links.extend(link_network(ipv6, &route));
                }
                // A kernel without IPv6 refuses its dump.
                Err(error) if ipv6 => {
                    debug!("IPv6 routes cannot be read: {error}");
                    break;
                }
                Err(error) => return Err(ReadError::of("routes")(error)),
            }
        }
    }
    facts.defaults.sort_by_key(|route| (route.ipv6, route.metric));
    Ok(())
}

async fn interfaces(handle: &Handle) -> Result<Vec<Interface>, ReadError> {
    let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await.map_err(ReadError::of("interfaces"))?;
    let addresses: Vec<AddressMessage> = handle.address().get().execute().try_collect().await.map_err(ReadError::of("addresses"))?;
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
            LinkAttribute::LinkInfo(infos) => {
                out.kind = infos.iter().find_map(|info| if let LinkInfo::Kind(kind) = info { Some(sort(kind)) } else { None }).unwrap_or_default();
            }
            _ => {}
        }
    }
    out
}

fn sort(kind: &InfoKind) -> Kind {
    match kind {
        InfoKind::Vlan | InfoKind::Bond | InfoKind::Team | InfoKind::MacVlan | InfoKind::IpVlan | InfoKind::Ipoib | InfoKind::MacSec => Kind::Link,
        InfoKind::Veth => Kind::Veth,
        InfoKind::Bridge => Kind::Bridge,
        _ => Kind::Virtual,
    }
}

fn address(message: &AddressMessage) -> Option<Address> {
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    let (mut local, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link the first is ours and the second the peer's; otherwise IPv6 has only the second.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => peer = Some(*ip),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let ip = local.or(peer)?;
    Some(Address {
        net: IpNet::new(ip, message.header.prefix_len).ok()?,
        permanent: flags.contains(AddressFlags::Permanent),
        deprecated: flags.contains(AddressFlags::Deprecated),
        // The same bit has two names: IFA_F_SECONDARY for IPv4, IFA_F_TEMPORARY for IPv6.
        temporary: ip.is_ipv6() && flags.contains(AddressFlags::Secondary),
        tentative: flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic),
        dad_failed: flags.contains(AddressFlags::Dadfailed),
    })
}

/// The default routes of the main table in one message: one per path.
fn defaults(ipv6: bool, route: &RouteMessage) -> Vec<DefaultRoute> {
    let mut table = u32::from(route.header.table);
    let (mut metric, mut index, mut paths) = (0, None, Vec::new());
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => metric = *number,
            RouteAttribute::Oif(number) => index = Some(*number),
            RouteAttribute::MultiPath(hops) => paths.extend(hops.iter().map(|hop| (hop.interface_index, gateway(&hop.attributes)))),
            _ => {}
        }
    }
    if route.header.destination_prefix_length != 0 || table != u32::from(RouteHeader::RT_TABLE_MAIN) {
        return Vec::new();
    }
    let one = |index, gateway| DefaultRoute { ipv6, index, gateway, metric, carries: route.header.kind == RouteType::Unicast };
    if paths.is_empty() {
        return vec![one(index, gateway(&route.attributes))];
    }
    paths.into_iter().map(|(index, gateway)| one(Some(index), gateway)).collect()
}

/// The router of a route, or of one of its paths.
fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })
}

/// The interface and the destination of a route of the main table without a gateway.
fn link_network(ipv6: bool, route: &RouteMessage) -> Option<(u32, IpNet)> {
    let mut table = u32::from(route.header.table);
    let (mut index, mut to) = (None, if ipv6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) });
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Oif(number) => index = Some(*number),
            RouteAttribute::Destination(RouteAddress::Inet(ip)) => to = IpAddr::V4(*ip),
            RouteAttribute::Destination(RouteAddress::Inet6(ip)) => to = IpAddr::V6(*ip),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::MultiPath(_) => return None,
            _ => {}
        }
    }
    let counts = table == u32::from(RouteHeader::RT_TABLE_MAIN) && route.header.kind == RouteType::Unicast;
    Some((index.filter(|_| counts)?, IpNet::new(to, route.header.destination_prefix_length).ok()?))
}

/// Where the kernel would send a packet to an address.
async fn look_up(handle: &Handle, target: IpAddr) -> Result<RouteAnswer, String> {
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
    let source = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::PrefSource(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        RouteAttribute::PrefSource(RouteAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    });
    index.map(|index| RouteAnswer { index, source }).ok_or_else(|| "the route has no outgoing interface".to_owned())
}

/// The request, before the store's name is resolved.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The families the network uses.
    pub families: Families,
    /// Ways of naming the interface.
    pub selectors: Vec<Selector>,
    /// `--public-ip`.
    pub public_ip: Option<Ipv4Addr>,
    /// `--public-ipv6`.
    pub public_ipv6: Option<Ipv6Addr>,
    /// Host and port of the store's first endpoint; `None` if the store is always on this host.
    pub store: Option<(String, u16)>,
    /// How long to wait for what is missing; `None` forever.
    pub wait: Option<Duration>,
    /// What a store that knows its nodes says of this one.
    pub known: Option<KnownAddresses>,
}

impl Wish {
    /// The request from the settings, for a network of these families.
    pub fn of(settings: &options::Settings, families: Families) -> Self {
        Self {
            families,
            selectors: settings.selectors.clone(),
            public_ip: settings.public_ip,
            public_ipv6: settings.public_ipv6,
            store: settings.store.host().map(|(host, port)| (host.to_owned(), port)),
            wait: settings.iface_wait,
            known: None,
        }
    }

    /// The same for a node that the store knows. An operator's addresses there beat the flags.
    #[must_use]
    pub fn for_node(mut self, info: &NodeInfo) -> Self {
        self.public_ip = info.public.0.or(self.public_ip);
        self.public_ipv6 = info.public.1.or(self.public_ipv6);
        self.known = Some(KnownAddresses {
            published: info.published.clone(),
            internal: info.internal.clone(),
            overwritten: info.overwritten,
            taken: info.taken.clone(),
            ..KnownAddresses::default()
        });
        self
    }

    /// The same for a node that gave up these addresses, and whose store has these servers.
    #[must_use]
    pub fn knowing(mut self, left: BTreeSet<IpAddr>, servers: Vec<IpAddr>) -> Self {
        if let Some(known) = &mut self.known {
            (known.left, known.servers) = (left, servers);
        }
        self
    }

    /// Reads what the choice depends on.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub async fn look(&self) -> Result<(Request, HostFacts), SelectError> {
        let request = self.request().await;
        let facts = facts(&request).await.map_err(|error| SelectError { text: error.to_string(), may_come: false, shared: String::new() })?;
        Ok((request, facts))
    }

    /// Chooses among what there is now.
    ///
    /// # Errors
    /// Nothing fits, or the kernel does not answer.
    pub async fn choose(&self) -> Result<Chosen, SelectError> {
        let (request, facts) = self.look().await?;
        select(&request, &facts)
    }

    async fn request(&self) -> Request {
        // A choice that does not depend on the store must not wait long for a name server.
        let patience = if self.selectors.contains(&Selector::Auto) { RETRY } else { Duration::from_secs(2) };
        Request {
            families: self.families,
            selectors: self.selectors.clone(),
            public_ip: self.public_ip,
            public_ipv6: self.public_ipv6,
            store: store_at(self.store.as_ref(), patience).await,
            known: self.known.clone(),
        }
    }
}

/// Resolves where the store is.
async fn store_at(host: Option<&(String, u16)>, patience: Duration) -> StoreAt {
    let Some((host, port)) = host else { return StoreAt::Here };
    let addresses: Vec<IpAddr> = match host.parse() {
        Ok(ip) => vec![ip],
        Err(_) => match tokio::time::timeout(patience, tokio::net::lookup_host((host.as_str(), *port))).await {
            Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
            Ok(Err(error)) => return StoreAt::Unknown(format!("{host}: {error}")),
            Err(_) => return StoreAt::Unknown(format!("{host}: the name server does not answer")),
        },
    };
    if addresses.iter().all(|address| address.is_loopback() || address.is_unspecified()) { StoreAt::Here } else { StoreAt::There(addresses) }
}

/// Chooses the interface, waiting by events if something is missing. Calls `waiting` with the reason, at first and when it changes: it logs it.
///
/// # Errors
/// When waiting cannot help, or the time is up.
///
/// # Cancel safety
/// Nothing is changed; it can be dropped at any time.
pub async fn wait_for(wish: &Wish, mut waiting: impl FnMut(&str) + Send) -> Result<Found, SelectError> {
    let fatal = |error: ReadError| SelectError { text: error.to_string(), may_come: false, shared: String::new() };
    let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr, MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];
    let mut socket = open(&groups).map_err(fatal)?;
    let start = Instant::now();
    let mut told = String::new();
    loop {
        let request = wish.request().await;
        let facts = read(&socket.handle, &request).await.map_err(fatal)?;
        let error = match select(&request, &facts) {
            Ok(chosen) => return Ok(Found { chosen, request, facts }),
            Err(error) if !error.may_come => return Err(error),
            Err(error) => error,
        };
        let left = wish.wait.map(|wait| wait.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            let text = format!("{}; waited {} s for it (--iface-wait)", error.text, start.elapsed().as_secs());
            return Err(SelectError { text, may_come: true, shared: error.shared });
        }
        if error.text != told {
            waiting(&error.text);
            told = error.text;
        }
        let pause = left.map_or(RETRY, |left| left.min(RETRY));
        if let Ok(None) = tokio::time::timeout(pause, socket.messages.next()).await {
            socket = open(&groups).map_err(fatal)?;
        }
        settle(&mut socket.messages).await;
    }
}

/// Drains pending events, so that a burst causes one read.
async fn settle(messages: &mut (impl Stream<Item = RouteNetlinkMessage> + Unpin)) {
    tokio::time::sleep(SETTLE).await;
    while let Ok(Some(_)) = tokio::time::timeout(Duration::ZERO, messages.next()).await {}
}

/// Keeps `sender` current until `stop`: the interface's name, MTU and addresses, and the interface itself when it is recreated; with `links`
/// also the networks that it reaches without a gateway. Calls `tell` with the reason when it cannot carry packets, and when it can again.
///
/// # Cancel safety
/// Nothing but `sender` is changed; it can be dropped at any time.
pub async fn follow(chosen: Chosen, links: bool, sender: watch::Sender<Underlay>, tell: impl Fn(Option<&str>), stop: CancellationToken) {
    let run = async {
        let (mut alarm, mut others) = (Alarm::default(), None);
        loop {
            if let Err(error) = follow_once(&chosen, links, &sender, &tell, &mut alarm, &mut others).await {
                warn!("cannot follow the underlay, retrying: {error}");
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    stop.run_until_cancelled(run).await;
}

/// Follows until the netlink socket fails.
async fn follow_once(
    chosen: &Chosen,
    links: bool,
    sender: &watch::Sender<Underlay>,
    tell: &impl Fn(Option<&str>),
    alarm: &mut Alarm,
    others: &mut Option<Vec<IpAddr>>,
) -> Result<(), ReadError> {
    let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr, MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];
    // Routes change with every pod, and matter for links only.
    let mut socket = open(if links { &groups } else { groups.get(..3).unwrap_or_default() })?;
    loop {
        let mut facts = HostFacts { interfaces: interfaces(&socket.handle).await?, ..HostFacts::default() };
        let last = sender.borrow().clone();
        if links {
            routes(&socket.handle, &mut facts).await?;
        } else {
            facts.links = last.links.iter().map(|net| (last.index, *net)).collect();
        }
        let now = followed(chosen, &last, &facts);
        let others = others.get_or_insert_with(|| elsewhere(&chosen.underlay, &facts));
        let (news, due) = alarm.look(trouble(&now, &facts, others), Instant::now());
        if now != last {
            log_change(&last, &now);
            sender.send_replace(now);
        }
        if let Some(news) = news {
            match &news {
                Some(trouble) => warn!("the underlay carries no packets: {trouble}"),
                None => info!("the underlay carries packets again"),
            }
            tell(news.as_deref());
        }
        let wake = due.unwrap_or_else(|| Instant::now() + AUDIT);
        loop {
            match tokio::time::timeout_at(wake, socket.messages.next()).await {
                Ok(Some(message)) if concerns(&message, &sender.borrow()) => break,
                Ok(Some(_)) => {}
                Ok(None) => return Err(ReadError { what: "events", why: "the socket was closed".to_owned() }),
                Err(_) => break,
            }
        }
        settle(&mut socket.messages).await;
    }
}

/// Whether an event can change the underlay: pods' links, which come and go all the time, cannot.
fn concerns(message: &RouteNetlinkMessage, underlay: &Underlay) -> bool {
    match message {
        RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
            let named = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfName(name) if *name == underlay.name);
            link.header.index == underlay.index || link.attributes.iter().any(named)
        }
        // A route through a gateway is no link. A message without an interface may stand for lost events.
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            let elsewhere = |attribute: &RouteAttribute| match attribute {
                RouteAttribute::Oif(index) => *index != underlay.index,
                RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => true,
                _ => false,
            };
            !route.attributes.iter().any(elsewhere)
        }
        _ => true,
    }
}

fn log_change(last: &Underlay, now: &Underlay) {
    if (last.index, &last.name, last.mtu, last.addresses) != (now.index, &now.name, now.mtu, now.addresses) {
        info!(
            "the underlay changed: {} (index {}, {}, MTU {}) is now {} (index {}, {}, MTU {})",
            last.name, last.index, last.addresses, last.mtu, now.name, now.index, now.addresses, now.mtu
        );
    }
}
