//! Keys and subnets that change all the time: what is for one node, no other can read, and a node's own key changes without a gap.

mod player;

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use lab::{Bed, Lab, Pod, Probe, ProbeOptions, Uplink, eventually, eventually_ok};
use player::{Opened, Player};

use crate::wireguard_keys::{Keys, bytes, key_file, lease, published, replace};

const SOON: Duration = Duration::from_secs(20);
const CONF: &str =
    r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.20.0","Backend":{"Type":"wireguard","Implementation":"userspace"}}"#;
/// The subnets that change hands.
const SUBNETS: [u8; 2] = [100, 101];
/// Every second step swaps them, every other one replaces all keys: ten of each a second.
const STEP: Duration = Duration::from_millis(50);
const STEPS: usize = 120;
/// Ten packets, 1000 times a second.
const BATCH: u64 = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// A player, and which of its keys.
type Holder = (usize, usize);
/// The holder of each subnet.
type Deal = [Holder; 2];

/// What became of the packets to one subnet.
#[derive(Debug, Default, PartialEq)]
struct Judged {
    /// How many steps' holders got some.
    steps: usize,
    /// The last step whose holder got some.
    last: usize,
}

/// Packets to one subnet, in the order in which they were sent, by whom they were opened and which step had been begun by then. A daemon learns of a
/// step some time after its lease was written, and before the next packet to that subnet, or the next but some; it never goes back. So for
/// each packet there has to be a step, not before that of the packet before, and begun when it was opened, whose holder could open it.
fn judge(deals: &[Deal], subnet: usize, opened: &[(Holder, u64, usize)]) -> Result<Judged> {
    let mut judged = Judged::default();
    for (holder, number, begun) in opened {
        let step = (judged.last..=*begun).find(|step| deals[*step][subnet] == *holder);
        let Some(step) = step else {
            let wanted = &deals[judged.last..=*begun].iter().map(|deal| deal[subnet]).collect::<Vec<_>>();
            bail!("packet {number} to subnet {subnet} was opened by {holder:?}, and it was {wanted:?}'s: steps {} to {begun}", judged.last);
        };
        judged.steps += usize::from(judged.steps == 0 || step > judged.last);
        judged.last = step;
    }
    Ok(judged)
}

/// Sends numbered packets to both subnets in turn, until the end.
fn send(from: &Pod, sent: &AtomicU64, end: &AtomicBool) -> Result<()> {
    let source = from.v4()?;
    let socket = from.netns().run(|| UdpSocket::bind((source, 0)))??;
    let begun = Instant::now();
    while !end.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let due = (begun.elapsed().as_secs_f64() / PAUSE.as_secs_f64()) as u64 * BATCH;
        // What a busy machine left undone is made up for, though not in one burst.
        for _ in 0..due.saturating_sub(sent.load(Ordering::Relaxed)).min(10 * BATCH) {
            let number = sent.fetch_add(1, Ordering::SeqCst);
            let to = Ipv4Addr::new(10, 5, SUBNETS[(number % 2) as usize], 9);
            let payload = [number.to_be_bytes(), [0x77; 8], [0x77; 8]].concat();
            let _ = socket.send_to(&payload, (to, 7777));
        }
    }
    Ok(())
}

/// Deals the subnets to the players, and tells the daemon by leases.
struct Dealer<'a> {
    bed: &'a Bed,
    players: &'a [Player; 2],
    /// The daemon's public key.
    peer: [u8; 32],
    deals: Vec<Deal>,
    step: &'a AtomicUsize,
}

impl Dealer<'_> {
    /// The next step: new keys for both players, or their subnets swapped.
    fn next(&mut self) -> Result<()> {
        let fresh = |player: usize| (player, self.players[player].take_key(self.peer));
        let deal = match self.deals.last() {
            None => [fresh(0), fresh(1)],
            Some([first, second]) if self.deals.len() % 2 == 1 => [*second, *first],
            Some([first, second]) => [fresh(first.0), fresh(second.0)],
        };
        self.deals.push(deal);
        // Before the first of the writes: whoever sees one of them may act on it.
        self.step.store(self.deals.len() - 1, Ordering::SeqCst);
        for ((player, key), third) in deal.into_iter().zip(SUBNETS) {
            let player = &self.players[player];
            let file = self.bed.leases.join("subnets").join(format!("10.5.{third}.0-24"));
            replace(&file, &lease(player.address, &player.public_key(key)))?;
        }
        Ok(())
    }
}

