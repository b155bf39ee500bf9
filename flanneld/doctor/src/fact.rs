//! A fact about the node: a known value, a known absence, or a reason why the fact is unavailable.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<T> {
    Known(T),
    /// The value certainly does not exist.
    Absent,
    /// With the reason. The result of a check that needs the fact is unknown.
    Unavailable(String),
}

impl<T> Default for Fact<T> {
    fn default() -> Self {
        Self::Unavailable("not gathered".to_owned())
    }
}

impl<T> Fact<T> {
    pub fn unavailable(why: impl std::fmt::Display) -> Self {
        Self::Unavailable(why.to_string())
    }

    /// `Absent` for `None`.
    pub fn of(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Self::Known)
    }

    pub(crate) fn from_result<E: std::fmt::Display>(result: Result<T, E>) -> Self {
        result.map_or_else(Self::unavailable, Self::Known)
    }

    /// `None` if the value is absent or unavailable.
    pub fn known(&self) -> Option<&T> {
        if let Self::Known(value) = self { Some(value) } else { None }
    }

    /// `None` if the value is known or absent.
    pub fn why(&self) -> Option<&str> {
        if let Self::Unavailable(why) = self { Some(why) } else { None }
    }
}
