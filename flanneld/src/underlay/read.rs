//! Reads facts about this host from the kernel, waits for a missing interface, and follows the chosen interface.

use super::arp;
use super::check::{Alarm, elsewhere, find_problem};
use super::choice::Chosen;
use super::error::{ReadError, may_come};
use super::facts::{HostFacts, Leased};
use super::follow::{Steady, followed};
use super::found::Found;
use super::request::{Families, KnownAddresses, LOOKED_UP, Request, StoreAt};
use super::select::select;
use backends::Underlay;
use netlink::route::route_to;
use netlink::uapi::NETLINK_ROUTE;
use netlink::{Client, Subscription};
use netstate::host::read::{
    INTERFACE_GROUPS, ROUTE_GROUPS, look_up_routes, may_change_interface, read_answered_neighbours,
    read_interfaces, read_links, read_routes,
};
use options::Selector;
use run_dir::subnet_env;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use subnet_lease::LeaseAttrs;
use subnet_lease::entry::Listing;
use subnet_lease::manager::NodeInfo;
use subnet_lease::wire::parse_value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use types::{Addresses, Problem, Subnets};

/// Time for which flanneld collects netlink events before it reads the kernel. The kernel sends several events when
/// an interface comes up.
const SETTLE: Duration = Duration::from_millis(20);
/// Interval at which flanneld reads the kernel without a netlink event, because an event may get lost.
const AUDIT: Duration = Duration::from_secs(30);
/// Interval at which flanneld retries the choice of an interface without a netlink event. For example, a recovered
/// name server causes none.
const RETRY: Duration = Duration::from_secs(5);

/// The sum of packets that `devices` have received. An absent device adds nothing.
pub async fn received(devices: &[String]) -> Result<u64, ReadError> {
    let links = read_links(&mut Client::open()?)?;
    Ok(links.iter().filter(|link| devices.contains(&link.name)).map(|link| link.received).sum())
}

/// The hosts in the interface's neighbour table that have replied to ARP or NDP.
pub async fn neighbours(index: u32) -> Result<Vec<IpAddr>, ReadError> {
    Ok(read_answered_neighbours(&mut Client::open()?, index)?)
}

/// The facts on which the choice of an interface depends.
async fn read(
    client: &mut Client,
    request: &Request,
    leased: &Leased,
) -> Result<HostFacts, ReadError> {
    let mut facts = HostFacts {
        interfaces: read_interfaces(client)?,
        leased: leased.clone(),
        ..HostFacts::default()
    };
    facts.take(read_routes(client, HostFacts::needs)?);
    let mut targets = request.targets();
    targets.extend(leased.peers.iter().take(LOOKED_UP));
    let answers = look_up_routes(client, targets.iter().map(|to| route_to(*to, 0)));
    facts.routes = targets.into_iter().zip(answers).collect();
    if let Some(known) = &request.known {
        let hosts: Vec<IpAddr> = known.servers.iter().chain(known.taken.keys()).copied().collect();
        facts.answering = arp::answering(&facts, &hosts).await;
        let is_own = |ip: &&IpAddr| facts.owner(**ip).is_some();
        let claimed: Vec<IpAddr> = known.taken.keys().filter(is_own).copied().collect();
        facts.unshared = arp::unshared(&facts, &claimed, &hosts).await;
    }
    Ok(facts)
}

/// Requirements on the interface, before flanneld resolves the store's host name.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The families that the network uses.
    pub families: Families,
    /// The first selector that matches takes precedence.
    pub selectors: Vec<Selector>,
    /// `--public-ip` and `--public-ipv6`, or the addresses that an operator chose in the store.
    pub public: Option<Addresses>,
    /// Of the store's first endpoint; `None` if the store is always on this host.
    pub store: Option<(String, u16)>,
    /// Time for which flanneld waits for a suitable interface; `None` for no limit.
    pub wait: Option<Duration>,
    /// `None` if the store does not list nodes.
    pub known: Option<KnownAddresses>,
    pub leased: Leased,
}

impl Wish {
    /// From the settings and subnet.env, for a network that uses `families`.
    pub fn of(settings: &options::Settings, families: Families) -> Self {
        let previous = subnet_env::last_served(&settings.node.subnet_file).subnets();
        Self {
            leased: Leased {
                own: previous.iter().flat_map(Subnets::nets).collect(),
                ..Leased::default()
            },
            families,
            selectors: settings.interface.selectors.clone(),
            public: settings.interface.public,
            store: settings.store.host().map(|(host, port)| (host.to_owned(), port)),
            wait: settings.interface.wait,
            known: None,
        }
    }

