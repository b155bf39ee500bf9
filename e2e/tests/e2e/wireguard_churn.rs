//! Tests with continuous changes of keys and subnets: only a packet's destination node can decrypt the packet. A node's new key causes no long outage.

mod player;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Bed, Lab, Pod, Probe, ProbeOptions, Uplink, until, until_ok};
use player::Player;

use crate::healing::scenarios;
use crate::wireguard_keys::{Keys, bytes, key_file, lease, published, replace};

const CONF: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.20.0","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;
/// Third octets of the subnets that the two simulated nodes exchange.
const SUBNETS: [u8; 2] = [100, 101];
/// Interval between two steps. The steps alternately swap the simulated nodes' subnets and replace both nodes' keys. Swaps
/// of subnets and replacements of keys each happen ten times a second.
const STEP: Duration = Duration::from_millis(50);
const STEPS: usize = 120;
/// Lower limit for the number of steps whose keys the daemon used. On a busy machine the daemon skips more steps, so the
/// test runs the series of `STEPS` steps up to `MAX_ROUNDS` times.
const STEPS_SEEN: usize = STEPS / 3;
const MAX_ROUNDS: usize = 8;
/// Delay of the first simulated node's handshake replies for every second key. A delayed handshake lasts longer than one step
/// and less than two. When the handshake completes, the daemon still has the key, but the subnet of the waiting packets belongs to the other node.
const LATE: Duration = Duration::from_millis(75);
/// Lower limit for the number of used steps per outdated step. A thread of the daemon that the kernel interrupts can encrypt the packets
/// of one batch for an earlier owner. A daemon that sends waiting packets to an earlier owner makes one in four steps outdated, or one
/// in nine on a busy machine.
const STEPS_PER_OUTDATED: usize = 16;
/// Number of packets per batch; the test sends 1000 batches per second.
const BATCH: u64 = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// Owner of a subnet: index of a simulated node, and index of one of the node's keys.
type Holder = (usize, usize);
/// Simulated node and key to which each of the two subnets belongs.
type Deal = [Holder; 2];

/// A packet, and the simulated node and key that decrypted the packet.
#[derive(Clone, Copy)]
struct Read {
    holder: Holder,
    /// Sequence number of the packet.
    number: u64,
    /// Number of the latest step when the simulated node decrypted the packet.
    begun: usize,
    /// Time at which the packet arrived.
    at: Duration,
    /// Time of the simulated node's first handshake reply with the key.
    answered: Duration,
}

/// Steps of one subnet that the daemon used.
#[derive(Debug, PartialEq, Eq)]
struct Steps {
    /// Number of steps in which the owner of the subnet decrypted packets to the subnet.
    seen: usize,
    /// Number of steps whose owner got a session, and then packets, after the daemon had used a later step.
    outdated: usize,
}

/// Counts the steps that the daemon used. Returns an error if an owner decrypted a packet that was for another owner.
///
/// Each owner (node and key) has the subnet in only one step. The owner that decrypts a packet therefore shows which step the
/// daemon uses. The daemon reads the leases of each step some time after the step begins. By sequence number, the daemon must never
/// return to an earlier step, even if packets wait for a handshake.
fn judge(deals: &[Deal], subnet: usize, packets: &[Read]) -> Result<Steps> {
    let mut steps = Vec::new();
    for packet in packets {
        let Read {
            holder,
            number,
            begun,
            ..
        } = packet;
        let step = deals
            .iter()
            .position(|deal| deal[subnet] == *holder)
            .with_context(|| format!("{number} was opened by {holder:?}: never its"))?;
        ensure!(
            step <= *begun,
            "packet {number} was opened by {holder:?}, who got the subnet in step {step}; {begun} was the last one then"
        );
        steps.push((step, packet));
    }
    steps.sort_by_key(|(_, packet)| packet.number);
    for pair in steps.windows(2) {
        let [(before, _), (step, Read { holder, number, .. })] = pair else {
            continue;
        };
        ensure!(
            before <= step,
            "packet {number} was opened by {holder:?} of step {step}, after one of step {before}"
        );
    }
    // Earliest arrival of a packet in each step.
    let mut arrivals = BTreeMap::new();
    for (step, packet) in &steps {
        let first = arrivals
            .entry(*step)
            .or_insert((packet.at, packet.answered));
        first.0 = first.0.min(packet.at);
    }
    let (mut outdated, mut later) = (0, Duration::MAX);
    for (first, answered) in arrivals.values().rev() {
        outdated += usize::from(later < *answered);
        later = later.min(*first);
    }
    Ok(Steps {
        seen: arrivals.len(),
        outdated,
    })
}

