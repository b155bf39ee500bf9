//! Traces the path to a peer or a pod on request, for `flannelctl probe`. This module collects facts about the path;
//! the submodules evaluate them with pure functions.

mod end;
mod here;
mod seen;
mod steps;
mod target;
#[cfg(test)]
mod tests;
mod words;

use crate::health::Health;
use crate::network::RunningNetwork;
use backends::{Overlay, Underlay};
use ipnet::IpNet;
use netlink::{Client, KernelError};
use netstate::host::lookup::{
    Fate, Neighbour, look_up_fate, look_up_fdb, look_up_neighbour, look_up_wireguard_peer,
};
use netstate::kernel::Facts;
use netstate::object::wireguard_peer::SeenPeer;
use node_api::probe::{Probe, Target as Shown};
use probing::prober::echo::echo;
use probing::target::{Target, overlay_addresses, targets};
use probing::view::Tally;
use seen::{Local, Own, ProbeReplies, Rules, Seen, Wanted};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use target::{Around, ProbeTarget};
use tokio::sync::Semaphore;
use types::{Family, Problem};

/// Number of pings to a pod.
const PINGS: u8 = 3;
/// Pings to a peer if this node sends no probes.
const QUESTIONS: u8 = 5;
/// A trace waits this long for the previous one.
const TURN: Duration = Duration::from_millis(3_500);
/// Timeout of a trace. Together with [`TURN`], it is shorter than the timeout of the client's connection.
const WORK: Duration = Duration::from_millis(6_000);
/// After this time, the previous report of the doctor is good enough.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);

/// Clients cannot make this node send the packets of several traces at once.
static ONE: Semaphore = Semaphore::const_new(1);

pub struct Tracer {
    running: RunningNetwork,
    overlay: Overlay,
    health: Health,
}

impl Tracer {
    /// `None` if no network runs, or if its backend carries no packets.
    pub fn of(health: &Health) -> Option<Self> {
        let running = health.network()?;
        Some(Self { overlay: running.overlay.clone()?, running, health: health.clone() })
    }

    /// If the client disconnects, the trace still runs to its end before the next one starts.
    pub(crate) async fn probe(self, target: ProbeTarget) -> Result<Probe, Problem> {
        let task = async move {
            let Ok(Ok(_turn)) = tokio::time::timeout(TURN, ONE.acquire()).await else {
                let text = "another probe is running on this node; try again in a few seconds";
                return Err(Problem::new("probe-busy", text));
            };
            tokio::time::timeout(WORK, self.work(target)).await.unwrap_or_else(|_| {
                let text = format!(
                    "the probe did not finish within {WORK:?}: this node is overloaded, or its kernel does not respond"
                );
                Err(Problem::new("probe-overtime", text))
            })
        };
        // The error: the task panicked or was aborted.
        tokio::spawn(task).await.unwrap_or_else(|error| {
            Err(Problem::new("probe-ended", format!("the probe failed: {error}")))
        })
    }

    /// Finds the target that the user typed: a name, an address or a subnet. After an error, a retry cannot help.
    pub(crate) fn target(&self, asked: &str) -> Result<ProbeTarget, Problem> {
        let nets = self.running.underlay.borrow().local.clone();
        let local: Vec<IpAddr> = nets.iter().map(IpNet::addr).collect();
        let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let unused: Vec<(String, String)> = self
            .health
            .unused()
            .iter()
            .map(|unused| (unused.lease.clone(), unused.text.clone()))
            .collect();
        let carried = self.overlay.carried(self.running.network.own);
        let around = Around {
            targets: &targets(
                &self.running.leases.borrow(),
                &carried,
                self.overlay.kinds,
                &nets,
                self.overlay.outer,
            ),
            own: &self.running.network.own,
            names: &hostname.into_iter().chain([self.health.name()]).collect::<Vec<_>>(),
            local: &local,
            unused: &unused,
        };
        target::find(asked, &around)
    }

