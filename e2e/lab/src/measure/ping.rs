//! Reachability of pods: `ping` between all pairs, shown as a matrix.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::host::pod::Pod;
use crate::net::netns::Netns;
use wait::{until, until_ok};

#[derive(Debug, Clone, Default)]
pub struct PingOptions {
    packet: Option<u32>,
    timeout: Option<Duration>,
}

impl PingOptions {
    /// The length of the whole IP packet, unfragmented. The pod's MTU tests the MTU of the overlay.
    #[must_use]
    pub fn packet_length(mut self, length: u32) -> PingOptions {
        self.packet = Some(length);
        self
    }

    /// The reply has to arrive within this time; 1 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> PingOptions {
        self.timeout = Some(timeout);
        self
    }
}

/// The round-trip time; `None` without a reply.
pub fn ping_address(from: &Netns, to: IpAddr, options: &PingOptions) -> Result<Option<Duration>> {
    let timeout = options.timeout.unwrap_or(Duration::from_secs(1)).as_secs_f32();
    let mut args = vec!["-n".to_owned(), "-c1".to_owned(), format!("-W{timeout}")];
    if let Some(length) = options.packet {
        let headers = if to.is_ipv4() { 28 } else { 48 };
        args.extend(["-Mdo".to_owned(), format!("-s{}", length.saturating_sub(headers))]);
    }
    args.push(to.to_string());
    let output = from.output("ping", &args)?;
    if !output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let time = text
        .split_once("time=")
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .and_then(|time| time.parse::<f64>().ok());
    let millis =
        time.with_context(|| format!("no round-trip time in the output of ping: {text}"))?;
    Ok(Some(Duration::from_secs_f64(millis / 1000.0)))
}

/// From each pod to every other pod.
#[derive(Debug, Clone)]
pub struct PingMatrix {
    names: Vec<String>,
    /// Round-trip times, one row per sender. `None` for a lost ping, and for the pair of a pod with itself.
    rows: Vec<Vec<Option<Duration>>>,
}

impl PingMatrix {
    /// Pings by IPv4 or, for pods without it, by IPv6.
    pub fn of_main_addresses(pods: &[Pod]) -> Result<PingMatrix> {
        let targets = pods.iter().map(Pod::address).collect::<Result<Vec<_>>>()?;
        PingMatrix::between_addresses(pods, &targets, &PingOptions::default())
    }

    pub fn of_v6_addresses(pods: &[Pod]) -> Result<PingMatrix> {
        let targets =
            pods.iter().map(|pod| pod.v6().map(IpAddr::V6)).collect::<Result<Vec<_>>>()?;
        PingMatrix::between_addresses(pods, &targets, &PingOptions::default())
    }

    /// `targets` contains one address of each pod, in the order of the pods.
    pub fn between_addresses(
        pods: &[Pod],
        targets: &[IpAddr],
        options: &PingOptions,
    ) -> Result<PingMatrix> {
        ensure!(
            pods.len() == targets.len(),
            "{} pods and {} addresses are no mesh",
            pods.len(),
            targets.len()
        );
        let row = |number: usize, pod: &Pod| {
            let cell = |(to, target): (usize, &IpAddr)| {
                if to == number { Ok(None) } else { ping_address(pod.netns(), *target, options) }
            };
            targets.iter().enumerate().map(cell).collect::<Result<Vec<_>>>()
        };
        let rows = std::thread::scope(|scope| {
            let started: Vec<_> = pods
                .iter()
                .enumerate()
                .map(|(number, pod)| scope.spawn(move || row(number, pod)))
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<_>>>| {
                thread.join().unwrap_or_else(|_| bail!("a pinging thread panicked"))
            };
            started.into_iter().map(join).collect::<Result<Vec<_>>>()
        })?;
        Ok(PingMatrix { names: pods.iter().map(|pod| pod.name().to_owned()).collect(), rows })
    }

    /// The names are in the order of the rows and columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The round-trip time between two pods, given by their numbers.
    pub fn round_trip_time(&self, from: usize, to: usize) -> Option<Duration> {
        self.rows.get(from)?.get(to).copied().flatten()
    }

    /// Sender and receiver of each ping without a reply.
    pub fn unanswered_pairs(&self) -> Vec<(&str, &str)> {
        let named: Vec<(usize, &String)> = self.names.iter().enumerate().collect();
        let pairs = named
            .iter()
            .flat_map(|from| named.iter().map(move |to| (from, to)))
            .filter(|(from, to)| from.0 != to.0);
        pairs
            .filter(|(from, to)| self.round_trip_time(from.0, to.0).is_none())
            .map(|(from, to)| (from.1.as_str(), to.1.as_str()))
            .collect()
    }

    /// The error contains the matrix. Fails with fewer than two pods, because a pod does not ping itself.
    pub fn require_complete(&self) -> Result<()> {
        ensure!(self.names.len() > 1, "{:?} have nobody to reach", self.names);
        if !self.unanswered_pairs().is_empty() {
            bail!("not everybody reaches everybody:\n{self}");
        }
        Ok(())
    }
}

impl fmt::Display for PingMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.names.iter().map(String::len).max().unwrap_or(0).max(8);
        write!(f, "{:width$}", "")?;
        for name in &self.names {
            write!(f, "  {name:>width$}")?;
        }
        for (from, name) in self.names.iter().enumerate() {
            write!(f, "\n{name:width$}")?;
            for to in 0..self.names.len() {
                let cell = match self.round_trip_time(from, to) {
                    _ if from == to => "-".to_owned(),
                    Some(time) => format!("{:.2} ms", time.as_secs_f64() * 1000.0),
                    None => "no".to_owned(),
                };
                write!(f, "  {cell:>width$}")?;
            }
        }
        Ok(())
    }
}

/// Waits until the address replies to a ping.
pub fn wait_ping_answered(from: &Netns, to: IpAddr) -> Result<()> {
    until(&format!("{to} replies to a ping"), || {
        ping_address(from, to, &PingOptions::default()).is_ok_and(|time| time.is_some())
    })
    .map(drop)
}

/// Waits until each pod reaches every other pod, in each family that all of them have. The error contains a matrix. Fails without such a family, and with fewer than two pods.
pub fn wait_pods_connected(pods: &[Pod]) -> Result<()> {
    ensure!(pods.len() > 1, "{} pods have nobody to reach", pods.len());
    let mut families = 0;
    for v6 in [false, true] {
        let of_family = |pod: &Pod| {
            let mut addresses = pod.addresses().into_iter();
            addresses.find(|address| address.is_ipv6() == v6)
        };
        let Some(targets) = pods.iter().map(of_family).collect::<Option<Vec<_>>>() else {
            continue;
        };
        families += 1;
        until_ok("pods reach each other", || {
            PingMatrix::between_addresses(pods, &targets, &PingOptions::default())?
                .require_complete()
        })?;
    }
    ensure!(families > 0, "the pods have no family in common");
    Ok(())
}
