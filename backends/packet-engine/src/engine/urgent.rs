//! Threads that move packets come first: every one of them that waits for a processor makes all packets wait.

#![allow(unsafe_code)]

/// Three times the weight of others: enough to be let in, not enough to starve them.
const NICE: i32 = -5;
/// In nanoseconds: what a batch of packets takes, about.
const SLICE: u64 = 100_000;

/// Struct `sched_attr` as of Linux 3.14 (linux/sched/types.h).
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

/// Makes the calling thread run sooner, by a higher weight (which takes CAP_SYS_NICE, or RLIMIT_NICE) and by a shorter slice: since Linux 6.12 who asks for little
/// at a time is let in early. Where neither is possible it runs as others do.
pub fn hurry() {
    let attributes = Attributes { size: size_of::<Attributes>() as u32, nice: NICE, runtime: SLICE, ..Attributes::default() };
    // SAFETY: the kernel reads as many bytes as `size` says, and 0 is the calling thread.
    let set = |attributes: &Attributes| unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(attributes), 0) } == 0;
    if !set(&attributes) {
        set(&Attributes { nice: 0, ..attributes });
    }
}
