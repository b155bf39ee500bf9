//! Result of the comparison of a kernel object with the desired object.

/// Result of the comparison of an existing link with the desired link, ordered by the effort of the repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// Nothing to do.
    Same,
    /// Difference in a property that flanneld can change in place.
    Change,
    /// Difference in a property that the kernel fixes when it creates the link.
    Rebuild,
    /// Link of another program that has the name of flannel's link.
    Refused,
}
