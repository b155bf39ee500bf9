//! Scheduling of the packet threads: while a packet thread waits for a processor, all its packets wait.
//!
//! While messages arrive (short packets for which a program waits), a thread has priority over ordinary
//! programs. Its [`Budget`] limits this time. When the budget is spent, and under bulk traffic alone,
//! the thread shares processors at three times the default weight. Each read then returns more packets, which
//! increases throughput.

#![allow(unsafe_code)]

use super::budget::{Budget, Part};
use crate::counters::{Counters, add_to_counter};
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Three times the default weight: enough to run soon, but not enough to starve other threads.
const NICE: i32 = -5;
/// The highest weight, used if the kernel refuses real-time scheduling.
const NICEST: i32 = -20;
/// All other real-time threads of the host take precedence.
const LOWEST: u32 = 1;
/// In nanoseconds, about the time for one batch of packets.
const SLICE: u64 = 100_000;
/// Interval at which a thread checks its budgets.
const LOOK: Duration = Duration::from_micros(250);
/// This many messages within [`LATELY`] give a thread priority over ordinary programs.
const MESSAGES: usize = 4;
/// Period within which [`MESSAGES`] must arrive.
const LATELY: Duration = Duration::from_secs(1);

/// How a thread gets priority over other threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Means {
    /// `SCHED_RR`: ahead of every ordinary program.
    RealTime,
    /// The highest weight (nice -20).
    Weight,
    /// The kernel refuses both methods, or the options disable them.
    Nothing,
}

impl Means {
    /// Appended to the name of the packet mode.
    pub(super) fn name(self) -> &'static str {
        match self {
            Means::RealTime => "real-time",
            Means::Weight => "nice -20",
            Means::Nothing => "no real-time",
        }
    }

    /// What the kernel grants, tried in a thread that ends afterwards.
    pub(super) fn probe_granted_in_trial_thread() -> Self {
        let means = [Means::RealTime, Means::Weight];
        std::thread::Builder::new()
            .spawn(move || means.into_iter().find(|means| means.apply_to_calling_thread()))
            .ok()
            .and_then(|trial| trial.join().ok().flatten())
            .unwrap_or(Means::Nothing)
    }

    /// False if the kernel refuses.
    fn apply_to_calling_thread(self) -> bool {
        match self {
            Means::RealTime => set_thread_scheduling(libc::SCHED_RR, 0, LOWEST, 0),
            Means::Weight => set_ordinary_weight(NICEST),
            Means::Nothing => false,
        }
    }
}

/// Since Linux 6.12, the short time slice lets the thread run earlier.
fn set_ordinary_weight(nice: i32) -> bool {
    set_thread_scheduling(libc::SCHED_OTHER, nice, 0, SLICE)
}

/// Sets policy and attributes of the calling thread (sched_setattr(2)). False if the kernel refuses.
fn set_thread_scheduling(policy: libc::c_int, nice: i32, priority: u32, runtime: u64) -> bool {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: priority,
        sched_runtime: runtime,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads as many bytes as `size` says, and 0 is the calling thread.
    let set =
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(&attributes), 0) };
    set == 0
}

/// Gives the calling thread more than the default weight, or the default without CAP_SYS_NICE and
/// RLIMIT_NICE.
fn give_thread_raised_weight() {
    if !set_ordinary_weight(NICE) {
        set_ordinary_weight(0);
    }
}

/// The CPU time of the calling thread.
fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The scheduling of the threads of an engine, and their shared budget.
#[derive(Clone)]
pub(super) struct Scheduling {
    means: Means,
    budget: Arc<Mutex<Budget>>,
    counters: Arc<Counters>,
}

impl Scheduling {
    pub(super) fn new(means: Means, processors: usize, counters: Arc<Counters>) -> Self {
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        let budget = Budget::new(Part::quarter_of(processors), Instant::now());
        Self { means, budget: Arc::new(Mutex::new(budget)), counters }
    }
}

/// The scheduling of the calling thread.
pub(super) struct Priority {
    scheduling: Scheduling,
    /// The thread's own budget, besides the shared one.
    budget: Budget,
    ahead: bool,
    /// The arrival times of the last messages, as a ring buffer.
    messages: [Option<Instant>; MESSAGES],
    oldest: usize,
    /// When the budgets were last checked, and the CPU time of the thread at that moment.
    looked: Instant,
    ran: Duration,
}

impl Priority {
    /// Gives the calling thread its ordinary weight.
    pub(super) fn new_and_raise_thread_weight(scheduling: Scheduling) -> Self {
        give_thread_raised_weight();
        let now = Instant::now();
        Self {
            ahead: false,
            scheduling,
            budget: Budget::new(Part::THREAD, now),
            messages: [None; MESSAGES],
            oldest: 0,
            looked: now,
            ran: thread_cpu_time(),
        }
    }

