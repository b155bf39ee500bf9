//! Tests that need a kernel with tunnels of all kinds. Few machines have one, so these tests run in a virtual machine: `make test-vm`.
//!
//! Everything takes six to ten times as long there. Deadlines wait for events, so they hold.

mod clear;
mod ipip;
mod kernel;
mod odd;
mod wireguard;
mod wireguard_mixed;
mod wireguard_silent;