/// Sends numbered packets to both subnets until `end` is true.
fn send(from: &Pod, sent: &AtomicU64, end: &AtomicBool) -> Result<()> {
    let source = from.v4()?;
    let socket = from.netns().run(|| UdpSocket::bind((source, 0)))??;
    let begun = Instant::now();
    while !end.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let due = (begun.elapsed().as_secs_f64() / PAUSE.as_secs_f64()) as u64 * BATCH;
        // Sends the packets that a busy machine left out, but not in one burst.
        for _ in 0..due
            .saturating_sub(sent.load(Ordering::Relaxed))
            .min(10 * BATCH)
        {
            let number = sent.fetch_add(1, Ordering::SeqCst);
            // Few packets go to the second subnet. Otherwise they would push out those to the first that wait for the same holder.
            let to = Ipv4Addr::new(10, 5, SUBNETS[usize::from(number.is_multiple_of(20))], 9);
            let payload = [number.to_be_bytes(), [0x77; 8], [0x77; 8]].concat();
            let _ = socket.send_to(&payload, (to, 7777));
        }
    }
    Ok(())
}

/// Assigns the subnets to the simulated nodes, and publishes the assignment to the daemon as leases.
struct Dealer<'a> {
    bed: &'a Bed,
    players: &'a [Player; 2],
    /// Public key of the daemon.
    peer: [u8; 32],
    deals: Vec<Deal>,
    step: &'a AtomicUsize,
}

impl Dealer<'_> {
    /// Performs the next step: gives both simulated nodes new keys, or swaps their subnets.
    fn next(&mut self) -> Result<()> {
        let late = |player| {
            if player == 0 && self.deals.len().is_multiple_of(4) {
                LATE
            } else {
                Duration::ZERO
            }
        };
        let fresh = |player: usize| {
            (
                player,
                self.players[player].take_key(self.peer, late(player)),
            )
        };
        let deal = match self.deals.last() {
            None => [fresh(0), fresh(1)],
            Some([first, second]) if !self.deals.len().is_multiple_of(2) => [*second, *first],
            Some([first, second]) => [fresh(first.0), fresh(second.0)],
        };
        self.deals.push(deal);
        // Stored before the first write, because the daemon may act on any of the writes at once.
        self.step.store(self.deals.len() - 1, Ordering::SeqCst);
        let mut leases: Vec<_> = deal.into_iter().zip(SUBNETS).collect();
        // Between the two writes of a swap, one key has both subnets, and the older lease takes precedence. If the second lease is written first,
        // nothing changes before the swap is complete. In the other order, a key has no subnet for a moment, so its peer is removed and added again.
        if self.deals.len() % 4 == 2 {
            leases.reverse();
        }
        for ((player, key), third) in leases {
            let player = &self.players[player];
            let file = self
                .bed
                .leases
                .join("subnets")
                .join(format!("10.5.{third}.0-24"));
            replace(&file, &lease(player.address, &player.public_key(key)))?;
        }
        Ok(())
    }
}

/// Waits until each subnet owner in `last` has decrypted a packet to its subnet with a sequence number of at least `after`.
fn last_holders_get_the_packets(players: &[Player; 2], last: &Deal, after: u64) -> Result<()> {
    until("the last holders get the packets", || {
        last.iter().enumerate().all(|(subnet, (player, key))| {
            let opened = players[*player].opened();
            opened.iter().any(|packet| {
                packet.key == *key
                    && packet.number >= after
                    && packet.to.octets()[2] == SUBNETS[subnet]
            })
        })
    })
    .map(drop)
}

/// Returns the packets to a subnet that either simulated node decrypted.
fn reads(players: &[Player; 2], third: u8) -> Vec<Read> {
    let mut reads = Vec::new();
    for (number, player) in players.iter().enumerate() {
        let of_subnet = player
            .opened()
            .into_iter()
            .filter(|packet| packet.to.octets()[2] == third);
        reads.extend(of_subnet.map(|packet| Read {
            holder: (number, packet.key),
            number: packet.number,
            begun: packet.step,
            at: packet.at,
            answered: packet.answered,
        }));
    }
    reads
}