    /// Adjusts the scheduling after a batch with this many messages. A thread with priority yields to others
    /// like it, and loses the priority when a budget is empty.
    #[inline]
    pub(super) fn adjust_after_batch(&mut self, messages: usize) {
        if self.scheduling.means == Means::Nothing {
            return;
        }
        let now = Instant::now();
        self.record_message_times(messages, now);
        if now.duration_since(self.looked) >= LOOK {
            self.charge_budgets_and_reschedule(now);
        }
        if self.ahead {
            std::thread::yield_now();
        }
    }

    fn record_message_times(&mut self, messages: usize, now: Instant) {
        for _ in 0..messages.min(MESSAGES) {
            if let Some(place) = self.messages.get_mut(self.oldest) {
                *place = Some(now);
            }
            self.oldest = (self.oldest + 1) % MESSAGES;
        }
    }

    fn has_enough_recent_messages(&self, now: Instant) -> bool {
        self.messages
            .get(self.oldest)
            .copied()
            .flatten()
            .is_some_and(|oldest| now.saturating_duration_since(oldest) < LATELY)
    }

    fn charge_budgets_and_reschedule(&mut self, now: Instant) {
        let ran = thread_cpu_time();
        let spent = if self.ahead { ran.saturating_sub(self.ran) } else { Duration::ZERO };
        let all = self.scheduling.budget.lock().charge_used_time(now, spent);
        let may = self.budget.charge_used_time(now, spent) && all;
        (self.looked, self.ran) = (now, ran);
        let goes = may && self.has_enough_recent_messages(now);
        if goes && !self.ahead {
            self.ahead = self.scheduling.means.apply_to_calling_thread();
        } else if self.ahead && !goes {
            give_thread_raised_weight();
            self.ahead = false;
            add_to_counter(&self.scheduling.counters.budgets_spent, usize::from(!may));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// Policy, real-time priority and niceness of the calling thread (proc_pid_stat(5), fields 41, 40 and
    /// 19).
    fn read_thread_scheduling() -> [i64; 3] {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        [41, 40, 19].map(|field: usize| fields[field - 3].parse().unwrap())
    }

    /// In a separate thread, because `test` changes the scheduling of its thread.
    fn run_in_separate_thread<T: Send>(test: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(test).join().unwrap())
    }

    #[test]
    fn thread_goes_ahead_while_messages_come_until_its_budget_is_spent() {
        let means = Means::probe_granted_in_trial_thread();
        let counters = Arc::<Counters>::default();
        let spent = || counters.budgets_spent.load(Ordering::Relaxed);
        let [bulk, ahead, after, again, alone] = run_in_separate_thread(|| {
            let mut priority =
                Priority::new_and_raise_thread_weight(Scheduling::new(means, 2, counters.clone()));
            let mut seen = Vec::new();
            std::thread::sleep(LOOK);
            priority.adjust_after_batch(0);
            seen.push(read_thread_scheduling());
            std::thread::sleep(LOOK);
            priority.adjust_after_batch(MESSAGES);
            seen.push(read_thread_scheduling());
            let deadline = Instant::now() + Duration::from_secs(30);
            while spent() == 0 && means != Means::Nothing && Instant::now() < deadline {
                priority.adjust_after_batch(1);
            }
            seen.push(read_thread_scheduling());
            std::thread::sleep(Duration::from_millis(20));
            priority.adjust_after_batch(1);
            seen.push(read_thread_scheduling());
            std::thread::sleep(LATELY + LOOK);
            priority.adjust_after_batch(MESSAGES - 1);
            seen.push(read_thread_scheduling());
            seen.try_into().unwrap()
        });
        assert_eq!(ahead, again);
        assert_eq!([bulk, alone], [after; 2]);
        assert_eq!(after[0], i64::from(libc::SCHED_OTHER));
        match means {
            Means::RealTime => assert_eq!(ahead[..2], [i64::from(libc::SCHED_RR), 1]),
            Means::Weight => assert_eq!(ahead, [i64::from(libc::SCHED_OTHER), 0, -20]),
            Means::Nothing => assert_eq!(ahead, after),
        }
        assert_eq!(spent(), u64::from(means != Means::Nothing));
    }

    #[test]
    fn thread_that_may_not_go_ahead_stays_ordinary() {
        let policy = run_in_separate_thread(|| {
            Priority::new_and_raise_thread_weight(Scheduling::new(
                Means::Nothing,
                2,
                Arc::default(),
            ))
            .adjust_after_batch(MESSAGES);
            read_thread_scheduling()[0]
        });
        assert_eq!(policy, i64::from(libc::SCHED_OTHER));
    }
}
