//! How many labs run at once. Tests mostly wait, so more of them run than there are processors; a test that waits for its turn must not keep
//! another from running. The test program therefore has a thread for every test, and this is the only limit.

use std::cell::RefCell;
use std::sync::{Condvar, Mutex, PoisonError};

/// Hosts with daemons and probes, at once.
const MAX_LABS: usize = 8;
/// Clusters beside as many labs. An API server takes 300 MB, a cluster 1 GB and all processors at its start.
const MAX_CLUSTERS: usize = 3;
/// Instead of so many labs a further cluster runs.
const LABS_OF_A_CLUSTER: usize = 8;

static TURNS: Turns = Turns::new();

thread_local! {
    /// The turn of this thread's test, until the thread ends.
    static HELD: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lab,
    Cluster,
}

/// The right to run.
#[derive(Debug)]
struct Turn(&'static Turns, Kind);

/// The right of this thread to run a cluster, until it is dropped.
#[derive(Debug)]
pub struct ClusterTurn(());

#[derive(Debug)]
struct Turns {
    taken: Mutex<Taken>,
    freed: Condvar,
}

#[derive(Debug)]
struct Taken {
    clusters: usize,
    labs: usize,
    /// Labs that wait.
    waiting: usize,
}

/// Waits until this test may start an API server or a cluster. Its labs wait no more.
pub fn cluster_turn() -> ClusterTurn {
    let turn = TURNS.wait(Kind::Cluster);
    HELD.with(|held| *held.borrow_mut() = Some(turn));
    ClusterTurn(())
}

impl Drop for ClusterTurn {
    fn drop(&mut self) {
        HELD.with(|held| held.borrow_mut().take());
    }
}

/// Waits until this test may build a lab, at its first one.
pub(crate) fn lab() {
    HELD.with(|held| {
        held.borrow_mut()
            .get_or_insert_with(|| TURNS.wait(Kind::Lab));
    });
}

impl Taken {
    fn admits(&self, kind: Kind) -> bool {
        match kind {
            Kind::Lab => self.labs < MAX_LABS,
            Kind::Cluster => {
                let missing = MAX_LABS.saturating_sub(self.labs + self.waiting);
                self.clusters < MAX_CLUSTERS + missing / LABS_OF_A_CLUSTER
            }
        }
    }

    fn count(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Lab => &mut self.labs,
            Kind::Cluster => &mut self.clusters,
        }
    }
}

impl Turns {
    const fn new() -> Self {
        let taken = Taken {
            clusters: 0,
            labs: 0,
            waiting: 0,
        };
        Self {
            taken: Mutex::new(taken),
            freed: Condvar::new(),
        }
    }

    fn wait(&'static self, kind: Kind) -> Turn {
        let waits = usize::from(kind == Kind::Lab);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.waiting += waits;
        let mut taken = self
            .freed
            .wait_while(taken, |taken| !taken.admits(kind))
            .unwrap_or_else(PoisonError::into_inner);
        taken.waiting -= waits;
        *taken.count(kind) += 1;
        Turn(self, kind)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self
            .0
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .count(self.1) -= 1;
        self.0.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn taken(clusters: usize, labs: usize, waiting: usize) -> Taken {
        Taken {
            clusters,
            labs,
            waiting,
        }
    }

    #[test]
    fn clusters_take_the_place_of_labs_that_are_missing() {
        for (clusters, labs, waiting, admitted) in [
            (2, 8, 40, true),
            (3, 8, 40, false),
            (3, 7, 40, false),
            (3, 1, 0, false),
            (3, 0, 1, false),
            (3, 0, 0, true),
            (4, 0, 0, false),
        ] {
            let taken = taken(clusters, labs, waiting);
            assert_eq!(taken.admits(Kind::Cluster), admitted, "{taken:?}");
        }
        assert!(taken(4, 7, 3).admits(Kind::Lab) && !taken(0, 8, 3).admits(Kind::Lab));
    }

    #[test]
    fn no_more_labs_run_than_may() {
        static TURNS: Turns = Turns::new();
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 * MAX_LABS {
                scope.spawn(|| {
                    let _turn = TURNS.wait(Kind::Lab);
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(most.into_inner(), MAX_LABS);
    }

    #[test]
    fn thread_takes_one_turn_for_all_its_labs() {
        let labs = std::thread::spawn(|| {
            lab();
            lab();
            TURNS.taken.lock().unwrap().labs
        });
        assert_eq!(labs.join().unwrap(), 1);
        assert_eq!(TURNS.taken.lock().unwrap().labs, 0);
    }
}