/// Checks the decrypted packets to both subnets. Returns the number of decrypted packets, and for each subnet the number of steps in which its owner decrypted packets.
fn judge_all(players: &[Player; 2], deals: &[Deal]) -> Result<(u64, Vec<usize>)> {
    let (mut opened, mut steps) = (0, Vec::new());
    for (subnet, third) in SUBNETS.into_iter().enumerate() {
        let packets = reads(players, third);
        let Steps { seen, outdated } = judge(deals, subnet, &packets)?;
        ensure!(
            outdated * STEPS_PER_OUTDATED <= seen,
            "the owners of {outdated} of {seen} steps got a session, and then packets, after the daemon had used a later step"
        );
        steps.push(seen);
        opened += packets.len() as u64;
    }
    Ok((opened, steps))
}

/// One node is real, with a daemon and a pod, and reads leases from the store. The test simulates two more nodes (`Player`). A daemon
/// does not report which packets it can decrypt, and cannot change its key and subnet twenty times a second. The
/// simulated nodes keep all earlier keys. A packet's destination address shows to which subnet the packet belongs. The test
/// checks which simulated node can decrypt a packet, not where the daemon sends the packet.
#[test]
fn packets_are_readable_only_by_their_node_while_keys_change() -> Result<()> {
    Lab::run("wireguard churn", |lab| {
        // Without probes, every packet is one of this test.
        let bed = Bed::start(lab, 1, CONF, |_, options| options.arg("--probe-port=0"))?;
        let step = Arc::new(AtomicUsize::new(0));
        let hosts = [
            lab.host("player0", &[Uplink::enp0s8(&bed.lan, 60)?])?,
            lab.host("player1", &[Uplink::enp0s8(&bed.lan, 61)?])?,
        ];
        let players = [
            Player::start(&hosts[0], &step)?,
            Player::start(&hosts[1], &step)?,
        ];
        let peer = bytes(&published(&bed.store, &bed.hosts[0])?)?;
        let mut dealer = Dealer {
            bed: &bed,
            players: &players,
            peer,
            deals: Vec::new(),
            step: &step,
        };
        let (sent, end) = (AtomicU64::new(0), AtomicBool::new(false));
        // A counter that is zero has no line. Drops from before the daemon read the first leases do not count, because no peer had the subnets then.
        let name = "flannel_datapath_dropped_packets_total{device=\"flannel-wg\",direction=\"sent\",reason=\"no_route\"}";
        let (in_vain, before) = (
            || bed.daemons[0].metric(name).unwrap_or(0.0),
            Cell::new(0.0),
        );
        dealer.next()?;
        let took = std::thread::scope(|scope| -> Result<Duration> {
            let sender = scope.spawn(|| send(&bed.pods[0], &sent, &end));
            let mut play = || -> Result<Duration> {
                until("both players get packets", || {
                    players.iter().all(|player| !player.opened().is_empty())
                })?;
                before.set(in_vain());
                let begun = Instant::now();
                for round in 0..MAX_ROUNDS {
                    let begun = Instant::now();
                    for number in 1..=STEPS as u32 {
                        std::thread::sleep((STEP * number).saturating_sub(begun.elapsed()));
                        dealer.next()?;
                    }
                    let (_, steps) = judge_all(&players, &dealer.deals)?;
                    eprintln!("{steps:?} of {} steps were seen", (round + 1) * STEPS);
                    if steps.iter().all(|seen| *seen > STEPS_SEEN) && in_vain() > before.get() {
                        break;
                    }
                }
                let (took, after) = (begun.elapsed(), sent.load(Ordering::SeqCst));
                // Whatever steps the daemon skipped, it must follow the last one.
                let last = dealer.deals.last().context("no deal")?;
                last_holders_get_the_packets(&players, last, after)?;
                Ok(took)
            };
            let took = play();
            end.store(true, Ordering::Relaxed);
            sender.join().unwrap()?;
            took
        })?;
        let waited = in_vain() - before.get();
        let sent = sent.load(Ordering::SeqCst);
        let (opened, steps) = judge_all(&players, &dealer.deals)?;
        eprintln!(
            "{opened} of {sent} packets opened; of {} steps in {took:.1?}, {steps:?} were seen; {waited} packets waited in vain",
            dealer.deals.len() - 1
        );
        // A daemon that passes few packets, or follows only the last step, would prove nothing.
        ensure!(opened * 3 > sent, "{opened} of {sent} packets were opened");
        ensure!(
            steps.iter().all(|seen| *seen > STEPS_SEEN),
            "{steps:?} steps were seen"
        );
        ensure!(
            waited > 0.0,
            "no packet waited for a session with whom it was not for any more"
        );
        bed.require_no_errors()
    })
}

