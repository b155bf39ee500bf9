//! The result of a comparison of packets with a condition.

/// Whether packets fulfil a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fits {
    /// Condition that no packet fulfils.
    No,
    /// Unknown result: the reader does not understand the condition, or only some of the packets fulfil it.
    Perhaps,
    /// Condition that all packets fulfil.
    Yes,
}

impl Fits {
    /// Returns `Yes` or `No`.
    pub fn of(is: bool) -> Fits {
        if is { Fits::Yes } else { Fits::No }
    }

    /// Inverts the result if the condition is negated.
    #[must_use]
    pub(crate) fn negated_if(self, negated: bool) -> Fits {
        match self {
            Fits::Yes if negated => Fits::No,
            Fits::No if negated => Fits::Yes,
            same => same,
        }
    }
}
