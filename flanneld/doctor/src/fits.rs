//! Whether a packet fulfils the condition of a rule.

/// Whether a packet fulfils a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fits {
    /// It does not.
    No,
    /// It may: the condition is not understood, or not all packets fulfil it.
    Perhaps,
    /// It does.
    Yes,
}

impl Fits {
    /// Yes or no.
    pub fn of(is: bool) -> Fits {
        if is { Fits::Yes } else { Fits::No }
    }

    /// The opposite condition.
    #[must_use]
    pub fn inverted(self) -> Fits {
        match self {
            Fits::Yes => Fits::No,
            Fits::Perhaps => Fits::Perhaps,
            Fits::No => Fits::Yes,
        }
    }
}
