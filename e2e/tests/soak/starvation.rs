//! The daemon's threads with real-time priority do not starve other programs. Even while packets load both processors fully, others get processor
//! time, and the daemon responds and renews its lease.
//!
//! One of the two loads is a flood of small packets. The real-time priority is for streams with messages, not for floods. Without the daemon's flood
//! limit, another program gets only half of its processor time. The other load consists of TCP streams and of small UDP messages. For these, the
//! threads use real-time priority, within the real-time budget of each.
//!
//! By default, the test is short and only shows that the daemon responds. `FLANNEL_TEST_SOAK` sets the duration in seconds (`make soak`). A run of at
//! least one minute also alternates between daemons with and without real-time priority, and compares another program's processor time.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Etcd, EtcdOptions, Flanneld, FlanneldOptions, Host, Lab, Pod, Uplink, env_number};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

const STOP: Duration = Duration::from_secs(30);
/// In the flood. Each flow has few packets, but the daemon's flood limit applies to all together.
const FLOWS: usize = 64;
/// In each direction. `CHUNK` is the number of bytes per write.
const STREAMS: usize = 2;
const CHUNK: usize = 64 << 10;
/// UDP message flows in each direction, in addition to the streams. Each sends a message every `MESSAGES_PAUSE`, which is below the rate of a flood.
const MESSAGES: usize = 4;
const MESSAGES_PAUSE: Duration = Duration::from_millis(1);
/// The least processor time of a program, as a ratio to that while the daemon's threads have no real-time priority.
const SHARE: f64 = 0.5;
/// Between requests to `/livez`.
const ASKED: Duration = Duration::from_millis(100);
/// Until the daemon responds to a request.
const ANSWER: Duration = Duration::from_secs(1);
/// Of a lease in etcd.
const RENEWAL: Duration = Duration::from_secs(60);
/// Of a lease in etcd.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// It fills the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    SmallPackets,
    StreamsAndMessages,
}

/// Of a run under load.
#[derive(Debug, Default)]
struct UnderLoad {
    /// Processor time of the computing thread, in seconds per second of the run.
    computed: f64,
    /// Response time of a daemon.
    longest: Duration,
    /// Packets that arrived, in thousands per second.
    came: f64,
    /// Bytes of streams that arrived, in millions per second.
    streamed: f64,
}

/// Small packets until `stop` is true: as fast as possible, or as messages with pauses.
fn send_small_packets(
    from: &Pod,
    to: &Pod,
    port: u16,
    load: Load,
    stop: &AtomicBool,
) -> Result<()> {
    let (here, there) = (from.address()?, to.address()?);
    let flows = match load {
        Load::SmallPackets => FLOWS,
        Load::StreamsAndMessages => MESSAGES,
    };
    let sockets = from.netns().run(|| {
        (0..flows)
            .map(|_| {
                let socket = UdpSocket::bind((here, 0))?;
                socket.connect((there, port))?;
                Ok(socket)
            })
            .collect::<Result<Vec<_>>>()
    })??;
    while !stop.load(Relaxed) {
        for socket in &sockets {
            let _ = socket.send(&[7; 64]);
        }
        if load == Load::StreamsAndMessages {
            std::thread::sleep(MESSAGES_PAUSE);
        }
    }
    Ok(())
}

/// Writes until `stop` is true.
fn write_until_stopped(mut stream: TcpStream, stop: &AtomicBool) {
    let chunk = vec![7; CHUNK];
    while !stop.load(Relaxed) {
        let _ = stream.write(&chunk);
    }
}

/// Reads the stream to its end, and counts the bytes.
fn count_streamed_bytes(mut stream: TcpStream, streamed: &AtomicU64) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        streamed.fetch_add(length as u64, Relaxed);
    }
}

