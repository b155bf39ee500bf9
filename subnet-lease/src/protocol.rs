//! Rules for acquiring and holding a lease, without a store, a clock or a runtime.
//!
//! [`acquire`](acquire::acquire) and [`hold`](hold::hold) read as straight-line code. It issues one request at a time, waits for a notice or a point
//! in time, and publishes the lease's state. A [`Coroutine`](coroutine::Coroutine) converts it into a state machine: replies, notices and the time
//! are inputs, and requests are outputs. [`KeyManager`](keys::KeyManager) runs the coroutine on a real store.
//! `tests/simulation.rs` runs many coroutines on a model store, and injects faults that a random seed determines.

pub mod acquire;
mod ask;
pub mod coroutine;
pub mod decide;
pub(crate) mod drive;
mod error;
#[cfg(any(feature = "etcd", feature = "dir"))]
pub(crate) mod following;
pub mod hold;
pub mod keys;
pub mod news;
#[cfg(any(feature = "etcd", feature = "dir"))]
pub(crate) mod reading;
pub mod registry;
mod settle;
pub mod tenure;
pub mod verdict;
pub mod view;
