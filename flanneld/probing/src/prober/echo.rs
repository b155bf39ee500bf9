//! Pings a pod's address. The pings to pods are independent of the prober's pings to peers.

use super::ping;
use super::socket::Registered;
use crate::view::Tally;
use rand::Rng;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use types::Family;

const PING_INTERVAL: Duration = Duration::from_millis(200);
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Pings an address `times` times from the address `from` or, without it, from the address that the route selects.
/// Needs a raw socket and therefore CAP_NET_RAW.
pub async fn echo(from: Option<IpAddr>, to: IpAddr, times: u8) -> io::Result<Tally> {
    let family = Family::from(to);
    let any = family.pick(IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let id = rand::rng().random();
    // Port 0, because this socket needs no ICMP errors: nothing sends probes that a host could refuse.
    let mut socket = Registered::pings(from.unwrap_or(any), id, 0)?;
    let mut buffer = vec![0; 2048];
    let mut open: HashMap<u64, Instant> = HashMap::new();
    let mut tally = Tally::default();
    let mut rtts: Vec<u32> = Vec::new();
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        if next <= now {
            if tally.asked == times {
                break;
            }
            let nonce = rand::rng().random();
            open.insert(nonce, now);
            tally.asked += 1;
            socket.send(SocketAddr::new(to, 0), &ping::request(family, id, nonce, 0));
            next = now + if tally.asked == times { LAST_ANSWER_TIMEOUT } else { PING_INTERVAL };
        }
        tokio::select! {
            _ = std::future::poll_fn(|context| socket.poll_readable(context)) => {}
            () = sleep_until(next) => {}
        }
        while let Some(read) = socket.read(&mut buffer) {
            let nonce = buffer
                .get(..read.length)
                .filter(|_| read.from == to)
                .and_then(|bytes| ping::reply(family, id, bytes));
            if let Some(sent) = nonce.and_then(|nonce| open.remove(&nonce)) {
                let rtt = sent.elapsed().saturating_sub(read.age);
                rtts.push(u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX));
            }
        }
        if tally.asked == times && open.is_empty() {
            break;
        }
    }
    rtts.sort_unstable();
    tally.answered = u8::try_from(rtts.len()).unwrap_or(u8::MAX);
    tally.rtt_us = rtts.get(rtts.len() / 2).copied();
    Ok(tally)
}
