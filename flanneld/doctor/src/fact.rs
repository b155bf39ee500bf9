//! One fact: known, known to be absent, or unavailable for a reason.

/// One fact about the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<T> {
    /// The value is known.
    Known(T),
    /// Known absence of the value.
    Absent,
    /// Reason why the doctor could not determine the value. A check that needs the value neither passes nor fails: its result is unknown.
    Unavailable(String),
}

impl<T> Default for Fact<T> {
    fn default() -> Self {
        Self::Unavailable("not gathered".to_owned())
    }
}

impl<T> Fact<T> {
    /// Returns an unavailable fact with the reason.
    pub fn unavailable(why: impl std::fmt::Display) -> Self {
        Self::Unavailable(why.to_string())
    }

    /// Returns a known value, or `Absent` for `None`.
    pub fn of(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Self::Known)
    }

    /// Returns a known value, or an unavailable fact with the error as the reason.
    pub(crate) fn from_result<E: std::fmt::Display>(result: Result<T, E>) -> Self {
        result.map_or_else(Self::unavailable, Self::Known)
    }

    /// Returns the value, if it is known.
    pub fn known(&self) -> Option<&T> {
        if let Self::Known(value) = self {
            Some(value)
        } else {
            None
        }
    }

    /// Returns the reason why the value is unavailable; `None` if the value is known or absent.
    pub fn why(&self) -> Option<&str> {
        if let Self::Unavailable(why) = self {
            Some(why)
        } else {
            None
        }
    }
}