    /// Adds what the store knows about this node and other nodes. Addresses that an operator set in the store take
    /// precedence over the flags.
    #[must_use]
    pub fn for_node(mut self, info: &NodeInfo, networks: Subnets) -> Self {
        self.public = match (info.public, self.public) {
            (Some(there), Some(here)) => Some(there.or(here)),
            (there, here) => there.or(here),
        };
        let own = &mut self.leased.own;
        let is_new = |now: &Subnets| !own.iter().any(|before| now.contains(before));
        let assigned = info.subnets.filter(is_new);
        self.leased.assigned = assigned.map(|assigned| (assigned, networks));
        own.extend(info.subnets.iter().flat_map(Subnets::nets));
        self.leased.published.clone_from(&info.published);
        self.known = Some(KnownAddresses {
            published: info.published.clone(),
            internal: info.internal.clone(),
            overwritten: info.overwritten,
            taken: info.taken.clone(),
            ..KnownAddresses::default()
        });
        self
    }

    /// Adds the leases of a store in which the nodes choose their subnets.
    #[must_use]
    pub fn beside(mut self, listing: &Listing) -> Self {
        let leased = &mut self.leased;
        for entry in &listing.entries {
            let Some(subnets) = entry.subnets() else {
                continue;
            };
            let attrs = parse_value(&entry.value);
            let addresses = attrs.iter().flat_map(LeaseAttrs::addresses);
            match leased.own.iter().any(|own| subnets.contains(own)) {
                true => leased.published.extend(addresses),
                false => leased.peers.extend(addresses),
            }
            leased.all.extend(subnets.nets());
        }
        self
    }

    /// Adds `left`, the addresses that this node stopped using, and `servers`, those of the store's servers.
    #[must_use]
    pub fn knowing(mut self, left: BTreeSet<IpAddr>, servers: Vec<IpAddr>) -> Self {
        if let Some(known) = &mut self.known {
            (known.left, known.servers) = (left, servers);
        }
        self
    }

    /// Resolves the store's host name, and reads the facts on which the choice of an interface depends.
    pub async fn look(&self) -> Result<(Request, HostFacts), ReadError> {
        let request = self.request().await;
        let facts = read(&mut Client::open()?, &request, &self.leased).await?;
        Ok((request, facts))
    }

    /// Does not wait for missing interfaces.
    pub async fn choose(&self) -> Result<Chosen, Problem> {
        let (request, facts) = self.look().await?;
        select(&request, &facts)
    }

    async fn request(&self) -> Request {
        // A choice that does not depend on the store must not wait long for a name server.
        let timeout =
            if self.selectors.contains(&Selector::Auto) { RETRY } else { Duration::from_secs(2) };
        Request {
            families: self.families,
            selectors: self.selectors.clone(),
            public: self.public,
            store: store_at(self.store.as_ref(), timeout).await,
            known: self.known.clone(),
        }
    }
}

/// Resolves the store's host name.
async fn store_at(host: Option<&(String, u16)>, timeout: Duration) -> StoreAt {
    let Some((host, port)) = host else {
        return StoreAt::Here;
    };
    let addresses: Vec<IpAddr> = match host.parse() {
        Ok(ip) => vec![ip],
        Err(_) => {
            match tokio::time::timeout(timeout, tokio::net::lookup_host((host.as_str(), *port)))
                .await
            {
                Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
                Ok(Err(error)) => {
                    let text = format!("{host}: {error}");
                    return StoreAt::Unknown(Problem::new("store-name-unresolved", text));
                }
                Err(_) => {
                    let text = format!("{host}: the name server does not respond");
                    return StoreAt::Unknown(Problem::new("name-server-silent", text));
                }
            }
        }
    };
    if addresses.iter().all(|address| address.is_loopback() || address.is_unspecified()) {
        StoreAt::Here
    } else {
        StoreAt::There(addresses)
    }
}

