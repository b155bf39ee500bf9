//! Decides which leases of the store a node uses. The decision depends only on the leases, the previous leases, and the other inputs in `Terms`.
//!
//! A node admits a lease if it lies inside the network and the node's backend can use it. It must not overlap this node's lease, the underlay or an
//! older lease. The network may contain addresses of nodes, but a leased subnet must not. If it does, the older lease takes precedence. If the value
//! of a lease's key becomes unusable, the node keeps the last usable one.
//!
//! One MAC or key leads to one node. Of several leases that claim it, the node uses the one whose node's id derives it. Otherwise it uses the one
//! whose subnet had it in force on this node, otherwise the oldest. Age alone would let an old node take a young node's packets by publishing the
//! young node's MAC.

mod error;
mod judge;
mod standing;
mod taken;
mod terms;

pub use error::{AdmissionError, UnusedLeaseError};
pub use judge::admitted;
pub use standing::LeasesInForce;
pub(crate) use taken::UsedSubnets;
pub use terms::{History, Reason, Terms};