    async fn work(&self, target: ProbeTarget) -> Result<Probe, Problem> {
        let (target, judged, steps, end) = match target {
            ProbeTarget::Peer { target, pod } => {
                let seen = self.there(target, pod).await?;
                let judged = seen.replies.judged();
                let steps = steps::steps(&seen, &judged);
                let end = end::end(&seen, &judged, &steps);
                let Target { name, subnet, address, .. } = seen.target;
                (
                    Shown {
                        node: name.as_deref().map(str::to_owned),
                        subnet: Some(subnet),
                        address: Some(address),
                        pod,
                        here: false,
                    },
                    Some(judged),
                    steps,
                    end,
                )
            }
            ProbeTarget::Here { pod, subnet } => {
                let local = here(pod, subnet).await?;
                let steps = here::steps(&local);
                let end = here::end(&local, &steps);
                let name = self.health.name();
                (
                    Shown {
                        node: Some(name),
                        subnet: Some(subnet),
                        address: None,
                        pod: Some(pod),
                        here: true,
                    },
                    None,
                    steps,
                    end,
                )
            }
        };
        Ok(Probe {
            schema: node_api::PROBE.to_owned(),
            at: jiff::Timestamp::now(),
            node: self.health.name(),
            target,
            state: judged.map(|judged| judged.whole.state),
            steps,
            ends_at: end.at,
            sentence: end.sentence,
            next: end.next,
        })
    }

    /// Collects facts about the path to a peer, or to a pod of it.
    async fn there(&self, target: Target, pod: Option<IpAddr>) -> Result<Seen, Problem> {
        let family = Family::from(target.subnet);
        let underlay = self.running.underlay.borrow().clone();
        let [device, bridge] = overlay_addresses(&target.subnet);
        let to = pod.unwrap_or(if self.overlay.device { device } else { bridge });
        let kernel = self.kernel(&target, to, &underlay).map_err(|error| report_kernel(&error))?;
        let (replies, report) =
            tokio::join!(self.ask(&target, device), self.health.fresh_report(REPORT_PATIENCE));
        let replies = replies?;
        // The probes may have started a handshake.
        let tunnelled = behind(&kernel.wanted);
        let overlay = self.running.prober.as_ref().and_then(|prober| prober.source(family));
        let pinged = match pod {
            Some(pod) if replies.through() || !replies.asked_through() => {
                Some(echo(overlay, pod, PINGS).await.map_err(|error| report_no_ping(&error)))
            }
            _ => None,
        };
        let networks = &self.running.network.networks;
        let network = networks.of(family).unwrap_or(target.subnet);
        Ok(Seen {
            own: Own {
                network,
                backend: self.running.network.backend.map(|backend| backend.name),
                tunnel: self
                    .running
                    .network
                    .encapsulation
                    .and_then(|encapsulation| encapsulation.of(target.subnet.into())),
                probes: self.running.probe_port,
                interface: underlay.name.clone(),
                address: underlay.tunnel_source(target.address.into()),
                overlay,
            },
            target,
            pod,
            to,
            wanted: kernel.wanted,
            fate: kernel.fate,
            neighbour: kernel.neighbour,
            fdb: kernel.fdb,
            tunnelled,
            underlay: kernel.underlay,
            replies,
            rules: Rules::of(report.as_deref(), family),
            pinged,
        })
    }

    /// Looks up in the kernel the routes and entries that the peer's lease requires.
    fn kernel(
        &self,
        target: &Target,
        to: IpAddr,
        underlay: &Underlay,
    ) -> Result<InKernel, KernelError> {
        let mut client = Client::open()?;
        let direct_fate = look_up_fate(&mut client, target.address);
        let direct = matches!(&direct_fate, Ok(Fate::Sent(hop)) if hop.route.via.is_none() && hop.route.index == underlay.index);
        let on_link = if direct { BTreeSet::from([target.address]) } else { BTreeSet::new() };
        let facts = Facts { underlay: underlay.clone(), on_link, accepted_macs: BTreeMap::new() };
        let wanted = {
            let leases = self.running.leases.borrow();
            let peer = leases
                .peers(&self.running.network.own, self.overlay.kinds)
                .find(|peer| peer.subnet == target.subnet);
            let network = self
                .running
                .network
                .networks
                .nets()
                .find(|net| net.contains(&target.subnet))
                .unwrap_or(target.subnet);
            peer.map(|peer| {
                Wanted::of(&self.running.observer.needs(&peer, &facts)).in_network(network)
            })
            .unwrap_or_default()
        };
        let neighbour =
            wanted.neighbour.map(|(dev, ip, _)| look_up_neighbour(&mut client, dev, ip));
        let fdb = wanted.fdb.map(|(dev, mac, _)| look_up_fdb(&mut client, dev, mac));
        let fate = look_up_fate(&mut client, to);
        Ok(InKernel { wanted, fate, neighbour, fdb, underlay: direct_fate })
    }

