//! Tests with the kernel's WireGuard as the peer. Few machines have it, so `make test-vm` runs them in a
//! virtual machine. The kernel uses the machine's clock; the tests move the clock of our node ahead.

use super::*;
use crate::keypair::RENEWED_AFTER;
use nix::sched::{CloneFlags, unshare};
use std::io::Write;
use std::net::UdpSocket;
use std::process::{Command, Stdio};

/// The longest time from one initiation to the next, with the random delay.
const NEXT_TRY: Duration = Duration::from_millis(5400);
/// Session age from which the initiator requests the next session.
const RENEWED: Duration = Duration::from_secs(120);
/// Addresses of the kernel's pod and of our pod.
const THEIRS: &str = "10.5.1.1";
const OURS: &str = "10.5.2.9";
const PORT: u16 = 2000;
/// Packets between two checks for arrived packets; the socket buffers have room for all of them.
const BATCH: u64 = 64;

fn run_command(command: &str, input: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command}: {}", output.status);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn local_address(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

fn bind_socket(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Handshake messages that our node and the kernel exchanged.
#[derive(Default)]
struct Seen {
    /// Cookie replies, and initiations that prove an address with a cookie.
    cookies: usize,
    proofs: usize,
}

impl Seen {
    fn look(&mut self, datagram: &[u8]) {
        match (datagram.first(), datagram.len()) {
            (Some(3), _) => self.cookies += 1,
            (Some(1), 148) if datagram[132..] != [0; 16] => self.proofs += 1,
            _ => {}
        }
    }
}

/// Our node and the kernel's WireGuard interface, in their own network namespace.
struct Pair {
    node: Node,
    kernel: PublicKey,
    /// The endpoint of the kernel's device.
    there: SocketAddr,
    line: UdpSocket,
    /// The kernel's pod.
    pod: UdpSocket,
    /// The numbers in the packets that arrived at the kernel's pod.
    arrived: Vec<u64>,
    sent: Seen,
    received: Seen,
}

impl Pair {
    /// We know the kernel's endpoint only if `we_begin`. Otherwise only the kernel knows its peer's endpoint
    /// and can begin the first handshake.
    fn new(we_begin: bool) -> Self {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        run_command("ip link set lo up", "");
        let private = Secret::generate().unwrap();
        let line = bind_socket(local_address(0));
        let node = Node::new(7);
        run_command("ip link add wg0 type wireguard", "");
        run_command("wg set wg0 private-key /proc/self/fd/0", private.text().as_str());
        let mut pair = Self {
            kernel: private.public(),
            there: local_address(0),
            pod: {
                run_command(&format!("ip address add {THEIRS}/16 dev wg0"), "");
                run_command("ip link set wg0 up", "");
                bind_socket(SocketAddr::new(parse_ip(THEIRS), PORT))
            },
            node,
            line,
            arrived: Vec::new(),
            sent: Seen::default(),
            received: Seen::default(),
        };
        pair.set_kernels_peer();
        pair.there = local_address(run_command("wg show wg0 listen-port", "").parse().unwrap());
        let endpoint = we_begin.then_some(pair.there);
        pair.node.set(pair.kernel, endpoint, None);
        pair.node.allow("10.5.1.0/24", pair.kernel);
        pair
    }

    fn set_kernels_peer(&self) {
        let (key, here) = (self.node.key, self.line.local_addr().unwrap());
        run_command(&format!("wg set wg0 peer {key} endpoint {here} allowed-ips 10.5.2.0/24"), "");
    }

    fn set_kernels_psk(&self, preshared: [u8; 32]) {
        run_command(
            &format!("wg set wg0 peer {} preshared-key /proc/self/fd/0", self.node.key),
            Secret::new(preshared).text().as_str(),
        );
    }

    /// Removes our node from the kernel's peers, and adds it again with the same key.
    fn renew_kernels_peer(&self) {
        run_command(&format!("wg set wg0 peer {} remove", self.node.key), "");
        self.set_kernels_peer();
    }

    /// Each call of `turn` then advances our node's clock by one millisecond, however long it takes.
    fn stop_the_clock(&mut self) {
        self.node.stopped = Some(self.node.now());
        self.node.ahead = Duration::ZERO;
    }

    /// Delivers the datagrams that both sides sent.
    fn turn(&mut self) {
        if self.node.stopped.is_some() {
            self.node.ahead += Duration::from_millis(1);
        }
        self.node.work();
        while let Some((to, datagram)) = self.node.sent.pop_front() {
            self.sent.look(&datagram);
            let _ = self.line.send_to(&datagram, to);
        }
        for (from, datagram) in self.incoming() {
            let _ = self.node.receives(from, &datagram);
        }
        let mut number = [0; 8];
        while let Ok(length) = self.pod.recv(&mut number) {
            assert_eq!(length, number.len());
            self.arrived.push(u64::from_be_bytes(number));
        }
    }

    /// What the kernel's WireGuard interface sent.
    fn incoming(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut buffer = [0; 2048];
        let mut all = Vec::new();
        while let Ok((length, from)) = self.line.recv_from(&mut buffer) {
            self.received.look(&buffer[..length]);
            all.push((from, buffer[..length].to_vec()));
        }
        all
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        // The pauses of `wait::until` grow, but each turn is a millisecond of a stopped clock.
        let wait = wait::Wait::start();
        while !done(self) {
            assert!(!wait.is_over(), "the test hangs: {what}: {:?}", self.node.handshakes());
            std::thread::sleep(Duration::from_millis(1));
            self.turn();
        }
    }

    /// A sealed packet with `number` as payload for the kernel's pod; `None` if it waits for a session.
    fn sealed(&self, number: u64) -> Option<Vec<u8>> {
        let packet = udp_packet(parse_ip(OURS), parse_ip(THEIRS), &number.to_be_bytes());
        let (to, datagram) = self.node.pod_sends(&packet).unwrap()?;
        assert_eq!(to, self.there);
        Some(datagram)
    }

    fn send(&self, number: u64) {
        if let Some(datagram) = self.sealed(number) {
            self.line.send_to(&datagram, self.there).unwrap();
        }
    }

    fn kernel_sends(&self, number: u64) {
        let to = SocketAddr::new(parse_ip(OURS), PORT);
        self.pod.send_to(&number.to_be_bytes(), to).unwrap();
    }

    /// The numbers in the packets that arrived at our pod.
    fn delivered(&self) -> Vec<u64> {
        let number = |packet: &Vec<u8>| u64::from_be_bytes(packet[28..].try_into().unwrap());
        self.node.delivered.iter().map(number).collect()
    }

    /// Sends a packet in each direction, with `number` as payload, and waits until both arrive.
    fn passes(&mut self, number: u64) {
        self.send(number);
        self.until("ours comes", |pair| pair.arrived.contains(&number));
        self.kernel_sends(number);
        self.until("the kernel's comes", |pair| pair.delivered().contains(&number));
    }

    fn handshakes(&self) -> (u64, u64) {
        let handshakes = self.node.handshakes();
        (counter_value(&handshakes.initiated), counter_value(&handshakes.completed))
    }

    /// True after more than `initiated` initiations and exactly `completed` + 1 handshakes. A lost or refused
    /// message may have caused several initiations.
    fn asked_and_completed(&self, initiated: u64, completed: u64) -> bool {
        let now = self.handshakes();
        now.0 > initiated && now.1 == completed + 1
    }

    /// A pair with a first session, which our node or the kernel begins.
    fn meets(we_begin: bool) -> Self {
        let mut pair = Self::new(we_begin);
        if we_begin {
            pair.send(u64::MAX);
            pair.until("our first packet comes", |pair| !pair.arrived.is_empty());
        } else {
            pair.kernel_sends(u64::MAX);
            pair.until("its first packet comes", |pair| !pair.node.delivered.is_empty());
        }
        assert_eq!(pair.handshakes(), (u64::from(we_begin), 1));
        pair.passes(u64::MAX - 1);
        (pair.arrived, pair.node.delivered) = Default::default();
        pair
    }

    /// Initiations from unknown senders for the device with this public key.
    fn strangers(key: PublicKey) -> Vec<Vec<u8>> {
        let initiation = |n: u8| {
            let identity = noise::Identity::new(&[100 + n; 32]);
            let remote = noise::Remote::new(&identity, &key.0).unwrap();
            let stamp = noise::Stamp::after(None, std::time::SystemTime::now());
            let (_, message) =
                noise::begin_handshake(&identity, &remote, 7, stamp, &[200 - n; 32]).unwrap();
            message.bytes().to_vec()
        };
        (0..64).map(initiation).collect()
    }
}

/// Our node requests the next session after [`RENEWED_AFTER`] packets, whoever began the current one. If it
/// began the session itself, it does so after two minutes as well.
#[test]
#[ignore = "needs a kernel with WireGuard: make test-vm"]
fn sessions_are_renewed_by_count_and_by_time_without_loss() {
    for we_begin in [true, false] {
        let mut pair = Pair::meets(we_begin);
        let mut number = 0;
        for renewals in 1..=2 {
            let (initiated, completed) = pair.handshakes();
            for _ in 0..(RENEWED_AFTER + 100).div_ceil(BATCH) {
                (0..BATCH).for_each(|more| pair.send(number + more));
                pair.kernel_sends(number);
                number += BATCH;
                pair.until("all of them come", |pair| pair.arrived.len() as u64 == number);
            }
            pair.until("there is a next session", |pair| {
                pair.asked_and_completed(initiated, completed)
            });
            println!("we began: {we_begin}; renewed {renewals} times after {number} packets");
            pair.node.ahead += NEXT_TRY;
        }
        pair.arrived.sort_unstable();
        assert!(pair.arrived.iter().copied().eq(0..number));
        pair.until("the kernel's come", |pair| pair.node.delivered.len() as u64 == number / BATCH);
        // In any case, the last initiation was ours.
        let (initiated, completed) = pair.handshakes();
        pair.node.ahead += RENEWED;
        pair.passes(number);
        pair.until("it is renewed by time", |pair| pair.asked_and_completed(initiated, completed));
        pair.passes(number + 1);
    }
}

/// Whichever side begins the handshakes.
#[test]
#[ignore = "needs a kernel with WireGuard: make test-vm"]
fn handshakes_with_a_wrong_preshared_key_leave_the_session_alone() {
    let mut pair = Pair::meets(true);
    // The session has to last for all attempts.
    pair.stop_the_clock();
    pair.set_kernels_psk([5; 32]);
    pair.node.ahead += RENEWED;
    let bad = |pair: &Pair| pair.node.refused(DropError::BadTag);
    for number in 0..8 {
        let (before, refused) = (pair.handshakes(), bad(&pair));
        pair.passes(number);
        pair.until("its answer is refused", |pair| bad(pair) > refused);
        let (initiated, completed) = pair.handshakes();
        assert!(initiated > before.0 && completed == before.1);
        pair.passes(100 + number);
        pair.node.ahead += NEXT_TRY;
        // The kernel limits initiations as we do, but by its own clock.
        sleep_briefly();
    }
    assert_eq!((pair.arrived.len(), pair.node.delivered.len()), (16, 16));
    // The key is also changed here, so the next handshake succeeds.
    let completed = pair.handshakes().1;
    pair.node.set(pair.kernel, None, Some(5));
    pair.send(200);
    pair.until("the next session", |pair| pair.handshakes().1 > completed);
    pair.passes(201);
    // The kernel initiates a handshake with another key than ours. We keep the current session until the kernel has our key.
    pair.renew_kernels_peer();
    pair.set_kernels_psk([6; 32]);
    let answered = |pair: &Pair| counter_value(&pair.node.handshakes().answered);
    let (before, completed) = (answered(&pair), pair.handshakes().1);
    pair.kernel_sends(300);
    pair.until("we answer", |pair| answered(pair) > before);
    assert_eq!(pair.handshakes().1, completed);
    assert!(pair.sealed(301).is_some());
    pair.renew_kernels_peer();
    pair.set_kernels_psk([5; 32]);
    pair.node.ahead += NEXT_TRY;
    pair.kernel_sends(302);
    pair.until("its packet comes", |pair| pair.delivered().contains(&302));
    pair.passes(303);
    assert!(!pair.delivered().contains(&300));
}

/// Under a flood, the kernel demands a proof of our node's address, receives it, and responds.
#[test]
#[ignore = "needs a kernel with WireGuard: make test-vm"]
fn we_prove_our_address_to_a_kernel_under_load() {
    let mut pair = Pair::new(true);
    let strangers = Pair::strangers(pair.kernel);
    let flood = UdpSocket::bind(local_address(0)).unwrap();
    pair.send(0);
    for _ in 0..20 {
        // Our message arrives after the messages that cause the load.
        for message in strangers.iter().cycle().take(1000) {
            let _ = flood.send_to(message, pair.there);
        }
        let cookies = pair.received.cookies;
        pair.node.ahead += NEXT_TRY;
        pair.until("the kernel answers", |pair| {
            pair.received.cookies > cookies || pair.handshakes().1 > 0
        });
        if pair.handshakes().1 > 0 {
            break;
        }
    }
    pair.until("the packet that waited comes", |pair| pair.arrived == [0]);
    println!("{} cookies, {} proofs", pair.received.cookies, pair.sent.proofs);
    assert!(pair.received.cookies > 0 && pair.sent.proofs > 0);
    pair.passes(1);
}

/// Under a flood, our node demands a proof of the kernel's address, receives it, and responds.
#[test]
#[ignore = "needs a kernel with WireGuard: make test-vm"]
fn the_kernel_proves_its_address_to_us_under_load() {
    let mut pair = Pair::new(false);
    let strangers = Pair::strangers(pair.node.key);
    let mut port = 0;
    // A slow machine needs longer to process the load than the second for which load is remembered.
    pair.stop_the_clock();
    pair.kernel_sends(0);
    pair.until("there is a session in spite of it", |pair| {
        for message in strangers.iter().cycle().take(300) {
            port = (port + 1) % 10_000;
            let _ = pair.node.receives(SocketAddr::new(other_address().ip(), 1000 + port), message);
        }
        pair.node.work();
        // Cookie replies to unknown senders are not delivered.
        let there = pair.there;
        pair.node.sent.retain(|(to, _)| *to == there);
        pair.delivered().contains(&0)
    });
    println!("{} cookies, {} proofs", pair.sent.cookies, pair.received.proofs);
    assert!(pair.sent.cookies > 0 && pair.received.proofs > 0);
    pair.passes(1);
}
