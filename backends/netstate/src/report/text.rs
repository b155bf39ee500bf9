//! What the texts of kernel objects need besides the objects. They are as `ip` and `bridge` print them.

use crate::names::LinkName;
use crate::report::protocols::Protocols;
use std::collections::BTreeMap;

/// Names of what an object contains only as numbers.
#[derive(Default)]
pub struct Words {
    /// Of routes.
    pub protocols: Protocols,
    /// By index: the underlay interfaces of vxlan links.
    pub interfaces: BTreeMap<u32, LinkName>,
}
