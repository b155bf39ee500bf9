//! Keeps what the allocator holds small. With ten thousand leases, lists that live for a moment are most of the memory.

/// Sets the allocator up, before other threads run: one arena, and memory goes back to the system early.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn save() {
    for (option, value) in [(libc::M_ARENA_MAX, 1), (libc::M_TRIM_THRESHOLD, 128 << 10), (libc::M_MMAP_THRESHOLD, 128 << 10)] {
        // SAFETY: mallopt takes two numbers, and no other thread runs yet. A failure only costs memory.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Gives free pages between allocations back to the system: after work on all leases, before other work finds no place in the gaps.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn give_back() {
    // SAFETY: malloc_trim takes a number, and locks what it works on.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators decide themselves.
#[cfg(not(target_env = "gnu"))]
pub fn save() {}

/// Other allocators decide themselves.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}
