//! Result of the comparison of a kernel object with the desired object.

/// Ordered by the effort of the repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    Same,
    /// The property can change in place.
    Change,
    /// The kernel fixes the property when it creates the link.
    Rebuild,
    /// A link of another program has the name of flannel's link.
    Refused,
}