/// TCP streams from one pod to another, with both ends of each.
fn connect_tcp_streams(from: &Pod, to: &Pod) -> Result<Vec<(TcpStream, TcpStream)>> {
    let address = to.address()?;
    let listener = to.netns().run(|| TcpListener::bind((address, 0)))??;
    let there = listener.local_addr()?;
    (0..STREAMS)
        .map(|_| {
            let near = from.netns().run(|| TcpStream::connect_timeout(&there, STOP))??;
            near.set_write_timeout(Some(Duration::from_millis(100)))?;
            Ok((near, listener.accept()?.0))
        })
        .collect()
}

/// Counts packets until `stop` is true.
fn count_received_packets(socket: &UdpSocket, stop: &AtomicBool, came: &AtomicU64) {
    let mut buffer = [0; 128];
    while !stop.load(Relaxed) {
        if socket.recv(&mut buffer).is_ok() {
            came.fetch_add(1, Relaxed);
        }
    }
}

/// The result is the processor time of this thread.
fn spend_processor_time(stop: &AtomicBool) -> Duration {
    let ran = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Into::into);
    let before = ran();
    while !stop.load(Relaxed) {
        std::hint::black_box((0..1000_u64).fold(0, u64::wrapping_add));
    }
    ran().saturating_sub(before)
}

