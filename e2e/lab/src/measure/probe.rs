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
use crate::wait::{until, until_ok};

/// Length of the probe's ID and the packet's number, in bytes.
const HEADER: usize = 16;
/// Duration for which the receiver waits for packets in flight after the sender ended.
const GRACE: Duration = Duration::from_millis(300);
/// Interval at which the receiver checks whether to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Size of the receive buffer, in bytes.
const BUFFER: usize = 16 << 20;

/// Interval, size and ports of a probe's packets.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    interval: Duration,
    payload: usize,
    v6: bool,
    port: u16,
    flow_each: bool,
    seen_as: Option<IpAddr>,
}

impl Default for ProbeOptions {
    fn default() -> ProbeOptions {
        ProbeOptions {
            interval: Duration::from_millis(5),
            payload: 64,
            v6: false,
            port: 0,
            flow_each: false,
            seen_as: None,
        }
    }
}

impl ProbeOptions {
    /// Sets the time between packets. Default: 5 ms.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> ProbeOptions {
        self.interval = interval;
        self
    }

    /// Sets the length of the UDP payload in bytes, at least 16. Default: 64.
    #[must_use]
    pub fn payload(mut self, bytes: usize) -> ProbeOptions {
        self.payload = bytes.max(HEADER);
        self
    }

    /// Uses the pods' IPv6 addresses.
    #[must_use]
    pub fn v6(mut self) -> ProbeOptions {
        self.v6 = true;
        self
    }

    /// Sets the receiver's port. Default: a free port. A probe counts packets of another probe on the same port as unexpected.
    #[must_use]
    pub fn port(mut self, port: u16) -> ProbeOptions {
        self.port = port;
        self
    }

    /// Sends each packet from a new port, so that a NAT treats each packet as a separate connection.
    #[must_use]
    pub fn flow_each(mut self) -> ProbeOptions {
        self.flow_each = true;
        self
    }

    /// Sets the source address that the receiver expects instead of the sender's address. The report counts packets with any other source address as unexpected.
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

/// Returns the number of packets that the processors dropped since the boot. All namespaces share the queues of the processors.
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

/// A running stream of packets, until [`Probe::finish`].
#[derive(Debug)]
pub struct Probe {
    progress: Arc<Progress>,
    sender: Option<JoinHandle<Sent>>,
    receiver: Option<JoinHandle<Received>>,
}

impl Probe {
    /// Starts a stream from one pod to another pod.
    ///
    /// # Errors
    /// Returns an error if a pod has no address, or if a socket cannot bind to its address.
    pub fn start(from: &Pod, to: &Pod, options: &ProbeOptions) -> Result<Probe> {
        let of = |pod: &Pod| {
            if options.v6 { pod.v6().map(IpAddr::V6) } else { pod.address() }
        };
        Probe::between((from.netns(), of(from)?), (to.netns(), of(to)?), options)
    }

    /// Starts a stream from an address in one namespace to an address in another namespace.
    ///
    /// # Errors
    /// Returns an error if a socket cannot bind to its address.
    pub fn between(
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
        let payload = options.payload;
        let receiver = std::thread::spawn(move || receive(&into, expected, id, payload, &theirs));
        let netns = from.0.clone();
        let sender = std::thread::spawn(move || {
            // The sender may open more sockets later, and these must belong to the namespace.
            netns.run(|| send(&out, target, id, &options, &ours)).unwrap_or_default()
        });
        Ok(Probe { progress, sender: Some(sender), receiver: Some(receiver) })
    }

    /// Returns the time since the probe's start, which is also the start of all times in the report.
    pub fn elapsed(&self) -> Duration {
        self.progress.start.elapsed()
    }

    /// Returns the number of the probe's packets that have arrived so far.
    pub fn received(&self) -> u64 {
        self.progress.received.load(Ordering::Relaxed)
    }

    /// Waits until a packet sent from now on arrives. Returns the duration of the wait.
    ///
    /// # Errors
    /// Returns an error if no packet sent from now on arrives until the test reaches its guard.
    pub fn wait_flowing(&self) -> Result<Duration> {
        let before = self.received();
        // One packet may have been in flight already.
        until("the probe's packets arrive", || self.received() > before + 1)
    }

    /// Stops the sender, waits for packets in flight, and returns the report.
    ///
    /// # Errors
    /// Returns an error if a thread of the probe panicked.
    pub fn finish(mut self) -> Result<ProbeReport> {
        let Some((sent, received)) = self.end() else { bail!("a thread of the probe panicked") };
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

    fn end(&mut self) -> Option<(Sent, Received)> {
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
        self.end();
    }
}

fn send(
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
        let packet = packet(id, number, options.payload);
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

/// Expected source of packets. If `port` is `None`, any port is correct.
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

fn receive(
    socket: &UdpSocket,
    expected: Expected,
    id: u64,
    payload: usize,
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
        match number_of(data)
            .filter(|number| expected.fits(from) && data == packet(id, *number, payload))
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

/// Builds a packet. The packet's content depends only on the probe's ID, the packet's number and the length.
fn packet(id: u64, number: u64, length: usize) -> Vec<u8> {
    let mut bytes = [id.to_be_bytes(), number.to_be_bytes()].concat();
    let filling = (0..length.saturating_sub(HEADER))
        .map(|place| (place as u64).wrapping_mul(31).wrapping_add(number) as u8);
    bytes.extend(filling);
    bytes
}

fn number_of(data: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(data.get(8..HEADER)?.try_into().ok()?))
}
