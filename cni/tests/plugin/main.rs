//! The plugin as a container runtime runs it, with a stub as the delegate.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod bed;
mod differential;
mod faults;
mod golden;
mod many;
mod model;
mod obstacles;
mod status;
