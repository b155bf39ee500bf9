//! Getting and keeping a lease: the rules, without a store, a clock or a runtime.
//!
//! [`acquire`](acquire::acquire) and [`hold`](hold::hold) read as straight-line code, but all they can do is ask for one
//! request at a time, wait for a notice or a point in time, and show how the lease stands. A [`Coroutine`](coroutine::Coroutine)
//! turns such code into a state machine: answers, notices and the time go in, requests come out. [`KeyManager`](keys::KeyManager)
//! drives it with a real store; `tests/simulation.rs` drives many at once with a model store, under faults, by seed.

pub mod acquire;
mod ask;
pub mod coroutine;
pub mod decide;
pub(crate) mod drive;
#[cfg(any(feature = "etcd", feature = "dir"))]
pub(crate) mod following;
pub mod hold;
pub mod keys;
pub mod news;
pub mod problem;
#[cfg(any(feature = "etcd", feature = "dir"))]
pub(crate) mod reading;
pub mod registry;
mod settle;
pub mod tenure;
pub mod verdict;
pub mod view;
