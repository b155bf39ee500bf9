//! The result of comparing a class of packets with a rule's condition.

/// Whether packets fulfil the condition of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fits {
    /// No packet fulfils the condition.
    No,
    /// The reader does not understand the condition, or only some of the packets fulfil the condition.
    Perhaps,
    /// All packets fulfil the condition.
    Yes,
}

impl Fits {
    /// Returns `Yes` if `is` is true, otherwise `No`.
    pub fn of(is: bool) -> Fits {
        if is { Fits::Yes } else { Fits::No }
    }

    /// Exchanges `Yes` and `No` if the rule negates the condition.
    #[must_use]
    pub(crate) fn negated_if(self, negated: bool) -> Fits {
        match self {
            Fits::Yes if negated => Fits::No,
            Fits::No if negated => Fits::Yes,
            same => same,
        }
    }
}
