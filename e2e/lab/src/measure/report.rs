//! The result of a stream of numbered packets.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};

/// One packet of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// In its stream, from 0.
    pub number: u64,
    /// Relative to the start of the probe.
    pub sent: Duration,
    /// The first arrival; `None` if the packet was lost.
    pub received: Option<Duration>,
}

/// Of a [`crate::Probe`].
#[derive(Debug, Clone, Default)]
pub struct ProbeReport {
    pub sent: u64,
    /// Without duplicates.
    pub received: u64,
    pub lost: u64,
    pub duplicates: u64,
    /// Packets of another probe, packets from an unexpected source address, and damaged packets.
    pub wrong: u64,
    /// Packets that the sender's kernel refused, for example because it had no route. They are also `lost`.
    pub refused: u64,
    /// Packets of any namespace that this machine's processors dropped meanwhile, because too many waited for them.
    pub machine_drops: u64,
    /// Without an arrival, between the sending of the first packet and that of the last one.
    pub longest_gap: Duration,
    /// The longest uninterrupted run of lost packets, by their sending times. Delays on a busy machine do not prolong it.
    pub longest_outage: Duration,
    /// In the order of sending.
    pub passages: Vec<Passage>,
}

impl ProbeReport {
    pub(crate) fn new(
        passages: Vec<Passage>,
        duplicates: u64,
        wrong: u64,
        refused: u64,
        machine_drops: u64,
    ) -> ProbeReport {
        let sent = passages.len() as u64;
        let received = passages.iter().filter(|passage| passage.received.is_some()).count() as u64;
        let (longest_gap, longest_outage) = (longest_gap(&passages), longest_outage(&passages));
        ProbeReport {
            sent,
            received,
            lost: sent - received,
            duplicates,
            wrong,
            refused,
            machine_drops,
            longest_gap,
            longest_outage,
            passages,
        }
    }

    /// Among the packets sent at or after `from` and before `to`.
    pub fn lost_between(&self, from: Duration, to: Duration) -> u64 {
        self.passages
            .iter()
            .filter(|passage| {
                passage.received.is_none() && from <= passage.sent && passage.sent < to
            })
            .count() as u64
    }

    /// When the first packet was sent that was sent at or after `time` and arrived.
    pub fn first_successful_send_after(&self, time: Duration) -> Option<Duration> {
        self.passages
            .iter()
            .find(|passage| passage.sent >= time && passage.received.is_some())
            .map(|passage| passage.sent)
    }

    /// Fails if packets got lost, or if unexpected packets or no packets arrived. The error contains the report.
    pub fn require_clean(&self) -> Result<()> {
        if self.lost > 0 || self.wrong > 0 || self.received == 0 {
            bail!("{self}");
        }
        Ok(())
    }
}

impl fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProbeReport { sent, received, lost, duplicates, wrong, refused, machine_drops, .. } =
            self;
        let first = self.passages.iter().find(|passage| passage.received.is_none());
        if let Some(first) = first {
            write!(f, "packet {} was lost after {:.0?}; ", first.number, first.sent)?;
        }
        write!(
            f,
            "{received} of {sent} packets arrived, {lost} lost ({refused} refused; the machine dropped {machine_drops}), {duplicates} twice, {wrong} wrong; "
        )?;
        write!(
            f,
            "longest outage {:.0?}, longest gap {:.0?}",
            self.longest_outage, self.longest_gap
        )
    }
}

fn longest_gap(passages: &[Passage]) -> Duration {
    let (Some(first), Some(last)) = (passages.first(), passages.last()) else {
        return Duration::ZERO;
    };
    let mut arrivals: Vec<Duration> =
        passages.iter().filter_map(|passage| passage.received).collect();
    arrivals.sort();
    let mut previous = first.sent;
    let mut longest = Duration::ZERO;
    for time in arrivals.into_iter().chain([last.sent]) {
        longest = longest.max(time.saturating_sub(previous));
        previous = time;
    }
    longest
}

fn longest_outage(passages: &[Passage]) -> Duration {
    let mut longest = Duration::ZERO;
    let mut began = None;
    for passage in passages {
        let began_at = *began.get_or_insert(passage.sent);
        longest = longest.max(passage.sent - began_at);
        if passage.received.is_some() {
            began = None;
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passages(arrivals: &[Option<u64>]) -> Vec<Passage> {
        let passage = |(number, arrival): (usize, &Option<u64>)| Passage {
            number: number as u64,
            sent: Duration::from_millis(number as u64 * 10),
            received: arrival.map(Duration::from_millis),
        };
        arrivals.iter().enumerate().map(passage).collect()
    }

    #[test]
    fn a_clean_stream_has_no_outage() {
        let report = ProbeReport::new(passages(&[Some(1), Some(11), Some(21)]), 0, 0, 0, 0);
        assert_eq!((report.received, report.lost), (3, 0));
        assert_eq!(report.longest_outage, Duration::ZERO);
        assert_eq!(report.longest_gap, Duration::from_millis(10));
        report.require_clean().unwrap();
    }

    #[test]
    fn an_outage_lasts_from_the_first_lost_packet_to_the_next_that_arrives() {
        let report = ProbeReport::new(passages(&[Some(1), None, None, Some(31), None]), 0, 0, 0, 0);
        assert_eq!(report.lost, 3);
        assert_eq!(report.longest_outage, Duration::from_millis(20));
        assert_eq!(report.longest_gap, Duration::from_millis(30));
        assert_eq!(report.lost_between(Duration::from_millis(20), Duration::from_millis(40)), 1);
        assert_eq!(
            report.first_successful_send_after(Duration::from_millis(5)),
            Some(Duration::from_millis(30))
        );
        assert_eq!(report.first_successful_send_after(Duration::from_millis(31)), None);
        assert!(report.require_clean().is_err());
    }

    #[test]
    fn a_stream_that_never_arrives_is_one_outage() {
        let report = ProbeReport::new(passages(&[None, None, None]), 0, 0, 3, 0);
        assert_eq!(report.longest_outage, Duration::from_millis(20));
        assert_eq!(report.longest_gap, Duration::from_millis(20));
    }
}
