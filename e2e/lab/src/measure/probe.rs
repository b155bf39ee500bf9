//! A steady stream of numbered UDP packets, and a record of their arrival.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{setsockopt, sockopt};

use crate::host::pod::Pod;
use crate::measure::report::{Passage, ProbeReport};
use crate::net::netns::Netns;
use wait::{until, until_ok};

/// The probe's ID and the packet's number, in bytes.
const HEADER: usize = 16;
/// With the header, in bytes.
const PAYLOAD: usize = 64;
/// The receiver waits this long for packets in flight after the sender ended.
const GRACE: Duration = Duration::from_millis(300);
/// How often the receiver checks whether to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Receive buffer, in bytes.
const BUFFER: usize = 16 << 20;

#[derive(Debug, Clone)]
pub struct ProbeOptions {
    interval: Duration,
    v6: bool,
    port: u16,
    flow_each: bool,
    seen_as: Option<IpAddr>,
}

impl Default for ProbeOptions {
    fn default() -> ProbeOptions {
        ProbeOptions {
            interval: Duration::from_millis(5),
            v6: false,
            port: 0,
            flow_each: false,
            seen_as: None,
        }
    }
}

impl ProbeOptions {
    /// The time between packets; 5 ms by default.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> ProbeOptions {
        self.interval = interval;
        self
    }

    #[must_use]
    pub fn v6(mut self) -> ProbeOptions {
        self.v6 = true;
        self
    }

    /// The receiver's port; a free one by default. A probe counts packets of another probe on the same port as unexpected.
    #[must_use]
    pub fn receiver_port(mut self, port: u16) -> ProbeOptions {
        self.port = port;
        self
    }

    /// A new port for each packet, so that a NAT treats each as a separate connection.
    #[must_use]
    pub fn new_port_per_packet(mut self) -> ProbeOptions {
        self.flow_each = true;
        self
    }

    /// The source address that the receiver expects instead of the sender's. Packets with any other count as unexpected.
    #[must_use]
    pub fn seen_as(mut self, address: IpAddr) -> ProbeOptions {
        self.seen_as = Some(address);
        self
    }
}

#[derive(Debug, Default)]
struct Received {
    arrivals: Vec<(u64, Duration)>,
    wrong: u64,
}

#[derive(Debug, Default)]
struct Sent {
    times: Vec<Duration>,
    refused: u64,
}

/// Packets that the processors dropped since the boot. All namespaces share their queues.
fn machine_drops() -> Result<u64> {
    let table = std::fs::read_to_string("/proc/net/softnet_stat")?;
    let dropped = |line: &str| {
        let column = line.split(' ').nth(1).context("no second column")?;
        Ok(u64::from_str_radix(column, 16)?)
    };
    table.lines().map(dropped).sum()
}

#[derive(Debug)]
struct Progress {
    start: Instant,
    machine_drops: u64,
    received: AtomicU64,
    end_sending: AtomicBool,
    end_receiving: AtomicBool,
}

/// Runs until [`Probe::finish`].
#[derive(Debug)]
pub struct Probe {
    progress: Arc<Progress>,
    sender: Option<JoinHandle<Sent>>,
    receiver: Option<JoinHandle<Received>>,
}

impl Probe {
    pub fn start(from: &Pod, to: &Pod, options: &ProbeOptions) -> Result<Probe> {
        let of = |pod: &Pod| {
            if options.v6 { pod.v6().map(IpAddr::V6) } else { pod.address() }
        };
        Probe::start_between_addresses((from.netns(), of(from)?), (to.netns(), of(to)?), options)
    }

    /// Sends from an address in one namespace to an address in another.
    pub fn start_between_addresses(
        from: (&Netns, IpAddr),
        to: (&Netns, IpAddr),
        options: &ProbeOptions,
    ) -> Result<Probe> {
        let bind = |netns: &Netns, address: IpAddr, port: u16| {
            let what = format!("UDP port {port} of {address} in {} is free", netns.name());
            // A child that another thread is just starting keeps the socket of an earlier probe open until its exec.
            until_ok(&what, || Ok(netns.run(|| UdpSocket::bind((address, port)))??))
        };
        let (out, into) = (bind(from.0, from.1, 0)?, bind(to.0, to.1, options.port)?);
        into.set_read_timeout(Some(POLL_INTERVAL))?;
        // After a pause of this machine, all late packets arrive at once.
        setsockopt(&into, sockopt::RcvBufForce, &BUFFER)
            .context("cannot set a large buffer for received packets")?;
        let (source, target) = (out.local_addr()?, into.local_addr()?);
        // The source port is unknown if it changes with each packet or if a NAT chooses it.
        let expected = Expected {
            address: options.seen_as.unwrap_or(source.ip()),
            port: Some(source.port()).filter(|_| !options.flow_each && options.seen_as.is_none()),
        };
        let id: u64 = rand::random();
        let progress = Arc::new(Progress {
            start: Instant::now(),
            machine_drops: machine_drops()?,
            received: AtomicU64::new(0),
            end_sending: AtomicBool::new(false),
            end_receiving: AtomicBool::new(false),
        });
        let (theirs, ours, options) =
            (Arc::clone(&progress), Arc::clone(&progress), options.clone());
        let receiver =
            std::thread::spawn(move || receive_numbered_packets(&into, expected, id, &theirs));
        let netns = from.0.clone();
        let sender = std::thread::spawn(move || {
            // The sender may open more sockets later, and these must belong to the namespace.
            netns
                .run(|| send_numbered_packets(&out, target, id, &options, &ours))
                .unwrap_or_default()
        });
        Ok(Probe { progress, sender: Some(sender), receiver: Some(receiver) })
    }

