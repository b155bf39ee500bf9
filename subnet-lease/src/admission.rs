//! Which leases of the store are in force here: pure, with the same result on every node.
//!
//! A lease is admitted if it lies inside the network, overlaps neither our lease nor the underlay nor an older lease, and our backend can use
//! it. The network may contain the addresses of nodes; a leased subnet may not: of a subnet and a node inside it the older lease wins. An
//! unusable value leaves the last good value of its key in force.

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
