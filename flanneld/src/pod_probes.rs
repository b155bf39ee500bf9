//! `--probe-pods`: probes that take the path of pod packets, from a port of the pods' bridge to other nodes and back.
//!
//! The bridge port is a pair of veth devices without an address. flanneld reads the replies from a packet socket, so
//! that the host's own network stack does not receive them.

mod frame;

use frame::{Ends, Frame};
use futures_util::future::join_all;
use ipnet::IpNet;
use netlink::{Client, KernelError};
use netstate::host::Interface;
use netstate::host::arp;
use netstate::host::packet_socket::{EVERY_PROTOCOL, PacketSocket};
use netstate::host::port::{
    MAC, create_probe_port, forget_probe_address, has_probe_port, lead_to_probe_port,
    remove_probe_port,
};
use netstate::host::read::read_interfaces;
use probing::pods::{
    ASKED, CONFIRMED, IdleError, PodPath, PodPaths, PodProbes, address, call_port, port as source,
};
use probing::prober::Prober;
use probing::wire::{Message, MessageKind, parse};
use rand::Rng;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use thiserror::Error;
use tokio::io::unix::AsyncFd;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use types::{Family, Subnets};

/// Interval between rounds of pod probes.
const ROUND: Duration = Duration::from_secs(3);
/// A round waits this long for replies.
const ANSWERS: Duration = Duration::from_secs(1);
/// Interval at which flanneld checks whether a pod has the source address of pod probes.
const LOOK_FOR_OTHERS: Duration = Duration::from_secs(10);
/// Wait for ARP replies from a pod with the source address of pod probes.
const OTHERS_ANSWER: Duration = Duration::from_millis(300);
/// Probes from the host's own address; the peer must reply to all of them.
const CONTROLS: usize = 3;
/// Frames that one wait for replies may receive. More may have displaced replies from the socket's receive buffer.
const FLOOD: usize = 2000;
/// Size of the receive buffer in bytes. Every expected frame is shorter.
const FRAME: usize = 2048;

pub struct PodProbing {
    prober: Prober,
    own: Subnets,
    paths: watch::Sender<PodPaths>,
    families: BTreeMap<Family, PodProbes>,
    plug: Option<Plug>,
    /// Time and result of the last search for a pod with the source address of pod probes.
    others: Option<(Instant, Option<String>)>,
}

/// The port of pod probes on the pods' bridge.
struct Plug {
    bridge: u32,
    inner: u32,
    socket: AsyncFd<PacketSocket>,
}

impl Plug {
    /// Drops the frames that the packet socket received since the last round.
    fn forget_waiting(&self) -> io::Result<()> {
        let mut start = [0; 1];
        for _ in 0..FLOOD {
            if self.socket.get_ref().receive(&mut start)?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

#[derive(Debug, Error)]
enum PodProbeError {
    #[error("{0}")]
    Kernel(#[from] KernelError),
    #[error("{0}")]
    Socket(#[from] io::Error),
}

/// The bridge that has an address of the subnet.
fn bridge_of<'a>(interfaces: &'a [Interface], subnet: &IpNet) -> Option<&'a Interface> {
    interfaces.iter().find(|interface| {
        interface.kind == "bridge" && interface.nets().any(|net| subnet.contains(&net.addr()))
    })
}

/// Removes the port that an earlier run of this daemon left.
pub fn remove_leavings(own: Subnets) {
    let removed = || {
        let mut client = Client::open()?;
        let interfaces = read_interfaces(&mut client)?;
        for subnet in own.nets() {
            let Some(bridge) = bridge_of(&interfaces, &subnet) else {
                continue;
            };
            if has_probe_port(&mut client, bridge.index)? {
                remove_probe_port(&mut client, bridge.index)?;
                info!(
                    bridge = bridge.name,
                    "removed the port of earlier probes from the pods' bridge"
                );
            }
        }
        Ok::<_, KernelError>(())
    };
    if let Err(error) = removed() {
        debug!(error = %error, "cannot look for the port of earlier probes");
    }
}

impl PodProbing {
    /// The addresses are in `own`. The receiver gets the results of the probes.
    pub fn new(prober: Prober, own: Subnets) -> (Self, watch::Receiver<PodPaths>) {
        let (paths, follow) = watch::channel(PodPaths::new());
        let this = Self { prober, own, paths, families: BTreeMap::new(), plug: None, others: None };
        (this, follow)
    }

    /// Sends pod probes until `stop`, then removes the port from the pods' bridge.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut client = match Client::open() {
            Ok(client) => client,
            Err(error) => {
                warn!(error = %error, "cannot probe the path of pods");
                return;
            }
        };
        let rounds = async {
            let mut ticks = tokio::time::interval(ROUND);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                self.rounds(&mut client).await;
            }
        };
        stop.run_until_cancelled(rounds).await;
        if let Some(plug) = &self.plug
            && let Err(error) = remove_probe_port(&mut client, plug.bridge)
        {
            debug!(error = %error, "cannot remove the bridge port for pod probes");
        }
    }

