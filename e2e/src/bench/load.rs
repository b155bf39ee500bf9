//! Network loads between two pods: TCP streams, small packets and round trips. Also measures processor time.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::Pod;
use nix::sys::socket::{
    MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt, sockopt,
};

/// Bytes from TCP streams, and the duration.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flow {
    pub bytes: u64,
    pub seconds: f64,
}

impl Flow {
    pub(crate) fn gigabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e9 / self.seconds
    }
}

/// Calls `during` while the streams run. Counts the bytes that arrive during `time`, which begins after 300 ms.
pub(crate) fn run_tcp_streams(
    from: &Pod,
    to: &Pod,
    streams: usize,
    time: Duration,
    during: impl FnOnce() + Send,
) -> Result<Flow> {
    let target = to.address()?;
    let listener = to.netns().run(|| TcpListener::bind((target, 0)))?.context("listening")?;
    let address = listener.local_addr()?;
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let counted = std::thread::scope(|scope| -> Result<Flow> {
        let mut connections = Vec::new();
        for _ in 0..streams {
            connections.push(
                from.netns()
                    .run(|| TcpStream::connect_timeout(&address, Duration::from_secs(5)))?
                    .context("connecting")?,
            );
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(Duration::from_millis(200)))?;
            let (received, stop) = (&received, &stop);
            scope.spawn(move || {
                let mut buffer = vec![0; 256 << 10];
                loop {
                    match stream.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(length) => drop(received.fetch_add(length as u64, Relaxed)),
                        Err(error)
                            if matches!(
                                error.kind(),
                                ErrorKind::WouldBlock | ErrorKind::TimedOut
                            ) && !stop.load(Relaxed) => {}
                        Err(_) => break,
                    }
                }
            });
        }
        for mut stream in connections {
            stream.set_write_timeout(Some(Duration::from_millis(200)))?;
            let stop = &stop;
            scope.spawn(move || {
                let block = vec![0x5a; 128 << 10];
                while !stop.load(Relaxed) {
                    match stream.write(&block) {
                        Ok(_) => {}
                        Err(error)
                            if matches!(
                                error.kind(),
                                ErrorKind::WouldBlock | ErrorKind::TimedOut
                            ) => {}
                        Err(_) => break,
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        let (begun, before) = (Instant::now(), received.load(Relaxed));
        let other = scope.spawn(during);
        std::thread::sleep(time);
        let flow =
            Flow { bytes: received.load(Relaxed) - before, seconds: begun.elapsed().as_secs_f64() };
        stop.store(true, Relaxed);
        let _ = other.join();
        Ok(flow)
    })?;
    Ok(counted)
}

/// Sent and received small packets at a fixed rate.
#[derive(Clone, Copy, Default)]
pub(crate) struct Small {
    pub sent: u64,
    pub received: u64,
}

impl Small {
    pub(crate) fn loss(&self) -> f64 {
        1.0 - self.received as f64 / self.sent.max(1) as f64
    }
}

/// Packets per system call: the generator must use less processor time than the datapath under test.
const VOLLEY: usize = 64;

/// UDP packets with 64 bytes of payload. Fails if this machine does not generate `rate` packets per second.
pub(crate) fn send_small_packets(from: &Pod, to: &Pod, rate: u64, time: Duration) -> Result<Small> {
    let (here, there) = (from.address()?, to.address()?);
    let receiver = to.netns().run(|| UdpSocket::bind((there, 0)))?.context("binding")?;
    setsockopt(&receiver, sockopt::RcvBufForce, &(8 << 20)).context("SO_RCVBUFFORCE")?;
    let sender = from.netns().run(|| UdpSocket::bind((here, 0)))?.context("binding")?;
    sender.connect(receiver.local_addr()?)?;
    receiver.set_read_timeout(Some(Duration::from_millis(300)))?;
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| count_packets_until_timeout(&receiver));
        let mut headers = MultiHeaders::preallocate(VOLLEY, None);
        let begun = Instant::now();
        let mut sent = 0;
        while begun.elapsed() < time {
            let due = (begun.elapsed().as_secs_f64() * rate as f64) as u64;
            if sent >= due {
                std::thread::sleep(Duration::from_micros(200));
            }
            // Limit the burst after the machine was busy.
            let until = due.min(sent + rate / 500);
            while sent < until {
                // Errors are ignored: a packet that a full queue refuses counts as lost.
                let volley = (until - sent).min(VOLLEY as u64);
                send_packet_volley(&sender, &mut headers, volley as usize);
                sent += volley;
            }
            if due > sent + rate / 50 {
                bail!("this machine does not generate {rate} packets a second");
            }
        }
        Ok(Small { sent, received: counting.join().unwrap_or(0) })
    })
}

fn send_packet_volley(
    socket: &UdpSocket,
    headers: &mut MultiHeaders<SockaddrStorage>,
    packets: usize,
) {
    let payload = [IoSlice::new(&[7; 64])];
    let slices = vec![payload; packets];
    let _ =
        sendmmsg(socket.as_raw_fd(), headers, &slices, vec![None; packets], [], MsgFlags::empty());
}

