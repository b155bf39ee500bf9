//! A fact about the node: a known value, a known absence, or a reason why the fact is unavailable.

/// A fact that the doctor gathers about the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<T> {
    /// A known value.
    Known(T),
    /// The doctor knows that the value does not exist.
    Absent,
    /// Reason why the doctor could not determine the value of the fact. The result of a check that needs the fact is unknown.
    Unavailable(String),
}

impl<T> Default for Fact<T> {
    fn default() -> Self {
        Self::Unavailable("not gathered".to_owned())
    }
}

impl<T> Fact<T> {
    /// Returns an unavailable fact with the given reason.
    pub fn unavailable(why: impl std::fmt::Display) -> Self {
        Self::Unavailable(why.to_string())
    }

    /// Returns a known fact with the given value, or `Absent` for `None`.
    pub fn of(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Self::Known)
    }

    /// Returns a known fact with the given value, or an unavailable fact with the error as the reason.
    pub(crate) fn from_result<E: std::fmt::Display>(result: Result<T, E>) -> Self {
        result.map_or_else(Self::unavailable, Self::Known)
    }

    /// Returns the value of a known fact; `None` if the value is absent or unavailable.
    pub fn known(&self) -> Option<&T> {
        if let Self::Known(value) = self { Some(value) } else { None }
    }

    /// Returns the reason why the value is unavailable; `None` if the value is known or absent.
    pub fn why(&self) -> Option<&str> {
        if let Self::Unavailable(why) = self { Some(why) } else { None }
    }
}
