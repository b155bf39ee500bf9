//! Tests that need a kernel with tunnels of all kinds. Few machines have such a kernel, so these tests run in a virtual machine: `make test-vm`.
//!
//! Tests are six to ten times slower in the virtual machine. The tests wait for events, so their deadlines are still long enough.

mod clear;
mod ipip;
mod kernel;
mod odd;
mod wireguard;
mod wireguard_mixed;
mod wireguard_silent;
