//! From the manager's events to the leases in force: folded, admitted, damped, published as one value.

use crate::admission::{Reason, Refused, Terms, admitted};
use crate::damper::Damper;
use crate::dual::Subnets;
use crate::manager::boot_time;
use crate::table::{LeaseEvent, LeaseTable};
use futures_util::future::FutureExt;
use futures_util::stream::{BoxStream, StreamExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How the watch stands and what was refused, for health and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Since when the watch is interrupted (boot-time clock).
    pub interrupted: Option<Duration>,
    /// Readable leases of other nodes in the store.
    pub seen: usize,
    /// Removals that wait.
    pub waiting: usize,
    /// Leases not in force here, by reason.
    pub refused: BTreeMap<Reason, usize>,
}

/// The fold in progress.
pub struct Feed<'a> {
    events: BoxStream<'a, LeaseEvent>,
    raw: LeaseTable,
    terms: watch::Receiver<Arc<Terms>>,
    admitted: LeaseTable,
    damper: Damper,
    told: BTreeMap<Subnets, String>,
    reading: Reading,
}

impl<'a> Feed<'a> {
    /// Reads until the first complete list is in: nothing may be compared with an unknown world.
    pub async fn begin(mut events: BoxStream<'a, LeaseEvent>, terms: watch::Receiver<Arc<Terms>>) -> (Self, Arc<LeaseTable>) {
        let mut raw = LeaseTable::default();
        while let Some(event) = events.next().await {
            let first = matches!(event, LeaseEvent::Reset { .. });
            raw.apply(event);
            if first {
                break;
            }
        }
        let mut feed = Self {
            events,
            raw,
            terms,
            admitted: LeaseTable::default(),
            damper: Damper::default(),
            told: BTreeMap::new(),
            reading: Reading::default(),
        };
        let (table, _) = feed.publish(false);
        (feed, Arc::new(table))
    }

    /// Publishes every change, for ever.
    pub async fn run(mut self, out: watch::Sender<Arc<LeaseTable>>, readings: watch::Sender<Reading>) {
        let mut next = None;
        let _ = readings.send_replace(self.reading.clone());
        loop {
            let mut discontinuity = false;
            let nap = next.map_or(Duration::from_secs(3600), |next: Duration| next.saturating_sub(boot_time()));
            tokio::select! {
                event = self.events.next() => {
                    let Some(event) = event else { return };
                    discontinuity |= self.take(event);
                    // What is ready belongs together.
                    while let Some(Some(event)) = self.events.next().now_or_never() {
                        discontinuity |= self.take(event);
                    }
                }
                changed = self.terms.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(nap) => {}
            }
            let (table, due) = self.publish(discontinuity);
            next = due;
            out.send_if_modified(|present| {
                let news = **present != table;
                if news {
                    *present = Arc::new(table);
                }
                news
            });
            readings.send_if_modified(|present| {
                let news = *present != self.reading;
                present.clone_from(&self.reading);
                news
            });
        }
    }

    /// Folds one event; true for a discontinuity.
    fn take(&mut self, event: LeaseEvent) -> bool {
        match event {
            LeaseEvent::Interrupted => {
                self.reading.interrupted.get_or_insert_with(boot_time);
                false
            }
            LeaseEvent::Resumed => {
                self.reading.interrupted = None;
                false
            }
            event => {
                let discontinuity = matches!(event, LeaseEvent::Reset { .. });
                self.raw.apply(event);
                discontinuity
            }
        }
    }

    fn publish(&mut self, discontinuity: bool) -> (LeaseTable, Option<Duration>) {
        let terms = self.terms.borrow_and_update().clone();
        let (admitted, refused) = admitted(&self.raw, &self.admitted, &terms);
        self.tell(&refused);
        self.admitted = admitted;
        let now = boot_time();
        let published = self.damper.published(&self.admitted, now, discontinuity, self.reading.interrupted.is_some());
        self.reading.seen = self.raw.iter().filter(|lease| lease.subnets != terms.own.subnets).count();
        self.reading.waiting = self.damper.waiting();
        published
    }

    /// Says each refusal once, and once that it is over.
    fn tell(&mut self, refused: &[Refused]) {
        self.reading.refused = BTreeMap::new();
        for refusal in refused {
            *self.reading.refused.entry(refusal.reason).or_default() += 1;
        }
        const LINES: usize = 20;
        let mut lines = 0;
        let mut now = BTreeMap::new();
        for refusal in refused {
            if self.told.get(&refusal.subnets) != Some(&refusal.text) {
                lines += 1;
                if lines <= LINES {
                    tracing::warn!(reason = refusal.reason.label(), "a lease is not used: {}", refusal.text);
                }
            }
            now.insert(refusal.subnets, refusal.text.clone());
        }
        if lines > LINES {
            tracing::warn!("{} more leases are not used; /metrics counts them by reason", lines - LINES);
        }
        self.told = now;
    }
}