/// Packets in both directions for `time`; measures the processor time of a computing thread.
fn measure_under_load(
    pods: &[Pod],
    daemons: &[Flanneld],
    load: Load,
    time: Duration,
) -> Result<UnderLoad> {
    let sockets = pods
        .iter()
        .map(|pod| {
            let address = pod.address()?;
            let socket = pod.netns().run(|| UdpSocket::bind((address, 0)))??;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            Ok(socket)
        })
        .collect::<Result<Vec<_>>>()?;
    let (stop, came, streamed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let [a, b] = pods else { anyhow::bail!("two pods are meant") };
    let [at_a, at_b] = sockets.as_slice() else { anyhow::bail!("two sockets are meant") };
    let (to_a, to_b) = (at_a.local_addr()?.port(), at_b.local_addr()?.port());
    let streams = match load {
        Load::SmallPackets => Vec::new(),
        Load::StreamsAndMessages => {
            let mut streams = connect_tcp_streams(a, b)?;
            streams.extend(connect_tcp_streams(b, a)?);
            streams
        }
    };
    std::thread::scope(|scope| {
        let (stop, came, streamed) = (&stop, &came, &streamed);
        let senders = [
            scope.spawn(move || send_small_packets(a, b, to_b, load, stop)),
            scope.spawn(move || send_small_packets(b, a, to_a, load, stop)),
        ];
        for (near, far) in streams {
            scope.spawn(move || write_until_stopped(near, stop));
            scope.spawn(move || count_streamed_bytes(far, streamed));
        }
        scope.spawn(move || count_received_packets(at_a, stop, came));
        scope.spawn(move || count_received_packets(at_b, stop, came));
        let computing = scope.spawn(move || spend_processor_time(stop));
        let begun = Instant::now();
        let mut longest = Duration::ZERO;
        let mut outcome = Ok(());
        while begun.elapsed() < time && outcome.is_ok() {
            std::thread::sleep(ASKED);
            for daemon in daemons {
                let asked = Instant::now();
                outcome = daemon.get_health_endpoint("/livez").and_then(|(status, _)| {
                    ensure!(status == 200, "/livez: {status}");
                    Ok(())
                });
                longest = longest.max(asked.elapsed());
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        stop.store(true, Relaxed);
        for sender in senders {
            sender.join().map_err(|_| anyhow::anyhow!("a sender panicked"))??;
        }
        outcome?;
        let computed = computing.join().unwrap_or_default();
        Ok(UnderLoad {
            computed: computed.as_secs_f64() / seconds,
            longest,
            came: came.load(Relaxed) as f64 / 1000.0 / seconds,
            streamed: streamed.load(Relaxed) as f64 / 1e6 / seconds,
        })
    })
}

fn start_ready_daemons(
    hosts: &[Host],
    options: &FlanneldOptions,
    real_time: bool,
) -> Result<Vec<Flanneld>> {
    let options = options.clone().arg(&format!("--datapath-real-time={real_time}"));
    let mut daemons =
        hosts.iter().map(|host| host.start_flanneld(&options)).collect::<Result<Vec<_>>>()?;
    daemons.iter_mut().try_for_each(|daemon| daemon.wait_ready().map(drop))?;
    Ok(daemons)
}

fn starves_nobody(backend: &Value, load: Load) -> Result<()> {
    Lab::run("starvation", |lab| {
        let lan = lab.create_switch("lan")?;
        let hosts = lab.create_hosts(&lan, 2)?;
        let registry = lab.create_host("registry", &[Uplink::enp0s8(&lan, 9)?])?;
        let etcd = Etcd::start(&[&registry], &EtcdOptions::default())?;
        let store = etcd.store()?;
        store.configure(&json!({ "Network": "10.5.0.0/16", "Backend": backend }).to_string())?;
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let time = Duration::from_secs(env_number("FLANNEL_TEST_SOAK", 3));
        let long = time >= RENEWAL;
        let time = time.min(RENEWAL + Duration::from_secs(15));
        let mut pods = Vec::new();
        let mut shares = [Vec::new(), Vec::new()];
        // A long run uses priority for the whole time once, then compares both kinds of threads in turns.
        let turns: &[(bool, Duration)] = if long {
            let turn = Duration::from_secs(8);
            &[(true, time), (false, turn), (true, turn), (false, turn), (true, turn), (false, turn)]
        } else {
            &[(true, time)]
        };
        for (real_time, time) in turns {
            let daemons = start_ready_daemons(&hosts, &options, *real_time)?;
            if pods.is_empty() {
                for (host, daemon) in hosts.iter().zip(&daemons) {
                    pods.push(host.create_pod("p1", &daemon.subnet_env()?)?);
                }
            }
            let left = measure_under_load(&pods, &daemons, load, *time)?;
            println!("{backend}, {load:?}, real time {real_time}: {left:?}");
            ensure!(left.came > 0.0, "no packet came");
            ensure!(load == Load::SmallPackets || left.streamed > 0.0, "no stream flowed");
            shares.get_mut(usize::from(*real_time)).context("two kinds")?.push(left.computed);
            if long {
                ensure!(left.longest < ANSWER, "/livez took {:?}", left.longest);
            }
            if *time > RENEWAL {
                for daemon in &daemons {
                    let left = daemon.metric("flannel_lease_expiry_seconds")?;
                    let since = TTL.as_secs_f64() - left;
                    ensure!(
                        since < RENEWAL.as_secs_f64(),
                        "the lease was renewed {since:.0} s ago"
                    );
                }
            }
        }
        let median = |shares: &mut Vec<f64>| {
            shares.sort_by(f64::total_cmp);
            shares.get(shares.len() / 2).copied().unwrap_or(0.0)
        };
        let [without, with] = &mut shares;
        let (without, with) = (median(without), median(with));
        ensure!(
            with > 0.0 && with >= without * SHARE,
            "a program has {with:.2} of a processor beside real-time threads, and {without:.2} beside others"
        );
        Ok(())
    })
}

fn udp_backend() -> Value {
    json!({ "Type": "udp" })
}

fn userspace_wireguard_backend() -> Value {
    json!({ "Type": "wireguard", "Implementation": "userspace" })
}

#[test]
fn flood_over_udp_starves_nobody() -> Result<()> {
    starves_nobody(&udp_backend(), Load::SmallPackets)
}

#[test]
fn flood_over_wireguard_starves_nobody() -> Result<()> {
    starves_nobody(&userspace_wireguard_backend(), Load::SmallPackets)
}

#[test]
fn streams_with_messages_over_udp_starve_nobody() -> Result<()> {
    starves_nobody(&udp_backend(), Load::StreamsAndMessages)
}

#[test]
fn streams_with_messages_over_wireguard_starve_nobody() -> Result<()> {
    starves_nobody(&userspace_wireguard_backend(), Load::StreamsAndMessages)
}
