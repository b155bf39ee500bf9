//! Result of the comparison of a found object with the desired object.

/// Result of the comparison of a found link with the desired link, in order of effort.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// Nothing to do.
    Same,
    /// Difference in a property that flanneld can change in place.
    Change,
    /// Difference in a property that is fixed at creation.
    Rebuild,
    /// Link of another program that has the name of flannel's link.
    Refused,
}