    async fn rounds(&mut self, client: &mut Client) {
        let mut paths = PodPaths::new();
        let interfaces = read_interfaces(client);
        for subnet in self.own.nets() {
            let family = Family::from(subnet);
            let made = match &interfaces {
                Ok(interfaces) => self.round(client, interfaces, &subnet).await,
                Err(error) => Ok(Err(IdleError::Refused(error.to_string()))),
            };
            let path = match made {
                Ok(Ok(path)) => path,
                Ok(Err(obstacle)) => self.idle(family, &subnet, obstacle),
                Err(failure) => {
                    self.plug = None;
                    self.idle(family, &subnet, IdleError::Refused(failure.to_string()))
                }
            };
            self.report(family, &path);
            paths.insert(family, path);
        }
        // The numbers of probed peers and of replies are not compared, because they change with each lost packet.
        let gist = |paths: &PodPaths| -> Vec<_> {
            let of = |path: &PodPath| (path.state(), path.obstacle.clone(), path.lost.clone());
            paths.values().map(of).collect()
        };
        self.paths.send_if_modified(|known| {
            let news = gist(known) != gist(&paths);
            known.clone_from(&paths);
            news
        });
    }

    /// Discards the earlier results of an address family in which this node cannot probe any peer.
    fn idle(&mut self, family: Family, subnet: &IpNet, obstacle: IdleError) -> PodPath {
        self.families.entry(family).or_default().reset();
        PodPath { address: address(subnet), obstacle: Some(obstacle), ..PodPath::default() }
    }

    /// Logs why this node cannot probe any peer, whenever the reason changes.
    fn report(&self, family: Family, path: &PodPath) {
        let paths = self.paths.borrow();
        let before = paths.get(&family).and_then(|path| path.obstacle.as_ref());
        match &path.obstacle {
            Some(obstacle) if before != Some(obstacle) => match obstacle {
                IdleError::Refused(error) => warn!(
                    family = %family,
                    error,
                    remedy = "--probe-pods needs CAP_NET_ADMIN, CAP_NET_RAW, and AF_PACKET in RestrictAddressFamilies= of a systemd unit",
                    "cannot probe the path of pods, retrying"
                ),
                IdleError::Taken(mac) => warn!(
                    family = %family,
                    address = ?path.address,
                    mac,
                    remedy = "give the pod another address: the CNI plugin of flannel-rs keeps the address of the probes free",
                    "flanneld does not probe the path of pods: a pod has the address"
                ),
                IdleError::SmallSubnet => {
                    warn!(family = %family, "flanneld does not probe the path of pods: the subnet has fewer than 16 addresses");
                }
                IdleError::NoBridge
                | IdleError::NobodyAnswers
                | IdleError::Filtered
                | IdleError::Flooded => {
                    debug!(family = %family, reason = ?obstacle, "flanneld does not probe the path of pods now");
                }
            },
            None if matches!(before, Some(IdleError::Refused(_) | IdleError::Taken(_))) => {
                info!(family = %family, "resolved: flanneld probes the path of pods");
            }
            _ => {}
        }
    }

