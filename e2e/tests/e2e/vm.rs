//! Tests that need a kernel with tunnels of all kinds. Few machines have one, so these tests run in a virtual machine: `make test-vm`.
//!
//! Tests take six to ten times as long there. They wait for events, so their deadlines are still long enough.

mod clear;
mod ipip;
mod kernel;
mod odd;
mod wireguard;
mod wireguard_mixed;
mod wireguard_silent;
