//! Errors of the choice of the underlay interface.

use netstate::kernel::KernelError;
use thiserror::Error;
use types::{Coded, Problem};

/// The kernel does not respond to queries about this host.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error(
    "cannot read from the kernel (netlink): {0}; check that this process may open netlink sockets"
)]
#[code("host-unreadable")]
pub struct ReadError(#[from] KernelError);

/// The code if other nodes also have all addresses of this host that flanneld could use.
pub const SHARED: &str = "interface-addresses-shared";

/// The codes of reasons that do not end by waiting.
const LASTING: [&str; 3] = ["interfaces-differ", "interface-mtu-unknown", "network-without-family"];

/// True if waiting can resolve an error of `select`, because an interface, an address or a route is missing.
pub(super) fn may_come(error: &Problem) -> bool {
    error.parts.iter().any(|why| !LASTING.contains(&&*why.code))
}
