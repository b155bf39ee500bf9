//! How what is found relates to what is wanted.

/// How a found link relates to the wanted one, the least effort first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// Nothing to do.
    Same,
    /// A property differs that can be changed in place.
    Change,
    /// A property differs that is fixed at creation.
    Rebuild,
    /// Somebody else's link has our name.
    Refused,
}
