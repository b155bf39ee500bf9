//! Getting and keeping a lease: the rules, without a store, a clock or a runtime.
//!
//! [`acquire`](acquire::acquire) and [`hold`](hold::hold) read as straight-line code, but all they can do is ask for one
//! request at a time, wait for a notice or a point in time, and show how the lease stands. A [`Coroutine`](coroutine::Coroutine)
//! turns such code into a state machine: answers, notices and the time go in, requests come out. The managers drive it with
//! a real store; `tests/simulation.rs` drives many at once with a model store, under faults, by seed.

pub mod acquire;
pub mod coroutine;
pub mod decide;
pub mod drive;
pub mod hold;
pub mod registry;
pub mod view;
pub mod words;