    async fn round(
        &mut self,
        client: &mut Client,
        interfaces: &[Interface],
        subnet: &IpNet,
    ) -> Result<Result<PodPath, IdleError>, PodProbeError> {
        let family = Family::from(subnet);
        let Some(from) = address(subnet) else {
            return Ok(Err(IdleError::SmallSubnet));
        };
        let bridge = bridge_of(interfaces, subnet).filter(|bridge| bridge.up);
        let Some((bridge, mac)) = bridge.and_then(|bridge| bridge.mac.map(|mac| (bridge, mac)))
        else {
            return Ok(Err(IdleError::NoBridge));
        };
        self.plug(client, interfaces, bridge)?;
        if let Some(other) = self.other_holder(from).await {
            // Packets of the other holder must not be led to the port.
            forget_probe_address(client, bridge.index, from)?;
            return Ok(Err(IdleError::Taken(other)));
        }
        let Some(plug) = &self.plug else {
            return Ok(Err(IdleError::NoBridge));
        };
        lead_to_probe_port(client, bridge.index, from)?;
        let probes = self.families.entry(family).or_default();
        let peers = self.prober.answering(family, &probes.doubted(), probes.after(), ASKED);
        // A peer that no longer replies to the host has another fault.
        probes.retain(|subnet| peers.iter().any(|(peer, _)| peer == subnet));
        if peers.is_empty() {
            return Ok(Err(IdleError::NobodyAnswers));
        }
        let ends = Ends { macs: (MAC, mac), from };
        let mut questions = probes.begin(&peers, || rand::rng().random());
        plug.forget_waiting()?;
        // Any network loses single packets, so probes without a result are repeated once.
        for try_again in [true, false] {
            for (nonce, peer, to) in &questions {
                let port = self.prober.port();
                let question = self.prober.pod_question(*peer, *nonce);
                if let Some(question) = question
                    && let Some(frame) = ends.frame(*to, source(*nonce), port, &question)
                {
                    plug.socket.get_ref().send(&frame)?;
                }
            }
            if listen(plug, &ends, probes).await? > FLOOD {
                return Ok(Err(IdleError::Flooded));
            }
            if try_again {
                questions = probes.again(|| rand::rng().random());
            }
        }
        let lost: Vec<_> = probes.end().into_iter().take(CONFIRMED).collect();
        // If the host's own packets are lost as well, the fault is not on the pods' path.
        let asked = lost.iter().map(|(subnet, _)| {
            let to = peers.iter().find(|(peer, _)| peer == subnet);
            is_answered(&self.prober, *subnet, to.map(|(_, to)| *to))
        });
        let answers = join_all(asked).await;
        for ((subnet, lost), answers_host) in lost.into_iter().zip(answers) {
            probes.confirm(subnet, lost, answers_host);
        }
        let path = probes.path(from);
        Ok(if path.asked > 0 { Ok(path) } else { Err(IdleError::Filtered) })
    }

    /// Creates the port on the bridge, unless it exists.
    fn plug(
        &mut self,
        client: &mut Client,
        interfaces: &[Interface],
        bridge: &Interface,
    ) -> Result<(), PodProbeError> {
        let is_there = |plug: &Plug| {
            let is_inner = |interface: &Interface| interface.index == plug.inner && interface.up;
            let is_outer = |interface: &Interface| {
                interface.master == Some(bridge.index)
                    && interface.up
                    && netstate::host::port::is_port(&interface.name)
            };
            plug.bridge == bridge.index
                && interfaces.iter().any(is_inner)
                && interfaces.iter().any(is_outer)
        };
        if self.plug.as_ref().is_some_and(is_there) {
            return Ok(());
        }
        self.others = None;
        if let Some(old) = self.plug.take().filter(|old| old.bridge != bridge.index) {
            remove_probe_port(client, old.bridge)?;
        }
        let inner = create_probe_port(client, bridge.index)?;
        let socket = PacketSocket::open(inner, EVERY_PROTOCOL)?;
        self.plug = Some(Plug { bridge: bridge.index, inner, socket: socket.register()? });
        Ok(())
    }

