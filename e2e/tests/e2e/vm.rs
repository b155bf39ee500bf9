//! What needs a kernel with tunnels of all kinds. Few machines' kernels have them, so these run in a virtual machine: `make test-vm`.
//!
//! There, everything takes six to ten times as long as outside. Deadlines count events, so they hold.

mod clear;
mod ipip;
mod kernel;
mod odd;
mod wireguard;
mod wireguard_mixed;
mod wireguard_silent;
