//! Limits the number of labs and clusters that run at once, according to the load of the processors. Tests
//! mostly wait, so more tests than processors can run at once. A test that waits to start must not block
//! another test. The test program has a thread for every test, and only the module `turn` limits the number of concurrent tests.
//!
//! The load is the ratio of the duration of a short computation to its duration on an idle machine. The kernel's load
//! figures are not suitable for the limit on labs. The kernel's counts of waiting tasks (`proc_loadavg(5)`) contain tasks that
//! already sleep. The kernel's pressure figures (`/proc/pressure/cpu`) are the same for one waiting task as for twenty.

use std::cell::RefCell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};

/// Processor time of a sample, which exceeds the time slice that the scheduler gives a task.
const SAMPLE: Duration = Duration::from_millis(8);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(300);
/// Number of samples since the last start of a test that decide whether one more test may start.
const SAMPLES: usize = 4;

static TURNS: Turns = Turns::new();

thread_local! {
    /// Permission of this thread's test to run, valid until the thread ends.
    static HELD: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Hosts with daemons and probes.
    Lab,
    /// A lab that loads the processors for several seconds. Two labs that load the processors at the same time would disturb each other's measurements.
    Load,
    /// A lab with an API server, which uses 300 MB of memory. Many of the tests with an API server mostly wait.
    ApiServer,
    /// A cluster, which uses 1 GB of memory and, during its start, all processors.
    Cluster,
}

impl Kind {
    /// Returns the number of tests that may run even on a busy machine, because other load on the machine may never end.
    fn min(self) -> usize {
        match self {
            Kind::Lab => 3,
            Kind::Load | Kind::ApiServer | Kind::Cluster => 1,
        }
    }

    /// Returns the maximum number of tests that may run even on an idle machine, because memory is limited.
    fn max(self) -> usize {
        match self {
            Kind::Lab => 8,
            Kind::Load => 1,
            Kind::ApiServer => 4,
            Kind::Cluster => 3,
        }
    }

    /// Returns the slowdown below which one more test may start. Kubernetes tests start at a higher slowdown than other tests, because Kubernetes tests end last.
    fn max_slowdown(self) -> f64 {
        match self {
            Kind::Lab | Kind::Load => 3.0,
            Kind::ApiServer | Kind::Cluster => 3.5,
        }
    }

    /// Reports whether one more test may start while `running` tests run. `slowdown`, if known, is the ratio
    /// of a sample's duration to its duration on an idle machine.
    fn admits(self, running: usize, slowdown: Option<f64>) -> bool {
        let bears = slowdown.is_some_and(|slowdown| slowdown < self.max_slowdown());
        running < self.min() || running < self.max() && bears
    }
}

/// Permission to run one test of a given `Kind`. The permission ends on drop.
#[derive(Debug)]
struct Turn(&'static Turns, Kind);

/// Permission of this thread to run its test, valid until the caller drops the `HeldTurn`.
#[derive(Debug)]
pub struct HeldTurn(());

#[derive(Debug)]
struct Turns {
    labs: Queue,
    loads: Queue,
    api_servers: Queue,
    clusters: Queue,
    samples: Mutex<Samples>,
}

/// Recent slowdown samples. All queues share the samples, because a measurement itself takes processor time.
#[derive(Debug)]
struct Samples {
    values: Vec<f64>,
    last: Option<Instant>,
}

/// The queue of the tests of one `Kind`, in order of arrival, because long tests arrive first and must not start last.
#[derive(Debug)]
struct Queue {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug)]
struct State {
    running: usize,
    /// Number of tests that have requested permission to run.
    came: usize,
    /// Number of tests that no longer wait for permission to run. The next test in the queue decides whether it may run, and all later tests wait.
    went: usize,
}

/// Waits until this test is the only test that may load the processors for several seconds. After the call, the labs of this test start without a wait.
pub fn load_turn() -> HeldTurn {
    take(Kind::Load)
}

/// Waits until this test may start an API server. After the call, the labs of this test start without a wait.
pub fn api_turn() -> HeldTurn {
    take(Kind::ApiServer)
}

/// Waits until this test may start a cluster. After the call, the labs of this test start without a wait.
pub fn cluster_turn() -> HeldTurn {
    take(Kind::Cluster)
}

fn take(kind: Kind) -> HeldTurn {
    let turn = TURNS.wait(kind);
    HELD.with(|held| *held.borrow_mut() = Some(turn));
    HeldTurn(())
}

impl Drop for HeldTurn {
    fn drop(&mut self) {
        HELD.with(|held| held.borrow_mut().take());
    }
}

/// Waits until this test may build a lab. Only the first lab of a thread waits.
pub(crate) fn lab() {
    HELD.with(|held| {
        held.borrow_mut()
            .get_or_insert_with(|| TURNS.wait(Kind::Lab));
    });
}

