//! Result of the comparison of a found object with the desired object.

/// Result of the comparison of a found link with the desired link, in order of effort.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// Nothing to do.
    Same,
    /// A property differs that flanneld can change in place.
    Change,
    /// A property differs that is fixed at creation.
    Rebuild,
    /// A link of another program has the name of flannel's link.
    Refused,
}
