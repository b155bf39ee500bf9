//! Bulk data over TCP between pods. The receiver checks every byte and measures the time.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{getsockopt, sockopt};

use crate::host::pod::Pod;
use wait::Wait;

/// In bytes; a prime, so that no two successive segments or pages have the same content.
const PERIOD: usize = 65_521;

#[derive(Debug, Clone, Default)]
pub struct TransferOptions {
    v6: bool,
}

impl TransferOptions {
    #[must_use]
    pub fn v6(mut self) -> TransferOptions {
        self.v6 = true;
        self
    }
}

/// It arrived complete and unchanged.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    pub bytes: u64,
    /// From the connection to the last byte.
    pub elapsed: Duration,
    /// The sender's segment size in bytes: the path MTU minus 40 (IPv4) or 60 (IPv6), and minus 12 for timestamps.
    pub segment: u32,
}

impl Transfer {
    /// Fails if the data does not arrive in time or differs from what was sent.
    pub fn run(from: &Pod, to: &Pod, bytes: u64, options: &TransferOptions) -> Result<Transfer> {
        let target = if options.v6 { IpAddr::V6(to.v6()?) } else { to.address()? };
        let listener = to
            .netns()
            .run(|| TcpListener::bind((target, 0)))?
            .with_context(|| format!("listening on {target}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let end = Instant::now() + Wait::start().left();
        let content = pseudorandom_bytes();
        let (start, segment) = std::thread::scope(|scope| {
            let receiving =
                scope.spawn(|| receive_and_check_content(&listener, bytes, &content, end));
            let sent = from
                .netns()
                .run(|| send_and_read_segment_size(address, bytes, &content, end))
                .and_then(|sent| sent);
            let received =
                receiving.join().unwrap_or_else(|_| bail!("the receiving thread panicked"));
            let what = || format!("{bytes} bytes from {} to {}", from.name(), to.name());
            // When one end fails, the other one also fails: the error names both.
            match (sent, received) {
                (Ok(sent), Ok(())) => Ok(sent),
                (Ok(_), Err(received)) => Err(received).with_context(what),
                (Err(sent), Ok(())) => Err(sent).with_context(what),
                (Err(sent), Err(received)) => Err(sent)
                    .with_context(|| format!("the receiver ended with: {received:#}"))
                    .with_context(what),
            }
        })?;
        Ok(Transfer { bytes, elapsed: start.elapsed(), segment })
    }

    /// Goodput in Mbit/s.
    pub fn megabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.elapsed.as_secs_f64()
    }
}

fn send_and_read_segment_size(
    address: SocketAddr,
    bytes: u64,
    content: &[u8],
    end: Instant,
) -> Result<(Instant, u32)> {
    let mut stream =
        TcpStream::connect_timeout(&address, remaining_time(end)?).context("connecting")?;
    let start = Instant::now();
    let mut rest = bytes;
    while rest > 0 {
        stream.set_write_timeout(Some(remaining_time(end)?))?;
        let piece =
            content.get(..usize::try_from(rest).unwrap_or(PERIOD).min(PERIOD)).unwrap_or_default();
        stream.write_all(piece).with_context(|| format!("sending, {rest} bytes left"))?;
        rest -= piece.len() as u64;
    }
    let segment = getsockopt(&stream, sockopt::TcpMaxSeg)?;
    Ok((start, segment))
}

fn receive_and_check_content(
    listener: &TcpListener,
    bytes: u64,
    content: &[u8],
    end: Instant,
) -> Result<()> {
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1).min(remaining_time(end)?));
            }
            Err(error) => return Err(error).context("accepting"),
        }
    };
    stream.set_nonblocking(false)?;
    let mut buffer = vec![0; 1 << 16];
    let mut place = 0u64;
    loop {
        stream.set_read_timeout(Some(remaining_time(end)?))?;
        let length = stream
            .read(&mut buffer)
            .with_context(|| format!("cannot receive after {place} of {bytes} bytes"))?;
        if length == 0 {
            break;
        }
        let mut data = buffer.get(..length).unwrap_or_default();
        while !data.is_empty() {
            let expected =
                content.get(usize::try_from(place % PERIOD as u64)?..).unwrap_or_default();
            let count = data.len().min(expected.len());
            if data.get(..count) != expected.get(..count) {
                bail!("wrong bytes between {place} and {}", place + count as u64);
            }
            place += count as u64;
            data = data.get(count..).unwrap_or_default();
        }
    }
    if place != bytes {
        bail!("{place} of {bytes} bytes arrived");
    }
    Ok(())
}

/// Never zero, because std refuses a socket timeout of zero.
fn remaining_time(end: Instant) -> Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        bail!("the test has reached its guard");
    }
    Ok(left)
}

fn pseudorandom_bytes() -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(PERIOD).collect()
}
