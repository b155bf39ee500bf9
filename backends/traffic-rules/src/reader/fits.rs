//! The result of comparing a class of packets with a rule's condition.

/// Whether packets fulfil a rule's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fits {
    /// No packet does.
    No,
    /// Only some packets do, or the reader does not understand the condition.
    Perhaps,
    /// All packets do.
    Yes,
}

impl Fits {
    /// Exchanges `Yes` and `No`.
    #[must_use]
    pub(crate) fn negated_if(self, negated: bool) -> Fits {
        match self {
            Fits::Yes if negated => Fits::No,
            Fits::No if negated => Fits::Yes,
            same => same,
        }
    }
}