/// Ends when the socket's read timeout passes without a packet.
fn count_packets_until_timeout(socket: &UdpSocket) -> u64 {
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(VOLLEY, None);
    let mut room = [[0; 128]; VOLLEY];
    let mut count = 0;
    loop {
        let mut slices: Vec<_> = room.iter_mut().map(|slot| [IoSliceMut::new(slot)]).collect();
        match recvmmsg(
            socket.as_raw_fd(),
            &mut headers,
            &mut slices,
            MsgFlags::MSG_WAITFORONE,
            None,
        ) {
            Ok(received) => count += received.count() as u64,
            Err(_) => return count,
        }
    }
}

/// Returns each UDP datagram to its sender.
pub(crate) struct Echo {
    socket: UdpSocket,
}

impl Echo {
    pub(crate) fn new(pod: &Pod) -> Result<Self> {
        let address: IpAddr = pod.address()?;
        let socket = pod.netns().run(|| UdpSocket::bind((address, 0)))?.context("binding")?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Self { socket })
    }

    pub(crate) fn address(&self) -> Result<SocketAddr> {
        Ok(self.socket.local_addr()?)
    }

    pub(crate) fn run(&self, stop: &AtomicBool) {
        let mut buffer = [0; 128];
        while !stop.load(Relaxed) {
            if let Ok((length, from)) = self.socket.recv_from(&mut buffer) {
                let _ = self.socket.send_to(buffer.get(..length).unwrap_or_default(), from);
            }
        }
    }
}

/// Scheduling of the sender and the responder of a round trip.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Programs {
    Ordinary,
    /// With a higher priority than all threads that forward packets.
    RealTime,
}

impl Programs {
    /// Applies to the calling thread.
    fn schedule_calling_thread(self) -> Result<()> {
        if self == Programs::Ordinary {
            return Ok(());
        }
        let thread = nix::unistd::gettid().to_string();
        let status = std::process::Command::new("chrt")
            .args(["--rr", "--pid", "50", &thread])
            .status()
            .context("running chrt of util-linux")?;
        ensure!(status.success(), "chrt: {status}");
        Ok(())
    }
}

/// Measures one after the other, for `time`. The result is sorted, in microseconds.
pub(crate) fn measure_sorted_round_trips(
    from: &Pod,
    to: &Pod,
    time: Duration,
    programs: Programs,
) -> Result<Vec<f64>> {
    let echo = Echo::new(to)?;
    let address = echo.address()?;
    let here = from.address()?;
    let socket = from.netns().run(|| UdpSocket::bind((here, 0)))?.context("binding")?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let stop = AtomicBool::new(false);
    let mut times = std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            programs.schedule_calling_thread()?;
            echo.run(&stop);
            anyhow::Ok(())
        });
        let scheduled = programs.schedule_calling_thread();
        let end = Instant::now() + time;
        let mut times = Vec::new();
        let mut number = 0_u64;
        while Instant::now() < end {
            number += 1;
            let begun = Instant::now();
            let mut buffer = [0; 16];
            if socket.send(&number.to_le_bytes()).is_ok() {
                // Skip late replies to earlier packets.
                while socket
                    .recv(&mut buffer)
                    .is_ok_and(|length| buffer.get(..length) != Some(&number.to_le_bytes()[..]))
                {
                }
                times.push(begun.elapsed().as_secs_f64() * 1e6);
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        stop.store(true, Relaxed);
        scheduled?;
        if let Ok(answered) = answering.join() {
            answered?;
        }
        anyhow::Ok(times)
    })?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// 0.5 selects the median.
pub(crate) fn sorted_quantile(sorted: &[f64], part: f64) -> f64 {
    let place = (sorted.len().saturating_sub(1) as f64 * part).round();
    sorted.get(place as usize).copied().unwrap_or(f64::NAN)
}

/// Ignores NaN.
pub(crate) fn median_figure(figures: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = figures.iter().copied().filter(|figure| !figure.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted_quantile(&sorted, 0.5)
}

/// In seconds, from `/proc`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    /// Of the whole machine.
    pub all: f64,
    /// Of the given processes.
    pub daemons: f64,
    /// Of all processes except this one, kernel threads, and the given ones.
    pub foreign: f64,
}

const TICK: f64 = 0.01;

impl Cpu {
    pub(crate) fn now(daemons: &[u32]) -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let ticks: Vec<f64> = stat
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .filter_map(|text| text.parse().ok())
            .collect();
        // user, nice, system, idle, iowait, irq, softirq
        let all = [0, 1, 2, 5, 6].iter().filter_map(|place| ticks.get(*place)).sum::<f64>() * TICK;
        let mut cpu = Self { all, ..Self::default() };
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let Some((_, rest)) = stat.rsplit_once(')') else {
                continue;
            };
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let field = |place: usize| {
                fields.get(place).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0)
            };
            let time = (field(11) + field(12)) * TICK;
            // Kernel threads do not count as foreign: they process the packets of the load.
            let kernel = field(1) == 2.0 || pid == 2;
            if daemons.contains(&pid) {
                cpu.daemons += time;
            } else if pid != std::process::id() && !kernel {
                cpu.foreign += time;
            }
        }
        cpu
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            all: self.all - before.all,
            daemons: self.daemons - before.daemons,
            foreign: self.foreign - before.foreign,
        }
    }
}
