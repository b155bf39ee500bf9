//! Computes the leases in force from the store's events: applies them to a table, admits leases, delays removals and publishes the result.

use crate::admission::{AdmissionError, LeasesInForce, Reason, Terms};
use crate::hold_down::HoldDown;
use crate::lease::{Lease, Term};
use crate::manager::boot_time;
use crate::table::{LeaseEvent, LeaseTable};
use futures_util::future::FutureExt;
use futures_util::stream::{BoxStream, StreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use types::Subnets;

/// Pause after each publication, as a multiple of the time that it took. It lasts at most `LONGEST_REST`; flanneld skips pauses up to
/// `SHORTEST_REST`.
const REST: u32 = 64;
const LONGEST_REST: Duration = Duration::from_millis(200);
const SHORTEST_REST: Duration = Duration::from_millis(2);

/// State of the watch and the refused leases, for health and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// On the boot-time clock; `None` while the watch is up.
    pub interrupted: Option<Duration>,
    /// Number of readable leases of other nodes in the store.
    pub seen: usize,
    /// Number of leases that the store no longer has but that stay in force during the hold-down.
    pub waiting: usize,
    pub refused: Arc<Vec<AdmissionError>>,
    /// Number of other nodes, if there are several and none of their leases is usable.
    pub cut_off: Option<usize>,
}

pub struct Feed<'a> {
    events: BoxStream<'a, LeaseEvent>,
    raw: LeaseTable,
    terms: watch::Receiver<Arc<Terms>>,
    standing: LeasesInForce,
    /// Keys that changed since the last admission; `None` if any key may have changed.
    changed: Option<BTreeSet<Subnets>>,
    hold_down: HoldDown,
    logged: BTreeMap<Subnets, Vec<AdmissionError>>,
    reading: Reading,
}

