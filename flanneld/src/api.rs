//! The listeners of the daemon: the health endpoint, the TCP port of the status API, and the Unix socket next to
//! subnet.env.
//!
//! [`connections`] serves all three, so that no slow client uses up the file descriptors that the daemon needs.

pub mod connections;
pub mod health;
pub mod host;
mod kernel;
mod listen;
pub mod listeners;
pub mod node;
mod pace;
pub mod page;
mod probe;
mod routes;
mod shared;
mod slots;
mod stream;
mod view;
