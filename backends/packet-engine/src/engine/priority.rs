//! Scheduling priority of the threads that forward packets: while one waits for a CPU, all packets wait.

#![allow(unsafe_code)]

/// Three times the default weight: enough to be scheduled soon, not enough to starve others.
const NICE: i32 = -5;
/// The time slice in nanoseconds, about the time for one batch of packets.
const SLICE: u64 = 100_000;

/// `struct sched_attr` as of Linux 3.14 (linux/sched/types.h).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Raises the priority of the calling thread: a higher weight (this needs CAP_SYS_NICE or RLIMIT_NICE) and a shorter slice, which since
/// Linux 6.12 lets a thread run earlier. If neither is possible, the thread runs with the default priority.
pub(super) fn raise() {
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        nice: NICE,
        runtime: SLICE,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads as many bytes as `size` says, and 0 is the calling thread.
    let set = |attributes: &Attributes| unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(attributes), 0) } == 0;
    if !set(&attributes) {
        set(&Attributes {
            nice: 0,
            ..attributes
        });
    }
}
