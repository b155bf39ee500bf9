//! Tests that need a kernel with WireGuard, IPIP and netem. Few kernels have all three, so `make test-vm` runs them in a virtual machine.
//!
//! They run six to ten times slower there than on the host.

mod clear;
mod ipip;
mod kernel;
mod odd;
pub(crate) mod scale;
mod wireguard;
mod wireguard_mixed;
mod wireguard_silent;