    /// Sends only pings if this node sends no probes. `device` is the address of the peer's overlay device.
    async fn ask(&self, target: &Target, device: IpAddr) -> Result<ProbeReplies, Problem> {
        let Some(prober) = &self.running.prober else {
            let underlay = echo(None, target.address, QUESTIONS);
            let ping = async {
                if self.overlay.device {
                    echo(None, device, QUESTIONS).await
                } else {
                    Ok(Default::default())
                }
            };
            let (underlay_ping, ping) = tokio::join!(underlay, ping);
            let (underlay_ping, no_ping) = split(underlay_ping);
            let (ping, no_ping_through) = split(ping);
            let silenced = no_ping.or(no_ping_through).unwrap_or_else(|| {
                Problem::new("probes-off", "this node does not probe (--probe-port=0)")
            });
            return Ok(ProbeReplies {
                overlay: self.overlay.device,
                silenced: Some(silenced),
                underlay_ping,
                ping,
                ..ProbeReplies::default()
            });
        };
        let probe = prober.ask(target.subnet).await;
        let probe = probe.ok_or_else(|| {
            let text = format!(
                "the lease of {} ended during the probe, or flanneld is stopping",
                target.subnet
            );
            Problem::new("probe-lease-ended", text)
        })?;
        Ok(ProbeReplies {
            overlay: probe.peer.overlay.is_some(),
            silenced: None,
            mtu: probe.peer.mtu,
            small: probe.small,
            full: probe.full,
            underlay: probe.underlay,
            ping: probe.ping,
            full_ping: probe.full_ping,
            underlay_ping: probe.underlay_ping,
            hears_us: probe.peer.ages.hears_us_age_ms,
            hears_us_on_underlay: probe.peer.ages.hears_us_underlay_age_ms,
            answered_by: probe.answered_by,
        })
    }
}

/// The WireGuard peer to which the kernel sends the subnet's packets, if the lease requires one.
fn behind(wanted: &Wanted) -> Option<Result<Option<SeenPeer>, KernelError>> {
    let (dev, net, _) = wanted.tunnelled?;
    Some(Client::open().and_then(|mut client| look_up_wireguard_peer(&mut client, dev, net)))
}

/// Results of the lookups, and the kernel objects that the peer's lease requires.
struct InKernel {
    wanted: Wanted,
    fate: Result<Fate, KernelError>,
    neighbour: Option<Result<Neighbour, KernelError>>,
    fdb: Option<Result<Option<IpAddr>, KernelError>>,
    underlay: Result<Fate, KernelError>,
}

/// The same for an address in a subnet of this node.
async fn here(pod: IpAddr, subnet: IpNet) -> Result<Local, Problem> {
    let mut client = Client::open().map_err(|error| report_kernel(&error))?;
    let fate = look_up_fate(&mut client, pod);
    let mut local = Local { pod, subnet, fate, pinged: None, neighbour: Ok(Neighbour::Absent) };
    let Some(dev) = here::bridged(&local).map(|hop| hop.dev) else {
        return Ok(local);
    };
    local.pinged = Some(echo(None, pod, PINGS).await.map_err(|error| report_no_ping(&error)));
    local.neighbour = look_up_neighbour(&mut client, dev, pod);
    Ok(local)
}

/// The counts of pings and replies, and the error that prevented the pings.
fn split(pinged: io::Result<Tally>) -> (Tally, Option<Problem>) {
    match pinged {
        Ok(tally) => (tally, None),
        Err(error) => (Tally::default(), Some(report_no_ping(&error))),
    }
}

fn report_kernel(error: &KernelError) -> Problem {
    Problem::new("probe-kernel", format!("cannot query the kernel: {error}"))
}

fn report_no_ping(error: &io::Error) -> Problem {
    Problem::new("no-ping", format!("this node cannot ping: {error}"))
}
