//! Converts the known Nodes into a stream of lease events.

use super::nodes::Leases;
use super::state::All;
use crate::manager::{Counters, boot_time};
use crate::table::LeaseEvent;
use std::time::Duration;
use tokio::sync::watch;

pub(super) struct Watching<'a> {
    all: &'a All,
    counters: &'a Counters,
    changes: watch::Receiver<u64>,
    /// The leases that result from the events sent so far.
    sent: Option<Leases>,
    lists: u64,
    /// Number of the last Node change whose events are queued.
    generation: Option<u64>,
    interrupted: bool,
    /// At this time, the leases are computed again, even if no Node changes.
    due: Option<Duration>,
    queue: Vec<LeaseEvent>,
}

impl<'a> Watching<'a> {
    /// It begins with a complete list.
    pub(super) fn of(all: &'a All, counters: &'a Counters) -> Self {
        let changes = all.changes();
        Self {
            all,
            counters,
            changes,
            sent: None,
            lists: 0,
            generation: None,
            interrupted: false,
            due: None,
            queue: Vec::new(),
        }
    }

    /// The stream never ends.
    ///
    /// # Cancel safety
    /// Undelivered events stay in the queue.
    pub(super) async fn next(&mut self) -> LeaseEvent {
        loop {
            if let Some(event) = self.queue.pop() {
                return event;
            }
            // Deriving the leases of thousands of Nodes takes a millisecond, so do not repeat it for every queued event.
            let generation = *self.changes.borrow_and_update();
            if self.generation != Some(generation) || self.due.is_some_and(|due| due <= boot_time())
            {
                self.generation = Some(generation);
                self.fill();
                self.queue.reverse();
                continue;
            }
            let nap =
                self.due.map_or(Duration::from_secs(3600), |due| due.saturating_sub(boot_time()));
            tokio::select! {
                changed = self.changes.changed() => if changed.is_err() { std::future::pending::<()>().await },
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    fn fill(&mut self) {
        let all = self.all;
        let look = all.look();
        if look.trouble.is_some() && !self.interrupted && self.sent.is_some() {
            self.interrupted = true;
            self.queue.push(LeaseEvent::Interrupted);
        }
        if !look.listed {
            return;
        }
        let (leases, due) = all.with(|nodes| nodes.leases(boot_time()));
        self.due = due;
        self.note(&leases);
        match &self.sent {
            Some(sent) if look.lists == self.lists => self.queue.extend(leases.since(sent)),
            sent => self.queue.extend(leases.reset(sent.as_ref().unwrap_or(&Leases::default()))),
        }
        (self.sent, self.lists) = (Some(leases), look.lists);
        if look.trouble.is_none() && std::mem::take(&mut self.interrupted) {
            self.queue.push(LeaseEvent::Resumed);
        }
    }

    /// Records and logs the Nodes that flanneld does not use. The status API lists them all. The log does not, because a cluster can have thousands
    /// of them.
    fn note(&self, leases: &Leases) {
        const LINES: usize = 20;
        let news = leases
            .left_out
            .iter()
            .filter(|(name, why)| self.counters.unreadable(name, (*why).clone()));
        let news: Vec<_> = news.collect();
        for (name, why) in news.iter().take(LINES) {
            tracing::warn!(node = %name, error = %why, "flanneld does not use a Node");
        }
        if news.len() > LINES {
            tracing::warn!(
                count = news.len() - LINES,
                "flanneld does not use further Nodes; /status lists all unused Nodes"
            );
        }
        self.counters.only(&leases.left_out.keys().cloned().collect());
    }
}