    /// Since the start, from which all times in the report count.
    pub fn elapsed(&self) -> Duration {
        self.progress.start.elapsed()
    }

    /// The packets that have arrived so far.
    pub fn received(&self) -> u64 {
        self.progress.received.load(Ordering::Relaxed)
    }

    /// Waits until a packet sent from now on arrives. The result is the duration.
    pub fn wait_flowing(&self) -> Result<Duration> {
        let before = self.received();
        // One packet may have been in flight already.
        until("the probe's packets arrive", || self.received() > before + 1)
    }

    /// Stops the sender and waits for packets in flight.
    pub fn finish(mut self) -> Result<ProbeReport> {
        let Some((sent, received)) = self.stop_and_join_threads() else {
            bail!("a thread of the probe panicked")
        };
        let mut arrived: Vec<Option<Duration>> = vec![None; sent.times.len()];
        let (mut duplicates, mut wrong) = (0, received.wrong);
        for (number, time) in received.arrivals {
            match usize::try_from(number).ok().and_then(|number| arrived.get_mut(number)) {
                Some(slot @ None) => *slot = Some(time),
                Some(Some(_)) => duplicates += 1,
                None => wrong += 1,
            }
        }
        let passage = |(number, (sent, received)): (u64, (Duration, Option<Duration>))| Passage {
            number,
            sent,
            received,
        };
        let passages = (0..).zip(sent.times.into_iter().zip(arrived)).map(passage).collect();
        let machine_drops = machine_drops()?.saturating_sub(self.progress.machine_drops);
        Ok(ProbeReport::new(passages, duplicates, wrong, sent.refused, machine_drops))
    }

    fn stop_and_join_threads(&mut self) -> Option<(Sent, Received)> {
        self.progress.end_sending.store(true, Ordering::Relaxed);
        let sent = self.sender.take()?.join();
        if sent.as_ref().is_ok_and(|sent| sent.times.len() as u64 > self.received()) {
            std::thread::sleep(GRACE);
        }
        self.progress.end_receiving.store(true, Ordering::Relaxed);
        let received = self.receiver.take()?.join();
        Some((sent.ok()?, received.ok()?))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop_and_join_threads();
    }
}

fn send_numbered_packets(
    socket: &UdpSocket,
    target: SocketAddr,
    id: u64,
    options: &ProbeOptions,
    progress: &Progress,
) -> Sent {
    let mut sent = Sent::default();
    let mut due = progress.start;
    let mut number = 0u64;
    while !progress.end_sending.load(Ordering::Relaxed) {
        // After a pause of this machine, the probe sends all late packets at once.
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let packet = numbered_packet(id, number);
        sent.times.push(progress.start.elapsed());
        let result = match options.flow_each {
            false => socket.send_to(&packet, target),
            true => socket
                .local_addr()
                .and_then(|own| UdpSocket::bind((own.ip(), 0)))
                .and_then(|socket| socket.send_to(&packet, target)),
        };
        if result.is_err() {
            sent.refused += 1;
        }
        number += 1;
        due += options.interval;
    }
    sent
}

/// If `port` is `None`, any port is correct.
#[derive(Debug, Clone, Copy)]
struct Expected {
    address: IpAddr,
    port: Option<u16>,
}

impl Expected {
    fn fits(self, from: SocketAddr) -> bool {
        from.ip() == self.address && self.port.is_none_or(|port| port == from.port())
    }
}

fn receive_numbered_packets(
    socket: &UdpSocket,
    expected: Expected,
    id: u64,
    progress: &Progress,
) -> Received {
    let mut received = Received::default();
    let mut buffer = vec![0; 65536];
    while !progress.end_receiving.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let now = progress.start.elapsed();
        let data = buffer.get(..length).unwrap_or_default();
        match packet_number(data)
            .filter(|number| expected.fits(from) && data == numbered_packet(id, *number))
        {
            Some(number) => {
                received.arrivals.push((number, now));
                progress.received.fetch_add(1, Ordering::Relaxed);
            }
            None => received.wrong += 1,
        }
    }
    received
}

/// Depends only on the probe's ID and the packet's number.
fn numbered_packet(id: u64, number: u64) -> Vec<u8> {
    let mut bytes = [id.to_be_bytes(), number.to_be_bytes()].concat();
    let filling =
        (HEADER..PAYLOAD).map(|place| (place as u64).wrapping_mul(31).wrapping_add(number) as u8);
    bytes.extend(filling);
    bytes
}

fn packet_number(data: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(data.get(8..HEADER)?.try_into().ok()?))
}
