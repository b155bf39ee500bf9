//! One fact: known, known to be absent, or not to be had, with the reason.

/// One fact about the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<T> {
    /// It is known.
    Known(T),
    /// It is known that there is none.
    Absent,
    /// It could not be had, for this reason. Checks that need it are unknown, never well and never broken.
    Unavailable(String),
}

impl<T> Default for Fact<T> {
    fn default() -> Self {
        Self::Unavailable("nobody looked".to_owned())
    }
}

impl<T> Fact<T> {
    /// A fact that could not be had.
    pub fn unavailable(why: impl std::fmt::Display) -> Self {
        Self::Unavailable(why.to_string())
    }

    /// A value that there may be.
    pub fn of(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Self::Known)
    }

    /// A value, or the error that kept it away.
    pub(crate) fn from_result<E: std::fmt::Display>(result: Result<T, E>) -> Self {
        result.map_or_else(Self::unavailable, Self::Known)
    }

    /// The value, if it is known.
    pub fn known(&self) -> Option<&T> {
        if let Self::Known(value) = self {
            Some(value)
        } else {
            None
        }
    }

    /// Why it could not be had.
    pub fn why(&self) -> Option<&str> {
        if let Self::Unavailable(why) = self {
            Some(why)
        } else {
            None
        }
    }
}