/// Chooses an interface. If an interface, an address or a route is missing, waits and retries after each netlink
/// event. Calls `waiting` with each new reason for the wait, so that the caller can log it.
///
/// # Cancel safety
/// The caller can drop the future at any time, because the future changes nothing.
pub async fn wait_for(
    wish: &Wish,
    mut waiting: impl FnMut(&Problem) + Send,
) -> Result<Found, Problem> {
    let mut events = Subscription::open(NETLINK_ROUTE, INTERFACE_GROUPS | ROUTE_GROUPS);
    events.try_open().map_err(ReadError::from)?;
    let mut client = Client::open().map_err(ReadError::from)?;
    let start = Instant::now();
    let mut last_reason = None;
    loop {
        let request = wish.request().await;
        let facts = read(&mut client, &request, &wish.leased).await?;
        let error = match select(&request, &facts) {
            Ok(chosen) => {
                return Ok(Found { chosen, request, facts });
            }
            Err(error) if !may_come(&error) => return Err(error),
            Err(error) => error,
        };
        let left = wish.wait.map(|wait| wait.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            let waited = start.elapsed().as_secs();
            let text = format!("{error}; waited {waited} s for the interface (--iface-wait)");
            return Err(Problem { parts: vec![error], ..Problem::new("interface-late", text) });
        }
        if last_reason.as_ref() != Some(&error) {
            waiting(&error);
            last_reason = Some(error);
        }
        let pause = left.map_or(RETRY, |left| left.min(RETRY));
        let _ = tokio::time::timeout(pause, events.wait(|_| true)).await;
        settle(&mut events).await;
    }
}

/// Waits for [`SETTLE`] and drops the pending events, so that a burst of them causes a single read.
async fn settle(events: &mut Subscription) {
    tokio::time::sleep(SETTLE).await;
    events.take_queued(|_| false);
}

/// Sends changes of the chosen interface's index, name, MTU and addresses to `sender`, until `stop`. If `links` is
/// set, also sends changes of the networks that the interface reaches without a gateway. Calls `report` with the
/// reason when the interface cannot carry packets, and with `None` when it can again.
///
/// # Cancel safety
/// The caller can drop the future at any time, because the future changes only `sender`.
pub async fn follow(
    chosen: Chosen,
    links: bool,
    sender: watch::Sender<Underlay>,
    report: impl Fn(Option<&Problem>),
    stop: CancellationToken,
) {
    let run = async {
        let mut state = Followed::default();
        loop {
            if let Err(error) = follow_once(&chosen, links, &sender, &report, &mut state).await {
                warn!(error = %error, "cannot follow the underlay, retrying");
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    stop.run_until_cancelled(run).await;
}

/// What of [`follow`] survives an error: the alarm, the underlay's addresses that belong to another interface, and
/// the change of addresses that is not in force yet.
type Followed = (Alarm<Problem>, Option<Vec<IpAddr>>, Steady);

/// Fails when the kernel does not respond.
async fn follow_once(
    chosen: &Chosen,
    links: bool,
    sender: &watch::Sender<Underlay>,
    report: &impl Fn(Option<&Problem>),
    (alarm, others, steady): &mut Followed,
) -> Result<(), ReadError> {
    let groups = INTERFACE_GROUPS | if links { ROUTE_GROUPS } else { 0 };
    let (mut events, mut client) = (Subscription::open(NETLINK_ROUTE, groups), Client::open()?);
    events.try_open()?;
    loop {
        let mut facts = HostFacts {
            interfaces: read_interfaces(&mut client)?,
            leased: chosen.leased.clone(),
            ..HostFacts::default()
        };
        let last = sender.borrow().clone();
        if links {
            facts.take(read_routes(&mut client, HostFacts::needs)?);
        } else {
            facts.links = last.links.iter().map(|net| (last.index, *net)).collect();
        }
        let next = followed(chosen, &last, &facts);
        let (now, settles) = steady.look(&last, next, Instant::now());
        let others = others.get_or_insert_with(|| elsewhere(&chosen.underlay, &facts));
        let (news, due) = alarm.look(find_problem(&now, &facts, others), Instant::now());
        if now != last {
            log_change(&last, &now);
            sender.send_replace(now);
        }
        if let Some(news) = news {
            match &news {
                Some(trouble) => warn!(
                    code = &*trouble.code,
                    error = %trouble,
                    "the underlay carries no packets"
                ),
                None => info!("the underlay carries packets again"),
            }
            report(news.as_ref());
        }
        let wake = due.into_iter().chain(settles).min();
        let wake = wake.unwrap_or_else(|| Instant::now() + AUDIT);
        let (index, name) = {
            let now = sender.borrow();
            (now.index, now.name.clone())
        };
        let _ = tokio::time::timeout_at(
            wake,
            events.wait(|message| may_change_interface(message, index, &name)),
        )
        .await;
        settle(&mut events).await;
    }
}

fn log_change(last: &Underlay, now: &Underlay) {
    if (last.index, &last.name, last.mtu, last.addresses)
        != (now.index, &now.name, now.mtu, now.addresses)
    {
        info!(from = %described(last), to = %described(now), "the underlay changed");
    }
}

fn described(underlay: &Underlay) -> String {
    format!(
        "{} (index {}, {}, MTU {})",
        underlay.name, underlay.index, underlay.addresses, underlay.mtu
    )
}
