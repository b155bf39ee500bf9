//! How many labs run at once. Tests mostly wait, so more of them run than there are processors; a test that waits for its turn must not keep
//! another from running. The test program therefore has a thread for every test, and this is the only limit.

use std::cell::RefCell;
use std::sync::{Condvar, Mutex, PoisonError};

/// An API server takes 300 MB, a cluster 1 GB and all processors at its start.
static CLUSTERS: Queue = Queue::new(3);
/// Hosts with daemons and probes.
static LABS: Queue = Queue::new(8);

thread_local! {
    /// The turn of this thread's test, until the thread ends.
    static HELD: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// The right to run.
#[derive(Debug)]
struct Turn(&'static Queue);

/// The right of this thread to run a cluster, until it is dropped.
#[derive(Debug)]
pub struct ClusterTurn(());

#[derive(Debug)]
struct Queue {
    limit: usize,
    taken: Mutex<usize>,
    freed: Condvar,
}

/// Waits until this test may start an API server or a cluster. Its labs wait no more.
pub fn cluster_turn() -> ClusterTurn {
    let turn = CLUSTERS.wait();
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
        held.borrow_mut().get_or_insert_with(|| LABS.wait());
    });
}

impl Queue {
    const fn new(limit: usize) -> Self {
        Self {
            limit,
            taken: Mutex::new(0),
            freed: Condvar::new(),
        }
    }

    fn wait(&'static self) -> Turn {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = self
            .freed
            .wait_while(taken, |taken| *taken >= self.limit)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Turn(self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn queue_lets_as_many_run_as_its_limit() {
        static QUEUE: Queue = Queue::new(2);
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let _turn = QUEUE.wait();
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(most.into_inner(), 2);
    }

    #[test]
    fn thread_takes_one_turn_for_all_its_labs() {
        let labs = std::thread::spawn(|| {
            lab();
            lab();
            *LABS.taken.lock().unwrap()
        });
        assert_eq!(labs.join().unwrap(), 1);
        assert_eq!(*LABS.taken.lock().unwrap(), 0);
    }
}