/// One node is real: its daemon, its pod, the leases that it reads. The two others are played, because a daemon does not tell which packets it could
/// open, and cannot change its key and subnet twenty times a second. The players keep all keys that they ever had. A packet tells by its destination for
/// whom it is; who can open it is what counts, not whom it was sent to.
#[test]
fn nobody_can_read_what_is_anothers_while_keys_and_subnets_change() -> Result<()> {
    let _load = crate::one_load_at_a_time();
    Lab::run("wireguard churn", |lab| {
        // Every packet is one of ours: no probes beside them.
        let bed = Bed::start(lab, 1, CONF, |_, options| options.arg("--probe-port=0"))?;
        let step = Arc::new(AtomicUsize::new(0));
        let hosts = [lab.host("player0", &[Uplink::enp0s8(&bed.lan, 60)?])?, lab.host("player1", &[Uplink::enp0s8(&bed.lan, 61)?])?];
        let players = [Player::start(&hosts[0], &step)?, Player::start(&hosts[1], &step)?];
        let peer = bytes(&published(&bed.store, &bed.hosts[0])?)?;
        let mut dealer = Dealer { bed: &bed, players: &players, peer, deals: Vec::new(), step: &step };
        let (sent, end) = (AtomicU64::new(0), AtomicBool::new(false));
        dealer.next()?;
        let took = std::thread::scope(|scope| -> Result<Duration> {
            let sender = scope.spawn(|| send(&bed.pods[0], &sent, &end));
            let mut play = || -> Result<Duration> {
                eventually(SOON, "both players get packets", || players.iter().all(|player| !player.opened().is_empty()))?;
                let begun = Instant::now();
                for number in 1..=STEPS as u32 {
                    std::thread::sleep((STEP * number).saturating_sub(begun.elapsed()));
                    dealer.next()?;
                }
                let (took, after) = (begun.elapsed(), sent.load(Ordering::SeqCst));
                // Whatever was skipped, the last word counts.
                let last = dealer.deals[STEPS];
                eventually(SOON, "the last holders get the packets", || {
                    last.iter().enumerate().all(|(subnet, (player, key))| {
                        let opened = players[*player].opened();
                        opened.iter().any(|packet| packet.key == *key && packet.number >= after && packet.to.octets()[2] == SUBNETS[subnet])
                    })
                })?;
                Ok(took)
            };
            let took = play();
            end.store(true, Ordering::Relaxed);
            sender.join().unwrap()?;
            took
        })?;
        let (sent, mut opened, mut steps) = (sent.load(Ordering::SeqCst), 0, Vec::new());
        for (subnet, third) in SUBNETS.into_iter().enumerate() {
            let mut packets: Vec<(Holder, u64, usize)> = Vec::new();
            for (number, player) in players.iter().enumerate() {
                let its = player.opened().into_iter().filter(|Opened { to, .. }| to.octets()[2] == third);
                packets.extend(its.map(|packet| ((number, packet.key), packet.number, packet.step)));
            }
            packets.sort_unstable_by_key(|(_, number, _)| *number);
            let judged = judge(&dealer.deals, subnet, &packets)?;
            opened += packets.len() as u64;
            steps.push(judged.steps);
        }
        eprintln!("{opened} of {sent} packets opened; of {STEPS} steps in {took:.1?}, {steps:?} were seen");
        // It is no test of a daemon that lets nothing through, or follows the last word only.
        ensure!(opened * 2 > sent, "{opened} of {sent} packets were opened");
        ensure!(steps.iter().all(|seen| seen * 2 > STEPS), "{steps:?} of {STEPS} steps were seen");
        bed.require_no_errors()
    })
}

#[test]
fn a_packet_that_another_opens_is_found() {
    let deals: [Deal; 3] = [[(0, 0), (1, 0)], [(1, 0), (0, 0)], [(1, 1), (0, 1)]];
    let right = [((0, 0), 1, 0), ((0, 0), 3, 1), ((1, 0), 5, 1), ((1, 1), 7, 2)];
    assert_eq!(judge(&deals, 0, &right).unwrap(), Judged { steps: 3, last: 2 });
    for wrong in [
        // The other subnet's; one that was back again; what nobody had yet; what was never dealt.
        vec![((1, 0), 1, 0)],
        vec![((0, 0), 1, 1), ((1, 0), 3, 1), ((0, 0), 5, 2)],
        vec![((1, 1), 1, 1)],
        vec![((0, 0), 1, 2), ((0, 1), 3, 2)],
    ] {
        assert!(judge(&deals, 0, &wrong).is_err(), "{wrong:?}");
    }
}

/// The file of a node's key is replaced again and again while both ways are probed, 100 times a second.
fn own_key(times: u32) -> Result<()> {
    Lab::run("wireguard own key", |lab| {
        let bed = Bed::start(lab, 2, CONF, |_, options| options)?;
        let file = key_file(&bed.hosts[0])?;
        let options = ProbeOptions::default().interval(Duration::from_millis(10));
        let probes = [Probe::start(&bed.pods[0], &bed.pods[1], &options)?, Probe::start(&bed.pods[1], &bed.pods[0], &options)?];
        let flows = || probes.iter().try_for_each(|probe| probe.wait_flowing(SOON).map(drop));
        flows()?;
        for _ in 0..times {
            let keys = Keys::new();
            replace(&file, &keys.private_text())?;
            eventually_ok(SOON, "the lease has the new key", || {
                ensure!(published(&bed.store, &bed.hosts[0])? == keys.public_text(), "{}", bed.daemons[0].log_tail(5));
                Ok(())
            })?;
            // In a new session: with the former key nothing is sent any more.
            flows()?;
        }
        for probe in probes {
            let report = probe.finish()?;
            eprintln!("{times} keys: {report}");
            ensure!(report.sent > u64::from(times) * 100 && report.wrong == 0, "{report}");
            ensure!(report.lost * 100 <= report.sent, "{report}");
            ensure!(report.longest_outage <= Duration::from_secs(2), "{report}");
        }
        bed.require_no_errors()
    })
}

#[test]
fn the_own_key_changes_without_a_gap() -> Result<()> {
    own_key(2)
}

/// The file is read every five seconds.
#[test]
#[ignore = "takes a minute: make soak"]
fn the_own_key_changes_ten_times_without_a_gap() -> Result<()> {
    own_key(10)
}
