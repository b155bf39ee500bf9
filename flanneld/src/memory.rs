//! Limits the free memory that glibc's allocator keeps. In a cluster with ten thousand leases, short-lived lists
//! leave large gaps in the heap.

/// A single arena, and low thresholds for returning memory to the system. Call this before other threads start.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn configure() {
    for (option, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_TRIM_THRESHOLD, 128 << 10),
        (libc::M_MMAP_THRESHOLD, 128 << 10),
    ] {
        // SAFETY: mallopt takes two numbers, and no other thread runs yet. A failure only costs memory.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Returns the heap's free pages to the system, including those between allocations. Call this after processing all
/// leases.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn trim() {
    // SAFETY: malloc_trim takes a number, and locks what it works on.
    unsafe { libc::malloc_trim(0) };
}

/// Only glibc has `mallopt`.
#[cfg(not(target_env = "gnu"))]
pub fn configure() {}

/// Only glibc has `malloc_trim`.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}
