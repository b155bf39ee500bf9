//! What the nodes answered.

use doctor::Finding;
use node_api::{Source, Unanswered};

/// The findings of one node that nothing on it explains.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub node: String,
    pub causes: Vec<Finding>,
}

/// What all nodes answered.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    pub source: Source,
    pub answered: Vec<Answer>,
    pub unanswered: Vec<Unanswered>,
}
