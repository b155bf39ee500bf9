//! The listeners of the daemon: the health endpoint, the status API's port, and the unix socket next to subnet.env.
//!
//! All three are served by [`connections`], so that no client, however slow, takes the file descriptors that the daemon needs.

pub mod connections;
pub mod health;
pub mod host;
mod kernel;
mod listen;
pub mod listeners;
pub mod node;
mod pace;
mod probe;
mod routes;
mod shared;
mod slots;
mod stream;
