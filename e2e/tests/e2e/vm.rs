//! Tests that need a kernel with WireGuard, IPIP and netem. Few kernels have all three features, so `make test-vm` runs the tests in a virtual machine.
//!
//! Tests run six to ten times slower in the virtual machine than on the host. The deadlines of the tests are long enough for the slow virtual machine.

mod clear;
mod ipip;
mod kernel;
mod odd;
mod wireguard;
mod wireguard_mixed;
mod wireguard_silent;