impl Queue {
    const fn new() -> Self {
        let state = State {
            running: 0,
            came: 0,
            went: 0,
        };
        Self {
            state: Mutex::new(state),
            moved: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    const fn new() -> Self {
        Self {
            labs: Queue::new(),
            loads: Queue::new(),
            api_servers: Queue::new(),
            clusters: Queue::new(),
            samples: Mutex::new(Samples {
                values: Vec::new(),
                last: None,
            }),
        }
    }

    fn queue(&self, kind: Kind) -> &Queue {
        match kind {
            Kind::Lab => &self.labs,
            Kind::Load => &self.loads,
            Kind::ApiServer => &self.api_servers,
            Kind::Cluster => &self.clusters,
        }
    }

    fn wait(&'static self, kind: Kind) -> Turn {
        let queue = self.queue(kind);
        let mut state = queue.lock();
        let number = state.came;
        state.came += 1;
        drop(
            queue
                .moved
                .wait_while(state, |state| state.went != number)
                .unwrap_or_else(PoisonError::into_inner),
        );
        let mut slowdown = None;
        loop {
            let mut state = queue.lock();
            if kind.admits(state.running, slowdown) {
                state.running += 1;
                state.went += 1;
                queue.moved.notify_all();
                return Turn(self, kind);
            }
            // Reading the slowdown uses up the samples. A queue at its limit leaves them to the other queues.
            let waits = state.running < kind.max();
            drop(state);
            std::thread::sleep(SAMPLE_INTERVAL);
            slowdown = waits.then(|| self.slowdown()).flatten();
        }
    }

    /// Returns the mean slowdown since this function last returned a slowdown. Returns `None` with fewer than [`SAMPLES`] samples, or while another queue measures.
    fn slowdown(&self) -> Option<f64> {
        // If the lock is held, the first test of another queue is measuring.
        let mut samples = self.samples.try_lock().ok()?;
        if samples
            .last
            .is_none_or(|last| last.elapsed() >= SAMPLE_INTERVAL)
        {
            samples.values.extend(slowdown());
            samples.last = Some(Instant::now());
        }
        let mean = mean(&samples.values)?;
        samples.values.clear();
        Some(mean)
    }
}

/// Returns the mean of the samples, or `None` with fewer than [`SAMPLES`] samples.
fn mean(samples: &[f64]) -> Option<f64> {
    (samples.len() >= SAMPLES).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

/// Measures the machine's load: computes for [`SAMPLE`] of processor time, and returns the ratio of the elapsed time to [`SAMPLE`].
pub(crate) fn slowdown() -> Option<f64> {
    let used = || {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok()?;
        Some(Duration::from_nanos(time.num_nanoseconds() as u64))
    };
    let (start, before) = (Instant::now(), used()?);
    while used()?.saturating_sub(before) < SAMPLE {}
    Some(start.elapsed().as_secs_f64() / SAMPLE.as_secs_f64())
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.queue(self.1).lock().running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn busy_processors_admit_the_fewest_and_idle_ones_the_most() {
        for (kind, running, slowdown, admitted) in [
            (Kind::Lab, 2, None, true),
            (Kind::Lab, 2, Some(50.0), true),
            (Kind::Lab, 3, None, false),
            (Kind::Lab, 3, Some(3.5), false),
            (Kind::Lab, 3, Some(2.5), true),
            (Kind::Lab, 7, Some(0.0), true),
            (Kind::Lab, 8, Some(0.0), false),
            (Kind::Load, 0, Some(50.0), true),
            (Kind::Load, 1, Some(1.0), false),
            (Kind::Cluster, 0, Some(50.0), true),
            (Kind::Cluster, 2, Some(4.0), false),
            (Kind::Cluster, 2, Some(3.0), true),
            (Kind::Cluster, 3, Some(0.0), false),
        ] {
            assert_eq!(
                kind.admits(running, slowdown),
                admitted,
                "{kind:?}: {running}, {slowdown:?}"
            );
        }
    }

    #[test]
    fn enough_new_samples_decide() {
        static TURNS: Turns = Turns::new();
        assert_eq!(mean(&[9.0; SAMPLES - 1]), None);
        assert_eq!(mean(&[1.0, 2.0, 3.0, 6.0]), Some(3.0));
        assert!(slowdown().is_some_and(|slowdown| slowdown >= 1.0));
        TURNS.samples.lock().unwrap().values = vec![1.0; SAMPLES - 1];
        assert!(
            TURNS.slowdown().is_some_and(|slowdown| slowdown >= 1.0),
            "the last sample is measured"
        );
        assert_eq!(TURNS.slowdown(), None, "those were used");
    }

    #[test]
    fn no_more_labs_run_than_may() {
        static TURNS: Turns = Turns::new();
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 * Kind::Lab.min() {
                scope.spawn(|| {
                    let _turn = TURNS.wait(Kind::Lab);
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert!((1..=Kind::Lab.max()).contains(&most.into_inner()));
        assert_eq!(TURNS.labs.lock().running, 0);
    }

    #[test]
    fn turns_are_taken_in_the_order_of_arrival() {
        static TURNS: Turns = Turns::new();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..5 {
                let order = &order;
                scope.spawn(move || {
                    let _turn = TURNS.wait(Kind::Load);
                    order.lock().unwrap().push(number);
                    std::thread::sleep(Duration::from_millis(20));
                });
                while TURNS.loads.lock().came != number + 1 {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn thread_takes_one_turn_for_all_its_labs() {
        let labs = std::thread::spawn(|| {
            lab();
            lab();
            TURNS.labs.lock().running
        });
        assert_eq!(labs.join().unwrap(), 1);
        assert_eq!(TURNS.labs.lock().running, 0);
    }
}