#[test]
fn packet_opened_by_a_wrong_node_is_found() {
    let deals: [Deal; 3] = [[(0, 0), (1, 0)], [(1, 0), (0, 0)], [(1, 1), (0, 1)]];
    let read = |(holder, number, begun, at)| Read {
        holder,
        number,
        begun,
        at: Duration::from_millis(at),
        // The first key gets its session later than the other keys.
        answered: Duration::from_millis(if holder == (0, 0) { 20 } else { 1 }),
    };
    let judged = |packets: &[(Holder, u64, usize, u64)]| {
        judge(
            &deals,
            0,
            &packets.iter().copied().map(read).collect::<Vec<_>>(),
        )
    };
    let steps = |seen, outdated| Steps { seen, outdated };
    for (packets, expected) in [
        (
            vec![
                ((0, 0), 1, 0, 21),
                ((0, 0), 3, 1, 30),
                ((1, 0), 5, 1, 25),
                ((1, 1), 7, 2, 60),
            ],
            steps(3, 0),
        ),
        // The first holder got its session after a packet of a later step.
        (vec![((0, 0), 1, 1, 21), ((1, 0), 3, 1, 19)], steps(2, 1)),
        (vec![((0, 0), 1, 2, 21), ((1, 1), 3, 2, 19)], steps(2, 1)),
    ] {
        assert_eq!(judged(&packets).unwrap(), expected, "{packets:?}");
    }
    for wrong in [
        // The packet was opened by the other subnet's holder; an earlier holder; a later one; a player that never holds it.
        vec![((1, 0), 1, 0, 1)],
        vec![((0, 0), 1, 1, 1), ((1, 0), 3, 1, 2), ((0, 0), 5, 2, 3)],
        vec![((1, 1), 1, 1, 1)],
        vec![((0, 0), 1, 2, 1), ((0, 1), 3, 2, 2)],
    ] {
        assert!(judged(&wrong).is_err(), "{wrong:?}");
    }
}

scenarios! { own_key;
    own_key_changes_without_a_gap => 2,
    // The daemon reads the file every five seconds.
    #[ignore = "takes a minute: make soak"]
    own_key_changes_ten_times_without_a_gap => 10,
}

/// Replaces a node's key file several times while probes run in both directions, at 100 probes a second.
fn own_key(times: u32) -> Result<()> {
    Lab::run("wireguard own key", |lab| {
        let bed = Bed::start(lab, 2, CONF, |_, options| options)?;
        let file = key_file(&bed.hosts[0])?;
        let options = ProbeOptions::default().interval(Duration::from_millis(10));
        let probes = [
            Probe::start(&bed.pods[0], &bed.pods[1], &options)?,
            Probe::start(&bed.pods[1], &bed.pods[0], &options)?,
        ];
        let flows = || {
            probes
                .iter()
                .try_for_each(|probe| probe.wait_flowing().map(drop))
        };
        flows()?;
        for _ in 0..times {
            let keys = Keys::new();
            replace(&file, &keys.private_text())?;
            until_ok("the lease has the new key", || {
                ensure!(
                    published(&bed.store, &bed.hosts[0])? == keys.public_text(),
                    "{}",
                    bed.daemons[0].log_tail(5)
                );
                Ok(())
            })?;
            // These packets use a new session, because the node sends nothing with the former key any more.
            flows()?;
        }
        for probe in probes {
            let report = probe.finish()?;
            eprintln!("{times} keys: {report}");
            ensure!(
                report.sent > u64::from(times) * 100 && report.wrong == 0,
                "{report}"
            );
            ensure!(report.lost * 100 <= report.sent, "{report}");
            ensure!(report.longest_outage <= Duration::from_secs(2), "{report}");
        }
        bed.require_no_errors()
    })
}
