//! Decides which leases of the store are in force. The decision is pure: every node reaches the same result.
//!
//! A node admits a lease if the lease lies inside the network and the node's backend can use the lease. The lease must not overlap this node's
//! lease, the underlay or an older lease. The network may contain addresses of nodes, but a leased subnet must not contain them. If a subnet
//! contains a node's address, the older lease wins. If a value becomes unusable, the last good value of its key stays in force.

mod judge;
mod refused;
mod standing;
mod taken;
mod terms;

pub use judge::admitted;
pub use refused::{Refused, Why};
pub use standing::LeasesInForce;
pub(crate) use taken::UsedSubnets;
pub use terms::{Reason, Terms};
