//! How packets get there: kernel state computed from leases, compared with what the kernel has, and applied.
//!
//! Knows nothing of stores: a backend announces attributes, the daemon acquires the lease, then the backend joins.

pub mod backend;
