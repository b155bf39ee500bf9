//! Samples of the last five minutes for the charts of the status page.

use node_api::view::Charts;
use std::collections::VecDeque;
use std::time::Duration;

/// Interval between two samples.
pub const STEP: Duration = Duration::from_secs(5);
/// As many as cover five minutes.
const KEPT: usize = 60;

/// Values of the node's counters at one moment. One is `None` if it is unknown, or if flanneld has no such counter
/// with this backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// From other nodes.
    pub received_bytes: Option<u64>,
    /// To other nodes.
    pub sent_bytes: Option<u64>,
    /// Packets that the devices between nodes and the userspace datapath dropped.
    pub dropped: Option<u64>,
    /// Kernel objects that flanneld restored.
    pub repaired: Option<u64>,
    /// Median round trip to all peers. Not a counter.
    pub rtt_us: Option<u32>,
}

/// Of the last five minutes, oldest first.
#[derive(Debug, Default)]
pub struct Samples {
    last: Option<Totals>,
    steps: VecDeque<Step>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Step {
    received_bytes: Option<f64>,
    sent_bytes: Option<f64>,
    dropped: Option<f64>,
    repaired: Option<u64>,
    rtt_us: Option<u32>,
}

impl Samples {
    /// `elapsed` is the time since the previous sample.
    pub fn add(&mut self, now: Totals, elapsed: Duration) {
        let before = self.last.replace(now).unwrap_or_default();
        // A counter that decreased belongs to a new device.
        let growth = |now: Option<u64>, before: Option<u64>| now?.checked_sub(before?);
        let seconds = elapsed.as_secs_f64().max(0.001);
        #[expect(clippy::cast_precision_loss, reason = "a rate for a chart needs no exact value")]
        let rate = |now, before| growth(now, before).map(|by| (by as f64 / seconds).round());
        self.steps.push_back(Step {
            received_bytes: rate(now.received_bytes, before.received_bytes),
            sent_bytes: rate(now.sent_bytes, before.sent_bytes),
            dropped: rate(now.dropped, before.dropped),
            repaired: growth(now.repaired, before.repaired),
            rtt_us: now.rtt_us,
        });
        while self.steps.len() > KEPT {
            self.steps.pop_front();
        }
    }

    /// Each series has `KEPT` values; missing samples are `None`. Omits series without any value.
    pub fn charts(&self) -> Charts {
        let series = |value: fn(&Step) -> Option<f64>| -> Option<Vec<Option<f64>>> {
            let missing = KEPT.saturating_sub(self.steps.len());
            let values = self.steps.iter().map(value);
            let series: Vec<_> = std::iter::repeat_n(None, missing).chain(values).collect();
            series.iter().any(Option::is_some).then_some(series)
        };
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let repaired = |step: &Step| step.repaired.map(|count| count as f64);
        let all = [
            ("received_bytes", series(|step| step.received_bytes)),
            ("sent_bytes", series(|step| step.sent_bytes)),
            ("dropped", series(|step| step.dropped)),
            ("rtt_us", series(|step| step.rtt_us.map(f64::from))),
            ("repaired", series(repaired)),
        ];
        Charts {
            step_ms: u64::try_from(STEP.as_millis()).unwrap_or(u64::MAX),
            series: all
                .into_iter()
                .filter_map(|(name, series)| Some((name.to_owned(), series?)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_have_rates_of_five_minutes() {
        let mut samples = Samples::default();
        assert!(samples.charts().series.is_empty());
        let at = |received: u64, repaired: u64| Totals {
            received_bytes: Some(received),
            repaired: Some(repaired),
            ..Totals::default()
        };
        samples.add(at(1000, 1), STEP);
        // Nothing is known before the second sample.
        assert!(samples.charts().series.is_empty());
        samples.add(at(2000, 3), STEP);
        samples.add(at(500, 3), STEP);
        samples.add(Totals::default(), STEP);
        samples.add(at(1500, 9), STEP);
        samples.add(at(2500, 9), STEP / 5);
        let charts = samples.charts();
        let end = |name: &str| charts.series[name][KEPT - 6..].to_vec();
        assert_eq!(end("received_bytes"), [None, Some(200.0), None, None, None, Some(1000.0)]);
        assert_eq!(end("repaired"), [None, Some(2.0), Some(0.0), None, None, Some(0.0)]);
        assert_eq!(charts.series.len(), 2, "a series without counters is absent");
        for _ in 0..1000 {
            samples.add(Totals::default(), STEP);
        }
        assert!(samples.charts().series.is_empty() && samples.steps.len() == KEPT);
    }
}