impl<'a> Feed<'a> {
    /// Reads events up to the first complete list. Before it, the other nodes are unknown.
    pub async fn begin(
        mut events: BoxStream<'a, LeaseEvent>,
        terms: watch::Receiver<Arc<Terms>>,
    ) -> (Self, Arc<LeaseTable>) {
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
            standing: LeasesInForce::default(),
            changed: None,
            hold_down: HoldDown::default(),
            logged: BTreeMap::new(),
            reading: Reading::default(),
        };
        let (table, _) = feed.publish(false);
        (feed, table)
    }

    /// Publishes after every event and every change of admission's other inputs. Ends only with the source of the events or of the inputs.
    pub async fn run(
        mut self,
        out: watch::Sender<Arc<LeaseTable>>,
        readings: watch::Sender<Reading>,
    ) {
        let mut next = None;
        let _ = readings.send_replace(self.reading.clone());
        loop {
            let mut discontinuity = false;
            let nap = next.map_or(Duration::from_secs(3600), |next: Duration| {
                next.saturating_sub(boot_time())
            });
            tokio::select! {
                event = self.events.next() => {
                    let Some(event) = event else { return };
                    discontinuity |= self.take(event);
                    // Handle all events that are ready together.
                    while let Some(Some(event)) = self.events.next().now_or_never() {
                        discontinuity |= self.take(event);
                    }
                }
                changed = self.terms.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(nap) => {}
            }
            let began = Instant::now();
            let (table, due) = self.publish(discontinuity);
            next = due;
            out.send_if_modified(|present| {
                let news = *present != table;
                if news {
                    *present = table;
                }
                news
            });
            readings.send_if_modified(|present| {
                let news = *present != self.reading;
                present.clone_from(&self.reading);
                news
            });
            // If ten thousand leases keep changing, this must not occupy a CPU. Events that arrive during the pause are handled together.
            let rest = (began.elapsed() * REST).min(LONGEST_REST);
            if rest > SHORTEST_REST {
                tokio::time::sleep(rest).await;
            }
        }
    }

    /// True if the event replaces the whole table.
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
                let key = match &event {
                    LeaseEvent::Put(lease) => Some(lease.subnets),
                    LeaseEvent::Unreadable(subnets) | LeaseEvent::Delete(subnets) => Some(*subnets),
                    LeaseEvent::Reset { .. } | LeaseEvent::Interrupted | LeaseEvent::Resumed => {
                        None
                    }
                };
                match (key, &mut self.changed) {
                    (Some(key), Some(changed)) => drop(changed.insert(key)),
                    _ => self.changed = None,
                }
                self.raw.apply(event);
                key.is_none()
            }
        }
    }

    fn publish(&mut self, discontinuity: bool) -> (Arc<LeaseTable>, Option<Duration>) {
        let terms = self.terms.borrow_and_update().clone();
        self.standing.update(&self.raw, self.changed.as_ref(), &terms);
        self.changed = Some(BTreeSet::new());
        self.tell();
        self.reading.cut_off = self.cut_off(&terms);
        if *self.reading.refused != self.standing.refused() {
            self.reading.refused = Arc::new(self.standing.refused().to_vec());
        }
        let now = boot_time();
        let published = self.hold_down.published(
            self.standing.admitted(),
            now,
            discontinuity,
            self.reading.interrupted.is_some(),
        );
        self.reading.seen = self.raw.iter().filter(|lease| !terms.is_own(&lease.subnets)).count();
        self.reading.waiting = self.hold_down.waiting();
        published
    }

    /// The number of other nodes, if there are several and no lease is in force. A reservation does not count as a node.
    ///
    /// Nodes with another backend do not count either, because operators restart nodes one by one after a configuration change.
    fn cut_off(&self, terms: &Terms) -> Option<usize> {
        let admitted = self.standing.admitted();
        if !admitted.is_empty() || !admitted.unreadable().is_empty() {
            return None;
        }
        let refused = self.standing.refused().iter();
        let before: BTreeSet<&Subnets> = refused
            .filter(|refused| refused.reason() == Reason::OtherBackend)
            .map(|refused| &refused.subnets)
            .collect();
        let is_node = |lease: &&Lease| {
            !terms.is_own(&lease.subnets)
                && (lease.term == Term::Leased || lease.attrs.node.is_some())
        };
        let nodes = self
            .raw
            .iter()
            .filter(is_node)
            .filter(|lease| !before.contains(&lease.subnets))
            .count();
        (nodes > 1).then_some(nodes)
    }

    /// Logs the refusals that are new since the last call, at most 20 per call.
    fn tell(&mut self) {
        let refused = self.standing.refused();
        const LINES: usize = 20;
        let mut lines = 0;
        let mut now: BTreeMap<Subnets, Vec<AdmissionError>> = BTreeMap::new();
        for refusal in refused {
            // A lease may have several refusals, one per family.
            if !self.logged.get(&refusal.subnets).is_some_and(|logged| logged.contains(refusal)) {
                lines += 1;
                if lines <= LINES {
                    tracing::warn!(reason = refusal.reason().label(), subnet = %refusal.subnets, error = %refusal, "flanneld does not use a lease");
                }
            }
            now.entry(refusal.subnets).or_default().push(refusal.clone());
        }
        if lines > LINES {
            tracing::warn!(
                count = lines - LINES,
                "flanneld does not use further leases; /status lists all of them, and /metrics counts them by reason"
            );
        }
        self.logged = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NetworkConfig;
    use crate::lease::{LeaseAttrs, NodeId};
    use std::collections::BTreeSet;
    use types::Dual;

    fn lease(third: u8, public: [u8; 4], node: bool) -> Lease {
        let node = node.then(|| NodeId { id: format!("n{third}").into(), ..NodeId::default() });
        let attrs = LeaseAttrs {
            public_ip: Some(public.into()),
            backend: "host-gw".to_owned(),
            node,
            ..LeaseAttrs::default()
        };
        let subnets = Dual::V4(ipnet::Ipv4Net::new([10, 5, third, 0].into(), 24).unwrap());
        Lease { subnets, attrs, term: Term::Reserved, since: i64::from(third) }
    }

    /// The number of refused leases, and the value of `cut_off`.
    async fn read(leases: Vec<Lease>) -> (usize, Option<usize>) {
        let terms = Terms {
            config: NetworkConfig::parse(
                r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#,
            )
            .unwrap(),
            own: Some(lease(1, [192, 168, 56, 1], true)),
            local: vec!["192.168.56.1/24".parse().unwrap()],
            underlay: vec!["192.168.56.0/24".parse().unwrap()],
            links: Some(vec!["192.168.56.0/24".parse().unwrap()]),
            rules: Arc::new(()),
            history: Arc::default(),
        };
        let (_keep, terms) = watch::channel(Arc::new(terms));
        let events =
            futures_util::stream::iter([LeaseEvent::Reset { leases, unreadable: BTreeSet::new() }])
                .boxed();
        let (feed, _) = Feed::begin(events, terms).await;
        (feed.reading.refused.len(), feed.reading.cut_off)
    }

    #[tokio::test]
    async fn a_node_is_cut_off_when_several_others_are_refused_and_none_is_left() {
        let good = lease(2, [192, 168, 56, 2], true);
        let bad = |third| lease(third, [192, 168, 56, 1], true);
        assert_eq!(read(vec![]).await, (0, None));
        assert_eq!(read(vec![bad(3)]).await, (1, None));
        assert_eq!(read(vec![bad(3), bad(4)]).await, (2, Some(2)));
        assert_eq!(read(vec![bad(3), bad(4), good]).await, (2, None));
        // The backend can reach none of these nodes.
        let far = |third| lease(third, [10, 99, 0, third], true);
        assert_eq!(read(vec![far(3), far(4)]).await, (2, Some(2)));
        assert_eq!(read(vec![far(3), far(4), lease(2, [192, 168, 56, 2], true)]).await, (2, None));
        // These nodes still run with the previous configuration.
        let before = |third| {
            let lease = lease(third, [192, 168, 56, third], true);
            Lease { attrs: LeaseAttrs { backend: "vxlan".into(), ..lease.attrs }, ..lease }
        };
        assert_eq!(read(vec![before(3), before(4), before(5)]).await.1, None);
        assert_eq!(read(vec![before(3), bad(4), bad(5)]).await, (3, Some(2)));
        // A reservation by an operator is not a node.
        assert_eq!(
            read(vec![bad(3), lease(4, [127, 0, 0, 1], false), lease(5, [127, 0, 0, 1], false)])
                .await,
            (3, None)
        );
    }
}
