//! A snapshot of a node's desired and actual kernel state, with the peer to which each object belongs. [`inspect`](crate::report::inspect) evaluates it.

use crate::kernel::OpError;
use crate::object::{KernelState, Key};
use crate::report::survey::Survey;
use std::collections::BTreeMap;
use types::Subnets;
use types::kernel_object::Holder;

#[derive(Clone, Debug)]
pub struct Sighting {
    pub want: KernelState,
    /// The desired objects that exist, and flannel's objects that are not desired.
    pub have: KernelState,
    /// The errors of the last pass.
    pub errors: Vec<OpError>,
    /// flanneld delays the deletion of undesired objects, because many routes and peers in the
    /// kernel have no lease.
    pub held: bool,
    pub survey: Survey,
    /// This node's.
    pub own: Subnets,
    /// The peers whose leases require objects in the kernel.
    pub holders: Vec<Holder>,
    /// As an index into `holders`. Objects without an entry belong to this node.
    pub owners: BTreeMap<Key, usize>,
}
