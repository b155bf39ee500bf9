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

    /// Inverts it if the condition is negated.
    #[must_use]
    pub(crate) fn negated_if(self, negated: bool) -> Fits {
        match self {
            Fits::Yes if negated => Fits::No,
            Fits::No if negated => Fits::Yes,
            same => same,
        }
    }
}
