//! How a found object compares to the desired one.

/// How a found link compares to the desired one, in order of effort.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// Nothing to do.
    Same,
    /// A property differs that can be changed in place.
    Change,
    /// A property differs that is fixed at creation.
    Rebuild,
    /// A link that is not ours has our name.
    Refused,
}