    /// The hardware address of a pod that has the source address of pod probes. Does not check IPv6, because a pod
    /// gets the last of 2^64 addresses only by manual configuration.
    async fn other_holder(&mut self, address: IpAddr) -> Option<String> {
        let plug = self.plug.as_ref().filter(|_| address.is_ipv4())?;
        if let Some((at, found)) = &self.others
            && at.elapsed() < LOOK_FOR_OTHERS
        {
            return found.clone();
        }
        let inner = plug.inner;
        let asked = tokio::task::spawn_blocking(move || {
            arp::find_holders(inner, MAC, &[MAC], &[address], 1, OTHERS_ANSWER)
        });
        let found = match asked.await {
            Ok(Ok(found)) => found.first().map(|(_, mac)| mac.to_string()),
            Ok(Err(_)) | Err(_) => None,
        };
        self.others = Some((Instant::now(), found.clone()));
        found
    }
}

/// True if a peer replies to all [`CONTROLS`] probes from the host's own address, from a UDP port without a tracked
/// connection. If these are also lost, the fault is not on the pods' path.
async fn is_answered(prober: &Prober, peer: IpNet, to: Option<IpAddr>) -> bool {
    let (Some(from), Some(to)) = (prober.source(peer.into()), to) else {
        return false;
    };
    let Ok(socket) = UdpSocket::bind((from, 0)).await else {
        return false;
    };
    if socket.connect((to, prober.port())).await.is_err() {
        return false;
    }
    for _ in 0..CONTROLS {
        let nonce: u64 = rand::rng().random();
        let Some(question) = prober.pod_question(peer, nonce) else {
            return false;
        };
        if socket.send(&question).await.is_err() {
            return false;
        }
        let answer = async {
            let mut buffer = [0; FRAME];
            while let Ok(length) = socket.recv(&mut buffer).await {
                let message = parse(buffer.get(..length).unwrap_or_default());
                if matches!(message, Some(Message::Echo(header, _)) if header.nonce == nonce) {
                    return true;
                }
            }
            false
        };
        if tokio::time::timeout(ANSWERS, answer).await != Ok(true) {
            return false;
        }
    }
    true
}

/// Ends when all replies and pod calls have arrived, or [`ANSWERS`] has passed. Returns the number of received
/// frames, at most one more than [`FLOOD`].
async fn listen(plug: &Plug, ends: &Ends, probes: &mut PodProbes) -> io::Result<usize> {
    let mut buffer = vec![0; FRAME];
    let mut count = 0;
    let reading = async {
        while !probes.is_complete() && count <= FLOOD {
            let mut ready = plug.socket.readable().await?;
            match plug.socket.get_ref().receive(&mut buffer)? {
                Some(length) => {
                    count += 1;
                    take(buffer.get(..length).unwrap_or_default(), ends, probes);
                }
                None => ready.clear_ready(),
            }
        }
        io::Result::Ok(())
    };
    tokio::time::timeout(ANSWERS, reading).await.unwrap_or(Ok(()))?;
    Ok(count)
}

/// Evaluates a received frame.
fn take(bytes: &[u8], ends: &Ends, probes: &mut PodProbes) {
    let Some(Frame { from, to_port, payload }) = ends.read(bytes) else {
        return;
    };
    let Some(Message::Echo(header, body)) = parse(payload) else {
        return;
    };
    match header.kind {
        MessageKind::EchoAnswer if to_port == source(header.nonce) => {
            let changed = body.answers_at.is_some_and(|seen| seen != ends.from);
            probes.answer(header.nonce, from, changed);
        }
        MessageKind::PodCall if to_port == call_port(header.nonce) => {
            probes.call(header.nonce, from);
        }
        MessageKind::EchoAnswer
        | MessageKind::PodCall
        | MessageKind::EchoQuestion
        | MessageKind::RowQuestion
        | MessageKind::RowAnswer
        | MessageKind::PodQuestion => {}
    }
}
