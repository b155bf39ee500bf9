//! A test allocator that finds secrets in freed memory.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

pub(super) const SECRET: [u8; 32] = *b"\xa7\x51 a key of the tests, 32 long\xa7\x51";

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static FOUND: Cell<usize> = const { Cell::new(0) };
}

struct Watched;

#[global_allocator]
static ALLOCATOR: Watched = Watched;

// SAFETY: all memory comes from the system allocator, with the caller's layout. `realloc` is the trait's default: it allocates, copies and frees.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller has the same obligations. The memory is zeroed, so that all of it may be read when it is freed.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if WATCHED.try_with(Cell::get) == Ok(true) {
            // SAFETY: the block is still allocated, `layout.size()` bytes long and initialised since its allocation.
            let bytes = unsafe { std::slice::from_raw_parts(pointer, layout.size()) };
            let found = bytes.windows(SECRET.len()).filter(|window| *window == SECRET).count();
            let _ = FOUND.try_with(|all| all.set(all.get() + found));
        }
        // SAFETY: the caller has the same obligations.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// How often the secret occurs in memory that the current thread frees while `work` runs.
pub(super) fn secrets_in_freed_memory(work: impl FnOnce()) -> usize {
    FOUND.set(0);
    WATCHED.set(true);
    work();
    WATCHED.set(false);
    FOUND.get()
}

#[test]
fn secrets_in_freed_memory_are_found() {
    assert_eq!(secrets_in_freed_memory(|| drop(SECRET.to_vec())), 1);
    let grown = secrets_in_freed_memory(|| {
        let mut bytes = zeroize::Zeroizing::new(SECRET.to_vec());
        (0..10_000).for_each(|_| bytes.push(0));
    });
    assert!(grown > 0, "a buffer that grows leaves copies of the secret in freed memory");
}
